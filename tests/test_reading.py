"""Who reads which splits of an epoch."""

from __future__ import annotations

import random

from streamjoin.io.base import Split
from streamjoin.runner.reading import FAIR, SMALL_RECORDS, Reading

WORKERS = [f"worker-{number}" for number in range(4)]


def split(records: int, partition: int | None = None, side: int = 0) -> tuple[int, Split]:
    return side, Split(first_record=0, records=records, partition=partition)


def test_a_small_epoch_is_read_by_one_worker() -> None:
    assert Reading().spread([split(500), split(500, side=1)], WORKERS) == {"worker-0": (0, 1)}


def test_without_splits_nobody_reads() -> None:
    assert Reading().spread([], WORKERS) == {}


def test_every_split_is_read_once_and_about_as_much_by_each() -> None:
    rng = random.Random(3)
    for _ in range(100):
        splits = [split(rng.randint(1, 4 * SMALL_RECORDS), side=rng.randint(0, 1)) for _ in range(rng.randint(1, 30))]
        found = Reading().spread(splits, WORKERS[: rng.randint(1, 4)])
        assert sorted(index for indexes in found.values() for index in indexes) == list(range(len(splits)))
        loads = [sum(splits[index][1].records for index in indexes) for indexes in found.values()]
        assert max(loads) <= sum(loads) / len(loads) + max(one.records for _, one in splits)


def test_a_partition_stays_with_its_worker_while_that_is_fair() -> None:
    reading = Reading()
    even = [split(SMALL_RECORDS, partition) for partition in range(8)]
    first = reading.spread(even, WORKERS)
    assert [len(indexes) for indexes in first.values()] == [2, 2, 2, 2]
    shuffled = random.Random(1).sample(even, len(even))
    for worker, indexes in reading.spread(shuffled, WORKERS).items():
        assert {shuffled[index][1].partition for index in indexes} == {even[index][1].partition for index in first[worker]}
    skewed = [split(SMALL_RECORDS * (8 if partition in first["worker-0"] else 1), partition) for partition in range(8)]
    loads = [sum(skewed[index][1].records for index in indexes) for indexes in reading.spread(skewed, WORKERS).values()]
    assert max(loads) <= FAIR * sum(loads) / 4 + 8 * SMALL_RECORDS
    assert len([load for load in loads if load >= 8 * SMALL_RECORDS]) == 2, "not both large ones with one worker"


def test_a_worker_that_is_gone_is_given_nothing() -> None:
    reading = Reading()
    splits = [split(SMALL_RECORDS, partition) for partition in range(4)]
    reading.spread(splits, WORKERS)
    assert set(reading.spread(splits, WORKERS[1:])) == set(WORKERS[1:])
