"""A store of simple tuples, with any predicate, for models: a :class:`streamjoin.chain.stores.Store` in memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from streamjoin.language.sides import LEFT


@dataclass(frozen=True)
class Window:
    """By time: a left tuple at t finds right ones up to t + ``reach[LEFT]``, a right one at t left ones up to t + ``reach[RIGHT]``.

    ``math.inf`` on both sides: unbounded.
    """

    reach: tuple[float, float]

    def __post_init__(self) -> None:
        for reach in self.reach:
            if not reach >= 0:
                raise ValueError(f"reach: {reach} must be 0 or more, or math.inf")

    def admits(self, left: StreamTuple, right: StreamTuple) -> bool:
        return right.time - left.time <= self.reach[0] and left.time - right.time <= self.reach[1]

    def expires(self, stream: int, time: float, mark: float) -> bool:
        """No tuple of the other stream at or after ``mark`` can match one of ``stream`` at ``time``."""
        return mark == math.inf or time + self.reach[stream] < mark


UNBOUNDED = Window((math.inf, math.inf))


@dataclass(frozen=True, slots=True)
class StreamTuple:
    """``number``: of its stream, in the order of entering the chain."""

    stream: int
    number: int
    time: float
    key: Hashable = None


Tuples = tuple[StreamTuple, ...]
Pair = tuple[StreamTuple, StreamTuple]
"""Left, right."""
Predicate = Callable[[StreamTuple, StreamTuple], bool]


def any_pair(left: StreamTuple, right: StreamTuple) -> bool:
    """The predicate that admits all."""
    return True


class QueueStore:
    """Compares every pair (ESJ's structure (a), a FIFO queue). Probes are O(held * probing); ``take`` O(count)."""

    def __init__(self, stream: int, window: Window = UNBOUNDED, predicate: Predicate = any_pair) -> None:
        self.stream, self.window, self.predicate = stream, window, predicate
        self.tuples: deque[StreamTuple] = deque()

    def __len__(self) -> int:
        return len(self.tuples)

    def __deepcopy__(self, memo: object) -> QueueStore:
        copied = QueueStore(self.stream, self.window, self.predicate)
        copied.tuples.extend(self.tuples)
        return copied

    def append(self, tuples: Tuples) -> None:
        self.tuples.extend(tuples)

    def prepend(self, tuples: Tuples) -> None:
        self.tuples.extendleft(reversed(tuples))

    def take(self, count: int) -> Tuples:
        return tuple(self.tuples.popleft() for _ in range(count))

    def expired(self, mark: float) -> int:
        return sum(1 for _ in takewhile(lambda held: self.window.expires(self.stream, held.time, mark), self.tuples))

    def probe(self, tuples: Tuples) -> Sequence[Pair]:
        pairs = ((held, probing) if self.stream == LEFT else (probing, held) for probing in tuples for held in self.tuples)
        return [pair for pair in pairs if self.window.admits(*pair) and self.predicate(*pair)]
