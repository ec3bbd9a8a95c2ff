"""Who could scale the join: this project's core, and for comparison HPA's rule, Flink's autoscaler's rule, and one that knows the future.

HPA and Flink's autoscaler know neither windows nor replication: they take load to be in proportion to 1 / workers, and they neither cut the
join anew at the same size nor know that a window keeps what came before. Each is the documented rule, with its documented defaults:

- HPA: https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/, and the defaults of ``behavior`` in
  autoscaling/v2.
- Flink: https://nightlies.apache.org/flink/flink-kubernetes-operator-docs-main/docs/custom-resource/autoscaler/, and the formulas of
  ``AutoScalerUtils.getTargetProcessingCapacity``, ``JobVertexScaler`` and ``ScalingMetricEvaluator``.

Both aim at tau1, so that all have the same goal.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from streamjoin.elastic.forecast import AnalyticForecast, load_of
from streamjoin.elastic.ledger import Ledger, Realised
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Settings
from streamjoin.elastic.shell import Progress, Shell
from streamjoin.simulation.run import HOT_WIDTH, Ask, SimulatedJoin
from streamjoin.simulation.traffic import Traffic

Array = np.ndarray[Any, np.dtype[Any]]


class StreamJoin:
    """The decision core, as the autoscaler runs it."""

    name = "streamjoin"

    def __init__(self, join: SimulatedJoin) -> None:
        self.ledger = Ledger()
        self._shell, self._settings = Shell(self.ledger, join.prices), join.settings

    def step(self, now: float, sample: Sample, forecast: AnalyticForecast) -> Ask | None:
        if self._shell.core is None:
            # The plan is as old as the simulation, or the first sample would count as taken before it.
            self._shell.follow(0.0, self._settings, Progress(sample.generation, sample.workers, None, None))
        self._shell.take(sample)
        decision = self._shell.decide(now, forecast)
        return Ask(decision.target) if decision.enforced else None

    def begun(self, now: float, workers: int) -> None:
        core = self._shell.core
        if core is not None:
            self._shell.follow(now, self._settings, Progress(core.generation, core.workers, workers, None))

    def applied(self, now: float, generation: int, workers: int, moved_tuples: float, pause_seconds: float) -> None:
        realised = Realised(now, generation, None, moved_tuples, pause_seconds)
        self._shell.follow(now, self._settings, Progress(generation, workers, None, realised), realised)


class Hpa:
    """Kubernetes' HorizontalPodAutoscaler on the mean tau, once every sync period."""

    name = "HPA"

    sync_seconds = 15.0
    tolerance = 0.1
    down_window_seconds = 300.0
    """``behavior.scaleDown.stabilizationWindowSeconds``."""
    policy_seconds = 15.0
    """The period of the default policies: at most twice as many pods, or four more, whichever are more; down to any number."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._synced_at = -math.inf
        self._recommended: deque[tuple[float, int]] = deque()
        self._added: deque[tuple[float, int]] = deque()
        """When the number went up, and by how many."""

    def step(self, now: float, sample: Sample, forecast: AnalyticForecast) -> Ask | None:
        if now - self._synced_at < self.sync_seconds:
            return None
        self._synced_at = now
        settings, pods = self._settings, sample.workers + sample.starting
        desired = self._desired(sample, pods)
        self._recommended.append((now, desired))
        while self._recommended[0][0] <= now - self.down_window_seconds:
            self._recommended.popleft()
        if desired < pods:
            # The highest recommendation of the window, and never more than there are.
            desired = min(pods, max(workers for _, workers in self._recommended))
        while self._added and self._added[0][0] <= now - self.policy_seconds:
            self._added.popleft()
        before = pods - sum(added for _, added in self._added)
        desired = min(desired, max(2 * before, before + 4))
        desired = max(settings.min_workers, min(settings.max_workers, desired))
        if desired == pods or sample.migrating:
            return None
        if desired > pods:
            self._added.append((now, desired - pods))
        return Ask(desired)

    def _desired(self, sample: Sample, pods: int) -> int:
        """desiredReplicas = ceil(currentReplicas * currentMetricValue / desiredMetricValue); no change within the tolerance."""
        target = self._settings.tau1
        total = math.fsum(tau for tau in sample.tau.values() if tau is not None)
        ratio = total / sample.workers / target
        if abs(ratio - 1) <= self.tolerance:
            return pods
        if ratio > 1 and sample.starting:
            # Pods that are not ready yet are taken to use nothing, which may turn the tide: then nothing changes.
            ratio = total / pods / target
            if ratio <= 1 + self.tolerance:
                return pods
            return math.ceil(pods * ratio)
        return math.ceil(sample.workers * ratio)

    def begun(self, now: float, workers: int) -> None:
        """A pod autoscaler is not told."""

    def applied(self, now: float, generation: int, workers: int, moved_tuples: float, pause_seconds: float) -> None:
        """A pod autoscaler is not told."""


class FlinkAutoscaler:
    """The autoscaler of Flink's Kubernetes operator, with the whole join as one vertex.

    What a task is busy with is here what it holds: load = the mean tau, or the part of the time that it works, whichever is more. From
    it follows the true processing rate, rate / load. Utilization: target tau1, at least tau0, at most tau3.
    """

    name = "Flink autoscaler"

    window_seconds = 900.0
    """``metrics.window``."""
    stabilization_seconds = 300.0
    """``stabilization.interval``."""
    catch_up_seconds = 1800.0
    """``catch-up.duration``."""
    down_seconds = 3600.0
    """``scale-down.interval``."""
    most_down = 0.6
    """``scale-down.max-factor``."""
    backlog_seconds = 300.0
    """``backlog-processing.lag-threshold``."""

    def __init__(self, settings: Settings, restart_seconds: float) -> None:
        self._settings, self._restart_seconds = settings, restart_seconds
        self._changed_at = 0.0
        self._window: deque[tuple[float, float, float, float]] = deque()
        """Time, rate, load, backlog."""
        self._sums = [0.0, 0.0]
        self._down_since: float | None = None
        self._down: deque[tuple[float, int]] = deque()

    def step(self, now: float, sample: Sample, forecast: AnalyticForecast) -> Ask | None:
        if now - self._changed_at < self.stabilization_seconds or sample.starting or sample.migrating:
            return None
        self._observe(now, sample)
        if now - self._window[0][0] < self.window_seconds - 1e-9:
            return None
        workers = sample.workers
        wanted = self._wanted(workers)
        if wanted is None or wanted == workers:
            self._down_since = None
            self._down.clear()
            return None
        if wanted > workers:
            self._down_since = None
            self._down.clear()
            return Ask(wanted)
        self._down_since = now if self._down_since is None else self._down_since
        self._down.append((now, wanted))
        while self._down[0][0] < now - self.down_seconds:
            self._down.popleft()
        if now - self._down_since < self.down_seconds:
            return None
        # The largest parallelism recommended in the interval.
        return Ask(max(parallelism for _, parallelism in self._down))

    def _observe(self, now: float, sample: Sample) -> None:
        left, right = sample.rates
        mean = math.fsum(tau for tau in sample.tau.values() if tau is not None) / sample.workers
        busy = min(1.0, (sample.epoch_seconds or 0.0) / self._settings.interval_seconds)
        entry = (now, (left or 0.0) + (right or 0.0), max(mean, busy), sample.backlog_records or 0.0)
        self._window.append(entry)
        self._sums = [self._sums[0] + entry[1], self._sums[1] + entry[2]]
        while self._window[0][0] < now - self.window_seconds:
            _, rate, load, _ = self._window.popleft()
            self._sums = [self._sums[0] - rate, self._sums[1] - load]

    def _wanted(self, workers: int) -> int | None:
        """The parallelism that the metrics window asks for; None while the utilization is within its bounds."""
        settings, count = self._settings, len(self._window)
        taken, load, lag = self._sums[0] / count, self._sums[1] / count, self._window[-1][3]
        if load <= 0 or taken <= 0:
            return None
        # Ingestion rate: what is read, and by how much the lag grows.
        first, last = self._window[0], self._window[-1]
        rate = max(0.0, taken + (last[3] - first[3]) / max(1e-9, last[0] - first[0]))
        true_rate = taken / load
        catch_up = lag / self.catch_up_seconds
        backlog = lag / taken > self.backlog_seconds
        upper, lower = (1.0, 0.0) if backlog else (settings.tau3, settings.tau0)
        restart = rate * self._restart_seconds / self.catch_up_seconds
        up = catch_up + rate / upper
        down = math.inf if lower == 0 else catch_up + restart + rate / lower
        if up <= true_rate <= down:
            return None
        # Target = LAG/CATCH_UP + INPUT_RATE*RESTART/CATCH_UP + INPUT_RATE/TARGET_UTIL
        factor = max(1 - self.most_down, (catch_up + restart + rate / settings.tau1) / true_rate)
        return max(settings.min_workers, min(settings.max_workers, math.ceil(factor * workers - 1e-9)))

    def begun(self, now: float, workers: int) -> None:
        """A restart: its metrics are not looked at."""

    def applied(self, now: float, generation: int, workers: int, moved_tuples: float, pause_seconds: float) -> None:
        self._changed_at = now
        self._window.clear()
        self._sums = [0.0, 0.0]
        self._down_since = None
        self._down.clear()


class Clairvoyant:
    """Knows all of the traffic: always the fewest workers that stay just below tau2, and those in time.

    As it needs no reserve it fills workers to tau2, not to tau1. It does not look past the next ten minutes to save changes: its
    worker-hours are a bound for the others', not what it moves.
    """

    name = "clairvoyant"

    ahead_seconds = 600.0
    """For a need that comes back this soon no worker is given away."""

    def __init__(self, join: SimulatedJoin, traffic: Traffic) -> None:
        self._join, self._traffic = join, traffic
        self._level = 0.98 * join.settings.tau2
        step = traffic.step_seconds
        self._held = tuple(
            held_by_window(rates * step, span / step, join.most_held)
            for rates, span in zip(traffic.rates, join.window_seconds, strict=True)
        )
        need = needs(self._held[0], self._held[1], join, self._level)
        prices = join.prices
        # As long as workers take to start, and, at the worst, a whole worker's tuples to move.
        moving = join.settings.capacity_tuples * prices.tuple_bytes / prices.bytes_per_second
        lead = math.ceil((join.start_seconds + moving + prices.switch_seconds) / step) + 2
        self._lead = lead
        self._soon = largest_ahead(need, lead)
        self._later = largest_ahead(need, max(lead, math.ceil(self.ahead_seconds / step)))
        self._index = -1
        self._changed_at = -math.inf

    def step(self, now: float, sample: Sample, forecast: AnalyticForecast) -> Ask | None:
        self._index = index = min(self._index + 1, len(self._soon) - 1)
        workers = sample.workers + sample.starting
        if self._soon[index] > workers:
            return Ask(int(self._later[index]))
        if self._later[index] < workers and not sample.starting:
            return Ask(int(self._later[index]))
        # The plan that runs may not last as long as its number of workers.
        soon = min(index + self._lead, len(self._soon) - 1)
        grid = forecast.grid
        assert grid is not None
        loads = [
            load_of(grid, sample.workers, float(self._held[0][at]), float(self._held[1][at]), self._join.share) for at in (index, soon)
        ]
        full = self._level * self._join.settings.capacity_tuples * 1.01
        fullest = max(tau for tau in sample.tau.values() if tau is not None)
        worn = max(*loads, fullest * self._join.settings.capacity_tuples) > full and now - self._changed_at > self.ahead_seconds
        hot, skew = self._traffic.hot, self._traffic.skew
        moved = abs(float(hot[index]) - float(hot[max(0, index - 1)])) > HOT_WIDTH / 2 or skew[index] > 1.05 * skew[max(0, index - 1)]
        if (worn or moved) and not sample.starting:
            return Ask(sample.workers)
        return None

    def begun(self, now: float, workers: int) -> None:
        """It knew."""

    def applied(self, now: float, generation: int, workers: int, moved_tuples: float, pause_seconds: float) -> None:
        self._changed_at = now


def held_by_window(tuples: Array, span_steps: float, most: float) -> Array:
    """What a window holds after each step when nothing is shed and nothing waits: float64, one per step."""
    sums = np.concatenate([[0.0], np.cumsum(tuples)])
    if math.isinf(span_steps):
        return np.full(len(tuples), most) if math.isfinite(most) else sums[1:]
    # Before the first step the first one's rate is taken to have lasted for ever, as in the simulation.
    at = np.arange(1, len(sums)) - span_steps
    before = np.where(at < 0, at * tuples[0], np.interp(at, np.arange(len(sums)), sums))
    return np.asarray(sums[1:] - before)


def needs(left: Array, right: Array, join: SimulatedJoin, level: float) -> Array:
    """The fewest workers at this tau, for arrays of held tuples: int64, within the limits. O(entries * max_workers).

    Of a grid with ``rows`` rows each worker has room for capacity - left / rows tuples of the right stream, which gives the columns.
    """
    settings = join.settings
    room = level * settings.capacity_tuples
    whole = np.ceil((left + right) / room - 1e-9)
    best = np.full(left.shape, float(settings.max_workers))
    grid_room = room / math.sqrt(join.share) if join.share > 0 else math.inf
    for rows in range(1, settings.max_workers + 1):
        rest = grid_room - left / rows
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = np.where(rest > 0, np.maximum(1, np.ceil(right / np.maximum(rest, 1e-300) - 1e-9)), np.inf)
        best = np.minimum(best, rows * columns)
        if rows >= best.max():
            break
    return np.asarray(np.clip(np.maximum(best, whole), settings.min_workers, settings.max_workers).astype(np.int64))


def largest_ahead(values: Array, steps: int) -> Array:
    """The largest of this entry and the next ``steps``. O(entries * log steps)."""
    found, reach = values.copy(), 1
    while reach < steps + 1:
        by = min(reach, steps + 1 - reach)
        shifted = np.concatenate([found[by:], np.full(by, found[-1])])[: len(found)]
        found = np.maximum(found, shifted)
        reach += by
    return found
