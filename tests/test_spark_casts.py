"""CAST between text and other types gives what Spark gives; where it does not, that is meant, and said here and in docs/manifest.md."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from spark_casts import ANSWERS, TARGETS, Answers, ask_spark, texts, values
from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.types import arrow_type
from streamjoin.language.ddl import parse_schema
from streamjoin.language.errors import SqlError
from streamjoin.language.sql import parse_expression
from streamjoin.runner.java import JavaNotFound, find_java


def ours(source: str, target: str, given: pa.Array) -> list[str | None]:
    """What this engine gives, written as the answers are."""
    schema = parse_schema(f"x {source}")
    expression = parse_expression(f"CAST(x AS {target})", {"s": schema})
    found = Evaluator(expression).evaluate({("s", "x"): given.cast(arrow_type(schema.columns[0].type))})
    if target == "DATE":
        found = found.cast(pa.int32())
    elif target.startswith("TIMESTAMP"):
        found = found.cast(pa.int64())
    return [None if value is None else str(value).lower() if target == "BOOLEAN" else str(value) for value in found.to_pylist()]


def same(answer: str | None, found: str | None, target: str) -> bool:
    if answer is None or found is None or target not in ("FLOAT", "DOUBLE"):
        return answer == found
    width = np.float32 if target == "FLOAT" else np.float64
    return repr(width(answer)) == repr(width(found))


Difference = Callable[[str, str, str | None, str | None], bool]
MEANT: dict[str, Difference] = {
    "a time without a date is NULL, in Spark one of the day of the query": lambda source, target, answer, found: (
        target == "TIMESTAMP" and answer == "today" and found is None
    ),
    "numbers have the fewest digits that tell them from others of their type, where Java before 19 may print more": (
        lambda source, target, answer, found: (
            source in ("DOUBLE", "FLOAT") and same(answer, found, source) and len(f"{found}") <= len(f"{answer}")
        )
    ),
}
"""The differences from Spark that are meant; each is in docs/manifest.md, too."""


def differences(answers: Answers) -> list[tuple[str, str, str, str | None, str | None]]:
    """Source, target, value, Spark's answer and ours."""
    pairs: list[tuple[str, str, list[str], list[str | None]]] = []
    told = texts()
    pairs += [("STRING", target, told, ours("STRING", target, pa.array(told))) for target in TARGETS]
    for source, given in values().items():
        shown, kind = [repr(value) for value in given], arrow_type(parse_schema(f"x {source}").columns[0].type)
        pairs.append((source, "STRING", shown, ours(source, "STRING", pa.array(given, _whole(kind)))))
    return [
        (source, target, value, answers[source][value].get(target), result)
        for source, target, shown, found in pairs
        for value, result in zip(shown, found, strict=True)
        if not same(answers[source][value].get(target), result, target)
        and not any(is_meant(source, target, answers[source][value].get(target), result) for is_meant in MEANT.values())
    ]


def _whole(kind: pa.DataType) -> pa.DataType:
    return kind if pa.types.is_floating(kind) else pa.int32() if kind.bit_width == 32 else pa.int64()


def test_a_cast_gives_what_spark_gave() -> None:
    answers: Answers = json.loads(ANSWERS.read_text())
    assert sum(map(len, answers.values())) > 1_000
    assert differences(answers) == []


@pytest.mark.parametrize("target", ["DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "INT", "DOUBLE", "DECIMAL(10,2)"])
def test_a_literal_is_cast_as_a_column_is_or_refused(target: str) -> None:
    told = texts()
    for text, wanted in zip(told, ours("STRING", target, pa.array(told)), strict=True):
        written = text.replace("\\", "\\\\").replace("'", "\\'")
        try:
            expression = parse_expression(f"CAST('{written}' AS {target})", {})
        except SqlError:
            assert wanted is None, text
            continue
        found = Evaluator(expression).evaluate({}, 1)
        number = pa.int32() if target == "DATE" else pa.int64() if target.startswith("TIME") else found.type
        (value,) = found.cast(number).to_pylist()
        assert wanted == (None if value is None else str(value).lower() if target == "BOOLEAN" else str(value)), text
        assert parse_expression(expression.sql, {}).tree == expression.tree


@pytest.mark.spark
def test_spark_still_answers_so(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("JAVA_HOME", str(find_java()))
    except JavaNotFound as missing:
        pytest.skip(f"{missing}; make setup")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    assert ask_spark() == json.loads(ANSWERS.read_text())
