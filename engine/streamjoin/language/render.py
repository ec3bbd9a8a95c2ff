"""The syntax tree as Spark SQL text.

Always holds: the text parses, over the same streams, to an equal tree.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

from sqlglot.dialects.spark import Spark

from streamjoin.language.literals import integer_literal
from streamjoin.language.temporal import UNIT_MICROS, date_text, timestamp_text
from streamjoin.language.tree import COMPARISONS, OPERATORS, Call, Literal, Node, Reference
from streamjoin.language.types import BOOLEAN, DATE, INTERVAL, is_point

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SIGN, _ATOM = range(8)
_LEVELS = {"add": _SUM, "subtract": _SUM, "multiply": _PRODUCT, "divide": _PRODUCT, "modulo": _PRODUCT}
_WORDS = {"or": (" OR ", _OR), "and": (" AND ", _AND)}
_INTERVAL_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")

_TAKEN = {*Spark.Tokenizer.KEYWORDS, *Spark.Parser.NO_PAREN_FUNCTION_PARSERS, "WHILE"}
"""Words that mean something else where a column may stand: keywords, and what sqlglot takes for a function without parentheses, as IF, or
for a statement."""


def render(node: Node, *, qualified: bool = True) -> str:
    """The node as Spark SQL that parses to an equal tree; ``qualified``: columns carry their stream's name."""
    return _render(node, qualified, _OR)


def _render(node: Node, qualified: bool, level: int) -> str:
    """As text that may stand where operators of this level or a tighter one may."""
    if isinstance(node, Literal):
        text, own = _render_literal(node)
    elif isinstance(node, Reference):
        text, own = (f"{identifier(node.stream)}." if qualified else "") + identifier(node.column), _ATOM
    else:
        text, own = _render_call(node, qualified)
    return f"({text})" if own < level else text


def _render_call(call: Call, qualified: bool) -> tuple[str, int]:  # noqa: C901
    def part(index: int, level: int) -> str:
        return _render(call.arguments[index], qualified, level)

    function = call.function
    if function in _LEVELS:
        level = _LEVELS[function]
        return f"{part(0, level)} {OPERATORS[function]} {part(1, level + 1)}", level
    if function in COMPARISONS:
        return f"{part(0, _SUM)} {OPERATORS[function]} {part(1, _SUM)}", _COMPARE
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
        unit = next(unit for unit in _INTERVAL_UNITS if value % UNIT_MICROS[unit] == 0)
        return f"INTERVAL '{value // UNIT_MICROS[unit]}' {unit}", _ATOM
    if is_point(type_):
        return f"{type_} '{date_text(value) if type_ == DATE else timestamp_text(value)}'", _ATOM
    if integer_literal(value).type != type_:
        return f"CAST({value} AS {type_})", _ATOM
    return str(value), _SIGN if value < 0 else _ATOM


@lru_cache(maxsize=4096)
def identifier(name: str) -> str:
    """An identifier, in backticks unless it is a plain word that means nothing else."""
    plain = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name.upper() not in _TAKEN
    return name if plain else f"`{name.replace('`', '``')}`"
