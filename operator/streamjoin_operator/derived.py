"""What follows from a StreamJoin's manifest alone: its job, a worker's memory, how many workers to begin with; or what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamjoin.compilation import compile_job
from streamjoin.elastic.admission import FirstPlan
from streamjoin.elastic.vertical import Enlarged
from streamjoin.job import Job
from streamjoin.manifest import Manifest, Problem, check
from streamjoin.manifest.model import Workers
from streamjoin.manifest.quantity import Memory
from streamjoin.sizing import cheapest, foreseen_plan, promised
from streamjoin_operator.changes import CLAIM_PATH
from streamjoin_operator.drift import Object
from streamjoin_operator.memory import WorkerMemory, worker_memory
from streamjoin_operator.places import local_places
from streamjoin_operator.reasons import Reason

SHOWN = 3
"""So many problems are said; the others are counted."""


@dataclass(frozen=True, slots=True)
class Derived:
    """What follows from a manifest alone."""

    manifest: Manifest | None
    problem: tuple[Reason, str] | None = None
    job: Job | None = None
    memory: WorkerMemory | None = None
    workers: int = 0
    """The first deployment's."""
    first: FirstPlan | None = None
    """What is promised of it."""
    given_memory: int = 0
    """Of a worker, in bytes, as the resource says; the manifest has more where that was decided."""


def derive(body: Object, enlarged: Enlarged | None = None) -> Derived:
    """What follows from a resource alone: the manifest, its job, a worker's memory, how many workers to begin with; or what is wrong.

    ``enlarged``: what was decided of the workers' memory; where it counts for this resource, all follows as if the resource had it.
    """
    document = check(body)
    if document.manifest is None:
        return Derived(None, _invalid(document.problems))
    given = document.manifest.spec.workers.resources.memory.bytes
    manifest = with_memory(document.manifest, enlarged)
    spec = manifest.spec
    located = manifest
    if spec.checkpoint.location is None:
        checkpoint = spec.checkpoint.model_copy(update={"location": f"{CLAIM_PATH}/{manifest.metadata.name}"})
        located = manifest.model_copy(update={"spec": spec.model_copy(update={"checkpoint": checkpoint})})
    job = compile_job(located)
    memory = worker_memory(job)
    # The driver knows the keys, and may choose another candidate: this is what to expect until it answers.
    lying = cheapest(job)
    deployment = foreseen_plan(lying)
    problem = None if memory.fits else (Reason.InsufficientMemory, memory.refusal())
    if in_pods := tuple(local_places(manifest)):
        problem = _invalid(in_pods)
    promise = promised(lying, deployment)
    return Derived(manifest, problem, replace(job, manifest=manifest), memory, deployment.workers, promise, given)


def with_memory(manifest: Manifest, enlarged: Enlarged | None) -> Manifest:
    """The manifest with the memory that was decided for its workers, where that counts for it."""
    spec, workers = manifest.spec, manifest.spec.workers
    given, most = workers.resources.memory.bytes, None if workers.max_memory is None else workers.max_memory.bytes
    if enlarged is None or not enlarged.counts(is_enforced=spec.scaling.vertical == "Enforce", given=given, most=most):
        return manifest
    return manifest.model_copy(update={"spec": spec.model_copy(update={"workers": enlarged_to(workers, enlarged.memory)})})


def enlarged_to(workers: Workers, memory: int) -> Workers:
    """The same with so many bytes of memory each."""
    return workers.model_copy(update={"resources": workers.resources.model_copy(update={"memory": Memory(memory)})})


def _invalid(problems: Sequence[Problem]) -> tuple[Reason, str]:
    more = f" (and {len(problems) - SHOWN} more)" if len(problems) > SHOWN else ""
    return Reason.InvalidSpec, "; ".join(str(problem) for problem in problems[:SHOWN]) + more
