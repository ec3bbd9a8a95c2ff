"""A chain of workers with channels between them, as a model: any interleaving, one message at a time. Pure.

What comes to a worker from one side is one first-in-first-out sequence of all types of messages (I1), and stays one when there is another
worker on that side: a new worker's messages queue behind :class:`~streamjoin.chain.messages.Extend`, and after a removal the source's
wait behind :class:`~streamjoin.chain.messages.HandBack`. Workers share nothing else, so all that is left open is which of its two sides
each worker reads next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from enum import Enum
from itertools import pairwise
from random import Random
from typing import Generic, Self, TypeAlias

from streamjoin.chain.messages import Block, Effect, Extend, Found, HandBack, Mark, Match, Message, Retire, Send, TupleBlock
from streamjoin.chain.stores import Store
from streamjoin.chain.worker import Worker
from streamjoin.language.sides import LEFT, RIGHT, SIDES


class Change(Enum):
    """What happens to the end of the chain at which a stream comes in. In a source's sequence: between which of its blocks."""

    ADD = "add"
    REMOVE = "remove"


Item: TypeAlias = TupleBlock[Block] | Mark | Change
Choice: TypeAlias = tuple[int, int]
"""A worker, by its position from the left, and the side that it reads from."""
MakeWorker: TypeAlias = Callable[[tuple[bool, bool], bool], Worker[Block, Found]]
"""Of its neighbours, and whether it is added to a chain that runs."""

Step: TypeAlias = Callable[[Worker[Block, Found], Message[Block]], tuple[Worker[Block, Found], list[Effect[Block, Found]]]]
"""How a worker handles a message: the worker as it is then, and what is to be done."""


def _in_place(worker: Worker[Block, Found], message: Message[Block]) -> tuple[Worker[Block, Found], list[Effect[Block, Found]]]:
    return worker, worker.handle(message)


def workers_of(
    stores: Callable[[int], Store[Block, Found]], block_tuples: int, kind: type[Worker[Block, Found]] | None = None
) -> MakeWorker[Block, Found]:
    """Workers as :class:`Network` asks for them. ``kind``: another class than Worker."""
    made = kind or Worker
    return lambda neighbours, added: made(stores, block_tuples, neighbours, added=added)


