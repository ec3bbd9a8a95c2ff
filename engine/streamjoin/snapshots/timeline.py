"""A join's snapshots as they follow from its commits: one that is open, and those that are closed and not stored yet.

A snapshot is a set of results with an identifier. A commit puts the epoch's results into the open one, and may close that; the timeline is
a part of the commit. So a crash repeats none of it, and what is stored afterwards follows from what was committed alone. No I/O, no clock.
(ESJ, "Result materialization".)

Always holds (:func:`check`): each result that was committed is in exactly one snapshot; identifiers ascend without gaps, from 0 on; a
snapshot has rows of one form; the closed ones are in order, and before the open one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

MOST_BYTES = 64 << 20
"""A snapshot ends with the epoch in which it reaches this: the driver sorts about so much in memory."""
MOST_PARTS = 4096
MOST_MARKS = 1000
"""So many punctuations one snapshot names, the last ones."""
SMALL_BYTES = 4 << 20
"""Parts of fewer bytes are put together, ``FAN_IN`` of like size at a time, so that a commit names few of them."""
FAN_IN = 16


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a snapshot that lie together: those of one task of one epoch, or of several."""

    path: str
    """The object that has them; of few rows, the log's entry."""
    rows: int
    nbytes: int
    """As they are in memory."""
    extent: tuple[int, int] | None = None
    """Where they begin in the entry, and the length there; None: they are all of the object."""

    def to_json(self) -> list[Any]:
        return [self.path, self.rows, self.nbytes, *(self.extent or ())]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Part:
        path, rows, nbytes, *extent = value
        return cls(path, rows, nbytes, (extent[0], extent[1]) if extent else None)


@dataclass(frozen=True, slots=True)
class Rule:
    """When a snapshot ends, but for bounds that hold always."""

    every_seconds: float | None = None
    """So long after its first results, with the next commit."""
    size_rows: int | None = None
    """With the epoch in which it has so many rows."""
    most_delays: int = 0
    """One that has fewer than half of ``size_rows`` after ``every_seconds`` goes on for as long again, so often at most."""
    by_punctuation: bool = False
    """With the epoch in which a punctuation has come of all streams (``punctuation``)."""


