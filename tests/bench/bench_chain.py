"""The handshake chain by itself: sizes of blocks by the papers' formulas, and what a chain in full swing makes of them.

Nothing is timed; the same numbers come out on every machine.

- sizes: the blocks of Theorem 1 for three weights, and of ESJ's other text, by the rate of a stream; four workers that have room for a
  thousand tuples, windows of ten seconds.
- measured: chains whose workers' shares are 500 tuples of each stream; imbalance, differences between neighbours, blocks and messages.

    python tests/bench/bench_chain.py [--quick]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import options, table
from streamjoin.chain.blocksize import Load, by_transmission, imbalance_factor, serialization_times, theorem_1
from streamjoin_research.chain.measure import measure

RATES = (10, 50, 100, 150, 200, 201, 250, 300, 350, 390, 399, 400)
TYPES = {"TupleBlock": "TUPLE_BLK", "Ack": "ACK", "SizeChanged": "SIZE_CHG", "Mark": "MARK"}
HEADER = [
    "workers",
    "block",
    "IF",
    "imbalance, one stream",
    "both",
    "ahead, behind at most",
    "ST",
    "blocks a link and window",
    *TYPES.values(),
    "messages a tuple",
]


def sizes_by_rate() -> str:
    loads = [Load(rate, window_seconds=10, workers=4, capacity_tuples=1000) for rate in RATES]
    rows = [[f"Theorem 1, alpha {weight}", *(theorem_1(load, weight) for load in loads)] for weight in (0.2, 0.5, 0.7)]
    rows.append(["other text, alpha 0.5, C_ser 1", *(by_transmission(load) for load in loads)])
    return table(["tuples a second", *map(str, RATES)], rows)


def measured(workers: int, block_tuples: int) -> list[object]:
    load = Load(50 * workers, window_seconds=10, workers=workers, capacity_tuples=1000)
    found = measure(load, block_tuples)
    messages = [found.messages_a_tuple.get(name, 0.0) for name in TYPES]
    return [
        workers,
        block_tuples,
        f"{imbalance_factor(load, block_tuples):.3f}",
        f"{found.imbalance:.3f}",
        f"{found.imbalance_of_both:.3f}",
        f"{found.most_ahead}, {found.most_behind}",
        f"{serialization_times(load, block_tuples):.0f}",
        f"{found.blocks_a_link:.1f}",
        *(f"{count:.3f}" for count in messages),
        f"{sum(messages):.3f}",
    ]


def main() -> None:
    quick = options(__doc__ or "").parse_args().quick
    print(sizes_by_rate())
    print()
    print(table(HEADER, [measured(workers, block) for workers in (2, 4, 8) for block in ((50, 500) if quick else (1, 10, 50, 250, 500))]))


if __name__ == "__main__":
    main()
