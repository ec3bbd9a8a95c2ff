"""Event times that are made of numbers, of text and by SQL: each as its oracle, in Python's decimals, has it, or a dead letter with the
remedy; and whole joins by them over each format of files and tables."""

from __future__ import annotations

import csv
import itertools
import json
import random
from decimal import ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import write_deltalake

from cases import some
from streamjoin.cli.exits import Exit
from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.types import arrow_type
from streamjoin.language.ddl import parse_schema
from streamjoin.language.errors import SqlError
from streamjoin.language.event_time import DerivedTime, of_expression, of_numbers, of_text
from streamjoin.language.time_pattern import time_pattern
from streamjoin.manifest.validate import load
from test_cli import invoke, run_inline

POWERS = {"s": 6, "ms": 3, "us": 0, "ns": -3}
EXACTLY = Context(prec=400)
SPARK = {
    "dd/MM/yyyy HH:mm:ss": {
        "01/02/2026 03:04:05": 1769915045000000,
        "29/02/2024 23:59:59": 1709251199000000,
        "01/02/+12026 03:04:05": 317339435045000000,
        "01/02/0000 03:04:05": -62164529755000000,
        "01/02/0001 03:04:05": -62132907355000000,
    },
    "yyyy-MM-dd": {
        "2026-01-02": 1767312000000000,
    },
    "yyyyMMdd": {
        "20260102": 1767312000000000,
    },
    "yyyyMMddHHmmss": {
        "20260102030405": 1767323045000000,
    },
    "yyyy-MM-dd'T'HH:mm:ss.SSS": {
        "2026-01-02T03:04:05.1": 1767323045100000,
        "2026-01-02T03:04:05.123": 1767323045123000,
        "2026-01-02t03:04:05.123": 1767323045123000,
    },
    "yyyy-MM-dd HH:mm:ss.SSSSSSSSS": {
        "2026-01-02 03:04:05.123456789": 1767323045123456,
        "2026-01-02 03:04:05.1": 1767323045100000,
    },
    "d/M/yyyy H:m": {
        "1/2/2026 3:4": 1769915040000000,
        "001/02/2026 3:4": 1769915040000000,
        "11/12/2026 23:59": 1797033540000000,
        "31/12/1969 23:59": -60000000,
    },
    "dd/MMM/yyyy:HH:mm:ss Z": {
        "01/Jan/2026:00:00:00 +0000": 1767225600000000,
        "01/jan/2026:00:00:00 -0130": 1767231000000000,
        "01/JAN/2026:00:00:00 +1800": 1767160800000000,
        "01/Sep/2026:00:00:00 +0000": 1788220800000000,
        "01/Jan/2026:00:00:00 -0000": 1767225600000000,
    },
    "MMM d, yyyy h:mm:ss a": {
        "Jan 1, 2026 1:02:03 PM": 1767272523000000,
        "Jan 1, 2026 12:02:03 AM": 1767225723000000,
        "Jan 1, 2026 12:02:03 pm": 1767268923000000,
        "May 31, 2026 11:59:59 PM": 1780271999000000,
    },
    "MMMM dd yyyy": {
        "January 02 2026": 1767312000000000,
        "MAY 02 2026": 1777680000000000,
    },
    "yyyy-MM-dd'T'HH:mm:ssXXX": {
        "2026-01-02T03:04:05Z": 1767323045000000,
        "2026-01-02T03:04:05+01:00": 1767319445000000,
        "2026-01-02T03:04:05z": 1767323045000000,
    },
    "yyyy-MM-dd HHX": {
        "2026-01-02 03Z": 1767322800000000,
        "2026-01-02 03+01": 1767319200000000,
        "2026-01-02 03+0130": 1767317400000000,
    },
    "yyyy-MM-dd HH:mm XX": {
        "2026-01-02 03:04 +0130": 1767317640000000,
        "2026-01-02 03:04 Z": 1767323040000000,
    },
    "dd.MM.yy": {
        "02.01.26": 1767312000000000,
        "02.01.99": 4070995200000000,
    },
    "yyyy": {
        "2026": 1767225600000000,
        "0000": -62167219200000000,
        "9999": 253370764800000000,
        "+10000": 253402300800000000,
    },
    "yyyy dd": {
        "2026 05": 1767571200000000,
    },
    "HHmmss yyyyMMdd": {
        "030405 20260102": 1767323045000000,
    },
    "MM/dd/yyyy hh:mm a": {
        "01/02/2026 03:04 am": 1767323040000000,
        "01/02/2026 12:04 AM": 1767312240000000,
    },
    "yyyy-MM-dd 'at' HH": {
        "2026-01-02 at 05": 1767330000000000,
        "2026-01-02 AT 05": 1767330000000000,
    },
}
"""By format, the texts that Spark 4.1 (ANSI off, UTC) reads of TEXTS, and the microseconds that it reads. The others are NULL there."""
TEXTS = sorted({text for answers in SPARK.values() for text in answers} | {
    "31/02/2026 00:00:00", "29/02/2023 23:59:59", "1/2/2026 3:04:05", "01/02/2026 24:00:00", "01/02/2026 23:60:00", " 01/02/2026 03:04:05",
    "01/02/2026 03:04:05 ", "01/02/12026 03:04:05", "01/02/-001 03:04:05", "2026-1-2", "2026-01-02T03:04:05.", "2026-01-02T03:04:05.1234",
    "0/2/2026 3:4", "01/Jan/2026:00:00:00 +1801", "01/Jan/2026:00:00:00 Z", "01/Sept/2026:00:00:00 +0000", "01/Jan/2026:00:00:00 +0060",
    "Jan 1, 2026 13:02:03 pm", "Jan 1, 2026 0:02:03 pm", "2026-01-02T03:04:05+0100", "2026-12-31T23:59:60.000", "",
})  # fmt: skip


