"""SQL text of the manifest: schemas (Spark DDL) and scalar expressions, parsed, resolved against the streams, typed.

sqlglot reads the text (Spark's dialect); what comes out is this module's own small tree, so that planning and
evaluation need to know three kinds of node and a closed list of functions.

Always holds: ``Expression.sql`` parses, over the same streams, to an equal tree. So a part of a condition can travel
as text.

Where it differs from Spark (ANSI off), on purpose:

- a comparison with NaN is FALSE, ``!=`` and ``<=>`` included; under a comparison +, -, *, unary minus, abs and date
  arithmetic are exact, however large (nothing wraps, nothing is rounded to 38 digits); elsewhere a result that its type
  cannot hold is NULL;
- arithmetic on FLOAT is done in DOUBLE, and so is any comparison of an integer or a decimal with a FLOAT or a DOUBLE;
- the session's time zone is UTC; a date minus a date may be compared with a number of days as well as an INTERVAL.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from streamjoin.language.schema import Column, DataType, Schema, TypeName


class SqlError(ValueError):
    """SQL that cannot be used: what the problem is, and what to write instead."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[SqlError], tuple[str, str]]:
        return type(self), (self.problem, self.remedy)


Value = int | float | Decimal | str | bool | None


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. DATE is held as days, TIMESTAMP and INTERVAL as microseconds, DECIMAL as Decimal; None is NULL."""

    value: Value
    type: DataType


@dataclass(frozen=True, slots=True)
class Reference:
    """A stream's column; both names as they were declared."""

    stream: str
    column: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or function applied to its arguments.

    ``function`` is an SQL function's name in lower case, or one of: add subtract multiply divide modulo negate, eq ne
    lt le gt ge same (<=>), and or not, between in like is_null, cast, case (condition, value, condition, value, ...,
    value otherwise). Arguments keep their own types: the evaluator widens them to what the call needs.
    """

    function: str
    arguments: tuple[Node, ...]
    type: DataType


Node = Literal | Reference | Call


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed, resolved and typed scalar expression: picklable, hashable, and needs no schema any more.

    ``columns`` are the (stream, column) pairs that it reads, names as declared.
    """

    sql: str
    type: DataType
    columns: frozenset[tuple[str, str]]
    tree: Node

    @staticmethod
    def of(tree: Node) -> Expression:
        """The expression of a resolved tree, with its columns qualified by their streams in the text."""
        columns = frozenset((node.stream, node.column) for node in walk(tree) if isinstance(node, Reference))
        return Expression(render(tree), tree.type, columns, tree)


BOOLEAN = DataType(TypeName.BOOLEAN)
INT = DataType(TypeName.INT)
BIGINT = DataType(TypeName.BIGINT)
DOUBLE = DataType(TypeName.DOUBLE)
STRING = DataType(TypeName.STRING)
BINARY = DataType(TypeName.BINARY)
DATE = DataType(TypeName.DATE)
TIMESTAMP = DataType(TypeName.TIMESTAMP)
INTERVAL = DataType(TypeName.INTERVAL)

MICROS_PER_DAY = 86_400_000_000
MAX_PRECISION = 38
_DEEPEST = 150
"""Operators inside one another: what is accepted here must not exhaust the stack of a worker, which evaluates recursively."""
_LEAST_SCALE_KEPT = 6
"""Spark gives up fraction digits of a result wider than 38 digits, but not below this many."""

INTEGER_BITS = {TypeName.TINYINT: 8, TypeName.SMALLINT: 16, TypeName.INT: 32, TypeName.BIGINT: 64}
_INTEGER_DIGITS = {TypeName.TINYINT: 3, TypeName.SMALLINT: 5, TypeName.INT: 10, TypeName.BIGINT: 20}
_FLOATS = (TypeName.FLOAT, TypeName.DOUBLE)
INSTANTS = (TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ)
"""The types held as microseconds since 1970."""


def is_integer(t: DataType) -> bool:
    return t.name in INTEGER_BITS


def is_exact(t: DataType) -> bool:
    """Whether it is a number without rounding: an integer or a decimal."""
    return t.name in INTEGER_BITS or t.name is TypeName.DECIMAL


def is_float(t: DataType) -> bool:
    return t.name in _FLOATS


def is_numeric(t: DataType) -> bool:
    return is_exact(t) or is_float(t)


def is_point(t: DataType) -> bool:
    """Whether it is a point in time: a date or a timestamp."""
    return t.name is TypeName.DATE or t.name in INSTANTS


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Call):
            stack.extend(node.arguments)


_TYPE_NAMES = {
    "BOOLEAN": TypeName.BOOLEAN,
    "BYTE": TypeName.TINYINT,
    "TINYINT": TypeName.TINYINT,
    "SHORT": TypeName.SMALLINT,
    "SMALLINT": TypeName.SMALLINT,
    "INT": TypeName.INT,
    "INTEGER": TypeName.INT,
    "LONG": TypeName.BIGINT,
    "BIGINT": TypeName.BIGINT,
    "FLOAT": TypeName.FLOAT,
    "REAL": TypeName.FLOAT,
    "DOUBLE": TypeName.DOUBLE,
    "DECIMAL": TypeName.DECIMAL,
    "DEC": TypeName.DECIMAL,
    "NUMERIC": TypeName.DECIMAL,
    "STRING": TypeName.STRING,
    "BINARY": TypeName.BINARY,
    "DATE": TypeName.DATE,
    "TIMESTAMP": TypeName.TIMESTAMP,
    "TIMESTAMP_LTZ": TypeName.TIMESTAMP,
    "TIMESTAMP_NTZ": TypeName.TIMESTAMP_NTZ,
}
_COLUMN_TYPES = "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, TIMESTAMP or TIMESTAMP_NTZ"

_DDL_COLUMN = re.compile(
    r"""\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<bare>\w+))(?:\s*:\s*|\s+)
        (?P<type>[A-Za-z_]\w*)\s*(?:\(\s*(?P<arguments>[^()]*)\))?
        (?:\s+NOT\s+NULL)?
        (?:\s+COMMENT\s+(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))?
        \s*(?P<end>,|$)""",
    re.VERBOSE | re.IGNORECASE,
)


