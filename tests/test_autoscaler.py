"""The closed loop on the inline runner in virtual time: load comes and goes, workers follow, and the results are the oracle's."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from harness import SECOND, START, Input, driver_for, make_batch, make_job, manifest_text, oracle, output_of
from judged import judged_plans
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.decision import Decision, Kind
from streamjoin.elastic.ledger import Ledger
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.settings import Mode
from streamjoin.epoch.ports import EpochFailed, EpochResult
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import EpochSpec
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.decisions import PATH, LedgerWriter, load_ledger
from streamjoin.serve.observer import Steps
from streamjoin.serve.scaler import Scaler
from streamjoin.serve.wishes import plan_for_workers
from streamjoin.state.storage import Missing, ObjectStorage, StorageError
from waiting import PATIENCE_SECONDS

ON, WITHIN = "abs(l.k - r.k) <= 5", 5
UP = [round(20 + 100 * step / 10) for step in range(10)]
RAMP = [20] * 8 + UP + [120] * 20 + UP[::-1] + [20] * 30
"""Tuples per epoch of each stream: low, rising, high, falling, low."""
CAPACITY = 700
TAUS = {"tau0": 0.3, "tau1": 0.5, "tau2": 0.8, "tau3": 0.9}
SCALING: dict[str, Any] = {"policy": "thresholds", **TAUS, "scaleUpAfter": "3s", "scaleDownAfter": "6s"}


class Clock:
    def __init__(self) -> None:
        self.now = START / SECOND

    def __call__(self) -> float:
        return self.now


def stream(counts: Sequence[int], seed: int) -> Input:
    rng = random.Random(seed)
    batches, rid = [], 0
    for epoch, count in enumerate(counts):
        rows = [(rid + i, rng.randint(0, 500), 0, START + epoch * SECOND + i * SECOND // count) for i in range(count)]
        rid += count
        batches.append(make_batch(rows, pa.int64()))
    return Input(batches, [1] * len(counts))


class Late(InlineRunner):
    """Workers take some steps to come, and each epoch is over before the next begins, as when a join keeps up."""

    delay = 0

    def request(self, count: int) -> None:
        super().request(count)
        self._asked = self.delay

    @property
    def ready(self) -> int:
        self._asked = getattr(self, "_asked", 0) - 1
        return super().ready if self._asked < 0 else 1

    @property
    def overlaps(self) -> bool:
        return False


class FailedEpoch:
    def result(self) -> list[TaskReport]:
        raise EpochFailed("no room for another worker")

    def cancel(self) -> None:
        pass


class Timed:
    """A driver whose epochs take a tenth of a second, however busy the machine is."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.start, self.stop, self.plan_status = driver.start, driver.stop, driver.plan_status

    @property
    def exhausted(self) -> bool:
        return self._driver.exhausted

    @property
    def idle_warnings(self) -> tuple[str, ...]:
        return self._driver.idle_warnings

    def step(self, *, final: bool = False) -> EpochResult | None:
        result = self._driver.step(final=final)
        return None if result is None else replace(result, seconds={"tasks": 0.1})


class Run:
    def __init__(
        self,
        root: Path,
        inputs: tuple[Input, Input],
        runner: InlineRunner | None = None,
        most: int = 4,
        rate: float | None = None,
        floor: int = 1,
        **options: Any,
    ) -> None:
        """``rate``: of each stream, as the manifest expects it; None: not known, so that the join begins with one worker."""
        self.root, self.inputs, self.clock, self.told = root, inputs, Clock(), list[str]()
        given = {"scaling": SCALING, "capacity": CAPACITY, "workers": 1} | options
        job = make_job(root, on=ON, types=("BIGINT", "BIGINT"), window={"within": f"{WITHIN}s"}, watermark="1s", **given)
        spec = job.manifest.spec
        limits = spec.workers.model_copy(update={"max": most, "floor": floor})
        manifest = job.manifest.model_copy(update={"spec": spec.model_copy(update={"workers": limits})})
        streams = tuple(replace(stream, expected_rate=rate) for stream in job.streams)
        self.job = replace(job, max_workers=most, manifest=manifest, streams=streams)
        self.storage = ObjectStorage(str(root / "state"))
        self.driver: Driver = driver_for(self.job, inputs, self.storage, runner or Late(), clock=self.clock)
        self.decisions: list[Decision] = []
        self.autoscaler = Scaler(
            self.job, self.driver, self.storage, clock=self.clock, tell=self.told.append, decided=self.decisions.append
        )
        self.elastic = Steps(Timed(self.driver), [self.autoscaler])

    def steps(self, count: int) -> list[EpochResult]:
        results = []
        for _ in range(count):
            self.clock.now += 1.0
            result = self.elastic.step(final=True)
            if result is not None:
                results.append(result)
        return results

    def all(self) -> list[EpochResult]:
        self.elastic.start()
        results = self.steps(len(self.inputs[0].per_epoch))
        self.elastic.stop()
        return results

    def expected(self) -> Any:
        return oracle(self.inputs, (pa.int64(), pa.int64()), ON, f"abs(l.at - r.at) <= {WITHIN * SECOND}", SECOND)


