"""A sink that is a Delta table: each result exactly once, by the table's own transactions.

Tasks stage Parquet files in the table's directory, under ``_staging``, which Delta's readers and VACUUM pass over. Once the epoch is
committed the driver brings them to their final names, by renames or by copies within the store, and adds them to the table's log in one
transaction. That transaction also says, by an application's identifier and version (``txn``, of Delta's protocol), which publication of
which checkpoint it is. So a driver that does not know whether its predecessor published asks the table: what is there is not added
again. Two drivers that publish the same at once write the same ``txn``, of which the table refuses the second.

Always holds: a reader of the table sees all results of a publication or none; the versions of one checkpoint's publications rise; a file
is in the log only when it is under its final name, whole, and (on a file system) flushed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamjoin.io.ownership import Owner, claim_directory
from streamjoin.io.refused import RefusedResults
from streamjoin.io.staging import Staging, staging_at
from streamjoin.io.table_files import TableFiles, columns_named, stored_schema
from streamjoin.io.table_sink import Compaction, TableSink, compaction_of
from streamjoin.location import place

if TYPE_CHECKING:
    from streamjoin.io.delta_table import DeltaLog
    from streamjoin.io.factory import Writing
    from streamjoin.manifest.connectors.delta import DeltaSink as Model


@dataclass(frozen=True)
class DeltaSinkConfig:
    """A Delta sink as the manifest describes it."""

    path: str
    """The table's root: a place, as ``location`` writes it."""
    query: str = ""
    """The resource's name, for the table's history."""
    partition_by: tuple[str, ...] = ()
    """Columns of the output, as the output has them."""
    compression: str = "snappy"
    gather_seconds: float = 0.0
    compaction: Compaction | None = None
    roll_bytes: int = 512 * 1024 * 1024


class DeltaSink(TableSink):
    """See the module, and :class:`streamjoin.io.base.Sink`."""

    config: DeltaSinkConfig
    package = "deltalake"

    def __init__(self, config: DeltaSinkConfig, schema: pa.Schema, refused: RefusedResults | None = None) -> None:
        self.config = config
        columns = columns_named(schema, config.partition_by)
        files = TableFiles(schema, stored_schema(schema), columns, compression=config.compression, roll_bytes=config.roll_bytes)
        super().__init__(schema, files, refused)

    def __reduce__(self) -> tuple[Any, ...]:
        return DeltaSink, (self.config, self.schema, self.refused)

    def claim(self, owner: Owner, *, takes: bool) -> None:
        """See :class:`streamjoin.io.base.Sink`."""
        claim_directory("delta.path", self.config.path, owner, takes=takes)

    @cached_property
    def _staging(self) -> Staging:
        return staging_at(self.config.path)

    def _loaded(self) -> DeltaLog:
        from streamjoin.io.delta_table import DeltaLog

        return DeltaLog(self.config, self._files)


def open_sink(model: Model, writing: Writing) -> DeltaSink:
    """See ``io.factory``."""
    gather_seconds, compaction = model.gather.micros / 1e6, compaction_of(model.compact)
    config = DeltaSinkConfig(place(model.path), writing.query, model.partition_by, model.compression, gather_seconds, compaction)
    return DeltaSink(config, writing.schema, writing.refused)
