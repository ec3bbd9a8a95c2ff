"""What a driver says of itself: its plan API and its metrics, read over HTTP with the token.

Always holds: reading has a deadline and never raises: an answer that cannot be used is a Report that says why, in our own words and without
a word of the answer (``answers``). No redirect is followed, for the token is the driver's alone.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from streamjoin_operator.answers import failure, read_at_most
from streamjoin_operator.measurement import (
    ACCEPTED,
    CAPACITY,
    COMPLETENESS,
    GENERATION,
    LAG,
    REJECTED,
    REPLAYED,
    SHED,
    SHED_RATIO,
    TAU,
    WOULD_SHED_RATIO,
    Doubt,
    check_plan,
    checked_tau,
    exposition,
)

TIMEOUT_SECONDS = 5.0
CONNECT_SECONDS = 3.0
READ_SECONDS = 8.0
"""For all that is read of a driver at a time."""
LARGEST_ANSWER = 8 << 20
REFUSED = (400, 403, 422)
"""So the plan API answers to a plan that cannot be."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One scrape of the driver's metrics, all of one commit."""

    generation: int
    utilization: dict[int, float]
    """tau by task."""
    shed: dict[int, float]
    counts: dict[str, tuple[float, float]]
    """By stream: tuples shed and accepted so far."""
    would_shed: dict[int, float] = field(default_factory=dict)
    """As ``shed``, where that is only recommended."""
    completeness: dict[str, dict[str, float]] = field(default_factory=dict)
    """By join, of its results of the last hour: the estimate of the share that was found, and between what it is (low, high)."""
    dead_letters: dict[str, int] = field(default_factory=dict)
    """By stream, records that were rejected so far, without those that were read again."""
    lag: dict[str, float] = field(default_factory=dict)
    """By stream, seconds by which its watermark is behind a tuple of now."""
    capacity: float | None = None
    """In bytes, by which it plans; None: in tuples, or it does not say."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came back."""

    health: dict[str, Any] = field(default_factory=dict)
    """``GET /v1/health``; empty where there was no usable answer."""
    plan: dict[str, Any] = field(default_factory=dict)
    """``GET /v1/plan``; empty before the first plan."""
    measured: Measured | None = None
    text: str = ""
    """``GET /metrics``."""
    problem: str | None = None
    """Why the driver cannot be spoken to."""
    metrics_problem: str | None = None
    """Why its measurements are not to be trusted."""
    unauthorized: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """To a plan that was put."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What is answered about a savepoint."""

    status: int
    """Of HTTP; 0: there was no answer that could be used."""
    said: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


