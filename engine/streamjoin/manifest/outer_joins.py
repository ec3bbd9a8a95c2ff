"""Outer joins of three and more streams: as SQL means them, joins of two after one another.

``a LEFT JOIN b ON .. LEFT JOIN c ON ..`` joins the results of the first join with ``c``. Of one condition each part (split at AND)
belongs to the ON of the last stream that it names. So such a join becomes several of two streams: all but the last are new joins, whose
results new streams read, named after the streams that are in them (``orders_payments``).

Always holds: the joins and streams of the manifest keep their numbers, and new ones follow them; what has no such join stays as it is, and
so does what was made by this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from streamjoin.language.errors import SqlError
from streamjoin.language.join_type import JoinType
from streamjoin.language.render import identifier
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sql import Expression, parse_boolean
from streamjoin.language.tree import Call, Node, Reference, conjunction, conjuncts, streams_read
from streamjoin.manifest import model, resolve
from streamjoin.manifest.event_time import EventTime
from streamjoin.manifest.problem import listed
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.sources import Source

OUTER = {JoinType.LEFT: JoinType.RIGHT, JoinType.RIGHT: JoinType.LEFT, JoinType.FULL: JoinType.FULL}
"""The types, and each of them with its streams the other way round."""
AT, UNTIL = "at", "until"
"""Columns of results that another join reads: the newest event time of their tuples, and up to which one, in microseconds since 1970, a
further tuple lies in the windows of all of them. No column of a stream's is named so here, as those have the stream's name before them."""
ANY_TIME = Duration.parse("365000d")
"""How far ahead results may be, whose tuples were looked at when they came."""


def is_chain(spec: model.Spec, index: int) -> bool:
    """Whether a join becomes joins of two after one another. Raises SqlError where its condition does not say what it is over."""
    return makes_streams(spec.joins[index].type, resolve.names_over(spec, index))


def makes_streams(kind: str, over: Collection[str]) -> bool:
    """The same of a join of a type over these streams."""
    return kind in OUTER and len(over) > 2


def times_read(spec: model.Spec, index: int, schemas: Mapping[str, Schema]) -> frozenset[tuple[str, str]]:
    """The columns, each with its stream's name, that make the event times which later joins of such a chain compare."""
    if not is_chain(spec, index) or spec.joins[index].window.unbounded:
        return frozenset()
    own = resolve.over(spec, index, schemas)
    return frozenset().union(*(_event_time(each, own[each.name]).columns for each in spec.streams if each.name in own))


def expanded(spec: model.Spec, schemas: Mapping[str, Schema] | None = None) -> model.Spec:
    """The same joins, all outer ones of them over two streams. ``schemas``: of the manifest's streams, where they are known.

    Raises SqlError where a condition compares a stream with none of those before it.
    """
    numbers = [index for index in range(len(spec.joins)) if is_chain(spec, index)]
    if not numbers:
        return spec
    schemas = resolve.schemas_of(spec) if schemas is None else schemas
    joins, streams, made = list(spec.joins), list(spec.streams), list[model.Join]()
    taken = {name.casefold() for name in (*(each.name for each in streams), *(each.name for each in joins))}
    for index in numbers:
        *before, joins[index] = _Chain(spec, index, schemas, taken).joins(streams)
        made += before
    return spec.model_copy(update={"joins": (*joins, *made), "streams": tuple(streams)})


def parts_of(condition: Expression, names: Sequence[str]) -> list[list[Node]]:
    """The parts of a condition over these streams, by the number of the stream to whose ON they belong; of the first, none.

    Raises SqlError where that of a stream compares it with none before it.
    """
    found: list[list[Node]] = [[] for _ in names]
    for part in conjuncts(condition.tree):
        found[max([1, *(names.index(stream) for stream in streams_read(part))])].append(part)
    for number, parts in enumerate(found[1:], 1):
        if not any(names[number] in streams_read(part) and len(streams_read(part)) > 1 for part in parts):
            raise SqlError(
                f"no part of it compares {names[number]} with {listed(names[:number], 'or')}, and an outer join joins each stream to those"
                " before it",
                "compare it with one of them, or write the streams in another order",
            )
    return found


@dataclass(frozen=True, slots=True)
class _Side:
    """What the next stream is joined to: the first stream, or results that a new one reads."""

    name: str
    columns: Mapping[tuple[str, str], Reference]
    """Where the columns of its streams are."""
    rate: float | None
    """Tuples per second to expect."""
    span: int = 0
    """How long before a later tuple one of it may be, in microseconds, if its window is the longest."""
    at: str = ""
    """In SQL: the newest event time, in microseconds."""
    until: str = ""
    """In SQL: see ``UNTIL``."""


