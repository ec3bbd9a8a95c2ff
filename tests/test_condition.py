"""The main predicates that a condition gives: together with its residual, each admits exactly the pairs that satisfy it.

The property test makes conditions as SQL text and, beside it, as Python functions over fractions, floats and integers: the
oracle never sees the text, and shares no code with the parser, the encoder or the evaluator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cases import some
from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.types import arrow_schema, arrow_type
from streamjoin.language.choice import choose
from streamjoin.language.condition import Condition, parse_condition
from streamjoin.language.ddl import parse_schema
from streamjoin.language.errors import SqlError
from streamjoin.language.layout import layouts
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate, Predicate
from streamjoin.language.sql import parse_boolean

DDL = (
    "i1 TINYINT, i2 SMALLINT, i4 INT, i8 BIGINT, j8 BIGINT, c DECIMAL(10,2), m DECIMAL(18,4), w DECIMAL(38,10), v DECIMAL(38,0), "
    "x DOUBLE, y DOUBLE, f FLOAT, s STRING, z BINARY, d DATE, e DATE, t TIMESTAMP, u TIMESTAMP, n TIMESTAMP_NTZ, k BOOLEAN"
)
SCHEMA = parse_schema(DDL)
STREAMS = (("l", SCHEMA), ("r", SCHEMA))
DAY = 86_400_000_000
Row = dict[str, Any]
Value = Any
"""A number of the oracle: Fraction (exact), float, or None for NULL."""


@dataclass(frozen=True)
class Term:
    """Some SQL and what it means on a pair of rows."""

    sql: str
    value: Callable[[Row, Row], Value]


def column(rng: random.Random, side: int, names: Sequence[str]) -> Term:
    name = rng.choice(names)
    return Term(f"{'lr'[side]}.{name}", lambda left, right: (left, right)[side][name])


def lifted(function: Callable[..., Value], *terms: Term) -> Callable[[Row, Row], Value]:
    """The function of the terms' values, NULL when one is."""

    def value(left: Row, right: Row) -> Value:
        values = [term.value(left, right) for term in terms]
        return None if None in values else function(*values)

    return value


def constant(sql: str, value: Value) -> Term:
    return Term(sql, lambda left, right: value)


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a < b or a > b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
EXACT = ("i1", "i2", "i4", "i8", "j8", "c", "m", "w", "v")


def exact_literal(rng: random.Random) -> Term:
    text = rng.choice(["0", "1", "5", "0.5", "0.01", "2.345", "9223372036854775807", "10000000000000000000", "-3", "-0.01"])
    return constant(text, Fraction(text))


def exact_side(rng: random.Random, side: int, depth: int = 0) -> Term:
    kind = rng.random()
    if kind < 0.45 or depth > 1:
        return column(rng, side, EXACT)
    if kind < 0.6:
        factor = rng.choice(["2", "3", "0.5", "-1", "10"])
        inner = exact_side(rng, side, depth + 1)
        return Term(f"{factor} * ({inner.sql})", lifted(lambda a: a * Fraction(factor), inner))
    if kind < 0.68:
        inner = exact_side(rng, side, depth + 1)
        return Term(f"-({inner.sql})", lifted(lambda a: -a, inner))
    if kind < 0.74:
        inner = exact_side(rng, side, depth + 1)
        return Term(f"abs({inner.sql})", lifted(abs, inner))
    if kind < 0.77:
        inner = column(rng, side, EXACT)
        return Term(f"{inner.sql} % 7", lifted(lambda a: a - 7 * int(Fraction(a) / 7), inner))
    if kind < 0.8:
        inner = column(rng, side, ("i4", "i8", "j8"))
        value = lambda left, right: None if (n := inner.value(left, right)) is None or not -(2**31) <= n < 2**31 else n  # noqa: E731
        return Term(f"CAST({inner.sql} AS INT)", value)
    if kind < 0.83:
        inner = column(rng, side, "dt")
        return Term(f"{'unix_date' if inner.sql.endswith('d') else 'unix_micros'}({inner.sql})", inner.value)
    if kind < 0.87:
        first, second = column(rng, side, EXACT), column(rng, side, EXACT)
        return Term(f"{first.sql} * {second.sql}", lifted(lambda a, b: a * b, first, second))
    first, second = exact_side(rng, side, depth + 1), exact_literal(rng) if rng.random() < 0.6 else exact_side(rng, side, depth + 1)
    if rng.random() < 0.5:
        return Term(f"({first.sql}) + {second.sql}", lifted(lambda a, b: a + b, first, second))
    return Term(f"({first.sql}) - ({second.sql})", lifted(lambda a, b: a - b, first, second))


