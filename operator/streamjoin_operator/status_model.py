"""What the operator writes of a StreamJoin: the fields of its status, as typed data.

The API server drops whatever is not declared here. Fractions are text, because Kubernetes' conventions keep floating
point numbers out of what is written back and compared.

Always holds: every field may be missing; a status says only what was observed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, WithJsonSchema

from streamjoin.manifest.part import Part

Count = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[str, StringConstraints(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(e-?[0-9]+)?$")]
"""A number from 0 on, as text."""
Word = Annotated[str, StringConstraints(max_length=253)]
Sentence = Annotated[str, StringConstraints(max_length=4096)]
Instant = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 64})]

Phase = Literal["Pending", "Starting", "Running", "Rescaling", "Suspended", "Paused", "Failed", "Deleting"]


class Condition(Part):
    """One condition, as Kubernetes' API conventions have it."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=316)]
    """One of those that docs/operator.md lists."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that it is about: the newest spec's, or that of what runs."""
    last_transition_time: Instant
    """When status last changed."""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one word for machines."""
    message: Annotated[str, StringConstraints(max_length=32_768)]
    """Why, for people."""


class Utilization(Part):
    """tau: the tuples that workers hold / their capacity."""

    max: Share | None = None
    """Of the fullest worker."""
    mean: Share | None = None
    """Of all workers."""
    source: Word | None = None
    """Who says so: Prometheus; or the driver, by its own metrics."""
    at: Instant | None = None
    """When that was first measured; while the operator runs it has been the same since, to a hundredth."""


class Completeness(Part):
    """The share of a join's results that was found, of those that there would be had no tuple been shed or late."""

    estimate: Share | None = None
    """What it is expected to be."""
    low: Share | None = None
    """It is this at least, in 95 of 100 cases together with high."""
    high: Share | None = None
    """It is this at most."""


class Filled(Part):
    """tau, as it is expected once the window is full."""

    max: Share | None = None
    """Of the fullest worker."""
    mean: Share | None = None
    """Of all workers."""


class FirstPlan(Part):
    """What the first plan was expected to be, before any pod ran."""

    workers: Count | None = None
    """How many workers it has."""
    executors: Count | None = None
    """How many executors these take."""
    model: Word | None = None
    """The scheme's model."""
    summary: Sentence | None = None
    """The coverage areas."""
    utilization: Filled | None = None
    """How full the workers are expected to be; missing where no rate is known, and in a window without end."""
    bill_per_hour: Share | None = None
    """In worker-hours: of the workers, and of the tuples that would be lost if the load grew by a quarter."""
    message: Sentence | None = None
    """All that, for people; where tau2 is exceeded, what would do."""


class GivenUp(Part):
    """A plan that the driver had accepted and that did not come to run."""

    generation: Count | None = None
    """The plan's."""
    fate: Word | None = None
    """Dropped, or Replaced by a later plan."""
    reason: Sentence | None = None
    """Why, in the driver's words."""


class PlanStatus(Part):
    """How the join is cut among workers."""

    generation: Count | None = None
    """Counts the plans of this checkpoint."""
    model: Word | None = None
    """The scheme's model."""
    tasks: Count | None = None
    """How many tasks, and so workers, the plan has."""
    summary: Sentence | None = None
    """The coverage areas."""
    moved_tuples: Count | None = None
    """How many tuples the last change of plans moved between workers."""
    given_up: Annotated[tuple[GivenUp, ...], Field(strict=False, max_length=16)] | None = None
    """The last plans that were put to the driver that runs, and did not come to run; the latest last."""


class Change(Part):
    """What the last change of the manifest led to."""

    generation: Count | None = None
    """The metadata.generation with that change."""
    kind: Annotated[Word | None, Field(alias="class")] = None
    """What was done: nothing, applied to the running join, or a restart from the checkpoint."""
    fields: Annotated[tuple[Sentence, ...], Field(strict=False, max_length=1000)] | None = None
    """The fields that changed."""
    message: Sentence | None = None
    """Why, for people."""


class Decision(Part):
    """One entry of the ledger of scaling decisions."""

    time: Instant | None = None
    """When it was made."""
    rule: Word | None = None
    """Which rule made it."""
    reason: Word | None = None
    """Why, in one word (docs/scaling.md)."""
    outcome: Word | None = None
    """What became of it: Decided, Applied, Recommended, Failed, or Superseded by another plan."""
    workers_before: Count | None = None
    """How many workers there were."""
    workers_after: Count | None = None
    """How many it wanted."""
    utilization: Share | None = None
    """tau of the fullest worker at that time."""
    predicted_utilization: Share | None = None
    """tau that was expected of the change."""
    realized_utilization: Share | None = None
    """tau after the change."""
    message: Sentence | None = None
    """The arithmetic, for people."""


