"""Exactly once through power losses: the disk forgets what was not flushed, at every call that flushes or changes names.

Each case runs the same small join, loses the power at one place, or at random ones, starts it again on what the disk has, and compares the
output with the oracle's.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from cases import ALL, how_many
from disk import Disk, End, Keeps
from harness import SECOND, START, Crash, Input, driver_for, make_batch
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.snapshots import StorageSnapshots
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.log import read_latest
from streamjoin.state.storage import AlreadyExists, ObjectStorage, StorageError
from test_crashes import check, exhaust, job_at, make_inputs

EVERY = {"with the commit": 4, "gathered": 4, "in files": 20} if not ALL else {"with the commit": 1, "gathered": 1, "in files": 5}
"""The power is lost at one of so many calls: a run with files makes hundreds."""
SHARED = 10
"""By so many calls runs may differ, as threads that flush one directory at once share a call: so in a short one the power stays."""


def run(root: Path, inputs: tuple[Input, Input], disk: Disk) -> Driver:
    """Start drivers until one finds nothing more to do, each on what the disk has."""
    for _ in range(100):
        storage = ObjectStorage(str(root / "state"))
        driver = driver_for(job_at(root), inputs, storage, InlineRunner())
        try:
            driver.start()
            exhaust(driver)
            driver.stop()
            return driver
        except Crash:
            disk.restart()
            committed = driver.checkpoint.epoch
            latest = read_latest(storage)
            assert committed <= (-1 if latest is None else latest.checkpoint.epoch), "a commit that had been confirmed is lost"
    raise AssertionError("the power was lost a hundred times")


@pytest.mark.parametrize("keeps", Keeps)
def test_the_power_may_be_lost_at_any_call(keeps: Keeps, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(epochs=3)
    counting = Disk(tmp_path / "count", keeps, monkeypatch)
    run(tmp_path / "count", inputs, counting)
    counting.close()
    assert len(counting.calls) > 30
    for number in range(random.Random(keeps).randrange(EVERY[small]), len(counting.calls), EVERY[small]):
        root = tmp_path / str(number)
        disk = Disk(root, keeps, monkeypatch, end_at={number: End.POWER}.get)
        driver = run(root, inputs, disk)
        assert len(disk.calls) > number - SHARED
        disk.close()
        check(root, inputs, driver, f"call {number}, {keeps} kept")


class DiesBeforeItFlushes:
    """Ends the first process when it has published and not come to flush that, and takes the power some calls later."""

    def __init__(self, later: int) -> None:
        self.disk: Disk
        self.died_at: int | None = None
        self._later = later

    def __call__(self, call: int) -> End | None:
        before, now = ["", *self.disk.calls][-2:]
        if self.died_at is None and now.startswith("fsync") and now.endswith("/out") and before.startswith("replace"):
            self.died_at = call
            return End.DEATH
        return End.POWER if self.died_at is not None and call == self.died_at + self._later else None


def test_the_power_may_be_lost_soon_after_a_process_that_died(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one may rely on nothing that it finds, unless it is on the disk; its own epochs have no results that it would flush."""

    def stream(apart: int) -> Input:
        rows = [[(10 * epoch, apart * epoch, 0, START + epoch * SECOND)] for epoch in range(4)]
        return Input([make_batch(of_epoch, pa.int64()) for of_epoch in rows], [1] * len(rows))

    inputs = stream(10), stream(-10)
    for later in itertools.count(1):
        root, ends = tmp_path / str(later), DiesBeforeItFlushes(later)
        disk = ends.disk = Disk(root, Keeps.NOTHING, monkeypatch, end_at=ends)
        driver = run(root, inputs, disk)
        disk.close()
        check(root, inputs, driver, f"power lost {later} calls after a death")
        assert ends.died_at is not None
        if len(disk.calls) <= ends.died_at + later:
            break


