"""``streamjoin.spark.join`` over Spark Connect: by a client without a JVM, from a server of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cases
from streamjoin.runner.java import find_java
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.spark
HERE = Path(__file__).parent


def test_random_joins_equal_sparks_own(tmp_path: Path) -> None:
    many = cases.how_many(80, of=10)
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "tools"), *filter(None, sys.path)])
    environment = os.environ | {"JAVA_HOME": str(find_java()), "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "connect_joins.py"), str(many)],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=PATIENCE_SECONDS * 5,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == many, done.stderr[-3000:]
    assert [one for one in found if not one["equal"]] == []
    assert sum(one["bins"] for one in found) > many / 2
