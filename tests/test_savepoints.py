"""Savepoints: what one keeps stays whole, whatever the join, its garbage collector and its deaths do after it, until it is deleted."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cases import how_many, some
from faulty_runs import elastic
from harness import FaultyStorage, driver_for, make_job, manifest_text
from simulated import World
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.controlplane import savepoints
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.savepoints import SavepointMissing, SavepointRefused, keep_of_stopped
from streamjoin.query.commit import commit_of
from streamjoin.query.errors import QueryError
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.blocks import load
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.intermediate import read_intermediate
from streamjoin.state.log import CommitLog, Superseded, path_of, read_kept, read_latest
from streamjoin.state.storage import ObjectStorage, Storage, StorageError
from test_api import Served
from test_crashes import FAULTS, OPTIONS, check, finish, job_at, make_inputs, nth
from test_replan import next_plan

EPOCHS = 60


@pytest.fixture
def removes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody needs goes with each commit."""
    monkeypatch.setattr("streamjoin.state.log.RETAIN_ENTRIES", 4)
    monkeypatch.setattr("streamjoin.state.log.TRIM_ENTRIES", 1)
    monkeypatch.setattr("streamjoin.controlplane.garbage.AT_ONCE", 1)
    monkeypatch.setattr("streamjoin.controlplane.garbage.SWEEP_EVERY", 2)


def latest(storage: Storage) -> Checkpoint:
    entry = read_latest(storage)
    assert entry is not None
    return entry.checkpoint


def require_whole(storage: Storage, checkpoint: Checkpoint) -> None:
    """All that a checkpoint names is there, and as it was written. Raises StorageError."""
    for block in checkpoint.state.stored:
        load(storage, block)
    for part in checkpoint.output.fed:
        list(read_intermediate(storage, part.extent))
    kept = [value["extent"] for value in checkpoint.output.staged + checkpoint.output.waiting if "extent" in value]
    assert {path for path, *_ in kept} <= set(storage.list("log"))


def require_all_whole(storage: Storage) -> dict[str, Checkpoint]:
    found = {name: read_kept(storage, name, savepoint) for name, savepoint in latest(storage).savepoints.items()}
    for name, savepoint in latest(storage).savepoints.items():
        assert found[name].epoch == savepoint.epoch
        assert found[name].nbytes == savepoint.nbytes
        require_whole(storage, found[name])
    return found


def held_in(storage: Storage, checkpoint: Checkpoint) -> list[Counter[int]]:
    """By place, the tuples."""
    found: list[Counter[int]] = [Counter(), Counter()]
    for block in checkpoint.state.blocks:
        found[block.place].update(load(storage, block).column("rid").to_pylist())
    return found


@pytest.mark.parametrize("small", ["with the commit", "in files"], indirect=True)
@pytest.mark.usefixtures("removes_at_once")
def test_what_one_keeps_stays_while_the_join_goes_on_and_goes_with_it(small: str, tmp_path: Path) -> None:
    inputs, storage, rng = make_inputs(3, epochs=EPOCHS), ObjectStorage(str(tmp_path / "state")), random.Random(1)
    driver = driver_for(elastic(job_at(tmp_path)), inputs, storage, InlineRunner())
    driver.start()
    held: dict[str, list[Counter[int]]] = {}
    for epoch in range(EPOCHS):
        if epoch in (7, 20):
            before = latest(storage)
            driver.savepoints.keep(f"at-{epoch}")
            assert driver.savepoints.kept.keys() < {f"at-{epoch}", "at-7"}, "nothing is kept before a commit says so"
            held[f"at-{epoch}"] = held_in(storage, before)
        if driver.scheme is not None and epoch % 5 == 0:
            driver.put_plan(next_plan(rng, driver))
        assert driver.step() is not None
        kept = require_all_whole(storage)
        assert {name: held_in(storage, checkpoint) for name, checkpoint in kept.items()} == held
    assert latest(storage).savepoints["at-7"].epoch == 6, "the commit before the one that made it"
    alone = {block.name for block in kept["at-7"].state.blocks} - {block.name for block in latest(storage).state.blocks}
    assert alone, "the join has let go what is kept"
    entry = latest(storage).savepoints["at-7"].path
    driver.savepoints.delete("at-7")
    assert driver.savepoints.wishes == {"at-7": False}
    driver.step(final=True)
    assert latest(storage).savepoints.keys() == {"at-20"} == driver.savepoints.kept.keys()
    driver.stop()
    assert entry in storage.list("log"), "it goes with a later sweep"
    successor = driver_for(job_at(tmp_path), inputs, storage, InlineRunner())
    successor.start()
    assert not alone & set(storage.list("blocks")) - {block.name for block in kept["at-20"].state.blocks}
    assert require_all_whole(storage).keys() == {"at-20"}
    delete_all(storage)
    check(tmp_path, inputs, successor, "all are deleted")


