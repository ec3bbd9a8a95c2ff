"""In which order streams meet, how, and whether what only the output reads is fetched: by arithmetic that is not the formulas'."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest

from streamjoin.elastic.distribution import Distribution, Encounter, sent_by
from streamjoin.elastic.path_plans import GAIN, Flowing, PathPlan, PathPlans, alternatives, choose, priced, rounds_of, told
from streamjoin.elastic.rounds import Exchange
from streamjoin.language.ddl import parse_schema
from streamjoin.language.graph import JoinGraph, join_graph, join_graphs
from streamjoin_research.semijoin.cost import one_way_cost
from streamjoin_research.semijoin.estimates import Quantities
from streamjoin_research.semijoin.names import Algorithm
from streamjoin_research.semijoin.statistics import Flow, Pair

SCHEMA = parse_schema("id BIGINT, x BIGINT, y BIGINT, v DOUBLE")
CHAIN = "a.id = b.id AND b.x = c.x AND c.y = d.y"
STAR = "a.id = b.id AND a.x = c.x AND a.y = d.y"


def graph_of(condition: str, names: str = "abcd") -> JoinGraph:
    return join_graph(condition, dict.fromkeys(names, SCHEMA))


def flowing(streams: int, rng: random.Random) -> Flowing:
    def some(low: float, high: float, count: int = streams) -> list[float]:
        return [rng.uniform(low, high) for _ in range(count)]

    selectivities = [10 ** rng.uniform(-6, -1) for _ in range(streams - 1)]
    admitted = [min(1.0, each * more) for each, more in zip(selectivities, some(1, 3, streams - 1), strict=True)]
    exchange = Exchange(epoch_seconds=rng.choice([0.2, 1.0, 5.0]), tasks=rng.choice([1, 4, 30]), pair_seconds=rng.choice([1e-12, 5e-8]))
    window, held = rng.choice(["range", "rows", "unbounded"]), [10 ** rng.uniform(0, 5) for _ in range(streams)]
    return Flowing(some(1, 1e4), held, some(8, 100), some(8, 3_000), selectivities, admitted, window, exchange)


def sent(graph: JoinGraph, known: Flowing, head: int, path_plan: PathPlan) -> float:
    """Bytes a second: in each stage but the first what its distribution sends; of results whose tuples are fetched, these."""
    count, exchange = len(known.rates), known.exchange
    rate, joined, total = known.rates[head], [head], 0.0
    asks, held_more = {"range": (16.0, 8.0), "rows": (8.0, 8.0 * count), "unbounded": (0.0, 0.0)}[known.window]
    for at, stream in enumerate(path_plan.order):
        edge = next(n for n, edge in enumerate(graph.edges) if stream in graph.ends(edge) and set(graph.ends(edge)) & set(joined))
        if at:
            times = {"range": 16.0, "rows": 8.0 * (len(joined) + count), "unbounded": 0.0}[known.window]
            wide = [8.0 if path_plan.fetches else known.output_bytes[member] for member in joined]
            shipped = 12 + times + sum(known.condition_bytes[member] + more for member, more in zip(joined, wide, strict=True))
            is_carried = not path_plan.fetches or at == len(path_plan.order) - 1
            comes = held_more + known.condition_bytes[stream] + (known.output_bytes[stream] if is_carried else 8.0)
            partners = known.held[stream] * known.admitted[edge]
            everywhere = exchange.tasks * known.held[stream] / exchange.epoch_seconds
            match path_plan.distribution(at):
                case Distribution.REPARTITION:
                    total += rate * shipped
                case Distribution.BROADCAST:
                    total += everywhere * (8 + comes)
                case Distribution.LOOKUP:
                    tuples = everywhere * (1 - math.exp(-rate * partners / everywhere))
                    total += rate * (8 + asks) + tuples * (comes + 4) + rate * partners * 4
                case Distribution.SEMI_JOIN:
                    total += rate * (8 + asks) + rate * (1 - math.exp(-partners)) * (4 + shipped)
        rate *= known.held[stream] * known.selectivities[edge]
        joined.append(stream)
    if path_plan.fetches:
        total += rate * sum(8.0 + known.condition_bytes[member] + known.output_bytes[member] for member in joined[:-1])
    return total


def pairs(graph: JoinGraph, known: Flowing, head: int, path_plan: PathPlan) -> float:
    """Looked at a second: in each stage, what came of the one before with all that its edge and the window admit."""
    rate, joined, total = known.rates[head], [head], 0.0
    for stream in path_plan.order:
        edge = next(n for n, edge in enumerate(graph.edges) if stream in graph.ends(edge) and set(graph.ends(edge)) & set(joined))
        total += rate * known.held[stream] * known.admitted[edge]
        rate *= known.held[stream] * known.selectivities[edge]
        joined.append(stream)
    return total


def load(graph: JoinGraph, known: Flowing, head: int, path_plan: PathPlan) -> float:
    """In bytes a second: a task is as long over a pair as over so many of them."""
    return (
        sent(graph, known, head, path_plan)
        + pairs(graph, known, head, path_plan) * known.exchange.pair_seconds * known.exchange.bytes_per_second
    )


def orders(graph: JoinGraph, head: int) -> list[tuple[int, ...]]:
    """By trying all permutations."""
    ends = [set(graph.ends(edge)) for edge in graph.edges]
    others = [stream for stream in range(len(graph.streams)) if stream != head]
    return [
        order
        for order in itertools.permutations(others)
        if all(any(stream in pair and pair & {head, *order[:at]} for pair in ends) for at, stream in enumerate(order))
    ]


def every_way(graph: JoinGraph, head: int) -> list[PathPlan]:
    distributions = list(itertools.product(Distribution, repeat=len(graph.streams) - 2))
    return [PathPlan(order, fetches, each) for order in orders(graph, head) for fetches in (False, True) for each in distributions]


def test_a_way_is_priced_by_what_it_sends_and_looks_at_and_the_cheapest_is_chosen() -> None:
    rng = random.Random(0)
    for condition in (CHAIN, STAR, "a.id = b.id AND b.id = c.id AND abs(c.v - d.v) <= 1"):
        graph = graph_of(condition)
        for _ in range(5):
            known = flowing(4, rng)
            for head in range(4):
                prices = {path_plan: load(graph, known, head, path_plan) for path_plan in every_way(graph, head)}
                for path_plan, price in rng.sample(list(prices.items()), 20):
                    found_price = priced(graph, known, head, path_plan)
                    assert found_price.bytes_per_second == pytest.approx(sent(graph, known, head, path_plan), rel=1e-6)
                    assert found_price.pairs == pytest.approx(pairs(graph, known, head, path_plan), rel=1e-6)
                    assert found_price.load == pytest.approx(price, rel=1e-6)
                found = alternatives(graph, known, head)
                assert {each.path_plan.order for each in found} == set(orders(graph, head))
                assert [each.load for each in found] == sorted(each.load for each in found)
                for each in found:
                    assert each.load == pytest.approx(prices[each.path_plan], rel=1e-6)
                for rounds in range(2, 9):
                    least = min((price for path_plan, price in prices.items() if path_plan.rounds + 2 * path_plan.fetches <= rounds))
                    best = next(each for each in found if each.rounds <= rounds)
                    assert best.load == pytest.approx(least, rel=1e-6)


def test_of_each_order_only_the_best_of_its_meetings_are_listed() -> None:
    """A star of six streams has 120 orders for its centre's tuples, and 61,440 ways."""
    graph = graph_of(" AND ".join(f"a.id = {name}.x" for name in "bcdef"), "abcdef")
    known = flowing(6, random.Random(3))
    assert len(list(graph.orders(0))) == 120
    found = alternatives(graph, known, 0)
    assert len(found) <= 2 * 120 * (3 * 4), "one for each number of rounds"
    for each in found[:5]:
        assert each.bytes_per_second == pytest.approx(sent(graph, known, 0, each.path_plan), rel=1e-6)


