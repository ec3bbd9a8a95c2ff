"""A Delta table's log, as the driver of a sink sees it: made when missing, checked, appended to, compacted. By ``deltalake``.

Always holds: a table that is opened can take the sink's files as they are: its columns have the output's types, it is partitioned by the
sink's columns, and its protocol asks nothing of writers that is not done here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from streamjoin.io.base import SinkError, Staged, UnavailableError
from streamjoin.io.compacting import Compactor
from streamjoin.io.delta_damage import LOG
from streamjoin.io.delta_sink import DeltaSinkConfig
from streamjoin.io.table_files import Publication, TableFiles, stored_schema
from streamjoin.location import is_url
from streamjoin.state import durable
from streamjoin.state.storage import ObjectStorage

if TYPE_CHECKING:
    from streamjoin.manifest.connectors.delta import DeltaSink as Model

ATTEMPTS = 10
"""The number of attempts at a transaction, if others change the table meanwhile; deltalake itself tries each of these several times."""
PAUSE_SECONDS = 0.05
KNOWN_FEATURES = {
    *("appendOnly", "changeDataFeed", "deletionVectors", "domainMetadata"),
    *("invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
}
"""What a table's protocol may ask of writers: nothing of these is for who only appends to a table without invariants."""

_log = logging.getLogger("streamjoin.delta")


def table_uri(root: str) -> str:
    """How ``deltalake`` is told of a place, as ``location`` writes it, whose text is literal."""
    if not is_url(root):
        return Path(os.path.abspath(root)).as_uri()
    head, _, path = root.partition("://")
    return f"{head}://{quote(path, safe='/@:')}"


