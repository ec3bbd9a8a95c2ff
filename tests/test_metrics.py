"""The metrics: what a scrape says after real epochs, over restarts and failures; who can ask; and that the documentation is right."""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from harness import SECOND, START, FaultyStorage, Input, driver_for, make_batch, make_job, manifest_text
from prometheus_server import PROMTOOL, needs_promtool
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.cli.run import Options
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Kind as Action
from streamjoin.elastic.settings import Mode, Settings
from streamjoin.epoch.ports import EpochFailed, EpochResult
from streamjoin.epoch.reports import TaskReport
from streamjoin.io.base import Blocked, Traffic
from streamjoin.job import Job
from streamjoin.manifest.sinks import KafkaSink
from streamjoin.manifest.sources import KafkaSource
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.capacity import Capacity
from streamjoin.serve.admission import Request
from streamjoin.serve.api import PlanApi
from streamjoin.serve.catalogue import CATALOGUE, Kind, tables
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.observer import Steps
from streamjoin.serve.server import DriverServer
from streamjoin.serve.wishes import plan_for_workers
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS

COUNTED = ("failures", "stalls", "retries", "backs", "switches", "drops", "decisions", "topics", "replaced")
DOCUMENT = (Path(__file__).resolve().parent.parent / "docs" / "metrics.md").read_text()
BAND: dict[str, Any] = {"types": ("BIGINT", "BIGINT"), "on": "abs(l.k - r.k) <= 1", "window": {"within": "5s"}, "watermark": "1s"}


class Scrape:
    """One exposition: values by name and labels but for ``name``, which is asserted."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self.labels: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        self._values: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.startswith("streamjoin_"):
                    continue
                labels = dict(sample.labels)
                assert labels.pop("name", "test") == "test"
                base = re.sub(r"_(bucket|sum|count)$", "", sample.name) if family.type == "histogram" else sample.name
                self.types[base] = family.type
                self.labels[base].add(tuple(label for label in sample.labels if label != "le"))
                self._values[sample.name.removeprefix("streamjoin_")][tuple(labels[label] for label in sorted(labels))] = sample.value

    def __getitem__(self, name: str) -> Any:
        """By the values of its labels in the labels' order, where there is one only by that; the value itself where there are none."""
        values = self._values[name]
        assert values, f"{name} is not there"
        if set(values) == {()}:
            return values[()]
        return {key[0] if len(key) == 1 else key: value for key, value in values.items()}

    def __contains__(self, name: str) -> bool:
        return bool(self._values.get(name))


def scrape(metrics: Metrics) -> Scrape:
    return Scrape(generate_latest(metrics.registry).decode())


class Clock:
    def __init__(self) -> None:
        self.now = START / SECOND + 100.0

    def __call__(self) -> float:
        return self.now


def some_input(seed: int, *, epochs: int = 6, rows: int = 100) -> Input:
    """With null keys, null times, late tuples and values that ``where`` leaves out."""
    rng = random.Random(seed)
    batches = []
    for epoch in range(epochs):
        made: list[tuple[int, Any, int, Any]] = []
        for row in range(rows):
            at = START + round((epoch + row / rows - rng.choice([0, 0, 0, 0, 9])) * SECOND)
            made.append((epoch * rows + row, rng.choice([None, *range(20)]), rng.randint(0, 4), rng.choice([None, *[at] * 9])))
        batches.append(make_batch(made, pa.int64()))  # type: ignore[arg-type]
    return Input(batches, [1] * epochs)


class Run:
    """A join with its metrics, and all that it needs."""

    def __init__(self, root: Path, *, storage: Any = None, inputs: tuple[Input, Input] | None = None, **options: Any) -> None:
        self.clock = Clock()
        self.job: Job = make_job(root, **(BAND | {"where": ("v <> 2", None)} | options))
        self.runner = InlineRunner()
        inputs = inputs or (some_input(1), some_input(2))
        self.driver: Driver = driver_for(self.job, inputs, storage or ObjectStorage(str(root / "state")), self.runner, clock=self.clock)
        self.metrics = Metrics(self.job, clock=self.clock, progress=self.driver.progress, snapshots=self.driver.snapshots)
        self.watched = Steps(self.driver, [self.metrics])

    def steps(self, count: int | None = None) -> list[EpochResult]:
        """So many epochs, or all."""
        results: list[EpochResult] = []
        while len(results) != count:
            self.clock.now += 1.0
            result = self.watched.step(final=True)
            if result is None:
                break
            results.append(result)
        return results

    def scrape(self) -> Scrape:
        return scrape(self.metrics)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    output = {"snapshots": {"size": 1}}
    scaling = {"tau2": 0.5, "tau1": 0.3, "budget": {"completeness": "99 %"}}
    return Run(tmp_path, output=output, capacity=100, shedding={"model": "linear", "base": "0.2"}, scaling=scaling)


