"""A source of the rows that are added to a table (Delta, Iceberg): change by change, file by file, as the table's log has them.

A change is what one transaction added, or, where reading begins, all that the table has then. The position says up to which change and,
within it, up to which file and row group has been read. Data files never change, so what is planned is read the same by any attempt.

Always holds: files are taken in the log's order, each row group once; a change whose rows were not only added is refused, or passed over
whole and told, as the manifest says; a file that is gone is an error, never an omission.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from streamjoin.io.base import BadFile, Position, Source, SourceError, SourcePlan
from streamjoin.io.files_plan import FilesPlan, Footers, Listed
from streamjoin.io.files_reader import FileRange, FilesReader, FilesSourceConfig
from streamjoin.io.identity import decode
from streamjoin.io.values import from_text, sql_name

CHANGES_AHEAD = 100
"""The most changes that one plan looks at; later ones are not in the backlog yet."""
KEPT_CHANGES = 200
LOOK_SECONDS = 600.0
"""How often it is looked whether a change that is not there was removed."""
FIELD_ID = b"PARQUET:field_id"
Mark = list[Any]
"""Which change, as JSON; the log's own."""


@dataclass(frozen=True)
class TableFile:
    """A data file that a change added."""

    path: str
    """Below the table's root."""
    size: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """Values of columns that the file need not have, as text; null is None."""
    added_ns: int = 0
    """When it became a part of the table, in nanoseconds since 1970; 0: it is not known."""


@dataclass(frozen=True)
class Change:
    """What one transaction added."""

    mark: Mark
    files: Sequence[TableFile]
    warning: str | None = None
    """Why files of it are not read."""


class KeptChanges:
    """The changes of a log that numbers them. One that was loaded stays as it is, so that the next plans need not load it again."""

    def __init__(self, load: Callable[[int], Change | None], look: Callable[[int], None]) -> None:
        """``load``: the change of this number; None: it is not there. ``look``: raises SourceError where it was, and is no more."""
        self._load, self._look = load, look
        self._kept: dict[int, Change] = {}
        self._looked_at = float("-inf")

    def since(self, number: int) -> Iterator[Change]:
        """The change of this number, and those after it, as far as they are there."""
        while (change := self._kept.get(number) or self._load(number)) is not None:
            self._kept[number] = change
            if len(self._kept) > KEPT_CHANGES:
                self._kept.pop(next(iter(self._kept)))
            yield change
            number += 1
        if (now := time.monotonic()) - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._look(number)


class TableLog(Protocol):
    """A table's log, as a source sees it."""

    @property
    def root(self) -> str:
        """Where the files are: a place, as ``location`` writes it."""

    def begin(self) -> tuple[Mark, bool]:
        """The change with which a new checkpoint begins, and whether it is to be read itself. Raises SourceError, UnavailableError."""

    def changes(self, mark: Mark, *, itself: bool) -> Iterator[Change]:
        """This change, where asked for, and those after it that are there by now. Raises SourceError, UnavailableError."""

    def columns(self) -> Mapping[str, int | None]:
        """The table's columns, and by which identifier files know them, where they have any."""


@dataclass(frozen=True)
class TableReader(FilesReader):
    """Reads splits of a table's files. A declared column that a file lacks is the partition's, or null: the table got it later."""

    reads_anew: ClassVar[bool] = False
    field_ids: Mapping[str, int | None] = field(default_factory=dict)
    """By the declared columns' names."""

    @cached_property
    def _by_id(self) -> Mapping[int, str]:
        return {number: name for name, number in self.field_ids.items() if number is not None}

    def filled(self, part: FileRange, column: pa.Field, rows: int) -> pa.Array:
        value = next((text for name, text in part.partition.items() if name.casefold() == column.name.casefold()), None)
        if value is None:
            return pa.nulls(rows, column.type)
        problems: dict[int, str] = {}
        one = from_text(pa.array([value]), column.type, column.name, problems)
        if problems:
            raise SourceError(f"{self.folder.path(part.name)}: partition {problems[0]}; declare the column with a type that holds it")
        return pa.repeat(one[0], rows)

    def lacking(self, name: str, columns: Sequence[str | None]) -> list[str]:
        """None: what a file lacks, its partition has, or the table got later."""
        return []

    def columns(self, name: str, found: pa.Schema) -> list[str | None]:
        """See :class:`streamjoin.io.files_reader.FilesReader`. Raises SourceError for another type."""
        numbered = {int(item.metadata[FIELD_ID]): item for item in found if item.metadata and FIELD_ID in item.metadata}
        if self._by_id and numbered:  # a column that was renamed has its identifier still
            found = pa.schema([item.with_name(self._by_id.get(number, f"#{number}")) for number, item in numbered.items()])
        names = {item.name.casefold() for item in found}
        there = [item for item in self.schema if item.name.casefold() in names]
        try:
            known = FilesReader(self.config, pa.schema(there), self.exact).columns(name, found)
        except BadFile as error:  # the schema does not fit the table, rather than one file
            raise SourceError(f"{self.folder.path(name)}: {error}") from None
        if self._by_id and numbered:
            own = {self._by_id.get(number, ""): item.name for number, item in numbered.items()}
            known = [own[column] for column in known if column is not None]
        by_name = dict(zip([item.name for item in there], known, strict=True))
        return [by_name.get(item.name) for item in self.schema]


