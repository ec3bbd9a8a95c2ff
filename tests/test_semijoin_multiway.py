"""Multi-way joins by sequences of one-way joins: against every combination of tuples, for random graphs, orders and algorithms."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from cases import how_many
from semijoin_cases import TOPOLOGIES, planning, poisson
from semijoin_cases import graph as graph_of
from streamjoin_research.semijoin.algorithms.site import Timing
from streamjoin_research.semijoin.algorithms.window import RowWindow, TimeWindow, Window
from streamjoin_research.semijoin.estimates import expected
from streamjoin_research.semijoin.graph import Edge, JoinGraph, StreamStatistics
from streamjoin_research.semijoin.multiway import Multiway, MultiwayRun, Record, Sequences, sequences_of
from streamjoin_research.semijoin.names import Algorithm
from streamjoin_research.semijoin.network import Link
from streamjoin_research.semijoin.order import exhaustive, greedy
from streamjoin_research.semijoin.statistics import Attribute

SEEDS = range(how_many(150, of=2))
SPAN = 200


@dataclass(frozen=True)
class Case:
    join: Multiway
    streams: Mapping[str, Sequence[Record]]
    sequences: Sequences

    def run(self) -> MultiwayRun:
        return self.join.run(self.sequences, self.streams, SPAN)

    def answer(self) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
        """Head and members of each result, sorted."""
        names = list(self.streams)
        found = []
        for combination in itertools.product(*(enumerate(self.streams[name]) for name in names)):
            member = dict(zip(names, combination, strict=True))
            if any(member[edge.left][1].values[edge.attribute] != member[edge.right][1].values[edge.attribute] for edge in self.edges):
                continue
            head = max(names, key=lambda name: (member[name][1].time, names.index(name)))
            if all(self.in_window(name, member[name][0], head, member[head][1].time) for name in names if name != head):
                found.append((head, tuple(sorted((name, number) for name, (number, _) in member.items()))))
        return sorted(found)

    @property
    def edges(self) -> Sequence[Edge]:
        return self.join.graph.edges

    def in_window(self, name: str, number: int, head: str, time: int) -> bool:
        window, names = self.join.windows[name], list(self.streams)
        if isinstance(window, TimeWindow):
            return time - self.streams[name][number].time <= window.length
        assert isinstance(window, RowWindow)
        records = self.streams[name]
        earlier = [index for index, other in enumerate(records) if (other.time, names.index(name)) < (time, names.index(head))]
        return number in earlier[-window.tuples :]


def random_graph(chance: random.Random) -> JoinGraph:
    """Three or four streams on one attribute, or, in a chain or a star, on one for each edge."""
    count = chance.choice([3, 3, 4])
    topology = chance.choice(list(TOPOLOGIES))
    several = topology in ("chain", "star") and chance.random() < 0.5
    ends = TOPOLOGIES[topology](count)
    edges = tuple(Edge(f"s{one}", f"s{other}", f"k{number}" if several else "k0") for number, (one, other) in enumerate(ends))
    attributes = {edge.attribute: Attribute(chance.choice([2, 4]), 8) for edge in edges}
    streams = (StreamStatistics(f"s{number}", 50, 20, chance.choice([50, 500]), attributes) for number in range(count))
    return JoinGraph(tuple(streams), edges)


def random_sequences(chance: random.Random, graph: JoinGraph) -> Sequences:
    sequences = {}
    for head in graph.by_name:
        order, steps = [head], list[tuple[str, Algorithm]]()
        while following := graph.adjacent(order):
            order.append(chance.choice(following))
            steps.append((order[-1], chance.choice(list(Algorithm))))
        sequences[head] = steps
    return sequences


def random_case(seed: int, *, overdue: float = 0.0) -> Case:
    chance = random.Random(seed)
    graph = random_graph(chance)
    tuples = 24 if len(graph.streams) == 3 else 10
    streams: dict[str, list[Record]] = {}
    for stream in graph.streams:
        times = sorted(chance.randrange(SPAN) for _ in range(chance.randrange(tuples)))
        keys = {name: int(attribute.distinct) for name, attribute in stream.attributes.items()}
        streams[stream.name] = [Record(time, {name: chance.randrange(values) for name, values in keys.items()}) for time in times]
    windows: dict[str, Window] = {
        name: chance.choice([TimeWindow(chance.choice([10, 50, 150])), RowWindow(chance.choice([2, 6]))]) for name in graph.by_name
    }
    bound, interval = chance.choice([0, 5, 30]), chance.choice([4, 10, 40])
    delays = [chance.randrange(bound + 1) + (chance.randrange(1, 100) if chance.random() < overdue else 0) for _ in range(1000)]
    link = Link(0, further_delay=lambda shipment: delays[shipment % 1000])
    return Case(Multiway(graph, windows, interval, bound, lambda source, destination: link), streams, random_sequences(chance, graph))


def heads_and_members(run: MultiwayRun) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
    return sorted((result.head, result.members) for result in run.results)


def test_all_sequences_together_find_each_result_once_and_in_time() -> None:
    found = 0
    for seed in SEEDS:
        case = random_case(seed)
        run = case.run()
        assert heads_and_members(run) == case.answer(), f"seed {seed}"
        assert not run.late, f"seed {seed}"
        for result in run.results:
            time = case.streams[result.head][dict(result.members)[result.head]].time
            assert result.time <= time + case.join.interval + run.deltas[result.head], f"seed {seed}"
        found += len(run.results)
    assert found > 1000


def test_a_shipment_over_the_bound_is_reported_wherever_in_a_sequence() -> None:
    wrong = 0
    for seed in SEEDS:
        case = random_case(seed, overdue=0.05)
        run = case.run()
        if heads_and_members(run) != case.answer():
            wrong += 1
            assert run.late, f"seed {seed}"
    assert wrong


def test_windows_must_keep_tuples_for_the_steps_before_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the delay of the last step alone, results are missing: delays add up (section 2.2)."""
    least = Timing.of

    def of_this_step(algorithm: Algorithm, shipment: int, start: int = 0) -> Timing:
        timing = least(algorithm, shipment, start)
        return replace(timing, removal=timing.removal - start)

    monkeypatch.setattr(Timing, "of", of_this_step)
    assert any(len(case.run().results) < len(case.answer()) for case in map(random_case, SEEDS))


