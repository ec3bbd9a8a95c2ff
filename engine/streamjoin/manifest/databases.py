"""Names and options of databases, which sinks and stores of snapshots share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, StringConstraints

from streamjoin.manifest.checks import Check
from streamjoin.manifest.options import option_field, reference_problems
from streamjoin.manifest.problem import Problem

Port = Annotated[int, Field(ge=1, le=65535)]
DatabaseName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
TableName = Annotated[str, StringConstraints(min_length=1, max_length=36, pattern=r"^[a-z][a-z0-9_]*$")]
"""Short enough for Cassandra's 48 with what is added to it."""

_LIBPQ: Mapping[str, str] = {
    "host": "is host here; remove it",
    "hostaddr": "is host here; remove it",
    "port": "is port here; remove it",
    "dbname": "is database here; remove it",
    "connect_timeout": "is timeout here; remove it",
    "options": "would change how values are read; remove it",
    "client_encoding": "is utf8, as results are; remove it",
}


def libpq_problems(field: str, options: Mapping[str, object]) -> Check:
    """The problems of libpq's options at ``field``."""
    for name, value in options.items():
        here = option_field(field, name)
        if name in _LIBPQ:
            yield Problem(here, value, _LIBPQ[name])
        else:
            yield from reference_problems(here, name, value)
