"""A condition's text, cut at AND into comparisons of two pieces of text, which Spark evaluates as they are written.

``language`` reads conditions too, with its own arithmetic: exact, and in UTC. Here Spark's counts (its overflow, rounding, zones and NaN),
so nothing is evaluated or written anew: a piece is a slice of the text.

Always holds: a pair that satisfies the condition satisfies every statement; what is not understood makes no statement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from streamjoin.language.temporal import quantity_micros

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<string>'(?:\\.|''|[^'\\])*')
    | (?P<quoted>`(?:``|[^`])*`)
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYFD])?(?!\w))
    | (?P<word>[^\W\d]\w*)
    | (?P<symbol><=>|<=|>=|<>|!=|==|\|\||->|::|[-+*/%<>=().,\[\]!&|^~:?])""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "==": "=="}
_REST = {
    "AS",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "EXISTS",
    "SELECT",
    "FROM",
    "IN",
    "IS",
    "LIKE",
    "ILIKE",
    "RLIKE",
    "REGEXP",
    "DISTINCT",
    "DIV",
}
_WORDS = {"AND", "OR", "NOT", "BETWEEN", "INTERVAL", "NULL", "TRUE", "FALSE", "END", *_REST}
_SAFE = {"lower", "upper", "trim", "length", "unix_seconds", "unix_micros"}
"""Functions whose value depends on their arguments alone and which never fail."""
_SAFE_OF_ONE_TYPE = {"abs", "coalesce", "ifnull", "nvl", "least", "greatest", "date_trunc"}
"""Such functions, but for overflow, or where values of several types must be converted. They count as arithmetic."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """In capitals; empty: it is no word."""
        return self.text.upper() if self.kind == "word" else ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the condition."""

    text: str
    columns: tuple[tuple[str, ...], ...]
    """The names of each column that it reads, as they are written: qualifier, column, fields."""
    is_safe: bool
    """Whether it is made of what is known to be deterministic and, but for arithmetic, never to fail."""
    has_arithmetic: bool


@dataclass(frozen=True, slots=True)
class Constant:
    value: float
    """An interval's: microseconds."""
    is_interval: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """A piece, also as ``base`` plus ``offset`` where it is written so."""

    whole: Piece
    base: Piece
    offset: Constant | None = None


@dataclass(frozen=True, slots=True)
class Equal:
    first: Piece
    second: Piece


@dataclass(frozen=True, slots=True)
class AtMost:
    """``first <= second`` or ``first < second``."""

    first: Term
    second: Term


@dataclass(frozen=True, slots=True)
class Difference:
    """``low <= first - second <= high``; None: no bound. Also where the condition has < for it."""

    first: Piece
    second: Piece
    low: Constant | None
    high: Constant | None


Statement = Equal | AtMost | Difference


@dataclass(frozen=True, slots=True)
class Conjunct:
    text: str
    statements: tuple[Statement, ...] = ()


def read(condition: str) -> tuple[Conjunct, ...]:
    """The parts between the ANDs; one part without statements where the text cannot be cut. O(length)."""
    tokens = tokens_of(condition)
    if tokens is None or any("\\" in token.text for token in tokens if token.kind == "string"):
        return (Conjunct(condition.strip()),)  # what a backslash means in a string is a setting of the session
    found = []
    for part in _split(condition, _stripped(tokens)):
        found.append(Conjunct(_text(condition, part), tuple(_statements(condition, part))))
    return tuple(found)


def tokens_of(text: str) -> list[Token] | None:
    """None where it has something else, such as a comment, or parentheses that do not match."""
    tokens, at, depth = [], 0, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or text.startswith(("--", "/*"), at):
            return None
        at = match.end()
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(Token(kind, match[0], match.start(), at))
            depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth < 0:
            return None
    return None if depth else tokens


