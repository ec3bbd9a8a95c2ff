"""The types of the manifest's single fields: what a value may be, for pydantic and for the Kubernetes API server.

Always holds: each type says both in one place, and nothing that the API server refuses would pass here.
"""

from __future__ import annotations

import codecs
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Generic, Literal, TypeVar
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from streamjoin.location import place
from streamjoin.manifest.cel import Rule, seconds
from streamjoin.manifest.quantity import Cpu, Duration, Memory


def _number(value: object) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise ValueError("is not a number; write one without quotes")


def _scalar(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError("is not a value of a column; write a string, a number, true, false or null")


def _setting(value: object) -> str | int | float | bool:
    if isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError("is not a setting; write text, a number, true or false")


def _encoding(value: str) -> str:
    try:
        codec = codecs.lookup(value)
        "".encode(value)  # refuses those that are not of text, such as hex
    except (LookupError, UnicodeError, ValueError):
        raise ValueError("is not a text encoding of Python; write one such as utf-8, utf-16, latin-1 or windows-1252") from None
    return codec.name


_LONGEST_FRACTION = 20
_PERCENTAGE = r"^([1-9][0-9]?(\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*) ?%$"
_SUBDOMAIN = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
LABEL_NAME = rf"({_SUBDOMAIN}(\.{_SUBDOMAIN})*/)?[A-Za-z0-9]([A-Za-z0-9_.-]{{0,61}}[A-Za-z0-9])?"
LABEL_VALUE = "([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
_LONGEST_LABEL_NAME = 253 + 1 + 63


def _fraction(value: object) -> object:
    """Kubernetes has its reasons to store fractions as text, so those that are not whole must be."""
    if isinstance(value, str):
        if len(value) > _LONGEST_FRACTION or not re.fullmatch(r"(0|[1-9][0-9]*)(\.[0-9]+)?", value):
            raise ValueError('is not a number; write one between 0 and 1, such as "0.1"')
        return float(value)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f'must be text, which alone Kubernetes keeps as it is; put it in quotes: "{value:.15g}"')
    return value


