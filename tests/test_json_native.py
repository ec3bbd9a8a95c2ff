"""The fast parser of JSON lines against Python's json, decimal and datetime: it takes nearly all, and gives the values they give."""

from __future__ import annotations

import base64
import json
import random
import re
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.io.plain_json import PlainJson, understands
from streamjoin.io.text import JsonFormat, parse_block

SCHEMA = pa.schema(
    [
        ("tiny", pa.int8()),
        ("i", pa.int32()),
        ("long", pa.int64()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("price", pa.decimal128(7, 2)),
        ("wide", pa.decimal128(38, 6)),
        ("s", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("day", pa.date32()),
        ("f", pa.float32()),
        ("y", pa.binary()),
    ]
)
INTEGERS = {"tiny": 8, "i": 32, "long": 64}
DECIMALS = {"price": (7, 2), "wide": (38, 6)}
_WIDE = Context(prec=200)
ZONE = r"(Z|[+-]\d\d:\d\d)?"


TEXTS = ["a", "a b", "\u00e9\u4e16", "\U0001f600", "\x7f", "x" * 300, "null"]
"""Parts of strings as they are written; then those with escapes, of which some are wrong."""
TEXTS += [*TEXTS, *(rf"\{letter}" for letter in '"\\/bfnrt'), r"\u00e9", r"\u0041", r"\u4E16", r"\u0000", r"\uFFFF", r"\uD83D\ude00"]
TEXTS += ["\t", r"\x", r"\u12", r"\uD83D", r"\uDE00", r"\uD83Dx", r"\uD83D\u0041"]


class UnsureError(Exception):
    """Whether a text is a value of its column, this does not know: ``test_files_source`` does."""


class _Written(str):
    """A number as it is written."""

    __slots__ = ()


def value_of(name: str, given: Any) -> Any:
    """What a column must have for a value that Python's json has read, numbers as they are written. Raises ValueError where it fits not."""
    if given is None:
        return None
    if name in INTEGERS:
        if type(given) is str:
            raise UnsureError(given)
        bits, number = INTEGERS[name], Decimal(require(given, _Written))
        if number != int(number) or not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            raise ValueError(given)
        return int(number)
    if name in DECIMALS:
        precision, scale = DECIMALS[name]
        if type(given) is str and not re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", given):
            raise UnsureError(given)
        number = Decimal(require(given, str))
        if number != _WIDE.quantize(number, Decimal(1).scaleb(-scale)) or abs(number) >= Decimal(10) ** (precision - scale):
            raise ValueError(given)
        return number
    if name == "d":
        return float(require(given, _Written))
    if name == "f":
        return single(require(given, _Written))
    if name == "b":
        return require(given, bool)
    text = require(given, str)
    if type(text) is _Written:
        raise ValueError(given)
    if name == "s":
        text.encode()  # halves of surrogate pairs are no characters
        return text
    text.encode()
    if name == "y":
        return base64.b64decode(text, validate=True)
    if name == "day":
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            raise UnsureError(given)
        return date.fromisoformat(text)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?" + ZONE, text):
        raise UnsureError(given)
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=None) if name == "wall" else moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def require(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(value)
    return value


def single(text: str) -> float:
    """The nearest float of 32 bits, by fractions. Raises ValueError where it is infinite."""
    with np.errstate(over="ignore"):
        near = np.float32(float(text))
        candidates = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    if not all(np.isfinite(candidates)):
        raise ValueError(text)
    exact = Fraction(Decimal(text))
    return float(min(candidates, key=lambda each: (abs(Fraction(float(each)) - exact), int(each.view(np.int32)) & 1)))


def expected(line: bytes) -> dict[str, Any]:
    """The row of a line. Raises ValueError where it has none."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if any([name for name, _ in items].count(column) > 1 for column in SCHEMA.names):
            raise ValueError(items)
        return dict(items)

    def refuse(text: str) -> None:
        raise ValueError(text)

    found = json.loads(line.decode(), parse_float=_Written, parse_int=_Written, parse_constant=refuse, object_pairs_hook=pairs)
    return {name: value_of(name, require(found, dict).get(name)) for name in SCHEMA.names}


def parsed(reader: PlainJson, lines: list[bytes]) -> list[dict[str, Any] | None]:
    """The rows; None where a line is refused."""
    found = reader.parse(b"\n".join(lines) + b"\n", len(lines))
    assert found is not None
    columns, refused = found
    batch = pa.record_batch(columns, schema=SCHEMA)
    batch.validate(full=True)
    return [None if row in refused else values for row, values in enumerate(batch.to_pylist())]


def random_number(rng: random.Random) -> str:
    digits = "".join(rng.choice("0123456789") for _ in range(rng.choice([1, 1, 2, 5, 9, 15, 16, 17, 18, 19, 25])))
    whole = rng.choice(["0", digits.lstrip("0") or "0"])
    fraction = rng.choice(["", "", "." + digits[: rng.randint(1, 20)]])
    return (
        rng.choice(["", "-"])
        + whole
        + fraction
        + rng.choice(["", "", "", f"{rng.choice('eE')}{rng.choice(['', '+', '-'])}{rng.randint(0, 30)}"])
    )


def random_moment(rng: random.Random) -> str:
    parts = (rng.choice([2, 4, 100, 1582, 1900, 1969, 1970, 2000, 2024, 2026, 9998]), rng.randint(1, 12), rng.choice([1, 28, 29, 30, 31]))
    day = "{:04}-{:02}-{:02}".format(*parts)
    return (
        day
        + rng.choice(["", f"T{rng.choice([0, 23, 24]):02}:{rng.choice([0, 59, 60]):02}:{rng.choice([0, 59, 60]):02}"])
        + (rng.choice(["", "", "." + str(rng.randint(0, 10 ** rng.randint(1, 7)))]) + rng.choice(["", "Z", "+01:00", "z"]))
    )


def random_value(rng: random.Random, name: str) -> str:
    if rng.random() < 0.15:
        name = rng.choice(SCHEMA.names)
    if rng.random() < 0.1:
        return "null"
    if name in INTEGERS or name in "df":
        return random_number(rng) if rng.random() < 0.5 else str(rng.randint(-130, 130))
    if name in DECIMALS:
        number = rng.choice([random_number(rng), f"{rng.randint(-99999, 99999)}.{rng.randint(0, 99):02}"])
        return rng.choice([number, f'"{number}"'])
    if name == "b":
        return rng.choice(["true", "false", "True"])
    if name == "y":
        return f'"{base64.b64encode(rng.randbytes(rng.choice([0, 1, 2, 9]))).decode()}{rng.choice(["", "", "", "="])}"'
    if name == "s":
        return f'"{"".join(rng.choices(TEXTS, k=rng.choice([0, 1, 1, 1, 2, 5])))}"'
    return f'"{random_moment(rng)}"'


def random_other(rng: random.Random, depth: int) -> str:
    """Any value, of a field that no column has."""
    kind = rng.choice(["array", "object", "scalar"]) if depth else "scalar"
    if kind == "scalar":
        return rng.choice(["1", "true", "false", "-0.5e3", "null", "123456789012345678901234567890", '""', "1.", random_value(rng, "s")])
    inside = [random_other(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == "array":
        return f"[{rng.choice([',', ' , '])}]".replace("[,]", "[]") if not inside and rng.random() < 0.1 else f"[{', '.join(inside)}]"
    return "{" + rng.choice([",", " ,"]).join(f'"{rng.choice(TEXTS)}":{value}' for value in inside) + rng.choice(["}", "} "])


def random_line(rng: random.Random) -> bytes:
    names = rng.sample(SCHEMA.names, rng.randint(0, 4)) + rng.choice([[], ["other"], ["\u00e9"], ["i"]])
    others = [random_other(rng, 4) for _ in range(3)]
    space = rng.choice(["", "", " ", "\t "])
    members = []
    for name in names:
        value = random_value(rng, name) if name in SCHEMA.names else rng.choice(others)
        members.append(f'{space}"{name}"{space}:{space}{value}{space}')
    line = f"{space}{{{','.join(members) or space}}}{space}".encode()
    if rng.random() < 0.3:
        at = rng.randrange(len(line))
        line = rng.choice([line[:at] + line[at + 1 :], line[:at] + bytes([rng.randrange(256)]) + line[at + rng.randint(0, 1) :], line[:at]])
    return line.replace(b"\n", b" ")


def test_what_is_accepted_has_the_values_that_python_reads() -> None:
    rng = random.Random(20)
    reader = PlainJson(SCHEMA)
    accepted = refused = wrong = 0
    lines = [line for line in (random_line(rng) for _ in range(15_000)) if line.strip(b" \t\r")]
    for found, line in zip(parsed(reader, lines), lines, strict=True):
        try:
            wanted = expected(line)
        except UnsureError:
            continue
        except (ValueError, ArithmeticError):
            wrong += 1
            assert found is None, (line, "seed 20")
            continue
        if found is None:
            refused += 1
        else:
            accepted += 1
            assert repr(found) == repr(aligned(wanted)), (line, "seed 20")
    assert accepted > 10 * refused, "nearly all that is right"
    assert wrong > 2000


def test_a_block_is_read_as_each_of_its_lines_is_by_itself() -> None:
    """What the fast parser has accepted, the slow one accepts with the same values; what it has refused, that one has read."""
    rng = random.Random(21)
    text = JsonFormat(SCHEMA)
    lines = [line for line in (random_line(rng) for _ in range(5_000)) if line.strip(b" \t\r")]
    together = text.parse(b"\n".join(lines), len(lines))
    assert together is not None
    alone = text.parse_lines(lines)
    assert together.problems == alone.problems, "seed 21"
    for name, found, wanted in zip(SCHEMA.names, together.columns, alone.columns, strict=True):
        rows = [(at, *each) for at, each in enumerate(zip(map(repr, found), map(repr, wanted), strict=True)) if at not in alone.problems]
        assert [row for row in rows if row[1] != row[2]] == [], (name, "seed 21")


def aligned(row: dict[str, Any]) -> dict[str, Any]:
    """With decimals of their columns' scale, as Arrow gives them, and its own name of the zone."""
    scaled = {
        name: None if row[name] is None else _WIDE.quantize(row[name], Decimal(1).scaleb(-scale)).copy_abs().copy_sign(row[name] or 1)
        for name, (_, scale) in DECIMALS.items()
    }
    moments = [] if row["at"] is None else [("at", pa.scalar(row["at"], SCHEMA.field("at").type).as_py())]
    return row | scaled | dict(moments)


@pytest.mark.parametrize(
    "line",
    [
        '{"tiny":-127,"i":2147483646,"long":999999999999999999,"d":0.1,"b":true,"price":"12345.67","s":"x y","at":"2026-01-01T00:00:00Z"}',
        '{"s":"\u4e16\u754c","b":false,"wall":"1969-12-31T23:59:59.999999","day":"2024-02-29","wide":-0.5,"d":-1.5e-7}',
        ' { "i" : 1 , "unknown" : "text" , "at" : null , "other" : -12.5E+3 } ',
        "{}",
        r'{"s":"q\"\\\/\b\f\n\r\t\u00e9\u4e16\uD83D\uDE00!","i":1,"other":"\u0000","more":{"a":[1,{"b":[]},"]"],"s":{}},"d":2}',
        '{"at":"2026-01-01 10:30:00.123456789+05:30","wall":"2026-01-01T10:30:00.5-08:00"}',
        '{"day":"0001-01-01","at":"9999-12-31T23:59:59.5Z","wall":"1900-03-01T00:00:00"}',
    ],
)
def test_what_is_plain_is_accepted_in_any_order_of_keys(line: str) -> None:
    plain = '{"i": 7, "s": "next"}'
    lines = [text.encode() for text in (line, plain, line, line)]
    reader = PlainJson(SCHEMA)
    for _ in range(2):
        assert repr(parsed(reader, lines)) == repr([aligned(expected(text)) for text in lines])


def test_blank_lines_are_skipped_and_the_last_line_need_not_end() -> None:
    reader = PlainJson(SCHEMA)
    for block in (b'\n \t\r\n{"i": 1}\r\n\n{"i": 2}', memoryview(b'{"i": 1}\n{"i": 2}\n')):
        found = reader.parse(block, 2)
        assert found is not None
        assert found[0][1].to_pylist() == [1, 2]
        assert len(found[1]) == 0
        assert reader.parse(block, 1) is None, "more lines than there should be"
        assert reader.parse(block, 3) is None, "fewer"


def test_doubles_are_rounded_as_python_rounds_them() -> None:
    rng = random.Random(4)
    reader = PlainJson(SCHEMA)
    numbers = [repr(rng.random() * 10.0 ** rng.randint(-320, 308)) for _ in range(20_000)]
    numbers += [repr(rng.randint(-(10**9), 10**9) / 10 ** rng.randint(0, 9)) for _ in range(20_000)]
    numbers += ["9007199254740993", "1e22", "1e23", "-0", "-0.0e5", "4.9e-324", "1" * 400 + "e-399", "0." + "1" * 400]
    found = parsed(reader, [b'{"d":%s}' % number.encode() for number in numbers])
    assert [row and repr(row["d"]) for row in found] == [repr(float(number)) for number in numbers], "seed 4"
    assert [row and row["d"] for row in parsed(reader, [b'{"d":1}', b'{"d":1e309}', b'{"d":1e-400}', b'{"d":2}'])] == [1.0, None, None, 2.0]


def test_floats_of_32_bits_are_the_nearest_to_what_is_written() -> None:
    rng = random.Random(5)
    reader = PlainJson(SCHEMA)
    # Between two of them, and a little beside that: rounded to a double first, it would be the same.
    halves = [Fraction(2 * rng.getrandbits(23) + 2**24 + 1) for _ in range(300)]
    numbers = [str(int(half)) for half in halves] + [f"{int(half)}.{'0' * rng.randint(0, 12)}1" for half in halves]
    numbers += [repr(rng.random() * 10.0 ** rng.randint(-37, 38)) for _ in range(2_000)] + ["0", "-0.0", "1.1754943e-38", "1e-45", "3.4e38"]
    rows = parsed(reader, [b'{"f":%s}' % number.encode() for number in numbers])
    for number, row in zip(numbers, rows, strict=True):
        assert row is None or repr(row["f"]) == repr(single(number)), number
    assert rows.count(None) < len(halves) + 10, "those that are halfway"


def test_a_line_that_is_refused_is_null_and_others_are_read() -> None:
    reader = PlainJson(SCHEMA)
    no_objects = (b"null", b'{"i": 1} {}', b'"', b'{"i": 1, "s": "x"')
    for bad in (*no_objects, b'{"i": 1, "s": "\xff"}', b'{"i": 1, "i": 2}', b'{"i": 1, "tiny": 300}'):
        found = reader.parse(b"\n".join([b'{"i": 1, "s": "a"}', bad, b'{"i": 3, "s": "\xc3\xa9"}']), 3)
        assert found is not None
        assert found[1].tolist() == [1]
        assert [column.to_pylist()[0::2] for column in (found[0][1], found[0][7])] == [[1, 3], ["a", "\u00e9"]]


def test_schemas_whose_names_need_escapes_are_left_to_the_other_parser() -> None:
    assert understands(SCHEMA)
    for name in ('a"b', "a\\b", "a\nb"):
        schema = pa.schema([("ok", pa.int64()), (name, pa.int64())])
        assert not understands(schema)
        (records,) = parse_block(JsonFormat(schema), json.dumps({"ok": 1, name: 2}).encode(), schema, "x", 0)
        assert records.batch.to_pylist() == [{"ok": 1, name: 2}]
