"""Shows what a plan would do, without applying it. The planner, which is pure, works on what the join holds now.

Always holds: the join does not notice. To put the plan as ``put`` says applies this very plan or, if another plan came first, nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from streamjoin.controlplane.replan import PlanStatus
from streamjoin.elastic.migration import Migration, plan_migration
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import Planned, overfull
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.scheme.statistics import Statistics, loads
from streamjoin.scheme.tiling import Scheme
from streamjoin.serve.messages import PreviewAnswer

Draw = Callable[[Scheme], dict[str, Any] | None]
"""A scheme as a page draws it; None: it cannot be drawn yet."""


def unchanged(status: PlanStatus) -> PreviewAnswer:
    """The preview of a wish that calls for no other plan."""
    return PreviewAnswer(changed=False, generation=status.generation, workers=status.workers, model=status.scheme.model)


def preview(made: Planned, job: Job, draw: Draw) -> PreviewAnswer:
    """The preview of a plan that follows the running one. O(moves + areas)."""
    plan = made.plan
    return PreviewAnswer(
        changed=True,
        generation=plan.generation,
        workers=plan.workers,
        model=plan.scheme.model,
        keep=list(plan.keep),
        utilization=[float(load) / job.capacity.amount for load in made.loads],
        warning=overfull(made.loads, plan.scheme.model, job.capacity),
        moved=moved(made.migration),
        shapes=draw(plan.scheme),
        put=json.dumps(plan.to_json()),
    )


def planned(status: PlanStatus, plan: Plan, statistics: Statistics, layout: Layout) -> Planned:
    """A plan that somebody has made, as if the planner had."""
    migration = plan_migration(status.scheme, plan.scheme, plan.keep, statistics, layout.main)
    return Planned(plan, migration, loads(plan.scheme, statistics), changed=True)


def moved(migration: Migration) -> dict[str, Any]:
    """What a plan moves, in expected tuples, and between whom."""
    between: dict[tuple[int | None, int], float] = {}
    for move in migration.moves:
        pair = move.from_worker, move.to_worker
        between[pair] = between.get(pair, 0.0) + move.expected_tuples
    return {
        "movedTuples": round(migration.moved_tuples),
        "keptTuples": round(migration.kept_tuples),
        "deletedTuples": round(migration.deleted_tuples),
        "leastTuples": round(migration.lower_bound_tuples),
        "naiveTuples": round(migration.naive_tuples),
        "moves": [{"from": sender, "to": receiver, "tuples": round(tuples)} for (sender, receiver), tuples in between.items()],
    }
