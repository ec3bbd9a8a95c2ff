"""What queries may say and what they are told: refusals with remedies, what is read of blocks, epochs, and blocks that go meanwhile."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from cases import some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import SECOND, START, Far, Input, driver_for, make_batch, make_job, micros
from random_joins import Features, Oracle, Stream, drawn, job_of
from streamjoin.controlplane.driver import Driver
from streamjoin.job import Job
from streamjoin.query.catalog import Catalog
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.execution import asked
from streamjoin.query.held import held_streams
from streamjoin.query.messages import Limits
from streamjoin.query.relation import Rows, Wanted
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.blocks import load_all
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage, Storage
from test_query import History, watermark

pytestmark = pytest.mark.xdist_group("sql")  # one join for all
OPTIONS: dict[str, Any] = {
    "on": "abs(l.k - CAST(r.k AS BIGINT)) <= 1",
    "types": ("BIGINT", "STRING"),
    "window": {"within": "1h"},
    "output": {"select": ["l.rid AS a", "r.rid AS b", "l.k AS k", "r.at AS at", "l.v AS v"]},
}
LIMITS = Limits(seconds=60)


class Asked:
    """A join that has committed some epochs."""

    def __init__(self, root: Path, *, epochs: int = 6, rows: int = 400, remote: bool = False) -> None:
        rng = random.Random(3)

        def one(key: Callable[[], Any], key_type: pa.DataType) -> Input:
            batches = []
            for epoch in range(epochs):
                numbers = range(epoch * rows, (epoch + 1) * rows)
                batches.append(make_batch([(rid, key(), rid % 7, START + epoch * SECOND + rid) for rid in numbers], key_type))
            return Input(batches, [1] * epochs)

        self.root = root
        self.job: Job = make_job(root, **OPTIONS)
        self.inputs = one(lambda: rng.randrange(1000), pa.int64()), one(lambda: str(rng.randrange(1000)), pa.string())
        self.storage: Storage = (Far if remote else ObjectStorage)(str(root / "state"))
        self.driver = driver_for(self.job, self.inputs, self.storage, InlineRunner())
        self.catalog = Catalog.of(self.job)

    def run(self, epochs: int) -> Asked:
        if self.driver.checkpoint.epoch < 0:
            self.driver.start()
        for _ in range(epochs):
            assert self.driver.step() is not None
        return self

    def rows(self, sql: str, limits: Limits = LIMITS) -> list[dict[str, Any]]:
        return self.ask(sql, limits)[0]

    def ask(self, sql: str, limits: Limits = LIMITS) -> tuple[list[dict[str, Any]], dict[str, Rows]]:
        with asked(self.storage, self.catalog, sql, limits) as answer:
            return [row for batch in answer.batches for row in batch.to_pylist()], answer.read

    def refused(self, sql: str, limits: Limits = LIMITS) -> QueryError:
        with pytest.raises(QueryError) as caught:
            self.ask(sql, limits)
        return caught.value


@pytest.fixture(scope="module")
def join(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(tmp_path_factory.mktemp("join")).run(4)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM orders", "orders: there is no such relation; there are l, r"),
        ("SELECT * FROM main.l", "main.l: there is no such relation; there are l, r"),
        ("SELECT * FROM '/etc/passwd'", "there is no such relation; there are l, r"),
        ("SELECT * FROM read_csv('/etc/passwd')", "is a table function; FROM takes l, r, and range and unnest"),
        ("SELECT * FROM query('SELECT 1')", "is a table function"),
        ("SELECT * FROM query_table('l')", "is a table function"),
        ("SELECT * FROM l, LATERAL query('SELECT * FROM l')", "is a table function"),
        ("SELECT * FROM (SUMMARIZE l)", "SELECT * ... LIMIT 0 has the columns"),
        ("SELECT * FROM arrow_scan(1, 2, 3)", "is a table function"),
        ("SELECT * FROM duckdb_settings()", "is a table function"),
        ("SELECT * FROM information_schema.tables", "there is no such relation"),
        ("SELECT nothing FROM l", 'Referenced column "nothing" not found in FROM clause!; l has the columns rid, k, v, _time, _key'),
        ("SELECT FROM WHERE", "the query cannot be parsed"),
        ("SELECT v FROM l WHERE k =", "the query cannot be parsed at line 1, column 25: an operand or an argument is missing;"),
        ("SELECT 1; SELECT 2", "the query has 2 statements; write one SELECT"),
        ("", "the query has 0 statements"),
        ("DROP TABLE l", "only a single SELECT is answered"),
        ("INSERT INTO l VALUES (1)", "only a single SELECT is answered"),
        ("SET threads = 9", "only a single SELECT is answered"),
        ("COPY l TO '/tmp/l.csv'", "only a single SELECT is answered"),
        ("ATTACH '/tmp/x.db'", "only a single SELECT is answered"),
        ("INSTALL httpfs", "only a single SELECT is answered"),
        ("PRAGMA version", "only a single SELECT is answered"),
        ("EXPLAIN SELECT * FROM l", "only a single SELECT is answered"),
        ("SELECT * FROM (PIVOT l ON k USING sum(v))", "use GROUP BY"),
        ("SELECT * FROM l WHERE k = ?", "write the value in its place"),
        ("SELECT * FROM l WHERE k = 'x'", "Could not convert string 'x'"),
        ("SELECT * FROM l AS OF yesterday", "AS OF yesterday: must be the number of an epoch"),
        ("SELECT " + "(" * 3000 + "1" + ")" * 3000, "nested too deeply"),
        ("SELECT 1 --" + "x" * 70_000, "characters and may have"),
    ],
)
def test_what_is_wrong_with_a_query_is_said_with_the_remedy(join: Asked, sql: str, expected: str) -> None:
    error = join.refused(sql)
    assert expected in str(error)
    assert error.why is Why.WRONG


def test_nothing_but_the_join_can_be_read_whatever_the_text_looks_like(join: Asked, tmp_path: Path) -> None:
    """Also where our own reading of the text were fooled, DuckDB has no files, no network, no extensions and locked settings."""
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for sql in (
        f"SELECT (SELECT max(a) FROM '{secret}')",
        f"WITH c AS (FROM read_text('{secret}')) SELECT * FROM c",
        f"SELECT * FROM l WHERE k IN (FROM glob('{tmp_path}/*'))",
        f"SELECT * FROM l, LATERAL (SELECT * FROM read_blob('{secret}')) x",
        "SELECT getenv('HOME')",
    ):
        assert join.refused(sql).why is Why.WRONG
    secret_table = pa.table({"a": [1]})  # noqa: F841 - no variable of this process is a relation
    assert "there is no such relation" in str(join.refused("SELECT * FROM secret_table"))


def test_a_column_named_at_needs_no_quotes(join: Asked) -> None:
    (row,) = join.rows("SELECT min(at) AS at, max(r.at) AS latest FROM r WHERE at >= '2023-11-14' AND at AT TIME ZONE 'UTC' < '2024-01-01'")
    assert row["at"] == pa.scalar(START, pa.timestamp("us", "UTC")).as_py()
    assert join.rows("SELECT 'at' AS x, at FROM r ORDER BY at LIMIT 1")[0]["x"] == "at"


def test_a_range_of_keys_reads_the_blocks_parts_that_have_it(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for size in ("WHOLE_BYTES", "ROOT_BYTES", "CELL_BYTES"):
            patch.setattr(f"streamjoin.state.blocks.{size}", 128)
        far = Asked(tmp_path, rows=2000, remote=True).run(4)
    for where in ("k = 500", "k BETWEEN 500 AND 501", "_key IN (3, 4)"):
        rows, read = far.ask(f"SELECT rid, k FROM l WHERE {where}")
        assert rows
        assert read["l"].nbytes < read["l"].all_nbytes / 4, where
    rows, read = far.ask("SELECT rid FROM l WHERE v = 3")
    assert read["l"].nbytes > read["l"].all_nbytes / 2
    assert "and may fetch 1,024; ask" in str(far.refused("SELECT * FROM l", Limits(fetch_bytes=1 << 10)))


def test_a_range_of_time_leaves_out_the_blocks_of_other_times(join: Asked) -> None:
    _, all_read = join.ask("SELECT count(*) FROM r")
    _, read = join.ask("SELECT count(*) FROM r WHERE at >= TIMESTAMPTZ '2023-11-14 22:13:23+00'")
    assert read["r"].files < all_read["r"].files == read["r"].all_files


def test_an_answer_is_of_the_epoch_that_it_asks_for_or_says_which_there_are(tmp_path: Path) -> None:
    join = Asked(tmp_path, epochs=60, rows=3)
    join.driver.start()
    assert "nothing is committed yet" in str(join.refused("SELECT * FROM l"))
    join.run(3)
    assert [join.rows(f"SELECT count(*) AS n FROM l AS OF {epoch}")[0]["n"] for epoch in range(3)] == [3, 6, 9]
    assert join.rows("SELECT count(*) AS n FROM l as of 1;")[0]["n"] == 6
    error = join.refused("SELECT * FROM l AS OF 3")
    assert error.why is Why.ABSENT
    assert "epochs 0 to 2 are there" in str(error)
    join.run(57)
    assert "AS OF 1: cannot be read; epochs " in str(join.refused("SELECT * FROM l AS OF 1"))
    assert join.rows("SELECT count(*) AS n FROM l AS OF 59")[0]["n"] == 180


def test_a_checkpoint_of_another_join_is_not_read(join: Asked, tmp_path: Path) -> None:
    other = make_job(join.root, **(OPTIONS | {"output": {"select": ["l.rid AS a"]}}))
    said = r"spec.streams\[0\].select: the manifest says rid, and the checkpoint in .* rid, k, v; use its own manifest"
    with pytest.raises(QueryError, match=said):
        asked(join.storage, Catalog.of(other), "SELECT 1 FROM l", LIMITS).__enter__()


class Behind(Far):
    """Before a reader gets a block, in its first attempts, the driver has gone on for some epochs, and removed what those have replaced."""

    def __init__(self, url: str, driver: Driver, attempts: int) -> None:
        super().__init__(url)
        self._driver, self._left, self._lock = driver, attempts + 1, threading.Lock()

    def list(self, prefix: str) -> list[str]:
        self._left -= prefix == "log"
        return super().list(prefix)

    def get_ranges(self, path: str, ranges: Any) -> Any:
        with self._lock:
            while self._left > 0 and path.startswith("blocks/") and (self.root / path).exists():
                assert self._driver.step() is not None
        return super().get_ranges(path, ranges)


@pytest.mark.parametrize(("times", "is_answered"), [(1, True), (2, True), (3, False)])
def test_a_query_whose_blocks_go_meanwhile_begins_again_on_the_newer_commit(tmp_path: Path, times: int, is_answered: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", 0)
        patch.setattr("streamjoin.controlplane.garbage.AT_ONCE", 1)
        patch.setattr("streamjoin.query.execution.ATTEMPTS", 3)
        join = Asked(tmp_path, epochs=200, rows=5).run(2)
        join.storage = Behind(str(tmp_path / "state"), join.driver, times)
        if is_answered:
            with asked(join.storage, join.catalog, "SELECT count(*) AS n FROM l", LIMITS) as answer:
                (row,) = [row for batch in answer.batches for row in batch.to_pylist()]
            assert row["n"] == 5 * (answer.epoch + 1)
            assert answer.epoch == join.driver.checkpoint.epoch > 1
        else:
            error = join.refused("SELECT count(*) AS n FROM l")
            assert error.why is Why.STORAGE
            assert "was removed before it was read; ask again" in str(error)


def test_limits_end_a_query_and_never_give_a_part_of_an_answer_unsaid(join: Asked) -> None:
    heavy = "SELECT count(*) FROM l a, l b, l c WHERE a.rid + b.rid <> c.rid"
    error = join.refused(heavy, Limits(seconds=0.5))
    assert error.why is Why.SLOW
    assert "took longer than 0.5 s" in str(error)
    error = join.refused("SELECT list(a.rid), list(b.rid) FROM l a, l b", Limits(memory_bytes=64 << 20))
    assert error.why is Why.LARGE
    with asked(join.storage, join.catalog, "SELECT rid FROM l ORDER BY rid", Limits(rows=10)) as answer:
        assert [row["rid"] for batch in answer.batches for row in batch.to_pylist()] == list(range(10))
        assert answer.is_cut
    with asked(join.storage, join.catalog, "SELECT rid FROM l ORDER BY rid", Limits(rows=1600)) as answer:
        assert sum(batch.num_rows for batch in answer.batches) == 1600
        assert not answer.is_cut


def test_streams_of_three_and_more_give_each_tuple_once(tmp_path: Path) -> None:
    """A tuple that lacks one of the values which conditions compare may have no key, and be held or not; all others are."""

    def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
        rng = random.Random(seed)
        case = drawn(Features(streams=(3, 4, 5), windows=("time", "time", "unbounded"), types_of_many=("inner",), most=60), seed)
        job = elastic(job_of(case, root, counts))
        storage, history = rng.choice([ObjectStorage, Far]), History()
        oracle, bounds = Oracle(case.key, case.streams), case.joins[0].window.bounds
        marks = [Reach(stream, oracle.taken(stream.name), bounds.get(stream.name)) for stream in case.streams]

        def between(driver: Driver) -> None:
            history.note(driver)
            if driver.checkpoint.epoch < 0:
                return
            for number, name in enumerate(case.names):
                with asked(storage(job.checkpoint), Catalog.of(job), f"SELECT rid FROM {name}", LIMITS) as answer:
                    found = [rid for batch in answer.batches for rid in batch.column("rid").to_pylist()]
                held = held_of_many(history, answer.epoch, number, marks)
                assert len(found) == len(set(found)), name
                assert {rid for rid, is_whole in held.items() if is_whole} <= set(found) <= set(held), f"{name} of {case}"
                counts["rows"] += len(found)
                counts["without a key"] += len(held) - len(found)

        run_with_faults(job, case.inputs, root, rng, counts, storage=storage, between=between)

    counts: Counter[str] = Counter()
    run_cases(range(8), tmp_path, run_case, counts)
    assert min(counts["rows"], counts["without a key"], counts["switches"]) > 0, counts


@dataclass(frozen=True)
class Reach:
    """A stream, the records of which its ``where`` is true, and for how many seconds its tuples can match; None: for ever."""

    stream: Stream
    taken: set[int]
    span: int | None

    @property
    def input(self) -> Input:
        assert self.stream.input is not None
        return self.stream.input


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def held_of_many(history: History, epoch: int, number: int, streams: Sequence[Reach]) -> dict[int, bool]:
    """By rid, the tuples of a stream that the join holds after an epoch, and whether each has all values."""
    own, others = streams[number], [other for other in range(len(streams)) if other != number]
    marks = [watermark(streams[other].input, history, other, epoch - 2, streams[other].stream.delay) for other in others]
    known = [mark for mark in marks if mark is not None]
    bound = None if own.span is None or len(known) < len(others) else min(known) - own.span * SECOND
    found = {}
    for index, batch in enumerate(own.input.batches[: history.batches(number, epoch)]):
        late = None if own.span is None else watermark(own.input, history, number, history.arrived(number, index) - 2, own.stream.delay)
        for row in batch.to_pylist():
            at = micros(row["at"])
            is_held = (bound is None or at >= bound) and (late is None or at >= late)
            if is_held and row["rid"] in own.taken:
                is_far = any(isinstance(row[key], int) and abs(row[key]) > 2**62 for key in "nk")  # so that a sum may be no key
                found[row["rid"]] = not is_far and all(value is not None and not _is_nan(value) for value in row.values())
    return found


@pytest.mark.parametrize("seed", some(range(12), of=3))
def test_each_held_tuple_is_there_once_however_many_joins_hold_it(seed: int, tmp_path: Path) -> None:
    """A tuple is held as long as a join over its stream, in which it has all keys, may still find it."""
    features = Features(streams=(3, 3, 4, 4, 5), joins=(2, 2, 3, 4), over="some", windows=("time", "time", "unbounded"), models=("adsp",))
    case = drawn(features, seed)
    job, storage = make_job(tmp_path, **case.options(tmp_path)), ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(job, case.inputs, storage, InlineRunner())
    driver.start()
    for _ in range(4):
        driver.step(final=False)
    checkpoint = read_latest(storage).checkpoint
    blocks = list(zip(checkpoint.state.blocks, load_all(storage, checkpoint.state.blocks), strict=True))
    for number, stream in enumerate(held_streams(Catalog.of(job), checkpoint, storage)):
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
