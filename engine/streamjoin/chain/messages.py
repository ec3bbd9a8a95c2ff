"""What workers of a chain tell each other, and what a worker asks to be done (MP-2PF, and what windows and elasticity need beside it).

Streams and sides are numbered alike (:mod:`streamjoin.language.sides`): the left stream comes in at the left end and goes right, the right
stream comes in at the right end and goes left. So stream k comes to a worker from side k, its *predecessor* for k, and leaves it by side
1 - k, its *successor* for k.

===========================================  ================  =====================================================================
message                                      goes to
===========================================  ================  =====================================================================
TUPLE_BLK      :class:`TupleBlock`           the successor     tuples, which the sender holds no more
ACK            :class:`Ack`                  the predecessor   a block has come and has been probed
SIZE_CHG       :class:`SizeChanged`          the predecessor   how many tuples a worker holds now
MARK           :class:`Mark`                 the successor     how far the stream's time has come
(change)       :class:`Extend`               the successor     a worker was added, where the stream came in until now
(change)       :class:`Retire`               by the source     to the end of the chain that is to go
(change)       :class:`Leave`                the successor     the predecessor goes: send it nothing more
(change)       :class:`Closed`               the predecessor   it will be sent nothing more
(change)       :class:`HandBack`             the predecessor   the other stream's tuples of the worker that goes; its last message
===========================================  ================  =====================================================================

The first three are those of the paper; it has no windows in its messages, and does not say how workers are added or removed.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

Block = TypeVar("Block", bound=Sized)
"""Some tuples of one stream, in order. Only their number is known here; they must not change."""
Found = TypeVar("Found")
"""One result, or several."""


@dataclass(frozen=True, slots=True)
class TupleBlock(Generic[Block]):
    """TUPLE_BLK: the oldest tuples that the sender held: ``Worker.block_tuples``, or those expired, or all when it goes."""

    stream: int
    number: int
    """Of the blocks that this sender has sent of the stream, from 0."""
    tuples: Block


@dataclass(frozen=True, slots=True)
class Ack:
    """ACK: block ``number`` has come, and what it found has been said. Its copy may go."""

    stream: int
    number: int


@dataclass(frozen=True, slots=True)
class SizeChanged:
    """SIZE_CHG: the sender holds ``size`` tuples of the stream, copies not counted."""

    stream: int
    size: int


@dataclass(frozen=True, slots=True)
class Mark:
    """MARK: no tuple of the stream that enters the chain after this is older than ``time``; ``math.inf``: none enters at all."""

    stream: int
    time: float


@dataclass(frozen=True, slots=True)
class Extend:
    """Of this stream nothing more comes from the source itself: a new worker, which is the predecessor now, takes it in."""

    stream: int


@dataclass(frozen=True, slots=True)
class Retire:
    """From now on the stream enters at the successor. The worker that gets this hands over what it holds, and goes."""

    stream: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The predecessor for this stream goes. All that it held of the stream has been sent."""

    stream: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The answer to :class:`Leave`: nothing comes after this, all that was sent before is acknowledged."""

    stream: int


@dataclass(frozen=True, slots=True)
class HandBack(Generic[Block]):
    """All tuples of ``stream`` of the worker that goes, which is the successor for it. They have met all that entered so far."""

    stream: int
    tuples: Block


Message: TypeAlias = TupleBlock[Block] | Ack | SizeChanged | Mark | Extend | Retire | Leave | Closed | HandBack[Block]


@dataclass(frozen=True, slots=True)
class Send(Generic[Block]):
    """Send to the neighbour on ``side``, after all that was sent there before."""

    side: int
    message: Message[Block]


@dataclass(frozen=True, slots=True)
class Match(Generic[Found]):
    """What a store found."""

    found: Found


@dataclass(frozen=True, slots=True)
class Drop(Generic[Block]):
    """Tuples of a stream leave the chain here, at its end: they have met all of the other stream that they can match."""

    stream: int
    tuples: Block


Effect: TypeAlias = Send[Block] | Match[Found] | Drop[Block]
