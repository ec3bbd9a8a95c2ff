"""Whatever shows a running join shows every join: the terminal, the page, the lines of JSON and the metrics.

The trees by which joins of three and more streams find results are chosen from the first input, so what is held lies elsewhere than the
manifest alone says. A cyclic condition has more trees than one.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pages import ROOT
from streamjoin.cli import main
from waiting import wait_for

CONDITIONS = {
    "cycle": "a.q = b.q AND b.q = c.q AND abs(c.k - a.k) <= 1",
    "complete": "a.k = b.k AND b.k = c.k AND c.k = a.k",
    "chain": "abs(a.k - b.k) <= 1 AND b.q = c.q",
}


def manifest_at(root: Path, condition: str) -> Path:
    """Three streams of files of very different sizes, so that the sample chooses another tree than the first one."""
    streams = []
    for name, rows in (("a", 400), ("b", 40), ("c", 200)):
        (root / name).mkdir()
        lines = (f"{number},{number % 37},{number % 5},2026-01-01T00:00:{number % 60:02d}Z\n" for number in range(rows))
        (root / name / "all.csv").write_text("id,k,q,at\n" + "".join(lines))
        source = {"files": {"path": str(root / name), "format": "csv", "settle": "0s"}}
        schema = "id BIGINT, k BIGINT, q BIGINT, at TIMESTAMP"
        streams.append({"name": name, "source": source, "schema": schema, "eventTime": "at", "watermark": "1m"})
    output = {"select": ["a.id AS a", "b.id AS b", "c.id AS c"], "sink": {"files": {"path": str(root / "out"), "format": "json"}}}
    join = {"name": "all", "condition": condition, "window": {"within": "1m"}, "output": output}
    workers = {"min": 1, "max": 2, "capacityTuples": 2000}
    spec = {"streams": streams, "joins": [join], "workers": workers, "checkpoint": {"location": str(root / "state")}}
    body = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "shown"}, "spec": spec}
    path = root / "shown.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=list(CONDITIONS))
def test_lines_of_json_say_what_each_worker_holds_of_each_stream(condition: str, tmp_path: Path) -> None:
    manifest = manifest_at(tmp_path, condition)
    done = CliRunner().invoke(main, ["run", str(manifest), "--runner", "inline", "--until-idle", "--json", "--elastic"])
    assert done.exit_code == 0, done.output
    epochs = [json.loads(line) for line in done.stdout.splitlines() if '"epoch"' in line]
    held = [worker["held"] for epoch in epochs for worker in epoch.get("workers", []) if isinstance(worker, dict)]
    assert held
    assert all(list(one) == ["a", "b", "c"] for one in held)
    assert max(one["b"] for one in held) <= 2 * 2 * 40


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=list(CONDITIONS))
def test_the_terminal_and_the_page_show_it_while_it_runs(condition: str, tmp_path: Path) -> None:
    manifest = manifest_at(tmp_path, condition)
    ours, terminal = pty.openpty()
    command = [sys.executable, "-m", "streamjoin", "run", str(manifest), "--runner", "inline", "--metrics-port", "0", "--elastic"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    told, screen = tmp_path / "stderr.txt", bytearray()
    with told.open("w") as error, subprocess.Popen(command, stdout=terminal, stderr=error, env=environment) as run:
        os.close(terminal)

        def shown() -> Any:
            """What the page shows, once an epoch is done."""
            link = re.search(r"^page: (http://[^/\s]+)/", told.read_text(), re.MULTILINE)
            if link is None or run.poll() is not None:
                return run.poll() is not None
            with urllib.request.urlopen(f"{link[1]}/v1/live") as answer:
                live = json.load(answer)
            return live if live["workers"] else None

        os.set_blocking(ours, False)

        def read_on() -> None:
            with contextlib.suppress(BlockingIOError, OSError):
                while data := os.read(ours, 1 << 16):
                    screen.extend(data)

        live = wait_for("the page shows an epoch", lambda: (read_on(), shown())[1], told=lambda: told.read_text() + screen.decode())
        assert live is not True, told.read_text()
        run.send_signal(signal.SIGINT)
        wait_for("the run's end", lambda: (read_on(), run.poll() is not None)[1])
    read_on()
    os.close(ours)
    assert run.returncode == 0, told.read_text()
    assert "Traceback" not in told.read_text() + screen.decode()
    assert list(live["workers"][0]["held"]) == ["a", "b", "c"]
    assert "epoch" in screen.decode()


GENERATED = sorted(
    path
    for path in (ROOT / "examples").glob("*.yaml")
    if all("generator" in stream["source"] for stream in yaml.safe_load(path.read_text())["spec"]["streams"])
)


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.stem)
def test_every_example_that_makes_its_input_up_is_shown(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for options in (("--json",), ()):
        done = CliRunner().invoke(main, ["run", str(path), "--runner", "inline", "--for", "1s", "--metrics-port", "0", *options])
        assert done.exit_code == 0, done.output
        assert "Traceback" not in done.output