def parse_schema(ddl: str) -> Schema:
    """A stream's schema from Spark DDL: ``id BIGINT, price DECIMAL(10,2) NOT NULL, at TIMESTAMP``.

    NOT NULL and COMMENT are read and ignored: the engine takes any column to have nulls. Raises SqlError on an empty
    schema, an unknown type, a name that appears twice (whatever its case), or one that begins with ``_``: those are the
    engine's own.
    """
    if not ddl.strip():
        raise SqlError("the schema has no columns", 'declare them as Spark DDL, such as "id BIGINT, at TIMESTAMP"')
    columns: dict[str, Column] = {}
    position = 0
    while True:
        match = _DDL_COLUMN.match(ddl, position)
        if match is None:
            raise SqlError(
                f"cannot read the schema at {_excerpt(ddl[position:].strip())}",
                'write a name and a type per column, separated by commas, such as "id BIGINT, at TIMESTAMP"',
            )
        name = match["bare"] or match["quoted"].replace("``", "`")
        if name.startswith("_"):
            raise SqlError(f"column name {name} begins with an underscore", "rename it: such names are the engine's own")
        if name.casefold() in columns:
            raise SqlError(f"column {name} is declared twice", "names must differ in more than case")
        columns[name.casefold()] = Column(name, _ddl_type(match["type"], match["arguments"]))
        if not match["end"]:
            return Schema(tuple(columns.values()))
        position = match.end()


def _excerpt(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "...")


def _ddl_type(name: str, arguments: str | None) -> DataType:
    known = _TYPE_NAMES.get(name.upper())
    if known is None:
        raise SqlError(f"unknown type {name}", f"use {_COLUMN_TYPES}")
    if known is not TypeName.DECIMAL:
        if arguments is not None:
            raise SqlError(f"type {name} takes no arguments, got ({arguments.strip()})", f"write {name}")
        return DataType(known)
    try:
        numbers = [int(part) for part in arguments.split(",")] if arguments is not None else [10, 0]
    except ValueError:
        numbers = []
    return decimal_type(*numbers) if 1 <= len(numbers) <= 2 else _bad_decimal(arguments)


def _bad_decimal(arguments: object) -> NoReturn:
    raise SqlError(f"DECIMAL({arguments}) is not a type", f"write DECIMAL(p,s) with 1 <= p <= {MAX_PRECISION} and 0 <= s <= p")


def decimal_type(precision: int, scale: int = 0) -> DataType:
    """DECIMAL(precision, scale), or SqlError when there is no such type."""
    if not (1 <= precision <= MAX_PRECISION and 0 <= scale <= precision):
        _bad_decimal(f"{precision},{scale}")
    return DataType(TypeName.DECIMAL, precision, scale)


def parse_expression(text: str, streams: Mapping[str, Schema]) -> Expression:
    """One SQL expression over the streams' columns: qualified (``orders.id``), or bare where one stream has the name.

    Names are matched without regard to case. Raises SqlError, which names the unknown column or function and lists what
    there is.
    """
    parsed = _parse(text)
    if isinstance(parsed, exp.Alias):
        raise SqlError(f"{_excerpt(text)} has a name or stray word at its end", f"remove {parsed.alias}")
    return Expression.of(_resolve(parsed, streams, text))


def parse_boolean(text: str, streams: Mapping[str, Schema]) -> Expression:
    """Like :func:`parse_expression`, for a condition: anything but a BOOLEAN is refused."""
    expression = parse_expression(text, streams)
    if expression.type != BOOLEAN:
        raise SqlError(f"{_excerpt(text)} is a value of type {expression.type}, not a condition", "compare it with something")
    return expression


def parse_projection(text: str, streams: Mapping[str, Schema]) -> tuple[str, Expression]:
    """``expression AS name``, or a bare column, which keeps its name as declared."""
    parsed = _parse(text)
    if isinstance(parsed, exp.Alias):
        return parsed.alias, Expression.of(_resolve(parsed.this, streams, text))
    tree = _resolve(parsed, streams, text)
    if not isinstance(tree, Reference):
        raise SqlError(f"{_excerpt(text)} has no name", f"write {text.strip()} AS name")
    return tree.column, Expression.of(tree)


def _parse(text: str) -> exp.Expr:
    if not text.strip():
        raise SqlError("the expression is empty", "write an SQL expression")
    try:
        return sqlglot.parse_one(text, read="spark")
    except RecursionError:
        raise _too_deep(text) from None
    except SqlglotError as error:
        details = getattr(error, "errors", None) or [{}]
        where = f" at line {details[0]['line']}, column {details[0]['col']}" if details[0].get("line") else ""
        reason = str(details[0].get("description") or error).split("\n", 1)[0].rstrip(".")
        raise SqlError(f"cannot parse {_excerpt(text)}{where}: {reason}", "write one Spark SQL expression") from None


def _resolve(parsed: exp.Expr, streams: Mapping[str, Schema], text: str) -> Node:
    try:
        tree = _Resolver(streams).node(parsed)
    except RecursionError:
        raise _too_deep(text) from None
    level: Sequence[Node] = (tree,)
    for _ in range(_DEEPEST):
        level = [argument for node in level if isinstance(node, Call) for argument in node.arguments]
        if not level:
            return tree
    raise _too_deep(text)


def _too_deep(text: str) -> SqlError:
    return SqlError(f"{_excerpt(text)} is nested too deeply", "simplify it")


