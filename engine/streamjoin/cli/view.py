"""How a run shows itself while it runs: a live screen on a terminal, else a line per epoch, or JSON for machines.

Always holds: views are called by one thread, and only read what they are given. A view that cannot write, because the reader of a pipe or
the terminal went away, raises OSError.
"""

from __future__ import annotations

import itertools
import json
import logging
from typing import IO, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streamjoin.api.loop import WARNING, Asked, Done, Event, Notice, Retrying, Standing, Starting, Stopping
from streamjoin.cli import wording
from streamjoin.cli.completeness import least, percent
from streamjoin.cli.record import epoch_record, standby_record
from streamjoin.cli.scaling import decision_text, plan_text, switch_text
from streamjoin.cli.state import Kind as TroubleKind
from streamjoin.cli.state import RunState
from streamjoin.elastic.decision import Decision, Kind
from streamjoin.epoch.ports import EpochResult

LOG = logging.getLogger("streamjoin.run")
REFRESH_SECONDS = 0.25
"""How often clocks move."""
WIDTH, HEIGHT = 100, 30
"""Where the screen shows everything. It fits 80 by 24 by leaving out what is zero."""
LABEL_CELLS = 12
LINES_BESIDE_WORKERS = 17
"""How many lines the screen has besides one for each stream, worker and warning."""
LEAST_WORKER_LINES = 3
"""With less room for workers, there are no blank lines around them."""
MOST_JOINS_SHOWN = 6
MOST_WARNINGS = 2
GAP = (0, 2, 0, 0)
COUNTERS = {
    "late": ("late", "yellow"),
    "shed": ("shed", "red"),
    "would_shed": ("would shed", "yellow"),
    "rejected": ("rejected", "yellow"),
    "filtered": ("filtered", ""),
    "unmatchable": ("no key", ""),
}
"""What became of tuples that were not joined: the column, and its colour when there are any."""


