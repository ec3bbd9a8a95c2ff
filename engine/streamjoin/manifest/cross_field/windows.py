"""What ``spec.joins[].window`` must be: of one form, of lengths in order, all of one kind, on streams that have times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamjoin.manifest import model
from streamjoin.manifest.checks import Check, as_text
from streamjoin.manifest.outer_joins import OUTER
from streamjoin.manifest.part import has_unknown
from streamjoin.manifest.problem import Problem, closest, listed
from streamjoin.manifest.text import field_name

ROWS = ("rows", "eachRows")
"""Forms of windows of rows."""


def window_checks(field: str, join: model.Join, streams: Sequence[model.Stream], over: Sequence[int]) -> list[Check]:
    """The checks of the window at ``field``. ``over``: the numbers of the streams that the join is over."""
    own = [streams[number] for number in over]
    of_pair = len(own) == 2 < len(streams)
    return [_window(field, join, len(own), of_pair=of_pair), _each(field, join, own), _event_times(field, join, streams, over)]


def _window_forms(window: model.Window) -> list[str]:
    """The forms of window that are given; before and after are one form, and unbounded: false is none."""
    given = window.model_fields_set
    forms = {
        "within": "within" in given,
        "each": "each" in given,
        "before and after": "before" in given or "after" in given,
        "rows": "rows" in given,
        "eachRows": "each_rows" in given,
        "unbounded": "unbounded" in given and getattr(window, "unbounded", True),
    }
    return [form for form, is_given in forms.items() if is_given]


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
    forms = _window_forms(window)
    if not forms and not has_unknown(window):
        others = f"{'' if streams > 2 else 'or before and after, '}or each, or rows, or eachRows, or unbounded: true"
        yield Problem(field, None, f"is empty; give within, {others}")
    elif len(forms) > 1:
        yield Problem(field, None, f"has {listed([f'({f})' if ' ' in f else f for f in forms], 'and')}; keep one")
    for name in ("before", "after") if streams > 2 else ():
        value = getattr(window, name)
        if value is not None:
            remedy = "give within, or each, or rows, or eachRows, or unbounded: true"
            yield Problem(f"{field}.{name}", as_text(value), f"is for two streams, and there are {streams}; {remedy}")
    slide = window.slide
    if slide is None or len(forms) != 1:
        return
    if forms[0] in (*ROWS, "unbounded"):
        message = f"has no meaning with {forms[0]}; remove it, or give a window of time"
        yield Problem(f"{field}.slide", str(slide), message)
        return
    spans = {name: getattr(window, name) for name in ("within", "before", "after")}
    lengths = {name: span for name, span in spans.items() if span is not None and span.micros}
    for name, length in (lengths | {f"each.{name}": span for name, span in (window.each or {}).items()}).items():
        if length < slide:
            message = f"must be at most {name} ({length}), or tuples would lie between two windows; shorten it"
            yield Problem(f"{field}.slide", str(slide), message)
            return


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
    forms = _window_forms(join.window)
    if {"within", "each", "before and after"} & set(forms):
        for index in over:
            if getattr(streams[index], "event_time", "refused") is None:
                message = f"is missing, and {field} is one of time; name a TIMESTAMP column, or use rows or unbounded"
                yield Problem(f"spec.streams[{index}].eventTime", None, message)


def window_kind_problems(joins: Sequence[model.Join]) -> Check:
    """Whether all windows are of one kind: they say together for how long tuples are held."""
    forms = [_window_forms(join.window) for join in joins]
    if any(len(each) != 1 for each in forms):
        return
    kinds = ["rows" if form in ROWS else form if form == "unbounded" else "time" for (form,) in forms]
    for index, kind in enumerate(kinds):
        if kind != kinds[0]:
            message = "is of another kind than spec.joins[0].window (time, rows or unbounded), and joins over the same streams hold them"
            yield Problem(f"spec.joins[{index}].window", None, f"{message} together; move this one into a manifest of its own")
