"""Changes of how three and more streams meet, in the ledger: what was changed, at which prices, and by which measurements."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness import SECOND, START, driver_for, make_job
from random_joins import Case, Features, drawn
from streamjoin.elastic.decision import Decision, Kind, Reason
from streamjoin.elastic.distribution import Distribution
from streamjoin.elastic.explain import explain
from streamjoin.elastic.ledger import Ledger, Realised
from streamjoin.elastic.path_plans import Flowing, PathPlan, PathPlans, priced
from streamjoin.elastic.reordering import reordered
from streamjoin.elastic.rounds import Exchange
from streamjoin.language.graph import JoinGraph
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.admission import Request
from streamjoin.serve.api import PlanApi
from streamjoin.serve.decisions import load_ledger
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.observer import Steps
from streamjoin.serve.reorderings import MOST_RECENT, Reorderings
from streamjoin.serve.scaler import Scaler
from streamjoin.state.storage import ObjectStorage
from test_sequences import graph_of

GRAPH = graph_of("a.id = b.id AND b.x = c.x", "abc")
KNOWN = Flowing([100.0] * 3, [1_000.0] * 3, [16.0] * 3, [200.0] * 3, [1e-3, 1e-5], exchange=Exchange(2e-3, 1e8, 1.0, 4))
SHIP: PathPlans = (PathPlan((1, 2)), PathPlan((0, 2)), PathPlan((1, 0)))
ASK: PathPlans = (PathPlan((1, 2), distributions=(Distribution.LOOKUP,)), PathPlan((0, 2)), PathPlan((1, 0), fetches=True))


def entry(before: PathPlans, after: PathPlans, at: float) -> Decision:
    return reordered(GRAPH, KNOWN, before, after, at, generation=3, workers=4)


def test_an_entry_says_what_was_changed_its_prices_and_what_was_measured() -> None:
    made = entry(SHIP, ASK, 10.0)
    assert (made.kind, made.reason, made.workers, made.target, made.enforced, made.is_told) == (
        Kind.REORDER, Reason.CHEAPER, 4, 4, False, True,
    )  # fmt: skip
    change = made.reordering
    assert change is not None
    assert [(each.stream, each.before, each.after) for each in change.changes] == [
        ("a", "b, c: repartition", "b, c: lookup"),
        ("c", "b, a: repartition", "b, a: repartition, fetch the rest"),
    ]
    for each, head in zip(change.changes, (0, 2), strict=True):
        sent = [priced(GRAPH, KNOWN, head, path_plans[head]).bytes_per_second for path_plans in (SHIP, ASK)]
        assert [each.bytes_before, each.bytes_after] == sent
    assert change.rounds == (1, 3)
    assert Flowing.from_json(json.loads(json.dumps(change.measured))).exchange == KNOWN.exchange
    assert "in 3 rounds in place of 1" in made.sentence


def test_the_ledger_keeps_each_change_and_takes_none_for_the_cause_of_a_plan() -> None:
    ledger = Ledger()
    for at, (before, after) in enumerate([(SHIP, ASK), (ASK, SHIP), (SHIP, ASK)]):
        ledger.record(entry(before, after, float(at)))
    assert [record.count for record in ledger] == [1, 1, 1]
    assert ledger.realised(Realised(5.0, 4, 0.5, 10.0, 0.1)) is None
    again = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
    assert [record.decision for record in again] == [record.decision for record in ledger]
    text = explain(again, now=5.0)
    assert text.count("new tuples of a, c meet the other streams in another way") == 3
    assert "Streams meet in another way" in text
    assert "a round of the exchange took 2 ms, and each of 4 tasks sent 100 MB/s" in text
    one = next(line for line in text.splitlines() if line.startswith("a "))
    assert "b, c: repartition" in one
    assert "b, c: lookup" in one


def test_an_older_ledger_is_read() -> None:
    written = entry(SHIP, ASK, 1.0).to_json()
    del written["reordering"]
    assert Decision.from_json(written).reordering is None


def of_three_streams() -> Case:
    """A join with some epochs."""
    return drawn(Features(streams=(3,), windows=("time",), types_of_many=("inner",), epochs=(15,)), 0)


@pytest.fixture
def by_turns(monkeypatch: pytest.MonkeyPatch) -> list[PathPlans]:
    """Other ways after each third epoch; those that were chosen."""
    chosen: list[PathPlans] = []

    def choose(graph: JoinGraph, known: Flowing, current: PathPlans = ()) -> PathPlans:
        heads = range(len(graph.streams))
        distributions = (list(Distribution)[len(chosen) // 3 % len(Distribution)],) * (len(graph.streams) - 2)
        chosen.append(tuple(PathPlan(next(graph.orders(head)), False, distributions) for head in heads))
        return chosen[-1]

    monkeypatch.setattr("streamjoin.controlplane.flowing.CHOOSE_SECONDS", 0.0)
    monkeypatch.setattr("streamjoin.controlplane.flowing.choose", choose)
    return chosen


def test_what_the_driver_changes_is_noted_once_and_written(by_turns: list[PathPlans], tmp_path: Path) -> None:
    join = of_three_streams()
    job = replace(make_job(tmp_path, **join.options(tmp_path, model="adsp", workers=2)), min_workers=2, max_workers=2)
    storage, now = ObjectStorage(str(tmp_path / "state")), START / SECOND
    driver = driver_for(job, join.inputs, storage, InlineRunner(), clock=lambda: now)
    told: list[str] = []
    elastic = Steps(driver, [Scaler(job, driver, storage, clock=lambda: now, tell=told.append)])
    elastic.start()
    committed: list[PathPlans] = []
    while elastic.step(final=True) is not None:
        committed.append(driver.checkpoint.plan.path_plans)
        now += 1.0
    elastic.stop()
    changes = sum(before != after for before, after in itertools.pairwise(committed))
    ledger = load_ledger(storage)
    assert ledger is not None
    noted = [record for record in ledger if record.decision.kind is Kind.REORDER]
    assert len(noted) == changes > 1
    assert [record.decision.sentence for record in noted] == [text for text in told if text.startswith("new tuples of")]
    for record in noted:
        assert record.decision.reordering is not None
        assert record.decision.reordering.measured["rates"]


def test_without_an_autoscaler_the_plan_api_has_the_last_changes_and_metrics_count_all(by_turns: list[PathPlans], tmp_path: Path) -> None:
    """As on Kubernetes, where an operator notes them down."""
    join = of_three_streams()
    job = make_job(tmp_path, **join.options(tmp_path, model="adsp", workers=2))
    driver = driver_for(job, join.inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    metrics = Metrics(job)
    reorderings = Reorderings(job, metrics.decided)
    api = PlanApi(driver, metrics.health, reorderings=reorderings)
    watched = Steps(driver, [metrics, reorderings])
    watched.start()
    committed: list[PathPlans] = []
    while watched.step(final=True) is not None:
        committed.append(driver.checkpoint.plan.path_plans)
    answer = json.loads(api.answer(Request("GET", "/v1/plan")).content[1])
    watched.stop()
    changes = sum(before != after for before, after in itertools.pairwise(committed))
    told = [Decision.from_json(one) for one in answer["reordered"]]
    assert len(told) == min(changes, MOST_RECENT) > 1
    assert {decision.kind for decision in told} == {Kind.REORDER}
    counted = [sample for metric in metrics.collect() for sample in metric.samples if "REORDER" in sample.labels.values()]
    assert [sample.value for sample in counted] == [changes]
