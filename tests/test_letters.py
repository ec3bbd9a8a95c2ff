"""Streams that are mostly malformed and late: each record is accounted for once, in results, letters and counters, in bounded memory.

``STREAMJOIN_LETTERS`` says how many malformed records there are, and as many late ones: 12,500 by default, and 50,000 in
``make test-all``. A million show what memory that takes::

    STREAMJOIN_LETTERS=1000000 pytest --timeout 0 -s tests/test_letters.py
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml

from cases import ALL
from harness import SECOND, START, output_of
from kafka_broker import KafkaBroker
from kafka_join import produce

COUNT = int(os.environ.get("STREAMJOIN_LETTERS", "50000" if ALL else "12500"))
GOOD = 20_000
"""Of each stream."""
EPOCHS = 12
"""About."""
PEAK_BYTES = 800 << 20
"""More than a run of any size takes."""


@dataclass
class Stream:
    """A stream's records in order, and what is to become of them."""

    records: list[bytes] = field(default_factory=list)
    good: list[tuple[int, int, int]] = field(default_factory=list)
    """(rid, k, at)."""
    malformed: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)


def moment(at: int) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at // SECOND))}.{at % SECOND:06d}Z"


JSON_BAD: tuple[Callable[[int], bytes], ...] = (
    lambda rid: b'{"rid": %d, "k": "abc", "at": "2026-01-01T00:00:00Z"}' % rid,
    lambda rid: b'{"rid": %d, "k": 1' % rid,
    lambda rid: b'[{"rid": %d}]' % rid,
    lambda rid: b'{"rid": %d, "k": 1, "at": "yesterday"}' % rid,
    lambda rid: b'{"rid": %d, "k": 99999999999999999999, "at": "2026-01-01T00:00:00Z"}' % rid,
    lambda rid: b'{"rid": %d, "k": 1, "at": null}' % rid,
    lambda rid: b'{"rid": %d, "k": "\xff"}' % rid,
)
CSV_BAD: tuple[Callable[[int], bytes], ...] = (
    lambda rid: b"%d,abc,2026-01-01T00:00:00Z" % rid,
    lambda rid: b"%d,1" % rid,
    lambda rid: b"%d,1,2026-01-01T00:00:00Z,more" % rid,
    lambda rid: b"%d,1,yesterday" % rid,
    lambda rid: b"%d,99999999999999999999,2026-01-01T00:00:00Z" % rid,
    lambda rid: b"%d,1," % rid,
    lambda rid: b"%d,\xff,2026-01-01T00:00:00Z" % rid,
)


