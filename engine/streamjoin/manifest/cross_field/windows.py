"""What ``spec.joins[].window`` must be with the streams that its join is over: forms and names for these, event times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamjoin.manifest import model
from streamjoin.manifest.checks import Check, as_text
from streamjoin.manifest.model_rules import window_kinds
from streamjoin.manifest.outer_joins import OUTER
from streamjoin.manifest.problem import Problem, closest, listed
from streamjoin.manifest.text import field_name


def window_checks(field: str, join: model.Join, streams: Sequence[model.Stream], over: Sequence[int]) -> list[Check]:
    """The checks of the window at ``field``. ``over``: the numbers of the streams that the join is over."""
    own = [streams[number] for number in over]
    of_pair = len(own) == 2 < len(streams)
    return [_window(field, join, len(own), of_pair=of_pair), _each(field, join, own), _event_times(field, join, streams, over)]


def _window(field: str, join: model.Join, streams: int, *, of_pair: bool) -> Check:
    """``of_pair``: the join is over two of more streams."""
    window = join.window
    for name, value in (("rows", window.rows), ("eachRows", window.each_rows)):
        if of_pair and value is not None:
            message = "counts the records of two streams, and there are more; give within, or before and after, or unbounded: true"
            yield Problem(f"{field}.{name}", value if name == "rows" else None, message)
        elif streams > 2 and join.type in OUTER and value is not None:
            message = f"counts records, and the results of the first two streams' {join.type} join come in no order; give a window of time"
            yield Problem(f"{field}.{name}", value if name == "rows" else None, message)
    for name in ("before", "after") if streams > 2 else ():
        value = getattr(window, name)
        if value is not None:
            remedy = "give within, or each, or rows, or eachRows, or unbounded: true"
            yield Problem(f"{field}.{name}", as_text(value), f"is for two streams, and there are {streams}; {remedy}")


def _each(field: str, join: model.Join, streams: Sequence[model.Stream]) -> Check:
    """Whether it names all streams and no other."""
    window = join.window
    names = [stream.name for stream in streams]
    if not names or len(set(names)) < len(names):
        return
    if window.each is not None:
        yield from _named(field, "each", window.each, names, "how long before the newest tuple of a result its tuple may be")
    if window.each_rows is not None:
        yield from _named(field, "eachRows", window.each_rows, names, "among how many of its last records its tuple is")


def _named(field: str, form: str, each: Mapping[str, object], names: Sequence[str], what: str) -> Check:
    missing = [name for name in names if name not in each]
    for name, span in each.items():
        if name not in names:
            close = closest(name, missing)
            if close is not None:
                missing.remove(close)
            remedy = f"did you mean {close}?" if close else f"the streams are {listed(names, 'and')}"
            shown = span if isinstance(span, int) else str(span)
            yield Problem(f"{field}.{field_name((form, name))}", shown, f"is given to a stream that does not exist; {remedy}")
    if missing:
        yield Problem(f"{field}.{form}", None, f"lacks {listed(missing, 'and')}; give for every stream {what}")


def _event_times(field: str, join: model.Join, streams: Sequence[model.Stream], over: Sequence[int]) -> Check:
    if "time" in window_kinds(join.window):
        for index in over:
            if getattr(streams[index], "event_time", "refused") is None:
                message = f"is missing, and {field} is one of time; name a TIMESTAMP column, or use rows or unbounded"
                yield Problem(f"spec.streams[{index}].eventTime", None, message)
