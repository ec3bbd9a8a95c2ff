"""Which result is in which snapshot, as a pure function of what was committed: random histories against what always holds."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from streamjoin.snapshots.timeline import FAN_IN, MOST_BYTES, SMALL_BYTES, Part, Rule, Timeline, check

LONGEST_EPOCH = 4.0
FORMS = ("BIGINT a: a int64", "BIGINT a: a int64, b string")


@pytest.mark.parametrize("seed", range(40))
def test_each_part_is_in_one_snapshot_whose_bounds_hold(seed: int) -> None:
    rng = random.Random(seed)
    every, size, delays = rng.choice([None, 2.0, 5.0]), rng.choice([None, 10, 100]), rng.randint(0, 3)
    rule = Rule(every, size, delays if every and size else 0, by_punctuation=every is None and size is None)
    timeline, now, form, rows_of, closed = Timeline(), 1.8e9, FORMS[0], Counter[str](), {}
    for epoch in range(200):
        now += rng.choice([0.1, 1.0, LONGEST_EPOCH])
        if rng.random() < 0.05:
            form = rng.choice(FORMS)
        parts = [Part(f"{epoch}-{number}", rng.randint(1, 9), rng.randint(1, 100)) for number in range(rng.choice([0, 1, 3]))]
        rows_of.update({part.path: part.rows for part in parts})
        marks = (f"mark {epoch}",) if rng.random() < 0.1 else ()
        before = timeline
        timeline = timeline.with_rows(rule, epoch, parts, form, now, marks=marks, end=epoch == 199)
        check(timeline)
        assert Timeline.from_json(json.loads(json.dumps(timeline.to_json()))) == timeline
        if timeline.open is not None:
            assert rule.size_rows is None or timeline.open.rows < rule.size_rows
            assert timeline.open.delays <= rule.most_delays
            if rule.every_seconds is not None:
                longest = max(rule.every_seconds, LONGEST_EPOCH) * (rule.most_delays + 1)
                assert now - timeline.open.since < longest + LONGEST_EPOCH
        new = [snapshot for snapshot in timeline.closed if snapshot not in before.closed]
        closed |= {snapshot.id: snapshot for snapshot in new}
        if rng.random() < 0.3:  # some are stored
            ids = [snapshot.id for snapshot in timeline.closed if rng.random() < 0.5]
            timeline = timeline.without(ids, ids)
    assert timeline.open is None
    assert list(closed) == list(range(len(closed)))
    names = Counter(part.path for snapshot in closed.values() for part in snapshot.parts)
    assert names == Counter(rows_of.keys())
    for snapshot in closed.values():
        assert snapshot.rows == sum(rows_of[part.path] for part in snapshot.parts) > 0
    epochs = [snapshot.epoch for snapshot in closed.values()]
    assert epochs == sorted(epochs)
    if rule.by_punctuation:
        assert any(snapshot.marks for snapshot in closed.values())


def test_a_snapshot_that_is_large_ends_whatever_the_rule_says() -> None:
    timeline = Timeline().with_rows(Rule(3600.0), 0, [Part("a", 5, MOST_BYTES)], FORMS[0], 1.0)
    assert (timeline.open, [snapshot.rows for snapshot in timeline.closed]) == (None, [5])


def test_a_clock_that_is_set_back_ends_a_snapshot() -> None:
    timeline = Timeline().with_rows(Rule(10.0), 0, [Part("a", 5, 5)], FORMS[0], 1000.0)
    assert not timeline.is_due(Rule(10.0), 1009.0)
    assert timeline.is_due(Rule(10.0), 900.0)


def test_small_parts_become_few_each_put_together_some_times_only() -> None:
    timeline, written, now = Timeline(), 0, 1.0
    for epoch in range(4000):
        small = timeline.to_gather()
        if small:
            nbytes = sum(part.nbytes for part in small)
            written += nbytes
            timeline = timeline.gathered(small, Part(f"gathered {epoch}", sum(part.rows for part in small), nbytes))
        timeline = timeline.with_rows(Rule(1e9), epoch, [Part(f"{epoch}", 1, 100)], FORMS[0], now)
        check(timeline)
        assert timeline.open is not None
        assert len(timeline.open.parts) <= 4 * FAN_IN
    assert timeline.open is not None
    assert timeline.open.rows == 4000
    assert written <= 4 * 4000 * 100
    large = Timeline().with_rows(Rule(1e9), 0, [Part(str(number), 1, SMALL_BYTES) for number in range(2 * FAN_IN)], FORMS[0], 1.0)
    assert large.to_gather() == () or large.open is None