def make_stream(form: str, seed: int) -> Stream:
    """A quarter of the records, at least, come before the first late one, so that no epoch without a watermark has any."""
    rng, stream = random.Random(seed), Stream()
    bad = JSON_BAD if form == "json" else CSV_BAD
    count = COUNT // 2
    first = ["good"] * (GOOD // 2) + ["malformed"] * (count // 2)
    others = ["good"] * (GOOD // 2) + ["malformed"] * (count - count // 2) + ["late"] * count
    rng.shuffle(first)
    rng.shuffle(others)
    kinds = first + others
    for rid, kind in enumerate(kinds):
        if kind == "malformed":
            stream.malformed.add(rid)
            stream.records.append(rng.choice(bad)(rid))
            continue
        key, at = rng.randrange(1000), START + rid * 60 * SECOND // len(kinds)
        if kind == "late":
            stream.late.add(rid)
            at -= 86_400 * SECOND
        else:
            stream.good.append((rid, key, at))
        text = f'{{"rid": {rid}, "k": {key}, "at": "{moment(at)}"}}' if form == "json" else f"{rid},{key},{moment(at)}"
        stream.records.append(text.encode())
    return stream


def manifest_at(root: Path, sources: tuple[Any, Any], records: int, *, late: bool) -> Path:
    spec = {
        "streams": [
            {"name": name, "source": source, "schema": "rid BIGINT, k BIGINT, at TIMESTAMP", "eventTime": "at", "watermark": "10s"}
            for name, source in zip("lr", sources, strict=True)
        ],
        "joins": [
            {
                "condition": "l.k = r.k",
                "window": {"within": "2s"},
                "output": {"select": ["l.rid AS a", "r.rid AS b"], "sink": {"files": {"path": str(root / "out")}}},
            }
        ],
        "workers": {"min": 2, "max": 2},
        "epoch": {"maxTuples": 2 * (records // EPOCHS)},
        "checkpoint": {"location": str(root / "state")},
        "deadLetter": {"late": late},
    }
    document = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "bad"}, "spec": spec}
    path = root / "join.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


MEASURED = """
import atexit, pathlib, re, runpy, sys
place = pathlib.Path(sys.argv.pop(1))
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: place.write_text(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]))
runpy.run_module("streamjoin", run_name="__main__", alter_sys=True)
"""
"""``streamjoin``, which leaves behind how many KiB it had at most. Its parent is told of more: of what it had itself at the fork."""


def run(manifest: Path) -> tuple[dict[str, Any], int]:
    """The summary of the run, and the most bytes that its process had."""
    peak = manifest.parent / "peak"
    command = [sys.executable, "-c", MEASURED, str(peak), "run", str(manifest), "--runner", "inline", "--until-idle", "--json"]
    with (manifest.parent / "told").open("wb") as out, (manifest.parent / "errors").open("wb") as errors:
        code = subprocess.run(command, stdout=out, stderr=errors, check=False).returncode
    assert code == 0, (manifest.parent / "errors").read_text()[-2000:]
    return json.loads((manifest.parent / "told").read_text().splitlines()[-1]), int(peak.read_text()) << 10


_RECORD = re.compile(r'(?:"rid": |^)(\d+)')


def letters_of(root: Path) -> Counter[tuple[str, int, bool]]:
    """(stream, record, whether it is late) of each letter."""
    found: Counter[tuple[str, int, bool]] = Counter()
    for path in (root / "state" / "dead-letters").glob("*.json"):
        with path.open() as lines:
            for line in lines:
                letter = json.loads(line)
                raw = letter["raw"]
                if raw.startswith("base64:"):
                    raw = base64.b64decode(raw.removeprefix("base64:")).decode(errors="replace")
                record = _RECORD.search(raw)
                assert record is not None, letter
                found[letter["stream"], int(record[1]), "late;" in letter["error"]] += 1
    return found


def joined(streams: tuple[Stream, Stream]) -> Counter[tuple[int, int]]:
    connection = duckdb.connect()
    for name, stream in zip("lr", streams, strict=True):
        rid, key, at = zip(*stream.good, strict=True)
        connection.register(name, pa.table({"rid": rid, "k": key, "at": at}))
    return Counter(connection.execute(f"SELECT l.rid, r.rid FROM l JOIN r ON l.k = r.k AND abs(l.at - r.at) <= {2 * SECOND}").fetchall())


def check(root: Path, streams: tuple[Stream, Stream], sources: tuple[Any, Any], *, late: bool) -> None:
    summary, peak = run(manifest_at(root, sources, len(streams[0].records), late=late))
    print(f"\n{COUNT:,} malformed and {COUNT:,} late records: {summary['seconds']:.1f} s, at most {peak >> 20:,} MiB")
    expected = Counter((name, rid, False) for name, stream in zip("lr", streams, strict=True) for rid in stream.malformed)
    if late:
        expected += Counter((name, rid, True) for name, stream in zip("lr", streams, strict=True) for rid in stream.late)
    letters = letters_of(root)
    assert letters == expected, (list((expected - letters).items())[:5], list((letters - expected).items())[:5])
    assert output_of(root) == joined(streams) != Counter()
    totals = summary["totals"]
    assert totals["rejected"] == [len(stream.malformed) for stream in streams]
    assert totals["late"] == [len(stream.late) for stream in streams]
    assert totals["accepted"] == [len(stream.good) for stream in streams]
    assert totals["input"] == [len(stream.records) for stream in streams]
    assert peak < PEAK_BYTES


FORMS = {"json, late ones are letters": ("json", True), "csv, late ones are counted": ("csv", False)}


@pytest.mark.parametrize(("form", "late"), FORMS.values(), ids=FORMS)
def test_files_of_mostly_malformed_and_late_records_are_accounted_for(form: str, late: bool, tmp_path: Path) -> None:
    streams = make_stream(form, 1), make_stream(form, 2)
    sources = []
    for name, stream in zip("lr", streams, strict=True):
        folder = tmp_path / f"in-{name}"
        folder.mkdir()
        (folder / "all").write_bytes(b"".join(record + b"\n" for record in stream.records))
        header = {"header": False} if form == "csv" else {}
        sources.append({"files": {"path": str(folder), "format": form} | header})
    check(tmp_path, streams, (sources[0], sources[1]), late=late)


@pytest.mark.kafka
def test_topics_of_mostly_malformed_and_late_records_are_accounted_for(
    broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    streams = make_stream("json", 3), make_stream("json", 4)
    topics = topic(), topic()
    for name, stream in zip(topics, streams, strict=True):
        for first in range(0, len(stream.records), 50_000):
            produce(broker, name, stream.records[first : first + 50_000])
    sources = [{"kafka": {"bootstrapServers": broker.servers, "topic": name}} for name in topics]
    check(tmp_path, streams, (sources[0], sources[1]), late=True)
