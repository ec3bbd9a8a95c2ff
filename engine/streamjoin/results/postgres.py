"""Snapshots in PostgreSQL: a table for each join, with a B-tree by key and snapshot, for ranges of keys.

A snapshot is one transaction: its row in the table of snapshots, which says to a second attempt that there is nothing to do, and its
results by COPY. So it is visible whole or not at all, and once; rows need no staging table, as nobody sees them before the commit. Of two
drivers that publish the same, the second waits for the first one's transaction, and finds the row.

Always holds: a column has the type that the output's has, or the snapshot is refused; a column that the output has got since is added, and
one that it has no more stays, with nulls.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pyarrow as pa
from psycopg import sql

from streamjoin.io.postgres_client import Client, Connection, csv_of, exists, remedy_for, told_by, type_of
from streamjoin.io.postgres_sink import Place
from streamjoin.results.reader import KEY, SNAPSHOT, Snapshot
from streamjoin.results.store import StoreError

CHECKPOINT = "_checkpoint"
SNAPSHOTS = "_snapshots"
"""How the name of the table of snapshots ends."""


class PostgresStore:
    """See the module and :class:`streamjoin.results.store.SnapshotStore`."""

    def __init__(self, place: Place, checkpoint: str) -> None:
        """``checkpoint``: its identity, as identifiers of another one's snapshots begin at 0, too."""
        self._place, self._checkpoint = place, checkpoint
        self._client = Client(place, StoreError, self._explained)
        self._table = sql.Identifier(place.namespace, place.table)
        self._snapshots = sql.Identifier(place.namespace, place.table + SNAPSHOTS)

    def publish(self, snapshot: Snapshot, rows: Iterator[pa.RecordBatch]) -> None:
        def once(connection: Connection) -> None:
            first = next(rows)
            if self._client.prepared is None or not self._client.prepared.equals(first.schema):
                self._prepare(connection, first.schema)
                self._client.prepared = first.schema
            with connection.transaction():
                if self._insert(connection, snapshot):
                    self._copy(connection, first, rows)

        self._client.asked(once)

    def let_go(self, committed_before: float) -> int:
        def once(connection: Connection) -> int:
            if not exists(connection, self._snapshots):
                return 0
            with connection.transaction():
                query = sql.SQL("DELETE FROM {} WHERE checkpoint = %s AND committed_at < %s RETURNING id").format(self._snapshots)
                before = datetime.fromtimestamp(committed_before, UTC)
                gone = [number for (number,) in connection.execute(query, [self._checkpoint, before])]
                query = sql.SQL("DELETE FROM {} WHERE {} = %s AND {} = ANY(%s)").format(
                    self._table, sql.Identifier(CHECKPOINT), sql.Identifier(SNAPSHOT)
                )
                connection.execute(query, [self._checkpoint, gone])
            return len(gone)

        return self._client.asked(once)

    def close(self) -> None:
        self._client.close()

    def _explained(self, error: psycopg.Error) -> Exception:
        """What an error of the server is for the store."""
        text = told_by(error)
        if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
            return StoreError(f"{self._place}: cannot be reached ({text}); see whether it is up, and whether its options fit it")
        return StoreError(f"{self._place}: refuses ({text}); {remedy_for(error, 'postgres')}")

    def _prepare(self, connection: Connection, schema: pa.Schema) -> None:
        """Have tables with these columns. Several drivers may do so at once."""
        with connection.transaction():
            self._client.lock(connection)
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (checkpoint text, id bigint, epoch bigint NOT NULL, committed_at timestamptz NOT NULL,"
                    " rows bigint NOT NULL, marks text[] NOT NULL, PRIMARY KEY (checkpoint, id))"
                ).format(self._snapshots)
            )
            connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ({} text NOT NULL)").format(self._table, sql.Identifier(CHECKPOINT)))
            has: dict[str, str] = dict(
                connection.execute(
                    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
                    " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                    [self._table.as_string(connection)],
                ).fetchall()
            )
            for column in schema:
                wanted = type_of(column.type)
                if column.name not in has:
                    # by bytes, as the sorted files are
                    collation = sql.SQL(' COLLATE "C"' if column.name == KEY and wanted == "text" else "")
                    connection.execute(
                        sql.SQL("ALTER TABLE {} ADD COLUMN {} {}{}").format(
                            self._table, sql.Identifier(column.name), sql.SQL(wanted), collation  # type: ignore[arg-type, unused-ignore]
                        )
                    )  # fmt: skip
                elif has[column.name] != wanted:
                    remedy = "give postgres.table another name, or the column in output.select"
                    raise StoreError(f"{self._place}: column {column.name} is {has[column.name]}, and results have {wanted}; {remedy}")
            for columns in ((KEY, SNAPSHOT), (CHECKPOINT, SNAPSHOT)):
                connection.execute(
                    sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} ({})").format(
                        sql.Identifier(f"{self._place.table}{columns[0]}"), self._table, sql.SQL(", ").join(map(sql.Identifier, columns))
                    )
                )

    def _insert(self, connection: Connection, snapshot: Snapshot) -> bool:
        """Whether the snapshot was not there."""
        query = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING").format(self._snapshots)
        at = datetime.fromtimestamp(snapshot.committed_at, UTC)
        marks = [mark.replace("\0", "\ufffd") for mark in snapshot.marks]
        values = [self._checkpoint, snapshot.id, snapshot.epoch, at, snapshot.rows, marks]
        return connection.execute(query, values).rowcount == 1

    def _copy(self, connection: Connection, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> None:
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in (CHECKPOINT, *first.schema.names))
        with connection.cursor().copy(sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(self._table, columns)) as copy:
            copy.write(self._csv(first))
            for batch in others:
                copy.write(self._csv(batch))

    def _csv(self, batch: pa.RecordBatch) -> bytes:
        checkpoint = pa.repeat(self._checkpoint, batch.num_rows)
        return csv_of(pa.table([checkpoint, *batch.columns], names=[CHECKPOINT, *batch.schema.names]))
