"""Turns every error of a run into one sentence, which ends with what to do next, and an exit code, which says of which kind it is."""

from __future__ import annotations

import logging
from enum import IntEnum
from pathlib import Path

from streamjoin.logs import trace_path

_log = logging.getLogger("streamjoin")
LONGEST = 600
"""A sentence is cut here; the trace has the rest."""


class Exit(IntEnum):
    """Kinds of ends: the exit codes of all commands, which ``docs/cli.md`` explains."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    SOURCE = 3
    SUPERSEDED = 4
    MISMATCH = 5
    STORAGE = 6
    JAVA = 7
    STALLED = 8
    UNUSABLE = 9
    INTERRUPTED = 130


class Failure(Exception):  # noqa: N818 - what the user is told, not an error of its own
    """An end that is not a success: its exit code and its sentence."""

    def __init__(self, code: Exit, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


_OF_CAUSE = {"SourceError": Exit.SOURCE, "UnavailableError": Exit.SOURCE, "StorageError": Exit.STORAGE, "Missing": Exit.STORAGE}
"""Exceptions in tasks, which the runners report by name, whose remedy is not to be found in the join."""


def code_of(error: BaseException) -> Exit:
    """The exit code for an error of the driver."""
    from streamjoin.epoch.ports import AllLost, CheckpointMismatch, EpochFailed
    from streamjoin.io.base import SinkError, SourceError, UnavailableError
    from streamjoin.io.ownership import OwnedElsewhere
    from streamjoin.state.log import Superseded
    from streamjoin.state.storage import StorageError

    if isinstance(error, EpochFailed):
        if error.stalled:
            return Exit.STALLED
        return _OF_CAUSE.get(error.cause, Exit.FAILED)
    for kind, code in (
        (SourceError, Exit.SOURCE),
        (UnavailableError, Exit.SOURCE),
        (Superseded, Exit.SUPERSEDED),
        (CheckpointMismatch, Exit.MISMATCH),
        (OwnedElsewhere, Exit.MISMATCH),
        (StorageError, Exit.STORAGE),
        (SinkError, Exit.STORAGE),
        (AllLost, Exit.UNUSABLE),
    ):
        if isinstance(error, kind):
            return code
    return Exit.FAILED


_REMEDY = {
    Exit.FAILED: "mend the cause and run the same command: it goes on after the last committed epoch",
    Exit.SOURCE: "mend the input and run the same command: it goes on after the last committed epoch",
    Exit.STORAGE: "when the storage can be reached and has room, run the same command: it goes on after the last committed epoch",
    Exit.STALLED: "the same command goes on after the last committed epoch; where it stalls again, look at what it waits for",
    Exit.SUPERSEDED: "run one driver per checkpoint",
}
"""Remedies for errors whose own text does not say what to do."""


def failure_of(error: BaseException, trace: str, log_directory: Path) -> Failure:
    """The error as the user is to see it; the trace goes to a file, which the sentence names.

    Nothing is lost when the file cannot be written: the sentence then says so.
    """
    code = code_of(error)
    from streamjoin.io.telling import told

    text = told(error) or type(error).__name__
    if code is Exit.FAILED and not hasattr(error, "detail"):
        text = f"{type(error).__name__}: {text}"
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    if code in (Exit.FAILED, Exit.SOURCE, Exit.STORAGE) and "(trace: " not in text:
        text += f" ({_kept(getattr(error, 'detail', '') or trace, log_directory)})"
    remedy = _REMEDY.get(code)
    return Failure(code, f"{text}; {remedy}" if remedy else text)


def stalled(sentence: str, trace: str) -> Failure:
    """The end of a run whose driver does not come back; ``trace`` says where that is."""
    return Failure(Exit.STALLED, f"{sentence} ({trace}); {_REMEDY[Exit.STALLED]}")


def _kept(trace: str, log_directory: Path) -> str:
    _log.error("the run has failed", extra={"fields": {"error": trace}})
    try:
        path = trace_path(log_directory)
        path.write_text(trace)
    except OSError as error:
        return f"its trace could not be written to {log_directory}: {error.strerror}"
    return f"trace: {path}"
