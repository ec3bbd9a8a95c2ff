"""In which order new tuples of each stream meet the others, of a join of three and more, and how: by the formulas of Tran and Lee, from
what is measured.

Every order along the edges of the join graph finds the same results; they differ in how many pairs are looked at, and in what is sent.
What is sent depends, in each step but the first, also on how partial results and the next stream meet
(:mod:`~streamjoin.elastic.distribution`). Partial results have their members' tuples, or, where a way *fetches*, only what later steps read
of them: what the output reads besides is asked for in the end, of complete results alone (late materialization). What a step gives is as
wide and as much however it was done, so its price depends on no other step's.

Always holds: the same arguments give the same ways; and another way is taken only where it is expected to take less by ``GAIN``, so that
measurements that waver change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from streamjoin.elastic.distribution import KEY_BYTES, REFERENCE_BYTES, UNIT_BYTES, Distribution, Encounter, Widths, sent_by
from streamjoin.elastic.rounds import Exchange
from streamjoin.language.graph import Edge, JoinGraph
from streamjoin.language.predicate import MainKind
from streamjoin.language.window import WindowKind


@dataclass(frozen=True, slots=True)
class PathPlan:
    """How results with new tuples of one stream are found."""

    order: tuple[int, ...]
    """In which the other streams follow."""
    fetches: bool = False
    """Whether what only the output reads is fetched in the end."""
    distributions: tuple[Distribution, ...] = ()
    """Of each step but the first, whose tuples are where they are held already: how partial results meet the next stream. Empty: by
    ``REPARTITION``, all of them; so it is written where that is so."""

    def __post_init__(self) -> None:
        if self.distributions and set(self.distributions) == {Distribution.REPARTITION}:
            object.__setattr__(self, "distributions", ())

    def distribution(self, step: int) -> Distribution:
        """That of a step, counted from 0."""
        return self.distributions[step - 1] if step and self.distributions else Distribution.REPARTITION

    @property
    def begins(self) -> int:
        """The round of the exchange after which it begins: 0, in which new tuples come, or where anything is brought, that of the bringing.
        What is held is known from the start, so all that is brought for any step comes at once."""
        return BROADCAST_ROUND if Distribution.BROADCAST in self.distributions else 0

    @property
    def rounds(self) -> int:
        """Of the exchange that its steps take, after that in which new tuples come."""
        distributions = self.distributions or (Distribution.REPARTITION,) * (len(self.order) - 1)
        return self.begins + sum(distribution.rounds for distribution in distributions if distribution is not Distribution.BROADCAST)


PathPlans = tuple[PathPlan, ...]
"""By stream."""

BROADCAST_ROUND = 1
FETCHING_ROUNDS = 2


def fetching_from(path_plans: PathPlans) -> int | None:
    """The round after which tuples are asked for by reference, once all who fetch have results; None: nothing is fetched."""
    return max((path_plan.rounds for path_plan in path_plans if path_plan.fetches), default=None)


def rounds_of(path_plans: PathPlans) -> int:
    """How many rounds of the exchange there are after the first. All sequences go on at the same time, and the longest decides."""
    begun = fetching_from(path_plans)
    return max(*(path_plan.rounds for path_plan in path_plans), 0 if begun is None else begun + FETCHING_ROUNDS)


GAIN = 0.8
"""A way is replaced by one whose load is expected to be at most so much of its own."""
MOST_SHOWN = 3
"""Of more ways than so many beside the chosen one, people are shown the best and the worst."""
_ASSUMED_BAND, _ASSUMED_RANGE = 0.01, 0.3
"""Which part of all pairs match, while nothing is known of them."""


@dataclass(frozen=True)
class Flowing:
    """What is known of the streams and edges of a graph, and of the exchange."""

    rates: Sequence[float]
    """Tuples per second, by stream."""
    held: Sequence[float]
    """Tuples held, by stream, each counted once."""
    condition_bytes: Sequence[float]
    """Of a tuple, by stream: what the condition reads of it."""
    output_bytes: Sequence[float]
    """What only the output reads."""
    selectivities: Sequence[float]
    """By edge, which part of all pairs match."""
    admitted: Sequence[float] = ()
    """By edge, which part its main predicate and the window admit: as many or more. Empty: as many."""
    window: str = WindowKind.RANGE.value
    """Its kind."""
    exchange: Exchange = field(default_factory=Exchange)

    def to_json(self) -> dict[str, Any]:
        """Plain data: lists and numbers."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Flowing:
        """From what :meth:`to_json` gave."""
        return cls(**{**value, "exchange": Exchange(**value["exchange"])})


