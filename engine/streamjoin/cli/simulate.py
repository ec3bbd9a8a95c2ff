"""``streamjoin simulate``: takes a manifest's thresholds and some traffic, and shows what would come of it, beside other rules."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from streamjoin.cli import wording
from streamjoin.cli.exits import Exit, Failure, ending, require_drawable, unwritable
from streamjoin.cli.validate import Unreadable, read_text, simulated_job_at
from streamjoin.elastic.arbitration import Prices
from streamjoin.elastic.explain import explain
from streamjoin.elastic.forecast import best_grid, load_of
from streamjoin.elastic.settings import Settings
from streamjoin.job import Job
from streamjoin.language.predicate import MainKind, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.window import WindowKind
from streamjoin.manifest.model import TAUS
from streamjoin.manifest.quantity import Memory
from streamjoin.retention import window_seconds
from streamjoin.simulation.clairvoyant import Clairvoyant
from streamjoin.simulation.rivals import FlinkAutoscaler, Hpa, StreamJoin
from streamjoin.simulation.run import Decider, SimulatedJoin, first_workers, simulate, spans, table
from streamjoin.simulation.traffic import TraceError, Traffic, generate, read_trace
from streamjoin.sizing import headroom_of

DAYS = 7.0
BAND_SHARE = 0.05
"""The share of all pairs taken for a band; only the data can tell the true one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says. Times in seconds."""

    manifest: Path
    trace: Path | None
    traffic: str | None = None
    days: float | None = None
    seed: int = 1
    rate: float | None = None
    step: float
    start_up: float
    worker_rate: float
    tuple_bytes: float
    share: float | None
    policy: str | None = None
    """None: the manifest's."""
    explained: bool = False
    as_json: bool
    picture: Path | None = None
    sets: tuple[str, ...] = ()
    """Fields of the manifest, each with the values to try."""


@ending()
def simulate_manifest(options: Options) -> None:
    """Print the table, or the JSON, and draw the picture."""
    if options.picture is not None:
        require_drawable(options.picture)
    job = simulated_job_at(options.manifest)
    if options.sets:
        from streamjoin.cli.frontier import compare

        compare(options, job)
    else:
        _simulate(options, job)


A_MONDAY = 4 * 86_400.0
"""In seconds since 1970: traffic begins then, at midnight UTC, for the quiet windows of the manifest."""


@dataclass(frozen=True)
class Prepared:
    """A join and the traffic that it meets."""

    join: SimulatedJoin
    traffic: Traffic
    called: str
    """What the traffic is."""


def prepare(options: Options, job: Job, prepared: Prepared | None = None) -> Prepared:
    """What is simulated; ``prepared``: another join, whose traffic this one meets too. Raises Failure."""
    if len(job.streams) > 2:
        what = f"{options.manifest}: spec.streams: simulate is for joins of two streams, and this one has {len(job.streams)}"
        raise Failure(Exit.USAGE, f"{what}; to try its thresholds, run it with --elastic and spec.scaling.mode: Recommend")
    spec = job.manifest.spec
    if options.policy is not None:
        spec = spec.model_copy(update={"scaling": spec.scaling.model_copy(update={"policy": options.policy})})
    settings = Settings.of(spec)
    if options.step > settings.stale_seconds:
        raise Failure(Exit.USAGE, f"--step: {options.step:g} s must be at most {settings.stale_seconds:g} s: older samples are stale")
    join = SimulatedJoin(
        settings=settings,
        window_seconds=spans(job.window),
        most_held=float(job.window.rows) if job.window.kind is WindowKind.ROWS else math.inf,
        share=options.share if options.share is not None else share_of(job.model, job.layouts[0].main),
        start_seconds=options.start_up,
        worker_rate=options.worker_rate,
        prices=Prices(tuple_bytes=options.tuple_bytes),
    )
    traffic, called = _traffic(options, job, join) if prepared is None else (prepared.traffic, prepared.called)
    settings = replace(
        Settings.of(spec, first_workers(join, traffic)),
        # Of the simulated window, whose streams are never late.
        window_seconds=None if window_seconds(job) is None else join.window_seconds,
        clock_offset=A_MONDAY,
        headroom=headroom_of(job, None if spec.workers.max_memory is None else spec.workers.max_memory.bytes),
    )
    return Prepared(replace(join, settings=settings), traffic, called)


