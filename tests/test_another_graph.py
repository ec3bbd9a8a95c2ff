"""A join of three and more streams is laid by another graph of its condition when what tells its tuples apart has changed. That results
stay what they were, whatever graph is taken and when, is shown by ``test_random_joins``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from harness import SECOND, START, Crash, Input, driver_for, make_job, output_of
from invariants import LAY
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.another_graph import BYTES_PER_SECOND, MOST_SECONDS, WITHIN_SECONDS, better_graph, is_worth_a_look
from streamjoin.elastic.decision import Decision, Kind
from streamjoin.elastic.path_plans import Flowing, PathPlan
from streamjoin.elastic.rounds import Exchange, Pace
from streamjoin.job import Job
from streamjoin.language.ddl import parse_schema
from streamjoin.language.graph import join_graphs
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.reorderings import Reorderings
from streamjoin.state.storage import ObjectStorage

COLUMNS = "id BIGINT, k BIGINT, m BIGINT, j BIGINT, at TIMESTAMP"
CONDITION = "a.k = b.k AND b.m = c.m AND c.j = a.j"
EPOCHS, ROWS, CHANGES = 20, 250, 8
"""Seconds, each stream's tuples in each of them, and when another column begins to have one value alone."""


def three_streams(rng: np.random.Generator) -> list[Input]:
    def stream(number: int) -> Input:
        batches = []
        for epoch in range(EPOCHS):
            distinct, same = rng.integers(0, 200, (3, ROWS)), np.zeros(ROWS, np.int64)
            k, m, j = (same if column == (2 if epoch < CHANGES else 1) else distinct[column] for column in range(3))
            at = START + (epoch * ROWS + np.arange(ROWS)) * SECOND // ROWS
            ids = epoch * ROWS + np.arange(ROWS) + number * 1_000_000
            columns = [*map(pa.array, (ids, k, m, j)), pa.array(at, pa.int64()).cast(pa.timestamp("us", "UTC"))]
            batches.append(pa.RecordBatch.from_arrays(columns, names=["id", "k", "m", "j", "at"]))
        return Input(batches, [1] * EPOCHS)

    return [stream(number) for number in range(3)]


def job_of(root: Path) -> Job:
    streams = [
        {"name": name, "source": {"files": {"path": str(root / name), "format": "json"}}, "schema": COLUMNS, "eventTime": "at"}
        for name in "abc"
    ]
    output = {"select": ["a.id AS x", "b.id AS y", "c.id AS z"], "sink": {"files": {"path": str(root / "out"), "format": "parquet"}}}
    join = {"name": "j", "condition": CONDITION, "type": "inner", "window": {"within": "4s"}, "output": output}
    return make_job(root, streams=[{**stream, "watermark": "0s"} for stream in streams], joins=[join], workers=2)


