"""Exit codes of all commands, which ``docs/cli.md`` explains: those of the library's failures; and files that a command cannot write."""

from __future__ import annotations

from pathlib import Path

from streamjoin.api.failure import Exit, Failure, failure_of, stalled

__all__ = ["Exit", "Failure", "failure_of", "require_drawable", "stalled", "unwritable"]


def unwritable(option: str, path: Path, error: OSError) -> Failure:
    """For a file that the user has named with ``option``."""
    # Directories are made on the way, so a file in the place of one is told as a file that exists.
    problem = f"{path.parent} is not a directory" if isinstance(error, FileExistsError) else error.strerror or error
    return Failure(Exit.USAGE, f"{option}: {path}: {problem}; choose a file that you may write")


def require_drawable(picture: Path) -> None:
    """Better now than after an hour. Raises Failure."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if picture.suffix[1:].lower() not in known:
        raise Failure(Exit.USAGE, f"--picture: {picture} must end in one of .{', .'.join(sorted(known))}")