def delete_all(storage: Storage) -> None:
    for name in latest(storage).savepoints:
        savepoints.delete_of_stopped(storage, name, clock=lambda: 0.0)


@pytest.mark.usefixtures("removes_at_once")
def test_deleting_one_removes_its_entry_and_blocks_while_the_join_runs(tmp_path: Path) -> None:
    inputs, storage = make_inputs(3, epochs=EPOCHS), ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(job_at(tmp_path), inputs, storage, InlineRunner())
    driver.start()
    for epoch in range(EPOCHS):
        if epoch == 5:
            driver.savepoints.keep("a")
        if epoch == 20:
            path = driver.savepoints.kept["a"].path
            driver.savepoints.delete("a")
        assert driver.step() is not None
        assert epoch < 6 or epoch > 19 or driver.savepoints.kept["a"].path in storage.list("log")
    assert path not in storage.list("log")
    check(tmp_path, inputs, driver, "deleted")


def test_a_join_that_has_nothing_to_do_makes_one_at_once(tmp_path: Path) -> None:
    inputs, storage = make_inputs(), ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(job_at(tmp_path), inputs, storage, InlineRunner())
    driver.start()
    driver.savepoints.keep("early")
    assert driver.savepoints.taken(driver.checkpoint).savepoints == {}, "there is no epoch yet"
    assert driver.is_hurried, "the next epoch is not waited for"
    while driver.step() is not None:
        pass
    assert driver.savepoints.kept.keys() == {"early"}
    driver.savepoints.keep("late")
    assert driver.step() is None
    assert driver.savepoints.wishes == {}
    assert {name: savepoint.epoch for name, savepoint in latest(storage).savepoints.items()} == {"early": 0, "late": 5}
    driver.savepoints.keep("at-the-end")
    driver.savepoints.keep("early")
    assert driver.step() is None
    assert latest(storage).savepoints["early"].epoch == 0, "a name that is there stays what it is"
    log = storage.list("log")
    assert driver.step() is None
    assert storage.list("log") == log, "nothing is committed without need"


def test_what_is_asked_for_is_told_of_until_a_commit_has_it(tmp_path: Path) -> None:
    """Also while the epoch runs that is to commit it."""
    told: list[dict[str, bool]] = []

    def at(step: str) -> None:
        if step in ("commit", "clean"):
            told.append(dict(driver.savepoints.wishes))

    storage = ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(job_at(tmp_path), make_inputs(), storage, InlineRunner(), at=at)
    driver.start()
    driver.step()
    told.clear()
    driver.savepoints.keep("a")
    driver.step()
    assert told == [{"a": True}, {}]
    driver.savepoints.delete("a")
    told.clear()
    driver.step()
    assert told == [{"a": False}, {}]
    with pytest.raises(SavepointMissing):
        driver.savepoints.delete("a")


