"""The page of all StreamJoins in a real browser, and what leads to it."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from browser import browser
from operator_cluster import Cluster, wait_for
from operator_parts import streamjoin
from streamjoin_operator import plugin
from streamjoin_operator.cost import Cost
from streamjoin_operator.health import Health
from streamjoin_operator.page import PageServer
from streamjoin_operator.queue import Queue
from streamjoin_operator.seen import Seen
from streamjoin_operator.status_model import Status

AT = "2026-11-20T10:00:00+00:00"


def body(name: str, namespace: str = "shop", *, version: int = 1, **status: Any) -> Any:
    """A StreamJoin with a status as the operator writes them."""
    Status.model_validate(status)  # the fields that there are
    found = streamjoin(name, namespace)
    found["metadata"] |= {"uid": f"{namespace}-{name}", "resourceVersion": str(version), "creationTimestamp": AT}
    found["status"] = status
    return found


def condition(kind: str, holds: bool, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": str(holds), "reason": reason, "message": message, "lastTransitionTime": AT}


def running(name: str, workers: int, tau: str, *, version: int = 1, decisions: tuple[Any, ...] = ()) -> Any:
    return body(
        name,
        version=version,
        phase="Running",
        workers=workers,
        desiredWorkers=workers + 1,
        utilization={"max": tau, "mean": "0.31", "source": "Driver", "at": AT},
        completeness={"1h": {"estimate": "0.9993", "low": "0.9990", "high": "0.9995"}},
        plan={"generation": 4, "model": "adsp", "tasks": workers, "summary": "2 coverage areas", "movedTuples": 1234},
        cost=Cost(1_700_000_000.0, 0, 8, 0.5, 12.25, 30.5, 6.125, 15.25).to_status(),
        decisions=list(decisions),
        lastCommit=AT,
        conditions=[condition("Ready", True, "Running"), condition("Degraded", False, "Healthy")],
    )


DECISION = {
    "time": "2026-11-20T09:59:00+00:00",
    "rule": "full",
    "reason": "Full",
    "outcome": "Applied",
    "workersBefore": 2,
    "workersAfter": 3,
    "utilization": "0.93",
    "predictedUtilization": "0.61",
    "realizedUtilization": "0.62",
    "message": "tau of the fullest worker (0.93) has been at or above tau3",
}


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def url(seen: Seen) -> Iterator[str]:
    health = Health(Queue(lambda key: None))  # type: ignore[arg-type, return-value]
    health.state = "active"
    with PageServer(seen, health, 0) as server:
        yield f"http://127.0.0.1:{server.port}"


def test_all_joins_are_shown_with_their_state_cost_and_decisions(seen: Seen, url: str) -> None:
    seen.saw(running("orders", 2, "0.42", decisions=(DECISION,)))
    seen.saw(running("clicks", 3, "0.95"))
    failing = [condition("Ready", False, "DriverNotReady"), condition("Degraded", True, "ImageNotPulled", "<b>no such image</b>")]
    seen.saw(body("broken", "test", phase="Pending", conditions=failing))
    seen.saw(body("new", "test"))
    with browser() as chromium, chromium.page(url) as (page, heard):
        rows = page.locator("#joins tbody tr")
        expect(rows).to_have_count(4)
        heads = page.locator("#joins thead th").all_text_contents()
        shown = {row[1]: dict(zip(heads, row, strict=True)) for row in (one.locator("th, td").all_text_contents() for one in rows.all())}
        assert shown["orders"] | {"last commit": ""} == {
            "namespace": "shop",
            "name": "orders",
            "phase": "Running",
            "problem": "",
            "workers": "2 → 3",
            "τ": "0.42",
            "how full": "",
            "found (1 h)": "99.93 %",
            "executor-hours": "12",
            "avoided": shown["orders"]["avoided"],
            "last commit": "",
        }
        assert (shown["broken"]["problem"], shown["new"]["phase"]) == ("ImageNotPulled", "not looked at yet")
        expect(page.locator("#operator")).to_have_text("active")
        assert [page.locator(f"#tile-{name}").text_content() for name in ("joins", "troubled", "workers")] == ["4", "1", "5"]
        expect(page.locator("#decisions")).to_contain_text("shop/orders2 → 3 workers, applied: tau of the fullest worker (0.93)")

        page.get_by_label("Only those with").fill("test imagenot")
        expect(rows).to_have_count(1)
        page.get_by_role("button", name="all about test/broken").click()
        dialog = page.get_by_role("dialog", name="test/broken")
        expect(dialog).to_contain_text("<b>no such image</b>")  # a text, and no HTML
        expect(dialog).to_contain_text("kubectl streamjoin open broken -n test")
        page.keyboard.press("Escape")
        page.get_by_label("Only those with").fill("")

        seen.saw(running("orders", 3, "0.62", version=2, decisions=(DECISION,)))
        seen.forget(("test", "new"))
        expect(rows).to_have_count(3)
        expect(page.locator("#joins tbody tr", has_text="orders")).to_contain_text("0.62")
        page.get_by_role("button", name="all about shop/orders").click()
        expect(page.get_by_role("dialog", name="shop/orders")).to_contain_text("0.61")
        assert heard.errors == []
        assert heard.hosts == {url.removeprefix("http://")}
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_another_name_of_this_machine_is_refused(url: str) -> None:
    for host, status in (("127.0.0.1:8090", 200), ("localhost", 200), ("[::1]:8090", 200), ("evil.example:8090", 403), ("", 403)):
        request = urllib.request.Request(f"{url}/v1/streamjoins", headers={"Host": host})
        with contextlib.closing(answer(request)) as found:
            assert found.status == status, host
    for path in ("/metrics", "/ui/../page.py", "/v1/plan"):
        assert answer(urllib.request.Request(url + path)).status == 404, path


def answer(request: urllib.request.Request) -> Any:
    try:
        return urllib.request.urlopen(request, timeout=20)
    except urllib.error.HTTPError as error:
        return error


def pod(name: str, namespace: str = "operators", port: str | None = "8090", phase: str = "Running") -> Any:
    env = [] if port is None else [{"name": "STREAMJOIN_PAGE_PORT", "value": port}]
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"containers": [{"env": env}]}, "status": {"phase": phase}}


def test_of_several_operators_the_one_that_is_at_work_is_found() -> None:
    def kubectl(pods: list[Any], holder: str) -> Any:
        def ask(words: list[str]) -> str:
            return json.dumps({"items": pods if words[1] == "pods" else [{"spec": {"holderIdentity": holder}}, {"spec": {}}]})

        return ask

    two = [pod("sj-1"), pod("sj-12", port="9090"), pod("sj-13", phase="Pending")]
    assert plugin.active_operator(kubectl(two, "sj-12_0f")) == ("operators", "sj-12", 9090)
    assert plugin.active_operator(kubectl(two, "sj-1_0f")) == ("operators", "sj-1", 8090)
    nowhere = "set operator.pagePort"
    for pods, why in (([], "is the operator installed?"), ([pod("a", port="0")], nowhere), ([pod("a", port=None)], nowhere)):
        with pytest.raises(plugin.Refused, match=re.escape(why)):
            plugin.active_operator(kubectl(pods, ""))


@pytest.mark.apiserver
def test_an_operator_serves_what_it_has_seen_and_no_longer_than_it_runs(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/v1/streamjoins"
    with cluster.operator(page_port=port, price_per_executor_hour=0.5) as running:
        running.await_ready()
        cluster.run()

        def shown() -> Any:
            found = json.loads(urllib.request.urlopen(address, timeout=20).read())["streamJoins"]
            return found and found[0]["utilization"] and found[0]

        join = wait_for("it is measured", shown)
        assert (join["namespace"], join["name"], join["phase"], join["workers"]) == (cluster.namespace, "one", "Running", 1)
        assert join["utilization"]["max"] == cluster.status()["utilization"]["max"]
        assert join["workersLimits"] == [1, 8]
        assert join["cost"]["pricePerExecutorHour"] == 0.5
        assert ("Ready", "True") in [(one["type"], one["status"]) for one in join["conditions"]]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=20)
