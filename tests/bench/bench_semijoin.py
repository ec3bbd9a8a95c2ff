"""Semijoins by themselves: bytes counted in a simulated network beside those of the formulas, and greedy orders beside the cheapest.

Nothing is timed; the same numbers come out on every machine.

- bytes: random streams (Poisson arrivals, uniform keys; tuples of 1000 and of 600 bytes, keys of 8) joined one way. For each algorithm
  the bytes a second that crossed the network, and how many times as many the formulas expect: as the paper prints them, and by our
  estimates.
- orders: 100 four-way joins of each topology, with parameters drawn from the paper's Table 2: the cost of Alg. 10's plan over that of the
  cheapest (Table 3), and the cost of the cheapest tree over that of the cheapest sequences.

    python tests/bench/bench_semijoin.py [--quick]
"""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import options, table
from semijoin_cases import TOPOLOGIES, WORKLOADS, counted_of_workload, graph, of_table_2, planning, workload_pair
from streamjoin_research.semijoin.cost import one_way_cost
from streamjoin_research.semijoin.estimates import expected, printed
from streamjoin_research.semijoin.names import Algorithm
from streamjoin_research.semijoin.order import exhaustive, exhaustive_tree, greedy


def count_bytes(tuples: int) -> str:
    rows = []
    for workload in WORKLOADS:
        cells: list[object] = [workload]
        for algorithm in Algorithm:
            size, _ = counted_of_workload(algorithm, workload, tuples)
            ratios = [
                one_way_cost(algorithm, workload_pair(workload), estimate).bytes_per_second / size for estimate in (printed, expected)
            ]
            cells.append(f"{size / 1000:.1f} ({ratios[0]:.2f}, {ratios[1]:.2f})")
        rows.append(cells)
    return table(["kB/s (printed, expected)", *(algorithm.value for algorithm in Algorithm)], rows)


def compare_orders(queries: int) -> str:
    rows = []
    for topology in TOPOLOGIES:
        chance = random.Random(7)
        asked = [planning(graph(of_table_2(chance), topology)) for _ in range(queries)]
        least = [exhaustive(query).price for query in asked]
        ratios = [greedy(query).price / price for query, price in zip(asked, least, strict=True)]
        trees = [exhaustive_tree(query).price / price for query, price in zip(asked, least, strict=True)]
        rows.append(
            [
                topology,
                *(f"{value:.2f}" for value in (statistics.mean(ratios), statistics.median(ratios), max(ratios))),
                f"{statistics.median(trees):.2f} ({min(trees):.2f} to {max(trees):.2f})",
            ]
        )
    return table(["greedy / cheapest", "mean", "median", "most", "cheapest tree / cheapest sequences"], rows)


def main() -> None:
    quick = options(__doc__ or "").parse_args().quick
    print(count_bytes(500 if quick else 20_000))
    print()
    print(compare_orders(10 if quick else 100))


if __name__ == "__main__":
    main()
