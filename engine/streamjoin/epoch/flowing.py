"""Measurements of the last epochs, by stream and by edge of a join graph, and of the exchange, from which the engine chooses in which order
streams meet, and how.

Those of streams and edges are lost with the driver. The next driver goes on by the ways of the last commit, and chooses anew once it has
measured; what it takes of the exchange at first is what the last commit says of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamjoin.elastic.rounds import LEAST_EPOCH_SECONDS, Exchange, Pace, Round
from streamjoin.elastic.sequences import Flowing, Ways, assumed, choose
from streamjoin.epoch.outcome import counts_of
from streamjoin.epoch.planning import tuple_bytes
from streamjoin.epoch.reports import TaskReport
from streamjoin.job import Job
from streamjoin.language.graph import JoinGraph
from streamjoin.state.log import Checkpoint

CHOOSE_SECONDS = 10.0
"""Ways are looked at again after so long."""
KEPT = 0.8
"""What was measured before an epoch counts for so much after it."""
LEAST_PAIRS = 10_000.0
"""With fewer pairs of tuples, the number that matched says nothing."""


class Flow:
    """See the module. The loop's own."""

    def __init__(self, job: Job, graph: JoinGraph, ways: Ways, flowing: Mapping[str, Any] | None = None) -> None:
        """``ways``: those of the last commit; empty before the first. ``flowing``: as the last commit has it."""
        self._job, self._graph, self._ways = job, graph, ways
        # By edge: pairs that could have matched, and those that did.
        self._pairs = [0.0] * len(graph.edges)
        self._found = [0.0] * len(graph.edges)
        self._met = [0.0] * len(graph.edges)
        first = Exchange(epoch_seconds=max(LEAST_EPOCH_SECONDS, job.interval_micros / 1e6))
        self._pace = Pace(Flowing.from_json(flowing).exchange if flowing else first)
        self._chosen_at: float | None = None

    def add(self, ways: Ways, reports: Sequence[TaskReport], after: Checkpoint) -> None:
        """Take in an epoch that ran by these ways. O(reports x steps + blocks)."""
        accepted, steps, held = counts_of(reports, len(ways))["accepted"], len(ways) - 1, self._stored(after)
        found, met = [0] * (len(ways) * steps), [0] * (len(ways) * steps)
        for report in reports:
            for number, work in report.steps.items():
                found[number] += work.found
                met[number] += work.met
        self._pace.add(rounds_in(reports), after.committed_at or 0.0)
        if not any(accepted):
            return
        self._pairs = [KEPT * count for count in self._pairs]
        self._found = [KEPT * count for count in self._found]
        self._met = [KEPT * count for count in self._met]
        for head, way in enumerate(ways):
            probing, joined = float(accepted[head]), frozenset((head,))
            for at, stream in enumerate(way.order):
                edge = self._graph.edge_to(stream, joined)
                assert edge is not None
                number, came = self._graph.edges.index(edge), found[head * steps + at]
                self._pairs[number] += probing * held[stream]
                self._found[number] += came
                self._met[number] += met[head * steps + at]
                probing, joined = float(came), joined | {stream}

    def known(self, checkpoint: Checkpoint, rates: Sequence[float]) -> Flowing:
        """All of it; selectivities are assumed where none was measured. ``rates``: by stream. O(blocks + tasks)."""
        held = self._stored(checkpoint)
        unknown = assumed(self._graph, held)
        measured, admitted = (
            [count / pairs if pairs >= LEAST_PAIRS else guess for guess, pairs, count in zip(unknown, self._pairs, counts, strict=True)]
            for counts in (self._found, self._met)
        )
        by_condition, by_output = zip(*self._job.carried_bytes(tuple_bytes(self._job, checkpoint)), strict=True)
        (join,) = self._job.joins
        window, exchange = join.window.kind.value, self._pace.exchange(len(checkpoint.held))
        return Flowing(tuple(rates), tuple(held), by_condition, by_output, tuple(measured), tuple(admitted), window, exchange)

    def ways(self, checkpoint: Checkpoint, rates: Sequence[float], now: float) -> Ways:
        """The ways for the next epoch: the last epoch's, or better ones if it is time to look again."""
        if self._chosen_at is None and self._ways:
            self._chosen_at = now  # nothing has been measured yet, and they were chosen by what had been
        if self._chosen_at is None or not 0 <= now - self._chosen_at < CHOOSE_SECONDS:
            self._chosen_at = now
            self._ways = choose(self._graph, self.known(checkpoint, rates), self._ways)
        return self._ways

    def _stored(self, checkpoint: Checkpoint) -> list[float]:
        """Tuples stored, by stream: each once, however many places hold it."""
        stored = [0.0] * len(self._job.streams)
        first = {place.stream: number for number, place in reversed(list(enumerate(self._graph.places)))}
        for block in checkpoint.blocks:
            stream = self._graph.places[block.place].stream
            stored[stream] += block.rows * (first[stream] == block.place)
        return stored


def rounds_in(reports: Sequence[TaskReport]) -> Iterator[Round]:
    """Those of an epoch that were measured. O(reports x rounds)."""
    for of_tasks in zip(*(report.rounds for report in reports), strict=False):
        seconds = [each.seconds for each in of_tasks if each.seconds is not None]
        if seconds and len(of_tasks) > 1:
            yield Round(min(seconds), sum(each.sent_bytes for each in of_tasks) / len(of_tasks))
