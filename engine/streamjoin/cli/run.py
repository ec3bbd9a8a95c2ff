"""``streamjoin run``: the driver and its loop in one thread; signals, clocks and the view in the main one.

Two threads, because the main one alone receives signals, and must answer them while the other waits for Spark. PySpark would
install a handler of its own for Ctrl-C, which ends jobs, if it were started in the main thread.

Always holds: the first Ctrl-C or SIGTERM lets the running epoch end, the second ends the process at once. With ``--json`` nothing
but JSON reaches standard output: whatever else is written to it, by sinks or by Java, goes to standard error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import queue
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from streamjoin.api.packages import require_packages
from streamjoin.cli.exits import Exit, ending, require_drawable
from streamjoin.cli.signals import on_signals
from streamjoin.cli.validate import join_at, refusing
from streamjoin.endpoint import endpoint
from streamjoin.runner.collecting import collecting_seldom

if TYPE_CHECKING:
    from streamjoin.api.execution import Execution
    from streamjoin.api.loop import Ended, Event, Loop
    from streamjoin.api.runners import Tell
    from streamjoin.cli.live import LiveRun
    from streamjoin.cli.pods import Pods
    from streamjoin.cli.state import RunState
    from streamjoin.cli.view import View
    from streamjoin.epoch.ports import Runner
    from streamjoin.job import Job
    from streamjoin.serve.followers import Followers
    from streamjoin.serve.standbys import Standbys

SHOW_CURSOR = b"\x1b[?25h"


@dataclass(frozen=True)
class Options:
    """The command's options."""

    manifest: Path
    runner: str = "spark"
    until_idle: bool = False
    seconds: float | None = None
    as_json: bool = False
    picture: Path | None = None
    log_directory: Path | None = None
    metrics_port: int | None = None
    """0: any that is free; None: no metrics."""
    metrics_address: str | None = None
    api_token_file: Path | None = None
    """The file with the token of the plan API, on the metrics' port."""
    elastic: bool = False
    """Scale while it runs."""
    standby: bool = False
    """Wait until no other driver of the join is at work."""
    pods: Pods | None = None
    """In a pod: how executors are started. None: everything runs on this machine."""
    flight_port: int | None = None
    """The port of Arrow Flight. None: it is not served."""
    ui: bool | None = None
    """Whether a page shows the run; None: on a terminal, and where there is a port anyway."""

    @property
    def command(self) -> str:
        """The command that goes on from where this one ends."""
        words = ["streamjoin", "run", str(self.manifest)]
        words += ["--runner", self.runner] if self.runner != "spark" else []
        words += ["--until-idle"] if self.until_idle else []
        words += ["--elastic"] if self.elastic else []
        words += ["--standby"] if self.standby else []
        words += ["--metrics-port", str(self.metrics_port)] if self.metrics_port is not None else []
        words += ["--metrics-address", self.metrics_address] if self.metrics_address is not None else []
        words += ["--api-token-file", str(self.api_token_file)] if self.api_token_file is not None else []
        words += ["--flight", str(self.flight_port)] if self.flight_port is not None else []
        words += [] if self.ui is None else ["--ui"] if self.ui else ["--no-ui"]
        return shlex.join(words)


@ending("streamjoin: ")
def run_manifest(options: Options) -> int:
    """Carry the command out. Returns the exit code."""
    job = read_job(options.manifest, runs=True)
    if job is None:
        return Exit.DONE
    if options.pods is None:
        from streamjoin.api.machine import fitted, machine_bytes

        job = fitted(job, machine_bytes())
    if options.picture is not None:
        require_drawable(options.picture)
    with standard_output(options.as_json) as out:
        return _run(options, job, out)


def read_job(path: Path, *, runs: bool = False) -> Job | None:
    """The manifest's job, or None when it is suspended. Raises Failure with all that is wrong with it.

    ``runs``: whether the job is to be run in this process, so that packages that its tables need must be there.
    """
    join = join_at(path)
    if join.manifest.spec.suspend:
        click.echo(f"{path}: spec.suspend is true: nothing is run, and the state is kept; set it to false to go on", err=True)
        return None
    with refusing(path):
        if runs:
            require_packages(join.manifest)
        return join.job


