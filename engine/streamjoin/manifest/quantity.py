"""Durations and resource quantities as a manifest writes them: ``1h30m``, ``500ms``, ``2Gi``, ``500m``.

Always holds: values are exact integers (microseconds, bytes, thousandths of a core); text that is not a whole number
of them is refused, never rounded. ``str`` gives text that parses to the same value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

DURATION_UNITS: dict[str, int] = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
"""Microseconds in each unit, longest first."""

_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|us|d|h|m|s)")

_MEMORY_UNITS: dict[str, int] = {
    "": 1,
    **{f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)},
    **{letter: 1000**power for power, letter in enumerate("kMGTPE", start=1)},
}


class Quantity:
    """What the quantities have in common: in a manifest they are text, and plain numbers where those need no unit."""

    __slots__ = ()

    PATTERN: ClassVar[str]
    LONGEST: ClassVar[int] = 64
    """Characters."""
    NUMBERS: ClassVar[tuple[type, ...]] = ()
    """Types of plain numbers that are read as if they were quoted."""

    @classmethod
    def parse(cls, text: str) -> Self:
        raise NotImplementedError

    @classmethod
    def read(cls, value: object) -> Self:
        """The quantity that a manifest's value means. Raises ValueError saying what is wrong and how to write it."""
        if isinstance(value, cls):
            return value
        number = isinstance(value, cls.NUMBERS) and not isinstance(value, bool)
        text = value if isinstance(value, str) else str(value) if number else ""
        return cls.parse(text if len(text) <= cls.LONGEST else "")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.read, serialization=core_schema.to_string_ser_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        text = {"maxLength": cls.LONGEST, "pattern": cls.PATTERN}
        return {"x-kubernetes-int-or-string": True, **text} if cls.NUMBERS else {"type": "string", "minLength": 1, **text}


@dataclass(frozen=True, order=True, slots=True)
class Duration(Quantity):
    """A length of time in whole microseconds, never negative."""

    micros: int

    PATTERN: ClassVar[str] = "^" + "".join(rf"([0-9]+(\.[0-9]+)?{unit})?" for unit in DURATION_UNITS) + "$"
    """Also of the empty text, which is none."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """``180s``, ``500ms``, ``1h30m``, ``1.5s``. Raises ValueError saying what is wrong and how to write it."""
        if not re.fullmatch(rf"({_DURATION_PART.pattern})+", text):
            raise ValueError("is not a duration; write a number with a unit (us, ms, s, m, h or d), such as 500ms, 180s or 1h30m")
        total = Fraction(0)
        seen: list[str] = []
        for number, unit in _DURATION_PART.findall(text):
            seen.append(unit)
            total += Fraction(number) * DURATION_UNITS[unit]
        if sorted(set(seen), key=list(DURATION_UNITS).index) != seen:
            raise ValueError("names its units out of order or twice; write the longest first, such as 1h30m")
        if total.denominator != 1:
            raise ValueError("is not a whole number of microseconds; round it")
        return cls(int(total))

    def __str__(self) -> str:
        """The shortest text in whole units: ``90m`` is ``1h30m``."""
        if self.micros == 0:
            return "0s"
        rest = self.micros
        parts = []
        for unit, size in DURATION_UNITS.items():
            count, rest = divmod(rest, size)
            if count:
                parts.append(f"{count}{unit}")
        return "".join(parts)


@dataclass(frozen=True, order=True, slots=True)
class Memory(Quantity):
    """An amount of memory in bytes."""

    bytes: int

    PATTERN: ClassVar[str] = r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?$"
    NUMBERS: ClassVar[tuple[type, ...]] = (int,)

    @classmethod
    def parse(cls, text: str) -> Self:
        """``2Gi``, ``1.5G``, ``1073741824``. Raises ValueError saying what is wrong and how to write it."""
        if not re.fullmatch(cls.PATTERN, text):
            raise ValueError("is not an amount of memory; write a number with Ki, Mi, Gi or Ti, such as 2Gi")
        number, unit = _split_unit(text)
        value = Fraction(number) * _MEMORY_UNITS[unit]
        if value.denominator != 1:
            raise ValueError("is not a whole number of bytes; round it")
        return cls(int(value))

    def __str__(self) -> str:
        for power, letter in reversed(list(enumerate("KMGTPE", start=1))):
            if self.bytes and self.bytes % 1024**power == 0:
                return f"{self.bytes // 1024**power}{letter}i"
        return str(self.bytes)


@dataclass(frozen=True, order=True, slots=True)
class Cpu(Quantity):
    """Processor time in thousandths of a core."""

    millis: int

    PATTERN: ClassVar[str] = r"^[0-9]+(\.[0-9]+)?m?$"
    NUMBERS: ClassVar[tuple[type, ...]] = (int,)

    @classmethod
    def parse(cls, text: str) -> Self:
        """``1``, ``0.5``, ``500m``. Raises ValueError saying what is wrong and how to write it."""
        if not re.fullmatch(cls.PATTERN, text):
            raise ValueError('is not an amount of CPU; write cores, such as "1", or thousandths of one, such as 500m')
        value = Fraction(text[:-1]) if text.endswith("m") else Fraction(text) * 1000
        if value.denominator != 1:
            raise ValueError("is finer than a thousandth of a core; round it")
        return cls(int(value))

    @property
    def cores(self) -> int:
        """Whole cores that this amount needs, at least one."""
        return max(1, -(-self.millis // 1000))

    def __str__(self) -> str:
        return str(self.millis // 1000) if self.millis % 1000 == 0 else f"{self.millis}m"


def _split_unit(text: str) -> tuple[str, str]:
    digits = text.rstrip("KMGTPEki")
    return digits, text[len(digits) :]
