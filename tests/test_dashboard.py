"""The chart's Grafana dashboard: every question of every panel is asked of a real Prometheus that scrapes a join as it grows, and an
operator; so are the conditions of all alerts; and the model itself is sound."""

from __future__ import annotations

import asyncio
import json
import math
import re
import string
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import alerts
import dashboard
from ports import free_ports
from prometheus_server import Server, needs_prometheus, process, prometheus
from streamjoin.serve import catalogue
from streamjoin_operator.api import ApiError
from streamjoin_operator.cost import Cost
from streamjoin_operator.health import Health, HealthServer
from streamjoin_operator.metrics import Metrics
from streamjoin_operator.queue import Key, Queue
from waiting import wait_for

SCRAPE_SECONDS = 1
RATE_SECONDS = 60
"""$__rate_interval of Grafana: four scrapes, and a data source says by default that there is one every 15 s."""
OF_OTHERS = {("Results and candidates", "partial results"), ("Bytes in and out", "along a chain")}
"""What joins of three and more streams alone show, and handshake chains."""
LABELS = {"namespace": "team-a", "name": "watched"}
UNITS = {"none", "short", "percentunit", "s", "bytes", "Bps", "cps", "reqps"}
"""Of Grafana's, those that are used here."""

DEPENDING = {"StreamJoinHasAllWorkersItMay", "StreamJoinStaysFull", "StreamJoinHasABacklog"}
"""Alerts whose condition may hold of the join of this test, depending on how fast the machine is."""

