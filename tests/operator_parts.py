"""What tests of the operator share: a manifest as Kubernetes has it, a driver that answers over HTTP, and the metrics that it shows."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import http_stub
from streamjoin.elastic.vertical import Enlarged
from streamjoin_operator import derived, pod_templates, reconcile, trial
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings

Object = dict[str, Any]

SPEC: Object = {
    "streams": [
        {
            "name": "orders",
            "source": {"kafka": {"bootstrapServers": "kafka:9092", "topic": "orders"}},
            "schema": "id BIGINT, amount DOUBLE, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "10s",
            "expectedRate": 100.0,
        },
        {
            "name": "payments",
            "source": {"files": {"path": "s3://bucket/payments", "format": "parquet"}},
            "schema": "id BIGINT, amount DOUBLE, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "10s",
        },
    ],
    "joins": [
        {
            "name": "match",
            "condition": "abs(orders.amount - payments.amount) <= 0.01",
            "window": {"within": "180s"},
            "output": {"select": ["orders.id AS order_id"], "sink": {"files": {"path": "s3://bucket/matches", "format": "parquet"}}},
        }
    ],
    "workers": {"min": 1, "max": 8, "capacityTuples": 100000},
    "checkpoint": {"location": "s3://bucket/state/one"},
}


def streamjoin(name: str = "one", namespace: str = "default", **spec: Any) -> Object:
    """A StreamJoin with these parts of the spec replaced."""
    return {
        "apiVersion": "streamjoin.dev/v1beta1",
        "kind": "StreamJoin",
        "metadata": {"name": name, "namespace": namespace, "uid": "00000000-0000-0000-0000-000000000001", "generation": 1},
        "spec": {**copy.deepcopy(SPEC), **spec},
    }


def three_streams() -> Object:
    """Parts of a spec, for a join in which payments meet orders by one column and shipments by another, and so are on both sides."""
    orders, payments = copy.deepcopy(SPEC["streams"])
    for stream in (orders, payments):
        stream["schema"] = "id BIGINT, amount DOUBLE, customer BIGINT, at TIMESTAMP"
    shipments = copy.deepcopy(payments) | {"name": "shipments"}
    shipments["source"]["files"]["path"] = "s3://bucket/shipments"
    join = copy.deepcopy(SPEC["joins"][0])
    join["condition"] = "orders.customer = payments.customer AND abs(payments.amount - shipments.amount) <= 0.01"
    join["window"] = {"each": {"orders": "180s", "payments": "60s", "shipments": "30s"}}
    return {"streams": [orders, payments, shipments], "joins": [join]}


def pods_of(body: Object, settings: Settings) -> dict[str, Object]:
    """The specs of all pods that the operator makes for a StreamJoin, by what they do."""
    resource, made = Resource.of(body), derived.derive(body)
    manifest = made.manifest
    assert manifest is not None
    assert made.memory is not None
    driver = pod_templates.driver_template(resource, manifest, made.memory, settings, "1", "sj-one-files")
    templates = {
        "driver": driver,
        "executor": pod_templates.executor_template(resource, manifest, settings),
        "cleanup": pod_templates.cleanup_template(resource, manifest, "{}", settings),
        "queries": pod_templates.queries_template(resource, manifest, settings, "engine:1"),
        "watcher": pod_templates.watcher_template(resource, manifest, settings, "engine:1"),
        "trial": trial.trial_pod(resource, driver, "1"),
    }
    return {kind: template["spec"] for kind, template in templates.items()}


def joined(epochs: int) -> list[str]:
    """What a driver's metrics say of the epochs that it has run, of 0.1 s each."""
    return [
        f'streamjoin_epoch_number{{name="one"}} {epochs}.0',
        f'streamjoin_epoch_duration_seconds_count{{name="one"}} {epochs}.0',
        f'streamjoin_epoch_duration_seconds_sum{{name="one"}} {epochs / 10}',
        'streamjoin_running_epoch_seconds{name="one"} 0.0',
    ]


