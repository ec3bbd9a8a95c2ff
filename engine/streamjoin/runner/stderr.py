"""Where the standard error of processes goes that this one starts: Java's greetings are not for users, and its failures are."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger("java")


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Let processes started within write their standard error to a file: the JVM greets with warnings that are not for users."""
    with path.open("ab") as file, _stderr_into(file.fileno()):
        yield


@contextlib.contextmanager
def stderr_logged() -> Iterator[None]:
    """Log the standard error of processes started within, a record for each line, for as long as they live."""
    ours, theirs = os.pipe()
    threading.Thread(target=_log_lines, args=(ours,), name="java", daemon=True).start()
    with open(theirs, "wb") as file, _stderr_into(file.fileno()):
        yield


def _log_lines(pipe: int) -> None:
    with open(pipe, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            is_greeting = "incubator modules" in line
            _log.log(logging.DEBUG if is_greeting else logging.WARNING, "%s", line.rstrip())


@contextlib.contextmanager
def _stderr_into(descriptor: int) -> Iterator[None]:
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
