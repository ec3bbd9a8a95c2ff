"""Kafka by SASL over TLS: joins that log in, what is said when they may not, and that no password is anywhere it should not be."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from kafka_broker import KafkaBroker, make_certificate
from kafka_join import NAMES, Joined, finish_despite_failures, produce, running_broker, way
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.epoch.ports import EpochFailed
from streamjoin.io.base import SinkError, SourceError, UnavailableError
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_sink import KafkaSink, KafkaSinkConfig
from streamjoin.io.kafka_source import KafkaSource, KafkaSourceConfig
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS

TESTS = Path(__file__).parent
USER, PASSWORD, WRONG = "me", "open-s3same", "shut-s3same"
SCHEMA = pa.schema([("id", pa.int64())])
ENDLESS = 3600.0
"""Seconds that clients wait for brokers: a refusal that were waited for, too, would end no test below."""
__all__ = ["way"]
pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def login_broker() -> Iterator[KafkaBroker]:
    with running_broker(login=(USER, PASSWORD)) as started:
        yield started


@pytest.fixture
def broker(login_broker: KafkaBroker) -> KafkaBroker:
    """For a test that may kill it."""
    if not login_broker.is_running:
        login_broker.start()
    return login_broker


def login(broker: KafkaBroker, password: str, mechanism: str = "SCRAM-SHA-256", **options: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(broker.certificate),
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
    } | {name.replace("_", "."): value for name, value in options.items()}


def logged_in(broker: KafkaBroker, root: Path, password: str, *, sink: str | None = None, mechanism: str = "SCRAM-SHA-256") -> Joined:
    """A join whose clients log in; ``sink``: the sink's password, where it is another."""
    talkative = {"debug": "security,broker,conf", "log_level": 7}

    def client(said: str) -> dict[str, Any]:
        return {"bootstrapServers": broker.secure_servers, "options": login(broker, said, mechanism) | talkative}

    return Joined(broker, root, timeout=f"{ENDLESS:.0f}s", client=client(password), sink=client(sink or password))


def run(join: Joined) -> Result:
    return CliRunner().invoke(main, ["run", str(join.manifest), "--runner", "inline", "--until-idle"])


