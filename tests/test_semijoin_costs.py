"""The cost formulas: against appendix B as text, against the paper's figures, and against bytes counted in the simulated network."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from semijoin_cases import (
    MEGABIT,
    WARM_UP,
    WORKLOADS,
    counted,
    counted_of_workload,
    regular,
    simulate,
    workload_pair,
)
from streamjoin_research.semijoin.algorithms.site import Timing
from streamjoin_research.semijoin.cost import one_way_cost
from streamjoin_research.semijoin.estimates import expected
from streamjoin_research.semijoin.names import Algorithm
from streamjoin_research.semijoin.network import Link
from streamjoin_research.semijoin.statistics import Attribute, Connection, Flow, Pair, Work

# Appendix B, with the bracket of the last S( ) of SM-S2 mended, c_u for c_i, and no shipment of nothing.
APPENDIX_B = {
    Algorithm.SP_S: "r1*cu + r1*cp*w2 + r2/wp2*S(wp2*F2) + r2*cu",
    Algorithm.SP_D: "r1*cu + r1/wp1*S(wp1*F1) + r1*cp*w2 + r2*cu",
    Algorithm.SM_S1: "r1*cu + r1/wp1*S(m1*P1) + r1/wp1*m1*cp*w2 + r1/wp1*S(wp2*f21*F2) + r1/wp1*wp2*f21*cu + r2*cu"
    " + r1*cp*w2*f21 + r2/wp2*S(c)",
    Algorithm.SM_S2: "r1*cu + r1*ch + r1/wp1*S(k2*(1-f12)*P2) + r1/wp1*k2*(1-f12)*cp*w2 + r1/wp1*S(k2*(1-f12)*F2)"
    " + r2*cp*k2 + r1*ch + r2*cu + r2/wp2*m2*(1-f21)*cu + r2/wp2*S(m2*(1-f21)*P2 + wp2*f21*F2) + r2/wp2*m2*(1-f21)*cu",
    Algorithm.SM_D1: "r1*cu + r1*cp*k2 + r1/wp1*S(wp1*f12*F1) + r1*f12*cp*w2 + r2*cp*k2 + r2*cu"
    " + 2*r2/wp2*m2*(1-f21)*cu + r2/wp2*S(m2*(1-f21)*P2, always=True)",
    Algorithm.SM_D2: "r1*cu + r1/wp1*S(m1*P1) + r1/wp1*m1*cp*w2 + r1/wp1*S(m1*f12*P1) + r1/wp1*m1*f12*cp*wp1"
    " + r1/wp1*S(wp1*f12*F1) + r1/wp1*wp1*f12*cp*w2 + r2*cu",
}


@pytest.mark.parametrize("algorithm", Algorithm)
def test_the_formulas_are_those_of_appendix_b(algorithm: Algorithm) -> None:
    chance = random.Random(11)
    for _ in range(200):
        r1, r2, interval = chance.uniform(10, 300), chance.uniform(10, 300), chance.uniform(0.1, 1)
        w2, d1, d2 = chance.uniform(1, 500), chance.uniform(1, 200), chance.uniform(1, 200)
        f1, f2, latency, bandwidth = 1 / d1, 1 / d2, chance.uniform(0, 0.1), chance.uniform(1e4, 1e6)
        wp1, wp2 = r1 * interval, r2 * interval

        def ship(size: float, always: bool = False, latency: float = latency, bandwidth: float = bandwidth) -> float:
            return latency + size / bandwidth if size or always else 0.0

        names = {
            "r1": r1,
            "r2": r2,
            "wp1": wp1,
            "wp2": wp2,
            "w2": w2,
            "S": ship,
            "c": 4,
            "F1": 500,
            "F2": 900,
            "P1": 5,
            "P2": 5,
            "cp": 1e-5,
            "cu": 2e-5,
            "ch": 3e-5,
            "m1": min(1 / f1, wp1),
            "m2": min(1 / f2, wp2),
            "k2": min(1 / f2, w2),
            "f12": min(1, f1 / f2),
            "f21": min(1, f2 / f1),
        }
        pair = Pair(Flow(r1, 0, 500, 5, d1), Flow(r2, w2, 900, 5, d2), interval)
        seconds = one_way_cost(algorithm, pair).seconds(Connection(latency, bandwidth), Work(1e-5, 2e-5, 3e-5))
        assert seconds == pytest.approx(eval(APPENDIX_B[algorithm], names)), names


def fig7(*, bytes2: float = 1250, f2: float = 0.1, rate2: float = 300, window: float = 3) -> Pair:
    """Two streams of section 5.3.1, the second as said."""
    return Pair(Flow(300, 900, 1250, 5, 10), Flow(rate2, rate2 * window, bytes2, 5, 1 / f2), 0.1)


def seconds(algorithm: Algorithm, pair: Pair, connection: Connection = MEGABIT) -> float:
    return one_way_cost(algorithm, pair).seconds(connection, Work())


SOURCE_GROUP = [algorithm for algorithm in Algorithm if algorithm.at_source]
DESTINATION_GROUP = [algorithm for algorithm in Algorithm if not algorithm.at_source]


def test_figure_7_at_its_default_settings() -> None:
    """The figure is a picture that we do not have; these are the formulas' values, to see a change."""
    values = {algorithm.value: round(seconds(algorithm, fig7()), 2) for algorithm in Algorithm}
    assert values == {"SP-S": 3.45, "SP-D": 3.45, "SM-S1": 4.04, "SM-S2": 3.18, "SM-D1": 3.71, "SM-D2": 4.05}