MODEL = json.loads(dashboard.FILE.read_text())
PANELS = [panel for panel in MODEL["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in MODEL["templating"]["list"]}
ANNOTATIONS = [annotation["target"]["expr"] for annotation in MODEL["annotations"]["list"] if "target" in annotation]
QUESTIONS = [(panel["title"], target["legendFormat"], target["expr"]) for panel in PANELS for target in panel["targets"]]
EXPRESSIONS = [expression for _, _, expression in QUESTIONS] + ANNOTATIONS


@dataclass(frozen=True)
class Looked:
    """What an operator knows of its StreamJoins."""

    of_phase: dict[str, int]

    def phases(self) -> dict[str, int]:
        return self.of_phase

    def statuses(self) -> dict[Key, dict[str, Any]]:
        condition = {"type": "Ready", "status": "True", "reason": "JoinRunning"}
        return {(LABELS["namespace"], LABELS["name"]): {"phase": "Running", "conditions": [condition]}}

    def costs(self, now: float) -> dict[Key, Cost]:
        cost = Cost(now, executors=1, most=4, price=0.1, hours=2.0, avoided_hours=6.0, spent=0.2, avoided=0.6)
        return {(LABELS["namespace"], LABELS["name"]): cost}

    def samples_at(self) -> dict[Key, float]:
        return {(LABELS["namespace"], LABELS["name"]): time.time()}


def operator_metrics() -> Metrics:
    """Of an operator that has reconciled, failed, and asked."""
    metrics = Metrics()
    metrics.requested("patch", 200)
    metrics.asked(None)
    metrics.active.set(1)
    return metrics


def test_the_file_is_what_the_program_writes() -> None:
    """Otherwise: make monitoring"""
    assert dashboard.FILE.read_text() == dashboard.text()


def test_every_metric_is_one_that_is_served() -> None:
    suffixes = {catalogue.Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
    known = {each.name + suffix for each in catalogue.CATALOGUE.values() for suffix in suffixes.get(each.kind, ("",))}
    metrics = operator_metrics()
    metrics.watch(Queue(_never), Looked({"Running": 1}))
    metrics.finished(("n", "a"), 0.1, ApiError(500, "Internal", "no"))
    known |= {sample.name for family in metrics.registry.collect() for sample in family.samples}
    asked = {name for expression in EXPRESSIONS for name in re.findall(r"\b(?:streamjoin|process)_\w+", expression)}
    assert asked <= known
    assert len(asked) >= 45


def test_changes_of_the_plan_are_annotated() -> None:
    assert len(ANNOTATIONS) == 1


def test_panels_are_complete_and_fill_the_grid_without_overlap() -> None:
    identities = [panel["id"] for panel in MODEL["panels"]]
    assert len(set(identities)) == len(identities)
    cells: set[tuple[int, int]] = set()
    for panel in MODEL["panels"]:
        place = panel["gridPos"]
        covered = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not covered & cells, panel["title"]
        cells |= covered
    assert cells == {(x, y) for x in range(24) for y in range(max(y for _, y in cells) + 1)}
    assert len({panel["title"] for panel in PANELS if panel["type"] != "stat"}) == len([p for p in PANELS if p["type"] != "stat"])
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references == list(string.ascii_uppercase[: len(references)])
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends), panel["title"]


def test_questions_about_a_join_are_about_the_chosen_one() -> None:
    for expression in EXPRESSIONS:
        chosen = expression.count('{namespace="$namespace",name="$name"')
        assert chosen == len(re.findall(r"\bstreamjoin_(?!operator_)", expression)), expression
        assert set(re.findall(r"\$(\w+)", expression)) <= {"namespace", "name", "__rate_interval"}


def as_grafana_asks(expression: str) -> str:
    """With its variables replaced."""
    for variable, value in LABELS.items():
        expression = expression.replace(f"${variable}", value)
    return expression.replace("$__rate_interval", f"{RATE_SECONDS}s")


def manifest(root: Path) -> Path:
    """Two streams of the files in `root`: three workers can hold 15,000 of their tuples, one 5,000."""

    def stream(name: str) -> dict[str, Any]:
        (root / name).mkdir()
        return {
            "name": name,
            "source": {"files": {"path": str(root / name), "format": "parquet"}},
            "schema": "id BIGINT, k INT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "1s",
        }

    output = {"select": ["l.id AS a", "r.id AS b"], "sink": {"files": {"path": str(root / "out")}}}
    taus = {"tau0": 0.2, "tau1": 0.4, "tau2": 0.7, "tau3": 0.8}
    spec = {
        "streams": [stream("l"), stream("r")],
        "joins": [{"condition": "abs(l.k - r.k) <= 1", "window": {"within": "1h"}, "output": output}],
        "workers": {"min": 1, "max": 3, "capacityTuples": 5000},
        "scaling": {"policy": "thresholds", **taus, "scaleUpAfter": "1s", "scaleDownAfter": "1h"},
        "shedding": {"model": "linear"},
        "epoch": {"interval": "250ms"},
        "checkpoint": {"location": str(root / "state")},
    }
    path = root / "join.yaml"
    metadata = {"name": LABELS["name"]}
    path.write_text(yaml.safe_dump({"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": metadata, "spec": spec}))
    return path


def feed(root: Path, tuples: int) -> None:
    """One more file of each stream, there at once and whole."""
    for name in ("l", "r"):
        first = tuples * len(list((root / name).glob("*.parquet")))
        ids = np.arange(first, first + tuples)
        at = pa.array(np.full(tuples, time.time_ns() // 1000), pa.timestamp("us", "UTC"))
        keys = pa.array(ids * 7919 % 500, pa.int32())
        hidden = root / name / ".being-written"
        pq.write_table(pa.table({"id": pa.array(ids), "k": keys, "at": at}), hidden)
        hidden.rename(root / name / f"{first:09}.parquet")


async def _never(key: Key) -> float | None:
    return None


@contextmanager
def operator() -> Iterator[str]:
    """The address of an operator's metrics: its queue is at work, and one of its two StreamJoins cannot be reconciled."""
    metrics = operator_metrics()

    async def reconcile(key: Key) -> float | None:
        refused = key[1] == "refused"
        metrics.requested("patch", 500 if refused else 200)
        if refused:
            raise ApiError(500, "Internal", "no")
        return 0.5

    async def work() -> None:
        task = asyncio.create_task(queue.run(2))
        for name in (LABELS["name"], "refused"):
            queue.put((LABELS["namespace"], name))
        await stop.wait()
        task.cancel()

    queue, stop = Queue(reconcile, finished=metrics.finished), asyncio.Event()
    metrics.watch(queue, Looked({"Running": 1, "Failed": 1}))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(work(),))
    with HealthServer(Health(queue), metrics.registry, 0, "127.0.0.1") as server:
        thread.start()
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


def values(series: list[dict[str, Any]]) -> list[float]:
    """All that are numbers."""
    return [number for each in series for _, text in each["values"] if math.isfinite(number := float(text))]


@pytest.mark.prometheus
@needs_prometheus
def test_every_panel_shows_something_of_a_join_that_grows_moves_and_sheds(tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    command = [sys.executable, "-m", "streamjoin", "run", str(manifest(tmp_path)), "--runner", "inline", "--elastic", "--json"]
    with operator() as of_operator:
        jobs = {
            "streamjoin": {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": LABELS["namespace"]}},
            "streamjoin-operator": {"targets": [of_operator], "labels": {"namespace": "operators"}},
        }
        scrape = [{"job_name": job, "scrape_interval": f"{SCRAPE_SECONDS}s", "static_configs": [jobs[job]]} for job in jobs]
        with (
            prometheus(tmp_path / "prometheus", {"scrape_configs": scrape}) as server,
            process(tmp_path / "run", *command, "--metrics-port", port) as running,
        ):

            def shows(sign: str) -> bool:
                assert running.poll() is None, (tmp_path / "run" / "stderr").read_text()
                return bool(server.query(sign))

            def grows(sign: str) -> bool:
                feed(tmp_path, 250)
                return shows(sign)

            feed(tmp_path, 250)
            wait_for("one worker, as it was scraped", partial(shows, "streamjoin_workers == 1 and streamjoin_plan_generation"))
            for sign in (
                "streamjoin_plan_moved_tuples_total > 0",
                "streamjoin_worker_shed_ratio > 0.1",
                "increase(streamjoin_shed_tuples_total[1m]) > 0",
                "increase(streamjoin_operator_errors_total[1m]) > 0",
            ):
                wait_for(sign, partial(grows, sign), every=0.25)
            ask(server)
            holding = {rule["alert"] for group in alerts.groups() for rule in group["rules"] if server.query(rule["expr"])}
            lossy = {"StreamJoinSheds", "StreamJoinLosesResults"}
            assert {*lossy, "StreamJoinOperatorFails"} <= holding
            assert holding <= {*lossy, "StreamJoinOperatorFails", *DEPENDING}


def ask(server: Server) -> None:
    """All that the dashboard asks, over all that there is: series with numbers, which have the labels that their legends name.

    One step more than there was time: the last one may otherwise be just before the last scrape."""
    bounds = float(server.query("min_over_time(timestamp(streamjoin_workers_max)[1h:1s])")[0]["value"][1]), time.time() + SCRAPE_SECONDS
    silent, found = [], {}
    for title, legend, expression in QUESTIONS:
        series = found[title, legend] = server.query_range(as_grafana_asks(expression), *bounds, SCRAPE_SECONDS)
        if not values(series) and (title, legend) not in OF_OTHERS:
            silent.append((title, expression))
        wanted = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert all(wanted == set(each["metric"]) for each in series), (title, legend, [each["metric"] for each in series])
    assert silent == []
    for expression in ANNOTATIONS:
        assert values(server.query_range(as_grafana_asks(expression), *bounds, SCRAPE_SECONDS)), expression
    thresholds = {each["metric"]["threshold"]: set(values([each])) for each in found["tau per worker, and the thresholds", "{{threshold}}"]}
    assert thresholds == {"tau0": {0.2}, "tau1": {0.4}, "tau2": {0.7}, "tau3": {0.8}}
    now, desired = (values(found["Number of workers", legend]) for legend in ("now", "desired"))
    assert (min(now), max(now)) == (1, max(desired))
    assert max(now) > 1
    for title, legend in (
        ("Moved tuples", "moved"),
        ("Read, and not joined", "shed {{stream}}"),
        ("Shed", "worker {{task}}"),
        ("Records read", "{{stream}}"),
        ("Watermark lag", "{{stream}}"),
        ("State", "{{stream}}"),
        ("Reconcile errors", "{{reason}}"),
        ("Due, and failing", "failing"),
    ):
        assert max(values(found[title, legend])) > 0, (title, legend)
    steps = {each["metric"]["step"] for each in found["Epoch time by step", "{{step}}"]}
    assert {"plan", "tasks", "commit", "publish", "clean"} <= steps
    chosen = {}
    for name in ("namespace", "name"):
        query = re.fullmatch(r"label_values\((.+), (\w+)\)", as_grafana_asks(VARIABLES[name]["definition"]))
        assert query is not None
        chosen[query[2]] = server.get(f"label/{query[2]}/values", **{"match[]": query[1]})
    assert chosen == {label: [value] for label, value in LABELS.items()}
