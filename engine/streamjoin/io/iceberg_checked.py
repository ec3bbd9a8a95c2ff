"""Looks through Avro files of an Iceberg table before ``pyiceberg`` reads them, whose decoder ends the process where a file is damaged.

Always holds: what is handed over can be read record by record without leaving the file. Files of a codec that needs another library are
not looked through, nor those whose schema ``fastavro`` does not take.
"""

from __future__ import annotations

import io
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile

CODECS = ("null", "deflate")
_ADDED = ("logicalType", "__fastavro_parsed__", "__named_schemas")


class CheckedIO(FileIO):
    """The way to the files of another one."""

    def __init__(self, inner: FileIO) -> None:
        super().__init__(inner.properties)
        self._inner = inner

    def new_input(self, location: str) -> InputFile:
        return _CheckedFile(self._inner.new_input(location))

    def new_output(self, location: str) -> OutputFile:
        return self._inner.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._inner.delete(location)


class _CheckedFile(InputFile):
    def __init__(self, inner: InputFile) -> None:
        super().__init__(inner.location)
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def open(self, seekable: bool = True) -> InputStream:
        if not self.location.endswith(".avro"):
            return self._inner.open(seekable)
        with self._inner.open(seekable) as stream:
            data = stream.read()
        check(data)
        return io.BytesIO(data)


def check(data: bytes) -> None:
    """Reads all records. Raises an exception of one of many kinds where they cannot be read; O(bytes)."""
    try:
        blocks: Any = fastavro.block_reader(io.BytesIO(data))
    except (SchemaParseException, UnknownType):
        return
    if blocks.codec not in CODECS:
        return
    schema = fastavro.parse_schema(_plain(blocks.writer_schema))
    for block in blocks:
        for _ in range(block.num_records):
            fastavro.schemaless_reader(block.bytes_, schema, None)
        if block.bytes_.read(1):
            raise ValueError("a block has bytes that the schema does not explain")


def _plain(schema: Any) -> Any:
    """A schema without logical types: their values may be any that Python's own types cannot hold."""
    if isinstance(schema, dict):
        return {name: _plain(value) for name, value in schema.items() if name not in _ADDED}
    return [_plain(value) for value in schema] if isinstance(schema, list) else schema
