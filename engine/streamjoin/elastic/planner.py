"""From statistics to a plan in one call: scheme, alignment, map and migration (A-DSP, section 4, steps 2 to 4).

Always holds: a plan is deterministic; it moves no more than the same scheme cut evenly, and no more than with any other map of workers to
its tasks; and where the running scheme is as even as a new one of its size would be, nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamjoin.elastic.alignment import align, align_keys
from streamjoin.elastic.ending import ANYWHERE, Placement, mapped
from streamjoin.elastic.mapping import Array, Keep, Overlap, chain_keep, kept_by, relabelled, shared
from streamjoin.elastic.migration import Migration, plan_migration
from streamjoin.elastic.plan import Plan
from streamjoin.language.predicate import MainPredicate
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.dichotomy import TooManyTasksError
from streamjoin.scheme.models import DEFAULTS, HANDSHAKE, KEYED, PRECISION, Options, plan_for_capacity, plan_for_tasks
from streamjoin.scheme.statistics import Statistics, loads
from streamjoin.scheme.tiling import Scheme, SchemeError


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """What :func:`make_plan` came to."""

    plan: Plan
    """The running plan itself where nothing changes."""
    migration: Migration
    loads: Array
    """Per task, the volume that it will hold: tuples, or bytes where the statistics weigh them. float64."""
    changed: bool


def make_plan(
    current: Plan | None,
    statistics: Statistics,
    main: MainPredicate,
    *,
    model: str,
    workers: int | None,
    capacity: Capacity,
    tau1: float,
    minimum: int,
    maximum: int,
    options: Options = DEFAULTS,
    placement: Placement = ANYWHERE,
) -> Planned:
    """The plan that follows ``current`` (None: the first one), proven to be a tiling. ``placement``: where its workers are.

    ``workers``: for so many, the smallest largest load; the model may use fewer. None: the fewest whose largest load is at most
    ``tau1`` of the capacity, within ``minimum``..``maximum``; where ``maximum`` cannot hold it, for that many (:func:`overfull`).
    Statistics weigh tuples as the capacity does. Dynamic goes by its own rule, half of the capacity, where tau1 is more. Raises ValueError
    for limits that cannot be, and what the model refuses. A tenth of a second for 16 tasks.
    """
    if not 1 <= minimum <= maximum:
        raise ValueError(f"spec.workers: min {minimum} must be at least 1 and at most max {maximum}")
    if not tau1 > 0:
        raise ValueError(f"spec.scaling.tau1: {tau1} must be positive")
    before = None if current is None else current.scheme
    if workers is not None:
        scheme = plan_for_tasks(model, statistics, main, workers, options=options, current=before)
    else:
        scheme = _fewest(model, statistics, main, capacity_at(model, tau1, capacity), minimum, maximum, options, before)
    return follow(current, scheme, statistics, main, placement)


def capacity_at(model: str, tau1: float, capacity: Capacity) -> float:
    """What a model is to plan a task for that is filled to ``tau1``: dynamic fills half of what it is given."""
    return capacity.amount * (min(1.0, 2 * tau1) if model == "dynamic" else tau1)


def overfull(held: Array, model: str, capacity: Capacity) -> str | None:
    """A sentence where a task would hold more than it may; ``held``: as ``Planned.loads``. What to change comes first."""
    task = int(held.argmax())
    if held[task] <= capacity.amount * (1 + PRECISION):
        return None
    remedy = ", or spec.scheme.model, as this one cuts no single key" if model in KEYED else ", or ask for more workers"
    raised = f"raise {capacity.remedy}" if capacity.origin else "raise it"
    return (
        f"{capacity.field}: task {task} of the plan ({model}, {len(held)} tasks) would hold {capacity.words(held[task])}, "
        f"more than {capacity.figure(capacity.amount)}; {raised}{remedy}"
    )


def follow(current: Plan | None, scheme: Scheme, statistics: Statistics, main: MainPredicate, placement: Placement = ANYWHERE) -> Planned:
    """The plan by which this scheme follows the running one: aligned and mapped so that least moves, after which workers end
    (``ending``). Raises SchemeError."""
    scheme.check(main)
    if current is None:
        plan = Plan.initial(scheme)
        return Planned(plan, plan_migration(None, scheme, plan.keep, statistics, main), loads(scheme, statistics), changed=True)
    before = current.scheme
    if not placement.leaving and _serves_as_well(before, scheme, statistics, main):
        same = plan_migration(before, before, tuple(range(before.tasks)), statistics, main)
        return Planned(current, same, loads(before, statistics), changed=False)
    if HANDSHAKE in (scheme.model, before.model):
        if before.model != scheme.model:
            raise ValueError(f"scheme.model: {scheme.model} cannot follow {before.model}; a new checkpoint.location takes another model")
        keep = chain_keep(before.tasks, scheme.tasks)
        migration = plan_migration(before, scheme, keep, statistics, main)
        return Planned(Plan(current.generation + 1, scheme, keep), migration, loads(scheme, statistics), changed=True)
    overlap = shared(before, scheme, statistics)
    counted = overlap if statistics.counted is statistics else shared(before, scheme, statistics.counted)
    chosen, _, keep = _least_moved(before, scheme, statistics, main, overlap, placement)
    if chosen is not scheme:
        chosen.check(main)
    after, keep = relabelled(chosen, keep)
    migration = plan_migration(before, after, keep, statistics, main, kept_by_number=counted.by_number())
    return Planned(Plan(current.generation + 1, after, keep), migration, loads(after, statistics), changed=True)


def _fewest(
    model: str,
    statistics: Statistics,
    main: MainPredicate,
    capacity: float,
    minimum: int,
    maximum: int,
    options: Options,
    before: Scheme | None,
) -> Scheme:
    try:
        if statistics.total > maximum * capacity:  # that many could not hold every tuple once
            raise TooManyTasksError(capacity)
        scheme = plan_for_capacity(model, statistics, main, capacity, options=options, current=before)
        tasks = min(max(scheme.tasks, minimum), maximum)
    except TooManyTasksError:
        tasks = maximum
    else:
        if tasks == scheme.tasks:
            return scheme
    return plan_for_tasks(model, statistics, main, tasks, options=options, current=before)


def _least_moved(
    before: Scheme, scheme: Scheme, statistics: Statistics, main: MainPredicate, overlap: Overlap, placement: Placement = ANYWHERE
) -> tuple[Scheme, Overlap, Keep]:
    """The scheme as it is cut, whose overlaps these are, or aligned, whichever keeps most; with its overlaps and the best map."""
    best = scheme, overlap, mapped(overlap, placement)
    for aligned in (align(before, scheme, statistics), align_keys(before, scheme, statistics, main)):
        if aligned is None or aligned == scheme:
            continue
        overlap = shared(before, aligned, statistics)
        keep = mapped(overlap, placement)
        if kept_by(overlap, keep) > kept_by(best[1], best[2]):
            best = aligned, overlap, keep
    return best


def _serves_as_well(before: Scheme, scheme: Scheme, statistics: Statistics, main: MainPredicate) -> bool:
    """Whether the running scheme is as even as this one, of the same model and size.

    Readj may find a use for another task, next to one key that fills a task beyond measure: but one that relieves nobody.
    """
    is_smaller = before.model == "readj" and before.tasks < scheme.tasks
    if before.model != scheme.model or (before.tasks != scheme.tasks and not is_smaller):
        return False
    if before.model == "biclique" and before.summary != scheme.summary:  # its groups bound the work, not the load
        return False
    if loads(before, statistics).max() > loads(scheme, statistics).max() * (1 + PRECISION):
        return False
    try:
        before.check(main)
    except SchemeError:
        return False
    return True
