"""Arrow arrays of fixed width as NumPy's, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""Days since 1970, of the years 1 to 9999: those that Python, Arrow's texts and readers of tables know."""
Array = np.ndarray[Any, np.dtype[Any]]


def both(first: Array | None, second: Array | None) -> Array | None:
    """Valid where both are; None: everywhere."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def view(array: pa.Array, dtype: Any) -> Array:
    """The array's values without a copy, arbitrary under nulls. ``dtype`` has the array's value width."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, count=len(array) + array.offset)[array.offset :]


def validity(array: pa.Array) -> Array | None:
    """Where the array is not null; None: everywhere."""
    if array.null_count == 0:
        return None
    valid: Array = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def arrow_array(values: Array, type_: pa.DataType, valid: Array | None) -> pa.Array:
    """An Arrow array over fixed-width values, which are of the type's width."""
    bits = None if valid is None else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(type_, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


def decimal_limbs(unscaled: Array) -> Array:
    """Unscaled int64 values as decimal128 holds them: int64 of (n, 2), the lower half and the sign that fills the upper."""
    limbs = np.empty((len(unscaled), 2), np.int64)
    limbs[:, 0], limbs[:, 1] = unscaled, unscaled >> 63
    return limbs


def time_texts(array: pa.Array, far: Callable[[int], str]) -> pa.Array:
    """Dates or timestamps in microseconds as Arrow prints them, but by ``far`` in years that it does not print: below 1 or above 9999."""
    width = array.type.bit_width
    scale = 1 if width == 32 else 86_400_000_000
    numbers = array.cast(pa.int32() if width == 32 else pa.int64())
    near = pc.and_(pc.greater_equal(numbers, FIRST_DAY * scale), pc.less(numbers, (LAST_DAY + 1) * scale))
    if pc.all(near).as_py() is not False:
        return array.cast(pa.string())
    texts = pc.if_else(near, array, None).cast(pa.string())
    others = numbers.filter(pc.invert(near)).to_pylist()
    return pc.replace_with_mask(texts, pc.fill_null(pc.invert(near), False), pa.array([far(number) for number in others], pa.string()))
