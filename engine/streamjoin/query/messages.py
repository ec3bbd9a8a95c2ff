"""What goes between those who ask and the processes that answer (``worker``). Importing this loads no DuckDB.

Frames: the parent sends, pickled, a :class:`Setup` and then any number of :class:`Question` and :class:`Step`, each after its length in
eight bytes; back comes a :class:`Told` for each question, a :class:`Stepped` for each step, or a QueryError, in the same form.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

from streamjoin.query.catalog import Catalog
from streamjoin.query.continuous import Continuous, Position
from streamjoin.query.errors import QueryError, Why

GRACE_SECONDS = 5.0
"""How much longer than its time a query may take to say that it was too long."""
LENGTH = struct.Struct("<Q")
TOO_MUCH_MEMORY = 77
"""The exit code of a process that has taken more than it may."""


class Form(StrEnum):
    """How an answer is written, by its media type."""

    JSON = "application/x-ndjson"
    ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class Limits:
    """What a query may take."""

    rows: int | None = None
    """The most rows of the answer; one with more is cut there, and says so."""
    seconds: float = 60.0
    memory_bytes: int = 1 << 30
    """DuckDB's."""
    fetch_bytes: int = 4 << 30
    """The most bytes that are fetched from storage that is not on this machine."""
    threads: int = 1


def too_large(limits: Limits) -> QueryError:
    return QueryError(Why.LARGE, f"the query needs more than {limits.memory_bytes >> 20:,} MiB of memory; ask for fewer rows or columns")


def too_slow(limits: Limits) -> QueryError:
    return QueryError(Why.SLOW, f"the query took longer than {limits.seconds:g} s; ask for less, or allow more time")


@dataclass(frozen=True)
class Setup:
    """The settings that stay the same for all queries."""

    catalog: Catalog
    memory_bytes: int
    most_bytes: int
    """The most bytes of an answer."""
    idle_seconds: float
    """The time without a question after which the process ends."""
    nice: int
    """How much the process makes way for others."""


@dataclass(frozen=True)
class Question:
    """One query."""

    sql: str
    form: Form
    limits: Limits


@dataclass(frozen=True)
class Told:
    """The answer to a query."""

    body: bytes
    epoch: int
    committed: str
    rows: int
    is_cut: bool
    read_bytes: int
    held_bytes: int


@dataclass(frozen=True)
class Step:
    """The next rows of a continuous query."""

    query: Continuous
    after: Position
    upto: int
    """The last snapshot that is looked at. Before ``after``: only whether the query can be answered is to be found out."""
    form: Form
    most_rows: int
    most_bytes: int
    """These two are of all pieces."""
    piece_bytes: int
    piece_rows: int
    limits: Limits


@dataclass(frozen=True)
class Piece:
    """Rows of one snapshot."""

    position: Position
    """Its end."""
    rows: int
    body: bytes
    """JSON lines, or a stream of Arrow's with one batch."""


@dataclass(frozen=True)
class Stepped:
    """The answer to a step."""

    pieces: tuple[Piece, ...]
    position: Position
    """All up to here that the query asks for is in the pieces."""
    schema: bytes
    """Of the rows, as Arrow has it."""
    read_bytes: int


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
