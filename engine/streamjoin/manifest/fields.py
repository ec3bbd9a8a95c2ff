"""Fields by themselves: pydantic's findings in our words, and what is left when refused fields are taken away.

Always holds: :func:`partial` never invents a value: a field is as it was given, or its default if it was not given, or
reading it raises UnparsedError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from streamjoin.manifest.model import Manifest
from streamjoin.manifest.part import Part
from streamjoin.manifest.problem import Problem, closest, listed, shown
from streamjoin.manifest.text import Path, field_name

_Part = TypeVar("_Part", bound=Part)
BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
"""Bounds of numbers in words, by pydantic's names."""


def field_problems(error: ValidationError) -> Iterator[Problem]:
    """What pydantic found in a manifest."""
    for details in error.errors(include_url=False):
        yield _field_problem(details)


def partial(part: type[_Part], value: Mapping[str, Any]) -> _Part:
    """The part made of those fields that are right by themselves. O(size of the value)."""
    known: dict[str, Any] = {}
    refused: list[str] = []
    for name, info in part.model_fields.items():
        alias = info.alias or name
        if alias not in value:
            if info.is_required():
                refused.append(name)
            continue
        try:
            known[alias] = getattr(_alone(part, name).model_validate({alias: value[alias]}), name)
        except ValidationError:
            inner = _partial_field(info.annotation, value[alias])
            if inner is None:
                refused.append(name)
            else:
                known[alias] = inner
    names = {info.alias or name: name for name, info in part.model_fields.items()}
    made = part.model_construct(_fields_set={names.get(key, key) for key in value}, **known)
    for name in refused:
        made.__dict__.pop(name, None)
    return made


def _partial_field(annotation: Any, value: object) -> Any:
    inner = inner_part(annotation)
    if inner is None:
        return None
    kind, part = inner
    if isinstance(value, Mapping):
        if kind == "part":
            return partial(part, value)
        if kind == "mapping":
            return {key: partial(part, item if isinstance(item, Mapping) else {}) for key, item in value.items()}
    if isinstance(value, list) and kind == "list":
        return tuple(partial(part, item if isinstance(item, Mapping) else {}) for item in value)
    return None


class _Alone(Part):
    """Its fields' descriptions, which are looked for in source files, are those of the part that they are of."""

    model_config = ConfigDict(use_attribute_docstrings=False)


@cache
def _alone(part: type[Part], name: str) -> type[Part]:
    """A part that has that one field only."""
    info = part.model_fields[name]
    fields: dict[str, Any] = {name: (info.annotation, copy(info))}
    return create_model(part.__name__, __base__=_Alone, **fields)


def _field_problem(error: ErrorDetails) -> Problem:  # noqa: C901
    path: Path = error["loc"]
    field, value, context = field_name(path), error["input"], error.get("ctx", {})
    match error["type"]:
        case "missing":
            return Problem(field, None, f"is missing; {_meaning(path)}")
        case "extra_forbidden":
            return Problem(field, value, _unknown(path))
        case "value_error":
            return Problem(field, value, str(context["error"]))
        case "literal_error":
            return Problem(field, value, _choices(path, value))
        case "string_type":
            return Problem(field, value, f"must be text{_quote(value)}")
        case "string_unicode":
            return Problem(field, None, "holds half of a surrogate pair, which is no character; remove it")
        case "string_too_short":
            least = context["min_length"]
            short = f"must have at least {least} characters" if value and least > 1 else "must not be empty"
            return Problem(field, value, f"{short}; {_meaning(path)}")
        case "string_too_long":
            longest = context["max_length"]
            return Problem(field, value, f"must have at most {longest} character{'s' * (longest > 1)}; shorten it")
        case "int_type" | "int_from_float":
            return Problem(field, value, f"must be a whole number{_unquote(value)}")
        case "float_type":
            return Problem(field, value, f"must be a number{_unquote(value)}")
        case "bool_type":
            return Problem(field, value, f"must be true or false{_unquote(value)}")
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            ((bound, limit),) = ((name, context[name]) for name in BOUNDS if name in context)
            return Problem(field, value, f"must be {BOUNDS[bound]} {shown(limit)}")
        case "tuple_type":
            return Problem(field, value, f"must be a list{f': write [{value}]' if isinstance(value, str) else ''}")
        case "too_short":
            return Problem(field, value, f"must have at least {context['min_length']} entry; {_meaning(path)}")
        case "too_long":
            return Problem(field, None, f"must have at most {context['max_length']} entries; take some out")
        case "model_type" | "dict_type":
            part = part_at(path)
            fields = f" of {listed(_aliases(part), 'and')}" if part else ""
            return Problem(field, value, f"must be a mapping{fields}")
    return Problem(field, value, f"is not valid here ({error['msg']}); {_meaning(path)}")