class DriverClient:
    """One session for all drivers. To be made and closed within the event loop."""

    def __init__(self) -> None:
        # Without a limit, or those that never answer would hold the connections that others wait for; the queue bounds how many are asked.
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, sock_connect=CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))

    async def close(self) -> None:
        await self._session.close()

    async def read(self, url: str, token: str) -> Report:
        """See the module."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await self._read(url, token)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            return Report(problem=_problem(url, error))

    async def _read(self, url: str, token: str) -> Report:
        """Raises what asking does."""
        status, health = await self._json(url, "/v1/health", token)
        if status == 401:
            return Report(problem="it refuses the token", unauthorized=True)
        if not health or "state" not in health:
            return Report(problem=f"/v1/health answers {status}, and not as a driver does")
        status, plan = await self._json(url, "/v1/plan", token)
        if status == 503:
            return Report(health=health, metrics_problem="there is no plan yet")
        if status != 200 or "generation" not in plan:
            return Report(health=health, metrics_problem=f"/v1/plan answers {status}")
        status, text = await self._text(url, "/metrics", token)
        text = text if status == 200 else ""
        measured = measure(text)
        return Report(health=health, plan=plan, measured=measured, text=text, metrics_problem=distrust(measured, plan))

    async def statistics(self, url: str, token: str) -> dict[str, Any] | None:
        """``GET /v1/statistics``; None where there is no usable answer."""
        try:
            status, found = await self._json(url, "/v1/statistics", token)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None
        return found if status == 200 else None

    async def put(self, url: str, token: str, wish: dict[str, Any]) -> Answered:
        """Ask for a plan. Status 0: no answer. Why it is refused is said in the driver's words, and nothing else that is answered."""
        try:
            headers = {"Authorization": f"Bearer {token}"}
            async with self._session.put(f"{url}/v1/plan", json=wish, headers=headers, allow_redirects=False) as answer:
                data = await read_at_most(answer, LARGEST_ANSWER, "/v1/plan")
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            return Answered(0, failure(error))
        if answer.status not in REFUSED:
            return Answered(answer.status, "")
        try:
            return Answered(answer.status, str(json.loads(data)["error"]))
        except (ValueError, KeyError, TypeError):
            return Answered(answer.status, f"/v1/plan answers {answer.status}, and not as a driver does")

    async def savepoint(self, method: str, url: str, token: str, name: str) -> Kept:
        """Make, read or delete a savepoint. The message of a refusal is the driver's; of all else it is ours."""
        path = f"/v1/savepoints/{name}"
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            body = b"" if method == "PUT" else None
            async with self._session.request(method, url + path, data=body, headers=headers, allow_redirects=False) as answer:
                data = await read_at_most(answer, LARGEST_ANSWER, path)
            said = json.loads(data)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            return Kept(0, problem=failure(error))
        if not isinstance(said, dict) or ("error" not in said and "state" not in said):
            return Kept(0, problem=f"{path} answers {answer.status}, and not as a driver does")
        return Kept(answer.status, said, str(said.get("error", "")))

    async def _json(self, url: str, path: str, token: str) -> tuple[int, dict[str, Any]]:
        status, text = await self._text(url, path, token)
        value = json.loads(text) if text[:1] == "{" else {}
        return status, value if isinstance(value, dict) else {}

    async def _text(self, url: str, path: str, token: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"}
        async with self._session.get(url + path, headers=headers, allow_redirects=False) as answer:
            data = await read_at_most(answer, LARGEST_ANSWER, path)
            return answer.status, data.decode("utf-8", "replace")


def _problem(url: str, error: Exception) -> str:
    """Why there was no answer, and where to look."""
    if isinstance(error, aiohttp.ServerTimeoutError):
        return f"{url} cannot be connected to: nothing answers within {CONNECT_SECONDS:.0f} s; does a NetworkPolicy keep the operator out?"
    if isinstance(error, TimeoutError):
        return f"{url} takes connections and gives no answer within {TIMEOUT_SECONDS:.0f} s: the driver hangs, or lacks processor time"
    return f"{url}: {failure(error)}"


def measure(text: str) -> Measured | None:
    """The metrics of one exposition; None where it has no plan."""
    generation, capacity = math.nan, None
    workers: dict[str, dict[int, float]] = {TAU: {}, SHED_RATIO: {}, WOULD_SHED_RATIO: {}}
    streams: dict[str, dict[str, float]] = {SHED: {}, ACCEPTED: {}, REJECTED: {}, REPLAYED: {}, LAG: {}}
    completeness: dict[str, dict[str, float]] = {}
    for pairs, value in exposition(text):
        labels = dict(pairs)
        name = labels["__name__"]
        if name == GENERATION:
            generation = value
        elif name == CAPACITY and 0 < value < math.inf:
            capacity = value
        elif name in workers and labels.get("task", "").isdigit():
            workers[name][int(labels["task"])] = value
        elif name == COMPLETENESS and labels.get("over") == "1h" and math.isfinite(value):
            completeness.setdefault(labels.get("join", ""), {})[labels.get("bound", "")] = value
        elif name in streams and "stream" in labels:
            streams[name][labels["stream"]] = value
    if not math.isfinite(generation):
        return None
    shed, accepted = streams[SHED], streams[ACCEPTED]
    counts = {stream: (shed.get(stream, 0.0), accepted.get(stream, 0.0)) for stream in shed | accepted}
    again = streams[REPLAYED]
    letters = {stream: int(left) for stream, value in streams[REJECTED].items() if (left := value - again.get(stream, 0.0)) >= 1}
    lag = {stream: seconds for stream, seconds in streams[LAG].items() if math.isfinite(seconds)}
    of_streams = (completeness, letters, lag)
    return Measured(int(generation), workers[TAU], workers[SHED_RATIO], counts, workers[WOULD_SHED_RATIO], *of_streams, capacity)


def distrust(measured: Measured | None, plan: dict[str, Any]) -> str | None:
    """Why measurements are incomplete, not finite, or of another plan than the one that runs; None where they can be trusted."""
    if measured is None:
        return "the metrics name no plan"
    try:
        check_plan(measured.generation, plan["generation"])
        checked_tau({str(task): tau for task, tau in measured.utilization.items()}, int(plan.get("workers", 0)))
    except Doubt as doubt:
        return doubt.found.text
    return None
