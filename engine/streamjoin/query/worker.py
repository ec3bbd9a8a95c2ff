"""A process that answers queries for another one, which holds the other ends of its standard input and output.

It is not to be felt by the join beside it: it runs at low priority, takes no more memory than it is given, is the first to go where the
machine has none left, and ends when its parent has, or nobody has asked for a while.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from streamjoin.query.errors import QueryError, Why
from streamjoin.query.execution import asked
from streamjoin.query.following import step
from streamjoin.query.kept import Kept
from streamjoin.query.messages import (
    GRACE_SECONDS,
    TOO_MUCH_MEMORY,
    Limits,
    Question,
    Setup,
    Step,
    Stepped,
    Told,
    receive,
    send,
    too_large,
    too_slow,
)
from streamjoin.query.recent import RecentStorage
from streamjoin.query.rendering import rendered
from streamjoin.state.storage import Storage

OVERHEAD_BYTES = 256 << 20
"""What Python, its libraries and an answer as it is written take besides a query's memory."""
WATCH_SECONDS = 0.02


def main() -> None:
    """Until the input ends, or nobody asks for a while. Never returns."""
    _answer()
    os._exit(0)  # DuckDB's binding complains in an orderly end


def _answer() -> None:
    questions = cast(BinaryIO, os.fdopen(os.dup(0), "rb", buffering=0))  # or select would not see what is in the buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not disturb the frames
    setup: Setup = receive(questions)
    _be_modest(setup)
    storage, kept = RecentStorage(setup.catalog.location), Kept()
    while select.select([questions], [], [], setup.idle_seconds)[0]:
        try:
            question: Question | Step = receive(questions)
        except EOFError:
            return
        try:
            if isinstance(question, Step):
                told: Told | Stepped | QueryError = step(storage, setup.catalog, question, kept)
            else:
                told = _told(storage, setup, question)
        except QueryError as error:
            told = error
        except MemoryError:
            told = QueryError(Why.LARGE, "the query needs more memory than it may have; ask for fewer rows or columns")
        except Exception as error:  # the next query must not suffer for it
            told = QueryError(Why.STORAGE, f"{type(error).__name__}: {error}; this is a bug, please report it")
        send(answers, told)


def _told(storage: Storage, setup: Setup, question: Question) -> Told:
    with asked(storage, setup.catalog, question.sql, question.limits) as answer:
        body = rendered(answer, question.form, setup.most_bytes)
    read = answer.read.values()
    return Told(
        *(body, answer.epoch, answer.committed, answer.rows, answer.is_cut),
        read_bytes=sum(rows.nbytes for rows in read),
        held_bytes=sum(rows.all_nbytes for rows in read),
    )


def own_bytes() -> int:
    """The memory of this process, mapped files left out; 0 where the system does not say so."""
    try:
        with open("/proc/self/status", "rb") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(b"RssAnon"))
    except OSError:
        return 0


def _watch_memory(most: int) -> None:
    """Ends the process when its own memory is more than so many bytes."""
    while own_bytes() <= most:
        time.sleep(WATCH_SECONDS)
    os._exit(TOO_MUCH_MEMORY)


@contextlib.contextmanager
def bounded(limits: Limits, end: Callable[[QueryError], None]) -> Iterator[None]:
    """Calls ``end``, in a thread of its own, where what is done within takes more memory or time than the limits say: DuckDB heeds its own
    only between its steps, and a function may take all memory in one. ``end`` does not return."""
    over, until = threading.Event(), time.monotonic() + limits.seconds + GRACE_SECONDS
    most = own_bytes() + limits.memory_bytes + OVERHEAD_BYTES

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            if own_bytes() > most:
                end(too_large(limits))
            if time.monotonic() > until:
                end(too_slow(limits))

    threading.Thread(target=watch, name="limits", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _be_modest(setup: Setup) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's, which ends us
    if sys.platform == "linux":
        # No limit of the kernel's says this: allocators reserve a gigabyte at a time, and what is mapped is not ours.
        most = setup.memory_bytes + OVERHEAD_BYTES
        threading.Thread(target=_watch_memory, args=(most,), name="memory", daemon=True).start()
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    os.nice(setup.nice)
