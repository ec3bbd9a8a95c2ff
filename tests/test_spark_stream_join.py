"""``streamjoin.spark.join`` of streaming DataFrames on a real session, against Spark's own nested loops over all that the streams had."""

from __future__ import annotations

import datetime
import decimal
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

import cases
from streamjoin.api.loop import Entering
from streamjoin.io import staged
from streamjoin.language.join_type import JoinType
from streamjoin.spark import join, running
from user_spark import user_session
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
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with user_session("streams", tmp_path_factory.mktemp("warehouse"), partitions=3) as session:
        yield session


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

    def stream(self, partitions: int | None = None, delay: str = "1 hour") -> Any:
        read = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).parquet(str(self.root))
        return (read if partitions is None else read.repartition(partitions)).withWatermark("at", delay)

    def all(self) -> Any:
        return self.spark.read.schema(self.schema).parquet(str(self.root))


class Taken:
    """A sink that knows by the number which batch comes again."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}

    def start(self, pairs: Any, root: Path, **trigger: Any) -> Any:
        writing = pairs.writeStream.foreachBatch(lambda batch, number: self.batches.update({number: batch.collect()}))
        writing = writing.option("checkpointLocation", str(root / "sink"))
        return (writing.trigger(**trigger) if trigger else writing).start()

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


def nested_loops(left: Any, right: Any, condition: str, how: str = "inner", within: int = 60) -> Counter[str]:
    from pyspark.sql import functions

    text = re.sub(r"\b(left|l)\.", "__one.", re.sub(r"\bright\.", "__two.", condition))
    window = f"abs(unix_micros(__one.at) - unix_micros(__two.at)) <= {within * 1_000_000}"
    kind = {"semi": "left_semi", "anti": "left_anti"}.get(how, how)
    return plain(left.alias("__one").join(right.alias("__two"), functions.expr(f"({text}) AND {window}"), kind).collect())


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

    def expected(self, condition: str, how: str = "inner") -> Counter[str]:
        return nested_loops(self.left.all(), self.right.all(), condition, how)


def test_random_streams_equal_nested_loops(spark: Any, tmp_path: Path) -> None:
    kinds = [kind.value for kind in JoinType]
    for seed in range(cases.how_many(18, of=6)):
        draw, pair = random.Random(seed), Pair(spark, tmp_path / str(seed), SCHEMA)
        condition, how = CONDITIONS[seed % len(CONDITIONS)], kinds[seed * 5 % len(kinds)]
        spark.conf.set("spark.sql.session.timeZone", draw.choice(("UTC", "America/New_York")))
        left, right = pair.left.stream().alias("l"), pair.right.stream(draw.choice((None, 3)))
        query = pair.taken.start(join(left, right, condition, how, within="60 seconds", checkpoint=pair.root / "state"), pair.root)
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
    steps: list[Callable[[pytest.MonkeyPatch], None]] = [
        partial(failing, after=False),
        partial(failing, after=True),
        *(partial(dying, step=step) for step in cases.some(("tasks", "commit", "publish", "clean"), of=2, since=1)),
    ]
    for number, step in enumerate([*steps, None]):
        for side in pair.sides:
            side.feed(rows_of(draw, 100 * number, 30))
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
