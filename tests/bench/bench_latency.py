"""Latency from end to end: from the later record's production until a reader sees the joined result, exactly once.

W1 (``workloads.py``), produced by the clock: each side's records come evenly, in batches of 5 ms to topics and in a file every 100 ms to
directories. Producer, broker, reader and join share ``--cores`` cores. A run begins with pairs of records that are sent until a result is
seen; then comes the load, of which the first ``--warm-up`` seconds are left out. Once the load has ended and no more results come, all of
them are compared with what was produced. A join that has not given all after ``--patience`` has fallen behind: its results are *missing*.

- StreamJoin by its command, ``streamjoin run``, on Spark (two workers) and inline.
- Flink SQL's interval join (``flink.py``), which shows results with its checkpoints.
- Spark's stream-stream join, from files to files: for Kafka it has no sink that writes exactly once.

    python tests/bench/bench_latency.py [--seconds 60] [--rates 1e3,1e4,1e5] [--through kafka,files] [--epoch-interval 0s]
        [--without PARTS] [--quick]
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import yaml

from bench import flink, rivals
from bench.engine import PLENTY
from bench.report import counts, machine, options, table
from bench.traffic import (
    SAMPLED_ABOVE,
    Ends,
    Exactness,
    compare,
    expected_pairs,
    latencies,
    load_produced,
    load_results,
    percentiles,
    produce,
    read,
)
from bench.workloads import BAND, WINDOW
from harness import SECOND
from kafka_broker import VERSION as KAFKA_VERSION
from kafka_broker import KafkaBroker, NoBroker
from streamjoin.manifest import ManifestError, load
from streamjoin.runner.java import find_java

PROCESSES = multiprocessing.get_context("spawn")
WATERMARK_SECONDS = 1
"""Of all joins. None waits for it: it says only when held records are forgotten."""
START_SECONDS = 120
END_SECONDS = 60
READ_SECONDS = 600
"""For what a reader of one partition has not read yet."""
SETTLED_SECONDS = 5.0
"""A join that has given as many results as there must be, and then none for so long, has given all."""
SAMPLE_SETTLED_SECONDS = 15.0
"""The same where the reader sees a part of the results only, so that nobody knows how many must come."""
HELD = 0.95
"""A producer that reaches so much of its rate, with so many of its batches in time, has held it."""
FEW = 0.001
"""A join that lacks a larger share of its results when nobody waits for them any more has fallen behind."""
SMALLEST_INTERVALS = ("0s", "1ms", "10ms")

Started = subprocess.Popen[bytes] | multiprocessing.process.BaseProcess


@dataclass(frozen=True)
class PathPlan:
    """One way to do the join: ``start`` gives the process that does it until it is ended. What it prints goes into a file."""

    name: str
    start: Callable[[Ends, Path], Started]
    files_only: bool = False
    by_log: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was measured of one way, at one rate."""

    percentiles: Sequence[float]
    """Seconds, at P50, P90 and P99."""
    measured: int
    """Results that they are of."""
    exactness: Exactness
    produced: float
    """Records a second and side: what the producer reached."""
    late_ticks: float
    """The share of its batches that it sent more than a batch's time late."""
    behind: float
    """Seconds from the end of the load to the last result."""
    cpu: float
    """Cores that the join took."""
    others_cpu: float
    """Cores that producer, reader and broker took."""

    @property
    def fell_behind(self) -> bool:
        """Then percentiles of the results that came would say too little."""
        return self.exactness.missing > FEW * self.exactness.expected


