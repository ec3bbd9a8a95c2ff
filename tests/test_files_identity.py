"""Files that are rewritten, cut, renamed and made anew between plans: each row once, except what was taken away before it was read."""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import how_many
from harness import MemorySnapshots
from streamjoin.io import files, files_plan, seen
from streamjoin.io.base import Position, SourceError, SourcePlan, UnavailableError
from streamjoin.io.factory import make_source
from streamjoin.io.files import FilesSource
from streamjoin.io.files_reader import FilesSourceConfig
from streamjoin.language.ddl import parse_schema
from streamjoin.manifest.sources import FilesSource as FilesModel

NOW = 2_000_000_000.0
ID = pa.schema([("id", pa.int64())])


def make(root: Path, kind: str = "json", *, exact: bool = False, snapshots: MemorySnapshots | None = None, **config: Any) -> FilesSource:
    return FilesSource(FilesSourceConfig(str(root), kind, **config), ID, snapshots or MemorySnapshots(), exact)


def rows(source: FilesSource, plan: SourcePlan) -> list[int]:
    return [value for split in plan.splits for records in source.reader.read(split) for value in records.batch.column("id").to_pylist()]


def committed(plan: SourcePlan) -> Position:
    position: Position = json.loads(json.dumps(plan.position))
    return position


def drain(source: FilesSource, position: Position | None = None, now: float = NOW) -> tuple[list[int], Position, list[str]]:
    """All rows from a position on, where that leads, and what was warned of."""
    found: list[int] = []
    warnings: list[str] = []
    for _ in range(100):
        plan = source.plan(position, 10**6, now)
        position = committed(plan)
        found += rows(source, plan)
        warnings += plan.warnings
        if plan.exhausted:
            return found, position, warnings
    raise AssertionError("the source is never exhausted")


def lines(*values: int) -> bytes:
    """Rows as JSON, all as long as each other."""
    return b"".join(b'{"id": %6d}\n' % value for value in values)


def put(path: Path, data: bytes, at: float = NOW - 1000) -> Path:
    path.write_bytes(data)
    os.utime(path, (at, at))
    return path


def parquet(path: Path, values: list[int], at: float = NOW - 1000) -> Path:
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), path, compression="none", row_group_size=2)
    os.utime(path, (at, at))
    return path


@dataclass
class Content:
    """A file as the reference knows it: what it has, and how many of its rows were read."""

    values: list[int] = field(default_factory=list)
    read: int = 0


class Folder:
    """The slow reference: performs what writers do on the disk, and says which rows are to come of it."""

    def __init__(self, root: Path, kind: str, generator: random.Random) -> None:
        self.root, self.kind, self.generator = root, kind, generator
        self.by_name: dict[str, Content] = {}
        self.lost: set[int] = set()
        self.next = 100_000
        self.now = NOW

    def fresh(self, count: int) -> list[int]:
        first, self.next = self.next, self.next + count
        return list(range(first, self.next))

    def write(self, name: str, content: Content, mode: str = "wb") -> None:
        """In place, so that the inode stays where there is one."""
        self.now += 1
        path = self.root / name
        if self.kind == "parquet":
            parquet(path, content.values, self.now)
            return
        text = lines(*content.values) if self.kind == "json" else b"id\n" + b"".join(b"%d\n" % value for value in content.values)
        data = text[path.stat().st_size :] if mode == "ab" else text
        with open(path, mode) as file:
            file.write(data)
        os.utime(path, (self.now, self.now))

    def forget(self, name: str) -> None:
        content = self.by_name.pop(name)
        self.lost |= set(content.values[content.read :])

    def append(self, name: str) -> None:
        if self.kind != "parquet":
            self.by_name[name].values += self.fresh(self.generator.randint(1, 200))
            self.write(name, self.by_name[name], "ab")

    def rewrite(self, name: str) -> None:
        count = len(self.by_name[name].values)
        self.forget(name)
        size = self.generator.choice([count, self.generator.randint(1, count + 1), count + self.generator.randint(1, 200)])
        self.by_name[name] = Content(self.fresh(size))
        self.write(name, self.by_name[name])

    def touch(self, name: str) -> None:
        self.now += 1
        os.utime(self.root / name, (self.now, self.now))

    def save(self, name: str) -> None:
        """As rsync and editors do: all of it, with more where it may grow, under a new inode. To be planned before and after: a rename and
        a new inode at once are not followed."""
        if self.kind != "parquet":
            self.by_name[name].values += self.fresh(3)
        self.write(f"_{name}", self.by_name[name])
        os.replace(self.root / f"_{name}", self.root / name)

    def remove(self, name: str) -> None:
        self.forget(name)
        (self.root / name).unlink()

    def recreate(self, name: str) -> None:
        self.remove(name)
        self.create(name)

    def create(self, name: str) -> None:
        self.by_name[name] = Content(self.fresh(self.generator.choice([1, 2, 50, 400])))
        self.write(name, self.by_name[name])

    def cut(self, name: str) -> None:
        """copytruncate, the copy elsewhere."""
        if self.kind != "json":
            self.rewrite(name)
            return
        self.forget(name)
        self.by_name[name] = Content()
        self.write(name, self.by_name[name])
        if self.generator.random() < 0.7:
            self.append(name)

    def rotate(self, name: str) -> None:
        """All generations by one, the third of them is removed; some number of times, with a new file or not."""
        if self.kind == "parquet":
            return
        for _ in range(self.generator.choice([1, 1, 2])):
            for old, new in ((f"{name}.2", f"{name}.3"), (f"{name}.1", f"{name}.2"), (name, f"{name}.1")):
                if old in self.by_name:
                    if new in self.by_name:
                        self.remove(new)
                    os.rename(self.root / old, self.root / new)
                    self.by_name[new] = self.by_name.pop(old)
            if self.generator.random() < 0.7:
                self.create(name)