class _Chain:
    """One such join."""

    def __init__(self, spec: model.Spec, index: int, schemas: Mapping[str, Schema], taken: set[str]) -> None:
        self._spec, self._join, self._schemas = spec, spec.joins[index], resolve.over(spec, index, schemas)
        self._names = list(self._schemas)
        self._taken = taken
        self._parts = parts_of(parse_boolean(self._join.condition, self._schemas), self._names)
        self._output = resolve.output(self._join, spec, self._schemas)
        where = self._join.output.where
        self._where = None if where is None else parse_boolean(where, self._schemas)
        self._is_of_time = not self._join.window.unbounded

    def joins(self, streams: list[model.Stream]) -> Iterator[model.Join]:
        """Each join, the manifest's own last. New streams go to ``streams``."""
        side, kind, last = self._of_stream(0), JoinType(self._join.type), len(self._names) - 1
        for number in range(1, last + 1):
            new = self._of_stream(number)
            columns = {**side.columns, **new.columns}
            parts = [_moved(part, columns) for part in self._parts[number]]
            condition = Expression.of(conjunction(parts)).sql
            if number > 1 and self._is_of_time:
                condition = f"({condition}) AND {new.at} <= {side.until}"
            made: dict[str, object] = {
                "condition": condition,
                "type": (kind if number == 1 else OUTER[kind]).value,  # results stand after all streams of the manifest
                "window": self._window({side.name: side.span, new.name: new.span}),
            }
            if number < last:
                side, select = self._joined(side, new, columns, number)
                made |= {"name": side.name, "output": self._join.output.model_copy(update=_reads(select))}
                streams.append(self._stream(side))
            else:
                made["output"] = self._written(columns)
            yield self._join.model_copy(update=made)

    def _of_stream(self, number: int) -> _Side:
        name = self._names[number]
        stream, schema = next(each for each in self._spec.streams if each.name == name), self._schemas[name]
        columns = {(name, column.name): Reference(name, column.name, column.type) for column in schema}
        if not self._is_of_time:
            return _Side(name, columns, stream.expected_rate)
        at = begin = f"unix_micros({_event_time(stream, schema).sql})"
        slide, spans = self._join.window.slide, resolve.window(self._join.window, self._names).each
        if slide is not None:
            begin = f"{at} - ({at} % {slide.micros} + {slide.micros}) % {slide.micros}"
        return _Side(name, columns, stream.expected_rate, spans[number], at, f"{begin} + {spans[number]}")

    def _joined(self, side: _Side, new: _Side, there: Mapping[tuple[str, str], Reference], number: int) -> tuple[_Side, list[str]]:
        """The results of both, and their columns in SQL: those that later joins, and the output, read. ``there``: the columns of both."""
        name, seen, columns, select = self._free("_".join(self._names[: number + 1])), set[str](), {}, list[str]()
        read = {each for each in self._read_after(number) if each[0] in self._names[: number + 1]}
        for stream, column in sorted(read):
            value = there[stream, column]
            named = f"{stream}_{column}"
            while named.casefold() in seen:
                named += "_"
            seen.add(named.casefold())
            columns[stream, column] = Reference(name, named, value.type)
            select.append(f"{Expression.of(value).sql} AS {identifier(named)}")
        if self._is_of_time:
            select.append(f"timestamp_micros(greatest({side.at}, {new.at})) AS {AT}")
            select.append(f"least({side.until}, {new.until}) AS {UNTIL}")
        rate = _rate(JoinType(self._join.type), side.rate, new.rate)
        return _Side(name, columns, rate, max(side.span, new.span), f"unix_micros({name}.{AT})", f"{name}.{UNTIL}"), select

    def _read_after(self, number: int) -> Iterable[tuple[str, str]]:
        for part in (part for parts in self._parts[number + 1 :] for part in parts):
            yield from Expression.of(part).columns
        for _, expression in self._output:
            yield from expression.columns
        yield from self._where.columns if self._where is not None else ()

    def _free(self, name: str) -> str:
        name = name[:60]
        while name.casefold() in self._taken or not resolve.is_stream_name(name):
            name += "_"
        self._taken.add(name.casefold())
        return name

    def _window(self, spans: Mapping[str, int]) -> model.Window:
        if not self._is_of_time:
            return self._join.window
        return model.Window.model_construct(each={name: Duration(span) for name, span in spans.items()}, slide=self._join.window.slide)

    def _stream(self, side: _Side) -> model.Stream:
        return model.Stream.model_construct(
            name=side.name,
            source=Source.model_construct(join=side.name),
            event_time=EventTime(column=AT) if self._is_of_time else None,
            max_ahead=ANY_TIME if self._is_of_time else None,
            expected_rate=side.rate,
        )

    def _written(self, columns: Mapping[tuple[str, str], Reference]) -> model.Output:
        def sql(expression: Expression) -> str:
            return Expression.of(_moved(expression.tree, columns)).sql

        select = tuple(f"{sql(expression)} AS {identifier(name)}" for name, expression in self._output)
        return self._join.output.model_copy(update={"select": select, "where": None if self._where is None else sql(self._where)})


def _reads(select: Sequence[str]) -> dict[str, object]:
    """Of an output that another stream reads."""
    return {"select": tuple(select), "where": None, "sink": None, "snapshots": None}


def _rate(kind: JoinType, left: float | None, right: float | None) -> float | None:
    if left is None or right is None:
        return None
    return left + right if kind is JoinType.FULL else left if kind is JoinType.LEFT else right


def _event_time(stream: model.Stream, schema: Schema) -> Expression:
    assert stream.event_time is not None, "a window of time is over streams that have times"
    time = resolve.event_time(stream.event_time, stream.name, schema)
    return Expression.of(Reference(stream.name, time.name, time.type)) if isinstance(time, Column) else time.expression


def _moved(node: Node, columns: Mapping[tuple[str, str], Reference]) -> Node:
    """The same where columns are in these places."""
    if isinstance(node, Reference):
        return columns[node.stream, node.column]
    return Call(node.function, tuple(_moved(each, columns) for each in node.arguments), node.type) if isinstance(node, Call) else node
