"""Makes rules on several fields of a part that are said once: for the API server in CEL, and for ``validate`` in Python.

Fields are named as in a manifest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from streamjoin.manifest.cel import Rule, cel_name, one_holds
from streamjoin.manifest.checks import Check, as_text
from streamjoin.manifest.part import Part, has_unknown
from streamjoin.manifest.problem import Problem, listed

_NAMES = re.compile(r"\{(\w+)\}")
_VALUES = re.compile(r" \(\{\w+\}\)")


def rule(
    expression: str, holds: Callable[[Any], bool], message: str, *, field: str | None = None, brief: str | None = None, shows: bool = False
) -> Rule:
    """What ``expression`` says in CEL, and ``holds`` of a part, about ``field``, or else about the part as a whole.

    ``message``: may show other fields' values, as in ``at most max ({max})``. The API server shows those that are texts, with ``shows``;
    else it says ``brief``, by default the same without them.
    """

    def check(where: str, part: Part) -> Check:
        if not holds(part):
            values = {name: as_text(value_of(part, name)) for name in _NAMES.findall(message)}
            place, value = (where, None) if field is None else (f"{where}.{field}", value_of(part, field))
            yield Problem(place, None if isinstance(value, Part) else as_text(value), message.format_map(values))

    computed = _NAMES.sub(r"' + self.\1 + '", f"'{message}'") if shows else None
    return Rule(expression, brief or _VALUES.sub("", message), computed, field, check)


def rule_of_items(expression: str, holds: Callable[[Any, Any], object], message: str, *, field: str, blamed: str) -> Rule:
    """What ``expression`` says in CEL, and ``holds`` of a part and each item of its list ``field``. ``blamed``: a field of the item."""

    def check(where: str, part: Part) -> Check:
        for index, item in enumerate(value_of(part, field)):
            if not holds(part, item):
                yield Problem(f"{where}.{field}[{index}].{blamed}", None, message)

    return Rule(expression, message, field=field, check=check)


def exactly_one(*names: str, nothing: str | None = None) -> Rule:
    """That one of these fields is given. ``nothing``: what is said where none is."""
    expression = one_holds(*(f"has({cel_name('self', name)})" for name in names))
    message = f"give exactly one of {listed(names, 'and')}"
    return Rule(expression, message, check=lambda where, part: one_given(where, part, names, nothing))


def one_given(where: str, part: Part, names: Sequence[str], nothing: str | None = None) -> Check:
    """The check of :func:`exactly_one`."""
    given = [name for name in names if is_given(part, name)]
    if not given and not has_unknown(part):
        yield Problem(where, None, nothing or f"is empty; give one of {listed(names)}")
    elif len(given) > 1:
        yield Problem(where, None, f"has {listed(given, 'and')}; keep one")


def ascending(low: str, high: str, remedy: str = "") -> Rule:
    """That one number is at most another. Where only one of them was given, that is to blame."""

    def check(where: str, part: Part) -> Check:
        if value_of(part, low) > value_of(part, high):
            yield out_of_order(where, part, (low, "at most"), (high, "at least"), remedy)

    return Rule(f"self.{low} <= self.{high}", f"must be at most {high}{remedy}", None, low, check)


def out_of_order(
    where: str, part: Part, low: tuple[str, str], high: tuple[str, str], remedy: str = "", **derived: tuple[float, str]
) -> Problem:
    """The problem of two numbers, each with what it must be of the other. ``derived``: the values of fields that follow from others where
    they are not given, and how."""
    (name, relation), (other, _) = (low, high) if is_given(part, low[0]) else (high, low)
    values = {each: derived.get(each, (value_of(part, each), "the default")) for each in (name, other)}
    limit, origin = values[other]
    by_default = "" if is_given(part, other) else f", {origin}"
    return Problem(f"{where}.{name}", values[name][0], f"must be {relation} {other} ({limit:.15g}{by_default}){remedy}")


def only_for(
    name: str, of: str, choices: Sequence[str], message: str, brief: str, *, default: str | None = None, shows: bool = False
) -> Rule:
    """That a field differs from its default only where another is one of ``choices``. ``default``: in CEL; None: it has none. The API
    server fills defaults in, so only what differs from them was meant."""
    allowed = " || ".join(f"self.{of} == '{choice}'" for choice in choices)

    def holds(part: Part) -> bool:
        return value_of(part, of) in choices or value_of(part, name) == type(part).model_fields[attribute(part, name)].default

    expression = f"!has(self.{name}) || {allowed}" if default is None else f"{allowed} || self.{name} == {default}"
    return rule(expression, holds, message, field=name, brief=brief, shows=shows)


def names_of(part: type[Part]) -> list[str]:
    """All fields."""
    return [info.alias or name for name, info in part.model_fields.items()]


def attribute(part: Part, name: str) -> str:
    """A field's name in the model."""
    return next(each for each, info in type(part).model_fields.items() if (info.alias or each) == name)


def value_of(part: Part, name: str) -> Any:
    """Of a field, or of one within it (``shedding.model``). Raises UnparsedError where it was refused."""
    return reduce(lambda inner, each: getattr(inner, attribute(inner, each)), name.split("."), part)


def is_given(part: Part, name: str) -> bool:
    return attribute(part, name) in part.model_fields_set
