"""The files source: every record exactly once, whatever happens in the directory; and what its values become."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import pickle
import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import MemorySnapshots
from streamjoin.io import files, files_plan, files_reader, seen
from streamjoin.io.base import MAX_BATCH_ROWS, Position, Rejected, Snapshots, SourceError, SourcePlan, UnavailableError
from streamjoin.io.files import FilesSource
from streamjoin.io.files_reader import FilesSourceConfig, FilesSplit
from streamjoin.io.sinks import json_lines
from streamjoin.io.text import CsvFormat, JsonFormat, TextFormat, parse_block

NOW = 2_000_000_000.0
ID = pa.schema([("id", pa.int64())])
UTC_TIME = pa.timestamp("us", "UTC")


def make(
    root: Path, kind: str, schema: pa.Schema = ID, *, exact: bool = False, snapshots: Snapshots | None = None, **config: Any
) -> FilesSource:
    return FilesSource(FilesSourceConfig(str(root), kind, **config), schema, snapshots or MemorySnapshots(), exact)


def put(path: Path, data: str | bytes, at: float = NOW - 1000, mode: str = "w") -> Path:
    """Writes or appends, with a modification time."""
    with open(path, mode + ("b" if isinstance(data, bytes) else "")) as file:
        file.write(data)
    os.utime(path, (at, at))
    return path


def parquet(path: Path, table: pa.Table, at: float = NOW - 1000, **options: Any) -> Path:
    pq.write_table(table, path, **options)
    os.utime(path, (at, at))
    return path


def ids(*values: int) -> str:
    return "".join(f'{{"id": {value}}}\n' for value in values)


def read(source: FilesSource, plan: SourcePlan) -> tuple[list[dict[str, Any]], list[Rejected]]:
    """All of a plan's records, checked for what every reader promises."""
    reader = pickle.loads(pickle.dumps(source.reader))
    rows: list[dict[str, Any]] = []
    rejected: list[Rejected] = []
    for split in pickle.loads(pickle.dumps(plan.splits)):
        seen_offsets: list[int] = []
        for records in reader.read(split):
            assert records.batch.schema == source.reader.schema
            assert records.batch.num_rows <= MAX_BATCH_ROWS
            offsets = records.offsets()
            assert len(offsets) == records.batch.num_rows
            assert (np.diff(offsets) > 0).all()
            seen_offsets += [*offsets.tolist(), *(item.position for item in records.rejected)]
            rows += records.batch.to_pylist()
            rejected += records.rejected
        assert sorted(seen_offsets) == list(range(len(seen_offsets)))
        if source.reader.exact:
            assert len(seen_offsets) == split.records
    return rows, rejected


def drain(source: FilesSource, position: Position | None = None, limit: int = 10**6, now: float = NOW) -> tuple[list[int], Position | None]:
    """The ids of all records from ``position`` on, until nothing is left; positions pass through JSON as in a commit."""
    found: list[int] = []
    for _ in range(1000):
        plan = source.plan(position, limit, now)
        position = json.loads(json.dumps(plan.position))
        found += [row["id"] for row in read(source, plan)[0]]
        if plan.exhausted:
            return found, position
    raise AssertionError("the source is never exhausted")


def test_files_are_read_once_in_the_order_of_time_and_name(tmp_path: Path) -> None:
    put(tmp_path / "b.json", ids(3, 4), NOW - 50)
    put(tmp_path / "a.json", ids(5), NOW - 50 + 1)
    put(tmp_path / "c.json", ids(1, 2), NOW - 60)
    put(tmp_path / "a0.json", ids(0), NOW - 60)
    source = make(tmp_path, "json")
    found, position = drain(source)
    assert found == [0, 1, 2, 3, 4, 5]
    assert drain(source, position)[0] == []
    put(tmp_path / "0.json", ids(6))
    assert drain(make(tmp_path, "json"), position)[0] == [6]


def test_hidden_and_other_files_are_not_read(tmp_path: Path) -> None:
    for name in ("_SUCCESS", ".x.json", "x.csv", "_staging", "y.json"):
        put(tmp_path / name, ids(1 if name == "y.json" else 0))
    (tmp_path / "z.json").mkdir()
    assert drain(make(tmp_path, "json", pattern="*.json"))[0] == [1]


def test_names_of_files_that_are_still_written_are_passed_over_unless_a_pattern_asks_for_them(tmp_path: Path) -> None:
    temporary = ["a.tmp", "a.temp", "a.part", "a.partial", "a.crdownload", "a.swp", "a~", "a._COPYING_", "a.tmp.json", "x_temporary.1"]
    for name in [*temporary, "part-0.json", "a.temporal"]:
        put(tmp_path / name, ids(temporary.index(name) if name in temporary else 99))
    assert drain(make(tmp_path, "json"))[0] == [99, 99]
    assert drain(make(tmp_path, "json", pattern="a.t*p"))[0] == [1, 0]


def test_a_source_without_a_file_says_what_it_passed_over(tmp_path: Path) -> None:
    source = make(tmp_path, "json", pattern="*.jsonl")
    assert source.plan(None, 10, NOW).warnings == ()
    assert source.plan(None, 10, NOW, final=True).warnings == (f"files.path: {tmp_path} has no file to read; it is empty",)
    for name in ("b.json", "a.json", "_SUCCESS"):
        put(tmp_path / name, ids(1))
    os.mkfifo(tmp_path / "2026.jsonl")
    (warning,) = source.plan(None, 10, NOW).warnings
    assert warning == (
        f"files.path: {tmp_path} has no file to read; names that were passed over: 4 (1 begins with . or _, as _SUCCESS; "
        "2 does not match files.pattern (*.jsonl), as a.json; 1 is no file, as 2026.jsonl). Correct files.path or files.pattern"
    )
    put(tmp_path / "x.jsonl", ids(1))
    plan = source.plan(None, 10, NOW)
    assert plan.warnings == ()
    (tmp_path / "x.jsonl").unlink()
    assert source.plan(plan.position, 10, NOW, final=True).warnings == ()


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_files_that_have_nothing_to_read_do_not_keep_others_waiting(tmp_path: Path, kind: str) -> None:
    """Nothing is committed for them, so each plan finds them again."""
    header = "id\n" if kind == "csv" else ""
    for number in range(3):
        put(tmp_path / f"{number}", header or ids(7), NOW - 100)
    source = make(tmp_path, kind, max_files_per_epoch=2)
    position = drain(source)[1]
    for number in range(3):
        put(tmp_path / f"{number}", header, NOW - 90)
    put(tmp_path / "x", f"{header}1\n" if kind == "csv" else ids(1), NOW - 80)
    assert drain(source, position)[0] == [1]


