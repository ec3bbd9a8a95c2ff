"""Bins as expressions of DataFrames: SQL text for places, and the joins by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as F  # noqa: N812

from streamjoin.language.sides import LEFT, RIGHT, SIDE_NAMES, SIDES
from streamjoin.spark.bins import Axis, Bins, Cut, End, Mode, Reach, Uniform, fits

PREFIX = "__streamjoin"
"""Of columns that are there while it joins; no column of a frame begins so."""


@dataclass(frozen=True)
class Frames:
    """Both sides of a join, and its condition as SQL that names columns of the joined frame."""

    left: Any
    right: Any
    condition: str

    def by(self, side: int) -> Any:
        return self.left if side == LEFT else self.right

    def replaced(self, side: int, frame: Any) -> Frames:
        return replace(self, left=frame) if side == LEFT else replace(self, right=frame)


def number(value: float) -> str:
    """SQL of a DOUBLE."""
    return f"({value!r}D)"


def index_sql(cut: Cut, value: str) -> str:
    """A BIGINT: where in the cut a DOUBLE lies; NULL for NULL."""
    if isinstance(cut, Uniform):
        scaled = f"({value} - {number(cut.origin)}) * {number(1.0 / cut.width)}"
        inside = f"floor(least(greatest({scaled}, 0D), {number(cut.count - 1.0)}))"
    else:
        inside = _search(cut.bounds, 0, len(cut.bounds), value)
    return f"CASE WHEN {value} IS NOT NULL THEN {inside} END"


def _search(bounds: Sequence[float], first: int, last: int, value: str) -> str:
    if first == last:
        return f"{first}L"
    middle = (first + last) // 2
    below, above = _search(bounds, first, middle, value), _search(bounds, middle + 1, last, value)
    return f"IF({value} < {number(bounds[middle])}, {below}, {above})"


def end_sql(end: End, *, down: bool) -> str:
    """A DOUBLE; see ``End.of``."""
    if not (end.shift or end.margin or end.relative):
        return end.key
    out = f"(least(abs({end.key}), 1e308D) * {number(end.relative)} + {number(end.margin)})"
    shift = number(end.shift)
    return f"{end.key} + ({shift} - {out})" if down else f"{end.key} + ({shift} + {out})"


def with_places(frame: Any, side: int, bins: Bins) -> Any:
    """The frame, its rows repeated for each of their places, with a column for each axis, and others that lead to it (``helpers``)."""
    for number_, axis in enumerate(bins.axes):
        frame = _with_axis(frame, axis, side, place_name(side, number_))
    return frame if bins.hot is None else _with_parts(frame, bins, side)


def place_name(side: int, axis: int) -> str:
    return f"{PREFIX}_{SIDE_NAMES[side]}_place_{axis}"


def helpers(bins: Bins) -> list[str]:
    """Every column that ``with_places`` may add, on either side."""
    names = [place_name(side, axis) for side in SIDES for axis in range(len(bins.axes))]
    suffixes = ("", "_point", "_low", "_high", "_first", "_last", "_level", "_part", "_parted")
    return [f"{name}{suffix}" for name in names for suffix in suffixes]


def _with_axis(frame: Any, axis: Axis, side: int, name: str) -> Any:
    point, low, high, first, last, level = (f"{name}_{part}" for part in ("point", "low", "high", "first", "last", "level"))
    reach = axis.reach
    if side == reach.points:
        frame, (point,) = _computed(frame, axis, [(point, reach.point)])
        places = list(_places_of_point(axis, point))
        several = f"explode(CASE WHEN {point} IS NOT NULL THEN array({', '.join(places)}) END)"
        return frame.select("*", F.expr(places[0] if axis.mode is Mode.POINTS else several).alias(name))
    ends = [(of, end_sql(end, down=down)) for end, down, of in ((reach.low, True, low), (reach.high, False, high)) if end]
    frame, texts = _computed(frame, axis, ends)
    low, high = (texts[0] if reach.low else low), (texts[-1] if reach.high else high)
    if axis.mode is Mode.POINTS:
        level = "0L"
    else:
        frame = frame.select("*", F.expr(_level_sql(axis, low, high)).alias(level))
    frame = frame.select("*", *(F.expr(_at_level(axis, level, part)).alias(of) for part, of in _ends(reach, low, high, first, last)))
    own = f"{first} * {axis.base}L + {level}"
    if axis.mode is Mode.REACHES:
        beyond = f"WHEN {low} IS NOT NULL AND {high} IS NOT NULL THEN {axis.base - 1}L"
        return frame.select("*", F.expr(f"CASE WHEN {level} < {len(axis.cuts)} THEN {own} {beyond} END").alias(name))
    spread = f"sequence({own}, greatest({first}, {last}) * {axis.base}L + {level}, {axis.base}L)"
    return frame.select("*", F.expr(f"explode(CASE WHEN {first} IS NOT NULL AND {last} IS NOT NULL THEN {spread} END)").alias(name))


def _computed(frame: Any, axis: Axis, named: Sequence[tuple[str, str]]) -> tuple[Any, list[str]]:
    """The frame and SQL of these values: columns of their own where they are read often, since Spark analyses each select anew."""
    if axis.mode is Mode.POINTS and isinstance(axis.cuts[0], Uniform):
        return frame, [f"({sql})" for _, sql in named]
    return frame.select("*", *(F.expr(sql).alias(name) for name, sql in named)), [name for name, _ in named]


def _places_of_point(axis: Axis, point: str) -> Iterator[str]:
    for level, cut in enumerate(axis.cuts):
        place = f"({index_sql(cut, point)}) * {axis.base}L + {level}L"
        yield place
        if axis.mode is Mode.REACHES:
            yield f"{place} - {axis.base}L"
    if axis.mode is Mode.REACHES:
        yield f"{axis.base - 1}L"


def _level_sql(axis: Axis, low: str, high: str) -> str:
    """The first that is wide enough; after the last: none, which LEVELS take as the last."""
    levels = " ".join(f"WHEN {high} - {low} <= {number(fits(cut))} THEN {level}L" for level, cut in enumerate(axis.cuts))
    return f"CASE {levels} ELSE {len(axis.cuts) - (axis.mode is Mode.LEVELS)}L END"


def _ends(reach: Reach, low: str, high: str, first: str, last: str) -> Iterator[tuple[str | None, str]]:
    yield (low if reach.low else None), first
    yield (high if reach.high else None), last


def _at_level(axis: Axis, level: str, value: str | None) -> str:
    """Where ``value`` lies in the cut of the row's level; None: at the end of the cut that ``last`` and ``first`` are."""
    if value is None:
        return "0L" if axis.reach.low is None else f"{axis.cuts[0].count - 1}L"
    if len(axis.cuts) == 1:
        return index_sql(axis.cuts[0], value)
    cases = " ".join(f"WHEN {number_}L THEN {index_sql(cut, value)}" for number_, cut in enumerate(axis.cuts[:-1]))
    return f"CASE {level} {cases} ELSE {index_sql(axis.cuts[-1], value)} END"


