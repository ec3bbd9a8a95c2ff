# ruff: noqa: S608 - CQL has no parameters for names, which are quoted here
"""Snapshots in Cassandra: results by key, for equality, and which snapshots there are, written last.

``<table>``: partition key (checkpoint, whether there is a key, key), clustering columns (snapshot, row). So the results of one key lie
together, in the order of snapshots. ``<table>_snapshots``: partition key checkpoint, clustering column id. Nothing is a transaction here:
a result's primary key is its identity, so that writing it again is writing it once; and a reader who asks first which snapshots there are,
and takes results of those alone, sees each of them whole. Results are let go by Cassandra, by a time to live, as nobody could find all of a
snapshot's by their keys.

Always holds: a snapshot is listed only once all of its results have been acknowledged at the level of consistency; a column has the type
that the output's has, or the snapshot is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from cassandra import ConsistencyLevel, DriverException, OperationTimedOut, Unavailable
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.query import PreparedStatement

from streamjoin.io.references import resolved, settings
from streamjoin.results.reader import KEY, ROW, SNAPSHOT, Snapshot
from streamjoin.results.store import StoreError

if TYPE_CHECKING:
    from streamjoin.manifest.snapshots import CassandraStore as Model

CHECKPOINT, HAS_KEY = "_checkpoint", "_has_key"
SNAPSHOTS = "_snapshots"
"""How the name of the table of snapshots ends."""
AT_ONCE = 128
"""The number of writes that are under way at once."""
LEAST_TTL_SECONDS = 1
MOST_TTL_SECONDS = 20 * 365 * 86400
"""Cassandra's own bound: nothing lives longer."""

Answer = TypeVar("Answer")

_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "text",
    pa.binary(): "blob",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "bigint",
    pa.timestamp("us"): "bigint",
    pa.duration("us"): "bigint",
}
"""Times are microseconds since 1970, as Cassandra's own have milliseconds."""
_ABSENT: dict[str, Any] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"), 0),
    "boolean": False,
    "text": "",
    "blob": b"",
    "date": date(1970, 1, 1),
}
"""What stands for a key that there is none of, by type."""


