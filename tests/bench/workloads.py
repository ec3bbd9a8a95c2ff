"""The workloads of the benchmarks: two streams of Parquet files, one file a side and second of event time, and a band join of them.

- W1: N tuples a side and second, keys uniform over 100 N values, ``|l.k - r.k| <= 5`` within 10 s.
- W2: the same with Zipf keys. The ranks are 1,000 ranges of adjacent values, in random places that both streams share; a tuple draws
  a rank with probability p_i ~ 1 / i^z and a value uniformly from its range. With Zipf *values* the most frequent one alone would match
  in p_1^2 of all pairs, 10^3 (z = 1) to 10^5 times W1's output. The ranges are so wide (100 N sum p_i^2 values each) that a pair matches
  as often as in W1: sum p_i^2 * 11 / width = 11 / (100 N). With z = 2, 61 of 100 tuples fall into one of the 1,000 ranges.
- W3: W1 with four payload columns a side, two of them strings; a residual on a string and a number that half of the pairs pass; five
  columns of output from both sides.

Always holds: the same arguments give the same files, and files are taken in the order of their numbers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness import SECOND, START

BAND = 5
WINDOW = 10
"""Seconds."""
FULL_AFTER = WINDOW + 1
"""Once so many seconds of event time are held, as many expire as come."""
RANGES = 1000
"""Of W2's keys."""
TOWNS = 100

T = TypeVar("T")
Keys = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Workload:
    """A join in the words of the engine; ``rivals`` says it in others'."""

    name: str
    keys: Keys
    """(randomness, N) -> N keys."""
    columns: dict[str, str]
    """All columns with their SQL types, in the order of the files."""
    needed: tuple[str, ...]
    """Columns that the join cannot do without."""
    select: tuple[str, ...]
    residual: str | None = None

    @property
    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in self.columns.items())

    @property
    def on(self) -> str:
        band = f"abs(l.k - r.k) <= {BAND}"
        return f"{band} AND ({self.residual})" if self.residual else band

    def generate(self, root: Path, rows: int, files: int) -> None:
        """Write ``in-l`` and ``in-r`` of ``files`` files of ``rows`` rows."""
        for seed, side in enumerate("lr"):
            folder = root / f"in-{side}"
            folder.mkdir(parents=True)
            rng = np.random.default_rng(seed)
            for number in range(files):
                write_file(folder, number, self.tuples(rng, rows, number))

    def tuples(self, rng: np.random.Generator, rows: int, second: int) -> dict[str, Any]:
        """The columns of one file."""
        made = {
            "rid": np.arange(second * rows, (second + 1) * rows),
            "k": self.keys(rng, rows),
            "v": np.zeros(rows, np.int32),
            "at": pa.array(np.full(rows, START + second * SECOND)).cast(pa.timestamp("us", "UTC")),
        }
        if "name" in self.columns:
            made["amount"] = rng.random(rows)
            made["name"] = _texts("customer-", rng.integers(0, 10_000_000, rows))
            made["place"] = _texts("town-", rng.integers(0, TOWNS, rows))
        return {name: made[name] for name in self.columns}


def write_file(folder: Path, number: int, columns: dict[str, Any] | pa.Table) -> None:
    """One file of a stream; files are taken in the order of their times."""
    path = folder / f"{number:05d}.parquet"
    pq.write_table(pa.table(columns), path)
    os.utime(path, (1_000_000_000 + number,) * 2)


def timed_epochs(epochs: Iterator[T]) -> tuple[list[float], list[T]]:
    """The seconds of each epoch, from one to the next, and what it gave."""
    seconds, results = [], []
    began = time.perf_counter()
    for result in epochs:
        now = time.perf_counter()
        seconds.append(now - began)
        results.append(result)
        began = now
    return seconds, results


def _texts(prefix: str, numbers: np.ndarray) -> pa.Array:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(prefix, pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 7, "0"), "")


def uniform(rng: np.random.Generator, rows: int) -> np.ndarray:
    """W1's keys."""
    return rng.integers(0, 100 * rows, rows)


def zipf(exponent: float) -> Keys:
    """W2's keys."""
    weights = np.arange(1.0, RANGES + 1) ** -exponent
    shares = weights / weights.sum()
    bounds = np.cumsum(shares)
    places = np.random.default_rng(42).permutation(RANGES)

    def draw(rng: np.random.Generator, rows: int) -> np.ndarray:
        width = round(100 * rows * float((shares**2).sum()))
        ranks = np.minimum(np.searchsorted(bounds, rng.random(rows), side="right"), RANGES - 1)
        return places[ranks] * width + rng.integers(0, width, rows)

    return draw


NARROW = {"rid": "BIGINT", "k": "BIGINT", "v": "INT", "at": "TIMESTAMP"}
WIDE = {"rid": "BIGINT", "k": "BIGINT", "amount": "DOUBLE", "name": "STRING", "place": "STRING", "at": "TIMESTAMP"}
IDS = ("l.rid AS a", "r.rid AS b")

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", uniform, NARROW, ("rid", "k", "at"), IDS),
        Workload("W2, z = 1", zipf(1), NARROW, ("rid", "k", "at"), IDS),
        Workload("W2, z = 2", zipf(2), NARROW, ("rid", "k", "at"), IDS),
        Workload(
            "W3",
            uniform,
            WIDE,
            tuple(WIDE),
            (*IDS, "l.name AS left_name", "r.name AS right_name", "r.amount - l.amount AS difference"),
            "l.place = r.place OR l.amount < r.amount",
        ),
    )
}
SHORT = {"w1": "W1", "w2z1": "W2, z = 1", "w2z2": "W2, z = 2", "w3": "W3"}
"""What to call them on a command line."""