ACTIONS = ("append", "append", "rewrite", "touch", "save", "remove", "recreate", "cut", "rotate", "rotate")


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
@pytest.mark.parametrize("seed", range(how_many(8, of=2)))
def test_each_row_is_read_once_whatever_writers_do_to_their_files(
    tmp_path: Path, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = random.Random(f"{kind} {seed}")
    print("seed", seed)
    monkeypatch.setattr(seen, "DELTA_ENTRIES", generator.choice([2, 1000]))
    monkeypatch.setattr(files_plan, "LEAST_SPLIT_RECORDS", generator.choice([7, 100_000]))
    monkeypatch.setattr(files, "HOT_SECONDS", generator.choice([0.0, 60.0]))
    snapshots, exact = MemorySnapshots(), kind == "parquet" or generator.random() < 0.5

    def fresh() -> FilesSource:
        return make(tmp_path, kind, exact=exact, snapshots=snapshots, max_files_per_epoch=generator.choice([2, 50]))

    folder, found, history = Folder(tmp_path, kind, generator), Counter[int](), list[str]()
    source, position, warned = fresh(), None, 0

    def take(limit: int, now: float) -> bool:
        nonlocal position, warned
        plan = source.plan(position, limit, now)
        new = rows(source, plan)
        found.update(new)
        for content in folder.by_name.values():
            values = set(content.values)
            content.read += len(values.intersection(new))
        if plan.splits:  # what is idle is not committed
            position, warned = committed(plan), plan.replacements
        return plan.exhausted

    for _ in range(120):
        names = sorted(folder.by_name)
        if len(names) < 3:
            name, action = f"f{generator.randrange(4)}", "create"
            if name in folder.by_name:
                continue
        else:
            name, action = generator.choice(names), generator.choice(ACTIONS)
            name = name.split(".")[0] if action == "rotate" else name
        history.append(f"{action} {name}")
        while action == "save" and not take(10**6, folder.now + 100):
            pass
        getattr(folder, action)(name)
        while action == "save" and not take(10**6, folder.now + 100):
            pass
        if generator.random() < 0.1:
            source = fresh()
            history.append("restart")
        for _ in range(generator.choice([0, 1, 1, 3])):
            history.append("plan")
            take(generator.choice([5, 10**6]), folder.now + 0.5)
            # Rows that were read partly: a plan takes each file from its front.
    for _ in range(100):
        if take(10**6, folder.now + 100):
            break
    there = {value for content in folder.by_name.values() for value in content.values}
    everything = set(range(100_000, folder.next))
    assert [value for value, times in found.items() if times > 1] == [], f"{seed} {history}"
    assert there - found.keys() == set(), f"{seed} {history}"
    assert everything - found.keys() <= folder.lost, f"{seed} {history}"
    assert found.keys() & folder.lost == set(), f"{seed} {history}"


@pytest.mark.parametrize("count", [3, 500], ids=["small", "large"])
@pytest.mark.parametrize("size", ["shorter", "as long", "longer"])
@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_a_file_that_was_replaced_is_read_from_its_beginning_and_named(tmp_path: Path, kind: str, size: str, count: int) -> None:
    folder = Folder(tmp_path, kind, random.Random(0))
    folder.by_name["x"] = Content(folder.fresh(count))
    folder.write("x", folder.by_name["x"])
    source = make(tmp_path, kind)
    found, position, _ = drain(source)
    assert found == folder.by_name["x"].values
    folder.by_name["x"] = new = Content(folder.fresh({"shorter": count - 1, "as long": count, "longer": count + 70}[size]))
    folder.write("x", new)
    for again in (source, make(tmp_path, kind)):
        plan = again.plan(position, 10**6, NOW + 50)
        assert rows(again, plan) == new.values
        assert plan.replacements == 1
        (warning,) = plan.warnings
        assert warning.startswith(f"x: has {(tmp_path / 'x').stat().st_size} bytes now")
        assert "was replaced or cut, and it is read from its beginning, as a new file" in warning
        after = again.plan(committed(plan), 10**6, NOW + 60)
        assert (after.splits, after.warnings, after.replacements, after.exhausted) == ((), (), 1, True)


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_file_that_was_replaced_is_refused_where_the_manifest_says_so(tmp_path: Path, kind: str) -> None:
    folder = Folder(tmp_path, kind, random.Random(0))
    folder.by_name["x"] = Content(folder.fresh(50))
    folder.write("x", folder.by_name["x"])
    source = make(tmp_path, kind, on_replaced="refuse")
    _, position, _ = drain(source)
    folder.write("x", Content(folder.fresh(90)))
    plan = source.plan(position, 10**6, NOW + 50)
    assert (plan.splits, plan.exhausted, plan.replacements) == ((), True, 0)
    assert "it is not read any more, as files.onReplaced is refuse" in plan.warnings[0]
    assert source.plan(committed(plan), 10**6, NOW + 60).warnings == ()


def test_a_file_that_was_only_touched_or_saved_anew_is_looked_into_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "x", lines(1, 2))
    source = make(tmp_path)
    _, position, _ = drain(source)
    put(tmp_path / "x", lines(1, 2), NOW - 10)
    plan = source.plan(position, 10, NOW)
    assert (plan.splits, plan.warnings, plan.exhausted) == ((), (), True)
    monkeypatch.setattr(type(source.reader.folder), "open", None)
    assert source.plan(position, 10, NOW).exhausted


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_positions_of_former_releases_are_read_on(tmp_path: Path, kind: str) -> None:
    """They have only sizes."""
    folder = Folder(tmp_path, kind, random.Random(0))
    folder.by_name["x"] = Content(folder.fresh(5))
    folder.write("x", folder.by_name["x"])
    size = (tmp_path / "x").stat().st_size
    old = {"base": [], "files": {"x": size}, "records": 5, "density": 10.0}
    assert drain(make(tmp_path, kind), old)[0] == []
    if kind == "parquet":
        assert drain(make(tmp_path, kind), old | {"files": {"x": [size, 1]}})[0] == folder.by_name["x"].values[2:]
    else:
        folder.append("x")
        assert drain(make(tmp_path, kind), old)[0] == folder.by_name["x"].values[5:]
    folder.write("x", Content([1]))
    found, _, warnings = drain(make(tmp_path, kind), old)
    assert found == [1]
    assert len(warnings) == 1


