"""What ``streamjoin plan`` does: reads statistics, makes a plan from them, and says in words what came out.

The statistics are JSON: per side the tuples that the window holds and, if known, how their keys are spread, as a sample or as a histogram::

    {
      "left":  {"tuples": 120000, "keys": [17, 17, 23, 99]},
      "right": {"tuples": 80000, "histogram": {"bounds": [20, 40], "counts": [10, 30, 10]}},
      "capacity": 50000
    }

``keys``: values of the side's key, as the main predicate compares them: numbers, texts, times as ISO 8601 or in microseconds, dates as
ISO 8601 or in days, lists of these where several equalities make one key. ``bounds``: ascending inner bounds of the buckets, of such
values; ``counts`` are one more. ``left`` and ``right`` may also be called by the streams' names. ``capacity``: tuples that one task
may hold; the manifest's otherwise.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from streamjoin.cli import wording
from streamjoin.elastic.deployment import Expected
from streamjoin.elastic.mapping import greedy, kept_by, overlaps
from streamjoin.elastic.plan import Plan, PlanError
from streamjoin.elastic.planner import Planned, follow, overfull
from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.types import arrow_type
from streamjoin.language.predicate import Bound, Encoding, KeyExpression, MainPredicate
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sides import LEFT, RIGHT, SIDE_NAMES
from streamjoin.language.types import DataType, TypeName
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import DEFAULTS, Options, plan_for_capacity, plan_for_tasks
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics, loads
from streamjoin.scheme.tiling import Area, KeyRange, Scheme, SchemeError

UNLIMITED = Capacity(math.inf)

MOST_LINES = 40
"""Coverage areas listed in a report."""


class StatsError(ValueError):
    """Statistics that cannot be read; the text names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What a statistics file says."""

    statistics: Statistics
    capacity_tuples: float | None


def read_stats(text: str, main: MainPredicate, names: tuple[str, str] = ("left", "right")) -> Stats:
    """The statistics in this JSON text (see the module), their keys encoded for ``main``. Raises StatsError."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise StatsError(f"line {error.lineno}, column {error.colno}: {error.msg}; the file must be JSON") from error
    allowed = {"left", "right", "capacity", *names}
    if not isinstance(value, dict) or not allowed.issuperset(value):
        unknown = sorted(set(value) - allowed) if isinstance(value, dict) else []
        raise StatsError(f"{', '.join(unknown) or 'the file'}: must be an object of left, right and capacity")
    sides = []
    for side, name in enumerate(SIDE_NAMES):
        given = value.get(name, value.get(names[side]))
        if given is None:
            raise StatsError(f"{name}: is missing; give at least {{\"tuples\": ...}}")
        sides.append(_side(name, given, main.key(side)))
    capacity = value.get("capacity")
    if capacity is not None and not (_is_number(capacity) and capacity > 0):
        raise StatsError(f"capacity: {capacity!r} must be a positive number of tuples")
    return Stats(Statistics(tuple(sides)), capacity)


def expected_statistics(rates: Expected, expected: Expected) -> Statistics:
    """What the manifest alone says: the tuples that are ``expected`` to be held.

    Of an unbounded window, which holds ever more, those of one second: their proportion decides the scheme.
    """
    sides = []
    for side, held in enumerate(expected):
        endless = held is not None and math.isinf(held)
        sides.append(SideStatistics((rates[side] or rates[1 - side] if endless else held) or 0.0))
    return Statistics(tuple(sides))


def make_plan(
    model: str,
    statistics: Statistics,
    main: MainPredicate,
    *,
    tasks: int | None = None,
    capacity: Capacity | None = None,
    options: Options = DEFAULTS,
    current: Plan | None = None,
) -> Planned:
    """The plan for so many tasks or, without ``tasks``, for a capacity, from ``current`` on; proven to be a tiling. Raises ValueError."""
    before = None if current is None else current.scheme
    if tasks is not None:
        scheme = plan_for_tasks(model, statistics, main, tasks, options=options, current=before)
    elif capacity is not None:
        scheme = plan_for_capacity(model, statistics, main, capacity.amount, options=options, current=before)
    else:
        raise ValueError("a plan is made for a number of tasks or for a capacity; give one")
    return follow(current, scheme, statistics, main)


