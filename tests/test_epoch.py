"""What an epoch counts, drops, keeps and writes: late, filtered, shed and unparsable records, on real files where files matter."""

from __future__ import annotations

import gc
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from harness import SECOND, START, Input, MemoryReader, MemorySource, MemorySplit, driver_for, make_batch, make_job, output_of, run_all
from streamjoin.controlplane import deployment
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.planning import Head, plan_inputs
from streamjoin.dataplane.route import route
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import EpochSpec, draws_of, numbers_of, units_of
from streamjoin.io.base import Position, Records, SourceError, SourcePlan, UnavailableError
from streamjoin.io.several import Sinks
from streamjoin.language.sides import SIDES
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import MODELS
from streamjoin.state.blocks import Block, load, load_all
from streamjoin.state.checkpoint import Checkpoint, InputState
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage

BIGINTS: dict[str, Any] = {"types": ("BIGINT", "BIGINT"), "on": "abs(l.k - r.k) <= 1"}


def stream(epochs: list[list[tuple[int, Any, int, int]]]) -> Input:
    return Input([make_batch(rows, pa.int64()) for rows in epochs], [1] * len(epochs))


def at(seconds: float) -> int:
    return START + round(seconds * SECOND)


def drive(root: Path, inputs: tuple[Input, Input], **options: Any) -> Driver:
    driver = driver_for(make_job(root, **(BIGINTS | options)), inputs, ObjectStorage(str(root / "state")), InlineRunner())
    run_all(driver)
    return driver


def total(driver: Driver, name: str) -> tuple[int, ...]:
    return tuple(driver.checkpoint.totals[name])


def test_a_late_tuple_is_counted_for_its_stream_and_dropped(tmp_path: Path) -> None:
    left = stream([[(0, 5, 0, at(10))], [(9, 7, 0, at(7))], [(1, 5, 0, at(7)), (2, 5, 0, at(8))], [(3, 5, 0, at(11))]])
    right = stream([[(0, 5, 0, at(9))], [], [], []])
    driver = drive(tmp_path, (left, right), window={"within": "100s"}, watermark="2s")
    assert total(driver, "late") == (1, 0), "the one older than 10 s - 2 s, but for the epoch right after"
    assert output_of(tmp_path) == Counter([(0, 0), (2, 0), (3, 0)])
    assert driver.checkpoint.input.watermarks == (at(9), at(7))


def test_a_stream_alone_does_not_make_the_other_late_and_loses_no_partner(tmp_path: Path) -> None:
    """The left stream is read hours ahead; the right one's old tuples still find their partners."""
    left = stream([[(0, 1, 0, at(0))], [(1, 1, 0, at(10_000))], []])
    right = stream([[], [], [(0, 1, 0, at(1)), (1, 1, 0, at(10_001))]])
    driver = drive(tmp_path, (left, right), window={"within": "5s"}, watermark="0s")
    assert output_of(tmp_path) == Counter([(0, 0), (1, 1)])
    assert total(driver, "late") == (0, 0)


class Plenty(MemorySource):
    """Has as many records as it is asked for, and more."""

    def plan(self, position: Position | None, limit_records: int, now: float, final: bool = False) -> SourcePlan:
        first = 0 if position is None else position["next"]
        split = MemorySplit(first_record=first, records=limit_records, index=-1)
        end = first + limit_records
        return SourcePlan((split,), {"next": end}, limit_records, 1000, exhausted=False, end_record=end)


