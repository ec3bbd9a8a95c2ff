"""Random joins, and what DuckDB finds of all their input: one generator and one oracle for every kind of join that a driver runs.

A case is drawn from one seed and a set of features (:class:`Features`): streams with their input, joins over them or over results of other
joins, which of them are there when, and how they are run. Every expression is written twice, for the engine and for DuckDB
(:class:`Term`). The oracle shares no code with the engine: it takes windows, lateness and the order of arrival by their definitions.

Always holds: the same seed gives the same case, and integers are so wide for DuckDB that nothing overflows.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from harness import SECOND, START, Input, Root, join_of, late_of, make_job, output_of, staged_of
from streamjoin.controlplane.graphs import Graphs, graphs_of
from streamjoin.elastic.another_graph import Better
from streamjoin.elastic.distribution import Distribution
from streamjoin.elastic.path_plans import Flowing, PathPlan, PathPlans
from streamjoin.job import Job
from streamjoin.language.graph import JoinGraph
from streamjoin.language.layout import PlacedGraph
from streamjoin.manifest import ManifestError
from streamjoin.scheme.models import INTERCHANGEABLE

Results = Counter[tuple[str, ...]]
"""Results with how often each comes. Values are written out, so that NaN equals NaN, and 0.0 differs from -0.0 and from 0."""
MOST_RESULTS, FEWEST_RESULTS, DRAWS = 2_000, 20, 12
MOST_TUPLES = {2: 110, 3: 90, 4: 70, 5: 60}
NAMES = ("a", "b", "c", "d", "e", "orders", "Paid", "sent_2")


@dataclass(frozen=True)
class Kind:
    """A type of columns: its DDL, its Arrow type, random values (few, so that they meet, and its ends), and how DuckDB computes with it."""

    ddl: str
    arrow: pa.DataType
    value: Callable[[random.Random], Any] = lambda rng: None
    wide: str = "{}"
    """The column in a type of DuckDB in which differences cannot overflow."""
    widths: tuple[float, ...] = ()
    """Of bands, where there are any."""
    is_exact: bool = True


def _integer(bits: int) -> Kind:
    end, ddl = 2 ** (bits - 1) - 1, {64: "BIGINT", 32: "INT", 16: "SMALLINT"}[bits]

    def value(rng: random.Random) -> int:
        return rng.choice([rng.randint(-12, 12)] * 8 + [rng.randint(-end - 1, end), end, -end - 1, end - 2, -end + 3])

    return Kind(ddl, getattr(pa, f"int{bits}")(), value, "{}::HUGEINT", (0, 1, 2, 3, 5))


def _decimal(precision: int, scale: int, widths: tuple[float, ...]) -> Kind:
    end, few = 10**precision - 1, 9 * 10**scale

    def value(rng: random.Random) -> Decimal:
        return Decimal(rng.choice([rng.randint(-few, few)] * 8 + [end // 10, -(end // 10), end // 10 + 1])).scaleb(-scale)

    return Kind(f"DECIMAL({precision},{scale})", pa.decimal128(precision, scale), value, f"{{}}::DECIMAL(38,{scale})", widths)


def _double(rng: random.Random) -> float:
    special = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e300]
    return rng.choice([rng.randint(-12, 12) / 2] * 4 + [rng.uniform(-8, 8)] * 4 + special)


TEXTS = ("", "a", "b", "customer-0001", "customer-0002", "customer-", "ä", "zz", "𐍈")
KINDS = {
    "bigint": _integer(64),
    "int": _integer(32),
    "smallint": _integer(16),
    "double": Kind("DOUBLE", pa.float64(), _double, widths=(0.5, 1, 1.5, 2.5), is_exact=False),
    "decimal": _decimal(10, 2, (1, 2.25, 4.5)),
    "wide decimal": _decimal(30, 3, (1, 2.125, 4.25)),
    "date": Kind(
        "DATE",
        pa.date32(),
        lambda rng: datetime.date(2024, 2, 20) + datetime.timedelta(rng.randint(0, 20)),
        "(epoch_us({}::TIMESTAMP)::HUGEINT // 86400000000)",
        (0, 1, 2, 4),
    ),
    "timestamp": Kind(
        "TIMESTAMP",
        pa.timestamp("us", "UTC"),
        lambda rng: datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=rng.randint(0, 20)),
        "epoch_us({})::HUGEINT",
        (0, 1, 3),
    ),
    "string": Kind("STRING", pa.string(), lambda rng: rng.choice(TEXTS)),
}
EVENT_TIME = Kind("TIMESTAMP", pa.timestamp("us", "UTC"), widths=(0, 1, 3))
"""In microseconds for DuckDB."""


@functools.cache
def columns(key: str) -> dict[str, Kind]:
    """Of every stream, ``k`` being of this kind; ``rid`` is the record's number, ``at`` its event time."""
    own = {name: KINDS[kind] for name, kind in {"rid": "bigint", "n": "bigint", "v": "int", "d": "double", "s": "string", "k": key}.items()}
    return own | {"at": EVENT_TIME}


@dataclass(frozen=True)
class Term:
    """An expression in the words of the engine and of DuckDB."""

    text: str
    sql: str
    is_double: bool = False

    @property
    def streams(self) -> set[str]:
        return set(re.findall(r"\b([A-Za-z]\w*)\.[a-z]", self.text))


def column(stream: str, name: str, key: str = "bigint", *, raw: bool = False) -> Term:
    """``raw``: of its own type for DuckDB as well, as results have it."""
    kind = columns(key)[name]
    return Term(f"{stream}.{name}", f"{stream}.{name}" if raw else kind.wide.format(f"{stream}.{name}"), kind.ddl == "DOUBLE")


