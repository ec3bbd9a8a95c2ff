"""How many workers to start with (ESJ, "Initial deployment"), so many that each is expected to be filled to tau1; and on how many executors
workers are."""

from __future__ import annotations

import math

from streamjoin.language.sides import LEFT
from streamjoin.language.window import Window, WindowKind

_SECOND = 1e6


def initial_workers(
    *, rates: tuple[float | None, float | None], window: Window, capacity_tuples: float, tau1: float, minimum: int, maximum: int
) -> int:
    """M = ceil(E(rate) * window / (W * tau1)), summed over both streams, within ``minimum``..``maximum``.

    ``rates``: expected tuples per second, by side; a stream of unknown rate counts for nothing, so that with neither known this
    is ``minimum``. A window without end fills any number of workers, so that it takes ``maximum``.

    The formula knows nothing of replication: a scheme that repeats tuples may hold more than tau1 on as many workers.
    """
    if not 1 <= minimum <= maximum:
        raise ValueError(f"spec.workers: min {minimum} must be at least 1 and at most max {maximum}")
    if not (capacity_tuples > 0 and tau1 > 0):
        raise ValueError(f"spec.workers.capacityTuples: {capacity_tuples} and spec.scaling.tau1: {tau1} must be positive")
    # E(rate) * window: the tuples of both streams that the window holds at a time.
    held = sum(_held(rate, window, side) for side, rate in enumerate(rates) if rate)
    wanted = held / (capacity_tuples * tau1)
    return maximum if wanted >= maximum else max(minimum, math.ceil(wanted * (1 - 1e-12)))


def executors_for(workers: int, per_executor: int) -> int:
    """How many executors have room for so many workers."""
    return -(-workers // per_executor)


def _held(rate: float, window: Window, side: int) -> float:
    if window.kind is WindowKind.UNBOUNDED:
        return math.inf
    if window.kind is WindowKind.ROWS:
        return window.rows
    # A left tuple is held for as long as a right partner may follow it, and conversely.
    return rate * max(0, window.after_micros if side == LEFT else window.before_micros) / _SECOND
