"""A real Prometheus for tests: started with a configuration of theirs, and asked over its HTTP API."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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


class Server:
    """Prometheus' HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=PATIENCE_SECONDS) as answer:
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


def command(directory: Path, config: dict[str, Any], address: str) -> tuple[str, ...]:
    """What starts one with this configuration, whose files are in the directory."""
    assert PROMETHEUS is not None
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    options = (f"--config.file={file}", f"--storage.tsdb.path={directory / 'tsdb'}", f"--web.listen-address={address}")
    return (PROMETHEUS, *options, "--log.level=warn")


@contextmanager
def prometheus(directory: Path, config: dict[str, Any]) -> Iterator[Server]:
    """Runs with this configuration, and keeps its files in the directory, which it makes."""
    directory.mkdir()
    address = free_address()
    with process(directory / "process", *command(directory, config, address)) as running:
        server = Server(f"http://{address}")

        def ready() -> bool:
            assert running.poll() is None, (directory / "process" / "stderr").read_text()
            return server.ready()

        wait_for("Prometheus is ready", ready)
        yield server
