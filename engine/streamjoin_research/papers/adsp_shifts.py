"""002, A-DSP: joins that run while their streams change, and with few tasks, beside sections 5.5 and 5.6.1 (Figs. 14 to 16).

Work stands for time, as in :mod:`streamjoin_research.papers.adsp_runs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from streamjoin.kernel.keys import mix
from streamjoin.scheme.dichotomy import TooManyTasksError
from streamjoin_research.papers.adsp_plans import RATIOS
from streamjoin_research.papers.adsp_runs import FLAT, NO_WEIBO, row, throughput
from streamjoin_research.papers.loads import ALL, V, held, plan
from streamjoin_research.papers.queries import B_MR, B_NCI, E_Q5, MODELS, TINY, ByLoad, Query, in_turn, loaded, sized
from streamjoin_research.papers.rows import Kind, Lines, Ours, Row, Values, figures, holds, number
from streamjoin_research.papers.runs import Array, Keys, Run, Tasks, run, streams

WINDOW = 3
"""Slides of a minute."""
SHIFTS = (0.0, 1.0, 2.0, 4.0)
"""f: by how much the load of a task changes from one slide to the next, in mean loads."""
STEPS = 9
"""Slides, of which the first fill the window."""
FILLED = 0.65
"""Of V by the fullest task before anything changes: between the bounds of section 5.4."""
COUNTS = {"Ideal": 26, "A-DSP": 13, "Dynamic": 8, "Bi_6": 12, "Bi": 6}
"""Tasks of Fig. 14: section 5.3's, but for Dynamic, which takes the largest power of two that is not above A-DSP's."""


def instances_of(keys: Array, instances: int) -> Array:
    """The task instance of each key: so many equal ranges of hashed keys, as the engine cuts an equality."""
    hashed: Array = mix(keys.view(np.uint64)) ^ np.uint64(1 << 63)
    found: Array = (hashed / 2**64 * instances).astype(np.int64)
    return found


def shifted(shares: Array, order: Array, instances: int, f: float, chance: np.random.Generator) -> Array:
    """``order`` with frequencies swapped until the load of one task instance has risen by ``f`` times the mean load, or no key is left to
    swap (section 5.5). ``shares``: of the keys, by their place in the order. O(keys)."""
    order, target = order.copy(), int(chance.integers(instances))
    is_inside = instances_of(order, instances) == target
    inside, outside = np.flatnonzero(is_inside), np.flatnonzero(~is_inside)
    rise = 0.0
    # The most frequent keys of other instances change places with the least frequent ones of this.
    for hot, cold in zip(outside, inside[::-1], strict=False):
        if rise >= f / instances or shares[hot] <= shares[cold]:
            break
        order[[hot, cold]] = order[[cold, hot]]
        rise += shares[hot] - shares[cold]
    return order


def shifting(keys: int, slides: Sequence[tuple[int, int]], f: float, instances: int, *, z: float = 1.0, seed: int = 1) -> list[Keys]:
    """As :func:`~streamjoin_research.papers.queries.loaded`, but S's frequent keys are others in each slide, by f."""
    chance = np.random.default_rng(seed)
    left_order, order = chance.permutation(keys), chance.permutation(keys)
    weights = np.arange(1.0, keys + 1) ** -z
    shares = weights / weights.sum()
    bounds = np.cumsum(shares)
    found, taken = [], 0
    for left, right in slides:
        ranks = np.minimum(np.searchsorted(bounds, chance.random(right), side="right"), keys - 1)
        found.append((in_turn(left_order, taken, left), order[ranks]))
        taken += left
        if f:
            order = shifted(shares, order, instances, f, chance)
    return found


def fluctuations(quick: bool) -> tuple[float, ...]:
    return (0.0, 4.0) if quick else SHIFTS


