"""The sources from which ``streamjoin trace`` records a join's traffic: a Prometheus, the JSON lines of a run, or the metrics of a running
join.

Each gives the same observations (``simulation.recording``). Always holds: whatever is missing is named, with what to do about it: by a
:class:`Failure` where no trace can be made without it, else as a note.
"""

from __future__ import annotations

import http.client
import itertools
import json
import math
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from streamjoin.cli.exits import Exit, Failure
from streamjoin.cli.remote import exchanged
from streamjoin.language.sides import SIDE_NAMES
from streamjoin.manifest.problem import listed
from streamjoin.simulation.recording import Observation, Pair

TIMEOUT_SECONDS = 30.0
MOST_POINTS = 10_000
"""Of a series in one answer; Prometheus refuses more than 11,000."""
LARGEST_ANSWER = 256 << 20

ACCEPTED, SHED, READ, WAITING = (
    f"streamjoin_{name}" for name in ("accepted_tuples_total", "shed_tuples_total", "input_records_total", "backlog_records")
)
UTILIZATION, GENERATION, SIDES = (f"streamjoin_{name}" for name in ("worker_utilization_ratio", "plan_generation", "stream_info"))
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Server:
    """An HTTP server, and the headers that show the token that it asks for."""

    url: str
    authorization: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str, parameters: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """The status and body of the answer. Raises OSError, ValueError and http.client.HTTPException."""
        query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
        headers = {"Accept": "*/*", **self.authorization}
        status, _, data = exchanged(self.url, "GET", path + query, headers, TIMEOUT_SECONDS, most=LARGEST_ANSWER)
        return status, data


# The JSON lines of a run.


