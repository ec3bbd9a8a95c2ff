"""A chain in full swing, counted: how uneven its workers are, and what they send. Formulas: :mod:`streamjoin.chain.blocksize`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from streamjoin.chain.blocksize import Load
from streamjoin.chain.messages import Mark, Message, TupleBlock
from streamjoin.language.sides import LEFT, SIDES
from streamjoin_research.chain.network import Network, workers_of
from streamjoin_research.chain.stores import Pair, QueueStore, StreamTuple, Tuples, Window

MARKS_A_WINDOW = 100


@dataclass(frozen=True)
class Measured:
    """Of a chain whose windows are full."""

    imbalance: float
    """(most - mean) / mean of the left tuples that workers hold, on average over time."""
    imbalance_of_both: float
    """The same of left and right tuples together."""
    most_ahead: int
    """By how many left tuples a worker exceeded its successor, at most."""
    most_behind: int
    """By how many a successor exceeded the worker before it, at most."""
    blocks_a_link: float
    """Blocks of a stream from one worker to the next, during a window."""
    messages_a_tuple: dict[str, float]
    """Messages between workers by type, for each tuple of both streams that came in."""


def measure(load: Load, block_tuples: int, *, windows: int = 2) -> Measured:
    """Run both streams at ``load.rate`` through a chain in which messages take no time. Count for ``windows`` windows, after two to fill.

    Tuples come in one by one, and a hundred marks in a window. O(tuples * workers) time.
    """
    network = _Counted(load, block_tuples)
    arrivals = round(load.rate * load.window_seconds)
    between = load.window_seconds / arrivals
    marks = max(1, arrivals // MARKS_A_WINDOW)
    sizes: list[tuple[list[int], list[int]]] = []
    for number in range(arrivals * (2 + windows)):
        if number == 2 * arrivals:
            network.sent.clear()
        # The right stream starts half a block later. In step with each other the two would be even together, by chance.
        for stream in SIDES if number >= block_tuples // 2 else (LEFT,):
            time = (number + stream / 2) * between
            network.enter(TupleBlock(stream, number, (StreamTuple(stream, number, time),)))
            if number % marks == 0:
                network.enter(Mark(stream, time))
        if number >= 2 * arrivals:
            held = [[len(worker.held[stream]) for worker in network.workers] for stream in SIDES]
            sizes.append((held[0], held[1]))
    network.check()
    return _measured(load, sizes, network.sent, windows, arrivals)


def _measured(load: Load, sizes: Sequence[tuple[list[int], list[int]]], sent: Counter[str], windows: int, arrivals: int) -> Measured:
    left = [of_left for of_left, _ in sizes]
    both = [[sum(held) for held in zip(*held_of, strict=True)] for held_of in sizes]
    steps = [before - after for held in left for before, after in pairwise(held)]
    links = 2 * max(1, load.workers - 1)
    return Measured(
        imbalance=mean(map(_imbalance, left)),
        imbalance_of_both=mean(map(_imbalance, both)),
        most_ahead=max(steps, default=0),
        most_behind=-min(steps, default=0),
        blocks_a_link=sent[TupleBlock.__name__] / links / windows,
        messages_a_tuple={name: count / (2 * arrivals * windows) for name, count in sorted(sent.items())},
    )


def _imbalance(held: Sequence[int]) -> float:
    return (max(held) - mean(held)) / mean(held)


class _Unprobed(QueueStore):
    """Only windows matter here."""

    def probe(self, tuples: Tuples) -> Sequence[Pair]:
        return ()


class _Counted(Network[Tuples, Pair]):
    def __init__(self, load: Load, block_tuples: int) -> None:
        window = Window((load.window_seconds, load.window_seconds))
        self.sent: Counter[str] = Counter()
        super().__init__(workers_of(lambda stream: _Unprobed(stream, window), block_tuples), load.workers, ((), ()))

    def enter(self, item: TupleBlock[Tuples] | Mark) -> None:
        side = item.stream
        self.sources[side].append(item)
        self.read(0 if side == LEFT else len(self.workers) - 1, side)
        self.settle()

    def _send(self, at: int, side: int, message: Message[Tuples]) -> None:
        self.sent[type(message).__name__] += 1
        super()._send(at, side, message)
