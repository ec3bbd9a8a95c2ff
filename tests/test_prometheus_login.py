"""How the operator logs in to a Prometheus: its own login, a join's, and that neither ends up where it does not belong."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from yarl import URL

from operator_parts import Object
from prometheus_server import Guard, needs_prometheus, prometheus
from scaled_join import ScaledJoin, ScaledServer
from streamjoin.manifest.prometheus import Prometheus
from streamjoin_operator.login import Login, of_join
from streamjoin_operator.measurement import Distrusted
from streamjoin_operator.prometheus import proxy_of
from streamjoin_operator.reasons import Reason
from streamjoin_operator.settings import SettingError, read
from test_prometheus_client import Answers, Loop, ask, certificate
from waiting import PATIENCE_SECONDS

WORD = "a-word-that-nobody-may-see"


def secret(**data: str) -> Object:
    return {"data": {name.replace("__", "."): base64.b64encode(text.encode()).decode() for name, text in data.items()}}


def fields(**given: Any) -> Prometheus:
    return Prometheus.model_validate(given)


def files(directory: Path, **texts: str) -> dict[str, str]:
    """Settings that name such files."""
    for name, text in texts.items():
        (directory / name).write_text(text)
    return {f"prometheus_{name}_file": str(directory / name) for name in texts}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_headers_and_parameters_are_sent_with_each_question(tmp_path: Path) -> None:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "..data").mkdir()
    (tmp_path / "headers" / "X-Api-Key").write_text(f"{WORD}\n")
    given = {"prometheus_headers": ("X-Scope-OrgID=a|b", "X-Other=1=2"), "prometheus_headers_directory": str(tmp_path / "headers")}
    with Answers().served() as server:
        found = ask(server.url, prometheus_query_parameters=("dedup=true", "max_source_resolution=5m"), **given)
        assert isinstance(found, list), found
        (sent,), ((path, _),) = server.sent, server.asked
    assert (sent["X-Scope-OrgID"], sent["X-Other"], sent["X-Api-Key"]) == ("a|b", "1=2", WORD)
    asked = parse_qs(urlsplit(path).query)
    assert (asked["dedup"], asked["max_source_resolution"], len(asked["query"])) == (["true"], ["5m"], 1)


def test_a_user_and_a_password_are_read_every_time(tmp_path: Path) -> None:
    given = files(tmp_path, username="reader\n", password="first\n")
    with Answers().served() as server:
        ask(server.url, **given)
        files(tmp_path, password="second")
        ask(server.url, **given)
        assert [authorization for _, authorization in server.asked] == [basic("reader", "first"), basic("reader", "second")]


JOINS: dict[str, tuple[Object, dict[str, Object | None], dict[str, str]]] = {
    "a token": ({"bearer": {"secretName": "a"}}, {"a": secret(token="t\n")}, {"Authorization": "Bearer t"}),
    "a token by another key": ({"bearer": {"secretName": "a", "key": "b"}}, {"a": secret(b="t")}, {"Authorization": "Bearer t"}),
    "a user": ({"basic": {"secretName": "a"}}, {"a": secret(username="u", password="p")}, {"Authorization": basic("u", "p")}),
    "a tenant": ({"headers": {"X-Scope-OrgID": "team-a"}}, {}, {"X-Scope-OrgID": "team-a"}),
    "headers of a Secret": (
        {"headers": {"A": "b"}, "headersSecretName": "a"},
        {"a": {"data": {"X-Api-Key": base64.b64encode(b"k\n").decode()}}},
        {"A": "b", "X-Api-Key": "k"},
    ),
    "parameters": ({"queryParameters": {"dedup": "true"}}, {}, {}),
}


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("is_own", [True, False], ids=["the operator's server", "another server"])
def test_a_join_logs_in_by_its_own_fields_and_nothing_of_the_operators_goes_along(tmp_path: Path, name: str, is_own: bool) -> None:
    """Not even to the operator's own server, where a tenant of the join's could be read with the operator's rights."""
    given, secrets, wanted = JOINS[name]
    own = {"prometheus_headers": ("X-Operator=1",), "prometheus_query_parameters": ("operator=1",), **files(tmp_path, token=WORD)}
    with Answers().served() as server, Answers().served() as elsewhere:
        settings = {**own, "prometheus_url": server.url if is_own else elsewhere.url, "prometheus_allowed_urls": (server.url,)}
        found = ask(server.url, join={"login": fields(url=server.url, **given), "secrets": secrets}, **settings)
        assert isinstance(found, list), found
        (sent,), ((path, _),) = server.sent, server.asked
    assert {key: sent.get(key) for key in wanted} == wanted
    assert WORD not in str(sent)
    assert "X-Operator" not in sent
    assert "operator=1" not in path
    assert ("dedup=true" in path) is (name == "parameters")


