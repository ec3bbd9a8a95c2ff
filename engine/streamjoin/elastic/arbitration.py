"""Is a change worth its bytes? What each choice costs over the next hour, in one unit, so that they can be compared.

The unit is the worker-hour: what one worker costs in an hour. A choice's bill has five terms::

    workers   workers [1] x horizon [h] x size [present workers]
    moving    moved bytes [GiB] x Prices.gib [worker-hours / GiB]
    pause     (switch [s] + moved bytes / workers / bytes per second [s]) x workers [1] x Prices.paused [1]
    shed      expected shed tuples [million] x Prices.million_shed [worker-hours / million]
    change    Prices.change [worker-hours] where the plan changes

During the pause all workers stand idle and results come late, hence its price. The expected shed loss is that of the tau that is predicted,
grown by ``Prices.growth``: a worker just below tau2 is a risk already. Where shedding is off, what no worker has room for counts as lost.

Always holds: every term is finite and not negative; of two choices that differ only in moved tuples, the one that moves less is cheaper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from streamjoin.elastic.settings import Settings

GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a unit of each term costs, in worker-hours. Raises ValueError for a price that is negative or not finite."""

    horizon_seconds: float = 3600.0
    """How far ahead workers and losses are counted. Longer favours changes: their bytes move once."""
    gib: float = 0.01
    """Worker-hours for each GiB that moves: requests to the store, network. 100 GiB for a worker-hour."""
    bytes_per_second: float = 50e6
    """At which rate one worker takes in state."""
    switch_seconds: float = 1.0
    """The pause of a switch that moves nothing."""
    paused: float = 3.0
    """What an idle worker costs, in working ones: results are late, too."""
    million_shed: float = 10.0
    """Worker-hours for each million tuples that are dropped."""
    change: float = 0.5
    """Worker-hours for each change of the plan, beside its bytes and its pause: pods that come and go, and somebody who asks why."""
    growth: float = 0.25
    """By this part the load may grow within the horizon."""
    tuple_bytes: float = 64.0
    """Of a held tuple."""
    core_gib: float = 8.0
    """What a core costs, in GiB of memory: by the public prices of clouds, 7 to 9. A worker costs its cores and its memory."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"prices.{item.name}: {value} must be a number, not negative")
        if not self.bytes_per_second > 0:
            raise ValueError(f"prices.bytes_per_second: {self.bytes_per_second} must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a choice costs, with the quantities that the terms were made from."""

    workers: float
    """Worker-hours, as are the next three."""
    moving: float
    pause: float
    shed: float
    moved_bytes: float
    pause_seconds: float
    shed_tuples: float
    """Expected within the horizon."""
    change: float = 0.0
    """Worker-hours."""

    @property
    def total(self) -> float:
        """Worker-hours."""
        return self.workers + self.moving + self.pause + self.shed + self.change

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"total": self.total}


def bill(
    *,
    workers: int,
    tau_max: float,
    tau_mean: float,
    moved_tuples: float,
    rate: float | None,
    changes: bool,
    settings: Settings,
    prices: Prices,
    size: float = 1.0,
) -> Bill:
    """The bill of running on ``workers`` workers, as full as said (with nothing shed), from now on.

    ``rate``: tuples per second of both sides; unknown: no loss can be expected. ``changes``: whether the plan changes, which pauses.
    ``size``: what one of them costs, in workers of the present size.
    """
    hours = prices.horizon_seconds / 3600
    moved_bytes = moved_tuples * prices.tuple_bytes
    pause = prices.switch_seconds + moved_bytes / (workers * prices.bytes_per_second) if changes else 0.0
    # The fullest worker takes its share of the tuples, and the others are taken to be as full as each other.
    rest = (tau_mean * workers - tau_max) / (workers - 1) if workers > 1 else tau_max
    factors = [_lost(tau * (1 + prices.growth), settings) for tau in (tau_max, max(0.0, min(rest, tau_max)))]
    lost = (factors[0] + (workers - 1) * factors[1]) / workers
    shed_tuples = lost * (rate or 0.0) * prices.horizon_seconds
    return Bill(
        workers=workers * size * hours,
        moving=moved_bytes / GIB * prices.gib,
        pause=pause / 3600 * workers * prices.paused,
        shed=shed_tuples / 1e6 * prices.million_shed,
        moved_bytes=moved_bytes,
        pause_seconds=pause,
        shed_tuples=shed_tuples,
        change=prices.change if changes else 0.0,
    )


def _lost(tau: float, settings: Settings) -> float:
    """The part of a worker's tuples that is lost when it would be so full if nothing were."""
    if tau <= settings.tau2:
        return 0.0
    if not settings.sheds:
        return max(0.0, 1 - 1 / tau)
    # What is dropped makes room: the worker settles where tau * (1 - SF) is what it holds. SF rises with tau, so bisection finds it.
    low, high = 0.0, tau
    for _ in range(30):
        held = (low + high) / 2
        if tau * (1 - settings.shed_factor(held)) > held:
            low = held
        else:
            high = held
    return max(0.0, 1 - high / tau)