def made(time: DerivedTime, **columns: pa.Array) -> list[int | None]:
    values = Evaluator(time.expression).evaluate({("s", name): column for name, column in columns.items()})
    found: list[int | None] = values.cast(pa.int64()).to_pylist()
    return found


def reference(value: float | Decimal | None, unit: str) -> int | None:
    """The digits that a number is written with, times the unit, without those below a microsecond."""
    if value is None or not Decimal(value).is_finite():
        return None
    number = int(Decimal(repr(value) if isinstance(value, float) else value).scaleb(POWERS[unit], EXACTLY).to_integral_value(ROUND_FLOOR))
    return number if -(2**63) <= number < 2**63 else None


def numbers(kind: str, rng: random.Random) -> list[Any]:
    if kind == "DOUBLE":
        ends = [
            0.0,
            -0.0,
            0.1,
            -0.1,
            5e-324,
            1.7e308,
            -1.7e308,
            float("inf"),
            float("-inf"),
            float("nan"),
            9223372036854.775,
            2.0**63,
            -(2.0**63),
        ]
        spread = [rng.uniform(-1, 1) * 10 ** rng.uniform(-8, 20) for _ in range(300)]
        return ends + spread + [rng.randrange(-(10**16), 10**16) / 10 ** rng.randrange(10) for _ in range(300)] + [None]
    if kind.startswith("DECIMAL"):
        precision, scale = map(int, kind[8:-1].split(","))
        largest = 10**precision - 1
        return [
            None if value is None else Decimal(value).scaleb(-scale, EXACTLY)
            for value in [
                0,
                1,
                -1,
                largest,
                -largest,
                None,
                *(rng.randrange(-largest, largest) // 10 ** rng.randrange(precision) for _ in range(300)),
            ]
        ]
    bits = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}[kind]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return [0, 1, -1, low, high, low + 1, None, *(rng.randrange(low, high) >> rng.randrange(bits) for _ in range(300))]


@pytest.mark.parametrize("unit", POWERS)
@pytest.mark.parametrize(
    "kind", ["TINYINT", "SMALLINT", "INT", "BIGINT", "DOUBLE", "DECIMAL(20,9)", "DECIMAL(38,0)", "DECIMAL(38,38)", "DECIMAL(9,2)"]
)
def test_numbers_are_times_by_their_digits_and_never_wrap(kind: str, unit: str) -> None:
    (column,) = parse_schema(f"t {kind}")
    values = numbers(kind, random.Random(7))
    wanted = [reference(value, unit) for value in values]
    assert made(of_numbers("s", column, unit), t=pa.array(values, arrow_type(column.type))) == wanted


