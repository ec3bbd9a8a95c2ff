"""What it costs workers to exchange pieces: each sends two pieces and an end mark to each other one, and waits for theirs, again and again.

Beside the exchange, the same by streams of Arrow Flight, one from each worker to each other one, as plainly as can be. All are processes of
this machine; nothing is joined.

    python tests/bench/bench_exchange.py [--workers 2,4,8,16] [--bytes 500,20000,300000] [--runs 3] [--quick]
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
from pyarrow import flight

from bench.report import counts, machine, options, table
from streamjoin.epoch.spec import Piece
from streamjoin.runner.exchange import Exchange
from streamjoin.runner.security import Security

WARM_ROUNDS = 10
BUDGET_BYTES = 400 << 20
"""So many are sent in all in a measurement, but no fewer than ``FEWEST_ROUNDS`` and no more than ``MOST_ROUNDS``."""
FEWEST_ROUNDS, MOST_ROUNDS = 20, 300


class PathPlan(Protocol):
    """A worker's end of a way to exchange pieces."""

    address: str

    def exchange(self, attempt: int, addresses: list[str], data: pa.Buffer) -> int:
        """Send two pieces to each, and wait for theirs; how many came."""


class Ours:
    """The exchange as workers have it."""

    def __init__(self) -> None:
        self._exchange = Exchange("127.0.0.1", Security(b"a secret"))
        self.address = self._exchange.address

    def exchange(self, attempt: int, addresses: list[str], data: pa.Buffer) -> int:
        exchange = self._exchange
        exchange.begin(attempt, addresses)
        for task, address in enumerate(addresses):
            for place in (0, 1):
                exchange.send(attempt, address, Piece(task, 0, place, data))
        exchange.end(attempt, addresses)
        own = addresses.index(self.address)
        came = sum(1 for _ in exchange.pieces(attempt, [own]))
        exchange.finish(attempt)
        return came


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, take: Callable[[int, Any], None]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._take = take

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            attempt = int.from_bytes(chunk.app_metadata.to_pybytes(), "little")
            self._take(attempt, None if chunk.data is None else chunk.data.column(0)[0].as_buffer())


class ByFlight:
    """Pieces as values of one-row record batches, marks as metadata."""

    SCHEMA = pa.schema([("data", pa.binary())])

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pieces: dict[int, list[Any]] = {}
        self._marks: dict[int, int] = {}
        self._writers: dict[str, Any] = {}
        self._server = _Server(self._take)
        self.address = f"127.0.0.1:{self._server.port}"

    def _take(self, attempt: int, data: Any) -> None:
        with self._changed:
            if data is None:
                self._marks[attempt] = self._marks.get(attempt, 0) + 1
                self._changed.notify_all()
            else:
                self._pieces.setdefault(attempt, []).append(data)

    def _writer(self, address: str) -> Any:
        if address not in self._writers:
            client = flight.FlightClient(f"grpc://{address}")
            self._writers[address] = client.do_put(flight.FlightDescriptor.for_command(b"pieces"), self.SCHEMA)[0]
        return self._writers[address]

    def exchange(self, attempt: int, addresses: list[str], data: pa.Buffer) -> int:
        number = attempt.to_bytes(8, "little")
        offsets = pa.py_buffer(b"\0\0\0\0" + data.size.to_bytes(4, "little"))
        batch = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])], schema=self.SCHEMA)
        for address in addresses:
            if address == self.address:
                self._take(attempt, data)
                self._take(attempt, data)
                self._take(attempt, None)
            else:
                writer = self._writer(address)
                writer.write_with_metadata(batch, pa.py_buffer(number))
                writer.write_with_metadata(batch, pa.py_buffer(number))
                writer.write_metadata(pa.py_buffer(number))
        with self._changed:
            while self._marks.get(attempt, 0) < len(addresses):
                self._changed.wait()
            del self._marks[attempt]
            return len(self._pieces.pop(attempt))


WAYS: dict[str, type[Ours | ByFlight]] = {"StreamJoin's exchange": Ours, "streams of Arrow Flight": ByFlight}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def work(way: str, nbytes: int, rounds: int, pipe: Connection) -> None:
    """A worker: tells its address, hears everyone's, and tells what a round takes, in seconds and in seconds of processor time."""
    end: PathPlan = WAYS[way]()
    pipe.send(end.address)
    addresses = pipe.recv()
    data = pa.py_buffer(np.random.default_rng(1).integers(0, 256, nbytes, np.uint8))

    def run(first: int, count: int) -> None:
        for attempt in range(first, first + count):
            came = end.exchange(attempt, addresses, data)
            assert came == 2 * len(addresses), came

    run(0, WARM_ROUNDS)
    pipe.send("warm")
    pipe.recv()
    began, used = time.perf_counter(), cpu_seconds()
    run(WARM_ROUNDS, rounds)
    pipe.send(((time.perf_counter() - began) / rounds, (cpu_seconds() - used) / rounds))
    pipe.recv()


def measure(way: str, workers: int, nbytes: int) -> tuple[float, float]:
    """A round's seconds, and a worker's processor time of it."""
    rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, BUDGET_BYTES // (2 * nbytes * workers**2)))
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(workers):
        near, far = context.Pipe()
        pipes.append(near)
        processes.append(context.Process(target=work, args=(way, nbytes, rounds, far), daemon=True))
        processes[-1].start()
    addresses = [pipe.recv() for pipe in pipes]
    for said in (addresses, "go"):
        for pipe in pipes:
            pipe.send(said)
        came = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.kill()
        process.join()
    return max(seconds for seconds, _ in came), statistics.mean(used for _, used in came)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--workers", type=counts, default=[2, 4, 8, 16])
    parser.add_argument("--bytes", type=counts, default=[500, 20_000, 300_000], help="of a piece")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.workers, arguments.bytes, arguments.runs = [2], [500], 1
    print(machine())
    rows = []
    for workers in arguments.workers:
        for nbytes in arguments.bytes:
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for _ in range(arguments.runs):
                for way, measured in found.items():
                    measured.append(measure(way, workers, nbytes))
            (wall, used), (other_wall, other_used) = (
                (statistics.median(seconds for seconds, _ in measured), statistics.median(cpu for _, cpu in measured))
                for measured in found.values()
            )
            cells = [f"{1e3 * value:.2f}" for value in (wall, other_wall, used, other_used)]
            rows.append([str(workers), f"{nbytes:,}", *cells, f"{other_used / used:.1f}"])
    head = ["workers", "bytes of a piece", "a round, ms", "by Flight", "processor time of a worker, ms", "by Flight", "Flight's / ours"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