def applied(pattern: str, *terms: Term | float) -> Term:
    """What both write alike."""
    given = [term if isinstance(term, Term) else Term(str(term), str(term)) for term in terms]
    texts, sqls = [term.text for term in given], [term.sql for term in given]
    return Term(pattern.format(*texts), pattern.format(*sqls), any(term.is_double for term in given))


def compare(left: Term, sign: str, right: Term | float) -> Term:
    """A comparison with NaN is false, as the engine's documentation has it."""
    whole = applied(f"{{}} {sign} {{}}", left, right)
    doubles = [term for term in (left, right) if isinstance(term, Term) and term.is_double]
    return Term(whole.text, f"({whole.sql}{''.join(f' AND NOT isnan({term.sql})' for term in doubles)})")


def between(term: Term, low: Term, high: Term) -> Term:
    both = (compare(term, ">=", low).sql, compare(term, "<=", high).sql)
    return Term(f"{term.text} BETWEEN {low.text} AND {high.text}", f"({' AND '.join(both)})")


def either(*terms: Term) -> Term:
    return Term(f"({' OR '.join(term.text for term in terms)})", f"({' OR '.join(term.sql for term in terms)})")


ORDERS = ("<", "<=", ">", ">=")
SHAPES = ("star", "chain", "cycle", "complete", "tree and edges")
EQUALITIES = ("equal",) * 6 + ("several equal", "several equal", "shifted")
BANDS = ("band", "band", "band", "between", "between", "two bounds", "time", "time")
CONNECTING = (*EQUALITIES, *BANDS, "order", "sum", "unequal", "either", "same")
FURTHER = (*CONNECTING, "unequal", "either", "same")
"""Kinds of parts that compare two streams, the more often the more they select."""
OF_TWO = (*CONNECTING, "order", "order", "order", "unequal", "unequal", "either")
BOUNDING = ("band", "band", "between", "two bounds", "order")
"""Those by which tuples can lie in one order."""
Shared = tuple[str, tuple[str, ...]] | None
"""The column that all parts compare, and the kinds of parts; None: any."""


@dataclass(frozen=True)
class Conditions:
    """Draws conditions over streams whose ``k`` is of one kind."""

    rng: random.Random
    key: str

    def column(self, stream: str, name: str) -> Term:
        return column(stream, name, self.key)

    def of(self, names: Sequence[str], shape: str, shared: Shared) -> tuple[Term, ...]:
        rng, connecting_further = self.rng, _edges(self.rng, len(names), shape)
        places = rng.sample(names, len(names))
        parts: list[Term] = []
        for kinds, edges in zip((OF_TWO if len(names) == 2 else CONNECTING, FURTHER), connecting_further, strict=True):
            for edge in edges:
                one, other = (places[index] for index in rng.sample(edge, 2))
                parts += self.compared(one, other, rng.choice(kinds if shared is None else shared[1]), shared[0] if shared else "")
        if len(names) == 2 and rng.random() < 0.4:
            one, other = (self.column(name, "v") for name in names)
            sums = [compare(one, sign, other) for sign in ("<>", "=")] + [compare(applied("{} + {}", one, other), ">", 3)]
            parts.append(rng.choice([*sums, compare(applied("abs({} - {})", one, other), "<=", 1)]))
        if len(names) > 2 and rng.random() < 0.35:
            parts.append(self.of_three(rng.sample(names, 3)))
        if rng.random() < 0.2:
            parts.append(self.of_one(rng.choice(names)))
        if rng.random() < 0.1:
            parts.append(either(*map(self.of_one, rng.sample(names, 2))))
        return tuple(rng.sample(parts, len(parts)))

    def compared(self, one: str, other: str, kind: str, by: str = "") -> list[Term]:
        """Parts that compare two streams. ``by``: the column of both, where it matters."""
        rng, of = self.rng, columns(self.key)
        name = by or rng.choice({"equal": "nnssdkk", "unequal": "nsdvk", "same": "nsk", "sum": "nk", "either": "nndk"}.get(kind, "nndkk"))
        if kind == "time":
            kind, name = rng.choice(["band", "between"]), "at"
        if kind in ("band", "between", "two bounds") and not of[name].widths:
            kind = "order"
        if kind in ("between", "two bounds") and (of[name].ddl == "DATE" or (name == "k" and not of[name].is_exact)):
            kind = "band"
        if kind == "same" and not of[name].is_exact:
            kind = "equal"
        left, right = self.column(one, name), self.column(other, name)
        width = rng.choice(of[name].widths) if of[name].widths else 0
        far = applied("({} + {})", right, _seconds(width) if of[name].ddl == "TIMESTAMP" else width)
        near = right if of[name].ddl == "TIMESTAMP" else applied("({} - {})", right, 1)
        match kind:
            case "equal":
                return [compare(left, "=", right)]
            case "shifted":
                return [compare(self.column(one, "n"), "=", applied("({} + {})", self.column(other, "n"), rng.choice([1, -2])))]
            case "several equal":
                names = rng.choice([("n", "s"), ("s", "v"), ("n", "v", "d"), ("k", "v")])
                return [compare(self.column(one, each), "=", self.column(other, each)) for each in names]
            case "band":
                distance = applied("abs(datediff({}, {}))" if of[name].ddl == "DATE" else "abs({} - {})", left, right)
                distance = replace(distance, sql=f"abs({left.sql} - {right.sql})")
                return [compare(distance, rng.choice(["<", "<=", "<="]), _seconds(width) if of[name].ddl == "TIMESTAMP" else width)]
            case "between":
                return [between(left, near, far)]
            case "two bounds":
                return [compare(left, ">=", near), compare(left, "<", far)]
            case "order":
                pairs = [("n", "n"), ("d", "d"), ("s", "s"), ("d", "n"), ("v", "v"), ("at", "at"), *[("k", "k")] * 4]
                names = (by, by) if by else rng.choice(pairs)
                return [compare(self.column(one, names[0]), rng.choice(ORDERS), self.column(other, names[1]))]
            case "sum":
                if KINDS[self.key].arrow not in (pa.int64(), pa.int32(), pa.int16()) and not self.key.endswith("decimal"):
                    left, right = self.column(one, "n"), self.column(other, "n")
                both, twice = applied("({} + {})", left, right), applied("2 * {}", left)
                limit = (both, rng.choice(ORDERS), rng.randint(-4, 4))
                return [compare(*rng.choice([(both, "=", rng.randint(0, 6)), limit, (twice, "=", right)]))]
            case "unequal":
                return [compare(left, rng.choice(["!=", "<>"]), right)]
            case "either":
                return [either(compare(left, "=", right), compare(self.column(one, "v"), "=", self.column(other, "v")))]
            case "same":
                return [Term(f"{left.text} <=> {right.text}", f"({left.sql} IS NOT DISTINCT FROM {right.sql})")]
        raise AssertionError(kind)

    def of_three(self, names: Sequence[str]) -> Term:
        rng = self.rng
        name = rng.choice(["n", "v", "d"])
        one, two, three = (self.column(each, name) for each in names)
        return rng.choice(
            [
                compare(applied("({} + {})", one, two), rng.choice(ORDERS), three),
                compare(applied("({} - {})", one, two), "!=", three),
                between(one, applied("({} - {})", two, 3), applied("({} + {})", three, 3)),
                either(compare(one, "=", two), compare(two, "<=", three)),
                either(compare(one, "<", two), self.of_one(names[2])),
            ]
        )

    def of_one(self, name: str) -> Term:
        return self.rng.choice(
            [
                compare(self.column(name, "n"), ">", self.rng.randint(-4, 0)),
                compare(self.column(name, "v"), "!=", 2),
                compare(self.column(name, "d"), "<=", 3.5),
                compare(self.column(name, "n"), ">=", self.column(name, "v")),
                applied("{} IN (0, 1, 3)", self.column(name, "v")),
                applied("{} IS NOT NULL", self.column(name, self.rng.choice("sk"))),
            ]
        )


