"""Measurements of the last epochs, by stream and by edge of a join graph, from which the engine chooses in which order streams meet.

They are lost with the driver. The next driver goes on by the ways of the last commit, and chooses anew once it has measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from streamjoin.elastic.sequences import Flowing, Ways, assumed, choose
from streamjoin.epoch.outcome import counts_of
from streamjoin.epoch.planning import tuple_bytes
from streamjoin.epoch.reports import TaskReport
from streamjoin.job import Job
from streamjoin.language.layout import PlacedGraph
from streamjoin.state.log import Checkpoint

CHOOSE_SECONDS = 10.0
"""Ways are looked at again after so long."""
KEPT = 0.8
"""What was measured before an epoch counts for so much after it."""
LEAST_PAIRS = 10_000.0
"""With fewer pairs of tuples, the number that matched says nothing."""


class Flow:
    """See the module. The loop's own."""

    def __init__(self, job: Job, placed: PlacedGraph, ways: Ways) -> None:
        """``placed``: the join. ``ways``: those of the last commit; empty before the first."""
        self._job, self._placed, self._graph, self._ways = job, placed, placed.graph, ways
        # By edge: pairs that could have matched, and those that did.
        self._pairs = [0.0] * len(placed.graph.edges)
        self._found = [0.0] * len(placed.graph.edges)
        self._chosen_at: float | None = None

    def add(self, ways: Ways, first_step: int, reports: Sequence[TaskReport], after: Checkpoint) -> None:
        """Take in an epoch that ran by these ways, whose steps are numbered from ``first_step``. O(reports x steps + blocks)."""
        of_streams, steps, held = counts_of(reports, len(self._job.streams))["accepted"], len(ways) - 1, self._stored(after)
        accepted = [of_streams[stream] for stream in self._placed.streams]
        found = [0] * (len(ways) * steps)
        for report in reports:
            for number, work in report.steps.items():
                if 0 <= number - first_step < len(found):
                    found[number - first_step] += work.found
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

    def known(self, checkpoint: Checkpoint, rates: Sequence[float]) -> Flowing:
        """All of it; selectivities are assumed where none was measured. ``rates``: by stream of the job. O(blocks + tasks)."""
        held = self._stored(checkpoint)
        measured = [
            found / pairs if pairs >= LEAST_PAIRS else unknown
            for unknown, pairs, found in zip(assumed(self._graph, held), self._pairs, self._found, strict=True)
        ]
        by_condition, by_output = zip(*self._job.carried_bytes(self._placed, tuple_bytes(self._job, checkpoint)), strict=True)
        return Flowing(tuple(rates[stream] for stream in self._placed.streams), tuple(held), by_condition, by_output, tuple(measured))

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
        first = dict(zip(reversed([place.stream for place in self._graph.places]), reversed(self._placed.places), strict=True))
        stored = Counter[int]()
        for block in checkpoint.blocks:
            stored[block.place] += block.rows
        return [float(stored[first[stream]]) for stream in range(len(self._graph.streams))]


class Flows:
    """Those of all joins over three and more streams, one after the other. The loop's own."""

    def __init__(self, job: Job, ways: Ways) -> None:
        """``ways``: those of the last commit; empty before the first."""
        self._of_joins: list[tuple[Flow, slice, int]] = []
        head, step = 0, len(job.joins)
        for placed in job.graphs:
            heads = len(placed.streams)
            self._of_joins.append((Flow(job, placed, ways[head : head + heads]), slice(head, head + heads), step))
            head, step = head + heads, step + heads * (heads - 1)

    def add(self, ways: Ways, reports: Sequence[TaskReport], after: Checkpoint) -> None:
        """Take in an epoch that ran by these ways."""
        for flow, own, step in self._of_joins:
            flow.add(ways[own], step, reports, after)

    def known(self, checkpoint: Checkpoint, rates: Sequence[float]) -> dict[str, list[float]]:
        """What is known, as a checkpoint has it (``Checkpoint.flowing``)."""
        return _in_a_row([flow.known(checkpoint, rates) for flow, _, _ in self._of_joins])

    def ways(self, checkpoint: Checkpoint, rates: Sequence[float], now: float) -> Ways:
        """The ways for the next epoch."""
        return tuple(way for flow, _, _ in self._of_joins for way in flow.ways(checkpoint, rates, now))


def _in_a_row(known: Sequence[Flowing]) -> dict[str, list[float]]:
    """What is known of several joins, one after the other."""
    parts = list(map(asdict, known))
    return {name: [value for part in parts for value in part[name]] for name in (parts[0] if parts else ())}


def flowing_of(job: Job, checkpoint: Checkpoint) -> list[tuple[PlacedGraph, Flowing, Ways]]:
    """What a checkpoint says of each join over three and more streams: what is known of it, and its ways. Nothing before the first epoch
    whose ways were measured."""
    found = []
    head = edge = 0
    for placed in job.graphs if checkpoint.flowing else ():
        streams, edges = slice(head, head + len(placed.streams)), slice(edge, edge + len(placed.graph.edges))
        values = {name: of_all[edges if name == "selectivities" else streams] for name, of_all in checkpoint.flowing.items()}
        found.append((placed, Flowing(**values), checkpoint.ways[streams]))
        head, edge = streams.stop, edges.stop
    return found
