"""The entry points of pods: what Spark is told, what an executor's container becomes, what is removed with a checkpoint."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from certificates import Authority
from streamjoin.cli import main
from streamjoin.cli.exits import Exit, Failure
from streamjoin.cli.pods import BACKEND, REVISION_SECONDS, Limits, Pods, Secrets, await_revision, executor_command
from streamjoin.cli.run import read_job
from streamjoin.manifest.memory import RESIZED
from streamjoin.serve.metrics import Metrics

POD = {
    "STREAMJOIN_IMAGE": "engine:1",
    "POD_NAMESPACE": "joins",
    "POD_NAME": "sj-one-abc",
    "POD_IP": "10.0.0.7",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
}
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://driver",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "exec-3",
    "SPARK_EXECUTOR_MEMORY": "512m",
    **{f"SPARK_JAVA_OPT_{number}": f"-Dopt={number}" for number in (10, 0, 2)},
}


SECRET_FILE = Path("/etc/streamjoin-exchange/secret")


def here(**changes: str) -> Pods:
    of_executors = {
        "template": Path("/etc/streamjoin/executor.yaml"),
        "heap_mib": 600,
        "overhead_mib": 1448,
        "cpu": "1",
        "grace_seconds": 60,
    }
    return Pods.here({**POD, **changes}, secrets=Secrets(SECRET_FILE), **of_executors)


def test_spark_is_told_to_start_pods_and_to_touch_nothing_else() -> None:
    conf = here().conf("one")
    assert here().master == "k8s://https://10.96.0.1:443"
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "10.0.0.7"
    assert conf["spark.kubernetes.driver.pod.name"] == "sj-one-abc"
    assert conf["spark.executor.memoryOverhead"] == "1448m"
    assert conf["spark.kubernetes.executor.disableConfigMap"] == "true"
    assert conf["spark.kubernetes.container.image.pullPolicy"] == "IfNotPresent"
    assert here(STREAMJOIN_IMAGE_PULL_POLICY="Always").conf("one")["spark.kubernetes.container.image.pullPolicy"] == "Always"
    six = here(POD_IP="fd00::7").conf("one")
    assert six["spark.driver.host"] == six["spark.driver.bindAddress"] == "[fd00::7]"
    assert here(KUBERNETES_SERVICE_HOST="fd00::1").master == "k8s://https://[fd00::1]:443"


def test_sparks_own_connections_are_protected_by_a_secret_that_no_setting_holds() -> None:
    conf = here().conf("one")
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    assert conf["spark.authenticate.secret.file"] == str(SECRET_FILE)
    assert "spark.authenticate.secret" not in conf


def test_a_lost_executor_is_noticed_soon() -> None:
    def seconds(name: str) -> float:
        return float(here().conf("one")[f"spark.{name}"].removesuffix("s"))

    assert seconds("kubernetes.executor.apiPollingInterval") + seconds("kubernetes.executor.missingPodDetectDelta") <= 10
    assert seconds("network.timeout") + seconds("network.timeoutInterval") + seconds("executor.heartbeatInterval") <= 30
    assert 2 * seconds("executor.heartbeatInterval") < seconds("network.timeout"), "one beat may be late"
    assert seconds("network.timeoutInterval") <= seconds("network.timeout"), "or Spark does not start"


@pytest.mark.spark
def test_executors_read_the_secret_that_the_driver_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks Spark's own code, with what a driver and an executor's Java are told before they have spoken to each other."""
    from pyspark.java_gateway import launch_gateway

    from streamjoin.runner.java import find_java

    monkeypatch.setenv("JAVA_HOME", str(find_java()))
    file = tmp_path / "secret"
    file.write_bytes(b"shared")
    pods = replace(here(), secrets=Secrets(file))
    driver = {**pods.conf("one"), "spark.master": pods.master}
    gateway = launch_gateway()
    try:
        spark = gateway.jvm.org.apache.spark
        told = {name: value for name, value in driver.items() if spark.SparkConf.isExecutorStartupConf(name)}
        options = executor_command({**EXECUTOR, "SPARK_JAVA_OPT_0": "-Dx=y"}, Path("/java"), Path("/spark"))
        told |= dict(option[2:].split("=") for option in options if option.startswith("-Dspark."))
        keys = []
        for settings in (driver, told):
            conf = spark.SparkConf(False)
            for name, value in settings.items():
                conf.set(name, value)
            none = getattr(gateway.jvm.scala, "None$").__getattr__("MODULE$")
            names = getattr(spark.internal.config, "package$").__getattr__("MODULE$")
            keys.append(spark.SecurityManager(conf, none, names.AUTH_SECRET_FILE()).getSecretKey())
    finally:
        gateway.shutdown()
    assert keys == [base64.b64encode(b"shared").decode()] * 2


