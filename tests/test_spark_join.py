"""``streamjoin.spark.join`` on a real session, against the answer of Spark's own join with the same condition."""

from __future__ import annotations

import datetime
import decimal
import random
import re
from collections import Counter
from typing import Any

import pytest

import cases
from pages import ROOT, blocks
from streamjoin.language.join_type import JoinType
from streamjoin.spark import explain, join, joins, planning
from user_spark import UserSpark
from waiting import wait_for

pytestmark = pytest.mark.spark
CASES = 200
SCHEMA = (
    "id BIGINT, i INT, b BIGINT, d DOUBLE, f FLOAT, n DECIMAL(10, 2), w DECIMAL(38, 4), t TIMESTAMP, z TIMESTAMP_NTZ, a DATE, s STRING, "
    "g INT, lo DOUBLE, hi DOUBLE, st STRUCT<x: DOUBLE, tags: ARRAY<STRING>>, m MAP<STRING, INT>"
)
CONDITIONS = (
    "abs(left.i - right.i) <= 3",
    "left.b - right.i BETWEEN -2 AND 5",
    "abs(left.d - right.d) <= 1.5",
    "abs(left.f - right.d) < 0.5",
    "left.d - right.f <= 2 AND right.f - left.d <= 1e0",
    "left.d - right.d >= -3",
    "abs(left.n - right.n) <= 0.5",
    "abs(left.w - right.n) <= 1.25",
    "abs(left.n - right.d) <= 1",
    "abs(left.t - right.t) <= INTERVAL 90 SECONDS",
    "right.t BETWEEN left.t - INTERVAL '1' MINUTE AND left.t + INTERVAL 2 DAYS",
    "left.z - right.z BETWEEN INTERVAL '-30' MINUTES AND INTERVAL '30' MINUTES",
    "right.z >= left.z - INTERVAL '1' HOUR AND right.z < left.z + INTERVAL '1' HOUR",
    "left.a - right.a <= INTERVAL '2' DAY AND left.a - right.a >= INTERVAL '-1' DAY",
    "right.a BETWEEN left.a - 2 AND left.a + 3",
    "right.d >= left.d - 1 AND right.d <= left.d + 1",
    "left.f >= right.f - 1 AND left.f <= right.f",
    "left.i + 2 > right.i AND right.i > left.i - 2",
    "right.n <= left.n AND right.n > left.n - 1.5BD",
    "left.d < right.d",
    "left.i >= right.b",
    "left.t < right.t",
    "left.f <= right.i",
    "left.w < right.n",
    "left.lo <= right.hi AND left.hi >= right.lo",
    "left.lo < right.hi AND left.hi > right.lo",
    "left.g = right.g AND left.lo <= right.hi AND left.hi >= right.lo",
    "right.d BETWEEN left.lo AND left.hi",
    "left.d BETWEEN right.lo AND right.hi",
    "left.g = right.g AND left.d BETWEEN right.lo AND right.hi",
    "abs(left.d - right.d) <= 2 AND abs(left.i - right.i) <= 2",
    "abs(left.n - right.n) <= 1 AND abs(left.t - right.t) <= INTERVAL '1' HOUR AND left.g = right.g",
    "left.g = right.g AND abs(left.d - right.d) <= 2",
    "left.g = right.g AND left.d > right.d",
    "left.s = right.s AND left.i <= right.i AND left.i >= right.i - 5",
    "left.st.x <= right.st.x AND left.st.x >= right.st.x - 1",
    "left.g = right.g",
    "left.d <=> right.d OR left.i = right.i",
)
EXTREMES = {
    "i": (2**31 - 1, -(2**31)),
    "b": (2**63 - 1, -(2**63), 2**53 + 1),
    "d": (float("nan"), float("inf"), float("-inf"), -0.0, 1.7e308, -1.7e308),
    "f": (float("nan"), float("inf"), float("-inf"), 3.4e38, -3.4e38),
    "n": (decimal.Decimal("99999999.99"), decimal.Decimal("-99999999.99")),
    "w": (decimal.Decimal("9" * 34), decimal.Decimal("-" + "9" * 34)),
    "a": (datetime.date(1, 1, 1), datetime.date(9999, 12, 31)),
    "z": (datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)),
}


@pytest.fixture(scope="module")
def spark(user_spark: UserSpark) -> Any:
    return user_spark.session(partitions=3)


