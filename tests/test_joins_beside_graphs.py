"""Several joins of which some are over three and more streams, on the inline runner against DuckDB: each gives what it gives alone.

Random resources of three to five streams and two to four joins, each over some of the streams, by conditions, windows, types and filters of
its own, under plans that change, drivers that die, workers that lose what they hold and epochs that fail. Joins also come and go.
``STREAMJOIN_SEED=<seed> pytest tests/test_joins_beside_graphs.py`` runs one case, ``STREAMJOIN_CASES`` sets how many.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from cases import how_many, some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import Input, driver_for, join_of, late_of, make_job, output_of
from many_streams import (
    COLUMNS,
    MOST_TUPLES,
    NAMES,
    SHAPES,
    Join,
    Results,
    TimeWindow,
    column,
    compare,
    condition_of,
    expected,
    inputs_of,
    of_one,
    select_of,
    take_any_way,
    window_of,
    written,
)
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.language.composite_key import MOST_KEY_SPACES
from streamjoin.manifest import ManifestError
from streamjoin.query.catalog import Catalog
from streamjoin.query.errors import QueryError
from streamjoin.query.held import held_streams
from streamjoin.query.relation import Wanted
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import INTERCHANGEABLE
from streamjoin.state.blocks import load_all
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage

CASES = how_many(120, of=3)
SEED = os.environ.get("STREAMJOIN_SEED")
PARTS = 4
MOST_RESULTS = 3_000
TYPES = ("inner", "inner", "inner", "left", "right", "full", "semi", "anti")
"""Of joins over two streams."""
OF_MANY = ("inner", "inner", "inner", "semi", "anti")


@dataclass(frozen=True)
class Part:
    """One of the joins."""

    name: str
    join: Join
    kind: str = "inner"

    def entry(self, root: Path) -> dict[str, Any]:
        output: dict[str, Any] = {"select": [f"{term.text} AS {name}" for name, term in self.join.select.items()]}
        if self.join.kept is not None:
            output["where"] = self.join.kept.text
        window = self.join.window.manifest
        return join_of(root / self.name, name=self.name, join_type=self.kind, on=self.join.text, window=window, output=output)

    def expected(self, left_out: Collection[tuple[str, int]], most: int | None = None) -> Results:
        if self.kind == "inner" or len(self.join.names) > 2:
            return expected(self.join, left_out, most=most)
        return _of_type(self.join, self.kind, left_out)

    def check(self, root: Path, late: Collection[tuple[str, int]], label: str) -> int:
        found, want = written(output_of(root / self.name).elements()), self.expected(late)
        assert found == want, (
            f"{label}: {self.name} {self.kind}: {self.join}\nmissing {list((want - found).items())[:5]}"
            f"\nunexpected {list((found - want).items())[:5]}"
        )
        return found.total()


def _of_type(join: Join, kind: str, left_out: Collection[tuple[str, int]]) -> Results:
    """What DuckDB gives for an outer, semi or anti join of two streams."""
    types = {name: pa.int64() if name == "at" else of.arrow for name, of in COLUMNS.items()}
    with duckdb.connect(config={"threads": 1}) as database:
        for name, rows in join.rows(left_out):
            database.register("rows", pa.Table.from_pylist(rows, schema=pa.schema(types.items())))
            where = f"WHERE {join.where[name].sql.replace(f'{name}.', 'rows.')}" if name in join.where else ""
            database.execute(f"CREATE TABLE {name} AS SELECT * FROM rows {where}")
        left, right = join.names
        on = " AND ".join([*(part.sql for part in join.condition), f"({join.window.sql})"])
        select = ", ".join(f"{term.sql} AS {name}" for name, term in join.select.items())
        kept = "true" if join.kept is None else join.kept.sql
        return written(database.execute(f"SELECT {select} FROM {left} {kind.upper()} JOIN {right} ON {on} WHERE {kept}").fetchall())


@dataclass(frozen=True)
class Resource:
    """Streams with all their input, and joins over some of them."""

    whole: Join
    """Over all streams: their inputs, delays and filters."""
    parts: tuple[Part, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return self.whole.inputs

    def options(self, root: Path, model: str, parts: Sequence[Part] | None = None, **given: Any) -> dict[str, Any]:
        joins = [part.entry(root) for part in (self.parts if parts is None else parts)]
        return self.whole.options(root, joins=joins, model=model, **given)


def drawn(seed: int, *, least: int = 2) -> Resource:
    """The resource of this seed, whose joins have not too many results; the first is over three or more streams."""
    rng = random.Random(seed)
    count = rng.choice([3, 3, 4, 4, 5])
    names = tuple(rng.sample(NAMES, count))
    bounded = rng.random() < 0.8
    delays = rng.choice([(0,), (2,), (10,), (0, 2, 10), (0, 2, 10, 1000)])
    where = {name: of_one(rng, name) for name in names if rng.random() < 0.15}
    inputs, streams = inputs_of(rng, count, MOST_TUPLES[count]), tuple(rng.choice(delays) for _ in names)
    whole = Join(names, "", (), TimeWindow(None), where, {}, None, inputs, streams, "adsp", rng.randint(1, 6))
    parts: list[Part] = []
    while len(parts) < max(least, rng.choice([2, 2, 3, 4])) or {name for part in parts for name in part.join.names} < set(names):
        size = rng.randint(3, count) if not parts or rng.random() < 0.4 else 2
        part = _part(rng, f"join{len(parts)}", whole, sorted(rng.sample(names, size), key=names.index), bounded=bounded)
        if part.expected((), MOST_RESULTS + 1).total() <= MOST_RESULTS:
            parts.append(part)
    return Resource(whole, tuple(parts[:1] if least == 1 else parts))


def _part(rng: random.Random, name: str, whole: Join, over: list[str], *, bounded: bool) -> Part:
    names = tuple(over)
    shape = rng.choice(SHAPES)
    window = TimeWindow(None)
    while bounded and window.bounds is None:
        window = window_of(rng, names)
    kind = rng.choice(TYPES if len(names) == 2 else OF_MANY)
    select = select_of(rng, names)
    if kind in ("semi", "anti"):
        select = {f"{names[0]}_rid": column(names[0], "rid")}
    kept = compare(column(names[0], "v"), "<=", column(names[-1], "v")) if kind == "inner" and rng.random() < 0.25 else None
    number = [whole.names.index(each) for each in names]
    join = Join(
        names,
        shape,
        tuple(condition_of(rng, names, shape)),
        window,
        {each: term for each, term in whole.where.items() if each in names},
        select,
        kept,
        tuple(whole.inputs[each] for each in number),
        tuple(whole.delays[each] for each in number),
    )
    return Part(name, join if len(names) == 2 else join.of_type(kind, rng), kind)


def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
    resource, rng = drawn(seed), random.Random(f"run of {seed}")
    with pytest.MonkeyPatch.context() as patch:
        if rng.random() < 0.6:
            take_any_way(patch, rng, counts)
        if rng.random() < 0.5:
            patch.setattr("streamjoin.epoch.delta_join.SENT_BYTES", 500)
        try:
            job = make_job(root, **resource.options(root, rng.choice(["adsp", *INTERCHANGEABLE])))
        except ManifestError as error:
            if f"{MOST_KEY_SPACES} are the most" in str(error):
                counts["too many key spaces"] += 1
                return
            job = make_job(root, **resource.options(root, "adsp"))
        faults = rng.random() < 0.6
        run_with_faults(elastic(job) if faults else job, resource.whole.inputs, root, rng, counts, faults=faults)
    late = late_of(root)
    for part in resource.parts:
        label = f"STREAMJOIN_SEED={seed}, {'with' if faults else 'without'} faults, {job.model}"
        counts["results"] += part.check(root, late, label)
        counts[part.kind] += 1
        counts[f"{len(part.join.names)} streams"] += 1


@pytest.mark.parametrize("part", range(PARTS))
def test_joins_over_some_of_the_streams_give_each_what_it_gives_alone(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    run_cases(range(part, CASES, PARTS) if SEED is None else [int(SEED)] * (part == 0), tmp_path, run_case, counts)
    if SEED is None and CASES >= 100:
        assert counts["too many key spaces"] < CASES / PARTS / 4, counts
        assert min(counts[each] for each in ("2 streams", "3 streams", "4 streams", "left", "anti")) > 0, counts
        assert counts["results"] > 1_000, counts
        assert min(counts["plans"], counts["switches"], counts["failed epochs"]) > 0, counts


def run_changing_case(seed: int, root: Path, counts: Counter[str]) -> None:
    resource, rng = drawn(seed), random.Random(f"changes of {seed}")
    names, parts = set(resource.whole.names), list(resource.parts)
    epochs = len(resource.whole.inputs[0].epochs())
    stages = sorted(rng.sample(range(1, epochs), min(epochs - 1, rng.choice([1, 2, 3]))))
    spans: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {part.name: [] for part in parts}
    faults = rng.random() < 0.5
    before: list[str] = []
    for until in [*stages, None]:
        now = records_of(root, len(names))
        # A join that has gone does not come again, and one at least stays: a single one in the place of another would be that, changed.
        there = [part for part in parts if part.name in before]
        others = [part for part in parts if not spans[part.name]]
        chosen: list[Part] = []
        for _ in range(20):
            chosen = rng.sample(there, rng.randint(min(1, len(there)), len(there))) + rng.sample(others, rng.randint(0, len(others)))
            if covers(chosen, names):
                break
        else:
            chosen = there or parts
        rng.shuffle(chosen)
        counts["came"] += len([part for part in chosen if before and part.name not in before])
        counts["went"] += len([name for name in before if name not in [part.name for part in chosen]])
        try:
            job = make_job(root, **resource.options(root, "adsp", chosen))
        except ManifestError as error:
            if f"{MOST_KEY_SPACES} are the most" not in str(error):
                raise
            return
        try:
            run_with_faults(elastic(job) if faults else job, resource.whole.inputs, root, rng, counts, faults=faults, until=until)
        except CheckpointMismatch as error:
            if "kinds of keys" not in str(error):
                raise
            counts["too many key spaces"] += 1
            return
        for part in chosen:
            if part.name in before:
                spans[part.name][-1] = (spans[part.name][-1][0], records_of(root, len(names)))
            else:
                spans[part.name].append((now, records_of(root, len(names))))
        before = [part.name for part in chosen]
    late = late_of(root)
    for part in parts:
        for (since, end), of_part in ((span, part) for span in spans[part.name][:1]):
            absent = {
                (name, rid)
                for name, first, last, one in zip(resource.whole.names, since, end, resource.whole.inputs, strict=True)
                for rid in range(sum(batch.num_rows for batch in one.batches))
                if not first <= rid < last
            }
            if of_part.kind != "inner" and of_part.name not in before:
                continue  # what had found no match yet when the join went is not known to have none
            counts["results"] += of_part.check(root, late | absent, f"STREAMJOIN_SEED={seed}, of records {since} to {end}")
            counts[f"{len(part.join.names)} streams"] += 1


def covers(parts: Sequence[Part], names: set[str]) -> bool:
    """Whether each stream is in a join, and in the only one, if there is one."""
    over = [set(part.join.names) for part in parts]
    return (len(over) > 1 and set().union(*over) == names) or over == [names]


def records_of(root: Path, streams: int) -> tuple[int, ...]:
    latest = read_latest(ObjectStorage(str(root / "state")))
    return (0,) * streams if latest is None else latest.checkpoint.input.records


@pytest.mark.parametrize("part", some(range(4), of=2))
def test_joins_over_some_of_the_streams_come_and_go(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    run_cases(range(part, CASES, 4) if SEED is None else [int(SEED)] * (part == 0), tmp_path, run_changing_case, counts)
    if SEED is None and CASES >= 100:
        assert min(counts[each] for each in ("came", "went", "2 streams", "3 streams", "switches")) > 0, counts
        assert counts["results"] > 500, counts


def test_a_join_that_has_keys_of_its_own_goes_and_tuples_lie_by_fewer(tmp_path: Path) -> None:
    """Workers are not counted by places that are no more, before the first epoch without the join."""
    resources = (resource for resource in map(drawn, itertools.count()) if len(resource.inputs[0].epochs()) > 6)
    resource = next(each for each in resources if len(each.parts[0].join.names) == len(each.whole.names) and len(each.parts) > 1)
    for parts, epochs in ((resource.parts, 3), (resource.parts[:1], 2)):
        job = make_job(tmp_path, **resource.options(tmp_path, "adsp", parts))
        driver = driver_for(job, resource.inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
        driver.start()
        done = [driver.step(final=len(parts) == 1) for _ in range(epochs)]
        driver.stop()
    assert any(done)
    assert {len(held) for held in driver.checkpoint.state.held.values()} == {len(driver.job.places)}


@pytest.mark.parametrize("seed", some(range(12), of=3))
def test_a_query_gives_each_held_tuple_once_however_many_joins_hold_it(seed: int, tmp_path: Path) -> None:
    """A tuple is held as long as a join over its stream, in which it has all keys, may still find it."""
    resource = drawn(seed)
    job = make_job(tmp_path, **resource.options(tmp_path, "adsp"))
    driver = driver_for(job, resource.whole.inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    driver.start()
    for _ in range(4):
        driver.step(final=False)
    checkpoint = read_latest(ObjectStorage(str(tmp_path / "state"))).checkpoint
    blocks = list(zip(checkpoint.state.blocks, load_all(ObjectStorage(str(tmp_path / "state")), checkpoint.state.blocks), strict=True))
    for number, stream in enumerate(held_streams(Catalog.of(job), checkpoint, ObjectStorage(str(tmp_path / "state")))):
        if "rid" not in driver.job.streams[number].payload:
            continue  # no result has it
        held = set()
        for block, batch in blocks:
            if driver.job.places[block.place].stream == number:
                bound = checkpoint.state.expired[block.place]
                times = batch.column("_time").to_pylist() if bound is not None else [0] * batch.num_rows
                held |= {rid for rid, at in zip(batch.column("rid").to_pylist(), times, strict=True) if bound is None or at >= bound}
        try:
            rows = stream.read(Wanted(("rid",)), 1 << 30, lambda: None)
        except QueryError as error:
            if "its tuples are held by several keys" not in str(error):
                raise
            continue
        with duckdb.connect() as database:
            database.register("rows", rows.table)
            found = database.execute(f"SELECT rid FROM rows WHERE {rows.where or 'true'} ORDER BY rid").fetchall()
        assert [rid for (rid,) in found] == sorted(held)
