"""Makes plans for a running join: for a number of workers, or for a scheme that somebody else has made.

Always holds: what comes out follows the newest plan there is, running or being applied, so that it can be put at once.
"""

from __future__ import annotations

from dataclasses import replace

from streamjoin.controlplane.replan import PlanStatus
from streamjoin.elastic.ending import ANYWHERE, Placement, map_tasks
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import Planned
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import Scheme
from streamjoin.sizing import plan_after


def running_plan(status: PlanStatus) -> Plan:
    """The plan that runs, its workers as they are."""
    return Plan.running(status.scheme, status.generation)


def newest_generation(status: PlanStatus) -> int:
    """The generation of the plan that is being applied, or else of the one that runs."""
    return status.generation if status.wanted is None else max(status.generation, status.wanted.generation)


def plan_for_workers(
    status: PlanStatus,
    statistics: Statistics,
    layout: Layout,
    job: Job,
    workers: int,
    model: str | None = None,
    placement: Placement = ANYWHERE,
) -> Planned:
    """The plan for so many workers (the model may use fewer) that moves least; the job's ``model`` unless another is given. Which workers
    end if there are fewer goes by ``placement``.

    Raises ValueError for what the model refuses. A tenth of a second for 16 workers.
    """
    made = plan_after(job, running_plan(status), statistics, layout.main, workers, model, placement)
    if not made.changed:
        return made
    return replace(made, plan=replace(made.plan, generation=newest_generation(status) + 1))


def mapped_plan(status: PlanStatus, statistics: Statistics, generation: int, scheme: Scheme, placement: Placement = ANYWHERE) -> Plan:
    """The plan after the running one with this scheme, whose tasks go to the workers that hold most of their tuples; which workers end if
    there are fewer goes by ``placement``. Its tasks are numbered anew."""
    after, keep = map_tasks(status.scheme, scheme, statistics, placement)
    return Plan(generation, after, keep)