def _seconds(count: float) -> Term:
    return Term(f"INTERVAL {count} SECONDS", str(round(count * SECOND)))


def _edges(rng: random.Random, count: int, shape: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs of streams whose parts connect all, and further pairs."""
    chain = [(number, number + 1) for number in range(count - 1)]
    pairs = list(itertools.combinations(range(count), 2))
    match shape:
        case "star":
            return [(0, number) for number in range(1, count)], []
        case "chain":
            return chain, []
        case "cycle":
            return chain, [(count - 1, 0)] if count > 2 else []
        case "complete":
            return chain, [pair for pair in pairs if pair not in chain]
    tree = [(rng.randrange(number), number) for number in range(1, count)]
    return tree, rng.sample(pairs, rng.randint(0, 2) if count > 2 else 0)


@dataclass(frozen=True)
class Window:
    """How many seconds each member of a result may be older than its newest one, or how many records of its stream may have come after it
    when the last one came; without bounds, any number."""

    form: str = "unbounded"
    """How it is written."""
    bounds: Mapping[str, int] = field(default_factory=dict)
    slide: int = 0
    """Seconds, at whose multiples windows start; 0: with every tuple."""

    @property
    def is_of_time(self) -> bool:
        return self.form in ("within", "each", "before and after")

    @property
    def manifest(self) -> dict[str, Any]:
        (first, *_), spans = self.bounds.values() or [0], {name: f"{bound}s" for name, bound in self.bounds.items()}
        written: dict[str, dict[str, Any]] = {
            "unbounded": {"unbounded": True},
            "rows": {"rows": first},
            "each rows": {"eachRows": dict(self.bounds)},
            "within": {"within": f"{first}s"},
            "each": {"each": spans},
            "before and after": dict(zip(("after", "before"), spans.values(), strict=False)),
        }
        return written[self.form] | ({"slide": f"{self.slide}s"} if self.slide else {})

    @property
    def sql(self) -> str:
        return self.sql_of(list(self.bounds))

    def sql_of(self, names: Sequence[str]) -> str:
        """Of some of the streams. Those of which a result has no tuple do not count."""
        if self.form == "unbounded":
            return "true"
        if not self.is_of_time:  # of all pairs, as what holds with the newest one holds with any that came before it
            pairs = itertools.permutations(self.bounds, 2)
            return " AND ".join(f"({x}.came < {y}.came OR {y}.rid >= {x}.of_{y} - {self.bounds[y]})" for x, y in pairs)
        newest, pane = f"greatest({', '.join(f'{name}.at' for name in names)})", (self.slide or 1) * SECOND
        begins = {name: f"{name}.at // {pane} * {pane}" if self.slide else f"{name}.at" for name in names}
        return " AND ".join(f"({name}.at IS NULL OR {newest} - ({begins[name]}) <= {self.bounds[name] * SECOND})" for name in names)


def window_of(rng: random.Random, names: Sequence[str], kind: str) -> Window:
    """``kind``: time, rows or unbounded."""
    if kind == "unbounded":
        return Window()
    even = rng.random() < 0.5
    if kind == "rows":
        one = rng.choice([1, 3, 7, 10, 40])
        return Window("rows" if even else "each rows", {name: one if even else rng.choice([1, 3, 10, 30]) for name in names})
    slide = rng.choice([0, 0, 2, 3])
    if even:
        return Window("within", dict.fromkeys(names, rng.choice([4, 5, 8, 30] if slide else [0, 1, 5, 8, 30])), slide)
    bounds = [rng.choice([3, 5, 20] if slide else [0, 1, 5, 20]) for _ in names]
    bounds[rng.randrange(len(names))] = 8
    by_name = dict(zip(names, bounds, strict=True))
    if len(names) == 2 and rng.random() < 0.5:
        return Window("before and after", by_name, slide)
    return Window("each", {name: by_name[name] for name in rng.sample(names, len(names))}, slide)


def parts_by_last(parts: Sequence[Term], names: Sequence[str]) -> list[list[Term]]:
    """By the last of these streams that each names, the second at least: in whose ON it stands where SQL joins them in this order."""
    found: list[list[Term]] = [[] for _ in names]
    for part in parts:
        found[max([1, *(names.index(name) for name in part.streams)])].append(part)
    return found


@dataclass(frozen=True)
class Stream:
    """A stream with all its input, or the results of a join."""

    name: str
    input: Input | None
    delay: int = 0
    """Of the watermark, in seconds."""
    where: Term | None = None


@dataclass(frozen=True)
class Join:
    """A join over some of the streams, in the manifest's order."""

    name: str
    over: tuple[str, ...]
    kind: str
    shape: str
    """Of the graph of the parts that compare two streams."""
    condition: tuple[Term, ...]
    window: Window
    select: Mapping[str, Term]
    kept: Term | None = None
    """Which results to keep."""
    gather: str = "0s"
    has_sink: bool = True

    @property
    def text(self) -> str:
        return " AND ".join(part.text for part in self.condition)

    def __str__(self) -> str:
        kept = f", where {self.kept.text}" if self.kept else ""
        return f"{self.name}: {self.kind} {self.shape} {', '.join(self.over)} on {self.text}, window {self.window.manifest}{kept}"

    def entry(self, root: Path) -> dict[str, Any]:
        """Of the manifest; results are in ``root/NAME/out``."""
        output: dict[str, Any] = {"select": [f"{term.text} AS {name}" for name, term in self.select.items()]}
        if self.kept is not None:
            output["where"] = self.kept.text
        sink = {"files": {"path": str(root / self.name / "out"), "format": "parquet", "gather": self.gather}}
        made = join_of(root, name=self.name, on=self.text, window=self.window.manifest, join_type=self.kind, output=output | {"sink": sink})
        if not self.has_sink:
            del made["output"]["sink"]
        return made

    @property
    def sql(self) -> str:
        first, matching = self.over[0], " AND ".join([*(part.sql for part in self.condition), f"({self.window.sql})"])
        select = f"SELECT {', '.join(f'{term.sql} AS {name}' for name, term in self.select.items())}"
        kept = "true" if self.kept is None else self.kept.sql
        match self.kind:
            case "inner":
                return f"{select} FROM {', '.join(self.over)} WHERE {matching} AND {kept}"
            case "semi" | "anti":
                matched = f"SELECT {first}.rowid FROM {', '.join(self.over)} WHERE {matching}"
                return f"{select} FROM {first} WHERE {first}.rowid {'NOT ' * (self.kind == 'anti')}IN ({matched}) AND {kept}"
        return f"{select} FROM {first} {' '.join(self._outer())} WHERE {kept}"

    def _outer(self) -> Iterator[str]:
        for number, parts in enumerate(parts_by_last(self.condition, self.over)[1:], 1):
            on = " AND ".join([*(part.sql for part in parts), f"({self.window.sql_of(self.over[: number + 1])})"])
            yield f"{self.kind.upper()} JOIN {self.over[number]} ON {on}"

    @property
    def compares_each(self) -> bool:
        """Whether each stream but the first is compared with one before it, as outer joins want it."""
        parts = zip(self.over[1:], parts_by_last(self.condition, self.over)[1:], strict=True)
        return all(any(name in part.streams and len(part.streams) > 1 for part in of) for name, of in parts)


@dataclass(frozen=True, eq=False)
class Case:
    """Joins with all their input, and how they are run."""

    key: str
    """The kind of the column ``k``."""
    streams: tuple[Stream, ...]
    joins: tuple[Join, ...]
    """Those over results after those whose results they are."""
    stages: tuple[tuple[int | None, tuple[str, ...]], ...]
    """Which joins are there until which epoch."""
    model: str = "adsp"
    workers: int = 3
    faults: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the manifest's."""
    shared: Shared = None

    def __str__(self) -> str:
        return f"{self.model}, {self.workers} workers, {'with' * self.faults or 'without'} faults, {'; '.join(map(str, self.joins))}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(stream.name for stream in self.streams)

    @property
    def inputs(self) -> tuple[Input | None, ...]:
        return tuple(stream.input for stream in self.streams)

    @property
    def epochs(self) -> int:
        """Of the input."""
        return max(len(one.per_epoch) for one in self.inputs if one is not None)

    @property
    def has_late(self) -> bool:
        return self.joins[0].window.is_of_time

    def options(self, root: Path, joins: Sequence[str] | None = None, **given: Any) -> dict[str, Any]:
        """What :func:`harness.make_job` takes. Late tuples are among the dead letters in ``root``."""
        schema, streams = ", ".join(f"{name} {kind.ddl}" for name, kind in columns(self.key).items()), []
        for stream in self.streams:
            made: dict[str, Any] = {"name": stream.name, "eventTime": "at"}
            if stream.input is None:
                made["source"] = {"join": f"{stream.name}_of"}
            else:
                made["source"] = {"files": {"path": str(root / f"in-{stream.name}"), "format": "json"}}
                made |= {"schema": schema, "watermark": f"{stream.delay}s", "expectedRate": 1000}
            streams.append(made | ({"where": stream.where.text} if stream.where else {}))
        there = {join.name: join for join in self.joins}
        entries = [there[name].entry(root) for name in (self.stages[-1][1] if joins is None else joins)]
        made = {"streams": streams, "joins": entries, "model": self.model, "workers": self.workers, "deadLetter": {"late": True}}
        return made | dict(self.extra) | given


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """One for all: to open and close it takes longer than most queries. Each case replaces the tables that it reads."""
    return duckdb.connect(config={"threads": 1})


class Oracle:
    """What DuckDB finds in the input of a case. One at a time: another one replaces its tables."""

    def __init__(self, key: str, streams: Sequence[Stream], *, rows: bool = False) -> None:
        """``rows``: whether the order of arrival matters."""
        self._streams = [stream for stream in streams if stream.input is not None]
        came = _arrivals({stream.name: stream.input for stream in self._streams if stream.input}) if rows else {}
        for stream in self._streams:
            assert stream.input is not None
            types = {name: kind.arrow for name, kind in columns(key).items()}
            table = pa.Table.from_batches(stream.input.batches, pa.schema(types.items()))
            # DuckDB computes with times of the zone that a session has, which it has none of without an extension.
            of_times = {"at": pa.int64(), "k": pa.timestamp("us") if key == "timestamp" else types["k"]}
            table = table.cast(pa.schema((types | of_times).items()))
            for name, values in came.get(stream.name, {}).items():
                table = table.append_column(name, pa.array(values, pa.int64()))
            _database().register("given", table)
            taken = f"WHERE {stream.where.sql.replace(f'{stream.name}.', 'given.')}" if stream.where else ""
            _database().execute(f"CREATE OR REPLACE TABLE all_{stream.name} AS SELECT * FROM given {taken}")
        self.leave_out(())

    def leave_out(self, left_out: Collection[tuple[str, int]], spans: Mapping[str, tuple[int, int]] | None = None) -> None:
        """From now on without these, by stream and rid, and of each stream those of these records alone."""
        for stream in self._streams:
            without = ", ".join(str(rid) for name, rid in left_out if name == stream.name) or "-1"
            low, high = (spans or {}).get(stream.name, (0, 1 << 60))
            kept = f"rid NOT IN ({without}) AND rid >= {low} AND rid < {high}"
            _database().execute(f"CREATE OR REPLACE TABLE {stream.name} AS SELECT * FROM all_{stream.name} WHERE {kept}")

    def taken(self, stream: str) -> set[int]:
        """The numbers of the records of which the stream's ``where`` is true."""
        return {rid for (rid,) in _database().execute(f"SELECT rid FROM all_{stream}").fetchall()}

    def results(self, join: Join, most: int | None = None) -> Results:
        """All results, or ``most`` of them, which other joins may then read by the name before ``_of``."""
        if join.name.endswith("_of"):
            source = join.name.removesuffix("_of")
            _database().execute(f"CREATE OR REPLACE TABLE {source} AS {join.sql}")
            return written(_database().execute(f"SELECT * FROM {source}{'' if most is None else f' LIMIT {most}'}").fetchall())
        return written(_database().execute(join.sql if most is None else f"{join.sql} LIMIT {most}").fetchall())


def written(rows: Iterable[tuple[Any, ...]]) -> Results:
    return Counter(tuple(repr(micros(value) if isinstance(value, datetime.datetime) else value) for value in row) for row in rows)


def micros(moment: datetime.datetime) -> int:
    since = moment.replace(tzinfo=datetime.UTC) - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(microseconds=1)


def _arrivals(inputs: Mapping[str, Input]) -> dict[str, dict[str, list[int]]]:
    """By stream, of each record: which of all records it is, and how many of each other stream came before it."""
    records = []
    for number, (name, one) in enumerate(inputs.items()):
        for epoch, batches in enumerate(one.epochs()):
            count = sum(batch.num_rows for batch in batches)
            records += [(epoch, Fraction(2 * index + 1, 2 * count), number, name) for index in range(count)]
    found: dict[str, dict[str, list[int]]] = {name: {"came": [], **{f"of_{other}": [] for other in inputs}} for name in inputs}
    so_far = dict.fromkeys(inputs, 0)
    for order, (_, _, _, name) in enumerate(sorted(records)):
        found[name]["came"].append(order)
        for other, count in so_far.items():
            found[name][f"of_{other}"].append(count)
        so_far[name] += 1
    return found


def late_by(case: Case, history: Mapping[int, Sequence[int]]) -> set[tuple[str, int]]:
    """The late tuples, by stream and rid: those older than the newest of all epochs before the previous one, less the delay.

    ``history``: by epoch, how many records of each stream had been read when it was committed.
    """
    found = set()
    for number, stream in enumerate(case.streams):
        if stream.input is None:
            continue
        times = [micros(at) for batch in stream.input.batches for at in batch.column("at").to_pylist()]
        newest = [-math.inf, *itertools.accumulate(times, max)]
        for epoch, records in history.items():
            first = history[epoch - 1][number] if epoch - 1 in history else 0
            known = history[epoch - 2][number] if epoch - 2 in history else 0
            bound = newest[known] - stream.delay * SECOND
            found |= {(stream.name, rid) for rid in range(first, records[number]) if times[rid] < bound}
    return found


@dataclass(frozen=True)
class Values:
    """How values are drawn: from how many different ones, and how many more tuples have the frequent ones."""

    different: int
    skew: float
    key: Kind

    def rank(self, rng: random.Random) -> int:
        return int(self.different * rng.random() ** self.skew)

    def row(self, rng: random.Random, rid: int, at: int) -> tuple[Any, ...]:
        n: int | None = self.rank(rng) - self.different // 2
        d: float | None = (self.rank(rng) - self.different // 2) / 2
        s: str | None = ("", "ä", "\U00010348", "zz")[rank] if (rank := self.rank(rng)) < 4 else f"customer-{rank:04d}"
        v: int | None = rng.randint(0, 4)
        k = self.key.value(rng)
        if rng.random() < 0.04:
            n = rng.choice([None, None, 2**63 - 1, -(2**63), 2**63 - 3])
        if rng.random() < 0.06:
            d = rng.choice([None, math.nan, math.nan, -0.0, math.inf, -math.inf, 1e300])
        if rng.random() < 0.04:
            s = None
        if rng.random() < 0.02:
            v = None
        if rng.random() < 0.05:
            k = None
        return rid, n, v, d, s, k, moment(at)


def moment(at: int) -> datetime.datetime:
    """Of microseconds since 1970."""
    return datetime.datetime.fromtimestamp(at // SECOND, datetime.UTC) + datetime.timedelta(microseconds=at % SECOND)


ARRIVALS: dict[str, Callable[[random.Random, int, int], float]] = {
    "even": lambda rng, epoch, epochs: 1,
    "first": lambda rng, epoch, epochs: 3 * epoch < epochs,
    "last": lambda rng, epoch, epochs: 3 * epoch >= 2 * (epochs - 1),
    "in bursts": lambda rng, epoch, epochs: rng.random() ** 6,
}
"""(randomness, epoch, epochs) -> the share of a stream's tuples that the epoch takes, relative to the others."""


def inputs_of(rng: random.Random, count: int, most: int, key: str, epochs: int) -> list[Input]:
    """Tuples whose event times go forward with jumps back, over the same time in all streams, however they arrive."""
    span, in_step = rng.choice([10, 40]) * SECOND, rng.random() < 0.4
    values = Values(rng.choice([4, 8, 20, 40]), rng.choice([1, 1, 3]), KINDS[key])
    grain = rng.choice([1, SECOND, 5 * SECOND])
    inputs = []
    for _ in range(count):
        tuples, jump = rng.randint(min(5, most), most), rng.choice([0, 3, 15]) * SECOND
        progress = sorted(rng.randrange(span) for _ in range(tuples))
        times = [START + (offset - rng.randint(0, jump)) // grain * grain for offset in progress]
        rows = [values.row(rng, rid, at) for rid, at in enumerate(times)]
        inputs.append(_spread(rng, rows, key, epochs, ARRIVALS["even" if in_step else rng.choice(list(ARRIVALS))]))
    return inputs


def _spread(
    rng: random.Random, rows: list[tuple[Any, ...]], key: str, epochs: int, share: Callable[[random.Random, int, int], float]
) -> Input:
    """The rows in their order, in batches of these epochs; some epochs have none, some several, of which some are empty."""
    shares = [float(share(rng, epoch, epochs)) for epoch in range(epochs)]
    ends = [round(len(rows) * total / sum(shares)) for total in itertools.accumulate(shares)]
    batches, per_epoch, begin = [], [], 0
    for end in ends:
        cuts = sorted(rng.randint(begin, end) for _ in range(rng.choice([0, 0, 1, 2])))
        bounds = [begin, *cuts, end] if cuts or end > begin else []
        batches += [batch_of(rows[low:high], key) for low, high in itertools.pairwise(bounds)]
        per_epoch.append(max(0, len(bounds) - 1))
        begin = end
    return Input(batches, per_epoch)


def batch_of(rows: Sequence[tuple[Any, ...]], key: str = "bigint") -> pa.RecordBatch:
    """Rows of values in the order of :func:`columns`."""
    of = columns(key)
    values = zip(*rows, strict=True) if rows else ((),) * len(of)
    return pa.RecordBatch.from_arrays([pa.array(each, kind.arrow) for each, kind in zip(values, of.values(), strict=True)], names=list(of))


@dataclass(frozen=True)
class Features:
    """What is drawn. Each field has the choices, the more often the more likely."""

    streams: tuple[int, ...] = (2,)
    joins: tuple[int, ...] = (1,)
    """How many; over results of others, how many at most."""
    over: str = "all"
    """Which streams a join is over: all, some (the first one three or more), or results of another join."""
    windows: tuple[str, ...] = ("time", "time", "time", "rows", "unbounded")
    """Of all joins, as they are held together."""
    types: tuple[str, ...] = ("inner", "inner", "left", "right", "full", "semi", "anti")
    """Of joins over two streams."""
    types_of_many: tuple[str, ...] = ("inner", "inner", "inner", "semi", "anti", "left", "right", "full")
    models: tuple[str, ...] = ("adsp", *INTERCHANGEABLE)
    epochs: tuple[int, ...] = (1, 3, 6, 8, 12)
    shared: tuple[Shared, ...] = (None, None, None, ("n", ("equal",)), ("s", ("equal",)), ("n", ("equal", *BOUNDING)), ("d", BOUNDING))
    """Of one column in all parts, streams that lie by it once serve several others, with bands as wide as the widest."""
    changes: bool = False
    """Whether joins come and go."""
    most: int | None = None
    """Tuples of a stream."""


def drawn(features: Features, seed: int) -> Case:
    """The case of this seed, whose joins have neither too few nor, except for the hopeless, too many results."""
    rng = random.Random(seed)
    count, key, epochs = rng.choice(features.streams), rng.choice(list(KINDS)), rng.choice(features.epochs)
    kind, delays = rng.choice(features.windows), rng.choice([(0,), (2,), (10,), (0, 2, 10), (0, 2, 10, 1000)])
    # Nothing expires for as long as one of the others might bring something old.
    conditions, names = Conditions(rng, key), rng.sample(NAMES, count)
    where = {name: conditions.of_one(name) for name in names if rng.random() < 0.15}
    inputs = inputs_of(rng, count, features.most or MOST_TUPLES[count], key, epochs)
    streams = [Stream(name, one, rng.choice(delays), where.get(name)) for name, one in zip(names, inputs, strict=True)]
    shared, number = rng.choice(features.shared), rng.choice(features.joins)
    pairs = _levels(rng, names, number) if features.over == "results" else []
    streams += [Stream(result, None) for result, *_ in pairs[:-1]]
    used = {name for _, *pair in pairs for name in pair} or set(names)
    streams = [stream for stream in rng.sample(streams, len(streams)) if stream.name in used]
    order = [stream.name for stream in streams]
    oracle, joins = Oracle(key, streams, rows=kind == "rows"), list[Join]()

    def draw(name: str, over: Sequence[str], *, is_source: bool = False) -> Join:
        """With a condition of which not too many results come."""
        over, fewest = sorted(over, key=order.index), 0 if rng.random() < 0.1 else FEWEST_RESULTS
        own = shared if features.over == "all" and number > 1 else rng.choice(features.shared)
        for _ in range(50):
            for _ in range(DRAWS):
                join = _join(rng, conditions, name, over, window_of(rng, over, kind), own, features, is_source=is_source)
                if fewest <= (found := oracle.results(join, MOST_RESULTS + 1).total()) <= MOST_RESULTS:
                    return join
            if found <= MOST_RESULTS:
                break
        return join

    for number_of_pair, (result, *pair) in enumerate(pairs):
        is_last = number_of_pair == len(pairs) - 1
        join = draw(f"{result}_of", pair, is_source=True)
        joins.append(replace(join, has_sink=is_last or rng.random() < 0.5))
    while not pairs and (len(joins) < number or set(order) - {name for join in joins for name in join.over}):
        size = count if features.over == "all" else rng.randint(3, count) if not joins or rng.random() < 0.4 else 2
        join = draw(f"j{len(joins)}", rng.sample(order, size))
        if all((join.over, join.text, join.kind, join.window) != (each.over, each.text, each.kind, each.window) for each in joins):
            joins.append(join)
    stages = (
        _changes(rng, joins, set(order), epochs) if features.changes else [(None, tuple(rng.sample([j.name for j in joins], len(joins))))]
    )
    model, workers, faults = rng.choice(features.models), rng.randint(1, 5), rng.random() < 0.6
    extra: dict[str, Any] = {}
    if model == "handshake":
        alpha = rng.choice([None, 0.1, 0.7])
        extra = {"capacity": rng.choice([40, 1_000_000]), "scheme": {"model": model} | ({} if alpha is None else {"alpha": alpha})}
    return Case(key, tuple(streams), tuple(joins), tuple(stages), model, workers, faults, extra, shared)


def _levels(rng: random.Random, names: Sequence[str], most: int) -> list[tuple[str, str, str]]:
    """Joins of a chain: the name of the results, and the two streams."""
    levels: list[tuple[str, str, str]] = []
    a, b, c, d = names
    for result, others in list(zip("xyz", ((b,), (c,), (a, d)), strict=True))[:most]:
        levels.append((result, levels[-1][0] if levels else a, rng.choice(others)))
    return levels


def _join(
    rng: random.Random,
    conditions: Conditions,
    name: str,
    over: Sequence[str],
    window: Window,
    shared: Shared,
    features: Features,
    *,
    is_source: bool,
) -> Join:
    kind, shape, key = rng.choice(features.types if len(over) == 2 else features.types_of_many), rng.choice(SHAPES), conditions.key
    condition, first, last = conditions.of(over, shape, shared), over[0], over[-1]
    made = Join(name, tuple(over), kind, shape, condition, window, {})
    if len(over) > 2 and kind in ("left", "right", "full") and (window.form.endswith("rows") or not made.compares_each):
        kind = "inner"
    select = _of_source(rng, over, kind, key) if is_source else _select(rng, over, kind, key)
    v = {each: f"{each}.v" for each in over}
    kept = rng.choice(
        {
            "left": [f"{v[last]} IS NULL OR {v[first]} <= {v[last]}"],
            "right": [f"{v[first]} IS NULL OR {v[first]} <= {v[last]}"],
            "full": [f"coalesce({v[first]}, 1) <= coalesce({v[last]}, 2)", f"{first}.rid IS NULL OR {last}.rid IS NULL"],
            "semi": [f"{v[first]} > 1", f"{v[first]} <> 2"],
            "anti": [f"{v[first]} > 1", f"{v[first]} <> 2"],
        }.get(kind, [])
        + ([] if kind in ("semi", "anti") else [f"{v[first]} <= {v[last]}"])
    )
    is_kept = rng.random() < (0.1 if is_source else 0.35)
    gather = rng.choice(["0s", "0s", "1s", "1h"])
    return replace(made, kind=kind, select=select, kept=Term(kept, f"({kept})") if is_kept else None, gather=gather)


def _select(rng: random.Random, over: Sequence[str], kind: str, key: str) -> dict[str, Term]:
    """Columns of results, which begin with the numbers of the records that they are of."""
    first = over[0]
    if kind in ("semi", "anti"):
        return {name: column(first, name, key, raw=True) for name in ("rid", *rng.sample("nvdsk", rng.randint(0, 2)))}
    found = {f"{name}_rid": column(name, "rid", raw=True) for name in over}
    one, other = rng.sample(over, 2)
    further = {
        "total": applied(" + ".join(["{}"] * len(over)), *(column(name, "v") for name in over)),
        "both": applied("({} || {})", column(one, "s"), column(other, "s")),
        "number": column(one, "d"),
        "key": column(other, "k", key, raw=True),
        "micros": Term(f"unix_micros({one}.at)", f"{one}.at"),
    }
    return found | {name: further[name] for name in rng.sample(list(further), rng.randint(0, 3))}


def _of_source(rng: random.Random, over: Sequence[str], kind: str, key: str) -> dict[str, Term]:
    """All columns of a stream, from results of two."""
    left, right = over
    if kind in ("semi", "anti"):
        return {name: column(left, name, key, raw=True) for name in columns(key)}
    found = {name: applied("coalesce({}, {})", *(column(each, name, key, raw=True) for each in over)) for name in columns(key)}
    forms = ["coalesce({0}, {1})", "coalesce(greatest({0}, {1}), {0}, {1})", "least({0}, {1})"]
    return found | {
        "rid": Term(*[f"coalesce({left}.rid, 0) * 100000 + coalesce({right}.rid, 0)"] * 2),
        "at": Term(*[rng.choice(forms).format(f"{left}.at", f"{right}.at")] * 2),
    }


def _changes(rng: random.Random, joins: Sequence[Join], names: set[str], epochs: int) -> list[tuple[int | None, tuple[str, ...]]]:
    """Some of the joins at a time; one that has gone does not come again."""
    stages: list[tuple[int | None, tuple[str, ...]]] = []
    there, others = list[Join](), list(joins)
    for until in [*sorted(rng.sample(range(1, epochs), min(epochs - 1, rng.choice([1, 2, 3])))), None]:
        for _ in range(50):
            # One at least stays, or several come: a single one in the place of another would be that, changed.
            stay = rng.sample(there, rng.randint(0 if rng.random() < 0.1 else min(1, len(there)), len(there)))
            come = rng.sample(others, rng.randint(0, min(2 if there else 3, len(others))))
            over = [set(join.over) for join in (*stay, *come)]
            if set().union(*over) == names and (stay or not there or len(come) > 1):
                break
        else:
            stay, come = (there, []) if there else ([], others)
        there, others = [*stay, *come], [join for join in others if join not in come]
        stages.append((until, tuple(join.name for join in rng.sample(there, len(there)))))
    return stages


def take_any_way(patch: pytest.MonkeyPatch, rng: random.Random, counts: Counter[str]) -> None:
    """Has each epoch's new tuples meet the other streams in any order that finds the results, step by step in any way, and fetch or not
    what the output reads. ``counts`` is told how often a step was done in each way."""

    def choose(graph: JoinGraph, known: Flowing, current: PathPlans = ()) -> PathPlans:
        path_plans = tuple(any_way(graph, head, rng) for head in range(len(graph.streams)))
        counts.update(path_plan.distribution(1 + step) for path_plan in path_plans for step in range(len(path_plans) - 2))
        return path_plans

    patch.setattr("streamjoin.controlplane.flowing.CHOOSE_SECONDS", 0.0)
    patch.setattr("streamjoin.controlplane.flowing.choose", choose)


def take_any_graph(patch: pytest.MonkeyPatch, rng: random.Random, counts: Counter[str]) -> None:
    """Has joins of three and more streams laid by any graph of their condition, before any step."""

    def look(graphs: Graphs, job: Job, *args: object) -> tuple[PlacedGraph, Better] | None:
        free = [(placed, found) for placed in job.multiway if (found := graphs_of(job, placed))]
        if not free or rng.random() < 0.7:
            return None
        placed, found = rng.choice(free)
        counts["graphs"] += 1
        return placed, Better(rng.choice(found), "drawn")

    patch.setattr(Graphs, "look", look)


def any_way(graph: JoinGraph, head: int, rng: random.Random) -> PathPlan:
    distributions = tuple(rng.choice(list(Distribution)) for _ in range(len(graph.streams) - 2))
    return PathPlan(rng.choice(list(graph.orders(head))), rng.random() < 0.5, distributions)


def job_of(case: Case, root: Root, counts: Counter[str], joins: Sequence[str] | None = None) -> Job:
    """The job of a case, on A-DSP where its own model cannot cut what the conditions compare."""
    try:
        return make_job(root, **case.options(root, joins))
    except ManifestError as error:
        if {problem.field for problem in error.problems} != {"spec.scheme.model"}:
            raise
        counts["other model"] += 1
        return make_job(root, **case.options(root, joins, model="adsp"))


Span = tuple[Sequence[int], Sequence[int]]
"""The records of each stream between which a join was there."""


def check_output(
    case: Case,
    root: Root,
    label: str,
    counts: Counter[str],
    history: Mapping[int, Sequence[int]] | None = None,
    spans: Mapping[str, Span] | None = None,
) -> None:
    """Each join has the results that DuckDB finds in all that was not late, while the join was there.

    ``history``: of each epoch, so that it is known which tuples were late; otherwise those among the dead letters. ``spans``: of joins that
    were there for a part of the input; one that ended before the input did says nothing of tuples that were still to match.
    """
    oracle, late = Oracle(case.key, case.streams, rows=case.joins[0].window.form.endswith("rows")), late_of(root)
    if history is not None:
        due = late_by(case, history) if case.has_late else set()
        want = {(name, rid) for name in {name for name, _ in due} for rid in oracle.taken(name) if (name, rid) in due}
        assert late == want, f"{label}: late were {sorted(late - want)} more and {sorted(want - late)} fewer"
    oracle.leave_out(late)
    ends = [0 if one is None else sum(batch.num_rows for batch in one.batches) for one in case.inputs]
    for join in case.joins:
        has_gone = False
        if spans is not None:
            if join.name not in spans:
                continue
            since, until = spans[join.name]
            oracle.leave_out(late, dict(zip(case.names, zip(since, until, strict=True), strict=True)))
            has_gone = list(until) != ends or join.name not in case.stages[-1][1]
        want, found = oracle.results(join), written(output_of(root / join.name).elements()) if join.has_sink else None
        if found is None:
            continue
        if has_gone and join.kind in ("left", "right", "full", "anti"):
            is_alone = (lambda row: True) if join.kind == "anti" else (lambda row: "None" in row[:2])
            alone = [Counter({row: count for row, count in rows.items() if is_alone(row)}) for rows in (found, want)]
            assert alone[0] <= alone[1], f"{label}: {join}\nunexpected {list((alone[0] - alone[1]).items())[:5]}"
            found, want = found - alone[0], want - alone[1]
        assert found == want, f"{label}: {join}\nmissing {list((want - found).items())[:5]}\nunexpected {list((found - want).items())[:5]}"
        assert staged_of(root / join.name) == [], label
        counts["results"] += found.total()
        counts.update([f"of {join.kind}", f"over {len(join.over)}", join.window.form, join.shape])
        counts["slide"] += join.window.slide > 0
    counts["late"] += len(late)
