"""Conditions of a batch in three-valued logic: where each is true, and where it is known."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from streamjoin.kernel.arrays import Array, validity


@dataclass(slots=True)
class Truth:
    """``true`` holds only where ``known`` does; None: known everywhere."""

    true: Array
    known: Array | None

    @property
    def false(self) -> Array:
        return ~self.true if self.known is None else self.known & ~self.true


def masked(true: Array, known: Array | None) -> Truth:
    """True only where it is known too."""
    return Truth(true if known is None else true & known, known)


def truth_of(array: pa.Array | pa.Scalar) -> Truth:
    """Of a BOOLEAN array, or of a single value."""
    if isinstance(array, pa.Scalar):
        array = pa.array([array.as_py()], pa.bool_())
    known = validity(array)
    if known is None:
        return Truth(array.to_numpy(zero_copy_only=False), None)
    return Truth(array.fill_null(False).to_numpy(zero_copy_only=False), known)


def and_(first: Truth, second: Truth) -> Truth:
    """Known where both are, and where either is false."""
    true = first.true & second.true
    if first.known is None and second.known is None:
        return Truth(true, None)
    return Truth(true, true | first.false | second.false)


def not_(truth: Truth) -> Truth:
    """Known where it was."""
    return Truth(truth.false, truth.known)
