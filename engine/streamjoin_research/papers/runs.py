"""Joins that run for rows of kind R: two streams of keys, joined by the engine under one model, and what each task did in each epoch.

They run on the inline runner: all tasks in this process, one after another, each with a store of its own. So what is counted is the same on
every machine, and the processor time of each task is known by itself, however many there are. From that follow two times of an epoch:

- *apart*, a processor for each task: that of the task that takes longest;
- *together*, one processor for all: the sum.

Routing is not in them, nor are merging of runs and writing, which the papers' systems do not have. A processor's time is taken, not that of
a clock, so other programs on the machine disturb it little.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochResult
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import EpochSpec
from streamjoin.job import Job
from streamjoin.manifest import ManifestError, check
from streamjoin.manifest.model import API_VERSION, KIND
from streamjoin.runner.inline import InlineEpoch, InlineRunner
from streamjoin.scheme.tiling import Scheme
from streamjoin.state.storage import ObjectStorage

Array = np.ndarray[Any, np.dtype[Any]]
Keys = tuple[Array, Array]
"""Of each stream's new tuples, int64."""

STEP_SECONDS = 60
"""Of event time between the tuples of one epoch and those of the next: section 5.3's slide."""
START_MICROS = 1_700_000_000_000_000
PLENTY = 1_000_000_000
NAMES = "l", "r"


@dataclass(frozen=True)
class Epoch:
    """What was done in one epoch; sequences are by task."""

    cpu_seconds: Sequence[float]
    received: Sequence[int]
    """Tuples that came, to be held or only to probe: the paper's join requests."""
    candidates: Sequence[int]
    """Pairs that the main predicate admitted."""
    held: Sequence[int]
    tuples: int
    """New ones, of both streams."""
    output: int
    routed_bytes: int
    moved: Sequence[int]
    """Tuples that came from other tasks because the plan is new."""
    generation: int
    """Of its plan."""

    @property
    def tasks(self) -> int:
        return len(self.received)

    @property
    def work(self) -> Sequence[int]:
        """Tuples received, those of a migration among them, and pairs looked at: Eqs. 2 and 3, each counting as one."""
        return [sum(each) for each in zip(self.received, self.moved, self.candidates, strict=True)]

    @property
    def apart(self) -> float:
        return max(self.cpu_seconds)

    @property
    def together(self) -> float:
        return sum(self.cpu_seconds)


@dataclass(frozen=True)
class Run:
    """All epochs of one run."""

    epochs: Sequence[Epoch]

    def since(self, first: int) -> Run:
        """Without the first epochs: those in which a window fills."""
        return Run(self.epochs[first:])

    @cached_property
    def tasks(self) -> int:
        """In the last epoch."""
        return self.epochs[-1].tasks

    @cached_property
    def apart(self) -> float:
        """Seconds, with a processor for each task."""
        return sum(epoch.apart for epoch in self.epochs)

    @cached_property
    def together(self) -> float:
        """Seconds, with one processor for all tasks."""
        return sum(epoch.together for epoch in self.epochs)

    @cached_property
    def work(self) -> int:
        """Of the busiest task of each epoch: what takes long where each task has a processor."""
        return sum(max(epoch.work) for epoch in self.epochs)

    @cached_property
    def all_work(self) -> int:
        """Of all tasks: what takes long where they share one."""
        return sum(sum(epoch.work) for epoch in self.epochs)

    @cached_property
    def tuples(self) -> int:
        return sum(epoch.tuples for epoch in self.epochs)

    @cached_property
    def received(self) -> int:
        return sum(sum(epoch.received) for epoch in self.epochs)

    @cached_property
    def copies(self) -> float:
        """To how many tasks a tuple is sent, on average."""
        return self.received / self.tuples

    @cached_property
    def requests(self) -> float:
        """Of 100 tuples, how many a task receives, on average."""
        return 100 * statistics.mean(statistics.mean(epoch.received) / epoch.tuples for epoch in self.epochs)

    @cached_property
    def candidates(self) -> int:
        return sum(sum(epoch.candidates) for epoch in self.epochs)

    @cached_property
    def output(self) -> int:
        return sum(epoch.output for epoch in self.epochs)

    @cached_property
    def moved(self) -> int:
        """Tuples, of all plans together."""
        return sum(sum(epoch.moved) for epoch in self.epochs)

    @cached_property
    def most_moved(self) -> float:
        """Tuples that the task fetches that has most to fetch: how long a plan takes. The mean of all plans; 0: there is none."""
        fetched = [max(after.moved) for before, after in pairwise(self.epochs) if after.generation != before.generation]
        return statistics.mean(fetched) if fetched else 0.0

    @cached_property
    def adjustments(self) -> int:
        """Plans after the first."""
        return sum(after.generation != before.generation for before, after in pairwise(self.epochs))

    @cached_property
    def latency(self) -> float:
        """Of an epoch, on average: the work until the last of its results is found."""
        return self.work / len(self.epochs)

    @cached_property
    def task_time(self) -> float:
        """RC of tasks (section 5.1): tasks x the time for which they are there, which is the busiest one's work."""
        return sum(epoch.tasks * max(epoch.work) for epoch in self.epochs)

    @cached_property
    def sent_time(self) -> float:
        """RC of the network: tuples sent x the same time."""
        return sum(sum(epoch.received) * max(epoch.work) for epoch in self.epochs)


