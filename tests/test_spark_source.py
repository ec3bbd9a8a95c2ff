"""Spark's data source ``streamjoin`` on a real session, against what the join itself reads and DuckDB says."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

import streamjoin
from streamjoin.results.archive import Archive
from streamjoin.results.reader import list_snapshots
from streamjoin.spark import StreamJoinSource
from streamjoin.state.storage import ObjectStorage
from user_spark import Started, UserSpark
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.spark
ROWS = 1000
SEED = 7


def records(name: str, first: int) -> str:
    rng = random.Random(f"{SEED} {name} {first}")
    rows = []
    for n in range(first, first + ROWS):
        text, at = rng.choice(["", "a", "it's", "ü"]), f"2026-03-01T00:{n // 60 % 60:02d}:{n % 60:02d}Z"
        rows.append({"id": n, "k": rng.randint(0, 300), "text": text, "price": f"{n % 97}.{n % 10}0", "at": at})
    return "".join(json.dumps(row) + "\n" for row in rows)


def manifest_in(root: Path, **snapshots: Any) -> str:
    streams = [
        {
            "name": name,
            "source": {"files": {"path": str(root / name), "format": "json", "settle": "0s"}},
            "schema": "id BIGINT, k INT, text STRING, price DECIMAL(8, 2), at TIMESTAMP",
            "eventTime": "at",
            "watermark": "1h",
            "select": ["id", "k", "text", "price", "at"],
        }
        for name in "lr"
    ]
    select = ["l.id AS a", "r.id AS b", "l.k AS k", "l.text AS text", "l.price AS price", "l.at AS at", "CAST(l.k AS DOUBLE) / 2 AS ratio"]
    output = {"select": select, "sink": {"console": {}}, "snapshots": {"size": 100, "key": "k"} | snapshots}
    joins = [{"name": "near", "condition": "l.k = r.k", "window": {"within": "10m"}, "output": output}]
    spec = {"streams": streams, "joins": joins, "checkpoint": {"location": str(root / "state")}}
    spec |= {"epoch": {"interval": "10ms", "maxTuples": 100}, "workers": {"min": 1, "max": 1}}
    return yaml.safe_dump({"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "pairs"}, "spec": spec})


def feed(root: Path, part: int) -> None:
    """Another file of each stream, and all of it joined."""
    for name in "lr":
        (root / name).mkdir(exist_ok=True)
        (root / name / f"{part}.json").write_text(records(name, part * ROWS))
    assert join_in(root).run(runner="inline", until_idle=True).wait() is streamjoin.Reason.IDLE


def join_in(root: Path) -> streamjoin.Join:
    return streamjoin.Join.read(root / "join.yaml")


@pytest.fixture(scope="module")
def spark(user_spark: UserSpark) -> Any:
    session = user_spark.session(partitions=2)
    session.dataSource.register(streamjoin.spark.StreamJoinSource)
    return session


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A join that has found more than eight snapshots, of which some have become one."""
    root = tmp_path_factory.mktemp("joined")
    (root / "join.yaml").write_text(manifest_in(root))
    feed(root, 0)
    return root


def reader(spark: Any, root: Path, **options: Any) -> Any:
    return spark.read.format("streamjoin").options(manifest=str(root / "join.yaml"), **options)


def counted(rows: list[Any]) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset; times as UTC's without a zone, NaN and infinities as texts."""

    def plain(value: Any) -> Any:
        if isinstance(value, datetime.datetime):
            return value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value
        return repr(value) if isinstance(value, float) else value

    return Counter(tuple(map(plain, row)) for row in rows)


def answered(root: Path, sql: str) -> Counter[tuple[Any, ...]]:
    """What the join itself says."""
    table = join_in(root).query(sql, seconds=120)
    return counted(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))


ALL = 'SELECT a, b, k, text, price, "at", ratio, _key, _snapshot, _row FROM near'


def test_results_of_all_snapshots_are_there_once(spark: Any, joined: Path) -> None:
    found = reader(spark, joined, join="near").load()
    kinds = {field.name: field.dataType.simpleString() for field in found.schema}
    assert kinds == {
        "a": "bigint", "b": "bigint", "k": "int", "text": "string", "price": "decimal(8,2)", "at": "timestamp", "ratio": "double",
        "_key": "int", "_snapshot": "bigint", "_row": "bigint",
    }  # fmt: skip
    expected = answered(joined, ALL)
    assert expected.total() > 8 * 100
    assert counted(found.collect()) == expected
    by_path = spark.read.format("streamjoin").load(str(joined / "join.yaml"))
    assert by_path.count() == expected.total(), "the only join need not be named"


def test_what_is_held_and_queries_are_read(spark: Any, joined: Path) -> None:
    held = reader(spark, joined, stream="l").load()
    assert counted(held.select("id", "k", "text").collect()) == answered(joined, "SELECT id, k, text FROM l")
    sql = "SELECT l.text, count(*) AS n, sum(l.price) AS price FROM l JOIN near ON l.id = near.a GROUP BY ALL"
    found = reader(spark, joined, query=sql).load()
    assert found.columns == ["text", "n", "price"]
    assert counted(found.collect()) == answered(joined, sql)


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


