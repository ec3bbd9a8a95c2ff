"""``streamjoin run``: the driver and its loop in one thread; signals, clocks and the view in the main one.

Two threads, because the main one alone receives signals, and must answer them while the other waits for Spark. PySpark would
install a handler of its own for Ctrl-C, which ends jobs, if it were started in the main thread.

Always holds: the first Ctrl-C or SIGTERM lets the running epoch end, the second ends the process at once. With ``--json`` nothing
but JSON reaches standard output: whatever else is written to it, by sinks or by Java, goes to standard error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

import click

from streamjoin.api.packages import require_packages
from streamjoin.cli.exits import Exit, Failure, failure_of, require_drawable
from streamjoin.cli.validate import join_at, refusing
from streamjoin.runner.allocators import ENVIRONMENT, collecting_seldom

if TYPE_CHECKING:
    from streamjoin.api.loop import Ended, Event, Loop
    from streamjoin.cli.history import History
    from streamjoin.cli.live import LiveRun
    from streamjoin.cli.pods import Pods
    from streamjoin.cli.subject import Subject
    from streamjoin.cli.view import View
    from streamjoin.epoch.driver import Driver
    from streamjoin.epoch.ports import Runner, Stepper
    from streamjoin.job import Job
    from streamjoin.runner.spark import SparkSettings
    from streamjoin.serve.autoscaler import Autoscaler
    from streamjoin.serve.followers import Followers
    from streamjoin.serve.metrics import Metrics

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
        words += ["--metrics-port", str(self.metrics_port)] if self.metrics_port is not None else []
        words += ["--metrics-address", self.metrics_address] if self.metrics_address is not None else []
        words += ["--api-token-file", str(self.api_token_file)] if self.api_token_file is not None else []
        words += ["--flight", str(self.flight_port)] if self.flight_port is not None else []
        words += [] if self.ui is None else ["--ui"] if self.ui else ["--no-ui"]
        return shlex.join(words)


def run_manifest(options: Options) -> int:
    """Carry the command out. Returns the exit code."""
    os.environ |= {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    try:
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
    except Failure as failure:
        click.echo(f"streamjoin: {failure.sentence}" if failure.code is not Exit.USAGE else failure.sentence, err=True)
        return failure.code


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
    from streamjoin.api.loop import Entering, Loop, Notice, Reason
    from streamjoin.api.running import default_log_directory, scaled
    from streamjoin.cli.history import History
    from streamjoin.cli.live import LiveRun
    from streamjoin.cli.subject import Subject
    from streamjoin.cli.watchdog import Watchdog, end_process
    from streamjoin.epoch.driver import Driver
    from streamjoin.state.storage import ObjectStorage

    log_directory = (options.log_directory or default_log_directory(job)).absolute()
    began = time.time()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    stop = threading.Event()
    if job.capacity.origin:
        events.put(Notice(f"capacity: {job.capacity.told()}"))
    try:
        runner = _announced(options, job, log_directory, events.put)
        storage = ObjectStorage(job.checkpoint)
        driver = Driver(job, storage, runner, at=lambda step: events.put(Entering(step, time.time())), suspects_data=True)
    except Failure:
        raise
    except Exception as error:
        raise failure_of(error, traceback.format_exc(), log_directory) from error
    namespace = None if options.pods is None else options.pods.namespace
    subject, history = Subject(job, options.runner, options.command, driver, options.elastic, namespace), History(began)
    autoscaler: Autoscaler | None = None
    is_shown = options.ui if options.ui is not None else options.metrics_port is not None or _on_terminal(options, out)
    live = LiveRun(subject, history, driver, autoscaler=lambda: autoscaler) if is_shown else None
    with _measured(options, job, driver, live, lambda: autoscaler) as (measured, metrics, followers):
        joining = measured
        if options.elastic:
            decided = (lambda decision: None) if metrics is None else metrics.decided
            joining, autoscaler = scaled(job, driver, measured, storage, events.put, decided)
        loop = Loop(
            joining,
            interval_seconds=job.interval_micros / 1e6,
            stop=stop,
            tell=events.put,
            log_directory=log_directory,
            until_idle=options.until_idle,
            run_seconds=options.seconds,
            decision=lambda: None if autoscaler is None else autoscaler.decision,
        )
        view = _view(options, subject, history, out)
        watchdog = Watchdog(lambda: driver.pulse.activity, lambda activity: end_process(activity, log_directory))
        with collecting_seldom(), answering_signals(stop, events.put), quiet_libraries(log_directory), watchdog:
            ended, out_is_gone = _watch(loop, view, live, history, events, stop)
        if live is not None:
            live.board.finish()
        if followers is not None:
            followers.finish(is_over=ended.reason is Reason.IDLE)
    if out_is_gone and not options.as_json:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains that it cannot flush as it exits
    for join, state in driver.snapshots().items():
        if state.waiting:
            click.echo(f"warning: {state.told(join)}; the next run stores them", err=True)
    return _report(options, subject, history, ended, time.time() - began, None if out_is_gone else out)


@contextlib.contextmanager
def _measured(
    options: Options, job: Job, driver: Driver, live: LiveRun | None, autoscaler: Callable[[], Autoscaler | None]
) -> Iterator[tuple[Stepper, Metrics | None, Followers | None]]:
    """The driver, with its metrics, the plan API and, of a run that is to be shown, its page on the port that was asked for as long as this
    lasts. Raises Failure where it cannot be had, and without a token where there is to be one."""
    if options.metrics_port is None and live is None:
        yield driver, None, None
        return
    from streamjoin.bearer import Token, TokenError, TokenFile
    from streamjoin.cli.pods import Limits
    from streamjoin.cli.serve import flight_served
    from streamjoin.query.catalog import Catalog
    from streamjoin.query.pool import Pool
    from streamjoin.serve.api import PlanApi
    from streamjoin.serve.metrics import Metrics
    from streamjoin.serve.queries import QueryApi
    from streamjoin.serve.reorderings import Reorderings
    from streamjoin.serve.server import DriverServer
    from streamjoin.serve.watch import Watched

    address, port = options.metrics_address or "127.0.0.1", options.metrics_port or 0
    metrics = Metrics(job, pulse=driver.pulse, snapshots=driver.snapshots)
    own = None if options.metrics_port is not None else secrets.token_urlsafe(18)
    try:
        token = Token(own) if own is not None else None if options.api_token_file is None else TokenFile(options.api_token_file)
    except TokenError as error:
        raise Failure(Exit.USAGE, f"--api-token-file: {error}") from error
    reorderings = Reorderings(job, driver)
    pool = Pool(Catalog.of(job))
    queries = QueryApi(pool, metrics=metrics.queries)
    api = PlanApi(
        *(driver, job, metrics.health),
        token=token,
        queries=queries,
        live=None if live is None else live.board,
        draw=(lambda scheme: None) if live is None else live.draw,
        autoscaler=autoscaler,
        reordered=lambda: reorderings.recent,
    )
    try:
        server = DriverServer(metrics, address, port, api=api)
    except OSError as error:
        if options.metrics_port is None and options.ui is None:  # nobody has asked for it
            pool.close()
            click.echo(f"warning: the run has no page: {address} cannot be listened on ({error.strerror})", err=True)
            yield driver, None, None
            return
        where = f"port {port} of {address}"
        remedy = "choose another with --metrics-port, 0 for any free one, or another --metrics-address"
        raise Failure(Exit.USAGE, f"--metrics-port: {where} cannot be listened on ({error.strerror}); {remedy}") from error
    others = (api, metrics) if live is None else (api, metrics, live)
    limits = Limits(options.manifest, driver, *others) if options.pods is not None else contextlib.nullcontext()
    with server, contextlib.closing(pool), flight_served(queries, address, options.flight_port, token), limits:
        if options.metrics_port is not None:
            click.echo(f"metrics: {server.url}/metrics", err=True)
        if live is not None:
            click.echo(f"page: {server.url}/" + (f"#token={own}" if own is not None else ""), err=True)
        yield Watched(driver, metrics, None if options.elastic else reorderings), metrics, queries.followers


def _announced(options: Options, job: Job, log_directory: Path, tell: Callable[[Event], None]) -> Runner:
    """The runner by name, its workers started when the driver knows how many. Raises Failure without a Java for Spark, and in a pod
    whose secrets cannot be used."""
    from streamjoin.api.running import announced_inline, announced_spark, local_spark, require_java

    inline = "--runner inline"
    if options.runner == "inline":
        return announced_inline(tell)
    if options.pods is None:
        may_grow = options.elastic or options.metrics_port is not None
        return announced_spark(local_spark(job, log_directory, may_grow=may_grow, inline=inline, tell=tell), tell)
    return announced_spark(_in_pods(options.pods, job, log_directory, require_java(inline)), tell)


def _in_pods(pods: Pods, job: Job, log_directory: Path, java_home: Path) -> Callable[[int], SparkSettings]:
    """Raises Failure where secrets cannot be used."""
    security = pods.secrets.security()

    def settings(workers: int) -> SparkSettings:
        from streamjoin.cli.pods import EXCHANGE_PORT, PENDING_SECONDS, worker_ports
        from streamjoin.runner.spark import SparkSettings

        return SparkSettings(
            log_directory,
            executor_memory_mib=pods.heap_mib,
            master=pods.master,
            java_home=java_home,
            workers_per_executor=job.workers_per_executor,
            registration_seconds=PENDING_SECONDS,
            stabilization_seconds=job.stabilization_seconds,
            conf=pods.conf(job.name),
            security=security,
            address=pods.address,
            port=EXCHANGE_PORT,
            worker_ports=worker_ports(job.workers_per_executor),
        )

    return settings


def _view(options: Options, subject: Subject, history: History, out: TextIO) -> View:
    from rich.console import Console

    from streamjoin.cli.view import JsonView, LineView, LiveView

    if options.as_json:
        return JsonView(subject, out, sys.stderr)
    if _on_terminal(options, out):
        return LiveView(subject, history, Console(file=None if out is sys.stdout else out))
    return LineView(subject, out)


def _on_terminal(options: Options, out: TextIO) -> bool:
    """Whether the run is watched on a terminal that can show a screen."""
    from rich.console import Console

    console = Console(file=None if out is sys.stdout else out)
    return not options.as_json and console.is_terminal and not console.is_dumb_terminal


def _watch(
    loop: Loop, view: View, live: LiveRun | None, history: History, events: queue.SimpleQueue[Event], stop: threading.Event
) -> tuple[Ended, bool]:
    """Run the loop and show what it does, until it has ended; and whether nobody reads standard output any more."""
    from streamjoin.api.loop import Done, Ended
    from streamjoin.cli.view import REFRESH_SECONDS

    thread = threading.Thread(target=loop.run, name="loop", daemon=True)
    thread.start()
    out_is_gone = False
    while True:
        try:
            event: Event | None = events.get(timeout=REFRESH_SECONDS)
        except queue.Empty:
            event = None
        if isinstance(event, Done):
            history.add(event.result, event.finished, event.plan)
        if event is not None and live is not None:
            live.show(event)
        if not out_is_gone:
            try:
                if event is None:
                    view.tick()
                else:
                    view.show(event)
            except OSError:
                out_is_gone = True
                stop.set()
        if isinstance(event, Ended):
            break
    if not out_is_gone:
        with contextlib.suppress(OSError):
            view.close()
    thread.join()
    return event, out_is_gone


def _report(options: Options, subject: Subject, history: History, ended: Ended, seconds: float, out: TextIO | None) -> int:
    """Draw the picture and print the summary; ``out`` is None when nobody reads it."""
    import json

    from streamjoin.cli.record import summary_record
    from streamjoin.cli.summary import summary_lines

    picture = options.picture if history.epochs else None
    if picture is not None:
        from streamjoin.cli.picture import draw

        try:
            draw(picture, subject, history)
        except OSError as error:
            click.echo(f"streamjoin: --picture: {picture} cannot be written: {error.strerror}", err=True)
            picture = None
    if out is not None:
        if options.as_json:
            lines = [json.dumps(summary_record(subject, history, ended, seconds, str(picture) if picture else None))]
        else:
            lines = summary_lines(subject, history, ended, picture)
        with contextlib.suppress(OSError):
            print("\n".join(lines), file=out, flush=True)
    if ended.failure is not None:
        click.echo(f"streamjoin: {ended.failure.sentence}", err=True)
        return ended.failure.code
    return Exit.DONE


@contextlib.contextmanager
def answering_signals(stop: threading.Event, tell: Callable[[Event], None]) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM ask for a stop and the second end the process, as long as this lasts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from streamjoin.api.loop import Asked

    def answer(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), SHOW_CURSOR)
            os.write(2, b"\nstreamjoin: stopped at once; the epoch that was running is done again by the next run\n")
            # Not sys.exit: the other thread may wait for Spark for long. Java ends when its standard input does.
            os._exit(Exit.INTERRUPTED)
        stop.set()
        tell(Asked())

    before = {number: signal.signal(number, answer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
