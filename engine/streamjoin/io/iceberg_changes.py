"""Lists what is appended to an Iceberg table, snapshot by snapshot, by ``pyiceberg``.

A snapshot's files are those that its own manifests add. A snapshot that only rewrote files (``replace``) is passed over. One that deleted
or overwrote rows is refused, or passed over and reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.transforms import IdentityTransform

from streamjoin.io.base import SourceError
from streamjoin.io.iceberg_checked import CheckedIO
from streamjoin.io.iceberg_table import catalog_of, explained
from streamjoin.io.references import settings
from streamjoin.io.table_source import Change, Mark, TableFile, TableSource
from streamjoin.location import place, within

if TYPE_CHECKING:
    from streamjoin.io.factory import Reading
    from streamjoin.manifest.connectors.iceberg import IcebergSource as Model

KEPT_CHANGES = 200
EMPTY = -1
"""Stands for the state before the first snapshot."""


class IcebergChanges:
    """See the module, and :class:`streamjoin.io.table_source.TableLog`. A mark is
    ``[snapshot, whether as a whole, sequence number]``.
    """

    def __init__(
        self,
        table: str,
        catalog: Sequence[tuple[str, str]] = (),
        catalog_name: str = "default",
        starting_snapshot: int | None = None,
        on_change: str = "fail",
    ) -> None:
        """``catalog``: as of ``iceberg_sink.IcebergSinkConfig``. ``starting_snapshot``: read what snapshots append from it on; None: the
        table as it is, and then that. ``on_change``: of a snapshot that does not only append, fail or skip."""
        self._name, self._catalog, self._start, self._on_change = table, (catalog_name, catalog), starting_snapshot, on_change
        self._where = f"iceberg.table: {table}"
        self._table: Table | None = None
        self._kept: dict[int, Change] = {}

    @property
    def _metadata(self) -> str:
        """The table, and the file that says what it is: what it says may be wrong."""
        return self._where if self._table is None else f"{self._where} (by {self._table.metadata_location})"

    @property
    def root(self) -> str:
        where = (self._table or self._newest()).location()
        try:
            return place(where, is_literal=True)
        except ValueError as error:
            raise SourceError(f"{self._metadata}: its location, {where}, {error}") from None

    def begin(self) -> tuple[Mark, bool]:
        if self._start is not None:
            return [self._start, False, None], True
        snapshot = self._newest().current_snapshot()
        return ([EMPTY, False, 0], False) if snapshot is None else ([snapshot.snapshot_id, True, snapshot.sequence_number], True)

    def columns(self) -> Mapping[str, int | None]:
        return {column.name: column.field_id for column in self._newest().schema().fields}

    def changes(self, mark: Mark, *, itself: bool) -> Iterator[Change]:
        number, is_whole, sequence = mark
        table = self._newest()
        if itself and is_whole:
            yield Change(mark, self._whole(table, number))
            itself = False
        for snapshot in self._after(table, number, sequence, itself=itself):
            change = self._kept.get(snapshot.snapshot_id) or self._change(table, snapshot)
            self._kept[snapshot.snapshot_id] = change  # which never changes
            if len(self._kept) > KEPT_CHANGES:
                self._kept.pop(next(iter(self._kept)))
            yield change

    def _after(self, table: Table, number: int, sequence: int | None, *, itself: bool) -> list[Snapshot]:
        """The snapshots after this one, and it where asked for, oldest first. Raises SourceError where there is no way back to it."""
        found: list[Snapshot] = []
        for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
            if len(found) == len(table.metadata.snapshots):
                told = f"{table.metadata_location} is damaged: snapshot {snapshot.snapshot_id} comes before itself"
                raise SourceError(f"{self._where}: {told}; restore the file, or roll the table back to a snapshot that does not need it")
            if snapshot.snapshot_id == number and not itself:
                return found[::-1]
            found.append(snapshot)
            if snapshot.snapshot_id == number:
                return found[::-1]
        if not itself and (_follows(found[-1], number, sequence) if found else number == EMPTY):  # expired itself, but nothing after it
            return found[::-1]
        remedy = "keep snapshots until they are read (expire_snapshots); to begin again from the table as it is, choose a new checkpoint"
        told = f"snapshot {number}, which was read last or is to be read first, is not among those that led to its newest one"
        raise SourceError(f"{self._metadata}: {told}; {remedy}")

    def _change(self, table: Table, snapshot: Snapshot) -> Change:
        number = snapshot.snapshot_id
        mark = [number, False, snapshot.sequence_number]
        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation is Operation.REPLACE:
            return Change(mark, ())
        if operation is not Operation.APPEND:
            name = getattr(operation, "value", "an unknown operation")
            told = f"snapshot {number} ({name}) deletes or changes rows, which a join cannot take back"
            if self._on_change == "fail":
                remedy = "give onChange: skip to read nothing of such ones, or begin after it with startingSnapshot and a new checkpoint"
                raise SourceError(f"{self._metadata}: {told}; {remedy}")
            return Change(mark, (), f"{self._where}: {told}; its files are skipped")
        with explained(self._name, "read a snapshot of", SourceError):
            entries = [
                entry
                for manifest in snapshot.manifests(table.io)
                if manifest.content is ManifestContent.DATA and manifest.has_added_files()
                for entry in manifest.fetch_manifest_entry(table.io)
                if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == number
            ]
            return Change(mark, [self._file(table, entry.data_file, snapshot) for entry in entries])

    def _whole(self, table: Table, number: int) -> list[TableFile]:
        """The files of a snapshot, in an order that is always the same. O(files)."""
        with explained(self._name, f"read snapshot {number} of", SourceError):
            tasks = list(table.scan(snapshot_id=number).plan_files())
            if any(task.delete_files for task in tasks):
                remedy = "rewrite them (rewrite_data_files), and begin with a new checkpoint"
                raise SourceError(f"{self._metadata}: snapshot {number} has files with deleted rows, which are not read; {remedy}")
            snapshot = table.snapshot_by_id(number)
            return sorted((self._file(table, task.file, snapshot) for task in tasks), key=lambda file: file.path)

    def _file(self, table: Table, file: DataFile, snapshot: Snapshot | None) -> TableFile:
        """``snapshot``: the one that the file came with, or, of the table as a whole, its newest."""
        root = self.root
        path = place(file.file_path, is_literal=True)
        if file.content is not DataFileContent.DATA or not within(path, root) or not file.file_path.lower().endswith(".parquet"):
            raise SourceError(f"{self._metadata}: {file.file_path} is not a Parquet file below {root}, and only these are read")
        partition: dict[str, str | None] = {}
        for position, part in enumerate(table.specs()[file.spec_id].fields):
            if isinstance(part.transform, IdentityTransform):
                column = table.schema().find_field(part.source_id)
                value = file.partition[position]
                partition[column.name] = None if value is None else part.transform.to_human_string(column.field_type, value)
        at = 0 if snapshot is None else snapshot.timestamp_ms * 1_000_000
        return TableFile(path[len(root) :].lstrip("/"), file.file_size_in_bytes, partition, at)

    def _newest(self) -> Table:
        with explained(self._name, "read", SourceError):
            if self._table is None:
                with contextlib.suppress(NoSuchTableError):
                    catalog = catalog_of(*self._catalog, SourceError)
                    self._table = catalog.load_table(self._name)
                if self._table is None:
                    raise SourceError(f"{self._where}: there is no such table in the catalog; make it, or correct the name")
            else:
                self._table.refresh()
            self._table.io = CheckedIO(self._table.io)
        return self._table


def _follows(snapshot: Snapshot, number: int, sequence: int | None) -> bool:
    """Whether a snapshot is the next one after another, which may be no more. PyIceberg, expiring a parent, forgets it; numbers stay."""
    if snapshot.parent_snapshot_id is not None:
        return snapshot.parent_snapshot_id == number
    if snapshot.sequence_number:
        return sequence is not None and snapshot.sequence_number == sequence + 1
    return number == EMPTY


def open_source(model: Model, reading: Reading) -> TableSource:
    """See ``io.factory``."""
    where = (model.table, settings(model.catalog), model.catalog_name)
    changes = IcebergChanges(*where, model.starting_snapshot, model.on_change)
    return TableSource(changes, reading.schema, f"iceberg.table: {model.table}", model.max_files_per_epoch)
