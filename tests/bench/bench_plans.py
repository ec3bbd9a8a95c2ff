"""Plans by themselves: how many tasks each model needs, what a change of the load moves, and what rules for scaling cost in a week.

Nothing is joined here: the planner and the decision core are pure, and their numbers do not depend on the machine.

- tasks: for streams of several ratios and volumes, the tasks of equal capacity V that each model needs. Once for a join in which every
  tuple may meet every other, once for a band over evenly spread keys that admits 1 % of all pairs.
- moved: a load that changes in steps, in volume and in the streams' ratio; each model follows it, with as many tasks as it needs. Moved
  are tuples that a task needs and its worker has not; less than the lower bound no plan of as many tasks moves, none of them fuller,
  however it is cut; naive is every task fetching all that it needs; by number is every worker going on under its number, with nothing
  aligned or mapped.
- fetched: the bytes that workers read from an object store at a change of plans, against those of the tuples that move: 24-byte tuples in
  blocks of one epoch. In brackets, what whole blocks would come to.
- traces: ``streamjoin simulate`` for each kind of traffic, a week of each, and for each trace of examples/traces: our rules, by each
  policy, beside HPA's, Flink's and a clairvoyant. And what a quarter of HPA's rescales would cost at least, whatever a rule knows.

    python tests/bench/bench_plans.py [--parts tasks,moved,fetched,traces] [--steps 60] [--days 7] [--quick]
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa

from bench.report import options, table
from streamjoin.cli import main as streamjoin
from streamjoin.cli.simulate import Options as SimulateOptions
from streamjoin.cli.simulate import prepare
from streamjoin.compilation import compile_job, with_checkpoint
from streamjoin.elastic.mapping import greedy, kept_by, overlaps
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import follow
from streamjoin.elastic.settings import Policy
from streamjoin.language.predicate import MainKind, MainPredicate
from streamjoin.language.sides import SIDES
from streamjoin.manifest.validate import load
from streamjoin.scheme.dichotomy import TooManyTasksError
from streamjoin.scheme.models import Options, plan_for_capacity, plan_for_tasks
from streamjoin.scheme.region import difference, held_by, written_by
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics
from streamjoin.scheme.tiling import UNITS, Scheme
from streamjoin.simulation.clairvoyant import Clairvoyant, least_hours_with
from streamjoin.simulation.traffic import KINDS
from streamjoin.state.blocks import axes_of, describe, encode_in_parts
from streamjoin.state.store import missing, select

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
MANIFEST = ROOT / "examples" / "scaling.yaml"
TRACES = ROOT / "examples" / "traces"
PAIRS = {
    "every pair may match": MainPredicate(MainKind.ALL, text="true"),
    "a band of 1 % of all pairs": MainPredicate(MainKind.RANGE, low=-BAND, high=BAND, text=f"abs(l.k - r.k) <= {BAND}"),
}
"""The joins: what they are called, and their main predicate."""

CHANGES = ((1, 3), (2, 3), (4, 5), (4, 6), (4, 8), (4, 2), (8, 9))
EPOCH_TUPLES = (100_000, 10_000, 1_000)
EVERY_PAIR, NARROW = PAIRS.values()
FETCHED: dict[str, tuple[str, MainPredicate]] = {
    "A-DSP, every pair": ("adsp", EVERY_PAIR),
    "A-DSP, a band of 1 %": ("adsp", NARROW),
    "A-DSP, a band of 30 %": ("adsp", MainPredicate(MainKind.RANGE, low=-KEYS // 6, high=KEYS // 6, text="a wide band")),
    "A-DSP, l.k < r.k": ("adsp", MainPredicate(MainKind.RANGE, low=1, text="l.k < r.k")),
    "A-DSP, an equality": ("adsp", MainPredicate(MainKind.RANGE, low=0, high=0, text="l.k = r.k")),
    "Square": ("square", EVERY_PAIR),
    "Bi": ("biclique", EVERY_PAIR),
}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--parts", default="tasks,moved,fetched,traces")
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
    if "fetched" in parts:
        for tuples in EPOCH_TUPLES[: 1 if arguments.quick else None]:
            print(f"\n**Bytes fetched / bytes that move, {tuples:,} tuples a side and epoch; in brackets, of whole blocks**\n")
            print(fetched(tuples, arguments.seed))
    if "traces" in parts:
        print("\n**Rules for scaling**\n")
        rules, few = scaled(arguments.days, arguments.seed, quick=arguments.quick)
        print(rules)
        print("\n**With a quarter of HPA's rescales**\n")
        print(few)


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


def fetched(tuples: int, seed: int) -> str:
    rows = []
    for name, (model, predicate) in FETCHED.items():
        rng = np.random.default_rng(seed)
        sides = [_epoch(rng, tuples) for _ in SIDES]
        held, row = statistics(tuples, tuples, predicate), [name]
        for old, new in CHANGES:
            before = plan_for_tasks(model, held, predicate, old)
            planned = follow(Plan.initial(before), plan_for_tasks(model, held, predicate, new), held, predicate)
            row.append(_fetched(before, planned.plan, sides, predicate) if planned.changed else "the plan stays")
        rows.append(row)
    return table(["", *(f"{old} -> {new}" for old, new in CHANGES)], rows)


def _epoch(rng: np.random.Generator, tuples: int) -> pa.RecordBatch:
    columns = {
        "_key": np.sort(rng.integers(0, KEYS, tuples)),
        "_unit": rng.integers(0, UNITS, tuples).astype(np.uint32),
        "_time": np.arange(tuples),
        "n": np.arange(tuples, dtype=np.int32),
    }
    return pa.record_batch(columns)


def _fetched(before: Scheme, plan: Plan, sides: list[pa.RecordBatch], predicate: MainPredicate) -> str:
    blocks, axes = [], axes_of(before, predicate)
    for side, batch in zip(SIDES, sides, strict=True):
        for index, area in enumerate(before.areas):
            own = select(batch, [region for region in written_by(area) if region.side == side])
            if own.num_rows:
                data, parts = encode_in_parts(own, axes[index])
                blocks.append(describe(own, name=f"{side}-{index}", side=side, generation=1, area=index, nbytes=data.size, parts=parts))
    moved = read = whole = 0
    for task, worker in enumerate(plan.keep):
        held = [] if worker is None else [area for area in before.areas if area.task == worker]
        needed = [area for area in plan.scheme.areas if area.task == task]
        lacking = difference(held_by(needed), held_by(held))
        moved += sum(select(batch, [region for region in lacking if region.side == side]).nbytes for side, batch in enumerate(sides))
        excerpts = missing(blocks, held, needed)
        read += sum(excerpt.nbytes for excerpt in excerpts)
        whole += sum(excerpt.block.nbytes for excerpt in excerpts)
    return f"{read / moved:.2f} ({whole / moved:.1f})"


def scaled(days: float, seed: int, *, quick: bool) -> tuple[str, str]:
    """Each traffic under each rule; and the least hours with few rescales. ``quick``: two of the traffics."""
    traffics = [(kind, ["--traffic", kind, "--days", f"{days:g}", "--seed", str(seed)]) for kind in KINDS]
    traffics += [(path.stem, ["--trace", str(path)]) for path in sorted(TRACES.glob("*.csv"))]
    if quick:
        traffics = [traffics[0], next(traffic for traffic in traffics if traffic[0] == "exchange")]
    rows, few = [], []
    for name, arguments in traffics:
        runs = {policy: simulated(policy, *arguments) for policy in Policy}
        own = [(f"`{policy}`", run["outcomes"][0]) for policy, run in runs.items()]
        last = runs[Policy.THRESHOLDS]
        others = [(one["decider"], one) for one in last["outcomes"][1:]]
        for at, (rule, one) in enumerate(own + others):
            hours, bill = one["workerHours"], one["bill"]
            least = (f"{hours / last['least']['sequenceWorkerHours']:.2f}", f"{bill / last['least']['bill']:.2f}")
            lost = f"{one['shedTuples'] / one['inputTuples']:.3%}"
            numbers = (f"{hours:,.0f}", *least, f"{one['secondsAboveTau3']:,.0f}", lost, one["rescales"], one["replans"])
            rows.append([name if at == 0 else "", rule, *numbers, f"{one['movedTuples'] / 1e6:,.1f}"])
        rescales = {one["decider"]: one["rescales"] for _, one in others}
        changes, least = rescales["HPA"] // 4, last["least"]
        bound = least_hours(changes, *arguments) / least["sequenceWorkerHours"]
        predictive = runs[Policy.PREDICTIVE]["outcomes"][0]["rescales"]
        few.append([name, rescales["HPA"], predictive, rescales["clairvoyant"], changes, f"{bound:.2f}"])
    header = ["traffic", "rule", "worker-hours", "hours / least", "bill / least", "above tau3, s", "shed", "rescales", "re-plans"]
    few_header = ["traffic", "HPA", "`predictive`", "clairvoyant", "a quarter of HPA's", "hours / least, at least"]
    return table([*header, "moved, millions"], rows), table(few_header, few)


def least_hours(changes: int, *arguments: str) -> float:
    """With so few changes, on what ``streamjoin simulate`` makes of these arguments."""
    given = streamjoin.commands["simulate"].make_context("simulate", [str(MANIFEST), *arguments]).params
    prepared = prepare(SimulateOptions(**given), compile_job(with_checkpoint(load(MANIFEST.read_text()))))
    return least_hours_with(Clairvoyant(prepared.join, prepared.traffic).need, changes, prepared.traffic.step_seconds)


def simulated(policy: Policy, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "streamjoin", "simulate", str(MANIFEST), "--policy", policy.value, "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    main()