def test_a_growing_text_file_gives_complete_lines_while_it_grows(tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", '{"id": 1}\n{"id": 2', at=NOW)
    source = make(tmp_path, "json", settle_seconds=5.0)
    plan = source.plan(None, 100, NOW + 1)
    assert read(source, plan)[0] == [{"id": 1}]
    assert not plan.exhausted
    again = source.plan(plan.position, 100, NOW + 4)
    assert (again.splits, again.exhausted) == ((), False)
    put(path, '2}\n{"id": 3}', at=NOW + 4, mode="a")
    more = source.plan(again.position, 100, NOW + 5)
    assert read(source, more)[0] == [{"id": 22}]
    settled = source.plan(more.position, 100, NOW + 9)
    assert read(source, settled)[0] == [{"id": 3}]
    assert settled.exhausted
    at_the_end = source.plan(more.position, 100, NOW + 5, final=True)
    assert read(source, at_the_end)[0] == [{"id": 3}]
    assert at_the_end.exhausted
    # The newline that comes later is no record of its own.
    put(path, "\n", at=NOW + 10, mode="a")
    assert drain(source, settled.position)[0] == []


def test_a_line_without_an_end_is_never_read_where_the_manifest_says_so(tmp_path: Path) -> None:
    """And keeps no run from its end, which warns of it."""
    path = put(tmp_path / "x.json", '{"id": 1}\n{"id": 2', at=NOW - 10**6)
    source = make(tmp_path, "json", settle_seconds=math.inf)
    found, position = drain(source)
    assert found == [1]
    last = source.plan(position, 10, NOW, final=True)
    assert (last.splits, last.exhausted) == ((), True)
    assert last.warnings == ("x.json: its last 8 bytes do not end in a newline; they are not read",)
    put(path, "2}\n", mode="a")
    assert drain(source, position)[0] == [22]


def test_a_parquet_file_is_left_until_its_footer_is_there(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "_whole", pa.table({"id": [1, 2]})).read_bytes()
    path = put(tmp_path / "x.parquet", whole[:-20], at=NOW)
    source = make(tmp_path, "parquet", settle_seconds=5.0)
    plan = source.plan(None, 100, NOW + 1)
    assert (plan.splits, plan.exhausted, plan.warnings) == ((), False, ())
    late = source.plan(plan.position, 100, NOW + 60)
    assert "x.parquet: is a dead letter: it is not a complete Parquet file" in late.warnings[0]
    ((_, (letter,)), position) = read(source, late), late.position
    assert (letter.place, letter.raw) == ("x.parquet", "")
    assert "the file cannot be read: it is not a complete Parquet file" in letter.error
    again = source.plan(position, 100, NOW + 60)
    assert (again.splits, again.warnings, again.exhausted) == ((), (), True)
    put(path, whole, at=NOW + 60)
    assert drain(source, position, now=NOW + 61)[0] == [1, 2]


def test_a_huge_parquet_file_is_cut_at_row_groups_so_that_an_epoch_keeps_to_its_limit(tmp_path: Path) -> None:
    parquet(tmp_path / "x.parquet", pa.table({"id": range(1000)}), row_group_size=100)
    source = make(tmp_path, "parquet")
    position, sizes, found = None, [], []
    while True:
        plan = source.plan(position, 250, NOW)
        assert plan.end_record == sum(sizes) + plan.records
        assert plan.backlog_records == 1000 - plan.end_record
        sizes.append(plan.records)
        found += [row["id"] for row in read(source, plan)[0]]
        position = plan.position
        if plan.exhausted:
            break
    assert sizes == [300, 300, 300, 100]
    assert found == list(range(1000))


def test_no_more_files_are_taken_than_an_epoch_may(tmp_path: Path) -> None:
    for number in range(10):
        put(tmp_path / f"{number}.json", ids(number, number + 100))
    source = make(tmp_path, "json", exact=True, max_files_per_epoch=4)
    plan = source.plan(None, 1000, NOW)
    assert [row["id"] % 100 for row in read(source, plan)[0]] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert plan.backlog_records == pytest.approx(12, abs=3)
    assert not plan.exhausted


def test_small_files_share_splits_and_large_ones_are_cut(tmp_path: Path) -> None:
    for number in range(300):
        put(tmp_path / f"{number:03d}.json", ids(number))
    plan = make(tmp_path, "json").plan(None, 10**6, NOW)
    assert len(plan.splits) == 3
    large = "".join(f'{{"id":{i}}}\n' for i in range(400_000))
    for other in tmp_path.iterdir():
        other.unlink()
    put(tmp_path / "large.json", large)
    for exact in (True, False):
        source = make(tmp_path, "json", exact=exact)
        plan = source.plan(None, 10**6, NOW)
        assert 3 <= len(plan.splits) <= 5
        assert sum(batch.batch.num_rows for split in plan.splits for batch in source.reader.read(split)) == 400_000


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize("seed", range(6))
def test_counted_positions_are_dense_and_exact_whatever_the_lines_and_limits(
    tmp_path: Path, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blank lines, carriage returns, bad lines, byte order marks and lines longer than a block, cut anywhere."""
    generator = random.Random(seed)
    monkeypatch.setattr("streamjoin.io.lines.BLOCK_BYTES", generator.choice([7, 64, 1000]))
    monkeypatch.setattr(files_plan, "LEAST_SPLIT_RECORDS", generator.choice([1, 3, 100]))
    monkeypatch.setattr(files_reader, "READ_ROWS", generator.choice([1, 10, 1000]))
    expected: list[str] = []
    for number in range(4):
        ending = generator.choice(["\n", "\r\n"])
        text = generator.choice(["", "\ufeff"])
        if kind == "csv":
            text += "other,ID" + ending
        for _ in range(generator.randrange(60)):
            value = len(expected)
            long = "y" * generator.choice([0, 0, 200])
            good = f'{{"id": {value}, "x": "{long}"}}' if kind == "json" else generator.choice([f"x,{value}", f'"{long}\n,""\r\n",{value}'])
            bad = generator.choice(["{", '{"id": "x"}', "[]"]) if kind == "json" else generator.choice(["x,y,z", "x", 'x,"1\n,"\r2'])
            blank = generator.choice(["", "  ", "\t"]) if kind == "json" else ""
            line, entry = generator.choice([(good, str(value)), (good, str(value)), (bad, "bad"), (blank, None)])
            text += line + ending
            if entry is not None:
                expected.append(entry)
        if generator.random() < 0.5:
            text = text.removesuffix(ending)
        put(tmp_path / f"{number}.txt", text.encode(), NOW - 100 + number)
    position, found, count = None, [], 0
    for _ in range(10_000):
        source = make(tmp_path, kind, exact=True)
        limit = generator.choice([1, 2, 50])
        plan = source.plan(position, limit, NOW)
        assert plan.records <= limit
        for split in plan.splits:
            assert split.first_record == count
            of_split: dict[int, str] = {}
            for records in source.reader.read(split):
                of_split |= dict(zip(records.offsets().tolist(), map(str, records.batch.column("id").to_pylist()), strict=True))
                of_split |= {item.position: "bad" for item in records.rejected}
            assert sorted(of_split) == list(range(split.records))
            found += [of_split[offset] for offset in range(split.records)]
            count += split.records
        assert plan.end_record == count
        position = plan.position
        if plan.exhausted:
            break
    assert found == expected, f"seed {seed}"


@pytest.mark.parametrize("seed", range(4))
def test_every_record_is_read_exactly_once_whatever_happens_in_the_directory(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files appear, grow by parts of lines, and go; plans are committed, repeated or forgotten; sources are started afresh."""
    generator = random.Random(seed)
    monkeypatch.setattr(files, "RECHECKED", generator.choice([3, 1000]))
    monkeypatch.setattr(files, "RECHECKED_A_SECOND", 0)
    monkeypatch.setattr(seen, "DELTA_ENTRIES", 4)
    snapshots = MemorySnapshots()
    text: dict[str, str] = {}
    written: Counter[int] = Counter()
    read_ids: Counter[int] = Counter()
    fed: dict[str, int] = {}
    position: Position | None = None
    history: list[str] = []
    now, value = NOW, 0

    def fresh() -> FilesSource:
        most = generator.choice([2, 50])
        return make(tmp_path, "json", exact=exact, snapshots=snapshots, settle_seconds=1e9, max_files_per_epoch=most)

    exact = generator.random() < 0.5
    source = fresh()
    for _ in range(250):
        now += generator.random()
        action = generator.choice(["new", "grow", "grow", "plan", "plan", "plan", "lost plan", "restart", "remove"])
        history.append(action)
        if action == "new" and len(text) < 40:
            text[f"f{len(text)}.json"] = ""
            fed[f"f{len(text) - 1}.json"] = 0
        elif action == "grow" and text:
            name = generator.choice(sorted(text))
            if name not in fed:
                continue
            for _ in range(generator.randrange(4)):
                text[name] += ids(value)
                written[value] += 1
                value += 1
            end = generator.randint(fed[name], len(text[name]))
            put(tmp_path / name, text[name][fed[name] : end], now, mode="a")
            fed[name] = end
        elif action in ("plan", "lost plan"):
            plan = source.plan(position, generator.choice([1, 5, 100]), now)
            assert not plan.warnings, history
            rows, rejected = read(source, plan)
            assert not rejected, (seed, history)
            if action == "plan":
                position = json.loads(json.dumps(plan.position))
                read_ids.update(row["id"] for row in rows)
                for name in set(snapshots.objects) - source.referenced(position):
                    del snapshots.objects[name]
        elif action == "restart":
            source = fresh()
        elif action == "remove" and len(fed) > 5:
            name = generator.choice(sorted(fed))
            if all(read_ids[item["id"]] for item in map(json.loads, text[name].splitlines())) and fed[name] == len(text[name]):
                (tmp_path / name).unlink(missing_ok=True)
                del fed[name]
    for name, end in fed.items():
        put(tmp_path / name, text[name][end:], now, mode="a")
    found, _ = drain(source, position, now=now + 100)
    read_ids.update(found)
    assert read_ids == written, (seed, history)


def test_positions_stay_small_and_a_fresh_source_plans_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "DELTA_ENTRIES", 100)
    snapshots = MemorySnapshots()
    source = make(tmp_path, "json", snapshots=snapshots, max_files_per_epoch=30)
    position: Position | None = None
    for number in range(250):
        put(tmp_path / f"{number}.json", ids(number), NOW - 500 + number)
    sizes = []
    while True:
        plan = source.plan(position, 10**6, NOW)
        assert make(tmp_path, "json", snapshots=snapshots, max_files_per_epoch=30).plan(position, 10**6, NOW) == plan
        position = json.loads(json.dumps(plan.position))
        sizes.append(len(position["files"]))
        assert source.referenced(position) <= snapshots.objects.keys()
        if plan.exhausted:
            break
    assert max(sizes) <= 100
    assert plan.end_record == 250
    for name in set(snapshots.objects) - source.referenced(position):
        del snapshots.objects[name]
    rest = make(tmp_path, "json", snapshots=snapshots).plan(position, 10**6, NOW)
    assert (rest.splits, rest.exhausted) == ((), True)


def test_files_that_are_gone_are_forgotten_but_not_for_one_wrong_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "DELTA_ENTRIES", 3)
    snapshots = MemorySnapshots()
    store = seen.SeenStore(snapshots, "s")
    everything = [f"f{i}" for i in range(100)]
    position = store.save(store.load(None), dict.fromkeys(everything[:10], 5), everything)
    # A listing without any of them: nothing is forgotten yet.
    position = store.save(store.load(position), dict.fromkeys(everything[10:20], 5), [])
    assert all(store.load(position).get(name) == 5 for name in everything[:20])
    position = store.save(store.load(position), dict.fromkeys(everything[20:40], 5), everything[:20] + everything[20:40])
    assert all(store.load(position).get(name) == 5 for name in everything[:40])
    for _ in range(2):
        position = store.save(store.load(position), dict.fromkeys(everything[40:], 5), everything[40:])
    assert [store.load(position).get(name) for name in (everything[0], everything[50])] == [0, 5]


