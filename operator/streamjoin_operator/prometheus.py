"""Asks Prometheus, by its HTTP API, for the metrics of one join.

One instant query for the last minutes of all series that are needed: it brings the raw points with the times of their scrapes, so that the
age of each is known and what is of one scrape can be told from what is not. An expression such as ``rate`` would hide both.

Always holds: nothing blocks the loop, each question ends within its timeout, and none raises: an answer that cannot be used is
:class:`Distrusted`. The token goes to the server of the operator's own settings and to no other, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp

from streamjoin_operator.answers import read_at_most
from streamjoin_operator.measurement import GENERATION, NAMES, PREFIX, Distrusted, Series
from streamjoin_operator.missing import Found
from streamjoin_operator.reasons import Reason
from streamjoin_operator.settings import Settings

LARGEST_ANSWER = 32 << 20
"""1,024 workers, scraped every five seconds, take 3 MB."""
LARGE_ANSWER = 1 << 18
"""To read a larger one takes the loop longer than other joins should wait."""
MOST_TEXT = 300
UP_SECONDS = 120
"""So long after its last scrape a pod is still one that is scraped."""


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
        found = await self._read(url.rstrip("/"), _query(self._settings.prometheus_namespace_label, namespace, name, seconds))
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
            request = self._session.get(
                f"{url}/api/v1/query", params={"query": query}, headers=headers, ssl=tls, allow_redirects=False
            )
            async with request as answer:
                data = await read_at_most(answer, LARGEST_ANSWER)
                status, location = answer.status, answer.headers.get("Location", "")
            if len(data) < LARGE_ANSWER:
                return _series(status, location, data)
            return await asyncio.to_thread(_series, status, location, data)
        except TimeoutError:
            return Distrusted(Reason.PrometheusSlow, f"{url} does not answer within {self._settings.prometheus_timeout_seconds:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Distrusted(Reason.PrometheusUnreachable, f"{url}: {type(error).__name__}: {error}"[:MOST_TEXT])

    def _authorization(self, url: str) -> dict[str, str]:
        settings = self._settings
        if not settings.prometheus_token_file or _origin(url) != _origin(settings.prometheus_url):
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


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts: SplitResult = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _series(status: int, location: str, data: bytes) -> list[Series] | Distrusted:
    """What an answer says."""
    if status in (401, 403):
        return Distrusted(Reason.PrometheusDenied, f"it answers {status}; see the token (STREAMJOIN_PROMETHEUS_TOKEN_FILE)")
    if 300 <= status < 400:
        return Distrusted(Reason.PrometheusUnusable, f"it sends us on to {location}; give that address"[:MOST_TEXT])
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    if status != 200:
        said = body.get("error", "") if isinstance(body, dict) else ""
        return Distrusted(Reason.PrometheusFailed, f"it answers {status}{f': {said}' if said else ''}"[:MOST_TEXT])
    try:
        return _parsed(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Distrusted(Reason.PrometheusUnusable, f"its answer is not that of a Prometheus ({type(error).__name__})")


def _parsed(body: Any) -> list[Series] | Distrusted:
    if body["status"] != "success":
        return Distrusted(Reason.PrometheusFailed, f"{body.get('errorType')}: {body.get('error')}"[:MOST_TEXT])
    if body.get("warnings") or body.get("isPartial"):
        # Thanos, Mimir and VictoriaMetrics answer with what they could reach.
        said = "; ".join(map(str, body.get("warnings") or ["it is partial"]))
        return Distrusted(Reason.PrometheusUnusable, f"its answer is not whole: {said}"[:MOST_TEXT])
    if body["data"]["resultType"] != "matrix":
        raise ValueError(body["data"]["resultType"])
    found = []
    for one in body["data"]["result"]:
        labels = {str(label): str(value) for label, value in one["metric"].items()}
        labels["__name__"] = labels["__name__"].removeprefix(PREFIX)
        found.append(Series(labels, tuple((float(at), float(value)) for at, value in one["values"])))
    return found