def test_figure_7a_and_7b_who_works_at_the_source_pays_for_the_destinations_stream() -> None:
    for changes in ([{"bytes2": size} for size in (250, 1250, 2250)], [{"rate2": rate} for rate in (100, 300, 500)]):
        for algorithm in SOURCE_GROUP:
            values = [seconds(algorithm, fig7(**change)) for change in changes]
            assert values[0] < values[1] < values[2]
            assert values[2] > 1.5 * values[0]
        for algorithm in DESTINATION_GROUP:
            values = [seconds(algorithm, fig7(**change)) for change in changes]
            assert max(values) < 1.2 * min(values)


def test_figure_7c_semijoins_follow_the_selectivity_and_simple_joins_do_not() -> None:
    def over(algorithm: Algorithm) -> list[float]:
        return [round(seconds(algorithm, fig7(f2=f2)), 2) for f2 in (0.02, 0.1, 0.2)]

    for algorithm in (Algorithm.SP_S, Algorithm.SP_D):
        assert len(set(over(algorithm))) == 1
    rises, stays = over(Algorithm.SM_S1)[:2], over(Algorithm.SM_S1)[1:]
    assert rises[0] < rises[1]
    assert stays[0] == pytest.approx(stays[1], rel=0.01)
    assert over(Algorithm.SM_D2)[1] > 1.5 * over(Algorithm.SM_D2)[2]


def test_figures_7e_and_7f_slower_networks_cost_more() -> None:
    for algorithm in Algorithm:
        by_latency = [seconds(algorithm, fig7(), Connection(latency, 128_000)) for latency in (0.005, 0.025, 0.045)]
        assert by_latency == sorted(by_latency)
        by_bandwidth = [seconds(algorithm, fig7(), Connection(0.025, kbps * 125)) for kbps in (256, 1024, 4096)]
        assert by_bandwidth == sorted(by_bandwidth, reverse=True)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_printed_formulas_count_the_bytes_of_regular_streams_with_the_same_keys(algorithm: Algorithm) -> None:
    """Within 1 %: keys in turn, so that each batch has as many as the formulas say; numbers of tuples of no bytes, as in the formulas."""
    pair = Pair(Flow(100, 0, 1000, 8, 20), Flow(50, 100, 600, 8, 20), 0.1, count_bytes=0)
    run = simulate(algorithm, pair, regular(100, 1, 20, 20), regular(50, 2, 20, 20), 20, Link(25_000))
    size, shipments = counted(run, 20)
    cost = one_way_cost(algorithm, pair)
    assert cost.bytes_per_second == pytest.approx(size, rel=0.01)
    assert sum(kind.per_second for kind in cost.traffic) == pytest.approx(shipments, rel=0.01)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("algorithm", Algorithm)