@pytest.mark.parametrize("ahead", SIDES)
def test_a_stream_that_is_held_back_leaves_its_half_of_an_epoch_to_the_other(ahead: int, tmp_path: Path) -> None:
    job = make_job(tmp_path, **BIGINTS, window={"within": "100s"}, epoch={"maxTuples": 10})
    sources = (Plenty([], []), Plenty([], []))
    positions, marks = ({"next": 7}, {"next": 7}), (at(1000), at(0)) if ahead == 0 else (at(0), at(1000))
    last = Checkpoint(epoch=3, input=InputState(positions=positions, records=(7, 7), watermarks=marks))
    plans = plan_inputs(job, sources, last, Head.after(last), 0.0, final=False)
    assert (plans[ahead].records, plans[1 - ahead].records) == (0, 10)
    assert plans[ahead].splits == ()
    assert (plans[ahead].position, plans[ahead].end_record, plans[ahead].backlog_records) == ({"next": 7}, 7, 1005)
    together = replace(last, input=replace(last.input, watermarks=(at(0), at(0))))
    assert [plan.records for plan in plan_inputs(job, sources, together, Head.after(together), 0.0, final=False)] == [5, 5]


def test_every_record_is_accounted_for(tmp_path: Path) -> None:
    rng = random.Random(4)

    def one() -> Input:
        rows = [(rid, rng.choice([None, *range(9)]), rng.randint(0, 4), at(rid / 10 - rng.choice([0, 0, 0, 30]))) for rid in range(300)]
        return stream([rows[start : start + 50] for start in range(0, 300, 50)])

    driver = drive(
        tmp_path,
        (one(), one()),
        window={"within": "5s"},
        watermark="1s",
        where=("v <> 2", None),
        workers=3,
        capacity=100,
        shedding={"model": "linear", "base": "0.1"},
    )
    for side in (0, 1):
        parts = [total(driver, name)[side] for name in ("rejected", "filtered", "late", "unmatchable", "shed", "accepted")]
        assert sum(parts) == total(driver, "input")[side] == 300
        assert total(driver, "routed")[side] >= total(driver, "accepted")[side] > 0
    assert total(driver, "filtered")[0] > 0 == total(driver, "filtered")[1]
    assert min(total(driver, "late") + total(driver, "unmatchable") + total(driver, "shed")) > 0


@pytest.mark.parametrize("model", ["linear", "quadratic"])
def test_a_full_worker_is_sent_less_and_results_are_a_part_of_all(model: str, tmp_path: Path) -> None:
    rng = random.Random(1)

    def one() -> Input:
        return stream([[(100 * e + i, rng.randint(0, 20), 0, at(e + i / 100)) for i in range(100)] for e in range(20)])

    inputs = (one(), one())
    all_of_it = drive(tmp_path / "all", inputs, window={"within": "10s"}, watermark="0s")
    shedding = {"model": model, "base": "0.0"}
    driver = drive(tmp_path / "shed", inputs, window={"within": "10s"}, watermark="0s", workers=2, capacity=800, shedding=shedding)
    assert min(total(driver, "shed")) > 0
    found, everything = output_of(tmp_path / "shed"), output_of(tmp_path / "all")
    assert found
    assert not found - everything
    assert len(found) < len(everything)
    assert max(driver.utilization().values()) < 1.1 < max(all_of_it.utilization().values()) * 1_000_000 / 800


@pytest.mark.parametrize("mode", ["Recommend", "Off"])
def test_shedding_that_is_not_enforced_drops_nothing_and_a_recommendation_is_counted(mode: str, tmp_path: Path) -> None:
    rng = random.Random(1)

    def one() -> Input:
        return stream([[(100 * e + i, rng.randint(0, 20), 0, at(e + i / 100)) for i in range(100)] for e in range(20)])

    inputs = (one(), one())
    options: dict[str, Any] = {"window": {"within": "10s"}, "watermark": "0s", "workers": 2, "capacity": 1_600}
    drive(tmp_path / "all", inputs, **options)
    driver = drive(tmp_path / mode, inputs, shedding={"model": "linear", "base": "0.5", "mode": mode}, **options)
    assert total(driver, "shed") == (0, 0)
    assert output_of(tmp_path / mode) == output_of(tmp_path / "all")
    if mode == "Off":
        assert total(driver, "would_shed") == (0, 0)
    else:
        # Half of what comes while workers are at tau2, more above it; none of the first epochs, in which the window fills.
        assert all(0 < would < accepted for would, accepted in zip(total(driver, "would_shed"), total(driver, "accepted"), strict=True))


