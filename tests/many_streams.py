"""Random joins of two to five streams, and two oracles of their results that share no code with the engine.

A join is drawn with its input from one seed (:func:`drawn`). Every expression is made in three tongues at once (:class:`Term`): the
engine's SQL, DuckDB's SQL, and Python. :func:`expected` has DuckDB select the results from all tuples; :func:`expected_by_hand` goes
through the product of all streams in Python, and says of windows what they mean in other words, so that each pins the other.

Always holds: the same seed gives the same join and the same input, and integers are so wide for DuckDB that nothing overflows.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import math
import operator
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from harness import SECOND, START, Arrived, Input, join_of, micros, on_time
from streamjoin.elastic.distribution import Distribution
from streamjoin.elastic.path_plans import Flowing, PathPlan, PathPlans
from streamjoin.language.graph import JoinGraph
from streamjoin.scheme.models import INTERCHANGEABLE

Row = Mapping[str, Any]
"""A tuple's values by column; event times in microseconds."""
Members = Mapping[str, Row]
"""A candidate for a result: a tuple of each stream."""
Results = Counter[tuple[str, ...]]
"""Results with how often each comes. Values are written out, so that NaN equals NaN, and 0.0 differs from -0.0 and from 0."""


@dataclass(frozen=True)
class Column:
    ddl: str
    arrow: pa.DataType
    sql: str = "{}"
    """The column in a type of DuckDB in which nothing overflows."""


COLUMNS = {
    "rid": Column("BIGINT", pa.int64()),
    "n": Column("BIGINT", pa.int64(), "{}::HUGEINT"),
    "v": Column("INT", pa.int32(), "{}::HUGEINT"),
    "at": Column("TIMESTAMP", pa.timestamp("us", "UTC")),
    "d": Column("DOUBLE", pa.float64()),
    "s": Column("STRING", pa.string()),
}
"""Of every stream. ``at`` is the event time."""


@dataclass(frozen=True)
class Term:
    """An expression as the engine and DuckDB write it, and its value in Python, where None is null."""

    text: str
    sql: str
    value: Callable[[Members], Any]
    is_double: bool = False


def column(stream: str, name: str) -> Term:
    return Term(f"{stream}.{name}", COLUMNS[name].sql.format(f"{stream}.{name}"), lambda members: members[stream][name], name == "d")


def constant(number: float) -> Term:
    return Term(str(number), str(number), lambda members: number)


def seconds(count: int) -> Term:
    return Term(f"INTERVAL {count} SECONDS", str(count * SECOND), lambda members: count * SECOND)


def applied(pattern: str, function: Callable[..., Any], *terms: Term) -> Term:
    """A function that both dialects of SQL write alike, and that is null where any of its arguments is."""

    def value(members: Members) -> Any:
        values = [term.value(members) for term in terms]
        return None if None in values else function(*values)

    texts, sqls = [term.text for term in terms], [term.sql for term in terms]
    return Term(pattern.format(*texts), pattern.format(*sqls), value, any(term.is_double for term in terms))


def plus(left: Term, right: Term) -> Term:
    return applied("({} + {})", operator.add, left, right)


def minus(left: Term, right: Term) -> Term:
    return applied("({} - {})", operator.sub, left, right)


def distance(left: Term, right: Term) -> Term:
    return applied("abs({} - {})", lambda one, other: abs(one - other), left, right)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ORDERS = ("<", "<=", ">", ">=")


def compare(left: Term, sign: str, right: Term) -> Term:
    """A comparison with NaN is false, as the engine's documentation has it; of an integer and a double it is one of doubles."""
    is_double = left.is_double or right.is_double

    def value(members: Members) -> bool | None:
        values = [term.value(members) for term in (left, right)]
        if None in values:
            return None
        if is_double:
            values = [float(each) for each in values]
            if any(map(math.isnan, values)):
                return False
        return COMPARISONS[sign](*values)

    defined = "".join(f" AND NOT isnan({term.sql})" for term in (left, right) if term.is_double)
    return Term(f"{left.text} {sign} {right.text}", f"({left.sql} {sign} {right.sql}{defined})", value)


