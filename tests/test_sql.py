"""SQL of the manifest: schemas and expressions are read as Spark reads them, and refused with what to write instead."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cases import some
from streamjoin.language.ddl import parse_schema
from streamjoin.language.errors import SqlError
from streamjoin.language.render import render
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sql import Expression, parse_boolean, parse_expression, parse_projection
from streamjoin.language.tree import Literal, Reference
from streamjoin.language.types import INT, INTERVAL, TypeName

ORDERS = parse_schema(
    "id BIGINT, Qty INT, small TINYINT, price DECIMAL(10,2), rate DOUBLE, f FLOAT, name STRING, raw BINARY, day DATE, `date` DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, ok BOOLEAN, `we``ird name` STRING"
)
PAYMENTS = parse_schema("id BIGINT, amount DECIMAL(12,4), paid DATE")
STREAMS = {"orders": ORDERS, "pay-ments": PAYMENTS}


def test_a_schema_is_read_from_spark_ddl() -> None:
    ddl = "id: bigint NOT NULL, `a b` string COMMENT 'it\\'s, here', price DECIMAL(10, 2), d decimal, n int comment \"x\", at TIMESTAMP_LTZ"
    schema = parse_schema(ddl)
    assert schema.names == ("id", "a b", "price", "d", "n", "at")
    assert [str(column.type) for column in schema.columns] == ["BIGINT", "STRING", "DECIMAL(10,2)", "DECIMAL(10,0)", "INT", "TIMESTAMP"]


def test_every_type_that_a_column_may_have_can_be_declared() -> None:
    names = [name for name in TypeName if name is not TypeName.INTERVAL]
    schema = parse_schema(", ".join(f"c{number} {name}" for number, name in enumerate(names)))
    assert [column.type.name for column in schema.columns] == names


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "the schema has no columns"),
        ("id", "cannot read the schema at 'id'"),
        ("id BIGINT,", "cannot read the schema at ''"),
        ("id BIGINT name STRING", "cannot read the schema at"),
        ("id STRUCT<a: INT>", "cannot read the schema at"),
        ("id UUID", "unknown type UUID; use BOOLEAN, TINYINT"),
        ("id INTERVAL", "unknown type INTERVAL"),
        ("id INT(3)", "type INT takes no arguments"),
        ("p DECIMAL(39,2)", r"DECIMAL\(39,2\) is not a type; write DECIMAL\(p,s\) with 1 <= p <= 38"),
        ("p DECIMAL(3,4)", r"DECIMAL\(3,4\) is not a type"),
        ("p DECIMAL(1,2,3)", "is not a type"),
        ("id INT, ID STRING", "column ID is declared twice"),
        ("_key INT", "is the engine's own; rename it"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_with_a_remedy(ddl: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        parse_schema(ddl)


ROUND_TRIPS = [
    ("qty", "orders.Qty", "INT"),
    ("ORDERS.ID + `pay-ments`.id", "orders.id + `pay-ments`.id", "BIGINT"),
    ("`we``ird name`", "orders.`we``ird name`", "STRING"),
    ("orders.date", "orders.`date`", "DATE"),
    ("-9223372036854775808", "-9223372036854775808", "BIGINT"),
    ("-2147483648", "-2147483648", "INT"),
    ("9223372036854775808", "9223372036854775808", "DECIMAL(19,0)"),
    ("10L", "CAST(10 AS BIGINT)", "BIGINT"),
    ("1.50", "1.50", "DECIMAL(3,2)"),
    ("5.", "5.", "DECIMAL(1,0)"),
    ("1e-3", "0.001e0", "DOUBLE"),
    ("1.5D", "1.5e0", "DOUBLE"),
    ("-0e0", "-0.0e0", "DOUBLE"),
    ("'it\\'s' || 'a\\\\b'", "'it\\'sa\\\\b'", "STRING"),
    ("INTERVAL 1 DAY 2 HOURS", "INTERVAL '26' HOUR", "INTERVAL"),
    ("INTERVAL '1 02:03:04.5' DAY TO SECOND", "INTERVAL '93784500' MILLISECOND", "INTERVAL"),
    ("- INTERVAL 5 SECONDS", "INTERVAL '-5' SECOND", "INTERVAL"),
    ("TIMESTAMP '2024-01-01 00:00:00.5+02:00'", "TIMESTAMP '2023-12-31 22:00:00.5'", "TIMESTAMP"),
    ("at >= '2024-01-01'", "orders.at >= TIMESTAMP '2024-01-01 00:00:00'", "BOOLEAN"),
    ("day IN ('2024-01-01', NULL)", "orders.day IN (DATE '2024-01-01', CAST(NULL AS DATE))", "BOOLEAN"),
    ("qty - (qty - 1) - -1", "orders.Qty - (orders.Qty - 1) - -1", "INT"),
    ("-(-qty)", "-(-orders.Qty)", "INT"),
    ("2 * (qty + 1) % 3", "2 * (orders.Qty + 1) % 3", "INT"),
    ("(ok OR ok) AND NOT (qty = 1 AND ok)", "(orders.ok OR orders.ok) AND NOT (orders.Qty = 1 AND orders.ok)", "BOOLEAN"),
    ("(qty = 1) = ok", "(orders.Qty = 1) = orders.ok", "BOOLEAN"),
    ("qty <> 1 IS NULL", "(orders.Qty <> 1) IS NULL", "BOOLEAN"),
    ("name NOT LIKE 'a\\%%'", "NOT orders.name LIKE 'a\\\\%%'", "BOOLEAN"),
    ("orders.id NOT BETWEEN 1 AND qty + 1", "NOT orders.id BETWEEN 1 AND orders.Qty + 1", "BOOLEAN"),
    ("abs(day - paid) <= 3", "abs(datediff(orders.day, `pay-ments`.paid)) <= 3", "BOOLEAN"),
    ("day - paid", "orders.day - `pay-ments`.paid", "INTERVAL"),
    ("day + 1", "date_add(orders.day, 1)", "DATE"),
    ("day - INTERVAL 2 DAYS", "date_add(orders.day, -2)", "DATE"),
    ("date_sub(day, qty)", "date_add(orders.day, -orders.Qty)", "DATE"),
    ("day + INTERVAL 1 HOUR", "CAST(orders.day AS TIMESTAMP) + INTERVAL '1' HOUR", "TIMESTAMP"),
    ("at - local", "orders.at - orders.local", "INTERVAL"),
    ("INTERVAL 1 DAY * qty", "INTERVAL '1' DAY * orders.Qty", "INTERVAL"),
    ("CASE qty WHEN 1 THEN 'x' END", "CASE WHEN orders.Qty = 1 THEN 'x' ELSE CAST(NULL AS STRING) END", "STRING"),
    ("IF(ok, qty, price)", "CASE WHEN orders.ok THEN orders.Qty ELSE orders.price END", "DECIMAL(12,2)"),
    ("price::decimal(12,3)", "CAST(orders.price AS DECIMAL(12,3))", "DECIMAL(12,3)"),
    ("ifnull(name, 'x')", "coalesce(orders.name, 'x')", "STRING"),
    ("char_length(substr(name, -2))", "length(substring(orders.name, -2))", "INT"),
    ("year(at)", "year(CAST(orders.at AS DATE))", "INT"),
    ("price * price", "orders.price * orders.price", "DECIMAL(21,4)"),
    ("price + 1", "orders.price + 1", "DECIMAL(11,2)"),
    ("price / 3", "orders.price / 3", "DECIMAL(14,6)"),
    ("price / amount", "orders.price / `pay-ments`.amount", "DECIMAL(27,15)"),
    ("qty / small", "orders.Qty / orders.small", "DOUBLE"),
    ("f + f", "orders.f + orders.f", "DOUBLE"),
    ("price + rate", "orders.price + orders.rate", "DOUBLE"),
    ("floor(price)", "floor(orders.price)", "DECIMAL(9,0)"),
    ("round(price, 1)", "round(orders.price, 1)", "DECIMAL(10,1)"),
    ("greatest(qty, orders.id, 1)", "greatest(orders.Qty, orders.id, 1)", "BIGINT"),
    ("orders.id <=> qty", "orders.id <=> orders.Qty", "BOOLEAN"),
    ("NULL", "NULL", "BOOLEAN"),
]


@pytest.mark.parametrize(("text", "canonical", "type_"), ROUND_TRIPS)
def test_the_canonical_text_of_an_expression_parses_to_the_same_expression(text: str, canonical: str, type_: str) -> None:
    expression = parse_expression(text, STREAMS)
    assert (expression.sql, str(expression.type)) == (canonical, type_)
    assert parse_expression(expression.sql, STREAMS) == expression
    assert pickle.loads(pickle.dumps(expression)) == expression
    assert hash(expression) == hash(parse_expression(canonical, STREAMS))


def test_an_expression_knows_the_columns_it_reads_by_their_declared_names() -> None:
    expression = parse_expression("QTY + Orders.PRICE > `PAY-MENTS`.amount", STREAMS)
    assert expression.columns == {("orders", "Qty"), ("orders", "price"), ("pay-ments", "amount")}


def test_a_projection_has_the_name_it_is_given_or_that_of_its_column() -> None:
    assert parse_projection("orders.id AS order_id", STREAMS)[0] == "order_id"
    name, expression = parse_projection("orders.QTY", STREAMS)
    assert name == "Qty"
    assert isinstance(expression, Expression)
    assert expression.tree == Reference("orders", "Qty", expression.type)
    assert parse_projection("price * 2 AS `twice the price`", STREAMS)[0] == "twice the price"
    with pytest.raises(SqlError, match=r"has no name; write price \* 2 AS name"):
        parse_projection("price * 2", STREAMS)


SPANS = [
    ("DAY TO HOUR", {"1 2": 93_600_000_000, "-1 23": -169_200_000_000}, ["1 24", "1:2", "1 2:3", "1", "2 -3", "1 123"]),
    ("DAY TO MINUTE", {"1 2:3": 93_780_000_000, "+0 0:59": 3_540_000_000}, ["1 2", "1 24:00", "1 0:60", "1:2", "1 2:3:4"]),
    ("DAY TO SECOND", {"1 2:3:4.5": 93_784_500_000, "-1 2:3:4": -93_784_000_000}, ["1 2:3", "1:2:3", "0 0:0:60", "0 0:0:0.", "1 25:0:0"]),
    ("HOUR TO MINUTE", {"1:30": 5_400_000_000, " -25:00 ": -90_000_000_000}, ["1:60", "1:30:00", "1 2:30", "90"]),
    ("HOUR TO SECOND", {"1:2:3.123456": 3_723_123_456, "0:0:0.1234567": 123_456}, ["1:30", "1:60:0", "1:0:60", "1:2:3.1234567891"]),
    ("MINUTE TO SECOND", {"1:30": 90_000_000, "-1:30.5": -90_500_000, "2562047788:0": 153_722_867_280_000_000}, ["1:2:3", "1:60", "9"]),
    ("SECOND TO MINUTE", {}, ["1:30"]),
    ("YEAR TO MONTH", {}, ["1-2"]),
]
"""By units, what numbers mean in Spark, in microseconds, and what is refused there, too."""


@pytest.mark.parametrize(("units", "meant", "refused"), SPANS)
def test_an_interval_of_several_units_means_what_it_means_in_spark(units: str, meant: dict[str, int], refused: list[str]) -> None:
    for text, micros in meant.items():
        assert parse_expression(f"INTERVAL '{text}' {units}", {}).tree == Literal(micros, INTERVAL)
        assert parse_expression(f"INTERVAL -'{text}' {units}", {}).tree == Literal(-micros, INTERVAL)
    for text in refused:
        with pytest.raises(SqlError, match=r"is not an interval; write .*'1:30' MINUTE TO SECOND"):
            parse_expression(f"INTERVAL '{text}' {units}", {})


@pytest.mark.parametrize("text", ["1 day 2:03", "1day", "interval 1 day", "1 day x", "1 day 2 months", "day"])
def test_a_text_of_which_only_a_part_is_an_interval_is_refused(text: str) -> None:
    with pytest.raises(SqlError, match=f"INTERVAL '{text}' is not an interval; write INTERVAL number unit"):
        parse_expression(f"INTERVAL '{text}'", {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the expression is empty"),
        ("id", "column id is ambiguous; write orders.id or `pay-ments`.id"),
        ("nothing", "unknown column nothing; there are orders.id, orders.Qty"),
        ("orders.nothing", "unknown column orders.nothing; orders has id, Qty"),
        ("customers.id", "unknown stream customers in customers.id; the streams are orders, pay-ments"),
        ("a.b.c", "too many parts"),
        ("orders.*", "stands for no single column; list the columns by name"),
        ("qty +", "cannot parse 'qty \\+' at line 1, column 5: an operand or an argument is missing; write one Spark SQL expression"),
        ("(qty", r"at line 1, column 4: \) is missing;"),
        ("qty && qty", "at line 1, column 6: '&&' is not expected here;"),
        ("'unclosed", "cannot parse .*: the closing ' is missing;"),
        ("qty qty", "has a name or stray word at its end; remove qty"),
        ("qty AS q", "has a name or stray word at its end"),
        ("qty; qty", "is not supported"),
        ("(" * 5000 + "1" + ")" * 5000, "is nested too deeply"),
        (" + ".join(["qty"] * 200), "is nested too deeply"),
        ("sum(qty)", r"SUM\(orders.Qty\)|SUM\(qty\) aggregates over rows"),
        ("rank() OVER (ORDER BY qty)", "is a window function"),
        ("(SELECT 1)", "is a subquery"),
        ("qty IN (SELECT 1)", "has no list of values"),
        ("EXISTS (SELECT 1)", "is a subquery"),
        ("my_udf(qty)", "unknown function my_udf; use .* and the functions abs, ceil, coalesce"),
        ("name RLIKE 'x'", "is not supported; use "),
        ("name LIKE name", "is not a literal; use startswith, endswith or contains"),
        ("name LIKE 'x' ESCAPE '!'", "escape % and _ by a backslash"),
        ("DROP TABLE orders", "is not supported"),
        ("qty + name", "name is of type STRING, which \\+ does not take"),
        ("name > 5", "cannot compare orders.name \\(STRING\\) with 5 \\(INT\\); CAST one of them"),
        ("at > 'soon'", "'soon' is no TIMESTAMP; write '2026-01-31 12:00:00'"),
        ("qty > 'many'", "'many' is no INT; write a number"),
        ("day - paid > rate", "compare an INTERVAL with an INTERVAL"),
        ("at + at", "TIMESTAMP \\+ TIMESTAMP has no meaning"),
        (r"name LIKE 'a\\b'", "has a backslash that escapes none of"),
        (r"name LIKE 'a\\'", "has a backslash that escapes none"),
        ("INTERVAL 1 MONTH", "is not an interval; write INTERVAL number unit"),
        ("CAST(raw AS INT)", "cannot CAST orders.raw from BINARY to INT"),
        ("CAST(qty AS INTERVAL)", "cannot CAST to INTERVAL"),
        ("coalesce(qty, name)", "coalesce mixes INT and STRING; CAST the values to one type"),
        ("ok AND qty", "AND needs conditions, but orders.Qty is of type INT"),
        ("NOT name", "NOT needs conditions"),
        ("1e400", "too large for a DOUBLE"),
        ("1" * 39, "has 39 digits"),
        ("round(rate, qty)", "is not a whole number from 0 to 15"),
        ("abs(name)", "abs needs a number or an INTERVAL, but orders.name is of type STRING"),
        ("hour(name)", "hour needs a TIMESTAMP"),
        ("ok IS TRUE", "write x = TRUE"),
        ("DATE '2024-02-30'", "'2024-02-30' is no DATE; write '2026-01-31'"),
        ("@x", "is not supported"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_a_remedy(text: str, message: str) -> None:
    with pytest.raises(SqlError, match=message) as refusal:
        parse_expression(text, STREAMS)
    assert str(refusal.value) == f"{refusal.value.problem}; {refusal.value.remedy}"
    assert len(refusal.value.problem) < 300
    assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)


def test_only_a_condition_is_taken_for_a_condition() -> None:
    assert parse_boolean("ok", STREAMS).sql == "orders.ok"
    with pytest.raises(SqlError, match="'qty' is a value of type INT, not a condition"):
        parse_boolean("qty", STREAMS)


ODD_NAMES = ["a b", "a.b", "a`b", "`", "ä", "日本", "1", "1a", "1e5", "1d", "0x1", "1.5", "'", '"', "a\nb", "-", "*", "\\", "a--b"]
ODD_NAMES += ["/*", "$1", "{x}", ":a", "?", "x'"]
WORDS = (Path(__file__).parent / "spark_words.txt").read_text().split()
"""Spark's keywords, reserved or not, and its functions: sql_keywords() and SHOW FUNCTIONS of Spark 4.3."""
PLACES = [
    *("{0}", "{0}.{0}", "-{0}", "{0} + {0} > {0}", "abs({0}) = {0}"),
    *("CASE WHEN {0} = 1 THEN {0} ELSE -{0} END", "{0} BETWEEN {0} AND {0}", "{0} IN ({0}, 1)", "CAST({0} AS BIGINT)", "{0} IS NULL"),
    *("NOT {0} = 1 AND {0} IS NOT NULL OR {0} < {0}", "greatest({0}, {0})", "INTERVAL 1 DAY * {0}"),
]


@pytest.mark.parametrize("chunk", some(range(4), of=2))
def test_a_column_of_any_name_is_written_so_that_it_is_read_again(chunk: int) -> None:
    for word in [*WORDS, *ODD_NAMES][chunk::4]:
        for name in (word, word.upper()):
            streams = {name: Schema((Column(name, INT),))}
            quoted = f"`{name.replace('`', '``')}`"
            for place in PLACES if name == word else PLACES[:2]:
                expression = parse_expression(place.format(quoted), streams)
                assert parse_expression(expression.sql, streams) == expression
                bare = render(expression.tree, qualified=False)
                assert parse_expression(bare, streams) == expression


def test_a_condition_may_have_any_number_of_conjuncts() -> None:
    text = " AND ".join(f"qty <> {number}" for number in range(2000))
    expression = parse_boolean(text, STREAMS)
    assert parse_boolean(expression.sql, STREAMS) == expression
