"""Several joins over the same two streams, by hand: each with a window, an output and a sink of its own, under one checkpoint.

Random ones are in ``test_random_joins.py``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import (
    SECOND,
    START,
    Crash,
    Input,
    driver_for,
    join_of,
    make_batch,
    make_job,
    oracle,
    output_of,
    run_all,
    staged_of,
)
from joins import BAND, RANGE3, band_expected, band_inputs, band_options
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.io.sinks import FilesSink
from streamjoin.job import Job
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage


@pytest.mark.parametrize("model", ["square", "biclique"])
def test_tuples_come_alone_when_the_window_of_their_own_join_has_passed_them(model: str, tmp_path: Path) -> None:
    """One tuple a second and side; each left one has a partner five seconds later, which an anti join over two seconds does not see."""

    def input_of(key_of: Callable[[int], int]) -> Input:
        batches = [make_batch([(number, key_of(number), 0, START + number * SECOND)], pa.int64()) for number in range(40)]
        return Input(batches, [1] * 40)

    inputs = input_of(lambda number: 10 * number), input_of(lambda number: 10 * (number - 5))
    alone = {"select": ["l.rid AS a"]}
    entries = [
        join_of(tmp_path / "pairs", name="pairs", on=BAND, window={"within": "20s"}),
        join_of(tmp_path / "early", name="early", on=BAND, window={"within": "2s"}, join_type="anti", output=alone),
        join_of(tmp_path / "late", name="late", on=BAND, window={"within": "4s"}, join_type="anti", output=alone),
    ]
    job = make_job(tmp_path, joins=entries, types=("BIGINT", "BIGINT"), watermark="0s", model=model)
    driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    results = run_all(driver)
    # What has passed goes by the watermark of the epoch before the previous one: in epoch n, by the right tuple of second n - 2.
    outputs = [{name: join.output for name, join in result.joins.items()} for result in results[:40]]
    assert [each["early"] for each in outputs] == [0] * 5 + [1] * 35
    assert [each["late"] for each in outputs] == [0] * 7 + [1] * 33
    assert [each["pairs"] for each in outputs] == [0] * 5 + [1] * 35
    assert output_of(tmp_path / "pairs") == Counter((number, number + 5) for number in range(35))
    assert output_of(tmp_path / "early") == output_of(tmp_path / "late") == Counter((number,) for number in range(40))


FAR_BELOW = "l.k < r.k - 35"


def several_sinks(root: Path, gather: str) -> Job:
    """A band join into Parquet, and the left tuples that are not far below any right one into JSON."""

    def entry(name: str, on: str, kind: str, columns: list[str], written_as: str) -> dict[str, Any]:
        sink = {"files": {"path": str(root / name / "out"), "format": written_as, "gather": gather}}
        output = {"select": columns, "sink": sink}
        return join_of(root / name, name=name, on=on, window=options["window"], join_type=kind, output=output)

    options = band_options()
    joins = [
        entry("pairs", BAND, "inner", ["l.rid AS a", "r.rid AS b"], "parquet"),
        entry("alone", FAR_BELOW, "anti", ["l.rid AS a"], "json"),
    ]
    return make_job(root, joins=joins, types=options["types"], workers=options["workers"], watermark=options["watermark"])


def check_several_sinks(root: Path, inputs: tuple[Input, Input], label: str) -> None:
    lines = [line for path in (root / "alone/out").glob("*.json") for line in path.read_text().splitlines()]
    alone = oracle(inputs, (pa.int64(), pa.int64()), FAR_BELOW, RANGE3[1], 2 * SECOND, kind="anti")
    assert len(alone) > 50
    assert Counter((json.loads(line)["a"], None) for line in lines) == alone, label
    assert output_of(root / "pairs") == band_expected(inputs), label
    assert [staged_of(root / name) for name in ("pairs", "alone")] == [[], []], label


def finish(job: Job, inputs: tuple[Input, Input], root: Path, at: Callable[[str], None] = lambda step: None) -> int:
    """Run to the end, with another driver for each that dies; how many did."""
    for died in range(20):
        try:
            run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner(), at=at))
        except Crash:
            continue
        return died
    raise AssertionError("never finished")


@pytest.mark.parametrize("gather", ["0s", "1h"])
@pytest.mark.parametrize("dies", ["before it publishes", "after one join's", "after all"])
def test_a_crash_about_publishing_makes_the_results_of_each_join_visible_once(
    dies: str, gather: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into sinks of different kinds; the driver dies the first time, the fourth, and so on, whether or not it is to publish again."""
    inputs = band_inputs()
    at_once, calls = FilesSink.publish, Counter[str]()

    def publish(sink: FilesSink, staged: Any, *, again: bool = False) -> None:
        kind = sink.config.format
        if dies == "after one join's" and kind == "json" and staged:
            die("json")
        at_once(sink, staged, again=again)
        if dies == "after all" and kind == "json" and staged:
            die("json")

    def die(what: str) -> None:
        calls[what] += 1
        if calls[what] % 3 == 1:
            raise Crash(f"{what} {dies}")

    monkeypatch.setattr(FilesSink, "publish", publish)
    job = several_sinks(tmp_path, gather)
    died = finish(job, inputs, tmp_path, at=lambda step: die(step) if step == "publish" and dies == "before it publishes" else None)
    assert died >= 1
    check_several_sinks(tmp_path, inputs, dies)


