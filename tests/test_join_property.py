"""Whole joins on the inline runner against an oracle in DuckDB, over random predicates, windows, schemes, arrival orders and epochs.

Each case is made from one seed, which a failure prints: ``STREAMJOIN_SEED=<seed> make test`` runs that case alone.
``STREAMJOIN_CASES`` sets how many there are.
"""

from __future__ import annotations

import datetime
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cases import how_many, some
from harness import SECOND, START, Input, driver_for, make_batch, make_job, oracle, output_of, run_all
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import INTERCHANGEABLE, KEYED
from streamjoin.state.storage import ObjectStorage

CASES = how_many(240)
SEED = os.environ.get("STREAMJOIN_SEED")
I64 = 2**63 - 1


@dataclass(frozen=True)
class Kind:
    """A key type: its DDL, its Arrow type, random values (few, so that they meet, and the type's ends), and how DuckDB computes with it."""

    ddl: str
    arrow: pa.DataType
    value: Callable[[random.Random], Any]
    wide: str = "{}"
    """The column in a type of DuckDB in which differences cannot overflow."""
    defined: str = "true"
    """When a value can match at all."""


def _integer(bits: int) -> Callable[[random.Random], Any]:
    end = 2 ** (bits - 1) - 1
    return lambda rng: rng.choice([rng.randint(-12, 12)] * 8 + [rng.randint(-end - 1, end), end, -end - 1, end - 2, -end + 3])


KINDS = {
    "bigint": Kind("BIGINT", pa.int64(), _integer(64), "{}::HUGEINT"),
    "int": Kind("INT", pa.int32(), _integer(32), "{}::HUGEINT"),
    "smallint": Kind("SMALLINT", pa.int16(), _integer(16), "{}::HUGEINT"),
    "double": Kind(
        "DOUBLE",
        pa.float64(),
        lambda rng: rng.choice(
            [rng.randint(-12, 12) / 2] * 4 + [rng.uniform(-8, 8)] * 4 + [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e300]
        ),
        defined="NOT isnan({})",
    ),
    "decimal": Kind(
        "DECIMAL(10,2)",
        pa.decimal128(10, 2),
        lambda rng: Decimal(rng.choice([rng.randint(-900, 900)] * 8 + [9_999_999_999, -9_999_999_999])).scaleb(-2),
        "{}::DECIMAL(30,2)",
    ),
    "wide decimal": Kind(
        "DECIMAL(30,3)",
        pa.decimal128(30, 3),
        lambda rng: Decimal(rng.choice([rng.randint(-9000, 9000)] * 8 + [10**29, -(10**29), 10**29 + 1])).scaleb(-3),
        "{}::DECIMAL(38,3)",
    ),
    "date": Kind(
        "DATE",
        pa.date32(),
        lambda rng: datetime.date(2024, 2, 20) + datetime.timedelta(rng.randint(0, 20)),
        "epoch_us({}::TIMESTAMP)::HUGEINT",
    ),
    "timestamp": Kind(
        "TIMESTAMP",
        pa.timestamp("us", "UTC"),
        lambda rng: datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=rng.randint(0, 20)),
        "epoch_us({}::TIMESTAMPTZ)::HUGEINT",
    ),
    "string": Kind(
        "STRING", pa.string(), lambda rng: rng.choice(["", "a", "b", "customer-0001", "customer-0002", "customer-", "ä", "zz", "𐍈"])
    ),
}

OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
NUMBERS = ("bigint", "int", "smallint", "double", "decimal", "wide decimal")
ORDERED = (*NUMBERS, "date", "timestamp", "string")


