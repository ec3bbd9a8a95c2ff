"""The webhook that checks StreamJoins when they are applied: its answers, its certificate, and an API server that asks it."""

from __future__ import annotations

import asyncio
import base64
import copy
import datetime
import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from apiserver import ApiError, ApiServer
from certificates import Authority
from operator_cluster import Cluster
from operator_parts import SPEC, Object, streamjoin
from streamjoin_operator import admission, webhook_certificate
from streamjoin_operator.access import from_kubeconfig
from streamjoin_operator.admission import AdmissionServer, answer
from streamjoin_operator.api import Api
from waiting import wait_for

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def wrong() -> Object:
    """Parts of a spec whose SQL cannot be parsed."""
    joins = copy.deepcopy(SPEC["joins"])
    joins[0]["output"]["where"] = "orders.amount >"
    return {"joins": joins}


def review(body: Object, before: Object | None = None) -> Object:
    request = {"uid": "u", "operation": "CREATE" if before is None else "UPDATE", "object": body, "oldObject": before}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def response(body: Object, before: Object | None = None) -> Object:
    return dict(answer(review(body, before))["response"])


def test_what_the_operator_would_refuse_is_refused_in_its_words() -> None:
    assert response(streamjoin()) == {"uid": "u", "allowed": True}
    refused = response(streamjoin(**wrong()))
    assert (refused["allowed"], refused["status"]["code"]) == (False, 422)
    assert refused["status"]["message"].startswith('spec.joins[0].output.where: "orders.amount >" is refused: cannot parse')
    assert not response(streamjoin(**wrong()), streamjoin())["allowed"]


@pytest.mark.parametrize("change", [{}, {"suspend": True}, {"paused": True}])
def test_whatever_is_stored_can_be_stopped_and_changed_elsewhere(change: Object) -> None:
    before = streamjoin(**wrong())
    assert response(streamjoin(**wrong(), **change), before)["allowed"]


def test_what_is_being_deleted_is_taken() -> None:
    going = streamjoin(**wrong())
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert response(going, streamjoin())["allowed"]


def test_what_cannot_be_judged_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "derive", lambda body: {}["absent"])
    assert response(streamjoin(**wrong()))["allowed"]


@contextmanager
def serving(directory: Path) -> Iterator[AdmissionServer]:
    with AdmissionServer(0, directory, "127.0.0.1") as server:
        yield server


def asked(server: AdmissionServer, authority: Path, body: Any, path: str = "/validate") -> tuple[int, Any]:
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection("localhost", server.port, context=context)
    try:
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
        found = connection.getresponse()
        return found.status, json.loads(found.read())
    finally:
        connection.close()


def test_its_certificate_may_come_later_and_be_renewed(tmp_path: Path) -> None:
    with serving(tmp_path / "mine") as server:
        Authority(tmp_path / "none")
        with pytest.raises(OSError):  # noqa: PT011 - as the connection ends
            asked(server, tmp_path / "none" / "ca.crt", review(streamjoin()))
        for turn in ("first", "renewed"):
            (tmp_path / turn).mkdir()
            Authority(tmp_path / turn).issue("localhost")
            (tmp_path / "mine").unlink(missing_ok=True)
            (tmp_path / "mine").symlink_to(tmp_path / turn)
            status, found = asked(server, tmp_path / turn / "ca.crt", review(streamjoin()))
            assert (status, found["response"]["allowed"]) == (200, True)


def test_what_is_no_review_is_an_error_and_the_next_is_answered(tmp_path: Path) -> None:
    Authority(tmp_path).issue("localhost")
    with serving(tmp_path) as server:
        authority = tmp_path / "ca.crt"
        assert asked(server, authority, b"no JSON")[0] == 400
        assert asked(server, authority, {"request": []})[0] == 400
        assert asked(server, authority, review(streamjoin()), "/other")[0] == 404
        assert asked(server, authority, review(streamjoin()))[0] == 200


def of(server: AdmissionServer) -> str:
    return f"https://localhost:{server.port}/validate"


