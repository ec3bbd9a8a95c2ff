"""``streamjoin.spark.join`` of streaming DataFrames on a real session, against Spark's own nested loops over all that the streams had."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

import cases
from pages import ROOT, blocks
from streamjoin.api.loop import Entering
from streamjoin.io import staged
from streamjoin.language.join_type import JoinType
from streamjoin.spark import explain, join, running
from streamjoin.state.storage import ObjectStorage
from user_spark import Started, UserSpark
from waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.spark
SCHEMA = (
    "id BIGINT, k INT, d DOUBLE, f FLOAT, n DECIMAL(10, 2), s STRING, b BINARY, o BOOLEAN, y TINYINT, h SMALLINT, a DATE, z TIMESTAMP_NTZ, "
    "`a b` STRING, at TIMESTAMP"
)
START = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
LAST = 1_000_000
"""Rows with this number and higher ones only say that all others have come."""
CONDITIONS = (
    "abs(left.d - right.d) <= 1.5",
    "left.k < right.k AND left.s <> right.s",
    "left.k = right.k AND left.n >= right.n",
    "abs(l.n - right.n) <= 0.5 AND l.`a b` IS NOT NULL",
    "left.o OR right.h > 3",
    "right.z BETWEEN left.z - INTERVAL 90 SECONDS AND left.z",
)


@pytest.fixture(scope="module")
def spark(user_spark: UserSpark) -> Any:
    return user_spark.session(partitions=3)


def rows_of(draw: random.Random, first: int, many: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(first, first + many):
        x, at = draw.uniform(-20, 20), START + datetime.timedelta(microseconds=draw.randint(0, 600_000_000))
        values: dict[str, Any] = {
            "k": int(x), "d": draw.choice((x, float(int(x)), float("nan"), float("inf"), -0.0)), "f": round(x, 1),
            "n": decimal.Decimal(f"{x:.2f}"), "s": draw.choice(("", "a", "ü")), "b": draw.randbytes(3), "o": x > 15, "y": int(x),
            "h": draw.randint(-9, 4), "a": at.date(), "z": at.replace(tzinfo=None), "a b": draw.choice("xyz"),
        }  # fmt: skip
        values = {name: None if draw.random() < 0.05 else value for name, value in values.items()}
        rows.append({"id": number, **values, "at": at})
    return rows


class Side:
    """A stream of files, each a micro-batch."""

    def __init__(self, spark: Any, root: Path, schema: str = SCHEMA) -> None:
        self.spark, self.root, self.schema = spark, root, schema
        self._numbers = itertools.count()
        root.mkdir()

    def feed(self, rows: list[dict[str, Any]]) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        fields = to_arrow_schema(self.spark.createDataFrame([], self.schema).schema, timezone="UTC")
        path = self.root / f"{next(self._numbers):06}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, fields), path.with_name(f"_{path.name}"))
        path.with_name(f"_{path.name}").rename(path)

    def end(self, hours: int) -> None:
        """A row so late that all others are over."""
        self.feed([{"id": LAST + hours, "at": START + datetime.timedelta(hours=hours)}])

    def plain_stream(self) -> Any:
        return self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).parquet(str(self.root))

    def stream(self, partitions: int | None = None) -> Any:
        read = self.plain_stream()
        return (read if partitions is None else read.repartition(partitions)).withWatermark("at", "1 hour")

    def all(self) -> Any:
        return self.spark.read.schema(self.schema).parquet(str(self.root))


class Taken:
    """A sink that knows by the number which batch comes again."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}

    def start(self, pairs: Any, root: Path, **trigger: Any) -> Started:
        writing = pairs.writeStream.foreachBatch(lambda batch, number: self.batches.update({number: batch.collect()}))
        writing = writing.option("checkpointLocation", str(root / "sink"))
        return Started((writing.trigger(**trigger) if trigger else writing).start)

    @property
    def rows(self) -> Counter[str]:
        return plain(row for rows in self.batches.values() for row in rows)


def plain(rows: Any) -> Counter[str]:
    """Rows as a multiset, without those of ``Side.end``."""
    return Counter(
        repr(tuple(row))
        for row in rows
        if all(value < LAST for name, value in zip(row.__fields__, row, strict=True) if name == "id" and value is not None)
    )