@pytest.mark.parametrize("pattern", SPARK)
def test_text_is_read_as_spark_reads_it(pattern: str) -> None:
    (column,) = parse_schema("t STRING")
    assert made(of_text("s", column, pattern), t=pa.array(TEXTS)) == [SPARK[pattern].get(text) for text in TEXTS]


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("yyyy-MM-dd EEE", "has EEE, which is not supported"),
        ("yyyy-MM-ddTHH:mm", "has T, which is not supported"),
        ("yyyy-MM-dd[ HH]", "has '[' at character 11"),
        ("yyyy-MM-dd'T", 'has "\'" at character 11'),
        ("yyyyMd", "has M right before d"),
        ("yyyyMMddHHmmssSSS", "has ss right before SSS"),
        ("yyyy-MM-dd dd", "the day twice"),
        ("dd/MM HH:mm", "has no year"),
        ("yyyy-MM-dd hh:mm", "only one of h and a"),
        ("uuuu-MM-dd", "has uuuu"),
    ],
)
def test_a_format_that_is_not_supported_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(SqlError) as error:
        time_pattern(pattern)
    assert problem in str(error.value)


def test_sql_makes_times() -> None:
    schema = parse_schema("d STRING, t STRING, n BIGINT")
    columns = {"d": pa.array(["2026-01-02", "no", None]), "t": pa.array(["03:04:05", "", ""]), "n": pa.array([-1, 2**63 - 1, None])}
    at = 1767323045000000
    assert made(of_expression("to_timestamp(d || ' ' || t)", "s", schema), **columns) == [at, None, None]
    assert made(of_expression("to_timestamp(concat(d, 'T', t), \"yyyy-MM-dd'T'HH:mm:ss\")", "s", schema), **columns) == [at, None, None]
    assert made(of_expression("timestamp_seconds(n)", "s", schema), **columns) == [-1_000_000, None, None]
    assert made(of_expression("timestamp_millis(n)", "s", schema), **columns) == [-1_000, None, None]
    assert made(of_expression("timestamp_micros(n)", "s", schema), **columns) == [-1, 2**63 - 1, None]
    for text, problem in (
        ("n + 1", "is a value of type BIGINT, not TIMESTAMP or TIMESTAMP_NTZ; write timestamp_millis"),
        ("CAST(d AS DATE)", "write CAST(CAST(d AS DATE) AS TIMESTAMP)"),
        ("TIMESTAMP '2026-01-01'", "reads no column"),
        ("to_timestamp(n)", "timestamp_seconds"),
        ("to_timestamp(d, t)", "is not a literal"),
        ("to_timestamp(d, 'YYYY')", "has YYYY"),
        ("to_timestamp(x)", "unknown column x"),
    ):
        with pytest.raises(SqlError) as error:
            of_expression(text, "s", schema)
        assert problem in str(error.value), text


def manifest(root: Path, schema: str, event_time: object, source: dict[str, object] | None = None, **changes: object) -> Path:
    """A band join in time of a stream of files with itself, by a key."""
    files = {"files": {"path": str(root / "in"), "format": "json"}} if source is None else source
    common = {"source": files, "schema": schema, "eventTime": event_time, "watermark": "1000d"}
    spec = {
        "streams": [{"name": "l", **common}, {"name": "r", **common}],
        "joins": [
            {
                "condition": "l.k = r.k",
                "window": {"within": "10s"},
                "output": {
                    "select": ["l.id AS a", "r.id AS b"],
                    "sink": {"files": {"path": str(root / "out"), "format": "json", "gather": "0s"}},
                },
            }
        ],
        "workers": {"min": 1, "max": 1},
        "checkpoint": {"location": str(root / "state")},
    } | changes
    document = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "times"}, "spec": spec}
    path = root / "join.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def results(root: Path) -> list[tuple[int, int]]:
    found = [json.loads(line) for path in (root / "out").glob("*.json") for line in path.read_text().splitlines()]
    return sorted((row["a"], row["b"]) for row in found)


def letters(root: Path) -> list[dict[str, Any]]:
    directory = root / "state" / "dead-letters"
    return [json.loads(line) for path in sorted(directory.rglob("*")) if path.is_file() for line in path.read_text().splitlines()]


def pairs(micros: dict[int, int]) -> list[tuple[int, int]]:
    """Ids that are within 10 s, all of one key."""
    return sorted((a, b) for a in micros for b in micros if abs(micros[a] - micros[b]) <= 10_000_000)


