"""A join of two DataFrames on any condition, as a plan of Spark's own: no Python runs where rows are.

Always holds: the rows are those of ``left.join(right, expr(condition), how)``. Spark evaluates the condition on each pair of the result, by
its own rules; what is planned here only decides which pairs it has to look at.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from os import PathLike
from typing import Any, cast

import numpy as np
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812

from streamjoin.language.errors import SqlError, excerpt
from streamjoin.language.join_type import JoinType
from streamjoin.language.sides import LEFT, RIGHT, SIDE_NAMES, SIDES
from streamjoin.spark.bins import Own, Sample
from streamjoin.spark.conjuncts import qualified, read
from streamjoin.spark.explaining import Explanation, described
from streamjoin.spark.expressions import PREFIX, Frames, joined, padded, without_partner
from streamjoin.spark.keys import Keys, Session, column_sql, keys_of, renamed
from streamjoin.spark.needs import of_engine, version
from streamjoin.spark.planning import Chosen, choose

SAMPLE_ROWS = 4000
SEED = 20_111
_SMALL_BYTES = 1 << 16
"""Two frames of no more, by the optimizer's statistics, are joined by Spark's own plan without a look at them."""
_TYPES = {
    "outer": JoinType.FULL,
    "fullouter": JoinType.FULL,
    "leftouter": JoinType.LEFT,
    "rightouter": JoinType.RIGHT,
    "leftsemi": JoinType.SEMI,
    "leftanti": JoinType.ANTI,
    **{each.value: each for each in JoinType},
}
_OF_SPARK = {JoinType.SEMI: "left_semi", JoinType.ANTI: "left_anti", JoinType.FULL: "full_outer"}


def join(
    left: Any,
    right: Any,
    condition: str,
    how: str = "inner",
    *,
    sample: int = SAMPLE_ROWS,
    explain: bool = False,
    within: str | timedelta | None = None,
    checkpoint: str | PathLike[str] | None = None,
    workers: int | Mapping[str, Any] = 1,
    keep: str | timedelta = "7d",
    idle_timeout: str | timedelta | None = None,
) -> Any:
    """The join of two DataFrames on ``condition``: the rows of ``left.join(right, expr(condition), how)``, by the best plan known.

    >>> near = "abs(left.price - right.price) <= 0.05 AND left.venue <> right.venue"
    >>> pairs = join(trades, quotes, near, how="inner")                                 # doctest: +SKIP

    ``condition`` is Spark SQL over the two. Columns are ``left.price`` and ``right.price``, or named by the frames' aliases
    (``df.alias("t")``: ``t.price``), or bare where one frame has the name. ``how``: inner, left, right, full, semi, anti, or one of Spark's
    other names of these. The result has the columns of the left and then of the right (semi and anti: of the left), and is lazy
    as any DataFrame; but two jobs sample the frames first, unless Spark's statistics say that both are small (64 KiB). They read the
    columns of the condition once, keep ``sample`` rows of each, and draw the same each time. ``explain`` prints the way chosen, and why.

    Two streaming DataFrames, each with a watermark, are joined where their event times are ``within`` that of each other. The state is in
    ``checkpoint``; results are kept there for as long as ``keep``, for queries that come back. ``workers``: their number, or the fields of
    ``spec.workers`` of a manifest. ``idle_timeout``: how long a side may be silent before the other does not wait for its watermark.

    Raises TypeError where the condition is no text, ValueError where an argument cannot be, one frame alone is streaming, or Spark cannot
    resolve the condition, and NotAvailable where streams are joined and this Spark is too old. Costs O(rows + candidates), as printed;
    Spark's nested loops take O(rows x rows).
    """
    planned = _planned(left, right, condition, how, sample, Streaming(within, checkpoint, workers, keep, idle_timeout))
    if explain:
        print(planned.explanation())
    return planned.frame()


def explain(
    left: Any,
    right: Any,
    condition: str,
    how: str = "inner",
    *,
    sample: int = SAMPLE_ROWS,
    within: str | timedelta | None = None,
    checkpoint: str | PathLike[str] | None = None,
    workers: int | Mapping[str, Any] = 1,
    keep: str | timedelta = "7d",
    idle_timeout: str | timedelta | None = None,
) -> Explanation:
    """How :func:`join` would join the two, and why: what its ``explain=True`` prints, and a notebook shows as a table.

    >>> streamjoin.spark.explain(trades, quotes, near)                                  # doctest: +SKIP

    Arguments, errors and costs are those of ``join``: DataFrames in batch are sampled, and of streaming ones nothing is started.
    """
    return _planned(left, right, condition, how, sample, Streaming(within, checkpoint, workers, keep, idle_timeout)).explanation()


@dataclass(frozen=True)
class Streaming:
    """The arguments of a join of streams alone."""

    within: object
    checkpoint: object
    workers: int | Mapping[str, Any]
    keep: object
    idle_timeout: object


@dataclass(frozen=True)
class Planned:
    """A join that is decided on."""

    explanation: Callable[[], Explanation]
    frame: Callable[[], Any]
    """Its result, as a DataFrame."""


def _planned(left: Any, right: Any, condition: str, how: str, sample: int, streaming: Streaming) -> Planned:
    kind = _checked(condition, how, sample)
    if left.isStreaming or right.isStreaming:
        streams = of_engine("streams", "a join of streaming DataFrames")
        if sample != SAMPLE_ROWS:
            raise ValueError(f"sample: {sample} is for batch, as streaming DataFrames are not sampled; leave it out")
        planned: Planned = streams.planned(left, right, condition, kind, streaming)
        return planned
    for name, value in (("within", streaming.within), ("checkpoint", streaming.checkpoint)):
        if value is not None:
            raise ValueError(f"{name}: {value!r} is for streaming DataFrames; leave it out, or read both by spark.readStream")
    return _planned_batch(Sides(left, right), condition, kind, sample)


def _planned_batch(sides: Sides, condition: str, kind: JoinType, sample: int) -> Planned:
    text = sides.condition(condition)
    keys = keys_of(read(condition), sides.side_of, sides.type_of, _session(sides.left))
    keys = renamed(keys, sides.stripped, sides.condition)
    own = _own(sides, condition, text, kind)
    samples: list[Sample] = []
    if not (keys.reaches or keys.overlaps):
        reason = "it has an equality" if keys.equal else "no part of the condition compares keys that can be cut"
        chosen = Chosen((), {}, Own(reason))
    elif sides.are_small():
        chosen = Chosen((), {}, Own("both frames are small by Spark's statistics"))
    else:
        samples = _both_sampled(sides.frames, [_columns(keys, side) for side in SIDES], sample)
        chosen = choose(keys, samples, kind.tracked, gives_pairs=kind.gives_pairs, partitions=_partitions(sides.left))
    frames = Frames(sides.frames[LEFT], sides.frames[RIGHT], text)
    return Planned(
        lambda: Explanation(described(chosen, keys, samples, kind)),
        lambda: _made(frames, chosen, kind).drop(*sides.helpers) if chosen.pairs else own,
    )


def _checked(condition: object, how: str, sample: int) -> JoinType:
    if not isinstance(condition, str):
        remedy = 'write Spark SQL as text, such as "left.x <= right.y"'
        raise TypeError(f"condition: a {type(condition).__name__} cannot be cut into keys; {remedy}")
    if not condition.strip():
        raise SqlError("condition: it is empty", 'write Spark SQL, such as "left.x <= right.y"')
    kind = _TYPES.get(str(how).casefold().replace("_", ""))
    if kind is None:
        raise ValueError(f"how: {how!r} is no type of join; use {', '.join(each.value for each in JoinType)}")
    if not isinstance(sample, int) or sample < 1:
        raise ValueError(f"sample: {sample!r} is no number of rows; use 1 or more, such as {SAMPLE_ROWS}")
    return kind


def _session(frame: Any) -> Session:
    conf = frame.sparkSession.conf
    zone = conf.get("spark.sql.session.timeZone") or ""
    return Session(conf.get("spark.sql.ansi.enabled") == "true", zone.upper() in ("UTC", "ETC/UTC", "Z", "GMT", "+00:00"))


def _partitions(frame: Any) -> int:
    """As many as a shuffle has, or, where it can be known, twice the cores: Spark makes fewer of small ones."""
    session = frame.sparkSession
    shuffled = int(session.conf.get("spark.sql.shuffle.partitions"))
    with contextlib.suppress(PySparkException, AttributeError):
        return min(shuffled, 2 * int(session.sparkContext.defaultParallelism))
    return shuffled


@dataclass
class Sides:
    """The two frames, named so that the joined frame can tell their columns apart."""

    left: Any
    right: Any
    helpers: list[str] = field(default_factory=list)
    """Columns that were added because nothing else tells two columns of one name apart."""
    _sides: dict[tuple[str, ...], int | None] = field(default_factory=dict)
    _types: dict[tuple[int, str], str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.given = (self.left, self.right)
        self.frames, self._aliases = [self.left, self.right], [alias_of(frame) for frame in self.given]
        free = [side for side in SIDES if self._aliases[side] == "" and _folded(self._aliases[1 - side]) != SIDE_NAMES[side]]
        for side in free:
            self.frames[side], self._aliases[side] = self.frames[side].alias(SIDE_NAMES[side]), SIDE_NAMES[side]
        self._columns = [[name.casefold() for name in frame.columns] for frame in self.given]

    def side_of(self, names: tuple[str, ...]) -> int | None:
        """As Spark resolves names: a qualifier first, then a column. What Spark cannot resolve is asked only where aliases are not known,
        since it logs each such question as an error."""
        if names not in self._sides:
            head = names[0].casefold()
            if len(names) > 1 and head in SIDE_NAMES:
                has = [SIDE_NAMES.index(head)]
            else:
                has = [side for side in SIDES if len(names) > 1 and _folded(self._aliases[side]) == head]
                has = has or [side for side in SIDES if head in self._columns[side]]
            if not has and len(names) > 1 and None in self._aliases:
                has = [side for side in SIDES if self.type_of(side, column_sql(names)) is not None]
            self._sides[names] = has[0] if len(has) == 1 else None
        return self._sides[names]

    def type_of(self, side: int, text: str) -> str | None:
        key = side, text
        if key not in self._types:
            self._types[key] = None
            with contextlib.suppress(PySparkException):
                schema = self.given[side].select(F.expr(self.stripped(text))).schema
                self._types[key] = schema.fields[0].dataType.simpleString()
        return self._types[key]

    def stripped(self, text: str) -> str:
        """SQL over one frame, without the words left and right."""
        return qualified(text, lambda head, _: "" if head in SIDE_NAMES else None)

    def condition(self, text: str) -> str:
        """SQL over the joined frame."""
        return qualified(text, self._in_joined)

    def _in_joined(self, head: str, column: str) -> str | None:
        if head not in SIDE_NAMES:
            return None
        side, name = SIDE_NAMES.index(head), column.casefold()
        own, other = self._aliases[side], self._aliases[1 - side]
        aliases = [_folded(own), _folded(other)]
        if own and aliases[0] != aliases[1] and None not in self._aliases:
            return f"{column_sql([own])}.{column_sql([column])}"
        if name not in self._columns[1 - side] and name not in aliases and None not in self._aliases:
            return column_sql([column])
        helper = f"{PREFIX}_{head}_of_{self._columns[side].index(name) if name in self._columns[side] else column}"
        if helper not in self.helpers and name in self._columns[side]:
            self.helpers.append(helper)
            self.frames[side] = self.frames[side].select("*", F.expr(column_sql([column])).alias(helper))
        return column_sql([helper if name in self._columns[side] else column])

    def are_small(self) -> bool:
        sizes = [_bytes(frame) for frame in self.given]
        return all(size is not None and size <= _SMALL_BYTES for size in sizes)


def _folded(alias: str | None) -> str | None:
    return alias and alias.casefold()


def alias_of(frame: Any) -> str | None:
    """The alias of all columns of a frame; empty: they have none; None: it is not known, or there are several."""
    if hasattr(frame, "_plan"):  # Spark Connect: what the plan's root says
        plan = frame._plan
        return str(plan._alias) if type(plan).__name__ == "SubqueryAlias" else None
    try:
        output = frame._jdf.queryExecution().analyzed().output()
        qualifiers = [output.apply(number).qualifier() for number in range(output.size())]
        found = {"" if each.isEmpty() else each.last() for each in qualifiers}
    except Exception:
        return None
    return str(found.pop()) if len(found) == 1 else None


def _bytes(frame: Any) -> int | None:
    """What the optimizer says of its size; None: unknown, as with Spark Connect."""
    size = _of_optimized(frame, lambda plan: plan.stats().sizeInBytes())
    return None if size is None else int(size)


def _of_optimized(frame: Any, told: Callable[[Any], Any]) -> str | None:
    """What Spark's optimized plan tells; None: nothing, as with Spark Connect."""
    if not hasattr(frame, "_jdf"):
        return None
    try:
        return str(told(frame._jdf.queryExecution().optimizedPlan()))
    except Exception:
        return None


