"""A plan in words, for ``streamjoin plan``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from streamjoin.api.areas import CoverageArea, areas_of
from streamjoin.api.key_spaces import KeySpace
from streamjoin.cli import wording
from streamjoin.elastic.mapping import greedy, kept_by, overlaps
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import Planned, overfull
from streamjoin.language.predicate import Encoding, MainPredicate
from streamjoin.language.sides import LEFT
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.statistics import SideStatistics, Statistics, loads
from streamjoin.scheme.tiling import Scheme

UNLIMITED = Capacity(math.inf)

MOST_LINES = 40
"""Coverage areas listed in a report."""


def report_change(before: Plan, planned: Planned, statistics: Statistics) -> str:
    """Says in words what happens to the workers' tuples when ``planned`` follows ``before``. Ends with a newline."""
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


def report(scheme: Scheme, statistics: Statistics, key_spaces: Sequence[KeySpace], capacity: Capacity = UNLIMITED) -> str:
    """The scheme in words: what it is made for, what a task holds, and every coverage area, key space by key space. Ends with a newline."""
    held = loads(scheme, statistics)
    lines = [f"{scheme.model}: {wording.plural(scheme.tasks, 'task')}, {scheme.summary}"]
    for key_space in key_spaces:
        main = key_space.main
        served = "" if main.keys else ", which no key serves: each tuple of one stream meets every one of the other"
        lines.append(f"main predicate: {main.text or main.kind} ({main.kind}){served}")
        sides = zip(key_space.headings, key_space.statistics.sides, strict=True)
        lines.append(", ".join(f"{name}: {wording.count(side.tuples)} tuples ({_spread(side, main)})" for name, side in sides))
    if sum(side.tuples for side in statistics.sides) > 0:
        line = f"load: at most {capacity.words(held.max())} a task, {capacity.figure(held.mean())} on average"
        if capacity is not UNLIMITED:
            line += f"; capacity {capacity.figure(capacity.amount)}, so that the fullest is {100 * held.max() / capacity.amount:.0f} % full"
        held_tuples = loads(scheme, statistics.counted).sum()
        by_key = "for each of its keys, " if len(key_spaces) > 1 else ""
        replicas = held_tuples / sum(side.tuples for side in statistics.sides)
        lines += [line, f"replication: {by_key}a tuple is held by {replicas:.2f} tasks on average"]
        warning = overfull(held, scheme.model, capacity)
        lines += [] if warning is None else [f"warning: {warning}"]
    areas = list(areas_of(scheme, statistics, key_spaces))
    for number, key_space in enumerate(key_spaces):
        own = [area for area in areas if area.key_space == number]
        lines += ["", *([f"{key_space.main.text}:"] if len(key_spaces) > 1 else []), *_table(own, key_space, capacity)]
    return "\n".join(lines) + "\n"


def _table(areas: Sequence[CoverageArea], key_space: KeySpace, capacity: Capacity) -> list[str]:
    headings = tuple(f"{heading} keys" for heading in key_space.names) if key_space.stack is None else key_space.headings
    rows = [("tasks", *headings, *key_space.names, "fullest task")]
    for area in areas[:MOST_LINES]:
        tasks = area.tasks
        is_range = tasks[-1] - tasks[0] < len(tasks)
        whose = f"{tasks[0]}" if len(tasks) == 1 else f"{tasks[0]}-{tasks[-1]}" if is_range else f"in {area.number}"
        rows.append(
            (
                whose,
                area.left_keys,
                area.right_keys,
                wording.count(area.left_tuples),
                wording.count(area.right_tuples),
                capacity.figure(area.fullest),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if at < 3 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells))
    more = len(areas) - MOST_LINES
    return [*lines, f"... and {wording.plural(more, 'more coverage area')}"] if more > 0 else lines


def _spread(side: SideStatistics, main: MainPredicate) -> str:
    if not main.keys:
        return "keys do not matter"
    if side.histogram is not None:
        return wording.plural(len(side.histogram.counts), "bucket") + " of keys"
    return "hashed evenly" if main.keys[LEFT].encoding is Encoding.HASH else "keys unknown"
