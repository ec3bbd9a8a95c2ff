"""What ``spec.scaling`` and ``spec.shedding`` must be together with the joins: nothing that another takes away."""

from __future__ import annotations

from streamjoin.manifest import model
from streamjoin.manifest.checks import Check, value_at
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.problem import Problem


def budget_problems(manifest: Manifest) -> Check:
    """Whether something is shed, of results that the budget counts."""
    budget, joins = manifest.spec.scaling.budget, value_at(manifest, "spec", "joins") or ()
    if budget is None:
        return
    if manifest.spec.shedding.model == "off":
        message = 'has nothing to spend, as nothing is shed; set spec.shedding.model to "linear" or "quadratic", or remove it'
        yield Problem("spec.scaling.budget", budget.completeness, message)
    if joins and not any(join.type == "inner" for join in joins):
        message = "counts results of inner joins, and there are none; remove it"
        yield Problem("spec.scaling.budget", budget.completeness, message)


def shedding_problems(field: str, join: model.Join, manifest: Manifest) -> Check:
    """Whether the join's results stay right where tuples are shed."""
    shedding = manifest.spec.shedding.model
    if join.type == "anti" and shedding != "off":
        message = f"would make the results of {field}.type anti wrong: a tuple whose match was shed would be given as one that has no match"
        yield Problem("spec.shedding.model", shedding, f'{message}; set "off"')
