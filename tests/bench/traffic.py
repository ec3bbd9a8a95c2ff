"""Two streams produced by the clock, and the reader of the joined results: what a benchmark of latency has at both ends of a join.

A stream's records are JSON, ``{"rid": 17, "k": 4711, "at": "2026-01-01T00:00:00.123Z"}``: on a topic, or as lines of files that appear
whole. ``at`` is the time of production in milliseconds, as Flink's event times have no more; the producer writes down the microseconds.

Always holds: both sides have the same number of records at each tick; record i of a side has ``rid`` i, from the first probe on; keys
follow from rate and seconds alone. Probes are pairs of records that match each other and nothing else. They are sent until the first
result is seen: so the load begins when the join is up.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

import numpy as np

from bench.workloads import BAND, WINDOW
from harness import SECOND

PROBE_SECONDS = 0.5
FIRST_KEY = 1_000_000
"""Of the load: probes have smaller ones."""
PROBE_STEP = 10 * BAND
PARTITIONS = 2
"""Of the streams' topics."""
OUTPUT_PARTITIONS = 4
SAMPLED_ABOVE = 20_000
"""Records a second and side above which a reader of all results would take too much of the join's cores: it reads one partition, and the
others when the load is over."""
TOPIC_TICK = 0.005
FILE_TICK = 0.1
"""Seconds from one batch to the next: a file for every 5 ms would measure directories."""
POLL_SECONDS = 0.002
READ_RECORDS = 50_000
FETCHING = {"fetch.wait.max.ms": 100, "fetch.queue.backoff.ms": 1, "queued.max.messages.kbytes": 512 * 1024}
NEVER = 0
"""The time of results that nobody was there to see."""
SPARK_LOG = "_spark_metadata"
Pairs = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Ends:
    """Where a join reads and writes: topics of a broker, or directories."""

    root: Path
    servers: str | None = None
    """A Kafka broker's; None: files."""
    name: str = ""
    """Tells the topics of one run from another's."""
    by_log: bool = False
    """Whether it is Spark's log of a directory that says which of its files count."""
    sampled: bool = False
    """Whether one partition of the output stands for all while the load lasts."""

    @property
    def tick(self) -> float:
        return FILE_TICK if self.servers is None else TOPIC_TICK

    def input(self, side: str) -> str:
        return str(self.root / "input" / f"in-{side}") if self.servers is None else f"{self.name}-{side}"

    @property
    def output(self) -> str:
        return str(self.root / "out") if self.servers is None else f"{self.name}-out"

    def make(self, broker: Any) -> None:
        """``broker``: a KafkaBroker, or None."""
        if broker is None:
            for side in "lr":
                Path(self.input(side)).mkdir(parents=True)
            return
        for side in "lr":
            broker.create_topic(self.input(side), PARTITIONS)
        broker.create_topic(self.output, OUTPUT_PARTITIONS)

    def drop(self, broker: Any) -> None:
        """What files leave behind goes with the root."""
        if broker is not None:
            for future in broker.admin.delete_topics([self.input("l"), self.input("r"), self.output]).values():
                future.result(timeout=30)


def keys_of(rate: int, seconds: float) -> Pairs:
    """The keys of the load, W1's, of each side."""
    count = round(rate * seconds)
    return tuple(FIRST_KEY + np.random.default_rng(seed).integers(0, 100 * rate, count) for seed in range(2))  # type: ignore[return-value]


@dataclass(frozen=True)
class Produced:
    """What the producer wrote down."""

    times: np.ndarray
    """Microseconds of the wall clock, of each tick."""
    counts: np.ndarray
    """Records a side, of each tick."""
    probes: int
    """So many of the first ticks."""

    @property
    def began(self) -> int:
        """When the load began."""
        return int(self.times[self.probes])

    @property
    def rate(self) -> float:
        """Records a second and side of the load: ticks have equal shares, so the last one's share is left out."""
        return float(self.counts[self.probes : -1].sum()) / (float(self.times[-1] - self.began) / SECOND)

    def late_ticks(self, tick: float) -> float:
        """The share of the load's ticks that came more than a tick late."""
        load = self.times[self.probes :]
        return float(np.mean(load - self.began - np.arange(len(load)) * tick * SECOND > tick * SECOND))

    def of_records(self) -> np.ndarray:
        """The time of each record of a side, by its ``rid``."""
        return np.repeat(self.times, self.counts)


class Target(Protocol):
    """Takes the records of both sides."""

    def send(self, tick: int, lines: dict[str, list[bytes]]) -> None: ...

    def close(self) -> None: ...