def trial_status(pod: Object, container: str = "driver", state: Object | None = None) -> Object:
    """What the kubelet says of a trial whose containers all have ended well, but for one of them whose state is given."""
    ended = {"terminated": {"exitCode": 0}}
    spec = pod["spec"]

    def statuses(part: str) -> list[Object]:
        name_of = {"image": "i", "imageID": "", "ready": False, "restartCount": 0}
        return [{**name_of, "name": one["name"], "state": (state or ended) if one["name"] == container else ended} for one in spec[part]]

    phase = "Succeeded" if state is None else "Failed" if "terminated" in state else "Pending"
    return {"phase": phase, "initContainerStatuses": statuses("initContainers"), "containerStatuses": statuses("containers")}


def story(function: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test of a coroutine."""

    def run() -> None:
        asyncio.run(function())  # type: ignore[arg-type]

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


@contextmanager
def parsed_once(*also: Any) -> Iterator[None]:
    """What follows from a manifest is pure, and takes most of the time of thousands of reconciles. ``also``: modules that import it."""
    known: dict[Any, derived.Derived] = {}
    original = derived.derive

    def derive(body: Object, enlarged: Enlarged | None = None) -> derived.Derived:
        source = json.dumps(body["spec"], sort_keys=True), enlarged
        if source not in known:
            known[source] = original(body, enlarged)
        return known[source]

    with pytest.MonkeyPatch.context() as patch:
        for module in (reconcile, *also):
            patch.setattr(module, "derive", derive)
        yield


class FakeDriver:
    """What of a driver the operator sees: the plan API, with its token, and the metrics. One for all StreamJoins of a test."""

    def __init__(self) -> None:
        self.state = "running"
        self.generation, self.workers, self.model = 1, 1, "adsp"
        self.wanted: int | None = None
        self.ready_workers: int | None = None
        """None: all."""
        self.wishes: list[Object] = []
        self.answer = 202
        self.token: str | None = None
        """None: any is taken, and the first is kept."""
        self.tau = 0.5
        self.epochs = 0
        self.shed = 0.0
        self.has_plan = True
        self.said: Object = {}
        """What the plan says besides: absence, dropped, warning."""
        self.page: bytes | None = None
        """Answered to every question, by somebody who is no driver."""
        self.last_error: str | None = None
        self.last_failure: str | None = None
        self.stalled: Object | None = None
        self.snapshots_wait: str | None = None
        self.watermark_held: dict[str, Any] | None = None
        self.idle_seconds: float | None = None
        self.standby: Object | None = None
        self.took_over_at: float | None = None
        self.measured_generation: int | None = None
        self.savepoints: dict[str, Object] = {}
        """By name, what is kept."""
        self.asked_savepoints: list[tuple[str, str]] = []
        """Method and name of what was asked of savepoints and changes something."""
        self.savepoint_refusal: str | None = None
        self.commits = True
        """Whether what is asked of savepoints is done at once."""
        self.polls = 0
        """How often somebody asked for the plan."""
        driver = self

        class Handler(http_stub.Handler):
            def do_GET(self) -> None:
                path = "/" + "/".join(self.path.strip("/").split("/")[2:])
                if driver.page is not None:
                    self.answer(200, driver.page)
                elif path == "/metrics":
                    self.answer(200, driver.metrics().encode())
                elif not driver.admits(self.headers.get("Authorization", "")):
                    self.answer(401, b'{"error": "no"}')
                elif path.startswith("/v1/savepoints/"):
                    self.answer(*driver.savepoint("GET", path.rpartition("/")[2]))
                elif path == "/v1/health":
                    facts = {"state": driver.state, "lastError": driver.last_error, "lastFailure": driver.last_failure}
                    facts |= {"stalled": driver.stalled, "committedAt": 1.8e9, "snapshotsWait": driver.snapshots_wait}
                    facts |= {"watermarkHeld": driver.watermark_held, "idleSeconds": driver.idle_seconds}
                    facts |= {"standby": driver.standby, "tookOverAt": driver.took_over_at}
                    self.answer(200, json.dumps(facts).encode())
                elif path == "/v1/plan" and driver.has_plan:
                    driver.polls += 1
                    self.answer(200, json.dumps(driver.plan()).encode())
                else:
                    self.answer(503, b'{"error": "no plan yet"}')

            def do_DELETE(self) -> None:
                self.answer(*driver.savepoint("DELETE", self.path.rpartition("/")[2]))

            def do_PUT(self) -> None:
                if "/v1/savepoints/" in self.path:
                    self.answer(*driver.savepoint("PUT", self.path.rpartition("/")[2]))
                    return
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                driver.wishes.append(body)
                if driver.answer == 202:
                    driver.wanted = body["workers"]
                said = {"error": "refused by the test"} if driver.answer >= 400 else driver.plan()
                self.answer(driver.answer, json.dumps(said).encode())

        self._served = http_stub.Served(Handler)
        self.url = f"{self._served.url}/{{namespace}}/{{name}}"
        """As the setting driver_url takes it."""

    def admits(self, authorization: str) -> bool:
        given = authorization.removeprefix("Bearer ")
        return bool(given) and (self.token is None or given == self.token)

    def savepoint(self, method: str, name: str) -> tuple[int, bytes]:
        """Status and body of the answer about one."""
        if method != "GET":
            self.asked_savepoints.append((method, name))
        if method == "PUT" and self.savepoint_refusal is not None:
            return 422, json.dumps({"error": self.savepoint_refusal}).encode()
        kept = self.savepoints.get(name)
        if method == "PUT" and kept is None:
            kept = {"name": name, "state": "asked", "epoch": None, "committedAt": None, "keptAt": None, "bytes": None}
            if self.commits:
                self.savepoints[name] = kept | {"state": "kept", "epoch": self.epochs, "committedAt": 1.8e9, "keptAt": 1.8e9, "bytes": 4096}
            return 202, json.dumps(kept).encode()
        if kept is None:
            return 404, json.dumps({"error": f"savepoint '{name}': does not exist; there are none"}).encode()
        if method == "DELETE":
            if self.commits:
                del self.savepoints[name]
            return 202, json.dumps(kept | {"state": "deleting"}).encode()
        return 200, json.dumps(kept).encode()

    def plan(self) -> Object:
        areas = {"areas": [{}] * self.workers, "tasks": self.workers, "model": self.model}
        wanted = None
        if self.wanted is not None:
            model = self.wishes[-1]["model"] if self.wishes else self.model
            scheme = {**areas, "tasks": self.wanted, "model": model}
            wanted = {"generation": self.generation + 1, "workers": self.wanted, "scheme": scheme, "keep": []}
        return {
            "generation": self.generation,
            "workers": self.workers,
            "phase": "Running" if wanted is None else "Preparing",
            "readyWorkers": self.workers if self.ready_workers is None else self.ready_workers,
            "toFetchBytes": 0,
            "dropped": None,
            "ended": [],
            "scheme": areas,
            "wanted": wanted,
            "switched": None,
        } | self.said

    def switch(self) -> None:
        """The plan that was asked for now runs."""
        assert self.wanted is not None
        self.generation, self.workers, self.wanted = self.generation + 1, self.wanted, None
        if self.wishes:
            self.model = self.wishes[-1]["model"]

    def metrics(self) -> str:
        generation = self.generation if self.measured_generation is None else self.measured_generation
        lines = [f'streamjoin_plan_generation{{name="one"}} {generation}.0', *joined(self.epochs)]
        for task in range(self.workers):
            lines.append(f'streamjoin_worker_utilization_ratio{{name="one",task="{task}"}} {self.tau}')
            lines.append(f'streamjoin_worker_shed_ratio{{name="one",task="{task}"}} {self.shed}')
            for side in ("left", "right"):
                lines.append(f'streamjoin_worker_tuples{{name="one",side="{side}",task="{task}"}} 20000.0')
            lines.append(f'streamjoin_worker_bytes{{name="one",task="{task}"}} 4e+06')
        for stream in ("orders", "payments"):
            lines.append(f'streamjoin_shed_tuples_total{{name="one",stream="{stream}"}} 0.0')
            lines.append(f'streamjoin_accepted_tuples_total{{name="one",stream="{stream}"}} {1000.0 + 100 * self.epochs}')
            lines.append(f'streamjoin_backlog_records{{name="one",stream="{stream}"}} 0.0')
        return "\n".join(lines) + "\n"

    def close(self) -> None:
        self._served.close()


def contained(part: Any, whole: Any) -> bool:
    """Whether all that is given is there; defaults of another release may have been added."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(name in whole and contained(value, whole[name]) for name, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) == len(whole) and all(map(contained, part, whole))
    return bool(part == whole)
