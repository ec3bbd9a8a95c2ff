"""A slice of ``soak_crashes``: one seed with the faults that take no time of their own. Run that for all of them, and for more seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak import Kind, make_case
from soak_crashes import run_case

KINDS = (
    *(Kind.WORKER_KILLED, Kind.PLAN_PUT, Kind.STORAGE_FAILS_AFTER, Kind.CLOCK_SET, Kind.POWER_LOST),
    *(Kind.FILE_ROTATED, Kind.FILE_REWRITTEN, Kind.STREAM_SILENT),
)


@pytest.mark.spark
def test_faults_at_random_points_of_a_join_on_spark_lose_and_repeat_nothing(tmp_path: Path) -> None:
    outcome = run_case(make_case(1, len(KINDS), KINDS, master=None), tmp_path)
    assert outcome.is_right, (outcome.lost, outcome.repeated, outcome.wrong, outcome.unasked)
    assert sum(map(len, outcome.seconds.values())) == len(KINDS), "the join went on after each"