class TopicTarget:
    """Each tick's records of a side go into one partition, in turns."""

    def __init__(self, ends: Ends) -> None:
        from confluent_kafka import Producer

        self._ends = ends
        self._producer = Producer({"bootstrap.servers": ends.servers, "linger.ms": 1, "queue.buffering.max.messages": 2_000_000})

    def send(self, tick: int, lines: dict[str, list[bytes]]) -> None:
        for side, values in lines.items():
            records = [{"value": value} for value in values]
            queued = self._producer.produce_batch(self._ends.input(side), records, partition=tick % PARTITIONS)
            assert queued == len(values), f"the producer's queue took {queued} of {len(values)} records"
        self._producer.poll(0)

    def close(self) -> None:
        assert self._producer.flush(60) == 0


class FileTarget:
    """A file a side and tick, which appears whole."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._made = ends.root / "made"
        self._made.mkdir()

    def send(self, tick: int, lines: dict[str, list[bytes]]) -> None:
        for side, values in lines.items():
            name = f"{tick:07d}.json"
            (self._made / name).write_bytes(b"\n".join([*values, b""]))
            os.rename(self._made / name, Path(self._ends.input(side), name))

    def close(self) -> None:
        self._made.rmdir()


def produce(ends: Ends, rate: int, seconds: float, begin: Any, log: Path) -> None:
    """A process: sends probes until the event ``begin``, then the load, and writes the file ``log``.

    A tick that is late is made up for at once, so the rate is only lost where the process cannot hold it.
    """
    target: Target = FileTarget(ends) if ends.servers is None else TopicTarget(ends)
    load = dict(zip("lr", keys_of(rate, seconds), strict=True))
    times: list[int] = []
    counts: list[int] = []
    first = 0

    def tick(keys: dict[str, np.ndarray]) -> None:
        nonlocal first
        now = time.time_ns() // 1000
        stamp = datetime.fromtimestamp(now // 1000 / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.").encode() + b"%03dZ" % (now // 1000 % 1000)
        size = len(keys["l"])
        lines = {
            side: [b'{"rid":%d,"k":%d,"at":"%b"}' % (rid, key, stamp) for rid, key in enumerate(of_side.tolist(), first)]
            for side, of_side in keys.items()
        }
        target.send(len(times), lines)
        times.append(now)
        counts.append(size)
        first += size

    while not begin.wait(PROBE_SECONDS):
        tick(dict.fromkeys("lr", np.array([(len(times) + 1) * PROBE_STEP])))
    probes = len(times)
    began = time.perf_counter()
    ticks = round(seconds / ends.tick)
    for number in range(ticks):
        time.sleep(max(0.0, began + number * ends.tick - time.perf_counter()))
        part = slice(*(len(load["l"]) * bound // ticks for bound in (number, number + 1)))
        tick({side: keys[part] for side, keys in load.items()})
    target.close()
    np.savez(log, times=times, counts=counts, probes=probes)


def load_produced(log: Path) -> Produced:
    with np.load(log) as saved:
        return Produced(saved["times"], saved["counts"], int(saved["probes"]))


def read(ends: Ends, seen: Any, stop: Any, log: Path) -> None:
    """A process: reads results as they become visible until the event ``stop``, and writes ``log`` (.npz) and ``log``.data.

    ``seen``: a shared counter of results. Nothing is parsed meanwhile: that would take the join's cores.
    """
    chunks = (read_topic if ends.servers is not None else read_files)(ends, stop)
    times: list[int] = []
    counts: list[int] = []
    with open(log.with_suffix(".data"), "wb") as data:
        for rows, content in chunks:
            times.append(NEVER if stop.is_set() else time.time_ns() // 1000)
            counts.append(rows)
            data.write(content)
            seen.value += rows
    np.savez(log, times=np.array(times, np.int64), counts=np.array(counts, np.int64))


def read_topic(ends: Ends, stop: Any) -> Iterator[tuple[int, bytes]]:
    """Committed records, in bulk: (how many, their lines)."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    config = {"bootstrap.servers": ends.servers, "group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer(config | {"enable.auto.commit": False} | FETCHING)
    partitions = [TopicPartition(ends.output, partition, 0) for partition in range(OUTPUT_PARTITIONS)]
    live = partitions[:1] if ends.sampled else partitions
    ended: set[int] = set()

    def consumed() -> Iterator[tuple[int, bytes]]:
        messages = consumer.consume(READ_RECORDS, POLL_SECONDS)
        values = [message.value() for message in messages if message.error() is None]
        if len(values) < len(messages):
            for message in messages:
                if message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        if values:
            yield len(values), b"\n".join([*values, b""])

    consumer.assign(live)
    while not stop.is_set():
        yield from consumed()
    ended.clear()
    consumer.assign(partitions[len(live) :])
    while len(ended) < len(partitions) - len(live):
        yield from consumed()
    consumer.close()