def fifty_read(root: Path, monkeypatch: pytest.MonkeyPatch, *, rechecked: int, a_second: int) -> tuple[FilesSource, Position]:
    """A source that has read fifty files, of which each plan looks at so many again, and that many more for each second."""
    monkeypatch.setattr(files, "RECHECKED", rechecked)
    monkeypatch.setattr(files, "RECHECKED_A_SECOND", a_second)
    for number in range(50):
        put(root / f"{number}.json", ids(number))
    source = make(root, "json")
    return source, drain(source)[1]


def test_an_old_file_that_grows_is_found_among_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, position = fifty_read(tmp_path, monkeypatch, rechecked=5, a_second=0)
    put(tmp_path / "7.json", ids(700), NOW + 1000, mode="a")
    assert drain(source, position, now=NOW + 1000)[0] == [700]
    assert drain(make(tmp_path, "json"), position, now=NOW + 1000)[0] == [700]


def test_so_many_files_are_looked_at_again_as_time_has_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, position = fifty_read(tmp_path, monkeypatch, rechecked=1, a_second=1)
    later = NOW + 1000
    assert source.plan(position, 100, later).exhausted  # none has changed
    put(tmp_path / "7.json", ids(700), later, mode="a")
    plans = 0
    while not (plan := source.plan(position, 100, later + 10 * plans)).records:
        assert plan.splits == ()
        plans += 1
        assert plans <= 5, "ten files in ten seconds"
    assert plan.records == 1


@pytest.mark.parametrize("kind", ["json", "parquet", "csv"])
def test_a_file_that_vanishes_before_it_is_read_is_named(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        path = parquet(tmp_path / "x", pa.table({"id": [1]}))
    else:
        path = put(tmp_path / "x", ids(1) if kind == "json" else "id\n1\n")
    source = make(tmp_path, kind)
    plan = source.plan(None, 100, NOW)
    path.unlink()
    with pytest.raises(SourceError, match="x: the file vanished after it was chosen"):
        read(source, plan)
    assert source.plan(None, 100, NOW).splits == ()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"files\.path: .*/nowhere does not exist"):
        make(tmp_path / "nowhere", "json").plan(None, 1, NOW)
    put(tmp_path / "file", "")
    with pytest.raises(SourceError, match=r"files\.path: .*/file is a file; give its directory"):
        make(tmp_path / "file", "json").plan(None, 1, NOW)