class Pair:
    """Two streams and what is taken of their join."""

    def __init__(self, spark: Any, root: Path, schema: str = "id BIGINT, k INT, at TIMESTAMP") -> None:
        self.root, self.taken = root, Taken()
        root.mkdir(exist_ok=True)
        self.left, self.right = self.sides = [Side(spark, root / name, schema) for name in ("left", "right")]
        self._hours = itertools.count(10, 10)

    def run(self, pairs: Any) -> None:
        """Take all that is there now."""
        query = self.taken.start(pairs, self.root, availableNow=True)
        try:
            assert query.awaitTermination(PATIENCE_SECONDS)
        finally:
            query.stop()

    def wait(self, query: Any, expected: Counter[str]) -> None:
        """Until all of this has come: what has no partner is known once there are later rows."""

        def has_come() -> bool:
            later = next(self._hours)
            for side in self.sides:
                side.end(later)
            query.processAllAvailable()
            return self.taken.rows.total() >= expected.total()

        wait_for(f"{expected.total()} results", has_come, told=lambda: f"{self.taken.rows.total()} have come")
        assert self.taken.rows == expected

    def expected(self, condition: str, how: str = "inner", within: int = 60) -> Counter[str]:
        return plain(self.expected_rows(condition, how, within))

    def expected_rows(self, condition: str, how: str = "inner", within: int = 60) -> list[Any]:
        """Spark's own nested loops over all that the streams have had."""
        from pyspark.sql import functions

        text = re.sub(r"\b(left|l)\.", "__one.", re.sub(r"\bright\.", "__two.", condition))
        window = f"abs(unix_micros(__one.at) - unix_micros(__two.at)) <= {within * 1_000_000}"
        kind = {"semi": "left_semi", "anti": "left_anti"}.get(how, how)
        joined: list[Any] = (
            self.left.all().alias("__one").join(self.right.all().alias("__two"), functions.expr(f"({text}) AND {window}"), kind).collect()
        )
        return joined


def test_random_streams_equal_nested_loops(spark: Any, tmp_path: Path) -> None:
    kinds = [kind.value for kind in JoinType]
    for seed in range(cases.how_many(18, of=9)):
        draw, pair = random.Random(seed), Pair(spark, tmp_path / str(seed), SCHEMA)
        condition, how = CONDITIONS[seed % len(CONDITIONS)], kinds[seed * 5 % len(kinds)]
        spark.conf.set("spark.sql.session.timeZone", draw.choice(("UTC", "America/New_York")))
        left, right = pair.left.stream().alias("l"), pair.right.stream(draw.choice((None, 3)))
        pairs = join(left, right, condition, how, within="60 seconds", checkpoint=pair.root / "state")
        assert pairs.select("l.id", "l.`a b`").columns == ["id", "a b"]
        query = pair.taken.start(pairs, pair.root)
        try:
            for number in range(4):
                for side in draw.sample(pair.sides, draw.randint(0, 2)):
                    side.feed(rows_of(draw, 100 * number, draw.choice((0, 1, 20))))
            for side in pair.sides:
                side.feed(rows_of(draw, 900, 10))
            pair.wait(query, pair.expected(condition, how))
        finally:
            query.stop()
    spark.conf.set("spark.sql.session.timeZone", "UTC")


class Died(RuntimeError):  # noqa: N818
    pass


def failing(patch: pytest.MonkeyPatch, *, after: bool) -> None:
    """The next micro-batch of any side has its files, and then no entry; or an entry that Spark does not know of."""
    commit = staged.commit

    def fail(*arguments: Any) -> None:
        patch.setattr(staged, "commit", commit)
        if after:
            commit(*arguments)
        raise Died("staging died")

    patch.setattr(staged, "commit", fail)


def dying(patch: pytest.MonkeyPatch, step: str) -> None:
    """The join's driver dies at a step of its next epoch."""
    tell = running.Parts._tell

    def fail(parts: running.Parts, event: Any) -> None:
        tell(parts, event)
        if isinstance(event, Entering) and event.step == step:
            patch.setattr(running.Parts, "_tell", tell)
            raise Died("the driver died")

    patch.setattr(running.Parts, "_tell", fail)