def same(left: Term, right: Term) -> Term:
    """``<=>``: equal, or both null. Not for doubles."""
    return Term(
        f"{left.text} <=> {right.text}",
        f"({left.sql} IS NOT DISTINCT FROM {right.sql})",
        lambda members: left.value(members) == right.value(members),
    )


def present(term: Term) -> Term:
    return Term(f"{term.text} IS NOT NULL", f"({term.sql} IS NOT NULL)", lambda members: term.value(members) is not None)


def among(term: Term, values: Sequence[int]) -> Term:
    listed = ", ".join(map(str, values))

    def value(members: Members) -> bool | None:
        found = term.value(members)
        return None if found is None else found in values

    return Term(f"{term.text} IN ({listed})", f"({term.sql} IN ({listed}))", value)


def either(*terms: Term) -> Term:
    def value(members: Members) -> bool | None:
        values = [term.value(members) for term in terms]
        return True if True in values else None if None in values else False

    return Term(f"({' OR '.join(term.text for term in terms)})", f"({' OR '.join(term.sql for term in terms)})", value)


def every(*terms: Term) -> Term:
    def value(members: Members) -> bool | None:
        values = [term.value(members) for term in terms]
        return False if False in values else None if None in values else True

    return Term(f"({' AND '.join(term.text for term in terms)})", f"({' AND '.join(term.sql for term in terms)})", value)


def between(term: Term, low: Term, high: Term) -> Term:
    meaning = every(compare(term, ">=", low), compare(term, "<=", high))
    return Term(f"{term.text} BETWEEN {low.text} AND {high.text}", meaning.sql, meaning.value)


