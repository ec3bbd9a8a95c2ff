"""Who could scale the join: this project's autoscaler, and for comparison HPA's rule and Flink's autoscaler's rule.

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
from dataclasses import replace

from streamjoin.elastic.autoscaler import Autoscaler
from streamjoin.elastic.forecast import AnalyticForecast
from streamjoin.elastic.ledger import Ledger, Realised
from streamjoin.elastic.ports import Collected, Outcome, Progress, ScalingPorts, Wish, finished
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Settings
from streamjoin.simulation.run import Ask, SimulatedJoin


class StreamJoin(ScalingPorts):
    """The autoscaler, as it is; the simulated join is its ports."""

    name = "streamjoin"

    def __init__(self, join: SimulatedJoin) -> None:
        self._autoscaler, self._settings = Autoscaler(prices=join.prices), join.settings
        self._plan: Progress | None = None
        self._seen: tuple[float, Sample, AnalyticForecast]
        self._asked: tuple[float, int] = (0.0, 0)
        """When, and for how many workers."""
        self._ask: Ask | None = None

    @property
    def ledger(self) -> Ledger:
        return self._autoscaler.ledger

    def step(self, now: float, sample: Sample, forecast: AnalyticForecast) -> Ask | None:
        self._seen, self._ask = (now, sample, forecast), None
        if self._plan is None:
            # The plan is as old as the simulation, or the first sample would count as taken before it.
            self._plan = Progress(generation=sample.generation, workers=sample.workers, newest=sample.generation)
            self._autoscaler.follow(0.0, self._settings, self._plan)
        wanted = self._asked[1] if sample.starting else None
        finished(self._autoscaler.once(now, self._settings, replace(self._plan, starting=sample.starting, wanted=wanted), self))
        larger = self._autoscaler.enlarged
        if larger is not None and larger.wanted is not None:
            self._ask = self._enlarge(now, sample.workers, larger.wanted)
        return self._ask

    def _enlarge(self, now: float, workers: int, memory: int) -> Ask:
        settings, headroom = self._settings, self._settings.headroom
        assert headroom is not None, "it was decided by it"
        room = settings.capacity_tuples * headroom.times(memory)
        self._settings = replace(settings, capacity_tuples=room, headroom=replace(headroom, memory=memory))
        self._autoscaler.has_enlarged(now)
        return Ask(workers, memory)

    def begun(self, now: float, workers: int) -> None:
        if self._plan is not None:
            self._plan = replace(self._plan, migrating_to=workers)

    def applied(self, now: float, generation: int, workers: int, moved_tuples: float, pause_seconds: float) -> None:
        took = Realised(now, generation, None, moved_tuples, pause_seconds, now - self._asked[0])
        self._plan = Progress(generation=generation, workers=workers, newest=generation, switched=took)

    # The ports.

    async def collect(self) -> Collected:
        return Collected((self._seen[1],))

    async def forecast(self, shed_fraction: float) -> AnalyticForecast:
        return self._seen[2]

    async def put(self, wish: Wish) -> tuple[Outcome, str]:
        """A simulated plan that waits for workers is replaced by one for more only."""
        now, sample, _ = self._seen
        assert self._plan is not None, "step() makes one"
        if sample.starting and wish.workers <= self._asked[1]:
            return Outcome.VOID, ""
        self._plan = replace(self._plan, newest=wish.newest + 1)
        self._asked, self._ask = (now, wish.workers), Ask(wish.workers)
        return Outcome.ACCEPTED, ""


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
