"""What a chain in full swing makes of the sizes of its blocks, counted; and ``docs/chain.md``, which says so."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from bench import bench_chain
from bench.report import table
from streamjoin.chain.blocksize import Load, imbalance_factor, serialization_times
from streamjoin.chain.messages import TupleBlock
from streamjoin_research.chain.measure import Measured, measure

pytestmark = pytest.mark.xdist_group("blocksize")  # what is measured is kept


@cache
def measured(block_tuples: int, workers: int = 4) -> Measured:
    """Shares of 100 tuples."""
    return measure(share(workers), block_tuples)


def share(workers: int) -> Load:
    return Load(10 * workers, window_seconds=10, workers=workers, capacity_tuples=200)


BLOCKS = (2, 5, 10, 25, 50, 100)


def test_on_every_link_a_window_takes_as_many_times_st_blocks_as_there_are_workers() -> None:
    """All tuples of a window cross each link, not a worker's share of them."""
    for workers in (2, 4):
        for block in BLOCKS:
            expected = workers * serialization_times(share(workers), block)
            assert measured(block, workers).blocks_a_link == pytest.approx(expected, rel=0.05)


def test_the_fullest_worker_exceeds_the_mean_by_half_of_if_on_average() -> None:
    for block in (10, 25, 50, 100):
        assert 0.35 < measured(block).imbalance / imbalance_factor(share(4), block) < 0.6


def test_both_streams_together_are_more_even_than_each() -> None:
    """They are not full at the same end, nor at the same time."""
    for block in (10, 25, 50, 100):
        assert 0.3 < measured(block).imbalance_of_both / measured(block).imbalance < 0.8


def test_neighbours_differ_by_less_than_a_block() -> None:
    for block in BLOCKS:
        assert measured(block).most_ahead < block
        assert measured(block).most_behind <= block


def test_each_block_is_acknowledged_and_larger_blocks_are_fewer() -> None:
    for block in BLOCKS:
        messages = measured(block).messages_a_tuple
        assert messages["Ack"] == messages[TupleBlock.__name__]
    counts = [sum(measured(block).messages_a_tuple.values()) for block in BLOCKS]
    assert counts == sorted(counts, reverse=True)


def test_blocks_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="block_tuples: 0 must be 1 or more"):
        measure(share(4), 0)


def test_one_worker_sends_nothing() -> None:
    assert measured(5, workers=1) == Measured(0.0, 0.0, 0, 0, 0.0, {})


def test_the_example_of_the_documentation_prints_what_it_should(capsys: pytest.CaptureFixture[str]) -> None:
    [example] = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "docs" / "chain.md").read_text(), re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out == "[(0, 0), (1, 0)]\n"


def test_the_table_of_the_documentation_is_what_its_command_prints() -> None:
    text = (Path(__file__).parents[1] / "docs" / "chain.md").read_text()
    assert bench_chain.sizes_by_rate() in text
    for workers, block in ((2, 10), (4, 50), (8, 500)):
        assert table(["-"], [bench_chain.measured(workers, block)]).splitlines()[-1] in text
