"""The loop: it owns the durable state, and everything else can be repeated.

An epoch, and what a crash at each line leaves::

    plan       sources say what is new since the last commit           nothing
    tasks      the runner carries out route and join                   blocks and staged outputs that no commit names: swept
    gather     small results are made one file, if they are due        a staged file that no commit names: swept
    commit     one entry in the log                                    the epoch happened
    publish    staged outputs become visible                           published again from the entry by whoever claims the log
    clean      replaced blocks and old entries are removed             swept by the next driver

When nothing is new, nothing is written but results that wait to be visible. When a commit's outcome is unknown, or another driver holds the
log, this one stops.

Two epochs may be in flight: while a source has more input waiting, the next epoch is planned and handed to the runner before this one's
tasks are over, and the one after it as soon as this one is committed, before its results are published. So routing fills the time in which
workers would wait for each other, for the commit and for the next plan. What makes that safe: planning needs positions only; late and
expired go by the watermarks of the last epoch but one; a task of the later epoch goes on from runs that the earlier one staged in its
process, or fails; the driver commits it only if those are the runs that it has committed. One that was begun too early is begun again.

Others do the rest: ``planning`` (how much an epoch reads), ``commits``, ``next_checkpoint`` (the checkpoint after an epoch), ``replan``,
``deployment`` (the first plan), ``timelines`` (snapshots of results), ``compaction`` and ``garbage``.
"""

from __future__ import annotations

import contextlib
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from streamjoin.elastic.path_plans import PathPlans
from streamjoin.elastic.plan import Plan
from streamjoin.epoch import deployment, events
from streamjoin.epoch.caution import Caution
from streamjoin.epoch.commits import Commits
from streamjoin.epoch.compaction import rewrite_after
from streamjoin.epoch.cutting import least_workers, plan_for
from streamjoin.epoch.delays import Counted, DelayMeter
from streamjoin.epoch.fingerprint import JoinChanges, join_changes
from streamjoin.epoch.flowing import Flows
from streamjoin.epoch.garbage import GarbageCollector
from streamjoin.epoch.joins import as_named_now
from streamjoin.epoch.next_checkpoint import require_predecessor, result_of
from streamjoin.epoch.observations import Observations
from streamjoin.epoch.phases import Phases
from streamjoin.epoch.planning import Flight, Head, PlannedEpoch, make_spec, plan_inputs, utilization, weights_of_sides
from streamjoin.epoch.ports import EpochFailed, EpochResult, Runner
from streamjoin.epoch.progress import ProgressMonitor
from streamjoin.epoch.refusals import PlanRefused, require_fit
from streamjoin.epoch.replan import PlanPhase, PlanStatus, Replanner
from streamjoin.epoch.reports import TaskReport, TooLarge
from streamjoin.epoch.results import Results
from streamjoin.epoch.spec import Rewrite, Shared, share
from streamjoin.epoch.timelines import SnapshotsState, Timelines
from streamjoin.io.base import Source, SourceError, SourcePlan, Traffic, UnavailableError
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.language.predicate import MainPredicate
from streamjoin.retention import to_end
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import Scheme
from streamjoin.state.blocks import FOLDER
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.log import CommitLog, path_of
from streamjoin.state.storage import Storage, retries


