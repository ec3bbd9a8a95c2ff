"""Parts of the sentences in which rules give their reasons."""

from __future__ import annotations

from streamjoin.elastic.sample import Reading


def listed(problems: tuple[str, ...]) -> str:
    """The first three."""
    shown = "; ".join(problems[:3])
    return f"{shown}; and {len(problems) - 3} more" if len(problems) > 3 else shown or "it is partial"


def by_whom(latest: Reading) -> str:
    """Whose numbers those are that workers are added by, where nobody confirms them."""
    return "" if latest.unconfirmed is None else f", by the join's own numbers alone ({latest.unconfirmed})"


def unconfirmed(latest: Reading) -> str:
    """Why no worker goes by such a sample."""
    return f"only the join's own numbers are there, by which workers are added and none removed ({latest.unconfirmed})"


def worker_count(number: int) -> str:
    """``1 worker``, ``1,200 workers``."""
    return "1 worker" if number == 1 else f"{number:,} workers"


def from_to(before: int, after: int) -> str:
    """``from 4 to 6 workers``."""
    return f"from {before:,} to {worker_count(after)}"


def duration(seconds: float) -> str:
    """``45 s``; from ten minutes on ``12 min``."""
    return f"{seconds:.0f} s" if abs(seconds) < 600 else f"{seconds / 60:.0f} min"