@pytest.fixture
def always_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows there are, they are joined by bins, if they can be."""
    monkeypatch.setattr(planning, "START_SECONDS", -1e9)
    monkeypatch.setattr(joins, "_SMALL_BYTES", -1)


def rows_of(draw: random.Random, many: int, *, extremes: bool, skew: float, nulls: float) -> list[tuple[Any, ...]]:
    start = datetime.datetime(2026, 3, 8, 1, 0)  # in New York the next hour is skipped
    rows = []
    for number in range(many):
        x = 7.0 if draw.random() < skew else draw.choice((draw.uniform(-20, 20), float(draw.randint(-20, 20))))
        low = draw.uniform(-20, 20)
        at = start + datetime.timedelta(seconds=draw.randint(0, 7200))
        values = {
            "i": int(x),
            "b": int(x) + draw.randint(-1, 1),
            "d": x,
            "f": round(x, 1),
            "n": decimal.Decimal(f"{x:.2f}"),
            "w": decimal.Decimal(f"{x:.4f}"),
            "t": at,
            "z": at,
            "a": datetime.date(2026, 3, 1) + datetime.timedelta(days=int(x)),
            "s": draw.choice(("", "a", "b", "ü")),
            "g": draw.randint(0, 3),
            "lo": low,
            "hi": low + draw.choice((0.0, 0.3, 1.0, 30.0, -1.0, float("nan"))),
            "st": (x, [draw.choice("xyz")]),
            "m": {draw.choice("kl"): draw.randint(0, 9)},
        }
        for name in values:
            if draw.random() < nulls:
                values[name] = None
            elif extremes and name in EXTREMES and draw.random() < 0.15:
                values[name] = draw.choice(EXTREMES[name])
        rows.append((number, *values.values()))
    return rows


def multiset(frame: Any) -> Counter[str]:
    return Counter(repr(tuple(row)) for row in frame.collect())


def oracle(left: Any, right: Any, condition: str, how: str) -> Any:
    """Spark's own, the frames named by words that no condition has."""
    from pyspark.sql import functions

    text = re.sub(r"\bleft\.", "__one.", re.sub(r"\bright\.", "__two.", condition))
    return left.alias("__one").join(right.alias("__two"), functions.expr(text), {"semi": "left_semi", "anti": "left_anti"}.get(how, how))


def answer(make: Any) -> Any:
    """Rows, or that it failed: an overflow in one pair fails a join."""
    from pyspark.errors import ArithmeticException

    try:
        return multiset(make())
    except ArithmeticException:
        return None