def manifest(ends: Ends, interval: str, workers: int) -> str:
    """The join in StreamJoin's words."""
    schema = "rid BIGINT, k BIGINT, at TIMESTAMP"

    def end(place: str) -> dict[str, Any]:
        if ends.servers is None:
            return {"files": {"path": place, "format": "json"}}
        return {"kafka": {"bootstrapServers": ends.servers, "topic": place}}

    streams = [
        {"name": side, "source": end(ends.input(side)), "schema": schema, "eventTime": "at", "watermark": f"{WATERMARK_SECONDS}s"}
        for side in "lr"
    ]
    join = {
        "condition": f"abs(l.k - r.k) <= {BAND}",
        "window": {"within": f"{WINDOW}s"},
        "output": {"select": ["l.rid AS a", "r.rid AS b"], "sink": end(ends.output)},
    }
    spec = {
        "streams": streams,
        "joins": [join],
        "workers": {"min": workers, "max": workers, "capacityTuples": PLENTY},
        "epoch": {"interval": interval},
        "checkpoint": {"location": str(ends.root / "state")},
    }
    head = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "latency"}}
    return yaml.safe_dump(head | {"spec": spec}, sort_keys=False)


def smallest_interval() -> str:
    """The shortest ``epoch.interval`` that a manifest may have."""
    for interval in SMALLEST_INTERVALS:
        with contextlib.suppress(ManifestError):
            load(manifest(Ends(Path("/nowhere")), interval, 1))
            return interval
    raise AssertionError(f"epoch.interval: none of {', '.join(SMALLEST_INTERVALS)} is accepted; name one with --epoch-interval")