ALL = pa.schema(
    [
        ("b", pa.bool_()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("m", pa.decimal128(20, 4)),
        ("s", pa.string()),
        ("y", pa.binary()),
        ("da", pa.date32()),
        ("at", UTC_TIME),
        ("n", pa.timestamp("us")),
    ]
)


UNFIT_NUMBERS = ["1e400000", "1e-400000", "9" * 5_000, "0." + "0" * 5_000 + "1", "1e99999999999999999999", "1" * 37 + "e9", "1e-39", "x"]


def parse_one(text: TextFormat, line: bytes, schema: pa.Schema) -> dict[str, Any] | str:
    """The record of a line, or what is wrong with it."""
    (records,) = parse_block(text, line, schema, "x", 0)
    return records.rejected[0].error if records.rejected else records.batch.to_pylist()[0]


@pytest.mark.parametrize(
    ("column", "written", "value"),
    [
        ("b", "true", True),
        ("l", "9223372036854775807", 2**63 - 1),
        ("l", "-9223372036854775808", -(2**63)),
        ("l", "1e3", 1000),
        ("i", "2.0", 2),
        ("l", "9223372036854775807.0", 2**63 - 1),
        ("d", "0.1", 0.1),
        ("d", "7", 7.0),
        ("d", '"NaN"', float("nan")),
        ("d", "NaN", float("nan")),
        ("d", '"-Infinity"', float("-inf")),
        ("m", "1234567890123456.7891", Decimal("1234567890123456.7891")),
        ("m", '"0.1"', Decimal("0.1000")),
        ("m", "1e2", Decimal("100.0000")),
        ("s", '"a\\u00e9\\n\\"\\\\"', 'aé\n"\\'),
        ("s", '""', ""),
        ("y", '"/wA="', b"\xff\x00"),
        ("da", '"2026-02-28"', date(2026, 2, 28)),
        ("at", '"2026-01-01T00:00:00Z"', datetime(2026, 1, 1, tzinfo=UTC)),
        ("at", '"2026-01-01T00:00:00"', datetime(2026, 1, 1, tzinfo=UTC)),
        ("at", '"2026-01-01 00:00:00.123456+02:00"', datetime(2025, 12, 31, 22, 0, 0, 123456, tzinfo=UTC)),
        ("at", '"2026-01-01T00:00:00.123456789Z"', datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)),
        ("at", '"2026-01-01"', datetime(2026, 1, 1, tzinfo=UTC)),
        ("n", '"2026-01-01T10:30:00"', datetime(2026, 1, 1, 10, 30)),
        ("n", '"2026-01-01T10:30:00.5+05:00"', datetime(2026, 1, 1, 10, 30, 0, 500_000)),
        ("n", '"2026-01-01"', datetime(2026, 1, 1)),
        ("l", "null", None),
    ],
)
def test_json_values_arrive_exactly(column: str, written: str, value: object) -> None:
    line = f'{{"other": [1, {{"x": null}}], "{column}": {written}}}'.encode()
    schema = pa.schema([ALL.field(column)])
    found = parse_one(JsonFormat(schema), line, schema)
    assert isinstance(found, dict), found
    assert repr(found[column]) == repr(value).replace("datetime.UTC", "UTC") or found[column] == value


@pytest.mark.parametrize(
    ("column", "written", "shown"),
    [
        ("b", "1", "1 is not a value of BOOLEAN"),
        ("b", '"true"', '"true" is not a value of BOOLEAN'),
        ("i", "2147483648", '"2147483648" is not a value of INT'),
        ("i", "1.5", '"1.5" is not a value of INT'),
        ("i", '"1.5"', '"1.5" is not a value of INT'),
        ("l", "1e30", '"1e30" is not a value of BIGINT'),
        ("l", "1e999999999", '"1e999999999" is not a value of BIGINT'),
        ("l", "true", "true is not a value of BIGINT"),
        ("d", "1e400", '"1e400" is not a value of DOUBLE'),
        ("f", "1e300", '"1e300" is not a value of FLOAT'),
        ("d", '"1.5"', '"1.5" is not a value of DOUBLE'),
        ("m", "0.00001", '"0.00001" is not a value of DECIMAL(20,4)'),
        ("m", "12345678901234567", "is not a value of DECIMAL(20,4)"),
        ("m", "1e999999999", "is not a value of DECIMAL(20,4)"),
        ("d", "1e-400", '"1e-400" is not a value of DOUBLE'),
        ("f", "1e-60", '"1e-60" is not a value of FLOAT'),
        ("f", "0." + "0" * 50 + "1", "is not a value of FLOAT"),
        *(("m", f'"{text}"', "is not a value of DECIMAL(20,4)") for text in UNFIT_NUMBERS),
        *((column, '"\\ud800"', "is not a value of") for column in ALL.names),
        *((column, text, "is not a value of") for column in "ilm" for text in UNFIT_NUMBERS if text[0] not in "x "),
        ("s", "5", "5 is not a value of STRING"),
        ("s", '{"x": 1}', "is not a value of STRING"),
        ("y", '"%"', '"%" is not a value of BINARY'),
        ("da", '"2026-02-30"', '"2026-02-30" is not a value of DATE'),
        ("at", '"yesterday"', '"yesterday" is not a value of TIMESTAMP'),
        ("at", "1700000000", "1700000000 is not a value of TIMESTAMP"),
        ("n", f'"{"x" * 200}"', f'"{"x" * 99}... is not a value of TIMESTAMP_NTZ'),
    ],
)
def test_a_json_value_of_a_wrong_type_is_rejected_by_column_and_value(column: str, written: str, shown: str) -> None:
    found = parse_one(JsonFormat(ALL), f'{{"{column}": {written}}}'.encode(), ALL)
    assert isinstance(found, str), found
    assert found.startswith(f"column {column}: ")
    assert shown in found


DAY = 86_400_000_000