def test_the_epoch_that_is_kept_can_be_queried(tmp_path: Path, removes_at_once: None) -> None:
    inputs, storage = make_inputs(3, epochs=EPOCHS), ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(job_at(tmp_path), inputs, storage, InlineRunner())
    driver.start()
    for epoch in range(EPOCHS):
        if epoch == 5:
            driver.savepoints.keep("a")
        driver.step()
    asked = commit_of(storage, 4)
    assert asked == read_kept(storage, "a", latest(storage).savepoints["a"])
    require_whole(storage, asked)
    with pytest.raises(QueryError, match="AS OF 20: cannot be read; epochs 0 to 4, 57 to 59 are there"):
        commit_of(storage, 20)


def test_what_cannot_be_kept_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(job_at(tmp_path), make_inputs(), storage, InlineRunner())
    for name in ("", "A", "a/b", "-a", "a" * 64, "ä", ".."):
        with pytest.raises(SavepointRefused, match="must be 1 to 63 of a-z"):
            driver.savepoints.keep(name)
    with pytest.raises(SavepointMissing, match="savepoint 'a': does not exist; there are none"):
        driver.savepoints.delete("a")
    monkeypatch.setattr(savepoints, "MOST", 2)
    driver.start()
    driver.savepoints.keep("a")
    driver.savepoints.keep("b")
    with pytest.raises(SavepointRefused, match="there are 2 savepoints, the most that a join may have; delete one first"):
        driver.savepoints.keep("c")
    driver.step()
    driver.step()
    with pytest.raises(SavepointMissing, match="savepoint 'c': does not exist; there are a, b"):
        driver.savepoints.delete("c")


def test_what_a_source_removes_once_it_is_read_cannot_be_gone_back_to(tmp_path: Path) -> None:
    document = yaml.safe_load(manifest_text(tmp_path, **OPTIONS))
    document["spec"]["streams"][1]["source"] = {"staged": {"path": str(tmp_path / "staged")}}
    (tmp_path / "join.yaml").write_text(yaml.safe_dump(document))
    done = CliRunner().invoke(main, ["savepoint", "make", str(tmp_path / "join.yaml"), "a"])
    assert done.exit_code == Exit.USAGE
    assert "spec.streams[1].source: micro-batches staged in " in done.output
    assert "is removed once it is read" in done.output


def test_none_is_made_while_dead_letters_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, is_reading = ObjectStorage(str(tmp_path / "state")), [True]
    monkeypatch.setattr(savepoints, "is_reading_again", lambda position: is_reading[0])
    driver = driver_for(job_at(tmp_path), make_inputs(), storage, InlineRunner())
    driver.start()
    driver.savepoints.keep("a")
    driver.step()
    driver.step()
    assert driver.savepoints.kept == {}
    assert driver.savepoints.wishes == {"a": True}
    is_reading[0] = False
    driver.step()
    assert driver.savepoints.kept["a"].epoch == 1
    is_reading[0] = True
    with pytest.raises(SavepointRefused, match="dead letters are being read again"):
        keep_of_stopped(job_at(tmp_path), storage, "b", clock=lambda: 0.0)
    assert latest(storage).savepoints.keys() == {"a"}


def finish_with_savepoints(root: Path, storage: Storage, **options: Any) -> Driver:
    """As ``finish``, and each driver keeps what it can, and deletes some."""
    numbers = itertools.count(1)

    def before(driver: Driver) -> None:
        kept = sorted(driver.savepoints.kept)
        if len(kept) > 2:
            driver.savepoints.delete(kept[1])
        driver.savepoints.keep(f"s{next(numbers)}")

    return finish(root, make_inputs(epochs=6), storage, InlineRunner(), before=before, **options)