def test_an_address_alone_gets_nothing_of_the_operators_login(tmp_path: Path) -> None:
    own = {"prometheus_headers": ("X-Operator=1",), "prometheus_query_parameters": ("operator=1",), **files(tmp_path, token=WORD)}
    with Answers().served() as server, Answers().served() as elsewhere:
        for url in (elsewhere.url, f"{server.url}/team-a"):
            settings = {"prometheus_url": server.url, "prometheus_allowed_urls": (elsewhere.url, f"{server.url}/team-a"), **own}
            assert isinstance(ask(url, join={"login": fields(url=url)}, **settings), list)
        for sent, (path, _) in zip(server.sent + elsewhere.sent, server.asked + elsewhere.asked, strict=True):
            assert WORD not in str(sent)
            assert "X-Operator" not in sent
            assert "operator=1" not in path


NO_LOGIN: dict[str, tuple[Object, dict[str, Object | None], str]] = {
    "no Secret": (
        *({"bearer": {"secretName": "a"}}, {"a": None}),
        "spec.scaling.prometheus.bearer.secretName: a: there is no such Secret in namespace team-a; make it there with token, or name",
    ),
    "no key": ({"basic": {"secretName": "a"}}, {"a": secret(username="u")}, "basic.secretName: a: the Secret has no password"),
    "no text": ({"bearer": {"secretName": "a"}}, {"a": {"data": {"token": "/w=="}}}, "bearer.secretName: a: the Secret has no token"),
    "no headers": ({"headersSecretName": "a"}, {"a": None}, "headersSecretName: a: there is no such Secret"),
    "two lines": ({"bearer": {"secretName": "a"}}, {"a": secret(token=f"{WORD}\r\nHost: b")}, "header Authorization is not one line of"),
    "where it goes": ({"headersSecretName": "a"}, {"a": secret(Host=WORD)}, "has the header 'Host', which says where a request goes"),
    "twice": (
        {"headers": {"authorization": "a"}, "bearer": {"secretName": "a"}},
        {"a": secret(token=WORD)},
        "Authorization twice; keep one",
    ),
    "no certificate": ({"tls": {"secretName": "a"}}, {"a": secret(other=WORD)}, "tls.secretName: a: the Secret has no tls.crt"),
    "no authority": ({"tls": {"secretName": "a"}}, {"a": secret(ca__crt=WORD)}, "the certificates of the authorities are not PEM"),
    "no key of it": (
        *({"tls": {"secretName": "a"}}, {"a": secret(tls__crt=WORD, tls__key=WORD)}),
        "the client certificate and its key are not PEM, do not belong together, or the key has a password; give them anew",
    ),
}


@pytest.mark.parametrize("name", NO_LOGIN)
def test_a_login_that_cannot_be_made_says_what_to_do_and_no_secret(name: str) -> None:
    given, secrets, said = NO_LOGIN[name]
    url = "https://127.0.0.1:1"
    found = ask(url, join={"login": fields(**given), "secrets": secrets})
    assert isinstance(found, Distrusted)
    assert found.reason is Reason.PrometheusDenied
    assert said in found.text
    assert WORD not in found.text


def test_a_login_shows_no_secret() -> None:
    shown = of_join(fields(bearer={"secretName": "a"}, headers={"A": WORD}), "team-a", {"a": secret(token=WORD)}, Login())
    assert WORD not in repr(shown)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HEADERS", "X-Scope-OrgID", "must be a name and its value"),
        ("HEADERS", "A=b\nHost=c", "has 'Host', which says where a request goes"),
        ("HEADERS", "A=\u00e4", "the value of A must be printable ASCII"),
        ("QUERY_PARAMETERS", "query=up", "has 'query', which the operator gives itself"),
        ("USERNAME_FILE", "/a", "STREAMJOIN_PROMETHEUS_PASSWORD_FILE is not given; give both, or neither"),
        ("KEY_FILE", "/a", "STREAMJOIN_PROMETHEUS_CERT_FILE is not given; give both, or neither"),
        ("POD_LABEL", "a-b", "must be the name of a label"),
    ],
)
def test_a_setting_of_the_login_that_cannot_be_is_refused_by_name(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingError, match=f"STREAMJOIN_PROMETHEUS_{name}.*{said}"):
        read({f"STREAMJOIN_PROMETHEUS_{name}": value})


def test_what_a_manifest_may_not_give_is_refused_by_name() -> None:
    for given, said in (
        ({"headers": {"X-Forwarded-Host": "a"}}, "says where a request goes"),
        ({"headers": {"a b": "c"}}, "which is no name of a header"),
        ({"queryParameters": {"time": "0"}}, "which the operator gives itself"),
    ):
        with pytest.raises(ValueError, match=said):
            fields(**given)


