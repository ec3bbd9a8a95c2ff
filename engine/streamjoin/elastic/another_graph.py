"""Whether a join of three and more streams would be found by another of its graphs for less, going by what is held now.

The first plan takes the graph that a sample of the first input speaks for. Which parts of a condition tell tuples apart may change: then
what the edges find is thrown away by the checks. Graphs are priced as orders are (:mod:`~streamjoin.elastic.path_plans`), but what the
edges of another one admit must be sampled, and all tuples must be laid by other keys. So they are compared seldom, and another one is taken
only where it is clearly better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from streamjoin.elastic.path_plans import Flowing, PathPlans, choose, count_text, priced, rounds_of
from streamjoin.language.graph import JoinGraph

LEAST_PAIRS = 100_000.0
"""Who looks at fewer pairs per second has little to save: some 5 ms of a processor's second."""
GAIN = 0.5
"""Another graph is taken only where what it takes is expected to be at most so much of what the present one does."""
WITHIN_SECONDS = 600.0
"""And only where it saves within this time what laying all tuples anew takes."""
BYTES_PER_SECOND = 5e7
"""Read, sorted and written again."""
MOST_SECONDS = 30.0
"""The join stands still meanwhile, so that may take no longer."""
MOST_PRICED = 3
"""Of many graphs, those whose edges admit least are priced."""

Sampled = tuple[JoinGraph, Sequence[float]]
"""A graph, and by edge which part of all pairs of a sample its main predicate admits."""


@dataclass(frozen=True)
class Better:
    """A graph that is to be taken."""

    graph: JoinGraph
    sentence: str
    """Why, with its numbers."""


@dataclass(frozen=True)
class _Price:
    seconds: float
    """Of the processors and the exchange, each second."""
    pairs: float
    """Looked at, each second."""


def is_worth_a_look(graph: JoinGraph, flowing: Flowing, path_plans: PathPlans, nbytes: float) -> bool:
    """Whether the present ways look at so many pairs that others may save some, and what is held can be laid anew. ``nbytes``: of that.
    O(streams³)."""
    if nbytes > MOST_SECONDS * BYTES_PER_SECOND:
        return False
    return sum(priced(graph, flowing, head, path_plan).pairs for head, path_plan in enumerate(path_plans)) >= LEAST_PAIRS


def better_graph(present: Sampled, others: Iterable[Sampled], flowing: Flowing, nbytes: float) -> Better | None:
    """The graph of least price, if it is better than the present one by ``GAIN`` and soon saves what the change takes; None: there is none.

    ``flowing``: what is measured; what edges admit is taken from the samples, for all graphs alike. ``nbytes``: of the tuples that would be
    laid anew, in all places of the present graph. O((streams - 1)! streams²).
    """
    rivals = sorted(others, key=lambda sampled: sum(map(math.log, sampled[1])))[:MOST_PRICED]
    now = _price(present, flowing)
    found = [(_price(sampled, flowing), sampled[0]) for sampled in rivals]
    best, graph = min(found, key=lambda each: each[0].seconds, default=(now, present[0]))
    saves, takes = (now.seconds - best.seconds) * WITHIN_SECONDS, nbytes / BYTES_PER_SECOND
    if best.seconds > GAIN * now.seconds or saves <= takes:
        return None
    sentence = (
        f"results are found by {graph.text} from now on, and no longer by {present[0].text}: {count_text(best.pairs)} in place of"
        f" {count_text(now.pairs)} pairs/s are expected to be looked at"
    )
    return Better(graph, sentence)


def _price(sampled: Sampled, flowing: Flowing) -> _Price:
    graph, shares = sampled
    known = replace(flowing, selectivities=tuple(shares), admitted=tuple(shares))
    ways, exchange = choose(graph, known), known.exchange
    prices = [priced(graph, known, head, path_plan) for head, path_plan in enumerate(ways)]
    of_epoch = exchange.seconds(rounds_of(ways), sum(each.load for each in prices))
    return _Price(of_epoch / exchange.epoch_seconds, sum(each.pairs for each in prices))
