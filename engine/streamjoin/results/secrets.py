"""Options of a store that say where a secret is, rather than the secret itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from streamjoin.results.store import StoreError

FILE, VARIABLE = "file:", "env:"


def resolved(options: Mapping[str, str], where: str) -> dict[str, str]:
    """The options with what their values refer to: ``file:/path`` is that file's content, ``env:NAME`` that variable's, without the line
    break at the end. ``where``: the options' field. Raises StoreError."""
    return {name: _resolved(value, f"{where}[{name}]") for name, value in options.items()}


def _resolved(value: str, field: str) -> str:
    if value.startswith(VARIABLE):
        variable = value.removeprefix(VARIABLE)
        if variable not in os.environ:
            raise StoreError(f"{field}: the variable {variable} is not set; set it where the driver runs")
        return os.environ[variable].rstrip("\r\n")
    if not value.startswith(FILE):
        return value
    path = value.removeprefix(FILE)
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StoreError(f"{field}: {path} cannot be read ({reason}); mount it where the driver runs") from None
