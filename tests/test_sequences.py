"""In which order streams meet, and whether what only the output reads is fetched: by arithmetic that shares nothing with the formulas."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from streamjoin.elastic.sequences import GAIN, Flowing, Way, alternatives, choose, priced, told
from streamjoin.language.ddl import parse_schema
from streamjoin.language.graph import JoinGraph, join_graph, join_graphs

SCHEMA = parse_schema("id BIGINT, x BIGINT, y BIGINT, v DOUBLE")
CHAIN = "a.id = b.id AND b.x = c.x AND c.y = d.y"
STAR = "a.id = b.id AND a.x = c.x AND a.y = d.y"


def graph_of(condition: str, names: str = "abcd") -> JoinGraph:
    return join_graph(condition, dict.fromkeys(names, SCHEMA))


def flowing(streams: int, rng: random.Random) -> Flowing:
    def some(low: float, high: float) -> list[float]:
        return [rng.uniform(low, high) for _ in range(streams)]

    return Flowing(some(1, 1e4), some(10, 1e5), some(8, 100), some(8, 3_000), [10 ** rng.uniform(-6, -1) for _ in range(streams - 1)])


def sent(graph: JoinGraph, known: Flowing, head: int, way: Way) -> float:
    """Bytes a second: of each partial result, what its members have; and of results whose tuples are fetched, those and references."""
    rate, joined, total = known.rates[head], [head], 0.0
    for stream in way.order:
        if len(joined) > 1:
            wide = [8.0 if way.fetches else known.output_bytes[member] for member in joined]
            total += rate * sum(known.condition_bytes[member] + more for member, more in zip(joined, wide, strict=True))
        edge = next(n for n, edge in enumerate(graph.edges) if stream in graph.ends(edge) and set(graph.ends(edge)) & set(joined))
        rate *= known.held[stream] * known.selectivities[edge]
        joined.append(stream)
    if way.fetches:
        total += rate * sum(8.0 + known.condition_bytes[member] + known.output_bytes[member] for member in joined[:-1])
    return total


def orders(graph: JoinGraph, head: int) -> list[tuple[int, ...]]:
    """By trying all permutations."""
    ends = [set(graph.ends(edge)) for edge in graph.edges]
    others = [stream for stream in range(len(graph.streams)) if stream != head]
    return [
        order
        for order in itertools.permutations(others)
        if all(any(stream in pair and pair & {head, *order[:at]} for pair in ends) for at, stream in enumerate(order))
    ]


def test_a_way_is_priced_by_what_it_sends_and_the_cheapest_is_chosen() -> None:
    rng = random.Random(0)
    for condition in (CHAIN, STAR, "a.id = b.id AND b.id = c.id AND abs(c.v - d.v) <= 1"):
        graph = graph_of(condition)
        for _ in range(20):
            known = flowing(4, rng)
            for head in range(4):
                found = alternatives(graph, known, head)
                assert sorted({each.way.order for each in found}) == sorted(orders(graph, head))
                for each in found:
                    assert abs(each.bytes_per_second - sent(graph, known, head, each.way)) <= 1e-6 * each.bytes_per_second
                assert found[0].bytes_per_second == min(each.bytes_per_second for each in found)


def test_an_order_stays_until_another_is_better_by_more_than_measurements_waver() -> None:
    graph = graph_of(STAR)

    def known(selectivity: float) -> Flowing:
        return Flowing([1.0] * 4, [1_000.0] * 4, [8.0] * 4, [0.0] * 4, [1e-3, selectivity, 1e-2])

    ways = choose(graph, known(1e-3))
    assert ways[1].order == (0, 2, 3)
    for selectivity in (0.9e-3, 1.1e-3):
        assert choose(graph, known(selectivity), ways) == ways
    better = choose(graph, Flowing([1.0] * 4, [1_000.0] * 4, [8.0] * 4, [0.0] * 4, [1e-3, 1e-1, 1e-2]), ways)
    assert better[1].order == (0, 3, 2)
    now = priced(graph, known(1e-1), 1, ways[1])
    assert priced(graph, known(1e-1), 1, better[1]).bytes_per_second < GAIN * now.bytes_per_second


def test_wide_tuples_are_fetched_where_few_results_come_of_many_partial_ones() -> None:
    graph = graph_of("a.id = b.id AND b.x = c.x", "abc")

    def ways(payload: float, selectivity: float) -> list[bool]:
        known = Flowing([10_000.0] * 3, [100_000.0] * 3, [16.0] * 3, [payload] * 3, [1e-4, selectivity])
        return [way.fetches for way in choose(graph, known)]

    assert ways(2_000.0, 1e-8) == [True, False, False], "those of b and c meet each other first, which leaves few partial results"
    assert not any(ways(8.0, 1e-8)), "a reference is as wide"
    assert not any(ways(2_000.0, 1e-4)), "there are as many results as partial ones"


def test_people_are_shown_what_others_would_send() -> None:
    graph = graph_of(STAR)
    known = Flowing([10.0] * 4, [1_000.0] * 4, [8.0] * 4, [0.0] * 4, [1e-3, 1e-2, 1e-1])
    lines = told(graph, known)
    assert lines[0].split("  ")[0] == "new tuples of"
    rows = [line.split("  ") for line in lines[1:]]
    assert [row[0] for row in rows if row[0]] == ["a", "b", "c", "d"]
    assert all(line == line.rstrip() for line in lines)


def test_every_spanning_tree_of_a_condition_is_a_graph_that_checks_what_it_leaves_out() -> None:
    cycle = "a.id = b.id AND b.x = c.x AND c.y = a.y AND a.v + b.v > c.v"
    graphs = join_graphs(cycle, dict.fromkeys("abc", SCHEMA))
    assert len(graphs) == 3

    def left_out(graph: JoinGraph) -> Sequence[str]:
        return sorted(check.sql for check in graph.checks)

    assert sorted(map(left_out, graphs)) == sorted(
        sorted(["a.v + b.v > c.v", part]) for part in ("a.id = b.id", "b.x = c.x", "c.y = a.y")
    )
    assert len({graph.main.text for graph in graphs}) == 3, "the operator knows them by this"
