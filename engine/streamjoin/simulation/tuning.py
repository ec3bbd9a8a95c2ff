"""Thresholds for a trace: the cheapest that were found on its first part, and that hold what they promise on the rest.

*Search.* A coarse grid for each policy; then, from each of the best on, one value is changed at a time, by steps that shrink as soon as
none helps. The objective is the bill of the simulated run (``run.Outcome.bill``); whoever loses more tuples than is allowed is out.

*Held out.* What was fitted to a traffic is good on it by luck too. So the last part of the trace takes no part in the search: the best few
are tried on it in their order, and the first one that is no dearer there than what there is now, and loses no more, is proposed. A
veto, not another search: the candidates are few, and their order is the first part's.

Always holds: pure and deterministic; what is proposed is valid for a manifest; nothing that loses more than is allowed is proposed, in
either part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from streamjoin.elastic.settings import Policy, Settings
from streamjoin.manifest.model import TAUS
from streamjoin.simulation.run import Outcome
from streamjoin.simulation.traffic import Traffic

LEAST_GAIN = 0.01
"""A part of the bill that is worth another look at a manifest."""
FINALISTS = 8
"""So many are tried on what was held out."""
STARTS = 2
"""So many of the grid are refined."""
ROUNDS = 6
MOST_TAU2, MOST_TAU3 = 0.9, 0.95
"""Above them, and above those there are now, there is no room for what the trace has not shown."""
LEAST_GAP = 0.05
"""Between tau2 and tau3: some tuples are shed before anybody adds workers."""

TAU_STEPS = (0.1, 0.05, 0.02)
WAIT_FACTORS = (2.0, 1.5, 1.2)
SHORTEST_WAIT, LONGEST_WAIT = 5.0, 4 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What is searched. Times in seconds."""

    policy: Policy
    tau0: float
    """Predictive does not use it, and has the present one."""
    tau1: float
    tau2: float
    tau3: float
    scale_up_after: float
    scale_down_after: float

    @classmethod
    def of(cls, settings: Settings) -> Thresholds:
        return cls(**{item.name: getattr(settings, item.name) for item in fields(cls)})

    @property
    def taus(self) -> tuple[str, ...]:
        """The names of those that the policy uses."""
        return ("tau1", "tau2", "tau3") if self.policy is Policy.PREDICTIVE else TAUS

    def applied(self, settings: Settings) -> Settings:
        """The settings with these. Raises ValueError where they do not fit together."""
        return replace(settings, **{item.name: getattr(self, item.name) for item in fields(self)})


class Evaluate(Protocol):
    """Runs the simulations of one part of the trace. One outcome for each, in their order."""

    def __call__(self, candidates: Sequence[Thresholds], *, held_out: bool) -> list[Outcome]: ...


@dataclass(frozen=True, slots=True)
class Tried:
    """One choice of thresholds, and what came of it in the two parts."""

    thresholds: Thresholds
    searched: Outcome
    held_out: Outcome


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search came to."""

    present: Tried
    proposed: Tried | None
    """None: nothing was found that is cheaper in the first part, and no worse in the second."""
    tried: int
    vetoed: int
    """How many were cheaper in the first part and did not hold it in the second."""


def split(traffic: Traffic, held_out: float) -> tuple[Traffic, Traffic]:
    """The traffic's first part, and its last, which is this part of all; each has a step at least."""
    at = min(traffic.steps - 1, max(1, round(traffic.steps * (1 - held_out))))

    def part(of: slice) -> Traffic:
        left, right = (rates[of] for rates in traffic.rates)
        return Traffic(traffic.step_seconds, (left, right), traffic.skew[of], traffic.hot[of])

    return part(slice(None, at)), part(slice(at, None))


def tune(present: Settings, evaluate: Evaluate, loss: float = 0.0, told: Callable[[int], None] = lambda tried: None) -> Tuned:
    """The best thresholds for a trace, beside the present ones.

    ``loss``: the part of the input that may be lost, where that is more than is lost now. ``told`` hears how many were tried so far.
    O(some 200 simulations).
    """
    search = _Search(present, evaluate, loss, told)
    now = Thresholds.of(present)
    search.look([now])
    search.look(grid(present))
    for start in search.best(STARTS):
        _refine(search, start)
    first = search.found[now]
    better = [one for one in search.best(FINALISTS) if one != now and search.found[one].bill < (1 - LEAST_GAIN) * first.bill]
    before, *after = evaluate([now, *better], held_out=True)
    tried = [Tried(one, search.found[one], outcome) for one, outcome in zip(better, after, strict=True)]
    holding = [one for one in tried if one.held_out.bill <= before.bill and may_lose(one.held_out, before, loss)]
    vetoed = len(tried) if not holding else tried.index(holding[0])
    return Tuned(Tried(now, first, before), holding[0] if holding else None, len(search.found), vetoed)


def may_lose(outcome: Outcome, present: Outcome, loss: float) -> bool:
    """Whether no more is lost than now, or than may be."""
    return outcome.lost_tuples <= max(present.lost_tuples, loss * outcome.input_tuples)


