"""Makes the plan of a job whose layout is chosen (``Job.lying``): what its tasks do, as data."""

from __future__ import annotations

from collections.abc import Mapping

from streamjoin.elastic.path_plans import PathPlans
from streamjoin.job import Job, JoinJob, StreamJob
from streamjoin.language.join_type import JoinType
from streamjoin.plan.join_plan import Arrangement, Join, JoinPlan, Partitioning, Reduce, Source
from streamjoin.plan.paths import default_path_plans, paths_of


def join_plan(job: Job, tasks: int, path_plans: Mapping[int, PathPlans] | None = None) -> JoinPlan:
    """The plan of a job with one layout, checked. ``path_plans``: by join over three and more streams, those that were chosen; without: in
    the order of the streams, by repartitioning. O(joins x streams²)."""
    layout = job.layouts[0]
    arrangements = tuple(
        Arrangement(place.stream, place.side, place.key_space, place.key, job.streams[place.stream].payload) for place in layout.places
    )
    joins = []
    for join, placed in zip(job.joins, layout.joins, strict=True):
        paths = paths_of(placed, (path_plans or {}).get(placed.join) or default_path_plans(placed))
        where = None if join.where is None else join.where.sql
        joins.append(Join(join.name, join.streams, join.window, paths, _reduce(join), where, tuple(name for name, _ in join.output)))
    plan = JoinPlan(tuple(map(_source, job.streams)), arrangements, tuple(joins), Partitioning(job.model, tasks))
    plan.check()
    return plan


def _source(stream: StreamJob) -> Source:
    derived = stream.derived_time.shown if stream.derived_time else None
    return Source(stream.name, None if stream.where is None else stream.where.sql, stream.event_time or derived)


def _reduce(join: JoinJob) -> Reduce:
    if join.type is JoinType.INNER:
        return Reduce()
    tracked = tuple(join.streams[side] for side in join.type.tracked)
    return Reduce("exists", tracked, join.type.gives_pairs, join.type.gives_unmatched)
