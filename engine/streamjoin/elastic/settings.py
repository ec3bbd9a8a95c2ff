"""What the decision core is set to: thresholds, hold times, limits, and what each rule may do.

Always holds: ``0 < tau0 < tau1 < about_tau1 < tau2 < tau3 <= 1`` (ESJ, Eq. 1), and ``1 <= min_workers <= max_workers``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from streamjoin.elastic.quiet import WeeklyWindow, windows
from streamjoin.elastic.shedding import LEAST_KEPT, shed_factor
from streamjoin.elastic.shedding import MODELS as SHEDDING_MODELS
from streamjoin.elastic.vertical import Headroom
from streamjoin.manifest.capacity import capacity_in_tuples
from streamjoin.manifest.model import TAUS, Spec
from streamjoin.manifest.quantity import Duration


class Mode(StrEnum):
    """What becomes of a rule's decision."""

    ENFORCE = "Enforce"
    RECOMMEND = "Recommend"
    OFF = "Off"


class Policy(StrEnum):
    """What the rules go by, by the manifest's names (``spec.scaling.policy``)."""

    THRESHOLDS = "thresholds"
    """By tau0 and tau3 as they are measured, to about tau1."""
    ESJ = "esj"
    """As ESJ has them in print: one worker at a time, from tau3 down to about tau1, and from tau0 up to it or to the first number."""
    PREDICTIVE = "predictive"
    """By what the window is going to hold, to just below tau2; fewer workers as soon as idle ones have cost more than a change."""


class Rule(StrEnum):
    """The rules, by the manifest's names (``spec.scaling.rules``)."""

    ALLOCATE = "allocate"
    """Add workers when they are full."""
    DEALLOCATE = "deallocate"
    """Remove workers that are hardly used."""
    REPLAN = "replan"
    """Cut the join anew among as many workers, when some are much fuller than others or the streams' ratio moved."""
    KEEP_UP = "keepUp"
    """Add workers when the join falls behind its input, however empty they are."""
    SHED = "shed"
    """Drop a share of the tuples from tau2 on. It changes no plan; the engine carries it out (``spec.shedding``)."""
    VERTICAL = "vertical"
    """Give workers more memory where ``allocate`` wants more of them and that is cheaper (``spec.scaling.vertical``); no plan changes."""


