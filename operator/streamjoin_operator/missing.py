"""Why Prometheus answers and has no series of a join, and what to do: from what else it has, and from what the operator has made.

Always holds: pure; the same findings give the same text, without ages, so that it can stand in the status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamjoin_operator.instants import instant
from streamjoin_operator.measurement import Distrusted, Series
from streamjoin_operator.reasons import Reason

LABEL, POD = re.compile("[a-zA-Z_][a-zA-Z0-9_]{0,62}"), re.compile("[a-z0-9.-]{1,253}")
"""Of an answer no more is repeated than such names."""
OTHERS = {"name", "job", "pod", "instance", "container", "endpoint", "service"}
"""Labels that are not about the namespace, whatever their value."""
BY_ANNOTATIONS = "have Prometheus find pods by their annotations (prometheus.io/scrape)"


@dataclass(frozen=True, slots=True)
class Found:
    """What else a Prometheus has that may be of the join."""

    plans: Sequence[Series] = ()
    """Of joins with this name, whatever their other labels; within the last hour."""
    targets: Sequence[Series] = ()
    """``up`` of pods that are named as the join's driver."""


@dataclass(frozen=True, slots=True)
class Monitor:
    """The join's PodMonitor."""

    name: str
    is_wanted: bool
    """Whether the operator is to make one (``joins.podMonitor``)."""
    is_known: bool
    """Whether the cluster knows that kind."""
    labels: Mapping[str, str]
    """Those that somebody has asked for."""


def why(found: Found | None, monitor: Monitor, *, url: str, namespace: str, label: str, pod_label: str = "pod") -> Distrusted:
    """``found``: None where Prometheus could not be asked for more. ``label``: by which it is taken to tell namespaces apart, and
    ``pod_label`` pods, or none. O(found)."""
    begin = f"{url} answers, and has no series of this join"
    if found is None:
        return Distrusted(Reason.MetricsMissing, f"{begin}. {_causes(monitor, label)}")
    ours = [series.points[-1][0] for series in found.plans if series.points and series.labels.get(label) == namespace]
    is_of_pods = any(pod_label in series.labels for series in found.plans if series.labels.get(label) == namespace)
    if ours and pod_label != "none" and not is_of_pods:
        text = f"{url} has series of this join that do not say which pod they are of: they have no label {pod_label}"
        remedy = "have Prometheus add it, or set prometheus.podLabel to the one that names pods, or to none"
        return Distrusted(Reason.MetricsMissing, f"{text}; {remedy} (chart; STREAMJOIN_PROMETHEUS_POD_LABEL)")
    if ours:
        text = f"the newest sample is of {instant(max(ours))}, and {url} does not scrape the driver now. {_causes(monitor)}"
        return Distrusted(Reason.MetricsStale, text)
    others = _labels_of(namespace, found.plans)
    if others:
        text = f'{begin} by {label}="{namespace}", but some by {others[0]}="{namespace}": set prometheus.namespaceLabel to {others[0]}'
        return Distrusted(Reason.MetricsMissing, f"{text} (chart; STREAMJOIN_PROMETHEUS_NAMESPACE_LABEL)")
    last = {series.labels["pod"]: series.points[-1][1] for series in found.targets if _labels_of(namespace, [series])}
    down = sorted(pod for pod, is_up in last.items() if not is_up and POD.fullmatch(pod))
    if down:
        text = f"{begin}: it finds pod {down[0]} and cannot scrape it (up is 0)"
        return Distrusted(Reason.MetricsMissing, f"{text}; see whether NetworkPolicies let it reach port 8080 of drivers")
    return Distrusted(Reason.MetricsMissing, f"{begin}. {_causes(monitor, label if found.plans else None)}")


def _labels_of(namespace: str, found: Sequence[Series]) -> list[str]:
    """The labels that name the namespace, the likeliest first. Others, such as the job, may have the same value."""
    labels = {label for series in found for label, value in series.labels.items() if value == namespace and LABEL.fullmatch(label)}
    return sorted(labels - OTHERS, key=lambda label: ("namespace" not in label, label))


def _causes(monitor: Monitor, label: str | None = None) -> str:
    """Likely ones, the likeliest first, each with its remedy; ``label``: None where it cannot be another one for namespaces."""
    if not monitor.is_wanted:
        causes = [f"The operator makes no PodMonitors (joins.podMonitor: off): {BY_ANNOTATIONS}"]
    elif not monitor.is_known:
        lacks = "The cluster has no kind PodMonitor (monitoring.coreos.com/v1)"
        causes = [f"{lacks}: install Prometheus Operator's definitions, or {BY_ANNOTATIONS}"]
    else:
        labels = ", ".join(f"{key}: {value}" for key, value in sorted(monitor.labels.items()))
        has = f"has the labels {labels}" if labels else "has no label of yours"
        selects = "Prometheus may select by another (podMonitorSelector in kubectl get prometheus -A -o yaml, such as release: NAME)"
        remedy = "set it in joins.podMonitorLabels (chart) or spec.metrics.podMonitor.labels"
        causes = [f"PodMonitor {monitor.name} {has}, and {selects}: {remedy}"]
    if label is not None:
        causes.append(f"namespaces may have another label than {label} (prometheus.namespaceLabel)")
    causes.append("scraping may not have begun yet, which takes up to a minute")
    return "; or ".join(causes)