def test_the_ways_of_all_streams_together_take_the_least_time() -> None:
    """Of all combinations: rounds are the longest sequence's, and bytes those of all."""
    rng = random.Random(1)
    graph = graph_of("a.id = b.id AND b.x = c.x", "abc")
    seen = set()
    for _ in range(60):
        known = flowing(3, rng)
        exchange = replace(known.exchange, round_seconds=10 ** rng.uniform(-5, 0), bytes_per_second=10 ** rng.uniform(6, 9))
        known = replace(known, exchange=exchange)

        prices = [{path_plan: load(graph, known, head, path_plan) for path_plan in every_way(graph, head)} for head in range(3)]

        def seconds(path_plans: PathPlans, exchange: Exchange = exchange, prices: Sequence[dict[PathPlan, float]] = prices) -> float:
            nbytes = sum(of_head[path_plan] for of_head, path_plan in zip(prices, path_plans, strict=True)) * exchange.epoch_seconds
            rounds = max(path_plan.rounds + 2 * path_plan.fetches for path_plan in path_plans)
            return rounds * exchange.round_seconds + nbytes / exchange.tasks / exchange.bytes_per_second

        least = min(map(seconds, itertools.product(*prices)))
        chosen = choose(graph, known)
        # From a round a step another number of rounds is gone to only where that is clearly better.
        assert seconds(chosen) <= least / GAIN
        seen.add(rounds_of(chosen))
    assert seen >= {1, 2}
    assert max(seen) > 2, "keys go first, or tuples are fetched"