FILTERS = [
    "k IN (1, 5, 299) OR a = 100",
    "k NOT IN (1, 5) AND _key BETWEEN 3 AND 40 AND NOT (_snapshot < 1)",
    "k <=> 12",
    "text = 'it''s' AND price <> 9.90 AND ratio > 5",
    "at < TIMESTAMP '2026-03-01 00:05:00Z' AND text LIKE 'i%' AND text IS NOT NULL",
]
"""Parts that are pushed, and parts that are not. What each kind means is tested below, without Spark."""
OF_HELD = "k IN (1, 5, 299) AND text >= 'a' AND price > 9.90 AND NOT (at >= TIMESTAMP '2026-03-01 00:10:00Z')"


def test_filters_that_are_pushed_change_nothing_but_what_is_read(spark: Any, joined: Path, pushing: None) -> None:
    plain, pushed = reader(spark, joined).load().cache(), reader(spark, joined, pushFilters="true").load()
    for text in FILTERS:
        expected = counted(plain.where(text).collect())
        assert expected, text
        assert counted(pushed.where(text).collect()) == expected, text
    assert pushed.where("k = 5000").rdd.getNumPartitions() == 1, "no file can have it"
    plain.unpersist()
    held = reader(spark, joined, stream="r").load()
    pushed_held = reader(spark, joined, stream="r", pushFilters="true").load()
    assert counted(pushed_held.where(OF_HELD).collect()) == counted(held.where(OF_HELD).collect()) != Counter()


def write_stream(spark: Any, root: Path, sink: list[tuple[int, list[Any]]], **options: Any) -> Any:
    stream = spark.readStream.format("streamjoin").options(manifest=str(root / "join.yaml"), **options).load()

    def take(batch: Any, number: int) -> None:
        sink.append((number, batch.collect()))

    return stream.writeStream.foreachBatch(take).option("checkpointLocation", str(root / "spark"))


def test_a_stream_gives_each_snapshot_once_over_restarts(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "join.yaml").write_text(manifest_in(tmp_path))
    feed(tmp_path, 0)
    batches: list[tuple[int, list[Any]]] = []

    def run_available(**options: Any) -> None:
        query = Started(write_stream(spark, tmp_path, batches, **options).trigger(availableNow=True).start)
        assert query.awaitTermination(PATIENCE_SECONDS)

    run_available(maxRowsPerTrigger=1700)
    assert len(batches) > 1, "as many batches as the rows need"
    assert all(len({row["_snapshot"] for row in rows}) == 1 or len(rows) <= 1700 for _, rows in batches)
    feed(tmp_path, 1)
    run_available()
    feed(tmp_path, 2)
    query = Started(write_stream(spark, tmp_path, batches).trigger(processingTime="50 milliseconds").start)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    found = [row for _, rows in batches for row in rows]
    assert counted(found) == answered(tmp_path, ALL)
    assert len({(row["_snapshot"], row["_row"]) for row in found}) == len(found)
    snapshots = [{row["_snapshot"] for row in rows} for _, rows in batches if rows]
    assert all(max(before) < min(after) for before, after in itertools.pairwise(snapshots))


def test_a_batch_that_spark_had_planned_and_not_done_has_the_same_rows(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "join.yaml").write_text(manifest_in(tmp_path))
    feed(tmp_path, 0)
    failed: list[tuple[int, Counter[tuple[Any, ...]]]] = []

    def fail(batch: Any, number: int) -> None:
        failed.append((number, counted(batch.collect())))
        raise RuntimeError("the sink is down")

    stream = spark.readStream.format("streamjoin").option("manifest", str(tmp_path / "join.yaml")).load()
    query = Started(stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "spark")).start)
    with pytest.raises(Exception, match="the sink is down"):
        query.awaitTermination(PATIENCE_SECONDS)
    feed(tmp_path, 1)  # more comes, and files are merged
    batches: list[tuple[int, list[Any]]] = []
    assert Started(write_stream(spark, tmp_path, batches).trigger(availableNow=True).start).awaitTermination(PATIENCE_SECONDS)
    assert (batches[0][0], counted(batches[0][1])) == failed[0]
    assert counted([row for _, rows in batches for row in rows]) == answered(tmp_path, ALL)


