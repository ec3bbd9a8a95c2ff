"""A source that makes up its records: deterministic by seed, any range of rows by any task, the same after a crash.

Row i's values are functions of (seed, column, i) alone (``generator_columns``). Row i's event time is the time at which the
integral of the rate reaches i (``generator_rates``).

Always holds: only IEEE operations that every processor rounds alike decide values row by row (no vectorised sine or
power), so a split that is read again on another machine is the same.

Two streams with the same seed have equal values in columns of equal name and range: give each stream its own seed,
unless that is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streamjoin.io.base import Position, Records, Source, SourcePlan, Split, no_records
from streamjoin.io.generator_columns import (
    ChoiceValues,
    Chunk,
    HotspotValues,
    SequenceValues,
    UniformValues,
    Values,
    ZipfValues,
    column_maker,
    event_time_maker,
)
from streamjoin.io.generator_rates import SECOND, ConstantRate, DiurnalRate, RampRate, Rate, SpikeRate

if TYPE_CHECKING:
    from streamjoin.io.factory import Reading
    from streamjoin.manifest.connectors import generator as models

SPLIT_ROWS = 250_000
CHUNK_ROWS = 1 << 15
"""Rows made at a time, so that the intermediate arrays stay in the processor's cache."""


@dataclass(frozen=True)
class GeneratorConfig:
    """A generator as the manifest describes it."""

    rate: Rate
    columns: Mapping[str, Values]
    seed: int = 1
    rows: int | None = None
    """In all; None: endless."""
    start_micros: int = 0
    """The event time of the first tuple."""
    real_time: bool = True
    """Tuples become due by the wall clock, counted from the first plan; otherwise at once."""
    out_of_order_micros: int = 0
    """Event times are moved back by a random amount up to this."""


class GeneratorSource(Source):
    """Plans ranges of rows.

    The position is ``{"next": row, "anchor": seconds}``; the anchor is the wall clock of the first plan.
    """

    def __init__(self, config: GeneratorConfig, schema: pa.Schema, event_time: str | None) -> None:
        """``config``: of a manifest, which says that it fits the schema. Raises SourceError where the event time is no timestamp."""
        self.config = config
        self._reader = GeneratorReader(config, schema, event_time)
        self._reader.compile()

    @property
    def reader(self) -> GeneratorReader:
        return self._reader

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        """See :class:`streamjoin.io.base.Source`; exact record counts. O(splits)."""
        first = int(position["next"]) if position else 0
        anchor = float(position["anchor"]) if position else now
        total = self.config.rows
        due = total
        if self.config.real_time:
            due = self._rows_due(math.floor((now - anchor) * SECOND), first)
            due = due if total is None else min(due, total)
        end = first + max(limit_records, 0) if due is None else max(first, min(first + max(limit_records, 0), due))
        most = min(SPLIT_ROWS, split_records or SPLIT_ROWS)
        splits = tuple(Split(first_record=at, records=min(most, end - at)) for at in range(first, end, most))
        backlog = limit_records if due is None else max(due - end, 0)
        exhausted = total is not None and end >= total
        event_now = self.config.start_micros + self._event_micros(end - 1)
        if self.config.real_time and not exhausted:
            event_now = self.config.start_micros + math.floor((now - anchor) * SECOND)
        return SourcePlan(splits, {"next": end, "anchor": anchor}, end - first, backlog, exhausted, end, event_now=event_now)

    def _event_micros(self, row: int) -> int:
        """Event time of a row, since the start."""
        return int(self.config.rate.event_micros(np.array([max(row, 0)], dtype=np.float64))[0])

    def _rows_due(self, elapsed_micros: int, at_least: int) -> int:
        """How many rows have a time up to ``elapsed_micros`` after the start, by the rows' own times. O(log rows)."""

        def is_due(row: int) -> bool:
            return self._event_micros(row) <= elapsed_micros

        if not is_due(at_least):
            return at_least
        low, step = at_least, 1
        while is_due(low + step):
            low, step = low + step, step * 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if is_due(middle) else (low, middle)
        return high


@dataclass(frozen=True)
class GeneratorReader:
    """Makes the rows of a split."""

    config: GeneratorConfig
    schema: pa.Schema
    event_time: str | None

    def read(self, split: Split) -> Iterator[Records]:
        """The split as one batch. 5 to 10 million rows a second and core for two integer columns."""
        yield Records(self.rows(split.first_record, split.records))

    def rows(self, first: int, count: int) -> pa.RecordBatch:
        """Rows first .. first + count - 1. O(count)."""
        columns = self.compile()
        chunks = []
        for at in range(first, first + count, CHUNK_ROWS):
            rows = np.arange(at, min(at + CHUNK_ROWS, first + count), dtype=np.int64)
            chunk = Chunk(rows, self.config.rate)
            chunks.append(pa.record_batch([make(chunk) for make in columns], schema=self.schema))
        if not chunks:
            return no_records(self.schema)
        if len(chunks) == 1:
            return chunks[0]
        return pa.concat_batches(chunks)

    def compile(self) -> list[Callable[[Chunk], pa.Array]]:
        """For each column of the schema a function that makes it."""
        config = self.config
        specs = {name.casefold(): values for name, values in config.columns.items()}
        time_column = None if self.event_time is None else self.event_time.casefold()
        return [
            event_time_maker(config.seed, item, config.start_micros, config.out_of_order_micros)
            if item.name.casefold() == time_column
            else column_maker(config.seed, item, specs[item.name.casefold()])
            for item in self.schema
        ]


def open_source(model: models.GeneratorSource, reading: Reading) -> GeneratorSource:
    """See ``io.factory``."""
    config = GeneratorConfig(
        rate=_rate(model.rate),
        columns={name: _values(column) for name, column in model.columns.items()},
        seed=model.seed,
        rows=model.rows,
        start_micros=model.start_micros,
        real_time=model.real_time,
        out_of_order_micros=model.out_of_order.micros,
    )
    return GeneratorSource(config, reading.schema, reading.event_time)


def _rate(rate: models.Rate) -> Rate:
    if rate.ramp is not None:
        return RampRate(rate.ramp.start, rate.ramp.end, rate.ramp.over.micros / SECOND)
    if rate.diurnal is not None:
        wave = rate.diurnal
        return DiurnalRate(wave.mean, wave.amplitude, wave.period.micros / SECOND, wave.begin.micros / SECOND)
    if rate.spike is not None:
        spike = rate.spike
        every = spike.every.micros / SECOND if spike.every is not None else 0.0
        return SpikeRate(spike.base, spike.peak, spike.at.micros / SECOND, spike.length.micros / SECOND, every)
    assert rate.constant is not None
    return ConstantRate(rate.constant)


def _values(column: models.ColumnGenerator) -> Values:
    if column.sequence is not None:
        return SequenceValues(column.sequence.start)
    if column.uniform is not None:
        return UniformValues(column.uniform.min, column.uniform.max)
    if column.zipf is not None:
        return ZipfValues(column.zipf.values, column.zipf.exponent)
    if column.hotspot is not None:
        hotspot = column.hotspot
        return HotspotValues(hotspot.min, hotspot.max, hotspot.width, hotspot.share, hotspot.period.micros / SECOND)
    assert column.choice is not None
    return ChoiceValues(column.choice)
