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

Two epochs may be in flight (``pipeline``). Others do the rest, too: ``planning`` (how much an epoch reads), ``commits``,
``next_checkpoint`` (the checkpoint after an epoch), ``replan``, ``deployment`` (the first plan), ``timelines`` (snapshots of results),
``compaction`` and ``garbage``.
"""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from streamjoin.controlplane import deployment, events
from streamjoin.controlplane.caution import Caution
from streamjoin.controlplane.cloning import clone
from streamjoin.controlplane.commits import Commits
from streamjoin.controlplane.compaction import rewrite_after
from streamjoin.controlplane.cutting import least_workers, plan_for
from streamjoin.controlplane.fingerprint import JoinChanges, join_changes
from streamjoin.controlplane.flowing import Flows
from streamjoin.controlplane.garbage import GarbageCollector
from streamjoin.controlplane.graphs import Graphs
from streamjoin.controlplane.idleness import Idleness
from streamjoin.controlplane.joins import as_named_now
from streamjoin.controlplane.next_checkpoint import result_of
from streamjoin.controlplane.observations import Observations
from streamjoin.controlplane.phases import Phases
from streamjoin.controlplane.pipeline import Adopted, Pipeline, has_splits
from streamjoin.controlplane.planning import Flight, Head, PlannedEpoch, utilization, weights_of_sides
from streamjoin.controlplane.refusals import PlanRefused, require_fit
from streamjoin.controlplane.relaying import laid
from streamjoin.controlplane.replan import PlanPhase, PlanStatus, Replanner
from streamjoin.controlplane.results import Results
from streamjoin.controlplane.savepoints import Savepoints
from streamjoin.controlplane.timelines import SnapshotsState, Timelines
from streamjoin.elastic.another_graph import Better
from streamjoin.elastic.ending import ANYWHERE, Placement
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.delays import Counted, DelayMeter
from streamjoin.epoch.ports import EpochFailed, EpochResult, Runner
from streamjoin.epoch.progress import ProgressMonitor
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import Config, attempt_prefix, share
from streamjoin.io.base import Source, SourcePlan, Traffic, UnavailableError
from streamjoin.job import Job
from streamjoin.language.graph import JoinGraph
from streamjoin.language.layout import Layout, PlacedGraph
from streamjoin.language.predicate import MainPredicate
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import Scheme
from streamjoin.state.blocks import FOLDER
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.log import CommitLog
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
        log: CommitLog | None = None,
    ) -> None:
        """``in_background``: whether snapshots of results are stored by a thread of their own (``timelines``). ``suspects_data``: drivers
        that died one after another without a commit may have died of what they read. ``log``: its own, where somebody claims ahead."""
        self._job = job
        self._storage = storage
        self._runner = runner
        self.progress = ProgressMonitor(runner, job.deadline_seconds)
        self._phase = Phases(self.progress, at, lambda: max(0, self.checkpoint.epoch + self.is_published))
        self._clock = clock
        self._suspects_data = suspects_data
        self._log = log or CommitLog(storage, clock=clock)
        sources, sink = tuple(sources or deployment.make_sources(job, storage)), deployment.make_sinks(job, storage)
        self._garbage = GarbageCollector(storage, self._log, sources, sink)
        self.savepoints = Savepoints(lambda: self.job, self._log, self._garbage, clock=clock)
        self._timelines = Timelines(job, storage, clock=clock, in_background=in_background)
        self._replanner = Replanner(uuid.uuid4().hex, job.stabilization_seconds, fetches=storage.local_path(FOLDER) is None)
        self._delays = DelayMeter(join.name for join in job.joins)
        parts = (self._log, sources, sink, self._garbage, self._timelines, self._delays, storage.url)
        self._commits = Commits(*parts, clock=clock, phase=self._phase)
        self._pipeline = Pipeline(
            *(runner, self._log, self._commits, self._garbage, self._replanner, self.progress, self._phase),
            clock=clock,
            happened=self._happened,
            ready=self._ready,
        )
        self.idleness = Idleness()
        self._warnings: tuple[str, ...] = ()  # about the plan that was made here, for the next epoch's result
        self.laid_anew: tuple[str, ...] = ()
        """Of each time that this driver has laid a join by another graph, which join, and why. Never changed in place."""
        self._graphs = Graphs()
        self._better: tuple[PlacedGraph, Better] | None = None  # to be laid so once nothing is in flight
        self._changes: JoinChanges | None = None  # the joins that the checkpoint was not made with, or alone with, until it is

    def start(self) -> None:
        """Claim the checkpoint, finish what its last epoch left to do, and make workers ready.

        A sink that is out of reach is left to the steps. Raises CheckpointMismatch, StorageError, SinkError."""
        try:
            self._start()
        finally:
            self._phase.leave()

    def _start(self) -> None:
        self._phase("claim")
        claimed, origin = self._log.begin(), self._job.origin
        if claimed.epoch < 0 and origin is not None:
            self._phase("clone")
            claimed = clone(self._job, origin, self._storage, self._log, self._commits.sources, self._phase.moved)
        self._commits.checkpoint = claimed.sized(len(self.job.streams), len(self.job.places))
        self._pipeline.caution = Caution.after_deaths((self.checkpoint.claims - 1) * self._suspects_data, self.job.max_tuples)
        changes = join_changes(self.job, self.checkpoint, self._storage.url)
        self._commits.checkpoint = as_named_now(self.job, self.checkpoint, changes, self._storage.url)
        self._commits.results = Results.of(self.checkpoint, self._storage, self.job)
        self._garbage.keep_all(self.checkpoint)
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
            self._pipeline.abandon()
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
        is_idle = False
        try:
            result = self._step(final)
            is_idle = result is None and not self._owes_anything
            return result
        except UnavailableError as error:  # what cannot be reached now fails the epoch, not the driver
            epoch = max(0, self.checkpoint.epoch + self.is_published)
            raise EpochFailed(f"epoch {epoch}: UnavailableError: {error}", traceback.format_exc()) from error
        finally:
            self.idleness.heard(self._clock(), is_idle=is_idle)
            self._phase.leave()

    def _step(self, final: bool) -> EpochResult | None:
        pipeline = self._pipeline
        repeated, pipeline.task_retries = retries(), 0
        if not self.is_published:
            self._phase("publish", resumed=True)
            self._commits.publish(again=True)
        self._phase("snapshots")
        self._timelines.make_room(self.checkpoint)
        self._commits.checkpoint = self.savepoints.taken(self.checkpoint)
        self._advance_plan()
        self._look_at_graphs()
        flight = pipeline.take()
        try:
            self._phase.restart()
            flight = flight or self._begin(final)
            if flight is not None:
                self.idleness.heard(self._clock(), is_idle=False)
            finished = None if flight is None else pipeline.finish(flight, final)
            if finished is None:
                self._commits.idle(final=final, exhausted=self.exhausted)
                pipeline.idle_warnings += self._commits.take_refused()[1]
                return None
            epoch, reports = finished
            adopted = pipeline.running_with
            before, after = self.checkpoint, self._commits.commit(self.job, epoch, reports, adopted.flows, adopted.observations)
            pipeline.caution = pipeline.caution.after_commit(self.job.max_tuples)
            self._learn(adopted, epoch, reports)
            pipeline.begin_next()
            self._phase("publish")
            self._commits.publish()
            self._phase("clean")
            self._garbage.clean(before, after, reports, in_flight=pipeline.is_ahead)
        except BaseException:
            pipeline.abandon()
            raise
        (refused, refusals), warnings, self._warnings = self._commits.take_refused(), self._warnings, ()
        result = result_of(self.job, after, epoch, reports, self._phase.lap(), retries() - repeated - pipeline.task_retries)
        result = replace(result, refused=refused, totals=self.checkpoint.totals)
        return replace(result, warnings=(*result.warnings, *warnings, *refusals), delays=self._delays.take())

    @property
    def _owes_anything(self) -> bool:
        """Whether something is there that could not be read yet, or something would become visible by and by though nothing comes; and
        while it is not durable where each source is to be read on."""
        last, commits = self.checkpoint, self._commits
        is_durable = last.epoch >= 0 and all(last.input.positions)
        is_visible = commits.is_published and not commits.results.waiting and not self._timelines.owe(last)
        return self._pipeline.waits or bool(self.savepoints.wishes) or not (is_durable and is_visible)

    def _advance_plan(self) -> None:
        """Take up a plan that was put, and bring the one that is being applied as far as it can be brought between two epochs."""
        self._happened(events.BetweenEpochs(self._clock()))
        self._happened(self._ready(is_free=not self._pipeline.is_ahead))

    def _ready(self, *, is_free: bool = True) -> events.WorkersReady:
        waits = self._replanner.is_waiting
        is_urgent = waits and max(self.utilization().values(), default=0.0) >= self.job.tau2
        absence = self._runner.absence if waits else None
        leaving = self._runner.leaving
        return events.WorkersReady(self._runner.ready, self._clock(), is_free, is_urgent, absence=absence, leaving=leaving)

    def _begin(self, final: bool) -> Flight | None:
        """The epoch after the last commit, once there is a plan; None when nothing is new."""
        has_plan = self._replanner.running is not None
        if not has_plan and not self._deploy_first(final):
            return None
        # It plans what to read anew: workers take seconds to start, and for a source that runs by the clock, time begins here.
        return self._pipeline.begin(Head.after(self.checkpoint), final, again=not has_plan)

    def _deploy_first(self, final: bool) -> bool:
        """Choose a plan by what there is to read, or make room for other joins, which can run without input if no predicate is to be
        chosen by it. Whether that was done."""
        self._phase("plan")
        inputs = self._pipeline.plan_inputs(self.job, Head.after(self.checkpoint), final)
        changes_now = self._changes is not None and (final or not self._changes.added)
        if not has_splits(inputs) and not changes_now:
            return False
        self._phase("deploy")
        if self._changes is not None:
            self._change_joins(self._changes, inputs)
            return True
        parts = self.job, self.checkpoint, self._commits.sources, inputs, self._clock()
        self._deploy(deployment.first_plan(*parts, apart=self._pipeline.caution.apart))
        return True

    def _learn(self, adopted: Adopted, epoch: PlannedEpoch, reports: list[TaskReport]) -> None:
        """Take over what the epoch that was just committed has changed: the plan, and the statistics for the next one."""
        now, seconds = self._clock(), sum(self._phase.seconds.values())
        self.progress.committed(seconds - self._phase.seconds.get("deploy", 0.0))
        tasks, before = epoch.plans.current.scheme.tasks, self._pipeline.rewrite
        rewrite = rewrite_after(before, self.checkpoint, self.job.window, self._log.incarnation, tasks, reports, epoch.is_switch)
        self._garbage.has_leftovers |= epoch.is_switch and before is not None
        self._pipeline.rewrite, self._garbage.rewriting = rewrite, None if rewrite is None else rewrite.name
        adopted.observations.add(adopted.layout, reports, epoch.spec.expired_before, now)
        adopted.flows.add(epoch.spec.path_plans, reports, self.checkpoint)
        if epoch.is_switch:
            committed = events.FirstEpochCommitted(
                epoch=epoch.spec.epoch,
                began_at=epoch.started_at,
                at=now,
                pause_seconds=max(0.0, seconds - adopted.observations.usual_seconds),
                kept_tuples=sum(report.kept_tuples for report in reports),
                moved_tuples=sum(report.moved_tuples for report in reports),
            )
            instructions = self._replanner.handle(committed)
            self._phase("release")
            self._carry_out(instructions)
            return
        adopted.observations.took(seconds)
        if epoch.plans.upcoming is not None:
            self._happened(events.BlocksFetched(sum(report.to_fetch_bytes for report in reports), now))

    def _change_joins(self, changes: JoinChanges, inputs: Sequence[SourcePlan]) -> None:
        """Go on with the manifest's joins from a checkpoint that was made with others. All that is staged is visible by now."""
        parts = self.job, self.checkpoint, changes, self._storage, self._commits.sources, inputs, self._clock()
        deployed = deployment.other_joins(*parts, apart=self._pipeline.caution.apart)
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
        job = deployment.as_it_lies(self.job, checkpoint, self._storage.url)
        self._commits.checkpoint = checkpoint.sized(len(job.streams), len(job.places))
        config = self._config(job)
        flows = Flows(job, checkpoint.plan.path_plans, checkpoint.plan.flowing)
        observations = Observations(job.places, len(job.streams))
        self._pipeline.adopted = Adopted(job, job.layouts[0], share(config.query, config), flows, observations)
        self._happened(events.Adopted(checkpoint.plan.generation, Scheme.from_json(checkpoint.plan.scheme)))

    def _config(self, job: Job) -> Config:
        """What tasks are told once. Its name is its own: what they hold for any other is of no use for it."""
        return deployment.make_config(job, self.checkpoint.seed, uuid.uuid4().hex, self._storage, self._commits.sources, self._commits.sink)

    def _look_at_graphs(self) -> None:
        """Lay a join of three and more streams by another graph of its condition where that is worth while, once nothing is in flight."""
        adopted = self._pipeline.adopted
        if adopted is None or (status := self._replanner.status(0)) is None or status.wanted is not None:
            return
        if self._better is None:
            self._better = self._graphs.look(self.job, self.checkpoint, self._storage, self._clock())
        if self._better is not None and not self._pipeline.is_ahead:
            (placed, better), self._better = self._better, None
            if self.lay(placed, better.graph):
                self.laid_anew = (*self.laid_anew, f"{self.job.joins[placed.join].name}: {better.sentence}")
        self._pipeline.drains = self._better is not None

    def lay(self, placed: PlacedGraph, graph: JoinGraph) -> bool:
        """Hold the tuples of a join over three and more streams by another graph of its condition, on the workers that are there; False:
        the model, or the workers' room, does not allow it. Nothing may be in flight, or be applied, and all is visible.

        The commit that names the tuples as they are laid anew is the switch: a crash before it leaves files that are swept.
        """
        assert self.scheme is not None
        self._phase("lay")
        self._garbage.has_leftovers = True
        prefix = attempt_prefix(self.checkpoint.identity, self._log.incarnation, self.checkpoint.epoch)
        parts = self.job, self.checkpoint, placed, graph, self._storage, self._config, prefix, self.scheme.tasks
        deployed = laid(*parts, self._phase.moved)
        if deployed is None:
            return False
        self._commits.settle(deployed.checkpoint)
        self._pipeline.rewrite = self._garbage.rewriting = None
        self._graphs.laid()
        self._deploy(replace(deployed, checkpoint=self.checkpoint))
        return True

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
                case events.ReleaseWorkers(kept, places):
                    self._runner.release(kept, places)

    @property
    def _known(self) -> tuple[Job, Statistics, MainPredicate]:
        """What plans are made from."""
        assert self.layout is not None
        return self.job, self.statistics(), self.layout.main

    def sweep(self) -> int:
        """Remove what the last commit does not name. Returns how many files. Nothing may be in flight. O(stored objects)."""
        return self._garbage.sweep(self.checkpoint)

    @property
    def job(self) -> Job:
        """The manifest's; its joins lie as the checkpoint says, once there is a plan."""
        return self._job if self._pipeline.adopted is None else self._pipeline.adopted.job

    @job.setter
    def job(self, job: Job) -> None:
        """With other limits of workers, say. What lies where must be the same. Any thread may do this."""
        self._job, adopted = job, self._pipeline.adopted
        if adopted is not None:
            self._pipeline.adopted = replace(adopted, job=job)

    @property
    def layout(self) -> Layout | None:
        """How tuples are held; None before the first plan."""
        return None if self._pipeline.adopted is None else self._pipeline.adopted.layout

    @property
    def exhausted(self) -> bool:
        """Whether all sources said last that nothing will come after what they had planned."""
        return self._pipeline.exhausted

    @property
    def idle_warnings(self) -> tuple[str, ...]:
        """Warnings of the sources when they were last asked, if they had nothing new."""
        return self._pipeline.idle_warnings

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
        """As :meth:`streamjoin.controlplane.replan.Replanner.withdraw`. Any thread may call this."""
        return self._replanner.withdraw(generation)

    def plan_status(self) -> PlanStatus | None:
        """The plan that runs and the one that is being applied; None before the first. Any thread may call this."""
        if (status := self._replanner.status(self._runner.ready)) is None:
            return None
        absence = self._runner.absence if status.phase is PlanPhase.WAITING else None
        return replace(status, first_workers=self.checkpoint.plan.first_workers, absence=absence)

    def statistics(self) -> Statistics:
        """What the join holds, as plans are made from: each side's stored tuples and the spread of their keys. Any thread may call this."""
        checkpoint, adopted = self.checkpoint, self._pipeline.adopted
        known = Observations(self.job.places, len(self.job.streams)) if adopted is None else adopted.observations
        keyed = adopted is not None and adopted.layout.is_keyed
        return known.statistics(checkpoint.state.blocks, keyed=keyed).weighed(weights_of_sides(self.job, checkpoint))

    def rates(self) -> tuple[float, ...]:
        """Tuples accepted per second of each stream, over the last epochs. Any thread may call this."""
        adopted = self._pipeline.adopted
        return (0.0,) * len(self.job.streams) if adopted is None else adopted.observations.rates()

    @property
    def is_hurried(self) -> bool:
        """Whether the next epoch is not to wait, as workers were told to go, or a savepoint was asked for. Any thread may ask this."""
        return bool(self._runner.leaving or self.savepoints.wishes)

    def placement(self, going: Collection[str] = ()) -> Placement:
        """Where the workers of the running plan are; ``going``: executors that are better gone. Any thread may call this."""
        running, executors, leaving = self._replanner.running, self._runner.executors, self._runner.leaving
        if running is None or not executors.keys() >= set(running.workers):
            return ANYWHERE
        of_workers = tuple(executors[worker] for worker in running.workers)
        soon = {task for task, worker in enumerate(running.workers) if worker in leaving or of_workers[task] in going}
        return Placement(of_workers, frozenset(soon))

    def utilization(self) -> dict[int, float]:
        """tau of each task: what it holds / capacity."""
        return utilization(self.job, self.checkpoint)
