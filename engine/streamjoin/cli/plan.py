"""``streamjoin plan``: a manifest, statistics and perhaps a running plan in; out come the scheme and what moves, in words and drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from streamjoin.cli.exits import Exit, Failure
from streamjoin.cli.floors import floors_of, statistics_of
from streamjoin.cli.planning import make_plan, read_plan, report, report_change
from streamjoin.cli.stats import Stats, StatsError, expected_statistics, read_stats, read_stats_by_stream
from streamjoin.cli.validate import Unreadable, read_text, refusing
from streamjoin.elastic.deployment import Deployment
from streamjoin.elastic.plan import PlanError
from streamjoin.elastic.sequences import Flowing, assumed, told
from streamjoin.job import Job, JoinSource, compile_job, with_checkpoint
from streamjoin.language.graph import JoinGraph
from streamjoin.language.layout import Layout
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.stack import Stack
from streamjoin.manifest.problem import listed
from streamjoin.manifest.validate import load
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.statistics import SideStatistics
from streamjoin.scheme.unknown import unknown


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options."""

    stats: Path | None = None
    tasks: int | None = None
    capacity: int | None = None
    running: Path | None = None
    save: Path | None = None
    output: Path | None = None


UNKNOWN_SECONDS = 60.0
"""Of streams of which it is not said what their windows hold, as many seconds are taken to be held."""


def plan_manifest(path: Path, options: Options) -> Exit:
    """Print the plan and draw it. Without ``tasks`` and ``capacity``: for what the statistics say, else as the first deployment does."""
    try:
        with refusing(path):
            job = compile_job(with_checkpoint(load(read_text(str(path)))))
        _plan(job, options)
    except Failure as failure:
        click.echo(failure.sentence, err=True)
        return failure.code
    return Exit.DONE


def _plan(job: Job, options: Options) -> None:
    of_floors = any(layout.floors and not layout.pairs for layout in job.layouts)
    foreseen = {layout: job.lying(layout).foreseen() for layout in job.layouts} if of_floors else {}
    lying = job.lying(min(foreseen, key=lambda layout: foreseen[layout].volume)) if foreseen else job
    shared = _shared(job, lying.layouts[0], foreseen) if len(job.joins) > 1 else []
    job = lying
    names = tuple(stream.name for stream in job.streams)
    layout, main = job.layouts[0], job.layouts[0].main
    given = Stats(_expected(job), None)
    if options.stats is not None:
        try:
            text = read_text(str(options.stats))
            if not isinstance(main, Stack):
                given = read_stats(text, main, (names[LEFT], names[RIGHT]))
            else:
                given = read_stats_by_stream(text, names, job.places)
        except (StatsError, Unreadable) as refusal:
            raise Failure(Exit.USAGE, f"{options.stats}: {refusal}") from refusal
    floors = floors_of(layout, names, given.places)
    running = None
    if options.running is not None:
        try:
            running = read_plan(read_text(str(options.running)), main)
        except (PlanError, Unreadable) as refusal:
            raise Failure(Exit.USAGE, f"{options.running}: {refusal}") from refusal
    tasks, warning, first = options.tasks, None, None
    given_tuples = options.capacity or given.capacity_tuples
    holds = job.capacity if given_tuples is None else Capacity(given_tuples)
    held = [place.tuples for place in given.places]
    known = unknown(job.places, main, held) if options.stats is None else statistics_of(floors)
    statistics = known.weighed(replace(job, capacity=holds).weights_of_sides(held=held))
    if tasks is None and options.capacity is None and options.stats is None:
        deployment = job.first_deployment(statistics, main)
        first = job.first_plan(deployment)
        if not deployment.fits:
            raise Failure(Exit.FAILED, f"no plan can be made: {deployment.warning}; {first.remedies}")
        tasks, warning = deployment.workers, deployment.warning
    try:
        planned = make_plan(
            job.model, statistics, main, tasks=tasks, capacity=holds, options=job.scheme_options, current=running
        )
    except ValueError as error:
        raise Failure(Exit.FAILED, f"no plan can be made: {error}") from error
    click.echo(report(planned.plan.scheme, statistics, floors, holds), nl=False)
    if holds.origin:
        click.echo(f"capacity: {holds.told()}")
    if running is not None:
        click.echo("\n" + report_change(running, planned, statistics), nl=False)
    if first is not None:
        click.echo(first.begins)
    if warning is not None:
        click.echo(f"warning: {warning}", err=True)
    if first is not None and first.problem:
        click.echo(f"on Kubernetes the operator {first.answer}: {first.problem}; {first.remedies}", err=True)
    for line in () if job.graph is None else _sequences(job, job.graph):
        click.echo(line)
    for line in (*shared, *_alternatives(job)):
        click.echo(line)
    if options.save is not None:
        try:
            options.save.write_text(json.dumps(planned.plan.to_json(), indent=1) + "\n")
        except OSError as error:
            raise Failure(Exit.USAGE, f"--save: {options.save}: {error}") from error
        click.echo(f"saved: {options.save}")
    if options.output is not None:
        from streamjoin.cli.draw import draw_change, draw_scheme

        try:
            if running is None or not planned.changed:
                draw_scheme(options.output, planned.plan.scheme, statistics, floors, holds)
            else:
                draw_change(options.output, running.scheme, planned.plan, statistics, floors, holds)
        except (OSError, ValueError) as error:
            raise Failure(Exit.USAGE, f"--output: {options.output}: {error}") from error
        click.echo(f"drawn: {options.output}")