def test_planned_sequences_join_what_any_others_do() -> None:
    for seed in range(10):
        case = random_case(seed)
        for plan in (greedy(planning(case.join.graph)), exhaustive(planning(case.join.graph))):
            assert heads_and_members(replace(case, sequences=sequences_of(plan)).run()) == case.answer(), f"seed {seed}"


@pytest.mark.parametrize("topology", ["chain", "fully connected"])
def test_a_plan_ships_the_bytes_and_gives_the_results_that_are_expected_of_it(topology: str) -> None:
    """Within 5 %, over 60 seconds of three random streams: rates, widths and keys of intermediate results are estimated right."""
    chance, duration = random.Random(1), 60
    seconds = {"s0": 2.0, "s1": 2.0, "s2": 3.0}
    streams = tuple(
        StreamStatistics(name, rate, rate * seconds[name], size, {"key": Attribute(keys, 8)})
        for name, rate, size, keys in (("s0", 20, 300, 40), ("s1", 30, 500, 50), ("s2", 25, 400, 60))
    )
    data = {
        stream.name: [
            Record(new.time, {"key": new.key}) for new in poisson(chance, stream.rate, 0, duration, int(stream.attributes["key"].distinct))
        ]
        for stream in streams
    }
    join = Multiway(
        graph_of(streams, topology),
        {name: TimeWindow(int(length * 1_000_000)) for name, length in seconds.items()},
        interval=100_000,
        shipment=30_000,
        link=lambda source, destination: Link(20_000),
    )
    plan = exhaustive(replace(planning(join.graph), estimate=expected))
    run = join.run(sequences_of(plan), data, duration * 1_000_000)
    steps = [step for sequence in plan.sequences for step in sequence.steps]
    counted = sum(shipment.message.bytes for shipment in run.shipments) / duration
    assert sum(step.join.cost.bytes_per_second for step in steps) == pytest.approx(counted, rel=0.05)
    rate = sum(sequence.steps[-1].results.rate for sequence in plan.sequences)
    assert rate == pytest.approx(len(run.results) / duration, rel=0.05)


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (["s1"], "sequences: s0: s1 must be each other stream once"),
        (["s2", "s1"], "no edge leads to s2 from the streams before it; put it later"),
    ],
)
def test_sequences_that_do_not_join_all_streams_along_edges_are_refused(order: list[str], says: str) -> None:
    streams = tuple(StreamStatistics(f"s{number}", 1, 1, 1, {"key": Attribute(1, 1)}) for number in range(3))
    graph = JoinGraph(streams, (Edge("s0", "s1"), Edge("s1", "s2")))
    join = Multiway(graph, {name: TimeWindow(1) for name in graph.by_name}, 1, 1, lambda source, destination: Link(1))
    with pytest.raises(ValueError, match=says):
        join.run({"s0": [(stream, Algorithm.SP_D) for stream in order]}, {name: [] for name in graph.by_name}, 10)
