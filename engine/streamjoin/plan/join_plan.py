"""The plan of all joins of a resource: frozen, printable and comparable.

The delta of a stream walks a *path* of stages. Each stage extends what was found so far by the tuples of one *arrangement* of another
stream: those that its probe finds and that its checks let through. A join of two streams is two paths of one stage, of three streams
three paths of two. What stands after the pairs, for outer, semi and anti joins, is a *reduce* operator. (As Materialize's delta joins,
``JoinPlan`` -> ``path_plans`` -> ``stage_plans``.) Tasks make their operators of these paths (``dataplane.stages``).

Always holds: a plan that ``check`` passes names only streams and arrangements that it has, each path visits every other stream of its join
once, and each stage probes an arrangement of the key space and on the other side of that whose tuples probe.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from streamjoin.elastic.distribution import Distribution
from streamjoin.language.predicate import KeyExpression, MainPredicate
from streamjoin.language.window import Window


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
class Arrangement:
    """The tuples of a stream, sorted by a key, for as long as some join needs them. Held once for all joins that can use it."""

    stream: int
    """Index into ``JoinPlan.streams``."""
    side: int
    """LEFT or RIGHT: on which side of the partitioning it lies."""
    key_space: int
    """Keys of one key space are cut at the same places; index."""
    key: KeyExpression | None
    """None: tuples lie by no key, and all meet."""
    columns: tuple[str, ...]
    """What is held of a tuple beside its key."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Extends what was found by the tuples of one arrangement."""

    arrangement: int
    """That is probed; index into ``JoinPlan.arrangements``."""
    probing: int
    """The arrangement, of a stream among those found so far, whose key probes, and like whose tuples what was found is routed; index into
    ``JoinPlan.arrangements``."""
    main: MainPredicate
    """What the probe finds, by side of the arrangements. Its keys are those of the arrangements, or else the join finds its pairs by an
    index of its own."""
    checks: tuple[str, ...] = ()
    """SQL over columns qualified by stream, evaluated on the pairs that the probe finds."""
    distribution: Distribution = Distribution.REPARTITION
    """How what was found so far gets to the arrangement's tuples. New tuples are there: of the first stage it says nothing."""
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
    streams: tuple[int, ...]
    """Which it is over, in their order; indexes into ``JoinPlan.streams``."""
    window: Window
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
            _require(sorted(join.streams) == own, f"join {join.name}", f"is over {join.streams}, and has paths of {own}")
            _require(set(join.reduce.streams) <= set(own), f"join {join.name}", f"its reduce names {join.reduce.streams}, beside {own}")
            for path in join.paths:
                self._check_path(join, path, own)

    def _check_path(self, join: Join, path: Path, own: list[int]) -> None:
        where, visited = f"join {join.name}, path of {self.streams[path.stream].name}", [path.stream]
        for number, stage in enumerate(path.stages):
            at = f"{where}, stage {number}"
            for each in (stage.arrangement, stage.probing):
                _require(each < len(self.arrangements), at, f"no arrangement {each}")
            held, probing = self.arrangements[stage.arrangement], self.arrangements[stage.probing]
            _require(probing.stream in visited, at, f"probes like a tuple of stream {probing.stream}, and only {visited} are found")
            _require(held.key_space == probing.key_space, at, f"probes key space {held.key_space} with keys of {probing.key_space}")
            _require(held.side != probing.side, at, f"probes side {held.side} from the same side")
            visited.append(held.stream)
        _require(sorted(visited) == own, where, f"visits {visited}, and must visit each of {own} once")

    def to_json(self) -> dict[str, Any]:
        """Plain data, for other programs: names of fields as here. It leaves out seeds of hashes, which nobody is to know."""
        found: dict[str, Any] = _plain(self)
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, KeyExpression):
        return {"sql": list(value.sql), "types": list(map(str, value.types)), "encoding": value.encoding.value}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return value.value if isinstance(value, Enum) else value


def _require(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise JoinPlanError(f"{where}: {what}")
