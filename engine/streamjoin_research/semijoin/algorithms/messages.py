"""What sites tell each other, what happens at them, and what they ask to be done.

A message knows how many bytes it takes on the network, and when it is due: the moment until which the other site waits for it, or at which
the site may have given up what is needed to answer it. A message that comes later is reported, for results may be missing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from streamjoin_research.semijoin.algorithms.window import StreamTuple

Key = Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """``point``: the time point, in microseconds, of the batch it is about; ``due``: microseconds."""

    point: int
    due: int
    bytes: int

    @property
    def full(self) -> tuple[StreamTuple, ...]:
        """The full tuples in it."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FullTuples(Message):
    """A batch, or those of its tuples that have partners: B2 in SP-S, B1 in SP-D, B1' in SM-D1 and SM-D2."""

    tuples: tuple[StreamTuple, ...]

    @property
    def full(self) -> tuple[StreamTuple, ...]:
        return self.tuples


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys(Message):
    """Distinct keys, of which the other site is to find tuples: K1 in SM-S1 and SM-D2, the change of V2' in SM-S2."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingKeys(Message):
    """Those of the keys asked for that have tuples: K1' in SM-D2."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingTuples(Message):
    """The tuples of the keys asked for that were never shipped before: the change of W2' in SM-S1 and SM-S2."""

    tuples: tuple[StreamTuple, ...]

    @property
    def full(self) -> tuple[StreamTuple, ...]:
        return self.tuples


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed(Message):
    """Alg. 8: so many of the tuples that were shipped have left the window, the oldest ones. In SM-S1."""

    count: int
    arrivals: tuple[int, ...]
    """The times of all new tuples, where the window is one of tuples; else none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed(Message):
    """Alg. 9: what became of the window, in SM-S2 and, without full tuples, in SM-D1."""

    new_keys: tuple[Key, ...]
    """v_J: keys that the window did not hold."""
    counts: tuple[int, ...]
    """v_C: the number of tuples of each key, in the order of the entries, with ``new_keys`` last; 0 where the last tuple has left."""
    tuples: tuple[StreamTuple, ...]
    """s_F: the new tuples of keys whose tuples the other site holds."""
    arrivals: tuple[int, ...]
    """As in :class:`Removed`."""

    @property
    def full(self) -> tuple[StreamTuple, ...]:
        return self.tuples


@dataclass(frozen=True, slots=True)
class Batch:
    """The tuples of a site's own stream that came since the time point before, in order; perhaps none."""

    point: int
    tuples: tuple[StreamTuple, ...]


@dataclass(frozen=True, slots=True)
class Wake:
    """The moment has come that a site asked for, for the batch of ``point``."""

    point: int


Event = Batch | Wake | Message


@dataclass(frozen=True, slots=True)
class Send:
    """Ship ``message`` to the other site."""

    message: Message


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Give ``wake`` at ``time``, after all messages of that moment."""

    time: int
    wake: Wake


@dataclass(frozen=True, slots=True)
class Match:
    """A result: a tuple of the source stream, and one of the destination's window."""

    probing: StreamTuple
    held: StreamTuple


@dataclass(frozen=True, slots=True)
class Late:
    """A message came after it was due: the bound on the delay of shipments does not hold, and results may be missing."""

    message: Message
    time: int

    def __str__(self) -> str:
        name, by = type(self.message).__name__, self.time - self.message.due
        return f"{name} of the batch at {self.message.point} us came {by} us late: raise the bound on a shipment's delay by as much"


Effect = Send | WakeAt | Match | Late
