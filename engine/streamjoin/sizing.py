"""How much a job's tuples weigh, and so the plans that it begins with and goes on with: by the manifest, or by what its streams are like.

Always holds: pure; the same job and statistics give the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamjoin.elastic.admission import FirstPlan, HeldLonger, first_plan
from streamjoin.elastic.deployment import EPOCHS_BEHIND, Deployment, Expected, first_deployment, typical_tuples
from streamjoin.elastic.ending import ANYWHERE, Placement
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planned_forecast import PlannedForecast
from streamjoin.elastic.planner import Planned, make_plan
from streamjoin.elastic.settings import LEAST_INTERVAL_SECONDS, Settings
from streamjoin.elastic.vertical import Headroom
from streamjoin.job import Job
from streamjoin.language.layout import PlacedGraph
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import SIDES
from streamjoin.language.window import WindowKind
from streamjoin.retention import expected_of_places, expected_of_sides, window_seconds
from streamjoin.scheme.capacity import column_bytes
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.unknown import unknown


def carried_bytes(job: Job, placed: PlacedGraph, tuple_bytes: Sequence[float]) -> list[tuple[float, float]]:
    """By stream of a join over three and more, the bytes of a tuple that the condition reads, and of those that only what comes of
    results does.

    By the schemas; what held tuples, of ``tuple_bytes`` by place, are wider than these say is taken to be of the columns of no fixed
    width, evenly.
    """
    join, condition = job.joins[placed.join], placed.graph.columns
    read = {name for _, expression in join.output for name in expression.columns} | (join.where.columns if join.where else set())
    found = []
    for number in placed.streams:
        stream = job.streams[number]
        held = max(width for width, place in zip(tuple_bytes, job.places, strict=True) if place.stream == number)
        conditions = tuple(name for name in stream.payload if (stream.name, name) in condition)
        others = tuple(name for name in stream.payload if (stream.name, name) in read and name not in conditions)
        both = [column_bytes(stream.schema, names) for names in (conditions, others)]
        more, open_ended = held - stream.tuple_bytes, sum(width.open_ended for width in both)
        stretch = 1 + more / open_ended if open_ended and more > 0 else 1.0
        by_condition, by_output = (width.fixed + width.open_ended * stretch for width in both)
        found.append((by_condition, by_output))
    return found


def foreseen_plan(job: Job) -> Deployment:
    """The first plan by what the manifest alone says; nothing is known of keys but whether they are hashed."""
    rates = [job.streams[place.stream].expected_rate for place in job.places]
    of_places = [tuples or 1.0 for tuples in typical_tuples(rates, expected_of_places(job))]
    main = job.layouts[0].main
    return deployed(job, unknown(job.places, main, of_places), main)


def cheapest(job: Job) -> Job:
    """The same lying as the first plan would have it by what the manifest alone says: of joins with key spaces of their own, the layout
    that holds less."""
    if not any(layout.is_apart for layout in job.layouts):
        return job
    return min(map(job.lying, job.layouts), key=lambda job: foreseen_plan(job).volume)


def promised(job: Job, deployment: Deployment | None = None) -> FirstPlan:
    """What is promised of the first plan, before anything runs; ``deployment``: that plan, where it is made already."""
    rates = [stream.expected_rate for stream in job.streams]
    known = [rate for rate in rates if rate is not None]
    windows = [join.window for join in job.joins]
    expires_after = EPOCHS_BEHIND * max(LEAST_INTERVAL_SECONDS * 1e6, job.interval_micros)
    return first_plan(
        foreseen_plan(job) if deployment is None else deployment,
        job.layouts[0].main,
        capacity=job.capacity,
        settings=Settings.of(job.manifest.spec, capacity_tuples=job.capacity_tuples),
        rate=sum(known) + max(known) * rates.count(None) if known else None,
        windows=windows,
        held_longer=HeldLonger(
            max(stream.watermark_micros for stream in job.streams) + expires_after, max(known, default=0.0) * expires_after / 1e6
        ),
        is_guess=None in rates and any(window.kind is not WindowKind.ROWS for window in windows),
        per_executor=job.workers_per_executor,
        options=job.scheme_options,
    )


def weights_of(job: Job, tuple_bytes: Sequence[float] | None = None) -> tuple[float, ...]:
    """What a held tuple of each place weighs against ``capacity``; ``tuple_bytes``: their widths, if not those of the schemas."""
    widths = [job.streams[place.stream].tuple_bytes for place in job.places] if tuple_bytes is None else tuple_bytes
    return job.capacity.weights(widths)


def weights_of_sides(job: Job, tuple_bytes: Sequence[float] | None = None, held: Sequence[float] | None = None) -> tuple[float, float]:
    """The same of each side of a scheme: where it has several places, on average of the tuples ``held`` by place, or evenly."""
    weights = weights_of(job, tuple_bytes)
    of_side = [[number for number in range(len(weights)) if job.side_of(number) == side] for side in SIDES]
    left, right = (_mean(numbers, weights, held) for numbers in of_side)
    return left, right


def deployed(
    job: Job,
    known: Statistics,
    main: MainPredicate,
    expected: Expected | None = None,
    *,
    tuple_bytes: Sequence[float] | None = None,
    held: Sequence[float] | None = None,
) -> Deployment:
    """The plan to begin with (:func:`streamjoin.elastic.deployment.first_deployment`).

    ``expected``: not what the manifest says; ``tuple_bytes``: of held tuples by place, if not those of the schemas, and ``held``, in
    which proportion they are.
    """
    return first_deployment(
        expected_of_sides(job) if expected is None else expected,
        known.weighed(weights_of_sides(job, tuple_bytes, held)),
        main,
        model=job.model,
        capacity=job.capacity,
        tau1=job.tau1,
        minimum=job.min_workers,
        maximum=job.max_workers,
        options=job.scheme_options,
    )


def plan_after(
    job: Job,
    current: Plan,
    statistics: Statistics,
    main: MainPredicate,
    workers: int,
    model: str | None = None,
    placement: Placement = ANYWHERE,
) -> Planned:
    """The plan that follows ``current`` (:func:`streamjoin.elastic.planner.make_plan`); by another model than the job's, if one is given.
    ``placement``: where its workers are.

    Raises ValueError for what the model refuses."""
    return make_plan(
        *(current, statistics, main),
        model=job.model if model is None else model,
        workers=workers,
        capacity=job.capacity,
        tau1=job.tau1,
        minimum=job.min_workers,
        maximum=job.max_workers,
        options=job.scheme_options,
        placement=placement,
    )


def forecast_for(
    job: Job,
    current: Plan,
    statistics: Statistics,
    main: MainPredicate,
    placement: Placement = ANYWHERE,
    *,
    shed_fraction: float,
    clock: Callable[[], float],
) -> PlannedForecast:
    """What plans that follow ``current`` would come to (:class:`streamjoin.elastic.planned_forecast.PlannedForecast`)."""

    def plan(workers: int) -> Planned:
        return plan_after(job, current, statistics, main, workers, placement=placement)

    return PlannedForecast(current.generation, plan, job.capacity, shed_fraction=shed_fraction, clock=clock)


def scaling_settings(job: Job, first_workers: int = 0) -> Settings:
    """By what the job is scaled; ``first_workers``: of its first plan, 0 where that is not known."""
    return Settings.of(job.manifest.spec, first_workers, capacity_tuples=job.capacity_tuples, window_seconds=window_seconds(job))


def headroom_of(job: Job, most: int | None, *, given: int | None = None, unable: str = "") -> Headroom | None:
    """How much larger workers in pods may become, with ``most`` bytes of memory. None: there is no most. ``given``: what the manifest gives
    them, if not what they have."""
    if most is None:
        return None
    return Headroom(
        given=job.memory_bytes if given is None else given,
        memory=job.memory_bytes,
        most=most,
        cores=job.cores,
        per_executor=job.workers_per_executor,
        arriving=job.max_tuples * max(stream.tuple_bytes for stream in job.streams),
        unable=unable,
    )


def _mean(places: Sequence[int], weights: Sequence[float], held: Sequence[float] | None) -> float:
    shares = [1.0 if held is None else max(1.0, held[place]) for place in places]
    return sum(weights[place] * share for place, share in zip(places, shares, strict=True)) / sum(shares)
