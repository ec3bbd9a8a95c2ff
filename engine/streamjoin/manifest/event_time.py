"""When a stream's tuples happened, as a manifest gives it: text (a column, or SQL), or fields.

For the API server it is any value: its schemas have no alternatives of text and fields. What is wrong with it, the operator reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, PlainSerializer, StringConstraints, WithJsonSchema

from streamjoin.manifest.field_types import Name, Sql
from streamjoin.manifest.part import Part


class EventTime(Part):
    """When a tuple happened: by the number or the text in a column, or by an expression. Text in place of these fields is the name of a
    TIMESTAMP or TIMESTAMP_NTZ column, or an expression."""

    column: Name | None = None
    """The column. With unit, of numbers; with format, of text; alone, a TIMESTAMP or TIMESTAMP_NTZ."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """What the column's numbers count since 1970-01-01 00:00:00 UTC: seconds, milliseconds, microseconds or nanoseconds."""
    format: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    """How the column's text has its time, as a datetime pattern of Spark: "dd/MM/yyyy HH:mm:ss"."""
    expression: Sql | None = None
    """The event time as SQL over this stream's columns: "to_timestamp(day || ' ' || time)"."""


def _as_fields(value: object) -> object:
    if isinstance(value, str):
        return {"expression": value}
    if isinstance(value, Mapping | EventTime):
        return value
    raise ValueError("is no event time; name a TIMESTAMP column, or write {column: ts, unit: ms}, {column: ts, format: ...} or SQL")


def _as_given(value: EventTime) -> str | dict[str, str]:
    fields = {name: text for name in EventTime.model_fields if (text := getattr(value, name)) is not None}
    return fields["expression"] if list(fields) == ["expression"] else fields


GivenEventTime = Annotated[
    EventTime,
    BeforeValidator(_as_fields),
    PlainSerializer(_as_given),
    WithJsonSchema({"x-kubernetes-preserve-unknown-fields": True}),
]
