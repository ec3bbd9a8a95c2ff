"""Code shared by sinks that are tables of files with transactions of their own (Delta, Iceberg): results are staged, brought to their
names, and appended once; and small files become few large ones, beside the join, in a thread.

Always holds: files are under their final names before a transaction names them; a publication that the table has is not appended again.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyarrow import ipc

from streamjoin.io.base import SinkError, Staged, UnavailableError
from streamjoin.io.refused import Refused, RefusedResults
from streamjoin.io.sinks import StagingSink, json_texts
from streamjoin.io.table_files import REFUSED, Publication, TableFiles, TableWriter, no_partition
from streamjoin.io.values import sql_name

if TYPE_CHECKING:
    from streamjoin.manifest.tables import Compact

ATTEMPTS = 20
"""The number of attempts at a transaction, if others change the table meanwhile."""
PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0

_log = logging.getLogger("streamjoin.tables")


@dataclass(frozen=True)
class Compaction:
    """When small files of a table become few large ones."""

    files: int
    """Once there are so many that could be fewer."""
    every_seconds: float | None = None
    """Or so long after the last time, if there are two such files or more."""
    target_bytes: int = 128 * 1024 * 1024
    """Files of this size or more stay as they are."""


class Compactor:
    """Counts the files of a table, and has them rewritten when it is time. One rewriting at a time."""

    def __init__(self, compaction: Compaction | None, rewrite: Callable[[int], None]) -> None:
        """``rewrite`` gets the target's bytes, in a thread of its own, and raises nothing."""
        self._compaction, self._rewrite = compaction, rewrite
        self._small_files = 0
        self._begun_at = time.monotonic()
        self._thread: threading.Thread | None = None

    def found(self, files: Callable[[], Iterable[tuple[Hashable, int]]]) -> None:
        """There are these files, each of a partition and a size in bytes; asked for only where it matters. O(files)."""
        if self._compaction is not None:
            target = self._compaction.target_bytes
            small = Counter(partition for partition, size in files() if size < target)
            self._small_files = sum(count - 1 for count in small.values())

    def added(self, count: int) -> None:
        """There are so many more files, all of them small; begins to rewrite where it is time."""
        self._small_files += count
        compaction = self._compaction
        if compaction is None or (self._thread is not None and self._thread.is_alive()):
            return
        waited = time.monotonic() - self._begun_at
        is_time = compaction.every_seconds is not None and waited >= compaction.every_seconds and self._small_files >= 2
        if self._small_files < compaction.files and not is_time:
            return
        self._thread = threading.Thread(target=self._rewrite, args=(compaction.target_bytes,), name="streamjoin-compact")
        self._small_files, self._begun_at = 0, time.monotonic()
        self._thread.start()

    def wait(self) -> None:
        """Until no rewriting is under way."""
        if self._thread is not None:
            self._thread.join()


def compaction_of(compact: Compact | None) -> Compaction | None:
    """The rewriting that a manifest describes."""
    if compact is None:
        return None
    return Compaction(compact.files, None if compact.every is None else compact.every.micros / 1e6, compact.target_size.bytes)


class Conflict(Exception):  # noqa: N818 - the transaction is tried again
    """Others changed the table in a way that a transaction did not know of."""


class Table(ABC):
    """A table that knows which publications it has. For one thread, but for the compaction, which has its own."""

    def __init__(self, field: str, place: str, files: TableFiles, compaction: Compaction | None) -> None:
        """``field``: the manifest's, by which the table is reached, and ``place`` what it says."""
        self._field, self._place, self._files = field, place, files
        self._where = f"{field}: {place}"
        self._table: Any = None
        """The library's own; None: it was not opened yet."""
        self.compactor = Compactor(compaction, self._compact)

    @abstractmethod
    def open(self) -> None:
        """Have the newest state of the table, which is made when missing. Raises SinkError, UnavailableError, StorageError."""

    @abstractmethod
    def has(self, publication: Publication) -> bool:
        """Whether the table has it, or a later one of its checkpoint."""

    @abstractmethod
    def _transaction(self, publication: Publication, staged: Sequence[Staged]) -> Callable[[], None]:
        """What adds these files in one transaction, which says whose they are; called again after a Conflict, which it raises."""

    @abstractmethod
    def _check(self, table: Any) -> None:
        """Raises SinkError where the table cannot take the sink's files."""

    @abstractmethod
    def _rewritten(self, target_bytes: int) -> tuple[int, int]:
        """Has small files rewritten in one transaction, which changes no data: whoever reads an older state goes on reading the files that
        it replaces. How many became how many."""

    @abstractmethod
    def _flush(self, table: Any) -> None:
        """What was committed survives a power loss once the sink has said that results are published."""

    def append(self, publication: Publication, staged: Sequence[Staged]) -> None:
        """Add files that are there under their final names, in one transaction. Raises SinkError, UnavailableError."""
        transaction = self._transaction(publication, staged)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                transaction()
                break
            except Conflict as conflict:
                self.open()
                if self.has(publication):  # another driver's transaction, of the same results
                    return
                self._check(self._table)
                if attempt == ATTEMPTS:
                    message = f"others changed it each time; its own writers conflict with appends? ({conflict})"
                    raise UnavailableError(f"{self._where}: {message}") from conflict
                pause = min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2 ** (attempt - 1))
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret about it
        self._flush(self._table)
        self.compactor.added(len(staged))

    def _compact(self, target_bytes: int) -> None:
        try:
            before, after = self._rewritten(target_bytes)
            _log.info("%s: %d files became %d", self._where, before, after)
        except Exception as error:  # the table is as it was; the next time is after as many files again
            _log.warning("%s: could not be compacted (%s: %s)", self._where, type(error).__name__, brief(error))

    def _require(self, partitions: Sequence[str], columns: Mapping[str, tuple[str, bool]]) -> None:
        """Raises SinkError where a table of these partitions and columns (by name the type in SQL's words, and whether it is never null)
        cannot take the sink's files."""
        other = f"another {self._field.partition('.')[2]}"
        if list(partitions) != list(self._files.partition_by):
            given, found = (", ".join(names) or "nothing" for names in (self._files.partition_by, partitions))
            remedy = f"which is partitioned by {found}; give that, if it is of columns without a transform, or {other}"
            raise SinkError(f"{self._field.partition('.')[0]}.partitionBy: {given} does not fit {self._place}, {remedy}")
        for name, kind in ((field.name, sql_name(field.type)) for field in self._files.stored):
            if name not in columns:
                remedy = f"add it to the table (ALTER TABLE ... ADD COLUMN), remove it from output.select, or give {other}"
                raise SinkError(f"{self._where}: has no column {name} of type {kind}, and results have; {remedy}")
            if columns[name][0] != kind:
                remedy = f"write CAST(... AS {columns[name][0]}) AS {name} in output.select, or give {other}"
                raise SinkError(f"{self._where}: column {name} is {columns[name][0]}, and results have {kind}; {remedy}")
        for name, (_, is_required) in columns.items():
            if is_required:
                remedy = f"drop NOT NULL (ALTER TABLE ... ALTER COLUMN), or give {other}"
                raise SinkError(f"{self._where}: column {name} is NOT NULL, and results may have nulls; {remedy}")


