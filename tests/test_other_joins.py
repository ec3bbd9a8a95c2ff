"""Joins that are added to a checkpoint and removed from it, by hand: what is refused, and what the others hold stays.

Random ones are in ``test_random_joins.py``.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import SECOND, START, Input, driver_for, join_of, late_of, make_batch, make_job, output_of
from joins import BAND, band_inputs
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.job import Job
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage


def job_of(root: Path, **joins: dict[str, Any]) -> Job:
    """A job whose joins, by name, are over a window of three seconds unless they say otherwise."""
    usual = {"on": BAND, "window": {"within": "3s"}}
    entries = [join_of(root / name, name=name, **(usual | options)) for name, options in joins.items()]
    return make_job(root, joins=entries, types=("BIGINT", "BIGINT"), workers=2, watermark="2s")


def run(job: Job, root: Path, *, epochs: int | None = None, stops: bool = True) -> Driver:
    driver = driver_for(job, band_inputs(), ObjectStorage(str(root / "state")), InlineRunner())
    driver.start()
    while driver.step(final=True) is not None:
        if epochs is not None and driver.checkpoint.epoch >= epochs:
            break
    if stops:
        driver.stop()
    return driver


REFUSED = [
    ({"a": {"window": {"within": "4s"}}, "b": {}}, "spec.joins[a].window: before 4000000 us, after 4000000 us differs from"),
    ({"a": {"join_type": "left"}, "b": {}}, "spec.joins[a].type: left differs from inner, which"),
    ({"a": {"output": {"select": ["l.v AS v", "r.rid AS b"]}}, "b": {}}, "spec.joins[0].output.select[0]: needs l.v, which held tuples do"),
]


@pytest.mark.parametrize(("joins", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_joins_that_stay_stay_as_they_are(joins: dict[str, Any], message: str, tmp_path: Path) -> None:
    run(job_of(tmp_path, a={}), tmp_path, epochs=4)
    with pytest.raises(CheckpointMismatch, match=re.escape(message)):
        run(job_of(tmp_path, **joins), tmp_path)


def test_joins_of_another_kind_of_window_may_come_when_all_others_go(tmp_path: Path) -> None:
    run(job_of(tmp_path, a={}), tmp_path, epochs=4)
    run(job_of(tmp_path, b={"window": {"rows": 5}}, c={"window": {"rows": 9}}), tmp_path)
    assert Counter() < output_of(tmp_path / "b") < output_of(tmp_path / "c")


def test_a_join_is_removed_only_once_its_results_are_surely_visible(tmp_path: Path) -> None:
    run(job_of(tmp_path, a={}, b={}), tmp_path, epochs=4, stops=False)
    with pytest.raises(CheckpointMismatch, match=r"spec\.joins: b was removed while results of it are committed that may not be vis"):
        run(job_of(tmp_path, a={}), tmp_path)
    run(job_of(tmp_path, a={}, b={}), tmp_path, epochs=5)
    run(job_of(tmp_path, a={}), tmp_path)
    assert output_of(tmp_path / "a") > output_of(tmp_path / "b") > Counter()


def test_a_join_gets_another_sink_only_once_its_results_are_surely_visible(tmp_path: Path) -> None:
    def to(name: str) -> dict[str, Any]:
        return {"output": {"sink": {"files": {"path": str(tmp_path / name / "out"), "format": "parquet"}}}}

    there, elsewhere = to("there"), to("elsewhere")
    for joins in ({"a": there, "b": {}}, {"a": there}):
        run(job_of(tmp_path, **joins), tmp_path, epochs=4, stops=False)
        before = output_of(tmp_path / "there")
        message = (
            rf"spec\.joins\[a\]\.output\.sink: epoch 4 is committed with results for files in {tmp_path}/there/out, where they may not be"
            rf" visible yet, and now it is files in {tmp_path}/elsewhere/out; run with files in {tmp_path}/there/out until"
        )
        with pytest.raises(CheckpointMismatch, match=message):
            run(job_of(tmp_path, **{**joins, "a": elsewhere}), tmp_path)
        assert output_of(tmp_path / "there") == before
        run(job_of(tmp_path, **joins), tmp_path, epochs=5)
        run(job_of(tmp_path, **{**joins, "a": elsewhere}), tmp_path)
        both = output_of(tmp_path / "there") + output_of(tmp_path / "elsewhere")
        assert len(both) == both.total() > output_of(tmp_path / "there").total() > 0
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


def test_dead_letters_go_elsewhere_only_once_they_are_surely_visible(tmp_path: Path) -> None:
    def job(letters: str) -> Job:
        late = {"deadLetter": {"late": True, "location": str(tmp_path / letters)}}
        return make_job(tmp_path, joins=[join_of(tmp_path / "a", name="a", on=BAND, window={"within": "3s"})], watermark="0s", **late)

    def go_on(letters: str, epochs: int) -> Driver:
        driver = driver_for(job(letters), (late, late), ObjectStorage(str(tmp_path / "state")), InlineRunner())
        driver.start()
        while driver.checkpoint.epoch < epochs and driver.step(final=True) is not None:
            pass
        return driver

    seconds = (0, 4, 8, 0, 9)
    late = Input([make_batch([(rid, 1, 1, START + at * SECOND)], pa.int64()) for rid, at in enumerate(seconds)], [1] * len(seconds))
    go_on("there", 3)
    message = r"spec\.deadLetter\.location: epoch 3 is committed with results for files in .*/there, where"
    with pytest.raises(CheckpointMismatch, match=message):
        go_on("elsewhere", 4)
    go_on("there", 3).stop()
    go_on("elsewhere", 4).stop()
    assert late_of(tmp_path, "there") == {("l", 3), ("r", 3)}


def test_joins_that_come_one_after_the_other_have_as_many_key_spaces_and_not_more_than_a_scheme_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 8  # joins over two streams, of which so many more may be, have one each
    monkeypatch.setattr("streamjoin.language.key_spaces.MOST_KEY_SPACES", most)
    joins: dict[str, dict[str, Any]] = {}
    for number in range(most):
        joins[f"j{number}"] = {}
        driver = run(job_of(tmp_path, **joins), tmp_path, epochs=number)
        assert len(driver.checkpoint.plan.key_spaces.key_spaces) == number + 1
        assert len(driver.checkpoint.state.expired) == 2 * (number + 1)
    with pytest.raises(CheckpointMismatch, match=r"spec\.joins: tuples would lie by 9 of at most 8 kinds of keys"):
        run(job_of(tmp_path, **joins, another={}), tmp_path)
    run(job_of(tmp_path, j3={}, j7={}), tmp_path)
    kept = read_latest(ObjectStorage(str(tmp_path / "state"))).checkpoint
    assert {block.place for block in kept.state.blocks} <= {0, 1, 2, 3}
    assert {name: placed.places for name, placed in kept.plan.key_spaces.joins.items()} == {"j3": (0, 1), "j7": (2, 3)}


def test_what_others_hold_stays_in_its_blocks_when_a_join_comes(tmp_path: Path) -> None:
    before = run(job_of(tmp_path, a={"window": {"unbounded": True}}), tmp_path, epochs=5).checkpoint.state.blocks
    both = job_of(tmp_path, a={"window": {"unbounded": True}}, b={"window": {"unbounded": True}})
    after = run(both, tmp_path, epochs=6).checkpoint.state.blocks
    assert {block.name for block in before} <= {block.name for block in after if block.place < 2}
    assert sum(block.rows for block in after if block.place >= 2) < sum(block.rows for block in after if block.place < 2)
