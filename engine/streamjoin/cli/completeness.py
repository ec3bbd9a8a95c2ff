"""How complete a run's results are, for people and as JSON (``elastic.completeness``)."""

from __future__ import annotations

from typing import Any

from streamjoin.elastic.completeness import SPANS, Estimate, JoinLosses
from streamjoin.epoch.ports import EpochResult


def completeness_record(result: EpochResult, join: str) -> dict[str, Any] | None:
    """The estimates of a join by time (1h, 1d, run). None if the join has no estimate."""
    losses = result.losses.joins.get(join)
    return None if losses is None else {name: _of(losses, seconds, result) for name, seconds in SPANS.items()}


def completeness_text(result: EpochResult, *, joins_named: bool) -> list[str]:
    """A sentence for each join of which anything was lost since the checkpoint's first epoch."""
    found = []
    for name, losses in result.losses.joins.items():
        estimate = losses.over(None, result.committed_at or 0.0)
        if estimate is not None and estimate.share < 1:
            found.append((f"{name}: " if joins_named else "") + sentence(estimate))
    return found


def sentence(estimate: Estimate) -> str:
    """Which share was found, and what the rest was lost to."""
    lost = ((estimate.lost_to_shedding, "shedding"), (estimate.lost_to_lateness, "lateness"))
    reasons = " and ".join(f"{percent(share)} lost to {reason}" for share, reason in lost if share > 0)
    between = f"between {percent(estimate.low)} and {percent(estimate.high)}" if estimate.low < estimate.high else ""
    return ", ".join(part for part in (f"about {percent(estimate.share)} of the results", between, reasons) if part)


def least(result: EpochResult) -> Estimate | None:
    """The lowest estimate of all joins over the last hour. None if nothing was lost in that time."""
    found = (losses.over(SPANS["1h"], result.committed_at or 0.0) for losses in result.losses.joins.values())
    return min((one for one in found if one is not None and one.share < 1), key=lambda one: one.share, default=None)


def percent(share: float) -> str:
    """A share in percent, with as many digits as tell it from 100 %: ``87.1 %``, ``99.93 %``, ``99.9991 %``."""
    for digits in (1, 2, 3, 4):
        text = f"{share * 100:.{digits}f} %"
        if 1 - share >= 5 * 10 ** -(digits + 2) or share in (0, 1):
            return text
    return text


def _of(losses: JoinLosses, seconds: float | None, result: EpochResult) -> dict[str, float] | None:
    estimate = losses.over(seconds, result.committed_at or 0.0)
    return None if estimate is None else estimate.to_json()