NEAR = "abs(left.k - right.k) <= 1"


def test_whatever_dies_between_any_two_steps_each_result_comes_once(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, draw = Pair(spark, tmp_path), random.Random(7)
    of_staging, of_driver = (False, True), ("tasks", "commit", "publish", "clean")
    steps: list[Callable[[pytest.MonkeyPatch], None]] = cases.some(
        [*(partial(failing, after=after) for after in of_staging), *(partial(dying, step=step) for step in of_driver)], of=6, since=3
    )
    for number, step in enumerate([*steps, None]):
        for side in pair.sides:
            side.feed(rows_of(draw, 100 * number, 60))
        streams = [side.stream(partitions=draw.choice((None, 1, 4))) for side in pair.sides]
        pairs = join(*streams, NEAR, within="60 seconds", checkpoint=tmp_path / "state")
        if step is None:
            pair.run(pairs)
        else:
            step(monkeypatch)
            with pytest.raises(StreamingQueryException, match=r"the query that stages it has failed: .*staging died|the driver died"):
                pair.run(pairs)
    expected = pair.expected(NEAR)
    assert pair.taken.rows == expected
    assert expected.total() > 100


def test_workers_that_are_killed_lose_nothing_and_a_silent_side_need_not_be_waited_for(spark: Any, tmp_path: Path) -> None:
    pair, draw, hours = Pair(spark, tmp_path), random.Random(3), itertools.count(10)
    streams, state = [side.stream() for side in pair.sides], tmp_path / "state"
    pairs = join(*streams, NEAR, "anti", within="1 second", checkpoint=state, workers=2, idle_timeout="1 second")
    pair.left.feed([])
    pair.right.feed(rows_of(draw, 0, 5))
    query = pair.taken.start(pairs, tmp_path)
    try:
        for number in range(1, 4):
            pair.left.feed(rows_of(draw, 100 * number, 20))
            pids = wait_for("two workers", lambda: query.goes_on() and len(found := pids_of(tmp_path)) == 2 and found)
            os.kill(draw.choice(sorted(pids.values())), signal.SIGKILL)
            wait_for("another", lambda before=pids: query.goes_on() and len(found := pids_of(tmp_path)) == 2 and found != before)
        expected = pair.expected(NEAR, "anti", 1)

        def have_come() -> bool:
            pair.left.end(next(hours))
            return query.goes_on() and pair.taken.rows.total() >= expected.total()

        wait_for("what has no partner", have_come)
        assert pair.taken.rows == expected
    finally:
        query.stop()
    wait_for("the end of all parts", lambda: str(tmp_path / "state" / "state") not in running._running)
    assert not any(thread.name.startswith(("streamjoin-reader", "place-")) for thread in threading.enumerate())
    assert not spark.streams.active


def pids_of(root: Path) -> dict[int, int]:
    """Of the workers, by place, of the join in this directory."""
    parts = running._running.get(str(root / "state" / "state"))
    pool = None if parts is None or parts.execution is None else parts.execution.driver._runner._pool
    return {} if pool is None else pool.pids


SESSION = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
reading = spark.readStream.schema("id BIGINT, price DOUBLE, at TIMESTAMP")
trades_stream, quotes_stream = (reading.parquet(f"{sys.argv[1]}/{side}") for side in ("left", "right"))
"""


def test_the_page_s_session_is_killed_goes_on_in_the_next_and_leaves_no_process(spark: Any, tmp_path: Path) -> None:
    pair, draw, near = (
        Pair(spark, tmp_path, "id BIGINT, price DOUBLE, at TIMESTAMP"),
        random.Random(5),
        "abs(left.price - right.price) <= 0.05",
    )

    def feed(first: int) -> None:
        for side in pair.sides:
            rows = rows_of(draw, first, 40)
            newest = START + datetime.timedelta(seconds=600 + first)
            side.feed([{"id": row["id"], "price": row["id"] % 7 / 20, "at": newest - (row["at"] - START) / 100} for row in rows])

    feed(0)
    _, block = [block for block in blocks(ROOT / "docs" / "from-pyspark.md") if block.kind == "python"]
    text, mark = block.text.replace("/data/", f"{tmp_path}/"), {"STREAMJOIN_TEST_OF": str(tmp_path)}
    script = f"{SESSION}\n{text}\nquery.awaitTermination()"
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env={**os.environ, **mark}, stderr=subprocess.DEVNULL)
    try:
        wait_for("results", lambda: list((tmp_path / "near-pairs").glob("*.parquet")))
        feed(100)
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    wait_for("the end of its processes", lambda: not marked(mark))
    feed(200)
    names = {"trades_stream": pair.left.plain_stream(), "quotes_stream": pair.right.plain_stream()}
    exec(compile(text, str(block), "exec"), names)
    query = names["query"]
    expected = Counter((row[0], row[4], row[5]) for row in pair.expected_rows(near))

    def found() -> Counter[tuple[Any, ...]]:
        there = spark.read.schema("id BIGINT, price DOUBLE, at TIMESTAMP").parquet(str(tmp_path / "near-pairs"))
        return Counter(tuple(row) for row in there.collect())

    try:
        wait_for("all results", lambda: found().total() >= expected.total())
    finally:
        query.stop()
    assert found() == expected


def marked(mark: dict[str, str]) -> list[int]:
    """The processes that have this in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if mark.items() <= process.environ().items():
                found.append(process.pid)
    return found


def test_what_cannot_be_joined_is_refused_with_a_remedy_before_anything_runs(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    pair = Pair(spark, tmp_path)
    left, right = (side.stream() for side in pair.sides)
    nested = right.withColumn("st", F.struct("k"))
    given: dict[str, Any] = {"within": "1 minute", "checkpoint": tmp_path / "state"}
    for frames, changed, message in (
        ((left, pair.right.all()), {}, "right: is not streaming, and the other DataFrame is; read it as a stream"),
        ((left.select("id", "k"), right), {}, r"left: has no watermark.*left\.withWatermark"),
        ((left, right.withColumn("b", F.col("at"))), {}, r"right: has 2 columns with a watermark \(at, b\)"),
        ((left, nested), {}, r"right: column `st` is struct<k:int>, which a join of streams cannot carry; leave it out.*to_json"),
        ((left, right), {"within": None}, "within: None is no duration; give how far apart event times may be"),
        ((left, right), {"within": "soon"}, 'within: "soon"'),
        ((left, right), {"checkpoint": None}, "checkpoint: None is no place for the state of a join of streams; give a directory"),
        ((left, right), {"checkpoint": "hdfs://x/y"}, "checkpoint: 'hdfs://x/y' begins with hdfs:"),
        ((left, right), {"sample": 5}, "sample: 5 is for batch, as streaming DataFrames are not sampled"),
        ((left, right), {"workers": 0}, "workers.min: 0 must be at least 1"),
        ((left, right), {"condition": "abs(left.kk - right.k) < 1"}, "condition: .*unknown column left.kk; left has id, k, at"),
    ):
        named = {"condition": NEAR, **given, **changed}
        with pytest.raises(ValueError, match=message):
            join(*frames, **named)
    assert not (tmp_path / "state").exists()
    join(left, right, NEAR, **given, explain=True)
    printed = capsys.readouterr().out
    assert "\n  delta of left\n    repartition, probe arrangement" in printed
    assert printed == f"{explain(left, right, NEAR, **given)}\n"
    assert not [each for each in tmp_path.rglob("state/**/*") if each.is_file()]
    other = staged.Stream("another query", "`id` BIGINT, `k` INT, `at` TIMESTAMP")
    staged.claim(ObjectStorage(str(tmp_path / "state" / "right")), other)
    with pytest.raises(StreamingQueryException, match=r"is staged by query another query of Spark's.*begin with a new checkpoint"):
        pair.run(join(left, right, NEAR, **given))
    with pytest.raises(ValueError, match=r"right: .*`c` INT differs from .*, with which the checkpoint was begun; restore it"):
        join(left, right.withColumn("c", F.lit(1)), NEAR, **given)
    with pytest.raises(ValueError, match="within: 30s differs from 1m, with which the checkpoint was begun"):
        join(left, right, NEAR, **{**given, "within": "30 seconds"})