class Driver:
    """One join's loop. Single-threaded; at most one driver of a checkpoint can commit.

    ``sources`` replace those that the manifest names. ``at`` is told the name of each phase as it begins (tests stop the world there).
    """

    def __init__(
        self,
        job: Job,
        storage: Storage,
        runner: Runner,
        *,
        sources: Sequence[Source] | None = None,
        clock: Callable[[], float] = time.time,
        at: Callable[[str], None] = lambda phase: None,
        in_background: bool = True,
        suspects_data: bool = False,
    ) -> None:
        """``in_background``: whether snapshots of results are stored by a thread of their own (``timelines``). ``suspects_data``: drivers
        that died one after another without a commit may have died of what they read."""
        self.job = job
        self.exhausted = False
        """Whether all sources said last that nothing will come after what they had planned."""
        self.idle_warnings: tuple[str, ...] = ()
        """Warnings of the sources when they were last asked, if they had nothing new."""
        self.layout: Layout | None = None
        self._storage = storage
        self._runner = runner
        self.progress = ProgressMonitor(runner, job.deadline_seconds)
        self._phase = Phases(self.progress, at, lambda: max(0, self.checkpoint.epoch + self.is_published))
        self._clock = clock
        self._query, self._suspects_data = uuid.uuid4().hex, suspects_data
        self._log = CommitLog(storage, clock=clock)
        sources, sink = tuple(sources or deployment.make_sources(job, storage)), deployment.make_sinks(job, storage)
        self._garbage = GarbageCollector(storage, self._log, sources, sink)
        self._timelines = Timelines(job, storage, clock=clock, in_background=in_background)
        self._replanner = Replanner(self._query, job.stabilization_seconds, fetches=storage.local_path(FOLDER) is None)
        self._observations = Observations(job.places, len(job.streams))
        self._delays = DelayMeter(join.name for join in job.joins)
        parts = (self._log, sources, sink, self._garbage, self._timelines, self._delays, storage.url)
        self._commits = Commits(*parts, clock=clock, phase=self._phase)
        self._flows = Flows(job, ())  # of three and more streams, once a plan is adopted
        self._config: Shared | None = None  # until a plan is adopted
        self._rewrite: Rewrite | None = None  # under way, or to be begun
        self._warnings: tuple[str, ...] = ()  # about the plan that was made here, for the next epoch's result
        self._ahead: deque[Flight] = deque()  # begun before the epoch before them was committed, in order; at most two
        self._changes: JoinChanges | None = None  # the joins that the checkpoint was not made with, or alone with, until it is
        self._caution = Caution()  # what is asked of the next attempt after some have failed
        self._task_retries = 0  # storage requests of tasks that run in this process: their reports have them too

    def start(self) -> None:
        """Claim the checkpoint, finish what its last epoch left to do, and make workers ready.

        A sink that is out of reach is left to the steps. Raises CheckpointMismatch, StorageError, SinkError."""
        try:
            self._start()
        finally:
            self._phase.leave()

    def _start(self) -> None:
        self._phase("claim")
        self._commits.checkpoint = self._log.claim().sized(len(self.job.streams), len(self.job.places))
        self._caution = Caution.after_deaths((self.checkpoint.claims - 1) * self._suspects_data, self.job.max_tuples)
        changes = join_changes(self.job, self.checkpoint, self._storage.url)
        self._commits.checkpoint = as_named_now(self.job, self.checkpoint, changes, self._storage.url)
        self._commits.results = Results.of(self.checkpoint, self._storage, self.job)
        self._phase("republish")
        try:
            self._commits.require_outputs()
            self._commits.publish(again=True)
        except UnavailableError:  # until a step has sent it, nothing that is staged may be swept away
            self._garbage.has_leftovers = True
        else:
            self._phase("sweep")
            self.sweep()
        self._timelines.start(self.checkpoint)
        if self.checkpoint.plan.scheme is None:
            return
        if changes:
            self._changes = changes
        else:
            self._deploy(deployment.plan_as_asked(self.job, self.checkpoint, self._storage))

    def stop(self) -> None:
        """Give up what is in flight, which the next start does again, make visible what waits for that, and end the workers."""
        self._phase("stop")
        try:
            self._abandon()
            self._commits.finish()
        finally:
            self._phase("stop", resumed=True)
            self._runner.stop()
            self._timelines.stop()
            self._commits.sink.finish()
            self._phase.leave()

    def step(self, *, final: bool = False) -> EpochResult | None:
        """Run one epoch, or return None (and write nothing) when no source has anything new.

        ``final``: no more input will come, so what waits for its end (a last line without a newline) is taken as it is.
        Raises EpochFailed (try again or stop), Superseded and StorageError (stop), SourceError (stop: the input needs mending).
        """
        try:
            return self._step(final)
        except UnavailableError as error:  # what cannot be reached now fails the epoch, not the driver
            epoch = max(0, self.checkpoint.epoch + self.is_published)
            raise EpochFailed(f"epoch {epoch}: UnavailableError: {error}", traceback.format_exc()) from error
        finally:
            self._phase.leave()

    def _step(self, final: bool) -> EpochResult | None:
        repeated, self._task_retries = retries(), 0
        if not self.is_published:
            self._phase("publish", resumed=True)
            self._commits.publish(again=True)
        self._phase("snapshots")
        self._timelines.make_room(self.checkpoint)
        self._advance_plan()
        flight = self._ahead.popleft() if self._ahead else None
        try:
            self._phase.restart()
            flight = flight or self._begin(Head.after(self.checkpoint), final)
            finished = None if flight is None else self._finish(flight, final)
            if finished is None:
                self._commits.idle(final=final, exhausted=self.exhausted)
                self.idle_warnings += self._commits.take_refused()[1]
                return None
            epoch, reports = finished
            before, after = self.checkpoint, self._commits.commit(self.job, epoch, reports, self._flows, self._observations)
            self._caution = self._caution.after_commit(self.job.max_tuples)
            self._learn(epoch, reports)
            if self._ahead and not self._replanner.is_waiting:  # a plan that has its workers is not to wait for two epochs more
                self._begin_after(self._ahead[-1].epoch)
            self._phase("publish")
            self._commits.publish()
            self._phase("clean")
            self._garbage.clean(before, after, reports, in_flight=bool(self._ahead))
        except BaseException:
            self._abandon()
            raise
        (refused, refusals), warnings, self._warnings = self._commits.take_refused(), self._warnings, ()
        result = result_of(self.job, after, epoch, reports, self._phase.lap(), retries() - repeated - self._task_retries)
        result = replace(result, refused=refused, totals=self.checkpoint.totals)
        return replace(result, warnings=(*result.warnings, *warnings, *refusals), delays=self._delays.take())

    def _advance_plan(self) -> None:
        """Take up a plan that was put, and bring the one that is being applied as far as it can be brought between two epochs."""
        self._happened(events.BetweenEpochs(self._clock()))
        self._happened(self._ready(is_free=not self._ahead))

    def _ready(self, *, is_free: bool = True) -> events.WorkersReady:
        waits = self._replanner.is_waiting
        is_urgent = waits and max(self.utilization().values(), default=0.0) >= self.job.tau2
        return events.WorkersReady(self._runner.ready, self._clock(), is_free, is_urgent, absence=self._runner.absence if waits else None)

    def _begin(self, head: Head, final: bool = False) -> Flight | None:
        """Plan the epoch after ``head`` and hand it to the runner; None when nothing is new."""
        started_at = self._clock()
        self._phase("plan")
        inputs = self._plan_inputs(head, final)
        self.exhausted = all(plan.exhausted for plan in inputs)
        idle = not any(plan.splits for plan in inputs)
        self.idle_warnings = tuple(warning for plan in inputs for warning in plan.warnings) if idle else ()
        # Other joins than the checkpoint was made with can run without input, by which a predicate would be chosen.
        changes_now = self._changes is not None and (final or not self._changes.added)
        if self._replanner.running is None and (not idle or changes_now):
            self._phase("deploy")
            if self._changes is None:
                parts = self.job, self.checkpoint, self._commits.sources, inputs, self._clock()
                self._deploy(deployment.first_plan(*parts, apart=self._caution.apart))
            else:
                self._change_joins(self._changes, inputs)
            head = Head.after(self.checkpoint)  # of the places that there are now
            self._phase("plan", resumed=True)
            inputs = self._plan_inputs(head, final)  # workers take seconds to start: for a source that runs by the clock, time begins here
        self._happened(events.EpochPlanned(idle))
        plans = self._replanner.plans
        ended = frozenset[int]()
        if final and idle and self.exhausted and plans is not None and plans.before is None:
            ended = to_end(self.job, {block.place for block in self.checkpoint.state.blocks})
        if plans is None or (idle and plans.before is None and not ended):
            return None
        assert self._config is not None
        spec = make_spec(
            *(self.job, self.checkpoint, head, inputs, plans, self._config, self._path_plans()),
            incarnation=self._log.incarnation,
            entry=path_of(self._log.sequence),
            now=self._clock(),
            caution=self._caution,
            rewrite=self._rewrite,
            ended=ended,
            deadline_seconds=self.progress.deadline_seconds,
        )
        epoch = PlannedEpoch(spec, inputs, plans, started_at)
        self._phase("switch" if epoch.is_switch else "tasks")
        repeated = retries()
        try:
            running = self._runner.submit(spec, plans.workers)
        except EpochFailed as error:
            if epoch.is_switch:
                self._happened(events.FirstEpochFailed(f"its workers could not be given their tasks: {error}", error.worker_died))
            raise
        self._task_retries += retries() - repeated
        return Flight(epoch, running)

    def _finish(self, flight: Flight, final: bool) -> tuple[PlannedEpoch, list[TaskReport]] | None:
        """The epoch and its reports; meanwhile the next one is begun, if there is input for it.

        An epoch that was begun before the one before it was committed, and failed, is begun again; and one with a split that was too large,
        with fewer records. None: by then its source had lost all that it was to read, so that nothing is new.
        """
        if not self._ahead:
            self._begin_after(flight.epoch)
        repeated = retries()
        try:
            while True:
                epoch = flight.epoch
                self._phase("tasks", resumed=True)
                try:
                    reports = flight.running.result()
                    require_predecessor(self.checkpoint, epoch, reports)
                    break
                except EpochFailed as error:
                    if error.stalled:
                        self.progress.stalled(str(error))
                    self._abandon()
                    self._garbage.has_leftovers = True
                    if error.too_large is not None:
                        self._plan_fewer(error.too_large)
                    else:
                        if epoch.is_switch:
                            self._happened(events.FirstEpochFailed(f"its first epoch failed: {error}", error.worker_died))
                        if epoch.spec.follows is None or error.permanent or error.stalled:
                            self._caution = self._caution.after(error, [plan.records for plan in epoch.inputs])
                            raise
                again = self._begin(Head.after(self.checkpoint), final)
                if again is None:
                    return None
                flight = again
        finally:
            self._task_retries += retries() - repeated
        return epoch, reports

    def _begin_after(self, epoch: PlannedEpoch) -> None:
        """Begin the epoch after this one, which is in flight, if there is input for it."""
        if not self._may_begin_after(epoch):
            return
        with contextlib.suppress(SourceError, UnavailableError):  # no reason to lose those in flight; the next step asks again
            if (flight := self._begin(epoch.head)) is not None:
                self._ahead.append(flight)

    def _plan_fewer(self, split: TooLarge) -> None:
        """From now on, at most half as many records of the split's stream for as many bytes. Durable with the next commit."""
        known = self.checkpoint.input.widths
        widths = (max(split.record_bytes, 2 * width) if stream == split.stream else width for stream, width in enumerate(known))
        self._commits.checkpoint = replace(self.checkpoint, input=replace(self.checkpoint.input, widths=tuple(widths)))
        self._caution = replace(self._caution, refused=split)

    def _may_begin_after(self, epoch: PlannedEpoch) -> bool:
        """Only while there is a backlog, so that a join that keeps up takes its input once an interval; and not when files of failed
        attempts are to be swept away after this epoch: those of an epoch in flight would look like them."""
        return (
            epoch.backlog_records > 0
            and not self._caution.is_active
            and not epoch.is_switch
            and not self._garbage.is_due(epoch.spec.epoch)
            and not self._replanner.concerns_next_epoch(self._ready())
            and self._runner.overlaps
        )

    def _abandon(self) -> None:
        """Give up the epochs that were begun too early: what they have written is swept away."""
        while self._ahead:
            self._ahead.pop().running.cancel()
            self._garbage.has_leftovers = True

    def _learn(self, epoch: PlannedEpoch, reports: list[TaskReport]) -> None:
        """Take over what the epoch that was just committed has changed: the plan, and the statistics for the next one."""
        now, seconds = self._clock(), sum(self._phase.seconds.values())
        self.progress.committed(seconds - self._phase.seconds.get("deploy", 0.0))
        tasks = epoch.plans.current.scheme.tasks
        rewrite = rewrite_after(self._rewrite, self.checkpoint, self.job.window, self._log.incarnation, tasks, reports, epoch.is_switch)
        self._garbage.has_leftovers |= epoch.is_switch and self._rewrite is not None
        self._rewrite, self._garbage.rewriting = rewrite, None if rewrite is None else rewrite.name
        assert self.layout is not None
        self._observations.add(self.layout, reports, epoch.spec.expired_before, now)
        self._flows.add(epoch.spec.path_plans, reports, self.checkpoint)
        if epoch.is_switch:
            committed = events.FirstEpochCommitted(
                epoch=epoch.spec.epoch,
                began_at=epoch.started_at,
                at=now,
                pause_seconds=max(0.0, seconds - self._observations.usual_seconds),
                kept_tuples=sum(report.kept_tuples for report in reports),
                moved_tuples=sum(report.moved_tuples for report in reports),
            )
            instructions = self._replanner.handle(committed)
            self._phase("release")
            self._carry_out(instructions)
            return
        self._observations.took(seconds)
        if epoch.plans.upcoming is not None:
            self._happened(events.BlocksFetched(sum(report.to_fetch_bytes for report in reports), now))

    def _change_joins(self, changes: JoinChanges, inputs: Sequence[SourcePlan]) -> None:
        """Go on with the manifest's joins from a checkpoint that was made with others. All that is staged is visible by now."""
        parts = self.job, self.checkpoint, changes, self._storage, self._commits.sources, inputs, self._clock()
        deployed = deployment.other_joins(*parts, apart=self._caution.apart)
        self._phase("joins")
        self._commits.settle(deployed.checkpoint)
        self._changes = None
        self._deploy(replace(deployed, checkpoint=self.checkpoint))

    def _deploy(self, deployed: deployment.Deployed) -> None:
        self._phase("deploy")
        self._warnings = () if deployed.warning is None else (deployed.warning,)
        self._adopt(deployed.checkpoint)

    def _adopt(self, checkpoint: Checkpoint) -> None:
        """Run under the checkpoint's plan from now on; where it is new, it is durable with the next commit."""
        self.job = deployment.as_it_lies(self.job, checkpoint, self._storage.url)
        self.layout = self.job.layouts[0]
        self._flows = Flows(self.job, checkpoint.plan.path_plans, checkpoint.plan.flowing)
        self._commits.checkpoint = checkpoint.sized(len(self.job.streams), len(self.job.places))
        self._observations = Observations(self.job.places, len(self.job.streams))
        config = deployment.make_config(self.job, checkpoint.seed, self._query, self._storage, self._commits.sources, self._commits.sink)
        self._config = share(self._query, config)
        self._happened(events.Adopted(checkpoint.plan.generation, Scheme.from_json(checkpoint.plan.scheme)))

    def _happened(self, event: events.Event) -> None:
        """Tell the replanner, and carry out what it wants."""
        self._carry_out(self._replanner.handle(event))

    def _carry_out(self, instructions: Iterable[events.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case events.StartWorkers(scheme, workers):
                    self._runner.start(workers, least_workers(scheme, *self._known))
                    self._happened(replace(self._ready(), is_settled=True))  # others have been waited for
                case events.RequestWorkers(count):
                    self._phase("request")
                    self._runner.request(count)
                case events.MakePlan():
                    self._phase("cut")
                    self._happened(events.PlanMade(instruction, plan_for(instruction, *self._known), self._clock()))
                case events.ReleaseWorkers(kept):
                    self._runner.release(kept)

    @property
    def _known(self) -> tuple[Job, Statistics, MainPredicate]:
        """What plans are made from."""
        assert self.layout is not None
        return self.job, self.statistics(), self.layout.main

    def _path_plans(self) -> PathPlans:
        """In what order each stream's new tuples meet the others, and how, where there are more than two."""
        return self._flows.path_plans(self.checkpoint, self._observations.rates(), self._clock())

    def _plan_inputs(self, head: Head, final: bool) -> tuple[SourcePlan, ...]:
        self._commits.show_fed()
        return plan_inputs(self.job, self._commits.sources, self.checkpoint, head, self._clock(), final=final, caution=self._caution)

    def sweep(self) -> int:
        """Remove what the last commit does not name. Returns how many files. Nothing may be in flight. O(stored objects)."""
        return self._garbage.sweep(self.checkpoint)

    @property
    def checkpoint(self) -> Checkpoint:
        """As the last commit has it, with what was changed since and is durable with the next one."""
        return self._commits.checkpoint

    @property
    def is_published(self) -> bool:
        """Whether everything that the last commit staged is visible."""
        return self._commits.is_published

    @property
    def scheme(self) -> Scheme | None:
        """The one that runs; None before the first plan."""
        running = self._replanner.running
        return None if running is None else running.scheme

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """The traffic of this process with the servers of each source and, last, with those of the sink."""
        return self._commits.traffic

    @property
    def delays(self) -> Mapping[str, Counted]:
        """How long records waited for their results, by join, in this process's time. Any thread may call this."""
        return self._delays.counted

    def snapshots(self) -> dict[str, SnapshotsState]:
        """The state of snapshots of results, by join. Any thread may call this."""
        return self._timelines.states(self.checkpoint)

    def put_plan(self, plan: Plan) -> bool:
        """Ask for this plan to be applied; False when it runs already or is being applied. Any thread may call this.

        Raises PlanRefused for a plan that is none (``Scheme.check``) or is not within ``spec.workers``, and as ``Replanner.put`` does."""
        if self._replanner.running is None or self.layout is None:
            raise PlanRefused("plan: the join has no plan yet, as it has seen no input; put one once it runs")
        require_fit(plan, self.layout.main, self.job.min_workers, self.job.max_workers)
        return self._replanner.put(plan)

    def withdraw_plan(self, generation: int) -> bool:
        """As :meth:`streamjoin.epoch.replan.Replanner.withdraw`. Any thread may call this."""
        return self._replanner.withdraw(generation)

    def plan_status(self) -> PlanStatus | None:
        """The plan that runs and the one that is being applied; None before the first. Any thread may call this."""
        if (status := self._replanner.status(self._runner.ready)) is None:
            return None
        absence = self._runner.absence if status.phase is PlanPhase.WAITING else None
        return replace(status, first_workers=self.checkpoint.plan.first_workers, absence=absence)

    def statistics(self) -> Statistics:
        """What the join holds, as plans are made from: each side's stored tuples and the spread of their keys. Any thread may call this."""
        checkpoint = self.checkpoint
        keyed = self.layout is not None and self.layout.is_keyed
        return self._observations.statistics(checkpoint.state.blocks, keyed=keyed).weighed(weights_of_sides(self.job, checkpoint))

    def rates(self) -> tuple[float, ...]:
        """Tuples accepted per second of each stream, over the last epochs. Any thread may call this."""
        return self._observations.rates()

    def utilization(self) -> dict[int, float]:
        """tau of each task: what it holds / capacity."""
        return utilization(self.job, self.checkpoint)
