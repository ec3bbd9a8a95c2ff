"""Measurements of the last epochs, by stream and by edge of a join graph, and of the exchange, from which the engine chooses in which order
streams meet, and how.

Those of streams and edges are lost with the driver. The next driver goes on by the ways of the last commit, and chooses anew once it has
measured; what it takes of the exchange at first is what the last commit says of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamjoin.controlplane.next_checkpoint import counts_of
from streamjoin.controlplane.planning import tuple_bytes
from streamjoin.elastic.path_plans import Flowing, PathPlans, assumed, choose
from streamjoin.elastic.rounds import LEAST_EPOCH_SECONDS, Exchange, Pace, Round
from streamjoin.epoch.reports import TaskReport
from streamjoin.job import Job
from streamjoin.language.layout import PlacedGraph, numbered
from streamjoin.sizing import carried_bytes
from streamjoin.state.checkpoint import Checkpoint

CHOOSE_SECONDS = 10.0
"""Path plans are looked at again after so long."""
KEPT = 0.8
"""What was measured before an epoch counts for so much after it."""
JOINS = "joins"
"""By which name a checkpoint has what is known of several joins, one after the other."""
LEAST_PAIRS = 10_000.0
"""With fewer pairs of tuples, the number that matched says nothing."""


class Flow:
    """Of one join. The loop's own."""

    def __init__(self, job: Job, placed: PlacedGraph, path_plans: PathPlans) -> None:
        """``placed``: the join. ``path_plans``: those of the last commit; empty before the first."""
        self._job, self._placed, self._graph, self._path_plans = job, placed, placed.graph, path_plans
        # By edge: pairs that could have matched, and those that did.
        self._pairs = [0.0] * len(placed.graph.edges)
        self._found = [0.0] * len(placed.graph.edges)
        self._met = [0.0] * len(placed.graph.edges)
        self._chosen_at: float | None = None

    def add(self, path_plans: PathPlans, numbers: range, reports: Sequence[TaskReport], after: Checkpoint) -> None:
        """Take in an epoch that ran by these ways, whose steps have these ``numbers``. O(reports x steps + blocks)."""
        of_streams, steps, held = counts_of(reports, len(self._job.streams))["accepted"], len(path_plans) - 1, self._stored(after)
        accepted = [of_streams[stream] for stream in self._placed.streams]
        found, met = [0] * (len(path_plans) * steps), [0] * (len(path_plans) * steps)
        for report in reports:
            for number, work in report.stages.items():
                if number in numbers:
                    found[number - numbers.start] += work.found
                    met[number - numbers.start] += work.met
        if not any(accepted):
            return
        self._pairs = [KEPT * count for count in self._pairs]
        self._found = [KEPT * count for count in self._found]
        self._met = [KEPT * count for count in self._met]
        for head, path_plan in enumerate(path_plans):
            probing, joined = float(accepted[head]), frozenset((head,))
            for at, stream in enumerate(path_plan.order):
                edge = self._graph.edge_to(stream, joined)
                assert edge is not None
                number, came = self._graph.edges.index(edge), found[head * steps + at]
                self._pairs[number] += probing * held[stream]
                self._found[number] += came
                self._met[number] += met[head * steps + at]
                probing, joined = float(came), joined | {stream}

    def known(self, checkpoint: Checkpoint, rates: Sequence[float], exchange: Exchange) -> Flowing:
        """All of it; selectivities are assumed where none was measured. ``rates``: by stream of the job. O(blocks)."""
        held = self._stored(checkpoint)
        unknown = assumed(self._graph, held)
        measured, admitted = (
            [count / pairs if pairs >= LEAST_PAIRS else guess for guess, pairs, count in zip(unknown, self._pairs, counts, strict=True)]
            for counts in (self._found, self._met)
        )
        by_condition, by_output = zip(*carried_bytes(self._job, self._placed, tuple_bytes(self._job, checkpoint)), strict=True)
        of_streams = tuple(rates[stream] for stream in self._placed.streams)
        window = self._job.joins[self._placed.join].window.kind.value
        return Flowing(of_streams, tuple(held), by_condition, by_output, tuple(measured), tuple(admitted), window, exchange)

    def path_plans(self, checkpoint: Checkpoint, rates: Sequence[float], exchange: Exchange, now: float) -> PathPlans:
        """The ways for the next epoch: the last epoch's, or better ones if it is time to look again."""
        if self._chosen_at is None and self._path_plans:
            self._chosen_at = now  # nothing has been measured yet, and they were chosen by what had been
        if self._chosen_at is None or not 0 <= now - self._chosen_at < CHOOSE_SECONDS:
            self._chosen_at = now
            self._path_plans = choose(self._graph, self.known(checkpoint, rates, exchange), self._path_plans)
        return self._path_plans

    def _stored(self, checkpoint: Checkpoint) -> list[float]:
        """Tuples stored, by stream: each once, however many places hold it."""
        stored = Counter[int]()
        for block in checkpoint.state.blocks:
            stored[block.place] += block.rows
        return [float(stored[place]) for place in self._placed.first_places]


