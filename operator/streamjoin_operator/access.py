"""Where the API server is and who we are: from the pod's service account, else from a kubeconfig, as the ``kubernetes`` package finds them.

kopf and our own client log in with the same facts. A service account's token is read anew every minute, because Kubernetes replaces it.

Known limits: where a kubeconfig's user logs in by a program, the loop waits for that program when the token has expired; pods have none.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import kopf
import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class AccessError(RuntimeError):
    """No way to the API server; the text says what was looked for."""


class Access:
    """How to reach the API server."""

    def __init__(self, load: Callable[[], Configuration]) -> None:
        """``load`` finds it out, and again when the API server has refused what it found; it raises AccessError."""
        self._load = load
        self._found = load()
        self.server: str = self._found.host.rstrip("/")
        self.ca: str | None = self._found.ssl_ca_cert
        """A file of authorities; None: the machine's own."""

    def bearer(self) -> str | None:
        """The token of the moment."""
        # The package has called it by either name.
        token: str | None = self._found.get_api_key_with_prefix("BearerToken", "authorization")
        return None if token is None else token.split(None, 1)[-1].strip()

    def forget(self) -> None:
        """The API server refused the token: read it anew, from files or a program. Raises AccessError, and keeps what it had."""
        self._found = self._load()

    def ssl_context(self) -> ssl.SSLContext | bool:
        if not self.server.startswith("https:"):
            return False
        context = ssl.create_default_context(cafile=self.ca)
        if not self._found.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self._found.cert_file is not None:
            context.load_cert_chain(self._found.cert_file, self._found.key_file)
        return context

    def connection(self) -> kopf.ConnectionInfo:
        """The same for kopf."""
        token = self.bearer()
        return kopf.ConnectionInfo(
            server=self.server,
            ca_path=self.ca,
            insecure=not self._found.verify_ssl or None,
            scheme=None if token is None else "Bearer",
            token=token,
            certificate_path=self._found.cert_file,
            private_key_path=self._found.key_file,
        )


def find() -> Access:
    """The pod's own account, else the current context of ``$KUBECONFIG`` or ``~/.kube/config``. Raises AccessError."""
    if os.environ.get("KUBERNETES_SERVICE_HOST") and TOKEN.exists():
        return _access("the pod's service account", load_incluster_config)
    path = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    if not path.exists():
        raise AccessError(f"no service account at {TOKEN} and no kubeconfig at {path}; run in a pod, or set KUBECONFIG")
    return from_kubeconfig(path)


def from_kubeconfig(path: Path) -> Access:
    """The current context of a kubeconfig, whichever way its user logs in. Raises AccessError."""
    return _access(str(path), partial(load_kube_config, config_file=str(path), persist_config=False))


def _access(where: str, load: Callable[..., Any]) -> Access:
    def loaded() -> Configuration:
        configuration = Configuration()
        try:
            load(client_configuration=configuration)
        except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError) as error:
            raise AccessError(f"{where}: {error}") from error
        return configuration

    return Access(loaded)