@pytest.mark.parametrize("micros", [0, 1, 2**63 - 1, -(2**63), 2_932_897 * DAY, -719_162 * DAY - 1, -719_528 * DAY - 1, 20_000 * DAY])
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_time_of_any_year_is_read_as_it_is_written(micros: int, kind: str) -> None:
    schema = pa.schema([ALL.field(name) for name in ("da", "at", "n")])
    numbers = [pa.array([micros // DAY], pa.int32()), pa.array([micros]), pa.array([micros])]
    written = pa.record_batch([number.cast(item.type) for number, item in zip(numbers, schema, strict=True)], schema=schema)
    line = bytes(json_lines(written)).strip()
    text: TextFormat = JsonFormat(schema)
    if kind == "csv":
        text, line = CsvFormat(schema, ",", None), ",".join(json.loads(line).values()).encode()
    (records,) = parse_block(text, line, schema, "x", 0)
    assert records.rejected == []
    assert records.batch == written


@pytest.mark.parametrize("text", ["+2026-1", "+10000-01-01junk", "10000-01-01", "+12026-13-01", "+99999999-01-01", "+12026-01-01T25:00Z"])
def test_a_far_time_is_iso_8601(text: str) -> None:
    for name in ("da", "at"):
        schema = pa.schema([ALL.field(name)])
        assert "is not a value of" in str(parse_one(JsonFormat(schema), f'{{"{name}": "{text}"}}'.encode(), schema))


LITERALS = [b"null", b" null\t", b"5", b'"x"', b"[]", b"[null]", b"true", b"NaN"]


@pytest.mark.parametrize("literal", [*LITERALS, b'{"y": "/w=="} null {}', b'{"y": "/w=="}null', b'{"y":', b"}", b"{", b"\xef\xbb\xbfnull"])
def test_a_line_that_is_no_record_changes_none_beside_it(literal: bytes) -> None:
    good = b'{"l": 1, "y": "/w=="}'
    for before, after in [([], [good] * 3), ([good] * 3, []), ([good], [good]), ([literal], []), ([b'{"l":'], [b"1}", good + good])]:
        lines = [*before, literal, *after]
        (records,) = parse_block(JsonFormat(ALL), b"\n".join(lines), ALL, "x", 0)
        assert [item.position for item in records.rejected] == [at for at, line in enumerate(lines) if line != good]
        assert [row["l"] for row in records.batch.to_pylist()] == [1] * lines.count(good)


@pytest.mark.parametrize("scale", [0, 4, 19, 35, 38])
@pytest.mark.parametrize("kind", ["json", "json text", "csv"])
def test_a_decimal_is_what_is_written_or_is_rejected(scale: int, kind: str) -> None:
    generator = random.Random(scale)
    schema = pa.schema([("m", pa.decimal128(38, scale))])
    numbers = []
    for _ in range(1_000):
        digits = "".join(generator.choices("0123456789", k=generator.randint(1, 42)))
        at = generator.randint(1, len(digits))
        number = str(int(digits[:at])) + ("." + digits[at:] if digits[at:] else "")
        numbers.append(number + (f"e{generator.randint(-45, 45)}" if generator.random() < 0.3 else ""))
    text: TextFormat = CsvFormat(schema, ",", None) if kind == "csv" else JsonFormat(schema)
    form = {"json": '{{"m": {}}}', "json text": '{{"\\u006d": "{}"}}', "csv": "{}"}[kind]
    found: dict[int, object] = {}
    for records in parse_block(text, "\n".join(map(form.format, numbers)).encode(), schema, "x", 0):
        found |= dict(zip(records.offsets().tolist(), records.batch["m"].to_pylist(), strict=True))
    for row, number in enumerate(numbers):
        numerator, denominator = Decimal(number).as_integer_ratio()
        whole, rest = divmod(numerator * 10**scale, denominator)
        assert found.get(row) == (None if rest or whole >= 10**38 else Decimal(number)), number


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "is not a JSON object on one line"),
        (b'{"l": 1} {"l": 2}', "is not a JSON object on one line: Extra data at character 9"),
        (b"[1]", "is not a JSON object"),
        *((literal, "is not a JSON object") for literal in LITERALS),
        (b'{"l": 1, "l": 2}', "column l: is given twice"),
        (b'{"s": "\xff"}', "is not UTF-8 (byte 7 of the line)"),
        (b"[" * 100_000, "too deeply nested"),
    ],
)
def test_a_line_that_is_no_json_object_is_rejected(line: bytes, error: str) -> None:
    assert error in str(parse_one(JsonFormat(ALL), line, ALL))


def test_a_rejected_record_keeps_its_text_and_place() -> None:
    block = b'{"id": 1}\n\n{"id": "x"}\n{"id": 2}\n\xff\xfe\n' + b"[" + b"y" * 100_000 + b"]\n"
    records = parse_block(JsonFormat(ID), block, ID, "a.json", 1000)
    rejected = [item for batch in records for item in batch.rejected]
    assert [(item.position, item.place) for item in rejected] == [(1, "a.json byte 1011"), (3, "a.json byte 1033"), (4, "a.json byte 1036")]
    assert rejected[0].raw == '{"id": "x"}'
    assert rejected[1].raw == "base64://4="
    assert len(rejected[2].raw) == 64 * 1024
    assert [row for batch in records for row in batch.batch.to_pylist()] == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'true,7,9,0.5,0.25,1.5,"a,""b",/w==,2026-01-01,2026-01-01T00:00:00Z,2026-01-01 01:00:00', None),
        (b",,,,,,,,,,", [None] * 11),
        (b',,,,,,"",,,,', [*[None] * 6, "", *[None] * 4]),
        (b" true , 7 ,9,inf,nan,.5, a ,,2026-01-01 ,2026-01-01,", None),
        (b",1.0, -3.00 ,,,,,,,,", [None, 1, -3, *[None] * 8]),
        (b",1e3,9223372036854775807.0,,,,,,,,", [None, 1000, 2**63 - 1, *[None] * 8]),
        (b",,9223372036854775808.0,,,,,,,,", 'column l: "9223372036854775808.0" is not a value of BIGINT'),
        (b",2147483648.0,,,,,,,,,", 'column i: "2147483648.0" is not a value of INT'),
        (b"x,,,,,,,,,,", 'column b: "x" is not a value of BOOLEAN'),
        (b",3000000000,,,,,,,,,", 'column i: "3000000000" is not a value of INT'),
        (b",0x10,,,,,,,,,", 'column i: "0x10" is not a value of INT'),
        (b",1.5,,,,,,,,,", 'column i: "1.5" is not a value of INT'),
        (b",,,1e999,,,,,,,", 'column d: "1e999" is not a value of DOUBLE'),
        (b",,,1e-400,,,,,,,", 'column d: "1e-400" is not a value of DOUBLE'),
        *((f",,,,,{text},,,,,".encode(), "is not a value of DECIMAL(20,4)") for text in UNFIT_NUMBERS),
        *((f",,{text},,,,,,,,".encode(), "is not a value of BIGINT") for text in UNFIT_NUMBERS),
        (b",,,,,1.00001,,,,,", 'column m: "1.00001" is not a value of DECIMAL(20,4)'),
        (b",,,,,,,,,,,", "has 12 values, not 11"),
        (b"1", "has 1 value, not 11"),
        (b',,,,,,,,,,"2026-01-01', "is not one record of CSV"),
        (b",,,,,,\xff,,,,", "is not UTF-8 (byte 6 of the line)"),
    ],
)
def test_csv_values_arrive_exactly_or_are_rejected(line: bytes, expected: object) -> None:
    found = parse_one(CsvFormat(ALL, ",", None), line, ALL)
    if isinstance(expected, str):
        assert isinstance(found, str)
        assert expected in found
    else:
        assert isinstance(found, dict), found
        assert expected is None or list(found.values()) == expected


