"""One query, from its text to its rows.

Phases: the text is read; the commit is found; each relation that it names is read as far as it may matter; DuckDB answers over that. What
is read is mapped, fetched or not there by the time DuckDB begins: a block that the driver has removed meanwhile is noticed before there is
any row, and everything begins again on the newer commit.

Always holds: DuckDB sees these relations and nothing else: no file, no network, no extension, and no setting that a query could change.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from streamjoin.query.catalog import Catalog
from streamjoin.query.commit import Asked, commit_of, gone
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.held import held_streams
from streamjoin.query.messages import Limits
from streamjoin.query.relation import Relation, Rows, Wanted
from streamjoin.query.results import JoinResults
from streamjoin.query.statement import Statement
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.storage import Missing, Storage, StorageError

ATTEMPTS = 5
"""The number of commits on which a query is tried, if the driver removes what it reads."""
AGAIN_SECONDS = 0.05
ANY_EPOCH = 2**62
"""Whatever is stored was committed by then."""
BATCH_ROWS = 65_536
_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
    pa.timestamp("us"): "TIMESTAMP",
}
"""Types of columns whose constants are understood, as DuckDB calls them; and decimals."""
_SETTINGS = (
    "TimeZone = 'UTC'",
    "temp_directory = ''",  # or what does not fit in memory would fill the disk
    "autoload_known_extensions = false",
    "autoinstall_known_extensions = false",
    "python_enable_replacements = false",  # a variable of this program is no relation
    "enable_external_access = false",
)
_INEXACT = ("FLOAT", "DOUBLE")


@dataclass
class Answer:
    """A query's rows, as they come. ``rows`` and ``is_cut`` are known once all have."""

    epoch: int
    committed: str
    """When, in ISO 8601."""
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    read: dict[str, Rows]
    """By relation."""
    rows: int = 0
    is_cut: bool = False
    """Whether there are more rows than the limit."""
    is_last: bool = False
    """The join has ended: later commits have no other results."""

    @property
    def snapshot(self) -> int:
        """The last one whose results were asked for; -1: none."""
        return max((rows.snapshot for rows in self.read.values() if rows.snapshot is not None), default=-1)