class _Recording(InlineRunner):
    """Keeps what the last epoch's tasks report. One epoch is in flight at a time, so that a plan that is put is the next epoch's."""

    last: _Recorded

    @property
    def overlaps(self) -> bool:
        return False

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> InlineEpoch:
        self.last = _Recorded(spec, workers, self._stores)
        return self.last


class _Recorded(InlineEpoch):
    reports: Sequence[TaskReport] = ()

    def result(self) -> list[TaskReport]:
        found = super().result()
        self.reports = found
        return found


@dataclass(frozen=True)
class Join:
    """One join of the two streams, as a manifest has it; their columns are k, the key, and v, a number below :data:`VALUES`."""

    condition: str
    window_seconds: int | None = None
    """How far event times may be apart; None: however far."""

    def to_manifest(self, name: str) -> dict[str, Any]:
        window: dict[str, Any] = {"unbounded": True} if self.window_seconds is None else {"within": f"{self.window_seconds}s"}
        output = {"select": ["l.v AS a", "r.v AS b"], "sink": {"console": {"limit": 0}}}
        return {"name": name, "condition": self.condition, "window": window, "output": output}


VALUES = 1000


class Streams:
    """Two streams as Parquet files, one of each for an epoch."""

    def __init__(self, root: Path, epochs: Sequence[Keys], *, seed: int = 0) -> None:
        """``epochs``: the keys of each; values are drawn from 0 to :data:`VALUES` - 1."""
        self.root, self.epochs = root, epochs
        chance = np.random.default_rng(seed)
        for side, name in enumerate(NAMES):
            folder = root / name
            folder.mkdir(parents=True)
            for number, keys in enumerate(epochs):
                own = keys[side]
                times = np.full(len(own), START_MICROS + number * STEP_SECONDS * 1_000_000)
                columns = {
                    "k": pa.array(own, pa.int64()),
                    "v": pa.array(chance.integers(0, VALUES, len(own)), pa.int64()),
                    "at": pa.array(times, pa.timestamp("us", "UTC")),
                }
                path = folder / f"{number:05d}.parquet"
                pq.write_table(pa.table(columns), path)
                os.utime(path, (1_000_000_000 + number,) * 2)


