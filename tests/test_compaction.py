"""Blocks of plans gone by: how few become of them, and that nothing is lost or there twice meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest

from cases import ALL
from harness import START, Input, Remote, driver_for, make_batch, make_job, oracle, output_of
from s3 import S3Server
from streamjoin.controlplane import compaction
from streamjoin.controlplane.compaction import FAN_IN, next_rewrite
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.plan import Plan
from streamjoin.job import Job
from streamjoin.language.sides import SIDES
from streamjoin.language.window import Window, WindowKind
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.scheme.statistics import SideStatistics, Statistics
from streamjoin.state.blocks import Block, load
from streamjoin.state.checkpoint import Checkpoint, HeldState, PlanState, Texts
from streamjoin.state.extent import Extent
from streamjoin.state.log import Entry, path_of
from streamjoin.state.storage import ObjectStorage, StorageError
from test_crashes import exhaust

HOUR = 3_600_000_000
UNBOUNDED = Window(WindowKind.UNBOUNDED)


def block(number: int, nbytes: int, *, side: int = 0, generation: int = 1, time: int = 0) -> Block:
    return Block(f"blocks/{number}", side, generation, 0, nbytes // 24 or 1, nbytes, number, number + 1, 0, 1, time, time)


RUNNING = Checkpoint(epoch=0, plan=PlanState(generation=2))


def with_blocks(checkpoint: Checkpoint, *blocks: Block) -> Checkpoint:
    return replace(checkpoint, state=HeldState(blocks=blocks))


def applied(checkpoint: Checkpoint, number: int, window: Window) -> Checkpoint | None:
    """The checkpoint after the next rewrite; None: there is none."""
    rewrite = next_rewrite(checkpoint, window, incarnation=1, tasks=3)
    if rewrite is None:
        return None
    assert len(rewrite.blocks) > 1
    assert {block.place for block in rewrite.blocks} == {rewrite.place}
    assert all(block.generation != checkpoint.plan.generation for block in rewrite.blocks)
    nbytes = sum(block.nbytes for block in rewrite.blocks)
    assert nbytes <= compaction.MOST_BYTES
    made = block(number, nbytes, side=rewrite.place, generation=0, time=max(block.time_max or 0 for block in rewrite.blocks))
    return with_blocks(checkpoint, *(block for block in checkpoint.state.blocks if block not in rewrite.blocks), made)


def test_few_blocks_remain_and_each_tuple_is_rewritten_seldom() -> None:
    rng, checkpoint, written, rewritten = random.Random(1), Checkpoint(epoch=0, plan=PlanState(generation=10**6)), 0, 0
    for number in range(3000):
        nbytes = rng.choice([500, 3000, 40_000])
        written += nbytes
        checkpoint = with_blocks(checkpoint, *checkpoint.state.blocks, block(number, nbytes, side=rng.randint(0, 1)))
        while (after := applied(checkpoint, 10_000 + number, UNBOUNDED)) is not None:
            rewritten += sum(block.nbytes for block in after.state.blocks if block not in checkpoint.state.blocks)
            checkpoint = after
        assert len(checkpoint.state.blocks) <= 2 * (FAN_IN - 1) * 6
    assert rewritten < 5 * written


def test_what_expires_together_is_put_together() -> None:
    window = Window(WindowKind.RANGE, before_micros=4 * HOUR, after_micros=4 * HOUR)
    blocks = tuple(block(number, 1000, time=number * HOUR // 10) for number in range(100))
    rewrite = next_rewrite(with_blocks(RUNNING, *blocks), window, 1, 1)
    assert rewrite is not None
    times = [block.time_max or 0 for block in rewrite.blocks]
    assert max(times) - min(times) <= HOUR
    spread = tuple(block(number, 1000, time=number * HOUR) for number in range(7))
    assert next_rewrite(with_blocks(RUNNING, *spread), window, 1, 1) is None


def test_blocks_of_the_plan_that_runs_are_its_workers_own() -> None:
    blocks = tuple(block(number, 1000, generation=2) for number in range(100))
    assert next_rewrite(with_blocks(RUNNING, *blocks), UNBOUNDED, 1, 1) is None


def epochs(count: int, rng: random.Random) -> Input:
    """Two tuples an epoch, two epochs an hour."""
    rows = [[(2 * number + i, rng.randint(0, 10**5), 0, START + number * HOUR // 2 + i) for i in range(2)] for number in range(count)]
    return Input([make_batch(of_epoch, pa.int64()) for of_epoch in rows], [1] * count)


def job_at(root: Path | Remote, on: str) -> Job:
    job = make_job(root, on=on, types=("BIGINT", "BIGINT"), window={"unbounded": True})
    return replace(job, min_workers=1, max_workers=4)


def step(driver: Driver) -> None:
    """One epoch, and what it has begun in the background."""
    assert driver.step() is not None
    for store in driver._runner._stores.values():  # type: ignore[attr-defined]
        if store._background is not None:
            wait([store._background[1]])


def plan_of(driver: Driver, tasks: int) -> Plan:
    status = driver.plan_status()
    assert status is not None
    assert driver.layout is not None
    alike = Statistics((SideStatistics(1.0, None), SideStatistics(1.0, None)))
    scheme = plan_for_tasks("square", alike, driver.layout.main, tasks, current=driver.scheme)
    running = status.scheme.tasks
    return Plan(status.generation + 1, scheme, tuple(task if task < running else None for task in range(scheme.tasks)))


def unreadable(*_: object) -> NoReturn:
    raise StorageError("s3: no answer")


@pytest.mark.parametrize(("small", "days"), [("with the commit", 30 if ALL else 8), ("in files", 3)], indirect=["small"])
def test_a_join_without_end_stays_small_however_often_its_plan_changes(small: str, days: int, tmp_path: Path) -> None:
    """A plan an hour."""
    rng, count, on = random.Random(2), 3 * 24 * days, "l.k >= r.k - 10 AND l.k <= r.k + 10"
    inputs, storage = (epochs(count, rng), epochs(count, rng)), ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(job_at(tmp_path, on), inputs, storage, InlineRunner())
    driver.start()
    most_blocks = most_bytes = 0
    for number in range(count):
        step(driver)
        if number % 3 == 0 and number < count - 3:
            assert driver.put_plan(plan_of(driver, 1 + number // 3 % 4))
        most_blocks = max(most_blocks, len(driver.checkpoint.state.blocks))
        if number % 100 == 99:
            entry = storage.get(path_of(driver._log.sequence))
            most_bytes = max(most_bytes, len(entry))
            checkpoint = Entry.decode(entry).checkpoint
            for side in SIDES:
                blocks = [block for block in checkpoint.state.blocks if block.place == side]
                stored = Counter(rid for block in blocks for rid in load(storage, block).column("rid").to_pylist())
                assert stored == Counter(range(2 * (number + 1)))
    assert driver.checkpoint.plan.generation >= 24 * days
    assert most_blocks < 100
    assert most_bytes < 40_000
    exhaust(driver)
    assert output_of(tmp_path) == oracle(inputs, (pa.int64(), pa.int64()), on, "true", None)


def test_a_rewrite_in_an_object_store_is_in_parts_and_what_cannot_be_read_is_told(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", 0)
    monkeypatch.setattr(compaction, "FAN_IN", 2)
    for name in ("WHOLE_BYTES", "ROOT_BYTES", "CELL_BYTES"):
        monkeypatch.setattr(f"streamjoin.state.blocks.{name}", 20)
    rng, root = random.Random(3), s3.bucket()
    inputs, storage = (epochs(12, rng), epochs(12, rng)), ObjectStorage(str(root / "state"))
    driver = driver_for(job_at(root, "l.k = r.k"), inputs, storage, InlineRunner())
    driver.start()
    step(driver)
    before = driver.checkpoint.plan.generation
    assert driver.put_plan(plan_of(driver, 3))
    while driver.checkpoint.plan.generation == before:
        step(driver)
    with monkeypatch.context() as broken:
        broken.setattr("streamjoin.dataplane.tiering.load_all", unreadable)
        step(driver)
        result = driver.step()
        assert result is not None
        assert result.warnings == ("blocks of former plans could not be merged: s3: no answer",)
    for _ in range(4):
        step(driver)
    assert any(block.generation == 0 and block.parts is not None for block in driver.checkpoint.state.blocks)


def test_a_checkpoint_is_written_the_same_whether_its_blocks_were_written_before_or_not() -> None:
    rng = random.Random(76)
    known, blocks = Texts(), list[Block]()
    for epoch in range(30):
        blocks = [block for block in blocks if rng.random() < 0.8]
        for number in range(rng.randrange(5)):
            extent = Extent("log/1.entry", 10 * number, 10) if rng.random() < 0.5 else None
            blocks.append(Block(f"{epoch}-{number}", number % 2, 1, 0, 3, 10, -1.5, 2**60, 0, 7, None, epoch, extent=extent))
        if blocks and rng.random() < 0.3:  # a worker that began to hold another part of it
            blocks[0] = replace(blocks[0], rows=epoch)
        state = HeldState(blocks=tuple(blocks), marks=tuple(blocks[:2]))
        entry = Entry(epoch, 1, "one", "epoch", 1.0, Checkpoint(epoch=epoch, state=state))
        assert Entry.decode(entry.encode(b"segment", known)) == entry == Entry.decode(entry.encode(b"segment")), f"seed 76, epoch {epoch}"
