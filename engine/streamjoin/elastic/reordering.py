"""A change of the ways in which the streams of a join meet, or of the keys by which they lie for it, as the ledger has it.

The driver chooses ways by itself (:mod:`streamjoin.elastic.path_plans`); here is said what it has done, and by which measurements. Pure.
"""

from __future__ import annotations

from streamjoin.elastic.decision import Decision, Kind, PathPlanChange, Reason, Reordering
from streamjoin.elastic.path_plans import (
    Flowing,
    PathPlan,
    PathPlans,
    bytes_text,
    count_text,
    counted,
    how_text,
    order_text,
    priced,
    rounds_of,
)
from streamjoin.elastic.settings import Mode
from streamjoin.language.graph import JoinGraph


def reordered(
    graph: JoinGraph,
    flowing: Flowing,
    before: PathPlans,
    after: PathPlans,
    at: float,
    generation: int,
    workers: int,
    *,
    join: str | None = None,
) -> Decision:
    """The entry for a change from some ways to others, which both are priced by what was measured then. ``join``: its name, where there are
    several. O(streams³)."""
    was, now = ([priced(graph, flowing, head, path_plan) for head, path_plan in enumerate(path_plans)] for path_plans in (before, after))
    changes = tuple(
        PathPlanChange(name, way_text(graph, old.path_plan), way_text(graph, new.path_plan), old.bytes_per_second, new.bytes_per_second)
        for name, old, new in zip(graph.streams, was, now, strict=True)
        if old.path_plan != new.path_plan
    )
    rounds = rounds_of(before), rounds_of(after)
    seconds = tuple(
        flowing.exchange.seconds(count, sum(each.load for each in path_plans)) for count, path_plans in zip(rounds, (was, now), strict=True)
    )
    sent = [bytes_text(sum(each.bytes_per_second for each in path_plans)) for path_plans in (was, now)]
    pairs = [count_text(sum(each.pairs for each in path_plans)) for path_plans in (was, now)]
    which = ", ".join(change.stream for change in changes)
    sentence = (
        f"{'' if join is None else f'{join}: '}new tuples of {which} meet the other streams in another way, by which "
        f"{sent[1]} in place of {sent[0]} are expected to be sent, and {pairs[1]} in place of {pairs[0]} pairs/s to be looked at, "
        f"in {counted(rounds[1], 'round')} in place of {rounds[0]}: "
        f"{_milliseconds(seconds[1])} of an epoch in place of {_milliseconds(seconds[0])}"
    )
    reordering = Reordering(changes, (rounds[0], rounds[1]), (seconds[0], seconds[1]), flowing.to_json())
    return _entry(sentence, at, generation, workers, reordering)


def laid_anew(why: str, at: float, generation: int, workers: int) -> Decision:
    """The entry for a join that was laid by another graph of its condition (:mod:`streamjoin.elastic.another_graph`)."""
    return _entry(why, at, generation, workers)


def _entry(sentence: str, at: float, generation: int, workers: int, reordering: Reordering | None = None) -> Decision:
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
        reordering=reordering,
    )


def way_text(graph: JoinGraph, path_plan: PathPlan) -> str:
    """``b, c: ask``."""
    return f"{order_text(graph, path_plan)}: {how_text(path_plan)}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
