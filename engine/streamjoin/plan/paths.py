"""The paths of a join whose layout is chosen: in the driver for people, in each task for its operators."""

from __future__ import annotations

from collections.abc import Iterator

from streamjoin.elastic.path_plans import PathPlan, PathPlans
from streamjoin.language.layout import PlacedGraph
from streamjoin.plan.join_plan import Path, Stage


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