def conditions(kind: str, rng: random.Random, operators: tuple[str, ...] = OPERATORS) -> tuple[str, str]:
    """(condition for the manifest, condition for DuckDB) on keys of one kind.

    ``operators``: with fewer than all, every condition bounds the same keys in the same way: by their order, or by equality.
    """
    left, right = KINDS[kind].wide.format("l.k"), KINDS[kind].wide.format("r.k")
    forms = [(f"l.k {op} r.k", f"{left} {op} {right}") for op in operators]
    every = operators == OPERATORS
    if kind in NUMBERS and "<" in operators:
        width = {"double": 1.5, "decimal": 2.25, "wide decimal": 2.125}.get(kind, 3) * (1 if every else rng.choice([1, 2, 5]))
        forms += 3 * [
            (f"abs(l.k - r.k) <= {width}", f"abs({left} - {right}) <= {width}"),
            (f"abs(r.k - l.k) < {width}", f"abs({left} - {right}) < {width}"),
        ]
        if kind != "double":
            forms += [
                (f"l.k BETWEEN r.k - 2 AND r.k + {width}", f"{left} - {right} BETWEEN -2 AND {width}"),
                ("l.k + 2 >= r.k AND l.k - 1 < r.k", f"{left} + 2 >= {right} AND {left} - 1 < {right}"),
            ]
        if kind != "double" and every:
            forms += [("l.k + r.k < 4", f"{left} + {right} < 4"), ("2 * l.k = r.k", f"2 * {left} = {right}")]
    if kind == "timestamp" and "<" in operators:
        forms += 3 * [
            ("abs(l.k - r.k) <= INTERVAL 3 SECONDS", f"abs({left} - {right}) <= {3 * SECOND}"),
            ("r.k BETWEEN l.k AND l.k + INTERVAL 1 SECOND", f"{right} - {left} BETWEEN 0 AND {SECOND}"),
        ]
    if kind == "date" and "<" in operators:
        forms += 3 * [("abs(datediff(l.k, r.k)) <= 2", f"abs({left} - {right}) <= {2 * 86400 * SECOND}")]
    on, expected = rng.choice(forms)
    extra = rng.choice(
        [("", "")] * 4
        + [
            (" AND l.v <> r.v", " AND l.v <> r.v"),
            (" AND l.v + r.v > 3", " AND l.v + r.v > 3"),
            (" AND l.v = r.v", " AND l.v = r.v"),
            (" AND abs(l.v - r.v) <= 1", " AND abs(l.v - r.v) <= 1"),
        ]
    )
    if every and rng.random() < 0.08:
        return f"({on}) OR l.v = r.v", f"({expected}) AND {_defined(kind)} OR l.v = r.v"
    return on + extra[0], f"({expected}) AND {_defined(kind)}{extra[1]}"


def _defined(kind: str) -> str:
    return " AND ".join(KINDS[kind].defined.format(side) for side in ("l.k", "r.k"))


OF_TIME = ("within", "sides", "slide")


def windows(rng: random.Random, forms: Sequence[str] = (*OF_TIME, "rows", "unbounded")) -> tuple[dict[str, Any], str, str, bool]:
    """(window for the manifest, DuckDB's condition on the pair, watermark, whether lateness applies)."""
    difference = "r.at - l.at"
    delay = rng.choice([0, 2, 10, 1000])
    form = rng.choice(forms)
    if form == "within":
        length = rng.choice([0, 1, 5, 30])
        return {"within": f"{length}s"}, f"abs({difference}) <= {length * SECOND}", f"{delay}s", True
    if form == "sides":
        before, after = rng.choice([(0, 5), (5, 0), (3, 20)])
        return (
            {"before": f"{before}s", "after": f"{after}s"},
            f"{difference} BETWEEN {-before * SECOND} AND {after * SECOND}",
            f"{delay}s",
            True,
        )
    if form == "slide":
        length, slide = rng.choice([(6, 2), (10, 5), (4, 3)])
        pane = f"(least(l.at, r.at) // {slide * SECOND}) * {slide * SECOND}"
        return {"within": f"{length}s", "slide": f"{slide}s"}, f"greatest(l.at, r.at) <= {pane} + {length * SECOND}", f"{delay}s", True
    if form == "rows":
        left, right = rng.choice([(1, 1), (7, 7), (40, 40), (1, 40), (20, 3)])
        inside = f"CASE WHEN l.pos < r.oth THEN l.pos >= r.oth - {left} ELSE r.pos >= l.oth - {right} END"
        return {"rows": left} if left == right else {"eachRows": {"l": left, "r": right}}, inside, f"{delay}s", False
    return {"unbounded": True}, "true", f"{delay}s", False