def test_csv_columns_are_found_by_the_header_of_each_file(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    put(tmp_path / "a.csv", 'Name;x;ID\na;;1\n\'b;"c;d";2\n', NOW - 9)
    put(tmp_path / "b.csv", "\ufeffid;name\r\n3;c\r\n", NOW - 8)
    put(tmp_path / "c.csv", "id;name", NOW - 7)
    source = make(tmp_path, "csv", schema, exact=True, delimiter=";")
    rows, rejected = read(source, source.plan(None, 100, NOW))
    assert not rejected
    assert rows == [{"id": 1, "name": "a"}, {"id": 2, "name": "'b"}, {"id": 3, "name": "c"}]
    put(tmp_path / "d.csv", "key;name\n1;a\n")
    again, (letter,) = read(source, source.plan(None, 100, NOW))
    assert again == rows
    assert letter.place == "d.csv"
    assert "its header has no column named id; it names key, name" in letter.error


@pytest.mark.parametrize("content", ["", "\n", "\r\n", "\n\n\n", "\ufeff", "\ufeff\n", " ", "id"])
def test_a_csv_file_without_records_needs_no_header(tmp_path: Path, content: str) -> None:
    put(tmp_path / "a.csv", content, NOW - 9)
    put(tmp_path / "b.csv", "id\n1\n", NOW - 8)
    for exact in (True, False):
        source = make(tmp_path, "csv", ID, exact=exact)
        assert read(source, source.plan(None, 100, NOW)) == ([{"id": 1}], [])


def test_a_csv_file_whose_first_line_is_blank_but_has_records_is_named(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "\nid\n1\n", NOW - 9)
    source = make(tmp_path, "csv", ID, exact=True)
    plan = source.plan(None, 100, NOW)
    rows, (letter,) = read(source, plan)
    assert rows == []
    assert "its header has no column named id; it names none" in letter.error
    put(tmp_path / "a.csv", "2\n", NOW - 600, mode="a")
    plan = source.plan(plan.position, 100, NOW)
    assert (plan.splits, plan.warnings) == ((), ())
    put(tmp_path / "a.csv", "id\n1\n", NOW - 500)
    assert drain(source, plan.position)[0] == [1]


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize("seed", range(3))
def test_a_line_s_record_does_not_depend_on_its_neighbours(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(seed)
    monkeypatch.setattr("streamjoin.io.text.FEW_LINES", 4)
    schema = pa.schema([ALL.field(name) for name in ("b", "i", "d", "m", "s", "y", "da", "at", "n")])
    pool = {
        "b": ["true", "false", "1", "null", '"true"'],
        "i": ["1", "-2147483648", "2147483648", "1.0", "1e2", "null", '"1"', "0x1", "-0", "01"],
        "d": ["1", "0.1", "1e308", "1e309", "NaN", '"NaN"', "Infinity", "-1e-400", "null", "-Inf", '"x"'],
        "m": ["1.5", '"2.50"', "1e3", "1.23456", "99999999999999999999", "null", '" 3 "', "0.00000"],
        "s": ['"x"', '""', '"\\ud83d\\ude00"', '"\\ud800"', '"é"', "5", "null", '"a\\nb"', "[1]"],
        "y": ['"AA=="', '"A"', "null"],
        "da": ['"2026-01-01"', '"2026-1-1"', "null", '" 2026-01-01 "'],
        "at": ['"2026-01-01T00:00:00Z"', '"2026-01-01T00:00:00"', '"2026-01-01T00:00:00.1234567+01:00"', '"x"', "null", "5"],
        "n": ['"2026-01-01T00:00:00"', '"2026-01-01 00:00Z"', '"2026-01-01T00:00:00.123456789"', "null"],
    }
    lines: list[bytes] = []
    text: TextFormat
    if kind == "json":
        text = JsonFormat(schema)
        for _ in range(400):
            # Mostly good, so that some pieces take the fast way and some the slow one.
            chosen = {name: values[0] if generator.random() < 0.995 else generator.choice(values) for name, values in pool.items()}
            body = ", ".join(f'"{name}": {value}' for name, value in chosen.items() if generator.random() < 0.9)
            lines.append(("{" + body + "}" + ("}" if generator.random() < 0.001 else "")).encode())
    else:
        text = CsvFormat(schema, ",", None)
        plain = {name: [v.strip('"').replace("null", "") for v in values if "\\n" not in v] for name, values in pool.items()}
        for _ in range(400):
            chosen = {name: values[0] if generator.random() < 0.995 else generator.choice(values) for name, values in plain.items()}
            line = ",".join(chosen.values()).encode()
            lines.append(
                generator.choice(
                    [line + b",", b'"' + line + b'"', line + b"\xff", b'"\r\n\r",' + line, b'"a"\r,' + line, line[:-3] + b'"x']
                )
                if generator.random() < 0.01
                else line
            )
    together: dict[int, object] = {}
    for records in parse_block(text, b"\n".join(lines), schema, "x", 0):
        together |= dict(zip(records.offsets().tolist(), records.batch.to_pylist(), strict=True))
        together |= {item.position: item.error for item in records.rejected}
    for number, line in enumerate(lines):
        assert repr(together[number]) == repr(parse_one(text, line, schema)), (seed, number, line)


def test_directories_below_are_read_but_not_those_of_others_nor_in_circles(tmp_path: Path) -> None:
    root, other = tmp_path / "in", tmp_path / "other"
    names = ["1", "b/2", "b/c/d/3", "_4", "_x/5", ".x/6", "b/_temporary/0/7", "b/.c/8", "b/_9", "x.tmp/10", "b/._COPYING_"]
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        put(root / name, ids(number), NOW - 50 + number)
    (other / "y").mkdir(parents=True)
    put(other / "y" / "11", ids(11))
    put(root / "_x" / "5", ids(5), NOW - 1)
    links = {"b/loop": root, "self": root / "self", "up": tmp_path, "again": root / "b", "gone": "none", "away": other}
    links["hidden"] = root / "_x"
    for link, target in (links | {"../other/back": root, "../other/round": other}).items():
        (root / link).symlink_to(target)
    source = make(root, "json")
    assert drain(source)[0] == [11, 0, 1, 2, 5]
    assert drain(make(root, "json", is_deep=False))[0] == [0]
    assert drain(make(root, "json", pattern="3"))[0] == [2]
    names = [item.name for split in source.plan(None, 100, NOW).splits for item in split.ranges]  # type: ignore[attr-defined]
    assert names == ["away/y/11", "1", "b/2", "b/c/d/3", "hidden/5"]


WHEN = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("Site", pa.string()), ("n", pa.int32())])


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
@pytest.mark.parametrize("exact", [True, False])
def test_directories_names_are_columns_where_the_schema_has_them(tmp_path: Path, kind: str, exact: bool) -> None:
    """Also over a column of the file; a value of another type is one dead letter for each file."""
    days = [
        "day=2026-01-01/site=a%2Fb%20%3D/x=1",
        "day=2026-01-02/SITE=__HIVE_DEFAULT_PARTITION__",
        "day=__HIVE_DEFAULT_PARTITION__/site=",
        "day=2026-13-01/site=c",
        "day=2026-01-03/site=d",
    ]
    for number, name in enumerate(days):
        (tmp_path / name).mkdir(parents=True)
        path = tmp_path / name / "a b=c"
        if kind == "parquet":
            parquet(path, pa.table({"id": [number, 10 + number], "n": [7, 7], "site": ["no", "no"]}), NOW - 9 + number)
        else:
            two = f'{{"id": {number}, "n": 7, "Site": 5}}\n{{"id": {10 + number}, "n": "x"}}\n'
            put(path, two if kind == "json" else f"ID,n\n{number},7\n{10 + number},x\n", NOW - 9 + number)
    source = make(tmp_path, kind, WHEN, exact=exact)
    plan = source.plan(None, 100, NOW)
    rows, rejected = read(source, plan)
    found = {row["id"]: (row["day"], row["Site"], row["n"]) for row in rows}
    given = {0: (date(2026, 1, 1), "a/b =", 7), 1: (date(2026, 1, 2), None, 7), 2: (None, "", 7), 4: (date(2026, 1, 3), "d", 7)}
    assert {number: values for number, values in found.items() if number < 10} == given
    (letter,) = [item for item in rejected if item.place == "day=2026-13-01/site=c/a b=c"]
    assert 'column day: "2026-13-01" is not a value of DATE' in letter.error
    assert len(rejected) == (1 if kind == "parquet" else 5)
    again = source.plan(plan.position, 100, NOW)
    assert (again.splits, again.exhausted) == ((), True)


