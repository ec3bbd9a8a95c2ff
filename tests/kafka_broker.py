"""A real Kafka broker on this machine, for tests and benchmarks: one KRaft node in a directory of its own, on free ports of 127.0.0.1.

With a login it has a second listener, for SASL over TLS by a certificate that ``openssl`` makes.

Kafka itself comes by Maven into ``~/.cache/streamjoin-tests`` (43 MB, once; ``STREAMJOIN_TEST_CACHE`` names another directory), so this
needs ``java`` (17 or newer) and, the first time, ``mvn``.

Always holds: leaving a :class:`KafkaBroker` ends its process and no other; what it cannot have it says by :class:`NoBroker`.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from functools import cached_property
from pathlib import Path
from typing import Any

import fetched
import maven
from ports import free_ports
from waiting import PATIENCE_SECONDS, wait_for

VERSION = "4.1.0"

# Nothing is too old to be kept: tests send records of 1970.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECURE:{protocol},CONTROLLER:PLAINTEXT
log.dirs={root}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
log.retention.check.interval.ms=1000
log.segment.delete.delay.ms=100
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
"""

SECURITY = """\
listener.name.secure.sasl.enabled.mechanisms=SCRAM-SHA-256,PLAIN
listener.name.secure.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={root}/keystore.pem
"""

LOG4J = """\
<Configuration status="error"><Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1}: %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


class NoBroker(RuntimeError):  # noqa: N818
    """This machine has no broker to offer; the text says what is missing."""


def libraries() -> Path:
    """The directory of Kafka's jars, fetched on first use. Raises NoBroker."""
    try:
        return maven.libraries("kafka", "org.apache.kafka", "kafka_2.13", VERSION)
    except fetched.NotFetched as missing:
        raise NoBroker(str(missing)) from None


class KafkaBroker:
    """A broker that can be killed and started again on the same data and ports. A context manager."""

    def __init__(
        self, *, heap_mib: int = 512, fast: bool = False, settings: dict[str, str] | None = None, login: tuple[str, str] | None = None
    ) -> None:
        """``fast``: let Java compile well, which costs seconds at the start. ``settings``: more lines of server.properties.

        ``login``: the name and password of the one user that ``secure_servers`` lets in.
        """
        self._jars = libraries()
        self._compiler = [] if fast else ["-XX:TieredStopAtLevel=1"]
        self._root = Path(tempfile.mkdtemp(prefix="kafka-"))
        self._heap = f"-Xmx{heap_mib}m"
        self._process: subprocess.Popen[bytes] | None = None
        port, secure, controller = free_ports(3)
        self.servers = f"127.0.0.1:{port}"
        self.secure_servers = f"127.0.0.1:{secure}"
        """Without a login as open as ``servers``."""
        self.certificate = self._root / "certificate.pem"
        """What a client of ``secure_servers`` must trust."""
        self._login = login
        protocol = "PLAINTEXT" if login is None else "SASL_SSL"
        text = PROPERTIES.format(port=port, secure=secure, controller=controller, root=self._root, protocol=protocol)
        if login is not None:
            text += SECURITY.format(root=self._root, user=login[0], password=login[1])
        text += "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
        (self._root / "server.properties").write_text(text)
        (self._root / "log4j2.xml").write_text(LOG4J)

    def __enter__(self) -> KafkaBroker:
        try:
            properties = str(self._root / "server.properties")
            identity = uuid.uuid4().hex[:22]
            users: list[str] = []
            if self._login is not None:
                key = self._root / "key.pem"
                make_certificate(key, self.certificate)
                (self._root / "keystore.pem").write_text(key.read_text() + self.certificate.read_text())
                users = ["--add-scram", "SCRAM-SHA-256=[name={},password={}]".format(*self._login)]
            self._java("kafka.tools.StorageTool", "format", "--cluster-id", identity, "--config", properties, *users)
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    def start(self) -> None:
        """Start the process and wait until it answers. Raises NoBroker with the end of its log."""
        with (self._root / "broker.log").open("ab") as log:
            command = [*self._command("kafka.Kafka"), str(self._root / "server.properties")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        wait_for("the Kafka broker answers", self._answers, told=self._log)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not killed since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Of the process, which must run."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End the process as a power cut would (SIGKILL)."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """A new topic; settings with _ for the dot. Returns its name."""
        from confluent_kafka.admin import NewTopic

        settings = {key.replace("_", "."): value for key, value in config.items()}
        self._settled(self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))
        return name

    def delete_topic(self, name: str) -> None:
        """Its name is free when this returns."""
        self._settled(self.admin.delete_topics([name]))
        wait_for(f"topic {name} is gone", lambda: name not in self.admin.list_topics(timeout=PATIENCE_SECONDS).topics)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Let the topic have so many partitions in all."""
        from confluent_kafka.admin import NewPartitions

        self._settled(self.admin.create_partitions([NewPartitions(name, partitions)]))

    def delete_records(self, name: str, partition: int, before: int) -> None:
        """What retention does: records before the offset are gone."""
        from confluent_kafka import TopicPartition

        self._settled(self.admin.delete_records([TopicPartition(name, partition, before)]))

    @cached_property
    def admin(self) -> Any:
        """A confluent_kafka AdminClient."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    @staticmethod
    def _settled(futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(timeout=PATIENCE_SECONDS)

    def _log(self) -> str:
        return (self._root / "broker.log").read_text()[-500:]

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        if self._process is None or self._process.poll() is not None:
            raise NoBroker(f"the Kafka broker did not start: {self._log()}")
        host, port = self.servers.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS).close()
            self.admin.list_topics(timeout=PATIENCE_SECONDS)
        except (OSError, KafkaException):
            return False
        return True

    def _command(self, main: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self._root / 'log4j2.xml'}"
        return ["java", self._heap, "-XX:+UseSerialGC", *self._compiler, log4j, "-cp", f"{self._jars}/*", main]

    def _java(self, main: str, *arguments: str) -> None:
        done = subprocess.run([*self._command(main), *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        if done.returncode:
            raise NoBroker(f"{main} failed: {(done.stdout + done.stderr).strip()[-500:]}")


def make_certificate(key: Path, certificate: Path) -> None:
    """Writes a key, and a certificate of it for 127.0.0.1, signed by itself. Raises NoBroker without ``openssl``."""
    if shutil.which("openssl") is None:
        raise NoBroker("no openssl (apt-get install openssl)")
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", str(key), "-out", str(certificate)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    if done.returncode:
        raise NoBroker(f"openssl makes no certificate: {done.stderr.strip()[-500:]}")
