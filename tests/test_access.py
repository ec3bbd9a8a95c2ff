"""How the operator finds the API server and logs in: in a pod, and by kubeconfigs."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from http_stub import Handler, Served
from streamjoin_operator import access
from streamjoin_operator.access import AccessError, find, from_kubeconfig
from streamjoin_operator.api import POD, Api, ApiError
from waiting import PATIENCE_SECONDS


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


def test_a_token_in_the_file_and_an_unverified_server(tmp_path: Path) -> None:
    way = from_kubeconfig(kubeconfig(tmp_path, {"token": "secret"}, **{"insecure-skip-tls-verify": True}))
    assert (way.server, way.bearer()) == ("https://10.0.0.1:6443", "secret")
    context = way.ssl_context()
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_NONE
    connection = way.connection()
    assert (connection.server, connection.scheme, connection.token, connection.insecure) == (way.server, "Bearer", "secret", True)


def test_a_token_of_another_file_is_read_again_when_it_was_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    way = from_kubeconfig(kubeconfig(tmp_path, {"tokenFile": str(token)}))
    assert way.bearer() == "first"
    token.write_text("second\n")
    way.forget()
    assert way.bearer() == "second"


def test_a_refused_token_whose_file_is_gone_is_an_error_of_that_request(tmp_path: Path) -> None:
    class Refuses(Handler):
        def do_GET(self) -> None:
            self.answer(401, b"{}")

    token = tmp_path / "token"
    token.write_text("first\n")
    way = from_kubeconfig(kubeconfig(tmp_path, {"tokenFile": str(token)}))
    token.unlink()
    with pytest.raises(AccessError, match=r"kubeconfig: .*No such file"):
        way.forget()
    assert way.bearer() == "first"
    served = Served(Refuses)
    way.server, way.ca = served.url, None

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


def test_a_program_that_logs_in(tmp_path: Path) -> None:
    program = tmp_path / "login"
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "printed"}}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    program.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}}
    assert from_kubeconfig(kubeconfig(tmp_path, user)).bearer() == "printed"


def test_authorities_in_the_file_itself(tmp_path: Path) -> None:
    authority = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()
    way = from_kubeconfig(kubeconfig(tmp_path, {"token": "secret"}, **{"certificate-authority-data": authority}))
    assert way.ca is not None
    assert Path(way.ca).read_bytes() == b"-----BEGIN CERTIFICATE-----\n"


@pytest.mark.parametrize("text", ["", "{}", "current-context: nowhere\ncontexts: []\nclusters: []\nusers: []\n", "- 1\n", "a: [\n"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(AccessError, match=str(path)):
        from_kubeconfig(path)


def test_no_way_at_all_says_where_was_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(AccessError, match=r"no service account .* and no kubeconfig at .*/absent; run in a pod, or set KUBECONFIG"):
        find()


def test_a_pod_logs_in_by_its_account_whose_token_kubernetes_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_text("an authority")
    monkeypatch.setattr(access, "TOKEN", token)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    way = find()
    assert (way.server, way.ca, way.bearer()) == ("https://[fd00::1]:443", str(authority), "first")
    token.write_text("second")
    assert way.bearer() == "first", "read a moment ago"
    way.forget()
    assert way.bearer() == "second"
    token.write_text("third")
    monkeypatch.setattr(access, "TOKEN_SECONDS", 0.0)
    assert way.bearer() == "third"
    for path, content in ((token, "a"), (authority, "b")):
        path.write_text(" ")
        with pytest.raises(AccessError, match=f"{path}: is empty"):
            find()
        path.write_text(content)
    token.unlink()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(AccessError, match="no service account"):
        find()


def test_a_pod_needs_no_package_for_kubeconfigs_and_a_kubeconfig_says_that_it_does(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of the pod")
    (tmp_path / "ca.crt").write_text("an authority")
    path = kubeconfig(tmp_path, {"token": "secret"})
    program = f"""
import sys
sys.modules["kubernetes"] = None                # importing it fails
from pathlib import Path
from streamjoin_operator import access, main    # all of the operator
access.TOKEN = Path({str(tmp_path / "token")!r})
print(access.find().bearer())
access.from_kubeconfig(Path({str(path)!r}))
"""
    environment = {**os.environ, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.stdout == "of the pod\n", done.stderr
    assert "AccessError" in done.stderr
    assert f"{path}: kubeconfigs are read by the Python package kubernetes, which is not here; run in a pod" in done.stderr
