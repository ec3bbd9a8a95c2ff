"""Whether a generator can fill the columns of a stream's schema.

Always holds: a generator without problems gives, for every tuple, a value that its column's type can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal, InvalidOperation, localcontext

from streamjoin.language.schema import Column, Schema
from streamjoin.language.types import DataType, TypeName
from streamjoin.manifest.field_types import Scalar, instant_micros
from streamjoin.manifest.fields import one_of, until_refused
from streamjoin.manifest.problem import Problem, closest, listed
from streamjoin.manifest.sources import ColumnGenerator, GeneratorSource, Hotspot, Uniform
from streamjoin.manifest.text import field_name

_BITS = {
    TypeName.TINYINT: 7,
    TypeName.SMALLINT: 15,
    TypeName.INT: 31,
    TypeName.BIGINT: 63,
    TypeName.DATE: 31,
    TypeName.TIMESTAMP: 63,
    TypeName.TIMESTAMP_NTZ: 63,
    TypeName.STRING: 63,
}
"""Types that are made from whole numbers, and how large those may be: dates from days and timestamps from microseconds
since 1970, strings from their digits."""

_FLOAT_BITS = {TypeName.FLOAT: 24, TypeName.DOUBLE: 53}
"""Up to here every whole number is one of the type."""

_NUMBERS = (TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT)

_LARGEST_FLOAT = Decimal("3.4028234663852886e38")

_FORMS = ("sequence", "uniform", "zipf", "hotspot", "choice")


def generator_problems(
    field: str, generator: GeneratorSource, schema: Schema, event_time: str | None
) -> Iterator[Problem]:
    """What keeps a generator from filling the schema; ``field`` is where the generator stands."""
    time_column = None if event_time is None else schema.get(event_time)
    given: dict[str, str] = {}
    for name, how in generator.columns.items():
        here = f"{field}.{field_name(('columns', name))}"
        column = schema.get(name)
        if column is None:
            close = closest(name, schema.names)
            remedy = f"did you mean {close}?" if close else f"the columns are {listed(schema.names, 'and')}"
            yield Problem(here, None, f"is not a column of the schema; {remedy}")
        elif column == time_column:
            yield Problem(here, None, "is the eventTime column, which the rate fills; remove it here")
        elif name.casefold() in given:
            yield Problem(here, None, f"is the same column as {given[name.casefold()]}; keep one")
        else:
            yield from until_refused(_column_problems(here, how, column))
        given.setdefault(name.casefold(), name)
    for column in schema.columns:
        if column != time_column and column.name.casefold() not in given:
            message = f"is missing; say how to fill the column {column.name} ({column.type})"
            yield Problem(f"{field}.{field_name(('columns', column.name))}", None, message)


def _column_problems(field: str, how: ColumnGenerator, column: Column) -> Iterator[Problem]:
    given = [form for form in _FORMS if form in how.model_fields_set]
    yield from one_of(field, how, _FORMS)
    if len(given) != 1:
        return
    form = given[0]
    part = getattr(how, form)
    here = f"{field}.{form}"
    if form == "choice":
        for index, value in enumerate(part):
            reason = _misfit(value, column.type)
            if reason:
                yield Problem(f"{here}[{index}]", value, f"{reason}, as the column {column.name} needs")
        return
    if column.type.name in (TypeName.BOOLEAN, TypeName.BINARY):
        yield Problem(here, None, f"cannot fill {column.name}, which is {column.type}; use choice")
    elif form == "sequence":
        yield from _value_problems(here, "start", part.start, part.start, column)
    elif form == "zipf":
        yield from _value_problems(here, "values", part.values, part.values - 1, column)
    else:
        yield from _range_problems(here, part, column)


def _range_problems(field: str, part: Uniform | Hotspot, column: Column) -> Iterator[Problem]:
    yield from _value_problems(field, "min", part.min, part.min, column)
    yield from _value_problems(field, "max", part.max, part.max, column)
    if part.min > part.max:
        yield Problem(f"{field}.min", part.min, f"must be at most max ({part.max})")
    elif isinstance(part, Hotspot):
        yield from _value_problems(field, "width", part.width, part.width, column)
        # A closed range of whole numbers has one value more than its ends are apart.
        widest = part.max - part.min + (column.type.name in _BITS)
        if not 0 < part.width <= widest:
            yield Problem(f"{field}.width", part.width, f"must be above 0 and at most {widest}, as wide as min to max")


def _value_problems(
    field: str, name: str, value: int | float, greatest: int | float, column: Column
) -> Iterator[Problem]:
    """Whether the column can hold ``greatest``, to which ``value`` of the field ``name`` leads."""
    data_type, exact = column.type, Decimal(str(greatest))
    if data_type.name in _BITS and exact != exact.to_integral_value():
        message = f"must be a whole number, because {column.name} is {data_type}"
        yield Problem(f"{field}.{name}", value, message)
    elif data_type.name is TypeName.DECIMAL and not _has_scale(exact, data_type.scale):
        message = f"must have at most {data_type.scale} decimals, because {column.name} is {data_type}"
        yield Problem(f"{field}.{name}", value, message)
    elif not _holds(exact, data_type, by_whole_numbers=field.endswith(("sequence", "zipf"))):
        yield Problem(f"{field}.{name}", value, f"is beyond what {column.name} ({data_type}) can be filled with")


def _holds(value: Decimal, data_type: DataType, *, by_whole_numbers: bool) -> bool:
    if data_type.name in _BITS:
        return bool(-(2 ** _BITS[data_type.name]) <= value < 2 ** _BITS[data_type.name])
    if data_type.name is TypeName.DECIMAL:
        # Made as 64-bit integers, whatever the precision.
        return bool(abs(value.scaleb(data_type.scale)) <= min(10**data_type.precision - 1, 2**63 - 1))
    if by_whole_numbers:
        return bool(abs(value) <= 2 ** _FLOAT_BITS[data_type.name])
    return data_type.name is not TypeName.FLOAT or bool(abs(value) <= _LARGEST_FLOAT)


def _has_scale(value: Decimal, scale: int) -> bool:
    with localcontext(prec=400):
        shifted = value.scaleb(scale)
        return bool(shifted == shifted.to_integral_value())


def _misfit(value: Scalar, data_type: DataType) -> str | None:
    """Why a value is none of the type, or None if it is one. Null is of every type."""
    if value is None:
        return None
    name = data_type.name
    if name is TypeName.BOOLEAN:
        return None if isinstance(value, bool) else "is not true or false"
    if name is TypeName.DECIMAL:
        return None if _is_decimal(value, data_type) else f"is not a number that {data_type} holds exactly"
    if name in _NUMBERS or name in _FLOAT_BITS:
        whole = name in _NUMBERS
        if isinstance(value, bool | str) or (isinstance(value, float) and whole):
            return f"is not a {'whole ' * whole}number"
        fits = _holds(Decimal(str(value)), data_type, by_whole_numbers=False)
        return None if fits else f"is more than {data_type} can hold"
    if not isinstance(value, str):
        return "is not text; put it in quotes"
    if name is TypeName.DATE:
        return None if _parses(date.fromisoformat, value) else "is not a date such as 2026-01-31"
    if name in (TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ):
        return None if _parses(instant_micros, value) else "is not a date and time such as 2026-01-31T12:00:00Z"
    return None


def _is_decimal(value: str | int | float | bool, data_type: DataType) -> bool:
    try:
        exact = Decimal(str(value))
    except InvalidOperation:
        return False
    if not exact.is_finite() or isinstance(value, bool):
        return False
    with localcontext(prec=400):
        largest = Decimal(10) ** (data_type.precision - data_type.scale)
        return _has_scale(exact, data_type.scale) and abs(exact) < largest


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True
