"""What survives: the state of a join after an epoch, as each entry of the commit log has it (``log``). ``codec`` makes JSON of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from streamjoin.elastic.completeness import Losses
from streamjoin.elastic.path_plans import PathPlans
from streamjoin.language.key_spaces import KeySpaces
from streamjoin.snapshots.punctuation import Pending
from streamjoin.snapshots.timeline import Timeline
from streamjoin.state.blocks import Block
from streamjoin.state.codec import plain, read
from streamjoin.state.extent import Extent
from streamjoin.state.intermediate import IntermediateResult


class Newest(NamedTuple):
    """The newest record of a stream's partition."""

    time_max: int
    """Its event time, in microseconds."""
    seen_at: float
    """When the epoch ended that read the partition's last record; seconds since 1970."""

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Newest:
        return cls(*values)


@dataclass(frozen=True, slots=True)
class InputState:
    """How far the streams were read, and their time has come (``controlplane.planning``, ``controlplane.watermark``). By stream."""

    positions: tuple[dict[str, Any] | None, ...] = (None, None)
    """What each source has been read up to, in the source's own terms."""
    records: tuple[int, ...] = (0, 0)
    """Records that each stream has delivered, filtered and rejected ones included."""
    watermarks: tuple[int | None, ...] = (None, None)
    """After ``epoch``, in microseconds."""
    effective: tuple[int | None, ...] = (None, None)
    """Those after the epoch before: the next epoch goes by these, so that it can be planned before ``epoch`` is over, with one result."""
    partitions: tuple[dict[int, Newest], ...] = ({}, {})
    """How far each partition of a stream has come; empty without partitions."""
    heard: tuple[float | None, ...] = ()
    """When each stream last had records, read or left: the end of that epoch, seconds since 1970. Empty: not known."""
    widths: tuple[float, ...] = (0.0, 0.0)
    """Bytes of a record of each stream, as it is in memory, going by the last epochs; 0: not known yet."""

    @classmethod
    def of(cls, streams: int) -> InputState:
        """Of so many streams, of which nothing was read."""
        nothing: tuple[None, ...] = (None,) * streams
        return cls(nothing, (0,) * streams, nothing, nothing, ({},) * streams, widths=(0.0,) * streams)


@dataclass(frozen=True, slots=True)
class PlanState:
    """How the join runs (``controlplane.deployment``, ``controlplane.flowing``)."""

    main: str | None = None
    """The main predicate, written out; chosen among the condition's candidates with the first plan: blocks lie in its order."""
    key_spaces: KeySpaces | None = None
    """Where tuples lie (``language.key_spaces``). None: nothing is held yet."""
    generation: int = 0
    scheme: dict[str, Any] | None = None
    first_workers: int = 0
    """Workers of the first plan (ESJ's M); 0: not known."""
    path_plans: PathPlans = ()
    """By join over three and more streams, by key space, for each of its streams: the order in which its new tuples met the others, and
    how."""
    flowing: dict[str, Any] = field(default_factory=dict)
    """What those ways are priced by (``elastic.path_plans.Flowing``), as it was measured; of several joins ``joins`` has that of each."""


@dataclass(frozen=True, slots=True)
class HeldState:
    """What workers hold (``controlplane.next_checkpoint``)."""

    expired: tuple[int | None, ...] = (None, None)
    """``_time`` below which this epoch has let held tuples go, by place."""
    blocks: tuple[Block, ...] = ()
    marks: tuple[Block, ...] = ()
    """Which of the tuples in them have matched (``dataplane.matches``)."""
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Tuples that each task holds by place, replicas included."""
    held_bytes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Bytes of them, as they lie in memory."""
    tokens: dict[int, str] = field(default_factory=dict)
    """Which attempt of each task this epoch's result is: a worker that has that attempt's runs need not read them back."""

    @property
    def stored(self) -> tuple[Block, ...]:
        """Blocks of tuples and of marks."""
        return self.blocks + self.marks

    def encode(self, known: Texts) -> str:
        """As JSON. O(blocks), with little for those that ``known`` has."""
        others = json.dumps({name: value for name, value in plain(self).items() if name not in BLOCKS})
        return others[:-1] + "".join(f', "{name}": [{", ".join(texts)}]' for name, texts in known.of(self).items()) + "}"


BLOCKS = ("blocks", "marks")
"""The fields that name blocks."""


