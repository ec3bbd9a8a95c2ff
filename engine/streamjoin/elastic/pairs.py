"""What is remembered of the tuples that a part holds, and how many pairs an epoch's new tuples make with them (for ``completeness``).

Tuples are counted three times: with those that came late, those on time, and those that were kept. So pairs are, too: those that there
would be if nothing had been dropped, and those that there are.

Always holds: a memory has at most :data:`MOST_REMEMBERED` entries, whose kept tuples are as many as are held. Tuples expire in the order in
which they came, so those that are held are the newest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MOST_REMEMBERED = 8
"""Entries of a memory; more are put together."""

Span = tuple[float, float] | None
"""Event times, microseconds; None: not known."""


class Tuples(NamedTuple):
    """Counts of tuples, or of pairs: with the late ones, on time, not shed."""

    all: float
    came: float
    kept: float

    def __add__(self, other: object) -> Tuples:
        assert isinstance(other, Tuples)
        return Tuples(self.all + other.all, self.came + other.came, self.kept + other.kept)

    def times(self, factor: float) -> Tuples:
        return Tuples(self.all * factor, self.came * factor, self.kept * factor)


NOTHING = Tuples(0.0, 0.0, 0.0)


class Entry(NamedTuple):
    """Tuples that came in some epochs, evenly over some event time."""

    tuples: Tuples
    span: Span = None

    def plus(self, other: Entry) -> Entry:
        span = None if self.span is None or other.span is None else (min(self.span[0], other.span[0]), max(self.span[1], other.span[1]))
        return Entry(self.tuples + other.tuples, span)


Memory = tuple[Entry, ...]
"""What came of the tuples that a part holds of a source, oldest first."""


def remembered(memory: Memory, new: Entry, held: float) -> Memory:
    """The memory after an epoch that brought ``new``, of which with what was there ``held`` are held now. O(entries)."""
    entries = [*memory, new] if new.tuples.all > 0 else list(memory)
    kept = sum(entry.tuples.kept for entry in entries)
    while entries and kept > held:
        oldest = entries.pop(0)
        over, of_oldest = kept - held, oldest.tuples.kept
        if of_oldest > over:
            left = 1 - over / of_oldest
            span = oldest.span
            entries.insert(0, Entry(oldest.tuples.times(left), None if span is None else (span[1] - left * (span[1] - span[0]), span[1])))
            break
        kept -= of_oldest
    if kept < held and not math.isclose(kept, held):
        entries.insert(0, Entry(Tuples(held - kept, held - kept, held - kept)))  # nothing is known of these
    found: list[Entry] = []
    for entry in entries:
        if found and (found[-1].span is None) is (entry.span is None) and _same(found[-1].tuples, entry.tuples):
            found[-1] = found[-1].plus(entry)
        else:
            found.append(entry)
    while len(found) > MOST_REMEMBERED:
        least = min(range(len(found) - 1), key=lambda at: found[at].tuples.all + found[at + 1].tuples.all)
        found[least : least + 2] = [found[least].plus(found[least + 1])]
    return tuple(found)


def _same(one: Tuples, other: Tuples) -> bool:
    """Whether the same shares were kept."""
    return math.isclose(one.all * other.kept, other.all * one.kept) and math.isclose(one.came * other.kept, other.came * one.kept)


@functools.lru_cache(maxsize=1024)
def inside(left: Span, right: Span, window: tuple[float, float]) -> float:
    """Of pairs whose times are spread evenly over these spans, the part within the window: ``-before <= right - left <= after``."""
    if left is None or right is None:
        return 1.0
    before, after = window
    (a, b), (c, d) = left, right
    if b - a < 1 or d - c < 1:  # hardly any time: by the middles
        return float(-before - max(b - a, d - c) <= (c + d) / 2 - (a + b) / 2 <= after + max(b - a, d - c))
    # The difference of two even spreads is spread as a trapezoid, whose integral is made of four half squares.
    return max(0.0, min(1.0, _below(after, a, b, c, d) - _below(-before, a, b, c, d)))


def _below(limit: float, a: float, b: float, c: float, d: float) -> float:
    """The part of the pairs of [a, b] and [c, d] with right - left below the limit."""

    def half_square(over: float) -> float:
        return max(0.0, over) ** 2 / 2

    area = half_square(limit - (c - b)) - half_square(limit - (d - b)) - half_square(limit - (c - a)) + half_square(limit - (d - a))
    return area / ((b - a) * (d - c))


def pairs_of(new: Sequence[Entry], held: Sequence[Memory], window: tuple[float, float], *, together: bool) -> Tuples:
    """The combinations with a new tuple; ``new`` and ``held``: by source. O(entries).

    Of two sources, those within the window (``inside``), and of new tuples with each other only if these come ``together``.
    """
    if len(new) != 2:
        old = [sum((entry.tuples for entry in memory), NOTHING) for memory in held]
        with_new = [one + entry.tuples for one, entry in zip(old, new, strict=True)]
        return Tuples(*(math.prod(one[at] for one in with_new) - math.prod(one[at] for one in old) for at in range(len(NOTHING))))
    left, right = new
    every = came = kept = 0.0
    for one, other in (
        *(((left, right),) if together else ()),
        *((left, entry) for entry in held[1]),
        *((entry, right) for entry in held[0]),
    ):
        part = inside(one.span, other.span, window)
        if part:
            every += one.tuples.all * other.tuples.all * part
            came += one.tuples.came * other.tuples.came * part
            kept += one.tuples.kept * other.tuples.kept * part
    return Tuples(every, came, kept)


def summed(memories: Mapping[int, tuple[Memory, ...]]) -> tuple[Memory, ...]:
    """By source, what all parts hold, as one entry."""
    count = max(map(len, memories.values()), default=0)
    of_sources = ([entry for of_part in memories.values() if at < len(of_part) for entry in of_part[at]] for at in range(count))
    return tuple((functools.reduce(Entry.plus, entries),) if entries else () for entries in of_sources)


def as_one(memory: Memory) -> Entry:
    """All that is remembered; nothing where nothing is."""
    return functools.reduce(Entry.plus, memory) if memory else Entry(NOTHING)


def part_of(whole: Entry, kept: float) -> Memory:
    """So many kept tuples, and as many others for each as there are in the whole."""
    return (Entry(whole.tuples.times(kept / whole.tuples.kept), whole.span),) if whole.tuples.kept > 0 and kept > 0 else ()
