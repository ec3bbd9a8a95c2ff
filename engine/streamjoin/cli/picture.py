"""A picture of a run, over the time since the first epoch: rates, workers, tau of each worker with its thresholds, what was shed, epoch
times and watermark lag."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from streamjoin.cli import wording
from streamjoin.cli.history import History, Sample
from streamjoin.cli.state import RunState
from streamjoin.cli.subject import Subject

LEFT, RIGHT, OUT, COLD, WARM, HOT, QUIET = "#3b6fd4", "#e08a1e", "#2f9e5b", "#7fb3d5", "#d9a400", "#c8362f", "#888888"
STREAMS = (LEFT, RIGHT, "#8f5bd4", "#1ea5a5", "#b0487a", "#7a6a3a")
"""By stream."""
STYLE = {"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False}
MOST_WORKERS_NAMED = 10
LINE = 1.4
MOST_SWITCHES_NAMED = 6
LAG_UNITS = ((2 * 86400.0, 86400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (180.0, 60.0, "minutes"))
"""The unit in which lag is given, from so many seconds on."""


def draw(path: Path, state: RunState) -> None:
    """Write the picture; the file's suffix says how. Raises OSError, and ValueError for a suffix that cannot be drawn."""
    subject, history = state.subject, state.history
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        panels: list[Callable[..., None]] = [_rates, _utilization, _epochs, _lag]
        heights = [3.0, 3.0, 2.0, 2.0]
        if subject.elastic or history.switched:
            panels.insert(1, functools.partial(_workers, history=history))
            heights.insert(1, 1.6)
        if any(sample.shed for sample in history.samples):
            panels.insert(-2, _shed)
            heights.insert(-2, 1.4)
        figure = Figure(figsize=(10, 0.95 * sum(heights)), dpi=120, layout="constrained")
        grid = figure.subplots(len(panels), 1, sharex=True, height_ratios=heights)
        figure.suptitle(f"{subject.job.name}: {_heading(subject, history)}", fontsize=11, x=0.01, ha="left")
        times = [sample.end - (history.began or 0.0) for sample in history.samples]
        for panel, axes in zip(panels, grid, strict=True):
            panel(axes, subject, history.samples, times)
        grid[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.clock(max(value, 0))))
        grid[-1].set_xlabel("time since the first epoch")
        for axes in grid:
            axes.grid(alpha=0.25, linewidth=0.6)
            axes.set_ylim(bottom=0)
            axes.set_axisbelow(True)
        figure.savefig(path)


def _heading(subject: Subject, history: History) -> str:
    condition = subject.condition
    shown = condition if len(condition) <= 90 else condition[:89] + "…"
    tuples, rows = sum(history.counts.get("input", ())), history.output
    return f"{shown}\n{wording.plural(tuples, 'tuple')} in, {wording.plural(rows, 'row')} out, {wording.plural(history.epochs, 'epoch')}"


def _width(stream: int, streams: int) -> float:
    """Of a stream's line: lines that lie on one another are all to be seen."""
    return LINE * (1 + 0.7 * (streams - 1 - stream))


def _rates(axes: Any, subject: Subject, samples: list[Sample], times: list[float]) -> None:
    spans = [max(sample.end - (samples[index - 1].end if index else sample.start), 1e-3) for index, sample in enumerate(samples)]
    for number, colour in zip(range(len(subject.streams)), STREAMS, strict=False):
        rates = [sample.input[number] / span for sample, span in zip(samples, spans, strict=True)]
        axes.plot(times, rates, color=colour, linewidth=_width(number, len(subject.streams)), label=f"{subject.streams[number]} in")
    axes.set_ylabel("tuples in per second")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    right = axes.twinx()
    right.plot(times, [sample.output / span for sample, span in zip(samples, spans, strict=True)], color=OUT, linewidth=LINE, label="out")
    right.set_ylabel("rows out per second", color=OUT)
    right.spines["right"].set_visible(True)
    right.set_ylim(bottom=0)
    right.yaxis.set_major_formatter(EngFormatter(sep=""))
    handles = [*axes.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=1 + len(subject.streams), frameon=False)
    axes.set_title("rates", loc="left")