def _own(sides: Sides, condition: str, text: str, kind: JoinType) -> Any:
    """Spark's own join, resolved: so every condition that Spark refuses is refused here, by Spark's reason."""
    try:
        found = sides.frames[LEFT].join(sides.frames[RIGHT], F.expr(text), _OF_SPARK.get(kind, kind.value)).drop(*sides.helpers)
        found.schema  # noqa: B018 - resolves it, with Spark Connect too
    except PySparkException as error:
        said = str(error).split("\n", 1)[0]
        remedy = f"name columns as left.column and right.column; left has {_listed(sides.left)}; right has {_listed(sides.right)}"
        raise SqlError(f"condition {excerpt(condition)}: Spark says {said}", remedy) from error
    return found


def _listed(frame: Any) -> str:
    names = frame.columns
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _columns(keys: Keys, side: int) -> list[str]:
    """SQL of what is sampled of a side."""
    reaches = [*keys.reaches, *(reach for both in keys.overlaps for reach in both)]
    ends = [end.key for reach in reaches if reach.points != side for end in (reach.low, reach.high) if end]
    points = [reach.point for reach in reaches if reach.points == side]
    return list(dict.fromkeys([*(pair[side] for pair in keys.equal), *points, *ends]))


def _both_sampled(frames: Sequence[Any], columns: Sequence[Sequence[str]], rows: int) -> list[Sample]:
    """At once: most of such a job is waiting."""
    session = frames[LEFT].sparkSession
    with ThreadPoolExecutor(len(SIDES)) as pool:
        made = [pool.submit(_inheriting(session, _sampled), side, frames[side], columns[side], rows) for side in SIDES]
        return [each.result() for each in made]


