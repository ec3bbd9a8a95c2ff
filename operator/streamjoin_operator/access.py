"""Where the API server is and who we are: from the pod's service account, else from a kubeconfig, as the ``kubernetes`` package reads it.

kopf and our own client log in with the same facts. A service account's token is read anew every minute, because Kubernetes replaces it. In
a pod that package is not loaded: it is large, and the operator's image does without it.

Known limits: where a kubeconfig's user logs in by a program, the loop waits for that program when the token has expired; pods have none.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import kopf
import yaml

TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Of a pod's service account; the certificates of the API server's authority are beside it."""
TOKEN_SECONDS = 60.0


class AccessError(RuntimeError):
    """No way to the API server; the text says what was looked for."""


@dataclass(frozen=True)
class Login:
    """Where the API server is, and who we are to it."""

    server: str
    ca: str | None = None
    """A file of authorities; None: the machine's own."""
    verifies: bool = True
    certificate: str | None = None
    """Files of a client's certificate and its key; None: the token alone says who we are."""
    key: str | None = None
    token: Callable[[], str | None] = lambda: None
    """The bearer token of the moment."""


class Access:
    """How to reach the API server."""

    def __init__(self, load: Callable[[], Login]) -> None:
        """``load`` finds it out, and again when the API server has refused what it found; it raises AccessError."""
        self._load = load
        self._found = load()
        self.server: str = self._found.server.rstrip("/")
        self.ca: str | None = self._found.ca
        """A file of authorities; None: the machine's own."""

    def bearer(self) -> str | None:
        """The token of the moment."""
        return self._found.token()

    def forget(self) -> None:
        """The API server refused the token: read it anew, from files or a program. Raises AccessError, and keeps what it had."""
        self._found = self._load()

    def ssl_context(self) -> ssl.SSLContext | bool:
        if not self.server.startswith("https:"):
            return False
        context = ssl.create_default_context(cafile=self.ca)
        if not self._found.verifies:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self._found.certificate is not None:
            context.load_cert_chain(self._found.certificate, self._found.key)
        return context

    def connection(self) -> kopf.ConnectionInfo:
        """The same for kopf."""
        token = self.bearer()
        return kopf.ConnectionInfo(
            server=self.server,
            ca_path=self.ca,
            insecure=not self._found.verifies or None,
            scheme=None if token is None else "Bearer",
            token=token,
            certificate_path=self._found.certificate,
            private_key_path=self._found.key,
        )


def find() -> Access:
    """The pod's own account, else the current context of ``$KUBECONFIG`` or ``~/.kube/config``. Raises AccessError."""
    if os.environ.get("KUBERNETES_SERVICE_HOST") and TOKEN.exists():
        return Access(_of_pod)
    path = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    if not path.exists():
        raise AccessError(f"no service account at {TOKEN} and no kubeconfig at {path}; run in a pod, or set KUBECONFIG")
    return from_kubeconfig(path)


def from_kubeconfig(path: Path) -> Access:
    """The current context of a kubeconfig, whichever way its user logs in. Raises AccessError."""
    return Access(lambda: _of_kubeconfig(path))


def _of_pod() -> Login:
    """As https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/ says."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    authority = TOKEN.with_name("ca.crt")
    for path in (TOKEN, authority):
        try:
            content = path.read_text().strip()
        except OSError as error:
            raise AccessError(f"the pod's service account: {path}: {error.strerror}") from error
        if not content:
            raise AccessError(f"the pod's service account: {path}: is empty")
    return Login(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", str(authority), token=_RenewedToken(TOKEN))


class _RenewedToken:
    """A token in a file that Kubernetes replaces long before it expires."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = path.read_text().strip()
        self._read_at = time.monotonic()

    def __call__(self) -> str:
        if time.monotonic() - self._read_at >= TOKEN_SECONDS:
            with contextlib.suppress(OSError):  # a token that is gone goes on until it is refused, which reads all anew and says why
                self._token = self._path.read_text().strip() or self._token
            self._read_at = time.monotonic()
        return self._token


def _of_kubeconfig(path: Path) -> Login:
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException, load_kube_config
    except ImportError as error:
        install = "pip install 'streamjoin[operator,kubeconfig]', and in a clone make setup-kubeconfig"
        remedy = f"run in a pod with a service account, or outside of the image after {install}"
        raise AccessError(f"{path}: kubeconfigs are read by the Python package kubernetes, which is not here; {remedy}") from error
    found = Configuration()
    load: Callable[..., None] = load_kube_config
    try:
        load(config_file=str(path), persist_config=False, client_configuration=found)
    except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError) as error:
        raise AccessError(f"{path}: {error}") from error

    def bearer() -> str | None:
        # The package has called it by either name.
        token: str | None = found.get_api_key_with_prefix("BearerToken", "authorization")
        return None if token is None else token.split(None, 1)[-1].strip()

    return Login(found.host, found.ssl_ca_cert, found.verify_ssl, found.cert_file, found.key_file, bearer)