def as_if_from_kafka(run: Run, **changes: Any) -> Metrics:
    """What a join with the same results would serve whose streams and sink were topics."""
    given = {"bootstrapServers": "b:9092", "topic": "t"}
    source, sink = KafkaSource.model_validate(given), KafkaSink.model_validate(given)
    streams = tuple(replace(stream, source=source) for stream in run.job.streams)
    job = replace(run.job, streams=streams, joins=tuple(replace(join, sink=sink) for join in run.job.joins), **changes)
    metrics = Metrics(job, clock=run.clock, progress=run.driver.progress, snapshots=run.driver.snapshots)
    metrics.idle(SimpleNamespace(traffic=(Traffic(),) * 3, delays=run.driver.delays, plan_status=lambda: None))
    return metrics


def test_a_scrape_says_what_the_last_epoch_says(run: Run) -> None:
    run.watched.start()
    last = run.steps()[-1]
    seen = run.scrape()
    assert seen["worker_utilization_ratio"] == {str(task): pytest.approx(tau) for task, tau in last.utilization.items()}
    assert seen["worker_tuples"] == {
        (side, str(task)): held[index] for task, held in last.held_by_side.items() for index, side in enumerate(("left", "right"))
    }
    assert seen["workers"] == len(last.held) == 3
    assert seen["worker_shed_ratio"] == {str(task): factor for task, factor in enumerate(last.shed)}
    assert any(last.shed), "the test is to see a worker above tau2"
    assert seen["plan_generation"] == last.generation
    assert seen["plan_info"] == {(str(last.generation), "j", "adsp"): 1}
    assert seen["stream_info"] == {("left", "l"): 1, ("right", "r"): 1}
    assert seen["epoch_number"] == last.epoch
    assert seen["last_commit_timestamp_seconds"] == last.committed_at
    assert seen["backlog_records"] == dict(zip("lr", last.backlog, strict=True))
    assert seen["watermark_timestamp_seconds"] == {s: mark / 1e6 for s, mark in zip("lr", last.watermarks, strict=True) if mark is not None}
    assert seen["capacity_tuples"] == 100
    assert seen["threshold_ratio"] == {"tau0": 0.2, "tau1": 0.3, "tau2": 0.5, "tau3": 0.9}
    assert (seen["workers_min"], seen["workers_max"]) == (3, 3)
    assert seen["running_epoch_seconds"] == 0


def test_shedding_that_is_only_recommended_is_counted_and_drops_nothing(tmp_path: Path) -> None:
    shedding = {"model": "linear", "base": "0.2", "mode": "Recommend"}
    run = Run(tmp_path, capacity=100, shedding=shedding, scaling={"tau2": 0.5, "tau1": 0.3})
    run.watched.start()
    results = run.steps()
    seen = run.scrape()
    assert any(results[-1].would_shed), "the test is to see a worker above tau2"
    assert seen["worker_would_shed_ratio"] == {str(task): factor for task, factor in enumerate(results[-1].would_shed)}
    assert set(seen["worker_shed_ratio"].values()) == {0}
    assert set(seen["shed_tuples_total"].values()) == {0}
    told = [sum(result.counts["would_shed"][side] for result in results) for side in (0, 1)]
    assert list(seen["would_shed_tuples_total"].values()) == told
    assert min(seen["would_shed_tuples_total"].values()) > 0


def test_counters_are_the_sums_of_all_epochs(run: Run) -> None:
    run.watched.start()
    results = run.steps()
    seen = run.scrape()
    names = {
        "input": "input_records",
        "rejected": "dead_letter_records",
        **{name: f"{name}_tuples" for name in ("filtered", "late", "unmatchable", "shed", "accepted", "routed")},
    }
    for counter, name in names.items():
        expected = [sum(result.counts[counter][side] for result in results) for side in (0, 1)]
        assert list(seen[f"{name}_total"].values()) == expected, name
        assert sum(expected) > 0, f"the test is to see {counter}"
    for stream in "lr":
        fates = ("dead_letter_records", "filtered_tuples", "late_tuples", "unmatchable_tuples", "shed_tuples", "accepted_tuples")
        assert seen["input_records_total"][stream] == sum(seen[f"{name}_total"][stream] for name in fates)
    assert seen["output_rows_total"] == sum(result.output for result in results) == sum(seen["worker_output_rows_total"].values())
    assert seen["candidate_pairs_total"] == sum(result.candidates for result in results)
    assert seen["candidate_pairs_total"] == sum(seen["worker_candidate_pairs_total"].values())
    assert all(seconds > 0 for seconds in seen["worker_busy_seconds_total"].values())


def test_each_of_several_joins_has_its_own_counters_and_those_of_all_are_their_sums(tmp_path: Path) -> None:
    def joins(*names: str) -> list[dict[str, Any]]:
        conditions = ("abs(l.k - r.k) <= 1", "l.k = r.k", "l.k = r.k AND l.v > 9")
        window, output = {"within": "5s"}, {"sink": {"console": {}}, "select": ["l.rid AS a"]}
        return [{"name": name, "condition": on, "window": window, "output": output} for name, on in zip(names, conditions, strict=True)]

    run = Run(tmp_path, joins=joins("near", "same", "none"))
    run.watched.start()
    results = run.steps()
    seen = run.scrape()
    for metric, count in (("output_rows", "output"), ("candidate_pairs", "candidates")):
        by_join = {name: sum(getattr(result.joins[name], count) for result in results) for name in ("near", "same", "none")}
        assert seen[f"join_{metric}_total"] == by_join
        assert seen[f"{metric}_total"] == sum(by_join.values())
    assert seen["join_output_rows_total"]["near"] > seen["join_output_rows_total"]["same"] > 0
    assert seen["join_output_rows_total"]["none"] == 0
    assert {join for _, join, _ in seen["plan_info"]} == {"near", "same", "none"}


