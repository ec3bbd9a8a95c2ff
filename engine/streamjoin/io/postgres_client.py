"""A client of PostgreSQL for sinks and stores of results: connections with deadlines, types, and values as COPY takes them."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from streamjoin.io.references import resolved
from streamjoin.io.telling import told, without_values

if TYPE_CHECKING:
    from streamjoin.io.postgres_sink import Place

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Answer = TypeVar("Answer")
MARGIN_SECONDS = 5.0
"""The server itself ends a statement that takes too long; so much later it is not waited for any more."""

_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
    pa.duration("us"): "bigint",
}

_NOT_DATA = frozenset({"08", "0A", "25", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58"})
"""Classes of SQLSTATE whose messages are the server's own, about connections, rights, names, statements and resources."""


class Client:
    """A connection, which is made when it is needed, and anew after an error. For one thread."""

    def __init__(self, place: Place, refusal: type[Exception], explained: Callable[[psycopg.Error], Exception]) -> None:
        """``refusal`` is raised for options that cannot be read, and what is ``explained`` for errors of the server."""
        self.place, self._refusal, self._explained = place, refusal, explained
        self.prepared: pa.Schema | None = None
        """The columns that tables are known to have, for as long as this connection lives."""
        self._connection: Connection | None = None

    def asked(self, once: Callable[[Connection], Answer]) -> Answer:
        """What ``once`` answers. The next call connects anew after an error."""
        place = self.place
        try:
            if self._connection is None:
                self._connection = connected(place, resolved(place.options, place.where, "the driver runs", self._refusal))
            with severed_after(self._connection, place.timeout_seconds + MARGIN_SECONDS):
                return once(self._connection)
        except psycopg.Error as error:
            self.close()
            raise self._explained(error) from error
        except BaseException:
            self.close()
            raise

    def lock(self, connection: Connection) -> None:
        """Until the transaction ends, nobody else makes this table or changes its columns."""
        named = f"{self.place.namespace}.{self.place.table}"
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [named])

    def close(self) -> None:
        connection, self._connection, self.prepared = self._connection, None, None
        if connection is not None:
            connection.close()


def exists(connection: Connection, table: sql.Identifier) -> bool:
    """Whether there is a table of this name."""
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", [table.as_string(connection)]).fetchall() == [(True,)]


def connected(place: Place, options: Mapping[str, str]) -> Connection:
    """A connection whose statements end after the timeout, with UTC. ``options``: others of libpq. Raises psycopg.Error."""
    seconds = max(1, round(place.timeout_seconds))
    own = {
        "host": place.host,
        "port": str(place.port),
        "dbname": place.database,
        "connect_timeout": str(seconds),
        "tcp_user_timeout": str(1000 * seconds),
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "application_name": "streamjoin",
        "client_encoding": "utf8",
    }
    connection = psycopg.connect("", autocommit=True, **{**options, **own})  # type: ignore[arg-type, unused-ignore]
    connection.execute(sql.SQL("SET statement_timeout = {}").format(sql.Literal(1000 * seconds)))
    connection.execute("SET timezone = 'UTC'")
    return connection


@contextlib.contextmanager
def severed_after(connection: Connection, seconds: float) -> Iterator[None]:
    """Break the connection off if this takes so long: a server that hangs would be waited for without end."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:

        def sever() -> None:
            with contextlib.suppress(OSError):  # it is broken already
                end.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, sever)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def type_of(kind: pa.DataType) -> str:
    """PostgreSQL's type of a column's values, as it writes it."""
    return f"numeric({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else _TYPES[kind]


def plain(column: Any) -> Any:
    """The column as CSV can give it to PostgreSQL, whose text has no NUL."""
    if pa.types.is_string(column.type):
        return pc.replace_substring(column, "\0", "\ufffd")
    if pa.types.is_binary(column.type):
        return pa.array([None if value is None else "\\x" + value.hex() for value in column.to_pylist()], pa.string())
    if pa.types.is_duration(column.type):
        return column.cast(pa.int64())
    return column


def whole_text(error: psycopg.Error) -> str:
    """All that an error says, the row too, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def told_by(error: psycopg.Error) -> str:
    """What the server says of an error, without the row: the message alone, as its details quote keys, rows and lines; and of that, but
    for errors that are not about data (``_NOT_DATA``), without what it quotes: functions of users may put rows into it."""
    message, state = error.diag.message_primary, error.sqlstate or ""
    if message is None:
        return told(error) if isinstance(error, psycopg.DataError) else whole_text(error)
    text = message if state[:2] in _NOT_DATA else without_values(message)
    names = {"column": error.diag.column_name, "constraint": error.diag.constraint_name}
    more = [f"{kind} {name}" for kind, name in names.items() if name and name not in text]
    return " ".join(", ".join([text, *more, *([f"SQLSTATE {state}"] if state else [])]).split())


def remedy_for(error: psycopg.Error, where: str) -> str:
    """What to do about a refusal. ``where``: the manifest's field of the server."""
    state = error.sqlstate or ""
    if state.startswith("28"):
        return f"correct user and password in {where}.options, or let the user log in"
    if state.startswith("53"):
        return "give the server more room"
    if state.startswith("42501"):
        return "grant the user CREATE in the schema, and the tables if others own them"
    if state.startswith(("3D", "3F")):
        return f"create it, or correct {where}.database and {where}.schema"
    if state[:2] not in _NOT_DATA:
        return "mend the results or the table: the trace in the log names the row"
    return "mend what it says"


def csv_of(batch: pa.RecordBatch | pa.Table) -> bytes:
    """Rows as ``COPY ... FROM STDIN (FORMAT csv)`` takes them."""
    out = io.BytesIO()
    table = pa.table([plain(column) for column in batch.columns], names=[f"c{number}" for number in range(batch.num_columns)])
    csv.write_csv(table, out, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return out.getvalue()