_SUPPORTED = (
    "use +, -, *, /, %, comparisons, AND, OR, NOT, BETWEEN, IN, LIKE, IS NULL, CASE, CAST, || and the functions "
    "abs, ceil, coalesce, concat, contains, date_add, date_sub, datediff, day, endswith, floor, greatest, hour, if, "
    "isnan, least, length, lower, ltrim, minute, month, nullif, round, rtrim, second, startswith, substring, "
    "timestamp_micros, trim, unix_date, unix_micros, unix_millis, unix_seconds, upper, year"
)

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
    exp.NullSafeEQ: "same",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
    exp.Div: "divide",
    exp.Mod: "modulo",
}
_OPERATORS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "modulo": "%",
    "eq": "=",
    "ne": "<>",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "same": "<=>",
}
COMPARISONS = frozenset(_COMPARISONS.values())
_DATE_PARTS: dict[type[exp.Expr], str] = {exp.Year: "year", exp.Month: "month", exp.Day: "day", exp.DayOfMonth: "day"}
_TIME_PARTS: dict[type[exp.Expr], str] = {exp.Hour: "hour", exp.Minute: "minute", exp.Second: "second"}
_STRING_TESTS: dict[type[exp.Expr], str] = {
    exp.StartsWith: "startswith",
    exp.EndsWith: "endswith",
    exp.Contains: "contains",
    exp.Like: "like",
}
_UNIX: dict[type[exp.Expr], str] = {
    exp.UnixMicros: "unix_micros",
    exp.UnixMillis: "unix_millis",
    exp.UnixSeconds: "unix_seconds",
}
_CAST_TYPES = {
    exp.DType.BOOLEAN: TypeName.BOOLEAN,
    exp.DType.TINYINT: TypeName.TINYINT,
    exp.DType.SMALLINT: TypeName.SMALLINT,
    exp.DType.INT: TypeName.INT,
    exp.DType.BIGINT: TypeName.BIGINT,
    exp.DType.FLOAT: TypeName.FLOAT,
    exp.DType.DOUBLE: TypeName.DOUBLE,
    exp.DType.DECIMAL: TypeName.DECIMAL,
    exp.DType.TEXT: TypeName.STRING,
    exp.DType.BINARY: TypeName.BINARY,
    exp.DType.DATE: TypeName.DATE,
    exp.DType.TIMESTAMP: TypeName.TIMESTAMP,
    exp.DType.TIMESTAMPTZ: TypeName.TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: TypeName.TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TypeName.TIMESTAMP_NTZ,
}
_UNIT_MICROS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": MICROS_PER_DAY,
    "WEEK": 7 * MICROS_PER_DAY,
}
_CLOCK = re.compile(r"([+-]?)(?:(\d+) )?(\d+):(\d+)(?::(\d+)(?:\.(\d{1,6}))?)?")
_QUANTITY = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s+([A-Za-z]+)")


