"""Blocks in parts: they are read back whole, or as far as a range of keys or of unit coordinates needs it, and no more is fetched.

The bytes that a change of plans fetches are counted where they leave the store, and compared with the tuples that the plan says move.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from cases import how_many
from harness import SECOND, START, Input, driver_for, make_job, output_of, run_all
from joins import band_expected, band_options, make_inputs
from s3 import S3Server
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import follow
from streamjoin.epoch.ports import EpochFailed
from streamjoin.io.base import SinkError, Staged
from streamjoin.io.outbox import OutboxWriter, data_of
from streamjoin.kernel.run import Run
from streamjoin.language.predicate import MainKind, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.scheme.region import Region
from streamjoin.scheme.routing import Router
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics
from streamjoin.scheme.tiling import UNITS, Area, KeyRange, Scheme, UnitRange
from streamjoin.state.blocks import Axes, Block, Excerpt, axes_of, checks_of, describe, encode, encode_in_parts, load, load_excerpt
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.extent import Segment, read_extents
from streamjoin.state.log import Entry
from streamjoin.state.storage import ObjectStorage, StorageError
from streamjoin.state.store import HeldRun, RunStore, missing, read_back, select

TUPLE_BYTES = 24
ALL = MainPredicate(MainKind.ALL, text="true")
EQUAL = MainPredicate(MainKind.RANGE, low=0, high=0, text="l.k = r.k")
KEYS = 1_000_000
BAND = MainPredicate(MainKind.RANGE, low=-KEYS // 200, high=KEYS // 200, text="a band of 1 % of all pairs")
WIDE = MainPredicate(MainKind.RANGE, low=-KEYS // 6, high=KEYS // 6, text="a band of 30 % of all pairs")
EVERYTHING = (KeyRange(), UnitRange())


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every answer to a read of a block."""
    sizes: list[int] = []
    get, get_ranges = ObjectStorage.get, ObjectStorage.get_ranges

    def counted(self: ObjectStorage, path: str) -> bytes:
        found = get(self, path)
        sizes.append(len(found) if path.startswith("blocks/") else 0)
        return found

    def ranges_counted(self: ObjectStorage, path: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        found = get_ranges(self, path, ranges)
        sizes.append(sum(map(len, found)))
        return found

    monkeypatch.setattr(ObjectStorage, "get", counted)
    monkeypatch.setattr(ObjectStorage, "get_ranges", ranges_counted)
    return sizes


def tuples(rng: np.random.Generator, rows: int, kind: str = "int", *, wide: bool = False) -> pa.RecordBatch:
    """Sorted by key. 24 bytes each, or ``wide`` ones with nulls and strings."""
    keys = {
        "int": lambda: rng.integers(0, KEYS, rows),
        "hash": lambda: rng.integers(-(2**63), 2**63 - 1, rows),
        "float": lambda: rng.normal(0, 1, rows),
        "few": lambda: rng.integers(0, 5, rows) ** 3,
    }[kind]()
    columns: dict[str, Any] = {
        "_key": np.sort(keys),
        "_unit": rng.integers(0, UNITS, rows).astype(np.uint32),
        "_time": np.arange(rows),
        "n": np.arange(rows, dtype=np.int32),
    }
    if wide:
        some = random.Random(rows)
        columns["text"] = [None if some.random() < 0.1 else "x" * some.randint(0, 40) for _ in range(rows)]
        columns["flag"] = [some.choice([None, True, False]) for _ in range(rows)]
    return pa.record_batch(columns)


def put(storage: ObjectStorage, name: str, batch: pa.RecordBatch, axes: Axes, *, side: int = LEFT, area: int = 0) -> Block:
    data, parts = encode_in_parts(batch, axes)
    storage.put(name, memoryview(data))
    checks = checks_of(data, parts)
    return describe(batch, name=name, place=side, generation=1, area=area, nbytes=data.size, parts=parts, checks=checks)


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in batch.columns), strict=True), key=repr)


def inside(batch: pa.RecordBatch, regions: Sequence[Region]) -> list[tuple[Any, ...]]:
    """The oracle: one comparison after the other."""
    chosen = [
        row
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        if any(
            (region.keys.low is None or row[0] >= region.keys.low)
            and (region.keys.high is None or row[0] < region.keys.high)
            and any(low <= row[1] < high for low, high in region.units.parts)
            for region in regions
        )
    ]
    return sorted(chosen, key=repr)