def job_of(root: Path, names: str, kinds: str = "anti semi") -> Job:
    joins = [
        join_of(root / kind, name=name, on=FAR_BELOW, window={"within": "3s"}, join_type=kind, output={"select": ["l.rid AS a"]})
        for name, kind in zip(names.split(), kinds.split(), strict=True)
    ]
    return make_job(root, joins=joins, types=("BIGINT", "BIGINT"), workers=2, watermark="2s")


def begin(job: Job, inputs: tuple[Input, Input], root: Path) -> None:
    """Run until a driver dies with results that it has committed and not published, and tuples of which some have matched."""
    commits = Counter[str]()

    def at(step: str) -> None:
        commits[step] += 1
        if commits["publish"] == 5:
            raise Crash(step)

    with pytest.raises(Crash):
        run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner(), at=at))


def test_a_checkpoint_of_several_joins_is_refused_where_one_has_changed(tmp_path: Path) -> None:
    inputs = band_inputs()
    begin(job_of(tmp_path, "a b"), inputs, tmp_path)
    with pytest.raises(CheckpointMismatch, match=re.escape("spec.joins[b].type: anti differs from semi, which")):
        finish(job_of(tmp_path, "b a", "anti semi"), inputs, tmp_path)


def test_joins_may_be_written_in_another_order_under_their_checkpoint(tmp_path: Path) -> None:
    inputs = band_inputs()
    begin(job_of(tmp_path, "a b", "anti semi"), inputs, tmp_path)
    finish(job_of(tmp_path, "b a", "semi anti"), inputs, tmp_path)
    for kind in ("anti", "semi"):
        want = oracle(inputs, (pa.int64(), pa.int64()), FAR_BELOW, RANGE3[1], 2 * SECOND, kind=kind)
        assert Counter({(*row, None): count for row, count in output_of(tmp_path / kind).items()}) == want


def test_the_only_join_may_be_renamed_under_its_checkpoint(tmp_path: Path) -> None:
    inputs = band_inputs()
    begin(job_of(tmp_path, "a", "anti"), inputs, tmp_path)
    finish(job_of(tmp_path, "b", "anti"), inputs, tmp_path)
    want = oracle(inputs, (pa.int64(), pa.int64()), FAR_BELOW, RANGE3[1], 2 * SECOND, kind="anti")
    assert Counter({(*row, None): count for row, count in output_of(tmp_path / "anti").items()}) == want
