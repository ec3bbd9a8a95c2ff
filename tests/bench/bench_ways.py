"""What joins of three streams send between the steps of a sequence: by the ways that are chosen, and by every other, tried by force.

A chain, ``a.k = b.k AND b.m = c.m``, within 10 s. A tuple of one stream has five partners by ``k``, and one in twenty has one by ``m``;
so most partial results of the first edge come to nothing. The output has a text of every stream, of 20, 200 or 2,000 bytes. Bytes are
counted in one process, which no load on the machine changes: those sent to other workers between steps, to ask and bring tuples, and to
fetch them, in the last epochs. What a round takes, and how fast bytes go, is measured on Spark, where the join chooses its ways by that;
the time of every other way follows from its bytes and rounds.

    python tests/bench/bench_ways.py [--rows 5000] [--texts 20,200,2000] [--epochs 18] [--spark-epochs 40] [--workers 4] [--quick]
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.engine import PLENTY, spark_runner
from bench.report import counts, machine, options, table
from harness import SECOND, START, Input, driver_for, make_job
from streamjoin.controlplane import flowing
from streamjoin.elastic.distribution import Distribution
from streamjoin.elastic.path_plans import Flowing, PathPlan, PathPlans, how_text, rounds_of
from streamjoin.elastic.rounds import Exchange
from streamjoin.epoch.ports import Runner
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage

COUNTED = 5
"""The last epochs, whose bytes are counted."""
DDL = "k BIGINT, m BIGINT, text STRING, at TIMESTAMP"
ORDERS = (((1, 2),), ((0, 2), (2, 0)), ((1, 0),))
"""By stream, in which order the others can follow along the chain."""


def inputs_of(rows: int, epochs: int, text: int) -> tuple[Input, ...]:
    """One batch a second and stream."""
    rng = np.random.default_rng(0)
    partners = 10 * rows  # held of each stream, within the window

    def batch(epoch: int) -> pa.RecordBatch:
        at = np.sort(rng.integers(0, SECOND, rows)) + START + epoch * SECOND
        texts = [f"{number:08d}".ljust(text, "x") for number in rng.integers(0, 10**8, rows)]
        columns = {
            "k": rng.integers(0, partners // 5, rows),
            "m": rng.integers(0, partners * 20, rows),
            "text": texts,
            "at": pa.array(at, pa.timestamp("us", tz="UTC")),
        }
        return pa.RecordBatch.from_pydict(columns)

    return tuple(Input([batch(epoch) for epoch in range(epochs)], [1] * epochs) for _ in "abc")


def sent(
    inputs: tuple[Input, ...], workers: int, ways: PathPlans | None, runner: Runner | None = None
) -> tuple[float, PathPlans, Exchange]:
    """Bytes an epoch of the last ones, the ways of the last, and the exchange as it was measured. ``ways``: by force; None: those that are
    chosen. ``runner``: None: all in this process."""
    choose = flowing.choose
    with tempfile.TemporaryDirectory() as directory:
        job = make_job(
            Path(directory),
            streams=[stream_of(name) for name in "abc"],
            on="a.k = b.k AND b.m = c.m",
            window={"within": "10s"},
            output={"select": ["a.text AS a", "b.text AS b", "c.text AS c"]},
            workers=workers,
            capacity=PLENTY,
            model="hash",
        )
        now = START / SECOND
        if ways is not None:
            flowing.choose = lambda *_: ways
        try:
            storage = ObjectStorage(str(Path(directory) / "state"))
            driver = driver_for(job, inputs, storage, runner or InlineRunner(), clock=lambda: now)
            driver.start()
            totals = []
            while (result := driver.step(final=True)) is not None:
                totals.append(result.totals["partial_bytes"][0])
                now += 1
            exchange = Flowing.from_json(driver.checkpoint.plan.flowing).exchange
            return (totals[-1] - totals[-1 - COUNTED]) / COUNTED, driver.checkpoint.plan.ways, exchange
        finally:
            flowing.choose = choose


SHIPPED: PathPlans = tuple(PathPlan(orders[0]) for orders in ORDERS)


def ways_of(head: int) -> list[PathPlan]:
    return [
        PathPlan(order, fetches, (distribution,)) for order in ORDERS[head] for fetches in (False, True) for distribution in Distribution
    ]


def every_way(inputs: tuple[Input, ...], workers: int) -> dict[PathPlans, float]:
    """The bytes of each combination of ways: a stream's way is tried while the others have one that is known, and bytes add up. Where two
    fetch, a tuple that both refer to is counted twice, which is sent once: too much rather than too little."""
    base = sent(inputs, workers, SHIPPED)[0]
    more: list[dict[PathPlan, float]] = []
    for head in range(3):
        tried = ((way, tuple(way if each == head else SHIPPED[each] for each in range(3))) for way in ways_of(head))
        more.append({way: sent(inputs, workers, forced)[0] - base for way, forced in tried})
    return {forced: base + sum(of[way] for of, way in zip(more, forced, strict=True)) for forced in itertools.product(*more)}


def stream_of(name: str) -> dict[str, Any]:
    """The source is replaced."""
    return {"name": name, "schema": DDL, "eventTime": "at", "source": {"files": {"path": f"/none/{name}", "format": "parquet"}}}


def text_of(ways: PathPlans) -> str:
    orders = ("".join("abc"[stream] for stream in (head, *way.order)) for head, way in enumerate(ways))
    return "; ".join(f"{order} {how_text(way)}" for order, way in zip(orders, ways, strict=True))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=5000, help="a stream and second")
    parser.add_argument("--texts", default="20,200,2000", help="bytes of a text, several after commas")
    parser.add_argument("--epochs", type=int, default=18, help="the first 10 fill the window")
    parser.add_argument("--spark-epochs", type=int, default=40, help="on Spark, where ways are chosen again every ten")
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    rows, epochs, workers = (500 if given.quick else given.rows), given.epochs, given.workers
    print(machine())
    by_bytes, by_time = [], []
    with tempfile.TemporaryDirectory() as directory:
        runner = spark_runner(Path(directory))
        try:
            chosen_by = [
                (text, *sent(inputs_of(rows, given.spark_epochs, text), workers, None, runner)[1:]) for text in counts(given.texts)
            ]
        finally:
            runner.stop()
    for text, ways, exchange in chosen_by:
        every = every_way(inputs_of(rows, epochs, text), workers)
        shipped = min(nbytes for forced, nbytes in every.items() if not any(way.fetches or way.distributions for way in forced))
        fetched = min(nbytes for forced, nbytes in every.items() if not any(way.distributions for way in forced))
        chosen, least, most = every[ways], min(every.values()), max(every.values())
        megabytes = (f"{nbytes / 1e6:.2f}" for nbytes in (chosen, least, shipped, fetched, most))
        by_bytes.append((f"{text:,}", *megabytes, f"{chosen / least:.2f}", text_of(ways)))

        def milliseconds(forced: PathPlans, exchange: Exchange = exchange, every: dict[PathPlans, float] = every) -> float:
            return 1e3 * exchange.seconds(rounds_of(forced), every[forced] / exchange.epoch_seconds)

        best = min(every, key=milliseconds)
        narrowest = min(every, key=lambda forced: (every[forced], rounds_of(forced)))
        figures = (
            f"{exchange.round_seconds * 1e3:.2f}",
            f"{exchange.bytes_per_second / 1e6:.0f}",
            *(f"{milliseconds(forced):.1f} in {rounds_of(forced)}" for forced in (ways, best, narrowest)),
            f"{milliseconds(ways) / milliseconds(best):.2f}",
        )
        by_time.append((f"{text:,}", *figures, text_of(best)))
    sizes = "chosen, MB an epoch", "least of all", "least that ships", "least that ships and fetches", "most", "chosen / least"
    print(table(("bytes of a text", *sizes, "chosen ways"), by_bytes))
    print()
    times = "a round, ms", "MB/s of a worker", "chosen, ms in rounds", "best of all", "that of the fewest bytes", "chosen / best"
    print(table(("bytes of a text", *times, "best ways"), by_time))


if __name__ == "__main__":
    main()
