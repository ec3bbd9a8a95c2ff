"""A Delta table's log, as the driver of a sink sees it: made when missing, checked, appended to, compacted. By ``deltalake``.

Always holds: a table that is opened can take the sink's files as they are: its columns have the output's types, it is partitioned by the
sink's columns, and its protocol asks nothing of writers that is not done here.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from streamjoin.io.base import SinkError, Staged, UnavailableError
from streamjoin.io.delta_damage import LOG
from streamjoin.io.delta_sink import DeltaSinkConfig
from streamjoin.io.table_files import Publication, TableFiles, stored_schema
from streamjoin.io.table_sink import Conflict, Table, brief
from streamjoin.location import is_url
from streamjoin.state import durable
from streamjoin.state.storage import ObjectStorage

if TYPE_CHECKING:
    from streamjoin.manifest.connectors.delta import DeltaSink as Model

KNOWN_FEATURES = {
    *("appendOnly", "changeDataFeed", "deletionVectors", "domainMetadata"),
    *("invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
}
"""What a table's protocol may ask of writers: nothing of these is for who only appends to a table without invariants."""


def table_uri(root: str) -> str:
    """How ``deltalake`` is told of a place, as ``location`` writes it, whose text is literal."""
    if not is_url(root):
        return Path(os.path.abspath(root)).as_uri()
    head, _, path = root.partition("://")
    return f"{head}://{quote(path, safe='/@:')}"


class DeltaLog(Table):
    """See the module."""

    def __init__(self, config: DeltaSinkConfig, files: TableFiles) -> None:
        super().__init__("delta.path", config.path, files, config.compaction)
        self.config = config
        self._uri = table_uri(config.path)

    def open(self) -> None:
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
        with self._explained("read"):
            version = self._table.transaction_version(_application(publication))
        return version is not None and version >= publication.number

    def _transaction(self, publication: Publication, staged: Sequence[Staged]) -> Callable[[], None]:
        """deltalake itself tries each several times."""
        table = self._table
        actions: list[AddAction | RemoveAction] = [_action(each) for each in staged]
        properties = CommitProperties(
            app_transactions=[Transaction(_application(publication), publication.number)],
            custom_metadata={"userMetadata": f"streamjoin {self.config.query} epoch {publication.epoch}".replace("  ", " ")},
        )

        def once() -> None:
            with self._explained("commit to"):
                table.create_write_transaction(
                    actions, "append", table.schema(), list(self._files.partition_by), commit_properties=properties
                )
            self.open()

        return once

    def _rewritten(self, target_bytes: int) -> tuple[int, int]:
        table = DeltaTable(self._uri)
        done = table.optimize.compact(target_size=target_bytes)
        self._flush(table)
        return done["numFilesRemoved"], done["numFilesAdded"]

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
        self._flush(made)
        return made

    def _check(self, table: DeltaTable) -> None:
        where, fields = self._where, {field.name: field for field in table.schema().fields}
        columns = {name: (_type(field), not field.nullable) for name, field in fields.items()}
        self._require(table.metadata().partition_columns, columns)
        for name, field in fields.items():
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
        actions: dict[str, list[Any]] = pa.table(table.get_add_actions(flatten=True)).to_pydict()
        partitions = [actions[f"partition.{name}"] for name in self._files.partition_by]
        return [(tuple(str(column[row]) for column in partitions), size) for row, size in enumerate(actions["size_bytes"])]

    def _flush(self, table: DeltaTable) -> None:
        if is_url(self.config.path):
            return
        for ending in ("json", "checkpoint.parquet"):
            with contextlib.suppress(FileNotFoundError):
                durable.flush_file(Path(self.config.path) / LOG / f"{table.version():020d}.{ending}")
        durable.flush_directory(Path(self.config.path))

    @contextlib.contextmanager
    def _explained(self, what: str) -> Any:
        """Errors of ``deltalake`` as the sink's own."""
        where = f"{self._where}: cannot {what} the table"
        try:
            yield
        except CommitFailedError as error:
            raise Conflict(brief(error)) from error
        except DeltaError as error:
            raise SinkError(f"{where} ({brief(error)}); mend it, or give another path") from error
        except OSError as error:
            if is_url(self.config.path):
                raise UnavailableError(f"{where} ({brief(error)}); check the network, and the store") from error
            raise SinkError(f"{where} ({brief(error)}); correct the path or the access to it") from error


_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


def _application(publication: Publication) -> str:
    """By the checkpoint alone: a join may be renamed, and has the table for itself."""
    return f"streamjoin-{publication.identity}"


def _action(staged: Staged) -> AddAction:
    described = json.loads(staged.text)
    stats = json.dumps(described["stats"], ensure_ascii=False, separators=(",", ":"))
    return AddAction(staged.final, staged.nbytes, described["partition"], round(time.time() * 1000), True, stats)


def _type(field: Any) -> str:
    """A Delta column's type in SQL's words."""
    text = str(getattr(field.type, "type", field.type))
    return {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}.get(text, text.upper())


def results(model: Model, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the table's newest version; another program's rows in it, too."""
    uri = table_uri(model.path)
    if not DeltaTable.is_deltatable(uri):
        return iter(())
    found = pa.RecordBatchReader.from_stream(DeltaTable(uri).scan(columns=schema.names))
    return (batch.cast(stored_schema(schema)).cast(schema) for batch in found)
