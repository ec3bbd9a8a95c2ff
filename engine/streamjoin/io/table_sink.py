"""Code shared by sinks that are tables of files with transactions of their own (Delta, Iceberg): results are staged, brought to their
names, and appended once.

Always holds: files are under their final names before a transaction names them; a publication that the table has is not appended again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa
from pyarrow import ipc

from streamjoin.io.base import SinkError, Staged
from streamjoin.io.compacting import Compactor
from streamjoin.io.refused import Refused, RefusedResults
from streamjoin.io.sinks import json_texts
from streamjoin.io.staging import STAGING, Staging
from streamjoin.io.table_files import REFUSED, Publication, TableFiles, TableWriter, no_partition


class Table(Protocol):
    """A table that knows which publications it has."""

    compactor: Compactor

    def has(self, publication: Publication) -> bool:
        """Whether they were appended already."""

    def append(self, publication: Publication, staged: Sequence[Staged]) -> None:
        """Append files in one transaction, which says whose they are."""


class TableSink(ABC):
    """See the module, and :class:`streamjoin.io.base.Sink`."""

    _opened: Table | None
    """The table, once it was asked for."""

    def __init__(self, schema: pa.Schema, files: TableFiles, refused: RefusedResults | None) -> None:
        """``refused``: where rows go that the table cannot have; None: one is an error."""
        self.schema, self.refused = schema, refused
        self._files = replace(files, fails_on_bad=refused is None)

    def writer(self, name: str, stem: str | None = None, *, small_bytes: int = 0) -> TableWriter:
        """See :class:`streamjoin.io.base.Sink`. ``stem`` is ``<checkpoint>-<epoch>-<task>``, as ``epoch.spec.final_name`` makes it."""
        return self._files.writer(self._staging, name, stem if stem is not None else name, small_bytes)

    def gather(self, small: Sequence[Staged], name: str, stem: str) -> list[Staged]:
        """One file of each partition: staged where that is a directory, else for the commit to keep. O(rows)."""
        refused = [each for each in small if each.text == REFUSED]
        letters = [replace(each, final=f"part-{stem}-{REFUSED}-{number:05d}") for number, each in enumerate(refused)]
        return self._files.gather(self._staging, [each for each in small if each.text != REFUSED], name, stem) + letters

    def finish(self) -> None:
        """See :class:`streamjoin.io.base.Busy`."""
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
        if refused is not None and self.refused is not None:
            self.refused.published(refused)

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
            self.refused.add(refused, row, f"result {row} of {refused.name}", reason, text)
        self.refused.keep(refused)
        return refused

    def sweep(self, may_remove: Callable[[str], bool]) -> int:
        """Removes staged files whose name may be removed. O(staged files)."""
        found = [f"{STAGING}/{name}" for name in self._staging.staged() if may_remove(name)]
        self._staging.remove(found)
        return len(found)

    @property
    @abstractmethod
    def _staging(self) -> Staging:
        """Of the place where the table's files go."""

    @abstractmethod
    def _table(self) -> Table:
        """The table as it is now; made, where it is not there yet."""
