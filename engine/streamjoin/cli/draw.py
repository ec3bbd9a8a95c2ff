"""Draws a scheme as the papers do: the tuple matrix with its results in grey, the areas in colour, each with its task's number.

Left keys run down, right keys across, both in order and to the scale of the tuples that they hold, so that a rectangle's size shows how
many pairs it joins; a coverage area's grid is drawn to the proportion of its unit ranges. Beside it, what each task holds. Of three and
more streams each key space has a matrix of its own, one below the other.
"""

from __future__ import annotations

import colorsys
import io
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from streamjoin.api.areas import coverage_areas, key_text
from streamjoin.api.axis import Axis
from streamjoin.api.key_spaces import KeySpace, is_empty
from streamjoin.cli import wording
from streamjoin.elastic.plan import Plan
from streamjoin.language.predicate import Bound
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.statistics import Statistics, loads
from streamjoin.scheme.tiling import Scheme

FORMATS = ("svg", "png")
INK, MUTED, RESULT, LIMIT = "#222222", "#6b6b6b", "#000000", "#c8362f"
MATRIX_INCHES = 6.2
"""The longer side of the matrix."""
KEY_SPACE_INCHES, KEY_SPACE_MARGIN = 4.2, 1.15
"""Where there are several, and between them."""
LEFT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN, BARS_WIDTH = 1.45, 1.35, 0.95, 2.3
"""Inches."""
MOST_BESIDE = 64
"""With more tasks, numbers that do not fit stay tiny: beside their areas they would cover each other."""
MIB = 1 << 20

MOST_BARS = 128
"""With more tasks, loads are drawn as one surface."""

Array = np.ndarray[Any, np.dtype[Any]]
_Colour = tuple[float, float, float]


def render_scheme(
    form: str,
    scheme: Scheme,
    statistics: Statistics,
    key_spaces: Sequence[KeySpace],
    capacity: Capacity | None = None,
) -> bytes:
    """The picture as svg (with text as text) or png; the same bytes for the same arguments."""
    return _render(form, [(scheme, _colours(range(scheme.tasks)))], statistics, key_spaces, capacity)


def render_change(
    form: str,
    before: Scheme,
    plan: Plan,
    statistics: Statistics,
    key_spaces: Sequence[KeySpace],
    capacity: Capacity | None = None,
) -> bytes:
    """Two schemes under the same statistics, side by side. A worker that goes on keeps its colour; a new one has a colour of its own."""
    new = itertools.count(before.tasks)
    after = [next(new) if worker is None else worker for worker in plan.keep]
    parts = [(before, _colours(range(before.tasks))), (plan.scheme, _colours(after))]
    return _render(form, parts, statistics, key_spaces, capacity)


def draw(path: Path, render: Callable[[str], bytes]) -> None:
    """Write the picture to ``path``, whose suffix (svg or png) says how. Raises OSError, and ValueError for another suffix."""
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise ValueError(f"{path.name}: its suffix must be one of {', '.join('.' + known for known in FORMATS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(render(form))


def _render(
    form: str,
    parts: Sequence[tuple[Scheme, list[_Colour]]],
    statistics: Statistics,
    key_spaces: Sequence[KeySpace],
    capacity: Capacity | None,
) -> bytes:
    settings = {"font.size": 9, "font.family": "DejaVu Sans", "svg.fonttype": "none", "svg.hashsalt": "scheme", "axes.edgecolor": MUTED}
    with mpl.rc_context(settings):
        sizes = [_inches(key_space, MATRIX_INCHES if len(key_spaces) == 1 else KEY_SPACE_INCHES) for key_space in key_spaces]
        widest = max(width for _, width in sizes)
        panel = LEFT_MARGIN + widest + BARS_WIDTH + 0.95
        between = KEY_SPACE_MARGIN * (len(key_spaces) - 1)
        height = TOP_MARGIN + sum(height for height, _ in sizes) + between + BOTTOM_MARGIN
        figure = Figure(figsize=(panel * len(parts), height), dpi=150)
        size = figure.get_size_inches()
        # Both schemes of a change to one scale.
        largest = max(float(loads(scheme, statistics).max()) for scheme, _ in parts)
        for number, (scheme, colours) in enumerate(parts):
            begin, top = panel * number, height - TOP_MARGIN
            bars_height = min(top - BOTTOM_MARGIN, 0.35 * scheme.tasks + 0.15)
            bars = figure.add_axes(_box(size, begin + LEFT_MARGIN + widest + 0.7, top - bars_height, BARS_WIDTH, bars_height))
            for key_space, inches in zip(key_spaces, sizes, strict=True):
                top -= inches[0]
                axes = figure.add_axes(_box(size, begin + LEFT_MARGIN, top, inches[1], inches[0]))
                _key_space(axes, key_space, key_space.of(scheme), colours, inches, is_one_of_many=len(key_spaces) > 1)
                top -= KEY_SPACE_MARGIN
            _loads(bars, loads(scheme, statistics), colours, capacity, bars_height, largest)
            _titles(figure, scheme, key_spaces, begin)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, metadata={"Date": None} if form == "svg" else None)
        return buffer.getvalue()


