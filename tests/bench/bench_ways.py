"""What joins of three streams send between the steps of a sequence: by the ways that are chosen, and by every other, tried by force.

A chain, ``a.k = b.k AND b.m = c.m``, within 10 s. A tuple of one stream has five partners by ``k``, and one in twenty has one by ``m``;
so most partial results of the first edge come to nothing. The output has a text of every stream, of 20, 200 or 2,000 bytes. What is
measured are bytes, which no load on the machine changes: those sent to other workers between steps, and to fetch tuples, in the last
epochs, once the ways are chosen by what was measured.

    python tests/bench/bench_ways.py [--rows 5000] [--texts 20,200,2000] [--epochs 18] [--workers 4] [--quick]
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

from bench.engine import PLENTY
from bench.report import counts, machine, options, table
from harness import SECOND, START, Input, driver_for, make_job
from streamjoin.elastic.sequences import Way, Ways
from streamjoin.epoch import flowing
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


def sent(inputs: tuple[Input, ...], workers: int, ways: Ways | None) -> tuple[float, Ways]:
    """Bytes an epoch of the last ones, and the ways of the last. ``ways``: by force; None: those that are chosen."""
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
            driver = driver_for(job, inputs, ObjectStorage(str(Path(directory) / "state")), InlineRunner(), clock=lambda: now)
            driver.start()
            totals = []
            while (result := driver.step(final=True)) is not None:
                totals.append(result.totals["partial_bytes"][0])
                now += 1
            return (totals[-1] - totals[-1 - COUNTED]) / COUNTED, driver.checkpoint.ways
        finally:
            flowing.choose = choose


def stream_of(name: str) -> dict[str, Any]:
    """The source is replaced."""
    return {"name": name, "schema": DDL, "eventTime": "at", "source": {"files": {"path": f"/none/{name}", "format": "parquet"}}}


def text_of(ways: Ways) -> str:
    orders = ("".join("abc"[stream] for stream in (head, *way.order)) for head, way in enumerate(ways))
    return ", ".join(f"{order}{' fetching' * way.fetches}" for order, way in zip(orders, ways, strict=True))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=5000, help="a stream and second")
    parser.add_argument("--texts", default="20,200,2000", help="bytes of a text, several after commas")
    parser.add_argument("--epochs", type=int, default=18, help="the first 10 fill the window")
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    rows, epochs, workers = (500 if given.quick else given.rows), given.epochs, given.workers
    print(machine())
    lines = []
    for text in counts(given.texts):
        inputs = inputs_of(rows, epochs, text)
        chosen, ways = sent(inputs, workers, None)
        every = {
            forced: sent(inputs, workers, forced)[0]
            for forced in (
                tuple(Way(order, fetches) for order, fetches in zip(orders, fetching, strict=True))
                for orders in itertools.product(*ORDERS)
                for fetching in itertools.product((False, True), repeat=3)
            )
        }
        best = min(every, key=lambda forced: every[forced])
        everything = min(nbytes for forced, nbytes in every.items() if not any(way.fetches for way in forced))
        worst = max(every.values())
        figures = (f"{nbytes / 1e6:.2f}" for nbytes in (chosen, every[best], everything, worst))
        lines.append((f"{text:,}", *figures, f"{chosen / every[best]:.2f}", f"{chosen / everything:.2f}", text_of(ways)))
    ratios = "chosen / best", "chosen / best that carries all"
    print(table(("bytes of a text", "chosen, MB an epoch", "best of all", "best that carries all", "worst", *ratios, "chosen ways"), lines))


if __name__ == "__main__":
    main()
