"""Joins of two to five streams on the inline runner: their results are those that DuckDB selects of all tuples.

Random conditions, windows, filters, arrival orders, models and ways in which the streams meet, under plans that change, drivers that die,
workers that lose what they hold and epochs that fail in between. Each case is made from one seed, which a failure prints:
``STREAMJOIN_SEED=<seed> pytest tests/test_many_streams.py`` runs that case alone. ``STREAMJOIN_CASES`` sets how many there are.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from cases import how_many, some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import SECOND, START, Input, driver_for, late_of, make_job, output_of, run_all, staged_of
from many_streams import (
    SHAPES,
    Join,
    TimeWindow,
    batch_of,
    column,
    compare,
    drawn,
    expected,
    expected_by_hand,
    moment,
    take_any_way,
    written,
)
from operator_parts import streamjoin, three_streams
from streamjoin.compilation import compile_job, with_checkpoint
from streamjoin.elastic.distribution import Distribution
from streamjoin.epoch.fingerprint import fingerprint, join_changes
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.job import Job
from streamjoin.manifest import ManifestError
from streamjoin.manifest.validate import load
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.storage import ObjectStorage

CASES = how_many(200)
SEED = os.environ.get("STREAMJOIN_SEED")
PARTS = 8


def job_of(join: Join, root: Path, counts: Counter[str]) -> Job:
    """The join's job, on A-DSP where its own model cannot cut what the condition compares."""
    try:
        return make_job(root, **join.options(root))
    except ManifestError as error:
        if {problem.field for problem in error.problems} != {"spec.scheme.model"}:
            raise
        counts["other model"] += 1
        return make_job(root, **join.options(root, model="adsp"))


class Far(ObjectStorage):
    """A directory from which nothing is mapped: blocks are fetched, as from an object store."""

    def local_path(self, path: str) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return Far, (self.url,)


def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
    rng = random.Random(f"run of {seed}")
    with pytest.MonkeyPatch.context() as patch:
        if rng.random() < 0.6:
            take_any_way(patch, rng, counts)
        if rng.random() < 0.5:
            patch.setattr("streamjoin.epoch.delta_join.SENT_BYTES", 500)
        storage = rng.choice([ObjectStorage, ObjectStorage, Far])
        if storage is Far:
            patch.setattr("streamjoin.epoch.planning.SMALL_BYTES", 0)
        compare_with_the_oracle(seed, root, rng, storage, counts)


def compare_with_the_oracle(seed: int, root: Path, rng: random.Random, storage: type[ObjectStorage], counts: Counter[str]) -> None:
    join = drawn(seed).of_type(rng.choice(["inner"] * 3 + ["semi", "anti"]), rng)
    counts[join.kind] += 1
    job, faults = job_of(join, root, counts), rng.random() < 0.6
    counts[join.shape] += 1
    counts[f"{len(join.names)} streams"] += 1
    run_with_faults(elastic(job) if faults else job, join.inputs, root, rng, counts, faults=faults, storage=storage)
    check_output(join, root, f"STREAMJOIN_SEED={seed}, {'with' if faults else 'without'} faults: {join}", counts)


def check_output(join: Join, root: Path, label: str, counts: Counter[str]) -> None:
    """The join has had all of its input: its late tuples may be late, and its results are those of all others."""
    late, surely, possibly = late_of(root), join.late(), join.late(sooner=True)
    taken = {(name, row["rid"]) for name, rows in join.rows(()) for row in rows if join.takes(name, row)}
    assert surely & taken <= late <= possibly & taken, f"{label}: late were {late}"
    found, want = written(output_of(root).elements()), expected(join, late)
    assert found == want, f"{label}\nmissing {list((want - found).items())[:5]}\nunexpected {list((found - want).items())[:5]}"
    assert staged_of(root) == [], label
    counts["late"] += len(late)
    counts["results"] += found.total()


