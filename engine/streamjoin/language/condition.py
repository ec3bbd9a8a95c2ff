"""Parses a join's condition into the main predicates that could serve it, each with its residual.

Each conjunct is turned into *statements* about one key a side (``conjunct``). Statements about the same two keys combine
into a band; all equalities combine into one hash. A conjunct that a main predicate states exactly is dropped from its
residual; any other stays there. ``choice`` takes one of the candidates.

Always holds: every candidate alone, main predicate and residual, admits exactly the pairs that satisfy the condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from streamjoin.language.conjunct import ConjunctReader
from streamjoin.language.errors import SqlError
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate, Predicate
from streamjoin.language.render import render
from streamjoin.language.schema import Schema
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin.language.sql import parse_boolean
from streamjoin.language.statements import Band, Equal, Reading
from streamjoin.language.tree import Literal, Node, conjunction, conjuncts
from streamjoin.language.types import BOOLEAN


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A conjunct that no main predicate could serve, and why."""

    conjunct: str
    reason: str


@dataclass(frozen=True, slots=True)
class Condition:
    """The ways to evaluate a join's condition, best static choice first; each is complete on its own. Never empty."""

    streams: tuple[str, str]
    """Their names, by side."""
    columns: frozenset[tuple[str, str]]
    """What it reads: streams and columns."""
    candidates: tuple[Predicate, ...]
    unmatched: tuple[Unmatched, ...] = ()


def parse_condition(text: str, streams: Sequence[tuple[str, Schema]]) -> Condition:
    """The main predicates that could serve the condition ``text``, each with its residual. ``streams``: names and schemas, by side.

    Raises SqlError when it does not parse, is not a condition, or names what does not exist. Where nothing can
    serve, the only candidate is ALL with all of it as its residual, and ``unmatched`` says why for each conjunct.
    """
    names = tuple(name for name, _ in streams)
    if names[LEFT].casefold() == names[RIGHT].casefold():
        raise SqlError(f"both streams are called {names[LEFT]}", "give them different names")
    condition = parse_boolean(text, dict(streams))
    parts = [part for part in conjuncts(condition.tree) if part != Literal(True, BOOLEAN)]
    reader = ConjunctReader(names)
    readings = [reader.conjunct(part) for part in parts]
    candidates = sorted(_candidates(parts, readings), key=_static_order)
    if not candidates:
        candidates = [Predicate(MainPredicate(MainKind.ALL), _text(parts))]
    unmatched = [
        Unmatched(render(part), reading.reason) for part, reading in zip(parts, readings, strict=True) if not any(reading.alternatives)
    ]
    return Condition((names[LEFT], names[RIGHT]), condition.columns, tuple(candidates), tuple(unmatched))


def _text(parts: Sequence[Node]) -> str | None:
    """The conjuncts joined by AND; None: there are none."""
    if not parts:
        return None
    return render(conjunction(parts))


def _candidates(parts: Sequence[Node], readings: Sequence[Reading]) -> Iterator[Predicate]:
    """One per hash, pair of keys in bands, and pair of keys that differ."""
    equals: dict[int, list[Equal]] = {}
    bands: dict[tuple[tuple[KeyExpression, ...], float], dict[int, list[Band]]] = {}
    for index, reading in enumerate(readings):
        for statement in (statement for alternative in reading.alternatives for statement in alternative):
            if isinstance(statement, Equal):
                equals.setdefault(index, []).append(statement)
            elif isinstance(statement, Band):
                group = bands.setdefault((statement.keys, statement.slack), {})
                group.setdefault(index, []).append(statement)
            else:
                main = MainPredicate(MainKind.NOT_EQUAL, statement.keys)
                yield _predicate(main, parts, [index], [index])
    if equals:
        distinct = tuple(dict.fromkeys(statement for group in equals.values() for statement in group))
        main = MainPredicate(
            MainKind.RANGE,
            tuple(KeyExpression(tuple(s.sql[side] for s in distinct), tuple(s.type for s in distinct), Encoding.HASH) for side in SIDES),
            low=0,
            high=0,
        )
        stated = list(equals) if len(distinct) == 1 and distinct[0].exact else []
        yield _predicate(main, parts, list(equals), stated)
    for group in bands.values():
        together = None
        for band in (band for members in group.values() for band in members):
            together = band if together is None else together.and_(band)
        assert together is not None
        stated = [
            index
            for index, members in group.items()
            if readings[index].complete and all(band.exact for band in members) and set(readings[index].alternatives[0]) <= set(members)
        ]
        main = MainPredicate(
            MainKind.RANGE,
            together.keys,
            together.low,
            together.high,
            together.low_strict,
            together.high_strict,
            together.slack,
        )
        one_sided = together.low is None or together.high is None
        if together.slack and one_sided and all(_has_better(readings[index]) for index in group):
            continue
        yield _predicate(main, parts, list(group), stated)


def _has_better(reading: Reading) -> bool:
    """Whether an exact bound serves in place of one with slack."""
    return any(isinstance(statement, Band) and not statement.slack for statement in reading.alternatives[0])


def _predicate(main: MainPredicate, parts: Sequence[Node], used: Sequence[int], stated: Sequence[int]) -> Predicate:
    """The main predicate, made from the conjuncts ``used``, of which it states some exactly; with all others as the residual."""
    text = _text([parts[index] for index in used]) or ""
    residual = _text([part for index, part in enumerate(parts) if index not in stated])
    return Predicate(replace(main, text=text, recheck=len(stated) < len(used)), residual)


def _static_order(predicate: Predicate) -> tuple[int, bool]:
    """By how selective the main predicate looks; of each kind those that need no recheck first."""
    return predicate.main.rank, predicate.main.recheck
