"""Looks at what a manifest names outside of it: whether its sources can be read, and whether its outputs and its checkpoint can be
directories. Nothing is written, and what is found is told in the words in which a run would refuse it.

Always holds: it takes at most ``PATIENCE_SECONDS``, and what did not answer by then is a warning, as is what cannot be reached.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamjoin.job import Job, StreamJob
from streamjoin.language.window import WindowKind
from streamjoin.location import NO_RESULTS_IN_A_FILE, is_url
from streamjoin.manifest.connector import SinkConnector, SourceConnector
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.sinks import sinks_in
from streamjoin.manifest.sources import SOURCES

if TYPE_CHECKING:
    from streamjoin.io.base import Source, SourcePlan

PATIENCE_SECONDS = 5.0
SAMPLE_RECORDS = 10_000
"""Of each source so many records are read."""
_PREFIX = re.compile(rf"^((?:{'|'.join(SOURCES)})\.[A-Za-z.]+): ")


@dataclass
class Found:
    """What a run would meet."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    """What could not be looked at, and why."""


def look(job: Job) -> Found:
    """Looks at all of it at once."""
    found = Found()
    for index, (join, written) in enumerate(zip(job.joins, job.manifest.spec.joins, strict=True)):
        path = join.sink.directory() if isinstance(join.sink, SinkConnector) else None
        if path is not None and not is_url(path) and os.path.isfile(path):
            ((kind, _),) = sinks_in(written.output.sink)
            found.problems.append(Problem(f"spec.joins[{index}].output.sink.{kind}.path", None, f"{path}: {NO_RESULTS_IN_A_FILE}"))
    if not is_url(job.checkpoint) and os.path.isfile(job.checkpoint):
        message = f"{job.checkpoint}: is a file, and must be a directory for the state; remove it or choose another path"
        found.problems.append(Problem("spec.checkpoint.location", None, message))
    looks = [
        _Look(f"spec.streams[{index}].source", str(Duration(stream.watermark_micros)), _planning(job, stream, stream.source))
        for index, stream in enumerate(job.streams)
        if isinstance(stream.source, SourceConnector) and stream.source.is_outside
    ]
    deadline = time.monotonic() + PATIENCE_SECONDS
    for each in looks:
        each.thread.join(max(0.0, deadline - time.monotonic()))
        each.tell(found)
    return found


class _Look:
    """One source, looked at by a thread that nobody waits for in the end."""

    def __init__(self, where: str, watermark: str, plan: Callable[[], str]) -> None:
        self._where, self._watermark, self._plan = where, watermark, plan
        self._error: Exception | None = None
        self._remark = ""
        self.thread = threading.Thread(target=self._run, name=where, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._remark = self._plan()
        except Exception as error:
            self._error = error

    def tell(self, found: Found) -> None:
        if self.thread.is_alive():
            message = f"is not checked: there was no answer within {PATIENCE_SECONDS:.0f} s; --offline looks at nothing outside"
            found.warnings.append(Problem(self._where, None, message))
        elif self._error is not None:
            text = " ".join(str(self._error).split()) or type(self._error).__name__
            if type(self._error).__name__ != "SourceError":
                found.warnings.append(Problem(self._where, None, f"is not checked: {text}"))
                return
            match = _PREFIX.match(text)
            where = self._where if match is None else f"{self._where}.{match[1]}"
            found.problems.append(Problem(where, None, text if match is None else text[match.end() :]))
        elif self._remark:
            found.warnings.append(Problem(f"{self._where.removesuffix('source')}watermark", self._watermark, self._remark))


def _planning(job: Job, stream: StreamJob, source: SourceConnector) -> Callable[[], str]:
    """Plans as a run would first do, and reads the first records where their event times matter; gives a remark about the watermark."""
    hurried = source.hurried(Duration(round(PATIENCE_SECONDS * 800_000)))
    exact = job.window.kind is WindowKind.ROWS

    def plan() -> str:
        from streamjoin.io.factory import make_source

        made = make_source(hurried, stream.schema, stream.event_time, snapshots=_Nowhere(), exact_counts=exact, stream=stream.name)
        if job.window.kind is not WindowKind.RANGE:
            made.plan(None, 1, time.time())
            return ""
        return _out_of_order(stream, made, made.plan(None, SAMPLE_RECORDS, time.time()))

    return plan


def _out_of_order(stream: StreamJob, source: Source, plan: SourcePlan) -> str:
    """What is to be said of the event times of the first records; empty: nothing."""
    import pyarrow as pa

    from streamjoin.controlplane.watermark import watermark_for
    from streamjoin.dataplane.event_times import disorder, event_times_of
    from streamjoin.io.base import Keeping

    times, records, apart = event_times_of(stream), 0, 0.0
    for split in plan.splits:
        peak: int | None = None
        for read in source.reader.read(split):
            records += read.batch.num_rows
            if times is not None:
                moments = times.of(times.added(read.batch)).drop_null().cast(pa.int64()).to_numpy()
                found, peak = disorder(moments, peak) if len(moments) else (0.0, peak)
                apart = max(apart, found)
        if records >= SAMPLE_RECORDS:
            break
    if isinstance(source.reader, Keeping):
        source.reader.close()
    if apart <= stream.watermark_micros:
        return ""
    return (
        f"of the first {records:,} records event times are out of order by more than that: what comes later is dropped;"
        f" {watermark_for(apart)} would take all of them"
    )


class _Nowhere:
    """Snapshots of positions for as long as the look takes."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        self._kept[name] = data

    def get(self, name: str) -> bytes:
        return self._kept[name]