def _with_parts(frame: Any, bins: Bins, side: int) -> Any:
    """The hot places cut into parts: a row of the side in one place is in one part, by a hash of its values, the other's in all."""
    hot, name, part = bins.hot, place_name(side, 0), f"{place_name(side, 0)}_part"
    assert hot is not None
    is_hot = f"{name} IN ({', '.join(f'{place}L' for place in hot.places)})"
    if side == bins.axes[0].single:
        columns = ", ".join(f"`{column.replace('`', '``')}`" for column in hashable(frame))
        parted = f"CASE WHEN {is_hot} THEN pmod(xxhash64({columns}), {hot.rows}L) ELSE 0L END"
        made = frame.select("*", F.expr(parted).alias(part))
    else:
        made = frame.select("*", F.expr(f"explode(CASE WHEN {is_hot} THEN sequence(0L, {hot.rows - 1}L) ELSE array(0L) END)").alias(part))
    return made.select("*", F.expr(f"{name} * {hot.rows}L + {part}").alias(f"{name}_parted"))


def hashable(frame: Any) -> list[str]:
    """The columns that Spark can hash, and that a name alone tells."""
    names = [field.name.casefold() for field in frame.schema.fields]
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    return [
        name
        for name, type_ in types.items()
        if names.count(name.casefold()) == 1
        and not name.startswith(PREFIX)
        and not any(word in type_ for word in ("map<", "variant", "geo"))
    ]


def joined(frames: Frames, bins: Bins, how: str, *, swapped: bool = False) -> Any:
    """Spark's join of type ``how`` by places, an equality, and by the condition. ``swapped``: the right frame stands left."""
    left, right = with_places(frames.left, LEFT, bins), with_places(frames.right, RIGHT, bins)
    names = [[f"{place_name(side, axis)}{'_parted' if bins.hot else ''}" for axis in range(len(bins.axes))] for side in SIDES]
    parts = [f"{one} = {other}" for one, other in zip(*names, strict=True)]
    parts += [axis.reach.apart for axis in bins.axes if axis.reach.apart]
    on = F.expr(" AND ".join([*parts, f"({frames.condition})"]))
    found = right.join(left, on, how) if swapped else left.join(right, on, how)
    return found.drop(*helpers(bins))


def without_partner(frames: Frames, ways: Sequence[Bins], side: int) -> Any:
    """The rows of a side that no way finds a partner for."""
    for bins in ways:
        frames = frames.replaced(side, joined(frames, bins, "left_anti", swapped=side == RIGHT))
    return frames.by(side)


def padded(frame: Any, side: int, other: Any) -> Any:
    """Rows of one side with NULL for the columns of the other."""
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in other.schema.fields]
    return frame.select("*", *nulls) if side == LEFT else frame.select(*nulls, "*")
