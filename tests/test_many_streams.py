"""Joins of several streams, by hand: where tuples lie, which members a window takes, and what a checkpoint is of.

Random ones are in ``test_random_joins.py``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
import yaml

from harness import SECOND, START, Input, driver_for, make_job, output_of, run_all
from operator_parts import streamjoin, three_streams
from random_joins import (
    Case,
    Features,
    Join,
    Oracle,
    Stream,
    Window,
    batch_of,
    check_output,
    column,
    compare,
    drawn,
    moment,
    written,
)
from streamjoin.compilation import compile_job, with_checkpoint
from streamjoin.controlplane.fingerprint import fingerprint, join_changes
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.manifest.validate import load
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.storage import ObjectStorage


@pytest.mark.parametrize(("kind", "seed"), [("semi", 49), ("anti", 46)])
def test_tuples_may_lie_in_more_places_than_the_manifest_alone_says(kind: str, seed: int, tmp_path: Path) -> None:
    """A sample of the first input chooses among the graphs of a condition, which hold tuples by different numbers of keys."""
    case = drawn(Features(streams=(3,), types_of_many=(kind,), models=("adsp",), epochs=(1,)), seed)
    job = make_job(tmp_path, **case.options(tmp_path, workers=2))
    driver = driver_for(job, case.inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    run_all(driver)
    assert len(driver.job.places) > len(job.places)
    check_output(case, tmp_path, str(case), Counter())


def test_a_join_that_has_keys_of_its_own_goes_and_tuples_lie_by_fewer(tmp_path: Path) -> None:
    """Workers are not counted by places that are no more, before the first epoch without the join."""
    features = Features(streams=(3,), joins=(3,), over="some", windows=("time",), types_of_many=("inner",), models=("adsp",), epochs=(8,))
    case = next(each for each in (drawn(features, seed) for seed in itertools.count()) if len(each.joins[0].over) == 3)
    for joins, epochs in (([join.name for join in case.joins], 3), (["j0"], 2)):
        job = make_job(tmp_path, **case.options(tmp_path, joins))
        driver = driver_for(job, case.inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
        driver.start()
        done = [driver.step(final=len(joins) == 1) for _ in range(epochs)]
        driver.stop()
    assert any(done)
    assert {len(held) for held in driver.checkpoint.state.held.values()} == {len(driver.job.places)}


@pytest.mark.parametrize(
    ("bounds", "times", "holds"),
    [
        ((9, 4, 1), (0, 5, 9), True),
        ((8, 9, 9), (0, 5, 9), False),
        ((9, 3, 9), (0, 5, 9), False),
        ((0, 9, 8), (9, 0, 1), True),
        ((9, 9, 8), (9, 0, 0), False),
        ((0, 0, 1), (4, 4, 4), True),
        ((0, 5, 5), (3, 4, 4), False),
    ],
)
def test_no_member_of_a_result_is_older_than_the_newest_by_more_than_its_streams_window(
    bounds: tuple[int, ...], times: tuple[int, ...], holds: bool, tmp_path: Path
) -> None:
    """In whatever order the three arrive, one in each epoch, or all in one."""
    names = "abc"
    condition = tuple(compare(column(one, "n"), "=", column(other, "n")) for one, other in ("ab", "bc"))
    window, select = Window("each", dict(zip(names, bounds, strict=True))), {f"{name}_rid": column(name, "rid") for name in names}
    join = Join("j", tuple(names), "inner", "chain", condition, window, select)
    arrivals = [*itertools.permutations(range(3)), (0, 0, 0)]
    for number, epochs in enumerate(arrivals):
        inputs = [one_tuple(epoch, START + second * SECOND) for epoch, second in zip(epochs, times, strict=True)]
        streams = tuple(Stream(name, one) for name, one in zip(names, inputs, strict=True))
        case, root = Case("bigint", streams, (join,), ((None, ("j",)),)), tmp_path / str(number)
        job = make_job(root, **case.options(root))
        run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner()))
        assert output_of(root / "j") == Counter([(0, 0, 0)] if holds else []), f"arrived in epochs {epochs}"
        assert Oracle(case.key, streams).results(join) == written(output_of(root / "j").elements())


def one_tuple(epoch: int, at: int) -> Input:
    """A stream whose only tuple comes in one of three epochs."""
    return Input([batch_of([(0, 1, 0, 0.0, "", 1, moment(at))])], [int(number == epoch) for number in range(3)])


def test_streams_may_not_come_or_go_under_a_checkpoint() -> None:
    two, three = (compile_job(with_checkpoint(load(yaml.safe_dump(streamjoin(**spec))))) for spec in ({}, three_streams()))
    cases = (two, three, "orders, payments, shipments differ from orders, payments,"), (three, two, "orders, payments differ from orders,")
    for before, now, names in cases:
        checkpoint = Checkpoint(fingerprint=fingerprint(before))
        with pytest.raises(CheckpointMismatch, match=f"spec.streams: {names}"):
            join_changes(now, checkpoint, "s3://here")
    assert fingerprint(three)["spec.joins[0].window"] == "each orders 180000000 us, payments 60000000 us, shipments 30000000 us"
