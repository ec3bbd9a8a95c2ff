"""One key of many results: in the sorted files of the checkpoint, in PostgreSQL and in Cassandra, each filled by what fills it in a run.

    python tests/bench/bench_stores.py [--rows 100000000] [--postgres-rows N] [--cassandra-rows N] [--quick]

Results are of 32 bytes in four columns, ten of each key, in snapshots of ``--snapshot``; their keys are drawn, so that each snapshot has
some of all. Before a query of the sorted files the page cache is told to forget them; it is asked for in a process that has answered
before. The servers are asked by their own clients, with what they and the system have cached: PostgreSQL with 128 MB of its own, Cassandra
with a heap of 768 MB. Without one of the two, the program says so and goes on.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa

from bench.bench_query import read_from_disk
from bench.bench_snapshots import make_input
from bench.report import machine, options, table
from harness import driver_for, make_job
from streamjoin.job import Job
from streamjoin.query.catalog import Catalog
from streamjoin.query.execution import asked
from streamjoin.query.messages import Limits
from streamjoin.results.archive import Archive
from streamjoin.results.parts import FOLDER as PARTS
from streamjoin.results.parts import encoded
from streamjoin.results.reader import FOLDER, Snapshot
from streamjoin.results.store import SnapshotStore
from streamjoin.runner.inline import InlineRunner
from streamjoin.snapshots.timeline import Closed, Part
from streamjoin.state.storage import ObjectStorage

OF_A_KEY = 10
FIRST = 64
"""The first snapshot that is put there by hand: those before are the small run's, whose rows have another form."""
BATCH_ROWS = 16 * 1024


def small_run(root: Path) -> Job:
    """A join whose one epoch is committed, with snapshots by ``k``; what it found is a few rows of keys below 0."""
    output: dict[str, Any] = {"select": ["l.rid AS a", "r.rid AS b", "l.k AS k", "r.at AS at"], "sink": {"console": {"limit": 0}}}
    output["snapshots"] = {"every": "1s", "key": "k"}
    job = make_job(root, on="l.k = r.k", window={"within": "4s"}, workers=1, watermark="1s", output=output)
    driver = driver_for(job, (make_input(1, 1, 10), make_input(2, 1, 10)), ObjectStorage(str(root / "state")), InlineRunner())
    driver.start()
    while driver.step(final=True) is not None:
        pass
    driver.stop()
    return job


def fill(archive: Archive, storage: ObjectStorage, count: int, rows: int, keys: int) -> float:
    """Put so many snapshots into the sorted files; seconds that sorting and merging them took."""
    rng, seconds = np.random.default_rng(1), 0.0
    for number in range(FIRST, FIRST + count):
        first = number * rows
        drawn = rng.integers(0, keys, rows)
        at = pa.array(np.arange(first, first + rows)).cast(pa.timestamp("us", "UTC"))
        columns = {"_key": drawn, "a": np.arange(first, first + rows), "b": rng.integers(0, 10**9, rows), "k": drawn, "at": at}
        batch, path = pa.record_batch(columns), f"{PARTS}/bench-{number}.arrow"
        storage.put(path, memoryview(encoded([batch])))
        part = Part(path, rows, batch.nbytes)
        began = time.perf_counter()
        archive.add(Closed(number, 0, 0, 1.8e9, rows, part.nbytes, "bench", (part,)))
        while archive.tidy():
            pass
        seconds += time.perf_counter() - began
        storage.delete(path)
    return seconds


def forget(folder: Path) -> None:
    os.sync()
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def spread_of(times: list[float]) -> str:
    cuts = statistics.quantiles(times, n=20, method="inclusive")
    return f"{statistics.median(times):.0f} ({cuts[0]:.0f} to {cuts[-1]:.0f})"


def of_files(job: Job, keys: list[int]) -> list[Any]:
    """Rows, files, bytes of all, read by the query and from the disk (the most of any), ms."""
    catalog, storage = Catalog.of(job), ObjectStorage(job.checkpoint)
    name, times, disk, read, rows = job.joins[0].name, [], [], [], []
    for number, key in enumerate([keys[0], *keys]):
        forget(Path(job.checkpoint) / FOLDER)
        before, began = read_from_disk(), time.perf_counter()
        with asked(storage, catalog, f"SELECT a, b, at FROM {name} WHERE k = {key}", Limits(threads=2, memory_bytes=1 << 30)) as answer:
            found = sum(batch.num_rows for batch in answer.batches)
        if number:
            times.append((time.perf_counter() - began) * 1e3)
            disk.append(read_from_disk() - before)
            read.append(answer.read[name])
            rows.append(found)
    everything = read[0].all_nbytes
    return [
        f"{statistics.median(rows):,.0f}",
        f"{max(each.files for each in read)} of {read[0].all_files}",
        f"{everything / 1e6:,.0f} MB",
        f"{100 * max(each.nbytes for each in read) / everything:.2f} %",
        f"{100 * max(disk) / everything:.2f} %",
        spread_of(times),
    ]


