"""Avro schemas as programs that read their records (``native.avro``) into the columns of a stream.

A writer's schema is resolved to the declared columns by name, as the Avro specification does it with a reader's schema: a field that no
column has is skipped, a column that no field has is null, and a value of another type is taken where nothing is lost by it
(``values.readable``). Logical types say what a value is; one that does not fit its type is ignored, as the specification wants it.

Always holds: a program reads exactly the bytes that the schema says a record has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.io.decoded import MICROS, MILLIS, NANOS, Form, Slot, UnreadableError, columns_of, slot_for
from streamjoin.io.values import Problems
from streamjoin.kernel.arrays import Array
from streamjoin.native.unreadable import REASONS

_TIMES = {
    **{f"timestamp-{name}": pa.timestamp(unit, "UTC") for name, unit in (("millis", MILLIS), ("micros", MICROS), ("nanos", NANOS))},
    **{f"local-timestamp-{name}": pa.timestamp(unit) for name, unit in (("millis", MILLIS), ("micros", MICROS), ("nanos", NANOS))},
}
_PLAIN = {
    "int": ("VARINT", Form.INTEGER, pa.int32()),
    "long": ("VARINT", Form.INTEGER, pa.int64()),
    "boolean": ("BOOLEAN", Form.BOOLEAN, pa.bool_()),
    "float": ("FLOAT", Form.FLOAT, pa.float32()),
    "double": ("DOUBLE", Form.DOUBLE, pa.float64()),
    "bytes": ("BYTES", Form.BYTES, pa.binary()),
    "string": ("BYTES", Form.BYTES, pa.string()),
}
"""By type: what machine code reads, and what the values are."""
_MOST_DIGITS = 38


@dataclass(frozen=True)
class AvroReader:
    """Reads records of one writer's schema."""

    schema: pa.Schema
    program: Array
    slots: tuple[Slot, ...]

    def __call__(self, data: Array, starts: Array, ends: Array) -> tuple[list[pa.Array], dict[int, str]]:
        """The columns of the records that lie there, and what is wrong with a record, by its number. O(bytes)."""
        from streamjoin.native import avro as native  # loads Numba

        rows, slots = len(starts), len(self.slots)
        cells, given = np.zeros((slots, rows), np.int64), np.zeros((slots, rows), np.uint8)
        status = np.zeros(rows, np.uint8)
        stack = np.empty(2 * native.DEEPEST, np.int64)
        native.read_records(data, starts, ends, self.program, cells.reshape(-1), given.reshape(-1), status, stack)
        bad = np.flatnonzero(status)
        given[:, bad] = 0
        problems: Problems = {int(row): REASONS[int(status[row])] for row in bad}
        return columns_of(self.schema, self.slots, data, cells, given, problems), dict(problems)


def avro_reader(text: str, references: Sequence[str], schema: pa.Schema) -> AvroReader:
    """What reads records that were written by a schema, which may use names of ``references``, in their order.

    Raises UnreadableError.
    """
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    named: dict[str, Any] = {}
    try:
        for reference in references:
            parse_schema(json.loads(reference), named)
        parsed = parse_schema(json.loads(text), named)
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"is not an Avro schema ({type(error).__name__}: {error})") from None
    compiler = _Compiler(schema, named)
    try:
        return compiler.compiled(parsed)
    except RecursionError:
        raise UnreadableError("is too deeply nested") from None