def test_a_round_is_worth_what_it_was_measured_to_take() -> None:
    graph = graph_of("a.id = b.id AND b.x = c.x", "abc")

    def known(round_seconds: float) -> Flowing:
        exchange = Exchange(round_seconds, 1e8, tasks=4)
        return Flowing([1e4] * 3, [1e5] * 3, [16.0] * 3, [200.0] * 3, [1e-4, 1e-7], exchange=exchange)

    slow, fast = choose(graph, known(1.0)), choose(graph, known(1e-4))
    assert {path_plan.distribution(1) for path_plan in slow} == {Distribution.REPARTITION}
    assert Distribution.LOOKUP in {path_plan.distribution(1) for path_plan in fast}

    def extra(path_plans: PathPlans) -> float:
        return sum(priced(graph, known(1.0), head, path_plan).load for head, path_plan in enumerate(path_plans)) / 4e8

    worth = (extra(slow) - extra(fast)) / (rounds_of(fast) - rounds_of(slow))
    for now in (slow, fast):
        assert choose(graph, known(worth), now) == now, "neither is clearly better"
        assert choose(graph, known(worth * 2), now) == slow
        assert choose(graph, known(worth / 2), now) == fast


def test_an_order_stays_until_another_is_better_by_more_than_measurements_waver() -> None:
    graph = graph_of(STAR)

    def known(selectivity: float) -> Flowing:
        exchange = Exchange(round_seconds=1e-9)  # rounds are no reason to bring all that is held
        return Flowing([1.0] * 4, [1_000.0] * 4, [8.0] * 4, [0.0] * 4, [1e-3, selectivity, 1e-2], exchange=exchange)

    path_plans = choose(graph, known(1e-3))
    assert path_plans[1].order == (0, 2, 3)
    for selectivity in (0.9e-3, 1.1e-3):
        assert choose(graph, known(selectivity), path_plans) == path_plans
    better = choose(graph, known(1e-1), path_plans)
    assert better[1].order == (0, 3, 2)
    now = priced(graph, known(1e-1), 1, path_plans[1])
    assert priced(graph, known(1e-1), 1, better[1]).load < GAIN * now.load


def test_an_order_that_sends_as_little_looks_at_fewer_pairs() -> None:
    """Tuples of a find as few of b as of c; of b's, a thousand times as many are looked at for that."""
    graph = graph_of("a.id = b.id AND a.x = c.x", "abc")

    def order(pair_seconds: float, admitted: tuple[float, float]) -> tuple[int, ...]:
        exchange = Exchange(pair_seconds=pair_seconds)
        return choose(graph, Flowing([1e4] * 3, [1e5] * 3, [16.0] * 3, [8.0] * 3, [1e-6, 1.1e-6], admitted, exchange=exchange))[0].order

    assert order(1e-15, (1e-3, 1e-6)) == (1, 2), "by bytes alone"
    assert order(5e-8, (1e-3, 1.1e-6)) == (2, 1)
    assert order(5e-8, (1e-6, 1.1e-6)) == (1, 2)