@pytest.mark.parametrize("groups", [1, 2])
def test_tuples_that_only_probe_a_full_worker_are_not_shed(groups: int, tmp_path: Path) -> None:
    """Four times as many left tuples as right ones: under ``biclique`` the workers that hold left ones are full, the others are not."""
    rng = random.Random(6)

    def one(each: int) -> Input:
        return stream([[(each * e + i, rng.randint(0, 20), 0, at(e + i / each)) for i in range(each)] for e in range(12)])

    options: dict[str, Any] = {"window": {"within": "100s"}, "watermark": "0s", "workers": 4, "capacity": 1_000}
    scheme, shedding = {"model": "biclique", "groups": groups}, {"model": "linear", "base": "0.2"}
    driver = drive(tmp_path, (one(400), one(100)), scheme=scheme, shedding=shedding, **options)
    assert total(driver, "shed")[0] > 500
    assert total(driver, "shed")[1] == 0
    assert driver.utilization()[driver.checkpoint.plan.scheme["tasks"] - 1] < 0.8


def at_expected_rate(epochs: int, keys: int = 1000) -> tuple[Input, Input]:
    """1,000 tuples a second, as the manifest of the tests expects, a second an epoch."""
    rng = random.Random(9)

    def one() -> Input:
        return stream([[(1000 * e + i, rng.randrange(keys), 0, at(e + i / 1000)) for i in range(1000)] for e in range(epochs)])

    return one(), one()


@pytest.mark.parametrize("model", MODELS)
def test_the_first_plan_is_filled_to_tau1_by_what_was_expected(model: str, tmp_path: Path) -> None:
    """A window of 3 s, a watermark 1 s behind and three epochs: 14,000 tuples, each of which some models hold several times."""
    options: dict[str, Any] = {"on": "abs(l.k - r.k) <= 20", "window": {"within": "3s"}, "watermark": "1s", "capacity": 10_000}
    job = make_job(tmp_path, **(BIGINTS | options), model=model)
    driver = driver_for(
        replace(job, min_workers=1, max_workers=64), at_expected_rate(10), ObjectStorage(str(tmp_path / "state")), InlineRunner()
    )
    results = run_all(driver)
    assert results[0].warnings == ()
    fullest = max(tau for result in results for tau in result.utilization.values())
    assert 0.2 < fullest < 0.4 * 1.05
    assert driver.checkpoint.plan.first_workers == driver.checkpoint.plan.scheme["tasks"] >= 3


def test_a_first_plan_that_is_too_full_says_so_with_the_first_epoch(tmp_path: Path) -> None:
    driver = driver_for(
        make_job(tmp_path, **BIGINTS, window={"within": "3s"}, watermark="1s", workers=2, capacity=5_000),
        at_expected_rate(2),
        ObjectStorage(str(tmp_path / "state")),
        InlineRunner(),
    )
    first, second = run_all(driver)
    assert [warning.split(":")[0] for warning in first.warnings] == ["spec.workers.max"]
    assert second.warnings == ()


class Kept(MemoryReader):
    """Notes what is done with any of its kind, workers' copies included."""

    happened: ClassVar[list[str]] = []

    def read(self, split: MemorySplit) -> Iterator[Records]:
        self.happened.append("read")
        return super().read(split)

    def close(self) -> None:
        self.happened.append("closed")


def test_what_the_sample_for_the_first_plan_opened_is_closed_before_workers_read(tmp_path: Path) -> None:
    Kept.happened.clear()
    job = make_job(tmp_path, **BIGINTS, window={"within": "100s"})
    sources = (stream([[(0, 5, 0, at(1))], [(1, 5, 0, at(2))]]).source(), stream([[(0, 5, 0, at(1))], []]).source())
    for source in sources:
        source.reader = Kept(source.reader._batches)
    run_all(Driver(job, ObjectStorage(str(tmp_path / "state")), InlineRunner(), sources=sources, at=Kept.happened.append))
    until_tasks = Kept.happened[Kept.happened.index("deploy") : Kept.happened.index("tasks")]
    assert until_tasks[-3:] == ["read", "closed", "closed"]
    assert Kept.happened.count("closed") == 2, "what workers keep open is theirs"