@dataclass(frozen=True)
class StepPrice:
    """What a step but the first is expected to send, by how its partial results meet the next stream."""

    stream: int
    bytes_per_second: Mapping[Distribution, float]


@dataclass(frozen=True)
class Priced:
    """What a way is expected to take."""

    path_plan: PathPlan
    tuples: tuple[float, ...]
    """Found per second in each of its steps; those of the last are results."""
    bytes_per_second: float
    """Of partial results, of what is asked and brought for them, and of what is fetched. New tuples themselves are sent whatever the way,
    to be held."""
    pairs: float
    """Looked at per second in all of its steps: those that the main predicates and the window admit."""
    load: float
    """Bytes per second that take as long as both: what is sent, and the pairs."""

    @property
    def rounds(self) -> int:
        """Of the exchange that it takes by itself."""
        return self.path_plan.rounds + FETCHING_ROUNDS * self.path_plan.fetches


def priced(graph: JoinGraph, flowing: Flowing, head: int, path_plan: PathPlan) -> Priced:
    """A way's price. O(streams²)."""
    return _Pricing(graph, flowing).of(head, path_plan)


def steps_of(graph: JoinGraph, flowing: Flowing, head: int, path_plan: PathPlan) -> list[StepPrice]:
    """Of each step of a way but the first, what every way to meet would send. O(streams²)."""
    return _Pricing(graph, flowing).along(head, path_plan.order, fetches=path_plan.fetches).steps


def alternatives(graph: JoinGraph, flowing: Flowing, head: int) -> list[Priced]:
    """The best ways for a head, the least load first: of each order, with and without fetching, by each number of rounds that its steps
    can take, the cheapest distributions. Of all its 2 (streams - 1)! 4^(streams - 2) ways at most, none takes less in as many rounds.

    O((streams - 1)! streams²).
    """
    return _Pricing(graph, flowing).best(head)


def choose(graph: JoinGraph, flowing: Flowing, current: PathPlans = ()) -> PathPlans:
    """The ways that are expected to take least; ``current`` ones stay where others are not better by ``GAIN``.

    Rounds are the same for all sequences, as they go on together. So for each number of rounds the ways of each head with the least load
    within it are found, and of these that number is taken at which the time of the rounds and of the load is the least in all. From
    the current number of rounds another one is gone to only where what that saves is more than what it costs by ``GAIN``.
    """
    pricing, streams = _Pricing(graph, flowing), range(len(graph.streams))
    found, exchange = [pricing.best(head) for head in streams], flowing.exchange
    now = [pricing.of(head, path_plan) for head, path_plan in enumerate(current)]

    def within(rounds: int) -> tuple[list[Priced], float]:
        """The ways by head, and their load."""
        path_plans = []
        for head in streams:
            best = next(each for each in found[head] if each.rounds <= rounds)
            stays = bool(now) and now[head].rounds <= rounds and best.load > GAIN * now[head].load
            path_plans.append(now[head] if stays else best)
        return path_plans, sum(each.load for each in path_plans)

    fewest = len(streams) - 2
    base = rounds_of(current) if current else fewest
    path_plans, load = within(base)
    best, least = path_plans, exchange.seconds(base, load)
    for rounds in sorted({each.rounds for of_head in found for each in of_head} - {base}):
        others, of_others = within(rounds)
        more, saved = exchange.seconds(rounds - base, 0.0), exchange.seconds(0.0, load - of_others)
        is_clear = saved > more / GAIN if rounds > base else saved > more * GAIN
        seconds = exchange.seconds(rounds, of_others)
        if is_clear and seconds < least:
            best, least = others, seconds
    return tuple(each.path_plan for each in best)


@dataclass(frozen=True)
class _Along:
    """What an order takes, however its steps but the first meet the next stream. Per second."""

    steps: list[StepPrice]
    tuples: tuple[float, ...]
    """As of ``Priced``."""
    pairs: float
    fetched: float
    """Bytes."""


