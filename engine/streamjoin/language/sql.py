"""SQL expressions of the manifest: text (Spark's dialect) parsed, resolved against the streams and typed.

sqlglot reads the text; ``analyzer`` makes our own small tree of it, so that planning and evaluation need to know three
kinds of node and a closed list of functions.

Always holds: ``Expression.sql`` parses, over the same streams, to an equal tree. So a part of a condition can travel
as text.

Where it differs from Spark (ANSI off), on purpose:

- a comparison with NaN is FALSE, ``!=`` and ``<=>`` included; under a comparison +, -, *, unary minus, abs and date
  arithmetic are exact, however large (nothing wraps, nothing is rounded to 38 digits); elsewhere a result that its type
  cannot hold is NULL;
- arithmetic on FLOAT is done in DOUBLE, and so is any comparison of an integer or a decimal with a FLOAT or a DOUBLE;
- a CAST of text that is a time without a date, as 10:00, is NULL and no time of today; a DOUBLE or FLOAT becomes the shortest text that
  is read as the same number, where Java before 19 sometimes writes more digits; bytes that are not UTF-8 become NULL as text;
- an INTERVAL may have fractions of every unit, not of seconds alone;
- the session's time zone is UTC; a date minus a date may be compared with a number of days as well as an INTERVAL.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from streamjoin.language.analyzer import Analyzer
from streamjoin.language.errors import SqlError, excerpt, unparsed
from streamjoin.language.render import render
from streamjoin.language.schema import Schema
from streamjoin.language.temporal import no_interval, quantity_micros
from streamjoin.language.tree import Call, Node, Reference, walk
from streamjoin.language.types import BOOLEAN, DataType


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


class _Dialect(Spark):
    """Spark's, with patterns of times as they are written: sqlglot would make them Python's."""

    class Parser(SparkParser):
        FUNCTIONS = {name: made for name, made in SparkParser.FUNCTIONS.items() if name != "TO_TIMESTAMP"}  # noqa: RUF012


_DEEPEST = 150
"""Operators inside one another: what is accepted here must not exhaust the stack of a worker, which evaluates recursively."""


def parse_expression(text: str, streams: Mapping[str, Schema]) -> Expression:
    """One SQL expression over the streams' columns: qualified (``orders.id``), or bare where one stream has the name.

    Names are matched without regard to case. Raises SqlError, which names the unknown column or function and lists what
    there is.
    """
    parsed = _parse(text)
    if isinstance(parsed, exp.Alias):
        raise SqlError(f"{excerpt(text)} has a name or stray word at its end", f"remove {parsed.alias}")
    return Expression.of(_resolve(parsed, streams, text))


def parse_boolean(text: str, streams: Mapping[str, Schema]) -> Expression:
    """Like :func:`parse_expression`, for a condition: anything but a BOOLEAN is refused."""
    expression = parse_expression(text, streams)
    if expression.type != BOOLEAN:
        raise SqlError(f"{excerpt(text)} is a value of type {expression.type}, not a condition", "compare it with something")
    return expression


def parse_projection(text: str, streams: Mapping[str, Schema]) -> tuple[str, Expression]:
    """``expression AS name``, or a bare column, which keeps its name as declared."""
    parsed = _parse(text)
    if isinstance(parsed, exp.Alias):
        return parsed.alias, Expression.of(_resolve(parsed.this, streams, text))
    tree = _resolve(parsed, streams, text)
    if not isinstance(tree, Reference):
        raise SqlError(f"{excerpt(text)} has no name", f"write {text.strip()} AS name")
    return tree.column, Expression.of(tree)


def streams_named(text: str) -> frozenset[str]:
    """The names before the columns of an expression (``orders`` of ``orders.id``), as they are written. Raises SqlError."""
    return frozenset(column.table for column in _parse(text).find_all(exp.Column) if column.table)


@functools.lru_cache(256)  # checks of a manifest ask for the same text again and again; nobody changes what is returned
def _parse(text: str) -> exp.Expr:
    if not text.strip():
        raise SqlError("the expression is empty", "write an SQL expression")
    try:
        for word, quantity in itertools.pairwise(sqlglot.tokenize(text, read="spark")):
            # sqlglot takes the first number and unit that it finds in such a text, and drops the rest.
            amount = quantity.text if word.token_type is TokenType.INTERVAL and quantity.token_type is TokenType.STRING else ""
            if re.search("[A-Za-z]", amount) and quantity_micros(amount) is None:
                raise no_interval(f"INTERVAL '{amount}'")
        return sqlglot.parse_one(text, read=_Dialect)
    except RecursionError:
        raise _too_deep(text) from None
    except SqlglotError as error:
        raise SqlError(f"cannot parse {excerpt(text)}{unparsed(error)}", "write one Spark SQL expression") from None


def _resolve(parsed: exp.Expr, streams: Mapping[str, Schema], text: str) -> Node:
    try:
        tree = Analyzer(streams).node(parsed)
    except RecursionError:
        raise _too_deep(text) from None
    level: Sequence[Node] = (tree,)
    for _ in range(_DEEPEST):
        level = [argument for node in level if isinstance(node, Call) for argument in node.arguments]
        if not level:
            return tree
    raise _too_deep(text)


def _too_deep(text: str) -> SqlError:
    return SqlError(f"{excerpt(text)} is nested too deeply", "simplify it")
