"""The interface between the loop and the runners: the runner's protocol, an epoch's results, and the ways in which an epoch fails."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from streamjoin.elastic.completeness import Losses
from streamjoin.epoch.delays import Delays
from streamjoin.epoch.reports import SplitTooLarge, TaskReport, TooLarge
from streamjoin.epoch.spec import EpochSpec
from streamjoin.io.base import Blocked

HELD_SECONDS = 60.0
"""A stream that holds the watermarks back for as long is told of."""


class Running(Protocol):
    """An epoch's tasks at work."""

    def result(self) -> list[TaskReport]:
        """One report per task, once all are over. Raises EpochFailed when a task failed for good."""

    def cancel(self) -> None:
        """Wait until it has ended, so that nothing is written any more; its result is not wanted. Never raises."""


class Runner(Protocol):
    """Carries an epoch's tasks out: routes each split, brings each piece to its task, joins each task on the worker that has its runs.

    Workers are numbers that the driver chooses; one that the runner has not heard of before is new. Which executor is which worker is the
    runner's business, and only speed depends on it.
    """

    def start(self, workers: Sequence[int], least: int = 1) -> None:
        """Make these workers ready, and no others; or at least so many, where no other comes for long. Raises EpochFailed."""

    def request(self, count: int) -> None:
        """Ask for so many workers in all, and for no others that have no task. Returns at once; may be asked again and again. Before the
        start it begins all that takes long, and returns when workers may come. Raises EpochFailed where that fails."""

    @property
    def ready(self) -> int:
        """How many workers there are, ready to work."""

    @property
    def absence(self) -> str | None:
        """Why workers that were asked for have not come, as far as something went wrong; None: nothing did. Any thread may call this."""

    @property
    def waits_for(self) -> tuple[str, ...] | None:
        """Workers that have yet to answer in the earliest epoch in flight; None where tasks run in the driver's own thread. Any thread may
        call this."""

    @property
    def moved_at(self) -> float:
        """When something of an epoch in flight was last sent, received or finished, by ``time.monotonic``. Any thread may call this."""

    @property
    def overlaps(self) -> bool:
        """Whether an epoch may be begun while another is in flight: not when workers are to be put in order between epochs first."""

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Running:
        """Begin an epoch, its task t on ``workers[t]``. At most one other may be in flight, the one that this one follows. It fails when
        nothing of it moves for ``spec.deadline_seconds``."""

    @property
    def executors(self) -> Mapping[int, str]:
        """The executor that each worker which is there is on, as far as there are executors. Any thread may call this."""

    @property
    def leaving(self) -> Mapping[int, float]:
        """Workers that were told to go and still serve, and the seconds that they have left. Others are asked for already."""

    def release(self, workers: Sequence[int], places: int | None = None) -> None:
        """Let all workers go but these, and go on to ask for ``places`` in all, or for no others. Returns at once. Nothing may be in
        flight."""

    def stop(self) -> None: ...


_CAUSE = re.compile(r"^[^:]+: ([A-Z]\w*): ")
NOT_DATA = {"SourceError", "SinkError", "UnavailableError", "StorageError", "Missing", "Abandoned", "ExchangeError"}
"""Exceptions in tasks that say what failed, as those of the system do, and that it was not the data."""


class EpochFailed(RuntimeError):  # noqa: N818
    """An epoch failed, uncommitted or committed but not yet published, and can be tried again. One line; ``detail`` has the trace."""

    def __init__(
        self,
        message: str,
        detail: str = "",
        *,
        permanent: bool = False,
        worker_died: bool = False,
        stalled: bool = False,
        too_large: TooLarge | None = None,
    ) -> None:
        super().__init__(message)
        self.detail = detail
        self.permanent = permanent
        """Trying again would fail in the same way."""
        self.worker_died = worker_died
        """Nothing was wrong but that; another attempt begins when the worker is there again, so that nobody need wait before."""
        self.stalled = stalled
        """Nothing of it moved within the epoch's deadline; the workers that owed an answer are replaced."""
        self.too_large = too_large
        """The split whose records are too large for their number: fewer are to be planned."""
        self.is_narrowed = False
        """The next attempt takes less, to find what of the data failed this one."""

    @property
    def cause(self) -> str:
        """The name of the exception in a task, as the runners report it; empty where there was none."""
        found = _CAUSE.match(str(self))
        return found[1] if found else ""

    @property
    def may_be_data(self) -> bool:
        """Whether what was read may be why it failed."""
        is_of_system = issubclass(getattr(builtins, self.cause, object), OSError)
        is_explained = self.permanent or self.cause in NOT_DATA or is_of_system
        return not is_explained and (self.worker_died or self.stalled or bool(self.cause))


def too_large_of(error: Exception) -> TooLarge | None:
    """The split that was too large, if that is what an attempt failed of."""
    return error.split if isinstance(error, SplitTooLarge) else None