class _Pricing:
    """Prices of ways by one set of measurements; what orders have in common is priced once."""

    def __init__(self, graph: JoinGraph, flowing: Flowing) -> None:
        self._graph, self._flowing = graph, flowing
        self._widths = Widths(flowing.window, len(graph.streams))
        self._edges = {edge: number for number, edge in enumerate(graph.edges)}
        self._known: dict[tuple[float, frozenset[int], int, bool], StepPrice] = {}

    def of(self, head: int, path_plan: PathPlan) -> Priced:
        along = self.along(head, path_plan.order, fetches=path_plan.fetches)
        return self._priced(
            path_plan, along, sum(step.bytes_per_second[path_plan.distribution(at)] for at, step in enumerate(along.steps, 1))
        )

    def _priced(self, path_plan: PathPlan, along: _Along, between_steps: float) -> Priced:
        sent = between_steps + along.fetched
        return Priced(path_plan, along.tuples, sent, along.pairs, sent + self._flowing.exchange.bytes_for(along.pairs))

    def best(self, head: int) -> list[Priced]:
        """As :func:`alternatives`."""
        found = []
        for order in self._graph.orders(head):
            for fetches in (False, True):
                along = self.along(head, order, fetches=fetches)
                for distributions, sent in _cheapest(along.steps):
                    found.append(self._priced(PathPlan(order, fetches, distributions), along, sent))
        return sorted(found, key=lambda each: (each.load, each.rounds))

    def along(self, head: int, order: Sequence[int], *, fetches: bool) -> _Along:
        """O(streams²)."""
        flowing, joined, rate, pairs = self._flowing, frozenset((head,)), self._flowing.rates[head], 0.0
        steps, tuples = [], []
        for at, stream in enumerate(order):
            edge = self._graph.edge_to(stream, joined)
            assert edge is not None, "an order of the graph"
            number = self._edges[edge]
            if at:
                steps.append(self._step(rate, joined, stream, number, fetches=fetches))
            pairs += rate * flowing.held[stream] * self._admitted(number)
            rate *= flowing.held[stream] * _share(flowing.selectivities[number])
            joined |= {stream}
            tuples.append(rate)
        asked = [stream for stream in (head, *order[:-1]) if flowing.output_bytes[stream]] if fetches else []
        wide = sum(REFERENCE_BYTES + flowing.condition_bytes[stream] + flowing.output_bytes[stream] for stream in asked)
        return _Along(steps, tuple(tuples), pairs, rate * wide)

    def _admitted(self, edge: int) -> float:
        return _share((self._flowing.admitted or self._flowing.selectivities)[edge])

    def _step(self, rate: float, joined: frozenset[int], stream: int, edge: int, *, fetches: bool) -> StepPrice:
        key = rate, joined, stream, fetches
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._new_step(rate, joined, stream, edge, fetches=fetches)
        return known

    def _new_step(self, rate: float, joined: frozenset[int], stream: int, edge: int, *, fetches: bool) -> StepPrice:
        flowing, widths, exchange = self._flowing, self._widths, self._flowing.exchange
        # The last stream's tuples have no references: with them results are complete but for the others'.
        is_last = len(joined) == len(flowing.rates) - 1
        carried = sum(self._carried(member, fetches=fetches) for member in joined)
        encounter = Encounter(
            rate=rate,
            held=flowing.held[stream],
            selectivity=self._admitted(edge),
            partial_bytes=KEY_BYTES + UNIT_BYTES + widths.partial(len(joined)) + carried,
            question_bytes=KEY_BYTES + widths.question,
            held_bytes=widths.held + self._carried(stream, fetches=fetches and not is_last),
            epochs=1 / exchange.epoch_seconds,
            tasks=exchange.tasks,
        )
        return StepPrice(stream, {distribution: sent_by(distribution, encounter) for distribution in Distribution})

    def _carried(self, stream: int, *, fetches: bool) -> float:
        by_output = self._flowing.output_bytes[stream]
        return self._flowing.condition_bytes[stream] + (min(by_output, REFERENCE_BYTES) if fetches else by_output)


def _share(selectivity: float) -> float:
    return min(1.0, max(0.0, selectivity))


def _cheapest(steps: Sequence[StepPrice]) -> list[tuple[tuple[Distribution, ...], float]]:
    """By each number of rounds that these steps can take together, the distributions that send least, and what. O(steps²)."""
    found: dict[tuple[int, bool], tuple[tuple[Distribution, ...], float]] = {(0, False): ((), 0.0)}
    for step in steps:
        longer: dict[tuple[int, bool], tuple[tuple[Distribution, ...], float]] = {}
        for (rounds, brings), (distributions, sent) in found.items():
            for distribution, more in step.bytes_per_second.items():
                is_brought = distribution is Distribution.BROADCAST
                at = rounds + (0 if is_brought and brings else distribution.rounds), brings or is_brought
                if at not in longer or sent + more < longer[at][1]:
                    longer[at] = (*distributions, distribution), sent + more
        found = longer
    best: dict[int, tuple[tuple[Distribution, ...], float]] = {}
    for (rounds, _), (distributions, sent) in sorted(found.items()):
        if rounds not in best or sent < best[rounds][1]:
            best[rounds] = distributions, sent
    return list(best.values())