def _quote(value: object) -> str:
    if isinstance(value, Mapping | list):
        return f", not a {'list' if isinstance(value, list) else 'mapping'}"
    return f'; put it in quotes: "{shown(value)}"'


def _unquote(value: object) -> str:
    plain = isinstance(value, str) and re.fullmatch(r"[-+]?[0-9.]+|true|false", value)
    return "; remove the quotes" if plain else ""


def _meaning(path: Path) -> str:
    """What to give: the choices, or the first sentence of the field's description."""
    info = _info_at(path)
    if info is None or not info.description:
        return "give it"
    if choices := _literals(info.annotation):
        return f"give {listed(choices)}"
    words = re.split(r"[.;:] ", info.description)[0].rstrip(".")
    first = words.split()[0]
    # Descriptions begin with a capital; acronyms keep theirs.
    return f"give {words if first.isupper() and len(first) > 1 else words[0].lower() + words[1:]}"


def _choices(path: Path, value: object) -> str:
    info = _info_at(path[:-1] if isinstance(path[-1], int) else path)
    choices = _literals(info.annotation) if info else []
    text = f"must be {listed(choices)}"
    if isinstance(value, bool):
        # YAML 1.1, and so kubectl, reads a bare Off or On as a boolean.
        meant = [choice for choice in choices if choice.lower() == ("on" if value else "off")]
        return f'{text}; put it in quotes: "{meant[0]}"' if meant else text
    if len(choices) == 1:
        return f"{text}; write {path[-1]}: {choices[0]}"
    close = closest(value, choices) if isinstance(value, str) else None
    return f"{text}; did you mean {close}?" if close else text


def _literals(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [literal for argument in get_args(annotation) for literal in _literals(argument)]


def _unknown(path: Path) -> str:
    parent, last = part_at(path[:-1]), str(path[-1])
    names = _aliases(parent) if parent else []
    if close := closest(last, names):
        return f"is given to a field that does not exist; did you mean {close}?"
    elsewhere = [".".join(place).replace(".[]", "[]") for place in _places(Manifest, ()) if place[-1] == last]
    if elsewhere:
        return f"is given to a field that does not exist here; it belongs to {listed(elsewhere[:3])}"
    return f"is given to a field that does not exist; the fields here are {listed(names, 'and')}"


def _aliases(part: type[Part]) -> list[str]:
    return [info.alias or name for name, info in part.model_fields.items()]


@cache
def _places(part: type[Part], prefix: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The path of every field, with [] for list indices; what lies below names that a user chooses is left out."""
    found: list[tuple[str, ...]] = []
    for name, info in part.model_fields.items():
        here = (*prefix, info.alias or name)
        found.append(here)
        inner = inner_part(info.annotation)
        if inner is not None and inner[0] != "mapping":
            found += _places(inner[1], (*here, "[]") if inner[0] == "list" else here)
    return tuple(found)


def _info_at(path: Path) -> Any:
    parent = part_at(path[:-1])
    infos = parent.model_fields.values() if parent else ()
    return next((info for info in infos if info.alias == path[-1]), None)


def inner_part(annotation: Any) -> tuple[str, type[Part]] | None:
    """Whether a field holds one "part", a "list" or a "mapping" of them, and their type; None where it holds values."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return "part", annotation
    kinds: dict[Any, str] = {tuple: "list", dict: "mapping"}
    kind = kinds.get(get_origin(annotation))
    for argument in get_args(annotation):
        inner = inner_part(argument)
        if inner is not None:
            return kind or inner[0], inner[1]
    return None


def parts_of(part: type[Part]) -> Iterator[type[Part]]:
    """A part, and those that it may have. O(fields)."""
    yield part
    for info in part.model_fields.values():
        if (inner := inner_part(info.annotation)) is not None:
            yield from parts_of(inner[1])


def part_at(path: Path) -> type[Part] | None:
    """The type of the part at a path; None for a value, a list, or a path that does not exist."""
    current: tuple[str, type[Part]] | None = ("part", Manifest)
    for step in path:
        if current is None:
            return None
        kind, part = current
        if kind == "part":
            infos = part.model_fields.values()
            current = next((inner_part(info.annotation) for info in infos if info.alias == step), None)
        else:
            current = ("part", part)
    return current[1] if current is not None and current[0] == "part" else None
