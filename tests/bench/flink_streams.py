"""Joins of three streams by Flink SQL: two-way interval joins, one after another, as its planner makes them of nested queries.

Flink reads JSON, because there is no Parquet in the Flink that ``flink.py`` fetches. Its source takes files in any order, and each of its
two subtasks takes one at a time. So a stream is two files, each with every other tuple in the order of event time: then no tuple is late,
though the watermark follows the newest tuple, and state that has left the window is dropped.

An interval join takes exactly two bounds on event times, and finds pairs by an equality. So each join bounds the event time of the first
stream, and tests those of the others as plain timestamps; a band becomes an equality of buckets.

Always holds: what is timed is one job over all the input, in a JVM that has run the same job over the first seconds of it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from bench.flink import BUCKET, Settings, launch, with_options
from bench.rivals import paths
from bench.stream_rivals import Streams, bucketed
from bench.workloads import WINDOW

PARALLELISM = 2
WARM_UP_FILES = 4
CHECKPOINT_MILLIS = 10_000
HEAP_MIB = 8192
START_SECONDS = 60
POLL_SECONDS = 0.1
CHANGE = re.compile(r"^(\S+ \S+) .*ExecutionGraph: Job .* switched from state (?:CREATED to RUNNING|RUNNING to FINISHED)\.", re.MULTILINE)


class TooSlow(RuntimeError):  # noqa: N818
    """Flink has not done it within its time."""


def write_json(root: Path, streams: Streams, files: int) -> None:
    """The Parquet files of ``root`` as JSON: a file a second in ``json-<stream>``, and for Flink in ``flink-<stream>``; once."""
    import polars as pl

    for name in streams.keys:
        folder = root / f"json-{name}"
        if folder.exists():
            continue
        folder.mkdir()
        seconds = []
        for path in paths(root, name, range(files)):
            frame = pl.read_parquet(path).with_columns(pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
            frame.write_ndjson(folder / f"{Path(path).stem}.json")
            seconds.append(frame)
        for kind, count in (("flink", files), ("warm", WARM_UP_FILES)):
            whole = pl.concat(seconds[:count])
            (root / f"{kind}-{name}").mkdir()
            for part in range(PARALLELISM):
                whole.gather_every(PARALLELISM, part).write_ndjson(root / f"{kind}-{name}" / f"{part}.json")


@dataclass(frozen=True)
class Joined:
    """What one job took, of all its input."""

    seconds: float
    cpu_seconds: float
    results: int


def chained(root: Path, streams: Streams, files: int, *, limit: float, buckets: bool = True) -> Joined:
    """A job over all ``files``, of ``write_json``. Raises NoFlink, and TooSlow after ``limit`` seconds.

    Without ``buckets`` a band stays what it is, and no equality helps to find its pairs.
    """
    home = Path(tempfile.mkdtemp(prefix="flink-", dir=root))
    log = home / "log"
    process = launch(home / "home", script(root, streams, home, buckets), Settings(CHECKPOINT_MILLIS, heap_mib=HEAP_MIB), log)
    measured = psutil.Process(process.pid)
    deadline, cpu = time.monotonic() + START_SECONDS + limit, [0.0] * 5
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise TooSlow(f"Flink has not joined {files} s of the streams within {limit:.0f} s")
            with contextlib.suppress(psutil.Error):
                spent = measured.cpu_times()
                cpu[len(_changes(log))] = spent.user + spent.system
            time.sleep(POLL_SECONDS)
    finally:
        process.kill()
        process.wait()
    times = _changes(log)
    if process.returncode or len(times) != 4:  # the warm-up's beginning and end, and the job's
        raise RuntimeError(f"Flink ended with {process.returncode}; it printed\n{log.read_text(errors='replace')[-3000:]}")
    found = 0
    for path in (home / "out").rglob("*"):
        if path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(home / "out").parts):
            with path.open("rb") as lines:
                found += sum(1 for _ in lines)
    shutil.rmtree(home, ignore_errors=True)
    return Joined((times[3] - times[2]).total_seconds(), cpu[3] - cpu[2], found)


def _changes(log: Path) -> list[datetime]:
    """When jobs began to run, and finished."""
    return [datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f") for at in CHANGE.findall(log.read_text(errors="replace"))]


def script(root: Path, streams: Streams, home: Path, buckets: bool) -> str:
    """The SQL of the warm-up and the job, which write to ``home``."""
    statements = []
    for kind, out in (("warm", "warm-out"), ("flink", "out")):
        for name, keys in streams.keys.items():
            columns = ", ".join(f"{column} BIGINT" for column in ("rid", *keys))
            source = {"connector": "filesystem", "format": "json", "json.timestamp-format.standard": "ISO-8601"}
            options = with_options(source | {"path": str(root / f"{kind}-{name}")})
            watermark = "WATERMARK FOR `at` AS `at` - INTERVAL '0.001' SECOND"
            statements.append(f"CREATE TABLE {kind}_{name} ({columns}, `at` TIMESTAMP_LTZ(3), {watermark}) WITH ({options})")
        columns = ", ".join(f"{name}_rid BIGINT" for name in streams.keys)
        sink = with_options({"connector": "filesystem", "format": "json", "path": str(home / out)})
        statements.append(f"CREATE TABLE {kind}_joined ({columns}) WITH ({sink})")
        statements.append(f"INSERT INTO {kind}_joined {query(streams, f'{kind}_', buckets)}")
    return "".join(f"{statement};\n" for statement in statements)


def query(streams: Streams, prefix: str, buckets: bool) -> str:
    """The joined rids, of tables with this prefix."""
    first = next(iter(streams.keys))
    joined = [first]
    # The time of the first stream bounds each join; those of the others are no event times any more once they are cast.
    columns = [f"{first}.{column} AS {first}_{column}" for column in ("rid", *streams.keys[first])]
    frame = f"SELECT {', '.join(columns)}, {first}.`at` FROM {prefix}{first} AS {first}"
    for name, edges in streams.steps(first):
        taken = ", ".join(("rid", *streams.keys[name], "`at`", "CAST(`at` AS TIMESTAMP_LTZ(6)) AS seen"))
        table = f"SELECT {taken} FROM {prefix}{name}"
        tests, left = [], frame
        by = bucketed(edges) if buckets else None
        if by is not None:
            own, stream, key = by.seen_from(name)
            low, high = (f"({own} {sign} {by.band}) / {BUCKET}" for sign in "-+")
            source = f"FROM {prefix}{name}"
            table = f"SELECT {taken}, {low} AS bucket {source} UNION ALL SELECT {taken}, {high} AS bucket {source} WHERE {low} <> {high}"
            left = f"SELECT *, {stream}_{key} / {BUCKET} AS bucket FROM ({frame})"
            tests.append("j.bucket = n.bucket")
        for edge in edges:
            own, stream, key = edge.seen_from(name)
            difference = f"j.{stream}_{key} - n.{own}"
            tests.append(f"ABS({difference}) <= {edge.band}" if edge.band else f"j.{stream}_{key} = n.{own}")
        window = f"INTERVAL '{WINDOW}' SECOND"
        tests.append(f"j.`at` BETWEEN n.`at` - {window} AND n.`at` + {window}")
        tests += [f"j.{earlier}_seen BETWEEN n.seen - {window} AND n.seen + {window}" for earlier in joined[1:]]
        kept = [f"j.{each}_{column}" for each in joined for column in ("rid", *streams.keys[each])]
        kept += [f"j.{each}_seen" for each in joined[1:]]
        kept += [f"n.{column} AS {name}_{column}" for column in ("rid", *streams.keys[name], "seen")]
        frame = f"SELECT {', '.join(kept)}, j.`at` FROM ({left}) AS j JOIN ({table}) AS n ON {' AND '.join(tests)}"
        joined.append(name)
    return f"SELECT {', '.join(f'{name}_rid' for name in streams.keys)} FROM ({frame})"