def some_regions(rng: np.random.Generator, batch: pa.RecordBatch) -> list[Region]:
    """One to three disjoint ones, with bounds that tuples lie on as well as any others."""
    key = batch.column("_key").to_numpy()
    bounds = sorted({*rng.choice(key, 4).tolist(), key[0].item(), key[-1].item() + 1})
    found = []
    for low, high in list(itertools.pairwise(bounds))[:: int(rng.integers(1, 3))]:
        units = sorted(rng.integers(0, UNITS, 2).tolist())
        keys = KeyRange(None if rng.random() < 0.1 and not found else low, high)
        found.append(Region(LEFT, keys, UnitRange(units[0], units[1] + 1) if rng.random() < 0.6 else UnitRange()))
    return found


AXES = [Axes(keys=True, units=False), Axes(keys=False, units=True), Axes(keys=True, units=True)]


@pytest.mark.parametrize("axes", AXES, ids=["keys", "units", "both"])
@pytest.mark.parametrize("kind", ["int", "hash", "float", "few"])
def test_an_excerpt_has_every_tuple_of_its_regions_and_is_one_sorted_run(axes: Axes, kind: str, s3: S3Server) -> None:
    storage, rng = ObjectStorage(str(s3.bucket())), np.random.default_rng(1)
    for number, rows in enumerate((3000, 700, 20_000)):
        batch = tuples(rng, rows, kind, wide=rows < 5000)
        block = put(storage, f"blocks/{number}", batch, axes)
        assert block == Block.from_json(json.loads(json.dumps(block.to_json())))
        whole = load(storage, block)
        Run.of(whole).check()
        assert rows_of(whole) == rows_of(batch)
        for _ in range(how_many(6, of=2)):
            regions = some_regions(rng, batch)
            excerpt = block.excerpt(regions)
            expected = inside(batch, regions)
            if excerpt is None:
                assert not expected
                continue
            read = load_excerpt(storage, excerpt)
            Run.of(read).check()
            assert rows_of(select(read, regions)) == expected, f"{kind}, {rows} rows, {regions}"
            assert block.excerpt([Region(RIGHT, *EVERYTHING)]) is None


def test_each_part_is_a_range_of_the_file_that_arrow_reads_by_itself() -> None:
    batch = tuples(np.random.default_rng(2), 20_000)
    for axes in AXES:
        data, parts = encode_in_parts(batch, axes)
        assert parts is not None
        with ipc.open_file(data) as reader:
            assert reader.read_all().num_rows == batch.num_rows
        spans = [parts.span(number) for number in range(len(parts.ends) - 1)]
        found = [ipc.read_record_batch(data.slice(start, end - start), batch.schema) for start, end in spans if start < end]
        assert sum(part.num_rows for part in found) == batch.num_rows
        assert max(end - start for start, end in spans) < 0.1 * batch.nbytes


def test_a_small_block_is_one_part_and_its_record_as_short_as_ever() -> None:
    batch = tuples(np.random.default_rng(3), 600)
    for axes in AXES:
        data, parts = encode_in_parts(batch, axes)
        assert parts is None
        assert data.equals(encode(batch))
    block = describe(batch, name="b", place=LEFT, generation=1, area=0, nbytes=data.size)
    assert len(block.to_json()) == len(dataclasses.fields(Block)) - 4


def test_the_record_of_a_large_block_stays_short() -> None:
    for kind, axes, most in (("hash", AXES[0], 2000), ("int", AXES[0], 1100), ("int", AXES[1], 1000), ("int", AXES[2], 2000)):
        batch = tuples(np.random.default_rng(4), 200_000, kind)
        _, parts = encode_in_parts(batch, axes)
        assert parts is not None
        assert len(json.dumps(parts.to_json(), separators=(",", ":"))) < most


