"""What a worker asks of tuples, which it does not look into: the port :class:`Store`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from streamjoin.chain.messages import Block

Results_co = TypeVar("Results_co", covariant=True)


class Store(Protocol[Block, Results_co]):
    """Tuples of one stream, in the order in which they entered the chain. A worker has one for what it holds and one for copies."""

    def __len__(self) -> int: ...

    def append(self, tuples: Block) -> None:
        """Add tuples that are younger than all here."""

    def prepend(self, tuples: Block) -> None:
        """Add tuples that are older than all here."""

    def take(self, count: int) -> Block:
        """Remove the ``count`` oldest, of at least as many, and return them."""

    def expired(self, mark: float) -> int:
        """How many of the oldest, up to the first that is not, no tuple of the other stream at or after ``mark`` can match.

        All are, at ``math.inf``: then the other stream has ended, whatever the window. A store may say fewer, but not 0, to
        keep messages small.
        """

    def probe(self, tuples: Block) -> Iterable[Results_co]:
        """What tuples of the other stream find here: all pairs that predicate and window admit."""
