"""Dataclasses as JSON and back, by the types of their fields. So a field that is added needs nothing here.

A dataclass is an object with the names of its fields, a tuple an array, a dict an object. A class with ``to_json`` and ``from_json`` is
what these say. Whatever else is as the module ``json`` has it.

Always holds: what has a field too few or too many is refused. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")
Read = Callable[[Any], Any]


def plain(value: Any) -> Any:
    """A dataclass for ``json.dumps(default=plain)``. O(fields)."""
    if hasattr(value, "to_json"):
        return value.to_json()
    return {field.name: getattr(value, field.name) for field in fields(value)}


def read(kind: type[Kind], value: Any) -> Kind:
    """An instance of the dataclass from parsed JSON. Raises ValueError if fields or values are not those of the type."""
    try:
        found: Kind = _reader(kind)(value)  # type: ignore[arg-type]
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return found


@cache
def _reader(kind: Any) -> Read:
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:
        (given,) = (_reader(each) for each in args if each is not NoneType)
        return lambda value: None if value is None else given(value)
    if origin is tuple:
        each = _reader(args[0])
        return lambda value: tuple(map(each, value))
    if origin is dict:
        # The names of an object are text, whatever they were.
        key, item = int if args[0] is int else str, _reader(args[1])
        return lambda value: {key(name): item(each) for name, each in value.items()}
    if hasattr(kind, "from_json"):
        return kind.from_json  # type: ignore[no-any-return]
    if is_dataclass(kind):
        return _of_fields(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    return lambda value: value


def _of_fields(kind: Any) -> Read:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}

    def of_fields(value: dict[str, Any]) -> Any:
        if value.keys() != readers.keys():
            odd = ", ".join(sorted(value.keys() ^ readers.keys()))
            raise ValueError(f"{kind.__name__}: {odd}")
        return kind(**{name: each(value[name]) for name, each in readers.items()})

    return of_fields