NAME = "sj-one.joins.svc"


def certified(directory: Path, name: str = NAME) -> Secrets:
    Authority(directory).issue(name)
    (directory / "secret").write_bytes(b"shared")
    return Secrets(directory / "secret", directory, NAME)


def test_a_driver_finds_its_secrets(tmp_path: Path) -> None:
    secrets = certified(tmp_path)
    security = secrets.security()
    assert security.secret == b"shared"
    assert security.tls is not None
    assert "shared" not in repr(security)
    plain = replace(secrets, tls_directory=None).security()
    assert (plain.secret, plain.tls) == (b"shared", None)


def test_secrets_that_cannot_be_used_are_refused_with_the_field_and_a_remedy(tmp_path: Path) -> None:
    def refused(secrets: Secrets) -> str:
        with pytest.raises(Failure) as failure:
            secrets.security()
        assert "shared" not in failure.value.sentence
        return failure.value.sentence

    field = "spec.security.tls.secretName: "
    assert refused(Secrets(tmp_path / "none")).startswith(f"--exchange-secret-file: {tmp_path}/none: ")
    (tmp_path / "empty").touch()
    assert refused(Secrets(tmp_path / "empty")).endswith("is empty; delete its Secret, and another is made")

    sentence = refused(certified(tmp_path / "a", "other.joins.svc"))
    assert sentence.startswith(f"{field}tls.crt is refused: ")
    assert f"it must be for the DNS name {NAME}" in sentence

    stranger = certified(tmp_path / "b")
    Authority(tmp_path / "c")
    (tmp_path / "b" / "ca.crt").write_bytes((tmp_path / "c" / "ca.crt").read_bytes())
    assert "issued by the authority of ca.crt" in refused(stranger)

    mixed = certified(tmp_path / "d")
    certified(tmp_path / "e")
    (tmp_path / "d" / "tls.key").write_bytes((tmp_path / "e" / "tls.key").read_bytes())
    assert refused(mixed).startswith(f"{field}tls.crt, tls.key and ca.crt cannot be used: ")

    (tmp_path / "d" / "ca.crt").unlink()
    assert "ca.crt is missing" in refused(mixed)


@pytest.mark.parametrize("name", ["one", "1st", "x" * 63, "a-" * 20])
def test_executors_names_are_new_with_every_driver_and_fit(name: str) -> None:
    first, second = (here().conf(name)["spark.kubernetes.executor.podNamePrefix"] for _ in range(2))
    assert first != second
    assert len(first) <= 47, "Spark's limit"
    assert "--" not in first


def test_outside_of_a_pod_what_is_missing_is_named() -> None:
    with pytest.raises(Failure, match=r"POD_IP: not in the environment; .* use streamjoin run"):
        here(POD_IP="")


def test_an_executor_becomes_java_with_its_options_in_order() -> None:
    command = executor_command(EXECUTOR, Path("/java"), Path("/spark"))
    assert command[:5] == ["/java/bin/java", "-Dopt=0", "-Dopt=2", "-Dopt=10", "-Dspark.master=k8s://"]
    assert "-Xmx512m" in command
    after = command[command.index(BACKEND) + 1 :]
    assert after[:4] == ["--driver-url", "spark://driver", "--executor-id", "3"]
    with pytest.raises(Failure, match="SPARK_EXECUTOR_ID"):
        executor_command({name: value for name, value in EXECUTOR.items() if name != "SPARK_EXECUTOR_ID"}, Path("/java"), Path("/spark"))


