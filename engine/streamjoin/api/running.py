"""A running join as an iterator of epochs.

Always holds: each epoch that the iterator gives is committed. However a run is left, its workers end, and the next run goes on from the
last commit.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import signal
import threading
import weakref
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from streamjoin.api.loop import Ended, Entering, Event, Notice, Reason, Retrying
from streamjoin.elastic.decision import Decision
from streamjoin.epoch.delays import Delays
from streamjoin.epoch.ports import EpochResult, JoinWork
from streamjoin.job import Inbox, Job
from streamjoin.manifest.connector import SinkConnector
from streamjoin.manifest.problem import ManifestError, Problem

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger("streamjoin")
RUNNERS = ("spark", "inline")


@dataclass(frozen=True)
class Epoch:
    """What one committed epoch did."""

    detail: EpochResult
    """All that is known of it, by index of stream, place and task."""
    streams: tuple[str, ...]
    results: Mapping[str, pa.Table]
    """By join, for those with a console sink: what they have found."""
    decision: Decision | None
    """The autoscaler's, where there is one."""

    @property
    def number(self) -> int:
        """Counted from the checkpoint's first one."""
        return self.detail.epoch

    @property
    def started_at(self) -> datetime:
        return datetime.fromtimestamp(self.detail.started_at, UTC)

    @property
    def seconds(self) -> float:
        """How long it took, without the start of workers."""
        return self.detail.duration

    @cached_property
    def counts(self) -> dict[str, dict[str, int]]:
        """By stream: how many records came (``input``), and what became of them: ``accepted``, ``late``, ``shed``, ``rejected``,
        ``filtered``, ``unmatchable``; ``routed`` counts replicas."""
        return {
            stream: {name: of_streams[number] for name, of_streams in self.detail.counts.items()}
            for number, stream in enumerate(self.streams)
        }

    @property
    def rejections(self) -> dict[str, str]:
        """By stream that had records which could not be used: why the first of them could not."""
        return {stream: reason for stream, reason in zip(self.streams, self.detail.rejections, strict=True) if reason}

    @property
    def output(self) -> int:
        """The number of results of all joins."""
        return self.detail.output

    @property
    def joins(self) -> Mapping[str, JoinWork]:
        """By join: the number of results, and of the pairs that were checked for them."""
        return self.detail.joins

    @property
    def delays(self) -> Mapping[str, Delays]:
        """By join: how long records waited for results that became visible with this epoch, or since the one before: ``quantile(0.99)``,
        ``longest``, ``count``. A join of which none did is not there."""
        return self.detail.delays

    @property
    def backlog(self) -> dict[str, int]:
        """By stream: how many records wait to be read, as far as is known."""
        return dict(zip(self.streams, self.detail.backlog, strict=True))

    @property
    def watermarks(self) -> dict[str, datetime | None]:
        """By stream: the watermark. Tuples with an earlier event time are late."""
        found = zip(self.streams, self.detail.watermarks, strict=True)
        return {stream: None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC) for stream, micros in found}

    @property
    def workers(self) -> int:
        return len(self.detail.held)

    @property
    def utilization(self) -> Mapping[int, float]:
        """By worker: tau, what it holds / its capacity."""
        return self.detail.utilization

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.detail.warnings

    def __repr__(self) -> str:
        return f"<streamjoin.Epoch {self.number}: {self.output} results in {self.seconds:.3f} s>"


_open: weakref.WeakSet[Run] = weakref.WeakSet()
"""Runs that have begun and not ended."""


def _close_at_exit(run: Run) -> None:
    """Have the run closed before all that it has begun so far, its runner among it, sees to its own end."""
    _open.add(run)
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _close_all() -> None:
    """Close what a program has left open, as one that ends with an error: later, as its objects go, no thread can be waited for."""
    for run in list(_open):
        with contextlib.suppress(ValueError):  # another thread is in the midst of it
            run.close()


