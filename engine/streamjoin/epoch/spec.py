"""Messages from the driver to the tasks of an epoch, and among tasks. Everything here pickles.

Always holds: what a task function returns follows from the spec and its input, except for the token that names its attempt. What does not
change from epoch to epoch travels as bytes that were pickled once, and is unpickled once a process.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from streamjoin.elastic.path_plans import PathPlans
from streamjoin.epoch.progress import LEAST_SECONDS
from streamjoin.io.base import Reader, Split
from streamjoin.io.several import Sinks
from streamjoin.kernel.keys import scattered
from streamjoin.language.event_time import DerivedTime
from streamjoin.language.join_type import JoinType
from streamjoin.language.layout import Layout
from streamjoin.language.schema import Schema
from streamjoin.language.sql import Expression
from streamjoin.language.window import Ends, Window
from streamjoin.results.parts import Form
from streamjoin.scheme.tiling import Scheme
from streamjoin.state.blocks import Block
from streamjoin.state.storage import Storage


@dataclass(frozen=True)
class Stream:
    """The part of a :class:`streamjoin.job.StreamJob` that tasks need, so that they need not load the manifest's models."""

    name: str
    schema: Schema
    payload: tuple[str, ...]
    where: Expression | None
    event_time: str | None
    """The column that has it."""
    punctuation: tuple[Expression, Expression] | None = None
    """Which records are punctuations, and their identifiers."""
    derived_time: DerivedTime | None = None
    """How the event time is made of columns, where none has it."""
    fails_on_bad: bool = False


@dataclass(frozen=True)
class Join:
    """The part of a :class:`streamjoin.job.JoinJob` that tasks need."""

    name: str
    type: JoinType
    streams: tuple[int, ...]
    """Which it is over."""
    window: Window
    where: Expression | None
    output: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True)
class Config:
    """The part of all specs that stays the same while a driver runs."""

    query: str
    """Unique to the driver: the key of its runs in the workers."""
    streams: tuple[Stream, ...]
    joins: tuple[Join, ...]
    layout: Layout
    """What tuples are cut, sent and sorted by, for all joins."""
    window: Window
    """The widest."""
    storage: Storage
    sink: Sinks
    readers: tuple[Reader, ...]
    snapshots: dict[str, Form] = field(default_factory=dict)
    """The forms of snapshots, by the name of each join whose results are kept in snapshots, too."""


@dataclass(frozen=True)
class Shared:
    """A pickled object and its identity, so that a process unpickles it once."""

    identity: str
    data: bytes


@dataclass(frozen=True)
class Upcoming:
    """A plan that is about to replace this epoch's: workers fetch what they will need under it."""

    scheme: Shared
    tasks: dict[int, int]
    """Workers that go on: task number in this epoch -> task number under the new plan."""
    base: str
    """The log entry with the blocks to fetch from."""


@dataclass(frozen=True)
class Handover:
    """The plan before this epoch's, in the first epoch of a plan: what a process holds under it need not be read."""

    scheme: Shared
    tokens: dict[int, str]
    """The tokens of its tasks, as ``EpochSpec.tokens``."""


@dataclass(frozen=True)
class Rewrite:
    """Blocks of plans gone by of which one is to be made, in the background; see ``compaction``."""

    name: str
    """The name of this rewrite, with which the name of the block that it makes begins."""
    task: int
    """The task whose worker does it."""
    place: int
    blocks: tuple[Block, ...]
    of_marks: bool = False


