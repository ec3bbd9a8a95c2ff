"""Of the manifest, what is of Kubernetes alone: pods, how their connections are protected, and how they are watched."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from streamjoin.manifest.field_types import CpuAmount, FreeForm, IdleSpan, Labels, MemoryAmount, ObjectName, ScrapeSpan
from streamjoin.manifest.part import Part
from streamjoin.manifest.quantity import Cpu, Duration, Memory
from streamjoin.manifest.schedule import CronText


class Tls(Part):
    """Kubernetes: TLS among the driver and the workers of this join."""

    secret_name: ObjectName
    """A Secret with tls.crt, tls.key and ca.crt, as cert-manager creates it, for the DNS name sj-NAME.NAMESPACE.svc (the join's
    Service)."""


class Security(Part):
    """Kubernetes: how the connections among driver and workers are protected. They always authenticate with a secret."""

    tls: Tls | None = None
    """TLS among the driver and the workers. Without it, what workers send each other is not encrypted."""


class Logging(Part):
    """Kubernetes: what driver, workers, query servers and cleanup say on standard output, a line for each record."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is said. info has a record for each epoch; debug also has what libraries say."""
    format: Literal["json", "text"] = "json"
    """json: an object with time, level, logger, message, namespace and name, and with error (a traceback) if something failed. text: the
    same for people, without the numbers of epochs."""


class Pods(Part):
    """Kubernetes: changes to the pods that the operator creates."""

    pod_template: FreeForm = Field(default={})
    """A pod template, merged strategically over the operator's own."""


class Driver(Pods):
    """Kubernetes: the driver's pods."""

    standby: bool = False
    """true: a second driver, with as many executors of its own, is ready to take over when the one at work dies (docs/recovery.md). It
    requests the same resources again. A change restarts the join."""


class Backup(Part):
    """Kubernetes: StreamJoinSnapshots that the operator makes by the clock."""

    schedule: CronText
    """When, as cron writes it, in UTC: minute, hour, day, month and weekday. "30 2 * * *" is every night."""
    keep: Annotated[int, Field(ge=1, le=50)] = 7
    """How many of them are kept: older ones are deleted, once as many that are newer are ready."""


class Queries(Part):
    """Kubernetes: servers that answer queries from the checkpoint alone (docs/query.md), in pods of their own behind a Service."""

    replicas: Annotated[int, Field(ge=0, le=100)] = 0
    """How many pods; 0: none. The driver answers queries in any case."""
    processes: Annotated[int, Field(ge=1, le=16)] = 1
    """How many queries a pod answers at a time."""
    memory: MemoryAmount = Memory.parse("256Mi")
    """The memory that one query may take. For each of its processes a pod gets that and 256Mi, and 256Mi more in all."""
    cpu: CpuAmount = Cpu(500)
    """The cores that a pod requests."""
    flight: bool = False
    """Whether the pods also answer over Arrow Flight, at port 8081 of the Service."""
    pod_template: FreeForm = Field(default={})
    """A pod template, merged strategically over the operator's own, which has the driver's node placement, volumes and environment. Its
    container is named queries."""


class Idle(Part):
    """Kubernetes: how a join that has nothing to do is suspended, and woken by the first record."""

    after: IdleSpan
    """How long no stream has had a record, such as 30m, before driver and workers end. A small pod, the watcher, then asks the sources
    until there is one. Starting again takes about as long as the first start did."""
    pod_template: FreeForm = Field(default={})
    """A pod template, merged strategically over the watcher's, which has the driver's node placement, volumes and environment. Its
    container is named watcher."""


class PodMonitor(Part):
    """Kubernetes: the PodMonitor that makes Prometheus Operator scrape the driver."""

    labels: Labels = Field(default={})
    """Labels by which a Prometheus may select it, such as release: prometheus for kube-prometheus-stack. They take precedence over those of
    the operator's chart (joins.podMonitorLabels)."""
    interval: ScrapeSpan = Duration.parse("15s")
    """How often it is scraped. A jump of the load is seen by the second scrape after it."""


class Metrics(Part):
    """Kubernetes: how the driver's metrics get to Prometheus."""

    pod_monitor: PodMonitor = PodMonitor()
    """The PodMonitor that the operator creates if the cluster has that kind."""
