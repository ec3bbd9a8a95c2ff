"""A worker of a handshake chain as a state machine: MP-2PF, the two-phase forwarding of ESJ. Pure: messages in, effects out.

Each worker holds a part of both streams. Left tuples wander right and right tuples left, whenever a worker holds a block more than the next
one; a tuple that comes to a worker probes what is held there of the other stream. So each left tuple meets each right one: at a worker, or
between two workers, where they pass each other. For the second case the sender of a block keeps a *copy* until it is acknowledged.

Always holds, if what comes from one side comes in the order in which it was sent (I1), however that of the other side falls in between:

- I2. Left tuples find copies of right ones, and right tuples find no copies: of two blocks that pass each other just one finds the other.
  So copies of left tuples are not even kept.
- I3. A stream's tuples come to every worker, in the stream's order.
- I4. Blocks are acknowledged in the order in which they were sent.
- I5. A tuple is held by one worker, or in one block between two, or has been dropped. Copies count for nothing.
- I6. Where no message is on its way, a worker holds less than a block more than its successor.
- I7. A worker acts on messages only, and has nothing left to do after each. It is ``PROCESSING`` between messages.

Windows: a tuple that no later tuple of the other stream can match is pushed on, even if the successor holds more, and dropped where it
would leave the chain. It must not be dropped earlier, for it has yet to meet the tuples further on.

Elasticity: workers come and go at the ends. To a worker it makes no difference who is beside it, for all that comes from one side, from the
source or from whoever takes its place, is one sequence (I1). The last messages of the one say so: :class:`~.messages.Extend` when a
worker is put between, :class:`~.messages.HandBack` when one goes. Whoever runs workers must keep that sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import ClassVar, Generic

from streamjoin.chain.messages import (
    Ack,
    Block,
    Closed,
    Drop,
    Effect,
    Extend,
    Found,
    HandBack,
    Leave,
    Mark,
    Match,
    Message,
    Retire,
    Send,
    SizeChanged,
    TupleBlock,
)
from streamjoin.chain.stores import Store
from streamjoin.language.sides import RIGHT, SIDES


class State(Enum):
    """What a worker is at. The last two end within the message that they begin with, so that they never block the first."""

    PROCESSING = "processing"
    FORWARDING = "forwarding"
    DELETING = "deleting"


class ProtocolError(Exception):
    """A message came that cannot have been sent, or not in this order. The worker's state is not to be trusted."""


