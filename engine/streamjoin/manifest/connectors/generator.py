"""Made-up tuples, and whether they can fill the columns of a stream's schema.

Always holds: a generator without problems gives, for every tuple, a value that its column's type can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal, InvalidOperation, localcontext
from typing import Annotated

from pydantic import ConfigDict, Field

from streamjoin.language.schema import Column, Schema
from streamjoin.language.types import DataType, TypeName
from streamjoin.manifest.cel import Rule, seconds
from streamjoin.manifest.checks import Check, until_refused
from streamjoin.manifest.connector import SourceConnector
from streamjoin.manifest.field_types import Instant, Number, PositiveSpan, Scalar, Span, instant_micros
from streamjoin.manifest.part import Part
from streamjoin.manifest.problem import Problem, meant
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.rules import ascending, exactly_one, one_given, rule
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


class Ramp(Part):
    """A rate that changes evenly from one value to another, and stays there."""

    start: Annotated[float, Field(ge=0, le=1e9, alias="from")]
    """Tuples per second at the start."""
    end: Annotated[float, Field(gt=0, le=1e9, alias="to")]
    """Tuples per second from the end of the ramp on."""
    over: PositiveSpan
    """How long the ramp takes."""


class Diurnal(Part):
    """A rate that swings like a day's traffic: mean * (1 + amplitude * sin(2 pi (t + begin) / period))."""

    mean: Annotated[float, Field(gt=0, le=1e9)]
    """Tuples per second on average."""
    amplitude: Annotated[float, Field(ge=0, le=1)]
    """The height of the wave, as a share of the mean."""
    period: PositiveSpan
    """The time from peak to peak."""
    begin: Span = Duration(0)
    """How far into the wave the rate starts. At three quarters of the period it is lowest, and rises."""


class Spike(Part):
    """A steady rate with spikes."""

    base: Annotated[float, Field(gt=0, le=1e9)]
    """Tuples per second outside the spikes."""
    peak: Annotated[float, Field(gt=0, le=1e9)]
    """Tuples per second within a spike."""
    at: Span
    """When the first spike starts."""
    length: Annotated[PositiveSpan, Field(alias="for")]
    """How long a spike lasts."""
    every: PositiveSpan | None = None
    """The time from one spike's start to the next one's. Without it there is one spike."""

    api_rules = (
        rule(
            f"!has(self.every) || {seconds('self.__for__')} <= {seconds('self.every')}",
            lambda spike: spike.every is None or spike.length <= spike.every,
            "must be at most every ({every}); shorten it",
            field="for",
            shows=True,
        ),
    )


class Rate(Part):
    """Tuples per second of event time: exactly one of the fields."""

    constant: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """The same number of tuples per second at all times."""
    ramp: Ramp | None = None
    """From one rate to another."""
    diurnal: Diurnal | None = None
    """Up and down like a day's traffic."""
    spike: Spike | None = None
    """Steady with spikes."""

    api_rules = (exactly_one("constant", "ramp", "diurnal", "spike"),)


class Sequence(Part):
    """Consecutive numbers."""

    start: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """The first tuple's value."""


class Uniform(Part):
    """Values spread evenly over a range, bounds included: whole numbers in columns of whole numbers, real numbers elsewhere."""

    min: Number
    """The least value."""
    max: Number
    """The greatest value."""

    api_rules = (ascending("min", "max"),)


class Zipf(Part):
    """Whole numbers from 0, where value k is drawn in proportion to 1 / (k + 1)^exponent."""

    values: Annotated[int, Field(ge=1, le=10_000_000)]
    """How many values there are."""
    exponent: Annotated[float, Field(ge=0, le=10)]
    """The skew: 0 is even, 1 and more heavily skewed."""


class Hotspot(Part):
    """Values spread evenly over a range, except for a share of them in a narrow part that moves across the range."""

    min: Number
    """The least value."""
    max: Number
    """The greatest value."""
    width: Number
    """How wide the hot part is."""
    share: Annotated[float, Field(ge=0, le=1)]
    """The share of tuples that fall into the hot part."""
    period: PositiveSpan
    """How long the hot part takes across the range; then it starts again."""

    api_rules = (
        ascending("min", "max"),
        # A closed range of whole numbers has one value more than its ends are apart.
        Rule(
            "self.min > self.max || (self.width > 0.0 && self.width <= self.max - self.min + 1.0)",
            "must be above 0 and at most as wide as min to max",
            field="width",
        ),
    )


class ColumnGenerator(Part):
    """How one column is filled: exactly one of the fields."""

    # CEL cannot count the fields: values of any type are invisible to it.
    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    sequence: Sequence | None = None
    """Consecutive numbers."""
    uniform: Uniform | None = None
    """Numbers spread evenly over a range."""
    zipf: Zipf | None = None
    """Skewed whole numbers, 0 the most frequent."""
    hotspot: Hotspot | None = None
    """Numbers with a hot range that moves."""
    choice: Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1, max_length=100_000)] | None = None
    """A list of values, drawn with equal probability. null among them makes nulls."""


class GeneratorSource(SourceConnector):
    """Made-up tuples, the same ones for the same seed."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """The seed of everything random."""
    rows: Annotated[int, Field(ge=1, lt=2**62)] | None = None
    """How many tuples in all. Without it there is no end."""
    rate: Rate = Rate(constant=1000.0)
    """The rate: tuples per second of event time."""
    start: Instant = "2026-01-01T00:00:00Z"
    """The event time of the first tuple, as ISO 8601. Without a zone it is UTC."""
    real_time: bool = True
    """true: tuples come no faster than the wall clock allows, from the first epoch on; false: as fast as the engine reads them."""
    out_of_order: Span = Duration(0)
    """Event times are moved back by a random amount up to this."""
    columns: Annotated[dict[str, ColumnGenerator], Field(max_length=1000)]
    """How each column is filled. Every column of the schema must be here, except the eventTime column, which the rate fills."""

    opener = "streamjoin.io.generator:open_source"
    is_outside = False

    @property
    def identity(self) -> str:
        return "generator"

    @property
    def default_watermark(self) -> Duration | None:
        return self.out_of_order

    @property
    def start_micros(self) -> int:
        """``start`` in microseconds since 1970 UTC."""
        return instant_micros(self.start)

    def schema_problems(self, field: str, schema: Schema, event_time: str | None) -> Check:
        """Columns that it cannot fill."""
        field = f"{field}.source.generator"
        time_column = None if event_time is None else schema.get(event_time)
        given: dict[str, str] = {}
        for name, how in self.columns.items():
            here = f"{field}.{field_name(('columns', name))}"
            column = schema.get(name)
            if column is None:
                remedy = meant(name, schema.names, "the columns are")
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


def _column_problems(field: str, how: ColumnGenerator, column: Column) -> Check:
    given = [form for form in _FORMS if form in how.model_fields_set]
    yield from one_given(field, how, _FORMS)
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


def _range_problems(field: str, part: Uniform | Hotspot, column: Column) -> Check:
    yield from _value_problems(field, "min", part.min, part.min, column)
    yield from _value_problems(field, "max", part.max, part.max, column)
    if isinstance(part, Hotspot) and part.min <= part.max:
        yield from _value_problems(field, "width", part.width, part.width, column)
        # A closed range of whole numbers has one value more than its ends are apart.
        widest = part.max - part.min + (column.type.name in _BITS)
        if not 0 < part.width <= widest:
            yield Problem(f"{field}.width", part.width, f"must be above 0 and at most {widest}, as wide as min to max")


def _value_problems(field: str, name: str, value: int | float, greatest: int | float, column: Column) -> Check:
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