@contextmanager
def registered(server: ApiServer, url: str, authority: bytes, namespace: str, before: str = "") -> Iterator[None]:
    """Named after the namespace, with ``before`` in front of it."""
    rule = {"apiGroups": ["streamjoin.dev"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["streamjoins"]}
    webhook = {
        "name": "streamjoins.streamjoin.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "timeoutSeconds": 30,
        "clientConfig": {"url": url, "caBundle": base64.b64encode(authority).decode()},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [rule],
    }
    server.admin.create(WEBHOOKS, {"metadata": {"name": f"{before}{namespace}"}, "webhooks": [webhook]})
    try:
        yield
    finally:
        server.admin.delete(f"{WEBHOOKS}/{before}{namespace}")


def wrong_in(cluster: Cluster) -> Object:
    return {**streamjoin(**wrong()), "metadata": {"name": "one", "namespace": cluster.namespace}}


def is_asked(cluster: Cluster) -> bool:
    """Whether the API server asks the webhook, and so refuses what is wrong."""
    try:
        cluster.admin.create(cluster.streamjoins, wrong_in(cluster), dryRun="All")
    except ApiError as error:
        return "denied the request" in str(error)
    return False


@pytest.mark.apiserver
def test_kubectl_apply_of_wrong_sql_is_refused_and_without_an_answer_it_is_taken(cluster: Cluster, tmp_path: Path) -> None:
    Authority(tmp_path).issue("localhost")
    body = wrong_in(cluster)

    def apply() -> str:
        done = cluster.server.kubectl("apply", "-f", "-", stdin=json.dumps(body), check=False)
        return done.stdout + done.stderr

    with serving(tmp_path) as server:
        authority = (tmp_path / "ca.crt").read_bytes()
        with registered(cluster.server, of(server), authority, cluster.namespace):
            wait_for("the API server asks", lambda: is_asked(cluster))
            said = apply()
            assert 'denied the request: spec.joins[0].output.where: "orders.amount >" is refused: cannot parse' in said
            assert not cluster.admin.exists(f"{cluster.streamjoins}/one")
            server.close()
            assert "created" in apply(), "nobody answers"


@pytest.mark.apiserver
def test_the_operator_makes_the_certificate_and_renews_it_while_both_are_trusted(cluster: Cluster, tmp_path: Path) -> None:
    today = datetime.datetime.now(datetime.UTC)

    def secret() -> Object:
        return dict(cluster.admin.get(f"/api/v1/namespaces/{cluster.namespace}/secrets/hook"))

    def renew(now: datetime.datetime) -> str:
        """The certificate that the Secret has then."""

        async def once() -> None:
            api = Api(await from_kubeconfig(str(cluster.server.kubeconfig)))
            try:
                await webhook_certificate.renew(api, cluster.namespace, "hook", "localhost", now)
            finally:
                await api.close()

        asyncio.run(once())
        return base64.b64decode(secret()["data"]["tls.crt"]).decode()

    def mounted() -> None:
        """What a node does with a Secret."""
        for name, value in secret()["data"].items():
            (tmp_path / name).write_bytes(base64.b64decode(value))

    def trusted() -> list[str]:
        (hook,) = cluster.admin.get(f"{WEBHOOKS}/hook-{cluster.namespace}")["webhooks"]
        bundle = base64.b64decode(hook["clientConfig"]["caBundle"]).decode()
        return [f"{each}-----END CERTIFICATE-----\n" for each in bundle.split("-----END CERTIFICATE-----\n")[:-1]]

    with (
        serving(tmp_path) as server,
        registered(cluster.server, of(server), b"", cluster.namespace, "hook-"),
    ):
        first = renew(today - datetime.timedelta(days=300))
        assert not is_asked(cluster), "the pods do not have it yet"
        mounted()
        wait_for("the API server asks", lambda: is_asked(cluster))
        assert renew(today - datetime.timedelta(days=100)) == first
        second = renew(today)
        assert trusted() == [second, first], "pods show the first one still"
        wait_for("the API server asks", lambda: is_asked(cluster))
        mounted()
        wait_for("the API server asks", lambda: is_asked(cluster))
        third = renew(today + datetime.timedelta(days=300))
        assert trusted() == [third, second], "the first one has ended"
        assert secret()["metadata"]["ownerReferences"][0]["kind"] == "ValidatingWebhookConfiguration"