def assumed(graph: JoinGraph, held: Sequence[float]) -> tuple[float, ...]:
    """By edge, which part of all pairs match, where nothing has been measured."""
    return tuple(_assumed(edge, max(1.0, *held)) for edge in graph.edges)


def _assumed(edge: Edge, held: float) -> float:
    main = edge.main
    if main.is_equality:
        return 1 / held
    if main.kind is not MainKind.RANGE:
        return 1.0
    return _ASSUMED_BAND if main.low is not None and main.high is not None else _ASSUMED_RANGE


def told(graph: JoinGraph, flowing: Flowing, path_plans: PathPlans = ()) -> list[str]:
    """The way of each stream's new tuples and what it takes, beside other ones: tables for people.

    ``path_plans``: those that are taken; without them, those that would be chosen.
    """
    path_plans = path_plans or choose(graph, flowing)
    heading = "new tuples of", "meet, in this order", "and", "rounds", "found per second, by step", "pairs per second", "sent between steps"
    rows = [heading]
    for head, path_plan in enumerate(path_plans):
        rows.append((graph.streams[head], *_cells(graph, priced(graph, flowing, head, path_plan))))
        best: dict[tuple[tuple[int, ...], bool], Priced] = {}
        for each in alternatives(graph, flowing, head):
            best.setdefault((each.path_plan.order, each.path_plan.fetches), each)
        others = [each for each in best.values() if each.path_plan != path_plan]
        for other in others if len(others) <= MOST_SHOWN else (others[0], others[-1]):
            rows.append(("  or", *_cells(graph, other)))
    steps = [("in the step of", "partial results that meet", *(f"{distribution}" for distribution in Distribution), "and so")]
    for head, path_plan in enumerate(path_plans):
        members = [head, path_plan.order[0]]
        for at, step in enumerate(steps_of(graph, flowing, head, path_plan)):
            prices = step.bytes_per_second
            names = ", ".join(graph.streams[member] for member in members)
            cells = [bytes_text(prices[distribution]) for distribution in Distribution]
            steps.append((names, graph.streams[step.stream], *cells, path_plan.distribution(1 + at).value))
            members.append(step.stream)
    exchange = flowing.exchange
    took = exchange.seconds(
        rounds_of(path_plans), sum(priced(graph, flowing, head, path_plan).load for head, path_plan in enumerate(path_plans))
    )
    rounds = (
        f"{counted(rounds_of(path_plans), 'round')} of {exchange.round_seconds * 1e3:.3g} ms, and "
        f"{bytes_text(exchange.bytes_per_second)} of {counted(exchange.tasks, 'task')}, each, "
        f"and {exchange.pair_seconds * 1e9:.3g} ns a pair: "
        f"{took * 1e3:.3g} ms of an epoch of {exchange.epoch_seconds:.3g} s"
    )
    return [*_aligned(rows), "", *_aligned(steps), "", rounds]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(graph: JoinGraph, each: Priced) -> tuple[str, str, str, str, str, str]:
    found = ", ".join(map(count_text, each.tuples))
    sent = bytes_text(each.bytes_per_second)
    return order_text(graph, each.path_plan), how_text(each.path_plan), str(each.rounds), found, count_text(each.pairs), sent


def order_text(graph: JoinGraph, path_plan: PathPlan) -> str:
    return ", ".join(graph.streams[stream] for stream in path_plan.order)


def how_text(path_plan: PathPlan) -> str:
    """How its steps but the first meet the next stream, and whether it fetches."""
    distributions = [path_plan.distribution(step).value for step in range(1, len(path_plan.order))]
    each = distributions[:1] if len(set(distributions)) == 1 else distributions
    return ", ".join(each) + (", fetch the rest" if path_plan.fetches else "")


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def count_text(count: float) -> str:
    """Whole, or two digits of what is less than one."""
    return f"{count:,.0f}" if count >= 1 else f"{count:.2g}"


def bytes_text(per_second: float) -> str:
    size, unit = per_second, "B/s"
    for larger in ("kB/s", "MB/s", "GB/s"):
        if size >= 1000:
            size, unit = size / 1000, larger
    return f"{size:,.3g} {unit}"