def rounds_in(reports: Sequence[TaskReport]) -> Iterator[Round]:
    """Those of an epoch that were measured. O(reports x rounds)."""
    for of_tasks in zip(*(report.rounds for report in reports), strict=False):
        seconds = [each.seconds for each in of_tasks if each.seconds is not None]
        if seconds and len(of_tasks) > 1:
            yield Round(min(seconds), sum(each.sent_bytes for each in of_tasks) / len(of_tasks))


class Flows:
    """Those of all joins over three and more streams, one after the other, and the exchange that they share. The loop's own."""

    def __init__(self, job: Job, path_plans: PathPlans, flowing: Mapping[str, Any] | None = None) -> None:
        """``path_plans`` and ``flowing``: of the last commit; empty before the first."""
        parts = zip(job.multiway, numbered(job.multiway, len(job.joins)), strict=True)
        self._of_joins = [(Flow(job, placed, path_plans[heads]), heads, steps) for placed, (heads, steps) in parts]
        first = Exchange(epoch_seconds=max(LEAST_EPOCH_SECONDS, job.interval_micros / 1e6))
        before = [Flowing.from_json(known).exchange for known in _of_each(job.multiway, flowing or {}) if known]
        self._pace = Pace(before[0] if before else first)

    def add(self, path_plans: PathPlans, reports: Sequence[TaskReport], after: Checkpoint) -> None:
        """Take in an epoch that ran by these ways."""
        if self._of_joins:
            pairs = sum(report.candidates for report in reports)
            self._pace.add(rounds_in(reports), after.committed_at or 0.0, pairs, sum(report.seconds.get("join", 0.0) for report in reports))
        for flow, heads, steps in self._of_joins:
            flow.add(path_plans[heads], steps, reports, after)

    def known(self, checkpoint: Checkpoint, rates: Sequence[float]) -> dict[str, Any]:
        """What is known, as a checkpoint has it (``Checkpoint.flowing``)."""
        exchange = self._exchange(checkpoint)
        found = [flow.known(checkpoint, rates, exchange).to_json() for flow, _, _ in self._of_joins]
        return {JOINS: found} if len(found) > 1 else found[0] if found else {}

    def path_plans(self, checkpoint: Checkpoint, rates: Sequence[float], now: float) -> PathPlans:
        """The ways for the next epoch."""
        exchange = self._exchange(checkpoint)
        return tuple(path_plan for flow, _, _ in self._of_joins for path_plan in flow.path_plans(checkpoint, rates, exchange, now))

    def _exchange(self, checkpoint: Checkpoint) -> Exchange:
        """O(tasks)."""
        return self._pace.exchange(len(checkpoint.state.held))


def flowing_of(graphs: Sequence[PlacedGraph], checkpoint: Checkpoint) -> list[tuple[PlacedGraph, Flowing, slice]]:
    """What a checkpoint says of each join over three and more streams: what is known of it, and which of the ways are its. Nothing before
    the first epoch whose ways were measured."""
    known = _of_each(graphs, checkpoint.plan.flowing)
    parts = zip(graphs, known, numbered(graphs, 0), strict=True)
    return [(placed, Flowing.from_json(flowing), heads) for placed, flowing, (heads, _) in parts if flowing]


def _of_each(graphs: Sequence[PlacedGraph], flowing: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = flowing.get(JOINS, [flowing])
    return found if len(found) == len(graphs) else [{}] * len(graphs)