def qualified(text: str, replacement: Callable[[str, str], str | None]) -> str:
    """The text with the qualifiers before columns replaced. ``replacement``: of (qualifier in small letters, column) the new name of the
    two, or with an empty one the column alone, or None where they stay as they are."""
    tokens = tokens_of(text)
    if tokens is None:
        return text
    made, at = [], 0
    for number, token in enumerate(tokens[:-2]):
        dot, column = tokens[number + 1 : number + 3]
        is_head = token.kind in ("word", "quoted") and dot.text == "." and (number == 0 or tokens[number - 1].text != ".")
        new = replacement(_name(token).casefold(), _name(column)) if is_head and column.kind in ("word", "quoted") else None
        if new is not None:
            made += [text[at : token.start], new or column.text]
            at = column.end
    return "".join([*made, text[at:]])


def _name(token: Token) -> str:
    return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text


def _text(condition: str, tokens: Sequence[Token]) -> str:
    return condition[tokens[0].start : tokens[-1].end] if tokens else ""


def _levels(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """The tokens that stand in no parentheses and no CASE, with their places."""
    depth = cases = 0
    for number, token in enumerate(tokens):
        after_dot = number > 0 and tokens[number - 1].text == "."
        before_dot = number + 1 < len(tokens) and tokens[number + 1].text == "."
        word = "" if after_dot or before_dot else token.word
        cases += word == "CASE"
        if token.text in (")", "]"):
            depth -= 1
        if depth == 0 and cases == 0:
            yield number, token
        if token.text in ("(", "["):
            depth += 1
        cases -= word == "END" and cases > 0


def _keywords(tokens: Sequence[Token]) -> Iterator[tuple[int, str]]:
    """The words and symbols at the top, without those that name a column beside a dot."""
    for number, token in _levels(tokens):
        beside_dot = any(0 <= at < len(tokens) and tokens[at].text == "." for at in (number - 1, number + 1))
        if not (token.kind == "word" and beside_dot):
            yield number, token.word or token.text


def _stripped(tokens: Sequence[Token]) -> Sequence[Token]:
    """Without parentheses around all of it."""
    while len(tokens) > 2 and tokens[0].text == "(" and [number for number, _ in _levels(tokens)] == [0, len(tokens) - 1]:
        tokens = tokens[1:-1]
    return tokens


def _split(condition: str, tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    cuts, betweens = [], 0
    for number, word in _keywords(tokens):
        if word == "OR":
            yield tokens
            return
        if word == "BETWEEN":
            betweens += 1
        elif word == "AND" and betweens:
            betweens -= 1
        elif word == "AND":
            cuts.append(number)
    if not cuts:
        yield tokens
        return
    for start, end in zip([-1, *cuts], [*cuts, len(tokens)], strict=True):
        yield from _split(condition, _stripped(tokens[start + 1 : end]))


def _statements(condition: str, tokens: Sequence[Token]) -> Iterator[Statement]:
    top = list(_keywords(tokens))
    words = [word for _, word in top]
    if {"NOT", "OR", "!", *_REST} & set(words):
        return
    if words.count("BETWEEN") == 1 and words.count("AND") == 1 and not set(words) & {*_FLIPPED, "<=>", "<>", "!="}:
        between, and_ = (next(number for number, word in top if word == wanted) for wanted in ("BETWEEN", "AND"))
        subject, low, high = tokens[:between], tokens[between + 1 : and_], tokens[and_ + 1 :]
        yield from _compared(condition, subject, ">=", low)
        yield from _compared(condition, subject, "<=", high)
        return
    operators = [(number, word) for number, word in top if word in _FLIPPED or word in ("<=>", "<>", "!=")]
    if len(operators) == 1 and operators[0][1] in _FLIPPED and not {"AND", "BETWEEN"} & set(words):
        at, operator = operators[0]
        yield from _compared(condition, tokens[:at], operator, tokens[at + 1 :])


def _compared(condition: str, first: Sequence[Token], operator: str, second: Sequence[Token]) -> Iterator[Statement]:
    first, second = _stripped(first), _stripped(second)
    if not first or not second:
        return
    constant = _constant(second)
    if constant is None and _constant(first) is not None:
        first, second, operator, constant = second, first, _FLIPPED[operator], _constant(first)
    if constant is not None:
        yield from _bounded(condition, first, operator, constant)
        return
    if operator in ("=", "=="):
        yield Equal(_piece(condition, first), _piece(condition, second))
        return
    if operator.startswith(">"):
        first, second = second, first
    yield AtMost(_term(condition, first), _term(condition, second))


def _bounded(condition: str, tokens: Sequence[Token], operator: str, constant: Constant) -> Iterator[Statement]:
    """Of ``a - b`` or ``abs(a - b)`` compared with a constant."""
    is_size = tokens[0].word == "ABS" and len(tokens) > 2 and [number for number, _ in _levels(tokens)] == [0, 1, len(tokens) - 1]
    if is_size:
        if not operator.startswith("<"):
            return
        tokens = _stripped(tokens[2:-1])
    cuts = [number for number, word in _keywords(tokens) if word in ("+", "-")]
    if len(cuts) != 1 or not 0 < cuts[0] < len(tokens) - 1 or tokens[cuts[0]].text != "-":
        return
    low = Constant(-constant.value, constant.is_interval) if is_size else constant if operator.startswith((">", "=")) else None
    high = constant if operator.startswith(("<", "=")) else None
    pieces = _piece(condition, _stripped(tokens[: cuts[0]])), _piece(condition, _stripped(tokens[cuts[0] + 1 :]))
    yield Difference(*pieces, low, high)


def _term(condition: str, tokens: Sequence[Token]) -> Term:
    whole = _piece(condition, tokens)
    cuts = [number for number, word in _keywords(tokens) if word in ("+", "-")]
    at = cuts[-1] if cuts else 0
    if 0 < at < len(tokens) - 1 and (tokens[at - 1].kind != "symbol" or tokens[at - 1].text == ")"):
        offset, base = _constant(_stripped(tokens[at + 1 :])), _piece(condition, _stripped(tokens[:at]))
        if offset is not None and not base.has_arithmetic:
            sign = -1 if tokens[at].text == "-" else 1
            return Term(whole, base, Constant(sign * offset.value, offset.is_interval))
    return Term(whole, whole)


def _constant(tokens: Sequence[Token]) -> Constant | None:
    if not tokens:
        return None
    if tokens[0].text in ("-", "+"):
        inner = _constant(tokens[1:])
        return inner and (Constant(-inner.value, inner.is_interval) if tokens[0].text == "-" else inner)
    if len(tokens) == 1 and tokens[0].kind == "number":
        value = float(re.sub(r"(BD|[LSYFD])$", "", tokens[0].text, flags=re.IGNORECASE))
        return Constant(value) if math.isfinite(value) else None
    if tokens[0].word == "INTERVAL" and len(tokens) in (2, 3):
        amount = tokens[1].text[1:-1] if tokens[1].kind == "string" else tokens[1].text
        micros = quantity_micros(" ".join([amount, *(token.text for token in tokens[2:])]))
        return None if micros is None else Constant(float(micros), is_interval=True)
    return None


def _piece(condition: str, tokens: Sequence[Token]) -> Piece:
    columns, is_safe, has_arithmetic, number = [], bool(tokens), False, 0
    while number < len(tokens):
        token = tokens[number]
        follows = tokens[number + 1].text if number + 1 < len(tokens) else ""
        number += 1
        if token.word == "INTERVAL" and follows != ".":
            count = 2 if number + 1 < len(tokens) and tokens[number + 1].word else 1
            is_safe &= _constant(tokens[number - 1 : number + count]) is not None
            number += count
        elif token.kind in ("word", "quoted"):
            if follows == "(":
                is_safe &= token.text.casefold() in _SAFE | _SAFE_OF_ONE_TYPE
                has_arithmetic |= token.text.casefold() in _SAFE_OF_ONE_TYPE
                continue
            names = [_name(token)]
            while number + 1 < len(tokens) and tokens[number].text == "." and tokens[number + 1].kind in ("word", "quoted"):
                names.append(_name(tokens[number + 1]))
                number += 2
            is_safe &= len(names) > 1 or token.word not in _WORDS
            columns.append(tuple(names))
        elif token.kind == "symbol":
            is_safe &= token.text in "+-*/%(),"
            has_arithmetic |= token.text in "+-*/%"
    return Piece(_text(condition, tokens), tuple(columns), is_safe, has_arithmetic)