class _Resolver:
    """Turns sqlglot's tree into ours: one method per construct, each checking its operands' types."""

    def __init__(self, streams: Mapping[str, Schema]) -> None:
        self._streams = streams

    def node(self, source: exp.Expr) -> Node:
        while isinstance(source, (exp.Paren, exp.TsOrDsToDate)) and not source.args.get("format"):
            if isinstance(source, exp.TsOrDsToDate):
                return self._as_date(self.node(source.this))
            source = source.this
        for kinds, resolve in _RULES:
            if isinstance(source, kinds):
                return resolve(self, source)
        text = source.sql(dialect="spark")
        if isinstance(source, exp.AggFunc):
            raise SqlError(f"{text} aggregates over rows, but an expression is evaluated on one row or pair", _SUPPORTED)
        if isinstance(source, (exp.Query, exp.Exists)):
            raise SqlError(f"{_excerpt(text)} is a subquery, which an expression cannot hold", _SUPPORTED)
        if isinstance(source, exp.Window):
            raise SqlError(f"{_excerpt(text)} is a window function, which an expression cannot hold", _SUPPORTED)
        if isinstance(source, exp.Anonymous):
            raise SqlError(f"unknown function {source.name}", _SUPPORTED)
        if isinstance(source, exp.Star):
            raise SqlError("* stands for no single column", "list the columns by name")
        raise SqlError(f"{_excerpt(text)} is not supported", _SUPPORTED)

    def column(self, source: exp.Column) -> Node:
        name, qualifier = source.name, source.table
        if isinstance(source.this, exp.Star):
            raise SqlError(f"{source.sql(dialect='spark')} stands for no single column", "list the columns by name")
        if source.args.get("db"):
            raise SqlError(f"column {source.sql(dialect='spark')} has too many parts", "write stream.column")
        if qualifier:
            stream = next((known for known in self._streams if known.casefold() == qualifier.casefold()), None)
            if stream is None:
                raise SqlError(f"unknown stream {qualifier} in {qualifier}.{name}", f"the streams are {', '.join(self._streams)}")
            column = self._streams[stream].get(name)
            if column is None:
                raise SqlError(f"unknown column {qualifier}.{name}", f"{stream} has {', '.join(self._streams[stream].names)}")
            return Reference(stream, column.name, column.type)
        found = [
            Reference(stream, column.name, column.type)
            for stream, schema in self._streams.items()
            if (column := schema.get(name)) is not None
        ]
        if len(found) > 1:
            choices = " or ".join(render(reference) for reference in found)
            raise SqlError(f"column {name} is ambiguous", f"write {choices}")
        if not found:
            existing = [
                column if len(self._streams) == 1 else f"{stream}.{column}"
                for stream, schema in self._streams.items()
                for column in schema.names
            ]
            raise SqlError(f"unknown column {name}", f"there are {', '.join(existing)}")
        return found[0]

    def literal(self, source: exp.Literal) -> Node:
        return Literal(source.this, STRING) if source.is_string else _number(source.this)

    def raw_string(self, source: exp.RawString) -> Node:
        return Literal(source.this, STRING)

    def boolean(self, source: exp.Boolean) -> Node:
        return Literal(bool(source.this), BOOLEAN)

    def null(self, source: exp.Null) -> Node:
        return Literal(None, BOOLEAN)

    def interval(self, source: exp.Interval) -> Node:
        text = source.this.name if isinstance(source.this, exp.Literal) else ""
        unit = source.args.get("unit")
        span = isinstance(unit, exp.IntervalSpan)
        micros = _clock_micros(text) if span else _quantity_micros(f"{text} {unit.name}" if unit else text)
        if micros is None:
            raise SqlError(
                f"{source.sql(dialect='spark')} is not an interval",
                "write INTERVAL number unit, the unit one of WEEK, DAY, HOUR, MINUTE, SECOND, MILLISECOND, MICROSECOND",
            )
        return Literal(micros, INTERVAL)

    def negate(self, source: exp.Neg) -> Node:
        operand = self.node(source.this)
        if not (is_numeric(operand.type) or operand.type == INTERVAL or _is_null(operand)):
            raise self._misfit("-", operand, "a number or an INTERVAL")
        return negated(operand)

    def arithmetic(self, source: exp.Binary) -> Node:
        function = _ARITHMETIC[type(source)]
        left, right = self.node(source.left), self.node(source.right)
        if _is_null(left):
            left = Literal(None, right.type)
        if _is_null(right):
            right = Literal(None, left.type)
        temporal = self._temporal(function, left, right)
        if temporal is not None:
            return temporal
        for operand in (left, right):
            if not is_numeric(operand.type):
                remedy = "use concat or ||" if operand.type == STRING and function == "add" else "CAST it to a number"
                raise SqlError(f"{render(operand)} is of type {operand.type}, which {_OPERATORS[function]} does not take", remedy)
        return Call(function, (left, right), _arithmetic_type(function, left, right))

    def _temporal(self, function: str, left: Node, right: Node) -> Node | None:
        if function == "add" and (is_point(right.type) or (right.type == INTERVAL and left.type == INTERVAL)):
            if not is_point(right.type):
                return _folded_interval("add", left, right)
            left, right = right, left
        if function in ("add", "subtract") and is_point(left.type):
            if left.type == DATE and is_integer(right.type):
                return Call("date_add", (left, right if function == "add" else negated(right)), DATE)
            if right.type == INTERVAL:
                days = _whole_days(right)
                if left.type == DATE and days is not None:
                    return Call("date_add", (left, integer_literal(days if function == "add" else -days)), DATE)
                left = Call("cast", (left,), TIMESTAMP) if left.type == DATE else left
                return Call(function, (left, right), left.type)
            if function == "subtract" and is_point(right.type):
                return Call("subtract", (left, right), INTERVAL)
        if function == "subtract" and left.type == right.type == INTERVAL:
            return _folded_interval("subtract", left, right)
        if function == "multiply" and INTERVAL in (left.type, right.type):
            count = right if left.type == INTERVAL else left
            if is_integer(count.type):
                return _folded_interval("multiply", left, right)
        if any(is_point(t) or t == INTERVAL for t in (left.type, right.type)):
            raise SqlError(
                f"{left.type} {_OPERATORS[function]} {right.type} has no meaning",
                "add or subtract an INTERVAL, or subtract two times",
            )
        return None

    def comparison(self, source: exp.Binary) -> Node:
        left, right = self._alike([self.node(source.left), self.node(source.right)])
        return Call(_COMPARISONS[type(source)], (left, right), BOOLEAN)

    def not_same(self, source: exp.NullSafeNEQ) -> Node:
        return Call("not", (Call("same", self._alike([self.node(source.left), self.node(source.right)]), BOOLEAN),), BOOLEAN)

    def between(self, source: exp.Between) -> Node:
        if source.args.get("symmetric"):
            raise SqlError("BETWEEN SYMMETRIC is not supported", "write least(a, b) and greatest(a, b) as the bounds")
        operands = [self.node(source.this), self.node(source.args["low"]), self.node(source.args["high"])]
        return Call("between", self._alike(operands), BOOLEAN)

    def membership(self, source: exp.In) -> Node:
        if not source.expressions:
            raise SqlError(f"{_excerpt(source.sql(dialect='spark'))} has no list of values", "write x IN (1, 2, 3)")
        return Call("in", self._alike([self.node(source.this), *map(self.node, source.expressions)]), BOOLEAN)

    def _alike(self, operands: list[Node]) -> tuple[Node, ...]:
        """The operands of a comparison, literals turned into what they are compared with; SqlError if types do not meet."""
        types = {node.type for node in operands if not _is_null(node)}
        if INTERVAL in types and any(is_integer(t) for t in types):
            operands = [_in_days(node) or node for node in operands]
        target = next((node.type for node in operands if not isinstance(node, Literal)), None)
        target = target or next((node.type for node in operands if not _is_null(node) and node.type != STRING), STRING)
        operands = [_adapted(node, target) for node in operands]
        for node in operands[1:]:
            if not (_is_null(node) or _comparable(operands[0].type, node.type)):
                raise SqlError(
                    f"cannot compare {render(operands[0])} ({operands[0].type}) with {render(node)} ({node.type})",
                    f"CAST one of them, such as CAST({render(node)} AS {operands[0].type})"
                    if operands[0].type != INTERVAL and node.type != INTERVAL
                    else "compare an INTERVAL with an INTERVAL",
                )
        return tuple(operands)

    def connective(self, source: exp.Connector) -> Node:
        kind = type(source)
        operands: list[exp.Expr] = []
        stack: list[exp.Expr] = [source]
        while stack:
            part = stack.pop()
            while isinstance(part, exp.Paren):
                part = part.this
            if isinstance(part, kind):
                stack += [part.expression, part.this]
            else:
                operands.append(part)
        name = "and" if kind is exp.And else "or"
        return Call(name, tuple(self._condition(operand, name.upper()) for operand in operands), BOOLEAN)

    def negation(self, source: exp.Not) -> Node:
        return Call("not", (self._condition(source.this, "NOT"),), BOOLEAN)

    def _condition(self, source: exp.Expr, where: str) -> Node:
        node = self.node(source)
        if node.type != BOOLEAN:
            raise SqlError(f"{where} needs conditions, but {render(node)} is of type {node.type}", "compare it with something")
        return node

    def is_null(self, source: exp.Is) -> Node:
        if not isinstance(source.expression, exp.Null):
            raise SqlError(f"{_excerpt(source.sql(dialect='spark'))} is not supported", "write x = TRUE, x = FALSE or x IS NULL")
        return Call("is_null", (self.node(source.this),), BOOLEAN)

    def case(self, source: exp.Case) -> Node:
        arguments: list[Node] = []
        for branch in source.args["ifs"]:
            if source.this is None:
                arguments.append(self._condition(branch.this, "CASE WHEN"))
            else:
                arguments.append(Call("eq", self._alike([self.node(source.this), self.node(branch.this)]), BOOLEAN))
            arguments.append(self.node(branch.args["true"]))
        default = source.args.get("default")
        return self._choice(arguments, Literal(None, BOOLEAN) if default is None else self.node(default))

    def conditional(self, source: exp.If) -> Node:
        default = source.args.get("false")
        arguments = [self._condition(source.this, "IF"), self.node(source.args["true"])]
        return self._choice(arguments, Literal(None, BOOLEAN) if default is None else self.node(default))

    def _choice(self, arguments: list[Node], default: Node) -> Node:
        values, type_ = self._common("CASE", [*arguments[1::2], default])
        arguments[1::2] = values[:-1]
        return Call("case", (*arguments, values[-1]), type_)

    def _common(self, what: str, values: list[Node]) -> tuple[list[Node], DataType]:
        """The values, with untyped ones adapted, and the type that all of them have or widen to."""
        typed = [node for node in values if not _is_null(node)]
        type_ = typed[0].type if typed else BOOLEAN
        for node in typed[1:]:
            wider = _common_type(type_, node.type)
            if wider is None:
                raise SqlError(f"{what} mixes {type_} and {node.type}", "CAST the values to one type")
            type_ = wider
        return [_adapted(node, type_) for node in values], type_

    def cast(self, source: exp.Cast) -> Node:
        if source.args.get("format"):
            raise SqlError(f"{_excerpt(source.sql(dialect='spark'))} has a format, which is not supported", "CAST without FORMAT")
        target = self._cast_type(source.args["to"])
        operand = self.node(source.this)
        if _is_null(operand):
            return Literal(None, target)
        if not _castable(operand.type, target):
            raise SqlError(f"cannot CAST {render(operand)} from {operand.type} to {target}", "there is no conversion between them")
        return _cast_literal(operand, target) or Call("cast", (operand,), target)

    def _cast_type(self, target: exp.DataType) -> DataType:
        name = _CAST_TYPES.get(target.this)
        if name is None:
            raise SqlError(f"cannot CAST to {target.sql(dialect='spark')}", f"use {_COLUMN_TYPES}")
        if name is not TypeName.DECIMAL:
            return DataType(name)
        sizes = [int(parameter.name) for parameter in target.expressions]
        return decimal_type(*sizes) if sizes else decimal_type(10, 0)

    def concat(self, source: exp.Expr) -> Node:
        parts = [source.left, source.right] if isinstance(source, exp.DPipe) else source.expressions
        nodes = [self.node(part) for part in parts]
        if all(isinstance(node, Literal) and node.type == STRING for node in nodes):
            return Literal("".join(str(node.value) for node in nodes if isinstance(node, Literal)), STRING)
        for node in nodes:
            if not (node.type == STRING or _castable(node.type, STRING)):
                raise self._misfit("concat", node, "STRING")
        return Call("concat", tuple(_adapted(node, STRING) for node in nodes), STRING)

    def string_test(self, source: exp.Expr) -> Node:
        function = _STRING_TESTS[type(source)]
        left, right = self._string(function, source.this), self._string(function, source.expression)
        if function == "like" and not isinstance(right, Literal):
            raise SqlError(f"the pattern of LIKE, {render(right)}, is not a literal", "use startswith, endswith or contains")
        call = Call(function, (left, right), BOOLEAN)
        return Call("not", (call,), BOOLEAN) if source.args.get("negate") else call

    def escape(self, source: exp.Escape) -> Node:
        raise SqlError("LIKE ... ESCAPE is not supported", "escape % and _ by a backslash in the pattern")

    def _string(self, function: str, source: exp.Expr) -> Node:
        node = self.node(source)
        if _is_null(node):
            return Literal(None, STRING)
        if node.type != STRING:
            raise self._misfit(function, node, "STRING")
        return node

    def text(self, source: exp.Func) -> Node:
        function = {exp.Lower: "lower", exp.Upper: "upper", exp.Length: "length"}[type(source)]
        return Call(function, (self._string(function, source.this),), INT if function == "length" else STRING)

    def trim(self, source: exp.Trim) -> Node:
        if source.expression is not None:
            raise SqlError(
                f"{_excerpt(source.sql(dialect='spark'))} names what to trim",
                "trim removes spaces alone: write trim(x)",
            )
        function = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(source.args.get("position") or "", "trim")
        return Call(function, (self._string(function, source.this),), STRING)

    def substring(self, source: exp.Substring) -> Node:
        bounds = [self.node(source.args[name]) for name in ("start", "length") if source.args.get(name) is not None]
        for bound in bounds:
            if not (isinstance(bound, Literal) and isinstance(bound.value, int) and is_integer(bound.type)):
                raise SqlError(
                    f"substring's bound {render(bound)} is not a whole number",
                    "write literals, such as substring(x, 1, 3)",
                )
        return Call("substring", (self._string("substring", source.this), *bounds), STRING)

    def absolute(self, source: exp.Abs) -> Node:
        operand = self.node(source.this)
        if not (is_numeric(operand.type) or operand.type == INTERVAL):
            raise self._misfit("abs", operand, "a number or an INTERVAL")
        return Call("abs", (operand,), operand.type)

    def rounded(self, source: exp.Func) -> Node:
        function = {exp.Round: "round", exp.Floor: "floor", exp.Ceil: "ceil"}[type(source)]
        operand = self._number(function, source.this)
        digits = source.args.get("decimals")
        if function != "round":
            if digits is not None:
                raise SqlError(f"{function} takes one argument here", f"write {function}(x)")
            if operand.type.name is TypeName.DECIMAL:
                whole = min(operand.type.precision - operand.type.scale + 1, MAX_PRECISION)
                return Call(function, (operand,), decimal_type(whole, 0))
            return Call(function, (operand,), BIGINT)
        count = Literal(0, INT) if digits is None else self.node(digits)
        if not (isinstance(count, Literal) and isinstance(count.value, int) and is_integer(count.type) and 0 <= count.value <= 15):
            raise SqlError(f"round's number of digits {render(count)} is not a whole number from 0 to 15", "write round(x, 2)")
        type_ = operand.type if not is_float(operand.type) else DOUBLE
        if type_.name is TypeName.DECIMAL and count.value < type_.scale:
            type_ = decimal_type(min(type_.precision - type_.scale + count.value + 1, MAX_PRECISION), count.value)
        return Call("round", (operand, Literal(count.value, INT)), type_)

    def _number(self, function: str, source: exp.Expr) -> Node:
        operand = self.node(source)
        if not is_numeric(operand.type):
            raise self._misfit(function, operand, "a number")
        return operand

    def extremes(self, source: exp.Func) -> Node:
        function = {exp.Greatest: "greatest", exp.Least: "least", exp.Coalesce: "coalesce"}[type(source)]
        values, type_ = self._common(function, [self.node(source.this), *map(self.node, source.expressions)])
        if function != "coalesce" and type_ in (BOOLEAN, BINARY):
            raise self._misfit(function, values[0], "a number, a time or a STRING")
        return Call(function, tuple(values), type_)

    def null_if(self, source: exp.Nullif) -> Node:
        left, right = self._alike([self.node(source.this), self.node(source.expression)])
        return Call("nullif", (left, right), left.type)

    def is_nan(self, source: exp.IsNan) -> Node:
        return Call("isnan", (self._number("isnan", source.this),), BOOLEAN)

    def part(self, source: exp.Func) -> Node:
        if type(source) in _DATE_PARTS:
            return Call(_DATE_PARTS[type(source)], (self.node(source.this),), INT)
        function, operand = _TIME_PARTS[type(source)], self._as_point(self.node(source.this), _TIME_PARTS[type(source)])
        return Call(function, (operand,), INT)

    def _as_date(self, node: Node) -> Node:
        node = _adapted(node, DATE)
        if node.type == DATE:
            return node
        if node.type.name not in INSTANTS:
            raise SqlError(f"{render(node)} is of type {node.type}, where a date is needed", "CAST it to DATE")
        return Call("cast", (node,), DATE)

    def _as_point(self, node: Node, function: str) -> Node:
        node = _adapted(node, TIMESTAMP)
        if not is_point(node.type):
            raise self._misfit(function, node, "a TIMESTAMP")
        return node

    def unix(self, source: exp.Func) -> Node:
        function = _UNIX[type(source)]
        return Call(function, (self._as_point(self.node(source.this), function),), BIGINT)

    def unix_date(self, source: exp.UnixDate) -> Node:
        return Call("unix_date", (self._as_date(self.node(source.this)),), INT)

    def date_add(self, source: exp.TsOrDsAdd) -> Node:
        if source.args.get("unit") is not None and source.args["unit"].name.upper() != "DAY":
            raise SqlError(f"{_excerpt(source.sql(dialect='spark'))} does not count days", "add an INTERVAL instead")
        count = source.expression
        subtracted = isinstance(count, exp.Mul) and count.expression == exp.Neg(this=exp.Literal.number(1))
        days = self.node(count.this if subtracted else count)
        if not is_integer(days.type):
            raise self._misfit("date_add", days, "a whole number of days")
        return Call("date_add", (self._as_date(self.node(source.this)), negated(days) if subtracted else days), DATE)

    def date_difference(self, source: exp.DateDiff) -> Node:
        if source.args.get("unit") is not None and source.args["unit"].name.upper() != "DAY":
            raise SqlError(f"{_excerpt(source.sql(dialect='spark'))} does not count days", "subtract the times instead")
        return Call("datediff", (self.node(source.this), self.node(source.expression)), INT)

    def anonymous(self, source: exp.Anonymous) -> Node:
        if source.name.lower() == "timestamp_micros" and len(source.expressions) == 1:
            operand = self.node(source.expressions[0])
            if not is_integer(operand.type):
                raise self._misfit("timestamp_micros", operand, "an integer")
            return Call("timestamp_micros", (operand,), TIMESTAMP)
        raise SqlError(f"unknown function {source.name}", _SUPPORTED)

    def _misfit(self, function: str, node: Node, needed: str) -> SqlError:
        return SqlError(f"{function} needs {needed}, but {render(node)} is of type {node.type}", "CAST it or use another column")


