"""A stream of another join's results (:mod:`streamjoin.state.intermediate`), and where that join's tasks leave them.

The position is ``{"epoch": e, "number": k, "row": r, "records": n}``: results up to the k-th part of epoch e, and the first r rows of the
next part, have been read, n in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from streamjoin.io.arrivals import Arrivals
from streamjoin.io.base import MAX_BATCH_ROWS, Position, Records, Source, SourcePlan, Split, Staged
from streamjoin.io.outbox import OutboxWriter
from streamjoin.state.blocks import FOLDER
from streamjoin.state.extent import Extent
from streamjoin.state.intermediate import IntermediateResult, read_intermediate
from streamjoin.state.storage import Storage

SPLIT_ROWS = 250_000
BEGIN: Position = {"epoch": -1, "number": -1, "row": 0, "records": 0}


@dataclass(frozen=True, kw_only=True)
class ResultsSplit(Split):
    """Some rows of one part."""

    extent: Extent
    first_row: int


class ResultsSource(Source):
    """Plans what commits name of a join's results. The driver shows it those (:meth:`show`) before it asks for a plan."""

    def __init__(self, join: str, storage: Storage, schema: pa.Schema) -> None:
        self.join = join
        self._reader = ResultsReader(storage, schema)
        self._fed: tuple[IntermediateResult, ...] = ()
        self._shown_at: dict[tuple[int, int], float] = {}
        """By epoch and number of a part, when it was shown first."""

    @property
    def reader(self) -> ResultsReader:
        return self._reader

    def show(self, fed: Sequence[IntermediateResult], now: float) -> None:
        """What the last commit names."""
        self._fed = tuple(part for part in fed if part.join == self.join)
        self._shown_at = {(part.epoch, part.number): self._shown_at.get((part.epoch, part.number), now) for part in self._fed}

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        """See :class:`streamjoin.io.base.Source`; exact record counts. O(parts)."""
        at, splits, room = dict(position or BEGIN), list[ResultsSplit](), max(1, limit_records)
        most = min(SPLIT_ROWS, split_records or SPLIT_ROWS)
        left = [part for part in self._fed if part.is_after(at["epoch"], at["number"])]
        first, records, arrived = at["records"], at["records"], list[tuple[float, int]]()
        backlog = sum(part.rows for part in left) - at["row"]
        for part in left:
            while room > 0 and at["row"] < part.rows:
                rows = min(most, room, part.rows - at["row"])
                splits.append(ResultsSplit(first_record=records, records=rows, extent=part.extent, first_row=at["row"]))
                arrived.append((self._shown_at[part.epoch, part.number], rows))
                at["row"], records, room = at["row"] + rows, records + rows, room - rows
            if at["row"] < part.rows:
                break
            at |= {"epoch": part.epoch, "number": part.number, "row": 0}
        backlog -= records - first
        after = at | {"records": records}
        return SourcePlan(tuple(splits), after, records - first, backlog, backlog == 0, records, arrivals=Arrivals.each(arrived))


@dataclass(frozen=True)
class ResultsReader:
    """Reads the results of a join."""

    storage: Storage
    schema: pa.Schema

    def read(self, split: ResultsSplit) -> Iterator[Records]:
        """See :class:`streamjoin.io.base.Reader`. Raises StorageError."""
        passed, end = 0, split.first_row + split.records
        for whole in read_intermediate(self.storage, split.extent):
            low, high = max(passed, split.first_row), min(passed + whole.num_rows, end)
            for start in range(low, high, MAX_BATCH_ROWS):
                batch = whole.slice(start - passed, min(MAX_BATCH_ROWS, high - start))
                yield Records(batch.cast(self.schema), first=start - split.first_row)
            passed += whole.num_rows


@dataclass(frozen=True)
class Feed:
    """Where a task leaves the results that streams read."""

    storage: Storage
    schema: pa.Schema

    def writer(self, name: str, *, small_bytes: int) -> OutboxWriter:
        """``name`` is unique to the epoch, task, attempt and join."""

        def blank(done: list[Staged]) -> Staged:
            return Staged("", "", 0, 0, is_fed=True)

        return OutboxWriter(self.storage, self.schema, f"{FOLDER}/{name}", small_bytes, blank, compression=None, is_file=True)
