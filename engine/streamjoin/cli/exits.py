"""Exit codes of all commands, which ``docs/cli.md`` explains: those of the library's failures; and files that a command cannot write."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec

import click

from streamjoin.api.failure import Exit, Failure, stalled
from streamjoin.logs import SENTENCE, Lines

__all__ = ["Exit", "Failure", "ending", "require_drawable", "stalled", "unwritable", "whole_file"]

Given = ParamSpec("Given")


def ending(prefix: str = "", prefix_of_usage: str = "") -> Callable[[Callable[Given, int | None]], Callable[Given, int]]:
    """The function of a command as one that says what a Failure says, and returns the exit code. ``prefix_of_usage``: before what is wrong
    with the command's arguments and files; ``prefix``: before all else."""

    def of(command: Callable[Given, int | None]) -> Callable[Given, int]:
        @functools.wraps(command)
        def run(*given: Given.args, **named: Given.kwargs) -> int:
            try:
                return command(*given, **named) or Exit.DONE
            except Failure as failure:
                own = prefix_of_usage if failure.code is Exit.USAGE else prefix
                click.echo((SENTENCE if isinstance(sys.stderr, Lines) else own) + failure.sentence, err=True)
                return failure.code

        return run

    return of


def unwritable(option: str, path: Path, error: OSError) -> Failure:
    """For a file that the user has named with ``option``."""
    # Directories are made on the way, so a file in the place of one is told as a file that exists.
    problem = f"{path.parent} is not a directory" if isinstance(error, FileExistsError) else error.strerror or error
    return Failure(Exit.USAGE, f"{option}: {path}: {problem}; choose a file that you may write")


@contextlib.contextmanager
def whole_file(option: str, path: Path, *, makes_directory: bool = False) -> Iterator[Path]:
    """A file to write to, which appears at ``path``, named with ``option``, when it is whole. Raises Failure."""
    unfinished = path.with_name(f"{path.name}#{os.getpid()}")
    try:
        if makes_directory:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield unfinished
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(option, path, error) from error


def require_drawable(picture: Path) -> None:
    """Better now than after an hour. Raises Failure."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if picture.suffix[1:].lower() not in known:
        raise Failure(Exit.USAGE, f"--picture: {picture} must end in one of .{', .'.join(sorted(known))}")