class CassandraStore:
    """See the module and :class:`streamjoin.results.store.SnapshotStore`."""

    def __init__(
        self,
        model: Model,
        table: str,
        checkpoint: str,
        keep_seconds: float | None = None,
        *,
        field: str = "cassandra",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``checkpoint``: its identity, as identifiers of another one's snapshots begin at 0, too. ``field``: the model's, for messages."""
        self._model, self._name, self._checkpoint, self._keep_seconds = model, table, checkpoint, keep_seconds
        self._hosts = [host.strip() for host in model.hosts.split(",")]
        self._where = f"Cassandra at {', '.join(self._hosts)}:{model.port}, table {model.keyspace}.{table}"
        self._field, self._clock = field, clock
        self._cluster: Cluster | None = None
        self._session: Session | None = None
        self._table = f"{_quoted(model.keyspace)}.{_quoted(table)}"
        self._snapshots = f"{_quoted(model.keyspace)}.{_quoted(table + SNAPSHOTS)}"
        self._prepared: pa.Schema | None = None
        self._insert: PreparedStatement | None = None

    def publish(self, snapshot: Snapshot, rows: Iterator[pa.RecordBatch]) -> None:
        def once(session: Session) -> None:
            seconds = self._seconds_to_live(snapshot)
            for batch in rows:
                if self._prepared is None or not self._prepared.equals(batch.schema):
                    self._prepare(session, batch.schema)
                for written, error in execute_concurrent_with_args(
                    session, self._insert, self._values(batch, seconds), concurrency=AT_ONCE, raise_on_first_error=False
                ):
                    if not written:
                        raise error
            columns = "checkpoint, id, epoch, committed_at, rows, marks"
            listed = f"INSERT INTO {self._snapshots} ({columns}) VALUES (%s, %s, %s, %s, %s, %s) USING TTL %s"
            facts = (snapshot.id, snapshot.epoch, snapshot.committed_at, snapshot.rows, list(snapshot.marks))
            values = (self._checkpoint, *facts, seconds)
            session.execute(listed, values)

        self._asked(once)

    def let_go(self, committed_before: float) -> int:
        return 0

    def close(self) -> None:
        cluster, self._cluster, self._session = self._cluster, None, None
        if cluster is not None:
            cluster.shutdown()

    def _asked(self, once: Callable[[Session], Answer]) -> Answer:
        """What ``once`` answers. Raises StoreError; the next call connects anew then."""
        try:
            if self._session is None:
                self._connect()
            return once(self._session)
        except (DriverException, NoHostAvailable, OSError) as error:
            self._prepared = None
            self.close()
            text = " ".join(str(error).split())[:300] or type(error).__name__
            if isinstance(error, NoHostAvailable | OperationTimedOut | Unavailable | OSError):
                remedy = "see whether it is up, and whether its options fit it"
                raise StoreError(f"{self._where}: cannot be reached ({text}); {remedy}") from error
            raise StoreError(f"{self._where}: refuses ({text}); mend what it says") from error

    def _connect(self) -> None:
        model, seconds = self._model, self._model.timeout.micros / 1e6
        options = resolved(settings(model.options), f"{self._field}.options", "the driver runs", StoreError)
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(model.datacenter or "")),
            consistency_level=ConsistencyLevel.name_to_value[model.consistency],
            request_timeout=seconds,
            row_factory=lambda names, rows: rows,
        )
        given: dict[str, Any] = {}
        if "username" in options:
            from cassandra.auth import PlainTextAuthProvider

            given["auth_provider"] = PlainTextAuthProvider(options["username"], options.get("password", ""))
        if "ssl.ca.location" in options:
            import ssl

            given["ssl_context"] = ssl.create_default_context(cafile=options["ssl.ca.location"])
        self._cluster = Cluster(
            self._hosts,
            port=model.port,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=seconds,
            control_connection_timeout=seconds,
            **given,
        )
        self._session = self._cluster.connect()

    def _columns(self, session: Session, table: str) -> dict[str, str]:
        query = "SELECT column_name, type FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"
        return dict(session.execute(query, (self._model.keyspace, table)))

    def _prepare(self, session: Session, schema: pa.Schema) -> None:
        """Have tables with these columns."""
        types = {column.name: type_of(column.type) for column in schema}
        session.execute(
            f"CREATE TABLE IF NOT EXISTS {self._snapshots} (checkpoint text, id bigint, epoch bigint, committed_at double, rows bigint,"
            " marks list<text>, PRIMARY KEY (checkpoint, id))"
        )
        session.execute(
            f'CREATE TABLE IF NOT EXISTS {self._table} ("{CHECKPOINT}" text, "{HAS_KEY}" boolean,'
            f" {', '.join(f'{_quoted(name)} {kind}' for name, kind in types.items())},"
            f' PRIMARY KEY (("{CHECKPOINT}", "{HAS_KEY}", "{KEY}"), "{SNAPSHOT}", "{ROW}"))'
        )
        has = self._columns(session, self._name)
        for name, kind in types.items():
            if name not in has:
                session.execute(f"ALTER TABLE {self._table} ADD IF NOT EXISTS {_quoted(name)} {kind}")
            elif has[name] != kind:
                remedy = "give cassandra.table another name, or the column in output.select"
                raise StoreError(f"{self._where}: column {name} is {has[name]}, and results have {kind}; {remedy}")
        names = [CHECKPOINT, HAS_KEY, *types]
        self._insert = session.prepare(
            f"INSERT INTO {self._table} ({', '.join(map(_quoted, names))}) VALUES ({', '.join('?' * len(names))}) USING TTL ?"
        )
        self._prepared = schema

    def _values(self, batch: pa.RecordBatch, seconds: int) -> Iterator[tuple[Any, ...]]:
        absent = _ABSENT[type_of(batch.schema.field(KEY).type)]
        at = batch.schema.get_field_index(KEY)
        for row in zip(*(map(_plain, column.to_pylist()) for column in batch.columns), strict=True):
            has_key = row[at] is not None
            yield (self._checkpoint, has_key, *row[:at], row[at] if has_key else absent, *row[at + 1 :], seconds)

    def _seconds_to_live(self, snapshot: Snapshot) -> int:
        """0: for good."""
        if self._keep_seconds is None:
            return 0
        left = snapshot.committed_at + self._keep_seconds - self._clock()
        return max(LEAST_TTL_SECONDS, min(MOST_TTL_SECONDS, round(left)))


def type_of(kind: pa.DataType) -> str:
    """Cassandra's type of a column's values."""
    return "decimal" if pa.types.is_decimal(kind) else _TYPES[kind]


def _plain(value: Any) -> Any:
    """A value as it is written."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return value // timedelta(microseconds=1) if isinstance(value, timedelta) else value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