class DeltaLog:
    """See the module. For one thread, but for the compaction, which has its own."""

    def __init__(self, config: DeltaSinkConfig, files: TableFiles) -> None:
        self.config = config
        self._files = files
        self._uri = table_uri(config.path)
        self._table: DeltaTable | None = None
        self.compactor = Compactor(config.compaction, self._compact)

    def open(self) -> None:
        """Have the newest version of the table, which is made when missing. Raises SinkError, UnavailableError, StorageError."""
        if self._table is not None:
            with self._explained("read"):
                self._table.update_incremental()
            return
        if is_url(self.config.path):
            ObjectStorage(self.config.path).list(f"{LOG}/_")  # says better what is wrong with a store
        with self._explained("open"):
            table = self._made()
        self._check(table)
        self._table = table
        self.compactor.found(lambda: self._sizes(table))

    def has(self, publication: Publication) -> bool:
        """Whether the table has it, or a later one of its checkpoint."""
        assert self._table is not None
        with self._explained("read"):
            version = self._table.transaction_version(_application(publication))
        return version is not None and version >= publication.number

    def append(self, publication: Publication, staged: Sequence[Staged]) -> None:
        """Add files that are there under their final names, in one transaction. Raises SinkError, UnavailableError."""
        assert self._table is not None
        table = self._table
        actions: list[AddAction | RemoveAction] = [_action(each) for each in staged]
        properties = CommitProperties(
            app_transactions=[Transaction(_application(publication), publication.number)],
            custom_metadata={"userMetadata": f"streamjoin {self.config.query} epoch {publication.epoch}".replace("  ", " ")},
        )
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._explained("commit to"):
                    table.create_write_transaction(
                        actions, "append", table.schema(), list(self._files.partition_by), commit_properties=properties
                    )
                break
            except _Conflict as conflict:
                self.open()
                if self.has(publication):  # another driver's transaction, of the same results
                    return
                self._check(table)
                if attempt == ATTEMPTS:
                    message = f"others changed it each time; its own writers conflict with appends? ({conflict})"
                    raise UnavailableError(f"delta.path: {self.config.path}: {message}") from conflict
                time.sleep(PAUSE_SECONDS * attempt * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret about it
        self.open()
        self._flush(table.version())
        self.compactor.added(len(staged))

    def _compact(self, target_bytes: int) -> None:
        """One transaction, which changes no data; whoever reads an older version goes on reading the files that it replaces."""
        try:
            table = DeltaTable(self._uri)
            done = table.optimize.compact(target_size=target_bytes)
            self._flush(table.version())
            _log.info("%s: %d files became %d", self.config.path, done["numFilesRemoved"], done["numFilesAdded"])
        except Exception as error:  # the table is as it was; the next time is after as many files again
            _log.warning("%s: could not be compacted (%s)", self.config.path, brief(error))

    def _made(self) -> DeltaTable:
        with contextlib.suppress(TableNotFoundError):
            return DeltaTable(self._uri)
        if not is_url(self.config.path):
            root = Path(self.config.path)
            durable.make_directory(root, root)
        try:
            made = DeltaTable.create(self._uri, self._files.stored, mode="error", partition_by=list(self._files.partition_by))
        except DeltaError:  # somebody else has made it just now
            return DeltaTable(self._uri)
        self._flush(made.version())
        return made

    def _check(self, table: DeltaTable) -> None:
        """Raises SinkError where the table cannot take the sink's files."""
        where = f"delta.path: {self.config.path}"
        has = list(table.metadata().partition_columns)
        if has != list(self._files.partition_by):
            given, found = (", ".join(names) or "nothing" for names in (self._files.partition_by, has))
            remedy = f"which is partitioned by {found}; give that, or another path"
            raise SinkError(f"delta.partitionBy: {given} does not fit {self.config.path}, {remedy}")
        wanted = {field.name: field for field in DeltaSchema.from_arrow(self._files.stored).fields}
        fields = {field.name: field for field in table.schema().fields}
        for name, field in wanted.items():
            if name not in fields:
                remedy = "add it to the table (ALTER TABLE ... ADD COLUMNS), remove it from output.select, or give another path"
                raise SinkError(f"{where}: has no column {name} of type {_type(field)}, and results have; {remedy}")
            if fields[name].type != field.type:
                remedy = f"write CAST(... AS {_type(fields[name])}) AS {name} in output.select, or give another path"
                raise SinkError(f"{where}: column {name} is {_type(fields[name])}, and results have {_type(field)}; {remedy}")
        for name, field in fields.items():
            if not field.nullable:
                remedy = "drop NOT NULL (ALTER TABLE ... ALTER COLUMN), or give another path"
                raise SinkError(f"{where}: column {name} is NOT NULL, and results may have nulls; {remedy}")
            asks = [key for key in field.metadata if key in _RULES]
            if asks:
                raise SinkError(f"{where}: column {name} has {asks[0]}, which results are not checked for; remove it, or give another path")
        unknown = sorted(set(table.protocol().writer_features or ()) - KNOWN_FEATURES)
        if unknown or table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            what = ", ".join(unknown) or "columnMapping"
            raise SinkError(f"{where}: asks writers for {what}, which is not supported here; give the path of a table that does not")
        checks = [key for key in table.metadata().configuration if key.startswith("delta.constraints.")]
        if checks:
            raise SinkError(f"{where}: has {checks[0]}, which results are not checked for; drop the constraint, or give another path")

    def _sizes(self, table: DeltaTable) -> list[tuple[tuple[str, ...], int]]:
        """The partition and the bytes of each file. O(files)."""
        actions: dict[str, list[Any]] = _columns(table.get_add_actions(flatten=True))
        partitions = [actions[f"partition.{name}"] for name in self._files.partition_by]
        return [(tuple(str(column[row]) for column in partitions), size) for row, size in enumerate(actions["size_bytes"])]

    def _flush(self, version: int) -> None:
        """A transaction survives a power loss once the sink has said that results are published."""
        if is_url(self.config.path):
            return
        for ending in ("json", "checkpoint.parquet"):
            with contextlib.suppress(FileNotFoundError):
                durable.flush_file(Path(self.config.path) / LOG / f"{version:020d}.{ending}")
        durable.flush_directory(Path(self.config.path))

    @contextlib.contextmanager
    def _explained(self, what: str) -> Any:
        """Errors of ``deltalake`` as the sink's own."""
        where = f"delta.path: {self.config.path}: cannot {what} the table"
        try:
            yield
        except CommitFailedError as error:
            raise _Conflict(brief(error)) from error
        except DeltaError as error:
            raise SinkError(f"{where} ({brief(error)}); mend it, or give another path") from error
        except OSError as error:
            if is_url(self.config.path):
                raise UnavailableError(f"{where} ({brief(error)}); check the network, and the store") from error
            raise SinkError(f"{where} ({brief(error)}); correct the path or the access to it") from error


class _Conflict(Exception):  # noqa: N818 - the transaction is tried again
    """Others changed the table in a way that a transaction did not know of."""


_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


def _application(publication: Publication) -> str:
    """By the checkpoint alone: a join may be renamed, and has the table for itself."""
    return f"streamjoin-{publication.identity}"


def _action(staged: Staged) -> AddAction:
    described = json.loads(staged.text)
    stats = json.dumps(described["stats"], ensure_ascii=False, separators=(",", ":"))
    return AddAction(staged.final, staged.nbytes, described["partition"], round(time.time() * 1000), True, stats)


def _columns(table: Any) -> dict[str, list[Any]]:
    import pyarrow as pa

    return dict(pa.table(table).to_pydict())


def _type(field: Any) -> str:
    """A Delta column's type in SQL's words."""
    text = str(getattr(field.type, "type", field.type))
    return {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}.get(text, text.upper())


def brief(error: BaseException) -> str:
    """On one line, without the colours and the stack."""
    return " ".join(re.sub(r"\x1b\[\d*m|↳", "", re.split(r"\n +0:", str(error), maxsplit=1)[0]).split())[:500]


def results(model: Model, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the table's newest version; another program's rows in it, too."""
    uri = table_uri(model.path)
    if not DeltaTable.is_deltatable(uri):
        return iter(())
    found = pa.RecordBatchReader.from_stream(DeltaTable(uri).scan(columns=schema.names))
    return (batch.cast(stored_schema(schema)).cast(schema) for batch in found)
