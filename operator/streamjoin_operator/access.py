"""Where the API server is and who we are: from the pod's service account, else from a kubeconfig.

kopf and our own client log in with the same facts. A service account's token is read anew every minute, because Kubernetes replaces it.
"""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kopf
import yaml

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REREAD_SECONDS = 60.0


class AccessError(RuntimeError):
    """No way to the API server; the text says what was looked for."""


@dataclass
class Access:
    """How to reach the API server."""

    server: str
    ca: str | None = None
    """PEM; None: the machine's own authorities."""
    token: str | None = None
    token_file: Path | None = None
    certificate: tuple[Path, Path] | None = None
    """Certificate and key."""
    insecure: bool = False
    clock: Callable[[], float] = time.monotonic
    _read_at: float = field(default=float("-inf"), repr=False)

    def bearer(self) -> str | None:
        """The token of the moment."""
        if self.token_file is not None and self.clock() - self._read_at > REREAD_SECONDS:
            self.token, self._read_at = self.token_file.read_text().strip(), self.clock()
        return self.token

    def forget(self) -> None:
        """The API server refused the token: read it anew next time."""
        self._read_at = float("-inf")

    def ssl_context(self) -> ssl.SSLContext | bool:
        if not self.server.startswith("https:"):
            return False
        context = ssl.create_default_context(cadata=self.ca)
        if self.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certificate is not None:
            context.load_cert_chain(*map(str, self.certificate))
        return context

    def connection(self) -> kopf.ConnectionInfo:
        """The same for kopf."""
        certificate, key = self.certificate or (None, None)
        return kopf.ConnectionInfo(
            server=self.server,
            ca_data=None if self.ca is None else base64.b64encode(self.ca.encode()).decode(),
            insecure=self.insecure or None,
            scheme="Bearer" if self.bearer() else None,
            token=self.bearer(),
            certificate_path=None if certificate is None else str(certificate),
            private_key_path=None if key is None else str(key),
        )


def find() -> Access:
    """The pod's own account, else the current context of ``$KUBECONFIG`` or ``~/.kube/config``. Raises AccessError."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if host and (ACCOUNT / "token").exists():
        address = f"[{host}]" if ":" in host else host
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        return Access(f"https://{address}:{port}", ca=(ACCOUNT / "ca.crt").read_text(), token_file=ACCOUNT / "token")
    path = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    if not path.exists():
        raise AccessError(f"no service account in {ACCOUNT} and no kubeconfig at {path}; run in a pod, or set KUBECONFIG")
    return from_kubeconfig(path)


def from_kubeconfig(path: Path) -> Access:
    """The current context of a kubeconfig with a token or with certificates in files or inline data. Raises AccessError."""
    config = yaml.safe_load(path.read_text())
    try:
        named = {kind: {entry["name"]: entry for entry in config[kind]} for kind in ("clusters", "contexts", "users")}
        context = named["contexts"][config["current-context"]]["context"]
        cluster: dict[str, Any] = named["clusters"][context["cluster"]]["cluster"]
        user: dict[str, Any] = named["users"][context["user"]].get("user") or {}
    except (KeyError, TypeError) as error:
        raise AccessError(f"{path}: is no kubeconfig with a current context ({error})") from error
    if "exec" in user or "auth-provider" in user:
        raise AccessError(f"{path}: user {context['user']} logs in by a program, which the operator does not run; give it a token")
    ca = _data(cluster, "certificate-authority", path)
    certificate = None
    if "client-certificate" in user and "client-key" in user:
        certificate = (path.parent / user["client-certificate"], path.parent / user["client-key"])
    return Access(
        cluster["server"].rstrip("/"),
        ca=ca,
        token=user.get("token"),
        token_file=path.parent / user["tokenFile"] if "tokenFile" in user else None,
        certificate=certificate,
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
    )


def _data(part: dict[str, Any], name: str, path: Path) -> str | None:
    if f"{name}-data" in part:
        return base64.b64decode(part[f"{name}-data"]).decode()
    return (path.parent / part[name]).read_text() if name in part else None
