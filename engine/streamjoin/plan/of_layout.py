"""Makes the plan of joins whose layout is chosen, in the driver for people and in each task for its operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from streamjoin.elastic.path_plans import PathPlan, PathPlans
from streamjoin.language.event_time import DerivedTime
from streamjoin.language.join_type import JoinType
from streamjoin.language.layout import Layout, PlacedGraph
from streamjoin.language.sql import Expression
from streamjoin.language.window import Window
from streamjoin.plan.join_plan import Arrangement, Join, JoinPlan, Partitioning, Path, Reduce, Source, Stage


class Taken(Protocol):
    """A stream, as jobs and tasks know it."""

    @property
    def name(self) -> str: ...
    @property
    def payload(self) -> tuple[str, ...]: ...
    @property
    def where(self) -> Expression | None: ...
    @property
    def event_time(self) -> str | None: ...
    @property
    def derived_time(self) -> DerivedTime | None: ...


class Joined(Protocol):
    """A join, as jobs and tasks know it."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> JoinType: ...
    @property
    def streams(self) -> tuple[int, ...]: ...
    @property
    def window(self) -> Window: ...
    @property
    def where(self) -> Expression | None: ...
    @property
    def output(self) -> tuple[tuple[str, Expression], ...]: ...


def join_plan(
    streams: Sequence[Taken],
    joins: Sequence[Joined],
    layout: Layout,
    partitioning: Partitioning,
    path_plans: Mapping[int, PathPlans] | None = None,
) -> JoinPlan:
    """The plan, checked. ``path_plans``: by join over three and more streams, those that were chosen; without: in the order of the streams,
    by repartitioning. O(joins x streams²)."""
    made = []
    for join, placed in zip(joins, layout.joins, strict=True):
        paths = paths_of(placed, (path_plans or {}).get(placed.join) or default_path_plans(placed))
        where = None if join.where is None else join.where.sql
        made.append(Join(join.name, join.streams, join.window, paths, _reduce(join), where, tuple(name for name, _ in join.output)))
    plan = JoinPlan(tuple(map(_source, streams)), arrangements_of(layout, streams), tuple(made), partitioning)
    plan.check()
    return plan


def arrangements_of(layout: Layout, streams: Sequence[Taken]) -> tuple[Arrangement, ...]:
    """Where tuples are held; indexed as ``layout.places``."""
    return tuple(
        Arrangement(place.stream, place.side, place.key_space, place.key, streams[place.stream].payload) for place in layout.places
    )


def default_path_plans(placed: PlacedGraph) -> PathPlans:
    """In the order of the streams, by repartitioning: of two streams the only ones."""
    return tuple(PathPlan(next(placed.graph.orders(head))) for head in range(len(placed.streams)))


def paths_of(placed: PlacedGraph, path_plans: PathPlans) -> tuple[Path, ...]:
    """The paths of a join by these path plans, one for each of its streams. O(streams²)."""
    return tuple(path_of(placed, head, path_plan) for head, path_plan in enumerate(path_plans))


def path_of(placed: PlacedGraph, head: int, path_plan: PathPlan) -> Path:
    """The path of one of its streams. O(streams)."""
    return Path(placed.streams[head], tuple(_stages(placed, head, path_plan)), path_plan.fetches)


def _stages(placed: PlacedGraph, head: int, path_plan: PathPlan) -> Iterator[Stage]:
    graph, members = placed.graph, [head]
    for step, stream in enumerate(path_plan.order):
        edge, side = graph.step_to(stream, members)
        residual = [] if edge.residual is None else [edge.residual]
        yield Stage(
            arrangement=placed.places[edge.places[side]],
            probing=placed.places[edge.places[1 - side]],
            main=edge.main,
            checks=(*residual, *(check.sql for check in graph.checks_at(stream, frozenset(members)))),
            distribution=path_plan.distribution(step),
            with_delta=stream < head,
        )
        members.append(stream)


def _source(stream: Taken) -> Source:
    derived = stream.derived_time.shown if stream.derived_time else None
    return Source(stream.name, None if stream.where is None else stream.where.sql, stream.event_time or derived)


def _reduce(join: Joined) -> Reduce:
    if join.type is JoinType.INNER:
        return Reduce()
    tracked = tuple(join.streams[side] for side in join.type.tracked)
    return Reduce("exists", tracked, join.type.gives_pairs, join.type.gives_unmatched)
