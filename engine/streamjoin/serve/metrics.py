"""The metrics of one running join, for Prometheus.

Always holds:

- A scrape shows one committed epoch: all that epochs change is of the same commit, so tau and the plan's generation belong together.
- Only what is committed is counted. Counters of tuples and their bytes are the checkpoint's own: they go on where the last process ended,
  so a restart is no counter reset, and an epoch that was tried five times is counted once. Counters of this process (failures, retries,
  time, what was sent to Kafka) start at 0 with it, which Prometheus takes for a reset, as it should.
- Nothing is shown of which nothing is known yet: a counter that was 0 before its checkpoint is read would look like a reset.
- The worker metrics are of the last plan's tasks only: when it shrinks, the others' series end.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from streamjoin import __version__
from streamjoin.controlplane.next_checkpoint import stored
from streamjoin.controlplane.planning import utilization
from streamjoin.controlplane.replan import PlanPhase, PlanStatus, Switched
from streamjoin.controlplane.timelines import SnapshotsState
from streamjoin.controlplane.watermark import held_back
from streamjoin.elastic.completeness import SPANS, Losses
from streamjoin.elastic.decision import Decision
from streamjoin.elastic.decision import Kind as Action
from streamjoin.elastic.settings import Mode
from streamjoin.epoch.delays import BOUNDS, Counted
from streamjoin.epoch.ports import EpochResult, Held
from streamjoin.epoch.progress import ProgressMonitor
from streamjoin.io.base import Traffic
from streamjoin.io.telling import told
from streamjoin.job import Job
from streamjoin.language.sides import SIDE_NAMES
from streamjoin.manifest.connector import KAFKA_METRICS
from streamjoin.manifest.model import TAUS
from streamjoin.serve.catalogue import CATALOGUE, KAFKA_PREFIX
from streamjoin.serve.observer import Observer
from streamjoin.serve.page import Page, family, histogram
from streamjoin.serve.query_metrics import QueryMetrics
from streamjoin.serve.standbys import STANDS_BY
from streamjoin.state.storage import retries

if TYPE_CHECKING:
    from streamjoin.controlplane.driver import Driver

STEPS = ("plan", "tasks", "commit", "publish", "clean")
DECISIONS = (
    *((kind, mode) for kind in (Action.ALLOCATE, Action.DEALLOCATE, Action.REPLAN) for mode in (Mode.ENFORCE, Mode.RECOMMEND)),
    (Action.HOLD, Mode.ENFORCE),
    (Action.REORDER, Mode.ENFORCE),
)
TASK_STEP = "task."
"""How ``EpochResult.seconds`` marks the steps within tasks."""
Found = TypeVar("Found")
LONGEST_FAILURE = 600
"""Characters that are kept of what a failure said."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The state in the last commit. Tuples are by stream; None: not known."""

    epoch: int
    generation: int
    committed_at: float | None
    totals: Mapping[str, Sequence[int]]
    watermarks: tuple[int | None, ...]
    stored_blocks: tuple[int, ...]
    stored_bytes: tuple[int, ...]
    losses: Losses
    held: Mapping[int, tuple[float, float]]
    """Held tuples by task and side. Empty for a new plan: what its tasks hold is known after its first epoch."""
    utilization: Mapping[int, float]
    """tau of the same tasks."""
    streams_by_side: tuple[tuple[str, ...], ...]
    held_back: Held | None = None
    result: EpochResult | None = None
    """The epoch that this process ran; None right after a start."""


OF_RESULT = tuple(each.name for each in fields(Committed) if each.name not in ("held", "result"))
"""What is as a result has it."""


@dataclass(slots=True)
class Work:
    """What a worker has done in this process's time."""

    seconds: float = 0.0
    output: int = 0
    candidates: int = 0


@dataclass(slots=True)
class Switches:
    """The sums over all switches of this process."""

    last: Switched | None = None
    count: int = 0
    kept_tuples: int = 0
    moved_tuples: int = 0


