"""In which order, and by which algorithms, to join more than two streams (Tran and Lee, section 4).

*Linear ordering*: each stream has a sequence of its own. A new tuple of the stream, the head, is joined with the windows of all others
one after another; so only streams are kept, no results. :func:`greedy` is Alg. 10; :func:`exhaustive` finds a cheapest plan of this kind.

*Tree ordering* (section 4.2): one left-deep order for all. The results of the first streams are kept as a window, with which the next
stream is joined both ways. The paper does not say where results are to be; here both one-way joins leave them at the same site, so that
they are one stream.

Only orders that follow the graph's edges are considered. The sum of the steps' costs is what plans are compared by (Eq. 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from streamjoin.semijoin.cost import Cost, one_way_cost
from streamjoin.semijoin.estimates import Quantities, printed
from streamjoin.semijoin.graph import Joined, JoinGraph
from streamjoin.semijoin.names import Algorithm
from streamjoin.semijoin.statistics import Connection, Flow, Pair, Work


@dataclass(frozen=True)
class Planning:
    """What to order, and by which measure."""

    graph: JoinGraph
    connection: Callable[[str, str], Connection]
    """Of two streams' sites; for one site twice: what is shipped within it, which should cost nothing."""
    interval_seconds: float
    work: Work = field(default_factory=Work)
    estimate: Callable[[Pair], Quantities] = printed
    price: Callable[[Cost, Connection, Work], float] = Cost.seconds
    """What a one-way join counts for: seconds of network and machines a second, as in the paper, or what else is scarce."""


@dataclass(frozen=True)
class OneWay:
    """A one-way join of a plan."""

    algorithm: Algorithm
    cost: Cost
    price: float


@dataclass(frozen=True)
class Step:
    """``stream`` joined, by its window, to the results before it."""

    stream: str
    join: OneWay
    results: Joined


@dataclass(frozen=True)
class Sequence:
    """P_i: what happens to a new tuple of ``head``."""

    head: str
    steps: tuple[Step, ...]

    @property
    def price(self) -> float:
        return sum(step.join.price for step in self.steps)


@dataclass(frozen=True)
class LinearPlan:
    """A sequence for each stream."""

    sequences: tuple[Sequence, ...]

    @property
    def price(self) -> float:
        """C_JEP (Eq. 1)."""
        return sum(sequence.price for sequence in self.sequences)


@dataclass(frozen=True)
class Level:
    """``stream`` joined with the results below it: its tuples with their window, and they with its window."""

    stream: str
    from_stream: OneWay
    from_results: OneWay
    results: Joined


@dataclass(frozen=True)
class TreePlan:
    """The streams in one order for all, ``first`` at the bottom."""

    first: str
    levels: tuple[Level, ...]

    @property
    def price(self) -> float:
        return sum(level.from_stream.price + level.from_results.price for level in self.levels)


def greedy(planning: Planning) -> LinearPlan:
    """Alg. 10: for each head, again and again the stream and algorithm that cost least now. O(streams² * edges) for each head."""
    return _linear_plan(planning, greedy_sequence)


def exhaustive(planning: Planning) -> LinearPlan:
    """A plan of the lowest price. O((streams - 1)! * 2^streams) for each head, less by branch and bound; for up to eight streams or so.

    All algorithms that leave their results at the same site leave the same results, so only the cheapest of those three is followed.
    """
    return _linear_plan(planning, exhaustive_sequence)


def greedy_sequence(planning: Planning, head: str) -> Sequence:
    """The sequence of :func:`greedy` for one head. Of equal prices, the stream first in the graph is taken."""
    results, steps = Joined.of(planning.graph, head), list[Step]()
    while following := list(_next_steps(planning, results)):
        step = min(following, key=lambda step: step.join.price)
        steps.append(step)
        results = step.results
    return Sequence(head, tuple(steps))


def exhaustive_sequence(planning: Planning, head: str) -> Sequence:
    """The sequence of :func:`exhaustive` for one head."""
    best = greedy_sequence(planning, head)

    def search(results: Joined, steps: tuple[Step, ...], price: float) -> None:
        nonlocal best
        following = sorted(_next_steps(planning, results), key=lambda step: step.join.price)
        if not following and price < best.price:
            best = Sequence(head, steps)
        for step in following:
            if price + step.join.price < best.price:
                search(step.results, (*steps, step), price + step.join.price)

    search(Joined.of(planning.graph, head), (), 0.0)
    return best


def greedy_tree(planning: Planning) -> TreePlan:
    """From each stream in turn, again and again the level that costs least now; the cheapest of these trees."""

    def tree(first: str) -> TreePlan:
        results, levels = Joined.of(planning.graph, first), list[Level]()
        while following := list(_next_levels(planning, results)):
            level = min(following, key=_level_price)
            levels.append(level)
            results = level.results
        return TreePlan(first, tuple(levels))

    return min((tree(stream.name) for stream in planning.graph.streams), key=lambda plan: plan.price)


def exhaustive_tree(planning: Planning) -> TreePlan:
    """A left-deep tree of the lowest price. O(streams! * 2^streams), less by branch and bound."""
    best = greedy_tree(planning)

    def search(first: str, results: Joined, levels: tuple[Level, ...], price: float) -> None:
        nonlocal best
        following = sorted(_next_levels(planning, results), key=_level_price)
        if not following and price < best.price:
            best = TreePlan(first, levels)
        for level in following:
            if price + _level_price(level) < best.price:
                search(first, level.results, (*levels, level), price + _level_price(level))

    for stream in planning.graph.streams:
        search(stream.name, Joined.of(planning.graph, stream.name), (), 0.0)
    return best


def _linear_plan(planning: Planning, sequence: Callable[[Planning, str], Sequence]) -> LinearPlan:
    return LinearPlan(tuple(sequence(planning, stream.name) for stream in planning.graph.streams))


def _next_steps(planning: Planning, results: Joined) -> Iterator[Step]:
    for stream in planning.graph.adjacent(results.streams):
        source, destination = results.flows(stream)
        for site, at_source in ((results.site, True), (stream, False)):
            join = _cheapest(planning, source, destination, results.site, stream, at_source=at_source)
            yield Step(stream, join, results.probing(stream, site))


def _next_levels(planning: Planning, results: Joined) -> Iterator[Level]:
    for stream in planning.graph.adjacent(results.streams):
        below, new = results.flows(stream)
        for site in (results.site, stream):
            from_stream = _cheapest(planning, new, below, stream, results.site, at_source=site == stream)
            from_results = _cheapest(planning, below, new, results.site, stream, at_source=site == results.site)
            yield Level(stream, from_stream, from_results, results.joining(stream, site))


def _level_price(level: Level) -> float:
    return level.from_stream.price + level.from_results.price


def _cheapest(planning: Planning, source: Flow, destination: Flow, source_site: str, destination_site: str, *, at_source: bool) -> OneWay:
    """Of the three algorithms that leave their results at the source's site, or else at the destination's."""
    pair, connection = Pair(source, destination, planning.interval_seconds), planning.connection(source_site, destination_site)
    best, best_price = None, math.inf
    for algorithm in Algorithm:
        if algorithm.at_source != at_source:
            continue
        cost = one_way_cost(algorithm, pair, planning.estimate)
        price = planning.price(cost, connection, planning.work)
        if best is None or price < best_price:
            best, best_price = OneWay(algorithm, cost, price), price
    assert best is not None
    return best
