"""Protobuf schemas as tables of the fields that are read (``native.protobuf``) into the columns of a stream.

The registry has the text of a .proto file, which ``protoc`` compiles, as ``grpcio-tools`` brings it, in a process of its own. A field goes
to the column of its name. What a message does not have is null, or, of a field that cannot be missing, its default: 0, false or empty.

Always holds: a message is read as ``google.protobuf`` reads it, but for fields that no column has, whose values are not looked at.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.io.decoded import Form, Slot, UnreadableError, columns_of, in_order, slot_for
from streamjoin.io.values import Problems
from streamjoin.kernel.arrays import Array
from streamjoin.native.unreadable import REASONS

COMPILE_SECONDS = 60
ROOT = "schema.proto"
_BROUGHT = {
    "confluent/meta.proto": 'syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";'
    " message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }"
    " extend google.protobuf.FileOptions { Meta file_meta = 1088; } extend google.protobuf.MessageOptions { Meta message_meta = 1088; }"
    " extend google.protobuf.FieldOptions { Meta field_meta = 1088; } extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }"
    " extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }",
    "confluent/type/decimal.proto": 'syntax = "proto3"; package confluent.type;'
    " message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
}
"""What Confluent's registry knows without a reference."""
_PACKAGE = "google.protobuf."
_WRAPPERS = frozenset(
    f"{_PACKAGE}{name}Value" for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TIMESTAMP = f"{_PACKAGE}Timestamp"
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""From year 1 to year 9999, which a timestamp may be of."""


@dataclass(frozen=True)
class _Field:
    """What is to be done with the slot of a column's field."""

    slot: Slot
    cells: int
    implied: bool
    """A message without it has its default."""
    parent: int = -1
    """The slot that says whether the message is there that it lies in; -1: it always is."""
    oneof: tuple[int, int] | None = None
    """The slot that has the number of the oneof's last member, and the field's own."""
    nanos: int = -1
    """Of a timestamp, the slot of its nanoseconds."""
    default: Any = None
    """Of proto2, what is given for a value that is missing."""


@dataclass(frozen=True)
class MessageReader:
    """Reads messages of one type."""

    schema: pa.Schema
    table: Array
    firsts: Array
    slots: int
    fields: tuple[_Field, ...]

    def __call__(self, data: Array, starts: Array, ends: Array) -> tuple[list[pa.Array], dict[int, str]]:
        """As ``AvroReader``."""
        from streamjoin.native import protobuf as native  # loads Numba

        rows = len(starts)
        cells, given = np.zeros((self.slots, rows), np.int64), np.zeros((self.slots, rows), np.uint8)
        status = np.zeros(rows, np.uint8)
        stack = np.empty(3 * native.DEEPEST, np.int64)
        native.read_messages(data, starts, ends, self.table, self.firsts, cells.reshape(-1), given.reshape(-1), status, stack)
        problems: Problems = {int(row): REASONS[int(status[row])] for row in np.flatnonzero(status)}
        there = status == 0
        values, valid = np.zeros((len(self.fields), rows), np.int64), np.zeros((len(self.fields), rows), np.uint8)
        for index, item in enumerate(self.fields):
            of_parent = there if item.parent < 0 else there & (given[item.parent] == 1)
            if item.oneof is not None:
                of_parent = of_parent & (cells[item.oneof[0]] == item.oneof[1])
            valid[index] = of_parent & (item.implied | (given[item.cells] == 1))
            values[index] = cells[item.cells]
            if item.nanos >= 0:
                seconds, nanos = cells[item.cells], cells[item.nanos]
                wrong = (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND) | (nanos < 0) | (nanos >= 1_000_000_000)
                for row in np.flatnonzero(wrong & (valid[index] == 1)).tolist():
                    problems.setdefault(row, f"column {self.schema.names[item.slot.column]}: is not a {_TIMESTAMP}")
                values[index] = np.where(wrong, 0, seconds * 1_000_000 + nanos // 1000)
            elif item.default is not None:
                missing = there & (valid[index] == 0)
                values[index][missing], valid[index][missing] = item.default, 1
        columns = columns_of(self.schema, tuple(item.slot for item in self.fields), data, values, valid, problems)
        return columns, dict(problems)


class ProtobufReader:
    """Reads records of all messages of a schema; before each one is written which it is."""

    def __init__(self, messages: Sequence[Any], find: Any, schema: pa.Schema) -> None:
        """``messages``: descriptors of the file's, as the compiler wrote them; ``find``: the whole one by its name."""
        self._messages, self._find, self._schema = messages, find, schema
        self._readers: dict[tuple[int, ...], MessageReader] = {}
        self._reader((0,))

    def __call__(self, data: Array, starts: Array, ends: Array) -> tuple[list[pa.Array], dict[int, str]]:
        """As ``AvroReader``."""
        problems: dict[int, str] = {}
        plain = (ends > starts) & (data[np.minimum(starts, len(data) - 1)] == 0)
        if plain.all():
            return self._reader((0,))(data, starts + 1, ends)
        by_path: dict[tuple[int, ...], list[int]] = {(0,): np.flatnonzero(plain).tolist()} if plain.any() else {}
        begins = starts + 1
        for row in np.flatnonzero(~plain).tolist():
            path, size = _path(data[starts[row] : ends[row]].tobytes())
            if path:
                by_path.setdefault(path, []).append(row)
                begins[row] = starts[row] + size
            else:
                problems[row] = "does not say which message of the schema it is"
        found = []
        for path, listed in by_path.items():
            rows = np.array(listed)
            try:
                columns, wrong = self._reader(path)(data, begins[rows], ends[rows])
            except UnreadableError as error:
                problems |= dict.fromkeys(listed, str(error))
                continue
            problems |= {listed[row]: text for row, text in wrong.items()}
            found.append((rows, columns))
        if len(found) == 1 and len(found[0][0]) == len(starts):
            return found[0][1], problems
        missing = np.setdiff1d(np.arange(len(starts)), np.concatenate([rows for rows, _ in found]) if found else [])
        found.append((missing, [pa.nulls(len(missing), item.type) for item in self._schema]))
        return in_order(found, self._schema)[1], problems

    def _reader(self, path: tuple[int, ...]) -> MessageReader:
        if path not in self._readers:
            messages, names = self._messages, []
            for index in path:
                if index >= len(messages):
                    raise UnreadableError(f"has no message {'.'.join(map(str, path))}")
                names.append(messages[index].name)
                messages = messages[index].nested_type
            self._readers[path] = _Tables(self._schema).reader(self._find(names))
        return self._readers[path]


def _path(value: bytes) -> tuple[tuple[int, ...], int]:
    """The message's place among the schema's, from without to within, and the bytes that say it; nothing where none do."""
    numbers: list[int] = []
    at, left = 0, 1
    while left:
        number = shift = 0
        while True:
            if at == len(value) or shift > 28:
                return (), 0
            byte = value[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        number = number >> 1 ^ -(number & 1)
        if number < 0:
            return (), 0
        numbers.append(number)
        left = numbers[0] + 1 - len(numbers)
    return tuple(numbers[1:]) or (0,), at


class _Tables:
    """Makes the table of one message, and of those in it."""

    def __init__(self, schema: pa.Schema) -> None:
        from streamjoin.native import protobuf  # loads Numba

        self._ops = protobuf
        self._schema = schema
        self._slots = 0
        self._rows: list[list[list[int]]] = []
        self._fields: list[_Field] = []
        self._oneofs: dict[str, int] = {}

    def reader(self, message: Any) -> MessageReader:
        """Raises UnreadableError."""
        columns = {name: index for index, name in enumerate(self._schema.names)}
        taken = [item for item in message.fields if item.name in columns]
        if not taken:
            names = ", ".join([item.name for item in message.fields][:20])
            raise UnreadableError(f"has none of the stream's columns in message {message.full_name}; its fields are {names or 'none'}")
        oneofs = {item.containing_oneof.full_name for item in taken if _is_choice(item)}
        self._rows.append([])
        for item in message.fields:
            if item.name in columns:
                self._column(item, columns[item.name])
            elif _is_choice(item) and item.containing_oneof.full_name in oneofs:
                self._row(0, item, self._ops.NOTHING, -1, oneof=self._oneof(item)[0])
        rows = [sorted(of_message, key=lambda row: row[1]) for of_message in self._rows]
        firsts = np.cumsum([0] + [len(of_message) for of_message in rows])
        table = np.array([number for of_message in rows for row in of_message for number in row], np.int64)
        return MessageReader(self._schema, table, firsts, self._slots, tuple(self._fields))

    def _slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def _oneof(self, item: Any) -> tuple[int, int]:
        name = item.containing_oneof.full_name
        if name not in self._oneofs:
            self._oneofs[name] = self._slot()
        return self._oneofs[name], item.number

    def _row(self, message: int, item: Any, kind: int, slot: int, inner: int = -1, oneof: int = -1) -> None:
        self._rows[message].append([message, item.number, kind, slot, inner, oneof])

    def _column(self, item: Any, column: int) -> None:
        own = self._schema.field(column)
        said = item.message_type.full_name if item.message_type is not None else _SCALARS.get(item.type, ("",))[0]
        if _is_repeated(item):
            raise UnreadableError(f"field {own.name} is repeated, and columns have one value")
        oneof = self._oneof(item) if _is_choice(item) else None
        tracked = -1 if oneof is None else oneof[0]
        if item.message_type is None or item.type == _GROUP:
            kind, slot = self._scalar(item, column, said)
            cells = self._slot()
            self._row(0, item, kind, cells, oneof=tracked)
            default = None if item.has_presence is False or not item.has_default_value else _default(item, slot)
            self._fields.append(_Field(slot, cells, not item.has_presence, oneof=oneof, default=default))
            return
        parts = {part.name: part for part in item.message_type.fields}
        if said not in _WRAPPERS and said != _TIMESTAMP:
            raise UnreadableError(f"field {own.name} is of type {said}, which has parts, and columns have none")
        parent, inner = self._slot(), len(self._rows)
        self._rows.append([])
        self._row(0, item, self._ops.MESSAGE, parent, inner, tracked)
        value = parts["seconds" if said == _TIMESTAMP else "value"]
        kind, slot = self._scalar(value, column, said)
        nanos = -1
        if said == _TIMESTAMP:
            kind, slot = self._ops.INT64, slot_for(column, own, Form.INTEGER, pa.timestamp("us", "UTC"), said)
            nanos = self._slot()
            self._row(inner, parts["nanos"], self._ops.INT32, nanos)
        cells = self._slot()
        self._row(inner, value, kind, cells)
        self._fields.append(_Field(slot, cells, True, parent, oneof, nanos))

    def _scalar(self, item: Any, column: int, said: str) -> tuple[int, Slot]:
        ops, own = self._ops, self._schema.field(column)
        if said == _TIMESTAMP:
            return ops.INT64, Slot(column, Form.INTEGER, pa.int64())
        if item.type == _ENUM:
            if pa.types.is_string(own.type):
                symbols = tuple((value.number, value.name) for value in item.enum_type.values)
                return ops.INT32, Slot(column, Form.SYMBOL, pa.string(), symbols, f"enum {item.enum_type.name}")
            return ops.INT32, slot_for(column, own, Form.INTEGER, pa.int64(), f"enum {item.enum_type.name}")
        if item.type == _GROUP:
            raise UnreadableError(f"field {own.name} is a group, and columns have no parts")
        _, kind, form, arrow = _SCALARS[item.type]
        return getattr(ops, kind), slot_for(column, own, form, arrow, said)


_GROUP, _ENUM = 10, 14
_SCALARS = {
    1: ("double", "EIGHT", Form.DOUBLE, pa.float64()),
    2: ("float", "FOUR", Form.FLOAT, pa.float32()),
    3: ("int64", "INT64", Form.INTEGER, pa.int64()),
    4: ("uint64", "INT64", Form.INTEGER, pa.uint64()),
    5: ("int32", "INT32", Form.INTEGER, pa.int64()),
    6: ("fixed64", "EIGHT", Form.INTEGER, pa.uint64()),
    7: ("fixed32", "UNSIGNED_FOUR", Form.INTEGER, pa.int64()),
    8: ("bool", "BOOLEAN", Form.BOOLEAN, pa.bool_()),
    9: ("string", "BYTES", Form.BYTES, pa.string()),
    12: ("bytes", "BYTES", Form.BYTES, pa.binary()),
    13: ("uint32", "UINT32", Form.INTEGER, pa.int64()),
    15: ("sfixed32", "FOUR", Form.INTEGER, pa.int64()),
    16: ("sfixed64", "EIGHT", Form.INTEGER, pa.int64()),
    17: ("sint32", "SHORT_ZIGZAG", Form.INTEGER, pa.int64()),
    18: ("sint64", "ZIGZAG", Form.INTEGER, pa.int64()),
}
"""By FieldDescriptorProto.Type: the name, what machine code reads, and what the values are."""


def _is_repeated(item: Any) -> bool:
    found = getattr(item, "is_repeated", None)
    return bool(item.label == item.LABEL_REPEATED if found is None else found)


def _is_choice(item: Any) -> bool:
    """Whether it is of a oneof, and not of one that ``optional`` stands for, which has one member alone."""
    return item.containing_oneof is not None and len(item.containing_oneof.fields) > 1


def _default(item: Any, slot: Slot) -> int:
    """What cells have for proto2's default. Raises UnreadableError for those that no cell can have."""
    value = item.default_value
    if slot.form in (Form.INTEGER, Form.SYMBOL, Form.BOOLEAN):
        return int(value)
    if slot.form in (Form.DOUBLE, Form.FLOAT):
        width = (np.float64, np.int64) if slot.form is Form.DOUBLE else (np.float32, np.int32)
        return int(np.array([value], width[0]).view(width[1])[0])
    if value:
        raise UnreadableError(f"field {item.name} has the default {value!r}, and a text can only have the empty default here")
    return 0


def protobuf_reader(text: str, references: Sequence[tuple[str, str]], schema: pa.Schema) -> ProtobufReader:
    """What reads records that name a schema whose text, and whose imports' by their names, these are. Raises UnreadableError."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    files = descriptor_pb2.FileDescriptorSet.FromString(_compiled(text, references)).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    root = next(file for file in files if file.name == ROOT)
    package = [root.package] if root.package else []
    if not root.message_type:
        raise UnreadableError("has no message")
    return ProtobufReader(root.message_type, lambda names: pool.FindMessageTypeByName(".".join(package + names)), schema)


def _compiled(text: str, references: Sequence[tuple[str, str]]) -> bytes:
    """A serialized FileDescriptorSet, with imports."""
    with tempfile.TemporaryDirectory(prefix="streamjoin-proto-") as name:
        root = Path(name)
        for path, content in [*_BROUGHT.items(), *references, (ROOT, text)]:
            if ".." in PurePosixPath(path).parts or path.startswith("/"):
                raise UnreadableError(f"refers to {path}, which is not the name of a file to import")
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={root}/set", "--include_imports", ROOT]
        try:
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise UnreadableError(f"was not compiled within {COMPILE_SECONDS} s") from None
        if done.returncode:
            raise UnreadableError(f"is not a schema of Protobuf ({' '.join(done.stderr.replace(f'{root}/', '').split())[-300:]})")
        return (root / "set").read_bytes()
