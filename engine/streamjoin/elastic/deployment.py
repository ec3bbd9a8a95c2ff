"""The first deployment (ESJ, "Initial deployment"): what a join is expected to hold, and the plan whose fullest worker that fills to tau1.

ESJ has M = ceil(E(rate) * window / (W * tau1)) workers. Here M is the number of tasks of the plan: so tuples count as often as the model
holds them, and for as long as they are held, which is until a watermark has passed the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamjoin.elastic.planner import Planned, capacity_at, make_plan
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import LEFT, SIDES
from streamjoin.language.window import Window, WindowKind
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.dichotomy import MOST_TASKS, TooManyTasksError
from streamjoin.scheme.models import DEFAULTS, PRECISION, Options, plan_for_capacity
from streamjoin.scheme.statistics import Statistics

EPOCHS_BEHIND = 3
"""Tuples expire by the watermarks of the last epoch but one, and only with all of their run, which is an epoch's or more."""

Expected = tuple[float | None, float | None]
"""The tuples that are expected to be held, by side of a scheme, each counted once: None where nothing is known, infinite in a window that
never ends."""


def expected_tuples(
    rates: Sequence[float | None], window: Window, *, delays_micros: Sequence[int] = (0, 0), epoch_micros: float = 0
) -> tuple[float | None, ...]:
    """What a window holds of each stream once it is full, at these tuples per second; a stream of unknown rate is taken to be as fast as
    the fastest.

    ``delays_micros``: of the watermarks, by stream. A window of rows holds its rows at any rate.
    """
    known = [rate for rate in rates if rate is not None]
    filled = [max(known, default=None) if rate is None else rate for rate in rates]
    return tuple(_held(rate, window, stream, delays_micros, epoch_micros) for stream, rate in enumerate(filled))


def typical_tuples(rates: Sequence[float | None], expected: Sequence[float | None]) -> tuple[float, ...]:
    """What is ``expected`` to be held of each stream or place, at these rates, as finite numbers: 0 where nothing is known.

    Of an unbounded window, which holds ever more, the tuples of one second: their proportion decides the scheme.
    """
    fastest = max((rate for rate in rates if rate is not None), default=0.0)
    return tuple(
        (rate or fastest if held is not None and math.isinf(held) else held) or 0.0 for rate, held in zip(rates, expected, strict=True)
    )


def executors_for(workers: int, per_executor: int) -> int:
    """How many executors have room for so many workers."""
    return -(-workers // per_executor)


def _held(rate: float | None, window: Window, stream: int, delays_micros: Sequence[int], epoch_micros: float) -> float | None:
    in_epochs = (rate or 0.0) * EPOCHS_BEHIND * epoch_micros / 1e6
    if window.kind is WindowKind.ROWS:
        return window.rows_of(stream) + in_epochs
    if rate is None:
        return None
    if window.kind is WindowKind.UNBOUNDED:
        return math.inf if rate > 0 else 0.0
    # A tuple is held for as long as a partner may follow it, by the others' watermarks.
    if window.each:
        span = window.each[stream]
    elif len(delays_micros) == len(SIDES):
        span = window.after_micros if stream == LEFT else window.before_micros
    else:
        span = max(window.after_micros, window.before_micros)
    delay = max(delay for other, delay in enumerate(delays_micros) if other != stream)
    return rate * max(0, span + delay) / 1e6 + in_epochs


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """A first plan."""

    planned: Planned
    statistics: Statistics
    """What it was made for."""
    tau: float | None
    """To which its fullest worker is expected to be filled: infinite in a window without end, None where nothing is expected."""
    warning: str | None
    """That tau is above tau1, why, and the remedy."""

    @property
    def workers(self) -> int:
        """M."""
        return self.planned.plan.workers

    @property
    def volume(self) -> float:
        """What all workers are expected to hold together, replicas counted."""
        return float(self.planned.loads.sum())

    @property
    def fits(self) -> bool:
        """Whether no worker is expected to hold more than it may. A window without end is not expected to."""
        return self.tau is None or math.isinf(self.tau) or self.tau <= 1 + PRECISION


def first_deployment(
    expected: Expected,
    known: Statistics,
    main: MainPredicate,
    *,
    model: str,
    capacity: Capacity,
    tau1: float,
    minimum: int,
    maximum: int,
    options: Options = DEFAULTS,
) -> Deployment:
    """The plan of fewest workers that is expected to be filled to tau1, within ``minimum``..``maximum``.

    ``known``: how the keys are spread, what tuples weigh, in the capacity's unit, and in which proportion the streams are where nothing
    is expected of them; then the plan is for ``minimum`` workers, and for ``maximum`` where they are expected to hold ever more. Raises
    ValueError as :func:`make_plan` does.
    """
    left, right = expected
    endless = math.isinf(left or 0.0) or math.isinf(right or 0.0)
    workers = maximum if endless else minimum if left is None or right is None else None
    statistics = known
    if workers is None:
        statistics = Statistics(tuple(replace(known.sides[side], tuples=float(expected[side] or 0.0)) for side in SIDES))
    planned = make_plan(
        None,
        statistics,
        main,
        model=model,
        workers=workers,
        capacity=capacity,
        tau1=tau1,
        minimum=minimum,
        maximum=maximum,
        options=options,
    )
    if workers is not None:
        return Deployment(planned, statistics, math.inf if endless else None, None)
    tau = float(planned.loads.max()) / capacity.amount
    if tau <= tau1 * (1 + PRECISION):
        return Deployment(planned, statistics, tau, None)
    left, right = (side.tuples for side in statistics.sides)
    what = f"the {left:,.0f} and {right:,.0f} tuples that are expected of the streams fill the fullest worker to {tau:.2f}, "
    what += f"above tau1 ({tau1:g})"
    try:
        needed = plan_for_capacity(model, statistics, main, capacity_at(model, tau1, capacity), options=options).tasks
    except TooManyTasksError:
        needed = MOST_TASKS + 1
    if needed <= maximum:
        warning = f"spec.scheme.model: {what}, as {model} cuts no single key; choose adsp or square, which do"
        return Deployment(planned, statistics, tau, warning)
    takes = f"more than {MOST_TASKS:,} workers" if needed > MOST_TASKS else f"{needed:,} workers"
    warning = (
        f"spec.workers.max: {maximum} is too small: {what}, which takes {takes} by {model}; "
        f"raise it, or {capacity.remedy} ({capacity.figure(capacity.amount)}), or hold less (a shorter window or watermark)"
    )
    return Deployment(planned, statistics, tau, warning)
