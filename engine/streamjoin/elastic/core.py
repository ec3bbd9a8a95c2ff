"""The decision core: samples and what happened in, decisions out. It knows no clock, no I/O and no Kubernetes.

:meth:`DecisionCore.handle` is the only thing that changes it; :meth:`DecisionCore.decide` changes nothing, so that it may be asked at any
time and as often as one likes, and a decision that was not carried out is simply made again (level-triggered).

Always holds, whatever comes in:

- Samples that are older than the last change, or of another generation, do not count.
- Only sound, fresh samples remove workers: none that misses a number, is partial, has a NaN, an infinity or a negative number, or is not
  confirmed. Workers may be added by one that nobody confirms: too many cost money, too few lose tuples.
- Workers that are starting count as capacity; those that have not been needed for ``scale_up_after`` are not asked for any more. While
  state migrates nothing is decided.
- Within quiet windows, and once there were ``max_per_hour`` changes within an hour, none is begun, but to bring the workers within their
  limits, and where tuples are being lost.
- With a budget for what may be lost, a full worker is relieved at any price only when the budget is about to be spent.
- No workers are removed while tuples are shed, while the join falls behind or its window fills, nor when tau would exceed tau2 afterwards.
- Under constant load, with forecasts that come true, there is at most one change; by the policy ``predictive``, only changes one way.

The rules themselves are in ``rules``; what is remembered for them in ``state``. After dask.distributed's ``worker_state_machine`` (a pure
state machine in a thin shell, here ``autoscaler``) and Flink's autoscaler (every refusal a result with a reason).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from streamjoin.elastic.arbitration import Prices
from streamjoin.elastic.decision import Decision
from streamjoin.elastic.esj import course_after
from streamjoin.elastic.events import (
    Event,
    LimitsSet,
    MigrationBegun,
    MigrationFinished,
    Paused,
    PlanApplied,
    Resumed,
    SettingsChanged,
    Suspended,
    Unpaused,
)
from streamjoin.elastic.forecast import Forecast
from streamjoin.elastic.rules.decide import decide
from streamjoin.elastic.rules.lookahead import ahead, budget_ends, expected_tau, full_tau
from streamjoin.elastic.rules.review import Review
from streamjoin.elastic.sample import Reading, Sample, read
from streamjoin.elastic.settings import MOST_PER_HOUR, Policy, Settings
from streamjoin.elastic.state import Attempt, Behind, Course, Hold, State
from streamjoin.elastic.state_forecast import LONGEST_GAP_SECONDS


class DecisionCore:
    """Decides for one join. Not thread-safe."""

    def __init__(self, settings: Settings, *, at: float, generation: int, workers: int, prices: Prices | None = None) -> None:
        """``generation`` and ``workers`` are those of the plan that runs since ``at``. Raises ValueError for fewer than one worker."""
        self.settings = settings
        self.prices = prices or Prices()
        self._state = State(_count("generation", generation, 0), _count("workers", workers, 1), _finite(at))

    def handle(self, event: Event) -> None:
        """Take in a sample or an event. Raises ValueError for a time that is no number, or limits that contradict each other."""
        state = self._state
        match event:
            case Sample():
                self._take(event)
            case PlanApplied(at, generation, workers):
                self._apply(_finite(at), _count("generation", generation, 0), _count("workers", workers, 1))
            case MigrationBegun(_, workers):
                state.migrating_to = _count("workers", workers, 1)
            case MigrationFinished():
                state.migrating_to = None
            case Suspended():
                state.suspended = True
                state.course = None
            case Resumed(at):
                # What was measured before the pause is no evidence for what comes after it.
                state.suspended = False
                state.forget_samples()
                state.changed_at = max(state.changed_at, _finite(at))
            case Paused(_, by):
                state.paused = by
            case Unpaused():
                state.paused = None
            case LimitsSet(_, floor, ceiling):
                self._limit(floor, ceiling)
            case SettingsChanged(_, settings):
                self.settings = settings
                # Other thresholds: what has lasted under the old ones says nothing about these.
                state.forget_samples()
                state.course = None

    def decide(self, now: float, forecast: Forecast | None = None) -> Decision:
        """What to do at ``now``. Asks ``forecast`` about O(log max_workers) numbers of workers, and only when a rule wants to act.

        Without a forecast an analytic one is made of the last sample. Raises ValueError when ``now`` is no number.
        """
        return decide(Review(self._state, self.settings, self.prices, _finite(now), forecast))

    @property
    def generation(self) -> int:
        """Of the plan that runs."""
        return self._state.generation

    @property
    def workers(self) -> int:
        """Of the plan that runs."""
        return self._state.workers

    @property
    def ignored(self) -> str | None:
        """Why the last sample did not count; None when it did."""
        return self._state.ignored

    @property
    def looks_soon(self) -> bool:
        """Whether the next sample may be the one by which workers are added: a worker is full, or rates have jumped, and has to last."""
        state, settings = self._state, self.settings
        if state.latest is None or state.migrating_to is not None or state.paused is not None or state.suspended:
            return False
        at, jumps = state.latest.taken_at, state.rate_shifts
        is_full = state.full is not None and at - state.full.since < settings.scale_up_after
        return is_full or (jumps.since is not None and jumps.believed(at) is None)

    def validate_state(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        self._state.validate()

    def to_json(self) -> dict[str, Any]:
        """The state as plain data, for the checkpoint. Settings and prices are the manifest's and not in it."""
        return self._state.to_json()

    @classmethod
    def from_json(cls, settings: Settings, data: Mapping[str, Any], prices: Prices | None = None) -> DecisionCore:
        """The core with this state. Raises ValueError when it cannot be read."""
        state = State.from_json(data)
        core = cls(settings, at=state.changed_at, generation=state.generation, workers=state.workers, prices=prices)
        core._state = state
        return core

    def _take(self, sample: Sample) -> None:
        state = self._state
        state.ignored = self._why_ignored(sample)
        if state.ignored is None:
            reading = read(sample, state.workers)
            self._remember(reading)
            state.latest = reading

    def _why_ignored(self, sample: Sample) -> str | None:
        state = self._state
        if not (isinstance(sample.taken_at, float | int) and math.isfinite(sample.taken_at)):
            return f"it was taken at {sample.taken_at!r}"
        if sample.generation != state.generation:
            return f"it is of plan {sample.generation}, and plan {state.generation} runs"
        if sample.taken_at <= state.changed_at:
            return "it is older than the last change"
        if state.latest is not None and sample.taken_at <= state.latest.taken_at:
            return "a younger one has come already"
        return None

    def _remember(self, reading: Reading) -> None:  # noqa: C901
        """Carry each condition's hold on, or end it. A reading that cannot tell does neither."""
        state, settings = self._state, self.settings
        at = reading.taken_at
        # Long epochs give samples far apart; that must not keep a full join from growing. For shrinking there is no such excuse.
        gap = settings.stale_seconds + 2 * (reading.epoch_seconds or 0.0)
        tau_max, tau_mean = reading.tau_max, reading.tau_mean

        left, right = reading.held
        left_rate, right_rate = reading.rates
        if left is not None and right is not None and left_rate is not None and right_rate is not None:
            rates = left_rate / reading.pace, right_rate / reading.pace
            if settings.is_predictive:
                if state.state_forecast.at is None or at - state.state_forecast.at > LONGEST_GAP_SECONDS:
                    state.rate_shifts.forget()
                else:
                    state.rate_shifts.observe(at, rates, state.state_forecast.rates, ahead(settings))
                state.rate_trend.observe(at, rates)
            state.state_forecast.observe(at, (left / reading.kept, right / reading.kept), rates, reading.pace)
            if settings.is_predictive:
                state.seasonality.observe(at, rates)
            if state.idle_periods.at is not None and at - state.idle_periods.at > LONGEST_GAP_SECONDS:
                state.idle_periods.forget()
            state.idle_periods.observe(at, (left + right) / reading.kept, settings.tau2 / settings.level)

        if settings.is_predictive and tau_max is not None and reading.complete:
            now = settings.unshed(tau_max)
            total = sum(state.state_forecast.held)
            if state.state_forecast.at == at and total > 0:
                state.trend.observe(at, now / total)
            missed = state.trend.came_true(at, now)
            if missed is not None:
                state.state_forecast.learn(missed)
            state.trend.foresee(at + ahead(settings), expected_tau(state, settings, tau_max))
        # Shedding keeps tau from reaching tau3: what would be without it counts, or the join would shed for ever and never grow.
        if tau_max is not None and expected_tau(state, settings, tau_max) >= full_tau(state, settings):
            state.full, state.eased = _extend(state.full, at, gap), None
        elif reading.complete:
            state.full, state.eased = None, _extend(state.eased, at, settings.stale_seconds)

        sheds = tau_max is not None and tau_max >= settings.tau2 and (reading.shed_fraction or 0) > 0
        if sheds and budget_ends(settings, reading):
            state.spending = _extend(state.spending, at, gap)
        elif reading.complete:
            state.spending = None

        # ESJ has one tau: where the fullest worker is idle, all are.
        idle, used = (tau_max, tau_max or 0.0) if settings.policy is Policy.ESJ else (tau_mean, reading.least_mean)
        if reading.sound and idle is not None and idle <= settings.tau0:
            state.unused = _extend(state.unused, at, settings.stale_seconds)
        elif reading.sound or used > settings.tau0:
            state.unused = None
        state.course = course_after(state, settings, reading)

        if tau_max is not None and tau_mean is not None:
            if tau_max >= settings.imbalance * tau_mean and tau_max >= settings.tau1:
                state.uneven = _extend(state.uneven, at, gap)
            else:
                state.uneven, state.replans = None, 0

        ratio = reading.log_ratio
        if ratio is not None:
            if state.planned_log_ratio is None:
                state.planned_log_ratio = ratio
            moved = abs(ratio - state.planned_log_ratio) >= math.log(settings.ratio_factor)
            state.ratio = _extend(state.ratio, at, gap) if moved else None

        self._remember_pace(reading, gap)
        seconds, rate = reading.epoch_seconds, reading.rate
        if not reading.problems and reading.demand is not None and seconds is not None and rate is not None:
            state.peaks.add(at, state.damping.must_idle(settings.scale_down_after), reading.demand, seconds, rate)
            state.quickest = seconds if state.quickest is None else min(state.quickest, seconds)

    def _remember_pace(self, reading: Reading, gap: float) -> None:
        state = self._state
        seconds, backlog, at = reading.epoch_seconds, reading.backlog_records, reading.taken_at
        if seconds is None or backlog is None:
            return
        if seconds <= self.settings.interval_seconds:
            state.behind = state.attempt = None
        elif state.behind is None or backlog < state.behind.backlog or at - state.behind.until > gap:
            state.behind = Behind(at, at, backlog)
        else:
            state.behind = Behind(state.behind.since, at, state.behind.backlog)

    def _apply(self, at: float, generation: int, workers: int) -> None:
        state = self._state
        if generation == state.generation and workers == state.workers:
            return
        latest = state.latest
        if workers > state.workers and state.behind is not None and latest is not None and latest.rate is not None:
            state.attempt = state.outrun = Attempt(state.workers, workers, latest.rate)
        elif workers < state.workers:
            state.attempt = None
        if self.settings.policy is Policy.THRESHOLDS:
            state.damping.changed(at, workers, state.workers, self.settings.scale_down_after)
        if workers == state.workers and state.uneven is not None:
            state.replans += 1
        against = Course.DOWN if workers > state.workers else Course.UP
        if workers != state.workers and state.course is against:
            state.course = None
        state.generation, state.workers, state.changed_at = generation, workers, max(at, state.changed_at)
        state.changes = [*state.changes, at][-MOST_PER_HOUR:]
        state.ignored = None
        state.forget_samples()

    def _limit(self, floor: int | None, ceiling: int | None) -> None:
        for name, value in (("floor", floor), ("ceiling", ceiling)):
            if value is not None:
                _count(name, value, 1)
        if floor is not None and ceiling is not None and floor > ceiling:
            raise ValueError(f"floor: {floor} must be at most ceiling ({ceiling})")
        self._state.floor, self._state.ceiling = floor, ceiling


def _extend(hold: Hold | None, at: float, gap: float) -> Hold:
    return Hold(at, at) if hold is None or at - hold.until > gap else Hold(hold.since, at)


def _finite(at: float) -> float:
    if isinstance(at, bool) or not isinstance(at, float | int) or not math.isfinite(at):
        raise ValueError(f"at: {at!r} must be a time in seconds")
    return float(at)


def _count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: {value!r} must be a whole number, at least {least}")
    return value