def test_a_stream_may_begin_with_what_comes_next_or_with_a_snapshot(spark: Any, joined: Path, tmp_path: Path) -> None:
    last = answered(joined, "SELECT max(_snapshot) FROM near")
    newest = next(iter(last))[0]
    for starting, expected in (("latest", set()), (str(newest - 1), {newest - 1, newest})):
        batches: list[tuple[int, list[Any]]] = []
        stream = spark.readStream.format("streamjoin").options(manifest=str(joined / "join.yaml"), startingSnapshot=starting).load()
        writing = stream.writeStream.foreachBatch(lambda batch, number, batches=batches: batches.append((number, batch.collect())))
        query = Started(writing.option("checkpointLocation", str(tmp_path / starting)).trigger(availableNow=True).start)
        assert query.awaitTermination(PATIENCE_SECONDS)
        assert {row["_snapshot"] for _, rows in batches for row in rows} == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"joins": "near"}, "joins: is no option of format streamjoin"),
        ({"join": "far"}, "join: 'far' must be one of near"),
        ({"join": "near", "stream": "l"}, "stream: excludes join"),
        ({"stream": "x"}, "stream: 'x' must be one of l, r"),
        ({"query": "SELECT nothing FROM l"}, "nothing"),
        ({"pushFilters": "maybe"}, "pushFilters: 'maybe' must be true or false"),
        ({"startingSnapshot": "first"}, "startingSnapshot: 'first' must be earliest, latest or a snapshot's number"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger: '0' must be a whole number, 1 or more"),
        ({"manifestText": "kind: StreamJoin"}, "manifest: give the manifest's path, or its text as manifestText"),
    ],
)
def test_options_that_cannot_be_are_refused_with_the_remedy(spark: Any, joined: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        reader(spark, joined, **options).load()


def test_a_manifest_may_be_given_as_text_and_a_wrong_one_says_what_is_wrong(spark: Any, joined: Path) -> None:
    text = manifest_in(joined)
    assert spark.read.format("streamjoin").option("manifestText", text).load().count() == answered(joined, ALL).total()
    with pytest.raises(Exception, match=r"spec\.joins\[0\]\.output\.snapshots\.key: .*nothing"):
        spark.read.format("streamjoin").option("manifestText", text.replace("key: k", "key: nothing")).load()


def test_a_join_does_not_start_a_second_spark_in_the_process(spark: Any, joined: Path) -> None:
    with pytest.raises(streamjoin.Failure, match="a Spark session is active in this process"):
        next(join_in(joined).run())
    assert spark.range(3).count() == 3


def test_snapshots_that_were_let_go_before_they_were_read_are_named_or_left_out(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    (tmp_path / "join.yaml").write_text(manifest_in(tmp_path))
    feed(tmp_path, 0)
    archive = Archive(ObjectStorage(str(tmp_path / "state")), "near", 3600.0, clock=lambda: time.time() + 7200)
    assert archive.nbytes > 0
    assert archive.tidy(), "what was merged is removed, and the oldest run is let go"
    first = list_snapshots(ObjectStorage(str(tmp_path / "state")), "near")[0].id
    assert first > 0
    careful, careless = (
        StreamJoinSource({"manifest": str(tmp_path / "join.yaml"), "failOnDataLoss": fails}) for fails in ("true", "false")
    )
    begin, everything = {"snapshot": -1}, ReadAllAvailable()
    with pytest.raises(FileNotFoundError, match=f"near: snapshots 0 to {first - 1} are not stored any more, .* failOnDataLoss"):
        careful.streamReader(careful.schema()).latestOffset(begin, everything)
    left = careless.streamReader(careless.schema())
    end = left.latestOffset(begin, everything)
    rows = [row for part in left.partitions(begin, end) for batch in left.read(part) for row in batch.to_pylist()]
    assert {row["_snapshot"] for row in rows} == set(range(first, end["snapshot"] + 1))
    assert len(rows) == answered(tmp_path, "SELECT a FROM near").total()
    with pytest.raises(FileNotFoundError, match=f"snapshots 0 to {first - 1}"):
        careful.streamReader(careful.schema()).partitions(begin, end)


def test_conditions_mean_to_arrow_and_duckdb_what_they_say() -> None:
    import pyarrow as pa
    from pyspark.sql import datasource as filters

    from streamjoin.spark.conditions import condition_of

    days = [datetime.date(2026, 1, 1), None, datetime.date(2026, 2, 1)]
    table = pa.table({
        "n": [1, None, 3], "s": ["it's", None, "b"], "d": days, "f": [True, None, False],
        "m": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("2.00")], pa.decimal128(8, 2)),
    })  # fmt: skip
    values = {"n": 1, "s": "it's", "d": days[0], "f": True, "m": decimal.Decimal("1.5")}
    database = duckdb.connect()
    database.register("t", table)
    for column, value in values.items():
        path = (column,)
        compared = [kind(path, value) for kind in (filters.EqualTo, filters.LessThan, filters.GreaterThanOrEqual)]
        others = [filters.In(path, (value, None)), filters.IsNull(path), filters.IsNotNull(path), filters.Not(filters.IsNull(path))]
        for each in [*compared, *map(filters.Not, compared), *others]:
            condition = condition_of(each, table.schema)
            assert condition is not None
            by_arrow = table.filter(condition.expression(table.schema.field(column).type))
            by_duckdb = database.sql(f"SELECT * FROM t WHERE {condition.sql()}").to_arrow_table()
            assert by_arrow.to_pylist() == by_duckdb.to_pylist(), each
    for wrong in (filters.EqualTo(("n",), "1"), filters.EqualTo(("n", "x"), 1), filters.EqualTo(("no",), 1), filters.In(("n",), (2**70,))):
        assert condition_of(wrong, table.schema) is None
