"""The evaluator, compared to DuckDB where the two agree on what SQL means, and to values written out by hand where they do not."""

from __future__ import annotations

import datetime
import math
import pickle
import random
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.types import arrow_schema, arrow_type
from streamjoin.language.ddl import parse_schema
from streamjoin.language.sql import parse_boolean, parse_expression

SCHEMA = parse_schema(
    "i INT, b BIGINT, h TINYINT, c DECIMAL(10,2), w DECIMAL(38,10), x DOUBLE, y DOUBLE, f FLOAT, s STRING, q STRING, "
    "d DATE, e DATE, t TIMESTAMP, n TIMESTAMP_NTZ, k BOOLEAN, z BINARY"
)
MAX, MIN = 2**63 - 1, -(2**63)
NAN, INF = math.nan, math.inf


def evaluate(sql: str, **columns: list[Any]) -> list[Any]:
    """The expression's values over these columns of SCHEMA; one row where there are none."""
    expression = parse_expression(sql, {"o": SCHEMA})
    arrays = {("o", name): array(name, values) for name, values in columns.items()}
    result = Evaluator(expression).evaluate(arrays, None if columns else 1)
    assert result.type == arrow_type(expression.type)
    result.validate(full=True)
    return result.to_pylist()


def array(name: str, values: list[Any]) -> pa.Array:
    column = SCHEMA.get(name)
    assert column is not None
    storage = {"d": pa.int32(), "e": pa.int32(), "t": pa.int64(), "n": pa.int64()}.get(name)
    if storage is not None and any(isinstance(value, int) for value in values):
        return pa.array(values, storage).cast(arrow_type(column.type))
    return pa.array(values, arrow_type(column.type))


def random_batch(seed: int, count: int) -> pa.RecordBatch:
    rng = random.Random(seed)

    def cell(name: str) -> Any:
        if rng.random() < 0.12:
            return None
        if name in ("i", "b", "h"):
            return rng.randint(-9, 9)
        if name in ("c", "w"):
            return Decimal(rng.randint(-999, 999)).scaleb(-2)
        if name in ("x", "y", "f"):
            return float(rng.randint(-16, 16)) / 4
        if name in ("s", "q"):
            return rng.choice(["", "a", "ab", "Ab ", " b", "żółw", "100%", "a_b", "\U0001f422x", "abcabc"])
        if name in ("d", "e"):
            return datetime.date(2024, 2, 27) + datetime.timedelta(days=rng.randint(-400, 400))
        if name in ("t", "n"):
            zone = datetime.UTC if name == "t" else None
            return datetime.datetime(1970, 1, 1, tzinfo=zone) + datetime.timedelta(microseconds=rng.randint(-(10**15), 10**15))
        return rng.random() < 0.5 if name == "k" else rng.choice([b"", b"a", b"\xff"])

    rows = [{name: cell(name) for name in SCHEMA.names} for _ in range(count)]
    return pa.RecordBatch.from_pylist(rows, arrow_schema(SCHEMA))