def read_plan(text: str, main: MainPredicate) -> Plan:
    """The plan in this JSON text, its scheme a tiling for ``main``. Raises PlanError."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"line {error.lineno}, column {error.colno}: {error.msg}; the file must be JSON") from error
    plan = Plan.from_json(value)
    try:
        plan.scheme.check(main)
    except SchemeError as error:
        raise PlanError(f"plan.scheme: {error}; is it a plan of this join?") from error
    return plan


def report_change(before: Plan, planned: Planned, statistics: Statistics) -> str:
    """In words what happens to what the workers hold when ``planned`` follows ``before``. Ends with a newline."""
    plan, migration = planned.plan, planned.migration
    if not planned.changed:
        return "the running plan serves as well: nothing moves\n"
    overlap = overlaps(before.scheme, plan.scheme, statistics)
    greedily = migration.naive_tuples - kept_by(overlap, greedy(overlap))
    least = wording.count(migration.lower_bound_tuples)
    new, leaving = plan.keep.count(None), len(plan.leaving(before.scheme))
    rows = [
        ("moved", migration.moved_tuples, f"no plan of so many tasks, none fuller, moves less than {least}"),
        ("kept", migration.kept_tuples, f"workers that go on: {plan.workers - new}"),
        ("deleted", migration.deleted_tuples, f"workers that end: {leaving}"),
        ("greedy", greedily, "would be moved by the paper's greedy map"),
        ("by number", migration.identity_tuples, "would be moved without a map: each worker as the task of its number, units cut evenly"),
        ("naive", migration.naive_tuples, "would be moved by starting all tasks anew"),
    ]
    width = max(len(wording.count(tuples)) for _, tuples, _ in rows)
    lines = [f"from plan {before.generation}, {wording.plural(before.workers, 'task')}, to plan {plan.generation}:"]
    lines += [f"  {name:<9}  {wording.count(tuples):>{width}}  {meaning}" for name, tuples, meaning in rows]
    received: dict[int, list[str]] = {}
    for (task, sender), moves in itertools.groupby(migration.moves, key=lambda move: (move.to_worker, move.from_worker)):
        tuples = sum(move.expected_tuples for move in moves)
        received.setdefault(task, []).append(f"{wording.count(tuples)} from {sender}")
    for task, senders in list(received.items())[:MOST_LINES]:
        who = "new" if plan.keep[task] is None else "goes on" if plan.keep[task] == task else f"was {plan.keep[task]}"
        lines.append(f"  task {task} ({who}) gets {', '.join(senders[:6])}" + (", ..." if len(senders) > 6 else ""))
    more = len(received) - MOST_LINES
    return "\n".join([*lines, *([f"  ... and {wording.plural(more, 'more task')}"] if more > 0 else [])]) + "\n"


def report(
    scheme: Scheme,
    statistics: Statistics,
    main: MainPredicate,
    names: tuple[str, str] = ("left", "right"),
    capacity: Capacity = UNLIMITED,
) -> str:
    """The scheme in words: what it is made for, what a task holds, and every coverage area. Ends with a newline."""
    held = loads(scheme, statistics)
    volumes = tuple(side.tuples for side in statistics.sides)
    lines = [
        f"{scheme.model}: {wording.plural(scheme.tasks, 'task')}, {scheme.summary}",
        f"main predicate: {main.text or main.kind} ({main.kind})"
        + ("" if main.keys else ", which no key serves: each tuple of one stream meets every one of the other"),
        f"{names[0]}: {wording.count(volumes[0])} tuples ({_spread(statistics.sides[LEFT], main)}), "
        f"{names[1]}: {wording.count(volumes[1])} tuples ({_spread(statistics.sides[RIGHT], main)})",
    ]
    if sum(volumes) > 0:
        line = f"load: at most {capacity.words(held.max())} a task, {capacity.figure(held.mean())} on average"
        if capacity is not UNLIMITED:
            line += f"; capacity {capacity.figure(capacity.amount)}, so that the fullest is {100 * held.max() / capacity.amount:.0f} % full"
        held_tuples = loads(scheme, statistics.counted).sum()
        lines += [line, f"replication: a tuple is held by {held_tuples / sum(volumes):.2f} tasks on average"]
        warning = overfull(held, scheme.model, capacity)
        lines += [] if warning is None else [f"warning: {warning}"]
    lines += ["", *_table(scheme, statistics, main, names, capacity)]
    return "\n".join(lines) + "\n"


def key_text(bound: Bound, key: KeyExpression | None) -> str:
    """A key bound as people read it: the value that it encodes, or, of hashed keys, where it lies in the hash range."""
    if bound is None or key is None:
        return ""
    if key.encoding is Encoding.HASH:
        return f"hash {(int(bound) + 2**63) / 2**64:.1%}"
    if key.encoding is Encoding.PREFIX:
        return repr((int(bound) + 2**63).to_bytes(8, "big").rstrip(b"\0").decode(errors="replace"))
    if key.encoding is Encoding.FLOAT:
        return f"{bound:.6g}"
    type_ = key.types[0]
    try:
        if type_.name is TypeName.DATE:
            return str((_EPOCH + timedelta(days=int(bound))).date())
        if type_.name in (TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ):
            text = (_EPOCH + timedelta(microseconds=int(bound))).isoformat(sep=" ").replace("+00:00", "")
            return text + ("Z" if type_.name is TypeName.TIMESTAMP else "")
    except OverflowError:
        return str(bound)
    if type_.name is TypeName.DECIMAL:
        return f"{Decimal(int(bound)).scaleb(-type_.scale):f}"
    return f"{bound:,}"


def coverage_areas(scheme: Scheme) -> Mapping[int, Sequence[Area]]:
    """The areas by coverage area, in order."""
    found: dict[int, list[Area]] = {}
    for area in scheme.areas:
        found.setdefault(area.coverage, []).append(area)
    return dict(sorted(found.items()))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _table(scheme: Scheme, statistics: Statistics, main: MainPredicate, names: tuple[str, str], capacity: Capacity) -> list[str]:
    held, counted = loads(scheme, statistics), statistics.counted
    rows = [("tasks", f"{names[0]} keys", f"{names[1]} keys", names[0], names[1], "fullest task")]
    areas = coverage_areas(scheme)
    for number, parts in list(areas.items())[:MOST_LINES]:
        tasks = sorted({area.task for area in parts})
        left, right = parts[0].keys
        rows.append(
            (
                f"{tasks[0]}" if len(tasks) == 1 else f"{tasks[0]}-{tasks[-1]}" if tasks[-1] - tasks[0] < len(tasks) else f"in {number}",
                _range_text(left, main.key(LEFT)),
                _range_text(right, main.key(RIGHT)),
                wording.count(counted.sides[LEFT].volume(left)),
                wording.count(counted.sides[RIGHT].volume(right)),
                capacity.figure(max(held[task] for task in tasks)),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if at < 3 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells))
    more = len(areas) - MOST_LINES
    return [*lines, f"... and {wording.plural(more, 'more coverage area')}"] if more > 0 else lines


def _range_text(keys: KeyRange, key: KeyExpression | None) -> str:
    if keys.low is None and keys.high is None:
        return "all"
    if isinstance(keys.low, int) and keys.high == keys.low + 1:
        return f"only {key_text(keys.low, key)}"
    if keys.low is None:
        return f"below {key_text(keys.high, key)}"
    return f"from {key_text(keys.low, key)}" + ("" if keys.high is None else f" to {key_text(keys.high, key)}")


def _spread(side: SideStatistics, main: MainPredicate) -> str:
    if not main.keys:
        return "keys do not matter"
    if side.histogram is not None:
        return wording.plural(len(side.histogram.counts), "bucket") + " of keys"
    return "hashed evenly" if main.keys[LEFT].encoding is Encoding.HASH else "keys unknown"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _side(where: str, given: Any, key: KeyExpression | None) -> SideStatistics:
    if not isinstance(given, dict) or not {"tuples", "keys", "histogram"}.issuperset(given):
        raise StatsError(f"{where}: {_shown(given)} must be an object of tuples and either keys or histogram")
    if "keys" in given and "histogram" in given:
        raise StatsError(f"{where}.histogram: excludes {where}.keys; give one")
    tuples = given.get("tuples")
    if not (_is_number(tuples) and tuples >= 0):
        raise StatsError(f"{where}.tuples: {_shown(tuples)} must be a number of tuples, not negative")
    if key is None:
        return SideStatistics(tuples)
    if "keys" in given:
        keys = _encoded(f"{where}.keys", given["keys"], key)
        return SideStatistics(tuples, Histogram.from_sample(keys) if len(keys) else None)
    if "histogram" not in given:
        return SideStatistics(tuples)
    histogram = given["histogram"]
    where = f"{where}.histogram"
    if key.encoding is Encoding.HASH:
        raise StatsError(f"{where}: this join hashes its keys, so that ranges of them mean nothing; give a sample as keys, or neither")
    if not isinstance(histogram, dict) or set(histogram) != {"bounds", "counts"}:
        raise StatsError(f"{where}: {_shown(histogram)} must be an object of bounds and counts")
    counts = histogram["counts"]
    if not isinstance(counts, list) or not all(map(_is_number, counts)):
        raise StatsError(f"{where}.counts: {_shown(counts)} must be a list of numbers")
    try:
        return SideStatistics(tuples, Histogram(_encoded(f"{where}.bounds", histogram["bounds"], key), np.array(counts, np.float64)))
    except StatsError:
        raise
    except ValueError as error:
        raise StatsError(f"{where.removesuffix('.histogram')}.{error}") from error


def _encoded(where: str, values: Any, key: KeyExpression) -> np.ndarray[Any, np.dtype[Any]]:
    """The keys of these values: encoded as the join's own tuples are, from columns that hold the key's values."""
    if not isinstance(values, list):
        raise StatsError(f"{where}: {_shown(values)} must be a list")
    columns = [[value] for value in values] if len(key.types) == 1 else values
    if not all(isinstance(row, list) and len(row) == len(key.types) for row in columns):
        raise StatsError(f"{where}: each must be a list of {len(key.types)} values, as the key has so many")
    names = [f"k{number}" for number in range(len(key.types))]
    arrays = [_column(where, [row[number] for row in columns], type_) for number, type_ in enumerate(key.types)]
    schema = Schema(tuple(Column(name, type_) for name, type_ in zip(names, key.types, strict=True)))
    plain = KeyExpression(tuple(names), key.types, key.encoding)
    keys, valid = encode_keys(pa.RecordBatch.from_arrays(arrays, names), plain, schema)
    return keys if valid is None else keys[valid]


def _column(where: str, values: list[Any], type_: DataType) -> pa.Array:
    kind = arrow_type(type_)
    try:
        if pa.types.is_decimal(kind):
            return pa.array([None if value is None else round(Decimal(str(value)), type_.scale) for value in values], kind)
        if pa.types.is_temporal(kind) and all(isinstance(value, str) for value in values):
            texts = pa.array(values, pa.string())
            if pa.types.is_timestamp(kind) and kind.tz is not None:
                moments = [datetime.fromisoformat(value) for value in values]
                return pa.array([moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in moments], kind)
            return texts.cast(kind)
        return pa.array(values, kind)
    except (pa.ArrowException, ArithmeticError, ValueError, TypeError) as error:
        raise StatsError(f"{where}: must be values of type {type_}: {error}") from error


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
