"""Commits: the last one, what of it is visible, and how the next is made.

Always holds: what a commit names is durable before it; what it makes visible is published after it, and again by whoever takes over where
nobody knows whether that was done. The next commit is made only when everything that the last one staged is visible.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

from streamjoin.controlplane.flowing import Flows
from streamjoin.controlplane.garbage import GarbageCollector
from streamjoin.controlplane.next_checkpoint import arrivals_of, checkpoint_after, whose, with_refused
from streamjoin.controlplane.observations import Observations
from streamjoin.controlplane.phases import Phases
from streamjoin.controlplane.planning import PlannedEpoch
from streamjoin.controlplane.results import Results
from streamjoin.controlplane.timelines import Timelines
from streamjoin.epoch.delays import DelayMeter
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.reports import TaskReport
from streamjoin.io.base import Counting, Follower, SinkError, Source, Traffic
from streamjoin.io.deadletter import kind_of
from streamjoin.io.ownership import Owner
from streamjoin.io.results_source import ResultsSource
from streamjoin.io.several import Sinks
from streamjoin.io.telling import told
from streamjoin.job import Job
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.extent import Segment
from streamjoin.state.log import CommitLog
from streamjoin.state.storage import StorageError

SETTLE_SECONDS = 5.0
"""A driver that has nothing to do for so long commits that all is visible: so that the next one, if this is killed, brings back nothing
that readers have taken away meanwhile. A join that has input at least so often pays for no commit more."""


class Commits:
    """See the module. One thread's, but for what says otherwise. ``location``: the checkpoint's."""

    def __init__(
        self,
        log: CommitLog,
        sources: Sequence[Source],
        sink: Sinks,
        garbage: GarbageCollector,
        timelines: Timelines,
        delays: DelayMeter,
        location: str,
        *,
        clock: Callable[[], float],
        phase: Phases,
    ) -> None:
        self.checkpoint = Checkpoint()
        """As the last commit has it, with what was changed since and is durable with the next one."""
        self.is_published = False
        """Whether everything that the last commit staged is visible."""
        self.results = Results()
        """Of the last commit, with their data."""
        self._published_at = 0.0
        """The clock when that was done last."""
        self._refused: dict[str, tuple[int, str]] = {}
        """By join, how many results its sink has refused, and why the last of them was, since ``take_refused``."""
        self.sources, self.sink = tuple(sources), sink
        self._is_owner = False
        """Whether the outputs are known to belong to this checkpoint."""
        self._location = location
        self._log, self._garbage = log, garbage
        self._timelines, self._delays, self._clock, self._phase = timelines, delays, clock, phase

    def commit(self, job: Job, epoch: PlannedEpoch, reports: list[TaskReport], flow: Flows, observed: Observations) -> Checkpoint:
        """Make the epoch the truth, with what it makes visible."""
        self._phase("gather")
        now = self._clock()
        new = [staged for report in reports for staged in report.staged if not staged.is_fed]
        new += [staged for report in reports for route in report.routes for staged in route.dead_letters]
        results = self.results.with_epoch(new, now)
        if due := results.due(self.sink, now, job.interval_micros / 1e6):
            try:
                results = results.gathered(due, self.sink, self.checkpoint.identity, self._log.incarnation, epoch.spec.epoch)
            except (SinkError, OSError) as error:
                self._garbage.has_leftovers = True
                raise EpochFailed(f"epoch {epoch.spec.epoch}: {type(error).__name__}: {told(error)}", traceback.format_exc()) from error
        segment = Segment(self._log.next_path)
        results = results.kept_in(segment)
        if not self._is_owner and (results.staged or results.waiting):
            self.sink.claim(self._owner(), takes=True)
            self._is_owner = True
        snapshots = self._timelines.after(self.checkpoint, self._log.incarnation, epoch, reports, segment, now)
        after = checkpoint_after(job, self.checkpoint, epoch, reports, now, results, segment)
        plan = replace(after.plan, flowing=flow.known(self.checkpoint, observed.rates()))
        after = replace(after, plan=plan, snapshots=snapshots, is_over=False)
        self._phase("commit")
        self._log.commit(after, segment.data)
        self.checkpoint, self.results, self.is_published = after, results, False
        self.show_fed()
        self._delays.committed(arrivals_of(job, epoch, reports), whose(job, results.waiting))
        return after

    def require_held(self) -> None:
        """Raises Superseded where another driver has taken over. After a failed epoch: that one may have removed what it needed."""
        with contextlib.suppress(StorageError):
            self._log.require_held()

    def commit_between(self, *, gathers: bool, final: bool = False, is_over: bool = False) -> None:
        """Commit what time makes to do between epochs: make what waits visible (``gathers``), and end snapshots; ``final``: all of them.
        What the last commit staged is visible by now."""
        self._phase("gather")
        results = replace(self.results, staged=())
        segment = Segment(self._log.next_path)
        if gathers:
            identity, incarnation = self.checkpoint.identity, self._log.incarnation
            results = results.gathered(results.waiting, self.sink, identity, incarnation, self.checkpoint.epoch)
        results = results.kept_in(segment)
        snapshots = self._timelines.between(self.checkpoint, self._clock(), end=final)
        after = replace(self.checkpoint, snapshots=snapshots, is_over=self.checkpoint.is_over or is_over)
        after = results.committed_by(after)
        self._log.commit(after, segment.data)
        self.checkpoint, self.results, self.is_published = after, results, False
        self.publish()

    def idle(self, *, final: bool, exhausted: bool) -> None:
        """Nothing is new: commit between epochs if it is time for that. ``final``: nothing will come while this driver runs; ``exhausted``:
        as far as the sources know, nothing ever will."""
        now, results = self._clock(), self.results
        gathers = bool(results.waiting) and (final or exhausted or bool(results.due(self.sink, now, 0.0)))
        # Who follows results from the storage is to hear of their end.
        ends = final and exhausted and bool(self.checkpoint.snapshots.timelines) and not self.checkpoint.is_over
        if gathers or ends or self._timelines.are_due(self.checkpoint, now, end=final):
            self.commit_between(gathers=gathers, final=final, is_over=final and exhausted)
        elif self._is_changed or (
            self.is_published and any(each.data for each in results.staged) and not 0 <= now - self._published_at < SETTLE_SECONDS
        ):
            self.settle(self.checkpoint)

    @property
    def _is_changed(self) -> bool:
        """Whether savepoints are to be made or deleted, which waits for nothing."""
        latest = self._log.latest
        return latest is not None and latest.checkpoint.savepoints != self.checkpoint.savepoints

    def finish(self) -> None:
        """Make visible what waits for that, as the driver stops."""
        if self.is_published and self.results.waiting:
            self.commit_between(gathers=True)
        if self.is_published and (self.results.staged or self._is_changed):
            self.settle(self.checkpoint)

    def require_outputs(self) -> None:
        """Raises OwnedElsewhere where an output has the results of another checkpoint, UnavailableError where that is not known yet."""
        published = [join for join, place in self.results.outputs.items() if self.checkpoint.output.outputs.get(join) == place]
        self.sink.claim(self._owner(), takes=False, published=published)

    def _owner(self) -> Owner:
        return Owner(self.checkpoint.identity, self._location)

    def settle(self, checkpoint: Checkpoint) -> None:
        """Commit this, and that all of the last commit's results are visible: a join may be removed then, or get another sink, although
        nobody knows its sink any more. What waits to be visible stays where it is."""
        results = replace(self.results, staged=())
        after = results.committed_by(checkpoint)
        self._log.commit(after)
        self.checkpoint, self.results = after, results

    def publish(self, *, again: bool = False) -> None:
        self.sink.publish(self.results.staged, again=again)
        shown = {each.join: self.results.outputs[each.join] for each in self.results.staged if each.join in self.results.outputs}
        if shown.items() - self.checkpoint.output.outputs.items():  # durable with the next commit
            output = self.checkpoint.output
            self.checkpoint = replace(self.checkpoint, output=replace(output, outputs=output.outputs | shown))
        for join, (count, reason) in self.sink.take_refused().items():  # so are these
            self._refused[join] = (self._refused.get(join, (0, ""))[0] + count, reason)
            self.checkpoint = replace(self.checkpoint, totals=with_refused(self.checkpoint.totals, join, count))
        self.is_published, self._published_at = True, self._clock()
        self._delays.published(self._clock(), all_of_it=not self.results.waiting)
        for source, position in zip(self.sources, self.checkpoint.input.positions, strict=True):
            if position is not None and isinstance(source, Follower):
                source.committed(position)
        self._timelines.committed(self.checkpoint.snapshots.timelines)

    def take_refused(self) -> tuple[dict[str, int], tuple[str, ...]]:
        """By join, how many results its sink has refused since the last call; and what is to be said of that, without values."""
        taken, self._refused = self._refused, {}
        said = tuple(
            f"join {join}: the sink refuses results, which are dead letters ({kind_of(why)}); see streamjoin letters"
            for join, (_, why) in taken.items()
        )
        return {join: count for join, (count, _) in taken.items()}, said

    def show_fed(self) -> None:
        """Show the streams that read results which of them the last commit names."""
        for source in self.sources:
            if isinstance(source, ResultsSource):
                source.show(self.checkpoint.output.fed, self._clock())

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """The traffic of this process with the servers of each source and, last, with those of the sink."""
        return tuple(part.traffic if isinstance(part, Counting) else Traffic() for part in (*self.sources, self.sink))