AGREED = """
i + b; i - h; i * b; -i; abs(i); i % 3; b % h; i / h; x + y; x - y * 2; x / y; abs(x); c + 1; c * c; c - w; i + c; c % 0.7; x + i; f * 2
i = b; i <> h; i < x; c <= w; c > i; x >= c; s = q; s < q; s <> q; d <= e; k = TRUE; z = z; t < n
i BETWEEN -3 AND h; x BETWEEN y AND y + 2; i IN (1, 2, NULL); s IN ('a', 'ab'); s NOT IN ('a', 'żółw'); d IN (DATE '2024-02-27')
k AND i > 0; k OR i > 0; NOT k; NOT (k AND x > 0 OR i IS NULL); s IS NULL; s IS NOT NULL; i = 1 OR NULL; k AND NULL
CASE WHEN i > 0 THEN 'p' WHEN i < 0 THEN s END; CASE i WHEN 1 THEN c WHEN 2 THEN i ELSE 0 END; IF(k, i, b)
coalesce(i, b, 0); coalesce(s, q, 'none'); nullif(i, h); greatest(i, b, h); least(c, w, 1); greatest(s, q); least(d, e)
lower(s); upper(s); trim(s); ltrim(s); rtrim(s); length(s); concat(s, 'x') || 'y'; s || q
substring(s, 2); substring(s, 1, 2); substring(s, -2); substring(s, -3, 2); substring(s, 2, 0)
s LIKE 'a%'; s LIKE '%b_'; s NOT LIKE '_'; s LIKE '100%'; startswith(s, 'a'); endswith(s, 'b'); contains(s, 'bc')
startswith(s, q); endswith(s, q); contains(s, q)
year(d); month(d); day(d); year(t); month(n); hour(t); minute(t); second(n); hour(n)
d + 3; d - 2; d + i; d + INTERVAL 3 DAYS; t + INTERVAL 90 MINUTES; n - INTERVAL 1500 MILLISECONDS; t < t + INTERVAL 1 SECOND
floor(x); ceil(x); floor(c); ceil(c); round(c, 1); round(c); round(x); CAST(i AS STRING); CAST(c AS STRING); CAST(d AS STRING)
CAST(x AS DECIMAL(10,1)); CAST(c AS DECIMAL(8,1)); CAST(i AS DOUBLE); CAST(k AS INT); CAST(i AS BOOLEAN); CAST('2024-02-29' AS DATE)
CAST(t AS DATE); CAST(d AS TIMESTAMP_NTZ); CAST(' 12 ' AS INT); CAST('1.25' AS DECIMAL(5,2)); CAST('1e3' AS DOUBLE); CAST(s AS BINARY)
"""
DUCK = {
    "IF(k, i, b)": "CASE WHEN k THEN i ELSE b END",
    "substring(s, 2, 0)": "CASE WHEN s IS NOT NULL THEN '' END",
    "startswith(s, 'a')": "starts_with(s, 'a')",
    "startswith(s, q)": "starts_with(s, q)",
    "endswith(s, 'b')": "suffix(s, 'b')",
    "endswith(s, q)": "suffix(s, q)",
    "d + i": "d + CAST(i AS INTEGER)",
    "d + INTERVAL 3 DAYS": "CAST(d + INTERVAL 3 DAYS AS DATE)",
    "floor(x)": "CAST(floor(x) AS BIGINT)",
    "ceil(x)": "CAST(ceil(x) AS BIGINT)",
    "CAST(d AS TIMESTAMP_NTZ)": "CAST(d AS TIMESTAMP)",
    "concat(s, 'x') || 'y'": "s || 'xy'",
    "CAST(s AS BINARY)": "encode(s)",
    "i / h": "i::DOUBLE / nullif(h, 0)",
    "x / y": "x / nullif(y, 0)",
    "t < n": "epoch_us(t) < epoch_us(n)",
}


@pytest.mark.parametrize("sql", [sql.strip() for sql in AGREED.replace("\n", ";").split(";") if sql.strip()])
def test_an_expression_has_the_value_that_duckdb_gives_it(sql: str) -> None:
    batch = random_batch(seed=7, count=300)
    at = batch.schema.get_field_index("t")
    # DuckDB without its time zones: a timestamp without one is the same in UTC.
    plain = pa.Table.from_batches([batch]).set_column(at, "t", batch.column("t").cast(pa.timestamp("us")))
    with duckdb.connect(config={"error_on_division_by_zero": False}) as connection:
        connection.register("o", plain)
        expected = [row[0] for row in connection.execute(f"SELECT {DUCK.get(sql, sql)} FROM o").fetchall()]
    expression = parse_expression(sql, {"o": SCHEMA})
    columns = {("o", name): batch.column(name) for _, name in expression.columns}
    result = Evaluator(expression).evaluate(columns, batch.num_rows)
    assert result.type == arrow_type(expression.type)
    found = result.to_pylist()
    wrong = [row for row in range(len(expected)) if not alike(found[row], expected[row])]
    if wrong:
        values = {name: batch.column(name)[wrong[0]].as_py() for _, name in expression.columns}
        pytest.fail(f"{sql} of {values} is {found[wrong[0]]!r}, and by DuckDB {expected[wrong[0]]!r}")


def alike(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, (float, int, Decimal)):
        return found == float(expected) or (math.isnan(found) and math.isnan(expected))
    if isinstance(found, datetime.datetime) and isinstance(expected, datetime.datetime):
        return found.replace(tzinfo=None) == expected.replace(tzinfo=None)
    return found == expected and (found is None) == (expected is None)


