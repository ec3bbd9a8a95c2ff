"""Clones: a join that begins from a savepoint has, with the results up to that, what DuckDB finds in all of the input; whatever its origin
has done since, and whatever dies on the way."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cases import how_many, some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import SECOND, START, Crash, Far, FaultyStorage, Remote, Root, driver_for, output_of
from random_joins import check_output, drawn, job_of
from simulated import World
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.savepoints import delete_of_stopped, keep_of_stopped, savepoints_in
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.io.ownership import OwnedElsewhere
from streamjoin.job import Job, Origin
from streamjoin.manifest import ManifestError
from streamjoin.manifest.connector import SinkConnector
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.log import read_kept, read_latest
from streamjoin.state.storage import ObjectStorage, Storage, StorageError
from test_crashes import FAULTS, check, expected, finish, job_at, make_inputs, nth
from test_invariants import INPUTS, WANTED, go_on
from test_invariants import job_of as invariants_job
from test_random_joins import SEED, SUITES
from test_savepoints import latest, removes_at_once, require_whole

KEPT = "kept"
__all__ = ["removes_at_once"]


def cloned(job: Job, root: Root, own: Root) -> Job:
    """The same job, begun from its savepoint, with its state and results below ``own`` instead of ``root``."""

    def moved(place: str) -> str:
        return place.replace(str(root), str(own), 1)

    sinks = [join.sink.moved(moved) if isinstance(join.sink, SinkConnector) else join.sink for join in job.joins]
    joins = tuple(replace(join, sink=sink) for join, sink in zip(job.joins, sinks, strict=True))
    places = {"checkpoint": moved(job.checkpoint), "dead_letter": moved(job.dead_letter), "origin": Origin(job.checkpoint, KEPT)}
    return replace(job, joins=joins, **places)


def give(root: Root, own: Root, *, up_to: int | None = None) -> None:
    """Put what is visible of a join's results and dead letters below ``own``; of epochs up to this one."""
    for folder in ("out", "state/dead-letters"):
        there = ObjectStorage(str(root / folder))
        for item in there.list_folder():
            if up_to is None or int(item.name.split("-")[2]) <= up_to:
                ObjectStorage(str(own / folder)).put(item.name, there.get(item.name))