@pytest.mark.parametrize("floor", ["min", "initial"])
def test_workers_are_removed_down_to_the_floor(floor: str, tmp_path: Path) -> None:
    """ESJ's is the first number of workers; it is known to a driver that takes over, too."""
    counts = [120] * 10 + [10] * 40
    options: dict[str, Any] = {"most": 8, "rate": 120.0, "scaling": SCALING | {"floor": floor}}
    run = Run(tmp_path, (stream(counts, 1), stream(counts, 2)), **options)
    run.elastic.start()
    run.steps(25)
    first = run.driver.checkpoint.plan.first_workers
    assert first == len(run.driver.utilization()) >= 5 or floor == "min"
    run.elastic.stop()
    again = Run(tmp_path, run.inputs, **options)
    assert again.all()
    assert again.driver.checkpoint.plan.first_workers == first
    assert len(again.driver.utilization()) == (first if floor == "initial" else 1)


def test_the_least_number_for_the_time_being_holds(tmp_path: Path) -> None:
    run = Run(tmp_path, (stream([20] * 12, 1), stream([20] * 12, 2)), floor=3)
    run.all()
    assert len(run.driver.utilization()) == 3


def put(run: Run, workers: int) -> None:
    """Somebody else's plan for so many workers."""
    status, layout = run.driver.plan_status(), run.driver.layout
    assert status is not None
    assert layout is not None
    run.driver.put_plan(plan_for_workers(status, run.driver.statistics(), layout, run.job, workers).plan)


def workers_of(results: list[EpochResult]) -> list[int]:
    """Without repetitions."""
    found: list[int] = []
    for result in results:
        if not found or found[-1] != len(result.held):
            found.append(len(result.held))
    return found


@pytest.mark.parametrize("delay", [0, 3])
def test_workers_follow_a_ramp_up_and_down_and_every_result_is_there_once(tmp_path: Path, delay: int) -> None:
    runner = Late()
    runner.delay = delay
    run = Run(tmp_path, (stream(RAMP, 1), stream(RAMP, 2)), runner)
    results = run.all()
    workers = workers_of(results)
    top = max(workers)
    assert (workers[0], workers[-1]) == (1, 1), workers
    assert top >= 3, workers
    assert workers == sorted(workers[: workers.index(top)]) + sorted(workers[workers.index(top) :], reverse=True), "up, then down"
    assert output_of(tmp_path) == run.expected()
    assert run.told == []
    done = [record for record in run.autoscaler.ledger if record.realised is not None]
    assert [record.decision.target for record in done] == workers[1:]
    for record in done:
        assert record.realised is not None
        assert record.realised.tau_max is not None
        assert record.decision.prediction is not None
        assert record.realised.tau_max == pytest.approx(record.decision.prediction.tau_max, rel=0.5), "what was expected came true"
    assert max(max(result.utilization.values()) for result in results[40:]) < SCALING["tau3"], "the high load does not fill the workers"