def found_by_duckdb(inputs: list[Input]) -> Counter[tuple[Any, ...]]:
    near = " AND ".join(f"abs(epoch_us({x}.at) - epoch_us({y}.at)) <= 4000000" for x, y in ("ab", "bc", "ca"))
    with duckdb.connect(config={"threads": 1}) as connection:
        for name, stream in zip("abc", inputs, strict=True):
            connection.register(name, pa.Table.from_batches(stream.batches))
        return Counter(connection.sql(f"SELECT a.id, b.id, c.id FROM a, b, c WHERE {CONDITION} AND {near}").fetchall())


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are compared after a few epochs, and prices do not depend on this machine."""
    monkeypatch.setattr("streamjoin.controlplane.graphs.LOOK_SECONDS", 5.0)
    monkeypatch.setattr(Pace, "exchange", lambda pace, tasks: Exchange(tasks=max(1, tasks)))


def joined(
    root: Path, inputs: list[Input], told: list[Decision], drivers: int, at: Callable[[str], None] = lambda step: None
) -> list[Driver]:
    """All input, by so many drivers one after another, and one more for each that dies (``at``)."""
    now, done, job, steps = [START / SECOND], list[Driver](), job_of(root), -(-EPOCHS // drivers) + 1
    while drivers:
        driver = driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner(), clock=lambda: now[-1], at=at)
        done.append(driver)
        with suppress(Crash):
            driver.start()
            reorderings = Reorderings(driver.job)
            for _ in range(steps):
                now.append(now[-1] + 1.0)
                if driver.step(final=True) is not None:
                    told += [each for each in reorderings.after(driver, now[-1]) if each.reordering is None]
            drivers -= 1
    driver.stop()
    return done


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("drivers", [1, 3])
def test_a_join_is_laid_by_the_graph_whose_edges_tell_its_tuples_apart(drivers: int, tmp_path: Path) -> None:
    inputs, told = three_streams(np.random.default_rng(7)), list[Decision]()
    done = joined(tmp_path, inputs, told, drivers)
    first, last = done[0], done[-1]
    assert output_of(tmp_path) == found_by_duckdb(inputs)
    assert [each.kind for each in told] == [Kind.REORDER], told
    assert told[0].sentence.startswith("j: results are found by a.k = b.k; ")
    assert "c.j = a.j from now on, and no longer by a.k = b.k; b.m = c.m: " in told[0].sentence
    assert sum(len(driver.laid_anew) for driver in done) == 1
    assert first.layout is not None
    assert last.layout is not None
    assert {edge.text for edge in last.layout.joins[0].graph.edges} == {"a.k = b.k", "c.j = a.j"}
    assert last.checkpoint.plan.generation > 1


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize(("step", "before"), [(LAY, 0), ("deploy", 1)], ids=["before", "after"])
def test_a_driver_may_die_before_and_after_the_commit_of_a_join_that_is_laid_anew(step: str, before: int, tmp_path: Path) -> None:
    """The first plan is deployed, too."""
    inputs, visits = three_streams(np.random.default_rng(9)), count()

    def at(entered: str) -> None:
        if entered == step and next(visits) == before:
            raise Crash(step)

    died, *_, last = joined(tmp_path, inputs, [], 1, at)
    assert died is not last
    assert output_of(tmp_path) == found_by_duckdb(inputs)
    assert last.layout is not None
    assert ("c.j = a.j" in {edge.text for edge in last.layout.joins[0].graph.edges}) is (step != LAY)


@pytest.mark.usefixtures("quickly")
def test_a_join_that_stays_as_it_was_is_looked_at_ever_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    monkeypatch.setattr("streamjoin.controlplane.graphs.is_worth_a_look", lambda graph, flowing, ways, nbytes: looks.append(1.0) or False)
    joined(tmp_path, three_streams(np.random.default_rng(8)), [], 1)
    assert len(looks) == 2  # after 5 s, and 10 s later; not after 20 s more


GRAPHS = join_graphs(CONDITION, dict.fromkeys("abc", parse_schema(COLUMNS)))
BUSY = Flowing([1_000.0] * 3, [10_000.0] * 3, [24.0] * 3, [16.0] * 3, [1e-4, 1e-4], exchange=Exchange(tasks=2))


@pytest.mark.parametrize(
    ("present", "others", "nbytes", "taken"),
    [
        ((1e-2, 1e-4), [(1e-4, 1e-4), (1e-2, 1e-4)], 1e6, 0),
        ((1e-2, 1e-4), [(1e-2, 1e-4), (1e-4, 1e-5)], 1e6, 1),
        ((1e-4, 1e-4), [(9e-5, 1e-4), (1e-4, 9e-5)], 1e6, None),  # not clearly better
        ((1e-2, 1e-4), [(1e-4, 1e-4), (1e-2, 1e-4)], 1e3 * WITHIN_SECONDS * BYTES_PER_SECOND, None),  # too much to lay
        ((1e-2, 1e-4), [], 1e6, None),
    ],
)
def test_another_graph_is_taken_where_it_clearly_saves_more_than_the_change_takes(
    present: tuple[float, float], others: list[tuple[float, float]], nbytes: float, taken: int | None
) -> None:
    first, *rest = GRAPHS
    better = better_graph((first, present), list(zip(rest, others, strict=False)), BUSY, nbytes)
    assert (None if better is None else better.graph) == (None if taken is None else rest[taken])


@pytest.mark.parametrize(
    ("rate", "selectivity", "nbytes", "worth"),
    [(1e3, 1e-2, 1e6, True), (10.0, 1e-4, 1e6, False), (1e3, 1e-2, 2 * MOST_SECONDS * BYTES_PER_SECOND, False)],
)
def test_a_join_with_few_pairs_or_much_to_lay_is_not_worth_a_look(rate: float, selectivity: float, nbytes: float, worth: bool) -> None:
    ways = tuple(PathPlan(next(GRAPHS[0].orders(head))) for head in range(3))
    flowing = Flowing([rate] * 3, [1e4] * 3, [24.0] * 3, [16.0] * 3, [selectivity] * 2)
    assert is_worth_a_look(GRAPHS[0], flowing, ways, nbytes) is worth
