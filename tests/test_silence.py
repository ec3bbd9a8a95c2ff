"""A stream that is silent for longer than its idleTimeout does not hold the others' results back, and what it then brings is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import SECOND, START, Input, MemorySource, driver_for, make_batch, make_job, output_of
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.watermark import heard_after, held_back, without_silent
from streamjoin.epoch.ports import Held
from streamjoin.io.base import Blocked, SourcePlan
from streamjoin.job import Job
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.checkpoint import Checkpoint, InputState, Newest
from streamjoin.state.storage import ObjectStorage

BEGAN = START / SECOND
"""What the clock says in the first epoch."""
EPOCHS = 30
BACK = 20
"""The epoch in which the silent stream has records again."""


def test_a_silent_stream_goes_on_with_the_least_of_those_that_are_not() -> None:
    assert without_silent([100, 50, None], [9.0, 2.0, 0.0], [None, 5.0, 5.0], 9.0) == (100, 100, 100)
    assert without_silent([100, 50, 70], [9.0, 2.0, 9.0], [None, 5.0, 5.0], 9.0) == (100, 70, 70)
    assert without_silent([100, 50], [9.0, 4.0], [None, 5.0], 9.0) == (100, 50), "it may be silent for so long"
    assert without_silent([100, 50], [0.0, 0.0], [None, None], 9e9) == (100, 50), "it is waited for"
    assert without_silent([100, 150], [9.0, 0.0], [None, 5.0], 9.0) == (100, 150), "no watermark goes back"
    assert without_silent([100, 50], [0.0, 0.0], [5.0, 5.0], 9.0) == (100, 50), "where all are silent, there is nothing to go on with"
    assert without_silent([None, 50], [9.0, 0.0], [None, 5.0], 9.0) == (None, 50)


def test_a_stream_is_heard_of_by_its_records_and_first_by_the_first_epoch() -> None:
    assert heard_after((), [True, False], 5.0) == (5.0, 5.0)
    assert heard_after((5.0, 5.0), [True, False], 8.0) == (8.0, 5.0)
    assert heard_after((8.0, 5.0), [False, False], 2.0) == (2.0, 2.0), "a clock was set back"


class Unforeseen(MemorySource):
    """One of which nobody knows that it will have more."""

    def plan(self, *arguments: Any, **options: Any) -> SourcePlan:
        return replace(super().plan(*arguments, **options), backlog_records=0, exhausted=False)


class LaterInput(Input):
    def source(self) -> MemorySource:
        return Unforeseen(self.batches, self.per_epoch)


def job_at(root: Path, silence_seconds: float | None) -> Job:
    options = {"window": {"within": "10s"}, "join_type": "anti", "watermark": "0s", "output": {"select": ["l.rid AS a"]}}
    job = make_job(root, on="l.k = r.k", **options)
    silence = None if silence_seconds is None else int(silence_seconds * SECOND)
    left, right = job.streams
    return replace(job, streams=(left, replace(right, silence_micros=silence)))


def inputs() -> tuple[Input, Input]:
    """A tuple of l every ten seconds; of r one at the beginning, then none for 200 seconds, then a late one and one that is in time."""
    left = [make_batch([(epoch, epoch, 0, START + epoch * 10 * SECOND)], pa.int64()) for epoch in range(EPOCHS)]
    back = START + BACK * 10 * SECOND
    right = [
        make_batch([(0, 0, 0, START)], pa.int64()),
        make_batch([(1, 5, 0, START + 50 * SECOND), (2, BACK, 0, back), (3, BACK + 1, 0, back + 10 * SECOND)], pa.int64()),
    ]
    return Input(left, [1] * EPOCHS), LaterInput(right, [1] + [0] * (BACK - 1) + [1] + [0] * (EPOCHS - BACK - 1))


@pytest.mark.parametrize("dies", [False, True], ids=["one driver", "a driver for each epoch"])
def test_what_has_no_partner_is_known_while_the_other_stream_is_silent(dies: bool, tmp_path: Path) -> None:
    now, job = [BEGAN], job_at(tmp_path, 60.0)
    left, right = inputs()

    def driver() -> Driver:
        return driver_for(job, (left, right), ObjectStorage(str(tmp_path / "state")), InlineRunner(), clock=lambda: now[0])

    running = driver()
    running.start()
    found, late = [], 0
    for epoch in range(EPOCHS):
        if dies and epoch:
            running = driver()
            running.start()
        result = running.step()
        late += result.counts["late"][1]
        found.append({a for (a,) in output_of(tmp_path)})
        now[0] += 10.0
    assert not found[5], "r may be silent for a minute"
    assert max(found[BACK - 1]) >= BACK - 10, "it is not waited for any more"
    assert found[BACK - 1] == set(range(1, max(found[BACK - 1]) + 1))
    assert late == 1
    assert found[-1].isdisjoint({0, BACK, BACK + 1}), "what came in time has matched"
    assert 5 in found[-1], "what came too late has not"


def test_without_a_timeout_a_silent_stream_is_waited_for(tmp_path: Path) -> None:
    now, (left, right) = [BEGAN], inputs()
    storage = ObjectStorage(str(tmp_path / "state"))
    running = driver_for(job_at(tmp_path, None), (left, right), storage, InlineRunner(), clock=lambda: now[0])
    running.start()
    for _ in range(BACK - 1):
        running.step()
        now[0] += 10.0
    assert not output_of(tmp_path)
    assert Checkpoint.decode(running.checkpoint.encode()).input.heard == (now[0] - 10.0, BEGAN)


def committed(root: Path, **fields: Any) -> Held | None:
    """Of a commit at 1,000 s."""
    fields = {"watermarks": (5_000_000, 90_000_000), "heard": (400.0, 1000.0)} | fields
    job = make_job(root, on="l.k = r.k", types=("BIGINT", "BIGINT"), window={"within": "10s"})
    return held_back(job, Checkpoint(epoch=3, committed_at=1000.0, input=InputState(**fields)))


def test_the_stream_that_is_behind_holds_the_others_back_since_its_last_record(tmp_path: Path) -> None:
    held = committed(tmp_path)
    assert held == Held("l", "", 400.0)
    assert held.told(459.0) is None, "not for long"
    assert held.told(461.0) == {"by": "l", "since": 400.0}
    assert committed(tmp_path, watermarks=(None, 90_000_000)) == Held("l", "", 400.0), "it may have had none ever"
    assert committed(tmp_path, watermarks=(7, 7)) is None
    assert committed(tmp_path, watermarks=(None, None)) is None


def plan(**fields: Any) -> SourcePlan:
    return SourcePlan(splits=(), position={}, records=0, backlog_records=0, exhausted=True, end_record=0, **fields)


def test_it_is_told_which_partition_or_file_of_it_does(tmp_path: Path) -> None:
    job = make_job(tmp_path, on="l.k = r.k", types=("BIGINT", "BIGINT"), window={"within": "10s"})
    job = replace(job, streams=(replace(job.streams[0], idle_micros=700_000_000), job.streams[1]))
    partitions = ({0: Newest(9, 900.0), 1: Newest(5, 500.0), 2: Newest(1, 100.0)}, {})
    after = Checkpoint(epoch=3, committed_at=1000.0, input=InputState(watermarks=(5, 90), heard=(900.0, 1000.0), partitions=partitions))
    assert held_back(job, after, ()) == Held("l", "partition 1", 500.0), "2 is idle"
    topics = {1: ("orders-eu", 4)}
    assert held_back(job, after, (plan(topics=topics), plan())) == Held("l", "partition 4 of orders-eu", 500.0)
    blocked = plan(blocked={0: Blocked(7, 80.0)})
    assert held_back(job, after, (blocked, plan())) == Held("l", "partition 0, behind an open transaction,", 920.0)
    files = replace(after, input=replace(after.input, partitions=({}, {})))
    assert held_back(job, files, (plan(pending="a/b.json"), plan())) == Held("l", "file a/b.json", 900.0)
