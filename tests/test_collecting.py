"""Python's collector while a join runs, and after it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from streamjoin.runner.collecting import NEW_OBJECTS, collecting_seldom


@pytest.fixture
def not_frozen() -> Iterator[None]:
    """What ``conftest.py`` has done is undone for the time being."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("not_frozen")
def test_a_run_leaves_the_collector_as_it_was() -> None:
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    cycle = Cycle()
    with collecting_seldom():
        assert gc.get_threshold()[0] >= NEW_OBJECTS
        assert gc.get_freeze_count() > frozen, "what is there is left out"
    assert gc.get_threshold() == threshold
    assert gc.get_freeze_count() == frozen
    del cycle
    assert gc.collect() > 0, "what was left out meanwhile is looked at again"
