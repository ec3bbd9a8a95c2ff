"""How many executors a drain must leave: the disruption budget of a join.

Always holds: pure; one executor may go of as many as the plan has, and the next one once another is there in its stead; and a shortage that
lasts blocks no drain.
"""

from __future__ import annotations

SHORTAGE_SECONDS = 600.0
"""Executors that the plan has and that are not there count for so long, as those do that were drained."""


def least_available(planned: int, there: int | None, short_seconds: float) -> int:
    """How many must stay when the plan has so many and so many are there, ``short_seconds`` after they became too few (None: not known).

    0: no budget is needed."""
    is_shortage = there is not None and there < planned and short_seconds >= SHORTAGE_SECONDS
    return max(0, (there if is_shortage and there is not None else planned) - 1)
