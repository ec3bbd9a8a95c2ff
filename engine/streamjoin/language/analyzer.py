"""sqlglot's tree resolved against the streams and typed: names to columns, constructs to calls of a closed list of functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from streamjoin.language.coercion import adapted, alike, arithmetic_type, as_date, as_point, cast_literal, common, misfit
from streamjoin.language.errors import SqlError, excerpt
from streamjoin.language.literals import is_null, negated, number_literal
from streamjoin.language.render import render
from streamjoin.language.schema import Schema
from streamjoin.language.temporal import no_interval, quantity_micros, span_micros, temporal_arithmetic
from streamjoin.language.time_pattern import time_pattern
from streamjoin.language.tree import OPERATORS, Call, Literal, Node, Reference
from streamjoin.language.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    COLUMN_TYPES,
    DATE,
    DOUBLE,
    INT,
    INTERVAL,
    MAX_PRECISION,
    STRING,
    TIMESTAMP,
    DataType,
    TypeName,
    castable,
    decimal_type,
    is_float,
    is_integer,
    is_numeric,
    is_point,
)

_SUPPORTED = (
    "use +, -, *, /, %, comparisons, AND, OR, NOT, BETWEEN, IN, LIKE, IS NULL, CASE, CAST, || and the functions "
    "abs, ceil, coalesce, concat, contains, date_add, date_sub, datediff, day, endswith, floor, greatest, hour, if, "
    "isnan, least, length, lower, ltrim, minute, month, nullif, round, rtrim, second, startswith, substring, "
    "timestamp_micros, timestamp_millis, timestamp_seconds, to_timestamp, trim, "
    "unix_date, unix_micros, unix_millis, unix_seconds, upper, year"
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


class Analyzer:
    """Turns sqlglot's tree into ours: one method per construct, each checking its operands' types."""

    def __init__(self, streams: Mapping[str, Schema]) -> None:
        self._streams = streams

    def node(self, source: exp.Expr) -> Node:
        while isinstance(source, (exp.Paren, exp.TsOrDsToDate)) and not source.args.get("format"):
            if isinstance(source, exp.TsOrDsToDate):
                return as_date(self.node(source.this))
            source = source.this
        for kinds, resolve in _RULES:
            if isinstance(source, kinds):
                return resolve(self, source)
        text = source.sql(dialect="spark")
        if isinstance(source, exp.AggFunc):
            raise SqlError(f"{text} aggregates over rows, but an expression is evaluated on one row or pair", _SUPPORTED)
        if isinstance(source, (exp.Query, exp.Exists)):
            raise SqlError(f"{excerpt(text)} is a subquery, which an expression cannot hold", _SUPPORTED)
        if isinstance(source, exp.Window):
            raise SqlError(f"{excerpt(text)} is a window function, which an expression cannot hold", _SUPPORTED)
        if isinstance(source, exp.Anonymous):
            raise SqlError(f"unknown function {source.name}", _SUPPORTED)
        if isinstance(source, exp.Star):
            raise SqlError("* stands for no single column", "list the columns by name")
        raise SqlError(f"{excerpt(text)} is not supported", _SUPPORTED)

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
        return Literal(source.this, STRING) if source.is_string else number_literal(source.this)

    def raw_string(self, source: exp.RawString) -> Node:
        return Literal(source.this, STRING)

    def boolean(self, source: exp.Boolean) -> Node:
        return Literal(bool(source.this), BOOLEAN)

    def null(self, source: exp.Null) -> Node:
        return Literal(None, BOOLEAN)

    def interval(self, source: exp.Interval) -> Node:
        amount = source.this
        if isinstance(amount, exp.Neg):
            return negated(self.interval(exp.Interval(this=amount.this, unit=source.args.get("unit"))))
        text = amount.name if isinstance(amount, exp.Literal) else ""
        unit = source.args.get("unit")
        if isinstance(unit, exp.IntervalSpan):
            micros = span_micros(text, unit.this.name.upper(), unit.expression.name.upper())
        else:
            micros = quantity_micros(f"{text} {unit.name}" if unit else text)
        if micros is None:
            raise no_interval(source.sql(dialect="spark"))
        return Literal(micros, INTERVAL)

    def negate(self, source: exp.Neg) -> Node:
        operand = self.node(source.this)
        if not (is_numeric(operand.type) or operand.type == INTERVAL or is_null(operand)):
            raise misfit("-", operand, "a number or an INTERVAL")
        return negated(operand)

    def arithmetic(self, source: exp.Binary) -> Node:
        function = _ARITHMETIC[type(source)]
        left, right = self.node(source.left), self.node(source.right)
        if is_null(left):
            left = Literal(None, right.type)
        if is_null(right):
            right = Literal(None, left.type)
        temporal = temporal_arithmetic(function, left, right)
        if temporal is not None:
            return temporal
        for operand in (left, right):
            if not is_numeric(operand.type):
                remedy = "use concat or ||" if operand.type == STRING and function == "add" else "CAST it to a number"
                raise SqlError(f"{render(operand)} is of type {operand.type}, which {OPERATORS[function]} does not take", remedy)
        return Call(function, (left, right), arithmetic_type(function, left, right))

    def comparison(self, source: exp.Binary) -> Node:
        left, right = alike([self.node(source.left), self.node(source.right)])
        return Call(_COMPARISONS[type(source)], (left, right), BOOLEAN)

    def not_same(self, source: exp.NullSafeNEQ) -> Node:
        return Call("not", (Call("same", alike([self.node(source.left), self.node(source.right)]), BOOLEAN),), BOOLEAN)

    def between(self, source: exp.Between) -> Node:
        if source.args.get("symmetric"):
            raise SqlError("BETWEEN SYMMETRIC is not supported", "write least(a, b) and greatest(a, b) as the bounds")
        operands = [self.node(source.this), self.node(source.args["low"]), self.node(source.args["high"])]
        return Call("between", alike(operands), BOOLEAN)

    def membership(self, source: exp.In) -> Node:
        if not source.expressions:
            raise SqlError(f"{excerpt(source.sql(dialect='spark'))} has no list of values", "write x IN (1, 2, 3)")
        return Call("in", alike([self.node(source.this), *map(self.node, source.expressions)]), BOOLEAN)

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
            raise SqlError(f"{excerpt(source.sql(dialect='spark'))} is not supported", "write x = TRUE, x = FALSE or x IS NULL")
        return Call("is_null", (self.node(source.this),), BOOLEAN)

    def case(self, source: exp.Case) -> Node:
        arguments: list[Node] = []
        for branch in source.args["ifs"]:
            if source.this is None:
                arguments.append(self._condition(branch.this, "CASE WHEN"))
            else:
                arguments.append(Call("eq", alike([self.node(source.this), self.node(branch.this)]), BOOLEAN))
            arguments.append(self.node(branch.args["true"]))
        default = source.args.get("default")
        return self._choice(arguments, Literal(None, BOOLEAN) if default is None else self.node(default))

    def conditional(self, source: exp.If) -> Node:
        default = source.args.get("false")
        arguments = [self._condition(source.this, "IF"), self.node(source.args["true"])]
        return self._choice(arguments, Literal(None, BOOLEAN) if default is None else self.node(default))

    def _choice(self, arguments: list[Node], default: Node) -> Node:
        values, type_ = common("CASE", [*arguments[1::2], default])
        arguments[1::2] = values[:-1]
        return Call("case", (*arguments, values[-1]), type_)

    def cast(self, source: exp.Cast) -> Node:
        if source.args.get("format"):
            raise SqlError(f"{excerpt(source.sql(dialect='spark'))} has a format, which is not supported", "CAST without FORMAT")
        target = self._cast_type(source.args["to"])
        operand = self.node(source.this)
        if is_null(operand):
            return Literal(None, target)
        if not castable(operand.type, target):
            raise SqlError(f"cannot CAST {render(operand)} from {operand.type} to {target}", "there is no conversion between them")
        return cast_literal(operand, target) or Call("cast", (operand,), target)

    def _cast_type(self, target: exp.DataType) -> DataType:
        name = _CAST_TYPES.get(target.this)
        if name is None:
            raise SqlError(f"cannot CAST to {target.sql(dialect='spark')}", f"use {COLUMN_TYPES}")
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
            if not (node.type == STRING or castable(node.type, STRING)):
                raise misfit("concat", node, "STRING")
        return Call("concat", tuple(adapted(node, STRING) for node in nodes), STRING)

    def string_test(self, source: exp.Expr) -> Node:
        function = _STRING_TESTS[type(source)]
        left, right = self._string(function, source.this), self._string(function, source.expression)
        if function == "like" and not isinstance(right, Literal):
            raise SqlError(f"the pattern of LIKE, {render(right)}, is not a literal", "use startswith, endswith or contains")
        if function == "like" and isinstance(right, Literal) and re.search(r"\\(?![_%\\])", re.sub(r"\\[_%\\]", "", str(right.value))):
            raise SqlError(f"the pattern of LIKE, {render(right)}, has a backslash that escapes none of %, _ and \\", "write it twice")
        call = Call(function, (left, right), BOOLEAN)
        return Call("not", (call,), BOOLEAN) if source.args.get("negate") else call

    def escape(self, source: exp.Escape) -> Node:
        raise SqlError("LIKE ... ESCAPE is not supported", "escape % and _ by a backslash in the pattern")

    def _string(self, function: str, source: exp.Expr) -> Node:
        node = self.node(source)
        if is_null(node):
            return Literal(None, STRING)
        if node.type != STRING:
            raise misfit(function, node, "STRING")
        return node

    def text(self, source: exp.Func) -> Node:
        function = {exp.Lower: "lower", exp.Upper: "upper", exp.Length: "length"}[type(source)]
        return Call(function, (self._string(function, source.this),), INT if function == "length" else STRING)

    def trim(self, source: exp.Trim) -> Node:
        if source.expression is not None:
            raise SqlError(
                f"{excerpt(source.sql(dialect='spark'))} names what to trim",
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
            raise misfit("abs", operand, "a number or an INTERVAL")
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
            raise misfit(function, operand, "a number")
        return operand

    def extremes(self, source: exp.Func) -> Node:
        function = {exp.Greatest: "greatest", exp.Least: "least", exp.Coalesce: "coalesce"}[type(source)]
        values, type_ = common(function, [self.node(source.this), *map(self.node, source.expressions)])
        if function != "coalesce" and type_ in (BOOLEAN, BINARY):
            raise misfit(function, values[0], "a number, a time or a STRING")
        return Call(function, tuple(values), type_)

    def null_if(self, source: exp.Nullif) -> Node:
        left, right = alike([self.node(source.this), self.node(source.expression)])
        return Call("nullif", (left, right), left.type)

    def is_nan(self, source: exp.IsNan) -> Node:
        return Call("isnan", (self._number("isnan", source.this),), BOOLEAN)

    def part(self, source: exp.Func) -> Node:
        if type(source) in _DATE_PARTS:
            return Call(_DATE_PARTS[type(source)], (self.node(source.this),), INT)
        function, operand = _TIME_PARTS[type(source)], as_point(self.node(source.this), _TIME_PARTS[type(source)])
        return Call(function, (operand,), INT)

    def unix(self, source: exp.Func) -> Node:
        function = _UNIX[type(source)]
        return Call(function, (as_point(self.node(source.this), function),), BIGINT)

    def unix_date(self, source: exp.UnixDate) -> Node:
        return Call("unix_date", (as_date(self.node(source.this)),), INT)

    def date_add(self, source: exp.TsOrDsAdd) -> Node:
        if source.args.get("unit") is not None and source.args["unit"].name.upper() != "DAY":
            raise SqlError(f"{excerpt(source.sql(dialect='spark'))} does not count days", "add an INTERVAL instead")
        count = source.expression
        subtracted = isinstance(count, exp.Mul) and count.expression == exp.Neg(this=exp.Literal.number(1))
        days = self.node(count.this if subtracted else count)
        if not is_integer(days.type):
            raise misfit("date_add", days, "a whole number of days")
        return Call("date_add", (as_date(self.node(source.this)), negated(days) if subtracted else days), DATE)

    def date_difference(self, source: exp.DateDiff) -> Node:
        if source.args.get("unit") is not None and source.args["unit"].name.upper() != "DAY":
            raise SqlError(f"{excerpt(source.sql(dialect='spark'))} does not count days", "subtract the times instead")
        return Call("datediff", (self.node(source.this), self.node(source.expression)), INT)

    def to_timestamp(self, source: exp.Anonymous) -> Node:
        operand, *pattern = map(self.node, source.expressions)
        if is_null(operand):
            return Literal(None, TIMESTAMP)
        if not pattern and (operand.type == STRING or is_point(operand.type)):
            return operand if operand.type == TIMESTAMP else cast_literal(operand, TIMESTAMP) or Call("cast", (operand,), TIMESTAMP)
        if operand.type != STRING:
            raise misfit("to_timestamp", operand, "a STRING (numbers: timestamp_seconds, timestamp_millis)")
        if not isinstance(pattern[0], Literal) or not isinstance(pattern[0].value, str):
            raise SqlError(f"the pattern of to_timestamp, {render(pattern[0])}, is not a literal", "write it as 'dd/MM/yyyy HH:mm:ss'")
        time_pattern(pattern[0].value)
        return Call("to_timestamp", (operand, pattern[0]), TIMESTAMP)

    def anonymous(self, source: exp.Anonymous) -> Node:
        name, arguments = source.name.lower(), source.expressions
        if name in ("timestamp_micros", "timestamp_millis", "timestamp_seconds") and len(arguments) == 1:
            operand = self.node(arguments[0])
            if not is_integer(operand.type):
                raise misfit(name, operand, "an integer")
            return Call(name, (operand,), TIMESTAMP)
        if name == "to_timestamp" and len(arguments) in (1, 2):
            return self.to_timestamp(source)
        if name == "since_epoch" and len(arguments) == 2:  # what an eventTime with a unit is, as text
            return Call(name, (self.node(arguments[0]), self.node(arguments[1])), TIMESTAMP)
        raise SqlError(f"unknown function {source.name}", _SUPPORTED)


_RULES: tuple[tuple[type[exp.Expr] | tuple[type[exp.Expr], ...], Callable[[Analyzer, Any], Node]], ...] = (
    (exp.Column, Analyzer.column),
    (exp.Literal, Analyzer.literal),
    (exp.RawString, Analyzer.raw_string),
    (exp.Boolean, Analyzer.boolean),
    (exp.Null, Analyzer.null),
    (exp.Interval, Analyzer.interval),
    (exp.Neg, Analyzer.negate),
    (tuple(_ARITHMETIC), Analyzer.arithmetic),
    (tuple(_COMPARISONS), Analyzer.comparison),
    (exp.NullSafeNEQ, Analyzer.not_same),
    (exp.Between, Analyzer.between),
    (exp.In, Analyzer.membership),
    ((exp.And, exp.Or), Analyzer.connective),
    (exp.Not, Analyzer.negation),
    (exp.Is, Analyzer.is_null),
    (exp.Case, Analyzer.case),
    (exp.If, Analyzer.conditional),
    (exp.Cast, Analyzer.cast),
    ((exp.Concat, exp.DPipe), Analyzer.concat),
    (tuple(_STRING_TESTS), Analyzer.string_test),
    (exp.Escape, Analyzer.escape),
    ((exp.Lower, exp.Upper, exp.Length), Analyzer.text),
    (exp.Trim, Analyzer.trim),
    (exp.Substring, Analyzer.substring),
    (exp.Abs, Analyzer.absolute),
    ((exp.Round, exp.Floor, exp.Ceil), Analyzer.rounded),
    ((exp.Greatest, exp.Least, exp.Coalesce), Analyzer.extremes),
    (exp.Nullif, Analyzer.null_if),
    (exp.IsNan, Analyzer.is_nan),
    ((*_DATE_PARTS, *_TIME_PARTS), Analyzer.part),
    (tuple(_UNIX), Analyzer.unix),
    (exp.UnixDate, Analyzer.unix_date),
    (exp.TsOrDsAdd, Analyzer.date_add),
    (exp.DateDiff, Analyzer.date_difference),
    (exp.Anonymous, Analyzer.anonymous),
)
