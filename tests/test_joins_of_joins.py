"""Joins over different pairs of streams in one resource, and over the results of others, on the inline runner against DuckDB.

Random chains: two streams are joined, the results with a third, sometimes those with a fourth or with one of the first two again, by types,
windows and conditions of their own, under plans that change, drivers that die, workers that lose what they hold and epochs that fail.
``STREAMJOIN_SEED=<seed> pytest tests/test_joins_of_joins.py`` runs one case, ``STREAMJOIN_CASES`` sets how many.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from cases import how_many, some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import SECOND, Input, late_of, make_job, micros, output_of
from streamjoin.scheme.models import INTERCHANGEABLE
from test_join_property import make_input

CASES = how_many(100)
SEED = os.environ.get("STREAMJOIN_SEED")
CONDITIONS = (
    "{0}.k = {1}.k",
    "abs({0}.k - {1}.k) <= 1",
    "{0}.k < {1}.k",
    "{0}.k = {1}.k AND {0}.v <> {1}.v",
    "{0}.k >= {1}.k AND {0}.v = {1}.v",
)
TYPES = ("inner", "inner", "left", "right", "full", "semi", "anti")


@dataclass(frozen=True)
class Level:
    """A join, whose results are a stream of this name as well."""

    name: str
    left: str
    right: str
    kind: str
    condition: str
    seconds: int | None
    """Of the window; None: without end."""
    moment: str

    @property
    def select(self) -> dict[str, str]:
        """The columns of its results."""
        if self.kind in ("semi", "anti"):
            return {name: f"{self.left}.{name}" for name in ("rid", "k", "v", "at")}
        both = {name: f"coalesce({self.left}.{name}, {self.right}.{name})" for name in ("k", "v")}
        number = f"coalesce({self.left}.rid, 0) * 100000 + coalesce({self.right}.rid, 0)"
        return {"rid": number, **both, "at": self.moment.format(f"{self.left}.at", f"{self.right}.at")}

    def entry(self, root: Path, *, is_last: bool, is_seen: bool) -> dict[str, Any]:
        window = {"unbounded": True} if self.seconds is None else {"within": f"{self.seconds}s"}
        output: dict[str, Any] = {"select": [f"{sql} AS {name}" for name, sql in self.select.items()]}
        if is_last or is_seen:
            output["sink"] = {"files": {"path": str(root / self.name / "out")}}
        return {"name": f"{self.name}_of", "type": self.kind, "condition": self.condition, "window": window, "output": output}

    def sql(self) -> str:
        inside = "true" if self.seconds is None else f"abs({self.left}.at - {self.right}.at) <= {self.seconds * SECOND}"
        on, columns = f"({self.condition}) AND {inside}", ", ".join(f"{sql} AS {name}" for name, sql in self.select.items())
        if self.kind in ("semi", "anti"):
            exists = f"EXISTS (SELECT 1 FROM {self.right} WHERE {on})"
            return f"SELECT {columns} FROM {self.left} WHERE {'' if self.kind == 'semi' else 'NOT '}{exists}"
        return f"SELECT {columns} FROM {self.left} {self.kind.upper()} JOIN {self.right} ON {on}"


def draw(rng: random.Random) -> list[Level]:
    seconds = rng.choice([None, 2, 8])
    levels: list[Level] = []
    for name, others in zip(("x", "y", "z"), ("b", "c", "ad"), strict=True):
        pair = [levels[-1].name if levels else "a", rng.choice(others)]
        if levels and rng.random() < 0.5:
            pair.reverse()
        kind = rng.choice(TYPES)
        moments = ["coalesce({0}, {1})", "coalesce(greatest({0}, {1}), {0}, {1})", "least({0}, {1})"]
        of_window = None if seconds is None else rng.choice([0, seconds, 3 * seconds])
        levels.append(Level(name, *pair, kind, rng.choice(CONDITIONS).format(*pair), of_window, rng.choice(moments)))
        if len(levels) == 2 and rng.random() < 0.6:
            break
    return levels


@dataclass(frozen=True)
class Case:
    """A resource of some such joins, its input, and what must come of it."""

    levels: list[Level]
    joins: list[dict[str, Any]]
    streams: list[dict[str, Any]]
    given: dict[str, Input]
    """By stream, of those that read no results."""

    @property
    def inputs(self) -> list[Input | None]:
        return [self.given.get(stream["name"]) for stream in self.streams]

    def options(self, root: Path, model: str, workers: int) -> dict[str, Any]:
        return {"model": model, "workers": workers, "streams": self.streams, "joins": self.joins[::-1], "deadLetter": {"late": True}}

    def check(self, root: Path, label: str, counts: Counter[str]) -> None:
        late = late_of(root)
        assert {stream for stream, _ in late} <= set(self.given), "what comes of joins is never late"
        with duckdb.connect() as database:
            for name, one in self.given.items():
                rows = [row for batch in one.batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
                kept = [(*row[:3], micros(row[3])) for row in rows if (name, row[0]) not in late]
                columns = zip(*kept, strict=True) if kept else ((),) * 4
                table = pa.table([pa.array(list(values), pa.int64()) for values in columns], names=["rid", "k", "v", "at"])
                database.register(f"{name}_arrow", table)
                database.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_arrow")
            for level, entry in zip(self.levels, self.joins, strict=True):
                database.execute(f"CREATE TABLE {level.name} AS {level.sql()}")
                if "sink" not in entry["output"]:
                    continue
                want = Counter(database.execute(f"SELECT rid, k, v FROM {level.name}").fetchall())
                found = Counter[Any]()
                for row, count in output_of(root / level.name).items():
                    found[row[:3]] += count
                assert found == want, (
                    f"{label}: {level}, of {self.levels}:\nmissing {list((want - found).items())[:5]}\n"
                    f"unexpected {list((found - want).items())[:5]}"
                )
                counts["results"] += want.total()
                counts[f"of {len(self.levels)}"] += 1


def drawn(rng: random.Random, root: Path, epochs: int) -> Case:
    levels = draw(rng)
    names = sorted({stream for level in levels for stream in (level.left, level.right)} & set("abcd"))
    derived = [level.name for level in levels[:-1]]
    order = rng.sample([*names, *derived], len(names) + len(derived))
    in_order = [sorted((level.left, level.right), key=order.index) for level in levels]
    levels = [replace(level, left=left, right=right) for level, (left, right) in zip(levels, in_order, strict=True)]
    joins = [level.entry(root, is_last=level is levels[-1], is_seen=rng.random() < 0.5) for level in levels]
    watermark, streams = f"{rng.choice([5, 1000])}s", []
    for name in order:
        stream: dict[str, Any] = {"name": name, "eventTime": "at"}
        if name in derived:
            stream["source"] = {"join": f"{name}_of"}
        else:
            stream["source"] = {"files": {"path": str(root / f"in-{name}"), "format": "json"}}
            stream |= {"schema": "rid BIGINT, k INT, v INT, at TIMESTAMP", "watermark": watermark}
        streams.append(stream)
    return Case(levels, joins, streams, {name: make_input("int", rng, epochs, rng.choice([0, 3])) for name in names})


def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
    rng = random.Random(seed)
    case, faults = drawn(rng, root, rng.choice([2, 6, 12])), rng.random() < 0.6
    job = make_job(root, **case.options(root, rng.choice(["adsp", *INTERCHANGEABLE]), rng.randint(1, 5)))
    run_with_faults(elastic(job) if faults else job, case.inputs, root, rng, counts, faults=faults)
    case.check(root, f"STREAMJOIN_SEED={seed}: {job.model}", counts)


@pytest.mark.parametrize("part", some(range(4), of=4))
def test_joins_of_joins_give_what_duckdb_gives(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    run_cases(range(part, CASES, 4) if SEED is None else [int(SEED)] * (part == 0), tmp_path, run_case, counts)
    if SEED is None and CASES >= 100:
        assert counts["results"] > 1_000
        assert min(counts["of 2"], counts["of 3"], counts["switches"]) > 5
        assert counts["failed epochs"] + counts["died at commit"] + counts["died at publish"] > 0
