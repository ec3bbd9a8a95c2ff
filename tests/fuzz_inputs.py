"""Inputs of joins that somebody has damaged, and what a slow reference, which shares no code with the engine, is sure of: files.

The reference says of each record of JSON what is sure: a row with these values, or a dead letter. What it is not sure of (which texts a
type takes) may be either. Of CSV and Parquet it is the rows that were written, of files that were not damaged.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FILES, RECORDS = 12, 40
TOKENS = (
    *(b"null", b"true", b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf"),
    *(b"1e999", b"-0", b"NaN", b"9" * 40, b"\\ud800", b"\\u0000", b"{}", b'""', b"'", b";", b"\t", b"[[[[", b"\x1f\x8b", b"PAR1"),
    *(b'"id":', b'{"id": 1}', b"1,2,3", b"#", b"\xc3", b"\xf0\x9f\x98\x80", b" " * 50, b"a" * 300, b"9223372036854775808", b"0.1e-400"),
)
TEXTS = ("plain", "", 'with "quotes"', "a,b;c", "two\nlines", "\u00e9\u20ac\U0001f600")
SCHEMA = "id BIGINT, k INT, v STRING, d DECIMAL(10,2), f DOUBLE, b BOOLEAN"
Row = tuple[int, int, str | None]
"""(id, k, v)."""


@dataclass(frozen=True)
class Sure:
    """What a reference is sure of."""

    rows: Counter[Row]
    letters: int
    """So many records at least are dead letters."""
    records: int | None
    """So many there are; None: it is not sure."""


@dataclass(frozen=True)
class Left:
    """A stream that was written, and what is to come of it."""

    source: str
    """As the manifest has it."""
    sure: list[Sure]
    schema: str = SCHEMA
    most: Counter[Row] | None = None
    """No other rows than these may come of it, and none more often; None: it is not known."""
    damaged: tuple[str, ...] = ()
    """Names of files of a table's log: the join may end for one of them, and then names it."""


def records_of(rng: random.Random, first: int) -> list[dict[str, Any]]:
    return [
        {
            "id": first + number,
            "k": rng.randrange(50),
            "v": rng.choice([*TEXTS, None, "x" * rng.randrange(200)]),
            "d": f"{rng.randrange(-99999, 99999) / 100:.2f}",
            "f": rng.choice([0.0, -1.5, 1e300, 3.14, 2**53 + 0.0]),
            "b": rng.random() < 0.5,
        }
        for number in range(RECORDS)
    ]


def encoded(records: list[dict[str, Any]], form: str) -> bytes:
    if form == "json":
        return "".join(json.dumps(record) + "\n" for record in records).encode()
    if form == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, ["id", "k", "v", "d", "f", "b"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: str(value).lower() if name == "b" else value for name, value in record.items()} for record in records)
        return text.getvalue().encode()
    data = io.BytesIO()
    pq.write_table(table_of(records), data, row_group_size=RECORDS // 3, write_page_checksum=records[0]["b"])
    return data.getvalue()


def table_of(records: list[dict[str, Any]]) -> pa.Table:
    types = {"id": pa.int64(), "k": pa.int32(), "v": pa.string(), "f": pa.float64(), "b": pa.bool_()}
    columns = {name: pa.array([record[name] for record in records], kind) for name, kind in types.items()}
    return pa.table(columns | {"d": pa.array([record["d"] for record in records]).cast(pa.decimal128(10, 2))})


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to eight small changes."""
    value = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(value) + 1)
        change = rng.randrange(6)
        if change == 0 and value:
            value[at % len(value)] = rng.randrange(256)
        elif change == 1:
            value[at:at] = rng.choice(TOKENS)
        elif change == 2:
            del value[at : at + rng.choice([1, 2, 10, 200])]
        elif change == 3:
            value[at : at + rng.choice([1, 4])] = rng.choice(TOKENS)
        elif change == 4:
            other = rng.randrange(len(value) + 1)
            value[at:at] = value[other : other + rng.choice([5, 50, 500])]
        elif rng.random() < 0.2:
            del value[at:]
    return bytes(value)


def sure_of(data: bytes, form: str, original: bytes, records: list[dict[str, Any]]) -> Sure:
    if form == "json":
        return _sure_of_json(data)
    if data == original:
        return Sure(Counter((each["id"], each["k"], each["v"]) for each in _as_read(records, form)), 0, len(records))
    return Sure(Counter(), 0, None)


def _as_read(records: list[dict[str, Any]], form: str) -> list[dict[str, Any]]:
    return [each | {"v": None} if form == "csv" and each["v"] == "" else each for each in records]


def _sure_of_json(data: bytes) -> Sure:
    rows, letters, count = Counter[Row](), 0, 0
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or data.startswith((b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ")):
        return Sure(rows, 0, None)
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line.strip(b" \t\r"):
            continue
        count += 1
        try:
            value = json.loads(line.decode())
        except (UnicodeDecodeError, ValueError, RecursionError):
            letters += 1
            continue
        if not isinstance(value, dict):
            letters += 1
        elif _is_plain(value, line):
            rows[value["id"], value["k"], value["v"]] += 1
    return Sure(rows, letters, count)


def _is_plain(value: dict[str, Any], line: bytes) -> bool:
    """Whether each value is one that its column surely takes."""
    names = re.findall(rb'"(id|k|v|d|f|b)"\s*:', line)
    if len(names) != 6 or set(value) != {"id", "k", "v", "d", "f", "b"} or b"\\u" in line or b"\0" in line:
        return False
    whole = all(type(value[name]) is int for name in ("id", "k")) and abs(value["id"]) < 2**62 and abs(value["k"]) < 2**30
    text = value["v"] is None or isinstance(value["v"], str)
    number = isinstance(value["d"], str) and re.fullmatch(r"-?\d{1,7}\.\d\d", value["d"]) is not None
    # A number too small for a DOUBLE is a dead letter, where Python reads a zero.
    real = type(value["f"]) is float and abs(value["f"]) < 1e301 and (value["f"] != 0 or b"e-" not in line.lower())
    return whole and text and number and real and type(value["b"]) is bool


def files(root: Path, form: str, rng: random.Random) -> Left:
    """Files below ``root`` of which most are damaged."""
    (root / "l").mkdir()
    sure = []
    for number in range(FILES):
        records = records_of(rng, number * 1000)
        original = encoded(records, form)
        data = original if rng.random() < 0.2 else mutated(original, rng)
        sure.append(sure_of(data, form, original, records))
        pressed = form != "parquet" and rng.random() < 0.15
        (root / "l" / f"{number}.x").write_bytes(gzip.compress(data) if pressed else data)
    return Left(f"files: {{path: l, format: {form}{'' if form == 'parquet' else ', settle: 0s'}}}", sure)