def instant_micros(text: str) -> int:
    """Microseconds since 1970 UTC of an ISO 8601 date and time. Raises ValueError saying how to write it."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is not a date and time; write it as 2026-01-01T00:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _instant(value: str) -> str:
    instant_micros(value)
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ValueError, OSError, KeyError):
        raise ValueError("is not the name of a time zone; write one as Europe/Berlin or Etc/UTC") from None
    return value


def _location(value: str) -> str:
    place(value)
    return value


def _label_names(labels: dict[str, str]) -> dict[str, str]:
    for name in labels:
        if len(name) > _LONGEST_LABEL_NAME or not re.fullmatch(LABEL_NAME, name):
            raise ValueError(f"has {name!r}, which is no name of a label; write one as release or example.com/team")
    return labels


@dataclass(frozen=True, slots=True)
class Matching:
    """Text that matches a pattern, here and for the API server."""

    pattern: str
    message: str

    def check(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise ValueError(self.message)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return Rule(f"self.matches('^{self.pattern}$')", self.message).__get_pydantic_json_schema__(core, handler)


_Ordered = TypeVar("_Ordered", Duration, Memory, Cpu)


@dataclass(frozen=True, slots=True)
class _Between(Generic[_Ordered]):
    """The closed range of a quantity, here and for the API server."""

    low: _Ordered
    high: _Ordered

    @property
    def message(self) -> str:
        return f"must be at least {self.low} and at most {self.high}"

    def check(self, value: _Ordered) -> _Ordered:
        if not self.low <= value <= self.high:
            raise ValueError(self.message)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return Rule(self.expression(), self.message).__get_pydantic_json_schema__(core, handler)

    def expression(self) -> str:
        if not isinstance(self.low, Duration) or not isinstance(self.high, Duration):
            # NB: Kubernetes 1.31 takes self, a number or text, to be as long as a request may be; a rule's budget lets it be read once.
            number = f"self >= {_plain(self.low)} && self <= {_plain(self.high)}"
            text = f"read.compareTo(quantity('{self.low}')) >= 0 && read.compareTo(quantity('{self.high}')) <= 0"
            return f"type(self) in [int] ? {number} : [quantity(self)].all(read, {text})"
        length = seconds("self")
        upper = f"{length} <= {self.high.micros / 1e6}"
        # A duration is above 0 if it has another digit than 0.
        lower = {0: "", 1: "self.matches('[1-9]') && "}.get(self.low.micros, f"{length} >= {self.low.micros / 1e6} && ")
        return lower + upper


def _plain(amount: Memory | Cpu) -> int:
    """What an amount is as a plain number: bytes, or cores, of which there are whole ones."""
    return amount.bytes if isinstance(amount, Memory) else amount.cores


LONGEST = Duration.parse("36500d")
"""A hundred years: far from where sums of event times and durations would leave 64 bits."""

Span = Annotated[Duration, _Between(Duration(0), LONGEST)]
"""A duration that may be 0."""
_SPAN = _Between(Duration(0), LONGEST)


def _or_never(value: object) -> Duration | Literal["never"]:
    return "never" if value == "never" else _SPAN.check(Duration.read(value))


SpanOrNever = Annotated[
    Duration | Literal["never"],
    PlainValidator(_or_never),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": Duration.LONGEST, "pattern": f"^never$|{Duration.PATTERN}"}),
    Rule(f"self == 'never' || {_SPAN.expression()}", _SPAN.message),
]
"""A duration that may be 0, or never."""
PositiveSpan = Annotated[Duration, _Between(Duration(1), LONGEST)]
DeadlineSpan = Annotated[Duration, _Between(Duration.parse("10s"), LONGEST)]
IdleSpan = Annotated[Duration, _Between(Duration.parse("10s"), LONGEST)]
DiscoverySpan = Annotated[Duration, _Between(Duration.parse("100ms"), Duration.parse("1h"))]
ScrapeSpan = Annotated[Duration, _Between(Duration.parse("1s"), Duration.parse("30s"))]
EpochSpan = Annotated[Duration, _Between(Duration.parse("0s"), Duration.parse("1h"))]
MemoryAmount = Annotated[Memory, _Between(Memory.parse("64Mi"), Memory.parse("16Ti"))]
CapacityAmount = Annotated[Memory, _Between(Memory.parse("1Ki"), Memory.parse("16Ti"))]
FileAmount = Annotated[Memory, _Between(Memory.parse("1Mi"), Memory.parse("16Gi"))]
EpochAmount = Annotated[Memory, _Between(Memory.parse("1Mi"), Memory.parse("16Gi"))]
CpuAmount = Annotated[Cpu, _Between(Cpu.parse("100m"), Cpu.parse("256"))]
Number = Annotated[int | float, PlainValidator(_number), WithJsonSchema({"type": "number"})]
Scalar = Annotated[
    str | int | float | bool | None,
    PlainValidator(_scalar),
    WithJsonSchema({"x-kubernetes-preserve-unknown-fields": True}),
]
Fraction = Annotated[
    float,
    BeforeValidator(_fraction),
    Field(ge=0, le=1),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "minimum": 0,
            "maximum": 1,
            "maxLength": _LONGEST_FRACTION,
            "pattern": r"^(0(\.[0-9]+)?|1(\.0+)?)$",
        }
    ),
]
TimeOfDay = Annotated[str, StringConstraints(max_length=5, pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
"""As 08:30."""
Percentage = Annotated[
    str,
    StringConstraints(max_length=20),
    AfterValidator(Matching(_PERCENTAGE, "is not a percentage above 0 and below 100; write one as 99.9 %").check),
    WithJsonSchema({"type": "string", "maxLength": 20, "pattern": _PERCENTAGE}),
]
"""As 99.9 %; above 0, and below 100."""
BudgetSpan = Annotated[Duration, _Between(Duration.parse("1h"), Duration.parse("30d"))]
TimeZone = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(_zone)]
Tau = Annotated[float, Field(gt=0, le=1)]
Location = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1024),
    AfterValidator(_location),
    Rule(
        "!self.matches('^[A-Za-z][A-Za-z0-9+.-]*:/') || self.matches('^(?i:file|s3|s3a|gs|abfs|abfss|az):/')",
        "begins with no store that is known; give a local path or a file://, s3://, gs://, abfss:// or az:// URL",
    ),
    Rule(
        "!self.matches('^(?i:s3|s3a|gs|abfs|abfss|az):/')"
        " || self.matches('^(?i:s3|s3a|gs|az)://[^/]') || self.matches('^(?i:abfs|abfss)://[^/]*@')",
        "does not say where in the store; write it as s3://bucket/path or abfss://container@account.dfs.core.windows.net/path",
    ),
    Rule("self.trim() == self", "is not a place; give a local path or a URL, without spaces around it"),
    Rule("!self.startsWith('~')", "begins with ~, which only a shell expands; write the directory's full path"),
]
Encoding = Annotated[str, StringConstraints(max_length=40, pattern=r"^[A-Za-z0-9._-]+$"), AfterValidator(_encoding)]
HttpUrl = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1024),
    Matching(
        "https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?",
        "is not the address of a server; write http:// or https://, a host, a port if need be, and no more than a path",
    ),
]
ObjectName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253),
    Matching("[a-z0-9]([a-z0-9.-]*[a-z0-9])?", "is not a name of an object; use lower-case letters, digits and, inside, - and ."),
]
"""The name of a Kubernetes object."""
RESOURCE_NAME = Matching(
    "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
    "is not a name for a resource; use lower-case letters, digits and, inside, -; at most 63 characters",
)
ResourceName = Annotated[str, StringConstraints(min_length=1), RESOURCE_NAME]
StreamName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=63),
    Matching("[A-Za-z][A-Za-z0-9_]*", "cannot stand in SQL; use letters, digits and _, beginning with a letter"),
]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=f"^{LABEL_VALUE}$")]
Labels = Annotated[dict[str, LabelValue], Field(max_length=32), AfterValidator(_label_names)]
"""Labels of a Kubernetes object. Of their names the API server could say only at too high a cost what they may be."""
Instant = Annotated[str, StringConstraints(max_length=64), AfterValidator(_instant)]
Sql = Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
FreeForm = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
Setting = Annotated[
    str | int | float | bool,
    PlainValidator(_setting),
    WithJsonSchema({"x-kubernetes-preserve-unknown-fields": True}),
]
Options = Annotated[dict[str, Setting], Field(max_length=200)]
"""Settings of a library, by name."""

# Strict models take only tuples for tuples, and YAML has only lists: the sequence alone is read leniently.
Texts = Annotated[tuple[Sql, ...], Field(strict=False, max_length=1000)]
Names = Annotated[tuple[Name, ...], Field(strict=False, max_length=1000)]
