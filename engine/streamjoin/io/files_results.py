"""Results that a files sink has written, read back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from streamjoin.io.base import SourceError
from streamjoin.io.files_reader import FileRange, FilesReader, FilesSourceConfig, FilesSplit
from streamjoin.io.folder import folder_at
from streamjoin.location import is_url

if TYPE_CHECKING:
    from streamjoin.manifest.connectors.files import FilesSink

ALL_ROW_GROUPS = 2**31


def results(sink: FilesSink, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Lists the files; the iterator reads them."""
    folder, ending = folder_at(sink.path), f".{sink.format}"
    is_there = is_url(sink.path) or os.path.isdir(sink.path)
    entries = sorted(folder.scan(is_deep=False), key=lambda entry: entry.name) if is_there else []
    parts = [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file() and entry.name.endswith(ending)]
    reader = FilesReader(FilesSourceConfig(path=sink.path, format=sink.format, fills=False, is_deep=False), schema, exact=False)

    def read() -> Iterator[pa.RecordBatch]:
        for name, size in parts:
            end = ALL_ROW_GROUPS if sink.format == "parquet" else size
            for records in reader.read(FilesSplit(first_record=0, records=0, ranges=(FileRange(name, 0, end, 0, size),))):
                if records.rejected:
                    first = records.rejected[0]
                    raise SourceError(f"{folder.path(name)}: {first.place}: {first.error}; was output.select another then?")
                yield records.batch

    return read()
