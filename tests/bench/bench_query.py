"""What a query of a running join takes: of many held tuples a few, by what is read and how long it takes; and what ten clients that ask all
the time do to the epochs of the join that they ask.

    python tests/bench/bench_query.py [--tuples 12000000] [--seconds 120] [--quick]

A query is asked in a process that has answered one before, so what it takes to start one is left out; before it the page cache is told to
forget the blocks. Epochs are those of ``streamjoin run`` with two workers; clients ask for ten seconds, and are silent for ten.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
import yaml

from bench.report import machine, options, table
from harness import START, Input, driver_for, make_job, run_all
from streamjoin.job import Job
from streamjoin.query.catalog import Catalog
from streamjoin.query.execution import asked
from streamjoin.query.messages import Limits
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage

EPOCHS = 24
CLIENTS = 10
PHASE_SECONDS = 10.0
SETTLE_SECONDS = 1.0
"""At the beginning of each phase, epochs that are of neither."""
CONDITIONS = {"a band, sorted by key": "abs(l.k - r.k) <= 1", "an equality, sorted by its hash": "l.k = r.k"}


def held(root: Path, on: str, tuples: int) -> Job:
    """A join that holds so many tuples of ``l``, with keys from 0 up to a tenth of that; its state in files."""
    rng = np.random.default_rng(1)
    a_batch = tuples // EPOCHS

    def batch(first: int, rows: int) -> pa.RecordBatch:
        columns = [
            pa.array(np.arange(first, first + rows)),
            pa.array(rng.integers(0, tuples // 10, rows)),
            pa.array(rng.integers(0, 100, rows, dtype=np.int32)),
            pa.array(START + np.arange(first, first + rows)).cast(pa.timestamp("us", "UTC")),
        ]
        return pa.RecordBatch.from_arrays(columns, names=["rid", "k", "v", "at"])

    inputs = [Input([batch(number * rows, rows) for number in range(EPOCHS)], [1] * EPOCHS) for rows in (a_batch, 10)]
    select = [f"{side}.{name} AS {side}_{name}" for side in "lr" for name in ("rid", "k", "v", "at")]
    output = {"select": select, "sink": {"console": {"limit": 0}}}
    job = make_job(
        root, on=on, types=("BIGINT", "BIGINT"), window={"unbounded": True}, workers=4, output=output, capacity=10**9,
        epoch={"maxTuples": 10**9, "maxBytes": "16Gi"},
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner()))
    return job


def forget(state: Path) -> None:
    """Has the page cache forget the blocks, which are flushed."""
    for file in (state / "blocks").iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_from_disk() -> int:
    """Bytes that this process has had the storage read."""
    return next(int(line.split()[1]) for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("read_bytes"))


def measured(job: Job, sql: Sequence[str]) -> list[Any]:
    """Of these queries, one after the other: rows, blocks, bytes that were looked at and that came from the disk, seconds."""
    catalog, storage = Catalog.of(job), ObjectStorage(job.checkpoint)
    times, looked, disk, rows = [], [], [], []
    for text in sql:
        forget(Path(job.checkpoint))
        before, began = read_from_disk(), time.perf_counter()
        with asked(storage, catalog, text, Limits(threads=2, memory_bytes=1 << 30)) as answer:
            rows.append(sum(batch.num_rows for batch in answer.batches))
        times.append((time.perf_counter() - began) * 1e3)
        read = answer.read["l"]
        looked.append(read.nbytes)
        disk.append(read_from_disk() - before)
    cuts = statistics.quantiles(times, n=20, method="inclusive")
    percent = 100 / read.all_nbytes
    return [
        f"{statistics.median(rows):,.0f}",
        f"{read.files} of {read.all_files}",
        f"{read.all_nbytes / 1e6:,.0f} MB",
        f"{max(looked) * percent:.4f} %",
        f"{max(disk) * percent:.2f} %",
        f"{statistics.median(times):.0f} ({cuts[0]:.0f} to {cuts[-1]:.0f})",
    ]


def point_queries(tuples: int, repeats: int) -> None:
    rng, lines = random.Random(2), []
    for name, on in CONDITIONS.items():
        with tempfile.TemporaryDirectory() as directory:
            job = held(Path(directory), on, tuples)
            measured(job, ["SELECT rid, v FROM l WHERE k = 1"] * 2)
            keys = [rng.randrange(tuples // 10) for _ in range(repeats)]
            asked_for = {"k = ...": [f"SELECT rid, v, at FROM l WHERE k = {key}" for key in keys]}
            if "band" in name:
                a_hundred = [f"SELECT rid, v, at FROM l WHERE k BETWEEN {key} AND {key} + 99" for key in keys]
                asked_for["k BETWEEN ... AND ... + 99"] = a_hundred
            asked_for["count(*)"] = ["SELECT count(*) FROM l"] * 3
            asked_for["sum(v) by v"] = ["SELECT v, sum(v) FROM l GROUP BY v"] * 3
            lines += [[name, what, *measured(job, sql)] for what, sql in asked_for.items()]
    header = ["tuples lie by", "query", "rows", "blocks", "held", "looked at", "from the disk", "ms, median (5 % to 95 %)"]
    print(f"\n{tuples:,} held tuples of l\n")
    print(table(header, lines))


def running_manifest(root: Path) -> Path:
    generator = {"rate": {"constant": 5000}, "columns": {"id": {"sequence": {}}, "k": {"uniform": {"min": 0, "max": 100_000}}}}
    streams = [
        {
            "name": name,
            "source": {"generator": generator | {"seed": seed}},
            "schema": "id BIGINT, k BIGINT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "1s",
        }
        for seed, name in enumerate("lr")
    ]
    output = {"select": ["l.id AS a", "r.id AS b", "l.k AS k", "r.k AS rk"], "sink": {"console": {"limit": 0}}}
    join = {"name": "j", "condition": "abs(l.k - r.k) <= 1", "window": {"within": "60s"}, "output": output}
    spec = {
        "streams": streams,
        "joins": [join],
        "workers": {"min": 2, "max": 2, "capacityTuples": 10**7},
        "epoch": {"interval": "100ms"},
        "checkpoint": {"location": str(root / "state")},
    }
    path = root / "join.yaml"
    path.write_text(
        yaml.safe_dump({"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "asked"}, "spec": spec})
    )
    return path


class Clients:
    """Ten that ask again as soon as they have an answer, while they may."""

    def __init__(self, port: int) -> None:
        self._port, self.may, self._end = port, threading.Event(), threading.Event()
        self.times: list[float] = []
        self.failed = 0
        self._threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._end.is_set():
            if not self.may.wait(0.1):
                continue
            key, began = rng.randrange(100_000), time.perf_counter()
            sql = rng.choice([f"SELECT id, k FROM l WHERE k BETWEEN {key} AND {key + 9}", "SELECT count(*), max(k) FROM r"])
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            connection.request("POST", "/v1/query", json.dumps({"sql": sql}))
            answer = connection.getresponse()
            answer.read()
            connection.close()
            self.failed += answer.status != 200
            self.times.append((time.perf_counter() - began) * 1e3)

    def end(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def epochs_beside_clients(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "streamjoin", "run", str(running_manifest(Path(directory))), "--json", "--metrics-port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert process.stdout is not None
        port = int(next(line for line in process.stderr if line.startswith("metrics: ")).rsplit(":", 1)[1].split("/")[0])
        epochs: list[tuple[float, float]] = []

        def take() -> None:
            for line in process.stdout or ():
                event = json.loads(line)
                if event["event"] == "epoch":
                    epochs.append((datetime.fromisoformat(event["finishedAt"]).timestamp(), event["seconds"] * 1e3))

        os.nice(19)  # clients are elsewhere, as a rule, and here must not take the processor from the join
        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        threading.Thread(target=process.stderr.read, daemon=True).start()
        while len(epochs) < 100:
            time.sleep(0.1)
        clients, phases = Clients(port), []
        until = time.time() + seconds
        while time.time() < until:
            for asks in (False, True):
                (clients.may.set if asks else clients.may.clear)()
                phases.append((asks, time.time() + SETTLE_SECONDS, time.time() + PHASE_SECONDS))
                time.sleep(PHASE_SECONDS)
        clients.end()
        process.terminate()
        process.wait()
        taking.join()
    lines = []
    for asks in (False, True):
        within = [spent for at, spent in epochs if any(asks is kind and begin <= at <= end for kind, begin, end in phases)]
        cuts = statistics.quantiles(within, n=100)
        lines.append(["ten" if asks else "none", len(within), *(f"{cuts[at]:.1f}" for at in (49, 94, 98)), f"{max(within):.1f}"])
    print("\nEpochs of 1,000 tuples, ms\n")
    print(table(["clients", "epochs", "p50", "p95", "p99", "longest"], lines))
    cuts = statistics.quantiles(clients.times, n=100)
    phase_seconds = sum(PHASE_SECONDS for asks, _, _ in phases if asks)
    print(
        f"\n{len(clients.times) / phase_seconds:.0f} queries a second, {clients.failed} of {len(clients.times)} not answered; "
        f"ms from question to answer: p50 {cuts[49]:.0f}, p99 {cuts[98]:.0f}"
    )


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--tuples", type=int, default=12_000_000)
    parser.add_argument("--seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    print(machine())
    point_queries(240_000 if arguments.quick else arguments.tuples, 5 if arguments.quick else 40)
    epochs_beside_clients(2 * PHASE_SECONDS if arguments.quick else arguments.seconds)


if __name__ == "__main__":
    main()
