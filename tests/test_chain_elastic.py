"""Workers that come and go at the ends of a chain while tuples are on their way; and steps that look right and are not."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator

import pytest

from cases import how_many
from chain_cases import Case, even, random_case, stream
from streamjoin.chain.messages import (
    Ack,
    Closed,
    Drop,
    Effect,
    Extend,
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
from streamjoin.chain.worker import Worker
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin_research.chain.interleavings import Failure, explore
from streamjoin_research.chain.network import Change, Network
from streamjoin_research.chain.stores import Pair, QueueStore, StreamTuple, Tuples

ADD, REMOVE = Change.ADD, Change.REMOVE
SEEDS = range(how_many(320, of=4))
Changes = tuple[tuple[Change, ...], tuple[Change, ...]]


def with_changes(case: Case, changes: Changes, before: tuple[int, int]) -> Case:
    """``changes``: by side, those before the source's item of this index."""
    sources = tuple([*source[:at], *new, *source[at:]] for source, new, at in zip(case.sources, changes, before, strict=True))
    return Case(case.workers, case.block_tuples, (sources[0], sources[1]), case.reach)


def changed(workers: int) -> Iterator[Changes]:
    """One or two changes, at one end or at both."""
    for one in Change:
        if one is ADD or workers > 1:
            yield (one,), ()
            yield (), (one,)
    for one, other in itertools.product(Change, repeat=2):
        if [one, other].count(REMOVE) < workers:
            yield (one,), (other,)
            yield (), (one, other)


def outcome(case: Case, network: type[Network[Tuples, Pair]] = Network, worker: type[Worker[Tuples, Pair]] = Worker) -> Failure | None:
    return explore(case.network(network, worker), case.answer()).failure


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_interleaving_with_changes_finds_each_pair_once(workers: int) -> None:
    """Before any tuple, between any two, and after all."""
    tried = 0
    for changes in changed(workers):
        most = 2 if workers == 1 or sum(map(len, changes)) == 1 else 1
        case = Case(workers, 1, even((most, most)))
        for before in itertools.product(range(most + 1), repeat=2):
            if all(new or at == 0 for new, at in zip(changes, before, strict=True)):
                failure = outcome(with_changes(case, changes, before))
                assert failure is None, f"{changes} before {before}: {failure}"
                tried += 1
    assert tried > 10


@pytest.mark.parametrize("change", Change)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("workers", [2, 3])
def test_every_interleaving_with_four_tuples_a_side_and_windows(change: Change, side: int, workers: int) -> None:
    changes = ((change,), ()) if side == LEFT else ((), (change,))
    for case in (
        Case(workers, 2, even((4, 4))),
        Case(2, 2, even((4, 4), marks=2), (1.5, 1.5)),
        Case(2, 1, even((3, 3), marks=2), (1.5, 1.5)),
    ):
        failure = outcome(with_changes(case, changes, (2, 2)))
        assert failure is None, str(failure)


def test_random_runs_with_changes_find_what_trying_every_pair_finds() -> None:
    came, went = 0, 0
    for seed in SEEDS:
        case = random_case(seed, changes=0.3)
        network, chance = case.network(), random.Random(seed)
        found: list[Pair] = []
        while choices := network.choices():
            before = len(network.workers)
            found += network.read(*chance.choice(choices))
            came += len(network.workers) > before
            went += len(network.workers) < before
            network.check()
        assert sorted(found, key=repr) == sorted(case.answer(), key=repr), f"seed {seed}"
        assert not any(network.sources), f"seed {seed}"
    assert min(came, went) > len(SEEDS) / 2


LEFTS = [StreamTuple(LEFT, number, float(number)) for number in range(4)]
RIGHTS = [StreamTuple(RIGHT, number, number + 0.5) for number in range(4)]


def handle(worker: Worker[Tuples, Pair], *messages: Message[Tuples]) -> list[Effect[Tuples, Pair]]:
    effects: list[Effect[Tuples, Pair]] = []
    for message in messages:
        effects = worker.handle(message)
        worker.validate()
    return effects


def test_the_end_worker_tells_a_new_one_how_much_it_holds_and_the_time_then_balances() -> None:
    worker = Worker(QueueStore, 2, (True, False))
    handle(worker, TupleBlock(LEFT, 0, tuple(LEFTS[:2])), TupleBlock(RIGHT, 0, (RIGHTS[0],)), Mark(LEFT, 1.0))
    assert handle(worker, Extend(RIGHT)) == [
        Send(RIGHT, SizeChanged(RIGHT, 1)),
        Send(RIGHT, Mark(LEFT, 1.0)),
        Send(RIGHT, TupleBlock(LEFT, 0, tuple(LEFTS[:2]))),
        Send(LEFT, SizeChanged(LEFT, 0)),
    ]