def _inheriting(session: Any, function: Callable[..., Sample]) -> Callable[..., Sample]:
    """The function for a thread of its own, whose jobs have a copy of what this thread has set for its jobs, such as their group."""
    wrapped = inheritable_thread_target(session)(function) if version() >= (4, 0) else inheritable_thread_target(function)
    return cast("Callable[..., Sample]", wrapped)


def _sampled(side: int, frame: Any, columns: Sequence[str], rows: int) -> Sample:
    """One job, which keeps no more than ``rows``; none of a LocalRelation."""
    _describe(frame, f"streamjoin: sampling {SIDE_NAMES[side]}")
    made = frame.select(*(F.expr(column).alias(f"k{number}") for number, column in enumerate(columns)))
    if _is_local(made):
        every = made.collect()
        drawn = random.Random(SEED).sample(every, min(rows, len(every)))  # noqa: S311
        return Sample(len(every), _arrays(columns, drawn), len(drawn))
    seen = Observation()
    drawn = made.observe(seen, F.count(F.lit(1)).alias("rows")).orderBy(F.rand(SEED)).limit(rows).collect()
    # Spark 3.5 and 4.0 count twice where they know that the limit cuts nothing off, and sort by ranges that they sample.
    return Sample(int(seen.get["rows"]) if len(drawn) == rows else len(drawn), _arrays(columns, drawn), len(drawn))