def _workers(axes: Any, subject: Subject, samples: list[Sample], times: list[float], *, history: History) -> None:
    """Workers that run, with what each change moved beside what it would have moved if every worker had begun anew."""
    axes.step(times, [sample.workers for sample in samples], where="post", color="#333333", linewidth=1.8)
    top = history.most_workers * 1.6 + 1
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    near, lower, before = 0.13 * (times[-1] if times else 0.0), False, -math.inf
    for at, switched in history.switches:
        when = at - (history.began or 0.0)
        lower, before = when - before < near and not lower, when
        axes.axvline(when, color=QUIET, linewidth=0.8, linestyle=":")
        if len(history.switches) <= MOST_SWITCHES_NAMED:
            naive = switched.moved_tuples + switched.kept_tuples
            text = f" {wording.short(switched.moved_tuples)} of {wording.short(naive)}\n moved"
            axes.annotate(text, (when, top * (0.77 if lower else 0.97)), fontsize=7, va="top", color=QUIET)
    axes.set_title("workers", loc="left")
    axes.set_ylabel("workers")


def _shed(axes: Any, subject: Subject, samples: list[Sample], times: list[float]) -> None:
    shares = [100 * sample.shed / max(1, sum(sample.input)) for sample in samples]
    axes.fill_between(times, shares, color=HOT, alpha=0.5, linewidth=0)
    axes.set_title(f"shed: {wording.plural(sum(sample.shed for sample in samples), 'tuple')} in all", loc="left")
    axes.set_ylabel("% of input")


def _utilization(axes: Any, subject: Subject, samples: list[Sample], times: list[float]) -> None:
    job = subject.job
    tasks = sorted({task for sample in samples for task in sample.utilization})
    colours = mpl.colormaps["viridis"]
    for index, task in enumerate(tasks):
        # NaN where the worker is not there: the line ends, and begins again with the next plan that has it.
        known = [(time, sample.utilization.get(task, math.nan)) for time, sample in zip(times, samples, strict=True)]
        label = f"worker {task}" if len(tasks) <= MOST_WORKERS_NAMED else None
        axes.plot(*zip(*known, strict=True), color=colours(0.85 * index / max(1, len(tasks) - 1)), linewidth=LINE, label=label)
    thresholds = ((job.tau0, "tau0", COLD), (job.tau1, "tau1", QUIET), (job.tau2, "tau2", WARM), (job.tau3, "tau3", HOT))
    for value, name, colour in thresholds if subject.elastic else thresholds[1:]:
        axes.axhline(value, color=colour, linestyle="--", linewidth=1, label=f"{name} {value:g}")
    most = max((tau for sample in samples for tau in sample.utilization.values()), default=0.0)
    axes.set_ylim(0, max(1.0, most * 1.05))
    axes.set_title(f"tau: tuples held / {job.capacity.figure(job.capacity.amount)}", loc="left")
    axes.set_ylabel("tau")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _epochs(axes: Any, subject: Subject, samples: list[Sample], times: list[float]) -> None:
    interval = subject.job.interval_micros / 1e6
    axes.vlines(times, 0, [sample.seconds for sample in samples], color="#7a5cc0", linewidth=1.2)
    axes.plot(times, [sample.seconds for sample in samples], ".", color="#7a5cc0", markersize=4)
    longest = max((sample.seconds for sample in samples), default=0.0)
    if interval <= 4 * longest:
        axes.axhline(interval, color=QUIET, linestyle="--", linewidth=1, label="interval")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    axes.set_title("epoch time", loc="left")
    axes.set_ylabel("seconds")


def _lag(axes: Any, subject: Subject, samples: list[Sample], times: list[float]) -> None:
    largest = max((lag for sample in samples for lag in sample.lag if lag is not None), default=0.0)
    scale, unit = next(((scale, unit) for least, scale, unit in LAG_UNITS if largest >= least), (1.0, "seconds"))
    for number, colour in zip(range(len(subject.streams)), STREAMS, strict=False):
        lags = [(time, sample.lag[number]) for time, sample in zip(times, samples, strict=True)]
        known = [(time, lag / scale) for time, lag in lags if lag is not None]
        if known:
            width = _width(number, len(subject.streams))
            axes.plot(*zip(*known, strict=True), color=colour, linewidth=width, label=subject.streams[number])
    axes.set_title("watermark lag", loc="left")
    axes.set_ylabel(unit)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    else:
        axes.annotate("the window has no watermarks", (0.5, 0.5), xycoords="axes fraction", ha="center", color=QUIET)
