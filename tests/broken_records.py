"""Records of binary formats that somebody has damaged."""

from __future__ import annotations

import random
from collections.abc import Callable


def broken(record: bytes, rng: random.Random, more: Callable[[], bytes]) -> bytes:
    """One to three of: another byte, a cut, or ``more`` at the end."""
    value = bytearray(record)
    for _ in range(rng.randint(1, 3)):
        if value and rng.random() < 0.7:
            value[rng.randrange(len(value))] = rng.randrange(256)
        elif rng.random() < 0.5:
            del value[rng.randint(0, len(value)) :]
        else:
            value += more()
    return bytes(value)