def seen_of(secret: str, root: Path) -> list[str]:
    """The files that have it, but for the manifest and the secret's own."""
    return [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and path.name not in ("join.yaml", "secret") and secret.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize(("mechanism", "where"), [("SCRAM-SHA-256", "file"), ("PLAIN", "env"), ("SCRAM-SHA-256", "manifest")])
def test_a_join_logs_in_over_tls_and_its_password_is_seen_nowhere(
    mechanism: str, where: str, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "streamjoin.kafka")
    (tmp_path / "secret").write_text(f"{PASSWORD}\n")
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    said = {"file": f"file:{tmp_path}/secret", "env": "env:KAFKA_PASSWORD", "manifest": PASSWORD}[where]
    join = logged_in(broker, tmp_path, said, mechanism=mechanism)
    join.feed(60)
    outputs = [CliRunner().invoke(main, [command, str(join.manifest)]).output for command in ("validate", "plan")]
    done = run(join)
    assert done.exit_code == Exit.DONE, done.output
    assert join.found() == (join.expected(), 0)
    assert ('warning: spec.streams[0].source.kafka.options["sasl.password"]: is a secret' in outputs[0]) == (where == "manifest")
    assert not any(PASSWORD in output for output in (*outputs, done.output))
    assert "sasl.password" in (tmp_path / "state/logs/python.log").read_text(), "librdkafka's debugging is in the log"
    assert seen_of(PASSWORD, tmp_path) == []


@pytest.mark.spark
def test_a_join_on_spark_reads_and_writes_topics_from_its_tasks(broker: KafkaBroker, tmp_path: Path) -> None:
    """Killed when its first epoch has been committed, and run again. Its workers log in by themselves."""
    (tmp_path / "secret").write_text(PASSWORD)
    join = logged_in(broker, tmp_path, f"file:{tmp_path}/secret")
    join.feed(200)
    command = [sys.executable, str(TESTS / "victim.py"), str(tmp_path)]
    killed, done = (
        subprocess.run([*command, *moment], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        for moment in (("publish", "1"), ("never", "0"))
    )
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
    assert join.found() == (join.expected(), 0)
    assert PASSWORD not in killed.stdout + killed.stderr + done.stdout + done.stderr
    assert seen_of(PASSWORD, tmp_path) == []


@pytest.mark.parametrize(("part", "code"), [("source", Exit.SOURCE), ("sink", Exit.STORAGE)])
def test_a_wrong_password_ends_the_run_at_once_and_is_not_shown(part: str, code: Exit, broker: KafkaBroker, tmp_path: Path) -> None:
    join = logged_in(broker, tmp_path, WRONG if part == "source" else PASSWORD, sink=PASSWORD if part == "source" else WRONG)
    join.feed(10)
    done = run(join)
    assert done.exit_code == code, done.output
    topic = join.topics[0] if part == "source" else join.topics[2]
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("streamjoin: ")]
    assert f"Kafka topic {topic} on {broker.secure_servers}: " in sentence
    assert "SASL authentication error" in sentence
    assert "correct kafka.options[sasl.username] and kafka.options[sasl.password]" in sentence
    assert WRONG not in done.output
    assert seen_of(WRONG, tmp_path) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"sasl_password": WRONG}, r"SASL authentication error.*correct kafka\.options\[sasl\.username\] and kafka\.options\[sasl\.pass"),
        ({"sasl_mechanism": "SCRAM-SHA-512"}, r"supported mechanisms.*kafka\.options\[sasl\.mechanism\]"),
        ({"ssl_ca_location": "another.pem"}, r"certificate verify failed.*kafka\.options\[ssl\.ca\.location\]"),
    ],
    ids=["password", "mechanism", "authority"],
)
def test_each_client_is_told_what_is_wrong_with_its_options(
    options: dict[str, str], complaint: str, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's, a worker's that has another file than the driver, and the sink's."""
    make_certificate(tmp_path / "another.key", tmp_path / "another.pem")
    monkeypatch.chdir(tmp_path)
    topic = broker.create_topic(f"told-{next(NAMES)}")
    produce(broker, topic, [{"id": 1}])

    def client(**changed: str) -> KafkaClient:
        return KafkaClient(broker.secure_servers, topic, tuple((login(broker, PASSWORD) | changed).items()), ENDLESS)

    def source(**changed: str) -> KafkaSource:
        return KafkaSource(KafkaSourceConfig(client(**changed), "g"), SCHEMA)

    changed = {name.replace("_", "."): value for name, value in options.items()}
    (split,) = source().plan(None, 10, 0.0).splits
    with pytest.raises(SourceError, match=complaint):
        source(**changed).plan(None, 10, 0.0)
    with pytest.raises(SourceError, match=complaint):
        list(source(**changed).reader.read(split))
    sink = KafkaSink(KafkaSinkConfig(client(**changed), "q"), SCHEMA, ObjectStorage(str(tmp_path)))
    with pytest.raises(SinkError, match=complaint):
        sink.publish([], again=True)
    writer = sink.writer("0a1b-000001-000000000000-00000-x", "0a1b-000000000000-00000")
    writer.write(pa.record_batch([pa.array([1])], schema=SCHEMA))
    with pytest.raises(SinkError, match=complaint):
        sink.publish(writer.close())


def test_a_client_that_speaks_no_tls_is_told_to_look_at_its_options(broker: KafkaBroker) -> None:
    client = KafkaClient(broker.secure_servers, "any", (), 2.0)
    with pytest.raises(UnavailableError, match=r"no answer within 2 s.*see whether the brokers are up, and whether kafka\.options fit"):
        KafkaSource(KafkaSourceConfig(client, "g"), SCHEMA).plan(None, 10, 0.0)


def test_a_broker_that_lets_clients_in_dies_and_comes_back(broker: KafkaBroker, tmp_path: Path) -> None:
    """Connections that break in the middle of a login are no refusals."""
    client = {"bootstrapServers": broker.secure_servers, "options": login(broker, PASSWORD), "timeout": "2s"}
    join = Joined(broker, tmp_path, client=client)
    driver = join.driver()
    driver.start()
    join.feed(20)
    finish_despite_failures(driver)
    broker.kill()
    with pytest.raises(EpochFailed, match=r"UnavailableError: Kafka topic join-l-.*: no answer within 2 s") as failure:
        driver.step()
    assert not failure.value.permanent
    broker.start()
    finish_despite_failures(driver)
    join.feed(20)
    finish_despite_failures(driver)
    assert join.found() == (join.expected(), 0)