def of_server(server: Server, archive: Archive, snapshots: int, rows: int, repeats: int) -> list[Any]:
    """The same of a store that has a server, and the seconds that filling it took."""
    (store, read, settle), began = server, time.perf_counter()
    for number in range(FIRST, FIRST + snapshots):
        store.publish(Snapshot(number, 0, 1.8e9, rows), archive.rows(number, BATCH_ROWS))
    filled = time.perf_counter() - began
    settle()
    some = pa.concat_arrays([batch.column("_key") for batch in archive.rows(FIRST, BATCH_ROWS)])
    keys = [some[random.Random(number).randrange(len(some))].as_py() for number in range(repeats)]
    times, found = [], []
    for number, key in enumerate([keys[0], *keys]):
        began = time.perf_counter()
        answer = read(key)
        if number:
            times.append((time.perf_counter() - began) * 1e3)
            found.append(len(answer))
    store.close()
    return [f"{statistics.median(found):,.0f}", "", "", "", "", spread_of(times), f"{filled:,.0f}"]


Server = tuple[SnapshotStore, Callable[[Any], list[Any]], Callable[[], object]]
"""A store, the rows of a key by the server's own client, and what the server does for itself in time."""


@contextlib.contextmanager
def postgres() -> Iterator[Server]:
    import psycopg

    from postgres_server import PostgresServer
    from streamjoin.io.postgres_sink import Place
    from streamjoin.results.postgres import PostgresStore

    with PostgresServer() as server:
        place = Place("127.0.0.1", server.port, "postgres", "public", "found", 600.0, (("user", "streamjoin"),))
        with psycopg.connect(host="127.0.0.1", port=server.port, dbname="postgres", user="streamjoin", autocommit=True) as connection:
            query = "SELECT * FROM found WHERE _checkpoint = 'one' AND _key = %s"
            yield (
                PostgresStore(place, "one"),
                lambda key: connection.execute(query, [key]).fetchall(),
                lambda: connection.execute("ANALYZE"),
            )


@contextlib.contextmanager
def cassandra() -> Iterator[Server]:
    from cassandra.cluster import Cluster

    from cassandra_server import CassandraServer
    from streamjoin.manifest.snapshots import CassandraStore as Model
    from streamjoin.results.cassandra import CassandraStore

    with CassandraServer() as server:
        host, port = server.target.split(":")
        cluster = Cluster([host], port=int(port))
        session = cluster.connect()
        session.execute("CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        model = Model.model_validate({"hosts": host, "port": int(port), "keyspace": "bench", "timeout": "600s"})
        query = """SELECT * FROM bench.found WHERE "_checkpoint" = 'one' AND "_has_key" = true AND "_key" = %s"""
        yield CassandraStore(model, "found", "one"), lambda key: list(session.execute(query, (key,))), lambda: None
        cluster.shutdown()


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--postgres-rows", type=int, help="at most --rows, and what is left out if 0  [default: --rows]")
    parser.add_argument("--cassandra-rows", type=int, default=5_000_000, help="as --postgres-rows")
    parser.add_argument("--snapshot", type=int, default=1_000_000, help="results in each")
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.snapshot, arguments.repeats = 200_000, 10_000, 5
    rows, of_snapshot = arguments.rows, arguments.snapshot
    print(machine(), flush=True)
    header = ["store", "results", "rows found", "files", "held", "read", "from the disk", "ms, median (5 % to 95 %)", "s to fill"]
    lines = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        job, rng = small_run(root), random.Random(2)
        storage = ObjectStorage(job.checkpoint)
        archive = Archive(storage, job.joins[0].name)
        seconds = fill(archive, storage, rows // of_snapshot, of_snapshot, rows // OF_A_KEY)
        keys = [rng.randrange(rows // OF_A_KEY) for _ in range(arguments.repeats)]
        lines.append(["sorted files", f"{rows:,}", *of_files(job, keys), f"{seconds:,.0f}"])
        print(table(header, lines[-1:]), flush=True)
        for name, server, most in (("PostgreSQL", postgres, arguments.postgres_rows), ("Cassandra", cassandra, arguments.cassandra_rows)):
            count = min(rows, rows if most is None else most) // of_snapshot
            if not count:
                continue
            try:
                with server() as parts:
                    answers = of_server(parts, archive, count, of_snapshot, arguments.repeats)
                    lines.append([name, f"{count * of_snapshot:,}", *answers])
            except RuntimeError as missing:
                print(f"{name}: {missing}")
    print(f"\nThe results of one key\n\n{table(header, lines)}")


if __name__ == "__main__":
    main()