@contextlib.contextmanager
def streams(epochs: Sequence[Keys], *, seed: int = 0) -> Iterator[Streams]:
    """Streams in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="streamjoin-papers-") as name:
        yield Streams(Path(name), epochs, seed=seed)


@dataclass(frozen=True)
class Tasks:
    """How a run is cut: a model, and for how many tasks."""

    model: str
    least: int
    most: int
    capacity: float = PLENTY
    """Tuples: V."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of ``spec.scheme``, beside the model."""

    @classmethod
    def exactly(cls, model: str, tasks: int, **options: Any) -> Tasks:
        return cls(model, tasks, tasks, options=options)


Replan = Callable[[Driver, EpochResult], None]
"""Is told of each epoch, and may put a plan."""


def run(given: Streams, joins: Sequence[Join], tasks: Tasks, replan: Replan | None = None) -> Run:
    """Join all input. Results are counted and dropped. Raises what the driver does."""
    _warm()
    return _run(given, joins, tasks, replan)


@cache
def _warm() -> None:
    """What is done once in a process is not to be in any epoch's time."""
    chance = np.random.default_rng(0)
    with streams([(chance.integers(0, 9, 50), chance.integers(0, 9, 50))] * 3) as given:
        for condition in ("l.k = r.k", "abs(l.k - r.k) <= 1", "abs(l.k - r.k) <= 9 AND (l.v + r.v) % 7 = 0"):
            for window in (None, 60):
                _run(given, [Join(condition, window)], Tasks.exactly("adsp", 2), None)


def _run(given: Streams, joins: Sequence[Join], tasks: Tasks, replan: Replan | None) -> Run:
    runner = _Recording()
    with tempfile.TemporaryDirectory(prefix="state-", dir=given.root) as state:
        job = job_of(given, joins, tasks, state)
        driver = Driver(job, ObjectStorage(job.checkpoint), runner, in_background=False)
        found: list[Epoch] = []
        try:
            with _silent():
                driver.start()
            while True:
                with _silent():
                    result = driver.step()
                if result is None:
                    return Run(found)
                assert driver.scheme is not None, "an epoch ran under it"
                found.append(_epoch(result, runner.last, driver.scheme))
                if replan is not None and not driver.exhausted:
                    replan(driver, result)
        finally:
            with _silent():
                driver.stop()


def _epoch(result: EpochResult, done: _Recorded, scheme: Scheme) -> Epoch:
    received, reports = [0] * scheme.tasks, {report.task: report for report in done.reports}
    for report in done.reports:
        for route in report.routes:
            for (area, _), count in route.kept.items():
                received[scheme.areas[area].task] += count
    return Epoch(
        [done.cpu_seconds[task] for task in range(scheme.tasks)],
        received,
        [result.work[task].candidates for task in range(scheme.tasks)],
        [sum(result.held[task]) for task in range(scheme.tasks)],
        sum(result.counts["accepted"]),
        result.output,
        sum(result.counts["routed_bytes"]),
        [reports[task].moved_tuples for task in range(scheme.tasks)],
        result.generation,
    )


def job_of(given: Streams, joins: Sequence[Join], tasks: Tasks, state: str) -> Job:
    """As ``streamjoin run`` would have it."""
    source = {"format": "parquet", "maxFilesPerEpoch": 1}
    spec = {
        "streams": [
            {
                "name": name,
                "source": {"files": source | {"path": str(given.root / name)}},
                "schema": "k BIGINT, v BIGINT, at TIMESTAMP",
                "eventTime": "at",
                "watermark": "0s",
            }
            for name in NAMES
        ],
        "joins": [join.to_manifest(f"j{number}") for number, join in enumerate(joins)],
        "scheme": {"model": tasks.model} | dict(tasks.options),
        "workers": {"min": tasks.least, "max": tasks.most, "capacityTuples": round(tasks.capacity)},
        "epoch": {"maxTuples": PLENTY, "maxBytes": "16Gi"},
        "shedding": {"model": "off"},
        "checkpoint": {"location": state},
    }
    document = check({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "papers"}, "spec": spec}, keep_unknown=True)
    if document.manifest is None:
        raise ManifestError(document.problems)
    return compile_job(document.manifest)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The console sink says how many rows it has not shown; nobody wants to know."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
