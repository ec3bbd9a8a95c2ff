"""Statistics and predicates that rows about plans share. V, a task's capacity, is 1000 tuples here."""

from __future__ import annotations

import numpy as np

from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.scheme.models import Options, plan_for_capacity
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics
from streamjoin.scheme.tiling import Scheme

V = 1000.0
KEY = KeyExpression(("k",), (), Encoding.INTEGER)
ALL = MainPredicate(MainKind.ALL, text="every pair may match")
SIX_GROUPS = Options(groups=6)
MODELS: dict[str, tuple[str, Options]] = {
    "A-DSP": ("adsp", Options()),
    "Square": ("square", Options()),
    "Dynamic": ("dynamic", Options()),
    "Bi": ("biclique", Options()),
    "Bi_6": ("biclique", SIX_GROUPS),
}
"""The rivals of A-DSP's section 5 but Readj, which needs keys."""


def band(low: int | None, high: int | None) -> MainPredicate:
    """Right key - left key within [low, high]."""
    return MainPredicate(MainKind.RANGE, (KEY, KEY), low, high)


def held(left: float, right: float, keys: np.ndarray | None = None) -> Statistics:
    """So many tuples a side, spread as ``keys`` are; None: nothing is known of keys."""
    histogram = None if keys is None else Histogram.from_sample(keys)
    return Statistics((SideStatistics(left, histogram), SideStatistics(right, histogram)))


def toy(keys: list[int]) -> Statistics:
    """Both sides hold just these keys."""
    return held(len(keys), len(keys), np.array(keys))


def plan(name: str, statistics: Statistics, main: MainPredicate, capacity: float, current: Scheme | None = None) -> Scheme:
    """The plan of one of :data:`MODELS` for a capacity."""
    model, options = MODELS[name]
    return plan_for_capacity(model, statistics, main, capacity, options=options, current=current)
