"""The runners of a run: in this process, or on a Spark of this machine's or of a cluster's. Each tells when it starts its workers."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from streamjoin.api.failure import Exit, Failure
from streamjoin.api.loop import WARNING, Event, Notice, Started, Starting
from streamjoin.epoch.ports import EpochFailed, Runner
from streamjoin.job import Job

if TYPE_CHECKING:
    from streamjoin.runner.spark import SparkSettings

Tell = Callable[[Event], None]
MakeRunner = Callable[[Tell], Runner]
"""Makes a runner that tells of its starts. Raises Failure."""


@contextlib.contextmanager
def told(workers: Sequence[int], tell: Tell) -> Iterator[None]:
    """Around the start of workers, of which ``tell`` is told. Where they cannot be started, that is no reason to try an epoch again."""
    tell(Starting(len(workers)))
    began = time.monotonic()
    try:
        yield
    except EpochFailed as error:
        error.permanent = True
        raise
    tell(Started(len(workers), time.monotonic() - began))


def inline_runner(tell: Tell) -> Runner:
    """The runner of this process."""
    from streamjoin.runner.inline import InlineRunner

    class Told(InlineRunner):
        def start(self, workers: Sequence[int], least: int = 1) -> None:
            with told(workers, tell):
                super().start(workers, least)

    return Told()


def spark_runner(settings: SparkSettings, tell: Tell, before: Callable[[int], None] = lambda workers: None) -> Runner:
    """The runner on Spark. ``before`` is told how many workers are about to be started."""
    from streamjoin.runner.spark import SparkRunner

    class Told(SparkRunner):
        def start(self, workers: Sequence[int], least: int = 1) -> None:
            with told(workers, tell):
                before(len(workers))
                super().start(workers, least)

        def request(self, count: int) -> None:
            if self.context is None:
                before(count)
            super().request(count)

    return Told(settings)


def local_spark_runner(job: Job, log_directory: Path, tell: Tell, *, may_grow: bool, inline: str) -> Runner:
    """The runner on a Spark of this machine's. ``may_grow``: a plan may bring more workers; ``inline``: how to say that all is to be in
    this process. Raises Failure where there is no Java, or a Spark already."""
    from streamjoin.runner.spark import SparkSettings

    java_home = require_java(inline)
    pyspark = sys.modules.get("pyspark")
    if pyspark is not None and pyspark.SparkContext._active_spark_context is not None:
        text = "a Spark session is active in this process, which can have one only, and the join starts its own"
        raise Failure(Exit.USAGE, f"{text}; stop that, or run the join in another process, or with {inline}")

    def before(workers: int) -> None:
        from streamjoin.api.machine import machine_bytes, shortage
        from streamjoin.kernel.run import warm
        from streamjoin.manifest.memory import LEAST

        warning = shortage(job.memory_bytes, max(workers, job.max_workers) if may_grow else workers, machine_bytes())
        is_fitted = job.capacity.origin and job.capacity.amount > LEAST
        if warning is not None and not is_fitted:
            tell(Notice(WARNING + warning))
        warm()  # compiled once, here: the workers find it in the cache

    return spark_runner(SparkSettings(log_directory, java_home=java_home, stabilization_seconds=job.stabilization_seconds), tell, before)


def require_java(inline: str) -> Path:
    """The JAVA_HOME to run Spark with. ``inline``: as of :func:`local_spark_runner`. Raises Failure where there is none."""
    from streamjoin.runner.java import JavaNotFound, find_java

    try:
        return find_java()
    except JavaNotFound as missing:
        raise Failure(Exit.JAVA, f"{missing}; or try {inline}, which needs none") from missing