@cache
def shifts(query: Query, quick: bool) -> dict[str, list[Run]]:
    """Fig. 14, of slides with full windows. Each model has so much memory that its fullest task begins at :data:`FILLED`, so that the rule
    of section 5.4 decides how often it is cut anew."""
    query, steps = (sized(query), 6) if quick else (query, STEPS)
    capacity, keys = query.capacity, 3 * (query.capacity // 4)
    slides = [(capacity // 4, round(1.3 * capacity))] * steps
    join = query.join(keys, window_seconds=60 * WINDOW - 1)
    found: dict[str, list[Run]] = {name: [] for name in COUNTS}
    room: dict[str, float] = {}
    for f in (0.0, *fluctuations(quick)):
        with streams(shifting(keys, slides, f, COUNTS["A-DSP"])) as given:
            for name, of_model in found.items():
                model, count = MODELS["Square" if name == "Ideal" else name], COUNTS[name] // 3 if quick else COUNTS[name]
                if name not in room:
                    still = run(given, [join], model.tasks(count)).since(WINDOW)
                    room[name] = max(max(epoch.held) for epoch in still.epochs) / FILLED
                    continue
                tasks = Tasks(model.name, count, count, room[name], model.options)
                of_model.append(run(given, [join], tasks, ByLoad(count, least=count)).since(WINDOW))
    return found


PERIODS = (1, 2, 3)
"""Fig. 15: slides for which R : S stays as it is."""
FIGURE_15 = ("A-DSP", "Square", "Dynamic", "Bi_6", "Bi")
VOLUME = 4
"""V of R and S together in the window."""


def periods(quick: bool) -> tuple[int, ...]:
    return (1,) if quick else PERIODS


@cache
def changing(period: int, name: str, quick: bool) -> Run:
    """Fig. 15: R : S changes as in Fig. 13a, every ``period`` slides."""
    query = replace(B_MR, capacity=FIGURE_15_CAPACITY)
    query, most = (sized(query), 16) if quick else (query, MOST_TASKS)
    capacity, together = query.capacity, VOLUME * query.capacity / WINDOW
    slides = []
    for ratio in RATIOS[:6] if quick else RATIOS:
        slides += [(round(together * ratio / (1 + ratio)), round(together / (1 + ratio)))] * period
    with streams(loaded(capacity, slides, 1.0)) as given:
        join = query.join(capacity, window_seconds=60 * WINDOW - 1)
        return run(given, [join], MODELS[name].growing(capacity, most), ByLoad(most)).since(WINDOW)


def ratios(quick: bool) -> dict[str, list[Run]]:
    """Fig. 15, by all models."""
    return {name: [changing(period, name, quick) for period in periods(quick)] for name in FIGURE_15}


MOST_TASKS = 300
LIMITS = (8, 16, 32, 64)
FIGURE_16 = ("A-DSP", "Dynamic", "Bi_6", "Bi")


def _within(model: str, limit: int) -> int:
    """Tasks that a model takes of so many: Dynamic splits each into four from one on."""
    if model != "Dynamic":
        return limit
    tasks = 1
    while 4 * tasks <= limit:
        tasks *= 4
    return tasks


def limits(quick: bool) -> tuple[int, ...]:
    return (8, 32) if quick else LIMITS


@cache
def limited(query: Query, quick: bool) -> dict[str, list[Run]]:
    """Fig. 16: a self-join in a window of 4 V, by no more than so many tasks."""
    capacity = TINY if quick else query.capacity
    slide = round(2 * capacity / WINDOW)
    found: dict[str, list[Run]] = {name: [] for name in FIGURE_16}
    with streams(loaded(2 * capacity, [(slide, slide)] * (WINDOW + 2), 1.0)) as given:
        for limit in limits(quick):
            for name, of_model in found.items():
                join = query.join(2 * capacity, window_seconds=60 * WINDOW - 1)
                of_model.append(run(given, [join], MODELS[name].tasks(_within(name, limit))).since(WINDOW))
    return found


def _figure_14(query: Query, measure: Callable[[Run], float], unit: str) -> Callable[[bool], Ours]:
    def ours(quick: bool) -> Ours:
        chosen, runs = fluctuations(quick), shifts(query, quick)
        whole = measure(runs["Ideal"][0])
        found = {name: [measure(of) / whole for of in of_model] for name, of_model in runs.items()}
        plans = {name: [of.adjustments for of in of_model] for name, of_model in runs.items()}
        text = "; ".join(f"{name} {figures(of)}" for name, of in found.items())
        of_plans = "; ".join(f"{name} {', '.join(map(str, of))}" for name, of in plans.items() if any(of))
        return Ours(
            f"f = {figures(chosen)}, Ideal at f = 0 is 1: {text}; new plans {of_plans or 'none'}",
            {"relative": found, "plans": plans},
            Lines("f", unit, [f"{f:g}" for f in chosen], found),
        )

    return ours


def _figure_15(quick: bool) -> Ours:
    runs, capacity = ratios(quick), TINY if quick else FIGURE_15_CAPACITY
    found: dict[str, Any] = {
        "adjustments": {name: [of.adjustments for of in of_model] for name, of_model in runs.items()},
        "moved, V": {name: [of.moved / capacity for of in of_model] for name, of_model in runs.items()},
        "longest": {name: [of.most_moved for of in of_model] for name, of_model in runs.items()},
        "seconds": {name: [_pause(of) for of in of_model] for name, of_model in runs.items()},
    }
    units = {"adjustments": 0, "moved, V": 1, "longest": 0, "seconds": 3}
    text = "; ".join(
        f"{TITLES[measure]}: {', '.join(f'{name} {figures(of, units[measure])}' for name, of in models.items())}"
        for measure, models in found.items()
    )
    lines = {name: [float(count) for count in of] for name, of in found["adjustments"].items()}
    return Ours(
        f"a ratio for {', '.join(map(str, periods(quick)))} slides: {text}",
        found,
        Lines("slides until the ratio changes", "adjustments", [str(period) for period in periods(quick)], lines),
    )


TITLES = {
    "adjustments": "adjustments",
    "moved, V": "moved in all, V",
    "longest": "fetched by the task that has most to fetch, tuples a plan",
    "seconds": "seconds that a plan's first slide takes longer than others",
}
FIGURE_15_CAPACITY = 600


def _pause(of: Run) -> float:
    """The mean of what the first epoch of a plan takes more than the one before it, with a processor for each task."""
    longer = [after.apart - before.apart for before, after in pairwise(of.epochs) if after.generation != before.generation]
    return sum(longer) / len(longer) if longer else 0.0


def _figure_16(query: Query) -> Callable[[bool], Ours]:
    def ours(quick: bool) -> Ours:
        asked, runs = limits(quick), limited(query, quick)
        whole = throughput(runs["A-DSP"][0])
        found = {name: [throughput(of) / whole for of in of_model] for name, of_model in runs.items()}
        text = "; ".join(f"{name} {figures(of)}" for name, of in found.items())
        tasks = ", ".join(str(_within("Dynamic", limit)) for limit in asked)
        return Ours(
            f"of {', '.join(map(str, asked))} tasks, of which Dynamic takes {tasks}; A-DSP with {asked[0]} is 1: {text}",
            {"relative": found, "limits": list(asked)},
            Lines("tasks", "throughput", [str(limit) for limit in asked], found),
        )

    return ours


def _room(_: bool) -> Ours:
    """The largest window, in V of each stream, that the tasks have memory for, by bisection."""
    found = {}
    for name in ("A-DSP", "Dynamic"):
        low, high = 0.1, 32.0
        while high - low > 0.005:
            middle = (low + high) / 2
            try:
                tasks = plan(name, held(middle * V, middle * V), ALL, V).tasks
            except TooManyTasksError:
                tasks = MOST_TASKS
            low, high = (middle, high) if tasks <= 32 else (low, middle)
        found[name] = round(low, 2)
    ratio = found["Dynamic"] / found["A-DSP"]
    text = f"R = S = {number(found['A-DSP'])} V by A-DSP, {number(found['Dynamic'])} V by Dynamic: {number(ratio)}"
    return Ours(text, found | {"ratio": ratio})


def _at(v: Values, name: str, limit: int) -> float:
    return float(v["relative"][name][v["limits"].index(limit)])


def _third(ratio: float) -> bool:
    return 0.75 / 3 <= ratio <= 1.25 / 3


def _flat(values: Sequence[float]) -> bool:
    return 0 < max(values) <= FLAT * min(values)


_row = partial(row, data="")


NEAR = 0.8
BI_BAND = "A task of Bi still takes in all of the other stream, but fewer pairs; groups of Bi_6 take in less."
EQUAL, WIDE = replace(E_Q5, capacity=30_000), replace(B_MR, capacity=600)
SOCIAL, STOCK = replace(B_NCI, capacity=30_000), replace(B_MR, capacity=800)
GENERATED = "Keys are generated as section 5.5 says."
TASKS_14 = ", ".join(f"{name} {count}" for name, count in COUNTS.items())


def _of_figure_14(letter: str, query: Query) -> tuple[Row, ...]:
    setting = (
        f"{query.name}; R = 0.75 V, S = 3.9 V in 180 s, slide 60 s, z = 1, V = {query.capacity:,} tuples; tasks {TASKS_14}; one of 13 task "
        "instances gains f mean loads from slide to slide; cut anew by the rule of section 5.4"
    )
    rates = _figure_14(query, throughput, "throughput")
    a_task = _figure_14(query, lambda of: throughput(of) / of.tasks, "throughput of a task")
    rows = [
        _row(
            f"14{letter}",
            "A-DSP beside Ideal",
            "5.5",
            f"{setting}; tuples / work of the busiest task",
            'A-DSP has "performance very close to the optimal bound set by Ideal"',
            rates,
            holds(f"A-DSP's throughput is at least {NEAR} of Ideal's at each f", lambda v: _near(v, NEAR)),
            why="Ideal has twice the tasks, each with a processor. In the paper the streams' rate may be what bounds both.",
            data=GENERATED,
        ),
        _row(
            f"14{letter}",
            "A-DSP beside Ideal, by task",
            "5.5",
            "as above, divided by the number of tasks: Ideal has twice as many",
            "as above",
            a_task,
            holds(f"a task of A-DSP has at least {NEAR} of the throughput of one of Ideal's at each f", lambda v: _near(v, NEAR)),
            data=GENERATED,
        ),
        _row(
            f"14{letter}",
            "Bi and Dynamic",
            "5.5",
            "as above, not divided",
            '"both Bi and Dynamic always have a low throughput and high processing latency"',
            rates,
            holds(
                "both are below A-DSP at each f",
                lambda v: all(
                    b < a for name in ("Bi", "Dynamic") for b, a in zip(v["relative"][name], v["relative"]["A-DSP"], strict=True)
                ),
            ),
            data=GENERATED,
        ),
    ]
    if query is EQUAL:
        rows.append(
            _row(
                f"14{letter}",
                "Bi_6",
                "5.5",
                "as above",
                'Bi_6 "works well only in the case with less distribution variance (smaller f)"',
                rates,
                holds(
                    "Bi_6's throughput falls by a third or more from the least f to the largest",
                    lambda v: v["relative"]["Bi_6"][-1] <= 2 / 3 * v["relative"]["Bi_6"][0],
                ),
                data=GENERATED,
            )
        )
    rows.append(
        _row(
            "14b" if letter == "a" else "14d",
            "latency",
            "5.5",
            "as above; work of the busiest task in a slide",
            "Ideal has the lowest; Bi and Dynamic always a high one",
            _figure_14(query, lambda of: of.latency, "latency"),
            holds(
                "Ideal's is the least at each f",
                lambda v: all(a <= b for of in v["relative"].values() for a, b in zip(v["relative"]["Ideal"], of, strict=True)),
            ),
            holds(
                "Bi's and Dynamic's are above A-DSP's at each f",
                lambda v: all(
                    b > a for name in ("Bi", "Dynamic") for b, a in zip(v["relative"][name], v["relative"]["A-DSP"], strict=True)
                ),
            ),
            data=GENERATED,
        )
    )
    return tuple(rows)


def _near(v: Values, part: float) -> bool:
    return all(a >= part * b for a, b in zip(v["relative"]["A-DSP"], v["relative"]["Ideal"], strict=True))


WITH_15 = (
    f"B_MR; R : S as in Fig. 13a, together {VOLUME} V in 180 s, slide 60 s; a ratio stays for 1, 2, 3 slides; cut anew by the rule of "
    f"section 5.4; V = {FIGURE_15_CAPACITY:,} tuples"
)


def _most(v: Values, measure: str, name: str) -> bool:
    return all(a >= b for of in v[measure].values() for a, b in zip(v[measure][name], of, strict=True)) and max(v[measure][name]) > 0


def _least(v: Values, measure: str, name: str) -> bool:
    others = [of for other, of in v[measure].items() if not other.startswith("Bi")]
    return all(a <= b for of in others for a, b in zip(v[measure][name], of, strict=True))


def _of_figure_16(letter: str, query: Query, what: str) -> tuple[Row, ...]:
    setting = (
        f"{what}; R = S = 2 V in 180 s, slide 60 s, z = 1, V = {query.capacity:,} tuples; 8, 16, 32, 64 tasks at most; tuples / work of "
        "the busiest task"
    )
    return (
        _row(
            f"16{letter}",
            "A-DSP is fastest",
            "5.6.1",
            setting,
            'A-DSP "always produce a higher throughput"',
            _figure_16(query),
            holds(
                "A-DSP's is above all others at each limit",
                lambda v: all(
                    a > b for name, of in v["relative"].items() if name != "A-DSP" for a, b in zip(v["relative"]["A-DSP"], of, strict=True)
                ),
            ),
            why="" if query.band else "With 16 and 64 tasks and R = S, A-DSP's plan is the same square grid as Dynamic's.",
            data=f"{NO_WEIBO} Nor are the stock data." if letter == "b" else NO_WEIBO,
        ),
        _row(
            f"16{letter}",
            "Dynamic with 32 tasks",
            "5.6.1",
            "as above",
            'Dynamic\'s "only be one-third of A-DSP when the limitation task number is 32"',
            _figure_16(query),
            holds("Dynamic's is 0.25 to 0.42 of A-DSP's with 32", lambda v: _third(_at(v, "Dynamic", 32) / _at(v, "A-DSP", 32))),
            why="By work it is about a half, as Dynamic has 16 of 32 tasks; by memory it is a third (below).",
            data="As above.",
        ),
        _row(
            f"16{letter}",
            "Bi and Bi_6",
            "5.6.1",
            "as above",
            'Bi and Bi_6 "have little change in the performance"',
            _figure_16(query),
            holds(
                f"of each, the largest is at most {FLAT} times the least",
                lambda v: all(_flat(v["relative"][name]) for name in ("Bi", "Bi_6")),
            ),
            why="Where pairs are most of the work, more tasks share it." if query.band is None else BI_BAND,
            data="As above.",
        ),
    )


ROWS = (
    *_of_figure_14("a", EQUAL),
    *_of_figure_14("c", WIDE),
    _row(
        "15a",
        "adjustments",
        "5.5",
        WITH_15,
        'A-DSP "incurs more scheme adjustment"; Dynamic fewer',
        _figure_15,
        holds("A-DSP has most at each period", lambda v: _most(v, "adjustments", "A-DSP")),
        holds(
            "Dynamic fewer than A-DSP",
            lambda v: all(d < a for d, a in zip(v["adjustments"]["Dynamic"], v["adjustments"]["A-DSP"], strict=True)),
        ),
    ),
    _row(
        "15b",
        "migration latency",
        "5.5",
        "as above",
        'Dynamic\'s "is the one biggest"; Bi and Bi_6 have "a smaller migration volume and latency"',
        _figure_15,
        holds("Dynamic's task that fetches most fetches more than any other model's", lambda v: _most(v, "longest", "Dynamic")),
        holds("Bi's and Bi_6's fetch least", lambda v: _least(v, "longest", "Bi") and _least(v, "longest", "Bi_6")),
        holds("and move least in all", lambda v: _least(v, "moved, V", "Bi") and _least(v, "moved, V", "Bi_6")),
    ),
    *_of_figure_16("a", SOCIAL, "social: a band of keywords"),
    *_of_figure_16("b", STOCK, "stock: every pair is looked at"),
    Row(
        "002",
        "16",
        "5.6.1",
        "memory of 32 tasks",
        Kind.ARITHMETIC,
        "the largest R = S that 32 tasks hold, every pair may match; Dynamic by its own rule",
        'Dynamic\'s throughput is "one-third of A-DSP when the limitation task number is 32": "the available resources always cannot meet '
        'its demand"',
        _room,
        (holds("Dynamic holds 0.25 to 0.42 of what A-DSP does", lambda v: _third(v["ratio"])),),
        ("scheme/models.py", "scheme/dynamic.py"),
        why="Dynamic splits tasks by fours and fills them to a half, so of 32 it takes 16, half full: what it can hold, and so how much of "
        "the stream a window may have, is a third.",
    ),
)