MORE = """
i * b * b > w; w * w; w / c; c / 3; c / c; i * 0.5; w + w; b + b; -b; abs(b); b * b; h + h; -h; i % b; w % c; x % y; b / b; i / 0
x = y; x <> y; x < y; x <=> y; NOT x < y; i <=> b; x BETWEEN y AND x; x IN (1.5, y); isnan(x); greatest(x, y); least(x, y); greatest(f, f)
d - e; d - e > INTERVAL 3 DAYS; abs(d - e) <= 3; t - n; t - d; d + b; date_sub(d, i); t + INTERVAL 1 DAY * b; d < t; datediff(t, d)
CAST(b AS INT); CAST(b AS TINYINT); CAST(x AS INT); CAST(x AS BIGINT); CAST(x AS FLOAT); CAST(x AS DECIMAL(38,10)); CAST(w AS DECIMAL(12,4))
CAST(w AS INT); CAST(w AS DOUBLE); CAST(b AS DECIMAL(10,0)); CAST(s AS INT); CAST(s AS DOUBLE); CAST(s AS DECIMAL(10,2)); CAST(s AS BOOLEAN)
CAST(s AS DATE); CAST(s AS TIMESTAMP); CAST(z AS STRING); CAST(t AS STRING); CAST(n AS STRING); CAST(d AS STRING); CAST(x AS STRING)
CAST(w AS STRING); CAST(d AS TIMESTAMP); CAST(t AS BIGINT); CAST(k AS DOUBLE); CAST(k AS STRING); CAST(x AS BOOLEAN); CAST(w AS BOOLEAN)
round(x, 2); round(w, 3); floor(w); ceil(w); floor(f); unix_micros(t); unix_millis(t); unix_seconds(n); unix_date(d); timestamp_micros(b)
CASE WHEN x > y THEN c ELSE w END; coalesce(f, x); coalesce(c, i); nullif(x, y); IF(k, d, CAST(t AS DATE)); z < z; k > (i > 0)
w = c; w < c; w + 1 > c; w IN (1, 2.50, b); c = x; b = x; b > 0.5; 5; NULL; 'x'; TRUE AND k; i + 1 IS NULL; -0e0 = 0e0
"""


def extreme_batch(seed: int, count: int) -> pa.RecordBatch:
    """Rows with the ends of every type, numbers without a value, and texts that look like numbers."""
    rng = random.Random(seed)
    bits = {"i": 32, "b": 64, "h": 8, "d": 32, "e": 32, "t": 64, "n": 64}
    texts = [
        "",
        " ",
        "NaN",
        "inf",
        "-1.5e3",
        "0x10",
        "2147483648",
        "1_0",
        "2024-02-30",
        "2024-02-29 23:59:60",
        "9999-12-31",
        "true",
        "½",
        "\0",
    ]

    def cell(name: str) -> Any:
        if rng.random() < 0.1:
            return None
        if name in bits:
            half = 1 << (bits[name] - 1)
            return rng.choice([-half, -half + 1, half - 1, 0, 1, -1, rng.randint(-half, half - 1)])
        if name in ("c", "w"):
            most = 10 ** (10 if name == "c" else 38) - 1
            number = rng.choice([most, -most, 0, 1, rng.randint(-most, most)])
            return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -2 if name == "c" else -10))
        if name in ("x", "y", "f"):
            return rng.choice([NAN, INF, -INF, 0.0, -0.0, 5e-324, 2.0**53, 2.0**63, -(2.0**63), 3.4e38, 0.005, 1.005])
        return rng.choice(texts) if name in ("s", "q") else rng.random() < 0.5 if name == "k" else rng.choice([b"", b"\xff", b"a"])

    rows = [{name: cell(name) for name in SCHEMA.names} for _ in range(count)]
    return pa.RecordBatch.from_arrays([array(name, [row[name] for row in rows]) for name in SCHEMA.names], list(SCHEMA.names))


@pytest.mark.parametrize("sql", [sql.strip() for sql in (AGREED + MORE).replace("\n", ";").split(";") if sql.strip()])
def test_a_row_has_the_same_value_alone_and_among_others(sql: str) -> None:
    """So no row's overflow, and no buffer's offset, changes another row's result; and nothing raises."""
    expression = parse_expression(sql, {"o": SCHEMA})
    evaluator = Evaluator(expression)
    batch = extreme_batch(seed=3, count=24)
    columns = {("o", name): batch.column(name) for name in SCHEMA.names}
    whole = evaluator.evaluate(columns)
    whole.validate(full=True)
    assert whole.type == arrow_type(expression.type)
    assert len(whole) == batch.num_rows
    for row in range(batch.num_rows):
        alone = evaluator.evaluate({name: values.slice(row, 1) for name, values in columns.items()})
        assert alone.equals(whole.slice(row, 1)) or repr(storage(alone)) == repr(storage(whole.slice(row, 1))), {
            name: storage(values.slice(row, 1)) for name, values in columns.items() if name in expression.columns
        }
    assert len(evaluator.evaluate({name: values.slice(0, 0) for name, values in columns.items()})) == 0


