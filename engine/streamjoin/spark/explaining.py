"""The chosen way of a join in words, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from streamjoin.language.join_type import JoinType
from streamjoin.language.sides import SIDE_NAMES
from streamjoin.spark.bins import Axis, Bins, Mode, Sample, Uniform
from streamjoin.spark.keys import Keys
from streamjoin.spark.planning import Chosen


@dataclass(frozen=True, repr=False)
class Explanation:
    """How two DataFrames are joined, and why: as text for ``print``, as a table in a notebook."""

    text: str
    """Lines, each a name and what there is to say of it; those that are indented belong to the line above."""

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Called by notebooks."""
        rows = []
        for line in self.text.splitlines():
            name, _, said = line.lstrip().partition(": ")
            indent = len(line) - len(line.lstrip())
            cells = (f'<td style="text-align: left; padding-left: {indent + 1}em">{escape(name)}</td>', escape(said))
            rows.append(f'<tr>{cells[0]}<td style="text-align: left">{cells[1]}</td></tr>')
        return f"<table>{''.join(rows)}</table>"


def described(chosen: Chosen, keys: Keys, samples: Sequence[Sample], kind: JoinType) -> str:
    """A line for each thing to know. O(ways)."""
    lines = [f"join: {kind.value}"]
    if not chosen.pairs:
        lines.append(f"way: Spark's own join, because {chosen.own.reason}")
    for number, bins in enumerate(chosen.pairs):
        lines += _way(bins, samples, "way" if len(chosen.pairs) == 1 else f"way {number + 1} of {len(chosen.pairs)}")
    for side, ways in chosen.kept.items():
        for bins in ways:
            lines += _way(bins, samples, f"way to the {SIDE_NAMES[side]} rows without a partner")
    if chosen.pairs:
        lines.append(f"cost: Spark's own join takes {chosen.own.reason}, both estimated")
    if keys.unused:
        lines.append(f"left to Spark: {' AND '.join(keys.unused)}")
    for name, sample in zip(SIDE_NAMES, samples, strict=False):
        lines.append(f"sample: {sample.size} of {sample.rows} rows of the {name}")
    return "\n".join(lines)


def _way(bins: Bins, samples: Sequence[Sample], name: str) -> Iterator[str]:
    axes, estimate = bins.axes, bins.estimate
    kinds = "cells of two keys" if len(axes) == 2 else "ranges of a key" if axes[0].reach.is_open else "bins of a key"
    yield f"{name}: {kinds}{', beside the equality' if bins.with_equality else ''}"
    for axis in axes:
        yield f"  key: {axis.reach.text}"
        yield from _cut(axis)
    rows = sum(sample.rows for sample in samples)
    yield f"  replicas: {estimate.replicas / max(1, rows):.2f} for a row of both sides"
    share = estimate.candidates / estimate.results if estimate.results else float("inf")
    checked, match = f"{estimate.candidates:.2g}", f"{estimate.results:.2g}"
    yield f"  candidates: {share:.1f} for a result; about {checked} pairs are checked, of which {match} match in these keys"
    areas = 1
    for axis in axes:
        areas *= axis.cuts[0].count
    yield f"  areas: {areas}, of about {estimate.replicas / areas:.3g} tuples"
    if bins.hot is not None:
        yield f"  hot cells: {len(bins.hot.places)}, each a grid of {bins.hot.rows} parts"


def _cut(axis: Axis) -> Iterator[str]:
    points, other = SIDE_NAMES[axis.reach.points], SIDE_NAMES[1 - axis.reach.points]
    widths = [f"{cut.width:.6g}" for cut in axis.cuts if isinstance(cut, Uniform)]
    if axis.mode is Mode.POINTS:
        width = f", {widths[0]} wide" if widths else ""
        yield f"  places: a {points} row in one of {axis.cuts[0].count}{width}; a {other} row in all that it may reach"
    elif axis.mode is Mode.REACHES:
        yield f"  places: a {other} row in one, by its start and length; a {points} row in two for each width: {', '.join(widths)}"
    else:
        each = ", ".join(widths)
        yield f"  places: a {other} row in those that it covers, of the width of its length; a {points} row in one of each: {each}"
