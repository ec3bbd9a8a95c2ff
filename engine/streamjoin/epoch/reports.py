"""What tasks report of an epoch to the driver. Everything here pickles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streamjoin.io.arrivals import Arrivals
from streamjoin.io.base import Staged
from streamjoin.kernel.faults import Fault
from streamjoin.results.parts import StagedPart
from streamjoin.state.blocks import Block


@dataclass(frozen=True)
class Rewritten:
    """A rewrite that is ready."""

    name: str
    block: Block | None
    """None: all its tuples have expired."""
    data: bytes = b""
    """Its content, if it is small."""


@dataclass(frozen=True)
class TooLarge:
    """A split that was planned with more records than fit."""

    stream: int
    first_record: int
    """These two say which."""
    records: int
    """As planned."""
    record_bytes: float
    """On average, of those that were read."""


class SplitTooLarge(RuntimeError):  # noqa: N818
    """Reading a split was given up because its records are too large for their number: fewer of them are to be planned."""

    def __init__(self, message: str, split: TooLarge) -> None:
        super().__init__(message, split)
        self.split = split

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Sample:
    """Some keys of one place, ascending; each stands for ``weight`` tuples, none newer than ``time_max`` (as ``_time``)."""

    place: int
    keys: np.ndarray
    weight: float
    time_max: int | None


@dataclass
class RouteReport:
    """The report of routing one split. Counts are of records or tuples."""

    stream: int
    input: int = 0
    rejected: int = 0
    rejection: str = ""
    """Why the first of them is rejected."""
    replayed: int = 0
    """Those of ``input`` that were rejected before, and were read again."""
    filtered: int = 0
    ahead: int = 0
    """Those of ``rejected`` whose event time is too far ahead of the clock."""
    oversized: int = 0
    """Those of ``rejected`` that are too large."""
    late: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    """By expression, rows for which it has no value (``kernel.faults``)."""
    late_micros: int = 0
    """How far the latest of them is behind the watermark."""
    unmatchable: int = 0
    """Null or NaN in a key: such a tuple can match nothing and is not held."""
    shed: int = 0
    would_shed: int = 0
    """Those of ``accepted`` that would have been shed."""
    accepted: int = 0
    routed: int = 0
    """Tuples sent, replicas and places counted each."""
    input_bytes: int = 0
    """Bytes in memory of the records that parsed and are not too large."""
    kept: dict[tuple[int, int], int] = field(default_factory=dict)
    """By area and place, the tuples sent; and in ``came``, where any may be shed, with those that were shed."""
    came: dict[tuple[int, int], int] = field(default_factory=dict)
    routed_bytes: int = 0
    dead_letter_bytes: int = 0
    disorder_micros: float = 0.0
    """How far a tuple's event time was before that of one before it in the split, at most; of the join's first epochs."""
    peak: int | None = None
    """The newest event time that this goes by."""
    time_max: int | None = None
    """The newest event time, of late and filtered records too, but not of those that are too far ahead."""
    time_min: int | None = None
    """The oldest event time of tuples that are neither late nor filtered, nor too far ahead."""
    partition: int | None = None
    """The split's."""
    dead_letters: list[Staged] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    """Samples of the accepted tuples."""
    seconds: float = 0.0
    storage_retries: int = 0
    source_errors: int = 0
    """Errors of the source's servers that reading got over."""
    arrivals: Arrivals | None = None
    """When the records came, where the reader knows that."""
    punctuations: list[str] = field(default_factory=list)
    """The identifiers of punctuations, in order; punctuations count among ``filtered``."""


class RoundWork(NamedTuple):
    """A task's part of a round of the exchange."""

    sent_bytes: int
    """To other tasks."""
    seconds: float | None
    """From when it began to send until it had heard from all; None: it was not measured."""


class ChunkHeld(NamedTuple):
    """A chunk of tuples that a worker of a chain holds."""

    area: int
    place: int
    block: str
    """The name of the block that they are in; all of it that is within these positions."""
    first: int
    last: int
    rows: int


@dataclass
class StageWork:
    """What a worker did in one stage of an epoch."""

    found: int = 0
    """Results, partial ones or last ones."""
    admitted: int = 0
    """Pairs that the main predicate admits."""
    met: int = 0
    """Those of them that the window admits, too."""
    sent: int = 0
    """What was sent to other tasks for the next stage, each replica counted: partial results; questions, and tuples that they are answered
    with; and what is brought."""
    sent_bytes: int = 0