def _expected(job: Job) -> tuple[SideStatistics, ...]:
    """What the manifest alone says of what is held at each place."""
    of_streams = expected_statistics([stream.expected_rate for stream in job.streams], job.expected_of_streams())
    return tuple(of_streams[place.stream] for place in job.places)


def _sequences(job: Job, graph: JoinGraph) -> list[str]:
    """In which order the streams would meet, by what the manifest expects of them."""
    rates = [stream.expected_rate or 1.0 for stream in job.streams]
    expected = job.expected_of_streams()
    held = [
        rate * UNKNOWN_SECONDS if tuples is None or math.isinf(tuples) else tuples
        for tuples, rate in zip(expected, rates, strict=True)
    ]
    by_condition, by_output = zip(*job.carried_bytes([job.streams[place.stream].tuple_bytes for place in job.places]), strict=True)
    flowing = Flowing(rates, held, by_condition, by_output, assumed(graph, held))
    note = "sequences, where each equality has one match, a band 1 % of all and an order 30 %; a run goes by what it measures:"
    return [note, *(f"  {line}" for line in told(graph, flowing))]


def _alternatives(job: Job) -> list[str]:
    """What else could have been the main predicate, and why each of the other conjuncts could not."""
    others = [layout.main for layout in job.layouts[1:]]
    lines = []
    for join in job.joins:
        in_join = f" in {join.name}" if len(job.joins) > 1 else ""
        lines += [f"not indexed{in_join}: {each.conjunct}: {each.reason}" for each in (join.condition.unmatched if join.condition else ())]
    if others:
        texts = "; ".join(f"{main.text or main.kind}" for main in others)
        lines.append(f"other candidates: {texts}. A run chooses by a sample of its first input")
    return lines


def _of_pair(job: Job, index: int) -> str:
    """What a join of several pairs is over, and by what it finds its pairs."""
    join = job.joins[index]
    text = job.layouts[0].predicates[index].main.text
    readers = [stream.name for stream in job.streams if stream.source == JoinSource(index)]
    read = f"; {listed(readers, 'and')} {'reads' if len(readers) == 1 else 'read'} its results" if readers else ""
    over = " and ".join(job.streams[stream].name for stream in join.streams)
    return f"{join.name}: {over}" + (f", by {text}" if text else ", which no key serves") + read


def _shared(job: Job, chosen: Layout, foreseen: Mapping[Layout, Deployment]) -> list[str]:
    """What tuples lie by, and by what each of several joins finds its pairs.

    ``foreseen``: the first plans, where joins may have floors of their own; as a run would, this plan has that which holds less.
    """
    layout, names = job.layouts[0], listed([join.name for join in job.joins], "and")
    if chosen.pairs:
        return [f"joins: {names}, each over two streams", *(f"  {line}" for line in map(partial(_of_pair, job), range(len(job.joins))))]
    if layout.main.keys:
        return [f"joins: {names}: tuples lie by {layout.text} once for all of them"]
    lines = [f"joins: {names} have no keys in common"]
    if len(foreseen) > 1:
        once = sum(side.total for side in foreseen[layout].statistics.sides)
        where = {each: "on floors of their own" if each.floors else "where every pair of tuples meets" for each in job.layouts}
        held = ", and ".join(f"{where[each]} a tuple would be held {foreseen[each].volume / once:.2g} times" for each in job.layouts)
        lines = [f"{lines[0]}: {held}; this plan is {where[chosen]}. A run chooses by a sample of its first input"]
    for index, (join, predicate) in enumerate(zip(job.joins, chosen.predicates, strict=True)):
        text = predicate.main.text
        if chosen.floors:
            lines.append(f"  {join.name}: on floor {chosen.floors[index] + 1}" + (f", by {text}" if text else ", which no key serves"))
        elif chosen.indexes(index):
            lines.append(f"  {join.name} finds its pairs by an index of its own: {text}")
        else:
            lines.append(f"  {join.name} compares all pairs: no key serves it")
    return lines
