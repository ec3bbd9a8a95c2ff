"""Joins of files that somebody has damaged, each in a process that may die: for the readers of JSON, CSV and Parquet.

    python tests/fuzz.py json|csv|parquet [JOINS] [FIRST_SEED]

runs so many joins of mutated files (400: some fifteen minutes), and prints each that ended its process, hung, lost a record without a word,
or read one in another way than a slow reference does. ``tests/test_fuzz.py`` runs a few of them, and more at night.

The reference says of each record of JSON what is sure: a row with these values, or a dead letter. What it is not sure of (which texts a
type takes) may be either. Of CSV and Parquet it is the rows that were written, of files that were not damaged.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FILES, RECORDS = 12, 40
FORMS = ("json", "csv", "parquet")
TOKENS = (
    *(b"null", b"true", b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf"),
    *(b"1e999", b"-0", b"NaN", b"9" * 40, b"\\ud800", b"\\u0000", b"{}", b'""', b"'", b";", b"\t", b"[[[[", b"\x1f\x8b", b"PAR1"),
    *(b'"id":', b'{"id": 1}', b"1,2,3", b"#", b"\xc3", b"\xf0\x9f\x98\x80", b" " * 50, b"a" * 300, b"9223372036854775808", b"0.1e-400"),
)
TEXTS = ("plain", "", 'with "quotes"', "a,b;c", "two\nlines", "\u00e9\u20ac\U0001f600")
SCHEMA = "id BIGINT, k INT, v STRING, d DECIMAL(10,2), f DOUBLE, b BOOLEAN"
SECONDS = 120.0
"""After which a join hangs."""
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Sure:
    """What a reference is sure of."""

    rows: Counter[tuple[int, int, str | None]]
    """(id, k, v)."""
    letters: int
    """So many records at least are dead letters."""
    records: int | None
    """So many there are; None: it is not sure."""


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
    pq.write_table(table_of(records), data, row_group_size=RECORDS // 3, write_page_checksum=True)
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
    rows, letters, count = Counter[tuple[int, int, str | None]](), 0, 0
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


def case(root: Path, form: str, seed: int) -> tuple[list[Sure], int]:
    """Writes the files of a join; what is sure of those of the left stream, and how many records are on the right."""
    rng = random.Random(f"{form} {seed}")
    (root / "l").mkdir(parents=True)
    (root / "r").mkdir()
    sure = []
    for number in range(FILES):
        records = records_of(rng, number * 1000)
        original = encoded(records, form)
        data = original if rng.random() < 0.2 else mutated(original, rng)
        sure.append(sure_of(data, form, original, records))
        pressed = form != "parquet" and rng.random() < 0.15
        (root / "l" / f"{number}.x").write_bytes(gzip.compress(data) if pressed else data)
    (root / "r/a.json").write_text("".join(json.dumps({"k": k}) + "\n" for k in range(-100, 100)))
    stream = f"source: {{files: {{path: l, format: {form}{'' if form == 'parquet' else ', settle: 0s'}}}}}"
    (root / "join.yaml").write_text(
        f"""
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {{name: fuzz}}
spec:
  streams:
    - {{name: l, schema: "{SCHEMA}", {stream}}}
    - {{name: r, schema: "k INT", source: {{files: {{path: r, format: json}}}}}}
  joins:
    - condition: l.k - r.k BETWEEN 0 AND 0
      window: {{unbounded: true}}
      output: {{select: ["l.id AS id", "l.k AS k", "l.v AS v"], sink: {{files: {{path: out, format: parquet}}}}}}
  epoch: {{maxTuples: {rng.choice([50, 500, 100000])}}}
  workers: {{min: 2, max: 2, capacityTuples: 100000}}
  checkpoint: {{location: state}}
"""
    )
    return sure, 200


def check(root: Path, form: str, seed: int) -> str | None:
    """What went wrong with a case that was run in ``root``; None: nothing."""
    found = Counter[tuple[int, int, str | None]]()
    for path in (root / "out").glob("*.parquet"):
        found.update(zip(*(column.to_pylist() for column in pq.read_table(path).columns), strict=True))
    letters = [json.loads(line) for path in (root / "state/dead-letters").glob("*.json") for line in path.read_text().splitlines()]
    summary = json.loads((root / "said").read_text().splitlines()[-1])
    left = summary["streams"][0]
    used = left["accepted"] + left["unmatchable"]
    if used + left["rejected"] != left["input"] or left["rejected"] != len(letters):
        return f"input {left['input']}, used {used}, rejected {left['rejected']}, letters {len(letters)}"
    sure, _ = case(root / "again", form, seed)
    missing = sum((each.rows for each in sure), Counter()) - found
    if missing:
        return f"not joined: {list(missing)[:5]}"
    if left["rejected"] < sum(each.letters for each in sure):
        return f"{sum(each.letters for each in sure)} records are none, and {left['rejected']} were rejected"
    if all(each.records is not None for each in sure) and left["input"] != sum(each.records or 0 for each in sure):
        return f"{sum(each.records or 0 for each in sure)} records, of which {left['input']} were counted"
    return None


RUN = """
import sys
from pathlib import Path
import os
from click.testing import CliRunner
import fuzz
from streamjoin.cli import main
form, first, count, root = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
for seed in range(first, first + count):
    place = root / str(seed)
    fuzz.case(place, form, seed)
    print("begin", seed, flush=True)
    os.chdir(place)
    result = CliRunner().invoke(main, ["run", "join.yaml", "--runner", "inline", "--until-idle", "--json", "--no-ui"])
    Path("said").write_text(result.stdout)
    if result.exit_code not in (0, 9):
        wrong = f"exit {result.exit_code}: {result.stderr[-500:]}"
    else:
        wrong = fuzz.check(place, form, seed)
    print("end", seed, wrong or "", flush=True)
"""


def run(form: str, first: int, count: int, root: Path, patience_seconds: float = SECONDS) -> list[str]:
    """What went wrong with so many seeds. A process that dies or hangs is told with the seed, and the next ones are run by another."""
    wrong: list[str] = []
    last = first + count
    while first < last:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
        arguments = [sys.executable, "-c", RUN, form, str(first), str(last - first), str(root)]
        process = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=patience_seconds * count, check=False)
        begun = first
        for line in process.stdout.splitlines():
            word, seed, *rest = line.split(" ", 2)
            begun = int(seed)
            if word == "end" and rest and rest[0]:
                wrong.append(f"{form} seed {seed}: {rest[0]}")
        if process.returncode:
            wrong.append(f"{form} seed {begun}: its process ended with {process.returncode}: {process.stderr[-300:]}")
        first = begun + 1
    return wrong


def main(form: str, joins: int = 400, first: int = 0) -> None:
    wrong = 0
    for seed in range(first, first + joins, 20):
        with tempfile.TemporaryDirectory() as root:
            for sentence in run(form, seed, min(20, first + joins - seed), Path(root)):
                wrong += 1
                print(sentence, flush=True)
    print(f"{form}: {wrong} wrong of {joins} joins of {FILES} files")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
