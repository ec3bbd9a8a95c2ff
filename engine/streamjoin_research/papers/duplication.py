"""000, "Eliminating Stream Duplication": bytes that are routed for several joins over one pair of streams, beside a job for each join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from streamjoin_research.papers.queries import TINY, loaded
from streamjoin_research.papers.rows import Kind, Lines, Ours, Row, Values, figures, holds
from streamjoin_research.papers.runs import Join, Run, Tasks, run, streams

KINDS = "one job", "a job each"
COUNTS = (1, 2, 4, 8)
WORKERS = 4
TUPLES = 20_000
"""Of each stream in an epoch."""
SECONDS = (179, 119, 59, 179, 119, 59, 179, 119)
"""Windows."""
SAME_KEY = tuple(Join(f"abs(l.k - r.k) <= {1 + number}", seconds) for number, seconds in enumerate(SECONDS))
KEYS = ("k", "v", "k + v", "k - v", "k + 2 * v", "k - 2 * v", "2 * k + v", "2 * k - v")
"""Of joins that have none in common; every column in it is the stream's own."""


def _of(key: str, stream: str) -> str:
    return key.replace("k", f"{stream}.k").replace("v", f"{stream}.v")


OTHER_KEYS = tuple(Join(f"{_of(key, 'l')} = {_of(key, 'r')}", seconds) for key, seconds in zip(KEYS, SECONDS, strict=True))


@cache
def together_and_apart(joins: Sequence[Join], quick: bool) -> dict[int, tuple[Run, list[Run]]]:
    """By number of joins: one job with the first so many of them, and as many jobs of one each."""
    tuples, counts = (TINY, (1, 2)) if quick else (TUPLES, COUNTS)
    tasks = Tasks.exactly("adsp", WORKERS)
    with streams(loaded(100 * tuples, [(tuples, tuples)] * 4, 0.0)) as given:
        apart = [run(given, [join], tasks) for join in joins[: max(counts)]]
        return {count: (run(given, joins[:count], tasks), apart[:count]) for count in counts}


def _sent(joins: Sequence[Join]) -> Callable[[bool], Ours]:
    def ours(quick: bool) -> Ours:
        found = together_and_apart(joins, quick)
        one = _bytes(found[1][0])
        together = {count: _bytes(of) / one for count, (of, _) in found.items()}
        apart = {count: sum(map(_bytes, of)) / one for count, (_, of) in found.items()}
        values: dict[str, Any] = {"joins": list(found), "one job": list(together.values()), "a job each": list(apart.values())}
        return Ours(
            f"{', '.join(map(str, found))} joins, bytes of one are 1: one job {figures(values['one job'])}, a job each "
            f"{figures(values['a job each'])}",
            values,
            Lines("joins", "bytes, those of one join are 1", [float(count) for count in found], {name: values[name] for name in KINDS}),
        )

    return ours


def _bytes(of: Run) -> int:
    return sum(epoch.routed_bytes for epoch in of.epochs)


def _as_one(v: Values) -> bool:
    return all(0 < sent <= 1.05 for sent in v["one job"])


def _below(v: Values) -> bool:
    return all(sent < apart for count, sent, apart in zip(v["joins"], v["one job"], v["a job each"], strict=True) if count > 1)


SAYS = (
    '"ESJ processes multiple source-sharing tasks upon the unitary pair of streams"; the saving is remarkable "if the number of '
    'source-sharing tasks is large"'
)
MODULES = ("controlplane/joins.py", "dataplane/route.py")
WITH = f"1, 2, 4, 8 joins by A-DSP on {WORKERS} tasks, {TUPLES:,} tuples of each stream a minute; windows of 59 to 179 s"

ROWS = (
    Row(
        "000",
        "duplication",
        "communication cost",
        "joins with one key",
        Kind.RUN,
        f"{WITH}; bands of different widths on one pair of keys; bytes that are sent to tasks",
        SAYS,
        _sent(SAME_KEY),
        (
            holds("one job sends at most 1.05 times what one join needs", _as_one),
            holds("and less than a job for each join", _below),
        ),
        MODULES,
        slow=True,
    ),
    Row(
        "000",
        "duplication",
        "communication cost",
        "joins with keys of their own",
        Kind.RUN,
        f"{WITH}; each an equality on keys of its own",
        SAYS,
        _sent(OTHER_KEYS),
        (
            holds("one job sends at most 1.05 times what one join needs", _as_one),
            holds("and less than a job for each join", _below),
        ),
        MODULES,
        why="A chain sends every tuple past every worker, whatever is joined. Here a tuple of one join with an equality goes to one task "
        "alone; keys that have nothing in common leave no cut that serves all joins.",
        slow=True,
    ),
)
