"""Schemas from Spark DDL."""

from __future__ import annotations

import re

from streamjoin.language.errors import SqlError, excerpt
from streamjoin.language.schema import HELD, Column, Schema
from streamjoin.language.types import COLUMN_TYPES, DataType, TypeName, bad_decimal, decimal_type

SHOWN = ("_key", "_time")
"""What queries show of a held tuple besides its columns."""
_TYPE_NAMES = {
    "BOOLEAN": TypeName.BOOLEAN,
    "BYTE": TypeName.TINYINT,
    "TINYINT": TypeName.TINYINT,
    "SHORT": TypeName.SMALLINT,
    "SMALLINT": TypeName.SMALLINT,
    "INT": TypeName.INT,
    "INTEGER": TypeName.INT,
    "LONG": TypeName.BIGINT,
    "BIGINT": TypeName.BIGINT,
    "FLOAT": TypeName.FLOAT,
    "REAL": TypeName.FLOAT,
    "DOUBLE": TypeName.DOUBLE,
    "DECIMAL": TypeName.DECIMAL,
    "DEC": TypeName.DECIMAL,
    "NUMERIC": TypeName.DECIMAL,
    "STRING": TypeName.STRING,
    "BINARY": TypeName.BINARY,
    "DATE": TypeName.DATE,
    "TIMESTAMP": TypeName.TIMESTAMP,
    "TIMESTAMP_LTZ": TypeName.TIMESTAMP,
    "TIMESTAMP_NTZ": TypeName.TIMESTAMP_NTZ,
}

_DDL_COLUMN = re.compile(
    r"""\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<bare>\w+))(?:\s*:\s*|\s+)
        (?P<type>[A-Za-z_]\w*)\s*(?:\(\s*(?P<arguments>[^()]*)\))?
        (?:\s+NOT\s+NULL)?
        (?:\s+COMMENT\s+(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))?
        \s*(?P<end>,|$)""",
    re.VERBOSE | re.IGNORECASE,
)


def parse_schema(ddl: str) -> Schema:
    """A stream's schema from Spark DDL: ``id BIGINT, price DECIMAL(10,2) NOT NULL, at TIMESTAMP``.

    NOT NULL and COMMENT are read and ignored: the engine takes any column to have nulls. Raises SqlError on an empty
    schema, an unknown type, a name that appears twice (whatever its case), or one of the two that queries show of every stream.
    """
    if not ddl.strip():
        raise SqlError("the schema has no columns", 'declare them as Spark DDL, such as "id BIGINT, at TIMESTAMP"')
    columns: dict[str, Column] = {}
    position = 0
    while True:
        match = _DDL_COLUMN.match(ddl, position)
        if match is None:
            raise SqlError(
                f"cannot read the schema at {excerpt(ddl[position:].strip())}",
                'write a name and a type per column, separated by commas, such as "id BIGINT, at TIMESTAMP"',
            )
        name = match["bare"] or match["quoted"].replace("``", "`")
        if name.casefold() in SHOWN or name.startswith(HELD):
            raise SqlError(f"column name {name!r} is the engine's own", "rename it: queries show a tuple's key and time as _key and _time")
        if name.casefold() in columns:
            raise SqlError(f"column {name} is declared twice", "names must differ in more than case")
        columns[name.casefold()] = Column(name, _ddl_type(match["type"], match["arguments"]))
        if not match["end"]:
            return Schema(tuple(columns.values()))
        position = match.end()


def _ddl_type(name: str, arguments: str | None) -> DataType:
    known = _TYPE_NAMES.get(name.upper())
    if known is None:
        raise SqlError(f"unknown type {name}", f"use {COLUMN_TYPES}")
    if known is not TypeName.DECIMAL:
        if arguments is not None:
            raise SqlError(f"type {name} takes no arguments, got ({arguments.strip()})", f"write {name}")
        return DataType(known)
    try:
        numbers = [int(part) for part in arguments.split(",")] if arguments is not None else [10, 0]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2:
        raise bad_decimal(arguments)
    return decimal_type(*numbers)
