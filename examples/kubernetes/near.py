"""Joins two directories of Parquet on a band of prices, in batch: the program of ``spark-application.yaml``.

python examples/kubernetes/near.py TRADES QUOTES PAIRS
"""

from __future__ import annotations

import sys
from typing import Any

from streamjoin.spark import explain, join

NEAR = "abs(left.price - right.price) <= 0.05 AND left.venue <> right.venue"


def write_pairs(spark: Any, trades: str, quotes: str, pairs: str) -> None:
    """Each trade with the quotes of other venues whose price is near. Both have ``id``, ``price`` and ``venue``."""
    left, right = spark.read.parquet(trades), spark.read.parquet(quotes)
    print(explain(left, right, NEAR))
    found = join(left, right, NEAR)
    found.selectExpr("left.id AS trade", "right.id AS quote", "right.price").write.mode("overwrite").parquet(pairs)


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    write_pairs(SparkSession.builder.getOrCreate(), *sys.argv[1:])
