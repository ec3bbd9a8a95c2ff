"""A sink that is an Iceberg table: each result exactly once, by the table's own transactions.

As of a Delta table (``io.delta_sink``): tasks stage Parquet files below the table's location, the driver brings them to their final names
and appends them in one transaction. That transaction also sets a property of the table, ``streamjoin.<checkpoint>``, to the number of the
publication. A snapshot's summary has it too, for readers; but snapshots expire, and properties do not.

Always holds: a transaction begins from a state of the table that does not have the publication, and is refused if another snapshot has
come in between: then the table is asked again. So of two drivers that publish the same, one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from streamjoin.io.ownership import Owner
from streamjoin.io.references import settings
from streamjoin.io.refused import RefusedResults
from streamjoin.io.staging import Staging, staging_at
from streamjoin.io.table_files import TableFiles, columns_named, stored_schema
from streamjoin.io.table_sink import Compaction, TableSink, compaction_of

if TYPE_CHECKING:
    from streamjoin.io.factory import Writing
    from streamjoin.io.iceberg_table import IcebergTable
    from streamjoin.manifest.connectors.iceberg import IcebergSink as Model


@dataclass(frozen=True)
class IcebergSinkConfig:
    """An Iceberg sink as the manifest describes it."""

    table: str
    """With its namespace: ``namespace.table``."""
    catalog: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Properties of PyIceberg's catalog; a value ``file:/path`` is that file's content, ``env:NAME`` that environment variable's."""
    catalog_name: str = "default"
    query: str = ""
    """The resource's name, for the snapshots' summaries."""
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    gather_seconds: float = 0.0
    compaction: Compaction | None = None
    roll_bytes: int = 512 * 1024 * 1024


class IcebergSink(TableSink):
    """See the module, and :class:`streamjoin.io.base.Sink`.

    The catalog says where the table is. The driver, which asks it first, sends the answer to tasks with the sink.
    """

    config: IcebergSinkConfig
    package = "pyiceberg"

    def __init__(
        self, config: IcebergSinkConfig, schema: pa.Schema, root: str | None = None, refused: RefusedResults | None = None
    ) -> None:
        """``root``: where the table's files go, as a place (``location``); None: ask the catalog when it is needed."""
        self.config = config
        # Iceberg has no integers of less than 32 bits.
        stored = stored_schema(schema, least_integer=pa.int32())
        columns = columns_named(schema, config.partition_by)
        super().__init__(schema, TableFiles(schema, stored, columns, False, config.compression, config.roll_bytes), refused)
        self._root = root

    def __reduce__(self) -> tuple[Any, ...]:
        return IcebergSink, (self.config, self.schema, self._root, self.refused)

    def claim(self, owner: Owner, *, takes: bool) -> None:
        """See :class:`streamjoin.io.base.Sink`. A publication takes the table, in its transaction."""
        if not takes:
            self._table().require_owner(owner)

    @property
    def _staging(self) -> Staging:
        if self._root is None:
            self._table()
        assert self._root is not None
        return staging_at(self._root)

    def _loaded(self) -> IcebergTable:
        from streamjoin.io.iceberg_table import IcebergTable

        return IcebergTable(self.config, self._files)

    def _table(self) -> IcebergTable:
        table = cast("IcebergTable", super()._table())
        self._root = table.root
        return table


def open_sink(model: Model, writing: Writing) -> IcebergSink:
    """See ``io.factory``."""
    where, gather_seconds = (model.table, settings(model.catalog), model.catalog_name), model.gather.micros / 1e6
    compaction = compaction_of(model.compact)
    config = IcebergSinkConfig(*where, writing.query, model.partition_by, model.compression, gather_seconds, compaction)
    return IcebergSink(config, writing.schema, refused=writing.refused)


def results(model: Model, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the table's newest snapshot; another program's rows in it, too."""
    from pyiceberg.exceptions import NoSuchTableError

    from streamjoin.io.iceberg_table import catalog_of

    stored = stored_schema(schema, least_integer=pa.int32())
    try:
        table = catalog_of(model.catalog_name, settings(model.catalog)).load_table(model.table)
    except NoSuchTableError:
        return iter(())
    batches = table.scan(selected_fields=tuple(schema.names)).to_arrow_batch_reader()
    return (batch.select(schema.names).cast(stored).cast(schema) for batch in batches)
