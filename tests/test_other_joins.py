"""Joins that are added to a checkpoint and removed from it, while what the others hold stays: each join's results are DuckDB's over what
was read while it was there.

Random sets of joins, of which some come and go between epochs, under plans that change, drivers that die, workers that lose what they hold
and epochs that fail. ``STREAMJOIN_SEED=<seed> pytest tests/test_other_joins.py`` runs one case, ``STREAMJOIN_CASES`` sets how many.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cases import how_many, some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import SECOND, START, Input, driver_for, join_of, late_of, make_batch, make_job, oracle, output_of
from joins import BAND, band_inputs
from streamjoin.epoch.driver import Driver
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.job import Job
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import INTERCHANGEABLE, KEYED
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage
from test_join_property import KINDS, make_input
from test_several_joins import OPERATORS_OF_A_SET, ORDERED, WINDOWS_OF_A_SET, Drawn, draw_join

CASES = how_many(80)
SEED = os.environ.get("STREAMJOIN_SEED")


@dataclass
class Member:
    """A join, and the records of each stream between which it was there."""

    drawn: Drawn
    since: tuple[int, ...]
    until: tuple[int, ...] | None = None


def records_of(root: Path) -> tuple[int, ...]:
    latest = read_latest(ObjectStorage(str(root / "state")))
    return (0, 0) if latest is None else latest.checkpoint.input.records


def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
    rng = random.Random(seed)
    key, forms = rng.choice(ORDERED), rng.choice(WINDOWS_OF_A_SET)
    model, epochs, faults = rng.choice(["adsp", *INTERCHANGEABLE]), rng.choice([6, 12, 20]), rng.random() < 0.6
    inputs = (make_input(key, rng, epochs, rng.choice([0, 3, 15])), make_input(key, rng, epochs, rng.choice([0, 3, 15])))
    options: dict[str, Any] = {
        "types": (KINDS[key].ddl,) * 2,
        "workers": rng.randint(1, 5),
        "watermark": f"{rng.choice([0, 2, 10, 1000])}s",
        "deadLetter": {"late": True},
    }

    def draw() -> Drawn:
        drawn = draw_join(f"j{len(members)}", root, key, rng.choice(OPERATORS_OF_A_SET), forms, rng)
        cuts = all(layout.cuts_keys for layout in job_of([drawn], "adsp").layouts)
        same = [member for member in members.values() if asked(member.drawn) == asked(drawn)]
        return drawn if not same and (cuts or model not in KEYED) else draw()

    def asked(join: Drawn) -> tuple[Any, ...]:
        """What a join is but for its name, by which one alone is not known."""
        return tuple(join.entry[field] for field in ("condition", "window", "type"))

    def job_of(drawn: list[Drawn], model: str) -> Job:
        return make_job(root, model=model, joins=[join.entry for join in drawn], **options)

    members: dict[str, Member] = {}
    stages = sorted(rng.sample(range(1, epochs), rng.choice([1, 1, 2, 3])))
    for until in [*stages, None]:
        now = records_of(root)
        there = [member for member in members.values() if member.until is None]
        for member in there:
            if rng.random() < 0.3:
                member.until = now
                counts["removed"] += 1
        added = [Member(draw(), now)] * (not there or rng.random() < 0.8)
        members |= {member.drawn.name: member for member in added}
        if len(members) == 1 or rng.random() < 0.3:
            drawn = draw()
            members[drawn.name] = Member(drawn, now)
        drawn_now = [member.drawn for member in members.values() if member.until is None]
        if not drawn_now:
            drawn = draw()
            members[drawn.name] = Member(drawn, now)
            drawn_now = [drawn]
        counts["added"] += until != stages[0] and len(added)
        rng.shuffle(drawn_now)
        job = job_of(drawn_now, model if model not in KEYED else "square")
        if model in KEYED and any(layout.cuts_keys for layout in job.layouts):
            job = job_of(drawn_now, model)
        elif model in KEYED:
            job = replace(job, model="adsp")
        job = elastic(job) if faults else job
        run_with_faults(job, inputs, root, rng, counts, faults=faults, until=until)
        counts["stages"] += 1
    counts["results"] += check(members, inputs, root, key, f"STREAMJOIN_SEED={seed}: {job.model}, {dict(counts)}")


def check(members: dict[str, Member], inputs: tuple[Input, Input], root: Path, key: str, label: str) -> int:
    types, late, results = (KINDS[key].arrow,) * 2, late_of(root), 0
    for member in members.values():
        join = member.drawn
        until = member.until or tuple(sum(batch.num_rows for batch in one.batches) for one in inputs)
        there = [range(since, end) for since, end in zip(member.since, until, strict=True)]
        records = [sum(batch.num_rows for batch in one.batches) for one in inputs]
        absent = {(name, rid) for name, count, span in zip("lr", records, there, strict=True) for rid in range(count) if rid not in span}
        want = oracle(inputs, types, f"({join.expected})", join.inside, None, kind=join.kind, where=join.where, left_out=late | absent)
        found = Counter({(*row, None)[:2]: count for row, count in output_of(root / join.name).items()})
        if member.until is not None and join.kind in ("left", "right", "full", "anti"):
            # Tuples that came alone while it was there: those that had nothing still to come, of all that do by then.
            alone = {row for row in want if None in row}
            found_alone = {row for row in found if None in row}
            assert found_alone <= alone, (label, join)
            want, found = (Counter({row: n for row, n in rows.items() if None not in row}) for rows in (want, found))
        assert found == want, (
            f"{label}; {join.name}, {join.kind} on {join.entry['condition']!r}, window {join.entry['window']}, where {join.where}, there"
            f" {member.since}..{member.until}, of {[(each.drawn.name, each.since, each.until) for each in members.values()]}:\n"
            f"missing {list((want - found).items())[:5]}\nunexpected {list((found - want).items())[:5]}"
        )
        results += found.total()
    return results


@pytest.mark.parametrize("part", some(range(4), of=4))
def test_each_join_gives_what_it_would_give_alone_while_it_is_there(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    run_cases(range(part, CASES, 4) if SEED is None else [int(SEED)] * (part == 0), tmp_path, run_case, counts)
    if SEED is None and CASES >= 80:
        assert counts["results"] > 1_000
        assert min(counts["added"], counts["removed"], counts["switches"]) > 5
        assert counts["failed epochs"] + counts["died at commit"] + counts["died at joins"] > 0


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
