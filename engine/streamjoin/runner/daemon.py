"""Spark's daemon of Python processes, with everything loaded that a worker needs.

Spark starts one in each executor, by its configuration ``spark.python.daemon.module``, and has it fork a process for each task: here, for
each worker's place. So modules are loaded once an executor, and its processes share their memory until they write to it; a process that
replaces another is there at once.

Always holds: it has one thread when it forks, but for jemalloc's, which provides for forks, as what it loads starts no other; and what is
printed meanwhile goes to standard error, because Spark reads the daemon's address from standard output.
"""

from __future__ import annotations

import contextlib
import os
import sys

import pyspark.worker  # noqa: F401 - each process would load it
from pyspark.daemon import manager

from streamjoin.logs import Style
from streamjoin.runner import host


def main() -> None:
    """Load, then fork for Spark until it ends this."""
    style = Style.of(os.environ)
    if style is not None:
        style.configure(sys.stderr)
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Exception):  # each host tries it again, and its task says what failed
        host.load()
    manager()


if __name__ == "__main__":
    main()
