"""Stores of snapshots from the manifest's models. Clients of databases are imported when the first snapshot is to be stored."""

from __future__ import annotations

import re
from collections.abc import Callable

from streamjoin.io.postgres_sink import Place
from streamjoin.io.references import settings
from streamjoin.manifest.snapshots import CassandraStore, PostgresStore
from streamjoin.results.store import SnapshotStore

LONGEST_TABLE = 36


def opener(
    model: PostgresStore | CassandraStore, *, query: str, join: str, checkpoint: str, keep_seconds: float | None, field: str
) -> Callable[[], SnapshotStore]:
    """Makes the store of a join's snapshots, which asks nothing of its servers yet.

    ``query``: the resource's name; ``checkpoint``: the checkpoint's identity; ``field``: where the model is in the manifest.
    """
    table = model.table or table_of(query, join)

    def opened() -> SnapshotStore:
        if isinstance(model, PostgresStore):
            from streamjoin.results import postgres

            where = (model.host, model.port, model.database, model.namespace, table)
            place = Place(*where, model.timeout.micros / 1e6, settings(model.options), f"{field}.postgres.options")
            return postgres.PostgresStore(place, checkpoint)
        from streamjoin.results import cassandra

        return cassandra.CassandraStore(model, table, checkpoint, keep_seconds, field=f"{field}.cassandra")

    return opened


def table_of(query: str, join: str) -> str:
    """The table's name where the manifest gives none."""
    name = re.sub(r"[^a-z0-9_]", "_", f"{query}_{join}".lower())
    return name[:LONGEST_TABLE]
