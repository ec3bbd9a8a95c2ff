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
    first = [one.plans[0][0] for one in found if one.plans]
    plans = sorted({tuple(workers for _, workers in one.plans) for one in found}, key=len)
    full = [one.full_seconds for one in found]
    return [
        f"{min(first):.0f} to {max(first):.0f}" if first else "none",
        "; ".join(", ".join(map(str, plan)) for plan in plans),
        f"{min(full)} to {max(full)}",
        f"{max(one.tau for one in found):.2f}",
    ]


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
    print(table(("load", "first plan after, s", "plans of so many workers", "tau >= 1 for, s", "tau in the end"), rows))


if __name__ == "__main__":
    main()
