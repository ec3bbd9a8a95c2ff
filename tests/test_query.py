"""Queries of a running join: their answers are DuckDB's over all input, for what the join holds at the epoch that they name.

The oracle knows all records, which of them each commit had taken, and by the definitions alone which of them a join holds: those on time,
with a key, that could still match when the epoch began. Joins run with plans that change, drivers that die and workers that lose what they
hold, on a directory and on storage from which nothing can be mapped. ``STREAMJOIN_SEED=<seed> pytest tests/test_query.py`` runs one case.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from cases import how_many, some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import SECOND, START, Far, Input, driver_for, join_of, make_batch, make_job, micros
from streamjoin.controlplane.driver import Driver
from streamjoin.job import Job
from streamjoin.query.catalog import Catalog
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.execution import Answer, asked
from streamjoin.query.messages import Limits
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.state.storage import ObjectStorage, Storage

CASES = how_many(40, of=2)
SEED = os.environ.get("STREAMJOIN_SEED")
PARTS = 4
DELAY = 2
LIMITS = Limits(seconds=60)


@dataclass(frozen=True)
class Kind:
    """A join, or several, of two streams, and when a tuple has a key in it."""

    on: tuple[str, ...]
    ddl: str
    arrow: pa.DataType
    value: Callable[[random.Random], Any]
    has_key: str
    """In DuckDB's SQL, over a tuple's columns."""
    window: dict[str, Any] = field(default_factory=lambda: {"within": "3s"})


KINDS = {
    "band": Kind(("abs(l.k - r.k) <= 2",), "BIGINT", pa.int64(), lambda rng: rng.randint(-20, 20), "k IS NOT NULL"),
    "hashed": Kind(
        ("l.k = r.k AND l.v = r.v",),
        "STRING",
        pa.string(),
        lambda rng: rng.choice(["", "a", "ä", "customer-1", "customer-2", "it's"]),
        "k IS NOT NULL AND v IS NOT NULL",
    ),
    "one hash": Kind(("l.k = r.k",), "INT", pa.int32(), lambda rng: rng.randint(0, 9), "k IS NOT NULL"),
    "prefix": Kind(("l.k < r.k",), "STRING", pa.string(), lambda rng: f"customer-{rng.randint(0, 30):02}", "k IS NOT NULL"),
    "doubles": Kind(
        ("l.k <= r.k",),
        "DOUBLE",
        pa.float64(),
        lambda rng: rng.choice([float("nan"), float("inf"), -0.0, 0.1, 0.30000000000000004, rng.randint(-9, 9) / 4]),
        "k IS NOT NULL AND NOT isnan(k)",
    ),
    "decimals": Kind(
        ("abs(l.k - r.k) < 1",), "DECIMAL(9,2)", pa.decimal128(9, 2), lambda rng: _decimal(rng.randint(-900, 900)), "k IS NOT NULL"
    ),
    "shifted": Kind(("l.k + 1 = 2 * r.k",), "BIGINT", pa.int64(), lambda rng: rng.randint(-9, 9), "k IS NOT NULL"),
    "times": Kind(("l.at <= r.at",), "INT", pa.int32(), lambda rng: rng.randint(0, 9), "true", {"before": "1s", "after": "4s"}),
    "rows": Kind(("l.k >= r.k",), "BIGINT", pa.int64(), lambda rng: rng.randint(0, 20), "k IS NOT NULL", {"rows": 25}),
    "unbounded": Kind(("l.k != r.k",), "INT", pa.int32(), lambda rng: rng.randint(0, 8), "k IS NOT NULL", {"unbounded": True}),
    "floors": Kind(
        ("l.k = r.k", "abs(l.v - r.v) < 1"), "BIGINT", pa.int64(), lambda rng: rng.randint(0, 40), "k IS NOT NULL OR v IS NOT NULL"
    ),
}
REACH = {"times": (4, 1)}
"""For how many seconds a tuple of each stream can match those to come, where not 3."""


def _decimal(cents: int) -> Any:
    return pa.scalar(cents, pa.int64()).cast(pa.decimal128(20, 0)).as_py().scaleb(-2)


def inputs_of(rng: random.Random, kind: Kind, epochs: int) -> tuple[Input, Input]:
    def one() -> Input:
        batches, rid = [], 0
        for epoch in range(epochs):
            rows = []
            for _ in range(rng.randint(0, 40)):
                key, value = (None if rng.random() < 0.1 else each for each in (kind.value(rng), rng.randint(0, 30)))
                rows.append((rid, key, value, START + epoch * SECOND + rng.randint(-3 * SECOND, SECOND)))
                rid += 1
            batches.append(make_batch(rows, kind.arrow))
        return Input(batches, [1] * epochs)

    return one(), one()


def job_for(kind: Kind, root: Path, rng: random.Random) -> Job:
    select = [f"{side}.{name} AS {side}_{name}" for side in "lr" for name in ("rid", "k", "v", "at")]
    joins = [
        join_of(root / str(number), name=f"j{number}", on=on, window=kind.window, output={"select": select})
        for number, on in enumerate(kind.on)
    ]
    model = rng.choice(["adsp", "square", "biclique"] + ["handshake"] * (len(joins) == 1))
    job = elastic(make_job(root, joins=joins, types=(kind.ddl, kind.ddl), watermark=f"{DELAY}s", model=model))
    return replace(job, layouts=tuple(each for each in job.layouts if each.has_key_spaces)) if len(joins) > 1 else job


class History:
    """How many batches of each stream every epoch's commit had taken: what the test's own sources were told to go on from."""

    def __init__(self) -> None:
        self.taken: dict[int, tuple[int, ...]] = {}
        self.emptied = math.inf
        """The epoch in which a chain let all go, as its input had ended."""

    def note(self, driver: Driver) -> None:
        checkpoint = driver.checkpoint
        if checkpoint.epoch >= 0:
            self.taken[checkpoint.epoch] = tuple(0 if at is None else at["batch"] for at in checkpoint.input.positions)
            has_ended = driver.scheme is not None and driver.scheme.model == HANDSHAKE and driver.exhausted and not checkpoint.state.blocks
            self.emptied = min(self.emptied, checkpoint.epoch) if has_ended else self.emptied

    def arrived(self, stream: int, batch: int) -> int:
        """The epoch that took a batch."""
        return next(epoch for epoch, taken in sorted(self.taken.items()) if taken[stream] > batch)

    def batches(self, stream: int, epoch: int) -> int:
        """How many had been taken after an epoch; before the first, none."""
        return max((taken[stream] for number, taken in self.taken.items() if number <= epoch), default=0)


def watermark(one: Input, history: History, stream: int, epoch: int, delay: int) -> int | None:
    times = [micros(at) for batch in one.batches[: history.batches(stream, epoch)] for at in batch.column("at").to_pylist()]
    return max(times) - delay * SECOND if times else None


def held(inputs: Sequence[Input], history: History, epoch: int, kind: Kind, name: str) -> tuple[list[pa.RecordBatch], ...]:
    """By stream, the records that the join holds after an epoch, but for those without a key. With a column ``_time``, if there is one."""
    found: tuple[list[pa.RecordBatch], ...] = ([], [])
    for stream, one in enumerate(inputs):
        other, position = 1 - stream, 0
        mark = watermark(inputs[other], history, other, epoch - 2, DELAY)
        own = sum(batch.num_rows for batch in one.batches[: history.batches(stream, epoch - 1)])
        reach = REACH.get(name, (3, 3))[stream]
        for number, batch in enumerate(one.batches[: history.batches(stream, epoch)]):
            late = watermark(one, history, stream, history.arrived(stream, number) - 2, DELAY)
            keep, times = [], []
            for row, at in enumerate(batch.column("at").to_pylist()):
                if "unbounded" in kind.window:
                    keep.append(True)
                elif "rows" in kind.window:
                    keep.append(position + row >= own - kind.window["rows"])
                    times.append(position + row)
                else:
                    is_old = mark is not None and micros(at) < mark - reach * SECOND
                    keep.append(not is_old and (late is None or micros(at) >= late))
                    times.append(micros(at))
            if "rows" in kind.window:
                batch = batch.append_column("_time", pa.array(times, pa.int64()))
            elif "unbounded" not in kind.window:
                batch = batch.append_column("_time", pa.array(times, pa.timestamp("us", "UTC")))
            found[stream].append(batch.filter(pa.array([kept and epoch < history.emptied for kept in keep], pa.bool_())))
            position += batch.num_rows
    return found


def oracle(relations: dict[str, pa.Table], has_key: str) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(config={"threads": 1})
    database.execute("SET TimeZone = 'UTC'")
    for name, table in relations.items():
        database.register(f"{name}_all", table)
        database.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_all WHERE {has_key}")
    return database


def predicate(rng: random.Random, kind: Kind, alias: str = "") -> str:
    """Something about a tuple, as people write it."""
    dot = f"{alias}." if alias else ""

    def constant() -> str:
        value = kind.value(rng)
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        if isinstance(value, float) and not math.isfinite(value):
            return f"'{value}'::DOUBLE"
        return f"{value}"

    def moment() -> str:
        at = START + rng.randint(-SECOND, 9 * SECOND)
        return rng.choice([f"TIMESTAMPTZ '{_iso(at)}'", f"'{_iso(at)}'", f"CAST('{_iso(at)}' AS TIMESTAMPTZ)"])

    sign = rng.choice(["<", "<=", ">", ">="])
    terms = [
        lambda: f"{dot}k = {constant()}",
        lambda: f"{dot}k = {constant()}",
        lambda: f"{constant()} {sign} {dot}k",
        lambda: f"{dot}k BETWEEN {constant()} AND {constant()}",
        lambda: f"{dot}k IN ({', '.join(constant() for _ in range(rng.randint(1, 4)))})",
        lambda: f"{dot}k IS NULL",
        lambda: f"{dot}v = {rng.randint(0, 30)}",
        lambda: f"{dot}v {sign} {rng.choice([3, 17.5, 1e1])}",
        lambda: f'{dot}"at" {sign} {moment()}',
        lambda: f"{dot}rid % 3 = 1",
        lambda: f"NOT {dot}k = {constant()}",
        lambda: f"({dot}k = {constant()} OR {dot}v = {rng.randint(0, 30)})",
        lambda: f"({dot}k = {constant()} AND {dot}v {sign} 12)",
    ]
    return " AND ".join(rng.choice(terms)() for _ in range(rng.choice([1, 1, 2, 3])))


def _iso(at: int) -> str:
    return pa.scalar(at, pa.timestamp("us", "UTC")).as_py().isoformat()


def query(rng: random.Random, kind: Kind) -> str:
    one, other = rng.sample("lr", 2)
    side = rng.choice(["", "LEFT", "RIGHT", "FULL"])

    def where(alias: str = "") -> str:
        return predicate(rng, kind, alias)

    return rng.choice(
        [
            lambda: f"SELECT * EXCLUDE (_key) FROM {one} WHERE {where()}",
            lambda: f"SELECT rid, v AS k FROM {one} WHERE {where()}",
            lambda: f"SELECT count(*) FROM {one}",
            lambda: f"SELECT count(*), min(rid), sum(v) FROM {one} WHERE {where()}",
            lambda: f"FROM {one} SELECT k, count(*) WHERE {where()} GROUP BY k",
            lambda: f"SELECT a.rid, b.rid, b.v FROM {one} a {side} JOIN {other} b ON a.v = b.v WHERE {where('a')} AND {where('b')}",
            lambda: f"SELECT a.rid, b.v FROM {one} a {side} JOIN {one} AS b USING (v) WHERE {where('b')}",
            lambda: f"SELECT a.rid, b.rid FROM {one} a, {other} b WHERE a.v = b.v AND {where('a')}",
            lambda: f"SELECT a.rid, b.rid FROM {one} a ASOF JOIN {other} b ON a.at >= b.at WHERE b.v < 9",
            lambda: f"SELECT rid FROM {one} WHERE {where()} UNION ALL SELECT rid FROM {one} WHERE {where()}",
            lambda: f"SELECT rid FROM {one} WHERE k IN (SELECT k FROM {other} WHERE {where()})",
            lambda: f"SELECT rid FROM {one} x WHERE EXISTS (FROM {other} WHERE {other}.v = x.v AND {where(other)}) AND {where('x')}",
            lambda: f"WITH c AS (SELECT * FROM {one} WHERE {where()}) SELECT a.rid, b.rid FROM c a JOIN c b USING (v)",
            lambda: f"SELECT t.* FROM (SELECT rid, v AS k, k AS v FROM {one}) t WHERE t.k = {rng.randint(0, 30)}",
            lambda: f"SELECT a.rid, b.rid FROM {one} a POSITIONAL JOIN (SELECT rid FROM {other} ORDER BY rid) b WHERE a.rid < 0",
            lambda: f"SELECT row_number() OVER (ORDER BY rid), rid FROM {one} WHERE {where()} QUALIFY rid < 40",
        ]
    )()


def rows_of(answer: Answer) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for batch in answer.batches for row in batch.to_pylist())


class Asker:
    """Asks queries between the steps of a run, and compares their answers."""

    def __init__(
        self, name: str, inputs: tuple[Input, Input], job: Job, storage: Storage, rng: random.Random, counts: Counter[str]
    ) -> None:
        self.name, self.kind, self.inputs, self.storage, self.rng, self.counts = name, KINDS[name], inputs, storage, rng, counts
        self.catalog, self.history = Catalog.of(job), History()

    def between(self, driver: Driver) -> None:
        self.history.note(driver)
        if driver.checkpoint.epoch >= 0 and self.rng.random() < 0.6:
            text = query(self.rng, self.kind)
            if self.rng.random() < 0.2:
                text += f" AS OF {max(0, driver.checkpoint.epoch - self.rng.randint(0, 4))}"
            self.ask(text)

    def ask(self, text: str) -> None:
        try:
            with asked(self.storage, self.catalog, text, LIMITS) as answer:
                found, epoch = rows_of(answer), answer.epoch
        except QueryError as error:
            if error.why is not Why.ABSENT or " AS OF " not in text:
                raise AssertionError(text) from error
            self.counts["gone"] += 1
            return
        self.counts["asked"] += 1
        self.counts["rows"] += found.total()
        self.counts["left out"] += any(rows.nbytes < rows.all_nbytes / 2 for rows in answer.read.values())
        assert " AS OF " not in text or text.endswith(f" AS OF {epoch}")
        want = self.expected(text.split(" AS OF ", maxsplit=1)[0], epoch)
        assert found == want, f"epoch {epoch}: {text}\nmissing {want - found}\nunexpected {found - want}"

    def expected(self, text: str, epoch: int) -> Counter[str]:
        batches = held(self.inputs, self.history, epoch, self.kind, self.name)
        tables = {stream: pa.Table.from_batches(of_stream) for stream, of_stream in zip("lr", batches, strict=True)}
        tables = {stream: table.append_column("_key", pa.nulls(len(table))) for stream, table in tables.items()}
        database = oracle(tables, self.kind.has_key)
        try:
            found = database.sql(text).to_arrow_table()
        finally:
            database.close()
        return Counter(repr(tuple(row.values())) for row in found.to_pylist())


def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
    rng = random.Random(f"query {seed}")
    name = list(KINDS)[seed % len(KINDS)]
    kind = KINDS[name]
    with pytest.MonkeyPatch.context() as patch:
        storage = rng.choice([ObjectStorage, Far])
        if storage is Far:
            patch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", rng.choice([0, 2 << 20]))
            for size in ("WHOLE_BYTES", "ROOT_BYTES", "CELL_BYTES"):
                patch.setattr(f"streamjoin.state.blocks.{size}", 64)
        inputs = inputs_of(rng, kind, epochs=rng.randint(4, 12))
        job = job_for(kind, root, rng)
        asker = Asker(name, inputs, job, storage(str(root / "state")), rng, counts)
        run_with_faults(job, inputs, root, rng, counts, storage=storage, between=asker.between)


@pytest.mark.parametrize("part", some(range(PARTS), of=4))
def test_answers_are_those_of_duckdb_over_all_that_the_join_holds(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    run_cases(range(part, CASES, PARTS) if SEED is None else [int(SEED)] * (part == 0), tmp_path, run_case, counts)
    if SEED is None and CASES >= 40:
        assert counts["asked"] >= 200 // PARTS, counts
        assert min(counts["plans"], counts["switches"], counts["rows"], counts["left out"]) > 0, counts


def test_answers_given_while_the_join_runs_are_those_of_the_epochs_that_they_name(tmp_path: Path) -> None:
    """Another thread asks all the while, with every block in a file of its own that goes as soon as it may."""
    rng, asking, answers, counts = random.Random(4), random.Random(5), list[tuple[str, int, Counter[str]]](), Counter[str]()
    inputs = inputs_of(rng, KINDS["band"], epochs=50)
    job = job_for(KINDS["band"], tmp_path, rng)
    asker = Asker("band", inputs, job, ObjectStorage(job.checkpoint), rng, counts)
    driver = driver_for(job, inputs, ObjectStorage(job.checkpoint), InlineRunner())
    has_ended = threading.Event()

    def ask() -> None:
        while not has_ended.is_set():
            text, storage = query(asking, KINDS["band"]), asking.choice([ObjectStorage, Far])(job.checkpoint)
            with asked(storage, asker.catalog, text, LIMITS) as answer:
                found = rows_of(answer)
                answers.append((text, answer.epoch, found))

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as threads:
        patch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", 0)
        patch.setattr("streamjoin.controlplane.garbage.AT_ONCE", 1)
        driver.start()
        driver.step(final=True)
        asker.history.note(driver)
        asking_thread = threads.submit(ask)
        while driver.step(final=True) is not None and not asking_thread.done():
            asker.history.note(driver)
        has_ended.set()
        asking_thread.result()
    assert len({epoch for _, epoch, _ in answers}) > 3
    for text, epoch, found in answers[:: max(1, len(answers) // 25)]:
        want = asker.expected(text, epoch)
        assert found == want, f"epoch {epoch}: {text}\nmissing {want - found}\nunexpected {found - want}"
