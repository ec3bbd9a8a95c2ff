"""The end of a run in words: what was joined, how fast, where the output is, and how to go on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from streamjoin.api.loop import Ended, Reason
from streamjoin.cli import wording
from streamjoin.cli.completeness import completeness_text
from streamjoin.cli.exits import Exit
from streamjoin.cli.history import History
from streamjoin.cli.record import run_span
from streamjoin.cli.state import RunState
from streamjoin.cli.subject import Subject

DROPPED = {
    **{name: name for name in ("shed", "filtered", "unmatchable")},
    # These were not: shedding is only recommended.
    "would_shed": "would have shed",
}

LABEL_WIDTH = 10
"""At least; a stream's longer name makes room for itself."""


def summary_lines(state: RunState, ended: Ended, picture: Path | None) -> list[str]:
    """Plain lines. An error's sentence is not among them."""
    subject, history = state.subject, state.history
    line = partial(_line, max(LABEL_WIDTH, *map(len, subject.streams)))
    lines = [_headline(history, ended)]
    span = run_span(history)
    if span is not None and history.last is not None:
        for side, name in enumerate(subject.streams):
            total = history.counts["input"][side]
            dropped = [f"{word} {history.counts[counter][side]:,}" for counter, word in DROPPED.items() if history.counts[counter][side]]
            lines.append(line(name, wording.plural(total, "tuple"), f"{wording.short(total / span)}/s", *dropped))
            lines += [line("", text) for text in subject.losses(history, side)]
        whole = history.last.totals.get("output", [history.output])[0]
        before = f"{whole:,} since the first epoch" if whole != history.output else ""
        where = f"of {len(subject.sinks)} joins" if subject.has_several else subject.sink
        lines.append(line("output", wording.plural(history.output, "row"), f"{wording.short(history.output / span)}/s", before, where))
        if refused := history.refused.total():
            lines.append(line("", f"refused {wording.plural(refused, 'result')} by the sink (in {subject.job.dead_letter})"))
        lines += _joins(subject, history)
        lines += [line("complete", text) for text in completeness_text(history.last, joins_named=subject.has_several)]
        quantiles = ((0.5, "p50"), (0.95, "p95"))
        times = [f"{name} {wording.duration(history.durations.quantile(fraction))}" for fraction, name in quantiles]
        lines.append(
            line("epochs", wording.plural(history.epochs, "epoch"), *times, f"longest {wording.duration(history.durations.longest)}")
        )
        workers = wording.plural(len(history.last.held), "worker")
        capacity = subject.job.capacity
        lines.append(line("tau", f"at most {history.largest_utilization:.2f}", f"{workers} of {capacity.words(capacity.amount)}"))
        if history.switched:
            numbers = f"{history.fewest_workers} to {history.most_workers} workers"
            moved = f"{history.moved_tuples:,} tuples moved of {history.naive_tuples:,} that were held"
            lines.append(line("plans", wording.plural(history.switched, "change"), numbers, moved))
    if picture is not None:
        lines.append(line("picture", str(picture)))
    is_refused = ended.failure is not None and ended.failure.code is Exit.MISMATCH  # the same command would be, too
    if ended.reason not in (Reason.IDLE, Reason.ELSEWHERE) and not is_refused:
        lines.append(line("go on", subject.command))
    return lines


def _headline(history: History, ended: Ended) -> str:
    if history.last is None or history.began is None:
        done = "Nothing was joined"
    else:
        done = f"Epoch {history.last.epoch} is committed, after {wording.clock(history.ended - history.began)}"
    why = {
        Reason.IDLE: "all input has been joined",
        Reason.TIME: "the time is up",
        Reason.STOPPED: "stopped",
        Reason.FAILED: "failed",
        Reason.ELSEWHERE: "the driver that this one stood by for has ended the join",
    }[ended.reason]
    if ended.abandoned:
        why += "; the epoch that was running was given up and will be done again"
    return f"{done}: {why}"


def _joins(subject: Subject, history: History) -> list[str]:
    """The output of each of several joins."""
    if not subject.has_several:
        return []
    found = [(join.name, history.joins[join.name].output if join.name in history.joins else 0) for join in subject.job.joins]
    name_width, rows_width = (max(map(len, column)) for column in zip(*((name, f"{rows:,}") for name, rows in found), strict=True))
    return [
        f"    {name:<{name_width}}  {rows:>{rows_width},} {'row' if rows == 1 else 'rows'}, {sink}"
        for (name, rows), sink in zip(found, subject.sinks, strict=True)
    ]


def _line(width: int, label: str, *values: str) -> str:
    return f"  {label:<{width}}  {', '.join(value for value in values if value)}"