def storage(values: pa.Array) -> list[Any]:
    """The values as Python's, times as integers: Python has no year 10000."""
    if pa.types.is_date(values.type):
        values = values.view(pa.int32())
    elif pa.types.is_temporal(values.type):
        values = values.view(pa.int64())
    return values.to_pylist()


@pytest.mark.parametrize(
    ("sql", "columns", "values"),
    [
        ("b + 1", {"b": [MAX, MIN, None]}, [None, MIN + 1, None]),
        ("b + 1 > b", {"b": [MAX, MIN, None]}, [True, True, None]),
        ("b * b > 0", {"b": [MAX, MIN, 0]}, [True, True, False]),
        ("b * b * b * b * b > 0", {"b": [MAX, MIN]}, [True, False]),
        ("abs(b)", {"b": [MIN, -1]}, [None, 1]),
        ("abs(b) > 0", {"b": [MIN, -1]}, [True, True]),
        ("i + 1", {"i": [2**31 - 1, 1]}, [None, 2]),
        ("h * h", {"h": [127, -1]}, [None, 1]),
        ("w * w", {"w": [Decimal("12345678901234567890.5")]}, [None]),
        ("w * w > w", {"w": [Decimal("9999999999999999999999999999.9999999999")]}, [True]),
        ("w / c", {"w": [Decimal("1e20")], "c": [Decimal("0.01")]}, [Decimal("1e22")]),
        ("c / 3", {"c": [Decimal(1), Decimal(-2), None]}, [Decimal("0.333333"), Decimal("-0.666667"), None]),
        ("t + INTERVAL 1 MICROSECOND", {"t": [MAX]}, [None]),
        ("t + INTERVAL 1 MICROSECOND > t", {"t": [MAX]}, [True]),
        ("d + 1", {"d": [2**31 - 1]}, [None]),
        ("d + 1 > d", {"d": [2**31 - 1]}, [True]),
        ("d < t", {"d": [2**31 - 1, -(2**31)], "t": [MAX, MIN]}, [False, True]),
    ],
)
def test_numbers_are_exact_in_comparisons_and_null_where_a_value_does_not_fit(
    sql: str, columns: dict[str, list[Any]], values: list[Any]
) -> None:
    assert evaluate(sql, **columns) == values


def test_nan_matches_nothing() -> None:
    x, y = [NAN, NAN, 1.0, None], [NAN, 1.0, NAN, NAN]
    for operator in ("=", "<>", "<", "<=", ">", ">=", "<=>"):
        assert [bool(value) for value in evaluate(f"x {operator} y", x=x, y=y)] == [False] * 4
    assert [bool(value) for value in evaluate("x BETWEEN y AND y", x=x, y=y)] == [False] * 4
    assert evaluate("x = -0e0", x=[0.0, -0.0]) == [True, True]
    assert evaluate("isnan(x)", x=x) == [True, True, False, False]


def test_nulls_follow_three_valued_logic() -> None:
    k = [True, False, None]
    assert evaluate("k AND NULL", k=k) == [None, False, None]
    assert evaluate("k OR NULL", k=k) == [True, None, None]
    assert evaluate("NOT k", k=k) == [False, True, None]
    assert evaluate("b IN (1, NULL)", b=[1, 2, None]) == [True, None, None]
    assert evaluate("NOT b IN (1, 3)", b=[1, 2, None]) == [False, True, None]
    assert evaluate("s IN ('a', NULL)", s=["a", "b", None]) == [True, None, None]
    assert evaluate("b BETWEEN 1 AND NULL", b=[0, 2]) == [False, None]
    assert evaluate("b <=> i", b=[1, None, None], i=[1, None, 1]) == [True, True, False]
    assert evaluate("CASE WHEN b > 0 THEN 'p' END", b=[1, 0, None]) == ["p", None, None]


def test_an_integer_is_compared_with_a_double_as_a_double() -> None:
    assert evaluate("b = 9007199254740993e0", b=[2**53 + 1, 2**53, 2**53 + 2]) == [True, True, False]
    assert evaluate("c = x", c=[Decimal("0.10")], x=[0.1]) == [True]
    assert evaluate("f = 0.1", f=[0.1]) == [False], "a FLOAT is widened, so it is not the DOUBLE nearest to 0.1"