_RULES: tuple[tuple[type[exp.Expr] | tuple[type[exp.Expr], ...], Callable[[_Resolver, Any], Node]], ...] = (
    (exp.Column, _Resolver.column),
    (exp.Literal, _Resolver.literal),
    (exp.RawString, _Resolver.raw_string),
    (exp.Boolean, _Resolver.boolean),
    (exp.Null, _Resolver.null),
    (exp.Interval, _Resolver.interval),
    (exp.Neg, _Resolver.negate),
    (tuple(_ARITHMETIC), _Resolver.arithmetic),
    (tuple(_COMPARISONS), _Resolver.comparison),
    (exp.NullSafeNEQ, _Resolver.not_same),
    (exp.Between, _Resolver.between),
    (exp.In, _Resolver.membership),
    ((exp.And, exp.Or), _Resolver.connective),
    (exp.Not, _Resolver.negation),
    (exp.Is, _Resolver.is_null),
    (exp.Case, _Resolver.case),
    (exp.If, _Resolver.conditional),
    (exp.Cast, _Resolver.cast),
    ((exp.Concat, exp.DPipe), _Resolver.concat),
    (tuple(_STRING_TESTS), _Resolver.string_test),
    (exp.Escape, _Resolver.escape),
    ((exp.Lower, exp.Upper, exp.Length), _Resolver.text),
    (exp.Trim, _Resolver.trim),
    (exp.Substring, _Resolver.substring),
    (exp.Abs, _Resolver.absolute),
    ((exp.Round, exp.Floor, exp.Ceil), _Resolver.rounded),
    ((exp.Greatest, exp.Least, exp.Coalesce), _Resolver.extremes),
    (exp.Nullif, _Resolver.null_if),
    (exp.IsNan, _Resolver.is_nan),
    ((*_DATE_PARTS, *_TIME_PARTS), _Resolver.part),
    (tuple(_UNIX), _Resolver.unix),
    (exp.UnixDate, _Resolver.unix_date),
    (exp.TsOrDsAdd, _Resolver.date_add),
    (exp.DateDiff, _Resolver.date_difference),
    (exp.Anonymous, _Resolver.anonymous),
)