@dataclass
class AreaWork:
    """How much an area holds, and how much it found."""

    holds: tuple[bool, ...]
    """By place, as the area's."""
    held: tuple[int, ...] = ()
    """Tuples by place."""
    outputs: dict[str, int] = field(default_factory=dict)
    """Results, by join."""


@dataclass
class TaskReport:
    """What one join task did. Its blocks and outputs exist for others only once a commit names them."""

    task: int
    token: str
    faults: dict[str, Fault] = field(default_factory=dict)
    """As a route's."""
    opened: str | None = None
    """The attempt that it went on from; None: it read its runs back, or there were none."""
    predecessor_missing: bool = False
    """The task did nothing, because the epoch that it follows has left no runs here. This is no exception, which would end Spark's
    Python worker, and the runs of earlier epochs with it."""
    held: tuple[int, ...] = (0, 0)
    """Tuples by place, and in ``held_bytes`` the bytes of their runs, mapped or not."""
    held_bytes: tuple[int, ...] = (0, 0)
    outputs: dict[str, int] = field(default_factory=dict)
    """Results, by join."""
    admitted: dict[str, int] = field(default_factory=dict)
    """Pairs that its main predicate has admitted, by join."""
    areas: dict[int, AreaWork] = field(default_factory=dict)
    """With two streams, except in a chain: what the task's areas hold and did."""
    groups: dict[str, np.ndarray] = field(default_factory=dict)
    """About how many results are of each random group of a side's tuples, by join; float64[side, group]."""
    blocks: list[Block] = field(default_factory=list)
    small_blocks: dict[str, bytes] = field(default_factory=dict)
    """The content of those of them that are not files, by name."""
    stages: dict[int, StageWork] = field(default_factory=dict)
    """The work by the number of the stage (``language.layout.numbered``)."""
    rounds: list[RoundWork] = field(default_factory=list)
    """With three and more streams: the rounds of the exchange after the first."""
    marks: list[Block] = field(default_factory=list)
    """Which of the tuples that the task stores have matched for the first time, of the tracked sides (``dataplane.matches``)."""
    chunks: list[ChunkHeld] = field(default_factory=list)
    """In a chain: everything that the worker holds, oldest first."""
    messages: dict[str, int] = field(default_factory=dict)
    """In a chain: the number of messages that the worker has sent, and their bytes, by kind."""
    rewritten: Rewritten | None = None
    """The spec's rewrite, once it is ready. The driver may have taken it over from the report before."""
    rewrite_error: str | None = None
    """Why it failed; it is begun again."""
    replaced: list[str] = field(default_factory=list)
    """Blocks whose tuples are in new blocks of this report, or have expired."""
    staged: list[Staged] = field(default_factory=list)
    snapshot_parts: dict[str, list[StagedPart]] = field(default_factory=dict)
    """By join, its results as parts of a snapshot."""
    routes: list[RouteReport] = field(default_factory=list)
    read_back: bool = False
    """The worker did not have the task's runs."""
    read_back_bytes: int = 0
    kept_tuples: int = 0
    """In a plan's first epoch: held tuples that were in the process under the plan before. ``moved_tuples``: those that were not."""
    moved_tuples: int = 0
    to_fetch_bytes: int = 0
    """What is still to come of the blocks that this worker needs under the upcoming plan."""
    held_sample: list[Sample] = field(default_factory=list)
    """A sample of the tuples that were read back and that this task stores."""
    storage_retries: int = 0
    """Requests to object stores that had to be repeated."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By step."""

    @property
    def output(self) -> int:
        """Results of all joins."""
        return sum(self.outputs.values())

    @property
    def candidates(self) -> int:
        """Pairs that their main predicates have admitted."""
        return sum(self.admitted.values())


SAMPLE_KEYS = 512
"""Keys that routing samples of each split, for the statistics that plans are made from."""


def sample_of(place: int, batch: pa.RecordBatch, time_max: int | None) -> Sample:
    """An even sample of a batch sorted by key. O(SAMPLE_KEYS)."""
    every = max(1, -(-batch.num_rows // SAMPLE_KEYS))
    return Sample(place, batch.column("_key").to_numpy()[every // 2 :: every].copy(), float(every), time_max)