def test_the_ledger_is_in_the_checkpoint_goes_on_after_a_restart_and_is_explained(tmp_path: Path) -> None:
    inputs = (stream(RAMP, 1), stream(RAMP, 2))
    first = Run(tmp_path, inputs)
    first.elastic.start()
    first.steps(30)
    first.elastic.stop()
    assert load_ledger(first.storage) is not None
    before = [record.decision for record in first.autoscaler.ledger]
    assert any(decision.kind is Kind.ALLOCATE for decision in before)
    second = Run(tmp_path, inputs)
    second.clock.now = first.clock.now
    second.elastic.start()
    assert [record.decision for record in second.autoscaler.ledger] == before
    second.steps(len(RAMP))
    second.elastic.stop()
    kinds = {record.decision.kind for record in second.autoscaler.ledger}
    assert {Kind.ALLOCATE, Kind.DEALLOCATE, Kind.HOLD} <= kinds
    assert output_of(tmp_path) == second.expected()
    path = tmp_path / "m.yaml"
    path.write_text(manifest_text(tmp_path, on=ON, types=("BIGINT", "BIGINT"), window={"within": "5s"}))
    shown = CliRunner().invoke(main, ["explain", str(path)])
    assert shown.exit_code == Exit.DONE, shown.output
    assert "allocate" in shown.stdout
    assert "deallocate" in shown.stdout
    assert "What each rule said:" in shown.stdout
    assert re.search(r"^Thresholds: tau0 [0-9.]+, .*, scaleUpAfter \d+ s, scaleDownAfter \d+ (s|min)\.$", shown.stdout, re.MULTILINE)
    as_json = CliRunner().invoke(main, ["explain", str(path), "--json"])
    assert Ledger.from_json(json.loads(as_json.stdout)).to_json() == second.autoscaler.ledger.to_json()


def test_the_plan_that_was_judged_is_put_and_none_is_made_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, (stream(RAMP, 1), stream(RAMP, 2)))
    with judged_plans(monkeypatch) as judged:
        put, plans = run.driver.put_plan, list[Plan]()

        def watched(plan: Plan) -> bool:
            plans.append(plan)
            return put(plan)

        monkeypatch.setattr(run.driver, "put_plan", watched)
        results = run.all()
    assert len(plans) == len(workers_of(results)) - 1 >= 2
    assert all(any(plan.scheme is one.plan.scheme and plan.keep == one.plan.keep for one in judged) for plan in plans)


@pytest.mark.parametrize("mode", ["Recommend", "Off"])
def test_what_is_only_recommended_is_noted_and_not_done(tmp_path: Path, mode: str) -> None:
    run = Run(tmp_path, (stream(RAMP, 1), stream(RAMP, 2)), scaling=SCALING | {"mode": mode})
    results = run.all()
    assert workers_of(results) == [1]
    recommended = [decision for decision in run.decisions if decision.kind is Kind.ALLOCATE]
    assert bool(recommended) == (mode == "Recommend")
    assert all(decision.mode is Mode.RECOMMEND for decision in recommended)
    assert output_of(tmp_path) == run.expected()


def test_a_plan_that_somebody_else_puts_is_followed_and_belongs_to_no_decision(tmp_path: Path) -> None:
    run = Run(tmp_path, (stream([60] * 20, 1), stream([60] * 20, 2)), capacity=1500)
    run.elastic.start()
    run.steps(4)
    put(run, 3)
    results = run.steps(4)
    run.elastic.stop()
    assert len(results[-1].held) == 3
    last = run.autoscaler.decision
    assert last is not None
    assert (last.generation, last.workers) == (2, 3)
    assert all(record.realised is None for record in run.autoscaler.ledger)


def test_a_plan_whose_epoch_fails_is_not_tried_again_at_once(tmp_path: Path) -> None:
    class Failing(Late):
        tried = 0

        def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Any:
            if spec.generation > 1:
                self.tried += 1
                return FailedEpoch()
            return super().submit(spec, workers)

    runner = Failing()
    run = Run(tmp_path, (stream(RAMP[:40], 1), stream(RAMP[:40], 2)), runner)
    run.elastic.start()
    failures = 0
    for _ in range(60):
        try:
            run.steps(1)
        except EpochFailed:
            failures += 1
    run.elastic.stop()
    assert failures == runner.tried > 0
    assert failures <= 3, "fifteen seconds, then thirty"