def test_a_renamed_file_is_read_on_and_the_new_one_of_its_name_from_its_beginning(tmp_path: Path) -> None:
    put(tmp_path / "app.1", lines(1, 2, 3))
    put(tmp_path / "app", lines(4, 5))
    source = make(tmp_path)
    found, position, _ = drain(source)
    assert sorted(found) == [1, 2, 3, 4, 5]
    put(tmp_path / "app", lines(4, 5, 6), NOW - 9)
    os.rename(tmp_path / "app.1", tmp_path / "app.2")
    os.rename(tmp_path / "app", tmp_path / "app.1")
    # Begins like the one before, which only its inode tells from it.
    put(tmp_path / "app", lines(4, 5, 7), NOW - 8)
    for again in (source, make(tmp_path)):
        found, after, warnings = drain(again, position)
        assert sorted(found) == [4, 5, 6, 7]
        assert warnings == []
    os.rename(tmp_path / "app", tmp_path / "app-2026")
    assert drain(source, after)[::2] == ([], [])


def test_a_file_that_got_the_inode_of_a_removed_one_is_a_new_file(tmp_path: Path) -> None:
    path = put(tmp_path / "x", lines(1, 2))
    source = make(tmp_path)
    _, position, _ = drain(source)
    put(path, lines(8, 9, 10))
    os.rename(path, tmp_path / "y")  # of the same inode, with other content
    assert drain(source, position)[0] == [8, 9, 10]