@pytest.mark.parametrize("keeps", Keeps)
def test_the_power_may_be_lost_again_and_again(keeps: Keeps, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(how_many(4, of=2)):
        rng = random.Random(f"{keeps}{seed}")
        inputs = make_inputs(seed, epochs=6)
        root = tmp_path / str(seed)
        ends = rng.choices([End.POWER, End.DEATH, None], weights=[1, 1, 150], k=10_000)
        disk = Disk(root, keeps, monkeypatch, end_at=ends.__getitem__)
        driver = run(root, inputs, disk)
        disk.close()
        check(root, inputs, driver, f"seed {seed}, {keeps} kept")


WRITES: dict[str, Callable[[ObjectStorage], None]] = {
    "state/blocks/7/one": lambda storage: storage.put("blocks/7/one", b"data"),
    "state/log/0.entry": lambda storage: storage.create("log/0.entry", b"data"),
    "state/sources/one": lambda storage: StorageSnapshots(storage).put("one", b"data"),
    "state/outbox/sent": lambda storage: (storage.put("outbox/sent", b"before"), storage.put("outbox/sent", b"data"))[1],
}


@pytest.mark.parametrize("keeps", Keeps)
@pytest.mark.parametrize("path", WRITES)
def test_what_a_write_has_returned_from_is_there_after_a_power_loss(
    path: str, keeps: Keeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    returned = False
    disk = Disk(root, keeps, monkeypatch, end_at=lambda call: End.POWER if returned else None)
    WRITES[path](ObjectStorage(str(root / "state")))
    returned = True
    with pytest.raises(Crash):
        (root / "more").mkdir()
    disk.restart()
    disk.close()
    assert (root / path).read_bytes() == b"data"


@pytest.mark.parametrize("keeps", Keeps)
def test_whoever_finds_its_own_entry_finds_it_on_the_disk(keeps: Keeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a create was lost after the file had got its name, so that it is asked again."""
    root, is_over = tmp_path / "root", False
    storage = ObjectStorage(str(root / "state"))
    disk = Disk(root, keeps, monkeypatch, end_at=lambda call: End.POWER if is_over else None)
    storage.put("log/other", b"")
    with (root / "state/log/0.entry").open("wb") as file:
        file.write(b"data")
        file.flush()
        os.fsync(file.fileno())
    with pytest.raises(AlreadyExists):
        storage.create("log/0.entry", b"data")
    is_over = True
    with pytest.raises(Crash):
        (root / "more").mkdir()
    disk.restart()
    disk.close()
    assert (root / "state/log/0.entry").read_bytes() == b"data"


DAMAGES: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: b"",
    lambda data: data[:-1],
    lambda data: bytes(len(data)),
    lambda data: data[:9] + b"?" + data[10:],
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_ends_the_start_with_what_to_do(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    inputs, root = make_inputs(), tmp_path
    storage = ObjectStorage(str(root / "state"))
    first = driver_for(job_at(root), inputs, storage, InlineRunner())
    first.start()
    for _ in range(3):
        first.step()
    *_, before, newest = storage.list("log")
    path = root / "state" / newest
    path.write_bytes(damage(path.read_bytes()))
    driver = driver_for(job_at(root), inputs, storage, InlineRunner())
    told = rf"{newest}: this entry is damaged .*Restore the entry; or remove it: .* from {before}, after epoch 1"
    with pytest.raises(StorageError, match=told):
        driver.start()
    path.unlink()
    again = driver_for(job_at(root), inputs, storage, InlineRunner())
    again.start()
    exhaust(again)
    check(root, inputs, again, "without its newest entry")


def test_a_checkpoint_whose_only_entry_is_damaged_says_so(tmp_path: Path) -> None:
    storage = ObjectStorage(str(tmp_path / "state"))
    storage.put("log/0000000000000000.entry", b"")
    driver = driver_for(job_at(tmp_path), make_inputs(), storage, InlineRunner())
    with pytest.raises(StorageError, match=r"0\.entry: this entry is damaged \(it has 0 bytes\).*choose a new checkpoint\.location"):
        driver.start()