class TableSource(Source):
    """See the module, and :class:`streamjoin.io.base.Source`.

    The position is ``{"mark": change, "file": n, "entry": [size, row groups] or null, "records": n, "density": x}``: of the change, the
    first n files were read, and of the next so many row groups; ``file`` null: the whole of it.
    """

    def __init__(self, log: TableLog, schema: pa.Schema, where: str, max_files_per_epoch: int) -> None:
        """``where``: the manifest's field, for messages. Raises SourceError where the table lacks a declared column, UnavailableError."""
        self._log, self._schema, self._where, self._max_files = log, schema, where, max_files_per_epoch
        self._begun: tuple[Mark, bool] | None = None
        self._known: tuple[TableReader, Footers] | None = None

    @property
    def reader(self) -> TableReader:
        return self._opened()[0]

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        """See :class:`streamjoin.io.base.Source`. O(changes and files that are new, and the footers of those taken)."""
        reader, footers = self._opened()
        if position is None:
            # Asked again before the first commit, it is to begin where it did before.
            self._begun = self._begun or self._log.begin()
            mark, itself = self._begun
            position = {"mark": mark, "file": 0 if itself else None, "entry": None, "records": 0, "density": 0.0}
        changes = list(itertools.islice(self._log.changes(position["mark"], itself=position["file"] is not None), CHANGES_AHEAD))
        pending = [
            Listed(file.added_ns, file.path, file.size, _entry(position, change, index))
            for change in changes
            for index, file in enumerate(change.files)
            if index >= _first(position, change)
        ]
        taken = FilesPlan(reader, footers, now, True, float(position["density"]))
        taken.take(pending, limit_records, split_records)
        after = self._after(position, changes, taken)
        partitions = {file.path: file.partition for change in changes for file in change.files}
        first = int(position["records"])
        splits = tuple(
            replace(split, ranges=tuple(replace(part, partition=partitions[part.name]) for part in split.ranges))
            for split in taken.splits(first)
        )
        records = sum(split.records for split in splits)
        return SourcePlan(
            splits=splits,
            position=after | {"records": first + records, "density": round(taken.density, 1)},
            records=records,
            backlog_records=math.ceil(taken.left_records),
            exhausted=not changes or (len(changes) < CHANGES_AHEAD and after["mark"] == changes[-1].mark and after["file"] is None),
            end_record=first + records,
            warnings=(*(change.warning for change in changes if change.warning is not None), *taken.warnings),
            arrivals=taken.arrivals,
        )

    def _after(self, position: Position, changes: Sequence[Change], taken: FilesPlan) -> Position:
        """Up to where all files were taken. Raises SourceError for one that could not be."""
        waiting = {file.name for file in taken.waiting}
        for change in changes:
            for index in range(_first(position, change), len(change.files)):
                path = change.files[index].path
                changed = taken.changed.get(path)
                entry = None if changed is None else decode(changed).progress
                if path in waiting:
                    return {"mark": change.mark, "file": index, "entry": _entry(position, change, index) or None}
                if isinstance(entry, list):
                    return {"mark": change.mark, "file": index, "entry": entry}
                if entry is None:
                    reason = "; ".join(taken.warnings) or "it is not there"
                    remedy = "keep VACUUM and the like from what is not read yet; a new checkpoint begins from the table as it is"
                    raise SourceError(f"{self._where}: {self._log.root}/{path}: cannot be read ({reason}); {remedy}")
            position = {"mark": change.mark, "file": None, "entry": None}
        return {name: position[name] for name in ("mark", "file", "entry")}

    def _opened(self) -> tuple[TableReader, Footers]:
        if self._known is None:
            columns = {name.casefold(): number for name, number in self._log.columns().items()}
            missing = [item for item in self._schema if item.name.casefold() not in columns]
            if missing:
                name, kind = missing[0].name, sql_name(missing[0].type)
                remedy = f"correct the schema; the table has {', '.join(self._log.columns())}"
                raise SourceError(f"{self._where}: the table has no column {name}, which the schema declares as {kind}; {remedy}")
            config = FilesSourceConfig(self._log.root, "parquet", self._max_files, is_deep=False)
            ids = {item.name: columns[item.name.casefold()] for item in self._schema}
            reader = TableReader(config, self._schema, True, ids)
            self._known = reader, Footers(reader.folder)
        return self._known


def _first(position: Position, change: Change) -> int:
    """The first file of a change that is not read."""
    return int(position["file"] or 0) if change.mark == position["mark"] else 0


def _entry(position: Position, change: Change, index: int) -> Any:
    """What is read of a file, as ``Listed`` has it."""
    is_begun = change.mark == position["mark"] and index == position["file"] and position["entry"] is not None
    return position["entry"] if is_begun else 0