def test_why_a_plan_was_given_up_is_told_even_when_another_has_been_switched_to_since(tmp_path: Path) -> None:
    class FailingOnce(Late):
        has_failed = False

        def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Any:
            if spec.generation > 1 and not self.has_failed:
                self.has_failed = True
                return FailedEpoch()
            return super().submit(spec, workers)

    run = Run(tmp_path, (stream(RAMP[:40], 1), stream(RAMP[:40], 2)), FailingOnce(), scaling=SCALING | {"mode": "Recommend"})

    run.elastic.start()
    run.steps(5)
    put(run, 2)
    with pytest.raises(EpochFailed):
        run.steps(1)
    assert not run.told
    put(run, 3)
    run.steps(1)
    run.elastic.stop()
    status = run.driver.plan_status()
    assert status is not None
    assert (status.workers, status.drops, status.dropped) == (3, 1, None)
    assert run.told == ["warning: a plan was given up: generation 2: its first epoch failed: no room for another worker"]


def test_planning_that_fails_is_told_once_and_the_join_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.sizing.plan_after", lambda *arguments, **named: 1 / 0)
    run = Run(tmp_path, (stream(RAMP, 1), stream(RAMP, 2)))
    results = run.all()
    assert len(results) == len(RAMP)
    assert output_of(tmp_path) == run.expected()
    assert run.told
    assert run.told[0].startswith("warning: scaling failed and is tried again with the next epoch: ZeroDivisionError")


def test_a_ledger_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    inputs = (stream([20] * 5, 1), stream([20] * 5, 2))
    for content in (b"", b"{", b"[]", b"3", b'{"version": 99}', b'{"version": 1, "limit": 5, "forgotten": 0, "records": [{}]}'):
        run = Run(tmp_path, inputs)
        run.storage.put(PATH, content)
        run.elastic.start()
        assert len(run.told) == 1, content
        assert "decisions are noted anew" in run.told[0]
    run.steps(5)
    run.elastic.stop()
    assert load_ledger(run.storage) is not None


class Slow:
    """Storage whose writes wait, and fail."""

    url = "slow"

    def __init__(self) -> None:
        self.go, self.writing = threading.Event(), threading.Event()
        self.written: list[int] = []
        self.fail = False

    def put(self, path: str, data: bytes) -> None:
        self.writing.set()
        assert self.go.wait(PATIENCE_SECONDS)
        if self.fail:
            raise StorageError("no room")
        self.written.append(len(json.loads(data)["records"]))

    def get(self, path: str) -> bytes:
        raise Missing(path)


def some_decision(number: int) -> Decision:
    from streamjoin.elastic.core import DecisionCore
    from streamjoin.elastic.settings import Settings

    return DecisionCore(Settings(), at=0.0, generation=number, workers=1).decide(float(number))


def test_writing_the_ledger_never_waits_for_the_storage_and_writes_the_newest() -> None:
    storage, ledger, told = Slow(), Ledger(), list[str]()
    writer = LedgerWriter(storage, told.append)  # type: ignore[arg-type]
    for number in range(1, 6):
        ledger.record(some_decision(number))
        writer.write(ledger)
        if number == 1:
            assert storage.writing.wait(PATIENCE_SECONDS)
    assert storage.written == []
    storage.go.set()
    writer.close()
    assert storage.written == [1, 5], "the ones in between were never written"
    assert told == []


def test_a_ledger_that_cannot_be_written_is_told_once() -> None:
    storage, ledger, told = Slow(), Ledger(), list[str]()
    storage.fail = True
    storage.go.set()
    writer = LedgerWriter(storage, told.append)  # type: ignore[arg-type]
    for number in range(1, 4):
        ledger.record(some_decision(number))
        storage.writing.clear()
        writer.write(ledger)
        assert storage.writing.wait(PATIENCE_SECONDS)
    writer.close()
    assert told == ["the ledger of decisions could not be written, and will be with the next one: no room"]


def test_nothing_was_decided_where_no_ledger_is(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(manifest_text(tmp_path, on=ON, types=("BIGINT", "BIGINT"), window={"within": "5s"}))
    shown = CliRunner().invoke(main, ["explain", str(path)])
    assert (shown.exit_code, shown.stdout) == (Exit.DONE, "Nothing has been decided yet.\n")
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / PATH).write_text("{")
    shown = CliRunner().invoke(main, ["explain", str(path)])
    assert shown.exit_code == Exit.FAILED
    assert "decisions.json" in shown.stderr
