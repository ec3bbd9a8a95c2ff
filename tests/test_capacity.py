"""Capacity in bytes: plans, tau and whole joins of a stream of wide tuples with one of narrow tuples."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from harness import START, output_of, run_all
from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.planning import tuple_bytes, utilization
from streamjoin.elastic.deployment import first_deployment
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import Planned, make_plan, overfull
from streamjoin.elastic.settings import Settings
from streamjoin.job import Job
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin.manifest.validate import load
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import MODELS
from streamjoin.scheme.statistics import SideStatistics, Statistics, loads
from streamjoin.sizing import weights_of
from streamjoin.state.checkpoint import Checkpoint, HeldState
from streamjoin.state.storage import ObjectStorage
from streamjoin_operator.autoscale import forecast_of
from test_scheme import ALL, EQUAL, sampled, unknown

WIDE, NARROW = 1000.0, 50.0
MIB = 1 << 20


def bytes_of(statistics: Statistics) -> Statistics:
    return statistics.weighed((WIDE, NARROW))


def planned(statistics: Statistics, workers: int, capacity: Capacity, model: str = "square", *, current: Plan | None = None) -> Planned:
    return make_plan(current, statistics, ALL, model=model, workers=workers, capacity=capacity, tau1=0.5, minimum=1, maximum=64)


class TestPlans:
    def test_wide_tuples_are_cut_finer_than_as_many_narrow_ones(self) -> None:
        counted = unknown(10_000, 10_000)
        by_tuples = planned(counted, 9, Capacity(1e6)).plan.scheme
        by_bytes = planned(bytes_of(counted), 9, Capacity(1e9, in_bytes=True)).plan.scheme
        # Nine workers: 3 x 3 holds fewest tuples, 9 x 1 fewest bytes (10e6 / 9 + 0.5e6).
        assert loads(by_tuples, counted).max() == pytest.approx(2 * 10_000 / 3, rel=1e-6)
        assert loads(by_bytes, bytes_of(counted)).max() == pytest.approx(10e6 / 9 + 0.5e6, rel=1e-6)
        assert loads(by_tuples, bytes_of(counted)).max() > 2 * loads(by_bytes, bytes_of(counted)).max()

    def test_workers_of_one_stream_hold_as_many_bytes_as_those_of_the_other(self) -> None:
        """A biclique of 1 MB of wide and 1 MB of narrow tuples has as many workers for either; counted, the narrow ones take nearly all."""
        counted = unknown(1_000, 20_000)
        held = planned(bytes_of(counted), 8, Capacity(1e9, in_bytes=True), "biclique").loads
        assert held.max() == pytest.approx(held.min(), rel=1e-6)
        uneven = planned(counted, 8, Capacity(1e9), "biclique").plan.scheme
        assert loads(uneven, bytes_of(counted)).max() > 3 * held.max()

    def test_a_capacity_in_bytes_takes_as_many_workers_as_hold_the_bytes(self) -> None:
        statistics = bytes_of(unknown(10_000, 10_000))  # 10.5 MB; on an equality nothing is held twice
        made = first_deployment(
            (20_000, 20_000), statistics, EQUAL, model="adsp", capacity=Capacity(4e6, in_bytes=True), tau1=0.5, minimum=1, maximum=64
        )
        assert made.workers == 11, "21 MB, 2 MB a worker"
        assert made.tau == pytest.approx(21e6 / 11 / 4e6, rel=1e-3)
        few = first_deployment(
            (20_000, 20_000), statistics, EQUAL, model="adsp", capacity=Capacity(4 * MIB, in_bytes=True), tau1=0.5, minimum=1, maximum=5
        )
        assert few.warning is not None
        assert "the 20,000 and 20,000 tuples that are expected" in few.warning
        assert "raise it, or spec.workers.capacity (4.0 MiB), or hold less" in few.warning

    @pytest.mark.parametrize("model", MODELS)
    def test_equal_weights_change_nothing(self, model: str) -> None:
        rng = np.random.default_rng(70)
        counted = sampled(rng.integers(0, 99, 3000), rng.integers(0, 99, 7000))
        doubled = counted.weighed((2.0, 2.0))
        first = make_plan(None, counted, EQUAL, model=model, workers=5, capacity=Capacity(100), tau1=0.5, minimum=1, maximum=9)
        twice = Capacity(200, in_bytes=True)
        other = make_plan(None, doubled, EQUAL, model=model, workers=5, capacity=twice, tau1=0.5, minimum=1, maximum=9)
        assert other.plan.scheme == first.plan.scheme
        assert other.loads == pytest.approx(2 * first.loads)
        assert other.migration.moved_tuples == pytest.approx(first.migration.moved_tuples)

    def test_what_moves_is_told_in_tuples_and_no_less_than_the_bound(self) -> None:
        counted = unknown(10_000, 30_000)
        weighed = bytes_of(counted)
        current = planned(weighed, 4, Capacity(1e9, in_bytes=True)).plan
        for workers in range(1, 10):
            made = planned(weighed, workers, Capacity(1e9, in_bytes=True), current=current)
            migration = made.migration
            assert migration.kept_tuples + migration.moved_tuples == pytest.approx(loads(made.plan.scheme, counted).sum())
            assert migration.lower_bound_tuples <= migration.moved_tuples + 1e-6

    def test_what_is_too_much_is_told_in_the_unit_of_the_capacity(self) -> None:
        held = np.array([1.0 * MIB, 3.0 * MIB])
        warning = overfull(held, "square", Capacity(2 * MIB, in_bytes=True))
        assert warning is not None
        what = "spec.workers.capacity: task 1 of the plan (square, 2 tasks) would hold 3.0 MiB of tuples, more than 2.0 MiB; raise it"
        assert warning.startswith(what)
        assert overfull(held, "square", Capacity(3 * MIB, in_bytes=True)) is None

    def test_weights_survive_as_json_and_are_1_where_statistics_have_none(self) -> None:
        statistics = bytes_of(unknown(10, 20))
        value = json.loads(json.dumps(statistics.to_json()))
        assert [side.weight for side in Statistics.from_json(value).sides] == [WIDE, NARROW]
        del value["left"]["weight"]
        assert [side.weight for side in Statistics.from_json(value).sides] == [1.0, NARROW]
        with pytest.raises(ValueError, match="weight: 0 must be a positive number"):
            SideStatistics(1.0, weight=0)


STREAMS = {"l": ("rid BIGINT, k BIGINT, text STRING, at TIMESTAMP", 600), "r": ("rid BIGINT, k BIGINT, at TIMESTAMP", 6000)}


def write_inputs(root: Path) -> dict[str, pa.Table]:
    """Left tuples carry texts of a kilobyte."""
    rng = np.random.default_rng(71)
    tables = {}
    for name, (_, rows) in STREAMS.items():
        columns = {"rid": pa.array(np.arange(rows)), "k": pa.array(rng.integers(0, 2000, rows))}
        if name == "l":
            columns["text"] = pa.array([f"{number:04d}" * 250 for number in range(rows)])
        columns["at"] = pa.array(START + np.sort(rng.integers(0, 9_000_000, rows))).cast(pa.timestamp("us", "UTC"))
        tables[name] = pa.table(columns)
        (root / f"in-{name}").mkdir()
        for part in range(3):
            pq.write_table(tables[name].slice(part * rows // 3, rows // 3), root / f"in-{name}" / f"{part}.parquet")
    return tables


def job_of(root: Path, **workers: object) -> Job:
    streams = [
        {
            "name": name,
            "source": {"files": {"path": str(root / f"in-{name}"), "format": "parquet"}},
            "schema": schema,
            "eventTime": "at",
            "watermark": "1h",
        }
        for name, (schema, _) in STREAMS.items()
    ]
    join = {
        "name": "j",
        "condition": "l.k < r.k - 1900 OR l.k > r.k + 1900",
        "window": {"within": "4s"},
        "output": {
            "select": ["l.rid AS a", "r.rid AS b", "length(l.text) AS c"],
            "sink": {"files": {"path": str(root / "out"), "format": "parquet"}},
        },
    }
    spec = {
        "streams": streams,
        "joins": [join],
        "scheme": {"model": "square"},
        "workers": {"min": 4, "max": 4, **workers},
        "epoch": {"maxTuples": 2200},
        "checkpoint": {"location": str(root / "state")},
    }
    document = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "test"}, "spec": spec}
    return compile_job(load(yaml.safe_dump(document)))


def joined(tables: dict[str, pa.Table]) -> Counter:
    connection = duckdb.connect()
    for name, table in tables.items():
        connection.register(name, table)
    query = """SELECT l.rid, r.rid, length(l.text) FROM l, r WHERE (l.k < r.k - 1900 OR l.k > r.k + 1900)
               AND abs(epoch_us(l.at) - epoch_us(r.at)) <= 4000000"""
    return Counter(connection.execute(query).fetchall())


def run(root: Path, **workers: object) -> tuple[Driver, dict[int, int]]:
    """The driver after the join, and the bytes that each worker holds."""
    job = job_of(root, **workers)
    driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner())
    last = run_all(driver)[-1]
    return driver, {task: work.held_bytes for task, work in last.work.items()}


def test_a_join_by_bytes_has_the_same_results_and_its_fullest_worker_holds_less(tmp_path: Path) -> None:
    fullest = {}
    for field, value in (("capacity", "4Mi"), ("capacityTuples", 100_000)):
        root = tmp_path / field
        root.mkdir()
        tables = write_inputs(root)
        driver, held = run(root, **{field: value})
        assert output_of(root) == joined(tables) != Counter()
        fullest[field] = max(held.values())
        checkpoint = driver.checkpoint
        if field == "capacity":
            assert driver.utilization() == {task: nbytes / (4 * MIB) for task, nbytes in held.items()}
            left, right = driver.statistics().sides
            assert 1000 < left.weight < 1100, "a thousand characters, and the columns beside them"
            assert 24 < right.weight < 60
            assert left.tuples == sum(block.rows for block in checkpoint.state.blocks if block.place == LEFT)
        else:
            assert driver.utilization() == {task: sum(tuples) / 100_000 for task, tuples in checkpoint.state.held.items()}
            assert [side.weight for side in driver.statistics().sides] == [1.0, 1.0]
    assert fullest["capacity"] < 0.7 * fullest["capacityTuples"]


def test_a_checkpoint_without_measured_bytes_is_weighed_by_the_schema(tmp_path: Path) -> None:
    job = job_of(tmp_path, capacity="4Mi")
    # rid is needed of both, text of the left: 8 + 24 and 8 bytes, and 24 for key, time and unit.
    assert tuple_bytes(job, Checkpoint()) == tuple(stream.tuple_bytes for stream in job.streams)
    held = {0: (10, 20), 1: (30, 0)}
    old = Checkpoint(state=HeldState(held=held))
    left, right = (stream.tuple_bytes for stream in job.streams)
    assert utilization(job, old) == {task: (tuples[0] * left + tuples[1] * right) / (4 * MIB) for task, tuples in held.items()}
    measured = replace(old, state=replace(old.state, held_bytes={0: (10_000, 500), 1: (30_000, 0)}))
    assert tuple_bytes(job, measured) == (1000.0, 25.0)
    assert utilization(job, measured) == {0: 10_500 / (4 * MIB), 1: 30_000 / (4 * MIB)}
    assert Checkpoint.decode(measured.encode()) == measured


def test_a_capacity_in_tuples_is_what_settings_have(tmp_path: Path) -> None:
    job = job_of(tmp_path, capacityTuples=5000)
    assert weights_of(job) == (1.0, 1.0)
    assert job.capacity_tuples == Settings.of(job.manifest.spec).capacity_tuples == 5000


def test_a_forecast_without_statistics_counts_tuples_as_wide_as_the_schemas_say(tmp_path: Path) -> None:
    job = job_of(tmp_path, capacity="4Mi")
    mean = sum(job.streams[side].tuple_bytes for side in SIDES) / 2
    assert job.capacity_tuples == Settings.of(job.manifest.spec).capacity_tuples == pytest.approx(4 * MIB / mean)
    assert job.streams[LEFT].tuple_bytes > job.streams[RIGHT].tuple_bytes
    assert re.fullmatch(r"4\.0 MiB of tuples", job.capacity.words(job.capacity.amount))


def test_the_operator_forecasts_in_bytes_what_the_driver_tells_it(tmp_path: Path) -> None:
    job = job_of(tmp_path, capacity="4Mi")
    main = job.layouts[0].main
    told = unknown(1000, 10_000).weighed((1100.0, 40.0))
    plan = make_plan(None, told, main, model="square", workers=2, capacity=job.capacity, tau1=0.4, minimum=1, maximum=9).plan
    shown = {"scheme": plan.scheme.to_json(), "generation": plan.generation}
    forecast = forecast_of(shown, {**told.to_json(), "predicate": main.text}, job, 0.0)
    assert forecast is not None
    prospect = forecast.at(4)
    assert prospect is not None
    # All pairs may match: 4 x 1 holds 275 kB + 400 kB, 2 x 2 550 kB + 200 kB.
    assert prospect.tau_max == pytest.approx((1_100_000 / 4 + 400_000) / (4 * MIB), rel=1e-3)
    counted = told.counted.to_json() | {"predicate": main.text}
    assert forecast_of(shown, counted, job, 0.0) is None, "a driver that counts tuples runs another manifest"
    assert forecast_of(shown, counted, job_of(tmp_path, capacityTuples=1000), 0.0) is not None