def stored(root: Path, form: str, table: pa.Table) -> dict[str, object]:
    """A table in a directory, and the source that reads it."""
    directory = root / "in"
    directory.mkdir()
    if form == "delta":
        write_deltalake(str(directory), table)
        return {"delta": {"path": str(directory)}}
    if form == "parquet":
        pq.write_table(table, directory / "a.parquet")
    elif form == "json":
        (directory / "a.json").write_text("".join(json.dumps(row, default=str) + "\n" for row in table.to_pylist()))
    elif form == "quoted":
        (directory / "a.json").write_text("".join(json.dumps(row | {"t": str(row["t"])}, default=str) + "\n" for row in table.to_pylist()))
    else:
        with (directory / "a.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([table.column_names, *(row.values() for row in table.to_pylist())])
    return {"files": {"path": str(directory), "format": "json" if form == "quoted" else form}}


KINDS = {
    "BIGINT": (pa.int64(), "ms", [1_767_225_600_000 + 3_000 * number for number in range(8)] + [-5, -10_005, -10_006]),
    "DOUBLE": (pa.float64(), "s", [1_767_225_600.25 + 2.5 * number for number in range(8)]),
    "DECIMAL(20,6)": (pa.decimal128(20, 6), "s", [Decimal("1767225600.000001") + 5 * number for number in range(8)]),
}


@pytest.mark.parametrize(
    ("kind", "form"), some([*itertools.product(KINDS, ["json", "csv", "parquet", "delta"]), ("BIGINT", "quoted")], of=3)
)
def test_a_join_by_numbers_as_event_times(kind: str, form: str, tmp_path: Path) -> None:
    arrow, unit, values = KINDS[kind]
    table = pa.table({"id": range(len(values)), "k": [1] * len(values), "t": pa.array(values, arrow)})
    source = stored(tmp_path, form, table)
    path = manifest(tmp_path, f"id BIGINT, k BIGINT, t {kind}", {"column": "T", "unit": unit}, source)
    for stream in (document := yaml.safe_load(path.read_text()))["spec"]["streams"]:
        stream["watermark"] = "36500d"
    path.write_text(yaml.safe_dump(document))
    result = run_inline(path, "--until-idle")
    assert result.exit_code == 0, result.output
    assert results(tmp_path) == pairs({number: reference(value, unit) or 0 for number, value in enumerate(values)})
    assert not letters(tmp_path)


@pytest.mark.parametrize(
    "event_time",
    [
        {"column": "t", "format": "dd/MM/yyyy HH:mm:ss"},
        "to_timestamp(t, 'dd/MM/yyyy HH:mm:ss')",
        {"expression": "to_timestamp(t, 'd/M/yyyy H:m:s')"},
    ],
)
def test_a_join_by_text_as_event_times_goes_on_from_its_checkpoint_alone(event_time: object, tmp_path: Path) -> None:
    directory = tmp_path / "in"
    directory.mkdir()

    def put(first: int) -> None:
        rows = [{"id": first + n, "k": 1, "t": f"02/01/2026 03:04:{first + n:02d}"} for n in range(9)]
        (directory / f"{first}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    put(0)
    path = manifest(tmp_path, "id BIGINT, k BIGINT, t STRING", event_time)
    assert run_inline(path, "--until-idle").exit_code == 0
    put(9)
    assert run_inline(path, "--until-idle").exit_code == 0
    assert results(tmp_path) == pairs({number: number * 1_000_000 for number in range(18)})
    other = manifest(tmp_path, "id BIGINT, k BIGINT, t STRING", {"column": "t", "format": "MM/dd/yyyy HH:mm:ss"})
    result = run_inline(other, "--until-idle")
    assert result.exit_code == Exit.MISMATCH
    assert "spec.streams[0].eventTime: t (MM/dd/yyyy HH:mm:ss) differs from" in result.output


def test_what_is_no_time_is_a_dead_letter_with_the_remedy(tmp_path: Path) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    rows = [{"t": 0.0}, {"t": 1e300}, {"t": None}, {"t": -1e300}, {}, {"t": 4e9}]
    (directory / "a.json").write_text("".join(json.dumps({"id": n, "k": 1, **row}) + "\n" for n, row in enumerate(rows)))
    path = manifest(tmp_path, "id BIGINT, k BIGINT, t DOUBLE", {"column": "t", "unit": "s"})
    assert run_inline(path, "--until-idle").exit_code == 0
    assert results(tmp_path) == [(0, 0)]
    found = [letter for letter in letters(tmp_path) if letter["stream"] == "l"]
    wanted = (
        "column t: 1e+300 is no number of seconds since 1970 that a TIMESTAMP can hold; correct the value, or the unit (s) in eventTime"
    )
    assert {json.loads(letter["raw"])["id"]: letter["error"] for letter in found if json.loads(letter["raw"])["id"] in (1, 2)} == {
        1: wanted,
        2: "column t: is null, so the event time is too (t (seconds since 1970)); every record needs one",
    }
    assert sorted(json.loads(letter["raw"])["id"] for letter in found) == [1, 2, 3, 4, 5]
    assert all(set(json.loads(letter["raw"])) == {"id", "k", "t"} for letter in found)
    assert any("maxAhead" in letter["error"] for letter in found)


def test_a_time_that_is_a_number_is_a_dead_letter_that_says_how_to_declare_it(tmp_path: Path) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "a.json").write_text('{"id": 1, "k": 1, "at": 1767225600000}\n{"id": 2, "k": 1, "at": 1767225600}\n')
    path = manifest(tmp_path, "id BIGINT, k BIGINT, at TIMESTAMP", "at")
    assert run_inline(path, "--until-idle").exit_code == 9, "no record of l is of use"
    errors = [letter["error"] for letter in letters(tmp_path) if letter["stream"] == "l"]
    assert [error.split("; ")[1] for error in errors] == [
        f"if it counts {unit} since 1970, declare at as BIGINT, and eventTime: {{column: at, unit: {unit}}}" for unit in ("ms", "s")
    ]


@pytest.mark.parametrize(
    ("event_time", "problem"),
    [
        (
            "n",
            '.eventTime: "n" is BIGINT, not TIMESTAMP or TIMESTAMP_NTZ; of numbers since 1970, write eventTime: {column: n, unit: ms} (or',
        ),
        (
            {"column": "n"},
            '.eventTime.column: "n" is BIGINT, not TIMESTAMP or TIMESTAMP_NTZ; of numbers since 1970, write eventTime: {column: n,',
        ),
        ({"column": "n", "unit": "h"}, '.eventTime.unit: "h" must be '),
        ({"column": "f", "unit": "s"}, "column f is FLOAT, and a unit is for BIGINT, INT, DOUBLE and DECIMAL; declare it as DOUBLE"),
        (
            {"column": "d", "unit": "s"},
            "column d is STRING, and a unit is for BIGINT, INT, DOUBLE and DECIMAL; declare it as BIGINT, or give format",
        ),
        ({"column": "at", "unit": "s"}, "column at is TIMESTAMP, which is a time already; write eventTime: at"),
        ({"column": "n", "format": "yyyy"}, "column n is BIGINT, and a format is for text; declare it as STRING, or give unit"),
        ({"column": "d", "format": "yyyy EEE"}, ".eventTime.format: \"yyyy EEE\" is refused: the pattern 'yyyy EEE' has EEE"),
        ({"column": "d", "format": "yyyy", "unit": "s"}, '.eventTime.format: "yyyy" is for text, and unit for numbers; keep the one'),
        ({"column": "x", "unit": "s"}, '.eventTime.column: "x" is not a column of the schema'),
        ({"unit": "s"}, ".eventTime: must have exactly one of column and expression"),
        ({"expression": "d", "column": "d"}, ".eventTime: must have exactly one of column and expression"),
        ({"expression": "n", "unit": "s"}, ".eventTime: has an expression beside a unit or a format"),
        ("timestamp_millis(x)", '.eventTime: "timestamp_millis(x)" is refused: unknown column x'),
        ("n + 1", "is a value of type BIGINT, not TIMESTAMP or TIMESTAMP_NTZ; write timestamp_millis(...)"),
        (5, ".eventTime: 5 is no event time; name a TIMESTAMP column, or write {column: ts, unit: ms}"),
        ({"colum": "n", "unit": "s"}, '.eventTime.colum: "n" is given to a field that does not exist; did you mean column?'),
    ],
)
def test_an_event_time_that_makes_none_is_refused_with_the_remedy(event_time: object, problem: str, tmp_path: Path) -> None:
    path = manifest(tmp_path, "id BIGINT, k BIGINT, n BIGINT, f FLOAT, d STRING, at TIMESTAMP", event_time)
    for result in (invoke("validate", path), run_inline(path, "--until-idle")):
        assert result.exit_code == Exit.USAGE
        assert problem in " ".join(result.output.split()), result.output


def test_an_event_time_is_written_as_it_was_given(tmp_path: Path) -> None:
    for given in ("at", {"column": "n", "unit": "ms"}, "timestamp_millis(n)"):
        path = manifest(tmp_path, "id BIGINT, k BIGINT, n BIGINT, at TIMESTAMP", given)
        written = load(path.read_text()).model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert written["spec"]["streams"][0]["eventTime"] == given
