"""Epochs in flight: one whose results are awaited and, while its source has more input waiting, one or two that were begun after it.

The next epoch is planned and handed to the runner before this one's tasks are over, and the one after it as soon as this one is committed,
before its results are published. So routing fills the time in which workers would wait for each other, for the commit and for the next
plan. What makes that safe: planning needs positions only; late and expired go by the watermarks of the last epoch but one; a task of the
later epoch goes on from runs that the earlier one staged in its process, or fails; an epoch counts only if those are the runs that were
committed. One that was begun too early is begun again.

Nothing here is durable: a crash leaves blocks and staged results that no commit names, which are swept.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from streamjoin.controlplane import events
from streamjoin.controlplane.caution import Caution
from streamjoin.controlplane.commits import Commits
from streamjoin.controlplane.flowing import Flows
from streamjoin.controlplane.garbage import GarbageCollector
from streamjoin.controlplane.next_checkpoint import require_predecessor
from streamjoin.controlplane.observations import Observations
from streamjoin.controlplane.phases import Phases
from streamjoin.controlplane.planning import Flight, Head, PlannedEpoch, make_spec, plan_inputs
from streamjoin.controlplane.replan import Replanner
from streamjoin.epoch.ports import EpochFailed, Runner
from streamjoin.epoch.progress import ProgressMonitor
from streamjoin.epoch.reports import TaskReport, TooLarge
from streamjoin.epoch.spec import Rewrite, Shared
from streamjoin.io.base import SourceError, SourcePlan, UnavailableError
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.retention import to_end
from streamjoin.state.log import CommitLog
from streamjoin.state.storage import retries


@dataclass(frozen=True)
class Adopted:
    """What a driver runs with since it took over a plan, or other joins: of the one that it had before nothing is used any more."""

    job: Job
    """Whose joins lie as the checkpoint says."""
    layout: Layout
    config: Shared
    """What tasks are told once."""
    flows: Flows
    observations: Observations


class Pipeline:
    """See the module. One thread's.

    ``happened`` is told of what changes the plan that is being applied, and ``ready`` says which workers are there.
    """

    def __init__(
        self,
        runner: Runner,
        log: CommitLog,
        commits: Commits,
        garbage: GarbageCollector,
        replanner: Replanner,
        progress: ProgressMonitor,
        phase: Phases,
        *,
        clock: Callable[[], float],
        happened: Callable[[events.Event], None],
        ready: Callable[[], events.WorkersReady],
    ) -> None:
        self.exhausted = False
        """Whether all sources said last that nothing will come after what they had planned."""
        self.waits = False
        """Whether the sources had more, when they were last asked, than was planned to be read."""
        self.idle_warnings: tuple[str, ...] = ()
        """Warnings of the sources when they were last asked, if they had nothing new."""
        self.caution = Caution()
        """What is asked of the next attempt after some have failed."""
        self.rewrite: Rewrite | None = None
        """Under way, or to be begun."""
        self.task_retries = 0
        """Storage requests of tasks that ran in this process: their reports have them too."""
        self.drains = False
        """Whether nothing is to be begun ahead, as something waits until nothing is in flight."""
        self.adopted: Adopted | None = None
        self._ahead: deque[Flight] = deque()  # in order; at most two
        self._runner, self._log, self._commits, self._garbage = runner, log, commits, garbage
        self._replanner, self._progress, self._phase, self._clock = replanner, progress, phase, clock
        self._happened, self._ready = happened, ready

    @property
    def running_with(self) -> Adopted:
        """What was adopted, as it is before any epoch begins."""
        assert self.adopted is not None
        return self.adopted

    @property
    def is_ahead(self) -> bool:
        """Whether epochs are in flight that were begun before the one before them was committed."""
        return bool(self._ahead)

    def take(self) -> Flight | None:
        """The first of those that were begun ahead."""
        return self._ahead.popleft() if self._ahead else None

    def plan_inputs(self, job: Job, head: Head, final: bool) -> tuple[SourcePlan, ...]:
        """What the epoch after ``head`` is to read."""
        self._commits.show_fed()
        sources, last = self._commits.sources, self._commits.checkpoint
        inputs = plan_inputs(job, sources, last, head, self._clock(), final=final, caution=self.caution)
        self.exhausted = all(plan.exhausted for plan in inputs)
        self.waits = any(plan.waiting_records for plan in inputs)
        self.idle_warnings = () if has_splits(inputs) else tuple(warning for plan in inputs for warning in plan.warnings)
        return inputs

    def begin(self, head: Head, final: bool = False, *, again: bool = False) -> Flight | None:
        """Plan the epoch after ``head`` and hand it to the runner; None when nothing is new.

        ``again``: it was planned once, before there was a plan to run it by.
        """
        adopted, started_at = self.running_with, self._clock()
        job = adopted.job
        self._phase("plan", resumed=again)
        inputs = self.plan_inputs(job, head, final)
        idle = not has_splits(inputs)
        self._happened(events.EpochPlanned(idle))
        plans, last = self._replanner.plans, self._commits.checkpoint
        assert plans is not None
        ended = frozenset[int]()
        if final and idle and self.exhausted and plans.before is None:
            ended = to_end(job, {block.place for block in last.state.blocks})
        if idle and plans.before is None and not ended:
            return None
        rates = adopted.observations.rates()
        spec = make_spec(
            *(job, last, head, inputs, plans, adopted.config, adopted.flows.path_plans(last, rates, self._clock())),
            incarnation=self._log.incarnation,
            entry=self._log.newest_path,
            now=self._clock(),
            caution=self.caution,
            rewrite=self.rewrite,
            ended=ended,
            deadline_seconds=self._progress.deadline_seconds,
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
        self.task_retries += retries() - repeated
        return Flight(epoch, running)

    def finish(self, flight: Flight, final: bool) -> tuple[PlannedEpoch, list[TaskReport]] | None:
        """The epoch and its reports; meanwhile the next one is begun, if there is input for it.

        An epoch that was begun before the one before it was committed, and failed, is begun again; and one with a split that was too large,
        with fewer records. None: by then its source had lost all that it was to read, so that nothing is new.
        """
        if not self._ahead:
            self.begin_after(flight.epoch)
        repeated = retries()
        try:
            while True:
                epoch = flight.epoch
                self._phase("tasks", resumed=True)
                try:
                    reports = flight.running.result()
                    require_predecessor(self._commits.checkpoint, epoch, reports)
                    return epoch, reports
                except EpochFailed as error:
                    self.abandon()
                    self._failed(epoch, error)
                again = self.begin(Head.after(self._commits.checkpoint), final)
                if again is None:
                    return None
                flight = again
        finally:
            self.task_retries += retries() - repeated

    def _failed(self, epoch: PlannedEpoch, error: EpochFailed) -> None:
        """Raises the error where the epoch is not to be begun again at once; Superseded where another driver is at work by now."""
        if error.stalled:
            self._progress.stalled(str(error))
        self._garbage.has_leftovers = True
        if error.too_large is not None:
            self._plan_fewer(error.too_large)
            return
        if epoch.is_switch:
            self._happened(events.FirstEpochFailed(f"its first epoch failed: {error}", error.worker_died))
        if epoch.spec.follows is None or error.permanent or error.stalled:
            self.caution = self.caution.after(error, [plan.records for plan in epoch.inputs])
            self._commits.require_held()
            raise error

    def begin_next(self) -> None:
        """Begin the epoch after the last one that is in flight, once the one before it is committed."""
        if self._ahead and not self._replanner.is_waiting:  # a plan that has its workers is not to wait for two epochs more
            self.begin_after(self._ahead[-1].epoch)

    def begin_after(self, epoch: PlannedEpoch) -> None:
        """Begin the epoch after this one, which is in flight, if there is input for it."""
        if not self._may_begin_after(epoch):
            return
        with contextlib.suppress(SourceError, UnavailableError):  # no reason to lose those in flight; the next step asks again
            if (flight := self.begin(epoch.head)) is not None:
                self._ahead.append(flight)

    def _may_begin_after(self, epoch: PlannedEpoch) -> bool:
        """Only while there is a backlog, so that a join that keeps up takes its input once an interval; and not when files of failed
        attempts are to be swept away after this epoch: those of an epoch in flight would look like them."""
        return (
            epoch.backlog_records > 0
            and not self.drains
            and not self.caution.is_active
            and not epoch.is_switch
            and not self._garbage.is_due(epoch.spec.epoch)
            and not self._replanner.concerns_next_epoch(self._ready())
            and self._runner.overlaps
        )

    def _plan_fewer(self, split: TooLarge) -> None:
        """From now on, at most half as many records of the split's stream for as many bytes. Durable with the next commit."""
        known = self._commits.checkpoint.input
        widths = (max(split.record_bytes, 2 * width) if stream == split.stream else width for stream, width in enumerate(known.widths))
        self._commits.checkpoint = replace(self._commits.checkpoint, input=replace(known, widths=tuple(widths)))
        self.caution = replace(self.caution, refused=split)

    def abandon(self) -> None:
        """Give up the epochs that were begun too early: what they have written is swept away."""
        while self._ahead:
            self._ahead.pop().running.cancel()
            self._garbage.has_leftovers = True


def has_splits(inputs: Sequence[SourcePlan]) -> bool:
    """Whether any source has something new."""
    return any(plan.splits for plan in inputs)