def _inches(key_space: KeySpace, longer: float) -> tuple[float, float]:
    """Height and width of a key space's matrix."""
    left, right = (side.tuples or 1 for side in key_space.statistics.sides)
    ratio = min(2.0, max(0.5, left / right))
    return (longer, longer / ratio) if ratio >= 1 else (longer * ratio, longer)


def _key_space(
    axes: Any, key_space: KeySpace, scheme: Scheme, colours: list[_Colour], inches: tuple[float, float], *, is_one_of_many: bool
) -> None:
    """The matrix of a key space, of which ``scheme`` has the areas that both sides have keys of."""
    main, statistics = key_space.main, key_space.statistics
    scheme = replace(scheme, areas=tuple(area for area in scheme.areas if not any(map(is_empty, area.keys))))
    rows, columns = (
        _Axis(statistics.sides[side], [area.keys[side] for area in scheme.areas], main.key(side), key_space.headings[side])
        for side in (LEFT, RIGHT)
    )
    _results(axes, Matrix.of(statistics, main), rows, columns)
    _areas(axes, scheme, rows, columns, colours, inches)
    _matrix_axes(axes, rows, columns, inches)
    if is_one_of_many:
        axes.set_xlabel(columns.label, color=INK, labelpad=6, loc="left")
        axes.set_title(_cut(main.text or str(main.kind), 70), loc="left", fontsize=10, fontweight="bold", color=INK, pad=9)


def _box(size: Array, left: float, bottom: float, width: float, height: float) -> tuple[float, float, float, float]:
    """Inches as parts of the figure."""
    return left / size[0], bottom / size[1], width / size[0], height / size[1]


class _Axis(Axis):
    """With its labels."""

    def ticks(self, inches: float, *, across: bool) -> tuple[list[float], list[str]]:
        """Positions that leave room for their labels, the keys there: the scheme's cuts, or else the quartiles."""
        if self.key is None or (not self.cuts and self.histogram is None):
            return [0.0, 0.5, 1.0], ["0", "0.5", "1"]
        bounds: list[Bound] = list(self.cuts)
        if not bounds:
            assert self.histogram is not None
            inner = self.histogram.bounds
            nearest = [int(np.argmin(np.abs(self.at(inner) - part))) for part in (0, 0.25, 0.5, 0.75, 1)] if len(inner) else []
            bounds = inner[nearest].tolist()
        labels = [key_text(bound, self.key) for bound in bounds]
        # A character of a label is about 0.06 inches wide, a line 0.17 high.
        least = (0.06 * max(map(len, labels), default=0) + 0.15 if across else 0.17) / inches
        places: list[float] = []
        texts: list[str] = []
        for place, text in zip(self.at(np.array(bounds)).tolist(), labels, strict=True):
            if not places or place - places[-1] >= least:
                places.append(place)
                texts.append(text)
        return places, texts

    @property
    def label(self) -> str:
        if self.key is None or (not self.cuts and self.histogram is None):
            what = "by unit coordinate"
        else:
            what = "keys, to the scale of their tuples"
        return f"{self.name}: {wording.count(self.tuples)} tuples, {what}" if self.tuples else f"{self.name}: {what}"


def _results(axes: Any, matrix: Matrix, rows: _Axis, columns: _Axis) -> None:
    """The band of result cells, as one staircase."""
    down = np.concatenate([[0.0], rows.at(matrix.row_bounds), [1.0]])
    across = np.concatenate([[0.0], columns.at(matrix.column_bounds), [1.0]])
    begin, end = across[matrix.first], across[matrix.last + 1]
    sides = np.repeat(down, 2)[1:-1]
    right = np.stack([np.repeat(end, 2), sides], axis=1)
    left = np.stack([np.repeat(begin, 2), sides], axis=1)[::-1]
    outline = np.concatenate([right, left])
    axes.add_collection(PolyCollection([outline], facecolor=RESULT, alpha=0.22, linewidth=0, zorder=2))
    if matrix.rows * matrix.columns <= 60 * 60:
        for lines, place in ((down, axes.hlines), (across, axes.vlines)):
            place(np.unique(lines), 0, 1, color="white", linewidth=0.4, alpha=0.7, zorder=2.5)


