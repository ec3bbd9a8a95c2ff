"""Queries of results by the join's name, and of streams of joins that come, go and read one another's results: what they answer is DuckDB's
over what sinks were given, or over the input.

Snapshots are stored while the join runs, under plans that change, drivers that die and epochs that fail, on a directory and on storage from
which nothing can be mapped. ``STREAMJOIN_SEED=<seed> pytest tests/test_query_results.py`` runs one case.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import how_many, some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import SECOND, START, Far, Input, driver_for, join_of, make_batch, make_job, manifest_text
from joins import BAND, band_inputs
from random_joins import KINDS
from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.job import Job
from streamjoin.manifest import load
from streamjoin.query.catalog import Catalog
from streamjoin.query.errors import QueryError
from streamjoin.query.execution import asked
from streamjoin.query.messages import Limits
from streamjoin.results.reader import files
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage, Storage
from waiting import PATIENCE_SECONDS

CASES = how_many(24, of=2)
SEED = os.environ.get("STREAMJOIN_SEED")
LIMITS = Limits(seconds=60)


KEYS = {
    "int": "abs(l.k - r.k) <= 1",
    "string": "l.k = r.k",
    "timestamp": "l.k <= r.k",
    "decimal": "abs(l.k - r.k) <= 1.5",
    "date": "l.k = r.k",
}


def make_input(kind: str, rng: random.Random, epochs: int, disorder: int) -> Input:
    """Batches of random tuples whose event times go forward with jumps back of up to ``disorder`` seconds."""
    batches, per_epoch, rid, clock = [], [], 0, START
    for _ in range(epochs):
        per_epoch.append(rng.choice([0, 1, 1, 2, 3]))
        for _ in range(per_epoch[-1]):
            rows = []
            for _ in range(rng.choice([0, 1, 5, 12])):
                clock += rng.randint(0, SECOND)
                at = clock - rng.randint(0, disorder * SECOND)
                rows.append((rid, None if rng.random() < 0.05 else KINDS[kind].value(rng), rng.randint(0, 4), at))
                rid += 1
            batches.append(make_batch(rows, KINDS[kind].arrow))
    return Input(batches, per_epoch)


def rows(job: Job, storage: Storage, sql: str) -> list[tuple[Any, ...]]:
    with asked(storage, Catalog.of(job), sql, LIMITS) as answer:
        return [row for batch in answer.batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]


def predicates(kind: str, rng: random.Random) -> list[str]:
    """What may be asked of the key and of others, in words that DuckDB has alone as well."""
    value = KINDS[kind].value(rng)
    literal = f"'{value}'" if kind in ("string", "date") else f"TIMESTAMPTZ '{value.isoformat()}'" if kind == "timestamp" else str(value)
    return ["true", f"k = {literal}", f"k >= {literal}", f"k < {literal} AND a % 2 = 0", f"k IN ({literal}) OR b < 20", "k IS NULL"]


def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
    rng = random.Random(seed)
    kind, epochs, faults = rng.choice(sorted(KEYS)), rng.choice([3, 8]), rng.random() < 0.6
    far = rng.random() < 0.4
    inputs = (make_input(kind, rng, epochs, 3), make_input(kind, rng, epochs, 3))
    output = {
        "select": ["l.rid AS a", "r.rid AS b", "l.k AS k"],
        "snapshots": rng.choice([{"size": 5}, {"size": 60}, {"every": "1s"}]) | {"key": rng.choice(["k", "a"])},
    }
    join = join_of(root, name="found", on=KEYS[kind], window={"within": "20s"}, output=output)
    job = make_job(root, joins=[join], types=(KINDS[kind].ddl,) * 2, workers=2, watermark="1h")

    def store(url: str) -> Storage:
        return Far(url) if far else ObjectStorage(url)

    meanwhile: dict[int, Counter[tuple[Any, ...]]] = {}

    def between(driver: Driver) -> None:
        epoch = driver.checkpoint.epoch
        if epoch >= 0 and rng.random() < 0.5:
            seen = rows(job, store(str(root / "state")), f"SELECT a, b, _snapshot, _row FROM found AS OF {epoch}")
            named = [row[2:] for row in seen if row[2] is not None]
            assert len({row[:2] for row in seen}) == len(seen), "each result once"
            assert len(set(named)) == len(named), "each name once"
            meanwhile[epoch] = Counter(row[:2] for row in seen)
            counts["asked meanwhile"] += 1
            counts["of one that is open"] += len(named) < len(seen)

    run_with_faults(elastic(job) if faults else job, inputs, root, rng, counts, faults=faults, storage=store, between=between)
    driver = driver_for(job, inputs, store(str(root / "state")), InlineRunner())
    driver.start()
    driver.step(final=True)
    driver.stop()  # what is closed is stored by now
    storage = store(str(root / "state"))
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        written = list((root / "out").glob("*.parquet"))
        if not written:
            with pytest.raises(StopIteration):
                next(iter(rows(job, storage, "SELECT * FROM found")))
            return
        database.execute(f"CREATE TABLE found AS SELECT * FROM read_parquet('{root}/out/*.parquet')")
        names = f"read_parquet('{root}/out/*.parquet', filename = true)"
        of_epoch = "CAST(regexp_extract(filename, 'part-[0-9a-f]+-([0-9]+)-', 1) AS BIGINT)"
        for epoch, seen in meanwhile.items():
            want = Counter(database.execute(f"SELECT a, b FROM {names} WHERE {of_epoch} <= {epoch}").fetchall())
            assert seen == want, f"STREAMJOIN_SEED={seed}: as of epoch {epoch}"
        for predicate in predicates(kind, rng):
            sql = f"SELECT a, b FROM found WHERE {predicate}"
            want = Counter(database.execute(sql).fetchall())
            assert Counter(rows(job, storage, sql)) == want, f"STREAMJOIN_SEED={seed}: {sql}"
            counts["answers"] += bool(want)


@pytest.mark.parametrize("part", some(range(2), of=3))
def test_results_are_those_that_the_sink_was_given(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    run_cases(range(part, CASES, 2) if SEED is None else [int(SEED)] * (part == 0), tmp_path, run_case, counts)
    if SEED is None and CASES >= 24:
        assert min(counts["answers"], counts["asked meanwhile"], counts["of one that is open"]) > 10, counts


def test_a_join_whose_results_are_not_kept_is_no_relation(tmp_path: Path) -> None:
    job = make_job(tmp_path, on=BAND, window={"within": "3s"})
    driver = driver_for(job, band_inputs(), ObjectStorage(str(tmp_path / "state")), InlineRunner())
    driver.start()
    driver.step()
    with pytest.raises(QueryError, match="j: there is no such relation; there are l, r"):
        rows(job, ObjectStorage(str(tmp_path / "state")), "SELECT * FROM j")


def run(job: Job, inputs: Any, root: Path, until: int | None) -> None:
    driver = driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner())
    driver.start()
    while driver.step() is not None:
        if until is not None and driver.checkpoint.epoch >= until:
            break
    driver.stop()


def test_streams_are_whole_where_joins_came_and_went(tmp_path: Path) -> None:
    """The first join holds all tuples, one that came later has a floor without the older ones."""
    inputs = band_inputs()
    joins = {name: join_of(tmp_path / name, name=name, on=BAND, window={"unbounded": True}) for name in "abc"}
    taken = [0, 0]
    for there, until in (("a", 2), ("ab", 4), ("b", 5), ("bc", None)):
        job = make_job(tmp_path, joins=[joins[name] for name in there], workers=2)
        run(job, inputs, tmp_path, until)
        storage = ObjectStorage(str(tmp_path / "state"))
        records = [sum(batch.num_rows for batches in one.epochs()[: (until or 99) + 1] for batch in batches) for one in inputs]
        since = [0, 0] if "a" in there else taken
        for name, one, begin, end in zip("lr", inputs, since, records, strict=True):
            arrived = pa.Table.from_batches(one.batches).slice(begin, end - begin)
            want = sorted(arrived.filter(arrived.column("k").is_valid()).column("rid").to_pylist())
            assert [rid for (rid,) in rows(job, storage, f"SELECT rid FROM {name} ORDER BY rid")] == want
        if there == "a":
            taken = records


def test_streams_of_results_are_asked_like_others(tmp_path: Path) -> None:
    common = {"eventTime": "at", "watermark": "1h"}
    common |= {"schema": "rid BIGINT, k BIGINT, v INT, at TIMESTAMP"}
    files = {name: {"files": {"path": str(tmp_path / name), "format": "json"}} for name in "lrm"}
    streams: list[dict[str, Any]] = [{"name": name, "source": source} | common for name, source in files.items()]
    streams.append({"name": "pairs", "source": {"join": "first"}, "eventTime": "at"})
    first = join_of(tmp_path / "first", name="first", on="l.k = r.k", window={"within": "9h"})
    first["output"]["select"] = ["l.rid AS a", "r.rid AS b", "l.k AS k", "l.at AS at"]
    second = join_of(tmp_path / "second", name="second", on="pairs.k = m.k", window={"within": "9h"})
    second["output"]["select"] = ["pairs.a", "pairs.b", "m.rid AS c"]
    job = make_job(tmp_path, streams=streams, joins=[first, second], workers=2)
    left, right = band_inputs()
    run(replace(job), [left, right, left, None], tmp_path, None)
    storage = ObjectStorage(str(tmp_path / "state"))
    with duckdb.connect() as database:
        written = database.execute(f"SELECT a, b FROM read_parquet('{tmp_path}/first/out/*.parquet') ORDER BY 1, 2").fetchall()
    assert rows(job, storage, "SELECT a, b FROM pairs ORDER BY 1, 2") == written != []
    assert rows(job, storage, "SELECT count(*) FROM l") == rows(job, storage, "SELECT count(*) FROM m")


def test_results_are_followed_as_snapshots_come_and_gone_on_with(tmp_path: Path) -> None:
    inputs = band_inputs()
    output = {"select": ["l.rid AS a", "r.rid AS b"], "snapshots": {"size": 20, "key": "a"}}
    text = manifest_text(tmp_path, joins=[join_of(tmp_path, name="found", on=BAND, window={"within": "3s"}, output=output)], watermark="2s")
    job, manifest = compile_job(load(text)), tmp_path / "found.yaml"
    manifest.write_text(text)
    run(job, inputs, tmp_path, 3)
    command = [sys.executable, "-m", "streamjoin", "query", str(manifest), "SELECT a, b, _snapshot FROM found WHERE a >= 0", "--json"]
    with subprocess.Popen([*command, "--follow", "--after", "-1"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())["_snapshot"]
        run(job, inputs, tmp_path, None)
        last = max(row for (row,) in rows(job, ObjectStorage(str(tmp_path / "state")), "SELECT _snapshot FROM found"))
        found = [first]
        while found[-1] < last:
            found.append(json.loads(process.stdout.readline())["_snapshot"])
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
    found += [json.loads(line)["_snapshot"] for line in rest.splitlines()]
    whole = Counter(row for (row,) in rows(job, ObjectStorage(str(tmp_path / "state")), "SELECT _snapshot FROM found"))
    assert Counter(found) == whole
    later = subprocess.run([*command, "--after", str(last - 1)], capture_output=True, text=True, check=True).stdout.splitlines()
    assert Counter(json.loads(line)["_snapshot"] for line in later) == {last: whole[last]}


class Meanwhile(ObjectStorage):
    """Something happens before the first index of snapshots is listed: after a query has read its commit."""

    def __init__(self, url: str, happens: Callable[[], Any]) -> None:
        super().__init__(url)
        self._happens: list[Callable[[], Any]] = [happens]

    def list(self, prefix: str) -> list[str]:
        if self._happens and prefix.endswith("/index"):
            self._happens.pop()()
        return super().list(prefix)


def test_a_snapshot_that_is_ended_and_stored_between_a_querys_commit_and_its_files_is_there_once(tmp_path: Path) -> None:
    output = {"select": ["l.rid AS a", "r.rid AS b"], "snapshots": {"every": "1h"}}
    join = join_of(tmp_path, name="found", on=BAND, window={"within": "3s"}, output=output)
    job, inputs = make_job(tmp_path, joins=[join], watermark="2s"), band_inputs()
    driver = driver_for(job, inputs, ObjectStorage(job.checkpoint), InlineRunner())
    driver.start()
    epoch = len(inputs[0].epochs()) - 1
    while driver.checkpoint.epoch < epoch:
        driver.step()

    def end() -> None:
        driver.step(final=True)
        driver.stop()
        assert driver.checkpoint.epoch == epoch, "by a commit without an epoch"

    seen = rows(job, Meanwhile(job.checkpoint, end), "SELECT a, b FROM found")
    assert Counter(seen) == Counter(rows(job, ObjectStorage(job.checkpoint), "SELECT a, b FROM found"))
    assert seen


def test_a_query_of_a_damaged_file_names_it(tmp_path: Path) -> None:
    output = {"select": ["l.rid AS a", "r.rid AS b"], "snapshots": {"every": "1h"}}
    job = make_job(tmp_path, joins=[join_of(tmp_path, name="found", on=BAND, window={"within": "3s"}, output=output)], watermark="2s")
    driver, storage = driver_for(job, band_inputs(), ObjectStorage(job.checkpoint), InlineRunner()), ObjectStorage(job.checkpoint)
    driver.start()
    while driver.step(final=True) is not None:
        pass
    driver.stop()
    (file,) = files(storage, "found")
    written = Path(job.checkpoint, file.path).read_bytes()
    column = pq.ParquetFile(pa.BufferReader(written)).metadata.row_group(0).column(0)
    last = column.data_page_offset + column.total_compressed_size - 1
    for at in (last, len(written) - 1):  # in a page, and in the footer
        Path(job.checkpoint, file.path).write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])
        with pytest.raises(QueryError, match=rf"{re.escape(file.path)}: damaged: .* It has {file.rows} results of the snapshots 0 to 0"):
            rows(job, storage, "SELECT * FROM found")


@pytest.mark.parametrize("sql", ["SELECT * FROM l", "SELECT 1"])
def test_what_is_followed_must_be_one_joins_results(sql: str, tmp_path: Path) -> None:
    job = make_job(tmp_path, on=BAND, window={"within": "3s"})
    run(job, band_inputs(), tmp_path, 1)
    storage, refused = ObjectStorage(str(tmp_path / "state")), "FROM must name one join whose results are kept; there is none: give joins"
    with pytest.raises(QueryError, match=refused), asked(storage, Catalog.of(job), sql, LIMITS, after=3):
        pass


def test_a_refusal_names_the_epochs_whose_results_are_there(tmp_path: Path) -> None:
    """An epoch may be there whose snapshot, which had not ended yet, has parts in entries of the log that nobody else needs."""
    rng = random.Random(5)
    output = {"select": ["l.rid AS a", "r.rid AS b"], "snapshots": {"every": "1s", "key": "a"}}
    join = join_of(tmp_path, name="found", on=KEYS["int"], window={"within": "20s"}, output=output)
    job = make_job(tmp_path, joins=[join], types=(KINDS["int"].ddl,) * 2, workers=1, watermark="1h")
    now = [1_700_000_000.0]

    def clock() -> float:
        now[0] += 0.02
        return now[0]

    storage = ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(
        job, (make_input("int", rng, 65, 4), make_input("int", rng, 65, 4)), storage, InlineRunner(), clock=clock, in_background=False
    )
    driver.start()
    while driver.step() is not None:
        pass
    for sql in ("SELECT a FROM found", "SELECT count(*) FROM l", "SELECT count(*) FROM found, l"):
        there, refusals = [], set[str]()
        for epoch in range(driver.checkpoint.epoch + 1):
            try:
                rows(job, storage, f"{sql} AS OF {epoch}")
                there.append(epoch)
            except QueryError as error:
                refusals.add(re.sub(r".*cannot be read; epochs? (.*) (?:is|are) there.*", r"\1", str(error)))
        (listed,) = refusals
        ends = [each.split(" to ") for each in listed.split(", ")]
        assert there == [epoch for each in ends for epoch in range(int(each[0]), int(each[-1]) + 1)], sql
    driver.stop()
