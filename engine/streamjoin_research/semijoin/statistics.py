"""What the cost formulas know of streams, networks and machines (Tran and Lee, Table 4).

Units: seconds, bytes, tuples. The paper's selectivity factor of a stream, f, is ``1 / distinct_keys``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


def _check(statistics: object, *, above: tuple[str, ...] = (), least: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless the fields named in ``above`` are above 0, and those in ``least`` at least 0, and all are finite."""
    for name in (*above, *least):
        value = getattr(statistics, name)
        if not math.isfinite(value) or value < 0 or (name in above and value == 0):
            raise ValueError(f"{name}: {value} must be a finite number {'above 0' if name in above else 'of at least 0'}")


def _check_distinct(statistics: object, name: str) -> None:
    value = getattr(statistics, name)
    if not 1 <= value < math.inf:
        raise ValueError(f"{name}: {value} must be a finite number of at least 1")


@dataclass(frozen=True)
class Flow:
    """One side of a one-way join: a stream, or the results of the joins before."""

    rate: float
    """Tuples a second (r)."""
    window_tuples: float
    """Tuples in the window (w). Of no meaning for the source of a join."""
    tuple_bytes: float
    """A full tuple (F)."""
    key_bytes: float
    """A partial tuple: the join attributes alone (P)."""
    distinct_keys: float
    """Distinct values of the join attributes, all equally frequent (1 / f)."""

    def __post_init__(self) -> None:
        _check(self, above=("rate", "tuple_bytes"), least=("window_tuples", "key_bytes"))
        _check_distinct(self, "distinct_keys")


@dataclass(frozen=True)
class Attribute:
    """A join attribute of a stream."""

    distinct: float
    """Distinct values, all equally frequent (1 / f)."""
    bytes: float

    def __post_init__(self) -> None:
        _check(self, least=("bytes",))
        _check_distinct(self, "distinct")


@dataclass(frozen=True)
class Pair:
    """A one-way join of ``source``'s tuples with ``destination``'s window."""

    source: Flow
    destination: Flow
    interval_seconds: float
    """Between two batches (the paper's tau)."""
    count_bytes: float = 4
    """A number of tuples in a message: Alg. 8's k, each number of Alg. 9's v_C."""

    def __post_init__(self) -> None:
        _check(self, above=("interval_seconds",), least=("count_bytes",))

    @property
    def source_share(self) -> float:
        """f_12: the share of the source's keys that the destination's stream has, if the fewer keys are a part of the more."""
        return min(1.0, self.destination.distinct_keys / self.source.distinct_keys)

    @property
    def destination_share(self) -> float:
        """f_21."""
        return min(1.0, self.source.distinct_keys / self.destination.distinct_keys)


@dataclass(frozen=True)
class Connection:
    """The network between two sites."""

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        _check(self, above=("bytes_per_second",), least=("latency_seconds",))

    def seconds(self, size: float) -> float:
        """S(x): how long ``size`` bytes take."""
        return self.latency_seconds + size / self.bytes_per_second


@dataclass(frozen=True)
class Work:
    """Seconds that a machine takes for a tuple. The paper names these, and prints no values; calibrate them where they matter."""

    probe_seconds: float = 1e-6
    """To compare a tuple with another one (c_p). Joins are nested loops in the formulas."""
    update_seconds: float = 1e-6
    """To insert one and remove another (c_u, or c_i, which the paper uses for the same)."""
    hash_seconds: float = 1e-6
    """To look a key up (c_h)."""

    def __post_init__(self) -> None:
        _check(self, least=tuple(field.name for field in fields(self)))
