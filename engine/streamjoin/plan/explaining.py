"""EXPLAIN: a plan as text, for people."""

from __future__ import annotations

from collections.abc import Iterator

from streamjoin.language.predicate import Bound, Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.language.sides import LEFT
from streamjoin.language.window import Window, WindowKind
from streamjoin.manifest.quantity import Duration
from streamjoin.plan.join_plan import Join, JoinPlan, Reduce, Stage
from streamjoin.scheme.models import HANDSHAKE

INDENT = "  "


def explained(plan: JoinPlan) -> str:
    """Arrangements, then each join's paths, a stage a line. O(size)."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: JoinPlan) -> Iterator[str]:
    names, tasks = [source.name for source in plan.streams], plan.partitioning.tasks
    yield f"partitioning: {plan.partitioning.model}, {tasks} task{'s' * (tasks != 1)}"
    for number, each in enumerate(plan.arrangements):
        by = "no key" if each.key is None else _key(each.key)
        space = f", key space {each.key_space}" if any(other.key_space for other in plan.arrangements) else ""
        yield f"arrangement {number}: {names[each.stream]} by {by}{space}, holds {', '.join(each.columns) or 'no columns'}"
    for join in plan.joins:
        yield f"join {join.name}: {_reduced(join.reduce, [names[stream] for stream in join.reduce.streams])}"
        for path in join.paths:
            source = plan.streams[path.stream]
            taken = f" where {source.where}" if source.where else ""
            yield f"{INDENT}delta of {source.name}{taken}" + (", late materialization" if path.fetches else "")
            yield from (f"{INDENT * 2}{line}" for stage in path.stages for line in _stage(plan, join, stage))
        if join.where:
            yield f"{INDENT}keep {join.where}"
        yield f"{INDENT}output {', '.join(join.output)}"


def _stage(plan: JoinPlan, join: Join, stage: Stage) -> Iterator[str]:
    held, probing = plan.arrangements[stage.arrangement], plan.arrangements[stage.probing]
    key, own = stage.main.key(probing.side), stage.main.key(held.side)
    names = [source.name for source in plan.streams]
    by = "" if key is None else f" with {names[probing.stream]}.{_key(key)}"
    index = f" by an index on {_key(own)}" if own is not None and own != held.key else ""
    of = f"arrangement {stage.arrangement} ({names[held.stream]}, {'state and delta' if stage.with_delta else 'state'}){index}"
    how = "chain" if plan.partitioning.model == HANDSHAKE else stage.distribution.value
    window = (
        _window_of_each(join.window, [names[stream] for stream in join.streams])
        if join.window.each
        else (_window_of_two(join.window, probing.side))
    )
    yield f"{how}, probe {of}{by}: {_probe(stage.main, probing.side)}{window and f', {window}'}"
    yield from (f"{INDENT}check {text}" for text in stage.checks)


def _key(key: KeyExpression) -> str:
    return ", ".join(key.sql) + (" by hash" if key.encoding is Encoding.HASH else "")


def _probe(main: MainPredicate, side: int) -> str:
    """What a key of this side finds; the bounds of ``main`` are those of ``right - left``."""
    if main.kind is not MainKind.RANGE:
        return "other keys" if main.kind is MainKind.NOT_EQUAL else "all"
    if main.is_equality and not main.slack:
        return "the same key"
    low, high = (main.low, main.low_strict), (main.high, main.high_strict)
    if side != LEFT:
        low, high = (_negated(high[0]), high[1]), (_negated(low[0]), low[1])
    from_low = "" if low[0] is None else f"{low[0]} {'<' if low[1] else '<='} "
    to_high = "" if high[0] is None else f" {'<' if high[1] else '<='} {high[0]}"
    return f"{from_low}held - probing{to_high}"


def _negated(bound: Bound) -> Bound:
    return None if bound is None else -bound if bound else bound


def _window_of_two(window: Window, side: int) -> str:
    """Where a tuple of the other side may lie, seen from one of this side."""
    if window.kind is not WindowKind.RANGE:
        return f"within {window.rows} rows" if window.kind is WindowKind.ROWS else ""
    ends = (window.before_micros, window.after_micros)
    before, after = map(Duration, ends if side == LEFT else ends[::-1])
    slide = f", in windows that slide by {Duration(window.slide_micros)}" if window.slide_micros else ""
    return f"from {before} before to {after} after it{slide}"


def _window_of_each(window: Window, names: list[str]) -> str:
    """How far each tuple may lie before the newest."""
    ranged = window.kind is WindowKind.RANGE
    each = (f"{name} {Duration(span) if ranged else f'{span} rows'}" for name, span in zip(names, window.each, strict=True))
    slide = f", in windows that slide by {Duration(window.slide_micros)}" if window.slide_micros else ""
    return f"within {', '.join(each)} of the newest{slide}"


def _reduced(reduce: Reduce, streams: list[str]) -> str:
    if reduce.kind == "none":
        return "pairs"
    tuples = f"tuples of {' and of '.join(streams)} {'without' if reduce.missing else 'with'} a partner"
    return f"pairs, and {tuples}" if reduce.pairs else tuples
