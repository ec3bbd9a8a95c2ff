"""Going back to a savepoint: the join has again what it had then, reads again what it read after that, and finds all results once more."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from cases import how_many, some
from faulty_runs import elastic
from harness import Crash, FaultyStorage, driver_for, join_of, make_job, manifest_text, output_of
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.controlplane import rollback
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.rollback import repeated, roll_back
from streamjoin.controlplane.savepoints import SavepointMissing, SavepointRefused, delete_of_stopped, keep_of_stopped
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.job import Job
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.log import Superseded, read_kept
from streamjoin.state.storage import ObjectStorage, Storage, StorageError
from test_clones import KEPT, results_at_once, run_origin
from test_crashes import FAULTS, OPTIONS, check, expected, finish, job_at, make_inputs, nth
from test_invariants import BAND, END, INPUTS, WANTED, WITHIN, go_on
from test_replan import next_plan
from test_savepoints import held_in, latest, removes_at_once, require_whole

__all__ = ["removes_at_once"]
EPOCHS, KEPT_AT = 6, 2


def back(job: Job, storage: Storage, *, keep: str | None = None) -> None:
    roll_back(job, storage, KEPT, keep=keep, clock=lambda: 1_700_000_000.0)


def results_of(root: Path, first: int, last: int) -> Counter[tuple[Any, ...]]:
    """Those in files of these epochs."""
    found: Counter[tuple[Any, ...]] = Counter()
    for file in (root / "out").glob("*.parquet"):
        if first <= int(file.name.split("-")[2]) <= last:
            found.update(zip(*(column.to_pylist() for column in pq.read_table(file).columns), strict=True))
    return found


def hide(root: Path, first: int, last: int) -> None:
    """As who has no use for results that are found again: remove those of these epochs."""
    for file in (root / "out").glob("*.parquet"):
        if first <= int(file.name.split("-")[2]) <= last:
            file.unlink()


@pytest.mark.parametrize("small", ["with the commit", "in files"], indirect=True)
@pytest.mark.usefixtures("removes_at_once")
def test_results_after_the_savepoint_are_found_again_in_epochs_of_their_own(small: str, tmp_path: Path) -> None:
    inputs, storage = make_inputs(epochs=EPOCHS), ObjectStorage(str(tmp_path / "state"))
    job = run_origin(tmp_path, storage, keep_after=KEPT_AT, options=results_at_once(tmp_path))
    before, kept = latest(storage), read_kept(storage, KEPT, latest(storage).savepoints[KEPT])
    assert output_of(tmp_path) == expected(inputs)
    back(job, storage, keep="before")
    now = latest(storage)
    require_whole(storage, now)
    assert held_in(storage, now) == held_in(storage, kept) != held_in(storage, before)
    assert now.input == kept.input
    assert now.epoch == before.epoch == EPOCHS - 1
    assert now.savepoints.keys() == {KEPT, "before"}
    require_whole(storage, read_kept(storage, "before", now.savepoints["before"]))
    driver = finish(tmp_path, inputs, storage, InlineRunner(), job)
    driver.stop()
    assert latest(storage).epoch == 2 * EPOCHS - 1 - KEPT_AT - 1
    first = results_of(tmp_path, 0, KEPT_AT)
    assert first + results_of(tmp_path, KEPT_AT + 1, EPOCHS - 1) == expected(inputs), "what was there stays as it is"
    assert first + results_of(tmp_path, EPOCHS, 2 * EPOCHS) == expected(inputs), "nothing is dropped as known already"
    roll_back(job, storage, "before", keep=None, clock=lambda: 0.0)
    assert held_in(storage, latest(storage)) == held_in(storage, before), "and back again"
    for name in (KEPT, "before"):
        delete_of_stopped(storage, name, clock=lambda: 0.0)
    hide(tmp_path, EPOCHS, 2 * EPOCHS)
    check(tmp_path, inputs, finish(tmp_path, inputs, storage, InlineRunner(), job), "back again", job)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("removes_at_once")
def test_any_one_storage_call_may_fail_or_kill_who_goes_back(fault: str, tmp_path: Path) -> None:
    """Then the join is where it was, or it has gone back; both are whole."""
    inputs, calls = make_inputs(epochs=EPOCHS), list[str]()

    def begun(root: Path) -> tuple[Job, ObjectStorage]:
        storage = ObjectStorage(str(root / "state"))
        return run_origin(root, storage, keep_after=KEPT_AT, options=results_at_once(root)), storage

    job, storage = begun(tmp_path / "count")
    back(job, FaultyStorage(storage, lambda name, path: calls.append(f"{name} {path}")))
    outcomes = Counter[bool]()
    for number, call in some(enumerate(calls), of=2, since=FAULTS.index(fault)):
        root = tmp_path / str(number)
        job, storage = begun(root)
        before = latest(storage)
        with contextlib.suppress(Crash, StorageError):
            back(job, FaultyStorage(storage, nth(number, fault)))
        found = latest(storage)
        require_whole(storage, found)
        outcomes[found.input == before.input] += 1
        assert found.input in (before.input, read_kept(storage, KEPT, found.savepoints[KEPT]).input), call
        back(job, storage)
        hide(root, KEPT_AT + 1, EPOCHS - 1)
        delete_of_stopped(storage, KEPT, clock=lambda: 0.0)
        check(root, inputs, finish(root, inputs, storage, InlineRunner(), job), f"{fault} at call {number} ({call})", job)
    assert outcomes.total() > 2


@pytest.mark.usefixtures("removes_at_once")
def test_joins_that_go_back_again_and_again_with_other_plans_end_as_if_they_had_not(tmp_path: Path) -> None:
    """It is known of each savepoint which epochs have led to it: their results, and those of the last driver, are all."""
    for seed in range(how_many(40, of=8)):
        rng, root, inputs = random.Random(seed), tmp_path / str(seed), make_inputs(seed, epochs=10)
        job, storage = elastic(job_at(root, **results_at_once(root))), ObjectStorage(str(root / "state"))
        names, epochs, epochs_of = itertools.count(), set[int](), dict[str, set[int]]()
        for _ in range(4):
            driver = driver_for(job, inputs, storage, InlineRunner())
            driver.start()
            for _ in range(rng.randint(1, 4)):
                if rng.random() < 0.5:
                    driver.savepoints.keep(f"s{next(names)}")
                if driver.scheme is not None and rng.random() < 0.5 and driver.plan_status().wanted is None:  # type: ignore[union-attr]
                    driver.put_plan(next_plan(rng, driver))
                driver.step()
                for name in driver.savepoints.kept.keys() - epochs_of.keys():
                    epochs_of[name] = set(epochs)
                epochs.add(driver.checkpoint.epoch)
            if rng.random() < 0.7:
                driver.stop()
            kept = latest(storage).savepoints
            if kept:
                name = rng.choice(sorted(kept))
                epochs = set(epochs_of[name])
                roll_back(job, storage, name, keep=None, clock=lambda: 0.0)
                require_whole(storage, latest(storage))
        last = latest(storage).epoch
        driver = finish(root, inputs, storage, InlineRunner(), job)
        for epoch in set(range(last + 1)) - epochs:
            hide(root, epoch, epoch)
        for name in latest(storage).savepoints:
            delete_of_stopped(storage, name, clock=lambda: 0.0)
        check(root, inputs, driver, f"seed {seed}", job)


def finish_steps(driver: Driver) -> None:
    while driver.step() is not None:
        pass


@pytest.mark.usefixtures("removes_at_once")
def test_a_driver_that_does_not_know_that_somebody_went_back_removes_nothing_of_that(tmp_path: Path) -> None:
    """It is held up between a commit and its removals, while somebody goes back and then deletes the savepoint."""
    inputs, storage = make_inputs(epochs=20), ObjectStorage(str(tmp_path / "state"))
    job, meanwhile = job_at(tmp_path, **results_at_once(tmp_path)), [False]

    def at(step: str) -> None:
        if step == "clean" and meanwhile[0]:
            meanwhile[0] = False
            back(job, storage)
            delete_of_stopped(storage, KEPT, clock=lambda: 0.0)

    driver = driver_for(job, inputs, storage, InlineRunner(), at=at)
    driver.start()
    for epoch in range(15):
        if epoch == 3:
            driver.savepoints.keep(KEPT)
        driver.step()
    meanwhile[0] = True
    with pytest.raises(Superseded):
        finish_steps(driver)
    assert not meanwhile[0]
    require_whole(storage, latest(storage))
    last = latest(storage).epoch
    successor = finish(tmp_path, inputs, storage, InlineRunner(), job)
    hide(tmp_path, 3, last)
    check(tmp_path, inputs, successor, "an older driver", job)


def test_results_that_waited_to_be_visible_become_so_and_none_is_lost(tmp_path: Path) -> None:
    """The driver was killed while small results of the last epochs waited for more."""
    inputs, storage = make_inputs(epochs=EPOCHS), ObjectStorage(str(tmp_path / "state"))
    job = job_at(tmp_path, output={"sink": {"files": {"path": str(tmp_path / "out"), "gather": "1h"}}})
    driver = driver_for(job, inputs, storage, InlineRunner())
    driver.start()
    for epoch in range(EPOCHS - 1):
        if epoch == KEPT_AT + 1:
            driver.savepoints.keep(KEPT)
        driver.step()
    assert latest(storage).output.waiting
    back(job, storage)
    assert latest(storage).output.waiting, "they are not forgotten"
    driver = finish(tmp_path, inputs, storage, InlineRunner(), job)
    driver.stop()
    found, wanted = output_of(tmp_path), expected(inputs)
    assert wanted < found < wanted + wanted, "all of them, and some twice"


def test_a_driver_that_runs_stops(tmp_path: Path) -> None:
    storage = ObjectStorage(str(tmp_path / "state"))
    job = job_at(tmp_path)
    driver: Driver = driver_for(job, make_inputs(), storage, InlineRunner())
    driver.start()
    driver.step()
    driver.savepoints.keep(KEPT)
    driver.step()
    back(job, storage)
    with pytest.raises(Superseded):
        driver.step()


def test_what_cannot_be_gone_back_to_is_refused_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ObjectStorage(str(tmp_path / "state"))
    job = run_origin(tmp_path, storage)
    log = storage.list("log")
    with pytest.raises(SavepointMissing, match="savepoint 'other': does not exist; there are kept"):
        roll_back(job, storage, "other", keep=None, clock=lambda: 0.0)
    with pytest.raises(SavepointRefused, match="savepoint 'kept': exists already, of epoch 2; choose another name"):
        roll_back(job, storage, KEPT, keep=KEPT, clock=lambda: 0.0)
    with pytest.raises(CheckpointMismatch, match=r"spec\.joins\[0\]\.condition"):
        roll_back(job_at(tmp_path, on="l.k = r.k"), storage, KEPT, keep=None, clock=lambda: 0.0)
    assert storage.list("log") == log
    before = latest(storage)
    monkeypatch.setattr(rollback, "requests_done", lambda position: position["epoch"])
    with pytest.raises(SavepointRefused, match="dead letters were read again since the savepoint"):
        back(job, storage)
    assert latest(storage) == before


def test_a_kafka_topic_gets_results_again_and_a_key_replaces_them(tmp_path: Path) -> None:
    sinks: dict[str, dict[str, Any]] = {
        "kafka": {"bootstrapServers": "localhost:9092", "topic": "results"},
        "postgres": {"host": "localhost", "database": "d", "table": "t", "key": ["a", "b"]},
        "console": {},
    }
    found = {kind: repeated(job_at(tmp_path, output={"sink": {kind: options}})) for kind, options in sinks.items()}
    assert {kind: list(again) for kind, again in found.items()} == {"kafka": ["j"], "postgres": [], "console": []}
    snapshots = job_at(tmp_path, output={"sink": {"console": {}}, "snapshots": {"size": 8, "key": "a"}})
    assert list(repeated(snapshots)) == ["j"]


def test_the_command_says_what_appears_again(tmp_path: Path) -> None:
    storage = ObjectStorage(str(tmp_path / "state"))
    run_origin(tmp_path, storage)
    path = tmp_path / "join.yaml"
    path.write_text(manifest_text(tmp_path, **OPTIONS))

    def told(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["savepoint", "rollback", str(path), *arguments])
        return done.exit_code, done.output

    code, text = told(KEPT)
    assert code == Exit.USAGE
    assert "will be found again, and appear a second time in files in " in text
    assert latest(storage).epoch == 5
    code, text = told(KEPT, "--repeat-results", "--keep", "before")
    assert (code, text) == (0, "kept: the join goes on from epoch 2, and its next one is 6; what was is kept as before\n")
    assert told("other", "--repeat-results")[0] == Exit.USAGE
    document = yaml.safe_load(path.read_text())
    document["spec"]["joins"][0]["output"]["sink"] = {"console": {}}
    path.write_text(yaml.safe_dump(document))
    assert told("before")[0] == 0, "nothing appears twice where it is only shown"
    document["spec"]["joins"][0]["condition"] = "l.k = r.k"
    path.write_text(yaml.safe_dump(document))
    assert told(KEPT)[0] == Exit.MISMATCH


def test_who_goes_back_before_a_join_was_added_has_it_added_again(tmp_path: Path) -> None:
    """As one that was removed since is there again; each as the manifest says by then."""
    storage, began = ObjectStorage(str(tmp_path / "state")), joins_of(tmp_path, "a")
    for names, until in (("a", 2), ("ab", 5)):
        go_on(driver_for(joins_of(tmp_path, names), INPUTS, storage, InlineRunner()), until)
        if names == "a":
            keep_of_stopped(began, storage, KEPT, clock=lambda: 0.0)
    before = latest(storage).epoch
    for names in ("ab", "b", "a"):
        root = tmp_path / names
        shutil.copytree(tmp_path / "state", root / "state")
        shutil.copytree(tmp_path / "a", root / "a")
        own, job = ObjectStorage(str(root / "state")), joins_of(root, names, sources=tmp_path)
        roll_back(job, own, KEPT, keep=None, clock=lambda: 0.0)
        go_on(driver_for(job, INPUTS, own, InlineRunner()), END)
        if "a" in names:
            first, again = (results_of(root / "a", *span) for span in ((0, 2), (before + 1, 10 * END)))
            assert first + again == WANTED, names
        if "b" in names:
            later = results_of(root / "b", before + 1, 10 * END)
            assert later <= WANTED, names
            assert later.total() > 10, names


def joins_of(root: Path, names: str, *, sources: Path | None = None) -> Job:
    """Joins of some names, each with an output of its own, in files of one epoch each."""
    sink = {name: {"sink": {"files": {"path": str(root / name / "out"), "gather": "0s"}}} for name in names}
    joins = [join_of(root / name, name=name, on=BAND, window={"within": f"{WITHIN}s"}, output=sink[name]) for name in names]
    options = {"workers": 2, "watermark": "1s", "checkpoint": {"location": str(root / "state")}}
    return replace(make_job(sources or root, joins=joins, types=("BIGINT", "BIGINT"), **options), min_workers=1, max_workers=4)
