"""Makes the plan of a job whose layout is chosen (``Job.lying``): what its tasks do, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamjoin.elastic.path_plans import PathPlan, PathPlans
from streamjoin.job import Job, JoinJob, StreamJob
from streamjoin.language.join_type import JoinType
from streamjoin.language.layout import PlacedGraph
from streamjoin.language.predicate import Bound, KeyExpression, MainKind, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.window import Window, WindowKind
from streamjoin.manifest.quantity import Duration
from streamjoin.plan.join_plan import Arrangement, Join, JoinPlan, Key, Partitioning, Path, Probe, Reduce, Source, Stage
from streamjoin.scheme.models import HANDSHAKE

CHAIN = "chain"


def join_plan(job: Job, tasks: int, path_plans: Mapping[int, PathPlans] | None = None) -> JoinPlan:
    """The plan of a job with one layout, checked. ``path_plans``: by join over three and more streams, the orders that were chosen, for
    each of its streams; without: in the order of the streams, by repartitioning. O(joins x streams²)."""
    layout = job.layouts[0]
    arrangements = tuple(
        Arrangement(place.stream, place.side, place.key_space, _key(place.key), job.streams[place.stream].payload)
        for place in layout.places
    )
    joins = []
    for number, (join, placed) in enumerate(zip(job.joins, layout.joins, strict=True)):
        chosen = (path_plans or {}).get(number) or tuple(PathPlan(next(placed.graph.orders(head))) for head in range(len(placed.streams)))
        paths = tuple(_path(job, join, placed, head, path_plan) for head, path_plan in enumerate(chosen))
        where = None if join.where is None else join.where.sql
        joins.append(Join(join.name, paths, _reduce(join), where, tuple(name for name, _ in join.output)))
    plan = JoinPlan(tuple(map(_source, job.streams)), arrangements, tuple(joins), Partitioning(job.model, tasks))
    plan.check()
    return plan


def _source(stream: StreamJob) -> Source:
    derived = stream.derived_time.shown if stream.derived_time else None
    return Source(stream.name, None if stream.where is None else stream.where.sql, stream.event_time or derived)


def _key(key: KeyExpression | None) -> Key | None:
    return None if key is None else Key(key.sql, tuple(map(str, key.types)), key.encoding)


def _reduce(join: JoinJob) -> Reduce:
    if join.type is JoinType.INNER:
        return Reduce()
    tracked = tuple(join.streams[side] for side in join.type.tracked)
    return Reduce("exists", tracked, join.type.gives_pairs, join.type.gives_unmatched)


def _path(job: Job, join: JoinJob, placed: PlacedGraph, head: int, path_plan: PathPlan) -> Path:
    return Path(placed.streams[head], tuple(_stages(job, join, placed, head, path_plan)), path_plan.fetches)


def _stages(job: Job, join: JoinJob, placed: PlacedGraph, head: int, path_plan: PathPlan) -> Iterator[Stage]:
    graph, members = placed.graph, [head]
    names = [job.streams[stream].name for stream in placed.streams]
    for step, stream in enumerate(path_plan.order):
        edge, side = graph.step_to(stream, members)
        probing = RIGHT if side == LEFT else LEFT
        residual = [] if edge.residual is None else [edge.residual]
        checks = [check.sql for check in graph.checks_at(stream, frozenset(members))]
        yield Stage(
            arrangement=placed.places[edge.places[side]],
            probing=placed.streams[graph.places[edge.places[probing]].stream],
            key=_key(graph.places[edge.places[probing]].key),
            probe=_probe(edge.main, probing),
            window=_window_of_each(join.window, names) if join.window.each else _window_of_two(join.window, probing),
            checks=tuple(residual + checks),
            distribution=CHAIN if job.model == HANDSHAKE else path_plan.distribution(step).value,
            with_delta=stream < head,
        )
        members.append(stream)


def _window_of_two(window: Window, side: int) -> str:
    """Where a tuple of the other side may lie, seen from one of this side."""
    if window.kind is not WindowKind.RANGE:
        return f"within {window.rows} rows" if window.kind is WindowKind.ROWS else ""
    ends = (window.before_micros, window.after_micros)
    before, after = map(Duration, ends if side == LEFT else ends[::-1])
    slide = f", in windows that slide by {Duration(window.slide_micros)}" if window.slide_micros else ""
    return f"from {before} before to {after} after it{slide}"


def _window_of_each(window: Window, names: list[str]) -> str:
    """How far each tuple may lie before the newest."""
    ranged = window.kind is WindowKind.RANGE
    each = (f"{name} {Duration(span) if ranged else f'{span} rows'}" for name, span in zip(names, window.each, strict=True))
    slide = f", in windows that slide by {Duration(window.slide_micros)}" if window.slide_micros else ""
    return f"within {', '.join(each)} of the newest{slide}"


def _probe(main: MainPredicate, probing: int) -> Probe:
    """What a key of the probing side finds; bounds are those of ``right - left``."""
    if main.kind is not MainKind.RANGE:
        return Probe("notEqual" if main.kind is MainKind.NOT_EQUAL else "all")
    if probing == LEFT:
        return Probe("range", main.low, main.high, main.low_strict, main.high_strict, main.slack)
    return Probe("range", _negated(main.high), _negated(main.low), main.high_strict, main.low_strict, main.slack)


def _negated(bound: Bound) -> Bound:
    return None if bound is None else -bound if bound else bound