class View:
    """What the run needs of a view: lines on ``out``, unless a view does more."""

    def __init__(self, state: RunState, out: IO[str]) -> None:
        self.state, self._out = state, out

    def show(self, event: Event) -> None:
        """An event happened, which the state has seen."""
        if text := happening(event, self.state.subject.runner):
            self.note(text)

    def note(self, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def tick(self) -> None:
        """Time has passed."""

    def close(self) -> None:
        """Leave the terminal as it was, with what was last shown."""


def happening(event: Event, runner: str) -> str | None:
    """What an event that takes a while is, in a few words."""
    if isinstance(event, Starting):
        if runner == "inline":
            return f"starting {wording.plural(event.tasks, 'worker')} in this process ..."
        return f"starting Spark with {wording.plural(event.tasks, 'worker')} ..."
    if isinstance(event, Notice):
        return event.text
    if isinstance(event, Standing):
        return event.sentence
    if isinstance(event, Asked):
        return "stopping after the running epoch; Ctrl-C again stops at once"
    if isinstance(event, Retrying) and event.narrowed:
        return f"{event.sentence}; it is done again with less, to find the records that fail it"
    if isinstance(event, Retrying):
        return f"{event.sentence}; attempt {event.attempt} failed, trying again in {wording.duration(event.pause)}"
    return None


class JsonView(View):
    """An object a line on ``records``; notes go to ``out``."""

    def __init__(self, state: RunState, records: TextIO, out: TextIO) -> None:
        super().__init__(state, out)
        self._records = records

    def show(self, event: Event) -> None:
        if isinstance(event, Done):
            print(json.dumps(epoch_record(self.state.subject, event)), file=self._records, flush=True)
        elif isinstance(event, Standing):
            print(json.dumps(standby_record(event)), file=self._records, flush=True)
        super().show(event)


class LineView(View):
    """A plain line per epoch, without colours: for files, pipes and terminals that can do no more."""

    def __init__(self, state: RunState, out: TextIO) -> None:
        super().__init__(state, out)
        self._warned: set[str] = set()
        self._said: Decision | None = None

    def show(self, event: Event) -> None:
        super().show(event)
        if not isinstance(event, Done):
            return
        self.epoch(event)
        plan, decision = event.plan, event.decision
        if plan is not None and plan.switched is not None and plan.switched.epoch == event.result.epoch:
            self.note(switch_text(plan.switched, plan.workers))
        if decision is not None and (self._said is None or self._said.signature != decision.signature):
            if decision.kind is not Kind.HOLD:
                self.note(decision_text(decision))
            self._said = decision
        for warning in event.result.warnings:
            if warning not in self._warned:
                self.note(f"{WARNING}{warning}")

    def epoch(self, done: Done) -> None:
        self.note(epoch_line(done.result))

    def note(self, text: str) -> None:
        if text.startswith(WARNING):
            self._warned.add(text.removeprefix(WARNING))
        super().note(text)


class LogView(LineView):
    """The same as records of a log, that of an epoch with all its numbers: for pods."""

    def epoch(self, done: Done) -> None:
        if LOG.isEnabledFor(logging.INFO):
            LOG.info("%s", epoch_line(done.result), extra={"fields": epoch_record(self.state.subject, done)})

    def say(self, text: str) -> None:
        level = logging.WARNING if text.startswith(WARNING) else logging.INFO
        LOG.log(level, "%s", text.removeprefix(WARNING))


def epoch_line(result: EpochResult) -> str:
    """An epoch in one line; what is zero and better so is left out."""
    counts = result.counts
    parts = [
        f"in {' + '.join(f'{records:,}' for records in counts['input'])}",
        f"out {result.output:,}{_by_join(result)}",
        f"held {sum(map(sum, result.held.values())):,}",
        f"tau {max(result.utilization.values(), default=0.0):.2f}",
    ]
    parts += [f"{COUNTERS[name][0]} {sum(counts[name]):,}" for name in ("late", "shed", "would_shed", "rejected") if sum(counts[name])]
    parts[-1] += next((f" ({wording.cut(reason, 120)})" for reason in result.rejections if reason), "")
    if result.refused:
        parts.append(f"refused {wording.plural(sum(result.refused.values()), 'result')}")
    if sum(result.backlog):
        parts.append(f"backlog {sum(result.backlog):,}")
    if result.read_back:
        parts.append(f"read back by {wording.plural(result.read_back, 'task')}")
    lags = [lag for lag in result.lag if lag is not None]
    if lags:
        parts.append(f"lag {wording.duration(max(lags))}")
    return f"epoch {result.epoch}: {', '.join(parts)}, took {wording.duration(result.duration)}"


def _by_join(result: EpochResult) -> str:
    """What the output of several joins is made of."""
    if len(result.joins) < 2:
        return ""
    return f" ({', '.join(f'{name} {work.output:,}' for name, work in result.joins.items())})"


class LiveView(View):
    """The live screen. Lines printed meanwhile, by sinks for instance, appear above it."""

    def __init__(self, state: RunState, console: Console) -> None:
        super().__init__(state, console.file)
        self._screen = Screen(state, unicode=console.encoding.lower().startswith("utf"))
        self._console = console
        self._live = Live(self._rendered(), console=console, auto_refresh=False, redirect_stderr=False, vertical_overflow="crop")
        self._live.start()

    def show(self, event: Event) -> None:
        if isinstance(event, Asked | Done | Stopping):
            self.tick()
        else:
            super().show(event)

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def tick(self) -> None:
        self._live.update(self._rendered(), refresh=True)

    def close(self) -> None:
        self.tick()
        self._live.stop()

    def _rendered(self) -> RenderableType:
        return self._screen.render(self.state.clock(), self._console.width, self._console.height)


class Screen:
    """What the live view shows at a moment. ``render`` changes nothing."""

    def __init__(self, state: RunState, *, unicode: bool = True) -> None:
        self.state, self.subject, self.history = state, state.subject, state.history
        self._unicode = unicode

    @property
    def _warnings(self) -> list[str]:
        """The last ones, but for notices, which stand above the screen, and the failure that the run ended with, which is said below."""
        ended = self.state.ended
        last = None if ended is None or ended.failure is None else ended.failure.sentence
        shown = [trouble.text for trouble in self.state.troubles if trouble.kind is not TroubleKind.NOTICE and trouble.text != last]
        return shown[-MOST_WARNINGS:]

    def render(self, now: float, width: int = WIDTH, height: int = HEIGHT) -> RenderableType:
        # On a small terminal the workers and the rates go before joins.
        lines = LINES_BESIDE_WORKERS + len(self.subject.streams)
        joins = max(2, min(MOST_JOINS_SHOWN, height - lines - 3))
        parts: list[RenderableType] = [self._header(now, joins), self._streams(now, width >= WIDTH - 5)]
        last = self.history.last
        if last is not None:
            more_joins = min(len(self.subject.job.joins), joins) - 1
            spare = height - lines - more_joins - len(self._warnings) - (2 if self.subject.elastic else 0)
            blank = [Text()]
            if spare < LEAST_WORKER_LINES:
                blank, spare = [], spare + 2
            curve = max(10, min(60, width - WIDTH + 32))
            parts += [*blank, self._workers(last, max(1, spare), width), *blank, self._flow(now, last, curve), self._state_line(last, now)]
        parts += [Text(f" ! {warning}", style="yellow", overflow="ellipsis", no_wrap=True) for warning in self._warnings]
        if self.state.ended is None:
            parts += [Text(), Text(f" {self._hint()}", style="dim", no_wrap=True, overflow="ellipsis")]
        return Group(*parts)

    def _hint(self) -> str:
        if self.state.is_stopping:
            return "Stopping after the running epoch; Ctrl-C again stops at once."
        return "Ctrl-C stops after the running epoch; the same command goes on from there."

    def _header(self, now: float, joins: int) -> RenderableType:
        subject, last = self.subject, self.history.last
        facts = Table.grid(padding=(0, 2), expand=True)
        facts.add_column(style="dim", no_wrap=True, width=LABEL_CELLS - 2, min_width=LABEL_CELLS - 2)
        facts.add_column(overflow="ellipsis", no_wrap=True, ratio=1)
        if subject.has_several:
            self._add_joins(facts, joins)
        else:
            facts.add_row("condition", Text(subject.condition))
        facts.add_row("main", Text(subject.main or "chosen with the first input", style="" if subject.main else "dim"))
        facts.add_row("window", Text(subject.window))
        scheme = subject.scheme or f"{subject.job.model}, cut with the first input"
        plan = f" ({plan_text(self.state.plan)})" if self.state.plan else f" (plan {last.generation})" if last else ""
        facts.add_row("scheme", Text(scheme + plan, style="" if subject.scheme else "dim"))
        if subject.elastic:
            facts.add_row("scaling", Text(*self._scaling()))
            facts.add_row("", Text(self._moved(), style="dim"))
        state = self.state.doing(now)
        colour = {"running": "green", "done": "green", "retrying": "red", "failed": "red"}.get(state.split(",")[0], "yellow")
        title = Text.assemble((f" {subject.job.name} ", "bold"))
        mark = "●" if self._unicode else "*"
        subtitle = Text.assemble((f" {mark} ", colour), (state, colour), (f"  {wording.clock(now - self.history.origin)} ", ""))
        return Panel(facts, title=title, title_align="left", subtitle=subtitle, subtitle_align="right", border_style="blue")

    def _add_joins(self, facts: Table, lines: int) -> None:
        """At most so many lines, one for each join: its rows since the first epoch, its type and condition."""
        totals = self.history.last.totals if self.history.last else {}
        joins = list(zip(self.subject.job.joins, self.subject.conditions, strict=True))
        shown = joins if len(joins) <= lines else joins[: lines - 1]
        width = max(len(join.name) for join, _ in shown)
        for index, (join, condition) in enumerate(shown):
            rows = _number(totals.get(f"output/{join.name}", [0])[0])
            line = Text.assemble(f"{join.name:<{width}}  {rows:>9} rows  ", (f"{join.type}: {condition}", "dim"))
            facts.add_row("" if index else "joins", line)
        if len(shown) < len(joins):
            facts.add_row("", Text(f"and {len(joins) - len(shown)} more", style="dim"))

    def _scaling(self) -> tuple[str, str]:
        """The last decision, and its colour."""
        decision = self.state.decision
        if decision is None:
            return "nothing has been decided yet", "dim"
        return decision_text(decision), "" if decision.kind is Kind.HOLD else "yellow"

    def _moved(self) -> str:
        history, job = self.history, self.subject.job
        if not history.switched:
            return f"{job.min_workers} to {wording.plural(job.max_workers, 'worker')}; no change yet"
        share = f" ({history.moved_tuples / history.naive_tuples:.0%})" if history.naive_tuples else ""
        changes = wording.plural(history.switched, "change")
        return f"{changes}: {_number(history.moved_tuples)} tuples moved of {_number(history.naive_tuples)} that were held{share}"

    def _streams(self, now: float, wide: bool) -> RenderableType:
        history, last = self.history, self.history.last
        rates = history.rates(now)
        totals = last.totals if last else {}
        counters = [counter for counter in COUNTERS if any(totals.get(counter, ())) or (wide and counter != "would_shed")]
        table = Table(box=None, padding=GAP, header_style="dim", expand=True)
        table.add_column(" stream", no_wrap=True, overflow="ellipsis", width=LABEL_CELLS)
        for name in ("in/s", "total", *(COUNTERS[counter][0] for counter in counters)):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("watermark", justify="right", no_wrap=True)
        table.add_column("lag", justify="right", no_wrap=True)
        for number, name in enumerate(self.subject.streams):
            values = {counter: totals[counter][number] if counter in totals else 0 for counter in ("input", *counters)}
            table.add_row(
                Text(f" {name}", style="bold"),
                Text(wording.count(rates.input[number] if rates.input else 0.0), style="cyan"),
                _number(values["input"]),
                *(Text(_number(values[counter]), style=COUNTERS[counter][1] if values[counter] else "dim") for counter in counters),
                _time_of_day(last.watermarks[number] if last else None),
                wording.duration(last.lag[number] if last else None),
            )
        return table

    def _workers(self, last: EpochResult, rows: int, width: int) -> RenderableType:
        streams = self.subject.streams
        are_two = len(streams) == 2
        gap, tau_cells, least_bar = GAP[1], 4, 10
        room = width - (LABEL_CELLS + gap) - (tau_cells + gap) - gap
        most = min(18, (room - least_bar) // len(streams) - gap)
        names = [f"held {name}" if are_two else name for name in streams]
        cells = [max(6, min(most, max(len(name), 9))) for name in names]
        bar = max(least_bar, min(80, room - sum(cells) - gap * len(cells)))
        table = Table(box=None, padding=GAP, header_style="dim")
        table.add_column(" worker" if are_two else " worker has", no_wrap=True, width=LABEL_CELLS)
        for name, of_stream in zip(names, cells, strict=True):
            table.add_column(name, justify="right", no_wrap=True, overflow="ellipsis", width=of_stream)
        table.add_column("tau", justify="right", no_wrap=True, width=tau_cells)
        table.add_column(self._scale(bar), no_wrap=True, min_width=bar)
        tasks = sorted(last.held)
        shown = tasks if len(tasks) <= rows else sorted(sorted(tasks, key=lambda task: -last.utilization[task])[: rows - 1])
        for task in shown:
            tau = last.utilization[task]
            of_streams = zip(last.held[task], cells, strict=True)
            held = [_number(count) if of_stream >= 9 else wording.short(count) for count, of_stream in of_streams]
            table.add_row(f" {task}", *held, Text(f"{tau:.2f}", style=self._colour(tau)), self._bar(tau, bar))
        if len(shown) < len(tasks):
            table.add_row(Text(f" {len(tasks) - len(shown)} more", style="dim"))
        return table

    def _colour(self, tau: float) -> str:
        job = self.subject.job
        return "red" if tau >= job.tau3 else "yellow" if tau >= job.tau2 else "green" if tau >= job.tau1 else "cyan"

    def _bar(self, tau: float, cells: int) -> Text:
        """0 to 1 from left to right, each cell in its own zone's colour; the ticks are the thresholds."""
        job = self.subject.job
        filled = min(cells, max(1 if tau > 0 else 0, round(tau * cells)))
        full, empty, tick = ("▇", "·", "│") if self._unicode else ("#", ".", "|")
        ticks = {round(threshold * cells) for threshold in (job.tau1, job.tau2, job.tau3)}
        colours = [self._colour((cell + 0.5) / cells) for cell in range(filled)]
        bar = Text.assemble(*((full * len(list(run)), colour) for colour, run in itertools.groupby(colours)))
        return bar.append("".join(tick if cell in ticks else empty for cell in range(filled, cells)), style="dim")

    def _scale(self, cells: int) -> str:
        """The thresholds' names where their ticks are; a name for which there is no room is left out."""
        job = self.subject.job
        scale = [" "] * cells
        taken = -1
        names = ("τ1", "τ2", "τ3") if self._unicode else ("t1", "t2", "t3")
        for name, threshold in zip(names, (job.tau1, job.tau2, job.tau3), strict=True):
            at = min(round(threshold * cells), cells - len(name))
            if at > taken:
                scale[at : at + len(name)] = name
                taken = at + len(name)
        return "".join(scale)

    def _flow(self, now: float, last: EpochResult, cells: int) -> RenderableType:
        rates = self.history.rates(now)
        seconds = self.history.per_second(now, cells)  # a character each
        table = Table(box=None, padding=GAP, show_header=False)
        table.add_column(no_wrap=True, width=LABEL_CELLS)
        table.add_column(justify="right", no_wrap=True, min_width=8, style="cyan")
        table.add_column(no_wrap=True, min_width=cells)
        table.add_column(no_wrap=True, overflow="ellipsis")
        durations = self.history.durations
        total_in, total_out = sum(last.totals.get("input", [0])), sum(last.totals.get("output", [0]))
        if "partial" in last.totals:
            made_of = f", {_number(last.totals['partial'][0])} partial results sent"
        else:
            made_of = f", {last.output / last.candidates:.0%} of pairs compared" if last.candidates > last.output else ""
        for name, value, curve, colour, more in (
            (" in", f"{wording.short(sum(rates.input))}/s", [second.input for second in seconds], "blue", f"{_number(total_in)} in all"),
            (
                " out",
                f"{wording.short(rates.output)}/s",
                [second.output for second in seconds],
                "green",
                f"{_number(total_out)} in all{made_of}",
            ),
            (
                f" epoch {last.epoch}",
                wording.duration(last.duration),
                [second.longest for second in seconds],
                "magenta",
                f"p50 {wording.duration(durations.quantile(0.5))}, p95 {wording.duration(durations.quantile(0.95))}",
            ),
        ):
            table.add_row(name, value, self._curve(curve, colour), more)
        return table

    def _state_line(self, last: EpochResult, now: float) -> RenderableType:
        backlog = sum(last.backlog)
        line = Text(" ", no_wrap=True, overflow="ellipsis")
        complete = least(last)
        if complete is not None:
            line.append("complete ", "dim").append(f"{percent(complete.low)} to {percent(complete.high)}  ", "yellow")
        for step in ("plan", "tasks", "commit", "publish"):
            if step in last.seconds:
                line.append(f"{step} ", "dim").append(f"{wording.duration(last.seconds[step])}  ")
        delays = self.history.delays.worst((join.name for join in self.subject.job.joins), now)
        if delays is not None:
            line.append("results after ", "dim").append(f"{wording.duration(delays.quantile(0.99))}  ")
        line.append("backlog ", "dim").append(f"{_number(backlog)}  ", "yellow" if backlog else "")
        line.append("blocks ", "dim").append(f"{_number(last.blocks)}  ")
        line.append("read back ", "dim").append(_number(self.history.read_back), "yellow" if last.read_back else "")
        return line

    def _curve(self, values: list[float], colour: str) -> Text:
        """Heights relative to the largest; seconds before the run are left empty."""
        levels = "▁▂▃▄▅▆▇█" if self._unicode else "_.-=+*%#"
        top = max(values, default=0.0)
        if top <= 0:
            return Text(" " * len(values))
        seen = next(index for index, value in enumerate(values) if value > 0)
        drawn = "".join(levels[min(len(levels) - 1, int(value / top * len(levels)))] for value in values[seen:])
        return Text(" " * seen + drawn, style=colour)


def _number(value: int) -> str:
    """In full where there is room for it."""
    return f"{value:,}" if abs(value) < 10_000_000 else wording.short(value)


def _time_of_day(micros: int | None) -> str:
    """``01-31 12:00:30``; years are in the JSON records."""
    text = wording.moment(micros)
    if text is None:
        return "–"
    return text[5:19].replace("T", " ") if text.endswith("Z") else text