NAMED = pa.schema([("name", pa.string()), ("k", pa.int64())])


def csv_text(generator: random.Random, records: int) -> str:
    """CSV with all that quotes may have, and what looks like quoted but is not."""
    pieces = ["", "a", '"', '""', ",", "\n", "\r", "\r\n", "9,9", '"\n"', "é", "\n\n"]
    text = generator.choice(["", "\ufeff"]) + generator.choice(["name,k", '"name",k', 'name,"K"']) + "\n"
    for number in range(records):
        value = "".join(generator.choices(pieces, k=generator.randrange(6)))
        quoted = '"' + value.replace('"', '""') + '"' + generator.choice(["", "", "x", 'x"'])
        text += (
            generator.choice([quoted, quoted, "plain", '5" pipe', 'x"y"', " "]) + f",{number}" + generator.choice(["\n", "\r\n", "\n\n"])
        )
    return text.removesuffix("\n") if generator.random() < 0.3 else text


@pytest.mark.parametrize("seed", range(12))
def test_quoted_values_are_those_that_python_reads_wherever_a_file_is_cut_and_however_it_grows(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = random.Random(seed)
    monkeypatch.setattr("streamjoin.io.lines.BLOCK_BYTES", generator.choice([1, 7, 64, 1 << 20]))
    monkeypatch.setattr(files_plan, "LEAST_SPLIT_RECORDS", generator.choice([1, 3, 100]))
    monkeypatch.setattr("streamjoin.io.text.FEW_LINES", generator.choice([1, 512]))
    text = csv_text(generator, 80)
    data = text.encode()
    header, *expected = [row for row in csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline="")) if row]
    assert len(header) == 2
    found: list[dict[str, Any]] = []
    position, written, exact = None, 0, generator.random() < 0.5
    for step in range(10_000):
        if written < len(data) and generator.random() < 0.7:
            more = generator.choice([1, 20, 500])
            put(tmp_path / "a.csv", data[written : written + more], NOW + step, mode="a")
            written += more
        plan = make(tmp_path, "csv", NAMED, exact=exact).plan(position, generator.choice([1, 5, 1000]), NOW + step, written >= len(data))
        rows, rejected = read(make(tmp_path, "csv", NAMED, exact=exact), plan)
        assert not rejected, seed
        found += rows
        position = json.loads(json.dumps(plan.position))
        if written >= len(data) and plan.exhausted:
            break
    assert [[row["name"] or "", str(row["k"])] for row in found] == expected, seed


