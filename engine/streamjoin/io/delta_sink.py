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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamjoin.io.base import SinkError, Staged
from streamjoin.io.staging import STAGING, staging_at
from streamjoin.io.table_files import Publication, TableFiles, TableWriter, stored_schema

if TYPE_CHECKING:
    from streamjoin.io.delta_table import DeltaLog


@dataclass(frozen=True)
class Compaction:
    """When small files of a table become few large ones."""

    files: int
    """Once there are so many that could be fewer."""
    every_seconds: float | None = None
    """Or so long after the last time, if there are two such files or more."""
    target_bytes: int = 128 * 1024 * 1024
    """Files of this size or more stay as they are."""


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


class DeltaSink:
    """See the module, and :class:`streamjoin.io.base.Sink`."""

    def __init__(self, config: DeltaSinkConfig, schema: pa.Schema) -> None:
        self.config = config
        self.schema = schema
        stored = stored_schema(schema)
        known = {name.casefold(): name for name in schema.names}
        partition_by = tuple(known.get(name.casefold(), name) for name in config.partition_by)
        self._files = TableFiles(schema, stored, partition_by, compression=config.compression, roll_bytes=config.roll_bytes)
        self._staging = staging_at(config.path)
        self._log: DeltaLog | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return DeltaSink, (self.config, self.schema)

    @property
    def gather_seconds(self) -> float:
        return self.config.gather_seconds

    def writer(self, name: str, stem: str | None = None, *, small_bytes: int = 0) -> TableWriter:
        """See :class:`streamjoin.io.base.Sink`. ``stem`` is ``<checkpoint>-<epoch>-<task>``, as ``epoch.spec.final_name`` makes it."""
        return self._files.writer(self._staging, name, stem if stem is not None else name, small_bytes)

    def gather(self, small: Sequence[Staged], name: str, stem: str) -> list[Staged]:
        """One file of each partition: staged where that is a directory, else for the commit to keep. O(rows)."""
        return self._files.gather(self._staging, small, name, stem)

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """Adds files to the table, in one transaction. O(files), and what happened in the table since the last time.

        ``again`` with nothing to add, as when a driver starts, looks at the table, or makes it: what is wrong with it is to show before
        there are results. Raises SinkError, UnavailableError, StorageError.
        """
        if not staged:
            if again:
                self._table()
            return
        table, publication = self._table(), Publication.of(staged)
        if table.has(publication):
            self._staging.remove([each.path for each in staged if each.path])
            return
        self._staging.publish(staged)
        table.append(publication, staged)
        table.compact_if_due()

    def sweep(self, may_remove: Callable[[str], bool]) -> int:
        """Removes staged files whose name may be removed. O(staged files)."""
        found = [f"{STAGING}/{name}" for name in self._staging.staged() if may_remove(name)]
        self._staging.remove(found)
        return len(found)

    def _table(self) -> DeltaLog:
        if self._log is None:
            try:
                from streamjoin.io.delta_table import DeltaLog
            except ImportError as error:
                raise SinkError(f"delta: the package deltalake is missing ({error}); pip install deltalake") from error
            self._log = DeltaLog(self.config, self._files)
        self._log.open()
        return self._log
