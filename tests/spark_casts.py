"""Values that are cast between text and other types, and what Spark answers, kept in a file: ``python tests/spark_casts.py`` asks it again.

Spark runs with spark.sql.ansi.enabled=false and the session time zone UTC. Answers are text: numbers as Spark prints them, a date its days
since 1970, a time its microseconds; None is NULL.
"""

# ruff: noqa: SIM905

from __future__ import annotations

import json
import random
import re
import struct
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).parent / "spark_casts.json"
SEED = 20
Answers = dict[str, dict[str, dict[str, str]]]
"""By source type, value as text, and target type; what is missing is NULL."""

TARGETS = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,18)", "DECIMAL(5,0)"),
    *("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
)
"""What text is cast to."""
TIME_OF_DAY = re.compile(r"[\x00-\x20]*(T\d|\d\d?:)")
"""For such a text Spark's TIMESTAMP is one of the day when it is asked."""

_MOMENTS = """2026 2026-1 2026-01 2026-1-1 2026-01-01 +2026-01-01 -2026-01-01 0000-01-01 0001-01-01 -0001-12-31 12026-01-01 +12026-1-1 2026-
2026-1- 2026-01-01T 2026-01-01T10 2026-01-01T1 2026-01-01_10:00 2026-01-01_10:00:00 2026-01-01_1:2:3 2026-01-01T10:00:00.1
2026-01-01T10:00:00. 2026-01-01T10:00:00.123456789 2026-01-01T10:00:00.1234567899 2026-01-01T10:00:00Z 2026-01-01T10:00:00z
2026-01-01T10:00:00_Z 2026-01-01T10:00:00_UTC 2026-01-01T10:00:00UTC 2026-01-01T10:00:00+5:30 2026-01-01T10:00:00+05:30
2026-01-01T10:00:00+0530 2026-01-01T10:00:00+05 2026-01-01T10:00:00+5 2026-01-01T10:00:00+5:3 2026-01-01T10:00:00+18:00
2026-01-01T10:00:00+18:01 2026-01-01T10:00:00+19 2026-01-01T10:00:00-00:30 2026-01-01T10:00:00+05:30:15 2026-01-01T10:00:00_+05:30
2026-01-01T10:00:00+05:60 2026-01-01T10:00:00Europe/Berlin 2026-07-01T10:00:00_Europe/Berlin 2026-07-01T10:00:00_europe/berlin
2026-01-01T10:00:00CET 2026-07-01T10:00:00CET 2026-01-01T10:00:00EST 2026-01-01T10:00:00PST 2026-07-01T10:00:00PST8PDT
2026-01-01T10:00:00_GMT 2026-01-01T10:00:00GMT+1 2026-01-01T10:00:00_GMT+01:00 2026-01-01T10:00:00UTC+1 2026-01-01T10:00:00UT+1
2026-01-01T10:00:00UT 2026-01-01T10:00:00_UTC+01:30 2026-01-01T10:00:00Nowhere/City 2026-01-01T10:00Z 2026-01-01T10Z 2026-01-01Z
2026-01-01+05:00 2026-01-01_Z 2026-01T10:00 2026T10:00 T10:00 T10:00:00 T10 10:00 10:00:00.5 10 T10:00Z 2026-02-29 2024-02-29
1900-02-29 2000-02-29 2026-13-01 2026-00-01 2026-01-00 2026-01-32 2026-04-31 2026-01-01_24:00:00 2026-01-01_23:60:00 2026-01-01_23:59:60
__2026-01-01__ 2026/01/01 20260101 20260101T100000 99999-01-01 999999-12-31 1000000-01-01 epoch now today tomorrow 2026-01-01junk
2026-01-01_junk 2026-01-01Tjunk 2026-W01-1 2026-001 2026-01-01T10:00:00,5 5881580-07-11 5881580-07-12 -5877641-06-23 -5877641-06-22
294247-01-10T04:00:54.775807Z 294247-01-10T04:00:54.775808Z +294247-01-10T04:00:54.775807Z -290308-12-21T19:59:05.224192Z
-290308-12-21T19:59:05.224191Z 26-01-01 026-01-01 0026-01-01 2026-011-01 2026-1-001 2026-01-01T010:00 2026-01-01T10:000 2026--01-01
2026-01-01T10:00:00-05:00 2026-01-01T10:00:00.5-05:00 2026-01-01T10:00:00.5Europe/Berlin 2026-01-01T25:00:00 2026-01-01T10:00:00+
2026-03-29T02:30:00Europe/Berlin 2026-10-25T02:30:00Europe/Berlin 1800-01-01T00:00:00Europe/Berlin 2026-01-01T10:00:00America/New_York
2026-01-01T10:00:00Asia/Kolkata 2026-01-01T10:00:00Etc/GMT+5 2026-01-01T10:00:00JST 2026-01-01T10:00:00IST 2026-01-01T10:00:00MST
2026-01-01T10:00:00HST 2026-01-01T10:00:00ACT 2026-01-01T10:00:00+1:2:3 2026-01-01T10:00:00_+1 2026-01-01T10:00:00++01:00""".split()