@pytest.mark.parametrize("part", some(range(PARTS), of=4))
def test_a_join_of_several_streams_gives_what_the_oracle_selects(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    run_cases(range(part, CASES, PARTS) if SEED is None else [int(SEED)] * (part == 0), tmp_path, run_case, counts)
    if SEED is None and CASES >= 200:
        assert min(counts[distribution] for distribution in Distribution) > 0, counts
        kinds = ("inner", "semi", "anti")
        assert min(counts[each] for each in (*SHAPES, *kinds, "2 streams", "3 streams", "4 streams", "5 streams")) > 0, counts
        assert counts["results"] > 1_000, counts
        assert min(counts["plans"], counts["switches"], counts["failed epochs"], counts["late"]) > 0, counts


@pytest.mark.parametrize("kind", ["semi", "anti"])
def test_tuples_may_lie_in_more_places_than_the_manifest_alone_says(kind: str, tmp_path: Path) -> None:
    """A sample of the first input chooses among the graphs of a condition, which hold tuples by different numbers of keys."""
    join = drawn(20).of_type(kind, random.Random(kind))
    job = make_job(tmp_path, **join.options(tmp_path, model="adsp", workers=2))
    driver = driver_for(job, join.inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    run_all(driver)
    assert len(driver.job.places) > len(job.places)
    check_output(join, tmp_path, str(join), Counter())


@pytest.mark.parametrize("streams", [2, 3, 4, 5])
def test_the_oracle_selects_what_python_finds_in_the_product_of_all_streams(streams: int) -> None:
    total = 0
    for seed in range(12):
        join = drawn(seed, streams=streams, most_tuples={2: 60, 3: 20, 4: 10, 5: 6}[streams])
        join = join.of_type(("inner", "semi", "anti")[seed % 3], random.Random(seed))
        late = join.late()
        found, want = expected(join, late), expected_by_hand(join, late)
        assert found == want, f"seed {seed}: {join}\nmissing {want - found}\nunexpected {found - want}"
        total += found.total()
    assert total > 30


@pytest.mark.parametrize(
    ("bounds", "times", "holds"),
    [
        ((9, 4, 1), (0, 5, 9), True),
        ((8, 9, 9), (0, 5, 9), False),
        ((9, 3, 9), (0, 5, 9), False),
        ((0, 9, 8), (9, 0, 1), True),
        ((9, 9, 8), (9, 0, 0), False),
        ((0, 0, 1), (4, 4, 4), True),
        ((0, 5, 5), (3, 4, 4), False),
    ],
)
def test_no_member_of_a_result_is_older_than_the_newest_by_more_than_its_streams_window(
    bounds: tuple[int, ...], times: tuple[int, ...], holds: bool, tmp_path: Path
) -> None:
    """In whatever order the three arrive, one in each epoch, or all in one."""
    names = "abc"
    condition = tuple(compare(column(one, "n"), "=", column(other, "n")) for one, other in ("ab", "bc"))
    window, select = TimeWindow(dict(zip(names, bounds, strict=True))), {f"{name}_rid": column(name, "rid") for name in names}
    arrivals = [*itertools.permutations(range(3)), (0, 0, 0)]
    for number, epochs in enumerate(arrivals):
        inputs = tuple(one_tuple(epoch, START + second * SECOND) for epoch, second in zip(epochs, times, strict=True))
        join, root = Join(tuple(names), "chain", condition, window, {}, select, None, inputs, (0, 0, 0)), tmp_path / str(number)
        job = make_job(root, **join.options(root))
        run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner()))
        assert output_of(root) == Counter([(0, 0, 0)] if holds else []), f"arrived in epochs {epochs}"
        assert expected(join) == expected_by_hand(join) == written(output_of(root).elements())


def one_tuple(epoch: int, at: int) -> Input:
    """A stream whose only tuple comes in one of three epochs."""
    return Input([batch_of([(0, 1, 0, moment(at), 0.0, "")])], [int(number == epoch) for number in range(3)])


def test_streams_may_not_come_or_go_under_a_checkpoint() -> None:
    two, three = (compile_job(with_checkpoint(load(yaml.safe_dump(streamjoin(**spec))))) for spec in ({}, three_streams()))
    cases = (two, three, "orders, payments, shipments differ from orders, payments,"), (three, two, "orders, payments differ from orders,")
    for before, now, names in cases:
        checkpoint = Checkpoint(fingerprint=fingerprint(before))
        with pytest.raises(CheckpointMismatch, match=f"spec.streams: {names}"):
            join_changes(now, checkpoint, "s3://here")
    assert fingerprint(three)["spec.joins[0].window"] == "each orders 180000000 us, payments 60000000 us, shipments 30000000 us"