def test_a_restart_with_another_model_plans_for_what_is_held_from_a_few_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, state = at_expected_rate(90), ObjectStorage(str(tmp_path / "state"))
    window: dict[str, Any] = {"window": {"within": "10000s"}, "watermark": "0s"}
    job = replace(make_job(tmp_path, **BIGINTS, **window, capacity=50_000), min_workers=1, max_workers=12)
    quiet = replace(job, streams=tuple(replace(of_side, expected_rate=None) for of_side in job.streams))
    first = driver_for(quiet, inputs, state, InlineRunner())
    first.start()
    for _ in range(80):
        assert first.step() is not None
    blocks = first.checkpoint.state.blocks
    assert first.checkpoint.plan.first_workers == 1
    first.stop()

    read: list[Block] = []
    monkeypatch.setattr(deployment, "SAMPLE_BLOCKS", 4)
    monkeypatch.setattr(deployment, "load_all", lambda storage, chosen: read.extend(chosen) or load_all(storage, chosen))
    again = driver_for(replace(quiet, model="hash"), inputs, state, InlineRunner())
    again.start()
    assert len(read) <= 8 < len(blocks)
    assert {block.place for block in read} == {0, 1}
    assert again.checkpoint.plan.first_workers == 1, "of the first plan of all"
    run_all(again)
    # 160,000 tuples and more, 20,000 a worker: what is held counts where nothing is expected.
    assert again.checkpoint.plan.scheme["tasks"] in (8, 9)
    taus = again.utilization()
    assert max(taus.values()) < 1.2 * sum(taus.values()) / len(taus)


def test_shedding_is_the_same_for_every_attempt() -> None:
    rows = pa.array(range(1000)).to_numpy()
    first, again, other = numbers_of(7, 3, rows), numbers_of(7, 3, rows), numbers_of(8, 3, rows)
    assert (first == again).all()
    assert (units_of(first) != units_of(other)).any()
    assert abs(float(draws_of(first).mean()) - 0.5) < 0.05
    assert route.__doc__


FILES = """
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {{name: files}}
spec:
  streams:
    - name: l
      source: {{files: {{path: {root}/l, format: json, settle: 60s}}}}
      schema: "id BIGINT, k DECIMAL(10,2), at TIMESTAMP"
      eventTime: at
      watermark: 1h
    - name: r
      source: {{files: {{path: {root}/r, format: csv, settle: 60s}}}}
      schema: "id BIGINT, k DECIMAL(10,2), at TIMESTAMP"
      eventTime: at
      watermark: 1h
  joins:
    - name: j
      condition: "abs(l.k - r.k) <= 0.05"
      window: {{within: 10s}}
      output:
        select: ["l.id AS a", "r.id AS b", "l.k - r.k AS d"]
        where: "l.id <> r.id"
        sink: {{files: {{path: {root}/out, format: json}}}}
  workers: {{min: 2, max: 2, capacityTuples: 100000}}
  checkpoint: {{location: {root}/state}}
"""