def compared(rng: random.Random, first: Term, second: Term, operators: Sequence[str] = tuple(COMPARE)) -> Term:
    operator = rng.choice(operators)
    if rng.random() < 0.5:
        first, second = second, first
    return Term(f"{first.sql} {operator} {second.sql}", lifted(COMPARE[operator], first, second))


def banded(rng: random.Random, first: Term, second: Term, width: Callable[[], Term]) -> Term:
    """BETWEEN, a pair of inequalities, or abs(a - b) <= c."""
    low, high = width(), width()
    minus = Term(f"{second.sql} - {low.sql}", lifted(lambda a, b: a - b, second, low))
    plus = Term(f"{second.sql} + {high.sql}", lifted(lambda a, b: a + b, second, high))
    difference = Term(f"{first.sql} - {second.sql}", lifted(lambda a, b: a - b, first, second))
    kind = rng.randrange(4)
    if kind == 0:
        value = lifted(lambda a, b, c: b <= a <= c, first, minus, plus)
        return Term(f"{first.sql} BETWEEN {minus.sql} AND {plus.sql}", value)
    if kind == 1:
        value = lifted(lambda a, b, c: b < a <= c, first, minus, plus)
        return Term(f"{minus.sql} < {first.sql} AND {first.sql} <= {plus.sql}", value)
    operator = rng.choice(["<", "<="])
    if kind == 2:
        return Term(f"abs({difference.sql}) {operator} {low.sql}", lifted(lambda a, b: COMPARE[operator](abs(a), b), difference, low))
    return Term(f"{difference.sql} {operator} {low.sql}", lifted(COMPARE[operator], difference, low))


def exact_condition(rng: random.Random) -> Term:
    first, second = exact_side(rng, 0), exact_side(rng, 1)
    kind = rng.random()
    if kind < 0.6:
        if kind < 0.2:
            extra = exact_side(rng, rng.randrange(2), 2)
            first = Term(f"{first.sql} - ({extra.sql})", lifted(lambda a, b: a - b, first, extra))
        return compared(rng, first, second)
    first, second = column(rng, 0, EXACT), column(rng, 1, EXACT)
    return banded(rng, first, second, lambda: exact_literal(rng))


def as_float(term: Term) -> Term:
    return Term(term.sql, lifted(float, term))


def float_side(rng: random.Random, side: int) -> Term:
    kind = rng.random()
    inner = column(rng, side, ("x", "y", "f"))
    if kind < 0.6:
        return inner
    if kind < 0.7:
        divisor = rng.choice([3.0, 0.1, -1e-300])
        return Term(f"{inner.sql} / {divisor!r}", lifted(lambda a: a / divisor, inner))
    if kind < 0.8:
        factor = rng.choice([2.0, 0.1, -3.0, 1e300])
        return Term(f"{inner.sql} * {factor!r}", lifted(lambda a: a * factor, inner))
    extra = column(rng, side, ("x", "f"))
    return Term(f"({inner.sql} + {extra.sql})", lifted(lambda a, b: a + b, inner, extra))