class _Compiler:
    """Makes one program."""

    def __init__(self, schema: pa.Schema, named: Mapping[str, Any]) -> None:
        from streamjoin.native import avro  # loads Numba

        self._ops = avro
        self._schema = schema
        self._columns = {name: index for index, name in enumerate(schema.names)}
        self._named = named
        self._program: list[int] = []
        self._slots: list[Slot] = []
        self._open: list[str] = []
        """The records that are being compiled, from without to within."""
        self._calls: list[tuple[int, str]] = []
        """Where one of these is called, whose part is made at the end."""

    def compiled(self, top: Any) -> AvroReader:
        branches = top if isinstance(top, list) else [top]
        records = [self._resolved(branch) for branch in branches]
        if not records or not all(_name(record) == "record" for record in records):
            raise UnreadableError("is not that of a record")
        if not any(field["name"] in self._columns for record in records for field in record["fields"]):
            raise UnreadableError(f"has none of the stream's columns; its fields are {_listed(records)}")
        if isinstance(top, list):
            self._union(top, self._record)
        else:
            self._record(records[0])
        self._emit(self._ops.END)
        parts: dict[str, int] = {}
        while self._calls:
            at, name = self._calls.pop()
            if name not in parts:
                parts[name] = len(self._program)
                self._skip(self._named[name])
                self._emit(self._ops.RETURN)
            self._program[at + 2] = parts[name]
        return AvroReader(self._schema, np.array(self._program, np.int64), tuple(self._slots))

    def _emit(self, kind: int, slot: int = -1, argument: int = 0) -> int:
        self._program += [kind, slot, argument]
        return len(self._program) - self._ops.WORDS

    def _resolved(self, schema: Any) -> Any:
        """A type by its name, if it is one that the schema, or a reference, defines."""
        return self._named[schema] if isinstance(schema, str) and schema in self._named else schema

    def _record(self, schema: Any) -> None:
        """Takes the fields that are columns."""
        record = self._resolved(schema)
        self._open.append(record["name"])
        for field in record["fields"]:
            column = self._columns.get(field["name"])
            if column is None:
                self._skip(field["type"])
            else:
                self._take(field["type"], column)
        self._open.pop()

    def _take(self, schema: Any, column: int) -> None:
        if isinstance(schema, list):
            self._union(schema, lambda branch: self._branch(branch, column))
            return
        kind, argument, slot = self._leaf(self._resolved(schema), column)
        if kind is None:
            return
        self._emit(kind, self._slot(slot), argument)

    def _branch(self, schema: Any, column: int) -> None:
        """One of several types that a field may have: what the column cannot have is wrong with that record alone."""
        resolved = self._resolved(schema)
        try:
            self._take(resolved, column)
        except UnreadableError:
            self._emit(self._ops.GIVE, self._slot(Slot(column, Form.WRONG, pa.null(), said=_said(resolved))))
            self._skip(schema)

    def _slot(self, slot: Slot) -> int:
        self._slots.append(slot)
        return len(self._slots) - 1

    def _union(self, branches: Sequence[Any], each: Any) -> None:
        at = self._emit(self._ops.UNION, argument=len(branches))
        self._program += [0] * len(branches)
        ends = []
        for index, branch in enumerate(branches):
            self._program[at + self._ops.WORDS + index] = len(self._program)
            if self._resolved(branch) not in ("null", {"type": "null"}):
                each(branch)
            ends.append(self._emit(self._ops.JUMP))
        for end in ends:
            self._program[end + 2] = len(self._program)

    def _skip(self, schema: Any) -> None:
        if isinstance(schema, list):
            self._union(schema, self._skip)
            return
        resolved = self._resolved(schema)
        name = _name(resolved)
        if name == "null":
            return
        if name == "record":
            if resolved["name"] in self._open:
                self._calls.append((self._emit(self._ops.CALL), resolved["name"]))
                return
            self._open.append(resolved["name"])
            for field in resolved["fields"]:
                self._skip(field["type"])
            self._open.pop()
        elif name in ("array", "map"):
            begin = self._emit(self._ops.BLOCKS)
            body = len(self._program)
            if name == "map":
                self._emit(self._ops.BYTES)
            self._skip(resolved["items" if name == "array" else "values"])
            self._program[begin + 2] = self._emit(self._ops.NEXT, argument=body)
        else:
            kind, argument = self._plain(resolved, name)
            self._emit(kind, -1, argument)

    def _plain(self, schema: Any, name: str) -> tuple[int, int]:
        """The instruction that reads a value without parts."""
        ops = self._ops
        if name == "enum":
            return ops.ENUM, len(schema["symbols"])
        if name == "fixed":
            return ops.FIXED, schema["size"]
        return getattr(ops, _PLAIN[name][0]), 0

    def _leaf(self, schema: Any, column: int) -> tuple[int | None, int, Slot]:
        """The instruction that reads a value into a column, and the slot for it. Raises UnreadableError."""
        name, item = _name(schema), self._schema.field(column)
        if name == "null":
            return None, 0, Slot(column, Form.INTEGER, pa.null())
        if name in ("record", "array", "map"):
            raise UnreadableError(f"field {item.name} is of type {_said(schema)}, which has parts, and columns have none")
        form, own = _own_type(schema, name)
        if form is Form.UUID and pa.types.is_binary(item.type):
            form = Form.BYTES
        symbols = tuple(enumerate(schema["symbols"])) if name == "enum" else ()
        return *self._plain(schema, name), slot_for(column, item, form, own, _said(schema), symbols=symbols)


def _own_type(schema: Any, name: str) -> tuple[Form, pa.DataType]:
    """What the values are."""
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical == "decimal" and name in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0:
            if precision > _MOST_DIGITS:
                raise UnreadableError(f"has a {_said(schema)}, and there are {_MOST_DIGITS} digits at most")
            return Form.DECIMAL, pa.decimal128(precision, scale)
    if logical == "date" and name == "int":
        return Form.INTEGER, pa.date32()
    if logical in _TIMES and name == "long":
        return Form.INTEGER, _TIMES[logical]
    if logical == "uuid" and name == "fixed" and schema["size"] == 16:
        return Form.UUID, pa.string()
    if name == "enum":
        return Form.SYMBOL, pa.string()
    _, form, kind = _PLAIN.get(name, _PLAIN["bytes"])
    return form, kind


def _name(schema: Any) -> str:
    """What kind of type it is."""
    while isinstance(schema, dict):
        schema = schema["type"]
    name = str(schema)
    return "record" if name == "error" else name


def _said(schema: Any) -> str:
    """A type for people to read."""
    if not isinstance(schema, dict):
        return str(schema)
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema.get('precision')},{schema.get('scale', 0)})"
    name = str(schema.get("name", "")).rsplit(".", 1)[-1]
    return str(logical or f"{_name(schema)} {name}".strip())


def _listed(records: Sequence[Any]) -> str:
    names = [field["name"] for record in records for field in record["fields"]]
    return ", ".join(names[:20]) or "none"
