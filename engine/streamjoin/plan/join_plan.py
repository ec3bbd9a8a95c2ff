"""The plan of all joins of a resource: frozen, printable and comparable.

The delta of a stream walks a *path* of stages. Each stage extends what was found so far by the tuples of one *arrangement* of another
stream: those that its probe finds and that its checks let through. A join of two streams is two paths of one stage, of three streams
three paths of two. What stands after the pairs, for outer, semi and anti joins, is a *reduce* operator. (As Materialize's delta joins,
``JoinPlan`` -> ``path_plans`` -> ``stage_plans``.)

Always holds: a plan that ``check`` passes names only streams and arrangements that it has, each path visits every other stream of its join
once, and each stage probes an arrangement whose key has the encoding of the key that it is probed with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

EXPLAIN_INDENT = "  "


class JoinPlanError(ValueError):
    """A plan that contradicts itself. The text names the part and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A stream as the plan reads it."""

    name: str
    where: str | None = None
    """SQL over its columns: which tuples are taken."""
    event_time: str | None = None
    """A column, or SQL."""


@dataclass(frozen=True, slots=True)
class Key:
    """Expressions whose values make one 64-bit key."""

    sql: tuple[str, ...]
    """Over the columns of one stream."""
    types: tuple[str, ...]
    """Of their values, one for each."""
    encoding: str
    """integer, float, prefix or hash (``predicate.Encoding``)."""

    @property
    def text(self) -> str:
        """For people."""
        return ", ".join(self.sql) + (" by hash" if self.encoding == "hash" else "")


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The tuples of a stream, sorted by a key, for as long as some join needs them. Held once for all joins that can use it."""

    stream: int
    """Index into ``JoinPlan.streams``."""
    side: int
    """0 or 1: on which side of the partitioning it lies."""
    key_space: int
    """Keys of one key space are cut at the same places; index."""
    key: Key | None
    """None: tuples lie by no key, and all meet."""
    columns: tuple[str, ...]
    """What is held of a tuple beside its key."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Which keys of an arrangement a probing key finds: ``low <= key - probing key <= high``."""

    kind: str
    """range, notEqual or all."""
    low: int | float | None = None
    """None: no bound."""
    high: int | float | None = None
    low_strict: bool = False
    high_strict: bool = False
    slack: float = 0.0
    """Relative width by which candidates are taken wider, where keys are only near the exact values."""

    @property
    def text(self) -> str:
        """For people."""
        if self.kind != "range":
            return {"notEqual": "other keys", "all": "all"}.get(self.kind, self.kind)
        if self.low == self.high == 0 and not self.slack:
            return "the same key"
        low = "" if self.low is None else f"{self.low} {'<' if self.low_strict else '<='} "
        high = "" if self.high is None else f" {'<' if self.high_strict else '<='} {self.high}"
        return f"{low}held - probing{high}"


@dataclass(frozen=True, slots=True)
class Stage:
    """Extends what was found by the tuples of one arrangement."""

    arrangement: int
    """Index into ``JoinPlan.arrangements``."""
    probing: int
    """The stream, among those found so far, whose key probes; index into ``JoinPlan.streams``."""
    key: Key | None
    """Over that stream's columns; None: there is none."""
    probe: Probe
    window: str
    """How near in time the tuples have to be, in words; empty: it does not matter."""
    checks: tuple[str, ...] = ()
    """SQL that is evaluated on the pairs that the probe finds."""
    distribution: str = "repartition"
    """How what was found so far gets to the arrangement's tuples: repartition, broadcast, lookup, semi-join or chain."""
    with_delta: bool = False
    """Whether the arrangement is probed with what came in the same epoch; so each pair of new tuples is found once."""