class Network(Generic[Block, Found]):
    """A chain, and what its sources have yet to send. A read costs what the worker does, and O(1) beside it."""

    def __init__(self, make: MakeWorker[Block, Found], workers: int, sources: tuple[Iterable[Item[Block]], Iterable[Item[Block]]]) -> None:
        """``sources``: by stream, what comes in at its end, in order. Raises ValueError for less than one worker."""
        if workers < 1:
            raise ValueError(f"workers: {workers} must be 1 or more")
        self.make = make
        self.workers = [make((position > 0, position < workers - 1), False) for position in range(workers)]
        self.gaps: list[tuple[deque[Message[Block]], deque[Message[Block]]]] = [(deque(), deque()) for _ in range(workers - 1)]
        """Between neighbours: what is on its way to the left one, to the right one."""
        self.sources = tuple(deque(source) for source in sources)
        self.step: Step[Block, Found] = _in_place
        self.entered = [0, 0]
        """By stream: tuples."""
        self.dropped = [0, 0]
        """By stream: tuples that workers dropped which have gone since."""
        for side in SIDES:
            self._add(side)

    def fork(self) -> Self:
        """The same network, but for workers, which are shared: so ``step`` must not change them. O(workers + messages not read)."""
        other = copy(self)
        other.workers = list(self.workers)
        other.gaps = [(left.copy(), right.copy()) for left, right in self.gaps]
        other.sources = tuple(source.copy() for source in self.sources)
        other.entered, other.dropped = list(self.entered), list(self.dropped)
        return other

    def choices(self) -> list[Choice]:
        """All reads that can be next. O(workers)."""
        return [(at, side) for at in range(len(self.workers)) for side in SIDES if self.readable(at, side)]

    def readable(self, at: int, side: int) -> bool:
        """Something is there for a worker to read from a side."""
        if not self.is_end(at, side):
            return bool(self._channel(at, side))
        if not self.sources[side] or self.workers[at].leaving is not None:
            return False
        return self.sources[side][0] is not Change.REMOVE or self._may_go(at, side)

    def is_end(self, at: int, side: int) -> bool:
        """A worker reads from a source on this side."""
        return at == (0 if side == LEFT else len(self.workers) - 1)

    def next_item(self, at: int, side: int) -> Message[Block] | Change:
        """What a worker reads next from a side, where something is to be read."""
        return self.sources[side][0] if self.is_end(at, side) else self._channel(at, side)[0]

    def read(self, at: int, side: int) -> list[Found]:
        """Let a worker read the next message from a side; returns what it found."""
        message = self._next(at, side)
        self.workers[at], effects = self.step(self.workers[at], message)
        found = []
        for effect in effects:
            if isinstance(effect, Send):
                self._send(at, effect.side, effect.message)
            elif isinstance(effect, Match):
                found.append(effect.found)
        if isinstance(message, HandBack):
            self._remove(side)
        for end in SIDES:
            self._add(end)
        return found

    def run(self, chance: Random) -> list[Found]:
        """Read at random until there is nothing to read; returns what was found."""
        found = []
        while choices := self.choices():
            found += self.read(*chance.choice(choices))
        return found

    def settle(self) -> list[Found]:
        """Read all messages that are between workers, and nothing from sources: a network that is far faster than the streams."""
        found = []
        while choices := [choice for choice in self.choices() if not self.is_end(*choice)]:
            found += self.read(*choices[0])
        return found

    def check(self) -> None:
        """Raises AssertionError where an invariant does not hold. O(workers + messages on their way)."""
        for worker in self.workers:
            worker.validate()
        self.check_between()

    def check_between(self) -> None:
        """:meth:`check`, without what each worker checks by itself."""
        carried = [0, 0]
        for channel in (channel for gap in self.gaps for channel in gap):
            for message in channel:
                if isinstance(message, TupleBlock | HandBack):
                    carried[message.stream] += len(message.tuples)
        for stream in SIDES:
            there = sum(len(worker.held[stream]) + worker.dropped[stream] for worker in self.workers)
            there += carried[stream] + self.dropped[stream]
            assert there == self.entered[stream], f"I5: {there} tuples of stream {stream} are there, and {self.entered[stream]} came in"
        if not any(channel for gap in self.gaps for channel in gap) and not any(worker.leaving is not None for worker in self.workers):
            self._check_at_rest()

    def _check_at_rest(self) -> None:
        for stream in SIDES:
            sizes = [len(worker.held[stream]) for worker in self.workers]
            along = sizes if stream == LEFT else sizes[::-1]
            for before, after in pairwise(along):
                block = self.workers[0].block_tuples
                assert before - after < block, f"I6: of stream {stream} workers hold {sizes}, and blocks are of {block}"

    def _next(self, at: int, side: int) -> Message[Block]:
        if not self.is_end(at, side):
            return self._channel(at, side).popleft()
        item = self.sources[side].popleft()
        if isinstance(item, Change):
            return Retire(side)
        if isinstance(item, TupleBlock):
            self.entered[side] += len(item.tuples)
        return item

    def _channel(self, at: int, side: int) -> deque[Message[Block]]:
        """What is on its way to a worker from a neighbour."""
        return self.gaps[at - 1][RIGHT] if side == LEFT else self.gaps[at][LEFT]

    def _send(self, at: int, side: int, message: Message[Block]) -> None:
        self._put(self.gaps[at - 1][LEFT] if side == LEFT else self.gaps[at][RIGHT], message)

    def _put(self, channel: deque[Message[Block]], message: Message[Block]) -> None:
        channel.append(message)

    def _add(self, side: int) -> None:
        """Add the workers that are next in the source's sequence. It makes no difference when, for nobody else notices."""
        source = self.sources[side]
        while source and source[0] is Change.ADD and self.workers[self._end(side)].leaving is None:
            source.popleft()
            added = self.make((side == RIGHT, side == LEFT), True)
            gap: tuple[deque[Message[Block]], deque[Message[Block]]] = (deque(), deque())
            position = 0 if side == LEFT else len(self.workers)
            mark = self.workers[self._end(side)].marks[side]
            self.workers.insert(position, added)
            self.gaps.insert(0 if side == LEFT else len(self.gaps), gap)
            self._put(gap[1 - side], Extend(side))
            if mark is not None:
                # The source says again how far it has come, for it may have come to its end.
                source.appendleft(Mark(side, mark))

    def _may_go(self, at: int, side: int) -> bool:
        """The end worker is not the only one, or the one left when that at the other end goes."""
        if len(self.workers) == 1:
            return False
        beside = self.workers[at + 1 if side == LEFT else at - 1]
        return self.workers[at].neighbours[1 - side] and beside.leaving is None

    def _remove(self, side: int) -> None:
        gone = self.workers.pop(self._end(side))
        assert gone.gone, "a worker that has not gone handed its tuples back"
        unread = self.gaps.pop(0 if side == LEFT else len(self.gaps) - 1)
        assert not any(unread), f"{unread} are left between a worker that has gone and its neighbour"
        for stream in SIDES:
            self.dropped[stream] += gone.dropped[stream]

    def _end(self, side: int) -> int:
        return 0 if side == LEFT else len(self.workers) - 1
