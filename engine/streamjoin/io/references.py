"""Resolves options whose values say where the value is: ``file:/path`` is the content of that file, ``env:NAME`` that of the environment
variable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE, VARIABLE = "file:", "env:"
"""With what an option's value begins that is not the value itself, but says where to read it."""


def resolved(options: Iterable[tuple[str, str]], where: str, readers: str, errors: type[Exception]) -> dict[str, str]:
    """The options with what their values refer to, without the line break that ends most files.

    ``where``: the options' field, which ``errors`` name; ``readers``: who reads them, for the remedy.
    """
    return {name: _resolved(value, f"{where}[{name}]", readers, errors) for name, value in options}


def _resolved(value: str, field: str, readers: str, errors: type[Exception]) -> str:
    if value.startswith(VARIABLE):
        variable = value.removeprefix(VARIABLE)
        if variable not in os.environ:
            raise errors(f"{field}: the variable {variable} is not set; set it where {readers}")
        return os.environ[variable].rstrip("\r\n")
    if not value.startswith(FILE):
        return value
    path = value.removeprefix(FILE)
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise errors(f"{field}: {path} cannot be read ({reason}); mount it where {readers}") from None


def settings(options: Mapping[str, str | float | bool]) -> tuple[tuple[str, str], ...]:
    """A manifest's options as clients take them, in the order of their names."""
    return tuple(sorted((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in options.items()))
