"""What a condition says of keys: reaches of doubles, from its statements and Spark's types of their pieces.

Always holds: a pair that satisfies the condition has its point in the reach. So a statement is left out wherever Spark's value might not
be what doubles say within the margin of an end: integers that wrap around (ANSI mode off), decimals that are rounded to 38 digits, NaN as
a difference (which Spark takes for the greatest number), local days that have 23 hours; and wherever a key, computed for each row, might
fail where Spark's own plan would not have computed it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.spark.bins import End, Reach
from streamjoin.spark.conjuncts import AtMost, Conjunct, Difference, Equal, Piece, Term

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_FLOATS = ("float", "double")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_DAY_MICROS = 86_400_000_000.0
_MOST_DIGITS = 38
_EXACT, _SINGLE = 2.0**-50, 2.0**-21
"""How far the arithmetic of doubles and of FLOAT, and the keys themselves, are off, relative to the size of what is added. Generous."""
_EPOCH = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"


@dataclass(frozen=True, slots=True)
class Session:
    """What decides the meaning of SQL."""

    is_ansi: bool = True
    is_utc: bool = True
    """Whether all days of the session's time zone have 24 hours."""


@dataclass(frozen=True, slots=True)
class Keys:
    equal: tuple[tuple[str, str], ...] = ()
    """By side, SQL of a DOUBLE for each equality: different values seldom have the same."""
    reaches: tuple[Reach, ...] = ()
    """Each alone is bound to hold for a pair that matches."""
    overlaps: tuple[tuple[Reach, Reach], ...] = ()
    """Of a pair that matches exactly one of the two holds, with its ``apart``."""
    unused: tuple[str, ...] = ()
    """Parts of the condition that say nothing of keys."""


TypeOf = Callable[[int, str], "str | None"]
"""Of a side and SQL over its columns: Spark's name of the type, or None if it has none."""
SideOf = Callable[[tuple[str, ...]], "int | None"]
"""Of the names of a column, as they are written: its side, if it has one."""


@dataclass(slots=True)
class _Band:
    """``low <= right - left <= high`` of two keys."""

    texts: list[str]
    size: float
    relative: float
    is_whole: bool
    low: float | None = None
    high: float | None = None

    def add(self, text: str, size: float, low: float | None, high: float | None) -> None:
        if text not in self.texts:
            self.texts.append(text)
        self.size = max(self.size, size)
        if low is not None:
            self.low = low if self.low is None else max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)

    def reaches(self, keys: tuple[str, str]) -> Iterator[Reach]:
        margin, text = self.relative * self.size, " AND ".join(self.texts)
        ends = [None if end is None else End(keys[LEFT], end, margin, self.relative) for end in (self.low, self.high)]
        yield Reach(RIGHT, keys[RIGHT], ends[0], ends[1], text, is_whole=self.is_whole)
        ends = [None if end is None else End(keys[RIGHT], -end, margin, self.relative) for end in (self.high, self.low)]
        yield Reach(LEFT, keys[LEFT], ends[0], ends[1], text, is_whole=self.is_whole)


@dataclass(frozen=True, slots=True)
class _Edge:
    """``low <= high`` of two keys of different sides, as they are written."""

    side: int
    """Of ``low``."""
    low: str
    high: str
    pieces: tuple[Piece, Piece]
    types: tuple[str, str]
    text: str


def keys_of(conjuncts: Sequence[Conjunct], side_of: SideOf, type_of: TypeOf, session: Session) -> Keys:
    """O(parts of the condition squared), and a question of ``type_of`` for each piece."""
    return _Reader(side_of, type_of, session).read(conjuncts)


