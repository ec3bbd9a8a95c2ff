"""The cost formulas of appendix B (Tran and Lee 2010), one for each of the six algorithms: what a one-way join takes in a second.

A formula gives shipments and operations; how long they take is for a :class:`~streamjoin_research.semijoin.statistics.Connection` and
:class:`~streamjoin_research.semijoin.statistics.Work` to say. The paper's cost, the *unit time cost*, is :meth:`Cost.seconds`: seconds of
network and of machines for a second of the stream. It is a measure of effort, and may be above 1. The quantities that the formulas take
come from :mod:`~streamjoin_research.semijoin.estimates`.

What was mended in the formulas themselves:

- C_SM-S2 closes the bracket of its last S( ) before ``+ wp_2 f_21 F_S2``, which then adds bytes to seconds. It belongs inside.
- c_i, which occurs beside c_u, is not in Table 4; both are taken for the cost of an update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamjoin_research.semijoin.estimates import Quantities, printed
from streamjoin_research.semijoin.names import Algorithm
from streamjoin_research.semijoin.statistics import Connection, Pair, Work


@dataclass(frozen=True)
class Traffic:
    """The messages of one kind."""

    name: str
    """In the paper's notation."""
    to_destination: bool
    """Else to the source."""
    per_second: float
    bytes_per_second: float
    awaited: bool = True
    """Results wait for it."""

    @property
    def bytes_each(self) -> float:
        return self.bytes_per_second / self.per_second if self.per_second else 0.0


@dataclass(frozen=True)
class Cost:
    """What a one-way join takes in a second of its streams."""

    traffic: tuple[Traffic, ...]
    probes: float
    """Comparisons of two tuples."""
    updates: float
    hashes: float

    @property
    def bytes_per_second(self) -> float:
        """Both ways."""
        return sum(kind.bytes_per_second for kind in self.traffic)

    def transfer_seconds(self, connection: Connection) -> float:
        """C_ship: the time of all shipments of a second, laid end to end."""
        return sum(
            kind.per_second * connection.latency_seconds + kind.bytes_per_second / connection.bytes_per_second for kind in self.traffic
        )

    def work_seconds(self, work: Work) -> float:
        """C_probe and C_update."""
        return self.probes * work.probe_seconds + self.updates * work.update_seconds + self.hashes * work.hash_seconds

    def seconds(self, connection: Connection, work: Work) -> float:
        """The paper's C: unit time cost."""
        return self.transfer_seconds(connection) + self.work_seconds(work)

    def delay_seconds(self, connection: Connection) -> float:
        """From a batch's time point to its results, where no shipment waits for the one before it on its link.

        Not in the paper, whose delta is to be measured; it is the sum of S( ) over the shipments that results wait for.
        """
        return sum(connection.seconds(kind.bytes_each) for kind in self.traffic if kind.awaited and kind.per_second)


def one_way_cost(algorithm: Algorithm, pair: Pair, estimate: Callable[[Pair], Quantities] = printed) -> Cost:
    """C of ``algorithm`` for ``pair``. O(1)."""
    return _FORMULAS[algorithm](estimate(pair))


def _sp_s(q: Quantities) -> Cost:
    """r1 c_i + r1 c_p w2 + n2 S(wp2 F2) + r2 c_i."""
    source, destination = q.pair.source, q.pair.destination
    return Cost(
        traffic=(Traffic("B2", False, q.destination_shipments, destination.rate * destination.tuple_bytes),),
        probes=source.rate * destination.window_tuples,
        updates=source.rate + destination.rate,
        hashes=0.0,
    )


def _sp_d(q: Quantities) -> Cost:
    """r1 c_i + n1 S(wp1 F1) + r1 c_p w2 + r2 c_i."""
    source, destination = q.pair.source, q.pair.destination
    return Cost(
        traffic=(Traffic("B1", True, q.source_shipments, source.rate * source.tuple_bytes),),
        probes=source.rate * destination.window_tuples,
        updates=source.rate + destination.rate,
        hashes=0.0,
    )


