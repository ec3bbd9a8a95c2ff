"""A backlog of files that were written side by side, or one after the other: no file makes records of another one late, and workers hold
no more than if it had been read in the order of time."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import how_many
from harness import SECOND, START, make_job
from streamjoin.controlplane.driver import Driver
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage

DELAY = 10
"""Seconds by which records of a file are out of order, at most: the streams' watermark."""
Row = tuple[int, int, int]
"""rid, k, at in microseconds."""


def written(rng: random.Random, first: int, begin: float, seconds: float, count: int) -> list[Row]:
    """A file's records: in order but for DELAY seconds."""
    moments = sorted(begin + rng.random() * seconds for _ in range(count))
    rows = [(number, rng.randrange(20), START + round((at - rng.random() * DELAY * 0.9) * SECOND)) for number, at in enumerate(moments)]
    return [(first + number, key, at) for number, key, at in rows]


def write(path: Path, rows: list[Row], form: str, age: int) -> None:
    """``age``: which file was changed before which."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "parquet":
        columns = list(zip(*rows, strict=True))
        times = pa.array(columns[2], pa.timestamp("us", "UTC"))
        table = pa.table({"rid": pa.array(columns[0]), "k": pa.array(columns[1]), "v": pa.nulls(len(rows), pa.int32()), "at": times})
        pq.write_table(table, path, row_group_size=50)
    elif form == "csv":
        lines = ["rid,k,v,at", *(f"{rid},{key},,{moment(at)}" for rid, key, at in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        text = "".join(json.dumps({"rid": rid, "k": key, "at": moment(at)}) + "\n" for rid, key, at in rows)
        path.write_bytes(gzip.compress(text.encode()) if form == "gzip" else text.encode())
    os.utime(path, (1e9 + age, 1e9 + age))


def moment(at: int) -> str:
    return str(pa.scalar(at, pa.timestamp("us"))).replace(" ", "T") + "Z"


def join(root: Path, form: str, most: int, restarts: bool = False) -> tuple[Counter[str], int, int]:
    """Counts, the number of results, and the most tuples that were held."""
    settles = {} if form == "parquet" else {"settle": "0s"}
    options: dict[str, Any] = {"sources": ("json" if form == "gzip" else form, settles), "watermark": f"{DELAY}s", "workers": 2}
    job = make_job(root, on="l.k = r.k", window={"within": "5s"}, epoch={"maxTuples": most}, **options)

    def begin() -> Driver:
        driver = Driver(job, ObjectStorage(str(root / "state")), InlineRunner(), clock=lambda: START / SECOND + 1e6)
        driver.start()
        return driver

    driver, counts, output, held = begin(), Counter[str](), 0, 0
    while True:
        result = driver.step(final=True)
        if result is None:
            return counts, output, held
        counts.update({name: sum(result.counts[name]) for name in ("input", "late", "rejected")})
        output, held = output + result.output, max(held, sum(map(sum, result.held.values())))
        if restarts and result.epoch % 3 == 0:
            driver.stop()
            driver = begin()


def expected(left: list[Row], right: list[Row]) -> int:
    with duckdb.connect() as connection:
        for name, rows in (("l", left), ("r", right)):
            table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=["rid", "k", "at"])
            connection.register(name, table)
        ((count,),) = connection.execute("SELECT count(*) FROM l, r WHERE l.k = r.k AND abs(l.at - r.at) <= 5000000").fetchall()
    return int(count)


@pytest.mark.parametrize("form", ["json", "csv", "parquet", "gzip"])
def test_two_files_of_the_same_hour_have_no_late_records_however_they_are_read(form: str, tmp_path: Path) -> None:
    """After an outage both are there."""
    rng, rows = random.Random(form), {}
    for name in "lr":
        files = [written(rng, 10_000 * number, 0, 600, 400) for number in range(2)]
        rows[name] = files[0] + files[1]
        for number, of_file in enumerate(files):
            write(tmp_path / f"in-{name}" / f"{number}.x", of_file, form, number)
    counts, output, _ = join(tmp_path, form, 100)
    assert (counts["input"], counts["late"], counts["rejected"]) == (1600, 0, 0)
    assert output == expected(rows["l"], rows["r"])


@pytest.mark.parametrize("seed", range(how_many(40, of=5)))
def test_no_file_makes_records_of_another_late(seed: int, tmp_path: Path) -> None:
    """Writers that began and ended at any times, in any order of names and changes, over restarts."""
    rng = random.Random(seed)
    form, rows = rng.choice(["json", "csv", "parquet", "gzip"]), {}
    for name in "lr":
        count = rng.randint(1, 7)
        drawn = [(rng.random() * 900, rng.choice([5, 200, 900]), rng.randint(1, 300)) for _ in range(count)]
        files = [written(rng, 10_000 * number, *of_file) for number, of_file in enumerate(drawn)]
        rows[name] = [row for of_file in files for row in of_file]
        ages = rng.sample(range(100), count)
        for number, (of_file, age) in enumerate(zip(files, ages, strict=True)):
            write(tmp_path / f"in-{name}" / rng.choice(["", "below/"]) / f"{number}.x", of_file, form, age)
    counts, output, _ = join(tmp_path, form, rng.choice([20, 100, 1000]), restarts=rng.random() < 0.5)
    assert counts["late"] == 0
    assert counts["input"] == len(rows["l"]) + len(rows["r"])
    assert output == expected(rows["l"], rows["r"])


def test_a_long_backlog_is_read_in_the_order_of_time_so_that_workers_hold_a_window_of_it(tmp_path: Path) -> None:
    """Forty files, one after the other in time, which were changed in another order."""
    rng, rows = random.Random(1), {}
    for name in "lr":
        files = [written(rng, 10_000 * number, number * 600, 600, 100) for number in range(40)]
        rows[name] = [row for of_file in files for row in of_file]
        for number, age in enumerate(rng.sample(range(100), 40)):
            write(tmp_path / f"in-{name}" / f"{number}.x", files[number], "json", age)
    counts, output, held = join(tmp_path, "json", 200)
    assert counts["late"] == 0
    assert output == expected(rows["l"], rows["r"])
    assert held < 1000, "of 8,000"