def test_wide_tuples_do_not_travel_where_few_results_come_of_many_partial_ones() -> None:
    graph = graph_of("a.id = b.id AND b.x = c.x", "abc")

    def first(payload: float, selectivity: float) -> PathPlan:
        exchange = Exchange(tasks=8)
        known = Flowing([10_000.0] * 3, [100_000.0] * 3, [16.0] * 3, [payload] * 3, [1e-4, selectivity], exchange=exchange)
        return choose(graph, known)[0]

    assert first(2_000.0, 1e-8).distributions == (Distribution.LOOKUP,)
    assert first(2_000.0, 1e-3).distributions == (), "there are more results than partial ones, and the third member is as wide"
    assert first(2_000.0, 0.0).distributions == (Distribution.LOOKUP,)


def test_tuples_are_fetched_where_those_that_match_in_between_come_to_nothing() -> None:
    """Most partial results have many partners in the second step, whose texts would come with the answers, and none in the third."""
    graph = graph_of(CHAIN)
    known = Flowing([1_000.0, 1.0, 1.0, 1.0], [1e4] * 4, [16.0] * 4, [8.0, 2_000.0, 2_000.0, 8.0], [1e-3, 1e-3, 1e-9])
    assert choose(graph, known)[0].fetches
    narrow = replace(known, output_bytes=[8.0] * 4)
    assert not choose(graph, narrow)[0].fetches, "a reference is as wide"


ENCOUNTER = Encounter(rate=1e4, held=1e5, selectivity=1e-6, partial_bytes=300.0, question_bytes=24.0, held_bytes=100.0, epochs=1.0, tasks=8)


@pytest.mark.parametrize(
    ("distribution", "changed"),
    [
        (Distribution.REPARTITION, {"selectivity": 1e-4}),
        (Distribution.REPARTITION, {"partial_bytes": 24.0}),
        (Distribution.BROADCAST, {"held": 10.0}),
        (Distribution.BROADCAST, {"rate": 1e7, "held": 1e4}),
        (Distribution.LOOKUP, {}),
        (Distribution.LOOKUP, {"held_bytes": 2_000.0, "partial_bytes": 3_000.0}),
        (Distribution.SEMI_JOIN, {"held_bytes": 2_000.0}),
        (Distribution.SEMI_JOIN, {"held_bytes": 2_000.0, "partial_bytes": 100.0}),
    ],
    ids=str,
)
def test_each_way_to_meet_sends_least_somewhere(distribution: Distribution, changed: dict[str, float]) -> None:
    sent = {each: sent_by(each, replace(ENCOUNTER, **changed)) for each in Distribution}
    assert min(sent, key=lambda each: sent[each]) is distribution, sent


def test_keys_first_sends_less_than_asking_and_fetching_by_any_factor() -> None:
    """Where the condition reads wide columns of both sides and few partial results have a partner: a reference spares only the output's."""
    for factor in (1.5, 3.0, 10.0):
        # Of these bytes later steps read all, so that no reference stands for any.
        width, partners = 480 * factor, 0.005 / factor
        known = replace(ENCOUNTER, selectivity=partners / ENCOUNTER.held, partial_bytes=width, held_bytes=9_600 * factor**2)
        ship, ask, keys = (sent_by(each, known) for each in (Distribution.REPARTITION, Distribution.LOOKUP, Distribution.SEMI_JOIN))
        assert keys * factor < min(ship, ask), (factor, ship, ask, keys)