def _sm_s1(q: Quantities) -> Cost:
    """r1 c_i + n1 S(m1 P1) + n1 m1 c_p w2 + n1 S(wp2 f21 F2) + n1 wp2 f21 c_i + r2 c_i + r1 c_p w2 f21 + n2 S(c)."""
    pair, source, destination = q.pair, q.pair.source, q.pair.destination
    return Cost(
        traffic=(
            Traffic("K1", True, q.source_shipments, q.source_keys * source.key_bytes),
            Traffic("ΔW2'", False, q.source_shipments, q.fetched_window_tuples * destination.tuple_bytes),
            Traffic("k", False, q.expiries, q.expiries * pair.count_bytes, awaited=False),
        ),
        probes=q.source_keys * destination.window_tuples + source.rate * destination.window_tuples * pair.destination_share,
        updates=source.rate + q.fetched_window_tuples + destination.rate,
        hashes=0.0,
    )


def _sm_s2(q: Quantities) -> Cost:
    """r1 c_i + 2 r1 c_h + n1 S(d P2) + n1 d c_p w2 + n1 S(d F2) + r2 c_p k2 + r2 c_i + 2 n2 m2 (1 - f21) c_i
    + n2 S(m2 (1 - f21) P2 + wp2 f21 F2), d = k2 (1 - f12)."""
    pair, source, destination = q.pair, q.pair.source, q.pair.destination
    update_bytes = q.new_keys * destination.key_bytes + q.shipped_counts * pair.count_bytes + q.pushed_tuples * destination.tuple_bytes
    return Cost(
        traffic=(
            Traffic("v_J, v_C, s_F", False, q.changes, update_bytes),
            Traffic("ΔV2'", True, q.requests, q.requested_keys * destination.key_bytes),
            Traffic("ΔW2'", False, q.requests, q.requested_tuples * destination.tuple_bytes),
        ),
        probes=q.requested_keys * destination.window_tuples + destination.rate * q.window_keys,
        updates=source.rate + destination.rate + 2 * q.new_keys,
        hashes=2 * source.rate,
    )


def _sm_d1(q: Quantities) -> Cost:
    """r1 c_i + r1 c_p k2 + n1 S(wp1 f12 F1) + r1 f12 c_p w2 + r2 c_p k2 + r2 c_i + 2 n2 m2 (1 - f21) c_i + n2 S(m2 (1 - f21) P2)."""
    pair, source, destination = q.pair, q.pair.source, q.pair.destination
    update_bytes = q.new_keys * destination.key_bytes + q.shipped_counts * pair.count_bytes
    return Cost(
        traffic=(
            Traffic("v_J, v_C", False, q.changes, update_bytes),
            Traffic("B1'", True, q.matching_source_shipments, q.matching_source_tuples * source.tuple_bytes),
        ),
        probes=(source.rate + destination.rate) * q.window_keys + q.matching_source_tuples * destination.window_tuples,
        updates=source.rate + destination.rate + 2 * q.new_keys,
        hashes=0.0,
    )


def _sm_d2(q: Quantities) -> Cost:
    """r1 c_i + n1 S(m1 P1) + n1 m1 c_p w2 + n1 S(m1 f12 P1) + n1 m1 f12 c_p wp1 + n1 S(wp1 f12 F1) + n1 wp1 f12 c_p w2 + r2 c_i."""
    source, destination = q.pair.source, q.pair.destination
    batch = source.rate / q.source_shipments
    return Cost(
        traffic=(
            Traffic("K1", True, q.source_shipments, q.source_keys * source.key_bytes),
            Traffic("K1'", False, q.source_shipments, q.matching_keys * source.key_bytes),
            Traffic("B1'", True, q.matching_source_shipments, q.matching_source_tuples * source.tuple_bytes),
        ),
        probes=(q.source_keys + q.matching_source_tuples) * destination.window_tuples + q.matching_keys * batch,
        updates=source.rate + destination.rate,
        hashes=0.0,
    )


_FORMULAS: dict[Algorithm, Callable[[Quantities], Cost]] = {
    Algorithm.SP_S: _sp_s,
    Algorithm.SP_D: _sp_d,
    Algorithm.SM_S1: _sm_s1,
    Algorithm.SM_S2: _sm_s2,
    Algorithm.SM_D1: _sm_d1,
    Algorithm.SM_D2: _sm_d2,
}
