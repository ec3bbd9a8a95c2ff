"""Options whose names are a client's own, and not fields of the manifest.

Always holds: values of options that are secrets are in no problem and in no remark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from streamjoin.manifest.checks import Check
from streamjoin.manifest.problem import Problem, is_secret, meant
from streamjoin.manifest.text import field_name

FILE, VARIABLE = "file:", "env:"
"""How an option's value begins that says where the value is."""


def option_field(field: str, name: str, of: str = "options") -> str:
    """An option's field."""
    return f"{field}.{field_name((of, name))}"


def secret_remarks(field: str, options: Mapping[str, object], of: str = "options") -> Check:
    """Remarks on options that are secrets, readable by everybody who can read the manifest."""
    for name, value in options.items():
        if is_secret(name) and not str(value).startswith((FILE, VARIABLE)):
            remedy = "write file:/path of a file with it, or env: and the name of a variable"
            yield Problem(option_field(field, name, of), None, f"is a secret, readable in the manifest; {remedy}")


def option_problems(field: str, options: Mapping[str, object], known: Sequence[str], owner: str) -> Check:
    """Those that the owner does not know, and values that are to be read elsewhere and cannot be."""
    for name, value in options.items():
        here = option_field(field, name)
        if name not in known:
            remedy = meant(name, known, "they are")
            yield Problem(here, value, f"is not an option of {owner}; {remedy}")
        else:
            yield from reference_problems(here, name, value)


def all_reference_problems(field: str, options: Mapping[str, object], of: str = "options") -> Check:
    """The problems of options' values that say where the values are to be read."""
    for name, value in options.items():
        yield from reference_problems(option_field(field, name, of), name, value)


def reference_problems(field: str, name: str, value: object) -> Check:
    """The problems of an option's value that says where the value is to be read."""
    if not isinstance(value, str):
        return
    if value.startswith(FILE) and name.endswith(".location"):
        yield Problem(field, value, f"is the path of a file itself; write {value.removeprefix(FILE)}")
    elif value.startswith(FILE) and not value.removeprefix(FILE).startswith("/"):
        yield Problem(field, value, "is not an absolute path, and workers have working directories of their own; write file:/path")
    elif value.startswith(VARIABLE) and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value.removeprefix(VARIABLE)):
        yield Problem(field, value, "is not the name of an environment variable; write env:NAME")
