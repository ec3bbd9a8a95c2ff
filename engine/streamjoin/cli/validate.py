"""``streamjoin validate``: every problem of every file, one a line, in the form that editors and compilers use."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from streamjoin.cli.exits import Exit, Failure
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.validate import ManifestError, Problem, parse


class Unreadable(Exception):  # noqa: N818 - an answer to the user
    """A file whose text cannot be had, and why."""


def read_text(name: str) -> str:
    """The text of a file, or of standard input for ``-``. Raises Unreadable."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"is not UTF-8 from line {line} on; save it as UTF-8") from error


@contextlib.contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turns what is wrong with a file that was read within into a Failure, with everything that is wrong."""
    try:
        yield
    except Unreadable as refusal:
        raise Failure(Exit.USAGE, f"{path}: {refusal}") from refusal
    except ManifestError as error:
        problems = sorted(error.problems, key=lambda problem: problem.line or 0)
        raise Failure(Exit.USAGE, "\n".join(located(str(path), problem) for problem in problems)) from error


def located(name: str, problem: Problem, kind: str = "") -> str:
    """``FILE:LINE: field: message``."""
    line = "" if problem.line is None else f"{problem.line}:"
    return f"{name}:{line} {kind}{problem}"


def expected(manifest: Manifest) -> tuple[str | None, str | None]:
    """Of a valid manifest: a warning where the workers that it allows would begin fuller than it wants them to be; and what a worker may
    hold, where it does not say."""
    from streamjoin.job import compile_job, with_checkpoint

    job = compile_job(with_checkpoint(manifest))
    deployment = job.foreseen()
    return deployment.warning, job.capacity.told() if job.capacity.origin else None


def validate_files(names: Sequence[str]) -> Exit:
    """Problems and ``FILE: ok`` go to standard output, remarks (what is allowed but perhaps not meant) to standard error."""
    valid = True
    for name in names:
        try:
            documents = parse(read_text(name))
        except Unreadable as refusal:
            click.echo(f"{name}: {refusal}")
            valid = False
            continue
        for remark in (remark for document in documents for remark in document.remarks):
            click.echo(located(name, remark, "warning: "), err=True)
        problems = [problem for document in documents for problem in document.problems]
        for problem in sorted(problems, key=lambda problem: problem.line or 0):
            click.echo(located(name, problem))
        if not problems:
            for manifest in (document.manifest for document in documents):
                shortage, capacity = (None, None) if manifest is None else expected(manifest)
                if shortage is not None:
                    click.echo(f"{name}: warning: {shortage}", err=True)
                if capacity is not None:
                    click.echo(f"{name}: a worker may hold {capacity}", err=True)
            click.echo(f"{name}: ok")
        valid = valid and not problems
    return Exit.DONE if valid else Exit.USAGE
