"""The comparison's figures as pictures, each with the axes that the paper's has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from streamjoin_research.papers.rows import Comparison, Lines, Tiling

STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False}
RESULT, AREA = "#c9cdd6", "#3b6fd4"


def draw(directory: Path, comparison: Comparison) -> Path | None:
    """Write ``DIRECTORY/PAPER-FIGURE-PART.png``; None where a row is no curve, bar or matrix. Raises OSError."""
    row, chart = comparison.row, comparison.ours.chart
    if chart is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    words = "-".join((row.paper, row.figure, row.part)).lower()
    path = directory / ("".join(letter if letter.isalnum() else "-" for letter in words) + ".png")
    with mpl.rc_context(STYLE):
        if isinstance(chart, Lines):
            figure = Figure(figsize=(5.5, 3.6), dpi=120, layout="constrained")
            _lines(figure.subplots(), chart)
        else:
            figure = Figure(figsize=(3.4 * len(chart), 3.8), dpi=120, layout="constrained")
            _tilings(figure.subplots(1, len(chart), squeeze=False)[0], chart)
        figure.suptitle(f"{row.name}, {row.part}", fontsize=10, x=0.01, ha="left")
        figure.savefig(path)
    return path


def _lines(axes: Axes, chart: Lines) -> None:
    names = [str(value) for value in chart.x]
    if all(isinstance(value, str) for value in chart.x):
        width = 0.8 / len(chart.lines)
        for number, (name, values) in enumerate(chart.lines.items()):
            places = [index + (number - (len(chart.lines) - 1) / 2) * width for index in range(len(values))]
            axes.bar(places, values, width, label=name)
        axes.set_xticks(range(len(names)), names)
        if chart.logarithmic:
            axes.set_yscale("log")
    else:
        for name, values in chart.lines.items():
            axes.plot(chart.x, values, marker=".", linewidth=1.3, label=name)
        if chart.logarithmic:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if not chart.logarithmic:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _tilings(grid: Sequence[Axes], tilings: Sequence[Tiling]) -> None:
    from matplotlib.patches import Rectangle

    for axes, tiling in zip(grid, tilings, strict=True):
        for row, begin, end in tiling.results:
            axes.add_patch(Rectangle((begin, row), end - begin, 1, color=RESULT, linewidth=0))
        for label, top, bottom, begin, end in tiling.rectangles:
            axes.add_patch(Rectangle((begin, top), end - begin, bottom - top, fill=False, edgecolor=AREA, linewidth=1.6))
            axes.annotate(label, ((begin + end) / 2, (top + bottom) / 2), ha="center", va="center", color=AREA)
        axes.set_xlim(0, max([end for *_, end in tiling.rectangles]))
        axes.set_ylim(max([bottom for _, _, bottom, _, _ in tiling.rectangles]), 0)
        axes.set_aspect("equal")
        axes.set_title(tiling.title, loc="left")
        axes.set_xlabel("S")
        axes.set_ylabel("R")
