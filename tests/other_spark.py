"""Joins in batch, each beside Spark's own plan, and what is refused, as one line of JSON. A program: PySpark has one version in a process.

    spark-submit --py-files streamjoin.zip tests/other_spark.py 7       every 7th case

It needs PySpark, numpy and this package; ``test_spark_versions`` runs it with versions that the engine does not have.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from typing import Any

from pyspark.sql import SparkSession, functions

import streamjoin.spark
from streamjoin.spark import joins, planning

SCHEMA = (
    "id BIGINT, d DOUBLE, n DECIMAL(10, 2), t TIMESTAMP_NTZ, g INT, s STRING, lo DOUBLE, hi DOUBLE, "
    "st STRUCT<x: DOUBLE, tags: ARRAY<STRING>>, m MAP<STRING, INT>"
)
CONDITIONS = {
    "band": "abs(left.d - right.d) <= 1.5",
    "band of decimals": "abs(left.n - right.n) <= 0.5 AND left.s <> right.s",
    "band of times": "right.t BETWEEN left.t - INTERVAL '1' MINUTE AND left.t + INTERVAL '2' HOUR",
    "equality and band": "left.g = right.g AND abs(left.d - right.d) <= 2",
    "inequality": "left.d < right.d",
    "intervals and points": "right.d BETWEEN left.lo AND left.hi",
    "intervals": "left.lo <= right.hi AND left.hi >= right.lo",
    "nested": "left.st.x <= right.st.x AND left.st.x >= right.st.x - 1",
    "two bands": "abs(left.d - right.d) <= 2 AND abs(left.n - right.n) <= 2",
}
HOW = {"inner": "inner", "left": "left", "right": "right", "full": "full", "semi": "left_semi", "anti": "left_anti"}


def made_up(spark: Any, seed: int, rows: int = 60) -> Any:
    """Rows with NULL, NaN and columns of every shape."""
    draw = random.Random(seed)

    def value(text: str) -> str:
        return "NULL" if draw.random() < 0.1 else text

    made = []
    for number in range(rows):
        x, low = draw.choice((draw.uniform(-20, 20), float(draw.randint(-20, 20)))), draw.uniform(-20, 20)
        double, high = draw.choice((f"{x!r}D", "double('NaN')", f"{x!r}D")), low + draw.choice((0.0, 0.3, 30.0, -1.0))
        columns = {
            "id": f"{number}L", "d": double, "n": f"{x:.2f}BD", "t": f"TIMESTAMP_NTZ'2026-03-08 0{draw.randint(0, 9)}:00:00'",
            "g": f"{draw.randint(0, 3)}", "s": f"'{draw.choice('ab')}'", "lo": f"{low!r}D", "hi": f"{high!r}D",
            "st": f"named_struct('x', {x!r}D, 'tags', array('t'))", "m": f"map('k', {draw.randint(0, 9)})",
        }  # fmt: skip
        made.append(f"({', '.join(value(text) for text in columns.values())})")
    names = ", ".join(re.findall(r"(\w+) [A-Z]", re.sub("<.*?>", "", SCHEMA)))
    return spark.sql(f"SELECT * FROM VALUES {', '.join(made)} AS t({names})").to(spark.createDataFrame([], SCHEMA).schema).repartition(2)


def multiset(frame: Any) -> Counter[str]:
    return Counter(repr(tuple(row)) for row in frame.collect())


def compared(left: Any, right: Any, condition: str, how: str) -> dict[str, Any]:
    text = re.sub(r"\bleft\.", "one.", re.sub(r"\bright\.", "two.", condition))
    own = left.alias("one").join(right.alias("two"), functions.expr(text), HOW[how])
    made = streamjoin.spark.join(left, right, condition, how)
    plan = made._jdf.queryExecution().executedPlan().toString()
    expected = multiset(own)
    return {"equal": multiset(made) == expected, "rows": expected.total(), "bins": "__streamjoin" in plan, "python": "Python" in plan}


def refusal(ask: Any) -> str:
    try:
        ask()
    except streamjoin.spark.NotAvailable as error:
        return str(error)
    return "not refused"


def main() -> None:
    planning.START_SECONDS, joins._SMALL_BYTES = -1e9, -1  # however few rows there are, they are joined by bins
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false").getOrCreate()
    left, right = made_up(spark, 1), made_up(spark, 2)
    every = [(name, how) for name in CONDITIONS for how in HOW]
    cases = {f"{name}, {how}": compared(left, right, CONDITIONS[name], how) for name, how in every[:: int(sys.argv[1])]}
    explained = str(streamjoin.spark.explain(left, right, CONDITIONS["band"], "left"))
    stream = spark.readStream.format("rate").load()
    refused = {
        "source": refusal(lambda: streamjoin.spark.StreamJoinSource),
        "streams": refusal(lambda: streamjoin.spark.join(stream, stream, "left.value < right.value")),
    }
    outside = ("duckdb", "numba", "obstore", "pandas", "pyarrow", "pydantic", "scipy", "sqlglot", "yaml")
    loaded = [name for name in outside if name in sys.modules]
    spark.stop()
    print(json.dumps({"spark": spark.version, "cases": cases, "explained": explained, "refused": refused, "loaded": loaded}))


if __name__ == "__main__":
    main()
