"""Ranges [low, high) in arrays: which of them meet, and what they consist of, without a loop over them."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def meeting(low: Array, high: Array, other_low: Array, other_high: Array) -> tuple[Array, Array]:
    """Which of these ranges and those have something in common: their numbers, pair by pair. None is empty. O((n + pairs) log n)."""
    # Of two that meet, one begins within the other; where both begin together, the first says so.
    one, other = _beginning_within(low, high, other_low, "left")
    back, forth = _beginning_within(other_low, other_high, low, "right")
    return np.concatenate([one, forth]), np.concatenate([other, back])


def _beginning_within(low: Array, high: Array, begins: Array, side: Any) -> tuple[Array, Array]:
    order = np.argsort(begins, kind="stable")
    ordered = begins[order]
    begin, end = np.searchsorted(ordered, low, side=side), np.searchsorted(ordered, high, side="left")
    at, place = expanded(begin, end)
    return at, order[place]


def expanded(begin: Array, end: Array) -> tuple[Array, Array]:
    """The numbers of each range, begin, begin + 1, ... end - 1, one range after the other; and before them the range's own number."""
    count = np.maximum(end - begin, 0)
    at = np.repeat(np.arange(len(count)), count)
    return at, np.arange(len(at)) + np.repeat(begin - (np.cumsum(count) - count), count)