def test_a_single_join_has_all_that_its_checkpoint_counted_before_it_counted_by_join(run: Run) -> None:
    run.watched.start()
    (result,) = run.steps(1)
    run.metrics.observe(replace(result, totals={name: pair for name, pair in result.totals.items() if "/" not in name}))
    seen = run.scrape()
    assert seen["join_output_rows_total"] == {"j": seen["output_rows_total"]}
    assert seen["join_candidate_pairs_total"] == {"j": seen["candidate_pairs_total"]}
    assert seen["output_rows_total"] == result.output > 0


def test_bytes_are_those_of_the_files(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks that were ever written are still there: none is obsolete for long enough."""
    monkeypatch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", 0)
    run.watched.start()
    run.steps(3)
    seen = run.scrape()
    assert seen["output_bytes_total"] == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.parquet"))
    assert sum(seen["dead_letter_bytes_total"].values()) == sum(p.stat().st_size for p in (tmp_path / "state/dead-letters").glob("*.json*"))
    blocks = [path.stat().st_size for path in (tmp_path / "state/blocks").rglob("*.arrow")]
    assert (sum(seen["written_bytes_total"].values()), sum(seen["written_blocks_total"].values())) == (sum(blocks), len(blocks))
    assert sum(seen["stored_bytes"].values()) <= sum(blocks)
    assert sum(seen["stored_blocks"].values()) == len(run.driver.checkpoint.state.blocks)
    rows = sum(seen["routed_tuples_total"].values())
    assert 30 * rows < sum(seen["routed_bytes_total"].values()) < 1000 * rows, "key, unit, time and payload, and the batches' own"
    assert 28 <= sum(seen["input_bytes_total"].values()) / sum(seen["input_records_total"].values()) <= 40, "rid, k, v, at and bitmaps"
    assert sum(seen["worker_bytes"].values()) >= sum(seen["worker_tuples"].values()) * 20


def test_a_worker_that_lost_its_tuples_is_counted_with_what_it_read_back(run: Run) -> None:
    run.watched.start()
    run.steps(2)
    assert run.scrape()["read_backs_total"] == 0, "in the first epoch there was nothing to read back"
    before = run.scrape()["worker_bytes"]["1"]
    run.runner.lose(1)
    run.steps(1)
    seen = run.scrape()
    assert seen["read_backs_total"] == 1
    assert 0 < seen["read_back_bytes_total"] <= before * 1.01


def test_counters_of_tuples_go_on_over_a_restart_and_those_of_the_process_begin_again(tmp_path: Path) -> None:
    inputs = (some_input(1), some_input(2))
    first = Run(tmp_path, inputs=inputs)
    first.watched.start()
    first.steps(3)
    before = first.scrape()
    second = Run(tmp_path, inputs=inputs)
    unread = second.scrape()
    of_two = [metric for metric in CATALOGUE.values() if metric.total is not None and not (metric.many or metric.chain)]
    continued = {metric.name.removeprefix("streamjoin_") for metric in of_two if "kafka" not in metric.name}
    for name in continued:
        assert name in before
        assert name not in unread, f"{name}: as 0 it would look like a reset"
    second.watched.start()
    resumed = second.scrape()
    gauges = {"worker_utilization_ratio", "worker_tuples", "plan_generation", "epoch_number", "stored_bytes"}
    for name in sorted(continued | gauges):
        assert resumed[name] == before[name], name
    assert resumed["last_commit_timestamp_seconds"] == before["last_commit_timestamp_seconds"]
    assert resumed["epoch_duration_seconds_count"] == 0
    assert "worker_busy_seconds_total" not in resumed
    assert "watermark_lag_seconds" not in resumed, "whose clock the events follow is known after the first epoch"
    rest = second.steps()
    after = second.scrape()
    assert after["output_rows_total"] == before["output_rows_total"] + sum(result.output for result in rest)
    assert after["epoch_duration_seconds_count"] == len(rest)
    assert after["read_backs_total"] == 3, "each worker of the new process read back once"


def test_the_series_of_a_plan_end_with_it(tmp_path: Path) -> None:
    inputs = (some_input(1), some_input(2))
    first = Run(tmp_path, inputs=inputs, workers=4)
    first.watched.start()
    first.steps(2)
    before = first.scrape()
    assert set(before["worker_utilization_ratio"]) == {"0", "1", "2", "3"}
    second = Run(tmp_path, inputs=inputs, workers=2)
    second.watched.start()
    between = second.scrape()
    assert between["plan_generation"] == before["plan_generation"] + 1
    assert "worker_utilization_ratio" not in between, "what was measured under the old plan must not appear under the new one"
    second.steps(1)
    after = second.scrape()
    for name in ("worker_utilization_ratio", "worker_busy_seconds_total", "worker_bytes", "worker_shed_ratio"):
        assert set(after[name]) == {"0", "1"}, name
    assert after["workers"] == 2


def test_work_is_forgotten_with_the_task_that_did_it(run: Run) -> None:
    """Within one process, as when a plan shrinks while the join runs."""
    run.watched.start()
    result = run.steps(1)[0]
    keep = {name: {task: getattr(result, name)[task] for task in (0, 1)} for name in ("held", "held_by_side", "utilization", "work")}
    run.metrics.observe(EpochResult(**{**vars(result), **keep, "epoch": 1, "generation": 2, "shed": (0.0, 0.0)}))
    seen = run.scrape()
    assert seen["plan_generation"] == 2
    for name in ("worker_utilization_ratio", "worker_output_rows_total", "worker_candidate_pairs_total", "worker_bytes"):
        assert set(seen[name]) == {"0", "1"}, name


def test_a_plan_is_followed_from_when_it_is_put_until_it_runs(tmp_path: Path) -> None:
    run = Run(tmp_path, inputs=(some_input(1, epochs=9), some_input(2, epochs=9)))
    late = [True]
    run.job = replace(run.job, max_workers=6)
    run.driver.job = run.job
    run.runner.__class__ = type("Late", (InlineRunner,), {"ready": property(lambda runner: 0 if late else runner._count)})
    run.watched.start()
    run.steps(2)
    phases = dict.fromkeys(("WaitingForWorkers", "Preparing", "Switching", "Running"), 0.0)
    seen = run.scrape()
    assert seen["plan_phase"] == phases | {"Running": 1}
    assert (seen["plan_wanted_generation"], seen["workers_wanted"], seen["plan_switches_total"]) == (1, 3, 0)
    status, layout = run.driver.plan_status(), run.driver.layout
    assert status is not None
    assert layout is not None
    run.driver.put_plan(plan_for_workers(status, run.driver.statistics(), layout, run.job, 5).plan)
    run.steps(2)
    seen = run.scrape()
    assert seen["plan_phase"] == phases | {"WaitingForWorkers": 1}
    assert (seen["plan_generation"], seen["plan_wanted_generation"], seen["workers"], seen["workers_wanted"]) == (1, 2, 3, 5)
    assert seen["workers_ready"] == 0
    late.clear()
    run.steps(2)
    seen, status = run.scrape(), run.driver.plan_status()
    assert status is not None
    assert status.switched is not None
    assert seen["plan_phase"] == phases | {"Running": 1}
    assert (seen["plan_generation"], seen["workers"], seen["workers_wanted"], seen["workers_ready"]) == (2, 5, 5, 5)
    assert (seen["plan_switches_total"], seen["plan_drops_total"]) == (1, 0)
    assert seen["plan_moved_tuples_total"] == status.switched.moved_tuples > 0
    assert seen["plan_kept_tuples_total"] == status.switched.kept_tuples > 0
    assert (seen["plan_pause_seconds_count"], seen["plan_wait_seconds_count"]) == (1, 1)
    assert seen["plan_wait_seconds_sum"] == pytest.approx(status.switched.waited_seconds)
    run.driver.put_plan(plan_for_workers(status, run.driver.statistics(), layout, run.job, 6).plan)

    def at(step: str) -> None:
        if step == "switch":
            run.runner.submit = lambda spec, workers: FailedEpoch()  # type: ignore[assignment, misc]

    run.driver._phase.at = at
    with pytest.raises(EpochFailed):
        run.steps(3)
    seen = run.scrape()
    assert (seen["plan_switches_total"], seen["plan_drops_total"], seen["workers"], seen["workers_wanted"]) == (1, 1, 5, 5)


class FailedEpoch:
    def result(self) -> list[TaskReport]:
        raise EpochFailed("a worker died")

    def cancel(self) -> None:
        pass


def test_decisions_are_counted_by_kind_and_by_what_becomes_of_them(run: Run) -> None:
    assert set(run.scrape()["decisions_total"].values()) == {0}
    core = DecisionCore(Settings(mode=Mode.RECOMMEND, min_workers=2), at=0.0, generation=1, workers=1)
    hold = replace(core.decide(1.0), kind=Action.HOLD, mode=Mode.ENFORCE)
    act = replace(hold, kind=Action.ALLOCATE, mode=Mode.RECOMMEND)
    for decision in (hold, hold, act):
        run.metrics.decided(decision)
    counted = {labels: count for labels, count in run.scrape()["decisions_total"].items() if count}
    assert counted == {("HOLD", "Enforce"): 2, ("ALLOCATE", "Recommend"): 1}


def test_lag_grows_while_nothing_is_committed(run: Run) -> None:
    run.watched.start()
    last = run.steps(2)[-1]
    since = run.clock.now - last.started_at
    at_once = run.scrape()["watermark_lag_seconds"]
    assert at_once == {stream: pytest.approx(lag + since) for stream, lag in zip("lr", last.lag, strict=True)}
    run.clock.now += 30.5
    later = run.scrape()["watermark_lag_seconds"]
    assert later == {stream: pytest.approx(lag + 30.5) for stream, lag in at_once.items()}


def test_epochs_are_counted_by_step(run: Run) -> None:
    run.watched.start()
    results = run.steps()
    seen = run.scrape()
    assert seen["epoch_duration_seconds_count"] == len(results)
    assert seen["epoch_duration_seconds_sum"] == pytest.approx(sum(result.duration for result in results))
    steps = seen["epoch_step_duration_seconds_count"]
    planned = sum("plan" in result.seconds for result in results)
    assert steps == dict.fromkeys(("tasks", "commit", "publish", "clean"), len(results)) | {"plan": planned, "deploy": 1}
    assert planned == len(results) - 2, "while there is a backlog an epoch is planned in the step of the last but one; two plan none"
    assert set(seen["task_step_duration_seconds_count"]) == {"route", "open", "gather", "join", "merge", "write"}
    assert seen["task_step_duration_seconds_sum"]["join"] == pytest.approx(sum(result.seconds["task.join"] for result in results))
    buckets = seen["epoch_duration_seconds_bucket"]
    assert buckets["+Inf"] == len(results)
    assert list(buckets.values()) == sorted(buckets.values())


def test_failures_and_retries_are_counted_and_nothing_that_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", 0)
    failing: list[str] = []

    def chooser(name: str, path: str) -> str | None:
        return "fail-after" if failing and name == "put" and path.startswith("blocks/") else None

    run = Run(tmp_path, storage=FaultyStorage(ObjectStorage(str(tmp_path / "state")), chooser))
    run.watched.start()
    run.steps(2)
    before = run.scrape()
    failing.append("from now on")
    for attempt in (1, 2):
        with pytest.raises(EpochFailed):
            run.watched.step()
        seen = run.scrape()
        assert (seen["epoch_failures_total"], seen["epoch_retries_total"]) == (attempt, attempt - 1)
        assert run.metrics.health()[0], "it is being tried again"
        facts = run.metrics.health()[1]
        assert (facts["state"], facts["lastError"]) == ("retrying", "EpochFailed")
        assert facts["lastFailure"].startswith("epoch ")
        for name in ("input_records_total", "written_bytes_total", "output_rows_total", "epoch_duration_seconds_count"):
            assert seen[name] == before[name], name
    failing.clear()
    run.steps()
    seen = run.scrape()
    assert (seen["epoch_failures_total"], seen["epoch_retries_total"]) == (2, 2)
    assert seen["input_records_total"] == {"l": 600, "r": 600}
    assert run.metrics.health()[1]["state"] == "running"


def test_how_long_an_attempt_has_been_running_is_seen_while_it_runs(tmp_path: Path) -> None:
    run = Run(tmp_path)
    seen: list[float] = []

    def at(step: str) -> None:
        if step == "commit":
            run.clock.now += 42.0
            seen.append(run.scrape()["running_epoch_seconds"])

    run.driver._phase.at = at
    run.watched.start()
    run.steps(1)
    assert seen == [42.0]
    assert run.scrape()["running_epoch_seconds"] == 0


def test_a_start_that_fails_is_counted_and_raised(tmp_path: Path) -> None:
    first = Run(tmp_path)
    first.watched.start()
    first.steps(1)
    other = Run(tmp_path, on="l.k = r.k")
    with pytest.raises(RuntimeError, match="on"):
        other.watched.start()
    assert other.scrape()["epoch_failures_total"] == 1
    assert "input_records_total" not in other.scrape()


def test_how_complete_results_are_is_said_over_times_and_goes_on_over_restarts(run: Run) -> None:
    run.watched.start()
    assert "completeness_ratio" not in run.scrape()
    last = run.steps(4)[-1]
    seen, estimate = run.scrape(), last.losses.joins["j"].over(None, 0.0)
    assert estimate is not None
    assert 0 < estimate.share < 1
    bounds = {"estimate": estimate.share, "low": estimate.low, "high": estimate.high}
    assert seen["completeness_ratio"] == {
        (bound, "j", over): pytest.approx(share) for over in ("1h", "1d", "run") for bound, share in bounds.items()
    }
    causes = {"shedding": estimate.lost_to_shedding, "lateness": estimate.lost_to_lateness}
    assert seen["lost_results_ratio"] == {
        (cause, "j", over): pytest.approx(share) for over in ("1h", "1d", "run") for cause, share in causes.items()
    }
    assert seen["completeness_budget_seconds"] == 0
    again = Metrics(run.job, clock=run.clock)
    again.started(run.driver)
    assert scrape(again)["completeness_ratio"] == seen["completeness_ratio"]


def test_the_catalogue_has_what_is_served_and_nothing_else(run: Run) -> None:
    run.watched.start()
    (result,) = run.steps(1)
    by_tuples, by_bytes = as_if_from_kafka(run), as_if_from_kafka(run, capacity=Capacity(1 << 20, in_bytes=True))
    for metrics in (by_tuples, by_bytes):
        metrics.observe(replace(result, backlog_by_partition=({0: 5}, {}), blocked=({0: Blocked(5, 1.0)}, {})), run.driver.plan_status())
    seen, weighed = scrape(by_tuples), scrape(by_bytes)
    assert weighed["capacity_bytes"] == 1 << 20
    assert set(seen.types) ^ set(weighed.types) == {"streamjoin_capacity_bytes", "streamjoin_capacity_tuples"}
    of_two = {name: metric for name, metric in CATALOGUE.items() if not (metric.many or metric.chain)}
    assert seen.types | weighed.types == {name: metric.kind.value for name, metric in of_two.items()}
    for name, metric in of_two.items():
        assert {frozenset(labels) for labels in seen.labels[name] | weighed.labels[name]} == {frozenset(metric.labels)}, name
    assert run.scrape().types == {name: kind for name, kind in seen.types.items() if "kafka" not in name}


def test_a_handshake_chain_counts_its_messages_by_kind_over_restarts(tmp_path: Path) -> None:
    def started() -> Run:
        run = Run(tmp_path, inputs=(some_input(1), some_input(2)), scheme={"model": "handshake"}, workers=3, capacity=1000)
        run.watched.start()
        return run

    first = started()
    first.steps(2)
    second = started()
    results = second.steps()
    seen, totals = second.scrape(), results[-1].totals
    assert set(seen.types) >= {name for name, metric in CATALOGUE.items() if metric.chain}
    assert set(seen["chain_messages_total"]) >= {"tuple_blk", "ack", "mark", "wave", "at_rest"}
    for message, count in seen["chain_messages_total"].items():
        assert count == totals[f"chain/{message}"][0] > 0
        assert seen["chain_message_bytes_total"][message] == totals[f"chain/{message}_bytes"][0] > count
    assert seen["chain_messages_total"]["wave"] >= 2 * (len(results) + 2), "each epoch comes to rest by at least one wave over two links"
    assert seen["chain_block_tuples"] == results[-1].block_tuples is not None


def test_joins_of_three_streams_count_partial_results_and_may_have_a_stream_on_both_sides(tmp_path: Path) -> None:
    columns = {"id": {"sequence": {}}, "k": {"uniform": {"min": 0, "max": 50}}}
    source = {"generator": {"rows": 300, "realTime": False, "columns": columns}}
    timed = {"schema": "id BIGINT, k INT, at TIMESTAMP", "eventTime": "at", "watermark": "0s"}
    streams = [{"name": name, "source": source} | timed for name in "abc"]
    sink = {"files": {"path": str(tmp_path / "out")}}
    join = {"condition": "a.id = b.id AND abs(b.k - c.k) <= 1", "window": {"unbounded": True}, "output": {"sink": sink}}
    job = make_job(tmp_path, types=("INT", "INT"), streams=streams, joins=[join], epoch={"maxTuples": 300})
    metrics = Metrics(job, clock=Clock())
    driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner())
    watched = Steps(driver, [metrics])
    watched.start()
    results = list(iter(lambda: watched.step(final=True), None))
    seen = scrape(metrics)
    assert seen["input_records_total"] == dict.fromkeys("abc", 300)
    assert set(seen["stream_info"]) == {("left", "a"), ("right", "b"), ("left", "b"), ("right", "c")}
    # Each tuple is held once for each key of it; of b there are two.
    held = sum(map(sum, results[-1].held_by_side.values()))
    assert sum(seen["worker_tuples"].values()) == held >= 4 * 300
    assert seen["partial_tuples_total"] == results[-1].totals["partial"][0] > 0
    assert seen["partial_bytes_total"] == results[-1].totals["partial_bytes"][0] > 0
    assert set(seen.types) >= {name for name, metric in CATALOGUE.items() if metric.many}
    api = PlanApi(driver, metrics.health)
    answer = json.loads(api.answer(Request("GET", "/v1/statistics")).message.model_dump_json(by_alias=True))
    assert answer["predicate"] == "a.id = b.id; abs(b.k - c.k) <= 1"
    assert [answer[side]["tuples"] for side in ("left", "right")] == [600, 600]
    first, second = (-(2**63) + floor * 2**61 for floor in (1, 2))
    for side in ("left", "right"):
        bounds = answer[side]["histogram"]["bounds"]
        assert min(bounds) < first < max(bounds) < second, "levels of either main predicate"
    assert api.answer(Request("GET", "/v1/plan")).status == 200


def test_kafka_is_shown_by_stream_and_partition_and_summed_over_epochs(run: Run) -> None:
    run.watched.start()
    (result,) = run.steps(1)
    metrics = as_if_from_kafka(run)
    assert scrape(metrics)["kafka_sent_records_total"] == 0
    for errors, lag in (((1, 0), {0: 5, 1: 7}), ((2, 4), {1: 3})):
        traffic = Traffic(errors=10), Traffic(), Traffic(100, 2000, 3, 9)
        metrics.idle(SimpleNamespace(traffic=traffic, delays={}, plan_status=lambda: None))
        totals = result.totals | {"skipped": [0, 4]}
        blocked = {partition: Blocked(waiting, 90.0) for partition, waiting in lag.items() if waiting != 7}
        metrics.observe(replace(result, source_errors=errors, backlog_by_partition=(lag, {}), blocked=(blocked, {}), totals=totals))
    seen = scrape(metrics)
    assert seen["kafka_lag_records"] == {("1", "l", "t"): 3}, "a partition that the last epoch did not know of has no series"
    assert seen["kafka_blocked_seconds"] == {("1", "l", "t"): 90.0}
    assert seen["kafka_source_errors_total"] == {"l": 13, "r": 4}
    assert seen["kafka_skipped_records_total"] == {"l": 0, "r": 4}
    assert (seen["kafka_sent_records_total"], seen["kafka_sent_bytes_total"]) == (100, 2000)
    assert (seen["kafka_send_failures_total"], seen["kafka_sink_errors_total"]) == (3, 9)


def test_storage_requests_that_were_repeated_are_counted_whatever_became_of_their_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at the start, three in each attempt, one of which fails, and one more that a task of another process reports."""
    repeated = 0

    def repeat(times: int) -> None:
        nonlocal repeated
        repeated += times

    for module in ("state.storage", "controlplane.driver", "dataplane.joined", "dataplane.route", "serve.metrics"):
        monkeypatch.setattr(f"streamjoin.{module}.retries", lambda: repeated)
    run = Run(tmp_path)
    at = {"claim": lambda: repeat(2), "plan": lambda: repeat(3)}
    run.driver._phase.at = lambda step: at.get(step, lambda: None)()
    run.watched.start()
    assert run.scrape()["storage_retries_total"] == 2
    submit = run.runner.submit

    def refuse(*arguments: Any) -> Any:
        raise EpochFailed("lost")

    monkeypatch.setattr(run.runner, "submit", refuse)
    with pytest.raises(EpochFailed):
        run.watched.step()
    assert run.scrape()["storage_retries_total"] == 5
    monkeypatch.setattr(run.runner, "submit", submit)
    monkeypatch.setattr(InlineRunner, "overlaps", False)
    step = run.driver.step

    def with_one_more(**options: Any) -> EpochResult | None:
        result = step(**options)
        return result and replace(result, storage_retries=result.storage_retries + 1)

    monkeypatch.setattr(run.driver, "step", with_one_more)
    assert len(run.steps(1)) == 1
    assert run.scrape()["storage_retries_total"] == 9


def test_names_and_labels_keep_to_the_conventions() -> None:
    for name, metric in CATALOGUE.items():
        assert re.fullmatch(r"streamjoin(_[a-z]+)+", name), name
        assert name.endswith("_total") == (metric.kind is Kind.COUNTER), name
        assert metric.help.endswith("."), name
        plain = ("_info", "_number", "_generation", "_phase", "_warnings", "_errors_total", *(f"_{what}_total" for what in COUNTED))
        assert bool(metric.unit) != name.endswith(plain), name


def test_the_documentation_has_the_catalogue() -> None:
    begin, end = "<!-- metrics: python -m streamjoin.serve.catalogue -->\n", "<!-- end of metrics -->"
    assert DOCUMENT.split(begin)[1].split(end)[0].strip() == tables().strip()


def test_the_documentation_asks_only_for_metrics_that_there_are(run: Run) -> None:
    run.watched.start()
    (result,) = run.steps(1)
    metrics = as_if_from_kafka(run)
    metrics.observe(replace(result, backlog_by_partition=({0: 5}, {})), run.driver.plan_status())
    samples = set(re.findall(r"^(\w+)", generate_latest(metrics.registry).decode(), re.MULTILINE))
    questions = "".join(re.findall(r"```(?:promql|yaml)\n(.*?)```", DOCUMENT, re.DOTALL))
    asked = set(re.findall(r"\b(?:streamjoin|process)_\w+", questions))
    assert asked
    assert asked <= samples


@needs_promtool
def test_promtool_finds_nothing_to_complain_about(run: Run) -> None:
    assert PROMTOOL is not None
    run.watched.start()
    (result,) = run.steps(1)
    metrics = as_if_from_kafka(run)
    metrics.observe(replace(result, backlog_by_partition=({0: 5}, {})), run.driver.plan_status())
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=generate_latest(metrics.registry), capture_output=True, check=False)
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "", "")


