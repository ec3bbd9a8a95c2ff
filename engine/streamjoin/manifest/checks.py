"""Code that all checks of a manifest's fields share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamjoin.language.errors import SqlError
from streamjoin.manifest.part import Part, UnparsedError
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.quantity import Quantity

Check = Iterator[Problem]
"""Problems, found while it is read. Reading a refused field raises UnparsedError, which ends the check (:func:`until_refused`)."""


def value_at(part: Part, *names: str) -> Any:
    """The value at a path of attributes, or None where one of them was refused or not given."""
    value: Any = part
    for name in names:
        value = getattr(value, name, None)
    return value


def sql_problem(field: str, sql: str, error: SqlError) -> Problem:
    """What is wrong with the SQL at a field."""
    return Problem(field, sql, f"is refused: {error.problem}; {error.remedy}")


def as_text(value: object) -> object:
    """A value as :class:`Problem` shows it: quantities as a manifest has them."""
    return str(value) if isinstance(value, Quantity) else value


def until_refused(check: Check) -> Check:
    """A check's problems, to its end or to where it reads a refused field: that field has its own problem already."""
    try:
        yield from check
    except UnparsedError:
        return