@dataclass
class _Reader:
    side_of: SideOf
    type_of: TypeOf
    session: Session
    equal: list[tuple[str, str]] = field(default_factory=list)
    bands: dict[tuple[str, str], _Band] = field(default_factory=dict)
    statements: list[object] = field(default_factory=list)
    edges: list[tuple[_Edge, tuple[str, str] | None]] = field(default_factory=list)
    """Each with the keys of its band, where it is part of one."""

    def read(self, conjuncts: Sequence[Conjunct]) -> Keys:
        unused = []
        self.statements = [statement for conjunct in conjuncts for statement in conjunct.statements]
        for conjunct in conjuncts:
            known = [self._statement(statement, conjunct) for statement in conjunct.statements]
            if not any(known):
                unused.append(conjunct.text)
        reaches = [reach for keys, band in self.bands.items() for reach in band.reaches(keys)]
        closed = {keys for keys, band in self.bands.items() if band.low is not None and band.high is not None}
        edges = [edge for edge, keys in self.edges if keys not in closed]
        overlaps = []
        for first in (edge for edge in edges if edge.side == LEFT):
            for second in (edge for edge in edges if edge.side == RIGHT):
                made = self._both(first, second)
                reaches += made[:1] if len(made) == 1 else []
                overlaps += [(made[0], made[1])] if len(made) == 2 else []
        for edge, keys in self.edges:
            if keys is None:
                reaches.append(Reach(1 - edge.side, edge.high, End(edge.low), None, edge.text))
                reaches.append(Reach(edge.side, edge.low, None, End(edge.high), edge.text))
        return Keys(tuple(self.equal), tuple(reaches), tuple(overlaps), tuple(unused))

    def _statement(self, statement: object, conjunct: Conjunct) -> bool:
        if isinstance(statement, Equal):
            return self._equality(statement)
        if isinstance(statement, Difference):
            return self._difference(statement, conjunct)
        return isinstance(statement, AtMost) and self._order(statement, conjunct.text)

    def _side(self, piece: Piece) -> int | None:
        sides = {self.side_of(column) for column in piece.columns}
        return sides.pop() if len(sides) == 1 else None

    def _typed(self, piece: Piece) -> tuple[int, str] | None:
        """Side and type of a piece that can be computed for every row of its side."""
        side = self._side(piece)
        if side is None or not piece.is_safe:
            return None
        type_ = self.type_of(side, piece.text)
        if type_ is None:
            return None
        if piece.has_arithmetic and self.session.is_ansi:
            alike = _FLOATS if type_ in _FLOATS else _TIMES if type_ in _TIMES else ()
            own = {self.type_of(side, column_sql(column)) for column in piece.columns}
            if not own <= set(alike) or re.search("[*/%]" if alike == _TIMES else "[/%]", piece.text):
                return None
        return side, type_

    def _equality(self, statement: Equal) -> bool:
        first, second = self._typed(statement.first), self._typed(statement.second)
        if first is None or second is None or first[0] == second[0]:
            return False
        types, texts = (first[1], second[1]), (statement.first.text, statement.second.text)
        if comparable(*types):
            keys = [encoded(text, type_, single="float" in types) for text, type_ in zip(texts, types, strict=True)]
        elif types[0] == types[1] and types[0].startswith(("string", "binary", "boolean", "char", "varchar")):
            keys = [f"CAST(xxhash64({text}) AS DOUBLE)" for text in texts]
        else:
            return False
        self.equal.append((keys[first[0]], keys[1 - first[0]]))
        return True

    def _order(self, statement: AtMost, text: str) -> bool:
        band = self._shifted(statement.first, statement.second, text)
        first, second = self._typed(statement.first.whole), self._typed(statement.second.whole)
        if first is None or second is None or first[0] == second[0] or not comparable(first[1], second[1]):
            return band is not None
        single = "float" in (first[1], second[1])
        low, high = (
            encoded(term.whole.text, typed[1], single=single) for term, typed in ((statement.first, first), (statement.second, second))
        )
        pieces = statement.first.whole, statement.second.whole
        self.edges.append((_Edge(first[0], low, high, pieces, (first[1], second[1]), text), band))
        return True

    def _shifted(self, first: Term, second: Term, text: str) -> tuple[str, str] | None:
        """``first.base - second.base <= second.offset - first.offset``: the keys of the band that it belongs to."""
        typed = self._typed(first.base), self._typed(second.base)
        if typed[0] is None or typed[1] is None or typed[0][0] == typed[1][0]:
            return None
        types = typed[0][1], typed[1][1]
        offsets = [term.offset.value if term.offset else 0.0 for term in (first, second)]
        if not comparable(*types) or "float" in types or not all(map(self._is_exact, (first, second), types, (t[0] for t in typed if t))):
            return None
        keys = [encoded(term.base.text, type_) for term, type_ in zip((first, second), types, strict=True)]
        side, most = typed[0][0], offsets[1] - offsets[0]
        low, high = (-most, None) if side == LEFT else (None, most)
        return self._add((keys[side], keys[1 - side]), text, types, sum(map(abs, offsets)), low, high)

    def _is_exact(self, term: Term, type_: str, side: int) -> bool:
        """Whether base plus offset is what doubles say, near enough."""
        if term.offset is None:
            return True
        if term.offset.is_interval != (type_ in ("timestamp", "timestamp_ntz")) or type_ == "date":
            return False
        if type_ == "timestamp":
            return self.session.is_utc or abs(term.offset.value) < _DAY_MICROS
        if type_ in _INTEGERS:
            return self.session.is_ansi
        if type_.startswith("decimal"):
            whole = self.type_of(side, term.whole.text) or ""
            return not whole.startswith("decimal") or digits(whole)[0] < _MOST_DIGITS
        return True

    def _difference(self, statement: Difference, conjunct: Conjunct) -> bool:
        first, second = self._typed(statement.first), self._typed(statement.second)
        if first is None or second is None or first[0] == second[0] or not comparable(first[1], second[1]):
            return False
        types, texts = (first[1], second[1]), (statement.first.text, statement.second.text)
        given = [end for end in (statement.low, statement.high) if end is not None]
        if any(end.is_interval != (types[0] in _TIMES) for end in given) or not self._subtracts(types):
            return False
        if set(types) & set(_FLOATS) and statement.high is None and not _has_upper(statement, self.statements):
            return False
        is_local = types[0] == "timestamp" and not self.session.is_utc
        keys = [encoded(f"CAST(({text}) AS TIMESTAMP_NTZ)" if is_local else text, "timestamp_ntz" if is_local else type_)
                for text, type_ in zip(texts, types, strict=True)]  # fmt: skip
        unit = _DAY_MICROS if types[0] == "date" else 1.0
        low, high = (None if end is None else end.value / unit for end in (statement.low, statement.high))
        size = max(abs(end.value / unit) for end in given)
        side = first[0]
        if side == LEFT:
            low, high = (None if high is None else -high), (None if low is None else -low)
        self._add((keys[side], keys[1 - side]), conjunct.text, types, size, low, high)
        return True

    def _subtracts(self, types: tuple[str, str]) -> bool:
        """Whether the difference is exact, or rounded as that of doubles is."""
        if set(types) <= set(_INTEGERS):
            return self.session.is_ansi
        if any(type_.startswith("decimal") for type_ in types) and not set(types) & set(_FLOATS):
            both = [digits(type_) for type_ in types]
            return max(precision - scale for precision, scale in both) + max(scale for _, scale in both) + 1 < _MOST_DIGITS
        return True

    def _add(
        self, keys: tuple[str, str], text: str, types: tuple[str, str], size: float, low: float | None, high: float | None
    ) -> tuple[str, str]:
        relative = _SINGLE if "float" in types else _EXACT
        is_whole = set(types) <= {*_INTEGERS, "date"}
        self.bands.setdefault(keys, _Band([], 0.0, relative, is_whole)).add(text, size, low, high)
        return keys

    def _both(self, first: _Edge, second: _Edge) -> list[Reach]:
        """Of ``l1 <= r1`` and ``r2 <= l2``: a point in a reach, or two reaches that overlap."""
        text = " AND ".join(dict.fromkeys((first.text, second.text)))
        if first.high == second.low:
            return [Reach(RIGHT, first.high, End(first.low), End(second.high), text)]
        if first.low == second.high:
            return [Reach(LEFT, first.low, End(second.low), End(first.high), text)]
        types = {*first.types, *second.types}
        if not all(comparable(a, b) for a in types for b in types) or ("float" in types and len(types) > 1):
            return []
        starts = first.pieces[0].text, second.pieces[0].text
        return [
            Reach(LEFT, first.low, End(second.low), End(first.high), text, f"({starts[0]}) >= ({starts[1]})"),
            Reach(RIGHT, second.low, End(first.low), End(second.high), text, f"({starts[0]}) < ({starts[1]})"),
        ]


