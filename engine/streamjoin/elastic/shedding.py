"""Adaptive load shedding (ESJ): which part of the incoming tuples to drop when workers are nearly full.

Always holds: nothing below tau2, everything at tau = 1 and beyond, and never less at a higher tau.
"""

from __future__ import annotations

MODELS = ("linear", "quadratic", "off")
LEAST_KEPT = 0.05
"""The least part of its tuples that counts as kept: what drops nearly everything says only that it is far too full, not by how much."""


def shed_factor(model: str, base: float, tau2: float, tau: float) -> float:
    """The shed factor SF, 0 to 1, at utilization ``tau``.

    ``base``: B, the factor at ``tau2`` itself, 0 to 1. ``off`` never sheds. Raises ValueError outside these ranges.
    """
    if model not in MODELS:
        raise ValueError(f"spec.shedding.model: {model!r} is unknown; choose one of {', '.join(MODELS)}")
    if not 0 <= base <= 1:
        raise ValueError(f"spec.shedding.base: {base} must be at least 0 and at most 1")
    if not 0 < tau2 < 1:
        raise ValueError(f"spec.scaling.tau2: {tau2} must be above 0 and below 1")
    if model == "off" or not tau >= tau2:
        return 0.0
    # SF = B + (1 - B) / (1 - tau2) * (tau - tau2), the last factor squared in the quadratic model.
    above = min(1.0, (tau - tau2) / (1 - tau2))
    return min(1.0, base + (1 - base) * (above if model == "linear" else above**2))
