"""Spark with the jars, and their parts, that the engine's image keeps: executors on this machine, and as pods of a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from apiserver import ApiServer
from harness import output_of
from kubelet import ADDRESS, Kubelet
from streamjoin.cli.pods import Pods, Secrets, executor_command
from streamjoin.runner.archive import run
from streamjoin.runner.inline import InlineRunner
from streamjoin.runner.java import find_java
from waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
TRIM = ROOT / "docker" / "trim_jars.py"
POD = "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: executor, image: engine}]}\n"

pytestmark = pytest.mark.spark


def trim(listed: Path, source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TRIM, listed, source, target], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spark as an image has it."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    installed, home = Path(spec.origin).parent, tmp_path_factory.mktemp("spark")
    for part in ("bin", "python"):
        (home / part).symlink_to(installed / part)
    done = trim(ROOT / "docker" / "used-jars.txt", installed / "jars", home / "jars")
    assert done.returncode == 0, done.stderr
    kept, all_ = (sum(jar.stat().st_size for jar in (place / "jars").glob("*.jar")) for place in (home, installed))
    assert kept < all_ / 3
    return home


def joined(home: Path, root: Path, master: str, conf: Mapping[str, str], log: Path) -> Counter[tuple[Any, ...]]:
    """The results of a join by that Spark."""
    local = {"SPARK_LOCAL_HOSTNAME": "localhost", "SPARK_LOCAL_IP": ADDRESS}
    environment = {**os.environ, **local, "SPARK_HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, Path(__file__).parent / "image_join.py", root, json.dumps({"master": master, "conf": dict(conf)})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    more = log.read_text()[-2000:] if log.exists() else ""
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{more}"
    return output_of(root)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Counter[tuple[Any, ...]]:
    """The results without Spark."""
    root = tmp_path_factory.mktemp("inline")
    run(root, InlineRunner())
    found = output_of(root)
    assert len(found) > 1000
    return found


def test_executors_run_on_the_jars_that_an_image_keeps(spark_home: Path, expected: Counter[tuple[Any, ...]], tmp_path: Path) -> None:
    assert joined(spark_home, tmp_path, "local-cluster[1,1,512]", {}, tmp_path / "logs" / "spark.log") == expected


@pytest.mark.apiserver
def test_pods_run_on_the_jars_that_an_image_keeps(
    spark_home: Path, expected: Counter[tuple[Any, ...]], api_server: ApiServer, tmp_path: Path
) -> None:
    namespace = api_server.namespace("jars")
    (tmp_path / "secret").write_text("for driver and executors")
    (tmp_path / "pod.yaml").write_text(POD)
    own = {"STREAMJOIN_IMAGE": "engine", "POD_NAMESPACE": namespace, "POD_NAME": "driver", "POD_IP": ADDRESS}
    server = {"KUBERNETES_SERVICE_HOST": ADDRESS, "KUBERNETES_SERVICE_PORT": api_server.url.rsplit(":", 1)[1]}
    of_executors = {"template": tmp_path / "pod.yaml", "heap_mib": 600, "overhead_mib": 500, "cpu": "1", "grace_seconds": 60}
    pods = Pods.here({**own, **server}, secrets=Secrets(tmp_path / "secret"), **of_executors)
    conf = pods.conf("jars") | {
        "spark.kubernetes.authenticate.oauthToken": api_server.admin_token,
        "spark.kubernetes.authenticate.caCertFile": str(api_server.ca_file),
        # driver and executors have one address here
        **dict.fromkeys(("spark.driver.port", "spark.driver.blockManager.port", "spark.blockManager.port"), "0"),
    }
    del conf["spark.kubernetes.driver.pod.name"]  # there is none, as the driver is no pod
    log, java = tmp_path / "executor.log", find_java()

    def start(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        settings = {**os.environ, **environment, "SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": sys.executable}
        settings["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with log.open("ab") as file:
            return subprocess.Popen(executor_command(environment, java, spark_home), env=settings, stdout=file, stderr=file)

    with Kubelet(api_server, namespace, start) as kubelet:
        assert joined(spark_home, tmp_path, pods.master, conf, log) == expected
    [pod] = kubelet.pods
    assert pod["metadata"]["labels"]["spark-role"] == "executor"


def test_what_is_left_out_of_jars_is_what_the_list_says(tmp_path: Path) -> None:
    source = tmp_path / "jars"
    source.mkdir()
    for name in ("a-1.jar", "a-native-osx.jar", "b-1.jar", "c-1.jar"):
        with zipfile.ZipFile(source / name, "w") as jar:
            for entry in ("org/", "org/a/One.class", "org/a/b/Two.class", "META-INF/MANIFEST.MF"):
                jar.writestr(entry, entry)
    listed = tmp_path / "list"
    listed.write_text("# a comment\na-* -org/a/ +org/a/b/\n!a-*-osx.jar\nb-*\n")
    for number in range(2):
        done = trim(listed, source, tmp_path / str(number))
        assert done.returncode == 0, done.stderr
    kept = {jar.name: zipfile.ZipFile(jar).namelist() for jar in (tmp_path / "0").glob("*.jar")}
    assert kept.keys() == {"a-1.jar", "b-1.jar"}
    assert kept["a-1.jar"] == ["org/a/b/Two.class", "META-INF/MANIFEST.MF"]
    assert len(kept["b-1.jar"]) == 4
    assert (tmp_path / "0" / "a-1.jar").read_bytes() == (tmp_path / "1" / "a-1.jar").read_bytes()
    listed.write_text("a-*\nd-*\n")
    done = trim(listed, source, tmp_path / "again")
    assert (done.returncode, done.stderr) == (1, f"trim_jars: d-*: fits no jar of {source}; correct the pattern, or remove it\n")
    listed.write_text("a-* org/a/\n")
    assert "with + or - before them" in trim(listed, source, tmp_path / "again").stderr
