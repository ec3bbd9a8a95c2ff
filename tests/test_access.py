"""How the operator finds the API server and logs in: in a pod, and by kubeconfigs."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.config import incluster_config

from http_stub import Handler, Served
from streamjoin_operator.access import TOKEN, Access, AccessError, find, from_kubeconfig
from streamjoin_operator.api import POD, Api, ApiError


def kubeconfig(directory: Path, user: dict[str, Any], **cluster: Any) -> Path:
    path = directory / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **cluster}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def asked(way: Access, *questions: Callable[[], None]) -> list[str | None]:
    """What the API server is shown with each request; before it, a question's turn."""
    shown: list[str | None] = []

    class Server(Handler):
        def do_GET(self) -> None:
            shown.append(self.headers["Authorization"])
            self.answer(200, b'{"items": []}')

    served = Served(Server)
    way.configuration.host, way.configuration.ssl_ca_cert = served.url, None

    async def ask() -> None:
        api = Api(way)
        try:
            for before in questions:
                before()
                await api.list(POD, "default", "")
        finally:
            await api.close()

    try:
        asyncio.run(ask())
    finally:
        served.close()
    return shown


def nothing() -> None:
    """Happens before a request."""


def test_a_token_in_the_file_and_an_unverified_server(tmp_path: Path) -> None:
    way = asyncio.run(from_kubeconfig(kubeconfig(tmp_path, {"token": "secret"}, **{"insecure-skip-tls-verify": True})))
    assert way.configuration.host == "https://10.0.0.1:6443"
    connection = asyncio.run(way.connection())
    assert (connection.server, connection.scheme, connection.token) == (way.configuration.host, "Bearer", "secret")
    assert connection.as_ssl_context().verify_mode is ssl.CERT_NONE
    assert asked(way, nothing) == ["Bearer secret"]


def test_a_token_of_another_file_is_read_again_when_it_was_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    way = asyncio.run(from_kubeconfig(kubeconfig(tmp_path, {"tokenFile": str(token)})))
    assert asked(way, nothing) == ["Bearer first"]
    token.write_text("second\n")
    asyncio.run(way.renew())
    assert asked(way, nothing) == ["Bearer second"]
    assert asyncio.run(way.connection()).token == "second"


def test_a_refused_token_whose_file_is_gone_is_an_error_of_that_request(tmp_path: Path) -> None:
    class Refuses(Handler):
        def do_GET(self) -> None:
            self.answer(401, b"{}")

    token = tmp_path / "token"
    token.write_text("first\n")
    way = asyncio.run(from_kubeconfig(kubeconfig(tmp_path, {"tokenFile": str(token)})))
    token.unlink()
    with pytest.raises(AccessError, match=r"kubeconfig: .*No such file"):
        asyncio.run(way.renew())
    assert asked(way, nothing) == ["Bearer first"]
    served = Served(Refuses)
    way.configuration.host = served.url

    async def ask() -> None:
        api = Api(way)
        try:
            await api.list(POD, "default", "")
        finally:
            await api.close()

    try:
        with pytest.raises(ApiError, match=r"401 Unauthorized: .*No such file"):
            asyncio.run(ask())
    finally:
        served.close()


def test_a_program_that_logs_in_is_asked_again_before_its_token_expires(tmp_path: Path) -> None:
    program, status = tmp_path / "login", tmp_path / "status"

    def printed(token: str, minutes: int) -> None:
        expires = (datetime.now(UTC) + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
        answer = {"token": token, "expirationTimestamp": expires}
        credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": answer}
        status.write_text(json.dumps(credential))

    program.write_text(f"#!/bin/sh\ncat {status}\n")
    program.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}}
    printed("first", minutes=1)
    way = asyncio.run(from_kubeconfig(kubeconfig(tmp_path, user)))
    changes = (lambda: printed("second", minutes=60), lambda: printed("third", minutes=60))
    assert asked(way, nothing, *changes) == ["Bearer first", "Bearer second", "Bearer second"]
    assert asyncio.run(way.connection()).token == "second"


def test_a_program_that_gives_no_time_is_asked_once(tmp_path: Path) -> None:
    program, calls = tmp_path / "login", tmp_path / "calls"
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "printed"}}
    program.write_text(f"#!/bin/sh\necho >> {calls}\necho '{json.dumps(credential)}'\n")
    program.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}}
    way = asyncio.run(from_kubeconfig(kubeconfig(tmp_path, user)))
    assert asked(way, nothing, nothing) == ["Bearer printed"] * 2
    assert calls.read_text() == "\n"


def test_authorities_in_the_file_itself_and_a_proxy(tmp_path: Path) -> None:
    authority = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()
    cluster = {"certificate-authority-data": authority, "proxy-url": "http://proxy:3128"}
    way = asyncio.run(from_kubeconfig(kubeconfig(tmp_path, {"token": "secret"}, **cluster)))
    connection = asyncio.run(way.connection())
    assert connection.ca_path == way.configuration.ssl_ca_cert
    assert Path(str(connection.ca_path)).read_bytes() == b"-----BEGIN CERTIFICATE-----\n"
    assert (connection.proxy_url, way.configuration.proxy) == ("http://proxy:3128", "http://proxy:3128")


@pytest.mark.parametrize("text", ["", "{}", "current-context: nowhere\ncontexts: []\nclusters: []\nusers: []\n", "- 1\n", "a: [\n"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(AccessError, match=str(path)):
        asyncio.run(from_kubeconfig(path))


def test_several_kubeconfigs_are_one_and_one_that_is_not_there_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    whole = yaml.safe_load(kubeconfig(tmp_path, {"token": "secret"}).read_text())
    parts = [tmp_path / "clusters", tmp_path / "users"]
    parts[0].write_text(yaml.safe_dump(whole | {"users": []}))
    parts[1].write_text(yaml.safe_dump({"users": whole["users"]}))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{parts[0]}:{parts[1]}")
    assert asyncio.run(asyncio.run(find()).connection()).token == "secret"


@pytest.mark.parametrize("paths", ["{}/absent", "{}/absent:"])
def test_no_way_at_all_says_where_was_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: str) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", paths.format(tmp_path))
    with pytest.raises(AccessError, match=r"no service account .* and no kubeconfig at .*/absent:?; run in a pod, or set KUBECONFIG"):
        asyncio.run(find())


def test_a_pod_logs_in_by_its_account_whose_token_kubernetes_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_text("an authority")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    way = asyncio.run(find())

    def bearer() -> str | None:
        return asyncio.run(way.connection()).token

    assert (way.configuration.host, way.configuration.ssl_ca_cert, bearer()) == ("https://[fd00::1]:443", str(authority), "first")
    token.write_text("second")
    assert bearer() == "first", "read a moment ago"
    asyncio.run(way.renew())
    assert bearer() == "second"
    token.write_text("third")

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(minutes=1)

    with monkeypatch.context() as patch:
        patch.setattr(incluster_config.datetime, "datetime", Later)
        assert bearer() == "third"
    assert asyncio.run(way.configuration.auth_settings())[TOKEN]["value"] == "bearer third"
    for path, content in ((token, "a"), (authority, "b")):
        path.write_text("")
        with pytest.raises(AccessError, match=r"the pod's service account: .* empty"):
            asyncio.run(find())
        path.write_text(content)
    token.unlink()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(AccessError, match="no service account"):
        asyncio.run(find())
