"""Plans that cannot be applied, and why not."""

from __future__ import annotations

from streamjoin.elastic.mapping import chain_keep
from streamjoin.elastic.plan import Plan
from streamjoin.language.predicate import MainPredicate
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.tiling import Scheme, SchemeError


class PlanRefused(ValueError):  # noqa: N818
    """A plan that cannot be applied; the text names the field, the value and the remedy."""


class PlanOutdated(PlanRefused):
    """The plan does not come after the newest one."""


def require_fit(plan: Plan, main: MainPredicate, least: int, most: int) -> None:
    """Raises PlanRefused for a plan that is none (``Scheme.check``), or of another number of workers than from ``least`` to ``most``."""
    try:
        plan.scheme.check(main)
    except SchemeError as error:
        raise PlanRefused(f"plan.scheme: {error}") from error
    if not least <= plan.workers <= most:
        raise PlanRefused(
            f"plan.scheme.tasks: {plan.workers} must be from {least} (spec.workers.min) to {most} (spec.workers.max); change either"
        )


def refusal_of(plan: Plan, running: Scheme) -> str | None:
    """Why the plan cannot follow the one that runs, if it cannot."""
    tasks = running.tasks
    if HANDSHAKE in (plan.scheme.model, running.model):
        if plan.scheme.model != running.model:
            return (
                f"plan.scheme.model: {plan.scheme.model} cannot follow {running.model}, as tuples in a chain have yet to meet; a new"
                " checkpoint.location takes another model"
            )
        keep = chain_keep(tasks, plan.workers)
        if plan.keep != keep:
            return f"plan.keep: {list(plan.keep)} must be {list(keep)}: a chain grows and shrinks at its right end"
    for task, worker in enumerate(plan.keep):
        if worker is not None and worker >= tasks:
            return f"plan.keep[{task}]: {worker} must be below {tasks}, as so many workers run; read the plan again"
    return None
