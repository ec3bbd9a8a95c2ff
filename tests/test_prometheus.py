"""A real Prometheus scrapes a join that is stopped and started again; what it then says is compared with the run's own JSON lines."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import alerts
from prometheus_server import Server, needs_prometheus, process, prometheus
from waiting import PATIENCE_SECONDS, wait_for

DOCUMENT = (Path(__file__).resolve().parent.parent / "docs" / "metrics.md").read_text()

pytestmark = [pytest.mark.prometheus, needs_prometheus]


def join_manifest(root: Path) -> Path:
    """Two generated streams, as fast as the clock; the window fills for longer than the test runs, so tau changes with every epoch."""

    def stream(name: str, seed: int) -> dict[str, Any]:
        columns = {"id": {"sequence": {}}, "k": {"uniform": {"min": 0, "max": 500}}}
        return {
            "name": name,
            "source": {"generator": {"seed": seed, "rate": {"constant": 1000}, "columns": columns}},
            "schema": "id BIGINT, k INT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "1s",
            "expectedRate": 1000,
        }

    output = {"select": ["l.id AS a", "r.id AS b"], "sink": {"files": {"path": str(root / "out")}}}
    spec = {
        "streams": [stream("l", 1), stream("r", 2)],
        "joins": [{"condition": "abs(l.k - r.k) <= 1", "window": {"within": "120s"}, "output": output}],
        "workers": {"min": 3, "max": 3, "capacityTuples": 100_000},
        "epoch": {"interval": "250ms"},
        "checkpoint": {"location": str(root / "state")},
    }
    path = root / "join.yaml"
    path.write_text(
        yaml.safe_dump({"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "watched"}, "spec": spec})
    )
    return path


def samples(server: Server, name: str, *labels: str) -> dict[float, dict[tuple[str, ...], float]]:
    """All stored values of a metric: by the time of the scrape, then by the labels' values."""
    found: dict[float, dict[tuple[str, ...], float]] = {}
    for series in server.query(f"{name}[10m]"):
        assert series["metric"]["name"] == "watched"
        for moment, value in series["values"]:
            found.setdefault(moment, {})[tuple(series["metric"][label] for label in labels)] = float(value)
    return found


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    """Starts a Prometheus that scrapes an address four times a second."""
    with ExitStack() as stack:

        def start(target: str) -> Server:
            scrape = {"job_name": "streamjoin", "scrape_interval": "250ms", "static_configs": [{"targets": [target]}]}
            return stack.enter_context(prometheus(tmp_path / "prometheus", {"scrape_configs": [scrape]}))

        yield start


def epochs_of(directory: Path) -> dict[int, dict[str, Any]]:
    """The JSON lines of a run's epochs that are whole."""
    lines = [json.loads(line) for line in (directory / "stdout").read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {line["epoch"]: line for line in lines if line["event"] == "epoch"}


def test_prometheus_and_the_json_lines_say_the_same(tmp_path: Path, scraped: Callable[[str], Server]) -> None:
    manifest = join_manifest(tmp_path)

    def command(port: str) -> list[str]:
        return [sys.executable, "-m", "streamjoin", "run", str(manifest), "--runner", "inline", "--json", "--metrics-port", port]

    def scraped_epochs() -> set[int]:
        return {int(values[()]) for values in samples(server, "streamjoin_epoch_number").values()}

    with process(tmp_path / "first", *command("0")) as first:
        address = wait_for(
            "the address of the metrics", lambda: re.search(r"metrics: http://(\S+)/metrics", (tmp_path / "first/stderr").read_text())
        )[1]
        server = scraped(address)
        wait_for("six epochs are scraped", lambda: len(scraped_epochs()) >= 6, every=0.25)
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_SECONDS) == 0
    before = epochs_of(tmp_path / "first")
    with process(tmp_path / "second", *command(address.rsplit(":", 1)[1])) as second:
        wait_for("five epochs of the second run are scraped", lambda: len(scraped_epochs() - set(before)) >= 5, every=0.25)
        answers = {
            expression: server.query(expression)
            for block in re.findall(r"```promql\n(.*?)```", DOCUMENT, re.DOTALL)
            for expression in block.strip().splitlines()
        }
        for rule in alerts.groups()[0]["rules"]:
            server.query(rule["expr"])  # that labels do not match shows only where there are series
        second.send_signal(signal.SIGTERM)
        assert second.wait(PATIENCE_SECONDS) == 0
    lines = before | epochs_of(tmp_path / "second")

    def at(moment: float) -> dict[str, Any]:
        return lines[int(epochs[moment][()])]

    epochs = samples(server, "streamjoin_epoch_number")
    tau = samples(server, "streamjoin_worker_utilization_ratio", "task")
    assert len({at(moment)["epoch"] for moment in tau}) >= 11
    assert set(tau) == set(epochs)
    for moment, by_task in tau.items():
        workers = at(moment)["workers"]
        assert {task: round(value, 6) for (task,), value in by_task.items()} == {str(w["task"]): w["utilization"] for w in workers}
    generations = samples(server, "streamjoin_plan_generation")
    assert {moment: values[()] for moment, values in generations.items()} == {moment: at(moment)["generation"] for moment in epochs}
    for name, counter in (("input_records", "input"), ("accepted_tuples", "accepted"), ("written_bytes", "writtenBytes")):
        read = samples(server, f"streamjoin_{name}_total", "stream")
        assert {moment: read[moment] for moment in epochs} == {
            moment: {("l",): at(moment)["totals"][counter][0], ("r",): at(moment)["totals"][counter][1]} for moment in epochs
        }
    for name in ("input_records", "output_rows", "written_bytes", "read_backs"):
        assert {series["value"][1] for series in server.query(f"resets(streamjoin_{name}_total[10m])")} == {"0"}, name
    assert server.query("resets(streamjoin_epoch_duration_seconds_count[10m])")[0]["value"][1] == "1", "the process is another"
    silent = [expression for expression, answer in answers.items() if not answer and "kafka" not in expression]
    assert silent == [], "questions of the documentation without an answer"
    generation = next(answer for expression, answer in answers.items() if "group_left (generation)" in expression)
    assert {(series["metric"]["task"], series["metric"]["generation"]) for series in generation} == {(str(task), "1") for task in range(3)}
    assert os.listdir(tmp_path / "out"), "the join has joined"
