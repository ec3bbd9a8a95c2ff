"""What the last epochs have shown of the streams and edges of a join graph, for those who choose in which order streams meet.

Lost with the driver, but for what the last commit says of it (``Checkpoint.flowing``): the next one goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamjoin.elastic.sequences import Flowing, Ways, assumed, choose
from streamjoin.epoch.outcome import counts_of
from streamjoin.epoch.spec import TaskReport
from streamjoin.job import Job
from streamjoin.language.graph import JoinGraph
from streamjoin.state.log import Checkpoint

CHOOSE_SECONDS = 10.0
"""Ways are looked at again after so long."""
KEPT = 0.8
"""What was measured before an epoch counts for so much after it."""
LEAST_PAIRS = 10_000.0
"""Of fewer pairs of tuples it says nothing how many matched."""


class Flow:
    """See the module. The loop's own."""

    def __init__(self, job: Job, graph: JoinGraph) -> None:
        self._job, self._graph = job, graph
        # By edge: pairs that could have matched, and those that did.
        self._pairs = [0.0] * len(graph.edges)
        self._found = [0.0] * len(graph.edges)
        self._chosen_at: float | None = None
        self.ways: Ways = ()
        """Empty until they are first chosen."""

    def add(self, ways: Ways, reports: Sequence[TaskReport], held: Sequence[float]) -> None:
        """Take in an epoch that ran by these ways. ``held``: tuples stored, by stream. O(reports x steps)."""
        accepted, steps = counts_of(reports, len(ways))["accepted"], len(ways) - 1
        found = [0] * (len(ways) * steps)
        for report in reports:
            for number, work in report.steps.items():
                found[number] += work.found
        if not any(accepted):
            return
        self._pairs = [KEPT * count for count in self._pairs]
        self._found = [KEPT * count for count in self._found]
        for head, way in enumerate(ways):
            probing, joined = float(accepted[head]), frozenset((head,))
            for at, stream in enumerate(way.order):
                edge = self._graph.edge_to(stream, joined)
                assert edge is not None
                number, came = self._graph.edges.index(edge), found[head * steps + at]
                self._pairs[number] += probing * held[stream]
                self._found[number] += came
                probing, joined = float(came), joined | {stream}

    def known(self, rates: Sequence[float], held: Sequence[float], tuple_bytes: Sequence[float]) -> Flowing:
        """All of it; selectivities are assumed where none was measured. ``tuple_bytes``: of held tuples, by place."""
        measured = [
            found / pairs if pairs >= LEAST_PAIRS else unknown
            for unknown, pairs, found in zip(assumed(self._graph, held), self._pairs, self._found, strict=True)
        ]
        widths = self._job.carried_bytes(tuple_bytes)
        by_condition, by_output = zip(*widths, strict=True)
        return Flowing(tuple(rates), tuple(held), by_condition, by_output, tuple(measured))

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from the ways of the last commit."""
        self.ways = checkpoint.ways

    def choose(self, known: Flowing, now: float) -> None:
        """Look at the ways again, if it is time."""
        if self.ways and self._chosen_at is not None and 0 <= now - self._chosen_at < CHOOSE_SECONDS:
            return
        self._chosen_at = now
        self.ways = choose(self._graph, known, self.ways)