@dataclass(frozen=True, slots=True)
class OutputState:
    """Results that are on their way (``controlplane.results``)."""

    staged: tuple[dict[str, Any], ...] = ()
    """What this epoch's commit makes visible, to be published (again) before the next commit."""
    waiting: tuple[dict[str, Any], ...] = ()
    """Small results of this epoch and some before, which a later commit makes visible together."""
    waiting_since: float | None = None
    """The wall clock at the commit of the first of them."""
    places: tuple[dict[str, str], ...] = ()
    """Where what is staged or waits goes; empty: nothing does."""
    outputs: dict[str, str] = field(default_factory=dict)
    """By join's tag: where results were made visible last."""
    fed: tuple[IntermediateResult, ...] = ()
    """Results that streams are yet to read."""


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """Snapshots of results (``controlplane.timelines``)."""

    timelines: dict[str, Timeline] = field(default_factory=dict)
    """By join, its snapshots of results that are open, or closed and not stored yet."""
    punctuations: Pending = field(default_factory=Pending)
    """Punctuations that wait for others of the same identifier."""

    def of(self, join: str) -> Timeline:
        """A join's."""
        return self.timelines.get(join, Timeline())

    def parts(self, *, in_entries: bool) -> set[str]:
        """The paths of the log's entries, or of other objects, that have rows of snapshots which are not stored yet."""
        parts = (part for timeline in self.timelines.values() for part in timeline.parts)
        return {part.path for part in parts if (part.extent is not None) is in_entries}


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A committed epoch that is kept: the entry of the log that has it, and all that this names (``controlplane.savepoints``)."""

    path: str
    """The entry's."""
    epoch: int
    committed_at: float | None
    """The wall clock at the commit of the epoch."""
    kept_at: float
    """The wall clock when it was decided to keep it."""
    nbytes: int
    """Of tuples and of results that streams are yet to read. Savepoints, and the join itself, share what they have in common."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that survives: the state of a join after an epoch."""

    identity: str = ""
    """Unique to the checkpoint, given at its first claim: a part of every name that its drivers give to files."""
    seed: int = 0
    """Of the hashes by which tuples lie; given with the identity."""
    clock: float = 0.0
    """The latest that the wall clock has shown at a commit."""
    epoch: int = -1
    """The last committed epoch; -1: none yet."""
    committed_at: float | None = None
    """The wall clock at the commit of ``epoch``; None: there was none yet."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    claims: int = 0
    """Claims by drivers, one after another, none of which has committed an epoch."""
    is_over: bool = False
    """The input has ended, and all of it is joined: no results come any more, unless a driver claims the log again."""
    totals: dict[str, list[int]] = field(default_factory=dict)
    """Counters since the first epoch, per stream where that makes sense; see ``epoch.reports``."""
    losses: Losses = field(default_factory=Losses)
    """How complete results are, and what is remembered for it."""
    input: InputState = field(default_factory=InputState)
    plan: PlanState = field(default_factory=PlanState)
    output: OutputState = field(default_factory=OutputState)
    snapshots: SnapshotState = field(default_factory=SnapshotState)
    savepoints: dict[str, Savepoint] = field(default_factory=dict)
    """Epochs that are kept, by name."""
    state: HeldState = field(default_factory=HeldState)

    def sized(self, streams: int, places: int) -> Checkpoint:
        """An empty checkpoint for so many streams, held in so many places; one that has epochs as it is."""
        if self.epoch >= 0:
            return self
        return replace(self, input=InputState.of(streams), state=replace(self.state, expired=(None,) * places))

    @property
    def nbytes(self) -> int:
        """Bytes of the held tuples, as they are stored, and of results that streams are yet to read."""
        return sum(block.nbytes for block in self.state.stored) + sum(part.extent.nbytes for part in self.output.fed)

    def on(self, key_spaces: KeySpaces) -> Checkpoint:
        """The same with tuples that lie on these."""
        return replace(self, plan=replace(self.plan, key_spaces=key_spaces))

    def encode(self, known: Texts | None = None) -> str:
        """As JSON. O(blocks), with little for those that ``known`` has."""
        others = json.dumps({name: value for name, value in plain(self).items() if name != "state"}, default=plain)
        return f'{others[:-1]}, "state": {self.state.encode(known or Texts())}}}'

    @classmethod
    def decode(cls, text: str) -> Checkpoint:
        """Of :meth:`encode`. Raises ValueError for other fields."""
        return read(cls, json.loads(text))

    def entries(self) -> set[str]:
        """The paths of the entries that hold something that it names."""
        output = self.output
        results = [Extent(*value["extent"]) for value in output.staged + output.waiting if "extent" in value]
        extents = (*results, *(part.extent for part in output.fed), *(block.extent for block in self.state.stored))
        return {extent.path for extent in extents if extent is not None}


class Texts:
    """The blocks of the last checkpoint as they were written: most are in the next one, too, unchanged, and the same objects."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Block, str]] = {}
        """By the object's identity; the object is kept, so that no other has it."""

    def of(self, state: HeldState) -> dict[str, list[str]]:
        """Per kind of blocks their texts. Those of the checkpoint before are forgotten."""
        before, self._texts = self._texts, {}
        found: dict[str, list[str]] = {}
        for name in BLOCKS:
            texts = found[name] = []
            for block in getattr(state, name):
                known = before.get(id(block)) or (block, json.dumps(block, default=plain))
                self._texts[id(block)] = known
                texts.append(known[1])
        return found