def read_files(ends: Ends, stop: Any) -> Iterator[tuple[int, bytes]]:
    """Files as they become visible, which are then removed, or each next directory would take longer to list."""
    folder = Path(ends.output)
    batches = 0
    while not stop.is_set():
        paths: list[Path] = []
        with contextlib.suppress(FileNotFoundError):
            if ends.by_log:
                lines = (folder / SPARK_LOG / str(batches)).read_text().splitlines()
                batches += 1
                paths = [Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines[1:]]
            else:
                paths = [folder / name for name in os.listdir(folder) if name[0] not in "._"]
        for path in paths:
            content = path.read_bytes()
            path.unlink()
            yield content.count(b"\n"), content
        if not paths:
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class Results:
    """What the reader saw: ids of left and right, and when, in microseconds."""

    left: np.ndarray
    right: np.ndarray
    times: np.ndarray
    """NEVER where it is not known."""


def load_results(log: Path) -> Results:
    """O(results), parsed by Arrow: lines of JSON, or of CSV without a header."""
    import pyarrow.csv as arrow_csv
    import pyarrow.json as arrow_json

    data = log.with_suffix(".data").read_bytes()
    with np.load(log) as saved:
        times = np.repeat(saved["times"], saved["counts"])
    if not data:
        nothing = np.empty(0, np.int64)
        return Results(nothing, nothing, nothing)
    if data[:1] == b"{":
        found = arrow_json.read_json(io.BytesIO(data))
    else:
        found = arrow_csv.read_csv(io.BytesIO(data), arrow_csv.ReadOptions(column_names=["a", "b"]))
    assert found.num_rows == len(times), f"{found.num_rows} results were parsed, {len(times)} counted"
    return Results(found["a"].to_numpy(), found["b"].to_numpy(), times)


def pairs_of(keys: Pairs, millis: np.ndarray, *, chunk: int = 1 << 18) -> Pairs:
    """All pairs within the band and the window, as ids of left and right. ``millis``: the event time of each id, of both sides.

    By NumPy alone: right keys sorted, a range of them for each left key, and the window as a filter. O(pairs within the band).
    """
    left, right = keys
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    found = []
    for start in range(0, len(left), chunk):
        part = left[start : start + chunk]
        low, high = np.searchsorted(ordered, part - BAND, "left"), np.searchsorted(ordered, part + BAND, "right")
        counts = high - low
        lefts = np.repeat(np.arange(start, start + len(part)), counts)
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rights = order[np.repeat(low, counts) + offsets]
        near = np.abs(millis[lefts] - millis[rights]) <= WINDOW * 1000
        found.append((lefts[near], rights[near]))
    lefts, rights = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return lefts, rights


def all_keys(produced: Produced, rate: int, seconds: float) -> Pairs:
    """By ``rid``: those of the probes, and of the load."""
    probes = np.arange(1, produced.probes + 1) * PROBE_STEP
    return tuple(np.concatenate([probes, of_side]) for of_side in keys_of(rate, seconds))  # type: ignore[return-value]


def expected_pairs(produced: Produced, rate: int, seconds: float) -> Pairs:
    """The results that there must be, probes among them."""
    return pairs_of(all_keys(produced, rate, seconds), produced.of_records() // 1000)


@dataclass(frozen=True)
class Exactness:
    """How the results compare with those that there must be."""

    expected: int
    missing: int
    repeated: int
    wrong: int

    def __str__(self) -> str:
        faults = [f"{count:,} {what}" for what in ("missing", "repeated", "wrong") if (count := getattr(self, what))]
        return ", ".join(faults) or "each once"


def compare(results: Results, produced: Produced, expected: Pairs) -> Exactness:
    """Of the load. Probes do not count: Flink reads files that are there already in any order, and takes some for late. O(n log n)."""
    records = int(produced.counts.sum())
    wanted, found = (
        np.sort(left[left >= produced.probes] * records + right[left >= produced.probes])
        for left, right in (expected, (results.left, results.right))
    )
    distinct = np.unique(found)
    right = np.intersect1d(distinct, wanted, assume_unique=True)
    return Exactness(len(wanted), len(wanted) - len(right), len(found) - len(distinct), len(distinct) - len(right))


def latencies(results: Results, produced: Produced, since: int) -> np.ndarray:
    """Seconds from the later record's production to the reader, of the results that it saw come whose later record was produced from
    ``since`` on."""
    times = produced.of_records()
    later = np.maximum(times[results.left], times[results.right])
    return np.asarray((results.times - later)[(later >= since) & (results.times != NEVER)] / SECOND)


def percentiles(values: np.ndarray, wanted: Sequence[float] = (50, 90, 99)) -> list[float]:
    return [float(value) for value in np.percentile(values, wanted)] if len(values) else [float("nan")] * len(wanted)
