"""``streamjoin plan``: a manifest and statistics in, the scheme in words and as a picture out."""

from __future__ import annotations

from pathlib import Path

import click

from streamjoin.cli.exits import Exit, Failure
from streamjoin.cli.planning import Stats, StatsError, expected_statistics, make_plan, read_stats, report
from streamjoin.cli.validate import Unreadable, read_text, refusing
from streamjoin.elastic.deployment import initial_workers
from streamjoin.job import Job, compile_job
from streamjoin.manifest.model import Checkpoint, Manifest
from streamjoin.manifest.validate import load


def plan_manifest(path: Path, stats: Path | None, tasks: int | None, capacity: int | None, output: Path | None) -> Exit:
    """Print the plan and draw it. Without ``tasks`` and ``capacity``: for what the statistics say, else as the first deployment does."""
    try:
        with refusing(path):
            job = compile_job(with_checkpoint(load(read_text(str(path)))))
        _plan(job, stats, tasks, capacity, output)
    except Failure as failure:
        click.echo(failure.sentence, err=True)
        return failure.code
    return Exit.DONE


def with_checkpoint(manifest: Manifest) -> Manifest:
    """A plan needs no state, but a job does."""
    if manifest.spec.checkpoint.location is not None:
        return manifest
    spec = manifest.spec.model_copy(update={"checkpoint": Checkpoint(location="state")})
    return manifest.model_copy(update={"spec": spec})


def _plan(job: Job, stats: Path | None, tasks: int | None, capacity: int | None, output: Path | None) -> None:
    names = (job.left.name, job.right.name)
    main = job.condition.candidates[0].main
    rates = (job.left.expected_rate, job.right.expected_rate)
    given = Stats(expected_statistics(rates, job.window), None)
    if stats is not None:
        try:
            given = read_stats(read_text(str(stats)), main, names)
        except (StatsError, Unreadable) as refusal:
            raise Failure(Exit.USAGE, f"{stats}: {refusal}") from refusal
    holds = float(capacity or given.capacity_tuples or job.capacity_tuples)
    if tasks is None and capacity is None and stats is None:
        tasks = initial_workers(
            rates=rates,
            window=job.window,
            capacity_tuples=job.capacity_tuples,
            tau1=job.tau1,
            minimum=job.min_workers,
            maximum=job.max_workers,
        )
    try:
        scheme = make_plan(job.model, given.statistics, main, tasks=tasks, capacity_tuples=holds)
    except ValueError as error:
        raise Failure(Exit.FAILED, f"no plan can be made: {error}") from error
    click.echo(report(scheme, given.statistics, main, names, holds), nl=False)
    for line in _alternatives(job):
        click.echo(line)
    if output is not None:
        from streamjoin.cli.draw import draw_scheme

        try:
            draw_scheme(output, scheme, given.statistics, main, names, holds)
        except (OSError, ValueError) as error:
            raise Failure(Exit.USAGE, f"--output: {output}: {error}") from error
        click.echo(f"drawn: {output}")


def _alternatives(job: Job) -> list[str]:
    """What else could have been the main predicate, and why each of the other conjuncts could not."""
    others = [candidate.main for candidate in job.condition.candidates[1:]]
    lines = [f"not indexed: {conjunct.conjunct}: {conjunct.reason}" for conjunct in job.condition.unmatched]
    if others:
        texts = "; ".join(f"{main.text or main.kind}" for main in others)
        lines.append(f"other candidates: {texts}. A run chooses by a sample of its first input")
    return lines