def test_files_are_joined_while_they_are_written_and_bad_lines_become_dead_letters(tmp_path: Path) -> None:
    from streamjoin.compilation import compile_job
    from streamjoin.manifest import load as load_manifest

    job = compile_job(load_manifest(FILES.format(root=tmp_path)))
    for name in "lr":
        (tmp_path / name).mkdir()

    def driver() -> Driver:
        return Driver(job, ObjectStorage(job.checkpoint), InlineRunner())

    rng = random.Random(2)
    wanted: dict[str, list[tuple[int, float, int]]] = {"l": [], "r": []}
    left, right = (tmp_path / "l" / "a.json").open("a"), (tmp_path / "r" / "a.csv").open("a")
    right.write("id,k,at\n")
    current = driver()
    current.start()
    for turn in range(12):
        if turn % 4 == 3:  # another process takes over in the middle of the files
            current = driver()
            current.start()
        for _ in range(20):
            for name, file in (("l", left), ("r", right)):
                row = (len(wanted[name]), rng.randint(0, 100) / 100, rng.randint(0, 30))
                wanted[name].append(row)
                moment = f"2024-05-01T00:00:{row[2]:02d}Z"
                if name == "l":
                    file.write(json.dumps({"id": row[0], "k": f"{row[1]:.2f}", "at": moment}) + "\n")
                else:
                    file.write(f"{row[0]},{row[1]:.2f},{moment}\n")
        if turn == 5:
            left.write("this is not JSON\n")
            left.write('{"id": 9000, "k": "0.5", "at": null}\n')
            right.write("1,not a number,2024-05-01T00:00:00Z\n")
        left.write('{"id": ')  # a line that is still being written
        left.flush()
        right.flush()
        while current.step() is not None:
            pass
        left.seek(left.tell() - len('{"id": '))
        left.truncate()
    left.close()
    right.close()
    while current.step(final=True) is not None:
        pass
    connection = duckdb.connect()
    expected = connection.execute(
        "SELECT l.id, r.id, round((l.k - r.k) * 100)::INT FROM (SELECT unnest($1, recursive := true)) l, "
        "(SELECT unnest($2, recursive := true)) r "
        "WHERE abs(round(l.k * 100) - round(r.k * 100)) <= 5 AND abs(l.at - r.at) <= 10 AND l.id <> r.id",
        [[{"id": i, "k": k, "at": t} for i, k, t in wanted[name]] for name in "lr"],
    ).fetchall()
    rows = [json.loads(line) for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
    assert Counter((row["a"], row["b"], round(float(row["d"]) * 100)) for row in rows) == Counter(expected)
    assert total(current, "rejected") == (2, 1)
    letters = [json.loads(line) for path in (tmp_path / "state/dead-letters").glob("*.json") for line in path.read_text().splitlines()]
    assert Counter(letter["stream"] for letter in letters) == {"l": 2, "r": 1}
    assert {"this is not JSON"} <= {letter["raw"] for letter in letters}
    assert any("event time is null" in letter["error"] for letter in letters)
    assert any("not a number" in letter["raw"] for letter in letters)


def clock_at(seconds: float) -> Callable[[], float]:
    return lambda: START / SECOND + seconds


def letters_of(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted((root / "state/dead-letters").glob("*.json")) for line in path.read_text().splitlines()]


YEAR_2099 = 4_070_908_800 * SECOND


@pytest.mark.parametrize("future", [YEAR_2099, 2**62])
def test_a_tuple_of_the_far_future_is_a_dead_letter_and_moves_no_watermark(future: int, tmp_path: Path) -> None:
    left = stream([[(0, 5, 0, at(10)), (8, 5, 0, future)], [(9, 5, 0, future), (1, 5, 0, at(11))], [(2, 5, 0, at(12))]])
    right = stream([[(0, 5, 0, at(10))], [(1, 5, 0, at(11))], [(2, 5, 0, at(12))]])
    job = make_job(tmp_path, window={"within": "5s"}, watermark="1s", where=("l.rid <> 9", None), **BIGINTS)
    driver = driver_for(job, (left, right), ObjectStorage(job.checkpoint), InlineRunner(), clock=clock_at(60))
    results = run_all(driver)
    assert output_of(tmp_path) == Counter((a, b) for a in range(3) for b in range(3))
    assert driver.checkpoint.input.watermarks == (at(11), at(11)), "nor does one that where leaves out"
    assert (total(driver, "rejected"), total(driver, "ahead"), total(driver, "filtered")) == ((1, 0), (1, 0), (1, 0))
    (letter,) = letters_of(tmp_path)
    assert (letter["stream"], letter["position"]) == ("l", 1)
    assert "at: the event time is after 2023-11-14T23:14:20.000000Z" in letter["error"], "the clock's time and an hour"
    assert json.loads(letter["raw"])["rid"] == 8
    assert not any(result.warnings for result in results)


def test_a_stream_that_has_only_future_event_times_says_so_until_they_are_allowed(tmp_path: Path) -> None:
    left = stream([[(0, 5, 0, at(10))], [(1, 5, 0, at(11))]])
    right = stream([[(0, 5, 0, YEAR_2099)], []])
    options = BIGINTS | {"window": {"within": "5s"}, "watermark": "0s"}
    job = make_job(tmp_path, **options)
    results = run_all(driver_for(job, (left, right), ObjectStorage(job.checkpoint), InlineRunner(), clock=clock_at(60)))
    assert [len(result.warnings) for result in results] == [1, 0]
    said = r"^r: .*all its records are more than 1h ahead of the clock.*dead letters.*spec\.streams\[1\]\.maxAhead"
    assert re.search(said, results[0].warnings[0])
    job = make_job(tmp_path / "allowed", max_ahead="36500d", **options)
    driver = driver_for(job, (left, right), ObjectStorage(job.checkpoint), InlineRunner(), clock=clock_at(60))
    run_all(driver)
    assert (total(driver, "ahead"), driver.checkpoint.input.watermarks[1]) == ((0, 0), YEAR_2099)


def test_old_data_may_jump_and_a_clock_that_was_set_back_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound goes by the latest that the clock has shown, and no tuple makes room for one that is further ahead."""
    monkeypatch.setattr(InlineRunner, "overlaps", False)
    hour, year = 3600, 365 * 86400
    left = stream([[(rid, 5, 0, at(seconds))] for rid, seconds in enumerate((-2 * year, 0, 0.9 * hour, 1.8 * hour, 2.9 * hour))])
    right = stream([[(0, 5, 0, at(0))], [], [], [], []])
    job = make_job(tmp_path, window={"within": "1000d"}, watermark="1h", **BIGINTS)
    now = [0.0]
    driver = driver_for(job, (left, right), ObjectStorage(job.checkpoint), InlineRunner(), clock=lambda: clock_at(now[0])())
    driver.start()
    assert driver.step() is not None
    assert driver.step() is not None
    assert driver.step() is not None
    now[0] = -5 * hour
    while driver.step(final=True) is not None:
        pass
    assert output_of(tmp_path) == Counter({(0, 0): 1, (1, 0): 1, (2, 0): 1})
    assert total(driver, "ahead") == (2, 0), "1.8 and 2.9 hours beyond the clock"


def test_windows_without_time_take_any_event_time(tmp_path: Path) -> None:
    left, right = stream([[(0, 5, 0, YEAR_2099)]]), stream([[(0, 5, 0, at(0))]])
    driver = drive(tmp_path, (left, right), window={"rows": 5})
    assert output_of(tmp_path) == Counter([(0, 0)])
    assert total(driver, "ahead") == (0, 0)


@pytest.mark.parametrize("kept", [False, True])
def test_late_tuples_are_kept_where_that_is_asked_for(kept: bool, tmp_path: Path) -> None:
    left = stream([[(0, 5, 0, at(10))], [], [(1, 5, 0, at(7)), (2, 5, 0, at(8)), (3, 6, 1, at(1))]])
    right = stream([[(0, 5, 0, at(9))], [], []])
    spec = {"deadLetter": {"late": kept}}
    driver = drive(tmp_path, (left, right), window={"within": "100s"}, watermark="2s", **spec)
    assert (total(driver, "late"), total(driver, "rejected")) == ((2, 0), (0, 0)), "each tuple has one fate"
    assert output_of(tmp_path) == Counter([(0, 0), (2, 0)])
    letters = letters_of(tmp_path)
    found = [(letter["stream"], letter["position"], json.loads(letter["raw"])["rid"]) for letter in letters]
    assert found == ([("l", 0, 1), ("l", 2, 3)] if kept else [])
    assert all(letter["error"] == "at: late; the stream's watermark was 2023-11-14T22:13:28.000000Z" for letter in letters)


def test_blocks_expire_merge_and_stay_few(tmp_path: Path) -> None:
    """A long run with a short window: what is stored is what can still match, in a bounded number of blocks."""
    rng = random.Random(8)

    def one() -> Input:
        return stream([[(10 * e + i, rng.randint(0, 50), 0, at(e + i / 10)) for i in range(10)] for e in range(150)])

    driver = drive(tmp_path, (one(), one()), window={"within": "20s"}, watermark="0s", workers=2, capacity=1000)
    entry = read_latest(ObjectStorage(str(tmp_path / "state")))
    assert entry is not None
    blocks = entry.checkpoint.state.blocks
    assert len(blocks) < 60
    assert sum(block.rows for block in blocks if block.place == 0) < 350, "20 s of 10 tuples each, and what has not been dropped yet"
    assert sum(sum(held) for held in driver.checkpoint.state.held.values()) < 1500
    stored = list((tmp_path / "state" / "blocks").rglob("*.arrow"))
    assert len(stored) < len(blocks) + 20
    assert len(list((tmp_path / "state" / "log").glob("*"))) <= 200
    assert all(load(ObjectStorage(str(tmp_path / "state")), block).num_rows == block.rows for block in blocks)


def test_a_source_that_cannot_be_read_is_a_permanent_failure(tmp_path: Path) -> None:
    job = make_job(tmp_path, window={"within": "5s"}, sources=("parquet", {}), **BIGINTS)
    driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner())
    driver.start()
    with pytest.raises(Exception, match=r"in-. does not exist") as failure:
        driver.step()
    error = failure.value
    assert not isinstance(error, EpochFailed) or error.permanent
    assert "\n" not in str(error)


def test_a_filtered_stream_goes_forward_all_the_same(tmp_path: Path) -> None:
    """Its watermark follows all of its records, so that the other side's tuples expire."""
    left = stream([[(e, 0, 1, at(e))] for e in range(30)])
    right = stream([[(e, 0, 0, at(e))] for e in range(30)])
    driver = drive(tmp_path, (left, right), window={"within": "2s"}, watermark="0s", where=("v <> 1", None))
    assert driver.checkpoint.input.watermarks == (at(29), at(29))
    assert sum(held for _, held in driver.checkpoint.state.held.values()) < 15


def test_large_runs_lie_on_mapped_pages_that_the_system_may_evict(tmp_path: Path) -> None:
    """State larger than memory works because what is held is the page cache's, not the process's."""
    rows, epochs = 100_000, 6
    rng = np.random.default_rng(1)

    def one() -> Input:
        batches = []
        for epoch in range(epochs):
            moments = pa.array(np.full(rows, at(epoch))).cast(pa.timestamp("us", "UTC"))
            columns = [pa.array(np.arange(rows)), pa.array(rng.integers(0, 1 << 40, rows)), pa.array(np.zeros(rows, np.int32)), moments]
            batches.append(pa.RecordBatch.from_arrays(columns, names=["rid", "k", "v", "at"]))
        return Input(batches, [1] * epochs)

    inputs = (one(), one())
    before = pa.total_allocated_bytes()
    runner = InlineRunner()
    job = make_job(tmp_path, window={"within": "100s"}, watermark="0s", workers=2, **BIGINTS)
    driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), runner)
    results = run_all(driver)
    gc.collect()
    held = sum(work.held_bytes for work in results[-1].work.values())
    assert held > 2 * rows * epochs * 24
    assert pa.total_allocated_bytes() - before < held / 4