def make_input(kind: str, rng: random.Random, epochs: int, disorder: int) -> Input:
    """Batches of random tuples whose event times go forward with jumps back of up to ``disorder`` seconds."""
    batches, per_epoch, rid, clock = [], [], 0, START
    for _ in range(epochs):
        count = rng.choice([0, 1, 1, 2, 3])
        per_epoch.append(count)
        for _ in range(count):
            rows = []
            for _ in range(rng.choice([0, 1, 5, 12])):
                clock += rng.randint(0, SECOND)
                at = clock - rng.randint(0, disorder * SECOND)
                rows.append((rid, None if rng.random() < 0.05 else KINDS[kind].value(rng), rng.randint(0, 4), at))
                rid += 1
            batches.append(make_batch(rows, KINDS[kind].arrow))
    return Input(batches, per_epoch)


def run_case(seed: int, root: Path) -> None:
    rng = random.Random(seed)
    kind = rng.choice(ORDERED)
    on, expected = conditions(kind, rng)
    window, inside, watermark, late = windows(rng)
    model = rng.choice(["adsp", *INTERCHANGEABLE])
    workers = rng.randint(1, 5)
    epochs = rng.choice([2, 6, 15])
    if model in KEYED and (" OR " in on or "!=" in on):
        model = "square"  # nothing bounds a key there
    inputs = (make_input(kind, rng, epochs, rng.choice([0, 3, 15])), make_input(kind, rng, epochs, rng.choice([0, 3, 15])))
    where = rng.choice([None, None, "v <> 2"])
    output = {"select": ["l.rid AS a", "r.rid AS b", "l.k AS left_key", "r.k AS right_key", "l.v + r.v AS sum"]}
    if rng.random() < 0.3:
        output["where"] = "l.v <= r.v"
    expected = f"({expected}){' AND l.v <> 2' if where else ''}{' AND l.v <= r.v' if 'where' in output else ''}"
    job = make_job(
        root,
        on=on,
        types=(KINDS[kind].ddl,) * 2,
        window=window,
        model=model,
        workers=workers,
        watermark=watermark,
        where=(where, None),
        output=output,
    )
    runner = InlineRunner()
    driver = driver_for(job, inputs, ObjectStorage(str(root / "state")), runner)
    run_all(driver)
    if rng.random() < 0.5:  # another driver finds nothing to do, and the same output
        again = driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner())
        assert run_all(again) == []
    delay = int(watermark[:-1]) * SECOND if late else None
    want = oracle(inputs, (KINDS[kind].arrow, KINDS[kind].arrow), expected, inside, delay)
    rows = output_of(root)
    found: Counter[tuple[int, int]] = Counter()
    tuples = [{row[0]: row for batch in one.batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)} for one in inputs]
    for (a, b, left_key, right_key, total), count in rows.items():
        found[a, b] += count
        left, right = tuples[0][a], tuples[1][b]
        assert repr((left_key, right_key, total)) == repr((left[1], right[1], left[2] + right[2])), f"STREAMJOIN_SEED={seed}: wrong payload"
    assert found == want, (
        f"STREAMJOIN_SEED={seed}: on {on!r}, window {window}, {model}, {workers} workers, predicate {driver.layout}:\n"
        f"missing {list((want - found).items())[:5]}\nunexpected {list((found - want).items())[:5]}"
    )


@pytest.mark.parametrize("part", some(range(8), of=4))
def test_output_equals_the_oracle_for_random_joins(part: int, tmp_path: Path) -> None:
    if SEED is not None:
        if part == 0:
            run_case(int(SEED), tmp_path)
        return
    for case in range(part, CASES, 8):
        root = tmp_path / str(case)
        root.mkdir()
        try:
            run_case(case, root)
        except Exception as error:
            raise AssertionError(f"STREAMJOIN_SEED={case}") from error