def test_random_joins_equal_sparks_own(spark: Any, always_bins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    used = Counter[str]()
    for seed in range(cases.how_many(CASES, of=40)):
        draw = random.Random(seed)
        condition = CONDITIONS[seed * 7 % len(CONDITIONS)]
        condition += draw.choice(("", "", " AND left.s <> right.s", " AND (left.i > 0 OR right.b IS NULL)", " AND left.id % 3 <> 1"))
        how = draw.choice([each.value for each in JoinType])
        ansi, zone = draw.choice(("true", "false")), draw.choice(("UTC", "America/New_York"))
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        spark.conf.set("spark.sql.session.timeZone", zone)
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", draw.choice(("-1", "10485760")))
        monkeypatch.setattr(planning, "CANDIDATE_SECONDS", draw.choice((1e-9, 1e-7, 1e-4)))
        monkeypatch.setattr(planning, "_RANGES", draw.choice(((), (4, 16))))
        partitions = draw.choice((3, 200))
        monkeypatch.setattr(joins, "_partitions", lambda _, partitions=partitions: partitions)
        frames = []
        for _ in range(2):
            rows = rows_of(
                draw, draw.choice((1, 30, 80)), extremes=draw.random() < 0.6, skew=draw.choice((0, 0.5)), nulls=draw.choice((0, 0.1))
            )
            frames.append(spark.createDataFrame(rows, SCHEMA).repartition(draw.randint(1, 4)))
        left, right = frames if draw.random() < 0.9 else (frames[0], frames[0])
        said = (seed, condition, how, ansi, zone)
        expected = answer(lambda left=left, right=right, condition=condition, how=how: oracle(left, right, condition, how))
        made = join(left, right, condition, how, sample=draw.choice((10, 1000)))
        assert made.columns == oracle(left, right, condition, how).columns, said
        plan = made._jdf.queryExecution().executedPlan().toString()
        used["bins" if "__streamjoin" in plan else "own"] += 1
        if expected is not None:
            found = multiset(made)
            assert found == expected, (*said, list((found - expected).items())[:3], list((expected - found).items())[:3])
    assert used["bins"] > used["own"]
    for name in ("spark.sql.ansi.enabled", "spark.sql.autoBroadcastJoinThreshold"):
        spark.conf.unset(name)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


TRADES = "SELECT id, CAST(id * 37 % 4001 AS DOUBLE) AS price, CAST(id % 5 AS INT) AS venue FROM range(4000)"
QUOTES = "SELECT id + 7 AS id, CAST(id * 53 % 4001 AS DOUBLE) AS price, CAST(id % 7 AS INT) AS place FROM range(4000)"
NEAR = "abs(left.price - right.price) <= 5"


def test_a_plan_is_sparks_own_and_has_no_python_in_it(spark: Any, always_bins: None, capsys: pytest.CaptureFixture[str]) -> None:
    trades, quotes = spark.sql(TRADES), spark.sql(QUOTES)
    conditions = (NEAR, "left.price < right.price - 3500", "left.venue = right.place AND abs(left.price - right.price) <= 1")
    for condition in (*conditions, "left.price <= right.price + 5 AND left.price + 5 >= right.price AND abs(left.id - right.id) <= 50"):
        for how in JoinType:
            made = join(trades, quotes, condition, how.value)
            plan = made._jdf.queryExecution().executedPlan().toString()
            assert "__streamjoin" in plan, condition
            assert not re.search("Python|InArrow|InPandas|NestedLoop|Cartesian", plan), plan
    assert not spark.sparkContext._jsc.getPersistentRDDs()
    assert capsys.readouterr().out == ""


def test_columns_are_named_by_side_by_alias_or_alone(spark: Any, always_bins: None) -> None:
    trades, quotes = spark.sql(TRADES), spark.sql(QUOTES)
    expected = multiset(oracle(trades, quotes, f"{NEAR} AND left.venue <> right.place", "inner"))
    both = trades.alias("t"), quotes.alias("q")
    assert multiset(join(trades, quotes, f"{NEAR} AND venue <> place")) == expected
    assert multiset(join(*both, f"{NEAR} AND t.venue <> right.place")) == expected
    assert multiset(join(*both, "abs(T.price - q.price) <= 5 AND venue <> place")) == expected
    assert multiset(join(trades, quotes.alias("left"), f"{NEAR} AND venue <> place")) == expected
    made = join(*both, f"{NEAR} AND venue <> place")
    assert made.columns == ["id", "price", "venue", "id", "price", "place"]
    picked = made.select("t.id", "q.id", trades["price"], quotes["price"]).collect()
    assert Counter((row[0], row[1]) for row in picked).total() == expected.total()
    assert all(abs(row[2] - row[3]) <= 5 for row in picked)
    of_sides = join(trades, quotes, NEAR, "full").select("left.id", "right.id")
    assert of_sides.count() == join(trades, quotes, NEAR, "outer").count()
    itself = join(trades, trades, "left.id < right.id AND left.price >= right.price - 3 AND left.price <= right.price")
    assert multiset(itself) == multiset(
        oracle(trades, trades, "left.id < right.id AND left.price BETWEEN right.price - 3 AND right.price", "inner")
    )


def test_the_page_does_what_it_says(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    block = next(block for block in blocks(ROOT / "docs" / "from-pyspark.md") if block.kind == "python")
    trades, quotes = spark.sql(TRADES), spark.sql(QUOTES).withColumnRenamed("place", "venue")
    names: dict[str, Any] = {"trades": trades, "quotes": quotes}
    exec(compile(block.text, str(block), "exec"), names)
    near = "abs(left.price - right.price) <= 0.05 AND left.venue <> right.venue"
    assert multiset(names["pairs"]) == multiset(oracle(trades, quotes, near, "inner"))
    assert multiset(names["alone"]) == multiset(oracle(trades, quotes, near, "anti"))
    assert capsys.readouterr().out.startswith("join: inner\nway: ")


def test_what_cannot_be_joined_is_refused_with_a_remedy(spark: Any) -> None:
    from pyspark.sql import functions

    trades, quotes = spark.sql(TRADES), spark.sql(QUOTES)
    with pytest.raises(TypeError, match="condition: a Column cannot be cut into keys; write Spark SQL as text"):
        join(trades, quotes, functions.lit(True))
    with pytest.raises(ValueError, match=r"condition '.*prize.*': Spark says .*UNRESOLVED_COLUMN.*left has id, price, venue"):
        join(trades, quotes, "abs(left.prize - right.price) <= 5")
    with pytest.raises(ValueError, match=r"condition 'price < 5': Spark says .*AMBIGUOUS"):
        join(trades, quotes, "price < 5")
    with pytest.raises(ValueError, match="how: 'cross' is no type of join; use inner, left, right, full, semi, anti"):
        join(trades, quotes, NEAR, "cross")
    with pytest.raises(ValueError, match="sample: 0 is no number of rows"):
        join(trades, quotes, NEAR, sample=0)
    with pytest.raises(ValueError, match="within: '1 minute' is for streaming DataFrames; leave it out"):
        join(trades, quotes, NEAR, within="1 minute")


def test_what_is_small_or_unknown_is_sparks_own_and_starts_no_job(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tracker, group = spark.sparkContext.statusTracker(), "a join"
    spark.sparkContext.setJobGroup(group, group)
    join(spark.range(100), spark.range(100), "left.id <= right.id", explain=True)
    assert "way: Spark's own join, because both frames are small" in capsys.readouterr().out
    join(spark.sql(TRADES), spark.sql(QUOTES), "levenshtein(left.venue, right.place) < 2", explain=True)
    out = capsys.readouterr().out
    assert "way: Spark's own join, because no part of the condition compares keys" in out
    assert "left to Spark: levenshtein(left.venue, right.place) < 2" in out
    join(spark.sql(TRADES), spark.sql(QUOTES), "left.id = right.id", explain=True)
    assert "because it has an equality" in capsys.readouterr().out
    assert tracker.getJobIdsForGroup(group) == []
    spark.sparkContext.setJobGroup("", "")


def test_explain_says_way_key_width_replicas_and_candidates(
    spark: Any, always_bins: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "_partitions", lambda _: 200)
    skewed = "SELECT id, CASE WHEN id % 3 = 0 THEN 500D ELSE CAST(id AS DOUBLE) END AS price FROM range(4000)"
    made = join(spark.sql(skewed), spark.sql(QUOTES), NEAR, "left", explain=True)
    assert multiset(made) == multiset(oracle(spark.sql(skewed), spark.sql(QUOTES), NEAR, "left"))
    out = capsys.readouterr().out
    for part in (
        "join: left",
        "way: bins of a key",
        r"key: abs\(left.price - right.price\) <= 5",
        r"places: a left row in one of \d+, [\d.]+ wide; a right row in all that it may reach",
        r"replicas: [\d.]+ for a row",
        r"candidates: [\d.]+ for a result",
        r"areas: \d+, of about [\d.e+]+ tuples",
        r"hot cells: \d+, each a grid of \d+ parts",
        "sample: 4000 of 4000 rows of the left",
    ):
        assert re.search(part, out), (part, out)


def test_a_plan_is_an_object_that_prints_what_join_does_and_that_notebooks_show_as_a_table(
    spark: Any, always_bins: None, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = spark.sql(TRADES), spark.sql(QUOTES)
    join(*frames, NEAR, "left", explain=True)
    printed = capsys.readouterr().out
    plan = explain(*frames, NEAR, "left")
    assert printed == f"{plan}\n" == f"{plan!r}\n"
    cells = re.findall(r"<tr><td[^>]*>(.*?)</td><td[^>]*>(.*?)</td></tr>", plan._repr_html_())
    assert len(cells) == len(printed.splitlines())
    assert cells[:3] == [("join", "left"), ("way", "bins of a key"), ("key", "abs(left.price - right.price) &lt;= 5")]
    with pytest.raises(ValueError, match="how: 'cross' is no type of join"):
        explain(*frames, NEAR, "cross")


def test_jobs_that_sample_say_so_in_the_users_group_and_leave_the_users_description(spark: Any, always_bins: None) -> None:
    context, group = spark.sparkContext, "a group"
    context.setJobGroup(group, "the user's")
    join(spark.sql(TRADES), spark.sql(QUOTES), NEAR)
    store = context._jsc.sc().statusStore()

    def described() -> set[str]:
        jobs = [store.job(number) for number in context.statusTracker().getJobIdsForGroup(group)]
        return {job.description().get() for job in jobs}

    wait_for("Spark's notes on the jobs", lambda: described() == {"streamjoin: sampling left", "streamjoin: sampling right"})
    assert context.getLocalProperty("spark.job.description") == "the user's"
    context.setJobGroup("", "")
