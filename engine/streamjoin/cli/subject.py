"""The facts of a run that views and the summary need: names, thresholds, and what the driver has decided so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamjoin.cli import wording
from streamjoin.cli.history import History
from streamjoin.controlplane.watermark import watermark_for
from streamjoin.job import Job, JoinJob, sink_identity
from streamjoin.language.window import Window, WindowKind
from streamjoin.manifest.connector import SinkConnector
from streamjoin.manifest.model import Join
from streamjoin.manifest.quantity import Duration

if TYPE_CHECKING:
    from streamjoin.controlplane.driver import Driver

MOST_REASON = 300
"""Characters of why a record is rejected."""


@dataclass(frozen=True)
class Subject:
    """A job and how it is run. ``command`` starts it (again)."""

    runner: str
    command: str
    driver: Driver
    """Knows the layout and the scheme, once the first input has been sampled."""
    elastic: bool = False
    """Whether it is scaled while it runs."""
    namespace: str | None = None
    """The namespace of the StreamJoin, if an operator runs it. None: somebody has called ``command``."""

    @property
    def job(self) -> Job:
        """With the limits on workers that there are now."""
        return self.driver.job

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(stream.name for stream in self.job.streams)

    @property
    def condition(self) -> str:
        return self._each(self.conditions)

    @property
    def conditions(self) -> list[str]:
        """The condition of each join, on one line."""
        return [" ".join(join.condition.split()) for join in self.job.manifest.spec.joins]

    @property
    def window(self) -> str:
        return self._each([window_text(join.window, [self.streams[each] for each in join.streams]) for join in self.job.joins])

    @property
    def main(self) -> str | None:
        """The main predicate in words, and whether more is checked on its candidates."""
        layout = self.driver.layout
        if layout is None:
            return None
        first, *others = layout.joins
        text = first.graph.text if first.is_multiway and not others else f"{layout.text} ({layout.main.kind})"
        return text + (" + residual" if any(placed.has_residual for placed in layout.joins) else "")

    def losses(self, history: History, stream: int) -> Iterator[str]:
        """How many of a stream's records were rejected or late, of how many, and why. The run has had an epoch."""
        records, rejected, again, late = (history.counts[name][stream] for name in ("input", "rejected", "replayed", "late"))
        if again:
            yield f"read {wording.plural(again, 'dead letter')} again"
        if rejected:
            why = wording.cut(history.rejections[stream], MOST_REASON)
            yield f"rejected {rejected:,} of {records:,}: {why} (all in {self.job.dead_letter})"
        if late:
            allowed, behind = self.job.streams[stream].watermark_micros, history.late_seconds[stream]
            needed = watermark_for(allowed + behind * 1e6)
            yield (
                f"late {late:,} of {records:,}: up to {wording.duration(behind)} behind; the watermark is {Duration(allowed)}, and {needed}"
                " would have taken them"
            )

    @property
    def scheme(self) -> str | None:
        scheme = self.driver.scheme
        return None if scheme is None else f"{scheme.model}, {wording.plural(scheme.tasks, 'worker')}: {scheme.summary}"

    @property
    def sink(self) -> str:
        """The place that the output goes to."""
        return self._each(self.sinks)

    @property
    def sinks(self) -> list[str]:
        """The place that each join's output goes to."""
        return [_sink(join, written) for join, written in zip(self.job.joins, self.job.manifest.spec.joins, strict=True)]

    @property
    def has_several(self) -> bool:
        """Whether there is more than one join."""
        return len(self.job.joins) > 1

    def _each(self, texts: list[str]) -> str:
        """Of all joins in their order, each with its name; once, where they have it in common."""
        if len(set(texts)) == 1:
            return texts[0]
        return "; ".join(f"{join.name}: {text}" for join, text in zip(self.job.joins, texts, strict=True))


def _sink(join: JoinJob, written: Join) -> str:
    sink = join.sink
    if written.output.sink is not None and written.output.sink.spark is not None:
        return written.output.sink.spark.identity
    if sink is None and join.snapshots is not None:
        return "snapshots in the checkpoint"
    return sink.shown(wording.path) if isinstance(sink, SinkConnector) else sink_identity(sink)


def window_text(window: Window, streams: Sequence[str]) -> str:
    """``within 10 s``, ``payments from 5 s before to 10 s after orders``, ``a within 10 s, b within 2 s``, ``100 rows``, ``unbounded``."""
    if window.kind is WindowKind.ROWS:
        alike = len(set(window.each)) <= 1
        return f"{window.rows:,} rows" if alike else ", ".join(f"{name} {n:,} rows" for name, n in zip(streams, window.each, strict=True))
    if window.kind is WindowKind.UNBOUNDED:
        return "unbounded"
    slide = f", sliding by {wording.duration(window.slide_micros / 1e6)}" if window.slide_micros else ""
    if window.each:
        spans = [wording.duration(micros / 1e6) for micros in window.each]
        alike = len(set(spans)) == 1
        text = f"within {spans[0]}" if alike else ", ".join(f"{name} within {span}" for name, span in zip(streams, spans, strict=True))
        return text + slide
    left, right = streams
    before, after = (wording.duration(micros / 1e6) for micros in (window.before_micros, window.after_micros))
    text = f"within {after}" if before == after else f"{right} from {before} before to {after} after {left}"
    return text + slide