def test_a_new_worker_keeps_its_tuples_until_it_knows_how_many_its_neighbour_holds() -> None:
    worker = Worker(QueueStore, 1, (True, False), added=True)
    assert handle(worker, TupleBlock(RIGHT, 0, tuple(RIGHTS[:3]))) == []
    assert handle(worker, SizeChanged(RIGHT, 2)) == [Send(LEFT, TupleBlock(RIGHT, 0, (RIGHTS[0],)))]


def test_a_worker_that_goes_hands_over_one_stream_and_hands_back_the_other() -> None:
    leaver = Worker(QueueStore, 2, (True, False))
    handle(leaver, TupleBlock(LEFT, 0, (LEFTS[0],)), SizeChanged(RIGHT, 9), TupleBlock(RIGHT, 0, tuple(RIGHTS[:3])))
    assert handle(leaver, Retire(RIGHT)) == [Send(LEFT, TupleBlock(RIGHT, 0, tuple(RIGHTS[:3]))), Send(LEFT, Leave(RIGHT))]
    handle(leaver, TupleBlock(LEFT, 1, (LEFTS[1],)))
    handle(leaver, Ack(RIGHT, 0))
    assert handle(leaver, Closed(RIGHT)) == [Send(LEFT, HandBack(LEFT, tuple(LEFTS[:2])))]
    assert leaver.gone


def test_who_stays_sends_nothing_more_to_who_goes_and_takes_back_without_a_probe() -> None:
    stays = Worker(QueueStore, 1, (False, True))
    handle(stays, SizeChanged(LEFT, 9), TupleBlock(RIGHT, 0, (RIGHTS[0],)))
    assert handle(stays, Leave(RIGHT)) == [Send(RIGHT, Closed(RIGHT))]
    assert handle(stays, TupleBlock(LEFT, 0, tuple(LEFTS[2:]))) == [Match((LEFTS[2], RIGHTS[0])), Match((LEFTS[3], RIGHTS[0]))]
    assert handle(stays, Mark(LEFT, math.inf)) == [Drop(RIGHT, (RIGHTS[0],))]
    assert handle(stays, HandBack(LEFT, tuple(LEFTS[:2]))) == []
    assert stays.held[LEFT].take(4) == tuple(LEFTS)


def test_two_neighbours_cannot_both_go() -> None:
    """The second waits until the first has gone, and the last one stays for ever: its source's items are not read."""
    case = with_changes(Case(2, 1, even((1, 1))), ((REMOVE,), (REMOVE,)), (0, 0))
    network = case.network()
    network.run(random.Random(0))
    assert len(network.workers) == 1
    assert any(network.sources)
    failure = outcome(case)
    assert failure is not None


class LinksAtOnce(Network[Tuples, Pair]):
    """The end worker has its new neighbour while a block from the source is still on its way to it."""

    def _add(self, side: int) -> None:
        source = self.sources[side]
        if len(source) < 2 or source[1] is not ADD:
            return
        block = source.popleft()
        assert isinstance(block, TupleBlock)
        self.entered[side] += len(block.tuples)
        super()._add(side)
        self._put(self.gaps[-1][LEFT] if side == RIGHT else self.gaps[0][RIGHT], TupleBlock(side, FROM_SOURCE, block.tuples))


FROM_SOURCE = -1


class EntersMeanwhile(Network[Tuples, Pair]):
    """The source's blocks do not wait for what is handed back, but only until the worker that stays sends nothing more."""

    def read(self, at: int, side: int) -> list[Pair]:
        leaves = isinstance(self.next_item(at, side), Leave)
        found = super().read(at, side)
        if leaves:
            channel, source = self._channel(at, side), self.sources[side]
            while source and isinstance(source[0], TupleBlock):
                block = source.popleft()
                self.entered[side] += len(block.tuples)
                channel.insert(0, TupleBlock(side, FROM_SOURCE, block.tuples))
        return found


class NoAckToSources(Worker[Tuples, Pair]):
    """For the two networks above, in which what comes from a side is not one sequence."""

    def _process(self, block: TupleBlock[Tuples]) -> Iterator[Effect[Tuples, Pair]]:
        neighbours = list(self.neighbours)
        self.neighbours[block.stream] &= block.number != FROM_SOURCE
        effects = list(super()._process(block))
        self.neighbours = neighbours
        if block.number == FROM_SOURCE and neighbours[block.stream] and not self._closed[block.stream]:
            effects.append(Send(block.stream, SizeChanged(block.stream, len(self.held[block.stream]))))
            self._told[block.stream] = len(self.held[block.stream])
        return iter(effects)


