"""Numbers of a batch: exact ones, which neither overflow nor round, and float64.

An exact number is an integer times a power of ten: int64 until one does not fit, and Python integers from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.kernel.arrays import Array, both, validity, view
from streamjoin.language.predicate import INT64_MAX, INT64_MIN
from streamjoin.language.tree import Literal
from streamjoin.language.types import DATE, INTEGER_BITS, DataType, TypeName

_DOUBLE_EXACT = 2**53
"""Up to here every integer is a float64."""
_POWERS_EXACT = 22
"""Up to this power of ten, each is a float64."""


@dataclass(slots=True)
class Real:
    """Numbers as float64; arbitrary where they are not valid. None: valid everywhere."""

    values: Array
    valid: Array | None


@dataclass(slots=True)
class Exact:
    """Numbers ``values * 10**-scale``: int64, or Python integers in an object array."""

    values: Array
    valid: Array | None
    scale: int = 0
    bound: int | None = None
    """No absolute value is larger; None: not looked at yet."""

    def limit(self) -> int:
        """An absolute value that none exceeds. O(1) after the first call."""
        if self.bound is None:
            self.bound = max(-int(self.values.min()), int(self.values.max()), 0) if self.values.size else 0
        return self.bound

    def _wide(self) -> Array:
        return self.values.astype(object, copy=False)

    def times(self, factor: int) -> Exact:
        """The number multiplied by a constant."""
        if factor == 1:
            return self
        bound = self.limit() * abs(factor)
        if bound == 0:
            return self
        values = self.values * np.int64(factor) if self._narrow(bound) else self._wide() * factor
        return Exact(values, self.valid, self.scale, bound)

    def _narrow(self, bound: int) -> bool:
        return bound <= INT64_MAX and self.values.dtype != object

    def at_scale(self, scale: int) -> Exact:
        """The same numbers with at least as many fraction digits."""
        scaled = self.times(10 ** (scale - self.scale))
        return Exact(scaled.values, scaled.valid, scale, scaled.bound)

    def combined(self, other: Exact, function: Callable[[Any, Any], Any]) -> Exact:
        """The sum or difference (``function`` is operator.add or operator.sub)."""
        scale = max(self.scale, other.scale)
        first, second = self.at_scale(scale), other.at_scale(scale)
        bound = first.limit() + second.limit()
        narrow = first._narrow(bound) and second._narrow(bound)
        values = function(first.values, second.values) if narrow else function(first._wide(), second._wide())
        return Exact(values, both(self.valid, other.valid), scale, bound)

    def product(self, other: Exact) -> Exact:
        bound = self.limit() * other.limit()
        narrow = self._narrow(bound) and other._narrow(bound)
        values = self.values * other.values if narrow else self._wide() * other._wide()
        return Exact(values, both(self.valid, other.valid), self.scale + other.scale, bound)

    def quotient(self, other: Exact, scale: int) -> Exact:
        """Rounded half up (away from zero) to so many fraction digits; not valid where divided by zero."""
        shift = scale - self.scale + other.scale
        above, below = self.times(10 ** max(shift, 0)), other.times(10 ** max(-shift, 0))
        nonzero = below.values != 0
        divisor = np.where(nonzero, below.values, 1)
        bound = 2 * above.limit() + below.limit()
        narrow = above._narrow(bound) and below._narrow(2 * below.limit() + 1)
        dividend, divisor = (above.values, divisor) if narrow else (above._wide(), divisor.astype(object))
        size = (2 * np.abs(dividend) + np.abs(divisor)) // (2 * np.abs(divisor))
        values = np.where((dividend < 0) != (divisor < 0), -size, size)
        return Exact(values, both(both(self.valid, other.valid), nonzero), scale, above.limit() + 1)

    def remainder(self, other: Exact) -> Exact:
        """With the dividend's sign; not valid where divided by zero."""
        scale = max(self.scale, other.scale)
        first, second = self.at_scale(scale), other.at_scale(scale)
        nonzero = second.values != 0
        divisor = np.where(nonzero, second.values, 1)
        bound = max(first.limit(), second.limit())
        narrow = first._narrow(bound) and second._narrow(bound)
        dividend, divisor = (first.values, divisor) if narrow else (first._wide(), divisor.astype(object))
        size = np.abs(dividend) % np.abs(divisor)
        return Exact(np.where(dividend < 0, -size, size), both(both(self.valid, other.valid), nonzero), scale, bound)

    def negated(self) -> Exact:
        return self.times(-1)

    def absolute(self) -> Exact:
        values = self.values if self._narrow(self.limit()) else self._wide()
        return Exact(np.abs(values), self.valid, self.scale, self.limit())

    def rescaled(self, scale: int, *, truncate: bool = False) -> Exact:
        """With so many fraction digits, rounded half up (away from zero) or towards zero where they become fewer."""
        if scale >= self.scale:
            return self.at_scale(scale)
        unit = 10 ** (self.scale - scale)
        narrow = self._narrow(2 * self.limit() + unit) and 2 * unit <= INT64_MAX
        values = self.values if narrow else self._wide()
        size = np.abs(values) // unit if truncate else (2 * np.abs(values) + unit) // (2 * unit)
        return Exact(np.where(values < 0, -size, size), self.valid, scale, self.limit() // unit + 1)

    def floor(self) -> Exact:
        if self.scale == 0:
            return self
        unit = 10**self.scale
        values = self.values if unit <= INT64_MAX else self._wide()
        return Exact(values // unit, self.valid, 0, self.limit() // unit + 1)

    def real(self) -> Real:
        """The nearest float64 of each."""
        if self.scale == 0 and self.values.dtype != object:
            return Real(self.values.astype(np.float64), self.valid)
        power = 10**self.scale
        if self.scale > _POWERS_EXACT or self.values.dtype == object:
            return Real(np.array([_nearest(value, power) for value in self.values.tolist()], np.float64), self.valid)
        # A quotient of two float64 that are exact is rounded once; only for the few longer numbers is that not so.
        values = self.values.astype(np.float64) / float(power)
        if self.limit() > _DOUBLE_EXACT:
            long = np.flatnonzero((self.values > _DOUBLE_EXACT) | (self.values < -_DOUBLE_EXACT))
            values[long] = [value / power for value in self.values[long].tolist()]
        return Real(values, self.valid)


def _nearest(value: int, power: int) -> float:
    try:
        return value / power
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def fitting(exact: Exact, low: int, high: int) -> tuple[Array, Array | None]:
    """The integers, with 0 for those outside [low, high], and which are valid and inside."""
    if exact.values.dtype != object and (exact.bound is not None or exact.values.dtype == np.int64) and exact.limit() <= min(high, -low):
        return exact.values, exact.valid
    inside = (exact.values >= low) & (exact.values <= high)
    inside = inside.astype(bool)
    values = np.where(inside, exact.values, 0)
    return values, exact.valid if inside.all() else both(exact.valid, inside)


def exact_of(array: pa.Array, type_: DataType) -> Exact:
    """The numbers of an integer, decimal or temporal column."""
    valid = validity(array)
    if type_.name is TypeName.DECIMAL:
        limbs = view(array, np.dtype([("low", "<u8"), ("high", "<i8")]))
        low = limbs["low"].astype(np.int64)
        if type_.precision <= 18 or bool((limbs["high"] == low >> 63).all()):
            return Exact(low, valid, type_.scale)
        return Exact(limbs["high"].astype(object) * 2**64 + limbs["low"].astype(object), valid, type_.scale)
    if type_.name in INTEGER_BITS:
        bits = INTEGER_BITS[type_.name]
        values = view(array, np.dtype(f"i{bits // 8}")).astype(np.int64, copy=False)
        return Exact(values, valid, 0, None if bits == 64 else 1 << (bits - 1))
    if type_ == DATE:
        return Exact(view(array, np.int32).astype(np.int64), valid, 0, 1 << 31)
    return Exact(view(array, np.int64), valid)


def exact_literal(literal: Literal) -> Exact:
    """The number of an exact or temporal literal, as an array of length one."""
    valid = np.zeros(1, bool) if literal.value is None else None
    if isinstance(literal.value, Decimal):
        sign, digits, exponent = literal.value.as_tuple()
        number = int("".join(map(str, digits))) * (-1 if sign else 1)
        scale = -int(exponent)
    else:
        number, scale = (literal.value if isinstance(literal.value, int) else 0), 0
    dtype = np.int64 if INT64_MIN <= number <= INT64_MAX else object
    return Exact(np.array([number], dtype), valid, scale, abs(number))


LIMITS = {name: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for name, bits in INTEGER_BITS.items()}
LIMITS[TypeName.DATE] = LIMITS[TypeName.INT]
"""The least and the greatest value of the types that are held as integers of fewer than 64 bits, and of BIGINT."""