def test_expected_formulas_count_the_bytes_of_random_streams(algorithm: Algorithm, workload: str) -> None:
    """Within 8 % for bytes and for shipments; streams of 6,000 tuples or more leave some 2 % of that to chance."""
    pair = workload_pair(workload)
    size, shipments = counted_of_workload(algorithm, workload, tuples=6000)
    cost = one_way_cost(algorithm, pair, expected)
    assert cost.bytes_per_second == pytest.approx(size, rel=0.08)
    assert sum(kind.per_second for kind in cost.traffic) == pytest.approx(shipments, rel=0.08)


@pytest.mark.parametrize(
    ("algorithm", "workload", "times"),
    [
        (Algorithm.SM_S2, "more keys at the source", 10),
        (Algorithm.SM_S1, "same keys, few of them in the window", 2),
        (Algorithm.SM_D2, "same keys, few of them in the window", 2),
    ],
)
def test_printed_formulas_expect_far_too_much_where_tuples_seldom_match(algorithm: Algorithm, workload: str, times: float) -> None:
    """Why :func:`expected` is there; that counts right is tested above."""
    pair = workload_pair(workload)
    assert one_way_cost(algorithm, pair).bytes_per_second > times * one_way_cost(algorithm, pair, expected).bytes_per_second


def test_a_stream_of_less_than_a_tuple_an_interval_ships_each_tuple_by_itself() -> None:
    """As printed, a tenth of a tuple would be shipped in each of ten intervals."""
    pair = Pair(Flow(1, 0, 1000, 8, 20), Flow(50, 100, 600, 8, 20), 0.1)
    (shipped,) = one_way_cost(Algorithm.SP_D, pair).traffic
    assert (shipped.per_second, shipped.bytes_each) == (1, 1000)


def test_both_estimates_agree_where_windows_hold_each_key_many_times() -> None:
    pair = Pair(Flow(300, 0, 1250, 5, 10), Flow(300, 900, 1250, 5, 10), 0.1, count_bytes=0)
    for algorithm in Algorithm:
        assert one_way_cost(algorithm, pair, expected).bytes_per_second == pytest.approx(
            one_way_cost(algorithm, pair).bytes_per_second, rel=0.001
        )


@pytest.mark.parametrize("algorithm", Algorithm)
def test_delay_is_that_of_the_simulated_network(algorithm: Algorithm) -> None:
    """Within 2 % where nothing waits for a bound; else no more than from the formula up to delta."""
    pair = Pair(Flow(100, 0, 1000, 8, 20), Flow(50, 100, 600, 8, 20), 0.1, count_bytes=0)
    bandwidth = 1_000_000
    run = simulate(algorithm, pair, regular(100, 1, 10, 20), regular(50, 2, 10, 20), 10, Link(25_000, bandwidth))
    settled = [found for found in run.found if found.time >= WARM_UP]
    delays = [found.time - (found.match.probing.time // 100_000 + 1) * 100_000 for found in settled]
    delay = one_way_cost(algorithm, pair).delay_seconds(Connection(0.025, bandwidth))
    if algorithm.probes_a_copy:
        assert delay <= max(delays) / 1e6 <= Timing.of(algorithm, 50_000).removal / 1e6
    else:
        assert delay == pytest.approx(sum(delays) / len(delays) / 1e6, rel=0.02)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Flow(0, 1, 1, 1, 1), "rate: 0 must be a finite number above 0"),
        (lambda: Flow(1, -1, 1, 1, 1), "window_tuples: -1 must be a finite number of at least 0"),
        (lambda: Flow(math.inf, 1, 1, 1, 1), "rate: inf must be a finite number above 0"),
        (lambda: Flow(1, 1, 1, 1, 0.5), "distinct_keys: 0.5 must be a finite number of at least 1"),
        (lambda: Attribute(0, 8), "distinct: 0 must be a finite number of at least 1"),
        (lambda: Attribute(1, -8), "bytes: -8 must be a finite number of at least 0"),
        (lambda: Pair(Flow(1, 1, 1, 1, 1), Flow(1, 1, 1, 1, 1), 0), "interval_seconds: 0 must be a finite number above 0"),
        (lambda: Connection(-1, 1), "latency_seconds: -1 must be a finite number of at least 0"),
        (lambda: Work(hash_seconds=-1), "hash_seconds: -1 must be a finite number of at least 0"),
    ],
)
def test_statistics_that_mean_nothing_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()
