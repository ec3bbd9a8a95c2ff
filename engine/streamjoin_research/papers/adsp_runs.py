"""002, A-DSP: joins that run, beside sections 5.2, 5.3, 5.4.1 and 5.6.2 (Figs. 10b to 10d, 11, 12b, 17b, 17d).

The paper measures 21 machines. Here *work* stands for a task's time, and is the same on every machine: tuples that it receives, those of a
migration among them, and pairs that it looks at (the paper's network and CPU costs, Eqs. 2 and 3). With a processor for each task an epoch
takes as long as its busiest task works. Seconds of a processor are rows of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from streamjoin.scheme.models import plan_for_capacity
from streamjoin_research.papers.loads import band, held
from streamjoin_research.papers.queries import B_MR, B_NCI, DATA, E_Q5, MODELS, SKEWS, TINY, ByLoad, Query, loaded, options_of, sized
from streamjoin_research.papers.rows import Check, Kind, Lines, Ours, Row, Values, figures, holds, number
from streamjoin_research.papers.runs import VALUES, Join, Keys, Run, run, streams

MATRICES = ("A-DSP", "Square", "Dynamic")
RIVALS = (*MATRICES, "Bi_6", "Bi")
FLAT = 1.15
"""\"Stably\", \"immune\", \"stable\", \"similar\": at most so many times the least."""
MOST_TASKS = 300
"""Virtual machines of the paper's cluster."""
STEPS = 4
"""In which 16 GB are loaded."""
MODULES = ("research/papers/runs.py", "dataplane/join.py", "dataplane/route.py", "scheme/models.py")

Runs = dict[str, list[Run]]
"""By model, the run at each z."""