@dataclass(frozen=True)
class EpochSpec:
    """One epoch's work."""

    identity: str
    """The identity of the checkpoint."""
    epoch: int
    incarnation: int
    config: Shared
    scheme: Shared
    generation: int
    splits: tuple[tuple[int, Split], ...]
    """(stream, split)."""
    late_before: Ends
    """By stream. Event times below the stream's watermark are late; None: nothing is."""
    latest: Ends
    """The latest event time that each stream takes; what is later goes to the dead letters. None: any is taken."""
    expired_before: Ends
    """By place. Held tuples with a smaller ``_time`` can match nothing in this epoch or later."""
    released_before: Ends
    """``expired_before`` of the epoch before: tuples that it has let go have come, where they come alone."""
    records_before: tuple[int, ...]
    """By stream."""
    records_after: tuple[int, ...]
    filling: dict[int, float]
    """By task, tau at the last commit; a task that is not there holds nothing."""
    shed: tuple[float, ...]
    """By task: the fraction of the tuples that it would hold that it must not be sent. Empty: nothing is shed."""
    tokens: dict[int, str]
    """By task: the attempt whose runs the last commit made true. Empty when this epoch ``follows`` another."""
    base: str | None
    """The log entry with the blocks to read back from; None in a checkpoint's first epoch, and when this epoch ``follows`` another."""
    path_plans: PathPlans
    """By join of three and more streams, one after the other, for each of its streams: the order in which its new tuples meet the others,
    and how."""
    record_bytes: int
    """A larger record goes to the dead letters."""
    split_bytes: int | None
    """A split whose records come to more ends the attempt with :class:`SplitTooLarge`; None: they may come to anything."""
    upcoming: Upcoming | None = None
    rewrite: Rewrite | None = None
    """Under way, or to be begun."""
    handover: Handover | None = None
    ended: frozenset[int] = frozenset()
    """The places where nothing can match what is held any more, as the input has ended."""
    small_bytes: int = 0
    """Blocks of a task that come to no more than this together, and results that do, go with its report rather than into files."""
    follows: int | None = None
    """The epoch before, when it is still in flight: a task goes on from the runs that its last attempt staged in the same process, or
    fails. It reports which attempt that was, and the driver commits only what follows from what it has committed."""
    would_shed: tuple[float, ...] = ()
    """As ``shed``, if shedding is only recommended: such tuples are counted, and sent all the same."""
    block_tuples: int = 1
    """In a chain (``handshake``): the number of tuples that its workers send on at once."""
    counts_groups: bool = False
    """Whether tasks count results by random groups of tuples, for how sure the estimate of what is lost is."""
    apart: bool = False
    """Splits are read in processes of their own (``dataplane.apart``)."""
    rejects: str = ""
    """Why all records of the epoch are dead letters; empty: they are none."""
    deadline_seconds: float = LEAST_SECONDS
    """An attempt of which nothing moves for so long is given up."""

    def with_shared(self, change: Callable[[Shared], Shared]) -> EpochSpec:
        """The same with everything that is shared changed: to leave out what a process has already, and to put it back there."""
        upcoming, handover = self.upcoming, self.handover
        return replace(
            self,
            config=change(self.config),
            scheme=change(self.scheme),
            upcoming=None if upcoming is None else replace(upcoming, scheme=change(upcoming.scheme)),
            handover=None if handover is None else replace(handover, scheme=change(handover.scheme)),
        )


REPORT, UNMATCHABLE = -1, -2
"""What a piece has instead of an area: a pickled RouteReport; tuples that belong to none, because they can match nothing."""


@dataclass(frozen=True)
class Piece:
    """What one worker sends to another for a task: tuples of one area and place, or what ``area`` says instead."""

    task: int
    area: int
    place: int
    """Of a split's report, the stream."""
    data: pa.Buffer
    number: int = 0
    """Of a notice: by which join tuples have matched; of partial results, and of what is asked for them: which stage they are for, whose
    numbers are above the joins' (``language.layout.numbered``)."""
    sender: int = 0
    """Of a question or an answer: the task that it is from."""
    part: int = 0
    """Of a question or an answer: which of the sender's questions for the stage it is, or is for."""
    round: int = 0
    """Of the exchange, in which it is sent: 0 is that of new tuples."""


def share(identity: str, value: Config | Scheme) -> Shared:
    return Shared(identity, pickle.dumps(value))


def attempt_prefix(identity: str, incarnation: int, epoch: int) -> str:
    """The prefix of the names of everything that an epoch makes before its commit."""
    return f"{identity}-{incarnation:06d}-{epoch:012d}"


def attempt_name(spec: EpochSpec, number: int) -> str:
    """A name that no other attempt of any driver of any checkpoint uses, for what an attempt at task or split ``number`` makes."""
    return f"{attempt_prefix(spec.identity, spec.incarnation, spec.epoch)}-{number:05d}-{uuid.uuid4().hex[:8]}"


def final_name(spec: EpochSpec, number: int) -> str:
    """The name that all attempts at a task or split of an epoch share, for what becomes visible of one of them."""
    return f"{spec.identity}-{spec.epoch:012d}-{number:05d}"


def is_attempt_of(name: str, identity: str, incarnation: int) -> bool:
    """Whether a name that begins with an ``attempt_prefix`` is of this checkpoint, and of this driver or an older one."""
    parts = name.split("-", 2)
    return len(parts) == 3 and parts[0] == identity and parts[1].isdecimal() and int(parts[1]) <= incarnation


def numbers_of(epoch: int, split: int, rows: np.ndarray) -> np.ndarray:
    """A random number (uint64) for each of a split's records, the same for every attempt at the epoch: so a task that is run again routes
    every tuple as before."""
    return scattered((epoch << 20) ^ split, rows)


def units_of(numbers: np.ndarray) -> np.ndarray:
    """The unit coordinates (uint32) of records with these random numbers."""
    return (numbers >> np.uint64(32)).astype(np.uint32)


def draws_of(numbers: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) by which records are shed, independent of their units."""
    return (numbers & np.uint64(0xFFFFFFFF)) / float(1 << 32)
