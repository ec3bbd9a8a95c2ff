"""Values that an expression could not make are NULL, and counted with an example, wherever it is evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import START, Input, driver_for, join_of, make_batch, make_job, run_all
from streamjoin.kernel import faults
from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.faults import Fault
from streamjoin.language.ddl import parse_schema
from streamjoin.language.sql import parse_expression
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage

SCHEMA = parse_schema("x INT, y INT, t STRING, d DECIMAL(4,2)")
COLUMNS: dict[tuple[str, str], Any] = {
    ("s", "x"): pa.array([1, 2**31 - 1, None, -(2**31)], pa.int32()),
    ("s", "y"): pa.array([0, 1, 2, -1], pa.int32()),
    ("s", "t"): pa.array(["7", "seven", None, "1e9"], pa.string()),
    ("s", "d"): pa.array(["99.99", "1.00", None, "0.01"]).cast(pa.decimal128(4, 2)),
}


@pytest.mark.parametrize(
    ("sql", "rows", "example"),
    [
        ("x + 1", 1, "2147483647, 1"),
        ("abs(x)", 1, "-2147483648"),
        ("CAST(t AS INT)", 2, "seven"),
        ("CAST(x AS SMALLINT)", 2, "2147483647"),
        ("x / y", 1, "1, 0"),
        ("CAST(d * 2 AS DECIMAL(4,2))", 1, "199.98"),
        ("x * y", 1, "-2147483648, -1"),
        ("length(t)", 0, ""),
        ("coalesce(x + 1, 0)", 0, ""),
        ("CASE WHEN y <> 0 THEN x / y ELSE 0 END", 0, ""),
        ("x", 0, ""),
    ],
)
def test_what_has_no_value_is_counted_with_an_example(sql: str, rows: int, example: str) -> None:
    faults.taken()
    Evaluator(parse_expression(sql, {"s": SCHEMA})).evaluate(COLUMNS, 4)
    found = faults.taken()
    assert sum(fault.rows for fault in found.values()) == rows
    assert [fault.example for fault in found.values()] == ([example] if rows else [])


def test_counts_of_several_threads_are_added() -> None:
    assert faults.together([{"a": Fault(1, "x")}, {}, {"a": Fault(2, "y"), "b": Fault(3, "z")}]) == {"a": Fault(3, "x"), "b": Fault(3, "z")}


def test_a_run_says_which_expression_lost_values_and_counts_them(tmp_path: Path) -> None:
    output = {"select": ["l.rid AS a", "l.v + 1 AS b"]}
    join = join_of(tmp_path, on="l.k = r.k AND l.v + 1 > r.v", window={"unbounded": True}, output=output)
    job = make_job(tmp_path, joins=[join], workers=2)
    rows = [(number, number % 5, 2**31 - 1 if number < 4 else number, START) for number in range(20)]
    inputs = Input([make_batch(rows, pa.int64())], [1]), Input([make_batch([(0, 1, 3, START)], pa.int64())], [1])
    driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    results = run_all(driver)
    warnings = [warning for result in results for warning in result.warnings if "has no value" in warning]
    assert len(warnings) == 1
    assert warnings[0].startswith("l.v + 1 has no value for 2147483647, 1: a number does not fit its type")
    assert driver.checkpoint.totals["expression_errors"] == [1]
    assert sum(result.output for result in results) == 4, "the comparison itself does not overflow"
    assert json.dumps(results[-1].totals)
