"""Exactly once, whatever dies: every storage call and every step of an epoch fails or kills the driver, tasks die, drivers are doubled.

Each case runs the same small join, breaks it at one place, starts it again, and compares the output with the oracle's and the held state
with the tuples that can still match.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from cases import how_many, some
from harness import (
    SECOND,
    START,
    Arrived,
    Crash,
    FaultyStorage,
    Input,
    MemorySource,
    Root,
    arrivals,
    driver_for,
    make_batch,
    make_job,
    manifest_text,
    micros,
    oracle,
    output_of,
    staged_of,
)
from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.dataplane.join import Part
from streamjoin.epoch.ports import CheckpointMismatch, EpochFailed
from streamjoin.epoch.spec import EpochSpec, Piece
from streamjoin.io.base import Position, SourcePlan
from streamjoin.io.ownership import OwnedElsewhere
from streamjoin.job import Job
from streamjoin.manifest import load as load_manifest
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.blocks import load
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.log import CommitLog, Superseded, read_latest, since_boot
from streamjoin.state.storage import ObjectStorage, Storage, StorageError
from streamjoin.state.store import RunStore, read_back

WITHIN = 4
OPTIONS: dict[str, Any] = {
    "on": "abs(l.k - r.k) <= 1",
    "types": ("BIGINT", "BIGINT"),
    "window": {"within": f"{WITHIN}s"},
    "workers": 3,
    "watermark": "1s",
}
STEPS = ("claim", "republish", "sweep", "plan", "deploy", "tasks", "gather", "commit", "publish", "clean")
FAULTS = ("fail-before", "fail-after", "die-before", "die-after")


@functools.cache
def make_inputs(seed: int = 7, epochs: int = 6) -> tuple[Input, Input]:
    rng = random.Random(seed)

    def one() -> Input:
        batches, rid = [], 0
        for epoch in range(epochs):
            rows = []
            for _ in range(rng.randint(3, 9)):
                rows.append((rid, rng.randint(0, 9), 0, START + epoch * 2 * SECOND + rng.randint(0, 2 * SECOND)))
                rid += 1
            batches.append(make_batch(rows, pa.int64()))
        return Input(batches, [1] * epochs)

    return one(), one()


@pytest.fixture
def inputs() -> tuple[Input, Input]:
    return make_inputs()


def job_at(root: Root, **options: Any) -> Job:
    return make_job(root, **(OPTIONS | options))


def manifest_of(root: Path) -> str:
    return manifest_text(
        root, on="abs(l.k - r.k) <= 1", types=("BIGINT", "BIGINT"), window={"within": f"{WITHIN}s"}, workers=3, watermark="1s"
    )


@functools.cache
def expected(inputs: tuple[Input, Input]) -> Counter:
    return oracle(inputs, (pa.int64(), pa.int64()), "abs(l.k - r.k) <= 1", f"abs(l.at - r.at) <= {WITHIN * SECOND}", SECOND)


def finish(
    root: Root,
    inputs: tuple[Input, Input],
    storage: Storage,
    runner: Any,
    job: Job | None = None,
    before: Callable[[Driver], None] = lambda driver: None,
    **options: Any,
) -> Driver:
    """Start drivers until one finds nothing more to do; a driver that fails goes on, one that died is replaced. ``before`` is called before
    each step."""
    job = job or job_at(root)
    last = ""
    for _ in range(20):
        try:
            driver = driver_for(job, inputs, storage, runner, **options)
            driver.start()
            for _ in range(100):
                before(driver)
                try:
                    if driver.step() is None:
                        return driver
                except EpochFailed as error:
                    last = error.detail
        except (Crash, StorageError) as error:
            last = repr(error)
    raise AssertionError(f"never finished; the last failure was {last}")


def check(root: Root, inputs: tuple[Input, Input], driver: Driver, label: str, job: Job | None = None) -> None:
    """Output and durable state are what they would have been without the fault, and nothing else is left behind."""
    want, found = expected(inputs), output_of(root)
    assert found == want, f"{label}: missing {want - found}, unexpected {found - want}"
    storage = ObjectStorage(str(root / "state"))
    entry = read_latest(storage)
    assert entry is not None
    checkpoint, scheme = entry.checkpoint, driver.scheme
    assert scheme is not None
    seen = arrivals(inputs)
    for side in (0, 1):
        stored = Counter(
            rid for block in checkpoint.state.blocks if block.place == side for rid in load(storage, block).column("rid").to_pylist()
        )
        accepted = kept_rids(seen[side])
        assert not stored - Counter(accepted), f"{label}: stored more than arrived"
        newest = checkpoint.input.watermarks[1 - side]
        assert newest is not None
        live = Counter(rid for rid, at in accepted.items() if at >= newest - WITHIN * SECOND)
        assert not live - stored, f"{label}: lost {live - stored} of side {side}"
        assert max(stored.values(), default=1) == 1, f"{label}: stored twice"
    for index, area in enumerate(scheme.areas):
        runs = read_back(storage, checkpoint.state.blocks, {index: area}, checkpoint.plan.generation, (None, None)).runs
        for held in runs.values():
            for run in held:
                run.run.check()
    successor = driver_for(job or job_at(root), inputs, storage, InlineRunner())
    successor.start()
    named = {block.name for block in checkpoint.state.blocks if block.extent is None}
    assert set(storage.list("blocks")) == named, f"{label}: stray blocks"
    assert not staged_of(root), f"{label}: stray staged files"


def kept_rids(tuples: list[Arrived]) -> dict[int, int]:
    from harness import on_time

    return {arrived.row[0]: micros(arrived.row[3]) for arrived in on_time(tuples, SECOND)}


def count_storage_calls(root: Path, inputs: tuple[Input, Input]) -> list[str]:
    calls: list[str] = []

    def count(name: str, path: str) -> None:
        calls.append(f"{name} {path}")

    finish(root, inputs, FaultyStorage(ObjectStorage(str(root / "state")), count), InlineRunner())
    return calls


def nth(number: int, fault: str) -> Callable[[str, str], str | None]:
    calls = iter(range(1_000_000))
    return lambda name, path: fault if next(calls) == number else None


@pytest.mark.parametrize("fault", FAULTS)
def test_any_one_storage_call_may_fail_or_kill_the_driver(fault: str, small: str, tmp_path: Path, inputs: tuple[Input, Input]) -> None:
    calls = count_storage_calls(tmp_path / "count", inputs)
    assert len(calls) > (30 if small == "in files" else 9)
    for number, call in some(enumerate(calls), of=10, since=FAULTS.index(fault)):
        root = tmp_path / str(number)
        storage = FaultyStorage(ObjectStorage(str(root / "state")), nth(number, fault))
        job = job_at(root)
        driver = finish(root, inputs, storage, InlineRunner(), job)
        check(root, inputs, driver, f"{fault} at call {number} ({call})", job)


KEPT = ("with the commit", "gathered", "in files")
CASES = [(step, small) for small in KEPT for step in STEPS if step != "gather" or small == "gathered"]
ONCE = ("claim", "republish", "sweep", "deploy")
"""Steps of which a run has one."""


@pytest.mark.parametrize("runner_survives", [True, False])
@pytest.mark.parametrize(("step", "small"), CASES, indirect=["small"])
def test_the_driver_may_die_at_any_step_of_any_epoch(
    step: str, runner_survives: bool, small: str, tmp_path: Path, inputs: tuple[Input, Input]
) -> None:
    for visit in range(1) if step in ONCE else some(range(6), of=6, since=STEPS.index(step)):
        root = tmp_path / str(visit)
        visits = iter(range(1_000))

        def die(at: str, target: int = visit, visits: Any = visits) -> None:
            if at == step and next(visits) == target:
                raise Crash(at)

        runner = InlineRunner()
        try:
            driver = driver_for(job_at(root), inputs, ObjectStorage(str(root / "state")), runner, at=die)
            driver.start()
            while driver.step() is not None:
                pass
            raise AssertionError(f"{step} was not reached {visit + 1} times")
        except Crash:
            pass
        driver = finish(root, inputs, ObjectStorage(str(root / "state")), runner if runner_survives else InlineRunner())
        check(root, inputs, driver, f"died at {step}, visit {visit}")


class MortalRunner(InlineRunner):
    """Loses what some workers held, or kills a task at a chosen moment of the epoch."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def submit(self, spec: Any, workers: Any) -> Any:
        for worker in workers:
            if self._rng.random() < 0.2:
                self.lose(worker)
        return super().submit(spec, workers)


