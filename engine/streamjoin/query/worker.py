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
import select
import signal
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from streamjoin.query.catalog import Catalog
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.execution import Limits, asked
from streamjoin.query.rendering import Form, rendered
from streamjoin.state.storage import ObjectStorage

LENGTH = struct.Struct("<Q")
NICE = 19
OVERHEAD_BYTES = 256 << 20
"""What Python, its libraries and an answer as it is written take besides a query's memory."""
WATCH_SECONDS = 0.02
TOO_MUCH_MEMORY = 77
"""The exit code of a process that has taken more than it may."""


@dataclass(frozen=True)
class Setup:
    """What stays the same."""

    catalog: Catalog
    memory_bytes: int
    most_bytes: int
    """Of an answer."""
    idle_seconds: float
    """It ends when nobody has asked for so long."""


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
    (size,) = LENGTH.unpack(_exactly(file, LENGTH.size))
    return pickle.loads(_exactly(file, size))  # noqa: S301 - written by our own parent, or child


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = file.read(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def main() -> None:
    """Until the input ends, or nobody asks for a while."""
    questions = cast(BinaryIO, os.fdopen(os.dup(0), "rb", buffering=0))  # or select would not see what is in the buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not disturb the frames
    setup: Setup = receive(questions)
    _be_modest(setup)
    storage = ObjectStorage(setup.catalog.location)
    while select.select([questions], [], [], setup.idle_seconds)[0]:
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


def _watch_memory(most: int) -> None:
    """Ends the process when its own memory, mapped files left out, is more than so many bytes."""
    while True:
        with open("/proc/self/status", "rb") as file:
            kibibytes = next(int(line.split()[1]) for line in file if line.startswith(b"RssAnon"))
        if kibibytes << 10 > most:
            os._exit(TOO_MUCH_MEMORY)
        time.sleep(WATCH_SECONDS)


def _be_modest(setup: Setup) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's, which ends us
    if sys.platform == "linux":
        # No limit of the kernel's says this: allocators reserve a gigabyte at a time, and what is mapped is not ours.
        most = setup.memory_bytes + OVERHEAD_BYTES
        threading.Thread(target=_watch_memory, args=(most,), name="memory", daemon=True).start()
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    os.nice(NICE)

