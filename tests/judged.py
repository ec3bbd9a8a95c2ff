"""The plans that a forecast makes to judge them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamjoin import sizing
from streamjoin.elastic.planner import Planned, make_plan


@contextmanager
def judged_plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Planned]]:
    """Those that are made meanwhile. Fails where one is made again: for as many workers, of the same statistics."""
    made, known = list[Planned](), list[tuple[Any, int]]()

    def plan(current: Any, statistics: Any, main: Any, *, workers: int, **others: Any) -> Planned:
        assert not any(one is statistics and so_many == workers for one, so_many in known), f"made again for {workers} workers"
        known.append((statistics, workers))
        made.append(make_plan(current, statistics, main, workers=workers, **others))
        return made[-1]

    with monkeypatch.context() as patched:
        patched.setattr(sizing, "make_plan", plan)
        yield made