@needs_promtool
def test_promtool_accepts_what_the_documentation_configures(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    (block,) = [block for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL) if block.startswith("scrape_configs:")]
    path = tmp_path / "prometheus.yml"
    path.write_text(block)
    done = subprocess.run([PROMTOOL, "check", "config", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def get(url: str, **headers: str) -> tuple[int, str, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


def test_the_server_answers_prometheus_and_health_checks(run: Run) -> None:
    with DriverServer(run.metrics) as server:
        assert server.url.startswith("http://127.0.0.1:")
        status, kind, body = get(f"{server.url}/healthz")
        assert (status, kind) == (200, "application/json")
        unknown = dict.fromkeys(("standby", "tookOverAt", "epoch", "secondsSinceCommit", "committedAt", "stalled", "lastError"))
        assert json.loads(body) == {"name": "test", "state": "starting", **unknown}
        run.watched.start()
        run.steps(2)
        run.clock.now += 7.0
        facts = json.loads(get(f"{server.url}/healthz")[2])
        assert (facts["state"], facts["epoch"], facts["secondsSinceCommit"]) == ("running", 1, 7.0)
        status, kind, body = get(f"{server.url}/metrics")
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        assert Scrape(body.decode())["epoch_number"] == 1
        status, _, body = get(f"{server.url}/metrics", **{"Accept-Encoding": "gzip"})
        assert Scrape(gzip.decompress(body).decode())["epoch_number"] == 1
        status, kind, body = get(f"{server.url}/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert kind.split(";")[0] == "application/openmetrics-text"
        assert "streamjoin_input_records" in {family.name for family in parse_openmetrics(body.decode())}
        body = get(f"{server.url}/metrics?name[]=streamjoin_workers")[2]
        assert body.decode().splitlines()[-1] == 'streamjoin_workers{name="test"} 3.0'
        assert get(f"{server.url}/")[0] == 200
        assert get(f"{server.url}/secret")[0] == 404
        run.watched.stop()
        status, _, body = get(f"{server.url}/healthz")
        assert (status, json.loads(body)["state"]) == (503, "ended")
    with pytest.raises(urllib.error.URLError):
        get(f"{server.url}/healthz")


def test_a_silent_client_and_one_that_hangs_up_keep_nobody_waiting(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    with DriverServer(run.metrics) as server:
        where = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        with socket.create_connection(where) as silent:
            silent.sendall(b"GET /metrics HTT")
            for _ in range(3):
                with socket.create_connection(where) as rude:
                    rude.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert get(f"{server.url}/metrics")[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("address", ["::1", "localhost"])
def test_the_server_takes_other_addresses(run: Run, address: str) -> None:
    try:
        server = DriverServer(run.metrics, address)
    except OSError as error:
        pytest.skip(f"this machine has no {address}: {error}")
    with server:
        assert get(f"{server.url}/healthz")[0] == 200


def test_scrapes_while_epochs_run_see_whole_epochs(tmp_path: Path) -> None:
    """At any moment the counters of one scrape add up."""
    run = Run(tmp_path, inputs=(some_input(1, epochs=8, rows=40), some_input(2, epochs=8, rows=40)))
    numbers = []

    def at(step: str) -> None:
        if step in ("tasks", "commit", "publish", "clean"):
            seen = run.scrape()
            if "epoch_number" in seen:
                numbers.append((step, int(seen["epoch_number"])))
                assert sum(seen["input_records_total"].values()) == (seen["epoch_number"] + 1) * 80
                assert seen["epoch_duration_seconds_count"] == seen["epoch_number"] + 1

    run.driver._phase.at = at
    run.watched.start()
    run.steps()
    assert ("clean", 5) in numbers, "an epoch is seen when it is over"


def manifest_for(root: Path) -> Path:
    path = root / "manifest.yaml"
    path.write_text(manifest_text(root, **BAND))
    for name in "lr":
        (root / f"in-{name}").mkdir()
        lines = [json.dumps({"rid": i, "k": i % 7, "v": 1, "at": f"2026-01-01T00:00:{i % 60:02}Z"}) for i in range(60)]
        (root / f"in-{name}" / "a.json").write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("flags", [["--json"], []])
def test_the_command_line_serves_metrics_and_says_where(tmp_path: Path, flags: list[str]) -> None:
    path = manifest_for(tmp_path)
    result = CliRunner().invoke(main, ["run", str(path), "--runner", "inline", "--until-idle", "--metrics-port", "0", *flags])
    assert result.exit_code == Exit.DONE, result.output
    found = re.search(r"^metrics: (http://127\.0\.0\.1:\d+)/metrics$", result.stderr, re.MULTILINE)
    assert found
    assert "metrics:" not in result.stdout
    with pytest.raises(urllib.error.URLError):
        get(found[1])


def test_a_port_that_is_taken_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = manifest_for(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["run", str(path), "--runner", "inline", "--until-idle", "--metrics-port", port])
    assert result.exit_code == Exit.USAGE
    assert f"--metrics-port: port {port} of 127.0.0.1 cannot be listened on (Address already in use); choose another" in result.stderr


@pytest.mark.parametrize("address", ["no.such.host.invalid", "a..b", "192.0.2.1"])
def test_an_address_that_is_not_this_machines_is_refused(tmp_path: Path, address: str) -> None:
    path = manifest_for(tmp_path)
    options = ["--runner", "inline", "--until-idle", "--metrics-port", "0", "--metrics-address", address]
    result = CliRunner().invoke(main, ["run", str(path), *options])
    assert result.exit_code == Exit.USAGE
    assert re.search(rf"port 0 of {re.escape(address)} cannot be listened on \(.+\); choose another", result.stderr)


def test_an_address_alone_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["run", str(tmp_path / "m.yaml"), "--metrics-address", "0.0.0.0"])
    assert result.exit_code == Exit.USAGE
    assert "--metrics-address says where --metrics-port is" in result.stderr


def test_the_command_that_goes_on_serves_metrics_too() -> None:
    options = Options(Path("m.yaml"), metrics_port=9464, metrics_address="0.0.0.0")
    assert options.command == "streamjoin run m.yaml --metrics-port 9464 --metrics-address 0.0.0.0"