_NUMBERS = """1 _1_ +1 -1 1.5 -1.5 1.999 -0.5 .5 5. . -. + - 1e5 1E5 1e+5 1e-5 1.5e1 e5 1e 1e+ 1d 1D 1f 1F 1L 1.5d 1e5f 0x10 0X1F
0x1p3 1_000 1,000 Infinity -Infinity +Infinity inf -inf +inf infinity INF Inf -INFINITY infinit nan NaN NAN -nan +NaN NaN1 null
true T TRUE tRue yes y Y no n f F false on off 0 1.0 2 truth --1 +-1 1__2 1.2.3 00001 -0 -0.0 1e1.5 127 128 127.9 128.1 -128.9
-129 32767 32768 -32768 2147483647 2147483648 -2147483648 -2147483649 2147483647.99 9223372036854775807 9223372036854775808
-9223372036854775808 -9223372036854775809 9223372036854775807.5 99999999.99 99999999.994 99999999.995 99999999.996 100000000
1.005 1.015 -1.005 0.005 0.004999 12345.5 99999.4 99999.5 0.0000000000000000005 0.00000000000000000049
12345678901234567890.123456789012345678 123456789012345678901 1e18 1e19 1e20 1e37 1e38 1e39 1e400 1e-400 -1e-400 1e400000
1e-400000 0e400000 1e99999999999 1e2147483647 1e-2147483648 3.4028235e38 3.4028236e38 3.4028235677973366e38 1.4e-45 7e-46 8e-46
4.9e-324 2e-324 3e-324 1.7976931348623157e308 1.7976931348623159e308 0.1 0.30000000000000004 9007199254740993 16777217
1.00000017881393432617187499 1٣ ３ 1.0f 1.d .5f +.5 0x 0b1 1e5d 1dd nanf infd 1\x00 -1e5 2.5e-1 0.9 -0.9 1e-1 10e-1 +true t1""".split()

_SPACES = ["", " ", "1 ", "\t1\n", "\x001", "\x1f1", "\x7f1", "\x851", "\u00a01", "\u20031", "\u30001", "\ufeff1", "\r\n2026-01-01\x0b"]
_SPACES += [
    " true\t",
    "\u00a0true",
    "\x00true",
    "\u00a02026-01-01",
    "2026-01-01\x00",
    "2026-01-01\u00a010:00",
    "Infinity ",
    "\tNaN",
    "9" * 38,
    "9" * 39,
]
_SPACES += ["9" * 400, "0." + "0" * 400 + "1", "0" * 50 + "1", "1" + "0" * 37, "1." + "0" * 60]


def texts() -> list[str]:
    """Those picked by hand, and as many made of them by changing a character or two."""
    picked = [text.replace("_", " ") for text in _MOMENTS] + [text.replace("_", " ") for text in _NUMBERS] + _SPACES + ["1_000"]
    rng = random.Random(SEED)
    made = []
    for _ in range(700):
        text = rng.choice(picked)[:60]
        for _ in range(rng.randint(1, 2)):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice(["", *"0123456789+-:. TZeEdfx"]) + text[at + rng.randint(0, 1) :]
        made.append(text)
    return list(dict.fromkeys(picked + made))