class Proxy(Answers):
    """One that answers itself what it is asked to fetch."""


def test_a_proxy_is_asked_where_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,.svc")
    with Proxy().served() as proxy, Answers().served() as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:{WORD}@{URL(proxy.url).authority}")
        assert isinstance(ask("http://prometheus.invalid:9090", prometheus_headers=("X-Scope-OrgID=a",)), list)
        ((path, _),), (sent,) = proxy.asked, proxy.sent
        assert path.startswith("http://prometheus.invalid:9090/api/v1/query?")
        assert (sent["X-Scope-OrgID"], sent["Proxy-Authorization"]) == ("a", basic("user", WORD))
        assert isinstance(ask(server.url), list)
        assert (len(proxy.asked), len(server.asked)) == (1, 1)
        assert proxy_of("http://prometheus.monitoring.svc:9090") is None
    found = ask("http://prometheus.invalid:9090")
    assert isinstance(found, Distrusted)
    assert found.text.startswith("http://prometheus.invalid:9090 (by the proxy 127.0.0.1): it cannot be connected to")
    assert WORD not in found.text


def test_the_secrets_of_the_joins_namespace_are_read_and_no_others() -> None:
    """Made, and put right, while the operator runs."""

    async def told(server: Answers) -> None:
        join = ScaledServer(ScaledJoin(lambda: 0.0, 2_000.0))
        given = {"url": server.url, "bearer": {"secretName": "reader"}}
        loop = Loop(join, "", {"prometheus_allowed_urls": (server.url,)}, scaling={"prometheus": given})
        asked: list[tuple[str, str]] = []
        get = loop.cluster.get

        async def noted(kind: Any, namespace: str, name: str) -> Any:
            asked.append((namespace, name))
            return await get(kind, namespace, name)

        loop.cluster.get = noted  # type: ignore[method-assign]
        elsewhere = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "reader", "namespace": "other"}, **secret(token=WORD)}
        try:
            loop.cluster.put(elsewhere)
            await loop.until("it is missing", lambda: loop.metrics == "PrometheusDenied")
            assert "there is no such Secret in namespace default" in loop.said
            loop.cluster.put({**elsewhere, "metadata": {"name": "reader", "namespace": "default"}, **secret(token="mine")})
            await loop.until("it is asked", lambda: server.asked)
            assert server.asked[0][1] == "Bearer mine"
            assert {namespace for namespace, _ in asked} == {"default"}
        finally:
            await loop.close()
            join.close()

    with Answers().served() as server:
        asyncio.run(told(server))


@contextmanager
def guarded(directory: Path) -> Iterator[tuple[str, Path]]:
    """A real Prometheus that asks for a client certificate, and for the user reader with the password "U*U"; and its authority."""
    authority, _ = certificate(directory)
    key = directory / "key.pem"
    web = {
        "tls_server_config": {
            "cert_file": str(authority),
            "key_file": str(key),
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_ca_file": str(authority),
        },
        "basic_auth_users": {"reader": "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"},
    }
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(authority, key)
    with prometheus(directory / "prometheus", {}, guard=Guard(web, context, basic("reader", "U*U"))) as server:
        yield server.url, authority


@pytest.mark.prometheus
@needs_prometheus
def test_a_real_prometheus_that_asks_for_a_client_certificate_and_a_user_is_shown_both(tmp_path: Path) -> None:
    with guarded(tmp_path) as (url, authority):
        key = tmp_path / "key.pem"
        patient = {"prometheus_timeout_seconds": PATIENCE_SECONDS}
        trusted = {"prometheus_ca_file": str(authority), **patient}
        shown = {"prometheus_cert_file": str(authority), "prometheus_key_file": str(key)}
        user = files(tmp_path, username="reader", password="U*U")
        assert ask(url, **trusted, **shown, **user) == []
        without_certificate = ask(url, **trusted, **user)
        assert isinstance(without_certificate, Distrusted)
        assert without_certificate.reason is Reason.PrometheusUnreachable
        for wrong in ({}, files(tmp_path, username="reader", password="another")):
            refused = ask(url, **trusted, **shown, **wrong)
            assert isinstance(refused, Distrusted)
            assert refused.reason is Reason.PrometheusDenied
            assert refused.text.startswith("it answers 401; see how the operator logs in: prometheus of its chart, or spec.scaling")
        secrets: dict[str, Object | None] = {
            "pair": secret(tls__crt=authority.read_text(), tls__key=key.read_text(), ca__crt=authority.read_text()),
            "user": secret(username="reader", password="U*U"),
        }
        login = fields(tls={"secretName": "pair"}, basic={"secretName": "user"})
        assert ask(url, join={"login": login, "secrets": secrets}, **patient) == []
