"""How soon the operator answers a load that changes, and with how many plans: its real steps, with a modelled join, in counted time.

Jumps and ramps of both streams' rates, each with the operator's polls at five phases. Nothing is timed: the same on every machine.

    python tests/bench/bench_loop.py [--quick]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import options, table
from followed_load import Followed, follow

RATE = 180.0
"""Tuples per second of each stream: what a window of 180 s holds of them makes one worker of 100,000 0.65 full."""
LOADS = {
    "x2 at once": [(0.0, RATE), (0.001, 2 * RATE)],
    "x4 at once": [(0.0, RATE), (0.001, 4 * RATE)],
    "x8 at once": [(0.0, RATE), (0.001, 8 * RATE)],
    "x4 in 1 min": [(0.0, RATE), (60.0, 4 * RATE)],
    "x10 in 1 min": [(0.0, RATE), (60.0, 10 * RATE)],
    "x10 in 5 min": [(0.0, RATE), (300.0, 10 * RATE)],
}


def cells(found: list[Followed]) -> list[str]:
    """One row, over the phases."""
    columns = (
        [round(one.plans[0][0]) for one in found if one.plans],
        [one.plans[0][1] for one in found if one.plans],
        [len(one.plans) for one in found],
        [len(one.runs) for one in found],
        [one.runs[-1][1] for one in found if one.runs],
        [one.full_seconds for one in found],
    )
    shown = [str(min(column)) if min(column) == max(column) else f"{min(column)} to {max(column)}" for column in columns if column]
    return [*shown, f"{max(one.tau for one in found):.2f}"]


def main() -> None:
    arguments = options(__doc__ or "").parse_args()
    rows = []
    for policy in ("predictive", "thresholds"):
        for name, points in LOADS.items():
            if arguments.quick and name != "x4 at once":
                continue
            phases = (0,) if arguments.quick else (0, 3, 6, 9, 12)
            found = [asyncio.run(follow(points, 600.0, phase=phase, scaling={"policy": policy})) for phase in phases]
            rows.append([f"{name}, `{policy}`", *cells(found)])
    header = ("first plan after, s", "of workers", "plans asked for", "plans that ran", "workers in the end", "tau >= 1 for, s")
    print(table(("load", *header, "tau in the end"), rows))


if __name__ == "__main__":
    main()