class ProbesWhatItHolds(NoAckToSources):
    """What is handed back probes those tuples held that came from the source meanwhile."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.meanwhile: list[StreamTuple] = []

    def _process(self, block: TupleBlock[Tuples]) -> Iterator[Effect[Tuples, Pair]]:
        if block.number == FROM_SOURCE:
            self.meanwhile += block.tuples
        return super()._process(block)

    def _receive(self, message: Message[Tuples]) -> Iterator[Effect[Tuples, Pair]]:
        if isinstance(message, HandBack):
            other = 1 - message.stream
            for pair in self.held[other].probe(message.tuples):
                if pair[other] in self.meanwhile:
                    yield Match(pair)
        yield from super()._receive(message)


class ForgetsTheMark(Worker[Tuples, Pair]):
    """A new worker hears of the other stream's time with its next mark."""

    def _extend(self, stream: int) -> Iterator[Effect[Tuples, Pair]]:
        for effect in super()._extend(stream):
            if not (isinstance(effect, Send) and isinstance(effect.message, Mark)):
                yield effect


class HandsBackOnceAcknowledged(Worker[Tuples, Pair]):
    """The neighbour stops first; who goes waits for the acknowledgements of its own blocks alone."""

    def _retire(self, stream: int) -> Iterator[Effect[Tuples, Pair]]:
        effects = list(super()._retire(stream))
        yield effects[-1]
        yield from effects[:-1]
        yield from self._when_acknowledged()

    def _close(self, stream: int) -> Iterator[Effect[Tuples, Pair]]:
        for _ in super()._close(stream):
            yield from ()

    def _receive(self, message: Message[Tuples]) -> Iterator[Effect[Tuples, Pair]]:
        yield from super()._receive(message)
        if self.leaving is not None and not isinstance(message, Retire):
            yield from self._when_acknowledged()

    def _when_acknowledged(self) -> Iterator[Effect[Tuples, Pair]]:
        assert self.leaving is not None
        if not self.unacknowledged[self.leaving]:
            yield from self._hand_back(self.leaving)


WRONG = {
    "the new neighbour is sent tuples while a block of the source is on its way": (
        Case(1, 1, (stream(LEFT, [0]), stream(RIGHT, [0], changes={1: [ADD]}))),
        LinksAtOnce,
        NoAckToSources,
        "not found",
    ),
    "tuples enter beside the one that goes, and what is handed back probes nothing": (
        Case(2, 1, (stream(LEFT, [0]), stream(RIGHT, [0], changes={0: [REMOVE]}))),
        EntersMeanwhile,
        NoAckToSources,
        "not found",
    ),
    "and it probes those that entered and are held, but one was dropped": (
        Case(2, 1, (stream(LEFT, [0]), stream(RIGHT, [0], changes={0: [REMOVE]}))),
        EntersMeanwhile,
        ProbesWhatItHolds,
        "not found",
    ),
    "and it probes those that entered and are held, but one went on": (
        Case(3, 1, (stream(LEFT, [0]), stream(RIGHT, [0], changes={0: [REMOVE]}))),
        EntersMeanwhile,
        ProbesWhatItHolds,
        "not found",
    ),
    "who goes waits for acknowledgements alone": (
        Case(2, 1, (stream(LEFT, [0]), stream(RIGHT, [], changes={0: [REMOVE]}))),
        Network,
        HandsBackOnceAcknowledged,
        "tuples were handed back .* before it took all that was sent",
    ),
}


@pytest.mark.parametrize("variant", WRONG)
def test_steps_that_look_right_lose_a_pair_of_one_tuple_a_side(variant: str) -> None:
    case, network, worker, how = WRONG[variant]
    failure = outcome(case, network, worker)
    assert failure is not None
    assert re.match(how, failure.what), str(failure)
    assert outcome(case) is None


def test_a_new_worker_that_is_not_told_the_time_keeps_tuples_for_ever() -> None:
    """The other stream has ended before it came."""
    sources = stream(LEFT, [0]), stream(RIGHT, [0], changes={0: [ADD]})
    for worker, kept in ((Worker, 0), (ForgetsTheMark, 1)):
        network = Case(1, 2, sources).network(worker=worker)
        network.read(0, LEFT)
        network.read(0, LEFT)
        network.run(random.Random(0))
        assert len(network.workers[1].held[RIGHT]) == kept