class AllLost(RuntimeError):  # noqa: N818
    """All that a stream has read so far was rejected or late."""


class CheckpointMismatch(RuntimeError):  # noqa: N818
    """The manifest asks for another join than the checkpoint holds."""


@dataclass(frozen=True)
class TaskWork:
    """What one task did in an epoch."""

    seconds: dict[str, float]
    """By step."""
    output: int
    candidates: int
    held_bytes: int


@dataclass(frozen=True)
class JoinWork:
    """What one join did in an epoch."""

    output: int
    candidates: int


@dataclass(frozen=True, slots=True)
class Held:
    """The stream whose watermark holds back what is done by all of them: what others hold for it does not expire."""

    stream: str
    by: str
    """The partition or the file of it that does; empty: the stream as a whole."""
    since: float
    """The wall clock when that had its last record, or, where its records cannot be read, when that was first seen."""

    def told(self, now: float) -> dict[str, Any] | None:
        """For the health; None: it has not done so for long."""
        by = f"{self.by} of {self.stream}" if self.by else self.stream
        return {"by": by, "since": round(self.since, 3)} if now - self.since >= HELD_SECONDS else None


@dataclass(frozen=True)
class EpochResult:
    """What one committed epoch did, for those who watch. Tuples are by stream."""

    epoch: int
    started_at: float
    seconds: dict[str, float]
    """By step, of the round that committed the epoch: plan (of the next epoch where that is begun ahead), tasks (what was left to wait for
    them), commit, publish, clean; deploy where workers were started; and the tasks' own steps, the longest of all tasks, under
    ``task.<step>``."""
    counts: dict[str, tuple[int, ...]]
    output: int
    candidates: int
    held: dict[int, tuple[int, ...]]
    """By task and stream."""
    utilization: dict[int, float]
    watermarks: tuple[int | None, ...]
    lag: tuple[float | None, ...]
    """Seconds by which each watermark is behind the event time that tuples made at the epoch's start have."""
    backlog: tuple[int, ...]
    shed: tuple[float, ...]
    read_back: int
    """Tasks whose worker did not have their runs."""
    totals: dict[str, list[int]]
    generation: int
    blocks: int
    warnings: tuple[str, ...] = ()
    would_shed: tuple[float, ...] = ()
    """As ``shed``, if shedding is only recommended; else empty."""
    committed_at: float | None = None
    work: dict[int, TaskWork] = field(default_factory=dict)
    """By task."""
    joins: dict[str, JoinWork] = field(default_factory=dict)
    """By join; ``output`` and ``candidates`` are of all."""
    stored_blocks: tuple[int, ...] = (0, 0)
    stored_bytes: tuple[int, ...] = (0, 0)
    losses: Losses = field(default_factory=Losses)
    """How complete results are, as the checkpoint has it."""
    streams: tuple[str, ...] = ()
    """Their names."""
    rejections: tuple[str, ...] = ()
    """By stream, why the first of the records that were rejected is; empty: none was."""
    late_seconds: tuple[float, ...] = ()
    """By stream, how far the latest of the late tuples was behind the watermark."""
    storage_retries: int = 0
    """Requests to object stores that had to be repeated, by the tasks that finished and by the driver."""
    source_errors: tuple[int, ...] = (0, 0)
    """Errors of the sources' servers that the tasks got over."""
    block_tuples: int | None = None
    """How many tuples a chain's workers sent on at once; None: they stand in no chain."""
    backlog_by_partition: tuple[Mapping[int, int], ...] = field(default_factory=lambda: ({}, {}))
    blocked: tuple[Mapping[int, Blocked], ...] = field(default_factory=lambda: ({}, {}))
    """By stream and partition, of the backlog what cannot be read until a transaction is decided. Without partitions that have no such
    records."""
    delays: Mapping[str, Delays] = field(default_factory=dict)
    """How long records waited for their results, by join: of those whose results became visible since the epoch before was done. Without
    joins that had none."""
    held_by_side: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Held tuples by task and side of the scheme."""
    streams_by_side: tuple[tuple[str, ...], ...] = ((), ())
    """The names of the streams on each side of the scheme."""
    held_back: Held | None = None
    """The stream whose watermark holds back the others', if one does."""
    topics: tuple[Mapping[int, tuple[str, int]], ...] = ()
    """For streams of topics by pattern: the topic of each partition, and its number in that topic. Empty without such streams."""

    refused: Mapping[str, int] = field(default_factory=dict)
    """By join, how many results its sink has refused since the epoch before was done. Without joins that had none."""

    @property
    def readable_backlog(self) -> int:
        """Records that the next epoch could read."""
        return sum(self.backlog) - sum(each.records for of_stream in self.blocked for each in of_stream.values())

    @property
    def duration(self) -> float:
        """Seconds of work; starting workers is not counted."""
        return sum(seconds for step, seconds in self.seconds.items() if "." not in step and step != "deploy")