def test_workers_may_lose_their_runs_at_any_epoch(tmp_path: Path) -> None:
    for seed in range(how_many(10, of=2)):
        inputs = make_inputs(seed, epochs=8)
        root = tmp_path / str(seed)
        driver = finish(root, inputs, ObjectStorage(str(root / "state")), MortalRunner(random.Random(seed)))
        check(root, inputs, driver, f"seed {seed}")


class Forgetful(InlineRunner):
    """Workers lose what they hold after one epoch's tasks and before those of the next, which was begun already."""

    def submit(self, spec: Any, workers: Any) -> Any:
        epoch = super().submit(spec, workers)
        result = epoch.result

        def forget_first() -> Any:
            if spec.follows is not None and spec.epoch % 2:
                self.lose(workers[spec.epoch % len(workers)])
            return result()

        epoch.result = forget_first
        return epoch


def test_an_epoch_that_was_begun_too_early_is_begun_again(tmp_path: Path, inputs: tuple[Input, Input]) -> None:
    driver = driver_for(job_at(tmp_path), inputs, ObjectStorage(str(tmp_path / "state")), Forgetful())
    driver.start()
    back = []
    while (result := driver.step()) is not None:
        back.append(result.read_back)
    assert back == [0, 1, 0, 1, 0, 1], "what was lost was read back, once"
    check(tmp_path, inputs, driver, "forgetful")


