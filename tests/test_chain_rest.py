"""A chain at rest: who finds it out, and how it goes on from there with other blocks."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable

import pytest

from cases import how_many
from chain_cases import Case, random_case
from streamjoin.chain.messages import Mark, Send, SizeChanged
from streamjoin.chain.quiescence import AtRest, Signal, Watch
from streamjoin.chain.worker import Worker
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin_research.chain.network import Item, Network
from streamjoin_research.chain.stores import Pair, QueueStore, Tuples
from streamjoin_research.chain.stores import Window as TimeWindow

SEEDS = range(how_many(300, of=4))
MESSAGE = "message"


class Gossip:
    """Workers in a row that send each other messages at random, fewer and fewer, and watch."""

    def __init__(self, chance: random.Random, workers: int, watch: type[Watch] = Watch) -> None:
        self.chance, self.returns = chance, chance.random() < 0.5
        self.watches = [watch((at > 0, at < workers - 1), returns=self.returns) for at in range(workers)]
        self.channels: dict[tuple[int, int], deque[str | Signal]] = {(at, side): deque() for at in range(workers) for side in SIDES}
        """By reader and the side that it reads from."""
        self.left, self.waves = chance.randint(0, 30), 0
        self.told: list[tuple[int, int]] = []
        """Who told a neighbour that the chain is at rest, and to which side that is."""
        for at in range(workers):
            self.say(at, chance.randint(0, 3))
            self.signal(at, self.watches[at].begin())

    def say(self, at: int, count: int) -> None:
        for _ in range(count):
            side = self.chance.choice(SIDES)
            if 0 <= at + (1 if side == RIGHT else -1) < len(self.watches) and self.left:
                self.left -= 1
                self.watches[at].sent += 1
                self.put(at, side, MESSAGE)

    def signal(self, at: int, signals: Iterable[tuple[int, Signal]]) -> None:
        for side, signal in signals:
            self.waves += at == 0 and not isinstance(signal, AtRest)
            if isinstance(signal, AtRest):
                self.told.append((at, side))
            self.put(at, side, signal)

    def put(self, at: int, side: int, what: str | Signal) -> None:
        self.channels[(at + 1, LEFT) if side == RIGHT else (at - 1, RIGHT)].append(what)

    def run(self) -> None:
        while waiting := [key for key, channel in self.channels.items() if channel]:
            at, side = self.chance.choice(waiting)
            what = self.channels[at, side].popleft()
            if isinstance(what, str):
                assert not any(watch.over for watch in self.watches), "the chain was said to be at rest, and a message was on its way"
                self.watches[at].received += 1
                self.say(at, self.chance.randint(0, 2))
            else:
                self.signal(at, self.watches[at].handle(what))
        assert all(watch.over for watch in self.watches), "all is done, and not all have heard of it"
        last = len(self.watches) - 1
        back = [(at, LEFT) for at in range(last, 0, -1)] if self.returns else []
        assert self.told == [*((at, RIGHT) for at in range(last)), *back], "each is told once from either side that has something to tell"


def test_a_chain_is_said_to_be_at_rest_when_it_is_and_not_before() -> None:
    most = 0
    for seed in SEEDS:
        chance = random.Random(seed)
        gossip = Gossip(chance, chance.choice([1, 2, 3, 4, 7]))
        gossip.run()
        most = max(most, gossip.waves)
    assert most > 3, "waves had to be repeated"


class Hasty(Watch):
    """Takes one wave for two: it ends when as many messages were sent as received."""

    def handle(self, signal: Signal) -> list[tuple[int, Signal]]:
        if isinstance(signal, AtRest) or signal.goes == LEFT:
            return super().handle(signal)
        again = AtRest() if signal.received_before + self.received == self.sent else signal
        return super().handle(again) if isinstance(again, AtRest) else super().handle(signal)


def test_one_wave_is_not_enough() -> None:
    wrong = 0
    for seed in SEEDS:
        chance = random.Random(seed)
        try:
            Gossip(chance, chance.choice([2, 3, 4, 7]), Hasty).run()
        except AssertionError:
            wrong += 1
    assert wrong > len(SEEDS) / 30


def rested(case: Case, chance: random.Random) -> list[Pair]:
    """What a chain finds that comes to rest now and then, and goes on from what its workers hold, with blocks of another size."""
    found: list[Pair] = []
    sources = tuple(list(source) for source in case.sources)
    marks = [Mark(stream, -math.inf) for stream in SIDES]
    held: list[tuple[Tuples, Tuples]] = [((), ())] * case.workers
    window = TimeWindow(case.reach)
    while any(sources):
        parts: list[list[Item[Tuples]]] = []
        for number, source in enumerate(sources):
            size = chance.randint(0, len(source))
            parts.append([*marks[number : number + 1], *source[:size]])
            marks[number] = next((item for item in reversed(parts[-1]) if isinstance(item, Mark)), Mark(number, -math.inf))
            del source[:size]
        block = chance.randint(1, 6)
        workers = [
            Worker(lambda stream: QueueStore(stream, window, case.predicate), block, (at > 0, at < case.workers - 1), added=True)
            for at in range(case.workers)
        ]
        made = iter(workers)
        network = Network(lambda neighbours, added, made=made: next(made), case.workers, (parts[0], parts[1]))
        for at, worker in enumerate(workers):
            for effect in worker.resume(held[at]):
                assert isinstance(effect, Send)
                assert isinstance(effect.message, SizeChanged)
                network._send(at, effect.side, effect.message)
        network.entered = [sum(len(of_worker[stream]) for of_worker in held) for stream in SIDES]
        while choices := network.choices():
            found += network.read(*chance.choice(choices))
            network.check()
        held = [tuple(store.take(len(store)) for store in worker.held) for worker in workers]
    assert held == [((), ())] * case.workers, "all have left"
    return found


@pytest.mark.parametrize("part", range(4))
def test_a_chain_that_goes_on_from_rest_finds_each_pair_once(part: int) -> None:
    for seed in SEEDS[part::4]:
        case = random_case(seed)
        found = rested(case, random.Random(f"rests of {seed}"))
        assert sorted(found, key=repr) == sorted(case.answer(), key=repr), f"seed {seed}"