class Metrics(Collector, Observer):
    """See the module. Any thread may scrape while another tells what happens."""

    def __init__(
        self,
        job: Job,
        *,
        clock: Callable[[], float] = time.time,
        progress: ProgressMonitor | None = None,
        snapshots: Callable[[], Mapping[str, SnapshotsState]] = dict,
        standby: Callable[[], dict[str, Any] | None] = lambda: None,
        stands_by: bool = False,
    ) -> None:
        """``progress``: the driver's; without it nothing is said of stalls. ``snapshots``: how they get on, by join. ``standby``: how far
        the driver is that stands by for this one; ``stands_by``: this one does until it has started."""
        self._snapshots, self._standby = snapshots, standby
        self._job, self._progress, self._clock = job, progress, clock
        self._lock = threading.Lock()
        self._state = STANDS_BY if stands_by else "starting"
        self._took_over_at: float | None = None
        self._committed: Committed | None = None
        self._work: dict[int, Work] = {}
        self._failures = self._retries = self._storage_retries = 0
        self._repeated = retries()
        """Of all requests to storage in this process, when the start or the step began."""
        self._source_errors = [0] * len(job.streams)
        """What tasks got over; the driver's are in the traffic."""
        self._traffic: tuple[Traffic, ...] = (Traffic(),) * (len(job.streams) + 1)
        self._delays: Mapping[str, Counted] = {}
        self._of_kafka = [number for number, stream in enumerate(job.streams) if stream.source.metrics == KAFKA_METRICS]
        self._last_error: str | None = None
        self._last_failure: str | None = None
        self._running_since: float | None = None
        self._epochs = histogram("streamjoin_epoch_duration_seconds")
        self._steps = histogram("streamjoin_epoch_step_duration_seconds")
        self._task_steps = histogram("streamjoin_task_step_duration_seconds")
        self._plan: PlanStatus | None = None
        self._switches = Switches()
        self._decisions = dict.fromkeys(DECISIONS, 0)
        self._pauses = histogram("streamjoin_plan_pause_seconds")
        self._waits = histogram("streamjoin_plan_wait_seconds")
        for each in (self._epochs, self._pauses, self._waits):
            each.labels(job.name)
        for step in STEPS:
            self._steps.labels(job.name, step)
        self.queries = QueryMetrics(job.name)
        """The metrics of queries, for the part that answers them."""
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def adopt(self, job: Job) -> None:
        """The limits on workers have changed."""
        with self._lock:
            self._job = job

    def took_over(self) -> None:
        with self._lock:
            self._took_over_at = round(self._clock(), 3)

    def started(self, driver: Driver) -> None:
        job, checkpoint = driver.job, driver.checkpoint  # its job knows where tuples are held
        self._spent(driver, retries() - self._repeated)
        blocks, nbytes = stored(job, checkpoint.state.blocks)
        committed = Committed(
            epoch=checkpoint.epoch,
            generation=checkpoint.plan.generation,
            committed_at=checkpoint.committed_at,
            totals=checkpoint.totals,
            losses=checkpoint.losses,
            watermarks=checkpoint.input.watermarks,
            stored_blocks=blocks,
            stored_bytes=nbytes,
            held={task: job.by_side(held) for task, held in checkpoint.state.held.items()} if checkpoint.state.tokens else {},
            utilization=utilization(job, checkpoint),
            streams_by_side=job.streams_by_side,
            held_back=held_back(job, checkpoint),
        )
        with self._lock:
            self._state = "running"
            self._committed = committed

    def attempting(self) -> None:
        with self._lock:
            self._retries += self._state == "retrying"
            self._running_since, self._repeated = self._clock(), retries()

    def committed(self, driver: Driver, result: EpochResult) -> None:
        self._spent(driver, result.storage_retries)  # those of the tasks too, which may have been in this process
        self.observe(result, driver.plan_status())

    def _spent(self, driver: Driver, repeated: int) -> None:
        """A start or a step is over, whatever became of it, and has repeated so many requests."""
        with self._lock:
            self._storage_retries += repeated
            self._traffic, self._delays = driver.traffic, driver.delays

    def observe(self, result: EpochResult, plan: PlanStatus | None = None) -> None:
        """The attempt has committed this epoch, and the plan is there. O(tasks + steps)."""
        committed = Committed(**{name: getattr(result, name) for name in OF_RESULT}, held=result.held_by_side, result=result)
        name = self._job.name
        with self._lock:
            self._settled()
            self._take(plan)
            self._committed = committed
            self._work = {task: self._work.get(task) or Work() for task in result.held}
            for task, done in result.work.items():
                work = self._work[task]
                work.seconds += sum(done.seconds.values())
                work.output += done.output
                work.candidates += done.candidates
            for stream, errors in enumerate(result.source_errors):
                self._source_errors[stream] += errors
            self._epochs.labels(name).observe(result.duration)
            for step, seconds in result.seconds.items():
                if step.startswith(TASK_STEP):
                    self._task_steps.labels(name, step.removeprefix(TASK_STEP)).observe(seconds)
                else:
                    self._steps.labels(name, step).observe(seconds)

    def idle(self, driver: Driver) -> None:
        self._spent(driver, retries() - self._repeated)
        plan = driver.plan_status()
        with self._lock:
            self._settled()
            self._take(plan)

    def decided(self, decision: Decision) -> None:
        with self._lock:
            self._decisions[decision.kind, decision.mode] += 1

    def failed(self, driver: Driver, error: Exception) -> None:
        self._spent(driver, retries() - self._repeated)
        plan = driver.plan_status()
        with self._lock:
            self._settled("retrying")
            self._take(plan)
            self._failures += 1
            self._last_error, self._last_failure = type(error).__name__, told(error)[:LONGEST_FAILURE]

    def ended(self) -> None:
        with self._lock:
            self._settled("ended")

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the join is at work or about to be, and what is to be known of that."""
        with self._lock:
            now, committed = self._clock(), self._committed
            since = None if committed is None or committed.committed_at is None else round(now - committed.committed_at, 3)
            return self._state != "ended", {
                "name": self._job.name,
                "state": self._state,
                "standby": self._standby(),
                "tookOverAt": self._took_over_at,
                "epoch": None if committed is None or committed.epoch < 0 else committed.epoch,
                "secondsSinceCommit": since,
                "committedAt": None if committed is None else committed.committed_at,
                "stalled": self._stalled(),
                "lastError": self._last_error,
                "lastFailure": self._last_failure,
                "snapshotsWait": self._waiting_snapshots(),
                "watermarkHeld": None if committed is None or committed.held_back is None else committed.held_back.told(now),
            }

    def _waiting_snapshots(self) -> str | None:
        """Why snapshots wait for their stores; None: they do not, or not for long."""
        found = [state.told(join) for join, state in self._snapshots().items() if state.store.error is not None]
        return "; ".join(found)[:LONGEST_FAILURE] or None

    def _stalled(self) -> dict[str, Any] | None:
        """What stands still, or was given up for that since the last commit; None: nothing."""
        if self._progress is None:
            return None
        activity, stalls, last = self._progress.activity, self._progress.stalls, self._progress.last_stall
        if activity is None or not activity.is_noticed:
            return None if last is None else {"epoch": None, "step": None, "seconds": None, "waitsFor": [], "stalls": stalls, "last": last}
        return {
            "epoch": activity.epoch,
            "step": activity.step,
            "seconds": round(activity.seconds, 3),
            "waitsFor": list(activity.waits_for),
            "stalls": stalls,
            "last": last,
        }

    def describe(self) -> Iterable[Metric]:
        """All metrics that there may be, for the registry."""
        return [family(name) for name in CATALOGUE]

    def collect(self) -> Iterable[Metric]:
        """One scrape. O(tasks + streams + steps)."""
        with self._lock:
            return list(self._page())

    def _take(self, plan: PlanStatus | None) -> None:
        """How far the plan is; a switch that was not seen before is counted."""
        self._plan = plan or self._plan
        seen, switched = self._switches, None if plan is None else plan.switched
        if switched is not None and switched != seen.last:
            self._switches = Switches(
                switched, seen.count + 1, seen.kept_tuples + switched.kept_tuples, seen.moved_tuples + switched.moved_tuples
            )
            self._pauses.labels(self._job.name).observe(switched.pause_seconds)
            self._waits.labels(self._job.name).observe(switched.waited_seconds)

    def _settled(self, state: str = "running") -> None:
        self._running_since, self._state = None, state

    def _page(self) -> Page:
        page, job, name, now = Page(), self._job, self._job.name, self._clock()
        page.add("streamjoin_build_info", 1, __version__, platform.python_version())
        page.add("streamjoin_workers_min", job.min_workers, name)
        page.add("streamjoin_workers_max", job.max_workers, name)
        page.add("streamjoin_capacity_bytes" if job.capacity.in_bytes else "streamjoin_capacity_tuples", job.capacity.amount, name)
        for threshold in TAUS:
            page.add("streamjoin_threshold_ratio", getattr(job, threshold), name, threshold)
        by_side = job.streams_by_side if self._committed is None else self._committed.streams_by_side
        for side, streams in zip(SIDE_NAMES, by_side, strict=True):
            for stream in dict.fromkeys(streams):
                page.add("streamjoin_stream_info", 1, name, stream, side)
        page.add("streamjoin_epoch_failures_total", self._failures, name)
        page.add("streamjoin_epoch_retries_total", self._retries, name)
        page.add("streamjoin_storage_retries_total", self._storage_retries, name)
        page.add("streamjoin_running_epoch_seconds", 0 if self._running_since is None else max(0.0, now - self._running_since), name)
        if self._progress is not None:
            activity = self._progress.activity
            page.add("streamjoin_still_seconds", 0 if activity is None else activity.still_seconds, name)
            page.add("streamjoin_epoch_deadline_seconds", self._progress.deadline_seconds, name)
            page.add("streamjoin_epoch_stalls_total", self._progress.total_stalls, name)
        for each in (self._epochs, self._steps, self._task_steps, self._pauses, self._waits):
            page.copy(each)
        self._add_scaling(page)
        self._add_traffic(page)
        self._add_snapshots(page)
        for join, counted in self._delays.items():
            page.add_counted("streamjoin_result_delay_seconds", BOUNDS, counted.records, counted.seconds, name, join)
        self.queries.add_to(page)
        if self._committed is not None:
            self._add_committed(page, self._committed, now)
        return page

    def _add_scaling(self, page: Page) -> None:
        name, plan, switches = self._job.name, self._plan, self._switches
        page.add("streamjoin_plan_switches_total", switches.count, name)
        page.add("streamjoin_plan_kept_tuples_total", switches.kept_tuples, name)
        page.add("streamjoin_plan_moved_tuples_total", switches.moved_tuples, name)
        page.add("streamjoin_plan_drops_total", 0 if plan is None else plan.drops, name)
        for (kind, mode), count in self._decisions.items():
            page.add("streamjoin_decisions_total", count, name, kind, mode)
        if plan is None:
            return
        page.add("streamjoin_plan_wanted_generation", plan.generation if plan.wanted is None else plan.wanted.generation, name)
        page.add("streamjoin_workers_wanted", plan.asked or plan.workers, name)
        page.add("streamjoin_workers_ready", plan.ready_workers, name)
        page.add("streamjoin_plan_fetch_bytes", plan.to_fetch_bytes, name)
        for phase in PlanPhase:
            page.add("streamjoin_plan_phase", plan.phase is phase, name, phase)

    @property
    def _streams(self) -> tuple[str, ...]:
        return tuple(stream.name for stream in self._job.streams)

    def _add_committed(self, page: Page, committed: Committed, now: float) -> None:
        name, result = self._job.name, committed.result
        self._add_totals(page, committed.totals)
        self._add_completeness(page, committed.losses, now)
        if committed.generation:
            page.add("streamjoin_plan_generation", committed.generation, name)
            for join in self._job.joins:
                page.add("streamjoin_plan_info", 1, name, join.name, committed.generation, self._job.model)
        if committed.epoch >= 0:
            page.add("streamjoin_epoch_number", committed.epoch, name)
        if committed.committed_at is not None:
            page.add("streamjoin_last_commit_timestamp_seconds", committed.committed_at, name)
        if (behind := committed.held_back) is not None:
            page.add("streamjoin_watermark_held_seconds", max(0.0, now - behind.since), name, behind.stream, behind.by)
        for number, stream in enumerate(self._streams):
            watermark = committed.watermarks[number]
            if watermark is not None:
                page.add("streamjoin_watermark_timestamp_seconds", watermark / 1e6, name, stream)
            page.add("streamjoin_stored_blocks", committed.stored_blocks[number], name, stream)
            page.add("streamjoin_stored_bytes", committed.stored_bytes[number], name, stream)
        if committed.held:
            page.add("streamjoin_workers", len(committed.held), name)
        for task, held in sorted(committed.held.items()):
            page.add("streamjoin_worker_utilization_ratio", committed.utilization[task], name, task)
            for side, tuples in zip(SIDE_NAMES, held, strict=True):
                page.add("streamjoin_worker_tuples", tuples, name, task, side)
        if result is not None:
            self._add_result(page, result, now)

    def _add_traffic(self, page: Page) -> None:
        """What this process's clients of Kafka have counted."""
        name, sink = self._job.name, self._traffic[-1]
        for stream in self._of_kafka:
            errors = self._traffic[stream].errors + self._source_errors[stream]
            page.add(f"{KAFKA_PREFIX}source_errors_total", errors, name, self._streams[stream])
        if any(join.sink is not None and join.sink.metrics == KAFKA_METRICS for join in self._job.joins):
            page.add(f"{KAFKA_PREFIX}sent_records_total", sink.sent_records, name)
            page.add(f"{KAFKA_PREFIX}sent_bytes_total", sink.sent_bytes, name)
            page.add(f"{KAFKA_PREFIX}send_failures_total", sink.failures, name)
            page.add(f"{KAFKA_PREFIX}sink_errors_total", sink.errors, name)

    def _add_snapshots(self, page: Page) -> None:
        name = self._job.name
        for join, state in self._snapshots().items():
            page.add("streamjoin_snapshot_number", state.next_id, name, join)
            page.add("streamjoin_waiting_snapshots", state.waiting, name, join)
            page.add("streamjoin_waiting_snapshot_bytes", state.waiting_bytes, name, join)
            page.add("streamjoin_snapshot_buffer_bytes", state.buffer_bytes, name, join)
            page.add("streamjoin_snapshot_failing_seconds", state.failing_seconds, name, join)
            page.add("streamjoin_snapshot_failures_total", state.store.failures, name, join)
            page.add("streamjoin_stored_snapshots_total", state.store.snapshots, name, join)
            page.add("streamjoin_stored_snapshot_rows_total", state.store.rows, name, join)
            page.add("streamjoin_snapshot_store_seconds_total", state.store.seconds, name, join)

    def _add_totals(self, page: Page, totals: Mapping[str, Sequence[int]]) -> None:
        name = self._job.name
        for metric in CATALOGUE.values():
            if metric.total is None or (metric.many and not self._job.multiway):
                continue
            if metric.chain:
                for message in self._messages(totals):
                    page.add(metric.name, totals[metric.total.format(message)][0], name, message)
            elif "stream" in metric.labels:
                values = totals.get(metric.total, (0,) * len(self._streams))
                for stream in self._of_kafka if metric.name.startswith(KAFKA_PREFIX) else range(len(self._streams)):
                    page.add(metric.name, values[stream], name, self._streams[stream])
            elif "join" in metric.labels:
                for join in self._job.joins:
                    total = metric.total if len(self._job.joins) == 1 else f"{metric.total}/{join.name}"  # one alone may be renamed
                    page.add(metric.name, totals.get(total, (0,))[0], name, join.name)
            else:
                page.add(metric.name, totals.get(metric.total, (0,))[0], name)

    def _add_completeness(self, page: Page, losses: Losses, now: float) -> None:
        name, budget = self._job.name, self._job.manifest.spec.scaling.budget
        if budget is not None:
            page.add("streamjoin_completeness_budget_seconds", losses.budget_seconds(budget.share, budget.over.micros / 1e6, now), name)
        for join, of_join in losses.joins.items():
            for over, seconds in SPANS.items():
                estimate = of_join.over(seconds, now)
                if estimate is None:
                    continue
                for bound, share in (("estimate", estimate.share), ("low", estimate.low), ("high", estimate.high)):
                    page.add("streamjoin_completeness_ratio", share, name, join, over, bound)
                for cause, share in (("shedding", estimate.lost_to_shedding), ("lateness", estimate.lost_to_lateness)):
                    page.add("streamjoin_lost_results_ratio", share, name, join, over, cause)

    def _of_partitions(self, result: EpochResult, number: int, found: Mapping[int, Found]) -> list[tuple[str, int, Found]]:
        """Of a stream's partitions: their topics, their numbers in these, and what was found of them."""
        one = self._job.streams[number].source.partitions_of
        topics = result.topics[number] if result.topics else {}
        named = [(*topics.get(partition, (one, partition)), of_it) for partition, of_it in found.items()]
        return sorted(named, key=lambda each: each[:2])

    @staticmethod
    def _messages(totals: Mapping[str, Sequence[int]]) -> list[str]:
        """The kinds of a chain's messages; none where there is no chain."""
        found = [name.removeprefix("chain/") for name in totals if name.startswith("chain/")]
        return [name for name in found if f"{name}_bytes" in found]

    def _add_result(self, page: Page, result: EpochResult, now: float) -> None:
        """What is known only of an epoch that this process ran."""
        name = self._job.name
        for number, stream in enumerate(self._streams):
            page.add("streamjoin_backlog_records", result.backlog[number], name, stream)
            for topic, partition, waiting in self._of_partitions(result, number, result.backlog_by_partition[number]):
                page.add(f"{KAFKA_PREFIX}lag_records", waiting, name, stream, topic, partition)
            for topic, partition, blocked in self._of_partitions(result, number, result.blocked[number]):
                page.add(f"{KAFKA_PREFIX}blocked_seconds", blocked.seconds, name, stream, topic, partition)
            lag = result.lag[number]
            if lag is not None:
                page.add("streamjoin_watermark_lag_seconds", lag + max(0.0, now - result.started_at), name, stream)
        page.add("streamjoin_source_warnings", len(result.warnings), name)
        for task, work in sorted(self._work.items()):
            page.add("streamjoin_worker_busy_seconds_total", work.seconds, name, task)
            page.add("streamjoin_worker_output_rows_total", work.output, name, task)
            page.add("streamjoin_worker_candidate_pairs_total", work.candidates, name, task)
        for task, done in sorted(result.work.items()):
            page.add("streamjoin_worker_bytes", done.held_bytes, name, task)
        if result.block_tuples is not None:
            page.add("streamjoin_chain_block_tuples", result.block_tuples, name)
        for task, factor in enumerate(result.shed):
            page.add("streamjoin_worker_shed_ratio", factor, name, task)
        for task, factor in enumerate(result.would_shed or (0.0,) * len(result.shed)):
            page.add("streamjoin_worker_would_shed_ratio", factor, name, task)
