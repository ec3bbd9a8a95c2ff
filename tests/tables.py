"""Tables as their readers see them, who share no code with the sinks: deltalake, Polars, and DuckDB over the files that a log names."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable


def publish_at_once(sinks: Sequence[Any], staged: Any) -> None:
    """As drivers would who do not know of each other; none may fail."""
    together, failures = threading.Barrier(len(sinks)), []

    def publish(sink: Any) -> None:
        together.wait()
        try:
            sink.publish(staged, again=True)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=publish, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


UNUSUAL = ["plain", "a:b", "é", "New York", "100%", "a%20b", "%3A", "a/b", "q?x", "h#y", "a=b", "+", "日本", "a\\b", "'\"", ".."]
"""Texts of which a path of a partition has some other form, or none."""

ALL_TYPES = pa.schema(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("whole", pa.int32()),
        ("big", pa.int64()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("instant", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(9, 2)),
        ("wide", pa.decimal128(38, 10)),
        ("took", pa.duration("us")),
    ]
)
"""Every type that a column of results may have."""


def typed_rows(count: int) -> list[dict[str, Any]]:
    """Rows of ``ALL_TYPES``: limits, negative numbers, times before 1970, text that is not ASCII, and nulls."""
    least = {
        "flag": False,
        "tiny": -128,
        "small": -(2**15),
        "whole": -(2**31),
        "big": -(2**63),
        "real": -1.5,
        "double": float("-inf"),
        "text": 'it\'s "é" / 100 %\n',
        "bytes": b"\x00\xff",
        "day": dt.date(1901, 2, 3),
        "instant": dt.datetime(1931, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC),
        "local": dt.datetime(1931, 1, 1, 1, 2, 3, 999_999),
        "price": Decimal("-9999999.99"),
        "wide": Decimal("-1234567890123456789012345678.0123456789"),
        "took": dt.timedelta(days=-1, microseconds=1),
    }
    rows: list[dict[str, Any]] = [least, dict.fromkeys(ALL_TYPES.names)]
    for number in range(count - 2):
        rows.append(
            {
                "flag": bool(number % 2),
                "tiny": number % 128,
                "small": number,
                "whole": number * 1000,
                "big": number * 2**40,
                "real": number / 2,
                "double": number / 3,
                "text": f"n{number % 5}",
                "bytes": bytes([number % 256]),
                "day": dt.date(2026, 1, 1) + dt.timedelta(days=number % 3),
                "instant": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number, microseconds=number),
                "local": dt.datetime(2026, 1, 1) + dt.timedelta(seconds=number, microseconds=number),
                "price": Decimal(number) / 4,
                "wide": Decimal(number) / 1024,
                "took": dt.timedelta(microseconds=number),
            }
        )
    return rows


def as_stored(rows: list[dict[str, Any]]) -> Counter[str]:
    """Rows as a table has them, whatever their order: durations are microseconds."""
    return Counter(
        str([row[name] if name != "took" or row[name] is None else row[name] // dt.timedelta(microseconds=1) for name in ALL_TYPES.names])
        for row in rows
    )


def texts(table: pa.Table) -> Counter[str]:
    """The rows of a table with the columns of ``ALL_TYPES``, as :func:`as_stored` gives them."""
    zoned = [pa.field(field.name, pa.timestamp("us", "UTC") if field.name == "instant" else field.type) for field in table.schema]
    rows = table.cast(pa.schema(zoned)).to_pylist()
    for row in rows:
        if row["instant"] is not None:
            row["instant"] = row["instant"].replace(tzinfo=dt.UTC)
    return Counter(str([_plain(row[name]) for name in ALL_TYPES.names]) for row in rows)


def _plain(value: Any) -> Any:
    return f"{value:.10f}" if isinstance(value, Decimal) else value


def normal(rows: Counter[str] | list[dict[str, Any]]) -> Counter[str]:
    """Expected rows in the form of :func:`texts`."""
    assert isinstance(rows, list)
    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    return as_stored(plain)


def delta_rows(root: Any) -> pa.Table:
    """All rows of a Delta table's newest version, by deltalake."""
    return pa.table(DeltaTable(str(root)).to_pyarrow_table())


def delta_by_polars(root: Path) -> pa.Table:
    """The same by Polars."""
    return pl.scan_delta(str(root)).collect().to_arrow()


def delta_log(root: Path) -> list[dict[str, Any]]:
    """All actions of a Delta table that has no checkpoint yet, in order, each with its version."""
    actions = []
    for path in sorted((root / "_delta_log").glob("*.json")):
        actions += [json.loads(line) | {"version": int(path.stem)} for line in path.read_text().splitlines()]
    return actions


def delta_by_duckdb(root: Path) -> pa.Table:
    """The same by DuckDB from the files that the log names, with the partitions' values from the log."""
    files: dict[str, dict[str, str | None]] = {}
    for action in delta_log(root):
        if "add" in action:
            files[urllib.parse.unquote(action["add"]["path"])] = action["add"]["partitionValues"]
        elif "remove" in action:
            del files[urllib.parse.unquote(action["remove"]["path"])]
    parts = []
    types = {"flag": "BOOLEAN", "day": "DATE", "text": "VARCHAR", "price": "DECIMAL(9,2)"}
    for path, values in files.items():
        assert os.path.getsize(root / path)
        table = duckdb.sql(f"SELECT * FROM read_parquet('{root / path}', hive_partitioning=false)").to_arrow_table()
        for name, value in values.items():
            text = "NULL" if value is None else "'" + value.replace("'", "''") + "'"
            constant = duckdb.sql(f"SELECT {text}::{types[name]} AS v").to_arrow_table().column("v")[0]
            table = table.append_column(name, pa.repeat(constant, table.num_rows))
        parts.append(table.select(sorted(table.column_names)))
    return pa.concat_tables(parts, promote_options="permissive")


def parquet_rows(paths: list[Path]) -> int:
    """How many rows these files have."""
    return sum(pq.read_metadata(path).num_rows for path in paths)
