"""SQL types as Arrow types: the only place that maps one to the other.

Always holds: the mapping is one to one on the types that columns may have, so a batch's Arrow schema says its SQL schema.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from streamjoin.language.schema import Schema, held_name
from streamjoin.language.sql import Expression
from streamjoin.language.types import DataType, TypeName

_ARROW: dict[TypeName, pa.DataType] = {
    TypeName.BOOLEAN: pa.bool_(),
    TypeName.TINYINT: pa.int8(),
    TypeName.SMALLINT: pa.int16(),
    TypeName.INT: pa.int32(),
    TypeName.BIGINT: pa.int64(),
    TypeName.FLOAT: pa.float32(),
    TypeName.DOUBLE: pa.float64(),
    TypeName.STRING: pa.string(),
    TypeName.BINARY: pa.binary(),
    TypeName.DATE: pa.date32(),
    TypeName.TIMESTAMP: pa.timestamp("us", "UTC"),
    TypeName.TIMESTAMP_NTZ: pa.timestamp("us"),
    TypeName.INTERVAL: pa.duration("us"),
}


def arrow_type(t: DataType) -> pa.DataType:
    """The Arrow type that holds values of a SQL type."""
    if t.name is TypeName.DECIMAL:
        return pa.decimal128(t.precision, t.scale)
    return _ARROW[t.name]


def arrow_schema(s: Schema) -> pa.Schema:
    """The Arrow schema of a stream's records: every column nullable, in the order declared."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in s.columns])


def held_fields(s: Schema) -> list[pa.Field]:
    """The same as fields of held tuples."""
    return [pa.field(held_name(column.name), arrow_type(column.type)) for column in s.columns]


def output_schema(output: Sequence[tuple[str, Expression]]) -> pa.Schema:
    """The Arrow schema of results with these columns."""
    return pa.schema([pa.field(name, arrow_type(expression.type)) for name, expression in output])