def test_what_cannot_be_cast_is_null() -> None:
    assert evaluate("CAST(s AS INT)", s=["1.9", "-1.9", " 7 ", "+5", "x", "99999999999", "1_0", ""]) == [
        1,
        -1,
        7,
        5,
        None,
        None,
        None,
        None,
    ]
    assert evaluate("CAST(s AS DATE)", s=["2024-02-29", "2023-02-29", "x"]) == [datetime.date(2024, 2, 29), None, None]
    assert evaluate("CAST(x AS INT)", x=[1.9, -1.9, NAN, 3e9, INF]) == [1, -1, None, None, None]
    assert evaluate("CAST(x AS DECIMAL(5,2))", x=[1.005, 2.675, NAN, 1234.5]) == [Decimal("1.01"), Decimal("2.68"), None, None]
    assert evaluate("CAST(b AS TINYINT)", b=[127, 128, -129]) == [127, None, None]
    assert evaluate("CAST(z AS STRING)", z=[b"\xff", b"a"]) == [None, "a"]
    assert evaluate("CAST(t AS STRING)", t=[0, 1_500_000, -1]) == [
        "1970-01-01 00:00:00",
        "1970-01-01 00:00:01.5",
        "1969-12-31 23:59:59.999999",
    ]
    assert evaluate("CAST(w AS STRING)", w=[Decimal("1E-10")]) == ["1E-10"]


def test_division_by_zero_is_null() -> None:
    assert evaluate("i / 0", i=[5]) == [None]
    assert evaluate("i % b", i=[-5, -5], b=[0, 3]) == [None, -2]
    assert evaluate("x / y", x=[1.0, 0.0], y=[0.0, -0.0]) == [None, None]
    assert evaluate("c / i", c=[Decimal(1)], i=[0]) == [None]
    assert evaluate("b % i", b=[MIN], i=[-1]) == [0]


def test_rounding_is_half_away_from_zero() -> None:
    assert evaluate("round(x)", x=[0.5, 1.5, -0.5, 0.49999999999999994]) == [1.0, 2.0, -1.0, 0.0]
    assert evaluate("round(x, 2)", x=[1.005, 2.675]) == [1.01, 2.68]
    assert evaluate("round(c, 1)", c=[Decimal("0.25"), Decimal("-0.25"), Decimal("99999999.99")]) == [
        Decimal("0.3"),
        Decimal("-0.3"),
        Decimal("100000000.0"),
    ]


def test_the_greatest_of_instants() -> None:
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    later = moment + datetime.timedelta(seconds=1)
    assert evaluate("greatest(t, t + INTERVAL 1 SECOND)", t=[moment, None]) == [later, None]
    assert evaluate("least(t, t + INTERVAL 1 SECOND)", t=[moment, None]) == [moment, None]
    assert evaluate("greatest(nullif(t, t), t)", t=[moment]) == [moment]


def test_the_greatest_skips_nulls_and_nan_is_above_all_numbers() -> None:
    x, y = [NAN, 1.0, None, None], [1.0, 2.0, 3.0, None]
    assert [str(value) for value in evaluate("greatest(x, y)", x=x, y=y)] == ["nan", "2.0", "3.0", "None"]
    assert evaluate("least(x, y)", x=x, y=y) == [1.0, 1.0, 3.0, None]


def test_an_expression_without_columns_has_a_value_for_every_row() -> None:
    expression = parse_expression("1 + 1", {"o": SCHEMA})
    assert Evaluator(expression).evaluate({}, 3).to_pylist() == [2, 2, 2]
    assert len(Evaluator(expression).evaluate({}, 0)) == 0
    assert Evaluator(parse_boolean("1 < 2", {"o": SCHEMA})).select({}, 3).tolist() == [0, 1, 2]


def test_only_rows_where_the_condition_is_true_are_selected() -> None:
    evaluator = pickle.loads(pickle.dumps(Evaluator(parse_boolean("b > 1", {"o": SCHEMA}))))
    rows = evaluator.select({("o", "b"): pa.array([2, None, 1, 3])})
    assert rows.dtype == np.int64
    assert rows.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("text", "upper", "lower"),
    [
        ("straße", "STRASSE", "straße"),
        ("\u0149", "\u02bcN", "\u0149"),
        ("ﬁ", "FI", "ﬁ"),
        ("İ", "İ", "i\u0307"),
        ("ΌΣΟΣ", "ΌΣΟΣ", "όσος"),
        ("ẞ", "ẞ", "ß"),
        ("ǆ", "Ǆ", "ǆ"),
        ("aZ", "AZ", "az"),
    ],
)
def test_upper_and_lower_case_are_those_of_spark(text: str, upper: str, lower: str) -> None:
    assert evaluate("upper(s)", s=[text, None, "é"]) == [upper, None, "É"]
    assert evaluate("lower(s)", s=[text, None]) == [lower, None]
