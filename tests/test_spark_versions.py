"""``streamjoin.spark`` with the versions of PySpark that users have beside it, and without the packages of the engine."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import functions

import cases
from fetched import NotFetched, cached
from pages import ROOT
from skips import lacks
from streamjoin.runner.java import find_java
from test_layers import IMPORT_EACH, run_python
from user_spark import UserSpark
from waiting import PATIENCE_SECONDS

VERSIONS = ("3.5", "4.0")
"""The oldest that works, and the first of Spark 4. The extra ``engine`` has the newest, with which all other tests run."""


def python_with(version: str) -> Path:
    """A Python that has this PySpark, what joins in batch need, and nothing else. Raises NotFetched."""
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if uv is None:
        raise NotFetched(lacks("uv", "make setup-test"))

    def fetch(directory: Path) -> None:
        python = directory / "got" / "bin" / "python"
        for arguments in (
            ["venv", "--python", sys.executable, str(directory / "got")],
            ["pip", "install", "--python", str(python), f"pyspark=={version}.*", "numpy"],
        ):
            done = subprocess.run([uv, "--quiet", *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS * 5)
            if done.returncode:
                raise NotFetched(lacks(f"PySpark {version}: {done.stderr.strip()[-300:]}", f"uv pip install pyspark=={version}.*"))

    return cached(f"pyspark-{version}", fetch) / "bin" / "python"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``streamjoin.zip``: a wheel, by a name that Spark takes."""
    found = tmp_path_factory.mktemp("package") / "streamjoin.zip"
    with zipfile.ZipFile(found, "w") as archive:
        for path in (ROOT / "engine" / "streamjoin").rglob("*.py"):
            archive.write(path, path.relative_to(ROOT / "engine"))
    return found


@pytest.mark.spark
@pytest.mark.parametrize("version", VERSIONS)
def test_joins_in_batch_equal_sparks_own_and_all_else_is_refused(version: str, package: Path, tmp_path: Path) -> None:
    """Executors have no Python at all, so none runs there."""
    try:
        python = python_with(version)
    except NotFetched as missing:
        pytest.skip(str(missing))
    script, share = ROOT / "tests" / "other_spark.py", "1" if cases.ALL else "7"
    (submit,) = python.parent.parent.glob("lib/python*/site-packages/pyspark/bin/spark-submit")
    done = subprocess.run(
        [submit, "--master", "local-cluster[1,2,1024]", "--py-files", package, script, share],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE_SECONDS * 5,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))},
            "JAVA_HOME": str(find_java()),
            "PYSPARK_DRIVER_PYTHON": str(python),
            "PYSPARK_PYTHON": "/no/python",
        },
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    (found,) = map(json.loads, lines)
    assert found["spark"].startswith(f"{version}.")
    assert found["loaded"] == []
    joined = found["cases"]
    assert {name: case for name, case in joined.items() if not (case["equal"] and case["bins"] and case["rows"])} == {}
    assert {name: case for name, case in joined.items() if case["python"]} == {}
    assert found["explained"].startswith("join: left\nway: bins of a key\n")
    assert found["explained"].endswith("sample: 60 of 60 rows of the left\nsample: 60 of 60 rows of the right")
    remedy = "install a newer one (pip install 'streamjoin[engine]'), or use streamjoin.spark.join in batch"
    needs = f"needs PySpark 4.3 or newer, and this is {found['spark']}; {remedy}"
    assert found["refused"] == {
        "source": f"streamjoin.spark.StreamJoinSource {needs}",
        "streams": f"a join of streaming DataFrames {needs}",
    }


def test_joins_in_batch_load_no_package_of_the_engine() -> None:
    done = run_python("-c", IMPORT_EACH, "duckdb numba obstore pandas pyarrow pydantic scipy sqlglot yaml", "streamjoin.spark")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        (
            "sys.modules['obstore'] = None",
            "streamjoin.spark.StreamJoinSource needs the package obstore, which is not installed; pip install 'streamjoin[engine]'",
        ),
        ("pyspark.__version__ = '3.4.1'", "streamjoin.spark needs PySpark 3.5 or newer, and this is 3.4.1; install a newer one"),
    ],
)
def test_without_the_engine_or_with_a_spark_that_is_too_old_a_sentence_says_what_to_install(lacking: str, said: str) -> None:
    done = run_python("-c", f"import sys, pyspark; {lacking}; import streamjoin.spark; streamjoin.spark.StreamJoinSource")
    assert done.stderr.splitlines()[-1].endswith(f"NotAvailable: {said}")


FIELDS = {
    *("type", "mode", "sparkVersion", "image", "mainApplicationFile", "arguments", "deps.packages", "sparkConf"),
    *("driver.cores", "driver.memory", "driver.serviceAccount", "driver.envFrom"),
    *("executor.instances", "executor.cores", "executor.memory", "executor.envFrom"),
    *("restartPolicy.type", "restartPolicy.onFailureRetries", "restartPolicy.onFailureRetryInterval"),
}
"""Of the spec of a SparkApplication, by the Spark Operator's CustomResourceDefinition, which is not here: look up what you add."""


def test_the_example_for_the_spark_operator_runs_the_program_beside_it() -> None:
    examples = ROOT / "examples" / "kubernetes"
    application = yaml.safe_load((examples / "spark-application.yaml").read_text())
    assert (application["apiVersion"], application["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    spec = application["spec"]
    nested = {field.partition(".")[0] for field in FIELDS if "." in field}
    assert {f"{name}.{field}" for name in nested for field in spec[name]} | (set(spec) - nested) <= FIELDS
    image = (examples / "near.Dockerfile").read_text()
    assert f"apache/spark:{spec['sparkVersion']}-" in image
    folder, program = spec["mainApplicationFile"].removeprefix("local://").rsplit("/", 1)
    assert f"COPY {(examples / program).relative_to(ROOT)} {folder}/\n" in image
    assert f"uv pip install --python {spec['sparkConf']['spark.pyspark.driver.python']} streamjoin\n" in image
    assert len(spec["arguments"]) == len(inspect.signature(near().write_pairs).parameters) - 1


@pytest.mark.spark
def test_the_program_for_the_spark_operator_writes_the_pairs(user_spark: UserSpark, tmp_path: Path) -> None:
    spark = user_spark.session(partitions=2)
    for name, step in (("trades", 37), ("quotes", 53)):
        rows = f"SELECT id, CAST(id * {step} % 401 AS DOUBLE) / 100 AS price, id % 3 AS venue FROM range(400)"
        spark.sql(rows).write.parquet(str(tmp_path / name))
    paths = [str(tmp_path / name) for name in ("trades", "quotes", "pairs")]
    near().write_pairs(spark, *paths)
    trades, quotes, pairs = (spark.read.parquet(path) for path in (*paths[:2], paths[2]))
    expected = trades.alias("left").join(quotes.alias("right"), functions.expr(near().NEAR))
    assert pairs.columns == ["trade", "quote", "price"]
    assert Counter(map(tuple, pairs.collect())) == Counter(map(tuple, expected.select("left.id", "right.id", "right.price").collect()))


def near() -> Any:
    spec = importlib.util.spec_from_file_location("near", ROOT / "examples" / "kubernetes" / "near.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
