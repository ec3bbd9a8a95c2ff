"""When a chain is at rest: no worker has anything to do, and no message is on its way. Pure.

The four-counter method (Mattern, "Algorithms for distributed termination detection", Distributed Computing 2, 1987), along the chain's own
channels. Every worker counts the messages between workers that it has sent and received. A wave goes right and adds up these counts, and
another one goes left, which begins when the first is over. If as many messages were received by the first wave as were sent by the second,
the chain was at rest when the first was over; else the leftmost worker begins again. Whoever waits for a worker that is busy waits in that
worker's queue, so waves are few where there is much to do. When the chain is at rest, all hear of it by a last message, :class:`AtRest`,
which comes back where workers have something to tell those on their left, too.

To be used from where a worker has nothing to do but answer messages: what comes from the sources must have been handled before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from streamjoin.language.sides import LEFT, RIGHT


@dataclass(frozen=True, slots=True)
class Wave:
    """Messages of the workers that it has come by."""

    received_before: int = 0
    """As the first wave counted them."""
    sent_after: int = 0
    """As the second one did."""
    goes: int = RIGHT
    """To which side."""


@dataclass(frozen=True, slots=True)
class AtRest:
    """The chain is at rest."""

    goes: int = RIGHT
    """To which side."""


Signal: TypeAlias = Wave | AtRest


class Watch:
    """One worker's part. Signals go to neighbours by the same channels as messages, and are not counted."""

    def __init__(self, neighbours: tuple[bool, bool], *, returns: bool = False) -> None:
        """``neighbours``: whether there is a worker to the left, to the right. ``returns``: whether :class:`AtRest` comes back."""
        self._neighbours, self._returns = neighbours, returns
        self.sent = self.received = 0
        """Messages between workers so far, to be counted before the signal that follows them is handled."""
        self.over = False
        """The chain is at rest, as far as this worker is concerned: nothing comes any more."""

    def begin(self) -> list[tuple[int, Signal]]:
        """What to send, by side, once this worker has handled all that came from its sources."""
        return [] if self._neighbours[LEFT] else self._go_on(Wave())

    def handle(self, signal: Signal) -> list[tuple[int, Signal]]:
        """What to send about a signal, by side. O(1)."""
        return self._end(signal) if isinstance(signal, AtRest) else self._go_on(signal)

    def _go_on(self, wave: Wave) -> list[tuple[int, Signal]]:
        if wave.goes == RIGHT:
            wave = replace(wave, received_before=wave.received_before + self.received)
            if self._neighbours[RIGHT]:
                return [(RIGHT, wave)]
        wave = replace(wave, sent_after=wave.sent_after + self.sent, goes=LEFT)
        if self._neighbours[LEFT]:
            return [(LEFT, wave)]
        return self._end(AtRest()) if wave.received_before == wave.sent_after else self._go_on(Wave())

    def _end(self, rest: AtRest) -> list[tuple[int, Signal]]:
        if not self._neighbours[rest.goes] and self._returns:
            rest = AtRest(LEFT)
        self.over = rest.goes == LEFT or not self._returns
        return [(rest.goes, rest)] if self._neighbours[rest.goes] else []
