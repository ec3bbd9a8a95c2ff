"""Stores of snapshots from the manifest's models. Clients of databases are imported when the first snapshot is to be stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from streamjoin.manifest.field_types import Setting
from streamjoin.manifest.snapshots import CassandraStore, PostgresStore
from streamjoin.results.store import SnapshotStore

SECOND = 1_000_000
LONGEST_TABLE = 36


def opener(
    model: PostgresStore | CassandraStore, *, query: str, join: str, checkpoint: str, keep_seconds: float | None, field: str
) -> Callable[[], SnapshotStore]:
    """Makes the store of a join's snapshots, which asks nothing of its servers yet.

    ``query``: the resource's name; ``checkpoint``: the checkpoint's identity; ``field``: where the model is in the manifest.
    """
    table = model.table or table_of(query, join)
    timeout, options = model.timeout.micros / SECOND, _texts(model.options)
    if isinstance(model, PostgresStore):
        postgres, where = model, f"{field}.postgres.options"

        def open_postgres() -> SnapshotStore:
            from streamjoin.results import postgres as module

            return module.PostgresStore(
                module.PostgresConfig(
                    *(postgres.host, postgres.port, postgres.database, postgres.namespace, table, checkpoint, timeout, options, where)
                )
            )

        return open_postgres
    cassandra = model

    def open_cassandra() -> SnapshotStore:
        from streamjoin.results import cassandra as module

        return module.CassandraStore(
            module.CassandraConfig(
                hosts=tuple(host.strip() for host in cassandra.hosts.split(",")),
                port=cassandra.port,
                keyspace=cassandra.keyspace,
                table=table,
                checkpoint=checkpoint,
                consistency=cassandra.consistency,
                datacenter=cassandra.datacenter,
                keep_seconds=keep_seconds,
                timeout_seconds=timeout,
                options=options,
                where=f"{field}.cassandra.options",
            )
        )

    return open_cassandra


def table_of(query: str, join: str) -> str:
    """The table's name where the manifest gives none."""
    name = re.sub(r"[^a-z0-9_]", "_", f"{query}_{join}".lower())
    return name[:LONGEST_TABLE]


def _texts(options: Mapping[str, Setting]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
