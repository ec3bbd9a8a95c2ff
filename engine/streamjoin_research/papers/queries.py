"""Section 5's queries of 002 as this code runs them: TPC-H's relations are not at hand, so keys are drawn with their statistics.

R is uniform and S follows a Zipf distribution over R's keys, as where lines of orders refer to suppliers (E_Q5). So every tuple of S has as
many partners whatever the skew z is, and times at several z can be compared: z only decides where they meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.planner import make_plan
from streamjoin.epoch.ports import EpochResult
from streamjoin.scheme.models import Options
from streamjoin.serve.wishes import running_plan
from streamjoin_research.papers.runs import VALUES, Array, Join, Keys, Tasks

UPPER, LOWER = 0.8, 0.5
"""Section 5.4: a new plan above and below these parts of V."""


@dataclass(frozen=True)
class Query:
    """A join of section 5.1."""

    name: str
    capacity: int
    """V in tuples: so many that a run takes seconds."""
    band: int | None
    """How far keys may be apart; None: every pair is looked at, of which one in :data:`~streamjoin_research.papers.runs.VALUES` is a
    result."""

    def join(self, keys: int, window_seconds: int | None = None) -> Join:
        """Over keys 0 to ``keys`` - 1."""
        if self.band is None:
            return Join(f"abs(l.k - r.k) <= {keys} AND (l.v + r.v) % {VALUES} = 0", window_seconds)
        return Join("l.k = r.k" if self.band == 0 else f"abs(l.k - r.k) <= {self.band}", window_seconds)


E_Q5 = Query("E_Q5", 50_000, 0)
B_NCI = Query("B_NCI", 50_000, 1)
B_MR = Query("B_MR", 1_200, None)
TINY = 400
"""V of smoke tests."""


def sized(query: Query) -> Query:
    """The same with so few tuples that it takes a moment."""
    return replace(query, capacity=TINY)


SKEWS = (0.0, 1.0, 2.0)
DATA = "TPC-H's relations are not at hand: R has each key once in a turn, S is Zipf over them, so as many pairs match at each z."


def zipf(chance: np.random.Generator, keys: int, count: int, z: float, order: Array) -> Array:
    """So many of the numbers below ``keys``, the ones first in ``order`` most frequent: the i-th, from 1, with probability ~ 1 / i^z."""
    weights = np.arange(1.0, keys + 1) ** -z
    bounds = np.cumsum(weights / weights.sum())
    found: Array = order[np.minimum(np.searchsorted(bounds, chance.random(count), side="right"), keys - 1)]
    return found


def in_turn(order: Array, first: int, count: int) -> Array:
    """Keys one after another, from the ``first`` on, round and round."""
    found: Array = order[np.arange(first, first + count) % len(order)]
    return found


def loaded(keys: int, epochs: Sequence[tuple[int, int]], z: float, *, seed: int = 1) -> list[Keys]:
    """The keys of both streams, of which ``epochs`` says how many each has. R goes through all keys in turn."""
    chance = np.random.default_rng(seed)
    order_left, order_right = chance.permutation(keys), chance.permutation(keys)
    found, taken = [], 0
    for left, right in epochs:
        found.append((in_turn(order_left, taken, left), zipf(chance, keys, right, z, order_right)))
        taken += left
    return found


@dataclass(frozen=True)
class Model:
    """One of section 5.1's rivals."""

    name: str
    """The engine's."""
    options: Mapping[str, Any]
    """Of ``spec.scheme``."""

    def tasks(self, count: int) -> Tasks:
        return Tasks(self.name, count, count, options=self.options)

    def growing(self, capacity: float, most: int) -> Tasks:
        """Beginning with one task."""
        return Tasks(self.name, 1, most, capacity, self.options)


MODELS: dict[str, Model] = {
    "A-DSP": Model("adsp", {}),
    "Square": Model("square", {}),
    "Dynamic": Model("dynamic", {}),
    "Bi_6": Model("biclique", {"groups": 6}),
    "Bi": Model("biclique", {}),
    "Readj": Model("readj", {}),
}


class ByLoad:
    """Section 5.4's rule: a new plan, filled to 80 %, where the fullest task holds above 80 % of V or below 50 %; Dynamic goes by its own.

    To be told of each epoch (:data:`streamjoin_research.papers.runs.Replan`).
    """

    def __init__(self, most: int, *, least: int = 1) -> None:
        """``least`` and ``most``: how many tasks there may be."""
        self._most, self._least = most, least

    def __call__(self, driver: Driver, result: EpochResult) -> None:
        job, status, layout = driver.job, driver.plan_status(), driver.layout
        assert status is not None
        assert layout is not None
        fullest = max(sum(held) for held in result.held.values()) / job.capacity.amount
        # Dynamic splits a task into four above half of V, so it is to be merged again where four of them are below that.
        upper, lower = (LOWER, LOWER / 4) if job.model == "dynamic" else (UPPER, LOWER)
        if lower <= fullest <= upper:
            return
        made = make_plan(
            running_plan(status),
            driver.statistics(),
            layout.main,
            model=job.model,
            workers=None,
            capacity=job.capacity,
            tau1=UPPER,
            minimum=self._least,
            maximum=self._most,
            options=job.scheme_options,
        )
        if made.changed:
            driver.put_plan(made.plan)


def options_of(model: Model) -> Options:
    """For a plan that is made without a run."""
    return Options(**model.options)