@cache
def loading(query: Query, z: float, name: str, quick: bool) -> Run:
    """Fig. 10: 8 V of R and S as 1 : 4 are loaded, cut anew by section 5.4's rule."""
    query, steps, most = (sized(query), 3, 16) if quick else (query, STEPS, MOST_TASKS)
    capacity, keys = query.capacity, 2 * steps * query.capacity // 5
    with streams(loaded(keys, [(2 * capacity // 5, 8 * capacity // 5)] * steps, z)) as given:
        return run(given, [query.join(keys)], MODELS[name].growing(capacity, most), ByLoad(most))


def history(query: Query, quick: bool, names: Sequence[str] = RIVALS) -> Runs:
    """Fig. 10, by these models: of the steps after the first, in which all have one task."""
    return {name: [loading(query, z, name, quick).since(1) for z in skews(quick)] for name in names}


WINDOW = 3
"""Slides of a minute: 180 s."""
TASKS = {"A-DSP": 13, "Square": 16, "Dynamic": 64, "Bi_6": 12, "Bi": 6}
"""Section 5.3."""


@cache
def window(query: Query, z: float, name: str, quick: bool) -> Run:
    """Fig. 11: R = 0.75 V and S = 3.9 V within the window, by as many tasks as in the paper. Of epochs with full windows."""
    query, tasks = (sized(query), TASKS[name] // 6) if quick else (query, TASKS[name])
    capacity, keys = query.capacity, 3 * (query.capacity // 4)
    with streams(loaded(keys, [(capacity // 4, round(1.3 * capacity))] * (WINDOW + 2), z)) as given:
        return run(given, [query.join(keys, window_seconds=60 * WINDOW - 1)], MODELS[name].tasks(tasks)).since(WINDOW)


def windows(query: Query, quick: bool) -> Runs:
    """Fig. 11, by all models."""
    return {name: [window(query, z, name, quick) for z in skews(quick)] for name in RIVALS}


DAYS, DAYS_CAPACITY = 30, 800
APART = {"0": 0, "3": 3, "infinite": DAYS}
"""ds."""
SOCIAL = ("A-DSP", "Square", "Dynamic", "Bi", "Readj")


@cache
def days(quick: bool) -> Runs:
    """Fig. 12b: R = S = 3 V over 30 days, by as many tasks as Fig. 12a's plans take; by ds."""
    capacity = TINY if quick else DAYS_CAPACITY
    statistics = held(3 * capacity, 3 * capacity, np.arange(DAYS))
    chance = np.random.default_rng(3)
    epochs: list[Keys] = [(chance.integers(0, DAYS, capacity), chance.integers(0, DAYS, capacity)) for _ in range(3)]
    found: Runs = {name: [] for name in SOCIAL}
    with streams(epochs) as given:
        for apart in APART.values():
            join = Join(f"abs(l.k - r.k) <= {apart} AND (l.v + r.v) % {VALUES} = 0")
            for name, of_model in found.items():
                model = MODELS[name]
                planned = plan_for_capacity(model.name, statistics, band(-apart, apart), capacity, options=options_of(model))
                of_model.append(run(given, [join], model.tasks(min(planned.tasks, 16) if quick else planned.tasks)))
    return found


@cache
def social(quick: bool) -> dict[str, Run]:
    """Fig. 17: 10 GB, 5 V, of a self-join are loaded; every pair is looked at."""
    query, steps, most = (sized(B_MR), 2, 16) if quick else (B_MR, 5, MOST_TASKS)
    capacity, keys = query.capacity, steps * query.capacity // 2
    with streams(loaded(keys, [(capacity // 2, capacity // 2)] * steps, 1.0)) as given:
        return {
            name: run(given, [query.join(keys)], MODELS[name].growing(capacity, most), ByLoad(most))
            for name in ("A-DSP", "Dynamic", "Bi_6", "Bi")
        }


def skews(quick: bool) -> tuple[float, ...]:
    return (0.0, 2.0) if quick else SKEWS


def _of_history(query: Query, measure: Callable[[Run], float], unit: str) -> Callable[[bool], Ours]:
    return lambda quick: _by_skew(history(query, quick), quick, measure, unit)


def _of_windows(query: Query, measure: Callable[[Run], float], unit: str) -> Callable[[bool], Ours]:
    return lambda quick: _by_skew(windows(query, quick), quick, measure, unit)


def _by_skew(runs: Runs, quick: bool, measure: Callable[[Run], float], unit: str) -> Ours:
    """``measure`` of each run as multiples of A-DSP's without skew."""
    whole = measure(runs["A-DSP"][0])
    found = {name: [measure(of_z) / whole for of_z in of_model] for name, of_model in runs.items()}
    tasks = {name: [of_z.tasks for of_z in of_model] for name, of_model in runs.items()}
    text = "; ".join(f"{name} {figures(of)}" for name, of in found.items())
    of_tasks = ", ".join(f"{name} {_range(of)}" for name, of in tasks.items())
    return Ours(
        f"z = {figures(skews(quick))}, A-DSP at z = 0 is 1: {text}; tasks at the end {of_tasks}",
        {"relative": found, "tasks": tasks, "A-DSP, z = 0": whole},
        Lines("z", unit, [f"{z:g}" for z in skews(quick)], found),
    )


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"


def work(of: Run) -> float:
    return float(of.work)


def throughput(of: Run) -> float:
    return of.tuples / of.work


def _flat(values: Sequence[float]) -> bool:
    return 0 < max(values) <= FLAT * min(values)


def _each_z(v: Values, one: str, other: str, least: float, most: float = float("inf")) -> bool:
    """Whether one model's is ``least`` to ``most`` times the other's at each z."""
    return all(least * b <= a <= most * b for a, b in zip(v["relative"][one], v["relative"][other], strict=True))


IMMUNE = holds(
    f"of A-DSP, Square and Dynamic, each takes at most {FLAT} times its least over z",
    lambda v: all(_flat(v["relative"][name]) for name in MATRICES),
)
THREE_TIMES = holds("Bi takes 2 to 4 times what A-DSP does at each z", lambda v: _each_z(v, "Bi", "A-DSP", 2, 4))
SIMILAR = (
    holds("Dynamic takes 0.67 to 1.5 times what A-DSP does at each z", lambda v: _each_z(v, "Dynamic", "A-DSP", 1 / 1.5, 1.5)),
    holds("with more tasks", lambda v: min(v["tasks"]["Dynamic"]) > max(v["tasks"]["A-DSP"])),
)
SLOWEST = holds("Bi takes longest at each z", lambda v: all(_each_z(v, "Bi", name, 1) for name in RIVALS if name != "Bi"))
MATRICES_ABOVE = holds(
    "A-DSP, Square and Dynamic are each above Bi_6 and Bi at each z",
    lambda v: all(_each_z(v, name, other, 1 + 1e-9) for name in MATRICES for other in ("Bi_6", "Bi")),
)
CUT_BY_KEYS = "With a narrow band A-DSP cuts along keys and takes about as few tasks as Bi."
BY_TASKS = "Where every pair is looked at, times are as the numbers of tasks: Bi takes few."
ALL_PAIRS = "Each model looks at every pair once, which is nearly all the work: what they differ in are copies."
OVERHEAD = (
    "Seconds of one machine, at sizes that run in minutes: a task's step takes about a millisecond whatever comes, as long as sorting and "
    "probing thousands of tuples do. Work, which other rows compare, leaves that out."
)
LOADED = "8 V of R : S = 1 : 4 in 4 steps, cut anew by the rule of section 5.4; of the steps after the first, in which all have one task"
BUSIEST = "tuples received or moved, and pairs looked at, by the busiest task of each step"
WORK = "work of the busiest task"


def row(
    figure: str,
    part: str,
    section: str,
    parameters: str,
    says: str,
    ours: Callable[[bool], Ours],
    *rule: Check,
    why: str = "",
    data: str = DATA,
) -> Row:
    return Row("002", figure, section, part, Kind.RUN, parameters, says, ours, rule, MODULES, why=why, data=data, slow=True)


def _of_figure_10(figure: str, query: Query) -> tuple[Row, ...]:
    with_v = f"{query.name}, z = 0, 1, 2; {LOADED}; V = {query.capacity:,} tuples"
    measured, seconds = _of_history(query, work, WORK), _of_history(query, lambda of: of.apart, "seconds")
    return (
        row(
            figure,
            "by skew",
            "5.2",
            f"{with_v}; {BUSIEST}",
            'A-DSP, Square and Dynamic "can process join stably", "immune to data skewness"',
            measured,
            IMMUNE,
        ),
        row(
            figure,
            "Bi",
            "5.2",
            "as above",
            'Bi\'s "efficiency is almost three times lower than others due to its lack of computing resources"',
            measured,
            THREE_TIMES,
            why=BY_TASKS if query.band is None else CUT_BY_KEYS,
        ),
        row(
            figure,
            "Dynamic",
            "5.2",
            "as above",
            'its "execution time is similar with our methods, but it is at the expense of more tasks"',
            measured,
            *SIMILAR,
            why="With a processor for each of so many more tasks it takes less. The paper has 168 processors for 256 tasks.",
        ),
        row(
            figure,
            "one processor for all",
            "5.2",
            f"{with_v}; tuples received or moved, and pairs looked at, by all tasks",
            '"our algorithms are more scalable and efficient"',
            _of_history(query, lambda of: float(of.all_work), "work of all tasks"),
            holds("A-DSP takes least at each z", lambda v: all(_each_z(v, name, "A-DSP", 1) for name in RIVALS)),
            why=ALL_PAIRS if query.band is None else "",
        ),
        row(
            figure,
            "seconds",
            "5.2",
            f"{with_v}; seconds of a processor that the busiest task of each step takes to sort and join",
            "Bi is slowest",
            seconds,
            SLOWEST,
            why=OVERHEAD,
        ),
    )


def _bi_6_of_history(quick: bool) -> Ours:
    found = {}
    for query in (E_Q5, B_NCI, B_MR):
        runs = history(query, quick, ("Bi_6", "Bi"))
        found[query.name] = {name: [of.copies for of in runs[name]] for name in ("Bi_6", "Bi")}
    text = "; ".join(f"{query} {', '.join(f'{name} {figures(of)}' for name, of in of_query.items())}" for query, of_query in found.items())
    lines = {f"{name}, {query}": of for query, of_query in found.items() for name, of in of_query.items()}
    z = skews(quick)
    return Ours(f"copies of a tuple, z = {figures(z)}: {text}", found, Lines("z", "copies", [f"{each:g}" for each in z], lines))


def _requests(quick: bool) -> Ours:
    found = {
        query.name: {name: [of.requests for of in of_model] for name, of_model in windows(query, quick).items()}
        for query in (E_Q5, B_NCI, B_MR)
    }
    text = "; ".join(f"{query}: {', '.join(f'{name} {figures(of, 1)}' for name, of in models.items())}" for query, models in found.items())
    lines = {name: [found[query][name][0] for query in found] for name in RIVALS}
    return Ours(
        f"of 100 tuples a task receives, z = {figures(skews(quick))}: {text}", found, Lines("", "of 100 tuples, z = 0", list(found), lines)
    )


def _figure_12b(quick: bool) -> Ours:
    runs = days(quick)
    whole = throughput(runs["A-DSP"][0])
    found = {name: [throughput(of) / whole for of in of_model] for name, of_model in runs.items()}
    tasks = {name: [of.tasks for of in of_model] for name, of_model in runs.items()}
    text = "; ".join(f"{name} {figures(found[name], 3)} by {', '.join(map(str, tasks[name]))} tasks" for name in found)
    values = {"relative": found, "tasks": tasks}
    return Ours(
        f"ds = 0, 3, infinite, A-DSP at ds = 0 is 1: {text}", values, Lines("ds", "throughput", list(APART), found, logarithmic=True)
    )


def _figure_17(quick: bool) -> Ours:
    runs = social(quick)
    found: dict[str, Any] = {
        "time": {name: of.work for name, of in runs.items()},
        "tasks": {name: of.tasks for name, of in runs.items()},
        "RC of tasks": {name: of.task_time for name, of in runs.items()},
        "RC of the network": {name: of.sent_time for name, of in runs.items()},
        "seconds": {name: of.apart for name, of in runs.items()},
    }
    relative = {measure: {name: of[name] / of["A-DSP"] for name in of} for measure, of in found.items() if measure != "tasks"}
    text = "; ".join(f"{measure} {', '.join(f'{name} {number(value)}' for name, value in of.items())}" for measure, of in relative.items())
    tasks = ", ".join(f"{name} {count}" for name, count in found["tasks"].items())
    bars = {measure: list(of.values()) for measure, of in relative.items()}
    return Ours(f"A-DSP is 1: {text}; tasks at the end {tasks}", {"relative": relative} | found, Lines("", "A-DSP = 1", list(runs), bars))


def _within(part: float, values: Sequence[float]) -> bool:
    return max(values) <= (1 + part) * min(values)


def _least(v: Values, measure: str) -> bool:
    return all(value > v[measure]["A-DSP"] for name, value in v[measure].items() if name != "A-DSP")


def _of_figure_11(figure: str, query: Query, says: str, *rule: Check) -> tuple[Row, ...]:
    with_v = (
        f"{query.name}, z = 0, 1, 2; R = 0.75 V, S = 3.9 V in 180 s, slide 60 s; as many tasks as in the paper; "
        f"V = {query.capacity:,} tuples"
    )
    return (
        row(
            figure,
            "throughput",
            "5.3",
            f"{with_v}; tuples / {WORK}",
            says,
            _of_windows(query, throughput, "throughput"),
            MATRICES_ABOVE,
            *rule,
        ),
        row(
            figure,
            "throughput, seconds",
            "5.3",
            f"{with_v}; tuples / seconds of a processor that the busiest task takes to sort and join",
            'of matrix-based algorithms "obviously higher than those of bipartite-graph-based ones"',
            _of_windows(query, lambda of: of.tuples / of.apart, "throughput"),
            MATRICES_ABOVE,
            why=OVERHEAD,
        ),
    )


NO_WEIBO = "The Weibo data are not to be had: synthetic."
FALLS = holds("Bi_6's falls by a third or more from z = 0 to 2", lambda v: v["relative"]["Bi_6"][-1] <= 2 / 3 * v["relative"]["Bi_6"][0])
WINDOWED = "as Figs. 11a, 11c and 11e"
FIG_17 = (
    f"5 V of R : S = 1 : 1 in 5 steps, every pair is looked at; cut anew by the rule of section 5.4; V = {B_MR.capacity:,} tuples; "
    f"{BUSIEST}"
)

ROWS = (
    *_of_figure_10("10b", E_Q5),
    *_of_figure_10("10c", B_NCI),
    *_of_figure_10("10d", B_MR),
    row(
        "10",
        "Bi_6's groups",
        "5.2",
        "as Figs. 10b to 10d; tasks that a tuple is sent to, to be held or to probe",
        'with B_MR "the advantages of subgrouping in Bi_6 completely disappear"',
        _bi_6_of_history,
        holds("with E_Q5 and z = 0, Bi_6 sends fewer copies than Bi", lambda v: v["E_Q5"]["Bi_6"][0] < v["E_Q5"]["Bi"][0]),
        holds(
            "with B_MR, as many or more at each z", lambda v: all(a >= b for a, b in zip(v["B_MR"]["Bi_6"], v["B_MR"]["Bi"], strict=True))
        ),
    ),
    *_of_figure_11(
        "11a",
        E_Q5,
        'of matrix-based algorithms "obviously higher than those of bipartite-graph-based ones"; "with severer skewness" Bi_6\'s '
        "performance lows down",
        FALLS,
    ),
    *_of_figure_11("11c", B_NCI, 'of matrix-based algorithms "obviously higher"; Bi_6\'s broadcasts "aggravate the CPU loads"'),
    *_of_figure_11("11e", B_MR, 'of matrix-based algorithms "obviously higher"; Bi_6 "is unaffected by B_MR"'),
    row(
        "11b",
        "join requests a task",
        "5.3",
        WINDOWED,
        'Bi "broadcasts the same amount of data for these three kinds of queries" (11b, 11d, 11f); with B_MR Bi_6 loses "advantages of '
        'selection"',
        _requests,
        holds("Bi's are the same for all queries, to 1 %", lambda v: _within(0.01, [of["Bi"][0] for of in v.values()])),
        holds("Bi_6's are at least twice as many with B_MR as with E_Q5", lambda v: v["B_MR"]["Bi_6"][0] >= 2 * v["E_Q5"]["Bi_6"][0]),
    ),
    row(
        "12b",
        "beside Bi and Readj",
        "5.4.1",
        f"R = S = 3 V over 30 days, by the tasks of Fig. 12a; ds = 0, 3, infinite; tuples / {WORK}; V = {DAYS_CAPACITY:,} tuples",
        'routing and broadcasts of Bi and Readj are "an obstacle to the throughput performance"',
        _figure_12b,
        holds(
            "A-DSP's is above both at each ds",
            lambda v: all(a > b for name in ("Bi", "Readj") for a, b in zip(v["relative"]["A-DSP"], v["relative"][name], strict=True)),
        ),
        why="With ds = 0, A-DSP and Readj cut alike: ranges of days, with nothing repeated.",
        data=NO_WEIBO,
    ),
    row(
        "12b",
        "A-DSP's is stable",
        "5.4.1",
        "as above",
        'A-DSP can "provide stable high throughput although it consumes less tasks"',
        _figure_12b,
        holds(f"the largest over ds is at most {FLAT} times the least", lambda v: _flat(v["relative"]["A-DSP"])),
        why="From ds = 0 to infinite, pairs become 30 times as many and A-DSP's tasks 6 times.",
        data=NO_WEIBO,
    ),
    row(
        "17b",
        "time",
        "5.6.2",
        FIG_17,
        'the bipartite models "are the slowest for its lack of CPU resources"',
        _figure_17,
        holds(
            "Bi and Bi_6 take longer than A-DSP and Dynamic",
            lambda v: min(v["time"]["Bi"], v["time"]["Bi_6"]) > max(v["time"]["A-DSP"], v["time"]["Dynamic"]),
        ),
        why="Bi_6 has twelve tasks from the first step on, when A-DSP has one.",
        data=NO_WEIBO,
    ),
    row(
        "17d",
        "resource cost",
        "5.6.2",
        "as above; RC = sum of r t: tasks, and tuples sent, x the time of each step",
        '"confirms that A-DSP can deal with the band-join more economically"',
        _figure_17,
        holds("A-DSP's RC of tasks is the least", lambda v: _least(v, "RC of tasks")),
        holds("its RC of the network is the least", lambda v: _least(v, "RC of the network")),
        why="Dynamic sends more, but with a processor for each of its many tasks for a shorter time.",
        data=NO_WEIBO,
    ),
)
