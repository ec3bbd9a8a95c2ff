"""The sink that shows results on standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import pyarrow as pa

from streamjoin.io.base import Sink, Staged
from streamjoin.io.sinks import json_lines

if TYPE_CHECKING:
    from streamjoin.io.factory import Writing
    from streamjoin.manifest.connectors.console import ConsoleSink as Model


class ConsoleSink(Sink):
    """Prints the first rows of each epoch as JSON lines, in the driver, once the epoch is committed.

    The rows travel in :attr:`Staged.text`. A crash between commit and publication shows an epoch twice.
    """

    def __init__(self, limit: int) -> None:
        """``limit``: the number of rows of an epoch that are shown."""
        self._limit = limit

    def writer(self, name: str, stem: str, *, small_bytes: int = 0) -> ConsoleWriter:
        return ConsoleWriter(self._limit, stem)

    def publish(self, staged: Sequence[Staged], *, again: bool = False, stream: TextIO | None = None) -> None:
        """Prints; what is beyond the limit is only counted."""
        stream = stream if stream is not None else sys.stdout
        lines = [line for file in staged for line in file.text.split("\n") if line][: self._limit]
        more = sum(file.rows for file in staged) - len(lines)
        for line in lines:
            print(line, file=stream)
        if more > 0:
            print(f"... and {more} more rows", file=stream)
        stream.flush()


class ConsoleWriter:
    """Keeps the first rows and counts the rest."""

    def __init__(self, limit: int, stem: str) -> None:
        self._limit = limit
        self._stem = stem
        self._rows = 0
        self._text: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        wanted = self._limit - self._rows
        if wanted > 0:
            self._text.append(bytes(json_lines(batch.slice(0, wanted))).decode())
        self._rows += batch.num_rows

    def close(self) -> list[Staged]:
        if self._rows == 0:
            return []
        return [Staged(self._stem, self._stem, self._rows, 0, "".join(self._text))]

    def abort(self) -> None:
        self._rows, self._text = 0, []


def open_sink(model: Model, writing: Writing) -> ConsoleSink:
    """See ``io.factory``."""
    return ConsoleSink(model.limit)