def from_lines(text: str, name: str) -> list[Observation]:
    """What ``run --json`` has printed; ``name``: of the file. An epoch took what had come when it began. Raises Failure."""
    found: list[Observation] = []
    taken, read = [0.0, 0.0], [0.0, 0.0]
    lines = text.splitlines()
    streams: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if value["event"] != "epoch":
                continue
            streams = [stream["name"] for stream in value["streams"]]
            if len(streams) != 2:
                break
            for side, stream in enumerate(value["streams"]):
                taken[side] += stream["accepted"] + stream["shed"]
                read[side] += stream["input"]
            tau = [worker["utilization"] for worker in value["workers"]]
            found.append(
                Observation(
                    at=datetime.fromisoformat(value["startedAt"]).timestamp(),
                    taken=(taken[0], taken[1]),
                    read=(read[0], read[1]),
                    waiting=(float(value["streams"][0]["backlog"]), float(value["streams"][1]["backlog"])),
                    fullest=max(tau, default=None),
                    mean=sum(tau) / len(tau) if tau else None,
                    generation=value["generation"],
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and found and not text.endswith("\n"):
                break  # whoever ends a run at once cuts its last line
            what = f"{name}: line {number}: is no JSON line of a run ({type(error).__name__}: {error})"
            raise Failure(Exit.USAGE, f"{what}; give what streamjoin run --json prints on standard output") from error
    if streams and len(streams) != 2:
        raise Failure(Exit.USAGE, _not_two(name, streams))
    if len(found) < 2:
        epochs = f"{name}: has {len(found)} epochs; a trace needs at least two"
        raise Failure(Exit.USAGE, f"{epochs}: give what a longer streamjoin run --json prints on standard output")
    return found


def _not_two(where: str, streams: Sequence[str]) -> str:
    return f"{where}: the join has {len(streams)} streams ({listed(sorted(streams), 'and')}); a trace, as simulate reads it, is of two"


# A running join.


class Live:
    """Samples the metrics of a running join."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.found: list[Observation] = []
        self.missed = 0

    def sample(self, now: float) -> None:
        """Observe once. Raises Failure: as long as nothing was seen, whatever is wrong; later, what waiting does not mend."""
        try:
            status, body = self._server.get("/metrics")
            if status != http.client.OK:
                raise ValueError(f"it answers {status}")
            observation = self._observed(now, body.decode())
        except (OSError, ValueError, http.client.HTTPException) as error:
            if self.found:
                self.missed += 1
                return
            text = str(error) or type(error).__name__
            raise Failure(
                Exit.FAILED, f"{self._server.url}/metrics: {text}; give the address that streamjoin run --metrics-port prints"
            ) from error
        # Between two epochs there is nothing new; the counters are the last commit's.
        self.found.append(observation)

    def _observed(self, now: float, text: str) -> Observation:
        """Raises ValueError, and Failure."""
        from prometheus_client.parser import text_string_to_metric_families

        series: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
        sides = {labels["stream"]: labels["side"] for labels, _ in series.get(SIDES, [])}
        if len(sides) > 2:
            raise Failure(Exit.USAGE, _not_two(self._server.url, list(sides)))
        order = [next((stream for stream, side in sides.items() if side == name), None) for name in SIDE_NAMES]

        def pair(metric: str) -> Pair | None:
            by_stream = {labels["stream"]: value for labels, value in series.get(metric, [])}
            left, right = (by_stream.get(stream) if stream is not None else None for stream in order)
            return None if left is None or right is None else (left, right)

        accepted = pair(ACCEPTED)
        if accepted is None:
            missing = listed([metric for metric in (SIDES, ACCEPTED) if not series.get(metric)] or [ACCEPTED], "and")
            raise ValueError(f"{missing} missing; is it a StreamJoin driver, of version 0.1 or newer, that has begun its first epoch?")
        shed = pair(SHED) or (0.0, 0.0)
        tau = [value for _, value in series.get(UTILIZATION, [])]
        generation = series.get(GENERATION, [])
        return Observation(
            at=now,
            taken=(accepted[0] + shed[0], accepted[1] + shed[1]),
            read=pair(READ),
            waiting=pair(WAITING) or (0.0, 0.0),
            fullest=max(tau, default=None),
            mean=sum(tau) / len(tau) if tau else None,
            generation=int(generation[0][1]) if generation else None,
        )


# Prometheus.


@dataclass(frozen=True, slots=True)
class Asked:
    """Which join is looked for, and when. Times in seconds since 1970."""

    name: str
    namespace: str | None
    begin: float
    end: float
    step: float


class Prometheus:
    """The history of a join in a Prometheus, by range queries of its HTTP API."""

    def __init__(self, server: Server, asked: Asked) -> None:
        self._server, self._asked = server, asked
        labels = {"name": asked.name} | ({} if asked.namespace is None else {"namespace": asked.namespace})
        # PromQL's strings are escaped as JSON's are.
        self._selector = "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items()) + "}"

    def observations(self, note: Note) -> list[Observation]:
        """What it has of the join, a step apart, where it has something. ``note`` hears what is missing. Raises Failure."""
        asked = self._asked
        if asked.namespace is None:
            namespaces = {labels.get("namespace", "") for labels, _ in self._range(f"group by (namespace) ({ACCEPTED}{self._selector})")}
            if len(namespaces) > 1:
                several = listed(sorted(one or "(none)" for one in namespaces), "and")
                text = f"{self._server.url}: has joins of the name {asked.name} in {several}; choose one with --namespace"
                raise Failure(Exit.USAGE, text)
        accepted = self._by_stream(ACCEPTED)
        if not accepted:
            raise Failure(Exit.SOURCE, self._nothing())
        if len(accepted) != 2:
            raise Failure(Exit.USAGE, _not_two(self._server.url, list(accepted)))
        left, right = self._order(list(accepted))
        others = {metric: self._by_stream(metric) for metric in (SHED, READ, WAITING)}
        for metric, assumed in ((SHED, "nothing is taken to have been shed"), (WAITING, "nothing is taken to have waited")):
            if not others[metric]:
                note(f"{self._server.url}: {metric} is missing: {assumed}; scrape it to have it counted")
        fullest, mean = (self._one(f"{how}({UTILIZATION}{self._selector})") for how in ("max", "avg"))
        generation = self._one(f"max({GENERATION}{self._selector})")
        if not fullest:
            note(f"{self._server.url}: {UTILIZATION} is missing: skew is taken to be 1; scrape it to have skew recorded")

        def pair(metric: str, at: float) -> Pair | None:
            by_stream = others[metric]
            found = [by_stream.get(stream, {}).get(at) for stream in (left, right)]
            return None if found[0] is None or found[1] is None else (found[0], found[1])

        observations = []
        for at in sorted(accepted[left].keys() & accepted[right].keys()):
            shed = pair(SHED, at) or (0.0, 0.0)
            plan = generation.get(at)
            observations.append(
                Observation(
                    at=at,
                    taken=(accepted[left][at] + shed[0], accepted[right][at] + shed[1]),
                    read=pair(READ, at),
                    waiting=pair(WAITING, at) or (0.0, 0.0),
                    fullest=fullest.get(at),
                    mean=mean.get(at),
                    generation=None if plan is None else int(plan),
                )
            )
        if len(observations) < 2:
            raise Failure(Exit.SOURCE, self._nothing())
        gaps = [after.at - before.at for before, after in itertools.pairwise(observations) if after.at - before.at > 1.5 * asked.step]
        if gaps:
            longest = max(gaps)
            note(f"{self._server.url}: has gaps, {len(gaps)} of them, the longest of {longest:g} s; across each, rates are its mean")
        return observations

    def _order(self, streams: list[str]) -> tuple[str, str]:
        """The left stream and the right one."""
        found = {
            labels.get("side", ""): labels.get("stream", "")
            for labels, _ in self._range(f"group by (stream, side) ({SIDES}{self._selector})")
        }
        left, right = (found.get(side) for side in SIDE_NAMES)
        if left is None or right is None or {left, right} != set(streams):
            what = f"{self._server.url}: {SIDES} is missing, which says on which side a stream is"
            raise Failure(Exit.SOURCE, f"{what}; scrape it too, or record from the join itself")
        return left, right

    def _by_stream(self, metric: str) -> dict[str, dict[float, float]]:
        """A metric's values by stream and time; max, for a driver and its successor may be there at once."""
        return {labels.get("stream", ""): values for labels, values in self._range(f"max by (stream) ({metric}{self._selector})")}

    def _one(self, query: str) -> dict[float, float]:
        return next((values for _, values in self._range(query)), {})

    def _range(self, query: str) -> list[tuple[dict[str, str], dict[float, float]]]:
        """All series of a range query: their labels, and their values by time."""
        asked = self._asked
        found: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
        span = MOST_POINTS * asked.step
        for part in range(max(1, math.ceil((asked.end - asked.begin) / span))):
            begin = asked.begin + part * span
            # Both ends are a part of an answer.
            end = min(asked.end, begin + span - asked.step)
            data = self._ask("/api/v1/query_range", {"query": query, "start": begin, "end": end, "step": asked.step})
            for series in data["result"]:
                values = {float(at): float(value) for at, value in series["values"]}
                finite = {at: value for at, value in values.items() if math.isfinite(value)}
                found.setdefault(tuple(sorted(series["metric"].items())), {}).update(finite)
        return [(dict(labels), values) for labels, values in found.items()]

    def _nothing(self) -> str:
        asked = self._asked
        of_namespace = "" if asked.namespace is None else f" in namespace {asked.namespace}"
        span = f"from {_moment(asked.begin)} to {_moment(asked.end)}"
        what = f"{self._server.url}: has nothing of the join {asked.name}{of_namespace} {span} ({ACCEPTED} is missing)"
        parameters = {"match[]": GENERATION, "start": asked.begin, "end": asked.end}
        names: Iterable[str] = self._ask("/api/v1/label/name/values", parameters)
        there = sorted(names)
        if asked.name in there:
            return f"{what}; it has the join at other times or in another namespace: change --from, --to or --namespace"
        if there:
            return f"{what}; it has {listed(there[:10], 'and')}: give one as --name"
        return f"{what}; let it scrape the driver's /metrics (docs/metrics.md), or change --from and --to"

    def _ask(self, path: str, parameters: Mapping[str, Any]) -> Any:
        url = self._server.url
        try:
            status, body = self._server.get(path, parameters)
        except ssl.SSLCertVerificationError as error:
            text = f"{url}: {error.verify_message}; name its authority's certificate in SSL_CERT_FILE"
            raise Failure(Exit.SOURCE, text) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            text = str(error) or type(error).__name__
            raise Failure(Exit.SOURCE, f"{url}: {text}; give the address of a Prometheus that answers") from error
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise Failure(Exit.SOURCE, f"{url}: answers {status}; give a token that it takes with --token-file")
        try:
            answer = json.loads(body)
            if answer["status"] == "success":
                return answer["data"]
            refusal = str(answer["error"])
        except (ValueError, KeyError, TypeError):
            refusal = f"answers {status}, but not as Prometheus does"
        raise Failure(Exit.SOURCE, f"{url}: {refusal}; give the address below which /api/v1 is, and times that it has")


def _moment(seconds: float) -> str:
    from streamjoin.cli import wording

    return wording.moment(round(seconds) * 1_000_000) or ""
