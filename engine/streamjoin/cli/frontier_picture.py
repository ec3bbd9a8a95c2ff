"""A picture of many settings on the same traffic: worker-hours against what was lost, and the frontier among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from streamjoin.cli.frontier import Point
from streamjoin.cli.picture import HOT, LEFT, QUIET, STYLE
from streamjoin.cli.variants import Varied

MOST_LABELS = 12


def draw(path: Path, title: str, varied: Sequence[Varied], points: Sequence[Point], least_hours: float) -> None:
    """Write the picture; the file's suffix says how. Raises OSError, and ValueError for a suffix that cannot be drawn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 5.5), dpi=110, layout="constrained")
        axes = figure.subplots()
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
        hours = [point.outcome.worker_hours for point in points]
        lost = [point.outcome.lost_tuples / max(1.0, point.outcome.input_tuples) for point in points]
        smallest = min((part for part in lost if part > 0), default=1e-6)
        # Nothing lost at all has a place on the axis too.
        axes.set_yscale("symlog", linthresh=smallest, linscale=0.5)
        axes.scatter(hours, lost, s=16, color=QUIET, label="a setting", zorder=2)
        edge = [index for index, point in enumerate(points) if point.on_frontier]
        line = [hours[at] for at in edge], [lost[at] for at in edge]
        axes.plot(*line, color=LEFT, marker="o", label="frontier", drawstyle="steps-post", zorder=3)
        # Of settings that come to the same, the first one is named.
        named = {(round(hours[at], 6), lost[at]): at for at in reversed(edge)}
        low = min(*hours, least_hours)
        room = low + (max(hours) - low) / 4
        for at in sorted(named.values())[:MOST_LABELS]:
            values = points[at].values
            names = "as it is" if values is None else " ".join(f"{one.path[-1]}={value}" for one, value in zip(varied, values, strict=True))
            side: dict[str, Any] = {"xytext": (5, 4)} if hours[at] < room else {"xytext": (-6, -10), "ha": "right"}
            axes.annotate(names, (hours[at], lost[at]), textcoords="offset points", fontsize=7, **side)
        now = next(index for index, point in enumerate(points) if point.values is None)
        ring: dict[str, Any] = {"s": 60, "facecolors": "none", "edgecolors": HOT, "linewidths": 1.6, "zorder": 4}
        axes.scatter([hours[now]], [lost[now]], label="the manifest as it is", **ring)
        axes.axvline(least_hours, color=QUIET, linestyle="--", linewidth=0.9, label="least for whoever sheds nothing")
        axes.set_xlabel("worker-hours")
        axes.set_ylabel("lost, of the input")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda part, _: f"{100 * part:.4g} %"))
        axes.set_ylim(bottom=-0.1 * smallest)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=8)
        figure.savefig(path)
