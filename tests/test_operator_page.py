"""The page of all StreamJoins in a real browser, and what leads to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from browser import browser
from operator_cluster import Cluster
from operator_parts import streamjoin
from ports import free_ports
from streamjoin_operator import plugin
from streamjoin_operator.api import ApiError
from streamjoin_operator.cost import Cost
from streamjoin_operator.health import Health
from streamjoin_operator.page import PageServer
from streamjoin_operator.queue import Queue
from streamjoin_operator.seen import Seen
from streamjoin_operator.status_model import Status
from streamjoin_operator.suspending import PageToken, Refused, Suspending
from waiting import PATIENCE_SECONDS, wait_for

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


@pytest.mark.chromium
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
        change = urllib.request.Request(f"{url}/v1/streamjoins/shop/orders/suspend", b"{}", headers={"Host": host}, method="PUT")
        assert answer(change).status == (403 if status == 403 else 404), "nobody changes anything here"
    for path in ("/metrics", "/ui/../page.py", "/v1/plan"):
        assert answer(urllib.request.Request(url + path)).status == 404, path


def answer(request: urllib.request.Request) -> Any:
    try:
        return urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)
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
    assert plugin.active_operator(kubectl(two, "sj-12_0f")) == ("operators", "sj-12", 9090, None)
    assert plugin.active_operator(kubectl(two, "sj-1_0f")) == ("operators", "sj-1", 8090, None)
    nowhere = "set operator.pagePort"
    for pods, why in (([], "is the operator installed?"), ([pod("a", port="0")], nowhere), ([pod("a", port=None)], nowhere)):
        with pytest.raises(plugin.Refused, match=re.escape(why)):
            plugin.active_operator(kubectl(pods, ""))


@pytest.mark.apiserver
def test_an_operator_serves_what_it_has_seen_and_no_longer_than_it_runs(cluster: Cluster) -> None:
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}/v1/streamjoins"
    with cluster.operator(page_port=port, price_per_executor_hour=0.5) as running:
        running.await_ready()
        cluster.run()

        def shown() -> Any:
            found = json.loads(urllib.request.urlopen(address, timeout=PATIENCE_SECONDS).read())["streamJoins"]
            return found and found[0]["utilization"] and found[0]

        join = wait_for("it is measured", shown)
        assert (join["namespace"], join["name"], join["phase"], join["workers"]) == (cluster.namespace, "one", "Running", 1)
        assert join["utilization"]["max"] == cluster.status()["utilization"]["max"]
        assert join["workersLimits"] == [1, 8]
        assert join["cost"]["pricePerExecutorHour"] == 0.5
        assert ("Ready", "True") in [(one["type"], one["status"]) for one in join["conditions"]]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=PATIENCE_SECONDS)


def asked(url: str, body: Any, token: str | None = None, method: str = "PUT", **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = headers | ({} if token is None else {"Authorization": f"Bearer {token}"})
    found = answer(urllib.request.Request(url, data, headers=given, method=method))
    return found.status, json.loads(found.read())


@pytest.mark.chromium
@pytest.mark.apiserver
def test_who_has_the_token_suspends_and_resumes_from_the_page(cluster: Cluster, tmp_path: Path) -> None:
    """At a real API server, with the rights that the chart gives."""
    token = tmp_path / "token"
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    path = f"{url}/v1/streamjoins/{cluster.namespace}/one/suspend"
    with cluster.operator(page_port=port, page_token_file=str(token)) as running:
        running.await_ready()
        cluster.run()
        status, told = asked(path, {"suspend": True}, "any")
        assert (status, told["error"].split(":")[0]) == (503, "nobody is let in")
        token.write_text("s3cret\n")
        for given, wanted in ((None, 401), ("", 401), ("s3cre", 401), ("s3cret s3cret", 401), ("s3crét", 401)):
            assert asked(path, {"suspend": True}, given)[0] == wanted, given
        for body in ({}, {"suspend": "yes"}, {"suspend": True, "workers": 3}, [], b"{", {"suspend": None}):
            assert asked(path, body, "s3cret")[0] == 400, body
        assert asked(path, b" " * 2000, "s3cret")[0] == 413
        assert asked(path.replace("/one/", "/two/"), {"suspend": True}, "s3cret")[0] == 404
        assert asked(path.replace("/suspend", ""), {"suspend": True}, "s3cret")[0] == 404
        assert "suspend" not in cluster.get()["spec"] or cluster.get()["spec"]["suspend"] is False, "nothing of this has done anything"
        with browser() as chromium, chromium.page(url) as (page, heard):
            page.get_by_role("button", name=f"all about {cluster.namespace}/one").click()
            dialog = page.get_by_role("dialog", name=f"{cluster.namespace}/one")
            command = f"kubectl streamjoin suspend one -n {cluster.namespace}"
            expect(dialog).to_contain_text(f"Give the page's token to do it here, or {command} does.")
            expect(dialog.get_by_role("button", name="Suspend …")).to_be_hidden()
            page.keyboard.press("Escape")
            assert heard.errors == []
        with browser() as chromium, chromium.page(f"{url}/#token=s3cret") as (page, heard):
            expect(page.locator("#link")).to_have_text("live")
            assert "s3cret" not in page.url
            page.get_by_role("button", name=f"all about {cluster.namespace}/one").click()
            dialog = page.get_by_role("dialog", name=f"{cluster.namespace}/one")
            dialog.get_by_role("button", name="Suspend …").click()
            expect(dialog).to_contain_text("Its 1 worker and its driver end after the epoch that runs. Its state stays where it is")
            dialog.get_by_role("button", name="Leave it").click()
            expect(dialog.get_by_role("button", name="Suspend …")).to_be_focused()
            assert not cluster.get()["spec"].get("suspend")
            dialog.get_by_role("button", name="Suspend …").click()
            dialog.get_by_role("button", name="Suspend one").click()
            expect(dialog).to_contain_text("It is suspended.")
            assert cluster.get()["spec"]["suspend"] is True
            (writer,) = [one for one in cluster.get()["metadata"]["managedFields"] if one["manager"] == "streamjoin-page"]
            assert writer["fieldsV1"] == {"f:spec": {"f:suspend": {}}}, "and nothing else"
            wait_for("its driver is to end", lambda: cluster.child("Deployment")["spec"]["replicas"] == 0)
            dialog.get_by_role("button", name="Resume …").click()
            expect(dialog).to_contain_text("go on from its checkpoint at the same place")
            dialog.get_by_role("button", name="Resume one").click()
            expect(dialog.get_by_role("button", name="Suspend …")).to_be_visible()
            wait_for("its driver is to start", lambda: cluster.child("Deployment")["spec"]["replicas"] == 1)
            assert cluster.get()["spec"]["suspend"] is False
            token.write_text("another")
            expect(page.locator("#link")).to_have_text("live, read-only: the token is not the right one")
            expect(dialog.get_by_role("button", name="Suspend …")).to_be_hidden()
            assert heard.errors == []
    assert not [one for one in cluster.server.asked(*cluster.account) if one.code == 403], "the chart's rights are enough"


class RefusingApi:
    """An API server that answers each change with an error."""

    def __init__(self, error: ApiError) -> None:
        self._error = error

    async def patch(self, *_: Any, **__: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ApiError(403, "Forbidden", "not you"), 403),
        (ApiError(409, "Conflict", "the UID in the precondition does not match"), 409),
        (ApiError(422, "Invalid", "spec: wrong"), 422),
        (ApiError(500, "Internal", "broken"), 503),
        (ApiError(0, "NotActive", "another operator may be active by now"), 503),
    ],
)
def test_what_the_api_server_refuses_is_told(seen: Seen, error: ApiError, status: int) -> None:
    seen.saw(running("orders", 2, "0.42"))

    async def refused() -> Refused:
        suspending = Suspending(RefusingApi(error), seen, PageToken(""))  # type: ignore[arg-type]
        with pytest.raises(Refused) as found:
            await asyncio.to_thread(suspending.switch, "shop", "orders", b'{"suspend": true}')
        return found.value

    found = asyncio.run(refused())
    assert found.status == status
    assert str(found).startswith("shop/orders: the API server has refused it: ")
    assert error.message in str(found)


def test_what_is_being_deleted_is_not_suspended(seen: Seen) -> None:
    going = running("orders", 2, "0.42")
    going["metadata"]["deletionTimestamp"] = AT
    seen.saw(going)

    async def refused() -> Refused:
        suspending = Suspending(RefusingApi(ApiError(500, "", "asked all the same")), seen, PageToken(""))  # type: ignore[arg-type]
        with pytest.raises(Refused) as found:
            await asyncio.to_thread(suspending.switch, "shop", "orders", b'{"suspend": true}')
        return found.value

    assert (asyncio.run(refused()).status, seen.bodies["shop", "orders"]["spec"].get("suspend")) == (409, None)


@pytest.mark.chromium
def test_without_a_secret_the_page_only_shows(seen: Seen, url: str) -> None:
    seen.saw(running("orders", 2, "0.42"))
    found = json.loads(urllib.request.urlopen(f"{url}/v1/streamjoins", timeout=PATIENCE_SECONDS).read())
    assert (found["mayWrite"], found["takesToken"]) == (False, False)
    with pytest.raises(Refused, match="this page only shows") as refused:
        PageToken("").require("Bearer anything")
    assert refused.value.status == 403
    with browser() as chromium, chromium.page(url) as (page, _):
        expect(page.locator("#link")).to_have_text("live, read-only")
        expect(page.locator("#ask-token")).to_be_hidden()
        page.get_by_role("button", name="all about shop/orders").click()
        expect(page.get_by_role("dialog", name="shop/orders")).to_contain_text("kubectl streamjoin suspend orders -n shop does.")


@pytest.mark.parametrize("text", ["", "two words", "x" * 5000])
def test_a_file_without_a_token_lets_nobody_in(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(Refused, match="must hold one token") as refused:
        PageToken(str(tmp_path / "token")).require(f"Bearer {text}")
    assert refused.value.status == 503