def test_prices_are_those_of_appendix_b_for_the_quantities_of_a_divided_join() -> None:
    rng = random.Random(2)
    for _ in range(100):
        rate, held, tasks = 10 ** rng.uniform(0, 6), 10 ** rng.uniform(0, 6), rng.randint(1, 30)
        partial, question, width = (rng.uniform(8, 2_000) for _ in range(3))
        of = Encounter(rate, held, 10 ** rng.uniform(-8, 0), partial, question, width, rng.uniform(0.1, 5), tasks)
        source = Flow(rate, 0.0, partial, question, max(1.0, rate))
        pair = Pair(source, Flow(held, held, width, 8.0, held), 1.0)
        none = dict.fromkeys((each.name for each in fields(Quantities)), 0.0) | {"source_shipments": 1.0, "destination_shipments": 1.0}
        tiled = Quantities(
            **none  # type: ignore[arg-type]
            | {
                "pair": pair,
                "source_keys": rate,
                "matching_keys": of.with_partner,
                "matching_source_tuples": of.with_partner,
                "fetched_window_tuples": of.answered,
            }
        )

        def paper(algorithm: Algorithm, tiled: Quantities = tiled, pair: Pair = pair) -> float:
            return one_way_cost(algorithm, pair, lambda _: tiled).bytes_per_second

        ship, bring, ask, keys = (sent_by(each, of) for each in Distribution)
        assert ship == pytest.approx(paper(Algorithm.SP_D))
        # All that is held, with its key, to each task in each epoch, where the paper sends what is new, once.
        assert bring == pytest.approx(paper(Algorithm.SP_S) / width * (width + 8) * tasks * of.epochs)
        # Answers have rows' numbers, of four bytes, besides; and where keys go first, in place of keys.
        assert ask == pytest.approx(paper(Algorithm.SM_S1) + 4 * (of.answered + of.candidates))
        assert keys == pytest.approx(paper(Algorithm.SM_D2) + of.with_partner * (4 - question))
        assert of.answered <= min(of.candidates, held * of.epochs * tasks) * (1 + 1e-9)
        assert of.with_partner <= min(rate, of.candidates) * (1 + 1e-9)


def test_people_are_shown_what_others_would_send() -> None:
    graph = graph_of(STAR)
    known = Flowing([10.0] * 4, [1_000.0] * 4, [8.0] * 4, [0.0] * 4, [1e-3, 1e-2, 1e-1])
    lines = told(graph, known)
    assert lines[0].split("  ")[0] == "new tuples of"
    path_plans, steps, (rounds,) = (list(part) for blank, part in itertools.groupby(lines, bool) if blank)
    assert [row.split("  ")[0] for row in path_plans[1:] if row[0] != " "] == ["a", "b", "c", "d"]
    assert [len(row.split("  ")[0].split(", ")) for row in steps[1:]] == [2, 3] * 4, "each step but the first"
    for row in steps[1:]:
        assert len(re.findall(r"[kMG]?B/s", row)) == len(Distribution), row
        assert row.endswith(tuple(Distribution))
    assert re.fullmatch(r"1 round of 1 ms, and 250 MB/s of 1 task, each, and 50 ns a pair: 3.* ms of an epoch of 1 s", rounds)
    assert all(line == line.rstrip() for line in lines)


def test_every_spanning_tree_of_a_condition_is_a_graph_that_checks_what_it_leaves_out() -> None:
    cycle = "a.id = b.id AND b.x = c.x AND c.y = a.y AND a.v + b.v > c.v"
    graphs = join_graphs(cycle, dict.fromkeys("abc", SCHEMA))
    assert len(graphs) == 3

    def left_out(graph: JoinGraph) -> Sequence[str]:
        return sorted(check.sql for check in graph.checks)

    assert sorted(map(left_out, graphs)) == sorted(sorted(["a.v + b.v > c.v", part]) for part in ("a.id = b.id", "b.x = c.x", "c.y = a.y"))
    assert len({graph.main.text for graph in graphs}) == 3, "the operator knows them by this"


def test_all_that_is_brought_comes_in_one_round() -> None:
    bring, ship, keys = Distribution.BROADCAST, Distribution.REPARTITION, Distribution.SEMI_JOIN
    distributions = (bring, bring, bring), (ship, bring, ship), (keys, bring, ship), ()
    assert [PathPlan((1, 2, 3, 4), distributions=each).rounds for each in distributions] == [1, 3, 5, 3]
