"""What ``spec.workers``, ``spec.scaling`` and ``spec.shedding`` must be together: numbers in order, and nothing that another takes away."""

from __future__ import annotations

import itertools

from streamjoin.manifest import model
from streamjoin.manifest.checks import Check, value_at
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.problem import Problem


def workers_problems(manifest: Manifest) -> Check:
    """How many workers there may be, and what each may hold."""
    workers = manifest.spec.workers
    if workers.min > workers.max:
        if "min" in workers.model_fields_set:
            by_default = "" if "max" in workers.model_fields_set else ", the default"
            yield Problem("spec.workers.min", workers.min, f"must be at most max ({workers.max}{by_default})")
        else:
            yield Problem("spec.workers.max", workers.max, f"must be at least min ({workers.min}, the default)")
    if workers.floor > 1 and not workers.min <= workers.floor <= workers.max:
        message = f"must be at least min ({workers.min}) and at most max ({workers.max}), or 1 for none"
        yield Problem("spec.workers.floor", workers.floor, message)
    if value_at(workers, "capacity") is not None and value_at(workers, "capacity_tuples") is not None:
        message = "excludes capacityTuples; keep one: capacity weighs tuples by their bytes, capacityTuples counts them"
        yield Problem("spec.workers.capacity", str(workers.capacity), message)
    if workers.per_executor > workers.max:
        by_default = "" if "max" in workers.model_fields_set else ", the default"
        message = f"must be at most max ({workers.max}{by_default}), or each pod would have room for workers that never come"
        yield Problem("spec.workers.perExecutor", workers.per_executor, message)


def tau_problems(manifest: Manifest) -> Check:
    """Whether tau0 < tau1 < tau2 < tau3."""
    scaling = manifest.spec.scaling
    given = scaling.model_fields_set
    taus = {"tau0": scaling.tau0, "tau1": scaling.target, "tau2": scaling.tau2, "tau3": scaling.tau3}
    ordered = list(taus.items())
    for (low, lower), (high, higher) in itertools.pairwise(ordered):
        if lower < higher:
            continue
        if low in given:
            yield Problem(f"spec.scaling.{low}", lower, f"must be below {high} ({_tau(high, higher, given)})")
        else:
            yield Problem(f"spec.scaling.{high}", higher, f"must be above {low} ({_tau(low, lower, given)})")


def _tau(name: str, value: float, given: set[str]) -> str:
    if name in given:
        return f"{value:g}"
    return f"{value:g}, by default half of tau2" if name == "tau1" else f"{value:g}, the default"


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