@dataclass(frozen=True, slots=True)
class Open:
    """The snapshot that results go to."""

    id: int
    begin_epoch: int
    since: float
    """The wall clock at the commit of its first results."""
    form: str
    """What its rows look like; see ``results.parts``."""
    parts: tuple[Part, ...]
    delays: int = 0

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Closed:
    """A snapshot that is whole, and not in its store yet."""

    id: int
    begin_epoch: int
    epoch: int
    """The last whose results it has."""
    committed_at: float
    """The wall clock at the commit that closed it."""
    rows: int
    nbytes: int
    form: str
    parts: tuple[Part, ...]
    """Empty once they are sorted files in the checkpoint (``results.archive``), which another store is yet to get."""
    marks: tuple[str, ...] = ()
    """The punctuations that have come of all streams since the snapshot before."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Of one join."""

    next_id: int = 0
    open: Open | None = None
    closed: tuple[Closed, ...] = ()
    marks: tuple[str, ...] = ()
    """Punctuations that have come of all streams since the last snapshot was closed."""

    @property
    def waiting_bytes(self) -> int:
        """Of the snapshots that are closed and not stored."""
        return sum(snapshot.nbytes for snapshot in self.closed)

    @property
    def parts(self) -> tuple[Part, ...]:
        own = () if self.open is None else self.open.parts
        return (*own, *(part for snapshot in self.closed for part in snapshot.parts))

    def is_due(self, rule: Rule | None, now: float) -> bool:
        """Whether time alone would end the open snapshot, or it has nothing more to come. ``rule``: None where none are made any more."""
        return self.open is not None and (rule is None or _is_over(self.open, rule, now))

    def with_rows(
        self,
        rule: Rule | None,
        epoch: int,
        parts: Sequence[Part],
        form: str,
        now: float,
        *,
        marks: Sequence[str] = (),
        end: bool = False,
    ) -> Timeline:
        """After the commit of ``epoch`` at ``now``, whose results are in ``parts``; O(parts).

        ``marks``: the punctuations that have come of all streams with it. ``end``: the input is over, so that the open snapshot is whole.
        Rows of another form than the open snapshot's begin a new one.
        """
        after = self
        if after.open is not None and parts and after.open.form != form:
            after = after._close(epoch - 1, now)
        if parts:
            opened = after.open or Open(after.next_id, epoch, now, form, ())
            after = replace(after, open=replace(opened, parts=(*opened.parts, *parts)))
        is_marked = rule is not None and rule.by_punctuation and bool(marks)
        if is_marked:
            after = replace(after, marks=(*after.marks, *marks)[-MOST_MARKS:])
        if after.open is None:
            return after
        if end or is_marked or rule is None or _is_full(after.open, rule):
            return after._close(epoch, now)
        if not _is_over(after.open, rule, now):
            return after
        if _may_wait(after.open, rule):
            return replace(after, open=replace(after.open, delays=after.open.delays + 1))
        return after._close(epoch, now)

    def _close(self, epoch: int, now: float) -> Timeline:
        assert self.open is not None
        whole = self.open
        closed = Closed(whole.id, whole.begin_epoch, epoch, now, whole.rows, whole.nbytes, whole.form, whole.parts, self.marks)
        return Timeline(whole.id + 1, None, (*self.closed, closed))

    def without(self, stored: Collection[int], sorted_ids: Collection[int]) -> Timeline:
        """Once these are in their store, and the parts of those are needed no more."""
        kept = [snapshot for snapshot in self.closed if snapshot.id not in stored]
        return replace(self, closed=tuple(replace(each, parts=()) if each.id in sorted_ids else each for each in kept))

    def to_gather(self) -> tuple[Part, ...]:
        """Small parts of the open snapshot that had better be one; they may be replaced by it (:meth:`gathered`). O(parts)."""
        classes: dict[int, list[Part]] = {}
        for part in () if self.open is None else self.open.parts:
            if part.nbytes < SMALL_BYTES:
                classes.setdefault((part.nbytes.bit_length() + 3) // 4, []).append(part)
        return next((tuple(members) for _, members in sorted(classes.items()) if len(members) >= FAN_IN), ())

    def gathered(self, parts: Collection[Part], into: Part) -> Timeline:
        assert self.open is not None
        kept = [part for part in self.open.parts if part not in parts]
        return replace(self, open=replace(self.open, parts=(into, *kept)))

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"next": self.next_id}
        if self.open is not None:
            value["open"] = _values(self.open)
        if self.closed:
            value["closed"] = [_values(snapshot) for snapshot in self.closed]
        if self.marks:
            value["marks"] = self.marks
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Timeline:
        opened = value.get("open")
        return cls(
            value["next"],
            None if opened is None else Open(**{**opened, "parts": _parts(opened["parts"])}),
            tuple(Closed(**{**each, "parts": _parts(each["parts"]), "marks": tuple(each["marks"])}) for each in value.get("closed", ())),
            tuple(value.get("marks", ())),
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """How far the snapshots of one join have come."""

    sorted_ids: frozenset[int] = field(default_factory=frozenset)
    """Those that are sorted files in the checkpoint."""
    ids: frozenset[int] = field(default_factory=frozenset)
    """Those that are in their store, which may be these files."""


def check(timeline: Timeline) -> None:
    """Raises AssertionError unless what the module says always holds does."""
    ids = [snapshot.id for snapshot in timeline.closed]
    assert all(later > earlier for earlier, later in pairwise(ids)), ids
    assert all(snapshot.id < timeline.next_id for snapshot in timeline.closed), (ids, timeline.next_id)
    assert timeline.open is None or timeline.open.id == timeline.next_id, timeline.open
    places = [(part.path, part.extent) for part in timeline.parts]
    assert len(set(places)) == len(places), "a part is in two snapshots"
    for snapshot in timeline.closed:
        assert snapshot.rows > 0, snapshot
        assert not snapshot.parts or snapshot.rows == sum(part.rows for part in snapshot.parts), snapshot


def _is_full(snapshot: Open, rule: Rule) -> bool:
    is_large = snapshot.nbytes >= MOST_BYTES or len(snapshot.parts) >= MOST_PARTS
    return is_large or (rule.size_rows is not None and snapshot.rows >= rule.size_rows)


def _is_over(snapshot: Open, rule: Rule, now: float) -> bool:
    if rule.every_seconds is None:
        return False
    is_set_back = now < snapshot.since  # the clock, which does not say then how long it has been
    return is_set_back or now - snapshot.since >= rule.every_seconds * (snapshot.delays + 1)


def _may_wait(snapshot: Open, rule: Rule) -> bool:
    return rule.size_rows is not None and 2 * snapshot.rows < rule.size_rows and snapshot.delays < rule.most_delays


def _values(snapshot: Open | Closed) -> dict[str, Any]:
    values = {name: getattr(snapshot, name) for name in type(snapshot).__slots__}
    return values | {"parts": [part.to_json() for part in snapshot.parts]}


def _parts(values: Iterable[Sequence[Any]]) -> tuple[Part, ...]:
    return tuple(map(Part.from_json, values))