def column_sql(names: Sequence[str]) -> str:
    """A column by its names."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def _has_upper(statement: Difference, others: Iterable[object]) -> bool:
    """Whether another bounds the same difference, or its negative, from above: then NaN does not satisfy both."""
    pieces = {statement.first.text, statement.second.text}
    bounded = (other for other in others if isinstance(other, Difference) and other.high is not None)
    return any({other.first.text, other.second.text} == pieces for other in bounded)


def digits(type_: str) -> tuple[int, int]:
    """Precision and scale of a decimal or an integer."""
    found = re.fullmatch(r"decimal\((\d+),(-?\d+)\)", type_)
    if found:
        return int(found[1]), int(found[2])
    return {"tinyint": 3, "smallint": 5, "int": 10}.get(type_, 20), 0


def comparable(first: str, second: str) -> bool:
    """Whether Spark compares values of the two types as their encodings are ordered."""
    if first in _TIMES or second in _TIMES:
        return first == second
    numbers = [type_ in _INTEGERS or type_ in _FLOATS or type_.startswith("decimal") for type_ in (first, second)]
    if not all(numbers):
        return False
    if {first, second} & set(_FLOATS) or {first, second} <= set(_INTEGERS):
        return True
    both = digits(first), digits(second)
    return max(precision - scale for precision, scale in both) + max(scale for _, scale in both) <= _MOST_DIGITS


def encoded(text: str, type_: str, *, single: bool = False) -> str:
    """SQL of a DOUBLE in the order of the values; ``single``: compared as FLOAT. Times are microseconds, dates days, since 1970."""
    if type_ == "date":
        return f"CAST(unix_date({text}) AS DOUBLE)"
    if type_ == "timestamp":
        return f"CAST(unix_micros({text}) AS DOUBLE)"
    if type_ == "timestamp_ntz":
        return f"CAST(CAST(CAST(({text}) - {_EPOCH} AS INTERVAL SECOND) AS DECIMAL(20, 6)) * 1000000 AS DOUBLE)"
    return f"CAST(CAST(({text}) AS FLOAT) AS DOUBLE)" if single else f"CAST(({text}) AS DOUBLE)"


def renamed(keys: Keys, change: Callable[[str], str], joined: Callable[[str], str]) -> Keys:
    """With the SQL of each key changed, and that of conditions on pairs (``joined``). O(keys)."""

    def end(given: End | None) -> End | None:
        return given and replace(given, key=change(given.key))

    def reach(given: Reach) -> Reach:
        return replace(given, point=change(given.point), low=end(given.low), high=end(given.high), apart=joined(given.apart))

    return Keys(
        tuple((change(left), change(right)) for left, right in keys.equal),
        tuple(map(reach, keys.reaches)),
        tuple((reach(first), reach(second)) for first, second in keys.overlaps),
        keys.unused,
    )