class Stop:
    """Lets another thread end a query, at any time: who asked gets a KeyboardInterrupt."""

    def __init__(self) -> None:
        self._lock, self._event = threading.Lock(), threading.Event()
        self._database: duckdb.DuckDBPyConnection | None = None
        self.is_asked = False

    def ask(self) -> None:
        with self._lock:
            self.is_asked = True
            self._event.set()
            if self._database is not None:
                with contextlib.suppress(duckdb.Error):
                    self._database.interrupt()

    def ask_between(self) -> None:
        """Let what is being answered be answered; the next :meth:`wait` ends."""
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Until it is asked to stop, at most so long. Raises KeyboardInterrupt where it is."""
        if self._event.wait(seconds):
            raise KeyboardInterrupt

    def watch(self, database: duckdb.DuckDBPyConnection | None) -> None:
        """Set what is to be stopped from now on; None: nothing."""
        with self._lock:
            self._database = database


@contextlib.contextmanager
def asked(
    storage: Storage,
    catalog: Catalog,
    text: str,
    limits: Limits,
    stop: Stop | None = None,
    *,
    after: int | None = None,
    results_of: str | None = None,
) -> Iterator[Answer]:
    """The answer to a query, to be taken within. Raises QueryError, here and as rows are taken, and KeyboardInterrupt.

    ``after``: of the results of one join, those of later snapshots than this alone. ``results_of``: a join whose stored snapshots are all
    that there is, whatever is committed.
    """
    statement = Statement.parse(text)
    with _database(limits) as database, _Clock(limits.seconds, stop or Stop(), database) as clock:
        with _explained(clock, limits):
            checkpoint, relations, read = _prepared(storage, catalog, statement, limits, database, clock.check, after, results_of)
        with _explained(clock, limits, [relation for relation in relations if relation.name in read]):
            reader = database.sql(statement.sql).to_arrow_reader(BATCH_ROWS)
            at = checkpoint.committed_at
            committed = "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
            answer = Answer(checkpoint.epoch, committed, reader.schema, iter(()), read, is_last=checkpoint.is_over)
        answer.batches = _taken(answer, reader, limits, clock)
        yield answer


def _prepared(
    storage: Storage,
    catalog: Catalog,
    statement: Statement,
    limits: Limits,
    database: duckdb.DuckDBPyConnection,
    check: Callable[[], None],
    after: int | None,
    results_of: str | None,
) -> tuple[Checkpoint, Sequence[Relation], dict[str, Rows]]:
    """Reads what the query asks for of one commit, and shows it to DuckDB. Returns the commit, all its relations, and what was read."""
    of = _asked_of(statement, catalog)
    for attempt in range(1, ATTEMPTS + 1):
        check()
        relations: Sequence[Relation]
        if results_of is None:
            checkpoint = commit_of(storage, statement.as_of, of)
            relations = relations_of(catalog, checkpoint, storage, after)
        else:
            checkpoint = Checkpoint(epoch=ANY_EPOCH)
            relations = [JoinResults(each, checkpoint, storage) for each in catalog.results if each.join == results_of]
        by_name = {relation.name: relation for relation in relations}
        schemas = {name: relation.schema for name, relation in by_name.items()}
        wanted = statement.wanted(schemas, lambda sql, type_: _constant(database, sql, type_))
        if after is not None and sum(isinstance(by_name[name], JoinResults) for name in wanted) != 1:
            kept = [relation.name for relation in relations if isinstance(relation, JoinResults)]
            there = f"there are {', '.join(kept)}" if kept else "there is none: give joins[].output.snapshots"
            raise QueryError(Why.WRONG, f"to follow results, FROM must name one join whose results are kept; {there}")
        room = limits.fetch_bytes
        read: dict[str, Rows] = {}
        try:
            for name, of_relation in wanted.items():
                read[name] = by_name[name].read(of_relation, room, check)
                room -= read[name].nbytes
        except Missing as missing:
            if statement.as_of is not None:
                raise gone(storage, statement.as_of, of) from missing
            if attempt == ATTEMPTS:
                raise QueryError(
                    Why.STORAGE, f"{missing}: the data of {ATTEMPTS} commits was removed before it was read; ask again, for less"
                ) from missing
            time.sleep(AGAIN_SECONDS * attempt)
            continue
        _show(database, read, wanted)
        return checkpoint, relations, read
    raise AssertionError("the last attempt returns or raises")


def _asked_of(statement: Statement, catalog: Catalog) -> Asked:
    """What a query reads, by the names in it."""
    streams = {stream.name.casefold() for stream in catalog.streams}
    joins = tuple(each.join for each in catalog.results if each.join.casefold() in statement.names - streams)
    return Asked(not joins or bool(statement.names & streams), joins)


def relations_of(catalog: Catalog, checkpoint: Checkpoint, storage: Storage, after: int | None = None) -> list[Relation]:
    """What a query may name: the streams, and joins whose results are kept, unless a stream has that name."""
    streams = held_streams(catalog, checkpoint, storage)
    taken = {stream.name.casefold() for stream in streams}
    return [*streams, *(JoinResults(each, checkpoint, storage, after) for each in catalog.results if each.join.casefold() not in taken)]


def _show(database: duckdb.DuckDBPyConnection, read: dict[str, Rows], wanted: dict[str, Wanted]) -> None:
    """Gives the database a view of each relation, and no way to anything else."""
    for number, (name, rows) in enumerate(read.items()):
        source = f"_rows_{number}"
        database.register(source, rows.table)
        columns = ", ".join(map(quoted, wanted[name].columns)) or "1"
        where = "" if rows.where is None else f" WHERE {rows.where}"
        database.execute(f"CREATE VIEW {quoted(name)} AS SELECT {columns} FROM {quoted(source)}{where}")  # noqa: S608 - quoted, or ours
    database.execute("SET lock_configuration = true")


@contextlib.contextmanager
def _database(limits: Limits) -> Iterator[duckdb.DuckDBPyConnection]:
    database = duckdb.connect(":memory:", config={"threads": str(limits.threads), "memory_limit": f"{limits.memory_bytes >> 20}MiB"})
    try:
        for setting in _SETTINGS:  # in this order: the last one forbids the others
            database.execute(f"SET {setting}")
        yield database
    finally:
        database.close()


def _constant(database: duckdb.DuckDBPyConnection, sql: str, type_: pa.DataType) -> pa.Scalar | None:
    """A constant as a value of a column's type; None where a column would be compared with it in another type, or it has no such value."""
    is_decimal = pa.types.is_decimal(type_)
    name = f"DECIMAL({type_.precision},{type_.scale})" if is_decimal else _TYPES.get(type_)
    if name is None:
        return None
    try:
        query = f"SELECT CAST(({sql}) AS {name}) AS v, CAST(({sql}) AS {name}) = ({sql}), typeof(({sql}))"
        row = database.sql(query).to_arrow_table()
    except duckdb.Error:
        return None
    value, (same, of) = row.column(0).chunk(0)[0], (row.column(index)[0].as_py() for index in (1, 2))
    if not same or not value.is_valid or (of == "VARCHAR" and not sql.startswith("'")):
        return None
    if name == "VARCHAR":
        return value if of == "VARCHAR" else None
    if of in _INEXACT and (is_decimal or pa.types.is_integer(type_)):
        return None
    return value.cast(type_) if value.type != type_ else value