def brief(error: BaseException) -> str:
    """On one line, without deltalake's colours and stack."""
    return " ".join(re.sub(r"\x1b\[\d*m|↳", "", re.split(r"\n +0:", str(error), maxsplit=1)[0]).split())[:500]


class TableSink(StagingSink):
    """See the module, and :class:`streamjoin.io.base.Sink`."""

    package: ClassVar[str]

    def __init__(self, schema: pa.Schema, files: TableFiles, refused: RefusedResults | None) -> None:
        """``refused``: where rows go that the table cannot have; None: one is an error."""
        self.schema, self.refused = schema, refused
        self._files = replace(files, fails_on_bad=refused is None)
        self._opened: Table | None = None
        """The table, once it was asked for."""

    def writer(self, name: str, stem: str, *, small_bytes: int = 0) -> TableWriter:
        """See :class:`streamjoin.io.base.Sink`. ``stem`` is ``<checkpoint>-<epoch>-<task>``, as ``epoch.spec.final_name`` makes it."""
        return TableWriter(self._files, self._staging, name, stem, small_bytes)

    def gather(self, small: Sequence[Staged], name: str, stem: str) -> list[Staged]:
        """One file of each partition, or more where they are large."""
        refused = [each for each in small if each.text == REFUSED]
        letters = [replace(each, final=f"part-{stem}-{REFUSED}-{number:05d}") for number, each in enumerate(refused)]
        others = [each for each in small if each.text != REFUSED]
        return self._gathered(others, lambda staging: TableWriter(self._files, staging, name, stem)) + letters

    def finish(self) -> None:
        """See :class:`streamjoin.io.base.Sink`."""
        if self._opened is not None:
            self._opened.compactor.wait()

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """Adds files to the table, in one transaction. O(files), and what the table does about them.

        ``again`` with nothing to add, as when a driver starts, looks at the table, or makes it: what is wrong with it is to show before
        there are results. Raises SinkError, UnavailableError, StorageError.
        """
        if not staged:
            if again:
                self._table()
            return
        publication = Publication.of(staged)
        refused = self._keep(publication, [each for each in staged if each.text == REFUSED], again=again)
        if files := [each for each in staged if each.text != REFUSED]:
            table = self._table()
            if table.has(publication):
                self._staging.remove([each.path for each in files if each.path])
            else:
                self._staging.publish(files)
                table.append(publication, files)
        if refused is not None:
            refused.published()

    def _keep(self, publication: Publication, letters: Sequence[Staged], *, again: bool) -> Refused | None:
        """Has the rows that the table cannot have among the dead letters, if there are such rows."""
        if not letters:
            return None
        if self.refused is None:
            raise SinkError(
                "onBad of the output: results that the table cannot have are committed as dead letters already; start with deadLetter once,"
                " then change it to fail"
            )
        refused = self.refused.of(publication.identity, publication.number, again=again)
        reason = f"partitionBy {', '.join(self._files.partition_by)}: {no_partition('a date')}"
        rows = (batch for each in letters for batch in ipc.open_stream(each.data))
        for row, text in enumerate(text for batch in rows for text in json_texts(batch).to_pylist()):
            refused.add(row, f"result {row} of {refused.name}", reason, text)
        refused.keep()
        return refused

    @abstractmethod
    def _loaded(self) -> Table:
        """The table, of which nothing is known yet. Raises ImportError."""

    def _table(self) -> Table:
        """The table as it is now; made, where it is not there yet."""
        if self._opened is None:
            try:
                self._opened = self._loaded()
            except ImportError as error:
                raise SinkError(f"{self.package}: the package is missing ({error}); pip install 'streamjoin[tables]'") from error
        self._opened.open()
        return self._opened