@pytest.mark.parametrize("suite", [name for name, suite in SUITES.items() if not suite.features.changes])
def test_any_join_goes_on_from_a_savepoint_as_from_its_last_commit(suite: str, tmp_path: Path) -> None:
    """Random joins, with faults: the origin goes on to its end, and so does a clone of what it was in the middle."""
    cases = [int(SEED)] if SEED is not None else range(how_many(SUITES[suite].cases // 4, of=24))
    counts = Counter[str]()
    run_cases(cases, tmp_path, lambda seed, root, counted: run_random(suite, seed, root, counted), counts)
    assert counts["results"] > 0


def run_random(suite: str, seed: int, root: Path, counts: Counter[str]) -> None:
    case, rng, ticks = drawn(SUITES[suite].features, seed), random.Random(f"clone of {seed}"), itertools.count()
    label, history = f"STREAMJOIN_SEED={seed}: {case}", dict[int, Sequence[int]]()
    origin, own, storage = root / "origin", root / "own", ObjectStorage(str(root / "origin" / "state"))

    def between(driver: Driver) -> None:
        if driver.checkpoint.epoch >= 0:
            history[driver.checkpoint.epoch] = driver.checkpoint.input.records

    def go_on(job: Job, at: Path, until: int | None = None) -> None:
        kind = rng.choice([ObjectStorage, Far])
        clock = lambda: START / SECOND + next(ticks) / 200  # noqa: E731
        run_with_faults(*(job, case.inputs, at, rng, counts), faults=case.faults, storage=kind, until=until, between=between, clock=clock)

    job = elastic(job_of(case, origin, counts)) if case.faults else job_of(case, origin, counts)
    if len(job.joins) > 1 and len(case.streams) == 2:
        job = job.lying(rng.choice(job.layouts))
    go_on(job, origin, until=rng.randint(0, max(0, case.epochs - 2)))
    keep_of_stopped(job, storage, KEPT, clock=lambda: 0.0)
    for folder in [f"{join.name}/out" for join in case.joins] + ["state/dead-letters"]:
        there = ObjectStorage(str(origin / folder))
        for item in there.list_folder():
            ObjectStorage(str(own / folder)).put(item.name, there.get(item.name))
    before = dict(history)
    go_on(job, origin)
    check_output(case, origin, f"{label}: origin", counts, history)
    history.clear()
    history.update(before)
    go_on(cloned(job, origin, own), own)
    check_output(case, own, f"{label}: clone", counts, history)
    assert latest(storage).identity != latest(ObjectStorage(str(own / "state"))).identity
    require_whole(storage, read_kept(storage, KEPT, latest(storage).savepoints[KEPT]))


def run_origin(root: Root, storage: Storage, *, epochs: int = 6, keep_after: int = 2, options: dict[str, Any] | None = None) -> Job:
    """A join to the end of its input, with a savepoint of an epoch before."""
    job, inputs = elastic(job_at(root, **(options or {}))), make_inputs(epochs=epochs)
    driver = driver_for(job, inputs, storage, InlineRunner())
    driver.start()
    for epoch in range(epochs):
        if epoch == keep_after + 1:
            driver.savepoints.keep(KEPT)
        assert driver.step() is not None
    driver.step(final=True)
    driver.stop()
    return job


def results_at_once(root: Root) -> dict[str, Any]:
    return {"output": {"sink": {"files": {"path": str(root / "out"), "gather": "0s"}}}}


@pytest.mark.parametrize("small", ["with the commit", "in files"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("removes_at_once")
def test_any_one_storage_call_of_a_clone_may_fail_or_kill_the_driver(fault: str, small: str, tmp_path: Path) -> None:
    origin, inputs = tmp_path / "origin", make_inputs(epochs=6)
    theirs = ObjectStorage(str(origin / "state"))
    job = run_origin(origin, theirs, options=results_at_once(origin))
    assert output_of(origin) == expected(inputs)
    before = {path: theirs.get(path) for folder in ("blocks", "log", "sources") for path in theirs.list(folder)}
    calls: list[str] = []

    def run(own: Path, chooser: Any) -> Driver:
        give(origin, own, up_to=2)
        return finish(own, inputs, FaultyStorage(ObjectStorage(str(own / "state")), chooser), InlineRunner(), cloned(job, origin, own))

    run(tmp_path / "count", lambda name, path: calls.append(f"{name} {path}"))
    assert len(calls) > (20 if small == "in files" else 10)
    for number, call in some(enumerate(calls), of=10, since=FAULTS.index(fault)):
        own = tmp_path / str(number)
        driver = run(own, nth(number, fault))
        check(own, inputs, driver, f"{fault} at call {number} ({call})", cloned(job, origin, own))
    assert {path: theirs.get(path) for folder in ("blocks", "log", "sources") for path in theirs.list(folder)} == before


def test_whatever_drivers_of_a_clone_meet_is_as_if_there_had_been_one(tmp_path: Path) -> None:
    """They die, are held up and meet at any request, also while the savepoint is copied."""
    happened = Counter[str]()
    for seed in range(how_many(300, of=30)):
        world, inputs = World(seed, trouble=0.05), make_inputs(seed % 10, epochs=8)
        root, at = world.root, seed % 5

        def keep(driver: Driver, at: int = at) -> None:
            if driver.checkpoint.epoch >= at:
                driver.savepoints.keep(KEPT)

        with world.begun():
            job = job_at(root, **results_at_once(root))
            world.run(job, inputs, keep)
            kept = savepoints_in(ObjectStorage(str(root / "state")))[KEPT]
            own = Remote(f"{root}-own")
            give(root, own, up_to=kept.epoch)
            world.root, world._trouble = own, 0.05
            world.happened["drivers"] = 0
            own_job = cloned(job, root, own)
            check(own, inputs, world.run(own_job, inputs), f"seed {seed}", own_job)
        happened.update(world.happened)
    assert {"died", "held up"} <= happened.keys()


def test_files_that_were_read_are_not_read_again_and_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line, with files of input, the positions of which are in snapshots of their own."""
    monkeypatch.setattr("streamjoin.io.seen.DELTA_ENTRIES", 2)
    monkeypatch.chdir(tmp_path)
    command = ["--runner", "inline", "--until-idle", "--no-ui"]

    def add(first: int, last: int) -> None:
        for stream in "lr":
            folder = Path(f"in-{stream}")
            folder.mkdir(exist_ok=True)
            for number in range(first, last):
                record = {"rid": number, "k": 1, "v": 0, "at": f"2026-01-01T00:00:{number:02d}Z"}
                (folder / f"{number}.json").write_text(json.dumps(record) + "\n")

    def write(name: str, **checkpoint: Any) -> str:
        document: dict[str, Any] = {
            "streams": [
                {
                    "name": stream,
                    "source": {"files": {"path": f"in-{stream}", "format": "json"}},
                    "schema": "rid BIGINT, k INT, v INT, at TIMESTAMP",
                    "eventTime": "at",
                    "watermark": "1h",
                }
                for stream in "lr"
            ],
            "joins": [
                {
                    "name": "j",
                    "condition": "l.k = r.k",
                    "window": {"within": "1h"},
                    "output": {"select": ["l.rid AS a", "r.rid AS b"], "sink": {"files": {"path": f"{name}/out", "format": "parquet"}}},
                }
            ],
            "workers": {"min": 1, "max": 2},
            "checkpoint": {"location": f"{name}/state"} | checkpoint,
        }
        resource = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": name}, "spec": document}
        Path(f"{name}.yaml").write_text(yaml.safe_dump(resource))
        return f"{name}.yaml"

    def run(manifest: str) -> int:
        return CliRunner().invoke(main, ["run", manifest, *command]).exit_code

    def pairs(low: int, high: int) -> Counter[tuple[int, int]]:
        return Counter((a, b) for a in range(high) for b in range(high) if max(a, b) >= low)

    first = write("first")
    add(0, 7)
    assert run(first) == 0
    assert CliRunner().invoke(main, ["savepoint", "make", first, "kept"]).exit_code == 0
    assert list(Path("first/state/sources").iterdir())
    add(7, 12)
    assert run(first) == 0
    second = write("second", cloneOf={"location": "first/state", "savepoint": "kept"})
    assert run(second) == 0
    assert list(Path("second/state/sources").iterdir())
    assert output_of(Path("first")) == pairs(0, 12)
    assert output_of(Path("second")) == pairs(7, 12)
    assert CliRunner().invoke(main, ["savepoint", "delete", first, "kept"]).exit_code == 0
    add(12, 15)
    assert run(second) == 0, "once begun, it needs its origin no more"
    assert output_of(Path("second")) == pairs(7, 15)
    third = write("third", cloneOf={"location": "first/state", "savepoint": "kept"})
    done = CliRunner().invoke(main, ["run", third, *command])
    assert done.exit_code == Exit.MISMATCH
    assert "spec.checkpoint.cloneOf: first/state: savepoint 'kept': does not exist; there are none" in " ".join(done.output.split())


def test_what_a_savepoint_was_not_made_with_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    origin, own = tmp_path / "origin", tmp_path / "own"
    job = run_origin(origin, ObjectStorage(str(origin / "state")))
    other = replace(job_at(origin, on="abs(l.k - r.k) <= 2"), origin=Origin(job.checkpoint, KEPT))
    driver = driver_for(other, make_inputs(), ObjectStorage(str(own / "state")), InlineRunner())
    with pytest.raises(CheckpointMismatch) as refused:
        driver.start()
    assert str(refused.value).startswith("spec.joins[0].condition: abs(l.k - r.k) <= 2 differs from abs(l.k - r.k) <= 1")
    assert str(refused.value).endswith(f"Correct the manifest, or begin without spec.checkpoint.cloneOf, which is kept in {job.checkpoint}")
    assert ObjectStorage(str(own / "state")).list("blocks") == []
    assert latest(ObjectStorage(str(own / "state"))).epoch == -1
    driver = driver_for(cloned(job, origin, own), make_inputs(), ObjectStorage(str(own / "state")), InlineRunner())
    driver.start()
    assert driver.checkpoint.epoch == 2, "a corrected manifest begins after all"


@pytest.mark.parametrize("small", ["with the commit", "in files"], indirect=True)
def test_a_savepoint_that_goes_while_it_is_copied_is_named(small: str, tmp_path: Path) -> None:
    origin, own = tmp_path / "origin", tmp_path / "own"
    theirs = ObjectStorage(str(origin / "state"))
    job = run_origin(origin, theirs)
    kept = read_kept(theirs, KEPT, latest(theirs).savepoints[KEPT])
    block = kept.state.blocks[0]
    theirs.delete(block.name if block.extent is None else block.extent.path)
    driver = driver_for(cloned(job, origin, own), make_inputs(), ObjectStorage(str(own / "state")), InlineRunner())
    with pytest.raises((CheckpointMismatch, StorageError), match="kept"):
        driver.start()


def test_a_clone_has_a_directory_of_its_own(tmp_path: Path) -> None:
    location = str(tmp_path / "state")
    for origin in (location, str(tmp_path), f"{location}/blocks"):
        with pytest.raises(ManifestError, match=r"spec\.checkpoint\.cloneOf\.location: .* (is the same|holds|lies in)"):
            job_at(tmp_path, checkpoint={"location": location, "cloneOf": {"location": origin, "savepoint": "a"}})


@pytest.mark.parametrize("small", ["in files"], indirect=True)
def test_a_block_that_was_changed_is_not_copied(small: str, tmp_path: Path) -> None:
    origin, own = tmp_path / "origin", tmp_path / "own"
    theirs = ObjectStorage(str(origin / "state"))
    job = run_origin(origin, theirs)
    block = read_kept(theirs, KEPT, latest(theirs).savepoints[KEPT]).state.blocks[0]
    data = bytearray(theirs.get(block.name))
    data[len(data) // 2] ^= 1
    theirs.put(block.name, bytes(data))
    driver = driver_for(cloned(job, origin, own), make_inputs(), ObjectStorage(str(own / "state")), InlineRunner())
    with pytest.raises(StorageError, match="not those that were written"):
        driver.start()
    entry = read_latest(ObjectStorage(str(own / "state")))
    assert entry is not None
    assert entry.checkpoint.epoch == -1


def test_a_clone_does_not_write_into_its_origin_s_output(tmp_path: Path) -> None:
    origin, own = tmp_path / "origin", tmp_path / "own"
    job = run_origin(origin, ObjectStorage(str(origin / "state")))
    same = replace(cloned(job, origin, own), joins=job.joins)
    driver = driver_for(same, make_inputs(), ObjectStorage(str(own / "state")), InlineRunner())
    with pytest.raises(OwnedElsewhere, match="has the results of another checkpoint"):
        driver.start()


def test_a_clone_can_be_kept_and_cloned_in_turn_and_has_none_of_its_origin_s_savepoints(tmp_path: Path) -> None:
    roots, inputs = [tmp_path / name for name in "abc"], make_inputs(epochs=6)
    job = run_origin(roots[0], ObjectStorage(str(roots[0] / "state")), options=results_at_once(roots[0]))
    for at, (root, own) in enumerate(itertools.pairwise(roots), start=3):
        give(root, own, up_to=at - 1)
        job, storage = cloned(job, root, own), ObjectStorage(str(own / "state"))
        driver = driver_for(job, inputs, storage, InlineRunner())
        driver.start()
        assert driver.savepoints.kept == {}
        driver.step()
        driver.savepoints.keep(KEPT)
        while driver.step(final=True) is not None:
            pass
        driver.stop()
        assert savepoints_in(storage)[KEPT].epoch == at
        delete_of_stopped(ObjectStorage(str(root / "state")), KEPT, clock=lambda: 0.0)
    assert output_of(roots[1]) == output_of(roots[2]) == expected(inputs)


def test_a_driver_that_dies_while_it_copies_leaves_nothing_that_stays(tmp_path: Path) -> None:
    origin, own, inputs = tmp_path / "origin", tmp_path / "own", make_inputs()
    job = run_origin(origin, ObjectStorage(str(origin / "state")), options=results_at_once(origin))
    for dies_at in ("claim", "clone", "republish"):

        def at(step: str, dies_at: str = dies_at) -> None:
            if step == dies_at:
                raise Crash(step)

        driver = driver_for(cloned(job, origin, own), inputs, ObjectStorage(str(own / "state")), InlineRunner(), at=at)
        with pytest.raises(Crash):
            driver.start()
    give(origin, own, up_to=2)
    driver = finish(own, inputs, ObjectStorage(str(own / "state")), InlineRunner(), cloned(job, origin, own))
    check(own, inputs, driver, "died thrice", cloned(job, origin, own))


def test_a_clone_may_have_other_joins_and_more_workers_than_its_origin(tmp_path: Path) -> None:
    """As a join that goes on from its own checkpoint may."""
    origin = {"location": str(tmp_path / "origin"), "savepoint": KEPT}
    storage = ObjectStorage(origin["location"])
    began = invariants_job(tmp_path, "a", "first", location=origin["location"])
    go_on(driver_for(began, INPUTS, storage, InlineRunner()), 2)
    keep_of_stopped(began, storage, KEPT, clock=lambda: 0.0)
    for names in ("ab", "b"):
        location = str(tmp_path / f"state-{names}")
        job = replace(invariants_job(tmp_path, names, names, location=location, cloneOf=origin), model="broadcast", min_workers=3)
        driver = driver_for(job, INPUTS, ObjectStorage(location), InlineRunner())
        driver.start()
        while driver.step(final=True) is not None:
            pass
        driver.stop()
        assert driver.checkpoint.epoch > 2
        assert driver.scheme is not None
        assert driver.scheme.tasks >= 3
        if "a" in names:
            assert output_of(tmp_path / "first" / "a") + output_of(tmp_path / names / "a") == WANTED
        later = output_of(tmp_path / names / "b")
        assert later <= WANTED
        assert later.total() > 10
