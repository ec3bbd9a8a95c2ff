"""Workers that hold as much as they may: what is said, which streams wait, and that nothing is lost or stuck for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from harness import SECOND, START, make_batch, make_job
from poison_reader import PoisonSource
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochFailed
from streamjoin.io.base import Position, SourcePlan
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage

CAPACITY = 200
PER_EPOCH = 100
MOST = 1 + 2 * PER_EPOCH / CAPACITY
"""No more than an epoch beyond, and the one that was begun with it."""


class Arriving(PoisonSource):
    """A stream of one batch, of which so many records are there."""

    def __init__(self, batch: pa.RecordBatch, there: int) -> None:
        super().__init__(batch, 1000)
        self.all, self.there = batch.num_rows, there

    def plan(self, position: Position | None, limit_records: int, *arguments: Any, **options: Any) -> SourcePlan:
        first = position["at"] if position else 0
        room = max(0, min(limit_records, self.there - first))
        plan = super().plan(position, room or 1, *arguments, **options)
        left = self.there - first - room
        if not room:
            return replace(plan, splits=(), position=position or {"at": 0}, records=0, end_record=first, backlog_records=0, exhausted=True)
        return replace(plan, backlog_records=left, exhausted=not left)


def batch_of(count: int, seconds: float) -> pa.RecordBatch:
    return make_batch([(row, row % 7, 1, START + round(row * seconds * SECOND)) for row in range(count)], pa.int64())


def join_at(root: Path, sources: list[Arriving], **scaling: Any) -> Driver:
    job = make_job(
        root,
        on="l.k = r.k",
        window={"within": "10s"},
        workers=1,
        capacity=CAPACITY,
        watermark="0s",
        epoch={"maxTuples": PER_EPOCH},
        scaling=scaling,
    )
    driver = Driver(job, ObjectStorage(str(root / "state")), InlineRunner(), sources=sources)
    driver.start()
    return driver


def expected(left: pa.RecordBatch, right: pa.RecordBatch) -> int:
    with duckdb.connect() as connection:
        connection.register("l", left)
        connection.register("r", right)
        near = "abs(epoch_us(l.at) - epoch_us(r.at)) <= 10000000"
        ((count,),) = connection.execute(f"SELECT count(*) FROM l, r WHERE l.k = r.k AND {near}").fetchall()
    return int(count)


def test_a_stream_waits_for_a_silent_one_once_workers_are_full_and_then_all_is_joined(tmp_path: Path) -> None:
    left, right = batch_of(1000, 1.0), batch_of(1000, 1.0)
    sources = [Arriving(left, 1000), Arriving(right, 1)]
    driver = join_at(tmp_path, sources)
    output, fullest = 0, 0.0
    while (result := driver.step()) is not None:
        output += result.output
        fullest = max(fullest, *result.utilization.values())
    assert 1 <= fullest <= MOST
    (warning,) = driver.idle_warnings
    assert "l is not read until r has caught up in event time" in warning
    assert not driver.exhausted
    sources[1].there = 1000
    while (result := driver.step()) is not None:
        output += result.output
        fullest = max(fullest, *result.utilization.values())
    assert output == expected(left, right)
    assert fullest <= MOST


def test_where_no_more_comes_the_rest_is_joined_all_the_same(tmp_path: Path) -> None:
    left, right = batch_of(1000, 1.0), batch_of(1, 1.0)
    driver = join_at(tmp_path, [Arriving(left, 1000), Arriving(right, 1)])
    output = 0
    while (result := driver.step(final=True)) is not None:
        output += result.output
    assert driver.exhausted
    assert output == expected(left, right)


def test_streams_that_are_level_are_read_on_and_it_is_said_that_workers_are_too_few(tmp_path: Path) -> None:
    """Reading less would not make their windows smaller."""
    left, right = batch_of(1000, 0.01), batch_of(1000, 0.01)
    driver = join_at(tmp_path, [Arriving(left, 1000), Arriving(right, 1000)])
    warnings, output = set(), 0
    while (result := driver.step(final=True)) is not None:
        output += result.output
        warnings |= set(result.warnings)
    assert output == expected(left, right)
    assert any("the fullest worker holds as much as it may" in warning and "whenFull" in warning for warning in warnings)


def test_a_run_may_rather_fail(tmp_path: Path) -> None:
    driver = join_at(tmp_path, [Arriving(batch_of(1000, 0.01), 1000) for _ in range(2)], whenFull="fail")
    with pytest.raises(EpochFailed, match=r"tau is at or above 1\), and spec.scaling.whenFull is fail; raise spec.workers.max") as failed:
        list(iter(driver.step, None))
    assert failed.value.permanent


def test_or_shed(tmp_path: Path) -> None:
    driver = join_at(tmp_path, [Arriving(batch_of(1000, 0.01), 1000) for _ in range(2)], whenFull="shed")
    fullest = shed = 0.0
    while (result := driver.step()) is not None:
        fullest, shed = max(fullest, *result.utilization.values()), shed + sum(result.counts["shed"])
    assert shed > 0
    assert fullest < 2
