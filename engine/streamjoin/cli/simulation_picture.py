"""A picture of simulations: the traffic, then for each decider its workers and the fullest worker's tau, over the same time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from streamjoin.cli.picture import HOT, LEFT, QUIET, RIGHT, STYLE, WARM
from streamjoin.language.sides import SIDE_NAMES
from streamjoin.simulation.run import Outcome, SimulatedJoin
from streamjoin.simulation.traffic import Traffic

COLOURS = ("#2f9e5b", "#7a5cc0", "#c8362f", "#444444")
MOST_POINTS = 1500

Array = np.ndarray[Any, np.dtype[Any]]


def draw(path: Path, title: str, join: SimulatedJoin, traffic: Traffic, outcomes: Sequence[Outcome]) -> None:
    """Write the picture; the file's suffix says how. Raises OSError, and ValueError for a suffix that cannot be drawn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = join.settings
    units = ((86400.0, "days"), (3600.0, "hours"))
    size, unit = next(((size, unit) for size, unit in units if traffic.seconds >= 2 * size), (60.0, "minutes"))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.2 + 2.0 * len(outcomes)), dpi=110, layout="constrained")
        grid = figure.subplots(2 + len(outcomes), 1, sharex=True, height_ratios=(2, 3, *[1.7] * len(outcomes)))
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
        rates, workers, *taus = grid
        times = _times(traffic, size)
        for of_side, colour, name in zip(traffic.rates, (LEFT, RIGHT), SIDE_NAMES, strict=True):
            rates.plot(times, _peaks(of_side), color=colour, linewidth=1, label=name)
        rates.set_ylabel("tuples/s")
        rates.yaxis.set_major_formatter(EngFormatter(sep=""))
        workers.set_ylabel("workers")
        for axes, outcome, colour in zip(taus, outcomes, COLOURS, strict=False):
            hours = f"{outcome.name}: {outcome.worker_hours:,.0f} worker-hours"
            workers.plot(times, _peaks(outcome.workers), color=colour, linewidth=1.2, label=hours, drawstyle="steps-post")
            axes.plot(times, _peaks(outcome.tau), color=colour, linewidth=0.8)
            for value, line in ((settings.tau1, QUIET), (settings.tau2, WARM), (settings.tau3, HOT)):
                axes.axhline(value, color=line, linestyle="--", linewidth=0.8)
            axes.set_ylim(0, max(1.0, 1.05 * float(outcome.tau.max())))
            axes.set_ylabel("tau")
            axes.set_title(outcome.name, loc="left")
        for axes in (rates, workers):
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=8)
            axes.set_ylim(bottom=0)
        for axes in grid:
            axes.grid(alpha=0.25, linewidth=0.6)
            axes.set_axisbelow(True)
        grid[-1].set_xlabel(unit)
        figure.savefig(path)


def _times(traffic: Traffic, size: float) -> Array:
    every = max(1, traffic.steps // MOST_POINTS)
    return np.asarray(np.arange(0, traffic.steps, every) * traffic.step_seconds / size)


def _peaks(values: Array) -> Array:
    """The largest of so many neighbours that MOST_POINTS or a few more are left."""
    every = max(1, len(values) // MOST_POINTS)
    return np.maximum.reduceat(values, np.arange(0, len(values), every))
