"""The loop: it owns the durable state, and everything else can be repeated.

An epoch, and what a crash at each line leaves::

    plan       sources say what is new since the last commit           nothing
    tasks      the runner carries out route and join                   blocks and staged outputs that no commit names: swept
    commit     one entry in the log                                    the epoch happened
    publish    staged outputs become visible                           published again from the entry by whoever claims the log
    clean      replaced blocks and old entries are removed             swept by the next driver

When nothing is new, nothing is written. When a commit's outcome is unknown, or another driver holds the log, this one stops.

Two epochs may be in flight: while a source has more input waiting, the next epoch is planned and handed to the runner before this one's
tasks are over, so that its routing fills the time in which workers would wait for each other, for the commit and for the next plan. What
makes that safe: planning needs positions only; late and expired go by the watermarks of the last epoch but one; a task of the later epoch
goes on from runs that the earlier one staged in its process, or fails; the driver commits it only if those are the runs that it has
committed. An epoch that was begun too early and failed is begun again, after the commit.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
import threading
import time
import traceback
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.elastic.deployment import initial_workers
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.shedding import shed_factor
from streamjoin.epoch.join import Steps
from streamjoin.epoch.ports import CheckpointMismatch, EpochFailed, EpochResult, Runner, Running, TaskWork
from streamjoin.epoch.replan import PlanOutdated, PlanPhase, PlanRefused, PlanStatus, Replanning, Switched
from streamjoin.epoch.spec import Config, EpochSpec, Handover, Shared, Stream, TaskReport, Upcoming, is_attempt_of, share
from streamjoin.epoch.watermark import advance
from streamjoin.io.base import Counting, Follower, Position, Source, SourceError, SourcePlan, Staged, Traffic, UnavailableError
from streamjoin.io.deadletter import DeadLetters
from streamjoin.io.factory import make_sink, make_source
from streamjoin.job import Job, StreamJob
from streamjoin.kernel.joiner import Joiner
from streamjoin.kernel.keys import encode_keys
from streamjoin.language.condition import choose
from streamjoin.language.predicate import KeyExpression, MainPredicate, Predicate
from streamjoin.language.sides import SIDES
from streamjoin.language.window import WindowKind
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.scheme.sketch import Sketch
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics
from streamjoin.scheme.tiling import Scheme, SchemeError
from streamjoin.state.blocks import Block, load_all
from streamjoin.state.log import Checkpoint, CommitLog, Newest, path_of
from streamjoin.state.storage import Storage, retries

SAMPLE_RECORDS = 50_000
SAMPLE_AHEAD_SECONDS = 60.0
SWEEP_EVERY = 500
"""Epochs between sweeps for blocks that failed attempts left."""
RECENT_EPOCHS = 30
"""Over how many epochs rates are taken."""
GRACE_EPOCHS = 2
"""A replaced block is kept this long: a task of the running epoch may be reading it back."""
COUNTERS = (
    *("input", "rejected", "filtered", "late", "unmatchable", "shed", "accepted", "routed"),
    *("input_bytes", "routed_bytes", "dead_letter_bytes"),
)
"""What routing counts, by stream: fields of RouteReport."""


@dataclass(frozen=True)
class _Head:
    """Where planning goes on: after the last commit, or after the epoch in flight."""

    epoch: int
    positions: tuple[Position | None, Position | None]
    records: tuple[int, int]


@dataclass
class _Flight:
    """An epoch that was handed to the runner."""

    spec: EpochSpec
    plans: tuple[SourcePlan, SourcePlan]
    started: float
    running: Running
    scheme: Scheme
    plan: Shared
    replanning: Replanning | None = None
    """The plan whose first epoch this is."""

    @property
    def head(self) -> _Head:
        left, right = self.plans
        return _Head(self.spec.epoch, (left.position, right.position), self.spec.records_after)


_Step = Callable[..., EpochResult | None]


def _trying_again(step: _Step) -> _Step:
    """What cannot be reached now fails the epoch, not the driver."""

    @functools.wraps(step)
    def tried(driver: Driver, *, final: bool = False) -> EpochResult | None:
        try:
            return step(driver, final=final)
        except UnavailableError as error:
            epoch = max(0, driver.checkpoint.epoch + driver.is_published)
            raise EpochFailed(f"epoch {epoch}: UnavailableError: {error}", traceback.format_exc()) from error

    return tried


@dataclass
class _Garbage:
    epoch: int
    names: list[str] = field(default_factory=list)


class Driver:
    """One join's loop. Single-threaded; at most one driver of a checkpoint can commit.

    ``sources`` replace those that the manifest names. ``at`` is told the name of each step as it begins (tests stop the world there).
    """

    def __init__(
        self,
        job: Job,
        storage: Storage,
        runner: Runner,
        *,
        sources: tuple[Source, Source] | None = None,
        clock: Callable[[], float] = time.time,
        at: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.job = job
        self._storage = storage
        self._runner = runner
        self._clock = clock
        self._at = at
        self._log = CommitLog(storage, clock=clock)
        self._sources = sources or _sources(job, StorageSnapshots(storage))
        self._sink = make_sink(job.sink, _output_schema(job), storage=storage, query=job.name)
        self._dead_letters = DeadLetters(job.dead_letter)
        self._query = uuid.uuid4().hex
        self.checkpoint = Checkpoint()
        self.exhausted = False
        """Whether, when last asked, both sources said that nothing will ever come after what they had planned."""
        self.scheme: Scheme | None = None
        self.predicate: Predicate | None = None
        self._config: Shared | None = None
        self._plan: Shared | None = None
        self._garbage: list[_Garbage] = []
        self._failed = False
        """An epoch's attempt has left files behind."""
        self._published = False
        self._next: _Flight | None = None
        """The epoch that follows one whose result has been committed, already in flight."""
        self._workers: tuple[int, ...] = ()
        """By task of the running plan."""
        self._numbers, self._names = itertools.count(), itertools.count()
        self._replanning: Replanning | None = None
        self._asked: Plan | None = None
        """A plan that was put and not taken up yet; like all below, guarded by the lock: other threads put plans and ask."""
        self._dropped: str | None = None
        self._drops = 0
        self._switched: Switched | None = None
        self._lock = threading.Lock()
        self._sketches = (Sketch(), Sketch())
        self._usual_seconds: deque[float] = deque(maxlen=5)
        """What the last epochs took."""
        self._recent: deque[tuple[float, tuple[int, int]]] = deque(maxlen=RECENT_EPOCHS)
        """When the last epochs were committed, and the tuples that arrived with each."""
        self._task_retries = 0
        """Repeated storage requests of tasks that run in this process: their reports have them too."""

    def start(self) -> None:
        """Claim the checkpoint, finish what its last epoch left to do, and make workers ready.

        A sink that is out of reach is left to the steps, which are tried again. Raises CheckpointMismatch, StorageError, SinkError.
        """
        self._at("claim")
        self.checkpoint = self._log.claim()
        self._require_same_join()
        self._at("republish")
        try:
            self._publish(again=True)
        except UnavailableError:  # until a step has sent it, nothing that is staged may be swept away
            self._failed = True
        else:
            self._at("sweep")
            self.sweep()
        if self.checkpoint.scheme is not None:
            self._replan_as_asked()

    def stop(self) -> None:
        """Give up what is in flight, which the next start does again, and end the workers."""
        self._abandon()
        self._runner.stop()

    @property
    def is_published(self) -> bool:
        """Whether everything that the last commit staged is visible."""
        return self._published

    @property
    def traffic(self) -> tuple[Traffic, Traffic, Traffic]:
        """Of this process with the left and the right source's servers, and with the sink's."""
        left, right, sink = (part.traffic if isinstance(part, Counting) else Traffic() for part in (*self._sources, self._sink))
        return left, right, sink

    @_trying_again
    def step(self, *, final: bool = False) -> EpochResult | None:
        """Run one epoch, or return None (and write nothing) when no source has anything new.

        ``final``: no more input will come, so what waits for its end (a last line without a newline) is taken as it is.
        Raises EpochFailed (try again or stop), Superseded and StorageError (stop), SourceError (stop: the input needs mending).
        """
        repeated, self._task_retries = retries(), 0
        if not self._published:
            self._publish(again=True)
        self._advance_plan()
        flight, self._next = self._next, None
        try:
            steps = Steps()
            flight = flight or self._begin(self._committed(), steps, final)
            if flight is None:
                return None
            flight, reports = self._finish(flight, final, steps)
            previous, checkpoint = self.checkpoint, self._after(flight, reports)
            self._at("commit")
            self._log.commit(checkpoint)
            self.checkpoint, self._published = checkpoint, False
            self._learn(flight, reports, steps)
            steps.lap("commit")
            self._at("publish")
            self._publish()
            steps.lap("publish")
            self._at("clean")
            self._clean(previous, reports)
            steps.lap("clean")
        except BaseException:
            self._abandon()
            raise
        repeated = retries() - repeated - self._task_retries
        return self._result(flight, reports, steps.seconds, repeated)

    def _committed(self) -> _Head:
        last = self.checkpoint
        return _Head(last.epoch, last.positions, last.records)

    def _begin(self, head: _Head, steps: Steps, final: bool = False) -> _Flight | None:
        """Plan the epoch after ``head`` and hand it to the runner; None when nothing is new."""
        started = self._clock()
        self._at("plan")
        plans = self._plan_input(head, final)
        self.exhausted = all(plan.exhausted for plan in plans)
        idle = not any(plan.splits for plan in plans)
        if self._replanning is not None and self._replanning.phase is PlanPhase.PREPARING and idle:
            self._replanning.phase = PlanPhase.SWITCHING  # nobody waits
        switching = self._replanning if self._replanning and self._replanning.phase is PlanPhase.SWITCHING else None
        if idle and switching is None:
            return None
        if self.scheme is None:
            steps.lap("plan")
            self._at("deploy")
            self._deploy(plans)
            steps.lap("deploy")
            plans = self._plan_input(head, final)  # workers take seconds to start: for a source that runs by the clock, time begins here
        splits = tuple((side, split) for side in SIDES for split in plans[side].splits)
        assert self.scheme is not None
        assert self._plan is not None
        scheme, shared, workers = self.scheme, self._plan, self._workers
        if switching is not None:
            scheme, workers = switching.plan.scheme, switching.workers
            shared = switching.shared
        spec = self._spec(head, plans, splits, scheme, shared, switching)
        if switching is None and self._replanning is not None and self._replanning.workers:
            spec, workers = self._preparing(spec, self._replanning)
        steps.lap("plan")
        self._at("tasks" if switching is None else "switch")
        repeated = retries()
        try:
            running = self._runner.submit(spec, workers)
        except EpochFailed as error:
            if switching is not None:
                self._drop_plan(f"generation {switching.plan.generation}: its workers could not be given their tasks: {error}")
            raise
        self._task_retries += retries() - repeated
        return _Flight(spec, plans, started, running, scheme, shared, switching)

    def _preparing(self, spec: EpochSpec, replanning: Replanning) -> tuple[EpochSpec, tuple[int, ...]]:
        """The epoch with the workers to come, who fetch what they will need under the plan to come."""
        workers = self._workers + tuple(worker for worker in replanning.workers if worker not in self._workers)
        tasks = {number: replanning.workers.index(worker) for number, worker in enumerate(workers) if worker in replanning.workers}
        return replace(spec, upcoming=Upcoming(replanning.shared, tasks, path_of(self._log.sequence))), workers

    def _finish(self, flight: _Flight, final: bool, steps: Steps) -> tuple[_Flight, list[TaskReport]]:
        """The epoch's reports; meanwhile the next one is begun, if there is input for it.

        An epoch that was begun before the one before it was committed, and failed, is begun again.
        """
        if self._may_begin_next(flight):
            steps.lap("tasks")
            with contextlib.suppress(SourceError, UnavailableError):  # no reason to lose this epoch; the next step asks again
                self._next = self._begin(flight.head, steps)
        repeated = retries()
        try:
            reports = flight.running.result()
            opened = {report.task: report.opened for report in reports if report.task < flight.scheme.tasks}
            if any(report.predecessor_missing for report in reports):
                raise EpochFailed(f"epoch {flight.spec.epoch}: a task was begun before the same task of the epoch before it")
            if flight.spec.follows is not None and opened != self.checkpoint.tokens:
                raise EpochFailed(f"epoch {flight.spec.epoch}: it went on from runs that were not committed")
        except EpochFailed as error:
            self._abandon()
            self._failed = True
            if flight.replanning is not None:
                self._drop_plan(f"generation {flight.replanning.plan.generation}: its first epoch failed: {error}")
            if flight.spec.follows is None or error.permanent:
                raise
            again = self._begin(self._committed(), steps, final)
            assert again is not None, "the input was there before"
            flight, reports = again, again.running.result()
        finally:
            self._task_retries += retries() - repeated
        steps.lap("tasks")
        return flight, reports

    def _may_begin_next(self, flight: _Flight) -> bool:
        """Only while there is a backlog, so that a join that keeps up takes its input once an interval; and not when files of failed
        attempts are to be swept away after this epoch, as those of an epoch in flight would look like them."""
        backlog = sum(plan.backlog_records for plan in flight.plans)
        replanning = self._replanning is not None and (bool(self._replanning.workers) or self._has_workers(self._replanning))
        return (
            backlog > 0
            and self._runner.overlaps
            and not replanning
            and flight.replanning is None
            and not self._failed
            and not self._sweeps_after(flight.spec.epoch)
        )

    @staticmethod
    def _sweeps_after(epoch: int) -> bool:
        return epoch % SWEEP_EVERY == SWEEP_EVERY - 1

    def _abandon(self) -> None:
        """Give up the epoch that was begun too early: what it has written is swept away."""
        flight, self._next = self._next, None
        if flight is not None:
            flight.running.cancel()
            self._failed = True

    def put_plan(self, plan: Plan) -> bool:
        """Ask for this plan to be applied; False when it runs already or is being applied. Any thread may call this.

        A later generation replaces one that does not run yet. Raises PlanRefused for a plan that is none (``Scheme.check``) or is not
        within ``spec.workers``, PlanOutdated for one that does not come after the newest.
        """
        if self.scheme is None or self.predicate is None:
            raise PlanRefused("plan: the join has no plan yet, as it has seen no input; put one once it runs")
        try:
            plan.scheme.check(self.predicate.main)
        except SchemeError as error:
            raise PlanRefused(f"plan.scheme: {error}") from error
        least, most = self.job.min_workers, self.job.max_workers
        if not least <= plan.workers <= most:
            raise PlanRefused(
                f"plan.scheme.tasks: {plan.workers} must be from {least} (spec.workers.min) to {most} (spec.workers.max); change either"
            )
        with self._lock:
            running, wanted = self.checkpoint.generation, self._wanted()
            newest = wanted or Plan(running, self.scheme, tuple(range(self.scheme.tasks)))
            if plan.generation == newest.generation and plan.scheme == newest.scheme:
                return False
            if plan.generation <= newest.generation:
                state = "runs" if wanted is None else "is being applied"
                raise PlanOutdated(f"plan.generation: {plan.generation} must be above {newest.generation}, which {state}; read it again")
            _check_keep(plan, self.scheme)
            self._asked, self._dropped = plan, None
        return True

    def plan_status(self) -> PlanStatus | None:
        """The plan that runs and the one that is being applied; None before the first. Any thread may call this."""
        scheme, replanning = self.scheme, self._replanning
        if scheme is None:
            return None
        with self._lock:
            wanted = self._wanted()
            phase = PlanPhase.RUNNING
            if wanted is not None:
                phase = replanning.phase if replanning is not None and self._asked is None else PlanPhase.WAITING
            return PlanStatus(
                generation=self.checkpoint.generation,
                scheme=scheme,
                phase=phase,
                workers=scheme.tasks,
                wanted=wanted,
                ready_workers=self._runner.ready,
                to_fetch_bytes=0 if replanning is None else replanning.to_fetch_bytes,
                dropped=self._dropped,
                switched=self._switched,
                drops=self._drops,
            )

    def statistics(self) -> Statistics:
        """What the join holds, as plans are made from: each side's stored tuples and the spread of their keys. Any thread may call this."""
        blocks = self.checkpoint.blocks
        with self._lock:
            histograms = [sketch.histogram() for sketch in self._sketches]
        keyed = self.predicate is not None and bool(self.predicate.main.keys)
        left, right = (
            SideStatistics(float(sum(block.rows for block in blocks if block.side == side)), histograms[side] if keyed else None)
            for side in SIDES
        )
        return Statistics((left, right))

    def rates(self) -> tuple[float, float]:
        """Tuples accepted per second of each stream, over the last epochs. Any thread may call this."""
        with self._lock:
            recent = list(self._recent)
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return 0.0, 0.0
        seconds = recent[-1][0] - recent[0][0]
        left, right = (sum(counts[side] for _, counts in recent[1:]) / seconds for side in SIDES)
        return left, right

    def _wanted(self) -> Plan | None:
        return self._asked or (None if self._replanning is None else self._replanning.plan)

    def _has_workers(self, replanning: Replanning) -> bool:
        return None not in replanning.plan.keep or self._runner.ready >= self._workers_for(replanning.plan)

    def _workers_for(self, plan: Plan) -> int:
        """How many workers there must be while the plan is prepared: those that run, and the new ones."""
        return len(self._workers) + plan.keep.count(None)

    def _advance_plan(self) -> None:
        """Take up a plan that was put, and bring the one that is being applied as far as it can be brought between two epochs."""
        with self._lock:
            asked, self._asked = self._asked, None
        if asked is not None and self.scheme is not None:
            try:
                _check_keep(asked, self.scheme)
            except PlanRefused as error:  # another plan has been switched to in between
                self._drop_plan(f"generation {asked.generation}: {error}")
                return
            self._replanning = Replanning(asked, self._shared_scheme(asked.scheme), self._clock())
            if None in asked.keep:
                self._at("request")
                self._runner.request(self._workers_for(asked))
        replanning = self._replanning
        if replanning is None or self._next is not None or replanning.phase is not PlanPhase.WAITING:
            return
        if self._has_workers(replanning):
            fresh = [next(self._numbers) for worker in replanning.plan.keep if worker is None]
            replanning.assign(self._workers, fresh, self._clock())
            if self._storage.local_path("blocks") is not None:
                replanning.phase = PlanPhase.SWITCHING  # blocks are mapped where they lie

    def _shared_scheme(self, scheme: Scheme) -> Shared:
        """Under a name of its own: a plan that was dropped and the next one may have the same generation."""
        return share(f"{self._query}-{next(self._names)}", scheme)

    def _drop_plan(self, why: str) -> None:
        """Go on under the plan that runs."""
        with self._lock:
            self._replanning, self._dropped = None, why
            self._drops += 1
        self._runner.release(self._workers)

    def _learn(self, flight: _Flight, reports: list[TaskReport], steps: Steps) -> None:
        """Take over what the epoch that was just committed has changed: the plan, and the statistics for the next one."""
        replanning = flight.replanning
        now = self._clock()
        with self._lock:
            for report in reports:
                for sample in (*report.held_sample, *(route.sample for route in report.routes if route.sample is not None)):
                    self._sketches[sample.side].add(sample.keys, sample.weight, sample.time_max)
            for side in SIDES:
                self._sketches[side].expire(flight.spec.expired_before[side])
            counts = _counts(reports)["accepted"]
            self._recent.append((now, (counts[0], counts[1])))
            if replanning is not None:
                usual = statistics.median(self._usual_seconds) if self._usual_seconds else 0.0
                self._switched = Switched(
                    generation=replanning.plan.generation,
                    epoch=flight.spec.epoch,
                    at=now,
                    waited_seconds=flight.started - replanning.put_at,
                    pause_seconds=max(0.0, sum(steps.seconds.values()) - usual),
                    kept_tuples=sum(report.kept_tuples for report in reports),
                    moved_tuples=sum(report.moved_tuples for report in reports),
                )
                self.scheme, self._plan, self._workers = flight.scheme, flight.plan, replanning.workers
                self._replanning = None
            elif self._replanning is not None and self._replanning.phase is PlanPhase.PREPARING and flight.spec.upcoming is not None:
                self._replanning.fetched(sum(report.to_fetch_bytes for report in reports), now)
        if replanning is not None:
            self._at("release")
            self._runner.release(self._workers)
        else:
            self._usual_seconds.append(sum(steps.seconds.values()))

    def sweep(self) -> int:
        """Remove what no commit names: blocks and staged outputs of attempts that failed. Returns how many. O(stored objects).

        What a newer driver has made since is left alone: this one may not know yet that it has been replaced.
        """
        named = {block.name for block in self.checkpoint.blocks}
        waiting = {name for garbage in self._garbage for name in garbage.names}
        stray = [
            path
            for path in self._storage.list("blocks")
            if path not in named and path not in waiting and self._may_sweep(path.rsplit("/", 1)[1])
        ]
        used = {
            snapshot_path(name) for side in SIDES for name in self._sources[side].referenced(self.checkpoint.positions[side])
        } | waiting
        snapshots = [path for path in self._storage.list("sources") if path not in used]
        if snapshots and self._log.is_held():  # asked after listing, so that none of them can be a newer driver's
            stray += snapshots
        self._storage.delete_many(stray)
        return len(stray) + self._sink.sweep(self._may_sweep) + self._dead_letters.sweep(self._may_sweep)

    def _may_sweep(self, name: str) -> bool:
        """Whether a block or staged file is this checkpoint's, and was not made by a newer driver."""
        return is_attempt_of(name, self.checkpoint.identity, self._log.incarnation)

    def utilization(self) -> dict[int, float]:
        """tau of each task: tuples held / capacity."""
        return {task: sum(held) / self.job.capacity_tuples for task, held in self.checkpoint.held.items()}

    def _plan_input(self, head: _Head, final: bool) -> tuple[SourcePlan, SourcePlan]:
        now, limit = self._clock(), self.job.max_tuples

        def plan(side: int, records: int) -> SourcePlan:
            return self._sources[side].plan(head.positions[side], records, now, final)

        left, right = plan(0, max(1, limit // 2)), plan(1, max(1, limit // 2))
        ahead = self._ahead()
        if ahead is not None and (left, right)[1 - ahead].splits:
            held_back = replace((left, right)[ahead], splits=(), position=head.positions[ahead] or {})
            held_back = replace(held_back, records=0, end_record=head.records[ahead])
            left, right = (held_back, right) if ahead == 0 else (left, held_back)
        spare = limit - left.records - right.records
        if left.backlog_records and left.splits and not right.backlog_records and spare > 0:
            left = plan(0, left.records + spare)
        elif right.backlog_records and right.splits and not left.backlog_records and spare > 0:
            right = plan(1, right.records + spare)
        return left, right

    def _ahead(self) -> int | None:
        """The side that is so far ahead in event time that reading on would only fill its state; it waits while the other has input."""
        left, right = self.checkpoint.watermarks
        if left is None or right is None or self.job.window.kind is not WindowKind.RANGE:
            return None
        window = self.job.window
        if left > right + window.before_micros + window.after_micros + self.job.interval_micros:
            return 0
        if right > left + window.before_micros + window.after_micros + self.job.interval_micros:
            return 1
        return None

    def _deploy(self, plans: tuple[SourcePlan, SourcePlan]) -> None:
        """Choose the main predicate and the first scheme from a sample of the first input, and make workers ready."""
        streams = (self.job.left, self.job.right)
        samples = [_sample(self._sources[side], plans[side], self._clock()) for side in SIDES]
        candidates = self.job.condition.candidates
        by_candidate = [[_encoded(samples[side], key_of(c.main, side), streams[side]) for c in candidates] for side in SIDES]
        predicate = choose(self.job.condition, by_candidate)
        chosen = candidates.index(predicate)
        rates = [stream.expected_rate for stream in streams]
        volumes = rates if all(rates) else [max(1, plan.records) for plan in plans]
        self._plan_anew(predicate.main, [float(volume or 1) for volume in volumes], [of_side[chosen] for of_side in by_candidate])

    def _replan_as_asked(self) -> None:
        """A manifest that asks for another model or number of workers than the checkpoint's plan gets a new plan from what is held."""
        job = self.job
        scheme = Scheme.from_json(self.checkpoint.scheme)
        if scheme.model == job.model and job.min_workers <= scheme.tasks <= job.max_workers:
            self._adopt(scheme)
            return
        main = self._chosen().main
        held = [[block for block in self.checkpoint.blocks if block.side == side] for side in SIDES]
        keys = [_block_keys(self._storage, of_side, main) for of_side in held]
        self._plan_anew(main, [float(max(1, sum(block.rows for block in of_side))) for of_side in held], keys)

    def _plan_anew(self, main: MainPredicate, volumes: list[float], keys: list[np.ndarray]) -> None:
        """Make a plan for as many workers as the expected rates ask for (ESJ), and adopt it; it is durable with the next commit."""
        job = self.job
        workers = initial_workers(
            rates=(job.left.expected_rate, job.right.expected_rate),
            window=job.window,
            capacity_tuples=job.capacity_tuples,
            tau1=job.tau1,
            minimum=job.min_workers,
            maximum=job.max_workers,
        )
        left, right = (
            SideStatistics(volumes[side], Histogram.from_sample(keys[side]) if len(keys[side]) and main.keys else None) for side in SIDES
        )
        scheme = plan_for_tasks(job.model, Statistics((left, right)), main, workers, options=job.scheme_options)
        scheme.check(main)
        if self.checkpoint.scheme is not None:
            before = Scheme.from_json(self.checkpoint.scheme)
            if (before.model, before.tasks) == (scheme.model, scheme.tasks):  # the model has no scheme for as many workers as were asked
                self._adopt(before)
                return
        self.checkpoint = replace(
            self.checkpoint, main=str(main), scheme=scheme.to_json(), generation=self.checkpoint.generation + 1, tokens={}
        )
        self._adopt(scheme)

    def _chosen(self) -> Predicate:
        """The candidate that the checkpoint's blocks are sorted for."""
        for candidate in self.job.condition.candidates:
            if str(candidate.main) == self.checkpoint.main:
                return candidate
        raise CheckpointMismatch(
            f"{self._storage.url}: its tuples are sorted by the key of {self.checkpoint.main}, which spec.joins[0].on no longer offers; "
            "use the version that wrote it, or choose a new checkpoint.location"
        )

    def _adopt(self, scheme: Scheme) -> None:
        """Run under the checkpoint's plan from now on."""
        self.predicate = self._chosen()
        self.scheme = scheme
        readers = (self._sources[0].reader, self._sources[1].reader)
        job = self.job
        left, right = (Stream(each.name, each.schema, each.payload, each.where, each.event_time) for each in (job.left, job.right))
        config = Config(
            query=self._query,
            streams=(left, right),
            window=job.window,
            where=job.where,
            output=job.output,
            predicate=self.predicate,
            storage=self._storage,
            sink=self._sink,
            dead_letters=self._dead_letters,
            readers=readers,
        )
        self._config = share(self._query, config)
        self._plan = self._shared_scheme(scheme)
        self._workers = tuple(next(self._numbers) for _ in range(scheme.tasks))
        self._runner.start(self._workers)

    def _spec(
        self,
        head: _Head,
        plans: tuple[SourcePlan, SourcePlan],
        splits: tuple[tuple[int, Any], ...],
        scheme: Scheme,
        shared: Shared,
        switching: Replanning | None,
    ) -> EpochSpec:
        job, last = self.job, self.checkpoint
        assert self._config is not None
        assert self._plan is not None
        ranged = job.window.kind is WindowKind.RANGE
        follows = None if head.epoch == last.epoch else head.epoch
        watermarks = last.effective if follows is None else last.watermarks
        marks = watermarks if ranged else head.records
        utilization = self.utilization()
        return EpochSpec(
            identity=last.identity,
            epoch=head.epoch + 1,
            incarnation=self._log.incarnation,
            config=self._config,
            scheme=shared,
            generation=last.generation if switching is None else switching.plan.generation,
            splits=splits,
            late_before=watermarks if ranged else (None, None),
            expired_before=job.window.expired_before(marks),
            records_before=head.records,
            records_after=(plans[0].end_record, plans[1].end_record),
            shed=tuple(
                shed_factor(job.shedding_model, job.shedding_base, job.tau2, utilization.get(task, 0.0))
                for task in range(scheme.tasks)
            ),
            tokens=last.tokens if follows is None and switching is None else {},
            handover=None if switching is None else Handover(self._plan, last.tokens),
            base=path_of(self._log.sequence) if last.blocks and follows is None else None,
            follows=follows,
        )

    def _after(self, flight: _Flight, reports: list[TaskReport]) -> Checkpoint:
        """The checkpoint after the epoch."""
        last, job, spec, plans = self.checkpoint, self.job, flight.spec, flight.plans
        at_work = [report for report in reports if report.task < flight.scheme.tasks]
        replaced = {name for report in reports for name in report.replaced}
        kept = [block for block in last.blocks if block.name not in replaced and not block.is_expired(spec.expired_before)]
        counts = _counts(reports)
        totals = {name: [last.totals.get(name, [0, 0])[side] + counts[name][side] for side in SIDES] for name in COUNTERS}
        once = {
            "output": sum(report.output for report in reports),
            "candidates": sum(report.candidates for report in reports),
            "output_bytes": sum(staged.bytes for report in reports for staged in report.staged),
            "read_back": _read_back(spec, reports),
            "read_back_bytes": sum(report.read_back_bytes for report in reports),
        }
        totals |= {name: [last.totals.get(name, [0])[0] + count] for name, count in once.items()}
        for name, pair in zip(("written_blocks", "written_bytes"), stored(b for report in reports for b in report.blocks), strict=True):
            totals[name] = [last.totals.get(name, [0, 0])[side] + pair[side] for side in SIDES]
        totals["skipped"] = [plan.skipped_records for plan in plans]
        (left, left_partitions), (right, right_partitions) = (self._advance(side, reports) for side in SIDES)
        dead = [staged for report in reports for route in report.routes for staged in route.dead_letters]
        return replace(
            last,
            epoch=spec.epoch,
            generation=spec.generation,
            scheme=last.scheme if flight.replanning is None else flight.scheme.to_json(),
            positions=(plans[0].position, plans[1].position),
            records=spec.records_after,
            watermarks=(left, right),
            effective=last.watermarks,
            partitions=(left_partitions, right_partitions),
            blocks=tuple(kept + [block for report in reports for block in report.blocks]),
            held={report.task: report.held for report in at_work},
            tokens={report.task: report.token for report in at_work},
            totals=totals,
            staged={
                "sink": [staged.to_json() for report in reports for staged in report.staged],
                "deadLetter": [staged.to_json() for staged in dead],
            },
            fingerprint=job.fingerprint(),
            committed_at=self._clock(),
        )

    def _advance(self, side: int, reports: list[TaskReport]) -> tuple[int | None, dict[int, Newest]]:
        """A stream's watermark and partitions after the epoch."""
        stream = (self.job.left, self.job.right)[side]
        return advance(
            self.checkpoint.watermarks[side],
            self.checkpoint.partitions[side],
            (route for report in reports for route in report.routes if route.side == side),
            delay_micros=stream.watermark_micros,
            idle_seconds=stream.idle_micros / 1e6,
            now=self._clock(),
        )

    def _publish(self, *, again: bool = False) -> None:
        staged = self.checkpoint.staged
        self._sink.publish([Staged.from_json(value) for value in staged.get("sink", [])], again=again)
        self._dead_letters.publish([Staged.from_json(value) for value in staged.get("deadLetter", [])], again=again)
        self._published = True
        for side in SIDES:
            source, position = self._sources[side], self.checkpoint.positions[side]
            if position is not None and isinstance(source, Follower):
                source.committed(position)

    def _clean(self, previous: Checkpoint, reports: list[TaskReport]) -> None:
        """Remove what the commit made obsolete. A failure here loses nothing: the next sweep finds what is left."""
        named = {block.name for block in self.checkpoint.blocks}
        obsolete = [block.name for block in previous.blocks if block.name not in named]
        obsolete += [name for report in reports for name in report.replaced if name not in named and name not in obsolete]
        for side in SIDES:
            before, now = (self._sources[side].referenced(checkpoint.positions[side]) for checkpoint in (previous, self.checkpoint))
            obsolete += [snapshot_path(name) for name in before - now]
        self._garbage.append(_Garbage(self.checkpoint.epoch, obsolete))
        try:
            while self._garbage and self._garbage[0].epoch <= self.checkpoint.epoch - GRACE_EPOCHS:
                self._storage.delete_many(self._garbage[0].names)
                self._garbage.pop(0)
            self._log.trim()
            if self._next is None and (self._failed or self._sweeps_after(self.checkpoint.epoch)):
                self.sweep()
                self._failed = False
        except OSError:
            self._failed = True

    def _require_same_join(self) -> None:
        before, now = self.checkpoint.fingerprint, self.job.fingerprint()
        changed = [name for name in now if before and before.get(name) != now[name]]
        if changed:
            lines = [f"{name}: {now[name]} differs from {before.get(name)}, which the checkpoint was made with" for name in changed]
            raise CheckpointMismatch(
                "; ".join(lines) + f". Restore the manifest, or choose a new checkpoint.location (this one is {self._storage.url})"
            )

    def _result(
        self, flight: _Flight, reports: list[TaskReport], seconds: dict[str, float], repeated: int
    ) -> EpochResult:
        spec, plans, started = flight.spec, flight.plans, flight.started
        for report in reports:
            for step, spent in report.seconds.items():
                seconds[f"task.{step}"] = max(spent, seconds.get(f"task.{step}", 0.0))
        routing = [route.seconds for report in reports for route in report.routes]
        seconds["task.route"] = max(routing, default=0.0)
        counts = _counts(reports)
        stored_blocks, stored_bytes = stored(self.checkpoint.blocks)
        return EpochResult(
            epoch=spec.epoch,
            started_at=started,
            seconds=seconds,
            counts={name: (counts[name][0], counts[name][1]) for name in COUNTERS},
            output=sum(report.output for report in reports),
            candidates=sum(report.candidates for report in reports),
            held=self.checkpoint.held,
            utilization=self.utilization(),
            watermarks=self.checkpoint.watermarks,
            lag=(_lag(plans[0], started, self.checkpoint.watermarks[0]), _lag(plans[1], started, self.checkpoint.watermarks[1])),
            backlog=(plans[0].backlog_records, plans[1].backlog_records),
            shed=spec.shed,
            read_back=_read_back(spec, reports),
            storage_retries=repeated + sum(report.storage_retries + sum(r.storage_retries for r in report.routes) for report in reports),
            totals=self.checkpoint.totals,
            generation=self.checkpoint.generation,
            blocks=len(self.checkpoint.blocks),
            warnings=plans[0].warnings + plans[1].warnings,
            committed_at=self.checkpoint.committed_at,
            work={report.task: TaskWork(report.seconds, report.output, report.candidates, report.held_bytes) for report in reports},
            stored_blocks=stored_blocks,
            stored_bytes=stored_bytes,
            source_errors=(_source_errors(reports, 0), _source_errors(reports, 1)),
            backlog_by_partition=(plans[0].backlog_by_partition, plans[1].backlog_by_partition),
        )


class StorageSnapshots:
    """Where sources keep positions that are too large for every log entry: objects in the checkpoint's storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def put(self, name: str, data: bytes) -> None:
        self._storage.put(snapshot_path(name), data)

    def get(self, name: str) -> bytes:
        return self._storage.get(snapshot_path(name))


def snapshot_path(name: str) -> str:
    return f"sources/{name}"


def _sources(job: Job, snapshots: StorageSnapshots) -> tuple[Source, Source]:
    exact = job.window.kind is WindowKind.ROWS

    def source(stream: StreamJob) -> Source:
        return make_source(
            stream.source, stream.schema, stream.event_time, snapshots=snapshots, exact_counts=exact, stream=stream.name, query=job.name
        )

    return source(job.left), source(job.right)


def _counts(reports: list[TaskReport]) -> dict[str, list[int]]:
    counted: dict[int, Counter[str]] = {side: Counter() for side in SIDES}
    for report in reports:
        for route in report.routes:
            counted[route.side].update({name: getattr(route, name) for name in COUNTERS})
    return {name: [counted[side][name] for side in SIDES] for name in COUNTERS}


def _source_errors(reports: list[TaskReport], side: int) -> int:
    return sum(route.source_errors for report in reports for route in report.routes if route.side == side)


def stored(blocks: Iterable[Block]) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many blocks these are and their bytes, each as (left, right)."""
    count, nbytes = [0, 0], [0, 0]
    for block in blocks:
        count[block.side] += 1
        nbytes[block.side] += block.nbytes
    return (count[0], count[1]), (nbytes[0], nbytes[1])


def _read_back(spec: EpochSpec, reports: list[TaskReport]) -> int:
    """Tasks that had something to read back and did."""
    return sum(report.read_back for report in reports) if spec.base else 0


def _lag(plan: SourcePlan, now: float, watermark: int | None) -> float | None:
    event_now = now * 1e6 if plan.event_now is None else plan.event_now
    return None if watermark is None else (event_now - watermark) / 1e6


def _check_keep(plan: Plan, running: Scheme) -> None:
    for task, worker in enumerate(plan.keep):
        if worker is not None and worker >= running.tasks:
            raise PlanRefused(f"plan.keep[{task}]: {worker} must be below {running.tasks}, as so many workers run; read the plan again")


def key_of(main: MainPredicate, side: int) -> KeyExpression | None:
    return main.key(side)


def _sample(source: Source, plan: SourcePlan, now: float) -> list[pa.RecordBatch]:
    """Some of the first records, for the choice of predicate and scheme.

    A stream that has only begun has too few; where a source knows what comes next (a generator always does), that counts too.
    """
    found: list[pa.RecordBatch] = []
    rows = 0
    for ahead in (False, True):
        splits = source.plan(plan.position, SAMPLE_RECORDS - rows, now + SAMPLE_AHEAD_SECONDS).splits if ahead else plan.splits
        for split in splits:
            for records in source.reader.read(split):
                found.append(records.batch)
                rows += records.batch.num_rows
                if rows >= SAMPLE_RECORDS:
                    return found
    return found


def _encoded(sample: list[pa.RecordBatch], key: KeyExpression | None, stream: StreamJob) -> np.ndarray:
    if key is None or not sample:
        return np.empty(0, dtype=np.int64)
    parts = []
    for batch in sample:
        keys, valid = encode_keys(batch, key, stream.schema)
        parts.append(keys if valid is None else keys[valid])
    return np.concatenate(parts)


def _block_keys(storage: Storage, blocks: list[Block], main: MainPredicate) -> np.ndarray:
    """An even sample of the keys in these blocks."""
    if not main.keys or not blocks:
        return np.empty(0, dtype=np.int64)
    every = max(1, sum(block.rows for block in blocks) // SAMPLE_RECORDS)
    loaded = load_all(storage, [block.name for block in blocks])
    return np.concatenate([batch.column("_key").to_numpy()[::every] for batch in loaded])


def _output_schema(job: Job) -> pa.Schema:
    main = job.condition.candidates[0].main
    return Joiner(main, job.window, None, job.where, job.output, (job.left.name, job.right.name)).output_schema