def test_a_file_that_is_renamed_between_plan_and_read_is_read_under_its_new_name(tmp_path: Path) -> None:
    put(tmp_path / "app", lines(1, 2))
    source = make(tmp_path)
    plan = source.plan(None, 10, NOW)
    os.rename(tmp_path / "app", tmp_path / "app.1")
    assert rows(source, plan) == [1, 2]
    put(tmp_path / "app", lines(3, 4, 5))
    assert rows(source, plan) == [1, 2]
    assert drain(source, committed(plan))[0] == [3, 4, 5]


def test_a_file_that_is_replaced_between_plan_and_read_has_the_epoch_planned_again(tmp_path: Path) -> None:
    put(tmp_path / "x", lines(1, 2))
    source = make(tmp_path)
    plan = source.plan(None, 10, NOW)
    put(tmp_path / "x", lines(7, 8, 9), NOW)
    with pytest.raises(UnavailableError, match="x: was replaced or cut after it was chosen for reading"):
        rows(source, plan)
    assert drain(source)[0] == [7, 8, 9]
    (tmp_path / "x").unlink()
    with pytest.raises(SourceError, match="vanished"):
        rows(source, plan)


def test_a_file_that_is_renamed_while_the_directory_is_listed_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "app", lines(1, 2))
    source = make(tmp_path)
    _, position, _ = drain(source)
    os.rename(tmp_path / "app", tmp_path / "app.1")
    put(tmp_path / "app", lines(3, 4, 5))
    folder = type(source.reader.folder)
    scan, calls = folder.scan, []

    def late(self: Any, **options: Any) -> Any:
        calls.append(1)
        return [entry for entry in scan(self, **options) if entry.name == "app" or len(calls) > 1]

    monkeypatch.setattr(folder, "scan", late)
    assert drain(source, position)[::2] == ([3, 4, 5], [])


def test_files_in_directories_below_are_followed_too(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    put(tmp_path / "a" / "b" / "app", lines(1, 2))
    put(tmp_path / "app", lines(11))
    source = make(tmp_path)
    found, position, _ = drain(source)
    assert sorted(found) == [1, 2, 11]
    (tmp_path / "c").mkdir()
    os.rename(tmp_path / "a" / "b" / "app", tmp_path / "c" / "app.1")
    put(tmp_path / "a" / "b" / "app", lines(3, 4, 5))
    with (tmp_path / "c" / "app.1").open("ab") as file:
        file.write(lines(6))
    found, position, warnings = drain(make(tmp_path), position, NOW + 10**9)
    assert (sorted(found), warnings) == ([3, 4, 5, 6], [])
    put(tmp_path / "a" / "b" / "app", lines(7))
    found, _, (warning,) = drain(source, position)
    assert found == [7]
    assert "a/b/app: has 15 bytes now, and is not what it was" in warning


def test_a_position_has_few_bytes_for_a_file(tmp_path: Path) -> None:
    for number in range(100):
        put(tmp_path / f"{number:03d}", lines(number))
    _, position, _ = drain(make(tmp_path))
    assert len(json.dumps(position["files"])) < 100 * 52


@pytest.mark.parametrize("path", ["{}", "{}/*.jso?", "{}/a[[]1*", "{}/a[1.json"])
def test_a_path_may_be_a_directory_or_names_in_it_or_one_file(tmp_path: Path, path: str) -> None:
    put(tmp_path / "a[1.json", lines(1))
    model = FilesModel(path=path.format(tmp_path), format="json")
    directory, pattern = model.names
    assert (directory, pattern) == ((str(tmp_path), path.partition("/")[2]) if "*" in path else (model.path, "*"))
    compiled = model.model_copy(update={"path": directory, "pattern": pattern})
    source = make_source(compiled, parse_schema("id BIGINT"), None, snapshots=MemorySnapshots(), exact_counts=False)
    assert isinstance(source, FilesSource)
    assert drain(source)[0] == [1]
    assert source.config.path == str(tmp_path)


def test_the_manifest_s_fields_reach_the_source() -> None:
    given = {"path": "in", "format": "json", "settle": "never", "onReplaced": "refuse"}
    model = FilesModel.model_validate(given)
    source = make_source(model, parse_schema("id BIGINT"), None, snapshots=MemorySnapshots(), exact_counts=False)
    assert isinstance(source, FilesSource)
    assert (source.config.settle_seconds, source.config.on_replaced) == (math.inf, "refuse")
    assert model.model_dump(mode="json", by_alias=True)["settle"] == "never"
    with pytest.raises(ValueError, match="is not a duration"):
        FilesModel.model_validate(given | {"settle": "ever"})