def test_a_quote_that_nothing_closes_costs_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a file, and far from the next quote; a file that grows is not cut within quotes, settled or not."""
    path = put(tmp_path / "a.csv", 'name,k\na,1\n"open,2\nb,3\n')
    source = make(tmp_path, "csv", NAMED)
    plan = source.plan(None, 100, NOW)
    assert read(source, plan) == ([{"name": "a", "k": 1}], [])
    assert plan.exhausted
    assert plan.warnings == (
        "a.csv: its last 12 bytes end in a quoted value; they are read when that is closed, or at the end of the input. "
        "Finish writing the file, or close the quote",
    )
    rows, rejected = read(source, source.plan(plan.position, 100, NOW, final=True))
    assert rows == [{"name": "b", "k": 3}]
    assert [(item.raw, item.place) for item in rejected] == [('"open,2', "a.csv byte 11")]
    assert "a quoted value does not end before the end of the file, or within 1,048,576 bytes" in rejected[0].error
    put(path, 'c,4\nforged,5\n",6\n', mode="a")
    rows, rejected = read(source, source.plan(plan.position, 100, NOW))
    assert rows == [{"name": "open,2\nb,3\nc,4\nforged,5\n", "k": 6}]
    monkeypatch.setattr("streamjoin.io.lines.QUOTED_BYTES", 10)
    rows, rejected = read(source, source.plan(plan.position, 100, NOW, final=True))
    assert [item.raw for item in rejected] == ['"open,2', '",6']
    assert [row["k"] for row in rows] == [3, 4, 5]


def test_parquet_columns_are_matched_without_case_and_cast_safely(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("at", UTC_TIME),
            ("n", pa.timestamp("us")),
            ("m", pa.decimal128(20, 4)),
            ("s", pa.string()),
            ("d", pa.float64()),
            ("k", pa.decimal128(10, 2)),
        ]
    )
    table = pa.table(
        {
            "extra": [0, 0],
            "S": pa.array(["x", None]).dictionary_encode(),
            "ID": pa.array([1, None], pa.int16()),
            "AT": pa.array([1_500, -1], pa.timestamp("ns", "Europe/Berlin")),
            "n": pa.array([1, None], pa.timestamp("ms")),
            "m": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "d": pa.array([0.5, None], pa.float32()),
            "k": pa.array([7, None], pa.int64()),
        }
    )
    parquet(tmp_path / "x.parquet", table)
    source = make(tmp_path, "parquet", schema)
    rows, rejected = read(source, source.plan(None, 100, NOW))
    assert not rejected
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert rows == [
        {
            "id": 1,
            "at": epoch.replace(microsecond=1),
            "n": datetime(1970, 1, 1, microsecond=1000),
            "m": Decimal("1.5000"),
            "s": "x",
            "d": 0.5,
            "k": Decimal("7.00"),
        },
        {"id": None, "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "n": None, "m": None, "s": None, "d": None, "k": None},
    ]


def test_a_parquet_value_that_does_not_fit_is_a_rejected_record(tmp_path: Path) -> None:
    schema = pa.schema([("i", pa.int32()), ("m", pa.decimal128(5, 1)), ("at", UTC_TIME)])
    table = pa.table(
        {
            "i": pa.array([1, 2**40, 3, 4, 5]),
            "m": pa.array([Decimal("1.10"), Decimal("1.10"), Decimal("1.11"), None, None], pa.decimal128(10, 2)),
            "at": pa.array([0, 0, 0, 2**62, 0], pa.timestamp("ms")),
        }
    )
    parquet(tmp_path / "x.parquet", table, row_group_size=2)
    source = make(tmp_path, "parquet", schema)
    rows, rejected = read(source, source.plan(None, 100, NOW))
    assert [row["i"] for row in rows] == [1, 5]
    assert [(item.position, item.place) for item in rejected] == [(1, "x.parquet row 1"), (2, "x.parquet row 2"), (3, "x.parquet row 3")]
    assert rejected[0].error == f"column i: {2**40} is not a value of INT"
    assert json.loads(rejected[0].raw)["i"] == 2**40
    assert "column m" in rejected[1].error
    assert "column at" in rejected[2].error


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"x": [1]}, r"column id: is missing; the file has x"),
        ({"id": ["a"]}, r"column id: is string, which cannot be read as BIGINT"),
        ({"id": [1.5]}, r"column id: is double, which cannot be read as BIGINT"),
        ({"id": [[1]]}, r"column id: is list.*, which cannot be read as BIGINT"),
        ({"ID": [1], "Id": [2]}, r"column id: is there 2 times"),
    ],
)
def test_a_parquet_file_of_another_schema_is_a_dead_letter(tmp_path: Path, table: dict[str, list[Any]], message: str) -> None:
    parquet(tmp_path / "x.parquet", pa.table(table))
    parquet(tmp_path / "y.parquet", pa.table({"id": [1]}), NOW - 9)
    source = make(tmp_path, "parquet")
    plan = source.plan(None, 100, NOW)
    rows, (letter,) = read(source, plan)
    assert rows == [{"id": 1}]
    assert letter.place == "x.parquet"
    assert re.search(message, letter.error)
    assert source.plan(plan.position, 100, NOW).splits == ()


def test_a_column_that_a_parquet_file_lacks_is_null_and_told_of(tmp_path: Path) -> None:
    parquet(tmp_path / "x.parquet", pa.table({"k": [1], "other": [2]}))
    source = make(tmp_path, "parquet", NAMED)
    plan = source.plan(None, 100, NOW)
    assert read(source, plan) == ([{"name": None, "k": 1}], [])
    assert plan.warnings == ("x.parquet: has no column name; it is null in its records",)


@pytest.mark.parametrize("group", range(4))
@pytest.mark.parametrize("rows_at_once", [10, 1 << 16])
def test_of_a_damaged_parquet_file_all_other_row_groups_are_read(
    tmp_path: Path, group: int, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_reader, "READ_ROWS", rows_at_once)
    path = tmp_path / "x.parquet"
    parquet(path, pa.table({"id": range(400)}), row_group_size=100, use_dictionary=False, write_page_checksum=True)
    column = pq.ParquetFile(path).metadata.row_group(group).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
    put(path, bytes(data))
    source = make(tmp_path, "parquet", exact=True)
    rows, (letter,) = read_uneven(source, source.plan(None, 1000, NOW))
    assert [row["id"] for row in rows] == [number for number in range(400) if number // 100 != group]
    assert letter.place == "x.parquet"
    assert letter.position == 100 * group
    assert f"rows {100 * group} to {100 * group + 99} are damaged" in letter.error


@pytest.mark.parametrize("kind", ["plain", "dictionary", "large"])
def test_text_of_a_parquet_file_that_is_not_utf_8_is_a_dead_letter(kind: str, tmp_path: Path) -> None:
    """As damage leaves it where pages have no checksums. Arrow itself reads it, and so would whoever reads the results."""
    values = [b"plain", b"\xff\xfe", "s\u00fc\u00df".encode(), None, b"\xc3", b""]
    wrong = pa.array(values, pa.large_binary() if kind == "large" else pa.binary())
    text = pa.Array.from_buffers(pa.large_string() if kind == "large" else pa.string(), len(wrong), wrong.buffers())
    parquet(tmp_path / "x.parquet", pa.table({"k": range(6), "name": text}), use_dictionary=kind == "dictionary")
    source = make(tmp_path, "parquet", NAMED)
    rows, letters = read(source, source.plan(None, 100, NOW))
    assert [(row["k"], row["name"]) for row in rows] == [(0, "plain"), (2, "s\u00fc\u00df"), (3, None), (5, "")]
    assert [(letter.position, letter.error) for letter in letters] == [
        (1, r'column name: "\\xff\\xfe" is not a value of STRING'),
        (4, r'column name: "\\xc3" is not a value of STRING'),
    ]
    assert json.loads(letters[0].raw) == {"name": r"\xff\xfe", "k": 1}


def test_an_error_that_is_not_the_file_s_makes_no_dead_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet(tmp_path / "x.parquet", pa.table({"id": [1]}))
    source = make(tmp_path, "parquet")
    plan = source.plan(None, 100, NOW)
    for error, raised in ((OSError(24, "Too many open files"), UnavailableError), (pa.ArrowMemoryError("malloc"), MemoryError)):
        monkeypatch.setattr(type(source.reader.folder), "parquet", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
        with pytest.raises(raised):
            read(source, plan)
        with pytest.raises(raised):
            make(tmp_path, "parquet").plan(None, 100, NOW)


def read_uneven(source: FilesSource, plan: SourcePlan) -> tuple[list[dict[str, Any]], list[Rejected]]:
    """As ``read``, where a dead letter stands for many records."""
    found = [records for split in plan.splits for records in source.reader.read(split)]
    return [row for records in found for row in records.batch.to_pylist()], [item for records in found for item in records.rejected]


def test_what_a_plan_takes_is_about_its_limit_also_without_counting(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / f"{number}.json", "".join(f'{{"id": {i}, "x": "{"y" * (i % 50)}"}}\n' for i in range(20_000)), NOW - 9 + number)
    source = make(tmp_path, "json")

    def sizes() -> Iterator[int]:
        position = None
        while True:
            plan = source.plan(position, 10_000, NOW)
            rows = sum(records.batch.num_rows for split in plan.splits for records in source.reader.read(split))
            assert plan.records == pytest.approx(rows, rel=0.1)
            yield rows
            position = plan.position
            if plan.exhausted:
                return

    found = list(sizes())
    assert sum(found) == 60_000
    assert max(found) < 11_000


def test_a_file_name_that_is_not_text_can_still_be_named(tmp_path: Path) -> None:
    put(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")), "x\n")
    source = make(tmp_path, "json")
    plan = source.plan(None, 100, NOW)
    _, rejected = read(source, plan)
    assert rejected[0].place == "\\udcff.json byte 0"
    assert plan.splits[0].name.encode() == b"\\udcff.json 0-2"
    assert drain(source, json.loads(json.dumps(plan.position))) == ([], plan.position)


def test_a_split_says_where_it_lies(tmp_path: Path) -> None:
    put(tmp_path / "a.json", ids(1), NOW - 9)
    put(tmp_path / "b.json", ids(2), NOW - 8)
    (split,) = make(tmp_path, "json").plan(None, 100, NOW).splits
    assert isinstance(split, FilesSplit)
    assert split.name == "a.json 0-10 and 1 more"