class Run(Iterator[Epoch]):
    """An iterator of epochs, made by ``Join.run``. Use it as a context manager, or close it, or take it to its end. A program that ends
    closes it.

    An epoch begins when you ask for it: a program that takes longer for an epoch than ``spec.epoch.interval`` slows the join down. Other
    threads may call ``stop`` only. Retries and warnings go to the logger ``streamjoin``.
    """

    def __init__(
        self,
        job: Job,
        *,
        runner: str = "spark",
        until_idle: bool = False,
        for_seconds: float | None = None,
        elastic: bool = False,
        log_directory: Path | None = None,
    ) -> None:
        """Raises ValueError for arguments that cannot be, ManifestError where the join is suspended."""
        from streamjoin.api.execution import default_log_directory

        if runner not in RUNNERS:
            raise ValueError(f"runner: {runner!r} must be one of {', '.join(RUNNERS)}")
        if for_seconds is not None and not for_seconds > 0:
            raise ValueError(f"for_seconds: {for_seconds!r} must be more than nothing")
        if job.manifest.spec.suspend:
            text = "nothing is run, and the state is kept; set it to false to go on"
            raise ManifestError((Problem("spec.suspend", True, text),))
        self._inboxes = {join.name: Inbox() for join in job.joins if isinstance(join.sink, SinkConnector) and join.sink.is_shown}
        joins = tuple(replace(join, sink=self._inboxes.get(join.name, join.sink)) for join in job.joins)
        self._job, self._runner = replace(job, joins=joins), runner
        self._until_idle, self._for_seconds, self._elastic = until_idle, for_seconds, elastic
        self._log_directory = (log_directory or default_log_directory(job)).absolute()
        self._stop = threading.Event()
        self._ended: Ended | None = None
        self._recovered: dict[str, pa.Table] = {}
        self._epochs = self._run()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Epoch:
        """The next committed epoch. Raises Failure, once, where the run has failed: its cause is the error."""
        return next(self._epochs)

    def wait(self) -> Reason:
        """Run to the end and return the reason. Epochs are not kept. Raises Failure."""
        for _ in self:
            pass
        assert self.reason is not None, "an iterator that is taken to its end has ended"
        return self.reason

    def stop(self) -> None:
        """Let the running epoch end, and begin no other. Returns at once; any thread may call it."""
        self._stop.set()

    def close(self) -> None:
        """End the run: stop the workers, and make waiting results visible. Does nothing if the run has ended."""
        self._stop.set()
        self._epochs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def reason(self) -> Reason | None:
        """Why the run is over; None if it is not over, or has not begun."""
        return None if self._ended is None else self._ended.reason

    @property
    def recovered(self) -> Mapping[str, pa.Table]:
        """Committed results, by join with a console sink, that belong to no epoch of this run.

        From the first epoch on: the results of the last commit before, if that process was killed; nobody can know whether it had handed
        them over. After the end: also those of an epoch that was committed, and then failed or was interrupted.
        """
        return self._recovered

    def _run(self) -> Generator[Epoch, None, None]:
        from streamjoin.api.execution import Execution
        from streamjoin.api.machine import fitted, machine_bytes
        from streamjoin.api.runners import inline_runner, local_spark_runner

        job, directory = fitted(self._job, machine_bytes()), self._log_directory
        runner = inline_runner
        if self._runner == "spark":
            runner = partial(local_spark_runner, job, directory, may_grow=self._elastic, inline='runner="inline"')
        execution = Execution(job, runner, self._tell, directory, elastic=self._elastic)
        loop = execution.loop(stop=self._stop, until_idle=self._until_idle, run_seconds=self._for_seconds)
        before = signal.getsignal(signal.SIGINT)
        try:
            with contextlib.closing(loop.epochs()) as epochs:
                for done in epochs:
                    if self not in _open:
                        _close_at_exit(self)
                    yield Epoch(done.result, tuple(stream.name for stream in job.streams), self._taken(), done.decision)
        finally:
            _open.discard(self)
            self._recover()
            _restore_interrupts(before)
        if self._ended is not None and self._ended.failure is not None:
            raise self._ended.failure

    def _taken(self) -> dict[str, pa.Table]:
        from streamjoin.io.inbox import taken
        from streamjoin.kernel.types import output_schema

        outputs = {join.name: join.output for join in self._job.joins}
        return {name: taken(inbox, output_schema(outputs[name])) for name, inbox in self._inboxes.items()}

    def _recover(self) -> None:
        import pyarrow as pa

        for name, table in self._taken().items():
            if table.num_rows:
                before = self._recovered.get(name)
                self._recovered[name] = table if before is None else pa.concat_tables([before, table])

    def _tell(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._ended = event
        elif isinstance(event, Entering) and event.step == "sweep":  # what the commit before had staged has just been made visible
            self._recover()
        else:
            log(event)


def log(event: Event) -> None:
    """What a program that runs a join is to know of it, where nobody watches."""
    if isinstance(event, Retrying):
        LOG.warning("%s; trying again", event.sentence)
    elif isinstance(event, Notice):
        LOG.info("%s", event.text)


def _restore_interrupts(before: Any) -> None:
    """Puts the handler of Ctrl-C back that was there before PySpark installed its own, which outlives its context."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and handler is not before and before is not None and str(getattr(handler, "__module__", "")).startswith("pyspark."):
        signal.signal(signal.SIGINT, before)
