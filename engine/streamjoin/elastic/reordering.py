"""A change of the ways in which the streams of a join meet, as the ledger has it.

The driver chooses ways by itself (:mod:`streamjoin.elastic.sequences`); here is said what it has done, and by which measurements. Pure.
"""

from __future__ import annotations

from streamjoin.elastic.decision import Decision, Kind, Reason, Reordering, WayChange
from streamjoin.elastic.sequences import Flowing, Way, Ways, bytes_text, counted, how_text, order_text, priced, rounds_of
from streamjoin.elastic.settings import Mode
from streamjoin.language.graph import JoinGraph


def reordered(
    graph: JoinGraph, flowing: Flowing, before: Ways, after: Ways, at: float, generation: int, workers: int, *, join: str | None = None
) -> Decision:
    """The entry for a change from some ways to others, which both are priced by what was measured then. ``join``: its name, where there are
    several. O(streams³)."""
    prices = [
        tuple(priced(graph, flowing, head, way).bytes_per_second for way in (old, new))
        for head, (old, new) in enumerate(zip(before, after, strict=True))
    ]
    changes = tuple(
        WayChange(graph.streams[head], way_text(graph, old), way_text(graph, new), *prices[head])
        for head, (old, new) in enumerate(zip(before, after, strict=True))
        if old != new
    )
    rounds = rounds_of(before), rounds_of(after)
    totals = sum(old for old, _ in prices), sum(new for _, new in prices)
    seconds = tuple(flowing.exchange.seconds(count, nbytes) for count, nbytes in zip(rounds, totals, strict=True))
    which = ", ".join(change.stream for change in changes)
    sentence = (
        f"{'' if join is None else f'{join}: '}new tuples of {which} meet the other streams in another way, by which "
        f"{bytes_text(totals[1])} in place of {bytes_text(totals[0])} are expected to be sent, "
        f"in {counted(rounds[1], 'round')} in place of {rounds[0]}: "
        f"{_milliseconds(seconds[1])} of an epoch in place of {_milliseconds(seconds[0])}"
    )
    return Decision(
        at=at,
        kind=Kind.REORDER,
        rule=None,
        reason=Reason.CHEAPER,
        sentence=sentence,
        generation=generation,
        workers=workers,
        target=workers,
        mode=Mode.ENFORCE,
        inputs=None,
        age_seconds=None,
        reordering=Reordering(changes, (rounds[0], rounds[1]), (seconds[0], seconds[1]), flowing.to_json()),
    )


def way_text(graph: JoinGraph, way: Way) -> str:
    """``b, c: ask``."""
    return f"{order_text(graph, way)}: {how_text(way)}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
