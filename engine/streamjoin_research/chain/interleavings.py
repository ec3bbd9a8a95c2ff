"""Every interleaving of a chain's reads: does each find the same, each pair once?

A worker's state and a message determine what it does, so that is computed once and looked up from then on. States of the whole chain that
were seen before are not gone on from again. And reads of different workers commute: where a worker has messages on both sides, these two
reads stay as they are whatever other workers do first, so it is enough to go on with these two (a *persistent set*: Godefroid,
"Partial-Order Methods for the Verification of Concurrent Systems", 1996). Runs are finite and never come back to a state, so no read is put
off for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias

from streamjoin.chain.messages import Ack, Block, Effect, Found, Message
from streamjoin.chain.worker import ProtocolError, Worker
from streamjoin.language.sides import LEFT, RIGHT, SIDE_NAMES
from streamjoin_research.chain.network import Change, Choice, Network


@dataclass(frozen=True)
class Failure:
    """A run that goes wrong, after as few reads as any that does."""

    what: str
    reads: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((self.what, *self.reads))


@dataclass(frozen=True)
class Exploration:
    """What :func:`explore` has seen."""

    states: int
    reads: int
    failure: Failure | None


def explore(
    network: Network[Block, Found], expected: Collection[Found], *, reduced: bool = True, most_states: int = 1_000_000
) -> Exploration:
    """Try every interleaving, until one goes wrong: finds something twice or not at all, breaks an invariant, or stops before its end.

    ``reduced``: leave out those that differ from others in nothing but the order of reads that commute.

    Stores with equal attributes must be equal, and what they find must be hashable. O(states * workers) time and memory. Raises
    RuntimeError for more than ``most_states``.
    """
    return _Search(network, expected, _persistent if reduced else _all).run(most_states)


_Way: TypeAlias = tuple["_Way", Choice] | None
"""The reads that led to a state, the last one first."""


@dataclass(frozen=True, slots=True)
class _Node(Generic[Block, Found]):
    network: Network[Block, Found]
    found: int
    """The bits of what was found on the way here."""
    way: _Way


class _Search(Generic[Block, Found]):
    def __init__(
        self, network: Network[Block, Found], expected: Collection[Found], reads: Callable[[Network[Block, Found]], list[Choice]]
    ) -> None:
        self.expected, self.reads = set(expected), reads
        self.bits: dict[Found, int] = {}
        """What was found, each with a bit of its own."""
        self.table: _Table[Block, Found] = _Table()
        self.start = network.fork()
        self.start.workers = [self.table.known(deepcopy(worker)) for worker in network.workers]
        self.start.step = self.table.step

    def run(self, most_states: int) -> Exploration:
        start = _Node(self.start, 0, None)
        seen, waiting, count = {self._key(start)}, deque([start]), 0
        while waiting:
            node = waiting.popleft()
            choices = self.reads(node.network)
            wrong = None if choices else self._at_end(node)
            for choice in choices:
                count += 1
                after, wrong = self._read(node, choice)
                if wrong is None and (key := self._key(after)) not in seen:
                    seen.add(key)
                    waiting.append(after)
                    wrong = _broken(after.network)
                if wrong is not None:
                    node = after
                    break
            if wrong is not None:
                return Exploration(len(seen), count, Failure(wrong, self._reads(node.way)))
            if len(seen) > most_states:
                raise RuntimeError(f"most_states: there are more than {most_states}; give fewer workers or tuples, or a higher limit")
        return Exploration(len(seen), count, None)

    def _read(self, node: _Node[Block, Found], choice: Choice) -> tuple[_Node[Block, Found], str | None]:
        """The state after a read, and what is wrong there."""
        network, way, bits = node.network.fork(), (node.way, choice), node.found
        try:
            found = network.read(*choice)
        except (AssertionError, ProtocolError) as error:
            return _Node(network, bits, way), str(error)
        network.workers = [worker if id(worker) in self.table.ids else self.table.known(worker) for worker in network.workers]
        for one in found:
            bit = self.bits.setdefault(one, 1 << len(self.bits))
            if bits & bit:
                return _Node(network, bits, way), f"found again: {one}"
            bits |= bit
        return _Node(network, bits, way), None

    def _at_end(self, node: _Node[Block, Found]) -> str | None:
        found = {one for one, bit in self.bits.items() if node.found & bit}
        if found != self.expected:
            return f"not found: {self.expected - found}; found, but no results: {found - self.expected}"
        if any(node.network.sources):
            return f"stops before it has read {node.network.sources}"
        return None

    def _reads(self, way: _Way) -> tuple[str, ...]:
        """What was read on the way, by going it again."""
        choices = []
        while way is not None:
            way, choice = way
            choices.append(choice)
        network, reads = self.start.fork(), []
        for at, side in reversed(choices):
            item = network.next_item(at, side)
            reads.append(f"worker {at + 1} of {len(network.workers)}, from the {SIDE_NAMES[side]}: {item}")
            if len(reads) < len(choices):
                network.read(at, side)
        return tuple(reads)

    def _key(self, node: _Node[Block, Found]) -> tuple[int, ...]:
        """Numbers alone, flat: of those there are many, and the garbage collector passes them by."""
        network, number = node.network, self.table.number
        key = [node.found, *network.dropped, len(network.workers), *map(id, network.workers)]
        for channel in (channel for gap in network.gaps for channel in gap):
            key += (len(channel), *map(number, channel))
        for source in network.sources:
            # What is behind the first is the end of what was there at the beginning, so that its length tells all.
            key += (len(source), number(source[0]) if source else -1)
        return tuple(key)


class _Table(Generic[Block, Found]):
    """Workers by their state, each once, and what each makes of a message."""

    def __init__(self) -> None:
        self.workers: dict[Hashable, Worker[Block, Found]] = {}
        self.ids: set[int] = set()
        """Of those workers, by which they are told apart. A worker that was added has none of these yet."""
        self.steps: dict[tuple[int, int], tuple[Worker[Block, Found], list[Effect[Block, Found]]]] = {}
        self.numbers: dict[Message[Block] | Change, int] = {}
        self.by_id: dict[int, tuple[int, Message[Block] | Change]] = {}
        """Numbers of objects seen before, which is quicker than by their content. They are kept, so that no other gets their id."""

    def known(self, worker: Worker[Block, Found]) -> Worker[Block, Found]:
        known = self.workers.setdefault(_frozen(worker), worker)
        self.ids.add(id(known))
        return known

    def step(self, worker: Worker[Block, Found], message: Message[Block]) -> tuple[Worker[Block, Found], list[Effect[Block, Found]]]:
        key = (id(worker), self.number(message))
        if key not in self.steps:
            after = deepcopy(worker)
            effects = after.handle(message)
            after.validate()
            self.steps[key] = self.known(after), effects
        return self.steps[key]

    def number(self, message: Message[Block] | Change) -> int:
        """Equal for equal messages."""
        known = self.by_id.get(id(message))
        if known is None:
            known = self.by_id[id(message)] = self.numbers.setdefault(message, len(self.numbers)), message
        return known[0]


def _broken(network: Network[Block, Found]) -> str | None:
    """Which invariant does not hold. The table has asked each worker already."""
    try:
        network.check_between()
    except AssertionError as error:
        return str(error)
    return None


def _frozen(value: Any) -> Hashable:
    """A hashable value that is equal for equal states."""
    if isinstance(value, list | tuple | deque):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((key, _frozen(one)) for key, one in value.items())
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return type(value), _frozen(vars(value))
    assert isinstance(value, Hashable), f"{value} has no state that can be compared"
    return value


def _all(network: Network[Block, Found]) -> list[Choice]:
    return network.choices()


def _persistent(network: Network[Block, Found]) -> list[Choice]:
    """Reads that are enough to go on with: whatever is read elsewhere leaves them as they are, and lets none of these workers read others.

    Those of some adjacent workers, the fewest. To the outside of them nothing may be to come that is not there yet: a message is
    there, which is next whatever is sent behind it, or the source has come to its end. Empty only at the end.
    """
    choices = network.choices()
    for at, side in choices:
        if isinstance(network.next_item(at, side), Ack):
            # It deletes a copy that only what comes behind it could have found, and does nothing else.
            return [(at, side)]
    workers = range(len(network.workers))
    firsts = [at for at in workers if _is_known(network, at, LEFT, choices)]
    lasts = [at for at in workers if _is_known(network, at, RIGHT, choices)]
    among = ([choice for choice in choices if first <= choice[0] <= last] for first in firsts for last in lasts if first <= last)
    return min(filter(None, among), key=len, default=choices)


def _is_known(network: Network[Block, Found], at: int, side: int, choices: list[Choice]) -> bool:
    """What a worker reads next from a side is settled, whatever other workers read."""
    if (at, side) in choices:
        # Whether a worker may go depends on the others.
        return network.next_item(at, side) is not Change.REMOVE
    return network.is_end(at, side) and not network.sources[side]
