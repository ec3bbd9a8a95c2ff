"""A source of micro-batches that a query of Spark's has staged (:mod:`streamjoin.io.staged`): a table whose changes are the micro-batches.

Who stages them is a session of Spark's in which two DataFrames are joined, or, of a stream whose source is ``spark``, a program beside the
driver (``api.feeder``). Of the latter input is exhausted when that program says so.

Always holds: micro-batches are taken in the order of their numbers, none is passed over; one is removed only when a commit has passed it.
A batch that Spark stages again after that has a number that is behind the position, so it is not read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from streamjoin.io import staged
from streamjoin.io.base import Position, SourceError, SourcePlan
from streamjoin.io.table_source import Change, KeptChanges, Mark, TableFile, TableSource
from streamjoin.language.ddl import parse_schema
from streamjoin.location import place
from streamjoin.state.storage import ObjectStorage, StorageError

if TYPE_CHECKING:
    from streamjoin.io.factory import Reading
    from streamjoin.manifest.connectors.spark import SparkSource
    from streamjoin.manifest.connectors.staged import StagedSource as Model


class StagedBatches:
    """See the module, and :class:`streamjoin.io.table_source.TableLog`. A mark is ``[number]``."""

    def __init__(self, storage: ObjectStorage, columns: Mapping[str, int | None] | None = None) -> None:
        """``columns``: those of a stream that has yet to be staged; None: what is staged says them."""
        self._storage, self._columns = storage, columns
        self._kept = KeptChanges(self._change, self._look)

    @property
    def root(self) -> str:
        return self._storage.url

    def begin(self) -> tuple[Mark, bool]:
        return [-1], False

    def columns(self) -> Mapping[str, int | None]:
        if self._columns is not None:
            return self._columns
        try:
            stream = staged.stream_in(self._storage)
        except staged.StagedError as error:
            raise SourceError(f"staged.path: {error}") from None
        if stream is None:
            raise SourceError(f"staged.path: {self.root}: nothing was staged there; start the query that stages, or correct the path")
        return dict.fromkeys(parse_schema(stream.schema).names)

    def changes(self, mark: Mark, *, itself: bool) -> Iterator[Change]:
        yield from self._kept.since(mark[0] if itself else mark[0] + 1)

    def _change(self, number: int) -> Change | None:
        batch = staged.batch(self._storage, number)
        if batch is None:
            return None
        return Change([number], [TableFile(path, size, added_ns=batch.at_ns) for path, size in batch.files])

    def _look(self, number: int) -> None:
        """Raises SourceError where later batches are there: this one was removed before it was read."""
        later = [each for each in staged.numbers(self._storage) if each > number]
        if later and staged.batch(self._storage, number) is None:
            why = f"micro-batch {number} was not read yet and is gone, and {later[0]} is there"
            raise SourceError(f"staged.path: {self.root}: {why}; restore it, or begin with a new checkpoint")


class StagedSource(TableSource):
    """See the module."""

    def __init__(self, batches: StagedBatches, storage: ObjectStorage, where: str, model: Model | SparkSource, reading: Reading) -> None:
        super().__init__(batches, reading.schema, where, model.max_files_per_epoch)
        self._storage = storage
        self._removed_below = -1

    def committed(self, position: Position) -> None:
        """See :class:`streamjoin.io.base.Follower`: what the commit has passed is removed."""
        below = position["mark"][0] + (position["file"] is None)
        if below != self._removed_below:
            with contextlib.suppress(StorageError):  # the next commit tries again
                staged.remove(self._storage, below)
                self._removed_below = below


def open_source(model: Model, reading: Reading) -> StagedSource:
    """See ``io.factory``."""
    storage = ObjectStorage(place(model.path))
    return StagedSource(StagedBatches(storage), storage, f"staged.path: {model.path}", model, reading)


class _FedSource(StagedSource):
    """Of a stream whose source is ``spark``."""

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        """See :class:`streamjoin.io.base.Source`."""
        has_ended = not final or staged.has_ended(self._storage)  # before it is seen what there is
        plan = super().plan(position, limit_records, now, final, split_records=split_records)
        return plan if has_ended else replace(plan, exhausted=False)


def open_fed(model: SparkSource, reading: Reading) -> StagedSource:
    """See ``io.factory``."""
    storage = ObjectStorage(model.staging)
    batches = StagedBatches(storage, dict.fromkeys(reading.schema.names))
    return _FedSource(batches, storage, f"spark.format: {model.format}", model, reading)
