"""What the operator shows to Prometheus of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamjoin_operator.api import ApiError
from streamjoin_operator.queue import Key, Queue

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """One operator's."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.reconciles = Counter("streamjoin_operator_reconciles_total", "Reconciles, by how they ended.", ["result"], registry=registry)
        name = "streamjoin_operator_reconcile_duration_seconds"
        self.seconds = Histogram(name, "Time of one reconcile.", buckets=BUCKETS, registry=registry)
        self.errors = Counter("streamjoin_operator_errors_total", "Failed reconciles, by reason.", ["reason"], registry=registry)
        self.requests = Counter(
            "streamjoin_operator_api_requests_total", "Requests to the API server (code 0: no answer).", ["verb", "code"], registry=registry
        )
        ProcessCollector(registry=registry)
        for result in ("success", "error"):
            self.reconciles.labels(result)

    def watch(self, queue: Queue, phases: Callable[[], dict[str, int]]) -> None:
        """Show what is read at each scrape."""
        self.registry.register(_Now(queue, phases))

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
    def __init__(self, queue: Queue, phases: Callable[[], dict[str, int]]) -> None:
        self._queue, self._phases = queue, phases

    def collect(self) -> Iterator[Metric]:
        queue = self._queue
        yield GaugeMetricFamily("streamjoin_operator_queue_depth", "StreamJoins that are due.", value=queue.depth)
        yield GaugeMetricFamily("streamjoin_operator_queue_age_seconds", "For how long the oldest has been due.", value=queue.age)
        yield GaugeMetricFamily("streamjoin_operator_failing", "StreamJoins whose last reconcile failed.", value=queue.failing())
        yield GaugeMetricFamily(
            "streamjoin_operator_longest_reconcile_seconds", "For how long the oldest reconcile has run.", value=queue.longest_running
        )
        family = GaugeMetricFamily("streamjoin_operator_streamjoins", "StreamJoins by phase.", labels=["phase"])
        for phase, count in sorted(self._phases().items()):
            family.add_metric([phase], count)
        yield family
