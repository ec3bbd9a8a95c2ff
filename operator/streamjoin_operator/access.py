"""Where the API server is and who we are, as the package ``kubernetes`` reads it: from the pod's service account, else from kubeconfigs.

kopf and our own client log in by the same configuration. The package reads a service account's token anew every minute, and asks a program
that logs in again before its token expires; the loop goes on meanwhile.

Known limits: a client certificate is read once, and a program that logs in is not told of the cluster (``provideClusterInfo``). A proxy is
the kubeconfig's ``proxy-url``; the environment names none.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import kopf
import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, incluster_config, load_incluster_config, load_kube_config

TOKEN = "BearerToken"  # noqa: S105 - the package's name for it
CONNECTIONS = 32
"""At most so many are open at a time."""


class AccessError(RuntimeError):
    """No way to the API server; the text says what was looked for."""


@dataclass(frozen=True)
class Access:
    """How to reach the API server."""

    load: Callable[[], Awaitable[Configuration]]
    """Finds it out; raises AccessError."""
    configuration: Configuration
    """What it found; the same object for all clients."""

    async def renew(self) -> None:
        """The API server refused who we are: read it anew, from files or a program. Raises AccessError, and keeps what it had."""
        found = await self.load()
        for name in ("api_key", "refresh_api_key_hook", "cert_file", "key_file"):
            setattr(self.configuration, name, getattr(found, name))

    async def connection(self) -> kopf.ConnectionInfo:
        """The same for kopf."""
        way = self.configuration
        scheme, _, token = (await way.get_api_key_with_prefix(TOKEN) or "").partition(" ")
        return kopf.ConnectionInfo(
            server=way.host,
            ca_path=way.ssl_ca_cert,
            insecure=not way.verify_ssl or None,
            scheme=scheme or None,
            token=token or None,
            certificate_path=way.cert_file,
            private_key_path=way.key_file,
            proxy_url=way.proxy,
        )


async def find() -> Access:
    """The pod's own account, else the current context of ``$KUBECONFIG`` or ``~/.kube/config``. Raises AccessError."""
    token = incluster_config.SERVICE_TOKEN_FILENAME
    if os.environ.get("KUBERNETES_SERVICE_HOST") and Path(token).exists():
        return Access(_of_pod, await _of_pod())
    paths = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not any(path and Path(path).exists() for path in paths.split(os.pathsep)):
        raise AccessError(f"no service account at {token} and no kubeconfig at {paths}; run in a pod, or set KUBECONFIG")
    return await from_kubeconfig(paths)


async def from_kubeconfig(paths: str | Path) -> Access:
    """The current context of kubeconfigs, whichever way its user logs in. Raises AccessError."""
    load = partial(_of_kubeconfig, str(paths))
    return Access(load, await load())


def _configuration() -> Configuration:
    # The environment's proxies, and its .netrc, would be looked for at every request.
    return Configuration(connection_pool_maxsize=CONNECTIONS, client_session_kwargs={"trust_env": False})


async def _of_pod() -> Configuration:
    found = _configuration()
    try:
        load_incluster_config(found)
    except (ConfigException, OSError) as error:
        raise AccessError(f"the pod's service account: {error}") from error
    return found


async def _of_kubeconfig(paths: str) -> Configuration:
    found = _configuration()
    try:
        loader = await load_kube_config(paths, client_configuration=found, persist_config=False)
    except (ConfigException, yaml.YAMLError, aiohttp.ClientError, OSError, ValueError, TypeError) as error:
        raise AccessError(f"{paths}: {error}") from error
    found.api_key = {name: key.strip() for name, key in found.api_key.items()}  # of a file that ends with a newline
    if hasattr(loader, "exec_plugin_expiry"):
        alone = asyncio.Lock()

        async def renew(configuration: Configuration) -> None:
            async with alone:
                await loader.load_from_exec_plugin()  # which does nothing before the token is about to expire
            configuration.api_key[TOKEN] = loader.token

        found.refresh_api_key_hook = renew  # type: ignore[assignment]  # the package says None, and calls it
    return found