def _is_null(node: Node) -> bool:
    return isinstance(node, Literal) and node.value is None


def integer_literal(value: int) -> Literal:
    """A literal of the type that Spark gives a number written without fraction or exponent."""
    if -(2**31) <= value < 2**31:
        return Literal(value, INT)
    if -(2**63) <= value < 2**63:
        return Literal(value, BIGINT)
    return _decimal(Decimal(value))


def _decimal(value: Decimal) -> Literal:
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if precision > MAX_PRECISION:
        raise SqlError(
            f"{value} has {precision} digits",
            f"a number may have {MAX_PRECISION}; write it with an exponent for a DOUBLE",
        )
    return Literal(value, decimal_type(precision, scale))


def _number(text: str) -> Literal:
    if "e" in text.lower():
        value = float(text)
        if math.isinf(value):
            raise SqlError(f"{text} is too large for a DOUBLE", "write a smaller number")
        return Literal(value, DOUBLE)
    return _decimal(Decimal(text)) if "." in text else integer_literal(int(text))


def negated(node: Node) -> Node:
    """Unary minus; a literal's is a literal."""
    if not isinstance(node, Literal) or node.value is None:
        return Call("negate", (node,), node.type)
    value = node.value
    if isinstance(value, int):
        natural = node.type != INTERVAL and node.type == integer_literal(value).type
        return integer_literal(-value) if natural else Literal(-value, node.type)
    if value == 2**63 and node.type.name is TypeName.DECIMAL and node.type.scale == 0:
        return Literal(-(2**63), BIGINT)
    return Literal(-value, node.type) if isinstance(value, float) else Literal(Decimal(str(value)).copy_negate(), node.type)


def _whole_days(node: Node) -> int | None:
    if isinstance(node, Literal) and node.type == INTERVAL and isinstance(node.value, int) and node.value % MICROS_PER_DAY == 0:
        return node.value // MICROS_PER_DAY
    return None


