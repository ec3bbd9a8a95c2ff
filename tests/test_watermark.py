"""How watermarks advance: whole streams by their newest record, partitions by the one furthest behind, and never back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamjoin.controlplane.watermark import advance, watermark_for
from streamjoin.dataplane.event_times import disorder
from streamjoin.epoch.reports import RouteReport
from streamjoin.state.checkpoint import Checkpoint, InputState, Newest


def seen(*times: tuple[int | None, int | None]) -> list[RouteReport]:
    """(partition, newest event time) of each split."""
    return [RouteReport(0, time_max=time, partition=partition) for partition, time in times]


def test_a_stream_without_partitions_goes_by_its_newest_record() -> None:
    assert advance(None, {}, seen(), delay_micros=5, idle_seconds=0, now=0) == (None, {})
    assert advance(None, {}, seen((None, 100), (None, 300), (None, None)), delay_micros=5, idle_seconds=0, now=0) == (295, {})
    assert advance(295, {}, seen((None, 200)), delay_micros=5, idle_seconds=0, now=0) == (295, {})


def test_the_partition_furthest_behind_holds_the_watermark_until_it_is_idle() -> None:
    mark, partitions = advance(None, {}, seen((0, 100), (0, 120), (1, 500)), delay_micros=10, idle_seconds=30, now=1000)
    assert (mark, partitions) == (110, {0: Newest(120, 1000), 1: Newest(500, 1000)})
    mark, partitions = advance(mark, partitions, seen((1, 700)), delay_micros=10, idle_seconds=30, now=1030)
    assert mark == 110, "partition 0 was silent for 30 s, and is waited for"
    mark, partitions = advance(mark, partitions, seen((1, 650)), delay_micros=10, idle_seconds=30, now=1031)
    assert mark == 690, "partition 0 is idle, and partition 1's newest record stays its newest"
    mark, partitions = advance(mark, partitions, seen((0, 130)), delay_micros=10, idle_seconds=30, now=1032)
    assert mark == 690, "back again, it cannot take the watermark back"
    assert partitions == {0: Newest(130, 1032), 1: Newest(700, 1031)}


def test_a_partition_whose_records_wait_is_not_idle() -> None:
    partitions = {0: Newest(120, 1000.0), 1: Newest(500, 1000.0)}
    waits: dict[str, Any] = {"delay_micros": 10, "idle_seconds": 30, "waiting": [0]}
    mark, partitions = advance(110, partitions, seen((1, 700)), now=1031.0, **waits, blocked=[0])
    assert (mark, partitions) == (110, {0: Newest(120, 1031.0), 1: Newest(700, 1031.0)})
    mark, partitions = advance(mark, partitions, seen((1, 800)), now=1070.0, **waits)
    assert mark == 110, "its records can be read, and have not been read yet"
    mark, partitions = advance(mark, partitions, seen((1, 900)), now=1101.0, delay_micros=10, idle_seconds=30)
    assert mark == 890, "the transaction was aborted, and nothing has come for 31 s since"


def test_a_partition_with_records_that_nobody_could_read_so_far_holds_the_watermark() -> None:
    waits: dict[str, Any] = {"delay_micros": 10, "idle_seconds": 30, "waiting": [0], "blocked": [0]}
    mark, partitions = advance(None, {}, seen((1, 500)), now=1000.0, **waits)
    assert (mark, partitions) == (None, {1: Newest(500, 1000.0)})
    assert advance(300, partitions, seen((1, 700)), now=9000.0, **waits)[0] == 300
    assert advance(300, partitions, seen((0, 400), (1, 700)), now=9000.0, delay_micros=10, idle_seconds=30)[0] == 390


def test_a_clock_that_is_set_back_makes_no_partition_wait_for_longer() -> None:
    partitions = {0: Newest(120, 9000.0), 1: Newest(500, 9000.0)}
    mark, partitions = advance(110, partitions, seen((1, 600)), delay_micros=10, idle_seconds=30, now=1000.0)
    assert (mark, partitions) == (110, {0: Newest(120, 1000.0), 1: Newest(600, 1000.0)})
    assert advance(mark, partitions, seen((1, 700)), delay_micros=10, idle_seconds=30, now=1031.0)[0] == 690


def test_a_checkpoint_keeps_its_partitions() -> None:
    checkpoint = Checkpoint(input=InputState(partitions=({0: Newest(5, 1.5), 12: Newest(7, 2.0)}, {})))
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint


@pytest.mark.parametrize(
    ("moments", "peak", "apart", "latest"),
    [
        ([1, 2, 3], None, 0, 3),
        ([5, 2, 7, 3], None, 4, 7),
        ([5, 2], 9, 7, 9),
        ([-(2**62), 2**62, -(2**62)], None, 2**63, 2**62),
    ],
)
def test_disorder_is_how_far_a_time_is_before_an_earlier_one(moments: list[int], peak: int | None, apart: float, latest: int) -> None:
    assert disorder(np.array(moments, np.int64), peak) == (apart, latest)


@pytest.mark.parametrize(("micros", "shown"), [(0, "10ms"), (1, "10ms"), (4_000_000, "5s"), (61_000_000, "5m"), (90_000_000_000, "2d")])
def test_a_watermark_is_recommended_in_round_numbers(micros: int, shown: str) -> None:
    assert str(watermark_for(micros)) == shown