class Cost(Part):
    """What the executors have come to since the resource was made, up to a time from which on their number is the same."""

    at: Instant | None = None
    """Up to when it is counted."""
    executors: Count | None = None
    """How many there are from then on, for perExecutor workers each."""
    max_executors: Count | None = None
    """For spec.workers.max workers, from then on."""
    price_per_executor_hour: Share | None = None
    """In the operator's currency, from then on; 0: there is none."""
    executor_hours: Share | None = None
    """That were used."""
    avoided_executor_hours: Share | None = None
    """That maxExecutors all the time would have used besides."""
    spent: Share | None = None
    """For those that were used, at the prices of the time."""
    avoided: Share | None = None
    """For those that were avoided."""


class QueriesStatus(Part):
    """The servers of spec.queries."""

    replicas: Count | None = None
    """How many there are to be."""
    ready: Count | None = None
    """How many answer."""
    url: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Where to ask them, from within the cluster; the token is in the Secret sj-NAME-queries."""
    flight: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Likewise over Arrow Flight, where spec.queries.flight is set."""


class StandbyStatus(Part):
    """The driver of spec.driver.standby."""

    state: Literal["Missing", "Starting", "Ready"] | None = None
    """Ready: it has as many workers ready as the join has. Starting: not yet all of them. Missing: the driver at work has no connection to
    it."""
    took_over_at: Instant | None = None
    """When a standby last became the driver at work."""


class SleepStatus(Part):
    """The last time that the join was suspended by itself (spec.idle, spec.suspendDuring)."""

    reason: Word | None = None
    """SuspendedWhenIdle or SuspendedBySchedule."""
    since: Instant | None = None
    """When it fell asleep."""
    message: Sentence | None = None
    """Why, for people."""
    woken_at: Instant | None = None
    """When it was woken; missing: it sleeps."""
    woken_by: Sentence | None = None
    """What woke it."""


class Status(Part):
    """What the operator has seen and done."""

    phase: Phase | None = None
    """Where the join is in its life."""
    observed_generation: Annotated[int, Field(ge=-1)] | None = None
    """The newest metadata.generation that was carried out, or refused; the conditions Ready and Stalled say which. -1: none was."""
    applied_generation: Annotated[int, Field(ge=0)] | None = None
    """The newest metadata.generation that was carried out: what runs is as it asked for."""
    applied_spec: Word | None = None
    """A hash of the spec of that generation, less paused."""
    workers: Count | None = None
    """How many workers the join runs on."""
    desired_workers: Count | None = None
    """How many it should run on."""
    selector: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """The label selector of the workers' pods, for the scale subresource."""
    utilization: Utilization | None = None
    """How full the workers are."""
    first_plan: FirstPlan | None = None
    """What the first plan was expected to be, before any pod ran."""
    plan: PlanStatus | None = None
    """How the join is cut among workers."""
    lag: Word | None = None
    """How far the stream that is furthest behind has yet to go to a tuple of now, to a quarter: 12s, 3m, 2h or 4d."""
    rate: Share | None = None
    """How many tuples come each second, to a quarter."""
    shed: Share | None = None
    """The greatest of shedRatio."""
    shed_ratio: Annotated[dict[str, Share], Field(max_length=16)] | None = None
    """By stream, the share of its tuples that is dropped because workers are nearly full."""
    completeness: Annotated[dict[str, Completeness], Field(max_length=16)] | None = None
    """By join, of its results of the last hour, the share that shedding and late tuples have left. Estimated."""
    dead_letters: Annotated[dict[str, Count], Field(max_length=16)] | None = None
    """By stream, records that the join could not use, without those that were read again; streamjoin letters shows them."""
    change: Change | None = None
    """What the last change of the manifest led to."""
    decisions: Annotated[tuple[Decision, ...], Field(strict=False, max_length=50)] | None = None
    """The newest scaling decisions, the latest last."""
    cost: Cost | None = None
    """What the executors have come to."""
    last_commit: Instant | None = None
    """When the last epoch was committed, to five minutes; exact while the join stands still."""
    sleep: SleepStatus | None = None
    """The last time that the join was suspended by itself."""
    standby: StandbyStatus | None = None
    """The driver that stands by, where one is asked for (spec.driver.standby)."""
    queries: QueriesStatus | None = None
    """The servers of spec.queries, where there are any."""
    memory: Sentence | None = None
    """How a worker's memory was derived from what it must hold."""
    image: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """The image that runs."""
    conditions: (
        Annotated[
            tuple[Condition, ...],
            Field(
                strict=False,
                max_length=32,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            ),
        ]
        | None
    ) = None
    """Ready, Reconciling, Stalled and Degraded, about the spec; Available, Rescaling, EpochStalled, WatermarkHeld, MetricsAvailable and
    Shedding, about what runs."""