def _run(options: Options, job: Job, out: TextIO) -> int:
    from streamjoin.api.execution import Execution, default_log_directory
    from streamjoin.api.loop import Notice, Reason
    from streamjoin.cli.live import LiveRun
    from streamjoin.cli.state import RunState
    from streamjoin.cli.subject import Subject
    from streamjoin.cli.watchdog import Watchdog, end_process

    log_directory = (options.log_directory or default_log_directory(job)).absolute()
    began = time.time()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    stop = threading.Event()
    if job.capacity.origin:
        events.put(Notice(f"capacity: {job.capacity.told()}"))
    runner = functools.partial(_runner, options, job, log_directory)
    execution = Execution(job, runner, events.put, log_directory, elastic=options.elastic)
    driver = execution.driver
    namespace = None if options.pods is None else options.pods.namespace
    state = RunState(Subject(options.runner, options.command, driver, options.elastic, namespace), began)
    is_shown = options.ui if options.ui is not None else options.metrics_port is not None or _on_terminal(options, out)
    live = LiveRun(state, execution.scaler) if is_shown else None
    with _served(options, job, execution, live) as (followers, standbys):
        of_standby = {"standby": options.standby, "hands_over": options.pods is not None}
        loop = execution.loop(stop=stop, until_idle=options.until_idle, run_seconds=options.seconds, **of_standby)
        view = _view(options, state, out)
        watchdog = Watchdog(lambda: driver.progress.activity, lambda activity: end_process(activity, log_directory))
        quiet = quiet_libraries(log_directory) if options.pods is None else contextlib.nullcontext()
        with collecting_seldom(), answering_signals(stop, events.put), quiet, watchdog:
            ended, out_is_gone = _watch(loop, state, view, live, events, stop)
        if live is not None:
            live.board.finish()
        if followers is not None:
            followers.finish(is_over=ended.reason is Reason.IDLE)
        if standbys is not None:
            standbys.finish(ended.reason.value)
    if out_is_gone and not options.as_json:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains that it cannot flush as it exits
    for join, snapshots in driver.snapshots().items():
        if snapshots.waiting:
            click.echo(f"warning: {snapshots.told(join)}; the next run stores them", err=True)
    return _report(options, state, ended, None if out_is_gone else out)


@contextlib.contextmanager
def _served(options: Options, job: Job, execution: Execution, live: LiveRun | None) -> Iterator[tuple[Followers | None, Standbys | None]]:
    """As long as this lasts, metrics observe the run, and are on the port that was asked for, with the plan API and, of a run that is to be
    shown, its page. Gives those who follow results, and those who stand by. Raises Failure where the port cannot be had, and without a
    token where there is to be one."""
    if options.metrics_port is None and live is None and not options.standby:
        yield None, None
        return
    from streamjoin.bearer import Token
    from streamjoin.cli.pods import Limits
    from streamjoin.cli.serve import flight_served, not_listening, token_in
    from streamjoin.query.catalog import Catalog
    from streamjoin.query.pool import Pool
    from streamjoin.serve.api import PlanApi
    from streamjoin.serve.metrics import Metrics
    from streamjoin.serve.queries import QueryApi
    from streamjoin.serve.reorderings import Reorderings
    from streamjoin.serve.server import DriverServer
    from streamjoin.serve.standbys import Standbys

    driver, address, port = execution.driver, options.metrics_address or "127.0.0.1", options.metrics_port or 0
    standbys = Standbys(lambda: execution.log.writer, lambda: 0 if (plan := driver.plan_status()) is None else plan.workers)
    of_standby: dict[str, Any] = {"standby": lambda: standbys.told, "stands_by": options.standby}
    metrics = Metrics(job, progress=driver.progress, snapshots=driver.snapshots, **of_standby)
    own = None if options.metrics_port is not None else secrets.token_urlsafe(18)
    token = Token(own) if own is not None else token_in(options.api_token_file)
    reorderings = None if options.elastic else Reorderings(job, execution.decided)
    pool = Pool(Catalog.of(job))
    queries = QueryApi(pool, metrics=metrics.queries)
    api = PlanApi(
        *(driver, metrics.health),
        token=token,
        queries=queries,
        live=None if live is None else live.board,
        draw=(lambda scheme: None) if live is None else live.draw,
        scaler=execution.scaler,
        reorderings=reorderings,
    )
    try:
        server = DriverServer(metrics, address, port, api=api, standbys=standbys)
    except OSError as error:
        if options.metrics_port is None and options.ui is None and not options.standby:  # nobody has asked for it
            pool.close()
            click.echo(f"warning: the run has no page: {address} cannot be listened on ({error.strerror})", err=True)
            yield None, None
            return
        remedy = "choose another with --metrics-port, 0 for any free one, or another --metrics-address"
        raise not_listening("--metrics-port", address, port, error, remedy) from error
    execution.log.reachable_at(server.url if options.pods is None else f"http://{endpoint(options.pods.address, port)}")
    execution.observers += [metrics] if reorderings is None else [metrics, reorderings]
    limits = Limits(options.manifest, driver, metrics) if options.pods is not None else contextlib.nullcontext()
    with server, contextlib.closing(pool), flight_served(queries, address, options.flight_port, token), limits:
        if options.metrics_port is not None or options.standby:
            click.echo(f"metrics: {server.url}/metrics", err=True)
        if live is not None:
            click.echo(f"page: {server.url}/" + (f"#token={own}" if own is not None else ""), err=True)
        yield queries.followers, standbys


def _runner(options: Options, job: Job, log_directory: Path, tell: Tell) -> Runner:
    """The runner by name. Raises Failure without a Java for Spark, and in a pod whose secrets cannot be used."""
    from streamjoin.api import runners

    inline = "--runner inline"
    if options.runner == "inline":
        return runners.inline_runner(tell)
    if options.pods is None:
        may_grow = options.elastic or options.metrics_port is not None
        return runners.local_spark_runner(job, log_directory, tell, may_grow=may_grow, inline=inline)
    return runners.spark_runner(options.pods.settings(job, log_directory, runners.require_java(inline)), tell)