def grid(present: Settings) -> list[Thresholds]:
    """Where the search begins: valid thresholds all over what is sensible, for each policy."""
    now = Thresholds.of(present)
    found: list[Thresholds] = []
    for policy in Policy:
        for tau2, gap in itertools.product((0.7, 0.8, MOST_TAU2), (LEAST_GAP, 0.1)):
            tau3 = tau2 + gap
            # As a rule, predictive does not go by tau1 either.
            parts = ((0.5, None),) if policy is Policy.PREDICTIVE else itertools.product((0.5, 0.75, 0.9), (0.5, 0.75, 0.9))
            for of_tau2, of_tau1 in parts:
                tau1 = of_tau2 * tau2
                taus = {"tau0": now.tau0 if of_tau1 is None else of_tau1 * tau1, "tau1": tau1, "tau2": tau2, "tau3": tau3}
                found += _valid(present, _with(replace(now, policy=policy), taus))
    return found


def _refine(search: _Search, start: Thresholds) -> None:
    """From one choice on, change one value at a time, as long as that helps; then by smaller steps."""
    here = start
    for tau_step, factor in zip(TAU_STEPS, WAIT_FACTORS, strict=True):
        for _ in range(ROUNDS):
            search.look(_neighbours(search.present, here, tau_step, factor))
            best = min(
                (one for one in (here, *_neighbours(search.present, here, tau_step, factor)) if search.is_allowed(one)),
                key=lambda one: search.found[one].bill,
                default=here,
            )
            if best == here:
                break
            here = best


def _neighbours(present: Settings, here: Thresholds, tau_step: float, factor: float) -> list[Thresholds]:
    found: list[Thresholds] = []
    for name in here.taus:
        for by in (-tau_step, tau_step):
            found += _valid(present, _with(here, {name: getattr(here, name) + by}))
    for by in (-tau_step, tau_step):
        found += _valid(present, _with(here, {"tau2": here.tau2 + by, "tau3": here.tau3 + by}))
    for name in ("scale_up_after", "scale_down_after"):
        for times in (1 / factor, factor):
            seconds = _round_seconds(getattr(here, name) * times)
            if SHORTEST_WAIT <= seconds <= LONGEST_WAIT:
                found += _valid(present, _with(here, {name: seconds}))
    return [one for one in found if one != here]


def _with(thresholds: Thresholds, values: Mapping[str, float]) -> Thresholds:
    """With other values, as a manifest would have them."""
    rounded: dict[str, Any] = {name: round(value, 2) for name, value in values.items()}
    return replace(thresholds, **rounded)


def _round_seconds(seconds: float) -> float:
    """As somebody would write it: in steps of 5 s, of a minute from ten minutes on."""
    step = 60 if seconds >= 600 else 5
    return float(max(step, step * round(seconds / step)))


def _valid(present: Settings, candidate: Thresholds) -> list[Thresholds]:
    """The candidate, if the manifest would take it."""
    gap = min(LEAST_GAP, present.tau3 - present.tau2)
    if candidate.tau2 > max(MOST_TAU2, present.tau2) or candidate.tau3 > max(MOST_TAU3, present.tau3):
        return []
    if candidate.tau3 - candidate.tau2 < gap - 1e-9:
        return []
    try:
        candidate.applied(present)
    except ValueError:
        return []
    return [candidate]


class _Search:
    """All that was simulated on the first part."""

    def __init__(self, present: Settings, evaluate: Evaluate, loss: float, told: Callable[[int], None]) -> None:
        self.present = present
        self.found: dict[Thresholds, Outcome] = {}
        self._evaluate, self._loss, self._told = evaluate, loss, told

    def look(self, candidates: Sequence[Thresholds]) -> None:
        """Simulate those that are new."""
        new = [one for one in dict.fromkeys(candidates) if one not in self.found]
        self.found |= zip(new, self._evaluate(new, held_out=False) if new else [], strict=True)
        self._told(len(self.found))

    def is_allowed(self, one: Thresholds) -> bool:
        return may_lose(self.found[one], self.found[Thresholds.of(self.present)], self._loss)

    def best(self, number: int) -> list[Thresholds]:
        """The cheapest that may be; of equally dear ones those that were looked at first."""
        return sorted((one for one in self.found if self.is_allowed(one)), key=lambda one: self.found[one].bill)[:number]


def frontier(outcomes: Sequence[Outcome]) -> list[bool]:
    """Of each outcome, whether no other needs fewer worker-hours without losing more, or loses less with no more. O(n log n)."""
    hours, lost = (np.array([getattr(one, name) for one in outcomes]) for name in ("worker_hours", "lost_tuples"))
    kept = [False] * len(outcomes)
    least = np.inf
    previous: tuple[float, float] | None = None
    for index in np.lexsort((lost, hours)):
        point = float(hours[index]), float(lost[index])
        kept[index] = point[1] < least or point == previous
        if point[1] < least:
            least, previous = point[1], point
    return kept
