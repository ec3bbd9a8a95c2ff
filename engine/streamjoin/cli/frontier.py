"""``streamjoin simulate --set``: many settings of one join on the same traffic, and which of them lose least for their worker-hours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import click

from streamjoin.cli import wording
from streamjoin.cli.exits import Exit, Failure, unwritable
from streamjoin.cli.simulate import Options, heading, heading_json, prepare
from streamjoin.cli.validate import read_text
from streamjoin.cli.variants import Varied, read_sets, simulations, told, variants
from streamjoin.job import Job
from streamjoin.simulation.clairvoyant import Clairvoyant
from streamjoin.simulation.run import Outcome
from streamjoin.simulation.tuning import frontier

MOST_REFUSED = 3
"""The most invalid settings that are named."""


@dataclass(frozen=True, slots=True)
class Point:
    """One setting, and what came of it."""

    values: tuple[str, ...] | None
    """None: the manifest as it is."""
    outcome: Outcome
    on_frontier: bool


def compare(options: Options, job: Job) -> None:
    """Print the table, or the JSON, and draw the picture. Raises Failure."""
    varied = read_sets(options.sets)
    if options.policy is not None and any(one.field == "scaling.policy" for one in varied):
        raise Failure(Exit.USAGE, "--policy is one for all settings, and --set scaling.policy tries several; give one of the two")
    found, refused = variants(read_text(str(options.manifest)), varied)
    present = prepare(options, job)
    joins = [present.join, *(prepare(options, one.job, present).join for one in found)]
    with simulations([present.traffic], len(joins)) as many:
        outcomes = many.run(joins)
    tried = [None, *(one.values for one in found)]
    points = [Point(values, outcome, kept) for values, outcome, kept in zip(tried, outcomes, frontier(outcomes), strict=True)]
    points.sort(key=lambda point: (point.outcome.worker_hours, point.outcome.lost_tuples))
    least = Clairvoyant(present.join, present.traffic).schedule
    if options.as_json:
        rows = [
            {
                "set": None if point.values is None else {one.field: value for one, value in zip(varied, point.values, strict=True)},
                "onFrontier": point.on_frontier,
                **point.outcome.to_json(),
            }
            for point in points
        ]
        refusals = [{"set": {one.field: value for one, value in zip(varied, values, strict=True)}, "why": why} for values, why in refused]
        record = heading_json("frontier", options, job, present) | {
            "settings": rows,
            "invalid": refusals,
            "least": {"workerHours": least.least_hours, "bill": least.bill},
        }
        click.echo(json.dumps(record, ensure_ascii=False, allow_nan=False))
    else:
        click.echo(heading(job, present))
        click.echo(table(varied, points), nl=False)
        click.echo("\n*: on the frontier: no other setting needs fewer worker-hours without losing more.")
        click.echo(f"A rule that sheds nothing, with the manifest's tau2, needs at least {least.least_hours:,.1f} worker-hours.")
    for values, why in refused[:MOST_REFUSED]:
        click.echo(f"not tried: {told(varied, values)}: {why}", err=True)
    if len(refused) > MOST_REFUSED:
        click.echo(f"not tried: {wording.plural(len(refused) - MOST_REFUSED, 'more setting')}", err=True)
    if options.picture is not None:
        from streamjoin.cli.frontier_picture import draw

        try:
            draw(options.picture, f"{job.name}: {present.called}", varied, points, least.least_hours)
        except OSError as error:
            raise unwritable("--picture", options.picture, error) from error
        if not options.as_json:
            click.echo(f"drawn: {options.picture}")


def table(varied: Sequence[Varied], points: Sequence[Point]) -> str:
    """The settings side by side, for people. Ends with a newline."""
    names = [one.field if [other.path[-1] for other in varied].count(one.path[-1]) > 1 else one.path[-1] for one in varied]
    rows = [("", *names, "worker-hours", "lost", "of input", "above tau3", "rescales", "re-plans", "moved", "bill")]
    for point in points:
        one = point.outcome
        values = ("(as it is)", *("" for _ in names[1:])) if point.values is None else point.values
        rows.append(
            (
                "*" if point.on_frontier else "",
                *values,
                f"{one.worker_hours:,.1f}",
                f"{one.lost_tuples:,.0f}",
                f"{one.lost_tuples / max(1.0, one.input_tuples):.3%}",
                wording.duration(one.seconds_above_tau3),
                f"{one.rescales:,}",
                f"{one.replans:,}",
                f"{one.moved_tuples:,.0f}",
                f"{one.bill:,.1f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    texts = 1 + len(names)
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(cell.ljust(width) if at < texts else cell.rjust(width) for at, (cell, width) in enumerate(cells)))
    return "\n".join(line.rstrip() for line in lines) + "\n"
