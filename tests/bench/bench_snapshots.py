"""What snapshots of results cost: an equality join with and without them, in turns, and how fast the driver sorts and merges them.

python tests/bench/bench_snapshots.py [--repeats 5] [--quick]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa

from bench.report import machine, options, spread, table
from harness import SECOND, START, Input, driver_for, make_job
from streamjoin.results.archive import Archive
from streamjoin.results.parts import FOLDER, encoded
from streamjoin.runner.inline import InlineRunner
from streamjoin.snapshots.timeline import Closed, Part
from streamjoin.state.storage import ObjectStorage


def make_input(seed: int, epochs: int, rows: int) -> Input:
    """Tuples that match some other within four seconds."""
    rng = np.random.default_rng(seed)
    batches = []
    for epoch in range(epochs):
        columns = {
            "rid": pa.array(np.arange(epoch * rows, (epoch + 1) * rows)),
            "k": pa.array(rng.integers(0, 4 * rows, rows)),
            "v": pa.array(rng.integers(0, 9, rows).astype(np.int32)),
            "at": pa.array(START + epoch * SECOND + rng.integers(0, SECOND, rows), pa.timestamp("us", "UTC")),
        }
        batches.append(pa.record_batch(columns))
    return Input(batches, [1] * epochs)


def run(inputs: tuple[Input, Input], *, with_snapshots: bool) -> tuple[float, float, int]:
    """Seconds of all epochs but the first, processor seconds until all snapshots are stored, and results."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        output: dict[str, Any] = {"select": ["l.rid AS a", "r.rid AS b", "l.k AS k", "r.at AS at"]}
        output["sink"] = {"files": {"path": str(root / "out")}}
        if with_snapshots:
            output["snapshots"] = {"every": "1s", "key": "k"}
        job = make_job(root, on="l.k = r.k", window={"within": "4s"}, workers=2, watermark="1s", output=output, capacity=10_000_000)
        driver = driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner())
        driver.start()
        driver.step()
        began, processor, results = time.perf_counter(), time.process_time(), 0
        while (result := driver.step(final=True)) is not None:
            results += result.output
        seconds = time.perf_counter() - began
        driver.stop()
        return seconds, time.process_time() - processor, results


def sorted_and_merged(snapshots: int, rows: int) -> tuple[float, float]:
    """Results a second that are sorted and written, and that become part of a wider run; of 42 bytes in five columns."""
    with tempfile.TemporaryDirectory() as directory:
        storage, rng, closed = ObjectStorage(directory), np.random.default_rng(1), []
        for number in range(snapshots):
            columns = {
                "_key": rng.integers(0, 10**6, rows), "a": rng.integers(0, 10**9, rows), "b": rng.integers(0, 10**9, rows),
                "x": rng.random(rows), "t": [f"text{row % 1000}" for row in range(rows)],
            }  # fmt: skip
            batch = pa.record_batch(columns)
            path = f"{FOLDER}/{number}.arrow"
            storage.put(path, memoryview(encoded([batch])))
            part = Part(path, rows, batch.nbytes)
            closed.append(Closed(number, number, number, float(number), rows, part.nbytes, "", (part,)))
        archive, began = Archive(storage, "j"), time.perf_counter()
        for snapshot in closed:
            archive.add(snapshot)
        added, began = time.perf_counter() - began, time.perf_counter()
        while archive.tidy():
            pass
        return snapshots * rows / added, snapshots * rows / (time.perf_counter() - began)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    repeats = 2 if arguments.quick else arguments.repeats
    print(machine())
    lines = []
    for rows, epochs in ((1_000, 20), (10_000, 4)) if arguments.quick else ((1_000, 60), (100_000, 12)):
        inputs = make_input(1, epochs, rows), make_input(2, epochs, rows)
        pairs = [tuple(run(inputs, with_snapshots=each) for each in (False, True)) for _ in range(repeats + 1)][1:]
        ratios = [with_them[0] / without[0] for without, with_them in pairs]
        micros = [1e6 * (with_them[1] - without[1]) / without[2] for without, with_them in pairs]
        lines.append([f"{rows:,}", f"{pairs[0][0][2]:,}", spread(ratios, 2), spread(micros, 2)])
    print()
    print(table(["tuples a side and epoch", "results", "time with / without", "processor time a result, us"], lines))
    lines = []
    for rows in (1_000, 10_000) if arguments.quick else (1_000, 100_000):
        both = [sorted_and_merged(16, rows) for _ in range(repeats)]
        lines.append([f"{rows:,}", *(spread([one[which] / 1e6 for one in both], 2) for which in (0, 1))])
    print()
    print(table(["results a snapshot", "sorted, million/s", "merged, million/s"], lines))


if __name__ == "__main__":
    main()