@dataclass(frozen=True, slots=True)
class Path:
    """How results with new tuples of one stream are found."""

    stream: int
    """Whose delta starts it; index into ``JoinPlan.streams``."""
    stages: tuple[Stage, ...]
    fetches: bool = False
    """Whether columns that only the output reads are fetched once a result is complete (late materialization)."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """What stands after the pairs."""

    kind: str = "none"
    """none or exists."""
    streams: tuple[int, ...] = ()
    """exists: whose tuples appear by whether they have a partner; indexes into ``JoinPlan.streams``."""
    pairs: bool = True
    """Whether pairs themselves are results."""
    missing: bool = False
    """exists: a tuple is a result where it has no partner (outer, anti), once none can come; False: where it has one (semi)."""


@dataclass(frozen=True, slots=True)
class Join:
    """One join."""

    name: str
    paths: tuple[Path, ...]
    """One for each of its streams."""
    reduce: Reduce
    where: str | None
    """SQL over what was found: which results are kept."""
    output: tuple[str, ...]
    """Names of the columns of a result."""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How arrangements are cut among tasks."""

    model: str
    tasks: int


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """The whole plan."""

    streams: tuple[Source, ...]
    arrangements: tuple[Arrangement, ...]
    joins: tuple[Join, ...]
    partitioning: Partitioning

    def check(self) -> None:
        """Raises JoinPlanError. O(size)."""
        for number, arrangement in enumerate(self.arrangements):
            _require(arrangement.stream < len(self.streams), f"arrangement {number}", f"no stream {arrangement.stream}")
            _require(arrangement.side in (0, 1), f"arrangement {number}", f"side {arrangement.side} must be 0 or 1")
        for join in self.joins:
            own = sorted(path.stream for path in join.paths)
            _require(len(set(own)) == len(own) >= 2, f"join {join.name}", f"has paths of {own}; one of each of two streams or more")
            _require(set(join.reduce.streams) <= set(own), f"join {join.name}", f"its reduce names {join.reduce.streams}, beside {own}")
            for path in join.paths:
                self._check_path(join, path, own)

    def _check_path(self, join: Join, path: Path, own: list[int]) -> None:
        where, visited = f"join {join.name}, path of {self.streams[path.stream].name}", [path.stream]
        for number, stage in enumerate(path.stages):
            at = f"{where}, stage {number}"
            _require(stage.arrangement < len(self.arrangements), at, f"no arrangement {stage.arrangement}")
            held = self.arrangements[stage.arrangement]
            _require(stage.probing in visited, at, f"probes with a key of stream {stage.probing}, and only {visited} are found")
            encodings = [None if key is None else (key.encoding, len(key.sql)) for key in (stage.key, held.key)]
            _require(encodings[0] == encodings[1] or stage.probe.kind == "all", at, f"a key of {encodings[0]} probes one of {encodings[1]}")
            visited.append(held.stream)
        _require(sorted(visited) == own, where, f"visits {visited}, and must visit each of {own} once")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        value: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> JoinPlan:
        """What :meth:`to_json` gave. Raises KeyError, TypeError where it is something else."""
        return cls(
            tuple(Source(**each) for each in value["streams"]),
            tuple(Arrangement(**{**each, "key": _key(each["key"]), "columns": tuple(each["columns"])}) for each in value["arrangements"]),
            tuple(_join(each) for each in value["joins"]),
            Partitioning(**value["partitioning"]),
        )

    def explain(self) -> str:
        """For people: arrangements, then each join's paths, a stage a line."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"partitioning: {self.partitioning.model}, {self.partitioning.tasks} task{'s' * (self.partitioning.tasks != 1)}"
        for number, each in enumerate(self.arrangements):
            by = "no key" if each.key is None else each.key.text
            space = f", key space {each.key_space}" if any(other.key_space for other in self.arrangements) else ""
            yield f"arrangement {number}: {self._name(each.stream)} by {by}{space}, holds {', '.join(each.columns) or 'no columns'}"
        for join in self.joins:
            yield f"join {join.name}: {_reduced(join.reduce, [self._name(stream) for stream in join.reduce.streams])}"
            for path in join.paths:
                source = self.streams[path.stream]
                taken = f" where {source.where}" if source.where else ""
                yield f"{EXPLAIN_INDENT}delta of {source.name}{taken}" + (", late materialization" if path.fetches else "")
                yield from (f"{EXPLAIN_INDENT * 2}{line}" for stage in path.stages for line in self._stage(stage))
            if join.where:
                yield f"{EXPLAIN_INDENT}keep {join.where}"
            yield f"{EXPLAIN_INDENT}output {', '.join(join.output)}"

    def _stage(self, stage: Stage) -> Iterator[str]:
        held = self.arrangements[stage.arrangement]
        probing = "" if stage.key is None else f" with {self._name(stage.probing)}.{stage.key.text}"
        state = "state and delta" if stage.with_delta else "state"
        of = f"arrangement {stage.arrangement} ({self._name(held.stream)}, {state})"
        yield f"{stage.distribution}, probe {of}{probing}: {stage.probe.text}{stage.window and f', {stage.window}'}"
        yield from (f"{EXPLAIN_INDENT}check {text}" for text in stage.checks)

    def _name(self, stream: int) -> str:
        return self.streams[stream].name


def _reduced(reduce: Reduce, streams: list[str]) -> str:
    if reduce.kind == "none":
        return "pairs"
    tuples = f"tuples of {' and of '.join(streams)} {'without' if reduce.missing else 'with'} a partner"
    return f"pairs, and {tuples}" if reduce.pairs else tuples


def _require(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise JoinPlanError(f"{where}: {what}")


def _key(value: dict[str, Any] | None) -> Key | None:
    return None if value is None else Key(tuple(value["sql"]), tuple(value["types"]), value["encoding"])


def _join(value: dict[str, Any]) -> Join:
    reduce = Reduce(**{**value["reduce"], "streams": tuple(value["reduce"]["streams"])})
    paths = tuple(Path(each["stream"], tuple(map(_stage, each["stages"])), each["fetches"]) for each in value["paths"])
    return Join(value["name"], paths, reduce, value["where"], tuple(value["output"]))


def _stage(value: dict[str, Any]) -> Stage:
    given = {"key": _key(value["key"]), "probe": Probe(**value["probe"]), "checks": tuple(value["checks"])}
    return Stage(**{**value, **given})