class Worker(Generic[Block, Found]):
    """One worker of a chain. Not thread-safe."""

    copies_of: ClassVar[tuple[int, ...]] = (RIGHT,)
    """The streams whose copies are kept, and found (I2)."""

    def __init__(
        self, stores: Callable[[int], Store[Block, Found]], block_tuples: int, neighbours: tuple[bool, bool], *, added: bool = False
    ) -> None:
        """``stores``: an empty store for a stream. ``neighbours``: whether there is a worker to the left, to the right; else the source.

        ``added``: the chain runs already, so that it is not known how many tuples the neighbours hold. Raises ValueError for blocks of
        less than one tuple.
        """
        if block_tuples < 1:
            raise ValueError(f"block_tuples: {block_tuples} must be 1 or more")
        self.block_tuples = block_tuples
        self.state = State.PROCESSING
        self.neighbours = list(neighbours)
        self.held = [stores(stream) for stream in SIDES]
        self.copies = {stream: stores(stream) for stream in self.copies_of}
        self.unacknowledged: list[deque[tuple[int, int]]] = [deque(), deque()]
        """By stream: number and tuples of each block on its way to the successor."""
        self.marks: list[float | None] = [None, None]
        """By stream: the latest mark. The stream's tuples that come from now on are not older, but for those that others hold."""
        self.dropped = [0, 0]
        """By stream: tuples that left the chain here."""
        self.leaving: int | None = None
        """The stream that came in here, if this worker was told to go."""
        self.gone = False
        """It has handed over all, and gets no message any more."""
        self._closed = [False, False]
        """By side: nothing more is sent there, because the neighbour goes."""
        self._sizes: list[int | None] = [None if added else 0] * 2
        """By stream: how many tuples the successor held, as it said last, and those that it has acknowledged since."""
        self._told = [0, 0]
        """By stream: the predecessor's ``_sizes``, once it has read all that was sent."""
        self._sent = [0, 0]
        """By stream: the number of the next block."""
        self._torn = False
        """It is within a message, or an error left it there."""

    def resume(self, held: tuple[Block, Block]) -> list[Effect[Block, Found]]:
        """Go on with these tuples, by stream, as a worker of a chain that was at rest; returns what to send first. To be called first,
        of a worker that was made with ``added``: it sends no tuples because of sizes before it has heard how many its neighbours hold."""
        effects: list[Effect[Block, Found]] = []
        for stream, tuples in enumerate(held):
            self.held[stream].append(tuples)
            if self.neighbours[stream]:
                self._told[stream] = len(tuples)
                effects.append(Send(stream, SizeChanged(stream, len(tuples))))
        return effects

    def handle(self, message: Message[Block]) -> list[Effect[Block, Found]]:
        """What is to be done about a message, in this order. O(blocks on their way), beside what stores take.

        Raises ProtocolError for one that cannot be. A worker on which this has raised, or whose store has, takes no more messages.
        """
        if self.gone or self._torn:
            raise ProtocolError(f"{message} came to a worker that {'has gone' if self.gone else f'failed while {self.state.value}'}")
        self._torn = True
        effects = list(self._receive(message))
        if not self.gone:
            for stream in SIDES:
                effects += self._forward(stream)
            for stream in SIDES:
                effects += self._tell_size(stream)
        self._torn = False
        return effects

    def validate(self) -> None:
        """Raises AssertionError where an invariant does not hold that one worker can see. O(blocks on their way)."""
        assert self.state is State.PROCESSING, f"I7: {self.state} between messages"
        for stream in SIDES:
            numbers = [number for number, _ in self.unacknowledged[stream]]
            assert numbers == list(range(self._sent[stream] - len(numbers), self._sent[stream])), f"I4: {numbers} of {self._sent[stream]}"
            if stream in self.copies:
                assert len(self.copies[stream]) == self._under_way(stream), f"stream {stream}: copies of other blocks than are on their way"
            if not self.neighbours[1 - stream]:
                assert not numbers, f"stream {stream}: blocks {numbers} were sent to nobody"
            assert self.gone or self._due(stream) == 0, f"I7: {self._due(stream)} tuples of stream {stream} should have gone on"
            if self.neighbours[stream] and not self.gone and not self._closed[stream]:
                assert self._told[stream] == len(self.held[stream]), f"stream {stream}: the predecessor was told {self._told[stream]}"
        if self.leaving is not None:
            assert len(self.held[self.leaving]) == 0, "a worker that goes holds tuples of the stream that came in there"

    def _receive(self, message: Message[Block]) -> Iterator[Effect[Block, Found]]:
        match message:
            case TupleBlock():
                yield from self._process(message)
            case Ack():
                self._delete(message)
            case SizeChanged(stream, size):
                self._sizes[stream] = size
            case Mark(stream, time):
                yield from self._advance(stream, time)
            case Extend(stream):
                yield from self._extend(stream)
            case Retire(stream):
                yield from self._retire(stream)
            case Leave(stream):
                yield from self._close(stream)
            case Closed(stream):
                yield from self._hand_back(stream)
            case HandBack():
                self._take_back(message)

    def _process(self, block: TupleBlock[Block]) -> Iterator[Effect[Block, Found]]:
        other = 1 - block.stream
        yield from map(Match, self.held[other].probe(block.tuples))
        if other in self.copies:
            yield from map(Match, self.copies[other].probe(block.tuples))
        self.held[block.stream].append(block.tuples)
        if self.neighbours[block.stream]:
            # By the acknowledgement the predecessor knows that these tuples are held here.
            self._told[block.stream] += len(block.tuples)
            yield Send(block.stream, Ack(block.stream, block.number))

    def _forward(self, stream: int) -> Iterator[Effect[Block, Found]]:
        """Send on what is due, or drop it at the stream's last worker."""
        while due := self._due(stream):
            if self.neighbours[1 - stream]:
                # Expired tuples are one block, however many: the successor, from which the mark came, passes them on at once.
                yield self._send(stream, due)
            else:
                self.dropped[stream] += due
                yield Drop(stream, self.held[stream].take(due))

    def _due(self, stream: int) -> int:
        """How many of the oldest tuples held are to go on now: those expired, or else a block, if the successor holds so many fewer."""
        if self._closed[1 - stream]:
            return 0
        held, mark, size = self.held[stream], self.marks[1 - stream], self._sizes[stream]
        if mark is not None and (expired := held.expired(mark)):
            return expired
        if not self.neighbours[1 - stream] or size is None:
            return 0
        return self.block_tuples if len(held) - (size + self._under_way(stream)) >= self.block_tuples else 0

    def _send(self, stream: int, count: int) -> Send[Block]:
        self.state = State.FORWARDING
        tuples = self.held[stream].take(count)
        if stream in self.copies:
            self.copies[stream].append(tuples)
        number = self._sent[stream]
        self._sent[stream] += 1
        self.unacknowledged[stream].append((number, count))
        self.state = State.PROCESSING
        return Send(1 - stream, TupleBlock(stream, number, tuples))

    def _delete(self, ack: Ack) -> None:
        self.state = State.DELETING
        waiting = self.unacknowledged[ack.stream]
        if not waiting or waiting[0][0] != ack.number:
            raise ProtocolError(f"{ack} came, and the first of {list(waiting)} (number, tuples) is next: keep channels in order")
        _, count = waiting.popleft()
        if ack.stream in self.copies:
            self.copies[ack.stream].take(count)
        size = self._sizes[ack.stream]
        if size is not None:
            self._sizes[ack.stream] = size + count
        self.state = State.PROCESSING

    def _under_way(self, stream: int) -> int:
        return sum(count for _, count in self.unacknowledged[stream])

    def _tell_size(self, stream: int) -> Iterator[Effect[Block, Found]]:
        size = len(self.held[stream])
        if self.neighbours[stream] and not self._closed[stream] and size != self._told[stream]:
            self._told[stream] = size
            yield Send(stream, SizeChanged(stream, size))

    def _advance(self, stream: int, time: float) -> Iterator[Effect[Block, Found]]:
        before = self.marks[stream]
        if before is None or time > before:
            self.marks[stream] = time
            if self.neighbours[1 - stream] and not self._closed[1 - stream]:
                yield Send(1 - stream, Mark(stream, time))

    def _extend(self, stream: int) -> Iterator[Effect[Block, Found]]:
        """A new worker takes in ``stream``. It is the predecessor for it, and the successor for the other stream, and holds nothing."""
        if self.neighbours[stream]:
            raise ProtocolError(f"{Extend(stream)} came from a worker: only a source moves on")
        other = 1 - stream
        self.neighbours[stream] = True
        self._sizes[other], self._told[stream] = 0, len(self.held[stream])
        yield Send(stream, SizeChanged(stream, self._told[stream]))
        mark = self.marks[other]
        if mark is not None:
            # The other stream's next mark may be long in coming, or never come.
            yield Send(stream, Mark(other, mark))

    def _retire(self, stream: int) -> Iterator[Effect[Block, Found]]:
        if self.neighbours[stream] or not self.neighbours[1 - stream] or self._closed[1 - stream]:
            raise ProtocolError(f"{Retire(stream)} came to a worker that is no end of two or more; let the change before it finish")
        self.leaving = stream
        if held := len(self.held[stream]):
            yield self._send(stream, held)
        yield Send(1 - stream, Leave(stream))

    def _close(self, stream: int) -> Iterator[Effect[Block, Found]]:
        if self.leaving is not None:
            raise ProtocolError("two neighbours are to go at once; let one go first")
        self._closed[stream] = True
        yield Send(stream, Closed(stream))

    def _hand_back(self, stream: int) -> Iterator[Effect[Block, Found]]:
        """Nothing is on its way any more, and all that came in here went through here: what is held of the other stream has met it."""
        if self.leaving != stream or self.unacknowledged[stream]:
            raise ProtocolError(f"{Closed(stream)} came to a worker that has not asked for it, or before all its blocks were acknowledged")
        other = 1 - stream
        held = self.held[other]
        self.gone = True
        yield Send(other, HandBack(other, held.take(len(held))))

    def _take_back(self, message: HandBack[Block]) -> None:
        """No probe: what is held of the other stream here has been met by these tuples, at the worker that goes or on the way there."""
        stream, side = message.stream, 1 - message.stream
        if not self._closed[side] or self.unacknowledged[stream]:
            raise ProtocolError("tuples were handed back by a worker that has not said that it goes, or before it took all that was sent")
        self.held[stream].prepend(message.tuples)
        self.neighbours[side] = self._closed[side] = False
        self._sizes[stream] = None
