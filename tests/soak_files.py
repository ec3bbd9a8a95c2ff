"""The input files of a soak: what is in them and what is to come of it; and how they come, are rotated and rewritten while they are read.

A file comes when all before it have been planned, so that there is no backlog of which the watermark waits for the late records; until then
it is hidden under ``_RECORD_EPOCH_NAME``: its first record, the epoch that takes it, and the name that it will have. Where a file has that
name already, it is rewritten. Always holds: the files come in the same order, with the same records and times, whatever their names are.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from harness import SECOND
from soak import ALL, FIRST_BAD, KEYS, ROWS, WITHIN_SECONDS, Case, Expected, Kind
from streamjoin.io.base import Position, Source, SourcePlan

SILENT_EPOCHS = 8
"""So long a silent stream has no file."""
READ_EPOCHS = 3
"""A file of so many epochs before the last commit has been read, and that is committed."""


def write_input(case: Case, root: Path) -> Expected:
    """Both streams' files, and what is to come of them."""
    rng = random.Random(case.seed + 1)
    sides = [_write_stream(case, root, name, rng) for name in ALL]
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    for name, (good, _, _) in zip(ALL, sides, strict=True):
        connection.register(name, pa.table(dict(zip(("rid", "k", "at"), zip(*good, strict=True), strict=True))))
    query = f"SELECT l.rid, r.rid FROM l, r WHERE abs(l.k - r.k) <= 2 AND abs(l.at - r.at) <= {WITHIN_SECONDS * SECOND}"
    results = Counter(connection.execute(query).fetchall())
    connection.close()
    letters = sum((letters for _, letters, _ in sides), Counter())
    wrong = [Counter(error for _, _, error in side[1].elements()) for side in sides]
    totals = {
        "input": [len(epoch_of) for _, _, epoch_of in sides],
        "accepted": [len(good) for good, _, _ in sides],
        "late": [errors["late"] for errors in wrong],
        "ahead": [errors["ahead"] for errors in wrong],
        "rejected": [errors.total() - errors["late"] for errors in wrong],
        "output": [results.total()],
    }
    return Expected(results, (sides[0][2], sides[1][2]), letters, totals)


def _write_stream(
    case: Case, root: Path, name: str, rng: random.Random
) -> tuple[list[tuple[int, int, int]], Counter[tuple[str, int, str]], dict[int, int]]:
    """The good records (rid, k, at), the letters, and which epoch takes each record."""
    (root / f"in-{name}").mkdir()
    good: list[tuple[int, int, int]] = []
    letters: Counter[tuple[str, int, str]] = Counter()
    epoch_of: dict[int, int] = {}
    rid = 0
    for epoch in range(case.epochs):
        if is_silent(case, name, epoch):
            continue
        lines = []
        for _ in range(rng.randint(ROWS - 5, ROWS + 5)):
            key, at = rng.randrange(KEYS), case.began_at + epoch * SECOND + rng.randrange(SECOND)
            bad = rng.choices([None, "late", "ahead", "null", "malformed"], [80, 8 if epoch >= FIRST_BAD else 0, 2, 2, 8])[0]
            if bad is None:
                good.append((rid, key, at))
            else:
                letters[name, rid, bad] += 1
            at += {"late": -3600 * SECOND, "ahead": 240 * 3600 * SECOND}.get(bad or "", 0)
            moment = None if bad == "null" else f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at // SECOND))}.{at % SECOND:06d}Z"
            line = json.dumps({"rid": rid, "k": key, "v": 0, "at": moment})
            lines.append(line if bad != "malformed" else rng.choice([line[:-2], line.replace('"k": ', '"k": "?'), f"[{line}]"]))
            epoch_of[rid] = epoch
            rid += 1
        _put(case, root, name, epoch, rid - len(lines), "".join(f"{line}\n" for line in lines))
    return good, letters, epoch_of


def is_silent(case: Case, stream: str, epoch: int) -> bool:
    begins = [point.epoch for point in case.points if point.kind is Kind.STREAM_SILENT]
    return stream == ALL[case.seed % len(ALL)] and any(begin <= epoch < begin + SILENT_EPOCHS for begin in begins)


def _put(case: Case, root: Path, stream: str, epoch: int, first: int, text: str) -> None:
    path = root / f"in-{stream}" / f"_{first:07d}_{epoch:05d}_{epoch:05d}.json"
    path.write_text(text)
    os.utime(path, (case.began_at / SECOND + epoch,) * 2)


class Files:
    """Both streams' files, in the driver's process. Any thread may use it."""

    def __init__(self, case: Case, root: Path) -> None:
        self._case, self._root = case, root
        self._lock = threading.Lock()

    def come(self, stream: str, planned: int) -> None:
        """The file after so many records; after a silence, not before the other stream is as far."""
        with self._lock:
            for path in self._hidden(stream):
                first, epoch, name = _of_hidden(path)
                other = max(self._there(ALL[1 - ALL.index(stream)]), default=-1)
                if first > planned or (is_silent(self._case, stream, epoch - 1) and other < epoch):
                    return
                shown = path.with_name(name)
                if shown.exists():
                    with shown.open("r+b") as file:
                        file.truncate()
                        file.write(path.read_bytes())
                    os.utime(shown, (path.stat().st_mtime,) * 2)
                    path.unlink()
                else:
                    path.rename(shown)

    def rotate(self, stream: str) -> None:
        """The newest file gets another name, and the next one that it had. Raises LookupError where there is no next one."""
        with self._lock:
            there = self._there(stream)
            newest = max(there)
            self._name_next(stream, there[newest].name)
            there[newest].rename(there[newest].with_name(f"{newest:05d}.rotated.json"))

    def rewrite(self, stream: str, committed: int, rng: random.Random) -> None:
        """The next file is written into one that was read. Raises LookupError where there is no such file, or no next one."""
        with self._lock:
            read = [path.name for epoch, path in self._there(stream).items() if epoch <= committed - READ_EPOCHS]
            self._name_next(stream, rng.choice(read))

    def _name_next(self, stream: str, name: str) -> None:
        path = self._hidden(stream)[0]
        path.rename(path.with_name("_".join([*path.name.split("_")[:3], name])))

    def _hidden(self, stream: str) -> list[Path]:
        return sorted((self._root / f"in-{stream}").glob("_*"))

    def _there(self, stream: str) -> dict[int, Path]:
        """By epoch."""
        paths = [path for path in (self._root / f"in-{stream}").iterdir() if not path.name.startswith("_")]
        return {round(path.stat().st_mtime - self._case.began_at / SECOND): path for path in paths}


def _of_hidden(path: Path) -> tuple[int, int, str]:
    _, first, epoch, name = path.name.split("_", 3)
    return int(first), int(epoch), name


class Coming:
    """A stream's source, whose files come when they are asked for."""

    def __init__(self, source: Source, stream: str, files: Files) -> None:
        self._source, self._stream, self._files = source, stream, files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def plan(self, position: Position | None, *arguments: Any, **named: Any) -> SourcePlan:
        self._files.come(self._stream, int(position["records"]) if position else 0)
        return self._source.plan(position, *arguments, **named)
