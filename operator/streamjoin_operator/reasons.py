"""Every reason that events and conditions give, each with a sentence. ``python -m streamjoin_operator.reasons`` prints the table.

Always holds: a reason that is written anywhere is one of these, so that alerts may rest on it.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """The value is the sentence; the name is what Kubernetes shows."""

    # what a join is
    JoinRunning = "The driver runs the join and answers."
    DriverStarting = "The driver's pod is being started, or Spark's executors are."
    ExecutorsStarting = "The driver answers, and none of its executors is there yet."
    DriverPending = "The driver's pod is not made, or gets no node; the message says why, and what a claim that is not bound waits for."
    DriverCrashing = "A container of the driver's pod cannot be started, or has ended; the message has its exit code and last words."
    ImageUnavailable = "An image cannot be pulled."
    DriverUnreachable = "The driver's pod is ready, but its API cannot be reached."
    DriverNotReady = "The driver's container runs and does not count as ready: a probe fails, or its node is lost; the message says which."
    EpochStalled = "Nothing of the running epoch has moved for a while; the message has its step and the workers that it waits for."
    EpochsMove = "Epochs get on, or there is nothing new to join."
    StreamSilent = (
        "A stream has had no record for a minute or longer, and others are ahead of it in event time; the message has the stream, and the"
        " partition or file of it."
    )
    WatermarksMove = "No stream holds back the others' watermarks for long."
    JoinRetrying = "An epoch failed and is tried again."
    SnapshotsWait = "A store of snapshots cannot be written to: the join goes on, and they wait in the checkpoint; the message says why."
    PodRefused = "The API server refuses a pod: a quota, Pod Security, a limit, an admission webhook; the message is its answer."
    PodStuck = "A pod has a node and no container: a volume or a Secret cannot be mounted, as a rule; the message has kubelet's words."
    ExecutorsFailing = "Executors' containers cannot be started, or end again and again; the join goes on with those it has."
    ExecutorsPending = "Executors cannot be scheduled; the join goes on with those it has."
    ResizeHeld = "A kubelet does not resize an executor, or not yet; the join goes on, and the message has kubelet's words."
    ExecutorsMissing = "Executors are not made, or run and are not ready or do not call the driver; the message says why, or where to look."
    QueriesUnready = "Fewer query servers are ready than spec.queries.replicas; the join goes on, and the message says why."
    Paused = "spec.paused is true; what runs goes on as it is."
    Suspended = "spec.suspend is true; the state is kept."
    SuspendedWhenIdle = "No stream has had a record for spec.idle.after; the state is kept, and the first record wakes the join."
    SuspendedBySchedule = "It is a time of spec.suspendDuring; the state is kept."
    StandbyTookOver = "The driver at work was gone, and the one that stood by goes on from the last commit."
    Woken = "A join that slept goes on; the message says why."
    WatcherFails = "The sources of a join that sleeps cannot be asked; the message says why, and after five minutes the join is woken."
    Suspending = "The driver finishes its epoch and stops."
    # what is wrong with a manifest
    InvalidSpec = "The manifest has problems; what runs goes on as it is."
    InsufficientMemory = "spec.workers.resources.memory cannot hold the tuples of spec.workers.capacity or capacityTuples."
    CheckpointMismatch = "A change would not fit the state in the checkpoint; what runs goes on as it is."
    CheckpointOfAnother = "The checkpoint was made for another join; the driver is not started again before something is changed."
    ClaimOnOneNode = "The checkpoint's claim can be mounted on one node, and pods of the join are on several; the message says what to do."
    ClaimKept = (
        "The claim that the operator made is not as spec.checkpoint asks for, and cannot be made so; the join goes on, and the message has"
        " the field and what to do."
    )
    SecretUnusable = "The Secret of spec.security.tls is not there, or lacks a file; what runs goes on as it is."
    ApplyRefused = "The API server refuses a child; the message is its answer."
    ApiRefused = "The API server refuses a request of the operator; the message says which, and what it lacks."
    ApiFailing = "The API server cannot be reached, or answers with errors; what runs goes on, and the operator tries again."
    OperatorFailed = "The operator itself fails at this StreamJoin; the message names the error, and its log has the rest."
    MaintenanceAwaited = "A change that restarts the driver waits for a window of spec.maintenance; the join goes on."
    TemplateTried = "A pod tries a new image or pod template before the driver is replaced; the join goes on."
    NewTemplateFails = "A pod of the new image or pod template does not come up; the join goes on as it was, and the message says why."
    ForeignObject = "An object of the name that is needed exists and is not controlled by this StreamJoin."
    # what happens
    Created = "A child was created."
    Updated = "A child differed from what it should be and was applied again."
    Pruned = "A child that is no longer needed was deleted."
    ChangeIgnored = "The manifest changed where the running engine needs nothing done."
    ChangeLive = "The manifest changed and the running join takes it over: by a new plan, or its executors are resized."
    ChangeRestart = "The manifest changed and the driver restarts from the checkpoint."
    RestartRequested = "The annotation streamjoin.dev/restart, or the Secret that all pods share, has a new value; the driver restarts."
    PlanRequested = "The driver was asked for another number of workers or another model."
    PlanRefused = "The driver refuses a plan that was asked for; the message is its answer."
    PlanOverCapacity = "A worker is expected to hold more than spec.workers.capacity or capacityTuples; the message says what to change."
    FirstPlan = "What the first plan of a new join promises, before any pod runs: workers, tau, the bill of an hour."
    FirstPlanTooFull = "With all workers that may be some are filled beyond tau2: a new join is not begun; the message says what would do."
    PlanDropped = "The driver gave a plan up: its first epoch failed, or workers did not come; the join goes on under the plan before."
    PlanReplaced = "A plan was replaced by a later one before it came to run."
    Rescaling = "The driver is applying a plan."
    Resizing = "Executors have yet to get the resources of spec.workers.resources while they run; the message has kubelet's words."
    Settled = "Nothing is under way."
    Applying = "The operator carries the spec out."
    NothingRefused = "Nothing of the spec is refused, and nothing keeps the operator from carrying it out."
    Allocating = "The autoscaler adds workers; the message says why."
    Deallocating = "The autoscaler removes workers; the message says why."
    Replanning = "The autoscaler cuts the join anew among as many workers; the message says why."
    Enlarging = "The autoscaler gives executors more memory instead of adding workers (spec.scaling.vertical); the message says why."
    Enlarged = "Executors have the memory that the autoscaler has decided on; the message has what was expected and what came true."
    EnlargingFailed = "Executors do not get the memory that the autoscaler has decided on; the message says why, and workers are added."
    ScalingRecommended = "The autoscaler would change the plan, but its rule only recommends (spec.scaling)."
    ScalingFailed = "A plan of the autoscaler was refused or given up; it is tried again later."
    Scaled = "A plan of the autoscaler, or one that was ordered, runs; the message has what was expected and what came true."
    # measurements; while they cannot be trusted, the autoscaler holds
    MetricsRead = "The metrics were read and are fresh, complete and finite."
    MetricsUnavailable = "The driver's metrics cannot be read, or do not agree with its plan; no worker is removed meanwhile."
    MetricsMissing = "There are no series of this join; where Prometheus answers, the message has the likely causes, each with its remedy."
    MetricsStale = "The newest sample is too old."
    MetricsIncomplete = "The newest scrape lacks workers, or another number that is needed, and so do all that are not too old."
    MetricsNotFinite = "The newest sample has NaN, an infinity or a negative number."
    MetricsOfOtherPlan = "The newest sample is of another plan than the one that runs."
    PrometheusUnreachable = "Prometheus cannot be connected to."
    PrometheusSlow = "Prometheus does not answer in time."
    PrometheusNotAllowed = "spec.scaling.prometheus.url is no address that the operator's settings allow; nothing is sent to it."
    PrometheusDenied = "Prometheus refuses the operator, or a file or a Secret of the login cannot be used; the message says which."
    PrometheusFailed = "Prometheus answers with an error."
    PrometheusUnusable = "What answers is no Prometheus, or its answer is not whole."
    TuplesShed = "Some worker is so full that tuples are dropped (spec.shedding)."
    SheddingRecommended = "Some worker is so full that tuples would be dropped; spec.shedding.mode only recommends it, and none are."
    NothingShed = "No tuples are dropped."
    DefinitionOlder = "Nothing is degraded; the cluster's CustomResourceDefinition lacks fields of this operator, which the message names."
    Healthy = "Nothing is degraded."
    # of a StreamJoinSnapshot
    SnapshotKept = "The savepoint is there."
    SnapshotAsked = "The driver makes the savepoint with its next commit."
    SnapshotWaits = "The driver cannot be asked for the savepoint now, and is when it can; the message says why."
    SnapshotRefused = "There can be no such savepoint; the message is the driver's."
    SnapshotGone = "The savepoint was made, and somebody has deleted it since; another one needs another name."
    SnapshotDeleting = "The StreamJoinSnapshot is being deleted; it goes once the driver has deleted the savepoint."
    StreamJoinMissing = "There is no StreamJoin of the name in spec.streamJoin."
    # the end
    PodsEnding = "The StreamJoin is being deleted; its pods are to end before the state is removed (checkpoint.onDelete: Delete)."
    StateRemoving = "The StreamJoin is being deleted; a Job removes the state in the checkpoint."
    CleanupBlocked = "The Job that removes the state cannot be made, or its pod does not run; the message says why."
    StateRemoved = "A Job has removed the state in the checkpoint (checkpoint.onDelete: Delete)."
    StateLeft = "State was not removed, or not surely all of it; the message says where it is, and why."


def table() -> str:
    """As Markdown."""
    return "\n".join(["| reason | meaning |", "|---|---|", *(f"| `{reason.name}` | {reason.value} |" for reason in Reason), ""])


if __name__ == "__main__":
    print(table(), end="")
