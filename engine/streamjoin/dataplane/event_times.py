"""The event times of a stream's records: a column's, or made of columns when a batch is read (``language.event_time``).

Always holds: event times that are made are one more column of the batch until its tuples are made ready, and are not a part of records in
dead letters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from streamjoin.io.values import plain, shortened
from streamjoin.kernel.expression import Evaluator
from streamjoin.language.event_time import DerivedTime

DERIVED = "\0eventTime"
"""No column of a schema has this name."""


class Timed(Protocol):
    """A stream, for tasks or for the driver."""

    @property
    def name(self) -> str: ...

    @property
    def event_time(self) -> str | None: ...

    @property
    def derived_time(self) -> DerivedTime | None: ...


def event_times_of(stream: Timed) -> EventTimes | None:
    """None: the stream has none."""
    if stream.derived_time is not None:
        return DerivedTimes(DERIVED, stream.derived_time.shown, stream.name, stream.derived_time, Evaluator(stream.derived_time.expression))
    return None if stream.event_time is None else EventTimes(stream.event_time, stream.event_time)


@dataclass(frozen=True)
class EventTimes:
    """Those of a column."""

    column: str
    """Where they are."""
    shown: str
    """How messages call them."""

    def added(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with its event times."""
        return batch

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """The event times of a batch that has them."""
        return batch.column(self.column)

    def reason(self, batch: pa.RecordBatch, row: int) -> str:
        """Why a record has none."""
        return f"{self.shown}: the event time is null; every record needs one"


@dataclass(frozen=True)
class DerivedTimes(EventTimes):
    """Those that are made of columns."""

    stream: str
    made: DerivedTime
    evaluator: Evaluator

    def added(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {(self.stream, name): batch.column(name) for name in self.made.columns}
        return batch.append_column(DERIVED, self.evaluator.evaluate(columns, batch.num_rows))

    def reason(self, batch: pa.RecordBatch, row: int) -> str:
        values = {name: plain(batch.column(name)[row]) for name in self.made.columns}
        if any(value is None for value in values.values()):
            names = ", ".join(name for name, value in values.items() if value is None)
            return f"column {names}: is null, so the event time is too ({self.shown}); every record needs one"
        shown = ", ".join(f"{name}: {_short(value)}" for name, value in values.items())
        return f"column {shown} {self.made.fault}"


def disorder(moments: np.ndarray, peak: int | None) -> tuple[float, int]:
    """How far event times (int64 microseconds, one or more) lie before one that came earlier, at most; and the latest of all. ``peak``: the
    latest of those that came before these. The difference of any two fits a float. O(n)."""
    first = moments[0] if peak is None else max(peak, moments[0])
    peaks = np.maximum(np.maximum.accumulate(moments), first)
    return float((peaks.astype(np.float64) - moments).max()), int(peaks[-1])


def _short(value: object) -> str:
    return shortened(repr(value) if isinstance(value, str | bytes) else str(value))