def float_condition(rng: random.Random) -> Term:
    first, second = float_side(rng, 0), float_side(rng, 1)
    kind = rng.random()
    if kind < 0.2:
        return compared(rng, first, as_float(column(rng, 1, EXACT)))
    if kind < 0.45:
        return compared(rng, first, second)
    text = rng.choice(["0", "0.01", "5", "1e-3", "1e10", "9007199254740993"])
    width = constant(text, float(text))
    if kind < 0.6:
        total = Term(f"{first.sql} + {second.sql}", lifted(lambda a, b: a + b, first, second))
        return compared(rng, total, width)
    if kind < 0.7:
        moved = Term(f"{second.sql} + {width.sql}", lifted(lambda a, b: a + b, second, width))
        return compared(rng, first, moved)
    return banded(rng, first, second, lambda: width)


INTERVALS = {"5 SECONDS": 5_000_000, "1 MICROSECOND": 1, "1 DAY": DAY, "3 DAYS": 3 * DAY, "0 SECONDS": 0, "36 HOURS": DAY * 3 // 2}


def interval(rng: random.Random) -> Term:
    text = rng.choice(list(INTERVALS))
    return constant(f"INTERVAL {text}", INTERVALS[text])


def time_condition(rng: random.Random) -> Term:
    kind = rng.random()
    if kind < 0.4:
        return banded(rng, column(rng, 0, "tun"), column(rng, 1, "tun"), lambda: interval(rng))
    if kind < 0.5:
        return compared(rng, column(rng, 0, "tun"), column(rng, 1, "tun"))
    days = [column(rng, side, "de") for side in (0, 1)]
    if kind < 0.6:
        return compared(rng, *days)
    if kind < 0.75:
        count = rng.randrange(4)
        return banded(rng, *days, lambda: constant(str(count), count))
    if kind < 0.85:
        count = rng.randrange(4)
        moved = Term(f"date_add({days[1].sql}, {count})", lifted(lambda a: a + count, days[1]))
        return compared(rng, days[0], moved)
    if kind < 0.95:
        micros = Term(days[0].sql, lifted(lambda a: a * DAY, days[0]))
        return compared(rng, micros, column(rng, 1, "tn"))
    second = column(rng, 1, "tu")
    later = Term(f"({days[0].sql} + INTERVAL 1 HOUR)", lifted(lambda a: a * DAY + 3_600_000_000, days[0]))
    difference = Term(f"{second.sql} - {later.sql}", lifted(lambda a, b: a - b, second, later))
    return compared(rng, difference, interval(rng)) if rng.random() < 0.3 else compared(rng, later, second)


def plain_condition(rng: random.Random) -> Term:
    name = rng.choice("szk")
    operators = ("=", "<>") if name == "k" else tuple(COMPARE)
    return compared(rng, column(rng, 0, name), column(rng, 1, name), operators)


def one_sided(rng: random.Random) -> Term:
    return compared(rng, column(rng, rng.randrange(2), ("i4", "c")), exact_literal(rng))


def true_or_null(function: Callable[[list[Value]], Value], terms: list[Term]) -> Callable[[Row, Row], Value]:
    return lambda left, right: function([term.value(left, right) for term in terms])


def condition(rng: random.Random) -> Term:
    makers = [exact_condition, exact_condition, float_condition, time_condition, plain_condition]
    terms = [rng.choice(makers)(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    if rng.random() < 0.15:
        terms.append(one_sided(rng))
    if rng.random() < 0.1:
        either = [rng.choice(makers)(rng) for _ in range(2)]
        terms.append(Term(f"({either[0].sql} OR {either[1].sql})", true_or_null(lambda values: any(v is True for v in values), either)))
    if (
        len(terms) == 1
        and rng.random() < 0.1
        and " AND " not in terms[0].sql
        and not any(f"{q}.{c}" in terms[0].sql for q in "lr" for c in "xyf")
    ):
        inner = terms[0]
        return Term(f"NOT ({inner.sql})", lifted(lambda a: not a, inner))
    return Term(" AND ".join(term.sql for term in terms), true_or_null(lambda values: all(v is True for v in values), terms))


INTEGERS = {"i1": 8, "i2": 16, "i4": 32, "i8": 64, "j8": 64, "d": 32, "e": 32, "t": 64, "u": 64, "n": 64}
DECIMALS = {"c": (10, 2), "m": (18, 4), "w": (38, 10), "v": (38, 0)}
TEXTS = [
    "",
    "a",
    "ab",
    "abcdefgh",
    "abcdefghi",
    "abcdefgh\0",
    "żółw",
    "żółwia",
    "żółw\U0001f422",
    "\U0001f422",
    "~",
    "zzzzzzzzzzzzzzzzzz",
    "zzzzzzzzzzzzzzzzzy",
    "\x00",
]
FLOATS = [
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    5e-324,
    1.7976931348623157e308,
    -1.7976931348623157e308,
    2.0**53,
    2.0**53 + 2,
    0.1,
    0.3,
    1e-3,
    1e300,
]


def cell(rng: random.Random, name: str) -> Value:
    """A value of a column as its Python number: mostly small, so that pairs match, and often at the ends of the type."""
    if rng.random() < 0.1:
        return None
    near = rng.random() < 0.6
    if name in INTEGERS:
        half = 1 << (INTEGERS[name] - 1)
        scale = DAY if name in "tun" and rng.random() < 0.7 else 1
        return (
            rng.randint(-4, 4) * scale + rng.randint(-1, 1)
            if near
            else rng.choice([-half, -half + 1, half - 1, half - 2, half // 2, rng.randint(-half, half - 1)])
        )
    if name in DECIMALS:
        precision, scale = DECIMALS[name]
        most = 10**precision - 1
        unscaled = (
            rng.randint(-300, 300) * 10 ** max(scale - 2, 0) if near else rng.choice([most, -most, most - 1, rng.randint(-most, most)])
        )
        return Fraction(unscaled, 10**scale)
    if name in "xyf":
        value = rng.randint(-3, 3) + rng.choice([0, 0.5, 0.01]) if near else rng.choice([*FLOATS, rng.uniform(-10, 10)])
        with np.errstate(over="ignore"):
            return float(np.float32(value)) if name == "f" else float(value)
    if name == "s":
        return rng.choice(TEXTS)
    return rng.choice(TEXTS).encode() if name == "z" else rng.random() < 0.5


def rows(rng: random.Random, count: int) -> list[Row]:
    return [{name: cell(rng, name) for name in SCHEMA.names} for _ in range(count)]


def stored(value: Value, name: str) -> Value:
    """What Arrow takes for a value."""
    if value is None or name not in DECIMALS:
        return value
    scale = DECIMALS[name][1]
    unscaled = int(value * 10**scale)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def batch(table: list[Row]) -> pa.RecordBatch:
    arrays = []
    for item in SCHEMA.columns:
        values = [stored(row[item.name], item.name) for row in table]
        whole = {"DATE": pa.int32(), "TIMESTAMP": pa.int64(), "TIMESTAMP_NTZ": pa.int64()}.get(str(item.type))
        arrays.append(pa.array(values, whole).cast(arrow_type(item.type)) if whole else pa.array(values, arrow_type(item.type)))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(SCHEMA))


def admits(main: MainPredicate, left: Any, right: Any) -> bool:
    """The main predicate on two keys, as the kernel promises to evaluate it."""
    if main.kind is MainKind.NOT_EQUAL:
        return bool(left != right)
    if not main.is_float:
        return (main.low is None or left + main.low <= right) and (main.high is None or right <= left + main.high)
    if main.slack and (math.isinf(left) or math.isinf(right)):
        return True
    slack = main.slack * abs(left) + main.slack * abs(right) if main.slack else 0.0

    def above(first: float, second: float, bound: float | None, strict: bool) -> bool:
        if bound is None:
            return True
        if bound == 0 and not slack:
            return first > second if strict else first >= second
        return first - second > bound - slack if strict else first - second >= bound - slack

    return above(right, left, main.low, main.low_strict) and above(left, right, None if main.high is None else -main.high, main.high_strict)


def admitted(predicate: Predicate, left: pa.RecordBatch, right: pa.RecordBatch) -> set[tuple[int, int]]:
    """The pairs that main predicate and residual admit."""
    main = predicate.main
    pairs = [(a, b) for a in range(left.num_rows) for b in range(right.num_rows)]
    if main.kind is not MainKind.ALL:
        keys = []
        for side, key in zip((left, right), main.keys, strict=True):
            values, valid = encode_keys(side, key, SCHEMA)
            assert values.dtype == (np.float64 if main.is_float else np.int64)
            assert not np.isnan(values[slice(None) if valid is None else valid]).any()
            keys.append(
                [
                    None if valid is not None and not ok else value
                    for value, ok in zip(values.tolist(), [True] * len(values) if valid is None else valid, strict=True)
                ]
            )
        pairs = [(a, b) for a, b in pairs if keys[0][a] is not None and keys[1][b] is not None and admits(main, keys[0][a], keys[1][b])]
    if predicate.residual is None:
        return set(pairs)
    residual = parse_boolean(predicate.residual, {"l": SCHEMA, "r": SCHEMA})
    taken = {0: pa.array([a for a, _ in pairs], pa.int64()), 1: pa.array([b for _, b in pairs], pa.int64())}
    columns = {
        (stream, name): (left, right)["lr".index(stream)].column(name).take(taken["lr".index(stream)]) for stream, name in residual.columns
    }
    return {pairs[index] for index in Evaluator(residual).select(columns, len(pairs))}


def check(seed: int, count: int = 10) -> Condition:
    rng = random.Random(seed)
    wanted = condition(rng)
    tables = [rows(rng, count), rows(rng, count)]
    try:
        expected = {(a, b) for a in range(count) for b in range(count) if wanted.value(tables[0][a], tables[1][b]) is True}
    except OverflowError:
        pytest.skip("the oracle's floats overflow")
    parsed = parse_condition(wanted.sql, STREAMS)
    batches = [batch(table) for table in tables]
    for predicate in (*parsed.candidates, Predicate(MainPredicate(MainKind.ALL), wanted.sql)):
        found = admitted(predicate, *batches)
        if found != expected:
            a, b = min(found ^ expected)
            names = [name for name in SCHEMA.names if f".{name}" in wanted.sql]
            pytest.fail(
                f"seed {seed}: {wanted.sql}\nby {predicate}\n{'lost' if (a, b) in expected else 'invented'}: "
                f"left { {name: tables[0][a][name] for name in names} } right { {name: tables[1][b][name] for name in names} }"
            )
    return parsed


@pytest.mark.parametrize("block", some(range(15), of=3))
def test_every_candidate_admits_exactly_the_pairs_that_satisfy_the_condition(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        check(seed)


def shown(main: MainPredicate) -> str:
    """A main predicate in short: left key, right key, encoding, bounds."""
    if not main.keys:
        return main.kind.value
    left, right = main.keys
    keys = f"{', '.join(left.sql)} | {', '.join(right.sql)} | {left.encoding.value}"
    if main.kind is MainKind.NOT_EQUAL:
        return f"{keys} | differ"
    low = "" if main.low is None else f"{main.low} {'<' if main.low_strict else '<='} "
    high = "" if main.high is None else f" {'<' if main.high_strict else '<='} {main.high}"
    return f"{keys} | {low}r-l{high}{' near' if main.slack else ''}{' recheck' if main.recheck else ''}"


@pytest.mark.parametrize(
    ("on", "main"),
    [
        ("l.i8 = r.i8", "i8 | i8 | hash | 0 <= r-l <= 0"),
        ("l.s = r.s AND l.i4 = r.i8", "s, i4 | s, i8 | hash | 0 <= r-l <= 0 recheck"),
        ("l.c = r.m + 1", "c - 1 | m | hash | 0 <= r-l <= 0"),
        ("l.x = r.i4", "x | i4 | hash | 0 <= r-l <= 0"),
        ("l.d = r.d", "d | d | hash | 0 <= r-l <= 0"),
        ("l.i4 < r.i8", "i4 | i8 | integer | 1 <= r-l"),
        ("r.i4 <= l.i8", "i8 | i4 | integer | r-l <= 0"),
        ("l.i8 >= r.j8 - 5 AND l.i8 < r.j8 + 5", "i8 | j8 | integer | -4 <= r-l <= 5"),
        ("l.i8 BETWEEN r.j8 - 5 AND r.j8 + 5", "i8 | j8 | integer | -5 <= r-l <= 5"),
        ("r.i8 - l.i8 BETWEEN -1 AND 2", "i8 | i8 | integer | -1 <= r-l <= 2"),
        ("2 * l.i4 <= 2 * r.i4 + 1", "i4 | i4 | integer | 0 <= r-l"),
        ("l.i4 + r.i4 < 10", "-i4 | i4 | integer | r-l <= 9"),
        ("l.i8 + r.i8 < 10", "-i8 - 1 | i8 | integer | r-l <= 10"),
        ("abs(l.c - r.c) <= 0.015", "c | c | integer | -1 <= r-l <= 1"),
        ("abs(l.c - r.m) < 0.5", "c | m | integer | -4999 <= r-l <= 4999"),
        ("abs(l.w - r.w) < 0.5", "w | w | float | -0.5 <= r-l <= 0.5 near recheck"),
        ("2 * l.i8 <= r.i8 + 1", "i8 * 2 | i8 | float | -1.0 <= r-l near recheck"),
        ("abs(l.x - r.f) <= 0.01", "x | f | float | -0.01 <= r-l <= 0.01"),
        ("l.x - r.x < 3", "x | x | float | -3.0 < r-l"),
        ("l.x + r.x > 3", "x | -x | float | r-l < -3.0"),
        ("l.x * 2 + 1 < r.x / 3", "x * 2 + 1 | x / 3 | float | 0.0 < r-l"),
        ("l.x BETWEEN r.x - 5 AND r.x + 5", "x | x | float | -5.0 <= r-l <= 5.0 near recheck"),
        ("l.t BETWEEN r.u - INTERVAL 5 SECONDS AND r.u", "t | u | integer | 0 <= r-l <= 5000000"),
        ("abs(l.t - r.n) < INTERVAL 1 MILLISECOND", "t | n | integer | -999 <= r-l <= 999"),
        ("abs(l.d - r.d) <= 3", "d | d | integer | -3 <= r-l <= 3"),
        ("abs(datediff(l.d, r.d)) <= 3", "d | d | integer | -3 <= r-l <= 3"),
        ("l.d - r.d < INTERVAL 2 DAYS", "d | d | integer | -1 <= r-l"),
        ("l.s < r.s", "s | s | prefix | 0 <= r-l recheck"),
        ("l.i8 <> r.i8", "i8 | i8 | integer | differ"),
        ("l.x <> r.x", "x | x | float | differ"),
        ("NOT l.i4 <= r.i4", "i4 | i4 | integer | r-l <= -1"),
        ("CAST(l.i4 AS BIGINT) < r.i8", "i4 | i8 | integer | 1 <= r-l"),
        ("l.i4 % 7 = r.i4 % 7", "i4 % 7 | i4 % 7 | hash | 0 <= r-l <= 0"),
        ("2 * l.i4 = 2 * r.i4 + 1", "i4 | i4 | integer | 0 <= r-l <= -1"),
    ],
)
def test_a_comparison_becomes_bounds_on_the_difference_of_two_keys(on: str, main: str) -> None:
    best = parse_condition(on, STREAMS).candidates[0]
    assert shown(best.main) == main
    assert (best.residual is not None) == best.main.recheck


def test_conjuncts_that_the_main_predicate_does_not_state_are_the_residual() -> None:
    parsed = parse_condition("abs(l.x - r.x) <= 1 AND l.s = r.s AND l.i4 < r.i4 AND l.k", STREAMS)
    assert [(shown(candidate.main), candidate.residual) for candidate in parsed.candidates] == [
        ("s | s | hash | 0 <= r-l <= 0 recheck", "abs(l.x - r.x) <= 1 AND l.s = r.s AND l.i4 < r.i4 AND l.k"),
        ("x | x | float | -1.0 <= r-l <= 1.0", "l.s = r.s AND l.i4 < r.i4 AND l.k"),
        ("i4 | i4 | integer | 1 <= r-l", "abs(l.x - r.x) <= 1 AND l.s = r.s AND l.k"),
    ]
    assert [(left_over.conjunct, left_over.reason) for left_over in parsed.unmatched] == [("l.k", "it does not compare the two streams")]


@pytest.mark.parametrize(
    ("on", "reason"),
    [
        ("l.i4 = r.i4 OR l.s = r.s", "a disjunction has no single key"),
        ("l.s <> r.s", "no key tells values of type STRING apart and orders them"),
        ("l.i4 <=> r.i4", "<=> matches nulls, which have no key"),
        ("abs(l.i4 - r.i4) > 5", "abs(l.i4 - r.i4) reads both streams"),
        ("l.i8 <> r.i8 + 1", "its values are too long for a key that tells them apart"),
        ("l.s LIKE '%x' AND contains(l.s, r.s)", "it is no comparison"),
        ("l.i4 - l.i4 < r.i4", "l.i4 cancels out, but where it is NULL nothing matches"),
    ],
)
def test_what_no_key_can_serve_is_compared_pair_by_pair_and_says_why(on: str, reason: str) -> None:
    parsed = parse_condition(on, STREAMS)
    assert [candidate.main.kind for candidate in parsed.candidates] == [MainKind.ALL]
    assert parsed.candidates[0].residual is not None
    assert reason in [unmatched.reason for unmatched in parsed.unmatched]


def test_a_condition_that_is_always_true_leaves_nothing_to_check() -> None:
    assert parse_condition("TRUE", STREAMS).candidates == (Predicate(MainPredicate(MainKind.ALL)),)


def test_a_main_predicate_is_written_as_the_checkpoints_that_there_are_have_it() -> None:
    """Another text for the same predicate, and a join could not go on from its checkpoint."""
    key = (
        "KeyExpression(sql=('{}',), types=(DataType(name=<TypeName.BIGINT: 'BIGINT'>, precision=0, scale=0),), "
        "encoding=<Encoding.INTEGER: 'integer'>)"
    )
    assert str(parse_condition("r.i8 - l.i4 <= 5", STREAMS).candidates[0].main) == (
        f"MainPredicate(kind=<MainKind.RANGE: 'range'>, left={key.format('i4')}, right={key.format('i8')}, low=None, high=5, "
        "low_strict=False, high_strict=False, slack=0.0, recheck=False, text='r.i8 - l.i4 <= 5')"
    )
    assert str(MainPredicate(MainKind.ALL)) == (
        "MainPredicate(kind=<MainKind.ALL: 'all'>, left=None, right=None, low=None, high=None, "
        "low_strict=False, high_strict=False, slack=0.0, recheck=False, text='')"
    )


def test_streams_whose_names_differ_only_in_case_are_refused() -> None:
    with pytest.raises(SqlError, match="give them different names"):
        parse_condition("A.i4 = a.i4", (("A", SCHEMA), ("a", SCHEMA)))


def test_a_condition_that_is_no_condition_is_refused() -> None:
    with pytest.raises(SqlError, match="not a condition"):
        parse_condition("l.i4 + r.i4", STREAMS)


def chosen(on: str, left: dict[str, list[Any]], right: dict[str, list[Any]]) -> str:
    """The main predicate that is chosen by samples of these columns."""
    found = layouts([parse_condition(on, STREAMS)])
    samples: list[list[Any]] = []
    for side, columns in enumerate((left, right)):
        names = [name for name in SCHEMA.names if name in columns]
        sample = pa.RecordBatch.from_arrays([pa.array(columns[name], arrow_schema(SCHEMA).field(name).type) for name in names], names)
        keys = [layout.main.key(side) for layout in found]
        samples.append([np.empty(0) if key is None else valid_keys(sample, key) for key in keys])
    return shown(choose(found, list(zip(*samples, strict=True))).main).split(" | ", 1)[0]


def valid_keys(sample: pa.RecordBatch, key: KeyExpression) -> Any:
    values, valid = encode_keys(sample, key, SCHEMA)
    return values if valid is None else values[valid]


def test_the_candidate_that_admits_fewest_pairs_is_chosen() -> None:
    on = "l.s = r.s AND abs(l.x - r.x) <= 0.5"
    spread, close = [float(number) for number in range(200)], [0.1] * 200
    many, few = [f"customer {number}" for number in range(200)], ["EUR"] * 200
    assert chosen(on, {"s": few, "x": spread}, {"s": few, "x": spread}) == "x"
    assert chosen(on, {"s": many, "x": close}, {"s": many, "x": close}) == "s"
    assert chosen(on, {"s": many, "x": spread}, {"s": many, "x": spread}) == "s", "as few by either: the first by form"
    assert chosen(on, {"s": [], "x": []}, {"s": [], "x": []}) == "s", "nothing is known: the first by form"
    assert chosen("l.s = r.s AND l.i4 < r.i4 AND l.i4 > 0", {"s": few, "i4": [1] * 200}, {"s": few, "i4": [1] * 200}) == "i4"


def test_a_main_predicate_that_leaves_nothing_to_check_may_admit_more() -> None:
    on = "l.s < r.s AND l.s <= r.s AND l.i4 < r.i4"
    numbers = list(range(50))
    texts = [f"{number:03d}" for number in numbers]
    assert chosen(on, {"s": texts, "i4": numbers}, {"s": texts, "i4": numbers}) == "i4"


def test_one_sided_bounds_are_chosen_by_how_much_they_admit() -> None:
    on = "l.i8 < r.i8 AND l.j8 < r.j8"
    low, high = list(range(100)), list(range(90, 190))
    assert chosen(on, {"i8": low, "j8": high}, {"i8": high, "j8": low}) == "j8"
    assert chosen(on, {"i8": high, "j8": low}, {"i8": low, "j8": high}) == "i8"


def test_the_estimate_holds_at_the_ends_of_int64() -> None:
    on = "l.i8 BETWEEN r.i8 - 5 AND r.i8 + 5 AND abs(l.x - r.x) <= 1"
    ends = [2**63 - 1, -(2**63), 2**63 - 3]
    assert chosen(on, {"i8": ends, "x": [0.0] * 3}, {"i8": ends, "x": [0.0] * 3}) == "i8"


def test_the_reach_of_a_float_band_holds_every_key_that_it_admits() -> None:
    rng = random.Random(11)
    key = KeyExpression(("x",), (), Encoding.FLOAT)

    def number() -> float:
        return rng.choice(
            [rng.uniform(-10, 10), math.ldexp(rng.uniform(-1, 1), rng.randint(-1074, 1023)), rng.choice([0.0, 1.0, -1.0, 5e-324])]
        )

    tried = 0
    while tried < 5000:
        low, slack, left = number(), rng.choice([0.0, 2.0**-50]), number()
        main = MainPredicate(MainKind.RANGE, (key, key), low=low, slack=slack)
        right = (left + low) * (1 + rng.choice([0, 1, -1]) * 2.0**-52 * rng.randint(0, 12))
        if not math.isfinite(right) or not admits(main, left, right):
            continue
        tried += 1
        reached, reached_back = main.reach(left, left)[0], main.reach_back(right, right)[1]
        assert reached is not None
        assert reached_back is not None
        assert reached <= right, (left, right, low, slack)
        assert left <= reached_back, (left, right, low, slack)