def test_the_driver_waits_for_the_files_that_it_was_started_for(tmp_path: Path) -> None:
    now = 0.0
    file = tmp_path / "revision"

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now == 5:
            file.write_text("new\n")

    assert await_revision(file, "new", clock=lambda: now, sleep=sleep)
    assert now == 5
    assert not await_revision(file, "newer", clock=lambda: now, sleep=sleep)
    assert now >= REVISION_SECONDS


def manifest(tmp_path: Path) -> tuple[Path, Any]:
    body = yaml.safe_load((Path(__file__).parent.parent / "examples" / "band.yaml").read_text())
    body["spec"]["checkpoint"]["location"] = str(tmp_path / "state")
    file = tmp_path / "streamjoin.yaml"
    file.write_text(yaml.safe_dump(body))
    return file, body


def test_limits_are_taken_over_from_a_changed_manifest_and_nothing_else_is(tmp_path: Path) -> None:
    file, body = manifest(tmp_path)
    driver: Any = SimpleNamespace(job=read_job(file))
    metrics = Metrics(driver.job)
    limits = Limits(file, driver, metrics)
    assert not limits.look()
    body["spec"]["workers"].update(min=2, max=9, capacityTuples=1)
    file.write_text(yaml.safe_dump(body))
    before = driver.job
    assert limits.look()
    assert (driver.job.min_workers, driver.job.max_workers, driver.job.capacity) == (2, 9, before.capacity)
    assert [metrics.registry.get_sample_value(f"streamjoin_workers_{end}", {"name": driver.job.name}) for end in ("min", "max")] == [2, 9]
    file.write_text("half a file: [")
    assert not limits.look()


def test_the_capacity_follows_the_memory_of_executors_that_were_resized_where_it_follows_memory(tmp_path: Path) -> None:
    file, body = manifest(tmp_path)
    del body["spec"]["workers"]["capacityTuples"]
    file.write_text(yaml.safe_dump(body))
    driver: Any = SimpleNamespace(job=read_job(file))
    metrics = Metrics(driver.job)
    limits = Limits(file, driver, metrics)
    assert not limits.look()
    (tmp_path / RESIZED).write_text('{"cpu": "2"}')
    assert not limits.look(), "the memory is as it was"
    (tmp_path / RESIZED).write_text('{"cpu": "2", "memory": "4Gi"}')
    before = driver.job
    assert limits.look()
    body["spec"]["workers"]["resources"] = {"memory": "4Gi"}
    file.write_text(yaml.safe_dump(body))
    begun_anew = read_job(file)
    assert begun_anew is not None
    assert driver.job.capacity == begun_anew.capacity != before.capacity
    assert metrics.registry.get_sample_value("streamjoin_capacity_bytes", {"name": driver.job.name}) == driver.job.capacity.amount
    body["spec"]["workers"]["capacityTuples"] = 1000
    file.write_text(yaml.safe_dump(body))
    driver.job = read_job(file)
    assert not Limits(file, driver, metrics).look(), "a capacity that is given stays"


def test_purge_removes_the_checkpoint_alone(tmp_path: Path) -> None:
    file, _ = manifest(tmp_path)
    for name in ("state/log/1.json", "state/blocks/a", "other/b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    for _ in range(2):
        assert CliRunner().invoke(main, ["purge", str(file)]).exit_code == Exit.DONE
    assert not [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert (tmp_path / "other" / "b").exists()


def test_the_driver_command_outside_of_a_pod_says_what_to_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in POD:
        monkeypatch.delenv(name, raising=False)
    file, _ = manifest(tmp_path)
    options = [f"--{name}=x" for name in ("executor-template", "exchange-secret-file", "api-token-file")]
    options += ["--executor-heap-mib=512", "--executor-overhead-mib=512"]
    done = CliRunner().invoke(main, ["driver", str(file), *options])
    assert done.exit_code == Exit.USAGE
    assert "use streamjoin run" in done.output