@pytest.mark.parametrize("small", ["with the commit", "in files"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("removes_at_once")
def test_any_one_storage_call_may_fail_or_kill_the_driver(fault: str, small: str, tmp_path: Path) -> None:
    """What the log says is kept is whole at any time, and in the end nothing is left of the others."""
    calls: list[str] = []
    finish_with_savepoints(
        tmp_path, FaultyStorage(ObjectStorage(str(tmp_path / "state")), lambda name, path: calls.append(f"{name} {path}"))
    )
    for number, call in some(enumerate(calls), of=12, since=FAULTS.index(fault)):
        root = tmp_path / str(number)
        real = ObjectStorage(str(root / "state"))
        driver = finish_with_savepoints(root, FaultyStorage(real, nth(number, fault)))
        assert len(require_all_whole(real)) > 1, f"{fault} at {call}"
        delete_all(real)
        check(root, make_inputs(epochs=6), driver, f"{fault} at call {number} ({call})", job_at(root))


@pytest.mark.usefixtures("removes_at_once")
def test_whatever_drivers_meet_what_is_kept_is_whole(tmp_path: Path) -> None:
    """Drivers die, are held up and meet at any request, while savepoints are made and deleted."""
    kept = 0
    for seed in range(how_many(200, of=20)):
        world, inputs = World(seed, trouble=0.05), make_inputs(seed % 10, epochs=12)
        names = iter(f"s{number}" for number in range(1000))

        def between(driver: Driver, world: World = world, names: Iterator[str] = names) -> None:
            if world.rng.random() < 0.3:
                driver.savepoints.keep(next(names))
            for name in driver.savepoints.kept:
                if world.rng.random() < 0.1:
                    driver.savepoints.delete(name)

        with world.begun():
            job = job_at(world.root, output={"sink": {"files": {"path": str(world.root / "out")}}})
            driver = world.run(job, inputs, between)
            storage = ObjectStorage(str(world.root / "state"))
            kept += len(require_all_whole(storage))
            delete_all(storage)
            check(world.root, inputs, driver, f"seed {seed}", job)
    assert kept > 5


def test_one_of_a_join_that_does_not_run_is_made_in_its_storage(tmp_path: Path) -> None:
    path, storage = tmp_path / "join.yaml", ObjectStorage(str(tmp_path / "state"))
    path.write_text(manifest_text(tmp_path, **OPTIONS))

    def told(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["savepoint", *arguments])
        return done.exit_code, done.output

    assert told("list", str(path)) == (Exit.USAGE, f"{storage.url}: no epoch of a join is committed here, so there is nothing to keep\n")
    running = finish(tmp_path, make_inputs(), storage, InlineRunner(), make_job(tmp_path, **OPTIONS))
    running.stop()
    before = latest(storage)
    assert told("list", str(path)) == (0, f"no savepoints in {path}\n")
    code, text = told("make", str(path), "nightly")
    assert (code, text[:20]) == (0, "nightly: epoch 5 of ")
    assert told("make", str(path), "nightly") == (0, text)
    assert latest(storage).savepoints["nightly"].path == path_of(int(storage.list("log")[-2][4:20]))
    assert read_kept(storage, "nightly", latest(storage).savepoints["nightly"]).state == before.state
    assert (latest(storage).claims, latest(storage).is_over) == (before.claims, before.is_over)
    assert told("make", str(path), "No")[0] == Exit.USAGE
    listed = json.loads(told("list", str(path), "--json")[1])
    assert (listed["name"], listed["epoch"], listed["state"]) == ("nightly", 5, "kept")
    assert listed["bytes"] == before.nbytes > 0
    assert told("delete", str(path), "weekly") == (
        Exit.USAGE,
        f"{storage.url}: savepoint 'weekly': does not exist; there are nightly\n",
    )
    assert told("delete", str(path), "nightly") == (0, "nightly: deleted\n")
    assert latest(storage).savepoints == {}
    running = driver_for(job_at(tmp_path), make_inputs(), storage, InlineRunner())
    running.start()
    assert told("make", str(path), "meanwhile")[0] == 0
    running.savepoints.keep("b")
    with pytest.raises(Superseded):
        running.step()


def test_a_damaged_one_is_named_and_can_be_deleted(tmp_path: Path) -> None:
    storage = ObjectStorage(str(tmp_path / "state"))
    finish(tmp_path, make_inputs(), storage, InlineRunner()).stop()
    savepoint = keep_of_stopped(job_at(tmp_path), storage, "a", clock=lambda: 1.0)
    storage.put(savepoint.path, b"something else")
    driver = driver_for(job_at(tmp_path), make_inputs(), storage, InlineRunner())
    with pytest.raises(StorageError, match=r"savepoint a, which is this entry, cannot be read .*delete the savepoint"):
        driver.start()
    delete_all(storage)
    driver_for(job_at(tmp_path), make_inputs(), storage, InlineRunner()).start()


def test_a_claim_leaves_savepoints_as_they_are(tmp_path: Path) -> None:
    storage = ObjectStorage(str(tmp_path / "state"))
    finish(tmp_path, make_inputs(), storage, InlineRunner()).stop()
    made = keep_of_stopped(job_at(tmp_path), storage, "a", clock=lambda: 1.0)
    assert CommitLog(storage).claim().savepoints == {"a": made}


def test_clients_make_and_delete_them_over_http(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.watched.start()
    with served.server:
        url = served.server.url
        assert served.ask("GET", "/v1/savepoints")[:2] == (200, {"savepoints": []})
        assert served.ask("GET", "/v1/savepoints/a")[0] == 404
        assert served.ask("DELETE", "/v1/savepoints/a")[0] == 404
        assert served.ask("PUT", "/v1/savepoints/A", b"")[:2][0] == 422
        assert served.ask("POST", "/v1/savepoints/a", b"")[0] == 405
        asked = {"name": "a", "state": "asked", "epoch": None, "committedAt": None, "keptAt": None, "bytes": None}
        assert served.ask("PUT", "/v1/savepoints/a", b"")[:2] == (202, asked)
        assert served.ask("GET", "/v1/savepoints/a")[:2] == (202, asked)
        assert CliRunner().invoke(main, ["savepoint", "list", url]).output == "a: asked for\n"
        assert CliRunner().invoke(main, ["savepoint", "make", url, "a", "--timeout", "1ms"]).exit_code == Exit.FAILED
        served.run(2)
        kept = served.driver.savepoints.kept["a"]
        status, told, _ = served.ask("PUT", "/v1/savepoints/a", b"")
        assert (status, told["state"], told["epoch"], told["bytes"]) == (200, "kept", 0, kept.nbytes)
        assert CliRunner().invoke(main, ["savepoint", "make", url, "a"]).output.startswith("a: epoch 0 of ")
        status, told, _ = served.ask("DELETE", "/v1/savepoints/a")
        assert (status, told["state"]) == (202, "deleting")
        served.run()
        assert served.ask("GET", "/v1/savepoints")[:2] == (200, {"savepoints": []})
        done = CliRunner().invoke(main, ["savepoint", "delete", url, "a"])
        assert (done.exit_code, done.output) == (Exit.FAILED, "savepoint 'a': does not exist; there are none\n")
        assert served.ask("GET", "/")[1].count(b"/v1/savepoints") == 2


def test_a_token_is_needed_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    served = Served(tmp_path, token=tmp_path / "token")
    served.watched.start()
    with served.server:
        assert served.ask("PUT", "/v1/savepoints/a", b"")[0] == 401
        assert served.ask("PUT", "/v1/savepoints/a", b"", Authorization="Bearer secret")[0] == 202
        command = ["savepoint", "list", served.server.url]
        assert CliRunner().invoke(main, command).exit_code == Exit.USAGE
        assert CliRunner().invoke(main, [*command, "--token-file", str(tmp_path / "token")]).output == "a: asked for\n"


def test_a_port_that_is_open_to_others_takes_none_without_a_token(tmp_path: Path) -> None:
    served = Served(tmp_path, address="0.0.0.0")
    served.watched.start()
    with served.server:
        status, told, _ = served.ask("PUT", "/v1/savepoints/a", b"")
        assert (status, told["error"][:72]) == (403, "PUT /v1/savepoints/a: without a token savepoints are taken from this mac")
