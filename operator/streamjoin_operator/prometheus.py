"""Asks Prometheus, by its HTTP API, for the metrics of one join.

One instant query for the last minutes of all series that are needed: it brings the raw points with the times of their scrapes, so that the
age of each is known and what is of one scrape can be told from what is not. An expression such as ``rate`` would hide both.

Always holds: nothing blocks the loop, each question ends within its timeout, and none raises: an answer that cannot be used is
:class:`Distrusted`. Nothing is sent to a server that the operator's own settings do not name, the operator's own login goes to that of
``prometheus_url`` and to no other, and no redirect is followed. Of an answer that cannot be used only its status is told (``answers``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import aiohttp
from yarl import URL

from streamjoin.manifest.prometheus import Prometheus
from streamjoin_operator.answers import failure, read_at_most
from streamjoin_operator.login import Login, LoginError, anonymous, of_join, of_operator
from streamjoin_operator.measurement import GENERATION, NAMES, PREFIX, Distrusted, Series
from streamjoin_operator.missing import Found
from streamjoin_operator.reasons import Reason
from streamjoin_operator.settings import Settings

LARGEST_ANSWER = 64 << 20
"""10,000 workers, scraped every five seconds, take 30 MB."""
LARGE_ANSWER = 1 << 18
"""To read a larger one takes the loop longer than other joins should wait."""
MOST_CONTEXTS = 64
NONE = "none"
"""Instead of the label of pods: series are not chosen by pods."""
LOGIN = "how the operator logs in: prometheus of its chart, or spec.scaling.prometheus where that says how"
UP_SECONDS = 120
"""So long after its last scrape a pod is still one that is scraped."""
KNOWN_ERRORS = ("timeout", "canceled", "execution", "bad_data", "internal", "unavailable", "not_found", "not_acceptable")
"""What Prometheus' API gives as ``errorType``; any other word may be anybody's secret."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """Which server is asked, and about which join."""

    url: str
    namespace: str
    name: str
    base: str
    """How the names of its driver's pods begin, before a dash."""
    pods: tuple[str, ...] = ()
    """Its driver's; none: they are not known, and any with such a name will do."""
    login: Prometheus | None = None
    """How the join says that the server is logged in to; None: it does not."""
    secrets: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict, repr=False)
    """Those of its namespace that ``login`` names, by name; None: there is none."""


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
        self._contexts: dict[Login, ssl.SSLContext] = {}
        """By login, as far as TLS has to do with it; the last ones."""

    async def close(self) -> None:
        await self._session.close()

    async def read(self, question: Question, seconds: float) -> list[Series] | Distrusted:
        """The points of the last ``seconds`` of all series of the join."""
        found = forbidden(question.url, self._settings) or await self._read(question, _query(self._settings, question, seconds))
        self._told(found.reason if isinstance(found, Distrusted) else None)
        return found

    async def search(self, question: Question) -> Found | None:
        """What else it has that may be of a join whose series it has not."""
        plans = await self._read(question, f'{PREFIX}{GENERATION}{{name="{question.name}"}}[1h]')
        if isinstance(plans, Distrusted):
            return None
        targets = await self._read(question, f'up{{pod=~"{question.base}-.+"}}[{UP_SECONDS}s]')
        return Found(plans, [] if isinstance(targets, Distrusted) else targets)

    async def _read(self, question: Question, query: str) -> list[Series] | Distrusted:
        url = question.url.rstrip("/")
        try:
            login = self._login(question)
            tls: ssl.SSLContext | bool = self._context(login) if url.startswith("https:") else True
        except OSError as error:
            return Distrusted(Reason.PrometheusDenied, f"{error.filename}: {error.strerror or error}")
        except UnicodeDecodeError:
            return Distrusted(Reason.PrometheusDenied, "a file of the login is not text; give it anew")
        except LoginError as error:
            return Distrusted(Reason.PrometheusDenied, str(error))
        proxy = proxy_of(url)
        try:
            request = self._session.get(
                f"{url}/api/v1/query",
                params=[*login.parameters, ("query", query)],
                headers={**dict(login.headers), "Accept": "application/json"},
                ssl=tls,
                proxy=proxy,
                allow_redirects=False,
            )
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
            by = "" if proxy is None else f" (by the proxy {URL(proxy).host})"
            return Distrusted(Reason.PrometheusUnreachable, f"{url}{by}: {failure(error)}")

    def _login(self, question: Question) -> Login:
        """The join's own where it says how; the operator's for its own server, and for no other."""
        settings = self._settings
        if question.login is not None and question.login.has_login:
            return of_join(question.login, question.namespace, question.secrets, anonymous(settings))
        return of_operator(settings) if _is_own(question.url, settings) else anonymous(settings)

    def _context(self, login: Login) -> ssl.SSLContext:
        """Made anew when a certificate is another."""
        key = replace(login, headers=(), parameters=())
        context = self._contexts.pop(key, None) or key.context()
        self._contexts[key] = context
        while len(self._contexts) > MOST_CONTEXTS:
            del self._contexts[next(iter(self._contexts))]
        return context


def proxy_of(url: str) -> str | None:
    """The proxy that HTTP_PROXY and HTTPS_PROXY name, unless NO_PROXY names the server; None: there is none."""
    asked = URL(url)
    if asked.host is None or proxy_bypass_environment(f"{asked.host}:{asked.port}"):
        return None
    return getproxies_environment().get(asked.scheme)


def _query(settings: Settings, question: Question, seconds: float) -> str:
    # Names in Kubernetes have neither quotes nor backslashes; a dot of theirs is any character, which no pod of another join has there.
    chosen = [
        f'__name__=~"{PREFIX}({"|".join(NAMES)})"',
        f'{settings.prometheus_namespace_label}="{question.namespace}"',
        f'name="{question.name}"',
    ]
    if settings.prometheus_pod_label != NONE:
        chosen.append(f'{settings.prometheus_pod_label}=~"{"|".join(question.pods) or f"{question.base}-.+"}"')
    return f"{{{','.join(chosen)}}}[{math.ceil(seconds)}s]"


def _is_own(url: str, settings: Settings) -> bool:
    return bool(settings.prometheus_url) and url.rstrip("/") == settings.prometheus_url.rstrip("/")


def forbidden(url: str, settings: Settings) -> Distrusted | None:
    """Why nothing may be sent to a resource's address: it is neither the operator's own nor below one that is allowed; None: it may.

    Addresses are compared as aiohttp reads them, so that no other server is asked than the one that was compared.
    """
    try:
        wanted = URL(url)
        if _is_own(url, settings) or any(_is_below(wanted, URL(one)) for one in settings.prometheus_allowed_urls):
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
        return Distrusted(Reason.PrometheusDenied, f"it answers {status}; see {LOGIN}")
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
