"""A process that answers queries for another one, which holds the other ends of its standard input and output.

It is not to be felt by the join beside it: it runs at low priority, takes no more memory than it is given, is the first to go where the
machine has none left, and ends when its parent has, or nobody has asked for a while.

Frames: what the parent sends is pickled (:class:`Setup`, then :class:`Question` after :class:`Question`), each after its length in eight
bytes; back comes one pickled :class:`Told` for each, in the same form.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from streamjoin.query.catalog import Catalog
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.execution import Limits, asked
from streamjoin.query.rendering import Form, rendered
from streamjoin.state.storage import ObjectStorage

LENGTH = struct.Struct("<Q")
IDLE_SECONDS = 60.0
NICE = 15
OVERHEAD_BYTES = 1 << 30
"""What Python, its libraries and the threads of storage take besides a query's memory, with room to spare."""


@dataclass(frozen=True)
class Setup:
    """What stays the same."""

    catalog: Catalog
    memory_bytes: int
    most_bytes: int
    """Of an answer."""


@dataclass(frozen=True)
class Question:
    """One query."""

    sql: str
    form: Form
    limits: Limits


@dataclass(frozen=True)
class Told:
    """Its answer."""

    body: bytes
    epoch: int
    committed: str
    rows: int
    is_cut: bool
    read_bytes: int
    held_bytes: int


def send(file: BinaryIO, value: Any) -> None:
    data = pickle.dumps(value)
    file.write(LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def receive(file: BinaryIO) -> Any:
    """Raises EOFError where the other end is closed."""
    head = file.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (size,) = LENGTH.unpack(head)
    return pickle.loads(file.read(size))  # noqa: S301 - written by our own parent, or child


def main() -> None:
    """Until the input ends, or nobody asks for ``IDLE_SECONDS``."""
    questions = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not disturb the frames
    setup: Setup = receive(questions)
    _be_modest(setup)
    storage = ObjectStorage(setup.catalog.location)
    while select.select([questions], [], [], IDLE_SECONDS)[0]:
        try:
            question: Question = receive(questions)
        except EOFError:
            return
        try:
            with asked(storage, setup.catalog, question.sql, question.limits) as answer:
                body = rendered(answer, question.form, setup.most_bytes)
            read = answer.read.values()
            told: Told | QueryError = Told(
                *(body, answer.epoch, answer.committed, answer.rows, answer.is_cut),
                read_bytes=sum(rows.nbytes for rows in read),
                held_bytes=sum(rows.all_nbytes for rows in read),
            )
        except QueryError as error:
            told = error
        except MemoryError:
            told = QueryError(Why.LARGE, "the query needs more memory than it may have; ask for fewer rows or columns")
        except Exception as error:  # the next query must not suffer for it
            told = QueryError(Why.STORAGE, f"{type(error).__name__}: {error}; this is a bug, please report it")
        send(answers, told)


def _be_modest(setup: Setup) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's, which ends us
    if sys.platform == "linux":
        most = setup.memory_bytes + OVERHEAD_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    os.nice(NICE)


if __name__ == "__main__":
    main()