def _describe(frame: Any, text: str) -> None:
    """What Spark's page calls the jobs of this thread; where threads of Python share Java's (or there is no page), nothing is set."""
    if hasattr(frame, "_jdf") and os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true":
        frame.sparkSession.sparkContext.setJobDescription(text)


def _arrays(columns: Sequence[str], rows: Sequence[Sequence[float | None]]) -> dict[str, tuple[Any, Any]]:
    made = {}
    for number, column in enumerate(columns):
        values = [row[number] for row in rows]
        numbers = np.array([0.0 if value is None else value for value in values], float)
        made[column] = numbers, np.array([value is not None for value in values], bool)
    return made


def _is_local(frame: Any) -> bool:
    return _of_optimized(frame, lambda plan: plan.getClass().getSimpleName()) == "LocalRelation"


def _made(frames: Frames, chosen: Chosen, kind: JoinType) -> Any:
    """The ways of ``chosen`` as one frame."""
    if kind is JoinType.ANTI:
        return without_partner(frames, chosen.kept.get(LEFT) or chosen.pairs, LEFT)
    if kind is JoinType.SEMI:
        ways = chosen.kept.get(LEFT) or chosen.pairs
        found = joined(frames, ways[0], "left_semi")
        for number in range(1, len(ways)):
            rest = frames.replaced(LEFT, without_partner(frames, ways[:number], LEFT))
            found = found.unionAll(joined(rest, ways[number], "left_semi"))
        return found
    if LEFT not in chosen.kept and RIGHT not in chosen.kept:
        return _united([joined(frames, bins, kind.value) for bins in chosen.pairs])
    outer = "inner" if LEFT in chosen.kept or kind is JoinType.RIGHT else "left"
    parts = [joined(frames, bins, outer) for bins in chosen.pairs]
    for side, ways in chosen.kept.items():
        parts.append(padded(without_partner(frames, ways, side), side, frames.by(1 - side)))
    return _united(parts)


def _united(frames: Sequence[Any]) -> Any:
    found = frames[0]
    for frame in frames[1:]:
        found = found.unionAll(frame)
    return found
