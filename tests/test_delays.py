"""How long records waited for their results: against stamps that tests give, and a clock that they move."""

from __future__ import annotations

import json
import math
import os
import random
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import SECOND, START, join_of, make_job
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.delays import BOUNDS, Counted, DelayMeter, Delays
from streamjoin.epoch.ports import EpochFailed
from streamjoin.io.arrivals import MOST, Arrivals, Stamps
from streamjoin.io.base import UnavailableError
from streamjoin.io.several import Sinks
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.observer import Steps
from streamjoin.state.storage import ObjectStorage

NOW = 1_800_000_000.0


class Clock:
    """One that only the test moves."""

    now = NOW

    def __call__(self) -> float:
        return self.now


class Files:
    """A join of two directories of JSON files, and what the oracle must say of each record: when its file was changed."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root, self.clock = root, Clock()
        self.job = make_job(root, watermark="1h", **options)
        self.driver = Driver(self.job, ObjectStorage(self.job.checkpoint), InlineRunner(), clock=self.clock)
        self.metrics = Metrics(self.job, clock=self.clock)
        self.watched = Steps(self.driver, [self.metrics])
        self.stamps: dict[str, list[float]] = defaultdict(list)
        """By stream, of records that were not seen read yet."""

    def put(self, stream: str, records: int, at: float) -> None:
        folder = self.root / f"in-{stream}"
        folder.mkdir(exist_ok=True)
        path = folder / f"{len(list(folder.iterdir())):06d}.json"
        moment = datetime.fromtimestamp(START / SECOND, UTC).isoformat()
        path.write_text("".join(json.dumps({"rid": row, "k": row, "v": 0, "at": moment}) + "\n" for row in range(records)))
        os.utime(path, (at, at))
        self.stamps[stream] += [at] * records

    def expected(self, *streams: str) -> list[float]:
        """Of the records that were put since this was last asked, sorted, as if they became visible now."""
        found = sorted(max(self.clock.now - at, 0.0) for stream in streams for at in self.stamps.pop(stream, []))
        assert found
        return found

    def buckets(self, join: str) -> dict[float, float]:
        """Of the metrics, cumulative."""
        (family,) = [each for each in self.metrics.registry.collect() if each.name == "streamjoin_result_delay_seconds"]
        mine = [sample for sample in family.samples if sample.labels["join"] == join]
        found = {float(sample.labels["le"]): sample.value for sample in mine if sample.name.endswith("_bucket")}
        found[math.nan] = next(sample.value for sample in mine if sample.name.endswith("_sum"))
        return found


def quantile(delays: list[float], fraction: float) -> float:
    return delays[max(0, math.ceil(fraction * len(delays)) - 1)]


def same(delays: Delays, expected: list[float]) -> None:
    assert delays.count == len(expected)
    for fraction in (0.01, 0.5, 0.9, 0.99, 1.0):
        assert delays.quantile(fraction) == pytest.approx(quantile(expected, fraction)), fraction
    assert delays.longest == pytest.approx(expected[-1])


NEAR: dict[str, Any] = {"on": "abs(l.k - r.k) <= 1", "window": {"within": "5s"}}


def no_gathering(root: Path) -> dict[str, Any]:
    return {"sink": {"files": {"path": str(root / "out"), "format": "parquet", "gather": "0s"}}, "select": ["l.rid AS a", "r.rid AS b"]}


def test_of_files_it_is_the_time_since_their_last_change(tmp_path: Path) -> None:
    rng = random.Random(5)
    join = Files(tmp_path, **NEAR, output=no_gathering(tmp_path))
    join.watched.start()
    everything: list[float] = []
    for _ in range(6):
        for stream in "lr":
            for _ in range(rng.randint(1, 20)):
                join.put(stream, rng.randint(1, 30), join.clock.now - rng.choice((0.003, 0.2, 7, 4000, -30)) - rng.random())
        join.clock.now += 10
        result = join.watched.step(final=True)
        assert result is not None
        expected = join.expected("l", "r")
        same(result.delays["j"], expected)
        everything += expected
    assert join.watched.step(final=True) is None
    found = join.buckets("j")
    for bound in (*BOUNDS, math.inf):
        assert found[bound] == sum(delay <= bound for delay in everything), bound
    assert next(total for bound, total in found.items() if math.isnan(bound)) == pytest.approx(sum(everything))


def test_results_that_are_gathered_are_visible_when_that_is_published(tmp_path: Path) -> None:
    join = Files(tmp_path, **NEAR, output=no_gathering(tmp_path) | {"sink": {"files": {"path": str(tmp_path / "out"), "gather": "1m"}}})
    join.watched.start()
    for stream in "lr":
        join.put(stream, 10, NOW - 5)
    first = join.watched.step(final=False)
    assert first is not None
    assert (first.output, dict(first.delays)) == (28, {}), "its results wait"
    join.clock.now += 59
    join.put("l", 3, join.clock.now - 1)
    join.clock.now += 2
    assert join.watched.step(final=False) is not None
    while join.watched.step(final=True) is not None:
        pass
    assert join.buckets("j")[math.inf] == 23
    found = join.buckets("j")
    assert found[60.0] - found[30.0] == 0
    assert found[300.0] - found[60.0] == 20, "they have waited for the minute, too"
    assert found[5.0] == 3


def test_each_join_has_the_records_of_its_own_streams(tmp_path: Path) -> None:
    """Streams of which one reads the results of a join: they came when these were committed."""
    near = join_of(tmp_path, name="near", **NEAR, output=no_gathering(tmp_path))
    far = join_of(tmp_path, name="far", on="near.a = r.k", window=NEAR["window"])
    far["output"] = {"select": ["near.a AS a"], "sink": {"files": {"path": str(tmp_path / "far"), "format": "json", "gather": "0s"}}}
    near["output"]["select"] = ["l.rid AS a", "r.at AS at"]
    streams = [
        {
            "name": name,
            "source": {"files": {"path": str(tmp_path / f"in-{name}"), "format": "json"}},
            "schema": "rid BIGINT, k BIGINT, v INT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "1h",
        }
        for name in "lr"
    ]
    streams.append({"name": "near", "source": {"join": "near"}, "eventTime": "at", "watermark": "1h"})
    join = Files(tmp_path, joins=[near, far], streams=streams)
    join.watched.start()
    join.put("l", 20, NOW - 100)
    join.put("r", 5, NOW - 1)
    first = join.watched.step(final=True)
    assert first is not None
    same(first.delays["near"], [1.0] * 5 + [100.0] * 20)
    same(first.delays["far"], [1.0] * 5)
    join.clock.now += 4
    second = join.watched.step(final=True)
    assert second is not None
    assert "near" not in second.delays, "nothing of its streams was read"
    assert second.counts["input"] == (0, 0, first.joins["near"].output)
    assert first.joins["near"].output > 0
    same(second.delays["far"], [4.0] * first.joins["near"].output)


def test_what_a_sink_out_of_reach_delays_counts_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    join = Files(tmp_path, **NEAR, output=no_gathering(tmp_path))
    join.watched.start()
    join.put("l", 4, NOW - 2)
    join.put("r", 4, NOW - 2)

    def refuse(*_: Any, **__: Any) -> None:
        raise UnavailableError("out of reach")

    with monkeypatch.context() as broken:
        broken.setattr(Sinks, "publish", refuse)
        with pytest.raises(EpochFailed):
            join.watched.step(final=True)
        join.clock.now += 3600
        with pytest.raises(EpochFailed):
            join.watched.step(final=True)
    assert join.buckets("j")[math.inf] == 0
    assert join.watched.step(final=True) is None
    found = join.buckets("j")
    assert (found[1800.0], found[7200.0], found[math.inf]) == (0, 8, 8)
    join.put("l", 1, join.clock.now - 1)
    result = join.watched.step(final=True)
    assert result is not None
    same(result.delays["j"], [1.0] + [3602.0] * 8)


def test_where_nobody_knows_when_records_came_it_was_when_they_were_planned(tmp_path: Path) -> None:
    columns = {"rid": {"sequence": {}}, "k": {"uniform": {"min": 0, "max": 9}}, "v": {"uniform": {"min": 0, "max": 9}}}
    streams = [
        {
            "name": name,
            "source": {"generator": {"seed": 1, "rate": {"constant": 100}, "rows": 50, "columns": columns}},
            "schema": "rid BIGINT, k BIGINT, v INT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "1h",
        }
        for name in "lr"
    ]
    job = make_job(tmp_path, **NEAR, streams=streams, output=no_gathering(tmp_path))
    clock = Clock()

    def at(step: str) -> None:
        clock.now += {"tasks": 5.0, "publish": 0.5}.get(step, 0.0)

    driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner(), clock=clock, at=at)
    driver.start()
    clock.now += 1
    delays = []
    while (result := driver.step(final=True)) is not None:
        delays.append(result.delays["j"])
    assert sum(each.count for each in delays) == 100
    assert all(5.5 <= each.quantile(0.01) <= each.longest <= 6.5 for each in delays)


def test_many_stamps_become_few_that_never_understate() -> None:
    rng = random.Random(3)
    stamps = [(NOW - rng.random() * 10 ** rng.randint(-3, 4), rng.randint(1, 9)) for _ in range(5000)]
    parts = [Arrivals.each(stamps[start : start + 700]) for start in range(0, 5000, 700)]
    arrivals = Arrivals.together(parts)
    assert arrivals is not None
    assert len(arrivals.at) == MOST
    assert (np.diff(arrivals.at) >= 0).all()
    every = sorted(NOW - at for at, records in stamps for _ in range(records))
    halves = [Delays.of(found, NOW) for found in (Arrivals.each(stamps[:2500]), Arrivals.each(stamps[2500:])) if found is not None]
    for delays in (Delays.of(arrivals, NOW), Delays.together(halves)):
        assert delays is not None
        assert delays.count == len(every)
        assert delays.longest == pytest.approx(every[-1])
        for fraction in (0.01, 0.25, 0.5, 0.9, 0.99):
            true = quantile(every, fraction)
            assert true <= delays.quantile(fraction) + 1e-6
            assert delays.quantile(fraction) <= quantile(every, min(1.0, fraction + 0.02)) + 1e-6
    assert Delays.together([]) is None


def test_consecutive_records_are_sampled_evenly() -> None:
    fetches = [Stamps(np.array(millis, dtype=np.int64), 10, records) for millis, records in (([3000, -1, 5000], 24), ([], 0), ([1000], 7))]
    found = Arrivals.sampled([*fetches, None])
    assert found is not None
    assert (found.at.tolist(), found.records.tolist()) == ([1.0, 3.0, 5.0], [7, 10, 4])
    assert Arrivals.sampled([Stamps(np.array([-1], dtype=np.int64), 10, 7)]) is None
    assert Arrivals.sampled(fetches[1:2]) is None
    assert Arrivals.each([]) is None


def test_a_bound_is_of_the_bucket_below_it() -> None:
    counted = Counted().plus(Delays(np.array([0.005, 0.0051, 1e9]), np.array([2, 3, 4])))
    assert counted.records[:2] == (2, 3)
    assert counted.records[-1] == 4
    assert counted.seconds == pytest.approx(0.01 + 0.0153 + 4e9)


def test_what_waits_for_long_takes_little_memory() -> None:
    meter = DelayMeter(["one", "other"])
    for number in range(2000):
        meter.committed({join: Arrivals.once(float(number), 3) for join in ("one", "other")}, {"one"})
        if number % 3 == 0:
            meter.published(2000.0, all_of_it=False)
        assert len(meter._committed) <= MOST + 2
    meter.published(2000.0, all_of_it=True)
    found = meter.take()
    assert {join: delays.count for join, delays in found.items()} == {"one": 6000, "other": 6000}
    assert found["one"].longest == 2000.0
    assert meter.take() == {}
