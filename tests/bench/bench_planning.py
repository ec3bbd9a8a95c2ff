"""Seconds to plan against the number of tasks, by kind of predicate: the first plan, and the next one for a fifth more tasks.

Both are whole plans: scheme, proof that it is a tiling, and for the second alignment, map and migration. A thousand million tuples a side,
of which the planner sees a histogram of 1,000 buckets; before the second plan all keys have grown by a tenth. Who sends what to whom is
listed when it is asked for, and measured by itself. Seconds are of the processor, so that what else runs on the machine counts little.
It ends where the planner does, at 10,000 tasks (``MOST_TASKS``).

    python tests/bench/bench_planning.py [--tasks 10,100,1000,10000] [--kinds 'a band,all'] [--model square]
        [--picture docs/images/bench-planning.png]
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from bench.report import counts, machine, options, table
from streamjoin.elastic.planner import Planned, make_plan
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.dichotomy import MOST_TASKS
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics

TUPLES = 1e9
KEYS = 1_000_000
SAMPLE = 100_000
GROWTH = 1.1
MORE = 1.2
KEY, HASH = (KeyExpression(("k",), (), encoding) for encoding in (Encoding.INTEGER, Encoding.HASH))
WIDTH = KEYS // 200
KINDS = {
    "a band of 1 %": ("uniform", MainPredicate(MainKind.RANGE, (KEY, KEY), -WIDTH, WIDTH)),
    "a band, Zipf keys": ("zipf", MainPredicate(MainKind.RANGE, (KEY, KEY), -500, 500)),
    "an inequality": ("uniform", MainPredicate(MainKind.RANGE, (KEY, KEY), 1, None)),
    "an equality": ("uniform", MainPredicate(MainKind.RANGE, (KEY, KEY), 0, 0)),
    "an equality, Zipf keys": ("zipf", MainPredicate(MainKind.RANGE, (KEY, KEY), 0, 0)),
    "an equality of hashed keys": ("unknown", MainPredicate(MainKind.RANGE, (HASH, HASH), 0, 0)),
    "all pairs": ("unknown", MainPredicate(MainKind.ALL, text="true")),
}
"""How the keys are spread, and the main predicate."""


def main() -> None:
    parser = options(__doc__ or "", picture="out/bench-planning.png")
    parser.add_argument("--tasks", type=counts, default=counts("10,30,100,300,1000,3000,10000"))
    parser.add_argument("--kinds", default="a", help="how the names of the kinds to measure begin")
    parser.add_argument("--model", default="adsp")
    arguments = parser.parse_args()
    tasks = [10, 100] if arguments.quick else [count for count in arguments.tasks if count <= MOST_TASKS]
    kinds = {name: kind for name, kind in KINDS.items() if any(name.startswith(wanted.strip()) for wanted in arguments.kinds.split(","))}
    print(machine())
    _plan(next(iter(KINDS.values())), 10, arguments.model)  # loads what planning loads
    seconds: dict[str, tuple[list[float], list[float]]] = {}
    rows, moved, listed = [], [], []
    for name, kind in kinds.items():
        first, again = seconds.setdefault(name, ([], []))
        moves, lists = [], []
        for count in tasks:
            took, then, result = _plan(kind, count, arguments.model)
            first.append(took)
            again.append(then)
            started = time.process_time()
            lists.append(f"{len(result.migration.moves):,} ({time.process_time() - started:.2f})")
            bound = result.migration.lower_bound_tuples
            share = result.migration.moved_tuples / result.migration.naive_tuples
            moves.append(f"{share:.0%}" + (f" ({bound / result.migration.naive_tuples:.0%})" if bound else ""))
        rows.append([name, *(f"{one:.2f} / {other:.2f}" for one, other in zip(first, again, strict=True))])
        moved.append([name, *moves])
        listed.append([name, *lists])
        print(rows[-1], flush=True)
    header = ["tasks", *(f"{count:,}" for count in tasks)]
    print(f"\n**Seconds of one core: the first plan / the next, for {MORE - 1:.0%} more tasks**\n\n{table(header, rows)}")
    print(f"\n**Moved at the next plan, of what its tasks hold; in brackets what no plan can avoid**\n\n{table(header, moved)}")
    print(f"\n**Regions that move at the next plan (seconds to list them)**\n\n{table(header, listed)}")
    if not arguments.quick:
        _draw(tasks, seconds, arguments.picture)


def _plan(kind: tuple[str, MainPredicate], tasks: int, model: str) -> tuple[float, float, Planned]:
    spread, predicate = kind
    before, after = (_statistics(spread, growth) for growth in (1.0, GROWTH))
    started = time.process_time()
    first = _planned(None, before, predicate, tasks, model)
    between = time.process_time()
    again = _planned(first, after, predicate, min(MOST_TASKS, round(tasks * MORE)) if tasks < MOST_TASKS else round(tasks / MORE), model)
    return between - started, time.process_time() - between, again


def _planned(current: Planned | None, statistics: Statistics, predicate: MainPredicate, tasks: int, model: str) -> Planned:
    return make_plan(
        None if current is None else current.plan, statistics, predicate,
        model=model, workers=tasks, capacity=Capacity(TUPLES), tau1=0.5, minimum=1, maximum=MOST_TASKS,
    )  # fmt: skip


def _statistics(spread: str, growth: float) -> Statistics:
    rng = np.random.default_rng(1)
    sides = []
    for _ in range(2):
        keys = rng.zipf(1.3, SAMPLE) % SAMPLE if spread == "zipf" else rng.integers(0, KEYS, SAMPLE)
        histogram = None if spread == "unknown" else Histogram.from_sample((keys * growth).astype(np.int64))
        sides.append(SideStatistics(TUPLES, histogram))
    if spread == "unknown":
        sides[1] = replace(sides[1], tuples=TUPLES * growth)
    return Statistics(tuple(sides))


def _draw(tasks: list[int], seconds: dict[str, tuple[list[float], list[float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, which, title in zip(axes, (0, 1), ("first plan", f"next plan, {MORE - 1:.0%} more tasks"), strict=True):
        for name, of_kind in seconds.items():
            axis.plot(tasks, of_kind[which], marker="o", markersize=3, linewidth=1.2, label=name)
        axis.set(xscale="log", yscale="log", title=title, xlabel="tasks")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds of one core")
    axes[0].legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"\n{path}")


if __name__ == "__main__":
    main()
