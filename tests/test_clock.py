"""A wall clock that is set forward and back by hours while a join runs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from harness import SECOND, START, driver_for, output_of
from streamjoin.manifest.quantity import Duration
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage
from test_crashes import check, expected, job_at, make_inputs

HOURS = 6 * 3600.0


@pytest.mark.parametrize("offset", [-HOURS, HOURS], ids=["back", "forward"])
def test_a_clock_that_is_set_holds_no_results_back_and_changes_none(offset: float, tmp_path: Path) -> None:
    """Results of small epochs wait for three seconds, by a clock that goes on by a twentieth of one whenever it is asked."""
    inputs = make_inputs(epochs=20)
    ticks, hour = itertools.count(START / SECOND + 1000, 0.05), 0.0
    job = job_at(tmp_path)
    join = replace(job.joins[0], sink=job.joins[0].sink.model_copy(update={"gather": Duration.parse("3s")}))  # type: ignore[union-attr]
    job = replace(job, interval_micros=0, joins=(join,))
    driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner(), clock=lambda: next(ticks) + hour)
    driver.start()
    for _ in range(3):
        driver.step()
    before = output_of(tmp_path)
    assert driver.checkpoint.output.waiting, "some results wait"
    hour = offset
    driver.step()
    visible = output_of(tmp_path)
    assert visible > before, "those that waited are visible, for nobody knows how long they have waited"
    for _ in range(12):
        driver.step()
    assert output_of(tmp_path) > visible, "and so are later ones"
    while driver.step() is not None:
        pass
    assert output_of(tmp_path) == expected(inputs)
    check(tmp_path, inputs, driver, f"clock set by {offset} s", job)
