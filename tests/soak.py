"""A join that faults are to hit, as one seed makes it: its input, what is to happen when, what must come of it, and what did happen.

Always holds: the input, and so what is expected, is the same whatever happens: each epoch takes the next file of each stream, whatever its
name is by then (``soak_files``); late records are far behind the watermark that two epochs of any kind leave, and all others are ahead of
it.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from disk import Keeps
from harness import SECOND, manifest_text
from shared_disk import SharedDisk
from streamjoin.compilation import compile_job
from streamjoin.job import Job
from streamjoin.manifest import load

WITHIN_SECONDS, DELAY_SECONDS = 3, 2
ROWS = 30
"""Good records of a file, about."""
KEYS = 50
FIRST_EPOCH, LAST_EPOCHS = 4, 12
"""No point is before, and so many epochs are after the last one."""
IDLE_SECONDS = 600
FIRST_BAD = 3
"""No file before has late records."""
ALL = "lr"
MODELS = ("adsp", "square", "hash", "readj", "biclique", "broadcast")


class Kind(StrEnum):
    """Of faults."""

    WORKER_KILLED = "a worker is killed"
    WORKER_STOPPED = "a worker is stopped (SIGSTOP)"
    EXECUTOR_KILLED = "an executor's JVM is killed"
    DRIVER_KILLED = "the driver is killed"
    PLAN_PUT = "another plan is put"
    STORAGE_FAILS = "storage fails"
    STORAGE_FAILS_AFTER = "storage fails after it has written"
    STORAGE_SLOW = "storage is slow"
    POWER_LOST = "the power is lost"
    CLOCK_SET = "the clock is set forward or back"
    FILE_ROTATED = "a file is rotated by renaming"
    FILE_REWRITTEN = "a file is rewritten"
    STREAM_SILENT = "a stream is silent for longer than its idleTimeout"


ENDS_DRIVER = (Kind.DRIVER_KILLED, Kind.POWER_LOST)


@dataclass(frozen=True)
class Point:
    """A fault, and when it comes: in an epoch of this number or the first one after it that enters the step, and a moment later."""

    kind: Kind
    epoch: int
    step: str
    delay_seconds: float
    chance: int
    """Seeds what else there is to choose: the victim, the plan, how many operations, how far the clock goes."""


@dataclass(frozen=True)
class Case:
    """All that a seed decides."""

    seed: int
    epochs: int
    points: tuple[Point, ...]
    keeps: Keeps
    """At power losses."""
    in_files: bool
    """Whether small blocks and results are files, too, instead of going with the commit."""
    master: str | None
    """Spark's; None: one JVM, and no executors."""
    began_at: int
    """The event time of the first record, in microseconds."""

    def write(self, root: Path) -> None:
        (root / "case.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, root: Path) -> Case:
        values = json.loads((root / "case.json").read_text())
        points = tuple(Point(**{**point, "kind": Kind(point["kind"])}) for point in values.pop("points"))
        return cls(points=points, **{**values, "keeps": Keeps(values["keeps"])})


def make_case(seed: int, points: int, kinds: tuple[Kind, ...] = tuple(Kind), master: str | None = "local-cluster[4,1,512]") -> Case:
    """``kinds`` in random order, again and again. Event times end about now, so that a clock that is set concerns them."""
    rng = random.Random(seed)
    order: list[Kind] = []
    while len(order) < points:
        order += rng.sample(kinds, len(kinds))
    made, epoch = [], FIRST_EPOCH
    for kind in order[:points]:
        step = rng.choice(["plan", "tasks", "tasks", "commit", "publish", "clean"])
        made.append(Point(kind, epoch, step, rng.choice([0.0, rng.uniform(0, 0.05)]), rng.randrange(1 << 30)))
        epoch += rng.randint(2, 50 if kind is Kind.PLAN_PUT else 14)  # some workers that a plan waits for come before the next, some not
    epochs = epoch + LAST_EPOCHS
    began_at = round(time.time() - epochs) * SECOND
    return Case(seed, epochs, tuple(made), rng.choice(list(Keeps)), rng.random() < 0.5, master, began_at)


@dataclass(frozen=True)
class Expected:
    """What must come of a case."""

    results: Counter[tuple[int, int]]
    epoch_of: tuple[dict[int, int], dict[int, int]]
    """By side and record, the epoch that takes it."""
    letters: Counter[tuple[str, int, str]]
    """Stream, record and what is wrong with it."""
    totals: dict[str, list[int]]
    """Counters of the checkpoint."""


def job_of(root: Path) -> Job:
    """From one to four workers, and at first two."""
    text = manifest_text(
        root,
        on="abs(l.k - r.k) <= 2",
        types=("BIGINT", "BIGINT"),
        window={"within": f"{WITHIN_SECONDS}s"},
        workers=2,
        watermark=f"{DELAY_SECONDS}s",
        max_ahead="1h",
        sources=("json", {"maxFilesPerEpoch": 1}),
        epoch={"interval": "0s"},  # so that small results wait for each other
        deadLetter={"late": True},
    )
    job = compile_job(load(text))
    # 2 x 30 x 5 tuples are expected to be held, and 0.4 of the capacity is to be full at first.
    streams = tuple(replace(stream, expected_rate=float(ROWS), silence_micros=IDLE_SECONDS * SECOND) for stream in job.streams)
    return replace(job, min_workers=1, max_workers=4, streams=streams, capacity=replace(job.capacity, amount=500))  # type: ignore[arg-type]


def disk_of(root: Path) -> SharedDisk:
    return SharedDisk(root, root / "flushed")


_RECORD = re.compile(r'"rid": (\d+)')
_ERRORS = {"late": "late;", "ahead": "as far ahead", "null": "event time is null"}


def letters_of(root: Path) -> Counter[tuple[str, int, str]]:
    """The dead letters that a reader sees."""
    found: Counter[tuple[str, int, str]] = Counter()
    for path in (root / "state" / "dead-letters").glob("*.json"):
        for line in path.read_text().splitlines():
            letter = json.loads(line)
            record = _RECORD.search(letter["raw"])
            assert record is not None, letter
            error = next((name for name, text in _ERRORS.items() if text in letter["error"]), "malformed")
            found[letter["stream"], int(record[1]), error] += 1
    return found


class Journal:
    """What the drivers of a case say, one line for each event, with the time of the machine's own clock: a kill takes back none."""

    def __init__(self, root: Path) -> None:
        self._path = root / "journal"

    def add(self, what: str, **values: Any) -> None:
        line = json.dumps({"what": what, "at": time.monotonic(), **values}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(descriptor, line.encode())
        os.close(descriptor)

    def read(self, what: str) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        for line in self._path.read_text().splitlines():
            value = json.loads(line)
            if value["what"] == what:
                yield value
