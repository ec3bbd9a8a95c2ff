"""In which order, and by which algorithms, to join more than two streams (Tran and Lee, section 4).

*Linear ordering*: each stream has a sequence of its own. A new tuple of the stream, the head, is joined with the windows of all others
one after another; so only streams are kept, no results. :func:`greedy` is Alg. 10; :func:`exhaustive` finds a cheapest plan of this kind.

*Tree ordering* (section 4.2): one left-deep order for all. The results of the first streams are kept as a window, with which the next
stream is joined both ways. The paper does not say where results are to be; here both one-way joins leave them at the same site, so that
they are one stream.

Only orders that follow the graph's edges are considered. The sum of the steps' costs is what plans are compared by (Eq. 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from streamjoin_research.semijoin.cost import Cost, one_way_cost
from streamjoin_research.semijoin.estimates import Quantities, printed
from streamjoin_research.semijoin.graph import Joined, JoinGraph
from streamjoin_research.semijoin.names import Algorithm
from streamjoin_research.semijoin.statistics import Connection, Flow, Pair, Work


@dataclass(frozen=True)
class Planning:
    """What to order, and by which measure."""

    graph: JoinGraph
    connection: Callable[[str, str], Connection]
    """Of two streams' sites."""
    interval_seconds: float
    work: Work = field(default_factory=Work)
    estimate: Callable[[Pair], Quantities] = printed
    price: Callable[[Cost, Connection, Work], float] = Cost.seconds
    """What a one-way join counts for: seconds of network and machines a second, as in the paper, or what else is scarce."""
    algorithms: tuple[Algorithm, ...] = tuple(Algorithm)
    """Those to choose from. Where joins are not on equality: SP-S and SP-D."""

    def __post_init__(self) -> None:
        if not self.algorithms:
            raise ValueError("algorithms: there is none to choose from; give at least one")


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

    @property
    def price(self) -> float:
        return self.join.price


@dataclass(frozen=True)
class Sequence:
    """P_i: what happens to a new tuple of ``head``."""

    head: str
    steps: tuple[Step, ...]

    @property
    def price(self) -> float:
        return sum(step.price for step in self.steps)


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

    @property
    def price(self) -> float:
        return self.from_stream.price + self.from_results.price


@dataclass(frozen=True)
class TreePlan:
    """The streams in one order for all, ``first`` at the bottom."""

    first: str
    levels: tuple[Level, ...]

    @property
    def price(self) -> float:
        return sum(level.price for level in self.levels)


Join = TypeVar("Join", bound=Step | Level)


def greedy(planning: Planning) -> LinearPlan:
    """Alg. 10: for each head, again and again the stream and algorithm that cost least now. O(streams² * edges) for each head."""
    return LinearPlan(tuple(greedy_sequence(planning, stream.name) for stream in planning.graph.streams))


def exhaustive(planning: Planning) -> LinearPlan:
    """A plan of the lowest price. O((streams - 1)! * 2^streams) for each head, less by branch and bound; for up to eight streams or so.

    All algorithms that leave their results at the same site leave the same results, so only the cheapest of those three is followed.
    """
    return LinearPlan(tuple(exhaustive_sequence(planning, stream.name) for stream in planning.graph.streams))


def greedy_sequence(planning: Planning, head: str) -> Sequence:
    """The sequence of :func:`greedy` for one head. Of equal prices, the stream first in the graph is taken."""
    return Sequence(head, _greedy(Joined.of(planning.graph, head), partial(_next_steps, planning)))


def exhaustive_sequence(planning: Planning, head: str) -> Sequence:
    """The sequence of :func:`exhaustive` for one head."""
    return Sequence(head, _cheapest(Joined.of(planning.graph, head), partial(_next_steps, planning)))


def greedy_tree(planning: Planning) -> TreePlan:
    """From each stream in turn, again and again the level that costs least now; the cheapest of these trees."""
    return _tree(planning, _greedy)


def exhaustive_tree(planning: Planning) -> TreePlan:
    """A left-deep tree of the lowest price. O(streams! * 2^streams), less by branch and bound."""
    return _tree(planning, _cheapest)


def _greedy(start: Joined, following: Callable[[Joined], list[Join]]) -> tuple[Join, ...]:
    """From ``start``, again and again the cheapest of what may follow."""
    joins: list[Join] = []
    while candidates := following(joins[-1].results if joins else start):
        joins.append(min(candidates, key=_price))
    return tuple(joins)


def _cheapest(start: Joined, following: Callable[[Joined], list[Join]]) -> tuple[Join, ...]:
    """Of all ways to go on from ``start``, the one of the lowest price; prices are never negative."""
    best = _greedy(start, following)
    least = sum(map(_price, best))

    def search(results: Joined, joins: list[Join], price: float) -> None:
        nonlocal best, least
        candidates = following(results)
        if not candidates and price < least:
            best, least = tuple(joins), price
        for join in sorted(candidates, key=_price):
            if price + join.price < least:
                search(join.results, [*joins, join], price + join.price)

    search(start, [], 0.0)
    return best


def _price(join: Step | Level) -> float:
    return join.price


def _tree(planning: Planning, search: Callable[[Joined, Callable[[Joined], list[Level]]], tuple[Level, ...]]) -> TreePlan:
    if len({algorithm.at_source for algorithm in planning.algorithms}) < 2:
        raise ValueError("algorithms: a tree needs one that leaves its results at the source, and one at the destination; give both")
    names = planning.graph.by_name
    trees = (TreePlan(name, search(Joined.of(planning.graph, name), partial(_next_levels, planning))) for name in names)
    return min(trees, key=lambda tree: tree.price)


def _next_steps(planning: Planning, results: Joined) -> list[Step]:
    return [step for stream in planning.graph.adjacent(results.streams) for step in _steps_to(planning, results, stream)]


def _steps_to(planning: Planning, results: Joined, stream: str) -> list[Step]:
    joins = _one_ways(planning, *results.flows(stream), planning.connection(results.site, stream))
    return [Step(stream, join, results.probing(stream, results.site if at_source else stream)) for at_source, join in joins.items()]


def _next_levels(planning: Planning, results: Joined) -> list[Level]:
    levels = []
    for stream in planning.graph.adjacent(results.streams):
        below, new = results.flows(stream)
        from_results = _one_ways(planning, below, new, planning.connection(results.site, stream))
        from_stream = _one_ways(planning, new, below, planning.connection(stream, results.site))
        for site, at_new in ((results.site, False), (stream, True)):
            levels.append(Level(stream, from_stream[at_new], from_results[not at_new], results.joining(stream, site)))
    return levels


def _one_ways(planning: Planning, source: Flow, destination: Flow, connection: Connection) -> dict[bool, OneWay]:
    """By whether results are left at the source: the cheapest algorithm that does so."""
    pair = Pair(source, destination, planning.interval_seconds)
    cheapest: dict[bool, OneWay] = {}
    for algorithm in planning.algorithms:
        cost = one_way_cost(algorithm, pair, planning.estimate)
        join = OneWay(algorithm, cost, planning.price(cost, connection, planning.work))
        if algorithm.at_source not in cheapest or join.price < cheapest[algorithm.at_source].price:
            cheapest[algorithm.at_source] = join
    return cheapest