def streamjoin(runner: str, interval: str, ends: Ends, log: Path) -> Started:
    path = ends.root / "join.yaml"
    path.write_text(manifest(ends, interval, 2 if runner == "spark" else 1))
    command = [sys.executable, "-m", "streamjoin", "run", str(path), "--runner", runner]
    with log.open("wb") as out:
        return subprocess.Popen(command, cwd=ends.root, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def spark(ends: Ends, log: Path) -> Started:
    process = PROCESSES.Process(target=_spark, args=(ends.root, log), daemon=True)
    process.start()
    return process


def _spark(root: Path, log: Path) -> None:
    with log.open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.environ["JAVA_HOME"] = str(find_java())
    rivals.stream_stream_live(root, "memory", WATERMARK_SECONDS)


def ways(interval: str, checkpoints: Sequence[int], flink_state: str) -> list[PathPlan]:
    found = [PathPlan(f"StreamJoin, {runner}", partial(streamjoin, runner, interval)) for runner in ("spark", "inline")]
    for millis in checkpoints:
        join = flink.FlinkJoin(millis, flink_state, WATERMARK_SECONDS)
        found.append(PathPlan(f"Flink SQL, checkpoints every {millis} ms", join.start))
    found.append(PathPlan("Spark's stream-stream join", spark, files_only=True, by_log=True))
    return found


class CpuTime:
    """CPU seconds of processes and all that they have started, since it was made."""

    def __init__(self, *pids: int | None) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]
        self._before = self._now()
        self._began = time.monotonic()

    def _now(self) -> dict[psutil.Process, float]:
        found = {}
        for root in self._roots:
            with contextlib.suppress(psutil.Error):
                for process in [root, *root.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        times = process.cpu_times()
                        found[process] = times.user + times.system
        return found

    def cores(self) -> float:
        """CPU seconds a second. What ended meanwhile is not in it."""
        spent = sum(seconds - self._before.get(process, 0.0) for process, seconds in self._now().items())
        return spent / (time.monotonic() - self._began)


class Failed(Exception):  # noqa: N818
    """A way gave no result; the text ends with what it printed."""


@contextlib.contextmanager
def running(way: PathPlan, ends: Ends) -> Iterator[Started]:
    """The way's process, which is asked to end afterwards and then made to, with all its children."""
    process = way.start(ends, ends.root / "log")
    try:
        yield process
    finally:
        assert process.pid is not None
        children = psutil.Process(process.pid).children(recursive=True) if psutil.pid_exists(process.pid) else []
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.join(END_SECONDS) if isinstance(process, multiprocessing.process.BaseProcess) else process.wait(END_SECONDS)
        _, left = psutil.wait_procs(children, timeout=END_SECONDS)
        for child in left:
            with contextlib.suppress(psutil.Error):
                child.kill()
        process.kill()


@dataclass(frozen=True)
class Load:
    """How much is produced, and what of it is measured."""

    rate: int
    """Records a second and side."""
    warm_up: float
    seconds: float
    patience: float
    """Seconds that a join may go on after the end of the load."""

    @property
    def all_seconds(self) -> float:
        return self.warm_up + self.seconds


def measure(way: PathPlan, ends: Ends, load: Load, broker: KafkaBroker | None) -> Outcome:
    """One run. Raises Failed where the join does not come up or ends before its time."""
    begin, stop, seen = PROCESSES.Event(), PROCESSES.Event(), PROCESSES.Value("q", 0)
    written, found = ends.root / "produced.npz", ends.root / "read.npz"
    reader = PROCESSES.Process(target=read, args=(ends, seen, stop, found), daemon=True)
    producer = PROCESSES.Process(target=produce, args=(ends, load.rate, load.all_seconds, begin, written), daemon=True)
    reader.start()
    try:
        with running(way, ends) as process:
            producer.start()
            _wait(process, ends, lambda: seen.value > 0, START_SECONDS)
            begin.set()
            _wait(process, ends, lambda: False, load.warm_up, required=False)
            own, others = CpuTime(process.pid), CpuTime(producer.pid, reader.pid, *([] if broker is None else [broker.pid]))
            _wait(process, ends, lambda: not producer.is_alive(), load.seconds - 1, required=False)
            cpu, others_cpu = own.cores(), others.cores()
            _wait(process, ends, lambda: not producer.is_alive(), load.all_seconds + END_SECONDS)
            produced = load_produced(written)
            pairs = expected_pairs(produced, load.rate, load.all_seconds)
            _settle(process, ends, seen, 0 if ends.sampled else len(pairs[0]) - produced.probes, load.patience)
        stop.set()
        reader.join(READ_SECONDS)
    finally:
        for child in (producer, reader):
            if child.pid is not None:
                child.kill()
                child.join()
    results = load_results(found)
    late = latencies(results, produced, produced.began + round(load.warm_up * SECOND))
    return Outcome(
        percentiles(late),
        len(late),
        compare(results, produced, pairs),
        produced.rate,
        produced.late_ticks(ends.tick),
        max(0.0, float(results.times.max() - produced.times[-1]) / SECOND),
        cpu,
        others_cpu,
    )


def _wait(process: Started, ends: Ends, done: Callable[[], bool], seconds: float, *, required: bool = True) -> None:
    """Until that is so, or for so long where it need not become so."""
    deadline = time.monotonic() + seconds
    while not done():
        code = process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
        timed_out = time.monotonic() > deadline
        if timed_out and not required:
            return
        if code is not None or timed_out:
            what = f"ended with {code}" if code is not None else f"has not got there within {seconds:.0f} s"
            raise Failed(f"{what}; it printed\n{(ends.root / 'log').read_text(errors='replace')[-3000:]}")
        time.sleep(0.02)


def _settle(process: Started, ends: Ends, seen: Any, wanted: int, patience: float) -> None:
    """Until no more results come, of which at least so many are ``wanted``."""
    quiet = SAMPLE_SETTLED_SECONDS if ends.sampled else SETTLED_SECONDS
    began = since = time.monotonic()
    before = -1
    while time.monotonic() < began + patience and (before < wanted or time.monotonic() < since + quiet):
        if seen.value != before:
            before, since = seen.value, time.monotonic()
        _wait(process, ends, lambda: False, 0.1, required=False)


HEADER = (
    *("", "p50, ms", "p90, ms", "p99, ms", "results", "measured", "cores: join", "cores: producer, broker, reader", "produced/s a side"),
    "last result after, s",
)


def row(name: str, outcome: Outcome) -> list[str]:
    return [
        name,
        *(["fell behind", "", ""] if outcome.fell_behind else [f"{1000 * value:,.0f}" for value in outcome.percentiles]),
        str(outcome.exactness),
        f"{outcome.measured:,}",
        f"{outcome.cpu:.2f}",
        f"{outcome.others_cpu:.2f}",
        f"{outcome.produced:,.0f}",
        f"{outcome.behind:.1f}",
    ]


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=60, help="of the load that are measured")
    parser.add_argument("--warm-up", type=float, default=20, help="seconds of the load before those")
    parser.add_argument("--patience", type=float, default=60, help="seconds that a join may go on after the end of the load")
    parser.add_argument("--rates", default="1e3,1e4,1e5", help="records a second and side, several after commas")
    parser.add_argument("--through", default="kafka,files")
    parser.add_argument("--epoch-interval", help="epoch.interval of StreamJoin; default: the smallest that it accepts")
    parser.add_argument("--checkpoints", default="1000,100", help="ms from one of Flink's checkpoints to the next, several after commas")
    parser.add_argument("--flink-state", default="hashmap", choices=["hashmap", "rocksdb"])
    parser.add_argument("--without", default="", help="ways to leave out: any part of their names, several after commas")
    parser.add_argument("--cores", type=int, default=2, help="of this machine, for all together")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rates, arguments.through, arguments.seconds, arguments.warm_up = "1000", "files", 2, 1
        arguments.without = arguments.without or "spark,Spark,Flink"  # each of them starts a Java
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # or processes would be left behind
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    interval = arguments.epoch_interval or smallest_interval()
    left_out = [part for part in arguments.without.split(",") if part]
    found = [
        way
        for way in ways(interval, counts(arguments.checkpoints), arguments.flink_state)
        if not any(part in way.name for part in left_out)
    ]
    print(machine())
    print(f"epoch.interval {interval}; Flink {flink.VERSION} with state in {arguments.flink_state}; Kafka {KAFKA_VERSION}")
    for through in arguments.through.split(","):
        with contextlib.ExitStack() as stack:
            broker = None
            if through == "kafka":
                try:
                    broker = stack.enter_context(KafkaBroker(heap_mib=1024, fast=True))
                except NoBroker as missing:
                    print(f"nothing measured through Kafka: {missing}")
                    continue
            for rate in counts(arguments.rates):
                load = Load(rate, arguments.warm_up, arguments.seconds, arguments.patience)
                rows = [row(way.name, outcome) for way in found if not (way.files_only and broker) if (outcome := run(way, load, broker))]
                print(f"\n**From {through} to {through}, {rate:,} records a second and side**\n")
                print(table(HEADER, rows), flush=True)


def run(way: PathPlan, load: Load, broker: KafkaBroker | None) -> Outcome | None:
    """One run, told as it is done; None if it failed."""
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-", ignore_cleanup_errors=True) as name:
        ends = Ends(Path(name), broker.servers if broker else None, Path(name).name, way.by_log, load.rate > SAMPLED_ABOVE)
        ends.make(broker)
        try:
            outcome = measure(way, ends, load, broker)
        except (Failed, flink.NoFlink) as failure:
            print(f"  {way.name}: {failure}", flush=True)
            return None
        finally:
            ends.drop(broker)
    p50, p90, p99 = outcome.percentiles
    of = f" of {outcome.exactness.expected:,}" if outcome.exactness.missing else ""
    print(
        f"  {way.name}, {load.rate:,}/s: p50 {p50:.3f} s, p90 {p90:.3f}, p99 {p99:.3f}; results {outcome.exactness}{of}; "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    if outcome.produced < HELD * load.rate or outcome.late_ticks > 1 - HELD:
        late = f"{100 * outcome.late_ticks:.0f} % of its batches came late"
        print(f"    the producer did not hold the rate: it reached {outcome.produced:,.0f}/s, and {late}", flush=True)
    return outcome


if __name__ == "__main__":
    main()
