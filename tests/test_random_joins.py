"""Random joins of every kind on the inline runner: their results are those that DuckDB finds in all of their input.

Each set of features has cases of its own, with plans that change, drivers that die, workers that lose what they hold and epochs that fail
in between. A failure prints the seed of its case: ``STREAMJOIN_SEED=<seed> pytest tests/test_random_joins.py -k <features>`` runs that case
alone, ``STREAMJOIN_CASES`` sets how many there are.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cases import how_many, some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import SECOND, START, Far, driver_for, run_all
from random_joins import BOUNDING, SHAPES, Case, Features, Span, check_output, drawn, job_of, take_any_graph, take_any_way
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.distribution import Distribution
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.language.composite_key import MOST_KEY_SPACES
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.manifest import ManifestError
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage

SEED = os.environ.get("STREAMJOIN_SEED")
PARTS = 12


@dataclass(frozen=True)
class Suite:
    """Cases with some features, and what they must have exercised together."""

    features: Features
    cases: int
    exercised: tuple[str, ...]
    results: int


ALIKE = (("k", BOUNDING), ("k", BOUNDING), ("k", ("equal",)), None, None)
"""By which joins of a set compare the same two streams."""
TYPES = ("inner", "left", "right", "full", "semi", "anti")
OF_TYPES = tuple(f"of {kind}" for kind in TYPES)
INNER = ("inner", "inner", "inner", "semi", "anti")
"""Of three and more streams, those that come and go under one checkpoint."""
CHANGING = ("came", "went", "switches")
FAULTS = ("plans", "switches", "failed epochs")
NO_ROWS = ("time", "time", "time", "time", "unbounded")
SOME = (3, 3, 4, 4, 5)
OF_TIME = ("within", "each", "before and after", "slide", "late")
SUITES = {
    "two streams": Suite(Features(), 420, (*OF_TYPES, *OF_TIME, "rows", "each rows", "unbounded", "run again", *FAULTS), 500),
    "many streams": Suite(
        Features(streams=(2, 3, 3, 3, 4, 4, 5), windows=("time",) * 4 + ("rows", "rows", "unbounded")),
        240,
        (*SHAPES, *Distribution, *OF_TYPES, "over 2", "over 3", "over 4", "over 5", *FAULTS),
        500,
    ),
    "several joins": Suite(Features(joins=(2, 3, 4, 5), shared=ALIKE, types=TYPES), 144, ("in one order", "lie otherwise", *FAULTS), 500),
    "joins that come and go": Suite(
        Features(joins=(3, 4, 5, 6), shared=ALIKE, types=TYPES, epochs=(6, 8, 12), changes=True), 96, (*CHANGING, "plans"), 300
    ),
    "joins of some streams": Suite(
        Features(streams=SOME, joins=(2, 2, 3, 4), over="some", windows=NO_ROWS),
        96, ("over 2", "over 3", "over 4", "of left", "of anti", *FAULTS), 500,
    ),
    "joins of some streams that come and go": Suite(
        Features(streams=SOME, joins=(3, 4, 5), over="some", windows=NO_ROWS, types_of_many=INNER, epochs=(6, 8, 12), changes=True),
        96, ("over 2", "over 3", *CHANGING), 300,
    ),
    "joins over results": Suite(
        Features(streams=(4,), joins=(2, 3), over="results", windows=NO_ROWS, most=60), 108,
        ("levels 2", "levels 3", "switches"), 300
    ),
    "chain": Suite(
        Features(models=("handshake",)), 300, (*OF_TYPES, "switches", "failed epochs", "chain/tuple_blk", "chain/wave"), 300
    ),
    "several joins of a chain": Suite(
        Features(models=("handshake",), joins=(2, 3, 4), shared=ALIKE, types=TYPES), 96,
        (*OF_TYPES, "in one order", "lie otherwise", "switches", "failed epochs"), 300
    ),
}  # fmt: skip


def run_case(features: Features, seed: int, root: Path, counts: Counter[str]) -> None:
    case, rng = drawn(features, seed), random.Random(f"run of {seed}")
    with pytest.MonkeyPatch.context() as patch:
        if rng.random() < 0.6:
            take_any_way(patch, rng, counts)
        if seed % 2:
            take_any_graph(patch, random.Random(f"graphs of {seed}"), counts)
        if rng.random() < 0.5:
            patch.setattr("streamjoin.dataplane.delta_join.SENT_BYTES", 500)
        storage = rng.choice([ObjectStorage, ObjectStorage, Far])
        if storage is Far:
            patch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", 0)
        try:
            run(case, root, rng, storage, f"STREAMJOIN_SEED={seed}: {case}", counts)
        except (ManifestError, CheckpointMismatch) as error:
            if f"{MOST_KEY_SPACES} are the most" not in str(error) and "kinds of keys" not in str(error):
                raise
            counts["too many key spaces"] += 1


def run(case: Case, root: Path, rng: random.Random, storage: type[ObjectStorage], label: str, counts: Counter[str]) -> None:
    ticks = itertools.count()
    history, spans, before = dict[int, Sequence[int]](), dict[str, Span](), tuple[str, ...]()

    def between(driver: Driver) -> None:
        if driver.checkpoint.epoch >= 0:
            history[driver.checkpoint.epoch] = driver.checkpoint.input.records
        if case.model == "handshake":
            check_order(driver)

    def clock() -> float:
        """Goes on by itself, so that what is done by the clock does not depend on how busy the machine is."""
        return START / SECOND + next(ticks) / 200

    for until, joins in case.stages:
        since, job = records_of(root, case), job_of(case, root, counts, joins)
        if len(joins) > 1 and len(case.stages) == 1 and len(case.streams) == 2:
            layout = rng.choice(job.layouts)
            assert layout.main.keys or case.shared != ("k", BOUNDING), "these conditions bound the same keys"
            job = job.lying(layout)  # whichever a run would choose
            counts["in one order" if layout.main.keys else "lie otherwise"] += 1
        counts["came"] += len(set(joins) - set(before)) if before else 0
        counts["went"] += len(set(before) - set(joins))
        run_with_faults(
            elastic(job) if case.faults else job, case.inputs, root, rng, counts,
            faults=case.faults, storage=storage, until=until, between=between, clock=clock,
        )  # fmt: skip
        spans |= {name: (spans[name][0] if name in spans else since, records_of(root, case)) for name in joins}
        before = joins
    if rng.random() < 0.25:  # another driver finds nothing to do, and the same output
        counts["run again"] += 1
        assert run_all(driver_for(job, case.inputs, ObjectStorage(str(root / "state")), InlineRunner())) == [], label
    check_output(case, root, label, counts, history, spans if len(case.stages) > 1 else None)
    counts[f"levels {len(case.joins)}"] += 1
    entry = read_latest(ObjectStorage(str(root / "state")))
    if case.model == "handshake" and entry is not None:
        assert entry.checkpoint.state.blocks == ()
        assert sum(map(sum, entry.checkpoint.state.held.values())) == 0
        counts.update({name: count for name, (count, *_) in entry.checkpoint.totals.items() if name.startswith("chain/")})


def records_of(root: Path, case: Case) -> Sequence[int]:
    latest = read_latest(ObjectStorage(str(root / "state")))
    return (0,) * len(case.streams) if latest is None else latest.checkpoint.input.records


def check_order(driver: Driver) -> None:
    """Along the chain a stream's tuples lie in the order in which they came, the oldest furthest from where it comes in; each once."""
    if driver.scheme is None or not driver.checkpoint.state.held:
        return
    tasks = len(driver.checkpoint.state.held)
    for side, workers in ((LEFT, range(tasks - 1, -1, -1)), (RIGHT, range(tasks))):
        areas = [task + tasks * side for task in workers]
        parts = [block for area in areas for block in driver.checkpoint.state.blocks if (block.place, block.area) == (side, area)]
        assert all(older.unit_max < newer.unit_min for older, newer in itertools.pairwise(parts)), (side, parts)
        assert sum(block.rows for block in parts) == sum(held[side] for held in driver.checkpoint.state.held.values())


COUNTS: dict[str, list[Counter[str]]] = defaultdict(list)
"""By suite, of each of its parts that this process has run."""


@pytest.mark.parametrize("part", some(range(PARTS), of=PARTS))
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in SUITES])
def test_joins_give_what_duckdb_finds_in_all_of_their_input(name: str, part: int, tmp_path: Path) -> None:
    suite, counts = SUITES[name], Counter[str]()
    cases = how_many(suite.cases, of=3)
    seeds = range(part, cases, PARTS) if SEED is None else [int(SEED)] * (part == 0)
    run_cases(seeds, tmp_path, lambda seed, root, counts: run_case(suite.features, seed, root, counts), counts)
    COUNTS[name].append(counts)
    if SEED is None and cases >= suite.cases and len(COUNTS[name]) == PARTS:
        whole = sum(COUNTS[name], Counter())
        assert [each for each in suite.exercised if not whole[each]] == [], whole
        assert whole["results"] > suite.results * PARTS, whole
        assert whole["too many key spaces"] < cases / 4, whole
