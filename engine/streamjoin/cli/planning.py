"""What ``streamjoin plan`` does with statistics: makes a plan, and says in words what came out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from streamjoin.cli import wording
from streamjoin.cli.floors import Floor, is_empty
from streamjoin.elastic.mapping import greedy, kept_by, overlaps
from streamjoin.elastic.plan import Plan, PlanError
from streamjoin.elastic.planner import Planned, follow, overfull
from streamjoin.language.predicate import Bound, Encoding, KeyExpression, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.types import TypeName
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import DEFAULTS, Options, plan_for_capacity, plan_for_tasks
from streamjoin.scheme.statistics import SideStatistics, Statistics, loads
from streamjoin.scheme.tiling import Area, KeyRange, Scheme, SchemeError

UNLIMITED = Capacity(math.inf)

MOST_LINES = 40
"""Coverage areas listed in a report."""


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


def report(scheme: Scheme, statistics: Statistics, floors: Sequence[Floor], capacity: Capacity = UNLIMITED) -> str:
    """The scheme in words: what it is made for, what a task holds, and every coverage area, floor by floor. Ends with a newline."""
    held = loads(scheme, statistics)
    lines = [f"{scheme.model}: {wording.plural(scheme.tasks, 'task')}, {scheme.summary}"]
    for floor in floors:
        main = floor.main
        served = "" if main.keys else ", which no key serves: each tuple of one stream meets every one of the other"
        lines.append(f"main predicate: {main.text or main.kind} ({main.kind}){served}")
        sides = zip(floor.headings, floor.statistics.sides, strict=True)
        lines.append(", ".join(f"{name}: {wording.count(side.tuples)} tuples ({_spread(side, main)})" for name, side in sides))
    if sum(side.tuples for side in statistics.sides) > 0:
        line = f"load: at most {capacity.words(held.max())} a task, {capacity.figure(held.mean())} on average"
        if capacity is not UNLIMITED:
            line += f"; capacity {capacity.figure(capacity.amount)}, so that the fullest is {100 * held.max() / capacity.amount:.0f} % full"
        held_tuples = loads(scheme, statistics.counted).sum()
        by_key = "for each of its keys, " if len(floors) > 1 else ""
        replicas = held_tuples / sum(side.tuples for side in statistics.sides)
        lines += [line, f"replication: {by_key}a tuple is held by {replicas:.2f} tasks on average"]
        warning = overfull(held, scheme.model, capacity)
        lines += [] if warning is None else [f"warning: {warning}"]
    for floor in floors:
        lines += ["", *([f"{floor.main.text}:"] if len(floors) > 1 else []), *_table(scheme, statistics, floor, capacity)]
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


def _table(scheme: Scheme, statistics: Statistics, floor: Floor, capacity: Capacity) -> list[str]:
    held, counted, main = loads(scheme, statistics), floor.statistics.counted, floor.main
    headings = tuple(f"{heading} keys" for heading in floor.names) if floor.stack is None else floor.headings
    rows = [("tasks", *headings, *floor.names, "fullest task")]
    areas = coverage_areas(floor.of(scheme))
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
    if is_empty(keys):
        return "none"
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