class Hiding(MemorySource):
    """Has nothing when it is asked again for what it had planned already, as if that had been removed since; but later it has."""

    def __init__(self, batches: Sequence[pa.RecordBatch], per_epoch: Sequence[int]) -> None:
        super().__init__(batches, per_epoch)
        self._asked: Counter[int] = Counter()

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        plan = super().plan(position, limit_records, now, final, split_records=split_records)
        if position is None:
            return plan
        self._asked[position["epoch"]] += 1
        if self._asked[position["epoch"]] != 2:
            return plan
        return SourcePlan((), position, 0, 0, False, position["records"])


def test_a_source_that_loses_its_input_between_two_attempts_has_nothing_new(tmp_path: Path, inputs: tuple[Input, Input]) -> None:
    sources = (Hiding(inputs[0].batches, inputs[0].per_epoch), Hiding(inputs[1].batches, inputs[1].per_epoch))
    driver = Driver(job_at(tmp_path), ObjectStorage(str(tmp_path / "state")), Forgetful(), sources=sources)
    driver.start()
    epochs = [None if result is None else result.epoch for result in (driver.step() for _ in range(12))]
    assert [epoch for epoch in epochs if epoch is not None] == list(range(6))
    assert None in epochs[: epochs.index(5)]
    check(tmp_path, inputs, driver, "input that was gone for a moment")


def do(part: Part) -> None:
    """All of a part that needs nothing of others."""
    for _ in chain(part.work(), part.close(0)):
        pass
    part.finish().report()