def _view(options: Options, state: RunState, out: TextIO) -> View:
    from rich.console import Console

    from streamjoin.cli.view import JsonView, LineView, LiveView, LogView

    if options.pods is not None:
        return LogView(state, out)
    if options.as_json:
        return JsonView(state, out, sys.stderr)
    if _on_terminal(options, out):
        return LiveView(state, Console(file=None if out is sys.stdout else out))
    return LineView(state, out)


def _on_terminal(options: Options, out: TextIO) -> bool:
    """Whether the run is watched on a terminal that can show a screen."""
    from rich.console import Console

    console = Console(file=None if out is sys.stdout else out)
    return not options.as_json and console.is_terminal and not console.is_dumb_terminal


def _watch(
    loop: Loop, state: RunState, view: View, live: LiveRun | None, events: queue.SimpleQueue[Event], stop: threading.Event
) -> tuple[Ended, bool]:
    """Run the loop and show what it does, until it has ended; and whether nobody reads standard output any more."""
    from streamjoin.cli.view import REFRESH_SECONDS

    thread = threading.Thread(target=loop.run, name="loop", daemon=True)
    thread.start()
    out_is_gone = False
    while state.ended is None:
        try:
            event: Event | None = events.get(timeout=REFRESH_SECONDS)
        except queue.Empty:
            event = None
        if event is not None:
            state.see(event)
        if event is not None and live is not None:
            live.show(event)
        if out_is_gone:
            continue
        try:
            if event is None:
                view.tick()
            else:
                view.show(event)
        except OSError:
            out_is_gone = True
            stop.set()
    if not out_is_gone:
        with contextlib.suppress(OSError):
            view.close()
    thread.join()
    return state.ended, out_is_gone


def _report(options: Options, state: RunState, ended: Ended, out: TextIO | None) -> int:
    """Draw the picture and print the summary; ``out`` is None when nobody reads it."""
    from streamjoin.cli.record import summary_record
    from streamjoin.cli.summary import summary_lines
    from streamjoin.cli.view import LOG

    seconds = time.time() - state.history.origin
    picture = options.picture if state.history.epochs else None
    if picture is not None:
        from streamjoin.cli.picture import draw

        try:
            draw(picture, state)
        except OSError as error:
            click.echo(f"streamjoin: --picture: {picture} cannot be written: {error.strerror}", err=True)
            picture = None
    if options.pods is not None:
        fields = summary_record(state, ended, seconds, picture)
        LOG.info("the run has ended: %s", fields["reason"], extra={"fields": fields})
    elif out is not None:
        lines = [json.dumps(summary_record(state, ended, seconds, picture))] if options.as_json else summary_lines(state, ended, picture)
        with contextlib.suppress(OSError):
            print("\n".join(lines), file=out, flush=True)
    if ended.failure is not None:
        click.echo(f"streamjoin: {ended.failure.sentence}", err=True)
        return ended.failure.code
    return Exit.DONE


def answering_signals(stop: threading.Event, tell: Callable[[Event], None]) -> contextlib.AbstractContextManager[None]:
    """Let the first Ctrl-C or SIGTERM ask for a stop and the second end the process, as long as this lasts."""
    from streamjoin.api.loop import Asked

    def answer() -> None:
        if stop.is_set():
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), SHOW_CURSOR)
            os.write(2, b"\nstreamjoin: stopped at once; the epoch that was running is done again by the next run\n")
            # Not sys.exit: the other thread may wait for Spark for long. Java ends when its standard input does.
            os._exit(Exit.INTERRUPTED)
        stop.set()
        tell(Asked())

    return on_signals(answer)


@contextlib.contextmanager
def quiet_libraries(log_directory: Path) -> Iterator[None]:
    """Keep what libraries print and log to themselves: when Java is gone, PySpark fills standard error with traces."""
    try:
        log_directory.mkdir(parents=True, exist_ok=True)
        log = open(log_directory / "python.log", "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - or nothing, if it cannot be written
    except OSError:
        yield
        return
    handler = logging.StreamHandler(log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    with log, contextlib.redirect_stderr(log):
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


@contextlib.contextmanager
def standard_output(alone: bool) -> Iterator[TextIO]:
    """The file that the view prints to. ``alone``: everybody else's standard output, that of child processes too, is standard error
    meanwhile."""
    out = sys.stdout
    if not alone:
        yield out
        return
    try:
        saved = os.dup(1) if out.fileno() == 1 else None
    except (OSError, ValueError):  # a stream in memory
        saved = None
    with contextlib.redirect_stdout(sys.stderr):
        if saved is None:
            yield out
            return
        out.flush()
        os.dup2(2, 1)
        alone_out = open(saved, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - closing may fail, see below
        try:
            yield alone_out
        finally:
            with contextlib.suppress(OSError):  # nobody reads it any more
                alone_out.close()
            os.dup2(saved, 1)
            os.close(saved)
