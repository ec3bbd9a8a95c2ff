"""What the operator shows to Prometheus of itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamjoin_operator.api import ApiError
from streamjoin_operator.cost import Cost
from streamjoin_operator.queue import Key, Queue
from streamjoin_operator.reasons import Reason

JOIN = ("namespace", "streamjoin")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Looked(Protocol):
    """What is needed of ``seen.Seen``."""

    def phases(self) -> dict[str, int]: ...

    def statuses(self) -> Mapping[Key, Mapping[str, Any]]: ...

    def costs(self, now: float) -> Mapping[Key, Cost]: ...

    def samples_at(self) -> Mapping[Key, float]: ...


class Metrics:
    """The metrics of one operator."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.reconciles = Counter("streamjoin_operator_reconciles_total", "Reconciles, by how they ended.", ["result"], registry=registry)
        name = "streamjoin_operator_reconcile_duration_seconds"
        self.seconds = Histogram(name, "Seconds that a reconcile took.", buckets=BUCKETS, registry=registry)
        self.errors = Counter("streamjoin_operator_errors_total", "Failed reconciles, by reason.", ["reason"], registry=registry)
        self.requests = Counter(
            "streamjoin_operator_api_requests_total", "Requests to the API server (code 0: no answer).", ["verb", "code"], registry=registry
        )
        self.questions = Counter(
            "streamjoin_operator_prometheus_requests_total", "Questions to Prometheus, by how they ended.", ["result"], registry=registry
        )
        self.active = Gauge(
            "streamjoin_operator_active", "1: this operator reconciles; 0: another one does, and this one waits.", registry=registry
        )
        self.answered_at: float | None = None
        """When Prometheus last gave a usable answer, in seconds since 1970."""
        ProcessCollector(registry=registry)
        for result in ("success", "error"):
            self.reconciles.labels(result)

    def watch(self, queue: Queue, seen: Looked) -> None:
        """Show what is read at each scrape."""
        self.registry.register(_Now(self, queue, seen))

    def asked(self, reason: Reason | None) -> None:
        """A question to Prometheus has ended; ``reason``: why its answer cannot be used."""
        self.questions.labels("success" if reason is None else reason.name).inc()
        if reason is None:
            self.answered_at = time.time()

    def finished(self, key: Key, seconds: float, error: BaseException | None) -> None:
        """A reconcile has ended."""
        self.seconds.observe(seconds)
        self.reconciles.labels("success" if error is None else "error").inc()
        if error is not None:
            reason = (error.reason or str(error.status)) if isinstance(error, ApiError) else type(error).__name__
            self.errors.labels(reason).inc()

    def requested(self, verb: str, code: int) -> None:
        """A request to the API server was answered."""
        self.requests.labels(verb, str(code)).inc()

    def sum_of_requests(self) -> dict[tuple[str, str], float]:
        """By verb and code."""
        return {
            (sample.labels["verb"], sample.labels["code"]): sample.value
            for family in self.requests.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        }


class _Now(Collector):
    def __init__(self, metrics: Metrics, queue: Queue, seen: Looked) -> None:
        self._metrics, self._queue, self._seen = metrics, queue, seen

    def collect(self) -> Iterator[Metric]:
        queue = self._queue
        yield GaugeMetricFamily("streamjoin_operator_queue_depth", "StreamJoins that are due for a reconcile.", value=queue.depth)
        yield GaugeMetricFamily(
            "streamjoin_operator_queue_age_seconds", "Seconds that the StreamJoin that waits longest has been due.", value=queue.age
        )
        yield GaugeMetricFamily("streamjoin_operator_failing", "StreamJoins whose last reconcile failed.", value=queue.failing())
        text = "Seconds that the oldest running reconcile has taken."
        yield GaugeMetricFamily("streamjoin_operator_longest_reconcile_seconds", text, value=queue.longest_running)
        family = GaugeMetricFamily("streamjoin_operator_streamjoins", "StreamJoins by phase.", labels=["phase"])
        for phase, count in sorted(self._seen.phases().items()):
            family.add_metric([phase], count)
        yield family
        if self._metrics.answered_at is not None:
            age = max(0.0, time.time() - self._metrics.answered_at)
            text = "Seconds since Prometheus last answered."
            yield GaugeMetricFamily("streamjoin_operator_prometheus_answer_age_seconds", text, value=age)
        ages = GaugeMetricFamily(
            "streamjoin_operator_sample_age_seconds", "Seconds since the newest sample of a join that could be trusted.", labels=JOIN
        )
        for key, at in sorted(self._seen.samples_at().items()):
            ages.add_metric(key, max(0.0, time.time() - at))
        yield ages
        yield from self._states()
        yield from self._costs()

    def _states(self) -> Iterator[Metric]:
        """What the status says, so that alerts can tell of joins that have no metrics of their own, as their drivers never started."""
        phases = GaugeMetricFamily("streamjoin_operator_phase", "Always 1. The label phase names its phase.", labels=[*JOIN, "phase"])
        conditions = GaugeMetricFamily(
            "streamjoin_operator_condition", "1: this condition of the StreamJoin is true. 0: it is not.", labels=[*JOIN, "type", "reason"]
        )
        for key, status in sorted(self._seen.statuses().items()):
            if "phase" in status:
                phases.add_metric([*key, status["phase"]], 1)
            for condition in status.get("conditions") or []:
                conditions.add_metric([*key, condition["type"], condition["reason"]], condition["status"] == "True")
        yield phases
        yield conditions

    def _costs(self) -> Iterator[Metric]:
        costs = sorted(self._seen.costs(time.time()).items())
        for name, text, values in (
            ("executor_hours", "Hours of executors that a join has used.", [cost.hours for _, cost in costs]),
            (
                "avoided_executor_hours",
                "Hours that executors for spec.workers.max workers, running all the time, would have taken in addition.",
                [cost.avoided_hours for _, cost in costs],
            ),
            ("cost", "Price of the executor-hours that a join has used.", [cost.spent for _, cost in costs]),
            ("avoided_cost", "Price of the executor-hours that were avoided.", [cost.avoided for _, cost in costs]),
        ):
            family = CounterMetricFamily(f"streamjoin_operator_{name}", text, labels=JOIN)
            for (key, _), value in zip(costs, values, strict=True):
                family.add_metric(key, value)
            yield family