def test_a_task_may_die_after_it_staged_its_runs(tmp_path: Path, inputs: tuple[Input, Input], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs are in the worker under a token that is never committed, and must not be found by the next attempt."""
    rng = random.Random(3)

    def mortal(*arguments: Any) -> Part:
        part = begun(*arguments)
        if rng.random() < 0.3:
            do(part)
            raise RuntimeError("killed after its work was done")
        return part

    begun = Part.begun
    monkeypatch.setattr(Part, "begun", mortal)
    driver = finish(tmp_path, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    monkeypatch.undo()
    check(tmp_path, inputs, driver, "tasks died")


def test_a_task_that_is_run_twice_counts_once(tmp_path: Path, inputs: tuple[Input, Input], monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(spec: EpochSpec, task: int, pieces: Iterable[Piece], store: RunStore) -> Part:
        came = list(pieces)
        do(begun(spec, task, came, store))
        return begun(spec, task, came, store)

    begun = Part.begun
    monkeypatch.setattr(Part, "begun", doubled)
    driver = finish(tmp_path, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    monkeypatch.undo()
    check(tmp_path, inputs, driver, "tasks ran twice")


@pytest.mark.parametrize("step", ["plan", "tasks", "commit", "publish", "clean"])
def test_a_second_driver_takes_over_at_any_step_and_the_first_says_so(step: str, tmp_path: Path, inputs: tuple[Input, Input]) -> None:
    for visit in some(range(4), of=2, since=STEPS.index(step)):
        root = tmp_path / str(visit)
        storage = ObjectStorage(str(root / "state"))
        visits = iter(range(1_000))
        second: list[Driver] = []

        def take_over(at: str, target: int = visit, visits: Any = visits, root: Path = root, second: list[Driver] = second) -> None:
            if at == step and next(visits) == target:
                second.append(driver_for(job_at(root), inputs, ObjectStorage(str(root / "state")), InlineRunner()))
                second[0].start()
                second[0].step()

        first = driver_for(job_at(root), inputs, storage, InlineRunner(), at=take_over)
        first.start()
        with pytest.raises(Superseded, match=r"another driver .* has taken over"):
            exhaust(first)
        first.sweep()  # an older driver that cleans up once more must leave the newer one's files alone
        exhaust(second[0])
        check(root, inputs, second[0], f"second driver at {step}, visit {visit}")


class Failing(InlineRunner):
    """Its epochs fail once they are to."""

    fails = False

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Any:
        return Failed() if self.fails else super().submit(spec, workers)


class Failed:
    """An epoch that has."""

    def result(self) -> NoReturn:
        raise EpochFailed("a block is not there")

    def cancel(self) -> None:
        pass


def test_a_replaced_driver_whose_epochs_fail_ends_as_the_newer_one_may_have_removed_what_they_need(
    inputs: tuple[Input, Input], tmp_path: Path
) -> None:
    runner, storage = Failing(), ObjectStorage(str(tmp_path / "state"))
    first = driver_for(job_at(tmp_path), inputs, storage, runner)
    first.start()
    for _ in range(3):
        assert first.step() is not None
    runner.fails = True
    with pytest.raises(EpochFailed, match="a block is not there"):
        exhaust(first)
    second = driver_for(job_at(tmp_path), inputs, storage, InlineRunner())
    second.start()
    with pytest.raises(Superseded, match=r"another driver .* has taken over"):
        exhaust(first)


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@dataclass
class Claimed:
    """A driver's hold on the log, on a machine of its own."""

    storage: Storage
    wall: Clock = field(default_factory=Clock)
    boot: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.log = CommitLog(self.storage, clock=self.wall, boot_clock=self.boot)
        self.log.claim()

    def pass_by(self, wall: float, boot: float) -> None:
        self.wall.now += wall
        self.boot.now += boot

    def commit(self, times: int) -> None:
        for epoch in range(times):
            self.log.commit(Checkpoint(epoch=epoch))
            self.log.trim(lambda path: False)


@pytest.mark.parametrize(("wall", "boot"), [(-5000.0, 1000.0), (1000.0, 0.0)], ids=["clock set back", "virtual machine halted"])
def test_a_driver_on_a_machine_that_slept_finds_out_that_it_was_replaced(wall: float, boot: float, tmp_path: Path) -> None:
    """The entry that it would run into has been removed, so that its own is created."""
    storage = ObjectStorage(str(tmp_path))
    older = Claimed(storage)
    older.commit(3)
    hole = older.log.next_path
    newer = Claimed(storage)
    newer.pass_by(1000, 1000)
    newer.commit(100)
    assert hole not in storage.list("log")
    older.pass_by(wall, boot)
    with pytest.raises(Superseded, match=r"another driver .* has taken over"):
        older.commit(1)


@pytest.mark.parametrize(("wall", "boot"), [(1000.0, 10.0), (10.0, 1000.0)], ids=["clock set forward", "clock set back"])
def test_a_claim_stays_until_all_clocks_say_that_it_is_old(wall: float, boot: float, tmp_path: Path) -> None:
    storage = ObjectStorage(str(tmp_path))
    older = Claimed(storage)
    older.commit(3)
    newer = Claimed(storage)
    newer.pass_by(wall, boot)
    newer.commit(100)
    with pytest.raises(Superseded, match=r"another driver .* has taken over"):
        older.commit(1)


def test_the_clock_since_the_machines_start_goes_on() -> None:
    first = since_boot()
    assert 0 < first <= since_boot()


def exhaust(driver: Driver) -> None:
    while driver.step() is not None:
        pass


def test_idle_drivers_write_nothing(tmp_path: Path, inputs: tuple[Input, Input]) -> None:
    driver = finish(tmp_path, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    for _ in range(5):
        assert driver.step() is None
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_checkpoint_refuses_another_join_and_names_the_field(tmp_path: Path, inputs: tuple[Input, Input]) -> None:
    storage = ObjectStorage(str(tmp_path / "state"))
    finish(tmp_path, inputs, storage, InlineRunner())
    changed = make_job(tmp_path, on="abs(l.k - r.k) <= 2", types=("BIGINT", "BIGINT"), window={"within": "4s"}, workers=3)
    driver = driver_for(changed, inputs, storage, InlineRunner())
    with pytest.raises(CheckpointMismatch, match=r"spec\.joins\[0\]\.condition: .*choose a new checkpoint\.location"):
        driver.start()


@pytest.mark.parametrize(
    ("model", "workers"),
    [("adsp", 5), ("square", 4), ("adsp", 1), ("hash", 4), ("dynamic", 4), ("readj", 3), ("biclique", 5), ("broadcast", 3)],
)
def test_a_restart_with_another_model_or_size_goes_on_from_what_is_held(
    model: str, workers: int, tmp_path: Path, inputs: tuple[Input, Input]
) -> None:
    storage = ObjectStorage(str(tmp_path / "state"))
    first = driver_for(job_at(tmp_path), inputs, storage, InlineRunner())
    first.start()
    for _ in range(3):
        first.step()
    driver = finish(tmp_path, inputs, storage, InlineRunner(), job_at(tmp_path, model=model, workers=workers))
    assert driver.scheme is not None
    assert driver.scheme.model == model
    assert driver.scheme.tasks <= workers
    assert output_of(tmp_path) == expected(inputs)


def test_results_that_a_reader_took_away_do_not_keep_the_join_from_going_on(tmp_path: Path, inputs: tuple[Input, Input]) -> None:
    storage = ObjectStorage(str(tmp_path / "state"))
    first = driver_for(job_at(tmp_path), inputs, storage, InlineRunner())
    first.start()
    taken: Counter = Counter()
    for _ in range(3):
        first.step()
        taken += output_of(tmp_path)
        for path in (tmp_path / "out").glob("*.parquet"):
            path.unlink()
    finish(tmp_path, inputs, storage, InlineRunner())
    assert taken + output_of(tmp_path) == expected(inputs)


def test_of_two_checkpoints_with_one_output_the_second_commits_no_results(tmp_path: Path) -> None:
    """Also where neither had any when the other started."""
    drivers = []
    for number in range(2):
        text = manifest_of(tmp_path).replace(str(tmp_path / "state"), str(tmp_path / f"state-{number}"))
        storage = ObjectStorage(str(tmp_path / f"state-{number}"))
        drivers.append(driver_for(compile_job(load_manifest(text)), make_inputs(seed=0), storage, InlineRunner()))
        drivers[-1].start()
    exhaust(drivers[0])
    with pytest.raises(OwnedElsewhere, match=r"state-0, and this one .*state-1.* choose a new output, remove the old one, or "):
        exhaust(drivers[1])
    assert output_of(tmp_path) == expected(make_inputs(seed=0))


def test_staged_files_of_another_join_are_left_alone(tmp_path: Path, inputs: tuple[Input, Input]) -> None:
    foreign = tmp_path / "out" / "_staging" / "0badc0de-000001-000000000000-00000-12345678-000.parquet"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("not ours")
    finish(tmp_path, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    assert foreign.exists()


def test_after_a_commit_of_unknown_outcome_the_driver_commits_nothing_else(tmp_path: Path, inputs: tuple[Input, Input]) -> None:
    """The entry exists, but no answer came: going on could take another attempt's entry for its own."""
    storage = FaultyStorage(ObjectStorage(str(tmp_path / "state")), answers_lost_for("create log/0000000000000003"))
    driver = driver_for(job_at(tmp_path), inputs, storage, InlineRunner())
    driver.start()
    with pytest.raises(StorageError):
        exhaust(driver)
    with pytest.raises(StorageError, match="last commit succeeded; start again"):
        exhaust(driver)
    check(tmp_path, inputs, finish(tmp_path, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner()), "unknown outcome")


def answers_lost_for(call: str) -> Callable[[str, str], str | None]:
    """The call takes effect, but neither it nor any repetition of it is answered."""
    done: list[str] = []

    def fault(name: str, path: str) -> str | None:
        if not f"{name} {path}".startswith(call):
            return None
        done.append(path)
        return "fail-after" if len(done) == 1 else "fail-before"

    return fault


@pytest.mark.parametrize("asked", ["get", "list"])
def test_nothing_is_committed_after_a_commit_whose_outcome_could_not_be_found_out(
    asked: str, tmp_path: Path, inputs: tuple[Input, Input], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its create is lost, or the driver has slept, and then storage does not say what is there. Its entry is, with results
    that wait; a driver that made those visible as it stops, in the belief that this entry is of its own next commit, would repeat them."""
    monkeypatch.setattr("streamjoin.io.sinks.FilesSink.gather_seconds", 1e9)
    asking, clock = False, Clock()
    clock.now = START / SECOND + 1000

    def choose(name: str, path: str) -> str | None:
        if not asking or not path.startswith("log"):
            return None
        return "fail-after" if name == "create" and asked == "get" else "fail-before" if name == asked else None

    storage = FaultyStorage(ObjectStorage(str(tmp_path / "state")), choose)
    driver = driver_for(job_at(tmp_path), inputs, storage, InlineRunner(), clock=clock)
    driver.start()
    for _ in range(3):
        driver.step()
    assert driver.checkpoint.output.waiting
    asking = True
    clock.now += 6 * 3600
    with pytest.raises(StorageError):
        driver.step()
    asking = False
    with pytest.raises(StorageError, match="it is not known whether the last commit succeeded"):
        driver.stop()
    monkeypatch.undo()
    successor = finish(tmp_path, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    check(tmp_path, inputs, successor, f"{asked} failed after a create")
