"""``streamjoin plan``: takes a manifest, statistics and perhaps a running plan, and shows the scheme and what moves, in words and drawn."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click

from streamjoin.api.join import Join
from streamjoin.api.planning import Outline, PlanRefusal
from streamjoin.api.stats import StatsError
from streamjoin.cli.exits import Exit, Failure, ending, unwritable
from streamjoin.cli.planning import report, report_change
from streamjoin.cli.validate import join_at, text_at
from streamjoin.elastic.plan import PlanError


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options."""

    stats: Path | None = None
    tasks: int | None = None
    capacity: int | None = None
    running: Path | None = None
    save: Path | None = None
    output: Path | None = None
    explained: bool = False


@ending()
def plan_manifest(path: Path, options: Options) -> None:
    """Print the plan and draw it. Without ``tasks`` and ``capacity``: for what the statistics say, else as the first deployment does."""
    _show(_made(join_at(path), options), options)


def _made(join: Join, options: Options) -> Outline:
    try:
        stats, running = (None if file is None else text_at(file) for file in (options.stats, options.running))
        return join.plan(stats=stats, tasks=options.tasks, capacity=options.capacity, current=running)
    except StatsError as refusal:
        raise Failure(Exit.USAGE, f"{options.stats}: {refusal}") from refusal
    except PlanError as refusal:
        raise Failure(Exit.USAGE, f"{options.running}: {refusal}") from refusal
    except PlanRefusal as refusal:
        raise Failure(Exit.FAILED, f"no plan can be made: {refusal}") from refusal


def _show(made: Outline, options: Options) -> None:  # noqa: C901
    click.echo(report(made.scheme, made.statistics, made.key_spaces, made.capacity), nl=False)
    if made.capacity.origin:
        click.echo(f"capacity: {made.capacity.told()}")
    if made.running is not None:
        click.echo("\n" + report_change(made.running, made.planned, made.statistics), nl=False)
    first = made.first
    if first is not None:
        click.echo(first.begins)
    if made.deployment is not None and made.deployment.warning is not None:
        click.echo(f"warning: {made.deployment.warning}", err=True)
    if first is not None and first.problem:
        click.echo(f"on Kubernetes the operator {first.answer}: {first.problem}; {first.remedies}", err=True)
    for line in (*made.sequences, *made.notes):
        click.echo(line)
    if options.explained:
        click.echo("\n" + made.explain(), nl=False)
    if options.save is not None:
        try:
            options.save.parent.mkdir(parents=True, exist_ok=True)
            options.save.write_text(json.dumps(made.plan.to_json(), indent=1) + "\n")
        except OSError as error:
            raise unwritable("--save", options.save, error) from error
        click.echo(f"saved: {options.save}")
    if options.output is not None:
        from streamjoin.cli.draw import draw, render_change, render_scheme

        known, running = (made.statistics, made.key_spaces, made.capacity), made.running if made.planned.changed else None
        try:
            if running is None:
                draw(options.output, lambda form: render_scheme(form, made.scheme, *known))
            else:
                draw(options.output, lambda form: render_change(form, running.scheme, made.plan, *known))
        except OSError as error:
            raise unwritable("--output", options.output, error) from error
        except ValueError as error:
            raise Failure(Exit.USAGE, f"--output: {error}") from error
        click.echo(f"drawn: {options.output}")
