"""``streamjoin trace``: records the traffic of a join as the CSV that ``simulate --trace`` and ``tune`` read.

Always holds: the file appears under its name whole, or not at all; with a running join, Ctrl-C, SIGTERM and the end of ``--for`` write what
was recorded by then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from streamjoin.cli import wording
from streamjoin.cli.exits import Exit, Failure, unwritable
from streamjoin.cli.observing import Asked, Live, Prometheus, Server, from_lines, is_url, token_of
from streamjoin.cli.validate import Unreadable, read_text
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


def record_trace(options: Options) -> Exit:
    """Write the trace."""
    try:
        observations = _observations(options)
        try:
            recording = record(observations, options.step, taken_in=options.taken_in)
        except TraceError as error:
            raise Failure(Exit.SOURCE, f"{options.source or options.prometheus}: {error}") from error
        if options.output is None:
            click.echo(recording.text(), nl=False)
        else:
            _write(options.output, recording.text())
        left, right = (float(rates.mean()) for rates in recording.rates)
        rates = f"{wording.short(left)} and {wording.short(right)} tuples/s on average, skew up to {recording.skew.max():.3g}"
        click.echo(f"recorded: {wording.duration(recording.seconds)}, {len(recording.times):,} rows, {rates}", err=True)
    except Failure as failure:
        click.echo(failure.sentence, err=True)
        return failure.code
    return Exit.DONE


def _observations(options: Options) -> list[Observation]:
    token = token_of(options.token_file)
    if options.prometheus is not None:
        assert options.name is not None
        if not is_url(options.prometheus):
            raise Failure(Exit.USAGE, f"--prometheus: {options.prometheus!r} must be a URL, such as http://localhost:9090")
        end = time.time() if options.end is None else moment_of("--to", options.end, time.time())
        begin = moment_of("--from", options.begin or DAY_AGO, end)
        if not begin < end:
            raise Failure(Exit.USAGE, f"--from: {options.begin} must be before --to ({options.end or 'now'})")
        asked = Asked(options.name, options.namespace, begin, end, options.step)
        server = Server(options.prometheus.rstrip("/"), token)
        return Prometheus(server, asked).observations(lambda text: click.echo(f"note: {text}", err=True))
    assert options.source is not None
    if is_url(options.source):
        return _live(Server(options.source.rstrip("/").removesuffix("/metrics"), token), options)
    try:
        return from_lines(read_text(options.source), "standard input" if options.source == "-" else options.source)
    except Unreadable as refusal:
        raise Failure(Exit.USAGE, f"{options.source}: {refusal}") from refusal


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
    with _stopping() as stopped:
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


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM; the second one ends the process as ever."""
    stopped = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {one: signal.getsignal(one) for one in signals}

    def stop(number: int, frame: object) -> None:
        stopped.set()
        for one, handler in before.items():
            signal.signal(one, handler)

    for one in signals:
        signal.signal(one, stop)
    try:
        yield stopped
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _write(path: Path, text: str) -> None:
    """Raises Failure."""
    unfinished = path.with_name(f"{path.name}#{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_text(text)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable("--output", path, error) from error
