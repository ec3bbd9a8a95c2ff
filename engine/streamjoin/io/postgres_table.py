"""A table of PostgreSQL, as the driver of a sink sees it: made when missing, checked, and changed in one transaction for each epoch.

Always holds: rows go through a temporary table, so that of several with one key the last of an epoch counts, and the statement that
changes the table meets each key once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import psycopg
import pyarrow as pa
from psycopg import sql

from streamjoin.io.base import SinkError, UnavailableError
from streamjoin.io.ownership import Owner, require_known
from streamjoin.io.postgres_client import Client, Connection, csv_of, exists, remedy_for, told_by, type_of, whole_text
from streamjoin.io.postgres_sink import PostgresSinkConfig
from streamjoin.io.refused import Refused
from streamjoin.io.sinks import json_texts
from streamjoin.io.table_files import columns_named

PUBLISHED = "_published"
"""How the name of the table ends that says what is published, by checkpoint."""
ORDER = "_streamjoin_order"
NULLS_ALIKE = 150000
"""From this version of the server on, a unique constraint may take nulls for equal; before it, keys have no nulls."""

Batches: TypeAlias = Callable[[], Iterable[pa.RecordBatch]]
OF_A_ROW = ("22", "23", "44", "54", "P0")
"""Classes of SQLSTATE that single rows may be to blame for: values that a type cannot have, constraints, a view's check, limits of the
server, such as the length of an indexed value, and what triggers raise."""
OF_A_ROW_REMEDY = "change the table so that it takes such rows, and start again; or let onBad of the output be deadLetter"


class PostgresTable:
    """See the module. For one thread."""

    def __init__(self, config: PostgresSinkConfig, schema: pa.Schema) -> None:
        self._place, self._schema = config.place, schema
        self._key = columns_named(schema, config.key)
        self._table = sql.Identifier(self._place.namespace, self._place.table)
        self._published = sql.Identifier(self._place.namespace, self._place.table + PUBLISHED)
        self._client = Client(self._place, SinkError, self._explained)

    def prepare(self) -> None:
        """Have a table that takes the results. Raises SinkError, UnavailableError."""
        self._client.asked(self._prepare)

    def require_owner(self, owner: Owner) -> None:
        """Raises OwnedElsewhere where the table has results of other checkpoints alone, or lacks this one's; and as :meth:`prepare`."""

        def owners(connection: Connection) -> list[str]:
            if self._client.prepared is None:
                self._prepare(connection)
            found = connection.execute(sql.SQL("SELECT checkpoint FROM {}").format(self._published)).fetchall()
            return [str(checkpoint) for (checkpoint,) in found]

        found = self._client.asked(owners)
        removal = f"remove the table and {self._place.table}{PUBLISHED}, or the latter's rows where this one is to take it over"
        require_known(str(self._place), "postgres.host", owner, found, removal)

    def apply(self, checkpoint: str, number: int, batches: Batches, refused: Refused | None = None) -> None:
        """Insert or update these rows, unless this publication of the checkpoint, or a later one, was applied.

        ``batches`` gives them, in order, each time it is called. ``refused`` takes rows that the table refuses; None: they are an error.
        Raises SinkError, UnavailableError, StorageError.
        """

        def once(connection: Connection) -> None:
            if self._client.prepared is None:
                self._prepare(connection)
            if refused is None or not refused.letters:
                try:
                    return self._publish(connection, checkpoint, number, lambda: self._put(connection, batches()))
                except psycopg.Error as error:
                    if refused is None or connection.broken or not _is_of_a_row(error):
                        raise
            return self._publish(connection, checkpoint, number, lambda: self._put_by_halves(connection, batches(), refused))

        self._client.asked(once)

    def _publish(self, connection: Connection, checkpoint: str, number: int, put: Callable[[], None]) -> None:
        """One transaction, which puts rows and notes the publication, unless it or a later one is noted."""
        with connection.transaction():
            noted = sql.SQL(
                "INSERT INTO {0} VALUES (%s, %s) ON CONFLICT (checkpoint) DO UPDATE SET number = EXCLUDED.number WHERE {0}.number < %s"
            ).format(self._published)
            # Another driver that publishes the same waits here for this one's transaction.
            if connection.execute(noted, [checkpoint, number, number]).rowcount == 1:
                put()

    def _put(self, connection: Connection, batches: Iterable[pa.RecordBatch]) -> None:
        self._copy(connection, batches)
        self._upsert(connection)

    def _refusal(self, connection: Connection, batches: Iterable[pa.RecordBatch]) -> psycopg.Error | None:
        """Puts rows, or says why the table does not take all of them, and puts none."""
        try:
            with connection.transaction():
                self._put(connection, batches)
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                connection.execute("DROP TABLE _staged")
        except psycopg.Error as error:
            if connection.broken or not _is_of_a_row(error):
                raise
            return error
        return None

    def _put_by_halves(self, connection: Connection, batches: Iterable[pa.RecordBatch], refused: Refused) -> None:
        """Put the rows that the table takes, in order; the others are letters. O(n log n) for each of these.

        They are kept also where this fails: the next attempt need not find them again.
        """
        rows = pa.Table.from_batches(batches, self._schema)
        known = sorted(refused.letters)
        parts = list(zip([0, *(row + 1 for row in known)], [*known, rows.num_rows], strict=True))[::-1]
        try:
            while parts:
                first, end = parts.pop()
                refusal = self._refusal(connection, rows.slice(first, end - first).to_batches()) if first < end else None
                if refusal is not None and end - first > 1:
                    middle = (first + end) // 2
                    parts += [(middle, end), (first, middle)]
                elif refusal is not None:
                    (text,) = json_texts(rows.slice(first, 1).combine_chunks().to_batches()[0]).to_pylist()
                    refused.add(first, f"result {first} of {refused.name}", whole_text(refusal), text)
        finally:
            refused.keep()

    def _copy(self, connection: Connection, batches: Iterable[pa.RecordBatch]) -> None:
        columns = sql.SQL(", ").join(map(sql.Identifier, self._schema.names))
        make = "CREATE TEMPORARY TABLE _staged ON COMMIT DROP AS SELECT {}, NULL::bigint AS {} FROM {} WITH NO DATA"
        connection.execute(sql.SQL(make).format(columns, sql.Identifier(ORDER), self._table))
        with connection.cursor().copy(sql.SQL("COPY _staged FROM STDIN (FORMAT csv)")) as copy:
            row = 0
            for batch in batches:
                order = pa.array(range(row, row + batch.num_rows), pa.int64())
                row += batch.num_rows
                copy.write(csv_of(pa.table([*batch.columns, order], names=[*self._schema.names, ORDER])))

    def _upsert(self, connection: Connection) -> None:
        names = list(map(sql.Identifier, self._schema.names))
        key = sql.SQL(", ").join(map(sql.Identifier, self._key))
        others = [name for name in self._schema.names if name not in self._key]
        assignments = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others)
        action = sql.SQL("UPDATE SET {}").format(assignments) if others else sql.SQL("NOTHING")
        connection.execute(
            sql.SQL(
                "INSERT INTO {} ({}) SELECT DISTINCT ON ({}) {} FROM _staged ORDER BY {}, {} DESC ON CONFLICT ({}) DO {}"
            ).format(self._table, sql.SQL(", ").join(names), key, sql.SQL(", ").join(names), key, sql.Identifier(ORDER), key, action)
        )  # fmt: skip

    def _prepare(self, connection: Connection) -> None:
        """Several drivers may do so at once."""
        with connection.transaction():
            self._client.lock(connection)
            columns = [
                sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(type_of(field.type)))  # type: ignore[arg-type, unused-ignore]
                for field in self._schema
            ]
            alike = sql.SQL("NULLS NOT DISTINCT " if connection.info.server_version >= NULLS_ALIKE else "")
            key = sql.SQL(", ").join(map(sql.Identifier, self._key))
            table = sql.SQL("{}, UNIQUE {}({})").format(sql.SQL(", ").join(columns), alike, key)
            for name, parts in ((self._table, table), (self._published, sql.SQL("checkpoint text PRIMARY KEY, number bigint NOT NULL"))):
                # Asked first, as who may not make tables may not say IF NOT EXISTS either.
                if not exists(connection, name):
                    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(name, parts))
            self._check(connection)
        self._client.prepared = self._schema

    def _check(self, connection: Connection) -> None:
        """Raises SinkError where the table cannot take the results."""
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '' FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            [self._table.as_string(connection)],
        ).fetchall()
        has = {name: kind for name, kind, _ in found}
        for field in self._schema:
            wanted = type_of(field.type)
            if field.name not in has:
                remedy = "add it (ALTER TABLE ... ADD COLUMN), remove it from output.select, or give another table"
                raise SinkError(f"{self._place}: has no column {field.name} of type {wanted}, and results have; {remedy}")
            if has[field.name] != wanted:
                remedy = "CAST it in output.select, or give another table"
                raise SinkError(f"{self._place}: column {field.name} is {has[field.name]}, and results have {wanted}; {remedy}")
        needed = [name for name, _, is_needed in found if is_needed and name not in self._schema.names]
        if needed:
            remedy = "give it a default, or another table"
            raise SinkError(f"{self._place}: column {needed[0]} is NOT NULL, and no column of the results; {remedy}")
        unique = connection.execute(
            "SELECT array_agg(attname::text ORDER BY attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid"
            " AND attnum = ANY(indkey) WHERE indrelid = %s::regclass AND indisunique AND indpred IS NULL AND indexprs IS NULL"
            " GROUP BY indexrelid",
            [self._table.as_string(connection)],
        ).fetchall()
        if sorted(self._key) not in [names for (names,) in unique]:
            key = ", ".join(self._key)
            remedy = f"add one (ALTER TABLE ... ADD UNIQUE ({key})), or give another table"
            raise SinkError(f"{self._place}: has no unique constraint on {key}, the key; {remedy}")

    def _explained(self, error: psycopg.Error) -> Exception:
        """What an error of the server is for the sink."""
        text, state = told_by(error), error.sqlstate or ""
        # Without a state there is no answer; 57 and 40: it is shut down, or the transaction met another; 53: no room for now.
        if (isinstance(error, psycopg.OperationalError) and not state) or state[:2] in ("08", "40", "53", "57"):
            remedy = "see whether it is up, and whether its options fit it"
            return UnavailableError(f"{self._place}: does not take results now ({text}); {remedy}")
        remedy = OF_A_ROW_REMEDY if _is_of_a_row(error) else remedy_for(error, "postgres")
        return SinkError(f"{self._place}: refuses ({text}); {remedy}")


def _is_of_a_row(error: psycopg.Error) -> bool:
    return (error.sqlstate or "").startswith(OF_A_ROW)
