"""Streams for the tests of ``streamjoin.chain``, and the answer that a join of them should give, by trying every pair."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from streamjoin.chain.messages import Mark, TupleBlock
from streamjoin.chain.worker import Worker
from streamjoin_research.chain.network import Change, Item, MakeWorker, Network, workers_of
from streamjoin_research.chain.stores import Pair, QueueStore, StreamTuple, Tuples
from streamjoin_research.chain.stores import Window as TimeWindow

UNBOUNDED = (math.inf, math.inf)
Source = list[Item[Tuples]]


def in_reach(left: StreamTuple, right: StreamTuple, reach: tuple[float, float]) -> bool:
    return left.time - reach[1] <= right.time <= left.time + reach[0]


@dataclass(frozen=True)
class Case:
    """Two streams with what happens at their ends, for a chain."""

    workers: int
    block_tuples: int
    sources: tuple[Source, Source]
    reach: tuple[float, float] = UNBOUNDED
    predicate: Callable[[StreamTuple, StreamTuple], bool] = field(default=lambda left, right: True)

    def make(self, kind: type[Worker[Tuples, Pair]] = Worker) -> MakeWorker[Tuples, Pair]:
        window, predicate = TimeWindow(self.reach), self.predicate
        return workers_of(lambda stream: QueueStore(stream, window, predicate), self.block_tuples, kind)

    def network(self, kind: type[Network[Tuples, Pair]] = Network, worker: type[Worker[Tuples, Pair]] = Worker) -> Network[Tuples, Pair]:
        return kind(self.make(worker), self.workers, self.sources)

    def tuples(self, stream: int) -> list[StreamTuple]:
        return [new for item in self.sources[stream] if isinstance(item, TupleBlock) for new in item.tuples]

    def answer(self) -> list[Pair]:
        pairs = [(left, right) for left in self.tuples(0) for right in self.tuples(1)]
        return [pair for pair in pairs if in_reach(*pair, self.reach) and self.predicate(*pair)]


def stream(
    number: int, times: Sequence[float], *, marks: int = 0, block: int = 1, changes: Mapping[int, Sequence[Change]] | None = None
) -> Source:
    """Tuples at these times, a mark after every ``marks`` blocks, and the last mark. ``changes``: by how many tuples come before them."""
    items: Source = []
    tuples = [StreamTuple(number, index, time) for index, time in enumerate(times)]
    for index in range(0, len(tuples), block):
        items += (changes or {}).get(index, ())
        items.append(TupleBlock(number, index // block, tuple(tuples[index : index + block])))
        if marks and (index // block + 1) % marks == 0:
            items.append(Mark(number, times[index]))
    return [*items, *(changes or {}).get(len(tuples), ()), Mark(number, math.inf)]


def even(tuples: tuple[int, int], **options: int) -> tuple[Source, Source]:
    """Left tuples at 0, 1, 2, ..., right ones half a second later."""
    return stream(0, range(tuples[0]), **options), stream(1, [index + 0.5 for index in range(tuples[1])], **options)


def random_source(chance: random.Random, number: int, span: int, changes: float) -> Source:
    """Blocks of one to five tuples, some out of order, and marks between. ``changes``: before what share of blocks workers come or go."""
    disorder = chance.choice([0, 0, 5])
    times = sorted(chance.randrange(span) for _ in range(chance.randrange(40)))
    times.sort(key=lambda time: time + chance.uniform(0, disorder))
    items: Source = []
    done = 0
    while done < len(times):
        if chance.random() < changes:
            items.append(chance.choice(list(Change)))
        size = chance.randint(1, 5)
        new = [StreamTuple(number, done + at, time, chance.randrange(4)) for at, time in enumerate(times[done : done + size])]
        items.append(TupleBlock(number, done, tuple(new)))
        done += size
        if chance.random() < 0.5 and done < len(times):
            items.append(Mark(number, min(times[done:])))
    return [*items, Mark(number, math.inf)]


def most_gone(source: Source) -> int:
    """How many workers a source has removed, less those it has added, at most."""
    steps = [{Change.ADD: -1, Change.REMOVE: 1}[item] for item in source if isinstance(item, Change)]
    return max([0, *itertools.accumulate(steps)])


def random_case(seed: int, changes: float = 0.0) -> Case:
    chance = random.Random(seed)
    span = chance.choice([20, 100, 400])
    reach = chance.choice([(0.0, 0.0), (3.0, 3.0), (20.0, 20.0), (50.0, 0.0), (0.0, 7.0), (math.inf, 4.0), UNBOUNDED])
    predicate = chance.choice(
        [lambda left, right: True, lambda left, right: left.key == right.key, lambda left, right: left.key != right.key]
    )
    sources = random_source(chance, 0, span, changes), random_source(chance, 1, span, changes)
    workers = chance.choice([1, 2, 3, 4, 7]) + most_gone(sources[0]) + most_gone(sources[1])
    return Case(workers, chance.choice([1, 1, 2, 3, 5, 8]), sources, reach, predicate)
