"""What a join's first plan promises before anything runs: workers, tau, the bill of an hour; and whether its own thresholds allow it.

A plan that is expected to fill a worker beyond tau2 with all workers that may be sheds as soon as its window is full, or runs out of
memory: no rule of scaling can help it, for there are no more workers. Such a join is refused where the manifest says how fast every stream
is, and warned of where some rate is only guessed. What would do is said in numbers: of the same scheme a load follows the tuples that are
held, so a capacity, or a window, needs a factor; the workers are those of a plan that is made for tau2.

Always holds: pure; the operator and ``streamjoin plan`` say the same of the same manifest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamjoin.elastic.arbitration import Bill, Prices, bill
from streamjoin.elastic.deployment import Deployment, executors_for
from streamjoin.elastic.planner import capacity_at
from streamjoin.elastic.settings import Settings
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.window import Window, WindowKind
from streamjoin.manifest.memory import MIB
from streamjoin.manifest.quantity import Duration
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.dichotomy import MOST_TASKS, TooManyTasksError
from streamjoin.scheme.models import DEFAULTS, PRECISION, Options, plan_for_capacity


class Verdict(StrEnum):
    """Whether a join may begin."""

    ADMITTED = "Admitted"
    WARNED = "Warned"
    """It is expected to shed, by a rate that is only guessed, or because somebody wants it to begin all the same."""
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class FirstPlan:
    """The first plan, and what is expected of it."""

    verdict: Verdict
    workers: int
    executors: int
    model: str
    summary: str
    """The coverage areas."""
    tau: float | None
    """Of the fullest worker once the window is full; infinite in a window without end, None where no rate is known."""
    mean: float | None
    """Mean tau, likewise."""
    bill: Bill
    """Of an hour, in worker-hours: of the workers, and of the tuples that would be lost if the load grew by a quarter."""
    remedies: str
    """What would do, where tau2 is exceeded; empty where it is not."""
    problem: str = ""
    """Likewise, what is wrong."""

    @property
    def begins(self) -> str:
        """For people: the plan."""
        executors = f" in {_plural(self.executors, 'executor')}" if self.executors != self.workers else ""
        return f"first plan: {_plural(self.workers, 'worker')}{executors} ({self.model}, {self.summary}), {self._filled}; {self._billed}"

    @property
    def sentence(self) -> str:
        """Likewise; where tau2 is exceeded, first what is wrong and what would do."""
        return f"{self.problem}; {self.remedies}; {self.begins}" if self.problem else self.begins

    @property
    def answer(self) -> str:
        """What the operator does of such a join."""
        answers = {Verdict.ADMITTED: "begins it", Verdict.WARNED: "warns of it", Verdict.REFUSED: "does not begin it"}
        return answers[self.verdict]

    @property
    def _filled(self) -> str:
        if self.tau is None or self.mean is None:
            return "how full they will be is not known, as no expectedRate is given"
        if math.isinf(self.tau):
            return "which a window without end fills in time"
        return f"expected to be filled to {self.tau:.2f} at most and {self.mean:.2f} on average"

    @property
    def _billed(self) -> str:
        lost = f", of which {self.bill.shed:.1f} for tuples that are lost if the load grows by a quarter" if self.bill.shed >= 0.05 else ""
        return f"the bill of an hour is {self.bill.total:.1f} worker-hours{lost}"


@dataclass(frozen=True, slots=True)
class HeldLonger:
    """What is held beside a window at most, as watermarks are late and tuples expire with whole epochs."""

    micros: float
    """In a window of time: for so much longer."""
    tuples: float
    """In a window of rows: so many of a stream."""


def first_plan(
    deployment: Deployment,
    main: MainPredicate,
    *,
    capacity: Capacity,
    settings: Settings,
    rate: float | None,
    windows: Sequence[Window],
    held_longer: HeldLonger,
    is_guess: bool,
    per_executor: int,
    options: Options = DEFAULTS,
) -> FirstPlan:
    """What is said of a first plan.

    ``rate``: tuples per second of all streams, None where none is known. ``windows``: the joins'. ``is_guess``: whether some stream's
    rate is. O(two plans).
    """
    scheme, tau = deployment.planned.plan.scheme, deployment.tau
    is_finite = tau is not None and math.isfinite(tau)
    mean = deployment.volume / (deployment.workers * capacity.amount) if is_finite else tau
    costs = bill(
        workers=deployment.workers,
        tau_max=tau if tau is not None and is_finite else 0.0,
        tau_mean=mean if mean is not None and is_finite else 0.0,
        moved_tuples=0.0,
        rate=rate,
        changes=False,
        settings=settings,
        prices=Prices(),
    )
    verdict, problem, remedies = Verdict.ADMITTED, "", ""
    if tau is not None and is_finite and tau > settings.tau2 * (1 + PRECISION):
        verdict = Verdict.WARNED if is_guess else Verdict.REFUSED
        by = "the rates that are given, and guessed for streams without expectedRate," if is_guess else "expectedRate"
        problem = (
            f"spec.workers.max: {settings.max_workers} is too small: by {by} the fullest worker will be filled to {tau:.2f}, "
            f"above tau2 ({settings.tau2:g})"
        )
        ways = _remedies(deployment, main, tau, capacity, settings, windows, held_longer, options)
        remedies = f"what would do: {'; '.join(ways[:-1])}; or {ways[-1]}" if len(ways) > 1 else f"what would do: {ways[0]}"
    return FirstPlan(
        verdict=verdict,
        workers=deployment.workers,
        executors=executors_for(deployment.workers, per_executor),
        model=scheme.model,
        summary=scheme.summary,
        tau=tau,
        mean=mean,
        bill=costs,
        remedies=remedies,
        problem=problem,
    )


def _remedies(
    deployment: Deployment,
    main: MainPredicate,
    tau: float,
    capacity: Capacity,
    settings: Settings,
    windows: Sequence[Window],
    held_longer: HeldLonger,
    options: Options,
) -> list[str]:
    model, factor = deployment.planned.plan.scheme.model, settings.tau2 / tau
    found = []
    try:
        needed = plan_for_capacity(model, deployment.statistics, main, capacity_at(model, settings.tau2, capacity), options=options).tasks
    except TooManyTasksError:
        needed = MOST_TASKS + 1
    if needed <= settings.max_workers:
        found.append("spec.scheme.model adsp or square, which cut single keys")
    elif needed <= MOST_TASKS:
        found.append(f"spec.workers.max {needed}")
    # Figures are rounded to a tuple, or to a tenth of a MiB: here up.
    more = capacity.amount / factor + (0.05 * MIB if capacity.in_bytes else 0.5)
    found.append(f"{capacity.remedy}, for {capacity.words(more)} in a worker, not {capacity.figure(capacity.amount)}")
    if (window := _narrower(windows, factor, held_longer)) is not None:
        found.append(window)
    if not any(window.kind is WindowKind.ROWS for window in windows):
        found.append(f"{math.floor(100 * factor) / 100:.2f} of the rates")
    return found


def _narrower(windows: Sequence[Window], factor: float, held_longer: HeldLonger) -> str | None:
    """The window in which so much of the tuples is held; None where there is none, or none that is one number."""
    if len(windows) != 1:
        return None
    (window,) = windows
    if len(set(window.each)) > 1:
        return None
    if window.kind is WindowKind.ROWS:
        rows = math.floor(factor * (window.rows + held_longer.tuples) - held_longer.tuples)
        return f"a window of {rows:,} rows, not {window.rows:,}" if rows > 0 else None
    if window.kind is not WindowKind.RANGE or window.is_multiway or window.before_micros != window.after_micros:
        return None
    # What watermarks and epochs add to the window stays.
    micros = factor * (window.after_micros + held_longer.micros) - held_longer.micros
    whole = math.floor(micros / 1e6) * 1_000_000
    return f"a window of {Duration(whole)}, not {Duration(window.after_micros)}" if whole > 0 else None


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
