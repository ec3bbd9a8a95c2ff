"""What a store of snapshots must be together: options that are its client's, and not fields of the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from streamjoin.manifest.kafka import option_field, reference_problems, secret_remarks
from streamjoin.manifest.problem import Problem, closest, listed
from streamjoin.manifest.sinks import PostgresSink
from streamjoin.manifest.snapshots import CassandraStore, PostgresStore, SnapshotStore

_POSTGRES: Mapping[str, str] = {
    "host": "is host here; remove it",
    "hostaddr": "is host here; remove it",
    "port": "is port here; remove it",
    "dbname": "is database here; remove it",
    "connect_timeout": "is timeout here; remove it",
    "options": "would change how values are read; remove it",
    "client_encoding": "is utf8, as results are; remove it",
}
_CASSANDRA = ("username", "password", "ssl.ca.location")


def postgres_sink_problems(field: str, sink: PostgresSink | None, columns: Sequence[str]) -> Iterator[Problem]:
    """``columns``: the output's. Raises UnparsedError."""
    if sink is None:
        return
    yield from _options(field, sink)
    known = {name.casefold(): name for name in columns}
    given: set[str] = set()
    for index, name in enumerate(sink.key):
        column = known.get(name.casefold())
        if column is None and columns:
            close = closest(name, columns)
            remedy = f"did you mean {close}?" if close else f"the columns are {listed(columns, 'and')}"
            yield Problem(f"{field}.key[{index}]", name, f"is not a column of the output; {remedy}")
        elif name.casefold() in given:
            yield Problem(f"{field}.key[{index}]", name, "is given twice; remove it")
        given.add(name.casefold())


def postgres_sink_remarks(field: str, sink: PostgresSink | None) -> Iterator[Problem]:
    """Secrets that everybody can read who can read the manifest."""
    for name, value in () if sink is None else sink.options.items():
        yield from secret_remarks(field, name, value)


def store_problems(field: str, given: SnapshotStore) -> Iterator[Problem]:
    """The options of the stores at ``field``. Raises UnparsedError."""
    for kind, store in (("postgres", given.postgres), ("cassandra", given.cassandra)):
        if store is not None:
            yield from _options(f"{field}.{kind}", store)


def _options(field: str, store: PostgresStore | CassandraStore | PostgresSink) -> Iterator[Problem]:
    for name, value in store.options.items():
        here = option_field(field, name)
        if isinstance(store, PostgresStore | PostgresSink) and name in _POSTGRES:
            yield Problem(here, value, _POSTGRES[name])
        elif isinstance(store, CassandraStore) and name not in _CASSANDRA:
            close = closest(name, _CASSANDRA)
            remedy = f"did you mean {close}?" if close else f"they are {listed(_CASSANDRA, 'and')}"
            yield Problem(here, value, f"is not an option of a store of Cassandra; {remedy}")
        elif isinstance(value, str):
            yield from reference_problems(here, name, value)


def store_remarks(field: str, given: SnapshotStore | None) -> Iterator[Problem]:
    """Secrets that everybody can read who can read the manifest."""
    for kind in ("postgres", "cassandra"):
        store = getattr(given, kind, None)
        for name, value in () if store is None else store.options.items():
            yield from secret_remarks(f"{field}.{kind}", name, value)
