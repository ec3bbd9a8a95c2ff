"""Asks Prometheus, by its HTTP API, for the metrics of one join.

One instant query for the last minutes of all series that are needed: it brings the raw points with the times of their scrapes, so that the
age of each is known and what is of one scrape can be told from what is not. An expression such as ``rate`` would hide both.

Always holds: nothing blocks the loop, each question ends within its timeout, and none raises: an answer that cannot be used is
:class:`Distrusted`. Nothing is sent to a server that the operator's own settings do not name, the token goes to that of
``prometheus_url`` and to no other, and no redirect is followed. Of an answer that cannot be used only its status is told (``answers``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from streamjoin_operator.answers import failure, read_at_most
from streamjoin_operator.measurement import GENERATION, NAMES, PREFIX, Distrusted, Series
from streamjoin_operator.missing import Found
from streamjoin_operator.reasons import Reason
from streamjoin_operator.settings import Settings

LARGEST_ANSWER = 64 << 20
"""10,000 workers, scraped every five seconds, take 30 MB."""
LARGE_ANSWER = 1 << 18
"""To read a larger one takes the loop longer than other joins should wait."""
UP_SECONDS = 120
"""So long after its last scrape a pod is still one that is scraped."""
KNOWN_ERRORS = ("timeout", "canceled", "execution", "bad_data", "internal", "unavailable", "not_found", "not_acceptable")
"""What Prometheus' API gives as ``errorType``; any other word may be anybody's secret."""

log = logging.getLogger(__name__)


class PrometheusClient:
    """One session for all. To be made and closed within the event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        told: Callable[[Reason | None], None] = lambda reason: None,
    ) -> None:
        """``told`` hears how each question ended: None is a usable answer."""
        self._settings, self._told = settings, told
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=settings.prometheus_timeout_seconds), connector=aiohttp.TCPConnector(limit=32)
        )
        self._tls: tuple[float, ssl.SSLContext] | None = None
        """The context, and when its file was written."""

    async def close(self) -> None:
        await self._session.close()

    async def read(self, url: str, namespace: str, name: str, seconds: float) -> list[Series] | Distrusted:
        """The points of the last ``seconds`` of all series of the join ``name`` in ``namespace``. ``url``: of the server."""
        query = _query(self._settings.prometheus_namespace_label, namespace, name, seconds)
        found = forbidden(url, self._settings) or await self._read(url.rstrip("/"), query)
        self._told(found.reason if isinstance(found, Distrusted) else None)
        return found

    async def search(self, url: str, name: str, pods: str) -> Found | None:
        """What else it has that may be of a join whose series it has not; ``pods``: how the names of its driver's begin."""
        plans = await self._read(url.rstrip("/"), f'{PREFIX}{GENERATION}{{name="{name}"}}[1h]')
        if isinstance(plans, Distrusted):
            return None
        targets = await self._read(url.rstrip("/"), f'up{{pod=~"{pods}-.+"}}[{UP_SECONDS}s]')
        return Found(plans, [] if isinstance(targets, Distrusted) else targets)

    async def _read(self, url: str, query: str) -> list[Series] | Distrusted:
        try:
            headers = {"Accept": "application/json", **self._authorization(url)}
            tls: ssl.SSLContext | bool = self._context() if url.startswith("https:") else True
        except OSError as error:
            return Distrusted(Reason.PrometheusDenied, f"{error.filename}: {error.strerror or error}")
        try:
            request = self._session.get(f"{url}/api/v1/query", params={"query": query}, headers=headers, ssl=tls, allow_redirects=False)
            async with request as answer:
                data = await read_at_most(answer, LARGEST_ANSWER)
                status = answer.status
            if status != 200:
                log.debug("%s answers %d: %.300r", url, status, data)
            if len(data) < LARGE_ANSWER:
                return _series(status, data)
            return await asyncio.to_thread(_series, status, data)
        except TimeoutError:
            return Distrusted(Reason.PrometheusSlow, f"{url} does not answer within {self._settings.prometheus_timeout_seconds:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Distrusted(Reason.PrometheusUnreachable, f"{url}: {failure(error)}")

    def _authorization(self, url: str) -> dict[str, str]:
        settings = self._settings
        if not settings.prometheus_token_file or not settings.prometheus_url or _origin(URL(url)) != _origin(URL(settings.prometheus_url)):
            return {}
        return {"Authorization": f"Bearer {Path(settings.prometheus_token_file).read_text().strip()}"}

    def _context(self) -> ssl.SSLContext:
        """Made anew when the file of the certificates is another."""
        settings = self._settings
        path = settings.prometheus_ca_file
        written = Path(path).stat().st_mtime if path else 0.0
        if self._tls is None or self._tls[0] != written:
            context = ssl.create_default_context(cafile=path or None)
            if settings.prometheus_insecure:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._tls = (written, context)
        return self._tls[1]


def _query(namespace_label: str, namespace: str, name: str, seconds: float) -> str:
    # Names in Kubernetes have neither quotes nor backslashes.
    return f'{{__name__=~"{PREFIX}({"|".join(NAMES)})",{namespace_label}="{namespace}",name="{name}"}}[{math.ceil(seconds)}s]'


def forbidden(url: str, settings: Settings) -> Distrusted | None:
    """Why nothing may be sent to a resource's address: it is neither the operator's own nor below one that is allowed; None: it may.

    Addresses are compared as aiohttp reads them, so that no other server is asked than the one that was compared.
    """
    try:
        wanted = URL(url)
        is_own = url.rstrip("/") == settings.prometheus_url.rstrip("/")
        if is_own or any(_is_below(wanted, URL(one)) for one in settings.prometheus_allowed_urls):
            return None
    except ValueError:  # a port beyond 65535
        pass
    wrong = f"{url} is neither prometheus.url of the operator's chart nor below one of its prometheus.allowedUrls"
    return Distrusted(Reason.PrometheusNotAllowed, f"spec.scaling.prometheus.url: {wrong}; have it added there, or remove the field")


def _is_below(url: URL, allowed: URL) -> bool:
    path = allowed.path.rstrip("/")
    return _origin(url) == _origin(allowed) and (url.path.rstrip("/") + "/").startswith(path + "/")


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    """With the port, also where the address leaves it out."""
    return url.scheme, url.host, url.port


def _series(status: int, data: bytes) -> list[Series] | Distrusted:
    """What an answer says."""
    if status in (401, 403):
        return Distrusted(Reason.PrometheusDenied, f"it answers {status}; see the token (STREAMJOIN_PROMETHEUS_TOKEN_FILE)")
    if 300 <= status < 400:
        return Distrusted(Reason.PrometheusUnusable, f"it answers {status} and sends us on; give the address of Prometheus itself")
    if status != 200:
        return Distrusted(Reason.PrometheusFailed, f"it answers {status}")
    try:
        return _parsed(json.loads(data))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Distrusted(Reason.PrometheusUnusable, f"its answer is not that of a Prometheus ({type(error).__name__})")


def _parsed(body: Any) -> list[Series] | Distrusted:
    if body["status"] != "success":
        kind = body.get("errorType")
        return Distrusted(Reason.PrometheusFailed, f"it answers with an error{f' ({kind})' if kind in KNOWN_ERRORS else ''}")
    if body.get("warnings") or body.get("isPartial"):
        # Thanos, Mimir and VictoriaMetrics answer with what they could reach.
        return Distrusted(Reason.PrometheusUnusable, "its answer is not whole: it has warnings")
    if body["data"]["resultType"] != "matrix":
        raise ValueError(body["data"]["resultType"])
    found = []
    for one in body["data"]["result"]:
        labels = {str(label): str(value) for label, value in one["metric"].items()}
        labels["__name__"] = labels["__name__"].removeprefix(PREFIX)
        found.append(Series(labels, tuple((float(at), float(value)) for at, value in one["values"])))
    return found