def _folded_interval(function: str, left: Node, right: Node) -> Node:
    """INTERVAL 1 DAY 2 HOURS comes as a sum: a literal again, so that it may be a bound."""
    if isinstance(left, Literal) and isinstance(right, Literal) and isinstance(left.value, int) and isinstance(right.value, int):
        combine = {"add": int.__add__, "subtract": int.__sub__, "multiply": int.__mul__}[function]
        value = combine(left.value, right.value)
        if -(2**63) <= value < 2**63:
            return Literal(value, INTERVAL)
    return Call(function, (left, right), INTERVAL)


def _in_days(node: Node) -> Node | None:
    """An INTERVAL that is whole days by its form, as the number of days; other types as they are; None: it is not."""
    days = _whole_days(node)
    if days is not None:
        return integer_literal(days)
    if isinstance(node, Call) and node.type == INTERVAL:
        if node.function == "subtract" and node.arguments[0].type == node.arguments[1].type == DATE:
            return Call("datediff", node.arguments, INT)
        if node.function in ("negate", "abs"):
            inner = _in_days(node.arguments[0])
            return None if inner is None else Call(node.function, (inner,), INT)
        return None
    return node


def _clock_micros(text: str) -> int | None:
    """Microseconds of ``[+-][days ]hours:minutes[:seconds[.fraction]]``."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    sign, days, hours, minutes, seconds, fraction = match.groups()
    whole = ((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds or 0)
    micros = whole * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -micros if sign == "-" else micros


def _quantity_micros(text: str) -> int | None:
    """Microseconds of ``1 day 2 hours``: numbers, each with its unit."""
    total, position = Decimal(0), 0
    while position < len(text.rstrip()):
        match = _QUANTITY.match(text, position)
        factor = _UNIT_MICROS.get(match[2].upper().removesuffix("S")) if match else None
        if match is None or factor is None:
            return None
        total += Decimal(match[1]) * factor
        position = match.end()
    return int(total) if position and total == int(total) and -(2**63) <= total < 2**63 else None


_NUMBER = re.compile(r"([+-]?)((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)
_ISO_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def date_days(text: str) -> int | None:
    """Days since 1970 of ``yyyy-mm-dd``, or None."""
    match = _ISO_DATE.fullmatch(text.strip())
    try:
        return None if match is None else datetime.date(int(match[1]), int(match[2]), int(match[3])).toordinal() - _EPOCH.toordinal()
    except ValueError:
        return None


def timestamp_micros(text: str) -> int | None:
    """Microseconds since 1970 UTC of an ISO 8601 time (UTC unless it says otherwise) or date, or None."""
    try:
        instant = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        days = date_days(text)
        return None if days is None else days * MICROS_PER_DAY
    instant = instant if instant.tzinfo is not None else instant.replace(tzinfo=datetime.UTC)
    return (instant - _EPOCH) // datetime.timedelta(microseconds=1)


def _text_as(text: str, target: DataType) -> Literal | None:
    """A string literal where a time or number stands on the other side, as Spark casts it; None: it is no such value."""
    if target.name is TypeName.DATE:
        days = date_days(text)
        return None if days is None else Literal(days, target)
    if target.name in INSTANTS:
        micros = timestamp_micros(text)
        return None if micros is None else Literal(micros, target)
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    signed = negated(_number(match[2])) if match[1] == "-" else _number(match[2])
    return signed if isinstance(signed, Literal) else None


def _adapted(node: Node, target: DataType) -> Node:
    """An untyped NULL or a string literal as a literal of the type that its place asks for; any other node as it is."""
    if not isinstance(node, Literal):
        return node
    if node.value is None:
        return Literal(None, target)
    if node.type == STRING and (is_point(target) or is_numeric(target)):
        literal = _text_as(str(node.value), target)
        if literal is None:
            example = "2026-01-31 12:00:00" if target.name in INSTANTS else "2026-01-31"
            raise SqlError(f"{render(node)} is no {target}", f"write '{example}'" if is_point(target) else "write a number")
        return literal
    return node


def _comparable(left: DataType, right: DataType) -> bool:
    return (is_numeric(left) and is_numeric(right)) or (is_point(left) and is_point(right)) or left == right


def as_decimal(t: DataType) -> DataType:
    """The DECIMAL that holds every value of an integer or decimal type, as Spark chooses it."""
    return t if t.name is TypeName.DECIMAL else DataType(TypeName.DECIMAL, _INTEGER_DIGITS[t.name], 0)


def _narrowed(whole: int, scale: int) -> DataType:
    """DECIMAL with so many digits before and after the point, cut to 38 in all as Spark does: fraction digits go first."""
    if whole + scale <= MAX_PRECISION:
        return decimal_type(max(whole + scale, 1), scale)
    return decimal_type(MAX_PRECISION, max(MAX_PRECISION - whole, min(scale, _LEAST_SCALE_KEPT)))


def _common_type(left: DataType, right: DataType) -> DataType | None:
    """The type that values of both widen to without loss (but for numbers with a DOUBLE among them), or None."""
    if left == right:
        return left
    if is_integer(left) and is_integer(right):
        return max(left, right, key=lambda t: INTEGER_BITS[t.name])
    if is_exact(left) and is_exact(right):
        first, second = as_decimal(left), as_decimal(right)
        return _narrowed(max(first.precision - first.scale, second.precision - second.scale), max(first.scale, second.scale))
    if is_numeric(left) and is_numeric(right):
        return DOUBLE
    if is_point(left) and is_point(right):
        return left if right == DATE else right if left == DATE else TIMESTAMP
    return None


def _arithmetic_type(function: str, left: Node, right: Node) -> DataType:
    if is_float(left.type) or is_float(right.type):
        return DOUBLE
    if is_integer(left.type) and is_integer(right.type):
        return DOUBLE if function == "divide" else max(left.type, right.type, key=lambda t: INTEGER_BITS[t.name])
    first, second = (
        _decimal(Decimal(node.value)).type if isinstance(node, Literal) and isinstance(node.value, int) else as_decimal(node.type)
        for node in (left, right)
    )
    whole = max(first.precision - first.scale, second.precision - second.scale)
    scale = max(first.scale, second.scale)
    if function in ("add", "subtract"):
        return _narrowed(whole + 1, scale)
    if function == "multiply":
        scale = first.scale + second.scale
        return _narrowed(first.precision + second.precision + 1 - scale, scale)
    if function == "divide":
        scale = max(_LEAST_SCALE_KEPT, first.scale + second.precision + 1)
        return _narrowed(first.precision - first.scale + second.scale, scale)
    return _narrowed(min(first.precision - first.scale, second.precision - second.scale), scale)


def _castable(source: DataType, target: DataType) -> bool:
    if source == target:
        return True
    plain = (TypeName.BOOLEAN, TypeName.STRING)
    if is_numeric(source) or source.name in plain:
        if is_numeric(target) or target.name in plain:
            return True
        return source == STRING and (is_point(target) or target == BINARY)
    if is_point(source):
        return is_point(target) or target == STRING or (source == TIMESTAMP and target == BIGINT)
    return source == BINARY and target == STRING


def _cast_literal(node: Node, target: DataType) -> Literal | None:
    """A literal cast to the type, where the result can be written as a literal of exactly that type."""
    if not isinstance(node, Literal):
        return None
    value = node.value
    if node.type == target:
        return node
    if node.type == STRING and is_point(target):
        adapted = _adapted(node, target)
        return adapted if isinstance(adapted, Literal) else None
    number = _text_as(str(value), target) if node.type == STRING and is_numeric(target) else node if is_numeric(node.type) else None
    if number is None or number.value is None or isinstance(number.value, str):
        return None
    if is_integer(target) and isinstance(number.value, int):
        half = 1 << (INTEGER_BITS[target.name] - 1)
        return Literal(number.value, target) if -half <= number.value < half else None
    if target == DOUBLE:
        return Literal(float(number.value), DOUBLE)
    return number if number.type == target else None


_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SIGN, _ATOM = range(8)
_LEVELS = {"add": _SUM, "subtract": _SUM, "multiply": _PRODUCT, "divide": _PRODUCT, "modulo": _PRODUCT}
_WORDS = {"or": (" OR ", _OR), "and": (" AND ", _AND)}
_INTERVAL_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")


def render(node: Node, *, qualified: bool = True) -> str:
    """The node as Spark SQL that parses to an equal tree; ``qualified``: columns carry their stream's name."""
    return _render(node, qualified, _OR)


