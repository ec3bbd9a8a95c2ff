"""A plan: a scheme, and which worker goes on as which of its tasks (A-DSP, section 4.2).

Always holds: each worker of the plan before goes on as one task at most; the others end once nothing needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamjoin.scheme.tiling import Scheme, SchemeError

MOST_AREAS = 2048
"""The most areas of a scheme that is put over HTTP. To check a scheme takes memory with the square of their number."""


class PlanError(ValueError):
    """A plan that cannot be, or cannot be read; the text names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The scheme's tasks 0..n-1 are the workers of this plan.

    ``keep[t]``: the worker (a task of the plan before) that goes on as task t with its state in memory; None: a new worker.
    """

    generation: int
    """Counts plans; a plan's is greater than that of the one before."""
    scheme: Scheme
    keep: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if isinstance(self.generation, bool) or not isinstance(self.generation, int) or self.generation < 0:
            raise PlanError(f"plan.generation: {self.generation!r} must be an integer that is not negative")
        if len(self.keep) != self.scheme.tasks:
            raise PlanError(f"plan.keep: {len(self.keep)} entries must be {self.scheme.tasks}, one for each task of the scheme")
        first: dict[int, int] = {}
        for task, worker in enumerate(self.keep):
            if worker is None:
                continue
            if isinstance(worker, bool) or not isinstance(worker, int) or worker < 0:
                raise PlanError(f"plan.keep[{task}]: {worker!r} must be a task of the plan before, or null for a new worker")
            if worker in first:
                raise PlanError(f"plan.keep[{task}]: worker {worker} already goes on as task {first[worker]}; give each at most once")
            first[worker] = task

    @classmethod
    def initial(cls, scheme: Scheme, generation: int = 1) -> Plan:
        """A plan with none before it: all workers are new."""
        return cls(generation, scheme, (None,) * scheme.tasks)

    @classmethod
    def running(cls, scheme: Scheme, generation: int) -> Plan:
        """The plan that runs, its workers as they are."""
        return cls(generation, scheme, tuple(range(scheme.tasks)))

    @property
    def workers(self) -> int:
        return self.scheme.tasks

    def leaving(self, before: Scheme) -> tuple[int, ...]:
        """The workers of the plan before that do not go on."""
        return tuple(worker for worker in range(before.tasks) if worker not in self.keep)

    def to_json(self) -> dict[str, Any]:
        """The plan as a value that ``json`` writes and reads back without loss."""
        return {"generation": self.generation, "scheme": self.scheme.to_json(), "keep": list(self.keep)}

    @classmethod
    def from_json(cls, value: Any) -> Plan:
        """The inverse of :meth:`to_json`. Raises PlanError for what is not such a value; it does not ``check`` the scheme."""
        if not isinstance(value, dict):
            raise PlanError(f"plan: {_shown(value)} must be an object of generation, scheme and keep")
        for name in ("generation", "scheme", "keep"):
            if name not in value:
                raise PlanError(f"plan.{name}: is missing")
        unknown = sorted(map(str, set(value) - {"generation", "scheme", "keep"}))
        if unknown:
            raise PlanError(f"plan.{unknown[0]}: is unknown; a plan has generation, scheme and keep")
        try:
            scheme = Scheme.from_json(value["scheme"])
        except SchemeError as error:
            raise PlanError(f"plan.scheme: {error}") from error
        keep = value["keep"]
        if not isinstance(keep, list):
            raise PlanError(f"plan.keep: {_shown(keep)} must be a list, with a worker or null for each task")
        return cls(value["generation"], scheme, tuple(keep))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
