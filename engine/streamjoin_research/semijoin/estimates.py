"""The quantities that the cost formulas are made of, estimated in two ways.

:func:`printed` is the paper's (Table 4 and the terms of appendix B). It takes it that every tuple that could have a partner has one in
time. :func:`expected` is ours: what Poisson arrivals and uniform keys lead to in the long run. Where both streams have the same keys, and
windows hold each of them many times, the two agree but for the bytes of v_C, which the paper's formulas leave out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from streamjoin_research.semijoin.statistics import Pair


@dataclass(frozen=True)
class Quantities:
    """A second's tuples, keys and shipments of a one-way join in steady state."""

    pair: Pair
    source_shipments: float
    """Batches of the source a second that have tuples (the paper's r_1 / wp_1)."""
    destination_shipments: float
    source_keys: float
    """Distinct keys in the source's batches."""
    matching_keys: float
    """Those of them that the window has."""
    matching_source_tuples: float
    """Tuples of the source whose key the window has."""
    matching_source_shipments: float
    """Batches of the source with at least one of them."""
    window_keys: float
    """Distinct keys in the window (k_2); not a second's, but at any moment."""
    fetched_window_tuples: float
    """Tuples that come into the window and are shipped once a key asks for them (SM-S1)."""
    expiries: float
    """Messages that so many of these have left the window (SM-S1)."""
    changes: float
    """Messages of what came into the window and left it (SM-S2, SM-D1)."""
    new_keys: float
    """Keys that come into a window without them."""
    requests: float
    """Requests for the tuples of keys that the source had not asked for (SM-S2)."""
    requested_keys: float
    """Keys in them."""
    requested_tuples: float
    """Tuples in the answers."""
    pushed_tuples: float
    """New tuples of keys that were asked for before (s_F)."""
    shipped_counts: float
    """Numbers in v_C."""


def printed(pair: Pair) -> Quantities:
    """As in Table 4 and appendix B. What was mended:

    - k_i and m_i are printed as min(1 / f_i, w_i / f_i * 100), in which the second term is never the least. They are read as
      min(1 / f_i, w_i) and min(1 / f_i, wp_i): no more keys than there are, nor than tuples.
    - wp_i is at least 1, so that a stream with less than a tuple an interval ships each by itself, and not a part of one every interval.
    - A shipment of d = 0 keys is none (the text in section 5.3.1 says so; the formula takes a latency for it).

    Not mended: the number of requested keys, k_2 (1 - f_12) an interval, though a key is asked for only once while the window has it; one
    tuple for each; m_2 (1 - f_21) new keys an interval, though most of them are in the window already; no bytes for v_C.
    """
    source, destination, interval = pair.source, pair.destination, pair.interval_seconds
    source_batch, destination_batch = max(1.0, source.rate * interval), max(1.0, destination.rate * interval)
    source_shipments, destination_shipments = source.rate / source_batch, destination.rate / destination_batch
    keys_of_source_batch = min(source.distinct_keys, source_batch)
    keys_of_destination_batch = min(destination.distinct_keys, destination_batch)
    window_keys = min(destination.distinct_keys, destination.window_tuples)
    requested = window_keys * (1 - pair.source_share)
    return Quantities(
        pair=pair,
        source_shipments=source_shipments,
        destination_shipments=destination_shipments,
        source_keys=source_shipments * keys_of_source_batch,
        matching_keys=source_shipments * keys_of_source_batch * pair.source_share,
        matching_source_tuples=source.rate * pair.source_share,
        matching_source_shipments=source_shipments,
        window_keys=window_keys,
        fetched_window_tuples=source_shipments * destination_batch * pair.destination_share,
        expiries=destination_shipments,
        changes=destination_shipments,
        new_keys=destination_shipments * keys_of_destination_batch * (1 - pair.destination_share),
        requests=source_shipments if requested else 0.0,
        requested_keys=source_shipments * requested,
        requested_tuples=source_shipments * requested,
        pushed_tuples=destination.rate * pair.destination_share,
        shipped_counts=0.0,
    )


def expected(pair: Pair) -> Quantities:
    """In the long run, with Poisson arrivals and uniform keys, where delays are short beside the window.

    A tuple comes into the window at its time point, and leaves it at the one after that at which it is outlived: its stay T is an interval
    more than the window. Tuples of a key arrive at the destination at a rate of l, and at the source at a rate of m. The key is *present*
    while the window has a tuple of it. A presence begins with an arrival that none preceded within T: with probability q = exp(-l T).
    With probability g = l / (l + m) (1 - exp(-(l + m) T)) one did, and no tuple of the source came in between. So, when a tuple arrives,
    the source has not *asked* for the key since the presence began with probability q + g q + g² q + ... = q / (1 - g).
    """
    source, destination, interval = pair.source, pair.destination, pair.interval_seconds
    stay = destination.window_tuples / destination.rate + interval
    source_rate, rate = source.rate / source.distinct_keys, destination.rate / destination.distinct_keys
    begins = math.exp(-rate * stay)
    present = 1 - begins
    both = rate + source_rate
    # q / (1 - g), with 1 - g written so that it is not 0 where the source's tuples are rare.
    unasked = begins / ((source_rate + rate * math.exp(-both * stay)) / both)
    asked_in_time = 1 - math.exp(-source_rate * stay)

    def shipments(per_second: float) -> float:
        """Intervals a second with at least one of so many."""
        return (1 - math.exp(-per_second * interval)) / interval

    source_keys = source.distinct_keys * shipments(source_rate)
    matchable = destination.rate * pair.destination_share
    matching_tuples = source.rate * pair.source_share * present
    fetched = matchable * asked_in_time
    changes = shipments(2 * destination.rate)
    # Of a presence, nobody asks up to the last arrival with the same probability, as time may be reversed; nor while that tuple stays.
    requested_keys = matchable * begins * (1 - unasked * (1 - asked_in_time))
    return Quantities(
        pair=pair,
        source_shipments=shipments(source.rate),
        destination_shipments=shipments(destination.rate),
        source_keys=source_keys,
        matching_keys=source_keys * pair.source_share * present,
        matching_source_tuples=matching_tuples,
        matching_source_shipments=shipments(matching_tuples),
        window_keys=destination.distinct_keys * present,
        fetched_window_tuples=fetched,
        expiries=shipments(fetched),
        changes=changes,
        new_keys=destination.rate * begins,
        requests=shipments(requested_keys),
        requested_keys=requested_keys,
        requested_tuples=matchable * unasked * asked_in_time,
        pushed_tuples=matchable * (1 - unasked),
        shipped_counts=destination.distinct_keys * present * changes,
    )
