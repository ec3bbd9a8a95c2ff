"""A join by a Spark of its own, in a process of its own, on the jars of SPARK_HOME and no others: ``image_join.py DIRECTORY SETTINGS``.

SETTINGS, in JSON, are Spark's master, and settings over ours. The results are in DIRECTORY/out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from streamjoin.runner import spark
from streamjoin.runner.archive import run
from streamjoin.runner.classes import Shared


def main() -> None:
    root, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    spark.shared = lambda java_home: Shared()  # type: ignore[attr-defined]  # whose class path has all jars
    runner = spark.SparkRunner(spark.SparkSettings(root / "logs", 512, settings["master"], conf=settings["conf"]))
    try:
        run(root, runner)
    finally:
        runner.stop()


if __name__ == "__main__":
    main()
