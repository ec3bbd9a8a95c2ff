"""A real Cassandra on this machine, for tests: one node in a directory of its own, on free ports of 127.0.0.1.

Cassandra itself comes by Maven into ``~/.cache/streamjoin-tests`` (66 MB, once), so this needs ``java`` (11 or 17) and, the first time,
``mvn``. It is up some 10 s after its start.

Always holds: leaving a :class:`CassandraServer` ends its process and no other; what it cannot have it says by :class:`NoCassandra`.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

import fetched
import maven
from ports import free_ports
from waiting import PATIENCE_SECONDS, wait_for

VERSION = "5.0.5"
SETTINGS = """\
cluster_name: test
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
data_file_directories: [{root}/data]
commitlog_directory: {root}/commitlog
saved_caches_directory: {root}/caches
hints_directory: {root}/hints
cdc_raw_directory: {root}/cdc
commitlog_sync: periodic
commitlog_sync_period: 10s
commitlog_segment_size: 8MiB
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{storage}"}}]
listen_address: 127.0.0.1
storage_port: {storage}
rpc_address: 127.0.0.1
start_native_transport: true
native_transport_port: {port}
authenticator: AllowAllAuthenticator
auto_bootstrap: false
"""
OPENED = """
    java.base/java.lang java.base/java.lang.ref java.base/java.lang.reflect java.base/java.lang.module java.base/java.io java.base/java.nio
    java.base/java.net java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.atomic java.base/jdk.internal.misc
    java.base/jdk.internal.ref java.base/jdk.internal.loader java.base/jdk.internal.reflect java.base/jdk.internal.math
    java.base/jdk.internal.module java.base/jdk.internal.util.jar java.base/sun.nio.ch java.rmi/sun.rmi.transport.tcp
    java.rmi/sun.rmi.registry java.rmi/sun.rmi.server java.sql/java.sql java.management.rmi/javax.management.remote.rmi
    java.management/sun.management jdk.management/com.sun.management.internal
"""
"""What Cassandra reaches for inside Java 17."""


class NoCassandra(RuntimeError):  # noqa: N818
    """This machine has no Cassandra to offer; the text says what is missing."""


class CassandraServer:
    """A context manager."""

    def __init__(self) -> None:
        try:
            self._jars = maven.libraries("cassandra", "org.apache.cassandra", "cassandra-all", VERSION)
        except fetched.NotFetched as missing:
            raise NoCassandra(str(missing)) from None
        self._root = Path(tempfile.mkdtemp(prefix="cassandra-"))
        port, storage = free_ports(2)
        self.target = f"127.0.0.1:{port}"
        (self._root / "cassandra.yaml").write_text(SETTINGS.format(root=self._root, port=port, storage=storage))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> CassandraServer:
        opened = [f"--add-{kind}={name}=ALL-UNNAMED" for name in OPENED.split() for kind in ("opens", "exports")]
        settings = {
            "jdk.attach.allowAttachSelf": "true",
            "cassandra.config": f"file://{self._root}/cassandra.yaml",
            "cassandra.storagedir": self._root,
            "cassandra-foreground": "yes",
            # Nobody else is there to be waited for.
            "cassandra.ring_delay_ms": 0,
            "cassandra.skip_wait_for_gossip_to_settle": 0,
        }
        command = ["java", *opened, "-Xmx768m", "-XX:TieredStopAtLevel=1", *(f"-D{name}={value}" for name, value in settings.items())]
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", f"{self._jars}/*", "org.apache.cassandra.service.CassandraDaemon"],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._root,
            )
        try:
            wait_for("Cassandra takes connections", self._answers, told=lambda: (self._root / "log").read_text()[-2000:])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise NoCassandra(f"Cassandra ended: {(self._root / 'log').read_text()[-500:]}")
        host, port = self.target.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS).close()
        except OSError:
            return False
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._root, ignore_errors=True)
