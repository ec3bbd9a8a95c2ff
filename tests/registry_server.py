"""A real schema registry on this machine, for tests: Apicurio Registry, by its API that is Confluent's, in memory, on a free port.

It comes by Maven into ``~/.cache/streamjoin-tests`` (109 MB, once), so this needs ``java`` (17 or newer) and, the first time, ``mvn``. It
is up some 6 s after its start. Logins it leaves to Keycloak; :class:`Gate` stands in front of it for those, and for faults.

Always holds: leaving a :class:`RegistryServer` ends its process and no other; what it cannot have it says by :class:`NoRegistry`.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fetched
import maven
from http_stub import Handler, Served
from ports import free_ports
from waiting import PATIENCE_SECONDS, wait_for

VERSION = "3.0.9"
API = "/apis/ccompat/v7"
CONTENT = "application/vnd.schemaregistry.v1+json"


class NoRegistry(RuntimeError):  # noqa: N818
    """This machine has no registry to offer; the text says what is missing."""


class RegistryServer:
    """A context manager."""

    def __init__(self) -> None:
        try:
            self._programs = maven.archive("apicurio", "io.apicurio", "apicurio-registry-app", VERSION, "all")
        except fetched.NotFetched as missing:
            raise NoRegistry(str(missing)) from None
        self._port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self._port}{API}"
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.NamedTemporaryFile(prefix="registry-", suffix=".log")  # noqa: SIM115

    def __enter__(self) -> RegistryServer:
        settings = {
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(self._port),
            "QUARKUS_HTTP_ACCESS_LOG_ENABLED": "false",
            "APICURIO_STORAGE_SQL_KIND": "h2",
        }
        program = next(self._programs.glob("*-runner.jar"))
        command = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(program)]
        self._process = subprocess.Popen(
            command, env=os.environ | settings, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            wait_for("the registry", self._answers, told=lambda: Path(self._log.name).read_text()[-500:])
        except AssertionError as error:
            self.__exit__()
            raise NoRegistry(str(error)) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
        self._log.close()

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None) -> int:
        """The schema's id. Raises HTTPError."""
        body = {"schema": schema, "schemaType": kind, "references": references or []}
        return int(asked(f"{self.url}/subjects/{subject}/versions", body)["id"])

    def schemas(self, subject: str) -> list[str]:
        """All versions of a subject's schema."""
        versions = asked(f"{self.url}/subjects/{subject}/versions")
        return [asked(f"{self.url}/subjects/{subject}/versions/{version}")["schema"] for version in versions]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the registry ended"
        try:
            asked(f"{self.url}/subjects")
        except (OSError, urllib.error.HTTPError):
            return False
        return True


def asked(url: str, body: Any = None, method: str | None = None) -> Any:
    """What a GET, or with a body a POST, answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": CONTENT}, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return json.loads(answer.read())


class Gate:
    """Stands before a registry: lets requests through, or answers them as ``refuses`` says. Counts them."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.refuses: Callable[[str, Any], tuple[int, Any] | None] = lambda path, headers: None
        """Of a request's path and headers, a status and a body to answer instead of the registry; None lets it through."""
        self.requests: list[str] = []
        gate = self

        class Passing(Handler):
            def do_GET(self) -> None:
                self._pass(None)

            def do_POST(self) -> None:
                self._pass(self.rfile.read(int(self.headers["Content-Length"])))

            def _pass(self, body: bytes | None) -> None:
                gate.requests.append(self.path)
                refused = gate.refuses(self.path, self.headers)
                if refused is not None:
                    self.answer(refused[0], json.dumps(refused[1]).encode())
                    return
                try:
                    with urllib.request.urlopen(urllib.request.Request(url + self.path, body, {"Content-Type": CONTENT})) as answer:
                        self.answer(answer.status, answer.read())
                except urllib.error.HTTPError as error:
                    self.answer(error.code, error.read())

        self._served = Served(Passing, tls)
        self.url = self._served.url

    def close(self) -> None:
        self._served.close()