def _render(node: Node, qualified: bool, level: int) -> str:
    """As text that may stand where operators of this level or a tighter one may."""
    if isinstance(node, Literal):
        text, own = _render_literal(node)
    elif isinstance(node, Reference):
        text, own = (f"{_name(node.stream)}." if qualified else "") + _name(node.column), _ATOM
    else:
        text, own = _render_call(node, qualified)
    return f"({text})" if own < level else text


def _render_call(call: Call, qualified: bool) -> tuple[str, int]:
    def part(index: int, level: int) -> str:
        return _render(call.arguments[index], qualified, level)

    function = call.function
    if function in _LEVELS:
        level = _LEVELS[function]
        return f"{part(0, level)} {_OPERATORS[function]} {part(1, level + 1)}", level
    if function in COMPARISONS:
        return f"{part(0, _SUM)} {_OPERATORS[function]} {part(1, _SUM)}", _COMPARE
    if function in _WORDS:
        word, level = _WORDS[function]
        return word.join(part(index, level + 1) for index in range(len(call.arguments))), level
    match function:
        case "negate":
            return f"-{part(0, _ATOM)}", _SIGN
        case "not":
            inner = call.arguments[0]
            if isinstance(inner, Call) and inner.function == "is_null":
                return f"{_render(inner.arguments[0], qualified, _SUM)} IS NOT NULL", _COMPARE
            return f"NOT {part(0, _NOT)}", _NOT
        case "between":
            return f"{part(0, _SUM)} BETWEEN {part(1, _SUM)} AND {part(2, _SUM)}", _COMPARE
        case "in":
            return (
                f"{part(0, _SUM)} IN ({', '.join(part(index, _OR) for index in range(1, len(call.arguments)))})",
                _COMPARE,
            )
        case "like":
            return f"{part(0, _SUM)} LIKE {part(1, _SUM)}", _COMPARE
        case "is_null":
            return f"{part(0, _SUM)} IS NULL", _COMPARE
        case "cast":
            return f"CAST({part(0, _OR)} AS {call.type})", _ATOM
        case "case":
            branches = (f"WHEN {part(index, _OR)} THEN {part(index + 1, _OR)}" for index in range(0, len(call.arguments) - 1, 2))
            return f"CASE {' '.join(branches)} ELSE {part(len(call.arguments) - 1, _OR)} END", _ATOM
    return f"{function}({', '.join(part(index, _OR) for index in range(len(call.arguments)))})", _ATOM


def _render_literal(literal: Literal) -> tuple[str, int]:
    value, type_ = literal.value, literal.type
    if value is None:
        return ("NULL" if type_ == BOOLEAN else f"CAST(NULL AS {type_})"), _ATOM
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'", _ATOM
    if isinstance(value, bool):
        return ("TRUE" if value else "FALSE"), _ATOM
    if isinstance(value, float):
        text = repr(value)
        return text if "e" in text else f"{text}e0", _SIGN if text.startswith("-") else _ATOM
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text + ("." if "." not in text and -(2**63) <= value < 2**63 else ""), _SIGN if text.startswith("-") else _ATOM
    if type_ == INTERVAL:
        unit = next(unit for unit in _INTERVAL_UNITS if value % _UNIT_MICROS[unit] == 0)
        return f"INTERVAL '{value // _UNIT_MICROS[unit]}' {unit}", _ATOM
    if is_point(type_):
        instant = _EPOCH + datetime.timedelta(microseconds=value * (MICROS_PER_DAY if type_ == DATE else 1))
        return f"{type_} '{instant.date() if type_ == DATE else instant.replace(tzinfo=None)}'", _ATOM
    if integer_literal(value).type != type_:
        return f"CAST({value} AS {type_})", _ATOM
    return str(value), _SIGN if value < 0 else _ATOM


@lru_cache(maxsize=4096)
def _name(name: str) -> str:
    """An identifier, in backticks unless it is a plain word that means nothing else."""
    plain = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name.upper() not in Spark.Tokenizer.KEYWORDS
    return name if plain else f"`{name.replace('`', '``')}`"


def conjuncts(tree: Node) -> Sequence[Node]:
    """The conditions that AND joins at the top of the tree, in the order written."""
    return tree.arguments if isinstance(tree, Call) and tree.function == "and" else (tree,)
