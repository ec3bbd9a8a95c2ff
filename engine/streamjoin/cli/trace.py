"""``streamjoin trace``: records the traffic of a join as the CSV that ``simulate --trace`` and ``tune`` read.

Always holds: the file appears under its name whole, or not at all; with a running join, Ctrl-C, SIGTERM and the end of ``--for`` write what
was recorded by then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from streamjoin.cli import wording
from streamjoin.cli.exits import Exit, Failure, ending, whole_file
from streamjoin.cli.observing import Asked, Live, Prometheus, Server, from_lines
from streamjoin.cli.remote import authorization, is_url
from streamjoin.cli.signals import on_signals
from streamjoin.cli.validate import text_at
from streamjoin.manifest.quantity import Duration
from streamjoin.simulation.recording import Observation, record
from streamjoin.simulation.traffic import TraceError

DAY_AGO = "1d"


@dataclass(frozen=True)
class Options:
    """What the command line says. Times in seconds."""

    source: str | None
    """A file of JSON lines, ``-``, or a running join's URL."""
    prometheus: str | None
    name: str | None
    namespace: str | None
    begin: str | None
    end: str | None
    step: float
    seconds: float | None
    token_file: Path | None
    taken_in: bool
    output: Path | None


@ending()
def record_trace(options: Options) -> None:
    """Write the trace."""
    observations = _observations(options)
    try:
        recording = record(observations, options.step, taken_in=options.taken_in)
    except TraceError as error:
        raise Failure(Exit.SOURCE, f"{options.source or options.prometheus}: {error}") from error
    if options.output is None:
        click.echo(recording.text(), nl=False)
    else:
        with whole_file("--output", options.output, makes_directory=True) as unfinished:
            unfinished.write_text(recording.text())
    left, right = (float(rates.mean()) for rates in recording.rates)
    rates = f"{wording.short(left)} and {wording.short(right)} tuples/s on average, skew up to {recording.skew.max():.3g}"
    click.echo(f"recorded: {wording.duration(recording.seconds)}, {len(recording.times):,} rows, {rates}", err=True)


def _observations(options: Options) -> list[Observation]:
    shown = authorization(options.token_file)
    if options.prometheus is not None:
        assert options.name is not None
        if not is_url(options.prometheus):
            raise Failure(Exit.USAGE, f"--prometheus: {options.prometheus!r} must be a URL, such as http://localhost:9090")
        end = time.time() if options.end is None else moment_of("--to", options.end, time.time())
        begin = moment_of("--from", options.begin or DAY_AGO, end)
        if not begin < end:
            raise Failure(Exit.USAGE, f"--from: {options.begin} must be before --to ({options.end or 'now'})")
        asked = Asked(options.name, options.namespace, begin, end, options.step)
        server = Server(options.prometheus.rstrip("/"), shown)
        return Prometheus(server, asked).observations(lambda text: click.echo(f"note: {text}", err=True))
    assert options.source is not None
    if is_url(options.source):
        return _live(Server(options.source.rstrip("/").removesuffix("/metrics"), shown), options)
    return from_lines(text_at(options.source), "standard input" if options.source == "-" else options.source)


def moment_of(option: str, text: str, reference: float) -> float:
    """Seconds since 1970 of a time (ISO 8601, in UTC where it does not say) or of a duration before ``reference``. Raises Failure."""
    with contextlib.suppress(ValueError):
        return reference - Duration.parse(text).micros / 1e6
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        remedy = "must be a time such as 2026-11-23T08:00:00Z, or a duration before, such as 7d"
        raise Failure(Exit.USAGE, f"{option}: {text!r} {remedy}") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _live(server: Server, options: Options) -> list[Observation]:
    """Sample until it is stopped, or the time is up."""
    live = Live(server)
    begin = time.monotonic()
    end = begin + options.seconds if options.seconds is not None else None
    stopped = threading.Event()
    with on_signals(stopped.set, once=True):
        while True:
            live.sample(time.monotonic() - begin)
            # Samples are due at multiples of the step, however long each took; the last one at the end.
            due = begin + (int((time.monotonic() - begin) / options.step) + 1) * options.step
            if end is not None and time.monotonic() >= end:
                break
            if stopped.wait(max(0.0, (due if end is None else min(due, end)) - time.monotonic())):
                live.sample(time.monotonic() - begin)
                break
    if live.missed:
        click.echo(f"note: {server.url} did not answer {live.missed} times; across each gap, rates are its mean", err=True)
    return live.found