def values() -> dict[str, list[Any]]:
    """By type, what is cast to text: numbers; days; microseconds."""
    rng = random.Random(SEED)
    powers = [sign * lead * 10.0**power for power in range(-10, 25) for lead in (1, 1.5, 1.2345678) for sign in (1, -1)]
    special = [
        0.0,
        -0.0,
        float("nan"),
        float("inf"),
        -float("inf"),
        5e-324,
        1.7976931348623157e308,
        2e-3,
        9.999e6,
        1e7,
        2.0**63,
        0.1 + 0.2,
        1 / 3,
    ]
    special += [2e23, 1.0e23, 8.41e21, 2.2250738585072014e-308, 9007199254740993.0, 123456789.0, 9999999.999999998]
    bits = [struct.unpack("<d", rng.randbytes(8))[0] for _ in range(150)]
    floats = [struct.unpack("<f", rng.randbytes(4))[0] for _ in range(150)]
    narrow = [
        struct.unpack("<f", struct.pack("<f", value))[0]
        for value in [*special[:5], *powers, 1e-45, 3.4028234e38, 0.1, 16777216.0, 3.3554432e7]
    ]
    days = [
        0,
        -1,
        20_454,
        -719_528,
        -719_529,
        -719_162,
        -719_163,
        2_932_896,
        2_932_897,
        -(2**31),
        2**31 - 1,
        -800_000,
        11_248_737,
        11_248_738,
    ]
    days += [rng.randrange(-(2**31), 2**31) for _ in range(40)] + [rng.randrange(-800_000, 3_000_000) for _ in range(40)]
    day = 86_400_000_000
    micros = [0, -1, 1, 100_000, 120_000, 1_767_225_600_000_000, 2**63 - 1, -(2**63), 2_932_897 * day, -719_529 * day + 1, -719_162 * day]
    micros += [rng.randrange(-(2**63), 2**63) for _ in range(40)] + [
        rng.randrange(-800_000, 3_000_000) * day + rng.randrange(day) for _ in range(40)
    ]
    return {"DOUBLE": special + powers + bits, "FLOAT": narrow + floats, "DATE": days, "TIMESTAMP": micros, "TIMESTAMP_NTZ": micros}


def ask_spark() -> Answers:
    """Every answer, by one query."""
    from pyspark.sql import Row, SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.sql.ansi.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.bindAddress", "127.0.0.1")
    session = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "1").getOrCreate()
    rows: list[tuple[Any, ...]] = [("STRING", text, text, None, None) for text in texts()]
    for kind, some in values().items():
        rows += [(kind, repr(value), None, *((None, value) if isinstance(value, int) else (value, None))) for value in some]
    schema = "kind STRING, shown STRING, text STRING, d DOUBLE, i BIGINT"
    asked = {target: f"CAST(CAST(text AS {target}) AS STRING)" for target in TARGETS}
    asked |= {"DATE": "CAST(unix_date(CAST(text AS DATE)) AS STRING)"}
    asked |= {name: f"CAST(unix_micros(CAST(CAST(text AS {name}) AS TIMESTAMP)) AS STRING)" for name in ("TIMESTAMP", "TIMESTAMP_NTZ")}
    moment = "CAST(CAST(timestamp_micros(i) AS {}) AS STRING)".format
    asked["STRING"] = (
        "CASE kind WHEN 'DOUBLE' THEN CAST(d AS STRING) WHEN 'FLOAT' THEN CAST(CAST(d AS FLOAT) AS STRING)"
        " WHEN 'DATE' THEN CAST(date_from_unix_date(CAST(i AS INT)) AS STRING)"
        f" WHEN 'TIMESTAMP' THEN {moment('TIMESTAMP')} WHEN 'TIMESTAMP_NTZ' THEN {moment('TIMESTAMP_NTZ')} END"
    )
    columns = [f"{sql} AS `{target}`" for target, sql in asked.items()]
    try:
        found = session.createDataFrame(rows, schema).selectExpr("kind", "shown", *columns).collect()
    finally:
        session.stop()
    answers: Answers = {}
    for row in found:
        if row["kind"] == "STRING" and TIME_OF_DAY.match(row["shown"]) and row["TIMESTAMP"] is not None:
            row = Row(**{**row.asDict(), "TIMESTAMP": "today"})
        given = {target: row[target] for target in asked if row[target] is not None}
        answers.setdefault(row["kind"], {})[row["shown"]] = given
    return answers


def written(answers: Answers) -> str:
    """JSON with a line for each value."""
    kinds = []
    for kind, values in sorted(answers.items()):
        rows = [f"{json.dumps(value)}: {json.dumps(of_targets, sort_keys=True)}" for value, of_targets in sorted(values.items())]
        kinds.append(f"{json.dumps(kind)}: {{\n" + ",\n".join(rows) + "\n}")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


if __name__ == "__main__":
    ANSWERS.write_text(written(ask_spark()))
