"""A real Prometheus for tests: started with a configuration of theirs, and asked over its HTTP API."""

from __future__ import annotations

import json
import shutil
import ssl
import struct
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ports import free_address
from skips import lacks
from waiting import PATIENCE_SECONDS, wait_for

PROMETHEUS = shutil.which("prometheus") or shutil.which("prometheus", path="/usr/bin")
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path="/usr/bin")
REMEDY = "apt-get install prometheus"
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason=lacks("prometheus", REMEDY))
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason=lacks("promtool", REMEDY))


@contextmanager
def process(directory: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes ``stdout`` and ``stderr`` in the directory, and is gone when this ends."""
    directory.mkdir()
    with ExitStack() as stack:
        out, error = (stack.enter_context((directory / name).open("wb")) for name in ("stdout", "stderr"))
        started = subprocess.Popen(command, stdout=out, stderr=error, stdin=subprocess.DEVNULL)
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


Sample = tuple[Mapping[str, str], float, float]
"""Of one series: its labels, with ``__name__`` without the prefix; the value; and the time, in seconds since 1970."""


@dataclass(frozen=True)
class Guard:
    """What a Prometheus asks of whoever comes."""

    web: dict[str, Any]
    """Its web configuration, with TLS."""
    tls: ssl.SSLContext
    """By which it lets the test in."""
    authorization: str


class Server:
    """Prometheus' HTTP API."""

    def __init__(self, url: str, guard: Guard | None = None) -> None:
        self.url = self._url = url
        self._guard = guard

    def write(self, samples: Sequence[Sample]) -> None:
        """By remote write, which it must have been started for."""
        body = b"".join(_field(1, _series(*sample)) for sample in samples)
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf", "X-Prometheus-Remote-Write-Version": "0.1.0"}
        request = urllib.request.Request(f"{self._url}/api/v1/write", _snappy(body), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS):
                pass
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def ready(self) -> bool:
        try:
            headers = {} if self._guard is None else {"Authorization": self._guard.authorization}
            request = urllib.request.Request(f"{self._url}/-/ready", headers=headers)
            tls = None if self._guard is None else self._guard.tls
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS, context=tls) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **parameters: Any) -> Any:
        """The data of an answer of ``/api/v1``."""
        try:
            url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The result of a query over a time; all in seconds."""
        result: list[dict[str, Any]] = self.get("query_range", query=expression, start=start, end=end, step=step)["result"]
        return result


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


def _field(number: int, content: bytes) -> bytes:
    """Of a protobuf message, with a length."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _series(labels: Mapping[str, str], value: float, at: float) -> bytes:
    """prometheus.TimeSeries, with one sample."""
    named = {**labels, "__name__": f"streamjoin_{labels['__name__']}"}
    pairs = (_field(1, name.encode()) + _field(2, text.encode()) for name, text in sorted(named.items()))
    sample = _varint(1 << 3 | 1) + struct.pack("<d", value) + _varint(2 << 3) + _varint(round(at * 1000))
    return b"".join(_field(1, pair) for pair in pairs) + _field(2, sample)


def _snappy(content: bytes) -> bytes:
    """Snappy's block format, with nothing compressed."""
    parts = (content[begin : begin + 60] for begin in range(0, len(content), 60))
    return _varint(len(content)) + b"".join(bytes(((len(part) - 1) << 2,)) + part for part in parts)


def command(directory: Path, config: dict[str, Any], address: str, *options: str) -> tuple[str, ...]:
    """What starts one with this configuration, whose files are in the directory."""
    assert PROMETHEUS is not None
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    given = (f"--config.file={file}", f"--storage.tsdb.path={directory / 'tsdb'}", f"--web.listen-address={address}")
    return (PROMETHEUS, *given, "--log.level=warn", *options)


@contextmanager
def prometheus(directory: Path, config: dict[str, Any], *options: str, guard: Guard | None = None) -> Iterator[Server]:
    """Runs with this configuration, and keeps its files in the directory, which it makes."""
    directory.mkdir()
    address = free_address()
    if guard is not None:
        web = directory / "web.yml"
        web.write_text(yaml.safe_dump(guard.web))
        options = (*options, f"--web.config.file={web}")
    with process(directory / "process", *command(directory, config, address, *options)) as running:
        server = Server(f"{'http' if guard is None else 'https'}://{address}", guard)

        def ready() -> bool:
            assert running.poll() is None, (directory / "process" / "stderr").read_text()
            return server.ready()

        wait_for("Prometheus is ready", ready)
        yield server
