"""Random joins over Spark Connect, each beside Spark's own: a line of JSON for each. A program, as a process that has had a classic session
cannot have one of these.

    python tests/connect_joins.py 20            the first 20 cases of ``test_spark_join``
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from pyspark.sql import SparkSession

from streamjoin.language.join_type import JoinType
from streamjoin.spark import join, planning
from test_spark_join import CONDITIONS, SCHEMA, answer, multiset, oracle, rows_of


def compared(spark: Any, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    condition, how = CONDITIONS[seed * 7 % len(CONDITIONS)], list(JoinType)[seed % len(JoinType)].value
    rows = [rows_of(draw, 40, extremes=draw.random() < 0.5, skew=draw.choice((0, 0.5)), nulls=0.1) for _ in range(2)]
    left, right = (spark.createDataFrame(each, SCHEMA) for each in rows)
    expected = answer(lambda: oracle(left, right, condition, how))
    made = join(left, right, condition, how)
    found = expected if expected is None else multiset(made)
    is_cut = "__streamjoin" in str(made._plan.to_proto(spark.client))
    return {"case": f"{condition}, {how}", "equal": found == expected, "bins": is_cut}


if __name__ == "__main__":
    planning.START_SECONDS = -1e9  # however few rows there are, they are joined by bins, if they can be
    session = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "3").getOrCreate()
    for number in range(int(sys.argv[1])):
        print(json.dumps(compared(session, number)), flush=True)
    session.stop()
