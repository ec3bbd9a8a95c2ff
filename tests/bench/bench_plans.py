"""Plans by themselves: how many tasks each model needs, what a change of the load moves, and what rules for scaling cost in a week.

Nothing is joined here: the planner and the decision core are pure, and their numbers do not depend on the machine.

- tasks: for streams of several ratios and volumes, the tasks of equal capacity V that each model needs. Once for a join in which every
  tuple may meet every other, once for a band over evenly spread keys that admits 1 % of all pairs.
- moved: a load that changes in steps, in volume and in the streams' ratio; each model follows it, with as many tasks as it needs. Moved
  are tuples that a task needs and its worker has not; the lower bound is what no map of tasks to workers can avoid for the same scheme;
  naive is every task fetching all that it needs; by number is every worker going on under its number, with nothing aligned or mapped.
- traces: ``streamjoin simulate`` for the five kinds of traffic, a week of each: our rules beside HPA's, Flink's and
  a clairvoyant.

    python tests/bench/bench_plans.py [--parts tasks,moved,traces] [--steps 60] [--days 7] [--quick]
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from bench.report import options, table
from streamjoin.elastic.mapping import greedy, kept_by, overlaps
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import follow
from streamjoin.language.predicate import MainKind, MainPredicate
from streamjoin.scheme.dichotomy import TooManyTasksError
from streamjoin.scheme.models import Options, plan_for_capacity
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics

ROOT = Path(__file__).resolve().parents[2]
CAPACITY = 1_000_000.0
"""V, in tuples."""
RATIOS = (1, 2, 4, 8, 16)
VOLUMES = (1.5, 3, 8)
"""(L + R) / V."""
KEYS = 1_000_000
BAND = KEYS // 200
"""Either way, so that 1 % of all pairs match."""
MODELS: dict[str, tuple[str, Options]] = {
    "A-DSP": ("adsp", Options()),
    "Square": ("square", Options()),
    "Dynamic": ("dynamic", Options()),
    "Bi": ("biclique", Options()),
    "Bi_6": ("biclique", Options(groups=6)),
}
TRAFFIC = ("diurnal", "spike", "ramp", "skew-shift", "ratio-shift")
PAIRS = {
    "every pair may match": MainPredicate(MainKind.ALL, text="true"),
    "a band of 1 % of all pairs": MainPredicate(MainKind.RANGE, low=-BAND, high=BAND, text=f"abs(l.k - r.k) <= {BAND}"),
}
"""The joins: what they are called, and their main predicate."""


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--parts", default="tasks,moved,traces")
    parser.add_argument("--steps", type=int, default=60, help="changes of the load")
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.days = 5, 0.5
    parts = arguments.parts.split(",")
    for name, main_predicate in PAIRS.items():
        if "tasks" in parts:
            print(f"\n**Tasks needed, {name}**\n")
            print(tasks_needed(main_predicate))
        if "moved" in parts:
            print(f"\n**Moved tuples, millions, over {arguments.steps} changes of the load, {name}**\n")
            print(moved(main_predicate, arguments.steps, arguments.seed))
    if "traces" in parts:
        for kind in TRAFFIC:
            print(f"\n**{kind}, {arguments.days:g} days**\n")
            print(trace(kind, arguments.days, arguments.seed))


def statistics(left: float, right: float, predicate: MainPredicate) -> Statistics:
    keys = np.linspace(0, KEYS, 10_000).astype(np.int64)
    histogram = Histogram.from_sample(keys) if predicate.kind is MainKind.RANGE else None
    return Statistics((SideStatistics(left, histogram), SideStatistics(right, histogram)))


def tasks_needed(predicate: MainPredicate) -> str:
    rows = []
    for volume in VOLUMES:
        for ratio in RATIOS:
            left = volume * CAPACITY / (1 + ratio)
            found = [_tasks(name, statistics(left, ratio * left, predicate), predicate) for name in MODELS]
            rows.append([f"{volume:g} V, 1 : {ratio}", *found])
    return table(["(L + R), L : R", *MODELS], rows)


def _tasks(name: str, held: Statistics, predicate: MainPredicate) -> str:
    model, given = MODELS[name]
    try:
        return f"{plan_for_capacity(model, held, predicate, CAPACITY, options=given).tasks:,}"
    except TooManyTasksError:
        return "too many"


def loads(steps: int, seed: int) -> Iterator[tuple[float, float]]:
    """What the two sides hold, step by step: from 1 to 8 V together, at ratios from 1 : 8 to 8 : 1, each a walk in its logarithm."""
    rng = np.random.default_rng(seed)
    volume, ratio = np.log(3.0), 0.0
    for _ in range(steps + 1):
        left = np.exp(volume) / (1 + np.exp(ratio)) * CAPACITY
        yield float(left), float(np.exp(ratio) * left)
        volume = float(np.clip(volume + rng.normal(0, 0.3), 0.0, np.log(8)))
        ratio = float(np.clip(ratio + rng.normal(0, 0.3), -np.log(8), np.log(8)))


def moved(predicate: MainPredicate, steps: int, seed: int) -> str:
    rows = []
    for name, (model, given) in MODELS.items():
        current: Plan | None = None
        tasks, sums = [], np.zeros(5)
        for left, right in loads(steps, seed):
            held = statistics(left, right, predicate)
            running = None if current is None else current.scheme
            scheme = plan_for_capacity(model, held, predicate, CAPACITY, options=given, current=running)
            planned = follow(current, scheme, held, predicate)
            migration = planned.migration
            if running is not None and planned.changed:
                overlap = overlaps(running, planned.plan.scheme, held)
                by_greedy = migration.naive_tuples - kept_by(overlap, greedy(overlap))
                moves = (migration.moved_tuples, migration.lower_bound_tuples, by_greedy)
                sums += np.array((*moves, migration.identity_tuples, migration.naive_tuples))
            current = planned.plan
            tasks.append(current.scheme.tasks)
        of_bound = f"{sums[0] / sums[1]:.2f}" if sums[1] else ""
        rows.append([name, f"{np.mean(tasks):.1f}", *(f"{value / 1e6:,.1f}" for value in sums), of_bound])
    header = ["", "tasks, mean", "moved", "lower bound", "by Alg. 4's map", "by number", "naive", "moved / bound"]
    return table(header, rows)


def trace(kind: str, days: float, seed: int) -> str:
    command = [sys.executable, "-m", "streamjoin", "simulate", "examples/scaling.yaml", "--json"]
    done = subprocess.run(
        [*command, "--traffic", kind, "--days", f"{days:g}", "--seed", str(seed)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = []
    for one in json.loads(done.stdout)["outcomes"]:
        numbers = (f"{one['workerHours']:,.0f}", f"{one['secondsAboveTau3']:,.0f}", f"{one['shedTuples'] / one['inputTuples']:.3%}")
        rows.append([one["decider"], *numbers, one["rescales"], f"{one['movedTuples'] / 1e6:,.1f}", f"{one['pauseSeconds']:,.0f}"])
    return table(["", "worker-hours", "above tau3, s", "shed", "rescales", "moved, millions", "paused, s"], rows)


if __name__ == "__main__":
    main()