def _taken(answer: Answer, reader: pa.RecordBatchReader, limits: Limits, clock: _Clock) -> Iterator[pa.RecordBatch]:
    while True:
        with _explained(clock, limits):
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                clock.check()  # an end that is an interruption would be a part of an answer
                return
            except (pa.ArrowException, OSError) as error:
                raise _of_arrow(error) from error
        if limits.rows is not None and answer.rows + batch.num_rows > limits.rows:
            batch, answer.is_cut = batch.slice(0, limits.rows - answer.rows), True
        answer.rows += batch.num_rows
        if batch.num_rows:
            yield batch
        if answer.is_cut:
            return


def _of_arrow(error: Exception) -> duckdb.Error:
    """DuckDB's own error, which comes through Arrow as a text as soon as rows are taken."""
    text = str(error)
    if "INTERRUPT" in text:
        return duckdb.InterruptException(text)
    return duckdb.OutOfMemoryException(text) if "Out of Memory" in text else duckdb.Error(text)


@contextlib.contextmanager
def _explained(clock: _Clock, limits: Limits, relations: Sequence[Relation] = ()) -> Iterator[None]:
    """Turns errors of DuckDB and of storage into a QueryError. ``relations``: whose columns are told where a name is not one of theirs."""
    try:
        yield
    except RuntimeError as error:  # of DuckDB's, as a signal came, or the time was over
        if "nterrupted" not in str(error):
            raise
        clock.check()
        raise KeyboardInterrupt from error
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        text = f"the query needs more than {limits.memory_bytes >> 20:,} MiB of memory; ask for fewer rows or columns, or allow more"
        raise QueryError(Why.LARGE, text) from error
    except duckdb.PermissionException as error:
        raise QueryError(Why.WRONG, f"{_first_line(error)}; a query reads the join alone, no files and no network") from error
    except duckdb.Error as error:
        clock.check()
        columns = [f"{each.name} has the columns {', '.join(each.schema.names)}" for each in relations]
        text = _first_line(error).split(" Candidate bindings:")[0]
        raise QueryError(Why.WRONG, "; ".join([text, *(columns if isinstance(error, duckdb.BinderException) else ())])) from error
    except StorageError as error:
        raise QueryError(Why.STORAGE, f"{error}; look whether the storage can be reached") from error


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n\nLINE")[0].split())[:500]


def quoted(name: str) -> str:
    """An identifier, as DuckDB has it."""
    return '"' + name.replace('"', '""') + '"'


class _Clock:
    """Stops the database when the time is over."""

    def __init__(self, seconds: float, stop: Stop, database: duckdb.DuckDBPyConnection) -> None:
        self._seconds, self._stop, self._database = seconds, stop, database
        self._is_over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Clock:
        self._stop.watch(self._database)
        self._timer.start()
        return self

    def check(self) -> None:
        """Raises QueryError where the time is over, and KeyboardInterrupt where somebody has asked to stop."""
        if self._is_over:
            raise QueryError(Why.SLOW, f"the query took longer than {self._seconds:g} s; ask for less, or allow more time")
        if self._stop.is_asked:
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._stop.watch(None)

    def _end(self) -> None:
        self._is_over = True
        self._stop.ask()