@dataclass(frozen=True)
class TimeWindow:
    """How many seconds each member of a result may be older than its newest one; without bounds, any number."""

    bounds: Mapping[str, int] | None
    is_even: bool = False
    """Whether all bounds are equal and written as one."""
    is_of_pairs: bool = False
    """Whether that of two streams is written as how far the second one's tuple may lie before and after the first one's."""
    slide: int = 0
    """Seconds, at whose multiples windows start; 0: with every tuple."""

    @property
    def manifest(self) -> dict[str, Any]:
        if self.bounds is None:
            return {"unbounded": True}
        slide = {"slide": f"{self.slide}s"} if self.slide else {}
        if self.is_even:
            return {"within": f"{next(iter(self.bounds.values()))}s"} | slide
        if self.is_of_pairs:
            left, right = self.bounds.values()
            return {"before": f"{right}s", "after": f"{left}s"} | slide
        return {"each": {name: f"{bound}s" for name, bound in self.bounds.items()}} | slide

    @property
    def sql(self) -> str:
        if self.bounds is None:
            return "true"
        times = ", ".join(f"{name}.at" for name in self.bounds)
        if self.is_even and not self.slide:
            return f"greatest({times}) - least({times}) <= {max(self.bounds.values()) * SECOND}"
        slide = f" // {self.slide * SECOND} * {self.slide * SECOND}" if self.slide else ""
        begins = {name: f"{name}.at{slide}" for name in self.bounds}
        return " AND ".join(f"greatest({times}) - ({begins[name]}) <= {bound * SECOND}" for name, bound in self.bounds.items())

    def holds(self, members: Members) -> bool:
        """Whether no member is older than any other by more than its bound."""
        bounds, slide = self.bounds or {}, self.slide * SECOND or 1
        begins = {name: members[name]["at"] // slide * slide for name in bounds}
        return all(members[other]["at"] - begins[name] <= bound * SECOND for name, bound in bounds.items() for other in members)


@dataclass(frozen=True, eq=False)
class Join:
    """A join of several streams with all its input."""

    names: tuple[str, ...]
    """Of the streams, in the manifest's order."""
    shape: str
    """Of the graph of the parts that compare two streams."""
    condition: tuple[Term, ...]
    window: TimeWindow
    where: Mapping[str, Term]
    """By stream, which tuples to take."""
    select: Mapping[str, Term]
    kept: Term | None
    """Which results to keep."""
    inputs: tuple[Input, ...]
    delays: tuple[int, ...]
    """Of the watermarks, in seconds."""
    model: str = "adsp"
    workers: int = 3
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the manifest's."""
    kind: str = "inner"
    """Or semi or anti: ``select`` and ``kept`` are of the first stream alone then."""

    def __str__(self) -> str:
        window = self.window.manifest
        return f"{self.kind} {self.shape} {', '.join(self.names)} on {self.text}, window {window}, {self.model}, {self.workers} workers"

    @property
    def text(self) -> str:
        return " AND ".join(part.text for part in self.condition)

    @property
    def filters(self) -> list[Term]:
        """All that must be true of tuples that match, but for the window."""
        return [*self.condition, *self.where.values()]

    @property
    def of_first(self) -> list[Term]:
        """What must be true of results of the first stream alone."""
        return [term for term in (self.where.get(self.names[0]), self.kept) if term is not None]

    def of_type(self, kind: str, rng: random.Random) -> Join:
        """The same with other results: tuples of its first stream."""
        if kind == "inner":
            return self
        first = self.names[0]
        select = {name: column(first, name) for name in ("rid", *rng.sample(["n", "v", "d", "s"], rng.randint(0, 2)))}
        kept = compare(column(first, "v"), "<=", constant(rng.randint(0, 5))) if rng.random() < 0.3 else None
        return replace(self, kind=kind, select=select, kept=kept)

    def options(self, root: Path, **given: Any) -> dict[str, Any]:
        """What :func:`harness.make_job` takes, so that results are in ``root/out`` and late tuples among the dead letters."""
        schema = ", ".join(f"{name} {of.ddl}" for name, of in COLUMNS.items())
        streams: list[dict[str, Any]] = []
        for name, delay in zip(self.names, self.delays, strict=True):
            files = {"path": str(root / f"in-{name}"), "format": "json"}
            stream = {"name": name, "source": {"files": files}, "schema": schema, "eventTime": "at", "expectedRate": 1000}
            streams.append(stream | {"watermark": f"{delay}s"})
            if name in self.where:
                streams[-1]["where"] = self.where[name].text
        output: dict[str, Any] = {"select": [f"{term.text} AS {name}" for name, term in self.select.items()]}
        if self.kept is not None:
            output["where"] = self.kept.text
        joins = [join_of(root, on=self.text, window=self.window.manifest, output=output, join_type=self.kind)]
        made = {"streams": streams, "joins": joins, "model": self.model, "workers": self.workers, "deadLetter": {"late": True}}
        return made | dict(self.extra) | given

    def takes(self, name: str, row: Row) -> bool:
        """Whether the stream's ``where`` is true of a tuple."""
        return name not in self.where or self.where[name].value({name: row}) is True

    @functools.cached_property
    def arrived(self) -> dict[str, list[Arrived]]:
        """The tuples of each stream, with their epochs."""
        found = {}
        for name, one in zip(self.names, self.inputs, strict=True):
            of_epochs = [[row for batch in batches for row in rows_of(batch)] for batches in one.epochs()]
            found[name] = [Arrived(row, epoch, 0, 0) for epoch, rows in enumerate(of_epochs) for row in rows]
        return found

    def late(self, *, sooner: bool = False) -> set[tuple[str, int]]:
        """The late tuples, by stream and rid, where each epoch takes what the input offers it.

        ``sooner``: by the watermark of the epoch before, rather than of the one before that. A stream that is held back, because it is
        ahead of the others, misses epochs, so that these may be late too; never any others.
        """
        if self.window.bounds is None:
            return set()
        found = set()
        for (name, tuples), delay in zip(self.arrived.items(), self.delays, strict=True):
            seen = [Arrived(each.row, 2 * each.epoch, 0, 0) for each in tuples] if sooner else tuples
            kept = {each.row[0] for each in on_time(seen, delay * SECOND)}
            found |= {(name, each.row[0]) for each in tuples if each.row[0] not in kept}
        return found

    def rows(self, left_out: Collection[tuple[str, int]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """By stream, all tuples that are joined, with their event times in microseconds."""
        for name, tuples in self.arrived.items():
            rows = [dict(zip(COLUMNS, each.row, strict=True)) for each in tuples if (name, each.row[0]) not in left_out]
            yield name, [row | {"at": micros(row["at"])} for row in rows]


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(values.to_pylist() for values in batch.columns), strict=True)


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """One for all: to open and close it takes longer than most queries. Each replaces the tables that it reads."""
    return duckdb.connect(config={"threads": 1})


def expected(join: Join, left_out: Collection[tuple[str, int]] = (), *, most: int | None = None) -> Results:
    """What DuckDB selects of all tuples but those ``left_out``, given by stream and rid; ``most`` results of it, if that is said."""
    database = _database()
    types = {name: pa.int64() if name == "at" else of.arrow for name, of in COLUMNS.items()}
    for name, rows in join.rows(left_out):
        database.register("rows", pa.Table.from_pylist(rows, schema=pa.schema(types.items())))
        database.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM rows")
    matching = " AND ".join([*(term.sql for term in join.filters), f"({join.window.sql})"])
    select, first = ", ".join(f"{term.sql} AS {name}" for name, term in join.select.items()), join.names[0]
    if join.kind == "inner":
        query = f"SELECT {select} FROM {', '.join(join.names)} WHERE {matching}" + (f" AND {join.kept.sql}" if join.kept else "")
    else:
        matched = f"(SELECT {first}.rid FROM {', '.join(join.names)} WHERE {matching})"
        exists = f"{first}.rid {'NOT ' * (join.kind == 'anti')}IN {matched}"
        query = f"SELECT {select} FROM {first} WHERE {' AND '.join([exists, *(term.sql for term in join.of_first)])}"
    found = database.execute(query if most is None else f"{query} LIMIT {most}").fetchall()
    return written(found)


def expected_by_hand(join: Join, left_out: Collection[tuple[str, int]] = ()) -> Results:
    """The same by Python alone, from the product of all streams: for a few tuples."""
    found, (of_first, *of_others) = [], [rows for _, rows in join.rows(left_out)]
    for row in of_first:
        matching = []
        for others in itertools.product(*of_others):
            members = dict(zip(join.names, (row, *others), strict=True))
            if join.window.holds(members) and all(term.value(members) is True for term in join.filters):
                matching.append(members)
        alone = {join.names[0]: row}
        if join.kind != "inner":
            given = bool(matching) == (join.kind == "semi") and all(term.value(alone) is True for term in join.of_first)
            matching = [alone] if given else []
        elif join.kept is not None:
            matching = [members for members in matching if join.kept.value(members) is True]
        found += [tuple(term.value(members) for term in join.select.values()) for members in matching]
    return written(found)


def written(rows: Iterable[tuple[Any, ...]]) -> Results:
    return Counter(tuple(map(repr, row)) for row in rows)


def take_any_way(patch: pytest.MonkeyPatch, rng: random.Random, counts: Counter[str]) -> None:
    """Has each epoch's new tuples meet the other streams in any order that finds the results, step by step in any way, and fetch or not
    what the output reads. ``counts`` is told how often a step was done in each way."""

    def choose(graph: JoinGraph, known: Flowing, current: PathPlans = ()) -> PathPlans:
        path_plans = tuple(any_way(graph, head, rng) for head in range(len(graph.streams)))
        counts.update(path_plan.distribution(1 + step) for path_plan in path_plans for step in range(len(path_plans) - 2))
        return path_plans

    patch.setattr("streamjoin.epoch.flowing.CHOOSE_SECONDS", 0.0)
    patch.setattr("streamjoin.epoch.flowing.choose", choose)


def any_way(graph: JoinGraph, head: int, rng: random.Random) -> PathPlan:
    distributions = tuple(rng.choice(list(Distribution)) for _ in range(len(graph.streams) - 2))
    return PathPlan(rng.choice(list(graph.orders(head))), rng.random() < 0.5, distributions)


SHAPES = ("star", "chain", "cycle", "complete", "tree and edges")
EQUALITIES = ("equal",) * 6 + ("several equal", "several equal", "shifted")
BANDS = ("band", "band", "band", "between", "between", "two bounds", "time", "time")
CONNECTING = (*EQUALITIES, *BANDS, "order", "sum", "unequal", "either", "same")
FURTHER = (*CONNECTING, "unequal", "either", "same")
"""Kinds of parts that compare two streams, the more often the more they select."""
BOUNDING = ("equal", "band", "band", "between", "two bounds", "order")
"""Those of which several can be of the same column."""
NAMES = ("a", "b", "c", "d", "e", "orders", "Paid", "sent_2")
MOST_TUPLES = {2: 120, 3: 90, 4: 70, 5: 60}
FEWEST_RESULTS, MOST_RESULTS = 20, 3_000
DRAWS = 12


def drawn(seed: int, *, streams: int | None = None, most_tuples: int | None = None) -> Join:
    """The join of this seed. Most are drawn until they have neither too few nor too many results; some may have none.

    ``streams``: how many, if not any number from two to five. ``most_tuples``: of a stream.
    """
    rng = random.Random(seed)
    count = rng.choice([2, 3, 3, 3, 4, 4, 5]) if streams is None else streams
    fewest = 0 if rng.random() < 0.1 else FEWEST_RESULTS
    for _ in range(DRAWS):
        join = _draw(rng, count, most_tuples or MOST_TUPLES[count])
        results = expected(join, join.late(), most=MOST_RESULTS + 1).total()
        if fewest <= results <= MOST_RESULTS:
            return join
    while results > MOST_RESULTS:
        join = _draw(rng, count, 8)
        results = expected(join, join.late(), most=MOST_RESULTS + 1).total()
    return join


def _draw(rng: random.Random, count: int, most: int) -> Join:
    names = tuple(rng.sample(NAMES, count))
    shape = rng.choice(SHAPES)
    condition = condition_of(rng, names, shape)
    rng.shuffle(condition)
    window = window_of(rng, names)
    # Nothing expires for as long as one of the others might bring something old.
    delays = rng.choice([(0,), (2,), (10,), (0, 2, 10), (0, 2, 10, 1000)])
    kept = compare(column(names[0], "v"), "<=", column(names[-1], "v")) if rng.random() < 0.25 else None
    where = {name: of_one(rng, name) for name in names if rng.random() < 0.2}
    return Join(
        names,
        shape,
        tuple(condition),
        window,
        where,
        select_of(rng, names),
        kept,
        inputs_of(rng, count, most),
        tuple(rng.choice(delays) for _ in names),
        rng.choice(["adsp", *INTERCHANGEABLE]),
        rng.randint(1, 8),
    )


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


def condition_of(rng: random.Random, names: tuple[str, ...], shape: str) -> list[Term]:
    connecting, further = _edges(rng, len(names), shape)
    places = rng.sample(names, len(names))
    # Of one column in all parts: streams that lie by it once serve several others, with bands as wide as the widest.
    shared = rng.choice([None, None, None, ("n", ("equal",)), ("s", ("equal",)), ("n", BOUNDING), ("d", BOUNDING)])
    parts: list[Term] = []
    for kinds, edges in ((CONNECTING, connecting), (FURTHER, further)):
        for edge in edges:
            one, other = (places[index] for index in rng.sample(edge, 2))
            if shared is None:
                parts += _compared(rng, one, other, rng.choice(kinds))
            else:
                parts += _compared(rng, one, other, rng.choice(shared[1]), shared[0])
    if len(names) > 2 and rng.random() < 0.35:
        parts.append(_of_three(rng, rng.sample(names, 3)))
    if rng.random() < 0.25:
        parts.append(of_one(rng, rng.choice(names)))
    if rng.random() < 0.15:
        one, other = rng.sample(names, 2)
        parts.append(either(of_one(rng, one), of_one(rng, other)))
    return parts


def _compared(rng: random.Random, one: str, other: str, kind: str, by: str = "") -> list[Term]:
    """Parts that compare two streams. ``by``: the column of both, where it matters."""
    name = by or rng.choice(["n", "n", "s", "s", "d"] if kind == "equal" else ["n", "n", "d"])
    left, right = column(one, name), column(other, name)
    width = constant(rng.choice([0, 1, 2, 5]) if name == "n" else rng.choice([0.5, 1, 2.5]))
    match kind:
        case "equal":
            return [compare(left, "=", right)]
        case "shifted":
            return [compare(column(one, "n"), "=", plus(column(other, "n"), constant(rng.choice([1, -2]))))]
        case "several equal":
            return [compare(column(one, each), "=", column(other, each)) for each in rng.choice([("n", "s"), ("s", "v"), ("n", "v", "d")])]
        case "band":
            return [compare(distance(left, right), rng.choice(["<", "<=", "<="]), width)]
        case "between":
            return [between(left, minus(right, constant(1)), plus(right, width))]
        case "two bounds":
            return [compare(left, ">=", minus(right, constant(1))), compare(left, "<", plus(right, width))]
        case "order":
            names = (by, by) if by else rng.choice([("n", "n"), ("d", "d"), ("s", "s"), ("d", "n"), ("v", "v"), ("at", "at")])
            return [compare(column(one, names[0]), rng.choice(ORDERS), column(other, names[1]))]
        case "time":
            times, span = (column(one, "at"), column(other, "at")), seconds(rng.choice([0, 1, 3]))
            return [rng.choice([between(times[0], times[1], plus(times[1], span)), compare(distance(*times), "<=", span)])]
        case "sum":
            left, right = column(one, "n"), column(other, "n")
            return [
                rng.choice(
                    [
                        compare(plus(left, right), "=", constant(rng.randint(0, 6))),
                        compare(plus(left, right), rng.choice(ORDERS), constant(rng.randint(-4, 4))),
                        compare(applied("2 * {}", lambda value: 2 * value, left), "=", right),
                    ]
                )
            ]
        case "unequal":
            name = rng.choice(["n", "s", "d", "v"])
            return [compare(column(one, name), rng.choice(["!=", "<>"]), column(other, name))]
        case "either":
            return [either(compare(left, "=", right), compare(column(one, "v"), "=", column(other, "v")))]
        case "same":
            name = rng.choice(["n", "s"])
            return [same(column(one, name), column(other, name))]
    raise AssertionError(kind)


def _of_three(rng: random.Random, names: list[str]) -> Term:
    name = rng.choice(["n", "v", "d"])
    one, two, three = (column(each, name) for each in names)
    return rng.choice(
        [
            compare(plus(one, two), rng.choice(ORDERS), three),
            compare(minus(one, two), "!=", three),
            between(one, minus(two, constant(3)), plus(three, constant(3))),
            either(compare(one, "=", two), compare(two, "<=", three)),
            either(compare(one, "<", two), of_one(rng, names[2])),
        ]
    )


def of_one(rng: random.Random, name: str) -> Term:
    return rng.choice(
        [
            compare(column(name, "n"), ">", constant(rng.randint(-4, 0))),
            compare(column(name, "v"), "!=", constant(2)),
            compare(column(name, "d"), "<=", constant(3.5)),
            compare(column(name, "n"), ">=", column(name, "v")),
            among(column(name, "v"), (0, 1, 3)),
            present(column(name, "s")),
        ]
    )


def window_of(rng: random.Random, names: tuple[str, ...]) -> TimeWindow:
    form = rng.choice(["within", "within", "each", "each", "unbounded"])
    if form == "unbounded":
        return TimeWindow(None)
    slide = rng.choice([0, 0, 2, 3])
    if form == "within":
        return TimeWindow(dict.fromkeys(names, rng.choice([5, 8, 30] if slide else [0, 1, 5, 8, 30])), is_even=True, slide=slide)
    bounds = [rng.choice([3, 5, 20] if slide else [0, 1, 5, 20]) for _ in names]
    bounds[rng.randrange(len(names))] = 8
    by_name = dict(zip(names, bounds, strict=True))
    if len(names) == 2 and rng.random() < 0.5:
        return TimeWindow(by_name, is_of_pairs=True, slide=slide)
    return TimeWindow({name: by_name[name] for name in rng.sample(names, len(names))}, slide=slide)


def select_of(rng: random.Random, names: tuple[str, ...]) -> dict[str, Term]:
    found = {f"{name}_rid": column(name, "rid") for name in names}
    total = column(names[0], "v")
    for name in names[1:]:
        total = plus(total, column(name, "v"))
    one, other = rng.sample(names, 2)
    further = {
        "total": total,
        "both": applied("({} || {})", operator.add, column(one, "s"), column(other, "s")),
        "number": column(one, "d"),
        "key": column(other, "n"),
        "micros": _unix_micros(one),
    }
    return found | {name: further[name] for name in rng.sample(list(further), rng.randint(0, 3))}


def _unix_micros(name: str) -> Term:
    at = column(name, "at")
    return Term(f"unix_micros({at.text})", at.sql, at.value)


LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Values:
    """How keys are drawn: from how many different ones, and how many more tuples have the frequent ones."""

    different: int
    skew: float

    def rank(self, rng: random.Random) -> int:
        return int(self.different * rng.random() ** self.skew)

    def row(self, rng: random.Random, rid: int, at: int) -> tuple[Any, ...]:
        n: int | None = self.rank(rng) - self.different // 2
        d: float | None = (self.rank(rng) - self.different // 2) / 2
        s: str | None = ("", "ä", "\U00010348", "zz")[rank] if (rank := self.rank(rng)) < 4 else f"customer-{rank:04d}"
        v: int | None = rng.randint(0, 4)
        if rng.random() < 0.04:
            n = rng.choice([None, None, LARGEST, -LARGEST - 1, LARGEST - 2])
        if rng.random() < 0.06:
            d = rng.choice([None, math.nan, math.nan, -0.0, math.inf, -math.inf, 1e300])
        if rng.random() < 0.04:
            s = None
        if rng.random() < 0.04:
            v = None
        return rid, n, v, moment(at), d, s


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


def inputs_of(rng: random.Random, count: int, most: int) -> tuple[Input, ...]:
    """Tuples whose event times go forward with jumps back, over the same time in all streams, however they arrive."""
    epochs, span, in_step = rng.choice([1, 3, 8, 15, 15]), rng.choice([10, 40]) * SECOND, rng.random() < 0.4
    values = Values(rng.choice([4, 8, 20, 40]), rng.choice([1, 1, 3]))
    grain = rng.choice([1, SECOND, 5 * SECOND])
    inputs = []
    for _ in range(count):
        tuples, jump = rng.randint(min(5, most), most), rng.choice([0, 0, 3, 15]) * SECOND
        progress = sorted(rng.randrange(span) for _ in range(tuples))
        times = [START + (offset - rng.randint(0, jump)) // grain * grain for offset in progress]
        rows = [values.row(rng, rid, at) for rid, at in enumerate(times)]
        inputs.append(_spread(rng, rows, epochs, ARRIVALS["even" if in_step else rng.choice(list(ARRIVALS))]))
    return tuple(inputs)


def _spread(rng: random.Random, rows: list[tuple[Any, ...]], epochs: int, share: Callable[[random.Random, int, int], float]) -> Input:
    """The rows in their order, in batches of these epochs; some epochs have none, some several, of which some are empty."""
    shares = [float(share(rng, epoch, epochs)) for epoch in range(epochs)]
    ends = [round(len(rows) * total / sum(shares)) for total in itertools.accumulate(shares)]
    batches, per_epoch, begin = [], [], 0
    for end in ends:
        cuts = sorted(rng.randint(begin, end) for _ in range(rng.choice([0, 0, 1, 2])))
        bounds = [begin, *cuts, end] if cuts or end > begin else []
        batches += [batch_of(rows[low:high]) for low, high in itertools.pairwise(bounds)]
        per_epoch.append(max(0, len(bounds) - 1))
        begin = end
    return Input(batches, per_epoch)


def batch_of(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows of values in the order of ``COLUMNS``."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    arrays = [pa.array(values, of.arrow) for values, of in zip(columns, COLUMNS.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))