@pytest.mark.parametrize("error", [UnavailableError, SourceError])
def test_an_input_that_fails_while_an_epoch_is_in_flight_costs_that_epoch_nothing(tmp_path: Path, error: type[Exception]) -> None:
    """The next epoch is planned early; what that raises comes again once the one in flight is committed, if it is not over by then."""
    epochs = [[(e, 5, 0, at(e))] for e in range(4)]
    steps: list[str] = []

    class Failing(MemorySource):
        def plan(self, *arguments: Any, **options: Any) -> Any:
            if steps[-2:] == ["tasks", "plan"]:
                raise error("out of reach")
            return super().plan(*arguments, **options)

    job = make_job(tmp_path, **BIGINTS, window={"within": "100s"})
    sources = (Failing(stream(epochs).batches, [1] * 4), stream(epochs).source())
    driver = Driver(job, ObjectStorage(str(tmp_path / "state")), InlineRunner(), sources=sources, at=steps.append)
    results = run_all(driver)
    assert [result.epoch for result in results] == [0, 1, 2, 3]
    assert steps.count("tasks") == 4, "no epoch was begun again"
    assert output_of(tmp_path) == Counter((a, b) for a in range(4) for b in range(4))


def test_while_results_are_published_two_epochs_are_in_flight_and_neither_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch after next begins right after the commit. Publishing fails once, and what was begun is given up and begun again."""
    epochs = [[(e, 5, 0, at(e))] for e in range(6)]
    steps: list[str] = []
    publish = Sinks.publish

    def fails_once(self: Sinks, *arguments: Any, **options: Any) -> None:
        if steps.count("publish") == 3 and "out of reach" not in steps:
            steps.append("out of reach")
            raise UnavailableError("out of reach")
        publish(self, *arguments, **options)

    monkeypatch.setattr(Sinks, "publish", fails_once)
    job = make_job(tmp_path, **BIGINTS, window={"within": "100s"})
    driver = driver_for(job, (stream(epochs), stream(epochs)), ObjectStorage(str(tmp_path / "state")), InlineRunner(), at=steps.append)
    driver.start()
    results = [driver.step(), driver.step()]
    with pytest.raises(EpochFailed, match="out of reach"):
        driver.step()
    begun, committed = steps.count("tasks"), steps.count("commit")
    results += iter(driver.step, None)
    work = [step for step in steps if step in ("plan", "tasks", "commit", "publish", "out of reach")]
    first, second = work.index("commit"), work.index("commit", work.index("commit") + 1)
    assert work[first : second + 1] == ["commit", "plan", "tasks", "publish", "commit"]
    assert (begun, committed) == (5, 3), "two are begun when the third is committed"
    assert [result.epoch for result in results if result is not None] == [0, 1, 3, 4, 5]
    assert steps.count("tasks") == 5 + 3, "both again, and the last"
    assert output_of(tmp_path) == Counter((a, b) for a in range(6) for b in range(6))


def test_a_task_that_runs_before_its_predecessor_costs_nobody_the_runs(tmp_path: Path) -> None:
    """Spark may start the tasks of the later of two epochs first. They do nothing, and the earlier one finds its runs."""
    epochs = [[(e, 5, 0, at(e))] for e in range(5)]
    early: list[int] = []

    class LaterFirst(InlineRunner):
        def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Any:
            begun = super().submit(spec, workers)
            if spec.follows is not None and spec.epoch % 2:
                reports = begun.result()
                assert all(report.predecessor_missing for report in reports)
                early.append(spec.epoch)
                begun.result = lambda: reports  # type: ignore[method-assign]
            return begun

    job = make_job(tmp_path, **BIGINTS, window={"within": "100s"})
    inputs = (stream(epochs), stream(epochs))
    results = run_all(driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), LaterFirst()))
    assert early == [1, 3]
    assert [result.read_back for result in results] == [0] * 5
    assert output_of(tmp_path) == Counter((a, b) for a in range(5) for b in range(5))
