"""``streamjoin validate``: every problem of every file, one a line, in the form that editors and compilers use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamjoin.api.join import Join, anchored
from streamjoin.api.packages import missing_packages
from streamjoin.api.text import Unreadable, read_text
from streamjoin.cli.exits import Exit, Failure
from streamjoin.compilation import compile_job, with_checkpoint
from streamjoin.manifest.problem import ManifestError, Problem

if TYPE_CHECKING:
    from streamjoin.job import Job

__all__ = ["Unreadable", "job_at", "join_at", "located", "read_text", "refusing", "validate_files"]


@contextlib.contextmanager
def refusing(path: Path | str) -> Iterator[None]:
    """Turns what is wrong with a file that was read within into a Failure, with everything that is wrong."""
    try:
        yield
    except Unreadable as refusal:
        raise Failure(Exit.USAGE, f"{path}: {refusal}") from refusal
    except ManifestError as error:
        problems = sorted(error.problems, key=lambda problem: problem.line or 0)
        raise Failure(Exit.USAGE, "\n".join(located(str(path), problem) for problem in problems)) from error


def text_at(path: Path | str) -> str:
    """A file's text. Raises Failure."""
    with refusing(path):
        return read_text(str(path))


def join_at(path: Path) -> Join:
    """The join of a manifest file, which is valid. Raises Failure with all that is wrong with it."""
    with refusing(path):
        join = Join.parse(read_text(str(path)))
        join.require()
    return join


def simulated_job_at(path: Path) -> Job:
    """The manifest compiled to a job that is not run: it need not say where its state is. Raises Failure as :func:`job_at`."""
    join = join_at(path)
    return compile_job(with_checkpoint(join.manifest))


def job_at(path: Path) -> Job:
    """The manifest compiled to a job. Raises Failure with everything that is wrong with it."""
    join = join_at(path)
    with refusing(path):
        return join.job


def located(name: str, problem: Problem, kind: str = "") -> str:
    """``FILE:LINE: field: message``."""
    line = "" if problem.line is None else f"{problem.line}:"
    return f"{name}:{line} {kind}{problem}"


def validate_files(names: Sequence[str], *, offline: bool = False) -> Exit:
    """Problems and ``FILE: ok`` go to standard output, remarks (what is allowed but perhaps not meant) to standard error.

    ``offline``: nothing outside of the manifests is looked at.

    In a pod of the operator's, which tries an image before a driver gets it, missing packages are problems too; elsewhere a manifest may be
    for another engine. Such a pod has neither the volumes nor the network of the driver, so it is offline.
    """
    from streamjoin.api.outside import look

    valid, is_trial = True, bool(os.environ.get("STREAMJOIN_IMAGE"))
    for name in names:
        try:
            joins = Join.parse_all(read_text(name))
        except Unreadable as refusal:
            click.echo(f"{name}: {refusal}")
            valid = False
            continue
        for remark in (remark for join in joins for remark in join.remarks):
            click.echo(located(name, remark, "warning: "), err=True)
        problems = [problem for join in joins for problem in join.validate()]
        if is_trial and not problems:
            problems = [problem for join in joins for problem in missing_packages(join.manifest)]
        if not (problems or offline or is_trial):
            found = [look(anchored(compile_job(with_checkpoint(join.manifest)))) for join in joins]
            problems = [problem for each in found for problem in each.problems]
            for warning in (warning for each in found for warning in each.warnings):
                click.echo(located(name, warning, "warning: "), err=True)
        for problem in sorted(problems, key=lambda problem: problem.line or 0):
            click.echo(located(name, problem))
        if not problems:
            for join in joins:
                shortage, capacity = join.expected()
                if shortage is not None:
                    click.echo(f"{name}: warning: {shortage}", err=True)
                if capacity is not None:
                    click.echo(f"{name}: a worker may hold {capacity}", err=True)
            click.echo(f"{name}: ok")
        valid = valid and not problems
    return Exit.DONE if valid else Exit.USAGE