def _simulate(options: Options, job: Job) -> None:
    prepared = prepare(options, job)
    join, traffic, called = prepared.join, prepared.traffic, prepared.called
    own = StreamJoin(join)
    restart = options.start_up + join.prices.switch_seconds
    clairvoyant = Clairvoyant(join, traffic)
    deciders: list[Decider] = [own, Hpa(join.settings), FlinkAutoscaler(join.settings, restart), clairvoyant]
    outcomes = [simulate(join, traffic, decider) for decider in deciders]
    if options.as_json:
        told = heading_json("simulation", options, job, prepared) | {
            "policy": join.settings.policy.value,
            "thresholds": {name: getattr(join.settings, name) for name in TAUS},
            "outcomes": [outcome.to_json() for outcome in outcomes],
            "least": {
                "workerHours": clairvoyant.schedule.least_hours,
                "bill": clairvoyant.schedule.bill,
                "sequenceWorkerHours": clairvoyant.schedule.hours(traffic.step_seconds),
            },
        }
        click.echo(json.dumps(told, ensure_ascii=False, allow_nan=False))
    else:
        click.echo(heading(job, prepared))
        click.echo(table(outcomes), nl=False)
        least = clairvoyant.schedule
        bounds = f"at least {least.least_hours:,.1f} worker-hours, and has a bill of at least {least.bill:,.1f}"
        if any(one.would_shed_tuples for one in outcomes):
            spared = ", ".join(f"{one.name} {one.would_shed_tuples:,.0f}" for one in outcomes)
            click.echo(f"\nShedding is only recommended; it would have dropped: {spared} tuples.")
        if outcomes[0].memory is not None:
            more, before = Memory(outcomes[0].memory), job.manifest.spec.workers.resources.memory
            click.echo(f"\nBy spec.scaling.vertical each worker of streamjoin has {more} of memory at the end, and had {before} before.")
        click.echo(f"\nA rule that sheds nothing needs {bounds}.")
        if options.explained:
            click.echo("\n" + explain(own.ledger, limit=40, now=traffic.seconds), nl=False)
    if options.picture is not None:
        from streamjoin.cli.simulation_picture import draw

        try:
            draw(options.picture, f"{job.name}: {called}", join, traffic, outcomes)
        except OSError as error:
            raise unwritable("--picture", options.picture, error) from error
        if not options.as_json:
            click.echo(f"drawn: {options.picture}")


def share_of(model: str, main: MainPredicate) -> float:
    """The part of all pairs that a main predicate admits, as far as its form tells."""
    if model == "square" or main.kind is not MainKind.RANGE:
        return 1.0
    if main.is_equality:
        return 0.0
    return BAND_SHARE if main.low is not None and main.high is not None else 0.5


def _traffic(options: Options, job: Job, join: SimulatedJoin) -> tuple[Traffic, str]:
    """The traffic, and what to call it."""
    try:
        if options.trace is not None:
            return read_trace(read_text(str(options.trace)), options.step), options.trace.name
        kind, days = options.traffic or "diurnal", options.days or DAYS
        rates = _rates(options, job, join, days)
        traffic = generate(kind, days=days, step_seconds=options.step, seed=options.seed, rates=rates)
        return traffic, f"{kind} traffic around {wording.short(rates[0])} and {wording.short(rates[1])} tuples/s, seed {options.seed}"
    except (TraceError, Unreadable) as error:
        source = f"{options.trace}: " if options.trace is not None else ""
        raise Failure(Exit.USAGE, f"{source}{error}") from error


def _rates(options: Options, job: Job, join: SimulatedJoin, days: float) -> tuple[float, float]:
    """What was asked for, else what the manifest expects, else so much that a third of the workers are filled to tau1."""
    if options.rate is not None:
        return options.rate, options.rate
    expected = job.streams[LEFT].expected_rate, job.streams[RIGHT].expected_rate
    if expected[0] is not None and expected[1] is not None:
        return expected[0], expected[1]
    settings = join.settings
    workers = max(1, settings.max_workers // 3)
    # A window without end fills within the simulated time.
    left, right = (span if math.isfinite(span) else days * 86400 / 2 for span in join.window_seconds)
    for_one = load_of(best_grid(left, right, workers), workers, left, right, join.share)
    even = settings.tau1 * settings.capacity_tuples / for_one if for_one > 0 else 1000.0
    return expected[0] or even, expected[1] or even


def heading(job: Job, prepared: Prepared) -> str:
    """What is simulated, for people."""
    traffic = prepared.traffic
    return (
        f"{job.name}: {wording.duration(traffic.seconds)} of {prepared.called}, a sample every {traffic.step_seconds:g} s; "
        f"the main predicate admits {prepared.join.share:.3g} of all pairs\n"
    )


def heading_json(event: str, options: Options, job: Job, prepared: Prepared) -> dict[str, Any]:
    """What is simulated, for machines."""
    return {
        "event": event,
        "name": job.name,
        "traffic": prepared.called,
        "seconds": prepared.traffic.seconds,
        "stepSeconds": prepared.traffic.step_seconds,
        "assumed": {
            "share": prepared.join.share,
            "workerRate": options.worker_rate,
            "startUpSeconds": options.start_up,
            "tupleBytes": options.tuple_bytes,
        },
        "picture": None if options.picture is None else str(options.picture),
    }
