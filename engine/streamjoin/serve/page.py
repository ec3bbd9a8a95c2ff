"""One scrape's metrics, as the catalogue describes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from streamjoin.serve.catalogue import CATALOGUE, Kind

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds. From a commit on a local disk to an epoch that reads a large state back."""


@dataclass
class Page:
    """The families of one scrape, in the catalogue's order."""

    families: dict[str, Metric] = field(default_factory=dict)

    def add(self, name: str, value: float, *labels: object) -> None:
        """A sample of a gauge or counter, with its labels' values in the catalogue's order."""
        if name not in self.families:
            self.families[name] = family(name)
        self.families[name].add_metric([str(label) for label in labels], value)  # type: ignore[attr-defined]

    def copy(self, histogram: Histogram) -> None:
        """A histogram's samples, without when each series began: Prometheus' text format has no place for that but a metric of its own."""
        for each in histogram.collect():
            each.samples = [sample for sample in each.samples if not sample.name.endswith("_created")]
            self.families[each.name] = each

    def add_counted(self, name: str, bounds: Sequence[float], counts: Sequence[int], total: float, *labels: object) -> None:
        """A histogram's samples. ``counts``: of what is up to each bound and above the one before, and above the last; ``total``: the sum
        of what was counted."""
        metric = self.families.setdefault(name, family(name))
        labelled = dict(zip(CATALOGUE[name].labels, map(str, labels), strict=True))
        for bound, count in zip((*map(floatToGoString, bounds), "+Inf"), accumulate(counts), strict=True):
            metric.add_sample(f"{name}_bucket", labelled | {"le": bound}, count)
        metric.add_sample(f"{name}_count", labelled, sum(counts))
        metric.add_sample(f"{name}_sum", labelled, total)

    def __iter__(self) -> Iterator[Metric]:
        return iter([self.families[name] for name in CATALOGUE if name in self.families])


def family(name: str) -> Metric:
    """An empty one of the catalogue's."""
    metric = CATALOGUE[name]
    if metric.kind is Kind.COUNTER:
        return CounterMetricFamily(name, metric.help, labels=metric.labels)
    if metric.kind is Kind.GAUGE:
        return GaugeMetricFamily(name, metric.help, labels=metric.labels)
    return Metric(name, metric.help, "histogram")


def histogram(name: str) -> Histogram:
    """A histogram of the catalogue, in no registry."""
    metric = CATALOGUE[name]
    return Histogram(name, metric.help, metric.labels, buckets=BUCKETS, registry=None)
