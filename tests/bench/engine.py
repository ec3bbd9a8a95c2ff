"""Runs of StreamJoin for the benchmarks: the driver as ``streamjoin run`` has it, with what is measured taken away or watched.

Always holds: input is there before the run, so that epochs follow each other without a pause, two of them in flight.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.forgetful import Durable, Forgetful
from bench.workloads import FULL_AFTER, WINDOW, Workload, timed_epochs
from harness import make_job
from spark_path import have_workers_find_tests
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochResult, Runner
from streamjoin.job import Job
from streamjoin.runner.collecting import collecting_seldom
from streamjoin.runner.java import find_java
from streamjoin.runner.spark import SparkRunner, SparkSettings

PLENTY = 1_000_000_000
"""Tuples: a capacity and an epoch's size that are never reached."""


@dataclass(frozen=True)
class Costs:
    """What a run of StreamJoin does without."""

    durable: bool = True
    """False: blocks and log are kept nowhere."""
    output: bool = True
    """False: results are counted and dropped, by the console sink."""


def spark_runner(root: Path, **settings: Any) -> SparkRunner:
    """A runner whose workers find the benchmarks' own classes. ``settings``: of SparkSettings."""
    os.environ["JAVA_HOME"] = str(find_java())
    have_workers_find_tests()
    return SparkRunner(SparkSettings(root / "logs", **settings))


class OneAtATime:
    """A runner with one epoch in flight: what two gain is the difference."""

    overlaps: bool = False

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def job_of(
    root: Path, workload: Workload, *, seconds: int = 1, workers: int = 2, output: bool = True, select: Sequence[str] = (), **options: Any
) -> Job:
    """The job that joins ``root``'s input, ``seconds`` files a side in each epoch. ``select``: if not the workload's."""
    stream = {"schema": workload.schema, "eventTime": "at", "watermark": "0s"}
    source = {"format": "parquet", "maxFilesPerEpoch": seconds}
    sink: dict[str, Any] = {"files": {"path": str(root / "out"), "format": "parquet"}} if output else {"console": {"limit": 0}}
    given: dict[str, Any] = {
        "window": {"within": f"{WINDOW}s"},
        "streams": [stream | {"name": side, "source": {"files": source | {"path": str(root / f"in-{side}")}}} for side in "lr"],
        "capacity": PLENTY,
        "epoch": {"maxTuples": PLENTY, "maxBytes": "16Gi"},
    }
    return make_job(
        root, on=workload.on, types=("BIGINT", "BIGINT"), workers=workers, output={"select": list(select or workload.select), "sink": sink},
        **given | options,
    )  # fmt: skip


def join(job: Job, runner: Runner, *, durable: bool = True, fresh: bool = True) -> Iterator[EpochResult]:
    """The committed epochs of a join, until its input has been read. ``fresh``: whatever an earlier run left is removed first."""
    if fresh:
        for path in (job.checkpoint, Path(job.checkpoint).parent / "out"):
            shutil.rmtree(path, ignore_errors=True)
    driver = Driver(job, Durable(job.checkpoint) if durable else Forgetful(), runner)
    with collecting_seldom():
        with silent():
            driver.start()
        while True:
            with silent():
                result = driver.step()
            if result is None:
                return
            yield result


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """The console sink says how many rows it has not shown; nobody wants to know."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@dataclass(frozen=True)
class Run:
    """The epochs of a run."""

    seconds: Sequence[float]
    """From one commit to the next."""
    results: Sequence[EpochResult]


def timed(epochs: Iterator[EpochResult]) -> Run:
    return Run(*timed_epochs(epochs))


def full(seconds: int) -> int:
    """How many epochs of so many seconds pass before the window is full."""
    return math.ceil(FULL_AFTER / seconds)
