"""Plans for the workers that are there (``replan``), by the planner that makes all others. Pure; the same arguments give the same plan."""

from __future__ import annotations

from dataclasses import replace

from streamjoin.controlplane.events import MakePlan
from streamjoin.controlplane.refusals import require_fit
from streamjoin.elastic.ending import Placement
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import make_plan
from streamjoin.job import Job
from streamjoin.language.predicate import MainPredicate
from streamjoin.scheme.models import HANDSHAKE, PRECISION
from streamjoin.scheme.statistics import Statistics, loads
from streamjoin.scheme.tiling import Scheme
from streamjoin.sizing import plan_after


def plan_for(request: MakePlan, job: Job, statistics: Statistics, main: MainPredicate) -> Plan | None:
    """The plan that moves least, of all that leave the fullest of so many workers with as little as can be.

    None where that is no better than the plan that runs: where workers have come, it must have work for some of them, and not fill any
    worker more; where some are lost, or are to go, it must fill none beyond its capacity. A tenth of a second for 16 workers.
    """
    scheme = request.running.scheme
    if scheme.model == HANDSHAKE and request.leaving:  # a chain shrinks at its end alone, and its workers have what no block has
        return None
    if request.leaving and request.workers == scheme.tasks:
        return Plan(request.generation, scheme, tuple(None if task in request.leaving else task for task in range(scheme.tasks)))
    before = Plan.running(scheme, request.running.generation)
    try:
        made = plan_after(job, before, statistics, main, request.workers, request.model, Placement(leaving=request.leaving))
    except ValueError:  # the model has none for so many
        return None
    grows = request.workers > scheme.tasks
    most = loads(scheme, statistics).max() if grows else job.capacity.amount
    if made.loads.max() > most * (1 + PRECISION) or (grows and made.plan.workers <= scheme.tasks):
        return None
    plan = replace(made.plan, generation=request.generation)
    require_fit(plan, main, 1, max(request.workers, scheme.tasks))
    return plan


def least_workers(scheme: Scheme, job: Job, statistics: Statistics, main: MainPredicate) -> int:
    """The fewest workers, at most those of this scheme, that have room for what is held. A chain's are counted as if they were even."""
    if not statistics.total:
        return 1
    if scheme.model == HANDSHAKE:
        return min(scheme.tasks, max(1, -int(-statistics.total // job.capacity.amount)))
    try:
        made = make_plan(
            *(None, statistics, main),
            model=scheme.model,
            workers=None,
            capacity=job.capacity,
            tau1=1.0,
            minimum=1,
            maximum=scheme.tasks,
            options=job.scheme_options,
        )
    except ValueError:
        return scheme.tasks
    return made.plan.workers