OF_WORKERS = (Rule.ALLOCATE, Rule.DEALLOCATE, Rule.REPLAN, Rule.KEEP_UP)
"""The rules that may change the plan."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How complete results are to be (``spec.scaling.budget``)."""

    share: float
    over_seconds: float

    @property
    def words(self) -> str:
        return f"{self.share:.6%}".rstrip("%").rstrip("0").rstrip(".") + f" % over {Duration(round(self.over_seconds * 1e6))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Thresholds of tau, in parts of a worker's capacity; times in seconds. Raises ValueError naming the field of the manifest."""

    tau0: float = 0.2
    tau1: float = 0.4
    tau2: float = 0.8
    tau3: float = 0.9
    scale_up_after: float = 30.0
    """How long tau must stay at or above tau3; imbalance, a moved ratio and falling behind must last as long."""
    scale_down_after: float = 600.0
    """How long tau must stay at or below tau0."""
    min_workers: int = 1
    max_workers: int = 8
    capacity_tuples: float = 2_000_000.0
    """W; where the manifest has it in bytes, of tuples as wide as the schemas say."""
    interval_seconds: float = 1.0
    """From one epoch's start to the next one's."""
    policy: Policy = Policy.PREDICTIVE
    window_seconds: tuple[float, float] | None = None
    """For how long a left, and a right, tuple is held; infinite in a window without end. None: no time says how many are held."""
    start_seconds: float = 60.0
    """What a worker takes to start, with the state that moves to it, as long as nobody has measured it (``Ledger.start_seconds``)."""
    mode: Mode = Mode.ENFORCE
    rules: Mapping[Rule, Mode] = field(default_factory=dict)
    """By rule, where it differs from ``mode``."""
    shedding_model: str = "off"
    shedding_base: float = 0.0
    budget: Budget | None = None
    """None: a full worker is relieved at any price."""
    shedding_mode: Mode = Mode.ENFORCE
    vertical: Mode = Mode.OFF
    headroom: Headroom | None = None
    """How much larger workers may become. None: nobody can make them so, as on a laptop."""
    quiet: tuple[WeeklyWindow, ...] = ()
    max_per_hour: int = 0
    """Changes of the plan; 0: any number."""
    clock_offset: float = 0.0
    """To add to the samples' times for seconds since 1970, where they are by another clock, as a simulation's."""
    stale_after: float = 60.0
    """Samples further apart than this, or older, say nothing of the time between; never less than three intervals."""
    imbalance: float = 1.5
    """From this much of the mean on, the fullest worker's tau is an imbalance."""
    ratio_factor: float = 2.0
    """By this factor the streams' ratio must have moved from that which the plan was made for."""
    gain: float = 0.1
    """A re-plan must lower the fullest worker's tau by this part of it."""
    busy_target: float = 0.8
    """The part of the interval that an epoch may take after workers were removed."""
    busy_idle: float = 0.3
    """At most this part of the interval is taken to be an epoch's fixed cost, which fewer workers do not make longer."""
    catch_up_seconds: float = 600.0
    """In how long a join that has fallen behind should have worked off what waits."""
    rising: float = 0.25
    """Held tuples that grew by this part within ``scale_down_after`` are rising: a window that fills, or a morning."""

    def __post_init__(self) -> None:  # noqa: C901
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float | int) and not isinstance(value, bool) and not math.isfinite(value):
                raise ValueError(f"{field_of(item.name)}: {value} must be a finite number")
        for low, high in itertools.pairwise(TAUS):
            value, above = getattr(self, low), getattr(self, high)
            if not 0 < value < above <= 1:
                raise ValueError(f"{field_of(low)}: {value:g} must be above 0 and below {high} ({above:g}), which is at most 1")
        if not 0 <= self.max_per_hour <= MOST_PER_HOUR:
            raise ValueError(f"spec.scaling.maxPerHour: {self.max_per_hour} must be from 0 to {MOST_PER_HOUR}")
        if not 1 <= self.min_workers <= self.max_workers:
            raise ValueError(f"spec.workers.min: {self.min_workers} must be at least 1 and at most max ({self.max_workers})")
        for name in ("scale_up_after", "scale_down_after", "start_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{field_of(name)}: {getattr(self, name):g} must not be negative")
        for name in ("capacity_tuples", "interval_seconds", "stale_after", "busy_target", "catch_up_seconds", "rising"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{field_of(name)}: {getattr(self, name):g} must be positive")
        for name in ("imbalance", "ratio_factor"):
            if not getattr(self, name) > 1:
                raise ValueError(f"{name}: {getattr(self, name):g} must be above 1")
        if not 0 <= self.gain < 1:
            raise ValueError(f"gain: {self.gain:g} must be at least 0 and below 1")
        if not 0 <= self.busy_idle < self.busy_target:
            raise ValueError(f"busy_idle: {self.busy_idle:g} must be at least 0 and below busy_target ({self.busy_target:g})")
        if self.shedding_model not in SHEDDING_MODELS or not 0 <= self.shedding_base <= 1:
            choices = ", ".join(SHEDDING_MODELS)
            raise ValueError(f"spec.shedding: {self.shedding_model!r} from {self.shedding_base:g} must be one of {choices}, from 0 to 1")

    @property
    def about_tau1(self) -> float:
        """What "about tau1" is: a tenth above it, and never more than half-way to tau2."""
        return min(1.1 * self.tau1, (self.tau1 + self.tau2) / 2)

    @property
    def stale_seconds(self) -> float:
        """From which age on a sample is stale."""
        return max(self.stale_after, 3 * self.interval_seconds)

    def quiet_at(self, at: float) -> WeeklyWindow | None:
        """The window that a time is in; ``at``: by the samples' clock."""
        return next((window for window in self.quiet if window.contains(at + self.clock_offset)), None)

    @property
    def is_predictive(self) -> bool:
        return self.policy is Policy.PREDICTIVE

    @property
    def level(self) -> float:
        """How full the fullest worker may be after a change: about tau1, or as much below tau2 as tau3 is above it."""
        return max(self.about_tau1, 2 * self.tau2 - self.tau3) if self.is_predictive else self.about_tau1

    def mode_of(self, rule: Rule) -> Mode:
        if rule is Rule.SHED:
            return Mode.OFF if self.shedding_model == "off" else self.shedding_mode
        if rule is Rule.VERTICAL:
            return Mode.OFF if self.headroom is None else self.vertical
        # ESJ has no other rules than these two; whoever wants one names it.
        is_esj = self.policy is not Policy.ESJ or rule in (Rule.ALLOCATE, Rule.DEALLOCATE)
        return self.rules.get(rule, self.mode if is_esj else Mode.OFF)

    @property
    def is_off(self) -> bool:
        """Whether no rule has a say about the plan."""
        return all(self.mode_of(rule) is Mode.OFF for rule in OF_WORKERS)

    @property
    def sheds(self) -> bool:
        """Whether tuples are dropped from tau2 on."""
        return self.mode_of(Rule.SHED) is Mode.ENFORCE

    def shed_factor(self, tau: float) -> float:
        """The part of its tuples that a worker at ``tau`` is not sent, or, where that is only recommended, would not be."""
        return shed_factor(self.shedding_model, self.shedding_base, self.tau2, tau)

    def unshed(self, tau: float) -> float:
        """How full a worker that has settled at ``tau`` would be if it shed nothing: tau / (1 - SF), of which it holds 1 - SF."""
        kept = 1 - self.shed_factor(tau) if self.sheds else 1.0
        return tau / max(LEAST_KEPT, kept)

    @classmethod
    def of(
        cls,
        spec: Spec,
        first_workers: int = 0,
        *,
        capacity_tuples: float | None = None,
        window_seconds: tuple[float, float] | None = None,
    ) -> Settings:
        """What a valid manifest says; ``first_workers``: of the join's first plan, 0 where they are not known; ``capacity_tuples``: as a
        :class:`streamjoin.job.Job` has them, where there is one, which saves parsing; ``window_seconds``: as a Job has them."""
        scaling, workers = spec.scaling, spec.workers
        # ESJ removes workers "until tau rises to tau1 around or m = M", which is the first number.
        is_initial = scaling.floor == "initial" or scaling.policy == "esj"
        least = min(max(workers.min, first_workers), workers.max) if is_initial else workers.min
        given = {rule: getattr(scaling.rules, name) for rule, name in _RULE_FIELDS.items()}
        return cls(
            tau0=scaling.tau0,
            tau1=scaling.target,
            tau2=scaling.tau2,
            tau3=scaling.tau3,
            scale_up_after=scaling.scale_up_after.micros / 1e6,
            scale_down_after=scaling.scale_down_after.micros / 1e6,
            min_workers=least,
            max_workers=workers.max,
            capacity_tuples=float(capacity_in_tuples(spec) if capacity_tuples is None else capacity_tuples),
            interval_seconds=max(LEAST_INTERVAL_SECONDS, spec.epoch.interval.micros / 1e6),
            policy=Policy(scaling.policy),
            window_seconds=window_seconds,
            mode=Mode(scaling.mode),
            rules={rule: Mode(mode) for rule, mode in given.items() if mode is not None},
            quiet=windows(scaling.quiet),
            max_per_hour=scaling.max_per_hour,
            shedding_model=spec.shedding.model,
            shedding_base=spec.shedding.base,
            budget=None if scaling.budget is None else Budget(scaling.budget.share, scaling.budget.over.micros / 1e6),
            shedding_mode=Mode(spec.shedding.mode),
            vertical=Mode(scaling.vertical),
        )


MOST_PER_HOUR = 60
LEAST_INTERVAL_SECONDS = 0.1
"""What epochs may take where their interval is shorter, down to 0s: they are as long as what has come meanwhile makes them."""

_RULE_FIELDS = {Rule.ALLOCATE: "allocate", Rule.DEALLOCATE: "deallocate", Rule.REPLAN: "replan", Rule.KEEP_UP: "keep_up"}

_FIELDS = {
    "scale_up_after": "spec.scaling.scaleUpAfter",
    "scale_down_after": "spec.scaling.scaleDownAfter",
    "capacity_tuples": "spec.workers.capacityTuples",
    "interval_seconds": "spec.epoch.interval",
    "min_workers": "spec.workers.min",
    "max_workers": "spec.workers.max",
    "shedding_base": "spec.shedding.base",
}


def field_of(name: str) -> str:
    """Where the manifest has a setting."""
    return f"spec.scaling.{name}" if name.startswith("tau") else _FIELDS.get(name, name)