def _areas(axes: Any, scheme: Scheme, rows: _Axis, columns: _Axis, colours: list[_Colour], inches: tuple[float, float]) -> None:
    """Areas that hold one side cover the matrix once for left and once for right: half transparent, numbered where that side begins."""
    digits = len(str(scheme.tasks - 1))
    for parts in coverage_areas(scheme).values():
        for area in parts:
            down, across = (axis.parts(area.keys[side], area.units[side]) for side, axis in enumerate((rows, columns)))
            both = all(area.holds)
            look: Any = {"facecolor": colours[area.task], "edgecolor": "white", "linewidth": 1.0, "zorder": 1, "alpha": 1 if both else 0.5}
            for (top, bottom), (begin, end) in itertools.product(down, across):
                axes.add_patch(Rectangle((begin, top), end - begin, bottom - top, **look))
            # The number stands in the largest part.
            (top, bottom), (begin, end) = (max(parts_, key=lambda part: part[1] - part[0]) for parts_ in (down, across))
            if not both:
                end = begin + (end - begin) * (0.1 if area.holds[LEFT] else 1)
                bottom = top + (bottom - top) * (0.1 if area.holds[RIGHT] else 1)
            # As large as fits, in points; bold digits are about 0.7 as wide as high.
            room = 72 * min((bottom - top) * inches[0], (end - begin) * inches[1] / (0.7 * digits))
            size = min(20.0, 0.62 * room)
            middle = (top + bottom) / 2
            if size >= 4.5 or scheme.tasks > MOST_BESIDE:
                if size >= 2:
                    text = {"ha": "center", "va": "center", "fontweight": "bold", "color": INK, "zorder": 4}
                    axes.text((begin + end) / 2, middle, str(area.task), fontsize=size, **text)
            else:
                # Too small for its number, which then stands beside it, where there is no result.
                right = begin < 0.1
                place, side = (end + 0.006, "left") if right else (begin - 0.006, "right")
                axes.text(place, middle, str(area.task), fontsize=6, color=INK, ha=side, va="center", zorder=4)
        top, bottom = rows.ends(parts[0].keys[LEFT])
        begin, end = columns.ends(parts[0].keys[RIGHT])
        width = 1.4 if len(scheme.areas) <= 40 else 0.7
        axes.add_patch(Rectangle((begin, top), end - begin, bottom - top, fill=False, edgecolor=INK, linewidth=width, zorder=3))


def _matrix_axes(axes: Any, rows: _Axis, columns: _Axis, inches: tuple[float, float]) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    axes.set_xlabel(columns.label, color=INK, labelpad=6)
    axes.set_ylabel(rows.label, color=INK, labelpad=7)
    axes.set_yticks(*rows.ticks(inches[0], across=False))
    axes.set_xticks(*columns.ticks(inches[1], across=True))
    axes.tick_params(axis="both", length=3, color=MUTED, labelcolor=MUTED, labelsize=7)


def _loads(axes: Any, held: Array, colours: list[_Colour], capacity: Capacity | None, height: float, largest: float) -> None:
    limit, unit = 0.0 if capacity is None else capacity.amount, "tuples"
    if capacity is not None and capacity.in_bytes:
        held, limit, largest, unit = held / MIB, limit / MIB, largest / MIB, "MiB of tuples"
    tasks = np.arange(len(held))
    if len(held) <= MOST_BARS:
        axes.barh(tasks, held, height=0.8, color=colours)
    else:
        axes.fill_betweenx(tasks, held, color="#9db4d8", linewidth=0)
    axes.set_ylim(len(held) - 0.4, -0.6)
    axes.set_yticks(tasks if len(held) <= 7.5 * height else [])
    if len(held) > 7.5 * height:
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_ylabel("task", color=INK)
    axes.set_title(f"{unit} held by each task", fontsize=9, color=INK, pad=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.axvline(held.mean(), color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xlim(0, max(largest, limit) * 1.06 or 1)
    if limit:
        axes.axvline(limit, color=LIMIT, linewidth=1.2)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: re.sub(r"\.0+(\D)", r"\1", wording.short(value))))
    axes.tick_params(axis="both", length=3, color=MUTED, labelcolor=MUTED, labelsize=7)
    legend = [("largest", held.max(), INK), ("mean (dashed)", held.mean(), INK)]
    if limit:
        legend.append(("capacity", limit, LIMIT))
    for line, (text, value, colour) in enumerate(legend):
        for at, part, side in ((0, text, "left"), (1, wording.count(value), "right")):
            below = {"xytext": (0, -20 - 12 * line), "xycoords": "axes fraction", "textcoords": "offset points", "va": "top"}
            axes.annotate(part, (at, 0), ha=side, fontsize=8, color=colour, **below)


def _titles(figure: Figure, scheme: Scheme, key_spaces: Sequence[KeySpace], inches: float) -> None:
    width, height = figure.get_size_inches()
    begin = inches / width + 0.02
    names = dict.fromkeys(name for key_space in key_spaces for side in key_space.streams for name in side)
    title = f"{' ⋈ '.join(names)} by {scheme.model}: {wording.plural(scheme.tasks, 'task')}"
    figure.text(begin, 1 - 0.28 / height, title, fontsize=13, fontweight="bold", color=INK, va="center")
    predicates = [_cut(key_space.main.text or str(key_space.main.kind), 70) for key_space in key_spaces]
    facts = [*(predicates if len(key_spaces) == 1 else []), _cut(scheme.summary, 90)]
    figure.text(begin, 1 - 0.56 / height, "   ·   ".join(facts), fontsize=9, color=MUTED, va="center")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _colours(workers: Iterable[int]) -> list[_Colour]:
    """One colour a worker: hues a golden ratio apart, so that neighbours differ and no number of workers runs out of them."""
    colours = []
    for worker in workers:
        hue = (0.58 + worker * 0.618034) % 1
        colours.append(colorsys.hls_to_rgb(hue, 0.79 + 0.035 * (worker % 3 - 1), 0.58))
    return colours