def test_blocks_that_were_written_as_one_part_are_read(s3: S3Server, tmp_path: Path) -> None:
    batch, regions = tuples(np.random.default_rng(5), 20_000), [Region(LEFT, KeyRange(10, 5000), UnitRange())]
    for storage in (ObjectStorage(str(s3.bucket())), ObjectStorage(str(tmp_path))):
        data = encode(batch)
        storage.put("blocks/old", memoryview(data))
        old = describe(batch, name="blocks/old", place=LEFT, generation=1, area=0, nbytes=data.size)
        excerpt = Block.from_json(old.to_json()).excerpt(regions)
        assert excerpt == Excerpt(old, (0,))
        assert rows_of(select(load_excerpt(storage, excerpt), regions)) == inside(batch, regions)


def test_blocks_in_parts_that_were_copied_to_a_file_system_are_read(tmp_path: Path) -> None:
    storage, batch = ObjectStorage(str(tmp_path)), tuples(np.random.default_rng(6), 20_000)
    block = put(storage, "blocks/copied", batch, AXES[1])
    excerpt = block.excerpt([Region(LEFT, KeyRange(), UnitRange(0, UNITS // 7))])
    assert excerpt is not None
    assert rows_of(load_excerpt(storage, excerpt)) == rows_of(load(storage, block)) == rows_of(batch)


def test_neighbouring_parts_come_in_one_request_and_the_schema_with_them(s3: S3Server) -> None:
    storage = ObjectStorage(str(s3.bucket()))
    block = put(storage, "blocks/b", tuples(np.random.default_rng(7), 50_000), AXES[1])
    for units, requests in ((UnitRange(), 1), (UnitRange(0, UNITS // 3), 1), (UnitRange(UNITS // 3, UNITS // 2), 2)):
        excerpt = block.excerpt([Region(LEFT, KeyRange(), units)])
        assert excerpt is not None
        s3.requests.clear()
        load_excerpt(storage, excerpt)
        assert len(s3.requests) == requests


def test_requests_for_ranges_are_repeated_and_what_is_gone_or_cut_short_is_named(s3: S3Server) -> None:
    storage = ObjectStorage(str(s3.bucket()))
    batch = tuples(np.random.default_rng(8), 50_000)
    block = put(storage, "blocks/b", batch, AXES[1])
    excerpt = block.excerpt([Region(LEFT, KeyRange(), UnitRange(UNITS // 3, UNITS // 2))])
    assert excerpt is not None
    expected = rows_of(load_excerpt(storage, excerpt))
    with s3.faulty(0.25, seed=1):
        for _ in range(8):
            assert rows_of(load_excerpt(storage, excerpt)) == expected
        assert s3.faults() > 3
    storage.put(block.name, storage.get(block.name)[: block.nbytes // 3])
    with pytest.raises(StorageError, match="blocks/b: ends before byte"):
        load_excerpt(storage, excerpt)
    storage.put(block.name, bytes(block.nbytes))
    with pytest.raises(StorageError, match=r"blocks/b: the block that the last commit names cannot be read"):
        load_excerpt(storage, excerpt)
    storage.delete(block.name)
    with pytest.raises(StorageError, match=r"blocks/b: the block .* cannot be read .*restore it"):
        load_excerpt(storage, excerpt)


@pytest.mark.parametrize("seed", range(4))
def test_any_byte_that_was_changed_is_noticed_by_who_reads_it(seed: int, s3: S3Server, tmp_path: Path) -> None:
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    batch = tuples(rng, draw.choice([50, 20_000]), wide=True)
    regions = [Region(LEFT, KeyRange(0, KEYS // 3), UnitRange(0, UNITS // 2))]
    for storage in (ObjectStorage(str(tmp_path)), ObjectStorage(str(s3.bucket()))):
        block = put(storage, "blocks/b", batch, AXES[2])
        excerpt = Block.from_json(json.loads(json.dumps(block.to_json()))).excerpt(regions)
        assert excerpt is not None
        data = bytearray(storage.get("blocks/b"))
        at = draw.randrange(len(data))
        data[at] ^= 1 << draw.randrange(8)
        storage.put("blocks/b", bytes(data))
        named = r"blocks/b: the block .* cannot be read \(its bytes (\d+) to (\d+) are not those that were written\); restore it"
        with pytest.raises(StorageError, match=named) as raised:
            load(storage, block)
        start, end = map(int, re.findall(r"bytes (\d+) to (\d+)", str(raised.value))[0])
        assert start <= at < end, f"seed {seed}"
        read = [(0, block.nbytes)] if block.parts is None else [(0, block.parts.ends[0]), *map(block.parts.span, excerpt.parts)]
        if any(low <= at < high for low, high in read) or storage.local_path("blocks") is not None:
            with pytest.raises(StorageError, match=named):
                load_excerpt(storage, excerpt)
        else:
            assert rows_of(select(load_excerpt(storage, excerpt), regions)) == inside(batch, regions), f"seed {seed}: what it has not read"


def test_state_that_a_disk_has_changed_ends_the_join_and_restored_it_goes_on(tmp_path: Path) -> None:
    """500 wrong and 4,983 missing results, and no word of it, were the price of a few bytes."""
    inputs = make_inputs(pa.int64(), list(range(40)), seed=3, epochs=6)
    job = make_job(tmp_path, **band_options())
    storage = ObjectStorage(job.checkpoint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", 0)  # every block is a file
        driver = driver_for(job, inputs, storage, InlineRunner())
        driver.start()
        for _ in range(3):
            driver.step()
        [first, *_] = sorted((tmp_path / "state" / "blocks").iterdir())
        good = first.read_bytes()
        for at in (len(good) // 2, len(good) - 1):
            first.write_bytes(good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])
            broken = driver_for(job, inputs, storage, InlineRunner())
            broken.start()
            with pytest.raises(EpochFailed, match=rf"blocks/{first.name}: the block .* are not those that were written"):
                broken.step()
        first.write_bytes(good)
        run_all(driver_for(job, inputs, storage, InlineRunner()))
    assert output_of(tmp_path) == band_expected(inputs)


def test_what_was_fetched_of_a_block_serves_whoever_needs_no_more_of_it(s3: S3Server, fetched: list[int]) -> None:
    storage = ObjectStorage(str(s3.bucket()))
    batch = tuples(np.random.default_rng(9), 50_000)
    block = put(storage, "blocks/b", batch, AXES[1])
    third, half = (
        Area(0, 0, (KeyRange(), KeyRange()), (UnitRange(0, UNITS // part), UnitRange()), (None, None), (True, False)) for part in (3, 2)
    )
    store = RunStore()
    store.fetch(storage, missing([block], [], [half]))
    wait(store._fetching.values())
    before = sum(fetched)
    for area, again in ((third, False), (half, False), (dataclasses.replace(half, units=(UnitRange(), UnitRange())), True)):
        gathered = read_back(storage, [block], {0: area}, 1, (None, None), fetched=store.fetched())
        found = [row for held in gathered.runs[0, LEFT] for row in rows_of(held.run.batch)]
        assert sorted(found, key=repr) == inside(batch, [Region(LEFT, KeyRange(), area.units[LEFT])])
        assert (sum(fetched) > before) is again


CASES = {
    "adsp, all pairs": ("adsp", ALL, None, 1.1),
    "adsp, band": ("adsp", BAND, "int", 1.1),
    "adsp, wide band": ("adsp", WIDE, "int", 1.4),
    "adsp, equality": ("adsp", EQUAL, "hash", 1.1),
    "hash, wide band": ("hash", WIDE, "int", 1.1),
    "square": ("square", ALL, None, 1.1),
    "biclique": ("biclique", ALL, None, 1.1),
}
"""Model, main predicate, kind of keys, and how many times the bytes of what moves may be fetched: a wide band is cut along both axes."""
CHANGES = [(2, 3), (4, 5), (4, 6), (4, 8), (4, 2)]
EPOCHS, EPOCH_TUPLES = 2, 100_000
"""Of each side. The share that is fetched depends on the size of blocks, hardly on their number."""


@pytest.mark.parametrize("case", CASES)
def test_a_change_of_plans_fetches_little_more_than_moves(case: str, s3: S3Server, fetched: list[int]) -> None:
    model, main, kind, most = CASES[case]
    rng, ratios = np.random.default_rng(10), {}
    sides = [[tuples(rng, EPOCH_TUPLES, kind or "int") for _ in range(EPOCHS)] for _ in SIDES]
    for old, new in CHANGES:
        moved, fetched_bytes = change(model, main, kind, old, new, sides, s3, fetched)
        if moved:
            ratios[old, new] = fetched_bytes / (moved * TUPLE_BYTES)
    assert len(ratios) >= 4
    assert max(ratios.values()) <= most, ratios


def change(
    model: str,
    main: MainPredicate,
    kind: str | None,
    old: int,
    new: int,
    sides: Sequence[Sequence[pa.RecordBatch]],
    s3: S3Server,
    fetched: list[int],
) -> tuple[int, int]:
    """The tuples that move from one plan to the next, and the bytes that are fetched for them. What is held then is checked."""
    storage = ObjectStorage(str(s3.bucket()))
    histograms = [None if kind is None else Histogram.from_sample(side[0].column("_key").to_numpy()[::10]) for side in sides]
    statistics = Statistics(tuple(SideStatistics(EPOCHS * EPOCH_TUPLES, histogram) for histogram in histograms))
    current = Plan.initial(plan_for_tasks(model, statistics, main, old))
    planned = follow(current, plan_for_tasks(model, statistics, main, new), statistics, main)
    if not planned.changed:
        return 0, 0
    before, after = current.scheme, planned.plan.scheme
    stored = stored_under(before, sides, storage, main)
    moved, fetched_bytes = 0, 0
    for task, worker in enumerate(planned.plan.keep):
        areas = {index: area for index, area in enumerate(after.areas) if area.task == task}
        held = [] if worker is None else [area for area in before.areas if area.task == worker]
        here = [(area, {side: runs_of(area, side, sides[side]) for side in SIDES}) for area in held]
        store, begun = RunStore(), len(fetched)
        wanted = missing(stored, held, areas.values())
        store.fetch(storage, wanted)
        wait(store._fetching.values())
        assert sum(fetched[begun:]) == sum(excerpt.nbytes for excerpt in wanted)
        gathered = read_back(storage, stored, areas, 2, (None, None), here=here, fetched=store.fetched())
        moved += gathered.read
        fetched_bytes += sum(fetched[begun:])
        for (index, side), runs in gathered.runs.items():
            needed = sum(part_of(areas[index], side, batch).num_rows for batch in sides[side])
            assert sum(held.run.rows for held in runs) == needed, f"{model}, {old} to {new}, task {task}"
    assert moved == pytest.approx(planned.migration.moved_tuples, rel=0.02)
    return moved, fetched_bytes


def stored_under(scheme: Scheme, sides: Sequence[Sequence[pa.RecordBatch]], storage: ObjectStorage, main: MainPredicate) -> list[Block]:
    """Every epoch's blocks, as the tasks of the scheme write them."""
    found, axes = [], axes_of(scheme, main)
    for side, epochs in enumerate(sides):
        for epoch, batch in enumerate(epochs):
            for index, area in enumerate(scheme.areas):
                keys = area.writes[side]
                if keys is not None:
                    own = select(batch, [Region(side, keys, UnitRange(*part)) for part in area.units[side].parts])
                    found.append(put(storage, f"blocks/{side}-{epoch}-{index}", own, axes[index], side=side, area=index))
    return found


def runs_of(area: Area, side: int, batches: Sequence[pa.RecordBatch]) -> tuple[HeldRun, ...]:
    return tuple(HeldRun(Run.of(part_of(area, side, batch))) for batch in batches)


def part_of(area: Area, side: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """What routing sends to the area, of what it holds."""
    if not area.holds[side]:
        return batch.slice(0, 0)
    lone = Scheme("adsp", 1, (dataclasses.replace(area, task=0, writes=(None, None)),), "")
    by_area: dict[int, pa.RecordBatch] = defaultdict(lambda: batch.slice(0, 0))
    for index, rows in Router(lone, side).route(batch.column("_key").to_numpy(), batch.column("_unit").to_numpy()):
        by_area[index] = batch.slice(rows.start, rows.stop - rows.start) if isinstance(rows, slice) else batch.take(pa.array(rows))
    return by_area[0]


@pytest.mark.parametrize("ahead", [True, False], ids=["fetched ahead", "read when the plan begins"])
def test_a_running_join_fetches_little_more_than_it_moves(
    ahead: bool, s3: S3Server, fetched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if ahead:
        monkeypatch.setattr("streamjoin.controlplane.replan.SMALL_BYTES", 0)
    root, rows, epochs = s3.bucket(), 100_000, 10
    rng = np.random.default_rng(11)

    def one() -> Input:
        batches = []
        for epoch in range(epochs):
            count = rows if epoch < 2 else 1
            numbers = np.arange(count) + epoch * rows
            at = pa.array(START + epoch * SECOND + numbers % SECOND, pa.timestamp("us", "UTC"))
            keys, values = rng.integers(0, KEYS, count), numbers.astype(np.int32)
            batches.append(pa.record_batch({"rid": numbers, "k": keys, "v": values, "at": at}))
        return Input(batches, [1] * epochs)

    job = make_job(root, on="l.k = r.k", types=("BIGINT", "BIGINT"), window={"within": "1h"}, workers=4)
    inputs, storage = (one(), one()), ObjectStorage(str(root / "state"))
    driver = driver_for(dataclasses.replace(job, max_workers=5), inputs, storage, InlineRunner())
    driver.start()
    for _ in range(2):
        driver.step()
    for tasks in (4, 5):
        switch(driver, tasks, storage, fetched)
    while driver.step(final=True) is not None:
        pass
    left, right = (
        pa.table({"k": np.concatenate([batch["k"] for batch in one.batches])}).group_by("k").aggregate([("k", "count")]) for one in inputs
    )
    matches = left.join(right, "k", right_suffix="_right", join_type="inner")
    assert sum(output_of(root).values()) == int(np.dot(matches["k_count"], matches["k_count_right"]))


def switch(driver: Driver, tasks: int, storage: ObjectStorage, fetched: list[int]) -> None:
    status = driver.plan_status()
    assert status is not None
    assert driver.layout is not None
    running = Plan(status.generation, status.scheme, tuple(range(status.scheme.tasks)))
    found, main = driver.statistics(), driver.layout.main
    planned = follow(running, plan_for_tasks("adsp", found, main, tasks), found, main)
    assert driver.put_plan(planned.plan)
    fetched.clear()
    while driver.checkpoint.plan.generation < planned.plan.generation:
        assert driver.step() is not None
        for store in driver._runner._stores.values():  # type: ignore[attr-defined]
            wait(store._fetching.values())
    fetched_bytes, switched = sum(fetched), driver.plan_status().switched  # type: ignore[union-attr]
    assert switched is not None
    assert switched.moved_tuples == pytest.approx(planned.migration.moved_tuples, rel=0.05)
    tuple_bytes = sum(field.type.bit_width for field in load(storage, driver.checkpoint.state.blocks[0]).schema) / 8
    assert 1 < fetched_bytes / (switched.moved_tuples * tuple_bytes) < 1.1


def test_what_is_staged_in_the_outbox_is_compared_with_what_was_written(tmp_path: Path) -> None:
    storage, schema = ObjectStorage(str(tmp_path)), pa.schema([("a", pa.int64())])
    writer = OutboxWriter(storage, schema, "outbox/one", 0, lambda done: Staged("", "part", 0, 0))
    writer.write(pa.record_batch([pa.array(range(100))], schema=schema))
    (staged,) = writer.close()
    written = data_of(storage, staged, "they were not published")
    assert ipc.open_stream(written).read_all().num_rows == 100
    storage.put(staged.path, written[:-20] + b"x" + written[-19:])
    with pytest.raises(SinkError, match=rf"{re.escape(staged.path)}: damaged: .* It has 100 committed results, which are lost without it"):
        data_of(storage, staged, "they were not published")


def test_what_the_log_keeps_of_small_results_is_compared_with_what_was_written(tmp_path: Path) -> None:
    storage = ObjectStorage(str(tmp_path))
    segment = Segment("log/0000000000000000.entry")
    extent = segment.add(b"some results")
    entry = Entry(0, 1, "writer", "epoch", 0.0, Checkpoint()).encode(segment.data)
    storage.put(extent.path, entry)
    assert read_extents(storage, [extent]) == [b"some results"]
    storage.put(extent.path, entry.replace(b"some", b"sbme"))
    with pytest.raises(StorageError, match=r"0000\.entry: damaged"):
        read_extents(storage, [extent])
