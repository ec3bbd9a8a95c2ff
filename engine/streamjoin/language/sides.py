"""The two streams of a join, as everything but what is written down names them: by index. Things by side are tuples in this order."""

from __future__ import annotations

LEFT, RIGHT = SIDES = (0, 1)
SIDE_NAMES = ("left", "right")
"""As they are called where they are serialized, and in metrics."""
