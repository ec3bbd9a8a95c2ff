"""002, A-DSP: how the tuple matrix is cut (sections 2 and 3). Exact arithmetic."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise, product

from streamjoin.scheme import dichotomy, varietal
from streamjoin.scheme.cuts import Rectangle
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.models import plan_for_capacity
from streamjoin.scheme.statistics import loads
from streamjoin_research.papers.loads import band, plan, toy
from streamjoin_research.papers.optimum import Band, band_of, fewest_tasks, matrix_of
from streamjoin_research.papers.rows import Kind, Lines, Ours, Row, Tiling, equal, figures, holds, number
from streamjoin_research.scheme import printed
from streamjoin_research.scheme.printed import Needed, by_algorithm_1, by_equation_9

FIGURE_2 = [4, 4, 5, 5, 6, 17, 18, 22, 23, 30, 31, 32]
"""Twelve tuples a side, of which the first five all join each other, and key 20 is between the seventh and the eighth."""
FIGURE_2_CAPACITY = 8
WITHIN_2 = band(-2, 2)


def _figure_2(_: bool) -> Ours:
    by_tuple = matrix_of(band_of(FIGURE_2, FIGURE_2, WITHIN_2))
    statistics = toy(FIGURE_2)
    matrix = Matrix.of(statistics, WITHIN_2)
    one_dimensional = printed.one_dimensional(by_tuple, FIGURE_2_CAPACITY)
    taken_in = [tuples for _, tuples in one_dimensional]
    cut = [Rectangle(0, 7, 0, 7), Rectangle(7, 12, 7, 12)]
    at_20 = sum(varietal.partition(*area.volumes(by_tuple), FIGURE_2_CAPACITY).tasks for area in cut)
    found = dichotomy.partition(matrix, FIGURE_2_CAPACITY)
    stored = loads(plan_for_capacity("hash", statistics, WITHIN_2, FIGURE_2_CAPACITY), statistics)
    values = {
        "1-DSP": len(taken_in),
        "1-DSP takes in": taken_in,
        "2-DSP": plan("Square", statistics, WITHIN_2, FIGURE_2_CAPACITY).tasks,
        "cut at key 20": at_20,
        "Alg. 2": found.tasks,
        "printed Alg. 2": printed.dichotomy(by_tuple, by_algorithm_1(FIGURE_2_CAPACITY)).tasks,
        "1-DSP stores": stored.tolist(),
    }
    text = f"1-DSP {values['1-DSP']}, which take in {figures(taken_in)} tuples; 2-DSP {values['2-DSP']}; cut at key 20 {at_20}; "
    text += f"Alg. 2 {found.tasks}, as printed {values['printed Alg. 2']}. Counting what is stored alone, as our plans do, 1-DSP takes "
    text += f"{len(stored)} ({figures(stored.tolist())})"
    tilings = [
        _tiling("(a) 1-DSP", by_tuple, [run for run, _ in one_dimensional]),
        _tiling("(c) cut at key 20", by_tuple, cut),
        _tiling("Fig. 5: Alg. 2", by_tuple, list(printed.dichotomy(by_tuple, by_algorithm_1(FIGURE_2_CAPACITY)).areas)),
    ]
    return Ours(text, values, tilings)


def _tiling(title: str, matrix: Matrix, areas: list[Rectangle]) -> Tiling:
    stripes = [(float(row), float(matrix.first[row]), float(matrix.last[row] + 1)) for row in range(matrix.rows)]
    shown = [(f"{number}", float(area.top), float(area.bottom), float(area.begin), float(area.end)) for number, area in enumerate(areas, 1)]
    return Tiling(title, stripes, shown)


def _figure_5(_: bool) -> Ours:
    matrix = matrix_of(band_of(FIGURE_2, FIGURE_2, WITHIN_2))
    found = printed.dichotomy(matrix, by_algorithm_1(FIGURE_2_CAPACITY))
    first, rest = Rectangle(0, 5, 0, 5), Rectangle(5, 12, 5, 12)
    needed = by_algorithm_1(FIGURE_2_CAPACITY)
    sizes = [[area.bottom - area.top, area.end - area.begin] for area in found.areas]
    values = {
        "areas": sizes,
        "first": needed(*first.volumes(matrix)),
        "rest whole": needed(*rest.volumes(matrix)),
        "tasks": found.tasks,
    }
    shown = " and ".join(f"{rows} x {columns}" for rows, columns in sizes)
    text = f"[c(1,1), c(5,5)] takes {values['first']}; [c(6,6), c(12,12)] {values['rest whole']} whole; {shown}, {found.tasks} tasks in all"
    return Ours(text, values, [_tiling("Alg. 2 as printed", matrix, list(found.areas))])


def _figure_3(_: bool) -> Ours:
    values = {
        "Eq. 9": varietal.square(6, 6, 10).tasks,
        "printed Alg. 1": printed.four_primaries(6, 6, 10).tasks,
        "ours": varietal.partition(6, 6, 10).tasks,
    }
    text = f"Eq. 9: {values['Eq. 9']}; Alg. 1, which the figure leaves out: {values['printed Alg. 1']} as printed, {values['ours']} by ours"
    return Ours(text, values)


def _figure_4(_: bool) -> Ours:
    shape, ours = printed.four_primaries(9, 7, 10), varietal.partition(9, 7, 10)
    evened = ours.evened(9, 7)
    values = {
        "Eq. 9": varietal.square(9, 7, 10).tasks,
        "shape": str(ours),
        "tasks": shape.tasks,
        "loads": [round(load, 6) for load in ours.loads(9, 7)],
        "evened": [round(load, 6) for load in evened.loads(9, 7)],
    }
    tilings = [
        Tiling(f"{title}: {figures(found.loads(9, 7))}", [(row, 0.0, 7.0) for row in range(9)], _cells(found, 9, 7))
        for title, found in (("Eq. 12", ours), ("evened", evened))
    ]
    text = f"Eq. 9: {values['Eq. 9']}; {ours} with {figures(ours.loads(9, 7))} GB by Eq. 12; the plan that is used evens them to "
    return Ours(text + figures(evened.loads(9, 7)), values, tilings)


def _cells(shape: varietal.Shape, left: float, right: float) -> list[tuple[str, float, float, float, float]]:
    size = float(1 << 32)
    return [
        (str(task), rows.low / size * left, rows.high / size * left, columns.low / size * right, columns.high / size * right)
        for task, (rows, columns) in enumerate(shape.areas())
    ]


def _theorem_1(_: bool) -> Ours:
    half = 5
    pairs = list(product(range(1, 11), repeat=2))
    best = all(varietal.partition(rows * half, columns * half, 2 * half).tasks == rows * columns for rows, columns in pairs)
    others = [
        (left, right)
        for left, right in product(range(1, 51), repeat=2)
        if varietal.partition(left, right, 2 * half).tasks < varietal.square(left, right, 2 * half).tasks
    ]
    values = {"least at multiples": best, "beaten elsewhere": len(others)}
    text = "R and S of 1 to 10 times V_h: no varietal matrix takes fewer than Eq. 9; of R, S = 1..50 with V_h = 5, some do for "
    return Ours(f"{text}{len(others):,} of 2,500 (the theorem says nothing of those)", values)


VOLUMES = range(1, 41)
CAPACITIES = range(4, 25)


def _theorem_2(quick: bool) -> Ours:
    cases = [(left, right, V) for left, right, V in product(VOLUMES, VOLUMES, CAPACITIES)][:: 17 if quick else 1]
    equation_9 = [varietal.square(*case).tasks for case in cases]
    algorithm_1 = [printed.four_primaries(*case).tasks for case in cases]
    more = sum(ours > theirs for ours, theirs in zip(algorithm_1, equation_9, strict=True))
    fewer = sum(ours < theirs for ours, theirs in zip(algorithm_1, equation_9, strict=True))
    values = {"more": more, "fewer %": 100 * fewer / len(cases)}
    text = f"R, S = 1..40, V = 4..24: the printed Alg. 1 takes fewer tasks than Eq. 9 in {values['fewer %']:.0f} % of the cases, "
    return Ours(text + f"as many in all others, and more in {more}", values)


def _theorem_2_proof(quick: bool) -> Ours:
    cases = [(left, right, V) for left, right, V in product(VOLUMES, VOLUMES, CAPACITIES)][:: 101 if quick else 13]
    fewer = sum(varietal.partition(*case).tasks < printed.four_primaries(*case).tasks for case in cases)
    example = printed.four_primaries(9, 11, 8), varietal.partition(9, 11, 8)
    values = {"beaten %": 100 * fewer / len(cases), "printed": example[0].tasks, "best": example[1].tasks}
    text = f"|R| = 9, |S| = 11, V = 8: {example[0]} = {example[0].tasks} tasks by the four P_gamma, {example[1]} = {example[1].tasks} by "
    return Ours(text + f"another; so in {values['beaten %']:.0f} % of R, S = 1..40, V = 4..24", values)


def _random_bands(count: int, seed: int) -> list[tuple[Band, int]]:
    """Staircases of 4 to 8 tuples a side, and a capacity for which Eq. 9 takes at least 2 rows and 2 columns."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret about it
    found: list[tuple[Band, int]] = []
    while len(found) < count:
        rows, columns, capacity = chance.choice((4, 5, 6, 7, 8)), chance.choice((4, 5, 6, 7, 8)), chance.choice((4, 6))
        first, last = 0, chance.randrange(min(columns, 4))
        stairs = [(first, last)]
        for _ in range(rows - 1):
            first = chance.randint(first, min(last + 1, columns - 1))
            last = max(last, first, chance.randint(last, min(columns - 1, last + 3)))
            stairs.append((first, last))
        stairs[-1] = (stairs[-1][0], columns - 1)
        if stairs[-1][0] <= stairs[-2][1] + 1 and all(before[0] <= after[0] for before, after in pairwise(stairs)):
            found.append((tuple(stairs), capacity))
    return found


def _grid(matrix: Matrix, capacity: int) -> tuple[int, int]:
    shape = varietal.square(matrix.left, matrix.right, capacity)
    return shape.rows, shape.columns


def figure_6(lines: int, half: int) -> Band:
    """Lemma 1's matrix for alpha = beta = ``lines``: a block of results in the middle, and its first and last cells alone."""
    low, high = half - 1, (lines - 1) * half
    return tuple((row, row) if row < low or row > high else (low, high) for row in range(lines * half))


def _figure_6(_: bool) -> Ours:
    lines = range(2, 11)
    curve = [printed.consumption_bound(count, count) for count in lines]
    reached, optimum = [], []
    for count in (2, 3, 4):
        stairs = figure_6(count, 2)
        algorithm_2 = printed.dichotomy(matrix_of(stairs), by_equation_9(4)).tasks
        optimum.append(fewest_tasks(stairs, 4, algorithm_2))
        reached.append(algorithm_2 / optimum[-1])
    values = {"bound": curve, "reached": reached, "optimum": optimum}
    text = f"alpha = beta = 2..10: {figures(curve)}; the matrix of Fig. 6 with V_h = 2 and alpha = beta = 2, 3, 4: the fewest tasks of any "
    text += f"tiling are {figures(optimum)}, Alg. 2 with Eq. 9 takes {figures(reached)} times as many"
    shown: dict[str, list[float]] = {"bound": curve, "Fig. 6's matrix": [*reached, *[float("nan")] * (len(curve) - len(reached))]}
    return Ours(text, values, Lines("alpha = beta", "tasks / fewest", list(lines), shown))


def _theorem_4(needed: Callable[[float], Needed], seed: int) -> Callable[[bool], Ours]:
    def ours(quick: bool) -> Ours:
        count = 80 if quick else 400
        beyond, worst, example = 0, 0.0, ""
        for stairs, capacity in _random_bands(count, seed):
            matrix = matrix_of(stairs)
            tasks = printed.dichotomy(matrix, needed(capacity)).tasks
            ratio, bound = tasks / fewest_tasks(stairs, capacity, tasks), printed.consumption_bound(*_grid(matrix, capacity))
            worst = max(worst, ratio)
            if ratio > bound * (1 + 1e-9):
                beyond += 1
                example = example or f"; the first: rows with the columns {_columns(stairs)}, V = {capacity}: {tasks} tasks, and a tiling "
                example += f"of {round(tasks / ratio)}, where the bound is {number(bound)}" if beyond == 1 else ""
        text = f"{count} random bands of 4 to 8 tuples a side: beyond the bound {beyond} times, at most {number(worst)} times the fewest"
        return Ours(text + example, {"beyond": beyond, "worst": worst})

    return ours


def _columns(stairs: Band) -> str:
    return ", ".join(f"{low + 1}" if low == high else f"{low + 1}-{high + 1}" for low, high in stairs)


def _lemma_1(needed: Callable[[float], Needed]) -> Callable[[bool], Ours]:
    def ours(quick: bool) -> Ours:
        stopped, lacking, example = 0, 0, ""
        for stairs, capacity in _random_bands(100 if quick else 400, 2):
            matrix, half = matrix_of(stairs), capacity // 2
            if len(printed.dichotomy(matrix, needed(capacity)).areas) > 1:
                continue
            stopped += 1
            rows, columns = _grid(matrix, capacity)
            corner = (rows - 1) * half + 1, (columns - 1) * half + 1
            cells = product(range(half, min(corner[0], matrix.rows) + 1), range(half, min(corner[1], matrix.columns) + 1))
            missing = [at for at in cells if at != corner and not stairs[at[0] - 1][0] <= at[1] - 1 <= stairs[at[0] - 1][1]]
            if missing:
                lacking += 1
                example = example or f"; the first: rows with the columns {_columns(stairs)}, V = {capacity}: c{missing[0]} is none"
        return Ours(f"{stopped} bands that are not split; {lacking} of them lack a result there{example}", {"lacking": lacking})

    return ours


def _algorithm_2(quick: bool) -> Ours:
    fewer, more, count = 0, 0, 110 if quick else 300
    chance = random.Random(4)  # noqa: S311 - nothing secret about it
    for stairs, _ in _random_bands(count, 3):
        weights = [chance.randint(1, 4) for _ in stairs], [chance.randint(1, 4) for _ in range(stairs[-1][1] + 1)]
        matrix, capacity = matrix_of(stairs, weights), chance.randint(4, 14)
        theirs, ours = printed.dichotomy(matrix, by_algorithm_1(capacity)).tasks, dichotomy.partition(matrix, capacity).tasks
        fewer, more = fewer + (ours < theirs), more + (ours > theirs)
    text = f"{count} random bands: ours, which has no such stop and every P_gamma, takes fewer tasks than the printed Alg. 2 "
    return Ours(f"{text}{fewer} times, and more {more} times", {"fewer": fewer, "more": more})


ROWS = (
    Row(
        "002",
        "2",
        "2.2",
        "tasks of each model",
        Kind.ARITHMETIC,
        "12 tuples a side, |R.k - S.k| <= 2, V = 8",
        '1-DSP 4 tasks in "an imbalance status", 2-DSP 9 "a perfect balance", A-DSP 6 (4 + 2, cut in two areas); "another partition '
        'manner which consumes 4 tasks"',
        _figure_2,
        (
            equal("1-DSP", 4),
            holds("its tasks take in different numbers", lambda v: len(set(v["1-DSP takes in"])) > 1),
            equal("2-DSP", 9),
            equal("cut at key 20", 6),
            equal("Alg. 2", 4),
            equal("printed Alg. 2", 4),
        ),
        ("research/scheme/printed.py", "scheme/models.py", "scheme/keyed.py"),
    ),
    Row(
        "002",
        "3",
        "3.1",
        "Eq. 9",
        Kind.ARITHMETIC,
        "6 GB and 6 GB, V = 10 GB",
        'Eq. 9 takes 4 tasks, "not evenly distributed"',
        _figure_3,
        (equal("Eq. 9", 4),),
        ("scheme/varietal.py",),
    ),
    Row(
        "002",
        "4",
        "3.1",
        "Alg. 1",
        Kind.ARITHMETIC,
        "9 GB and 7 GB, V = 10 GB",
        "2 x 2 becomes <1,2,1,row>, 3 tasks, with 10, 10 and 9.5 GB",
        _figure_4,
        (equal("Eq. 9", 4), equal("shape", "<1,2,1,row>"), equal("tasks", 3), equal("loads", [10, 10, 9.5])),
        ("scheme/varietal.py", "research/scheme/printed.py"),
        why="Every plan that is used is evened: Eq. 12 fills the regular tasks to the brim, which the paper's figure shows.",
    ),
    Row(
        "002",
        "5",
        "3.2",
        "Alg. 2",
        Kind.ARITHMETIC,
        "the matrix of Fig. 2",
        'split at c(5,5); the first area is kept, the second "N = 4" becomes 2; 4 tasks in all',
        _figure_5,
        (
            equal("first", 2),
            equal("rest whole", 4),
            equal("areas", [[5, 5], [4, 4], [3, 3]], text="areas 5 x 5, 4 x 4, 3 x 3"),
            equal("tasks", 4),
        ),
        ("research/scheme/printed.py", "scheme/dichotomy.py"),
    ),
    Row(
        "002",
        "6",
        "3.2",
        "the worst case",
        Kind.ARITHMETIC,
        "Lemma 1's matrix, V_h = 2",
        'xi <= alpha beta / (alpha beta - alpha - beta + 3), reached by "the unique distribution shown in Fig. 6" (Def. 7 has the ratio '
        "upside down)",
        _figure_6,
        (
            holds(
                "Fig. 6's matrix reaches the bound for 2, 3 and 4",
                lambda v: all(abs(a - b) < 1e-9 for a, b in zip(v["reached"], v["bound"][:3], strict=True)),
            ),
            holds("the bound is greatest at 3", lambda v: max(v["bound"]) == v["bound"][1]),
        ),
        ("research/scheme/printed.py", "research/papers/optimum.py"),
    ),
    Row(
        "002",
        "Theorem 1",
        "3.1",
        "square cells are best",
        Kind.ARITHMETIC,
        "R, S as multiples of V_h",
        "cells of V_h x V_h take the least memory, network and CPU",
        _theorem_1,
        (holds("no varietal matrix takes fewer tasks", lambda v: v["least at multiples"]),),
        ("scheme/varietal.py",),
    ),
    Row(
        "002",
        "Theorem 2",
        "3.1",
        "fewer than Eq. 9",
        Kind.ARITHMETIC,
        "R, S = 1..40, V = 4..24",
        'Alg. 1 "will consume less tasks than using Theo.1 directly"',
        _theorem_2,
        (equal("more", 0, text="never more tasks"), holds("fewer in some cases", lambda v: v["fewer %"] > 0)),
        ("research/scheme/printed.py",),
        slow=True,
    ),
    Row(
        "002",
        "Theorem 2",
        "3.1",
        "its proof: the fewest of all",
        Kind.ARITHMETIC,
        "R, S = 1..40, V = 4..24",
        "the proof: a varietal matrix M' with fewer tasks than Alg. 1's does not exist, as no cell is nearer to V_h",
        _theorem_2_proof,
        (equal("beaten %", 0, text="no varietal matrix takes fewer tasks than the four P_gamma"),),
        ("research/scheme/printed.py", "scheme/varietal.py"),
        why="Being near to V_h is not what decides: how well D_f lines and the thin one fill the secondary stream does. Ours tries every "
        "P_gamma.",
        slow=True,
    ),
    Row(
        "002",
        "Theorem 4",
        "3.2",
        "tasks by Alg. 1",
        Kind.ARITHMETIC,
        "Alg. 2 with Alg. 1's tasks, all rows and columns single tuples",
        "at most alpha beta / (alpha beta - alpha - beta + 3) times the fewest",
        _theorem_4(by_algorithm_1, 1),
        (equal("beyond", 0, text="never beyond the bound"),),
        ("research/scheme/printed.py", "research/papers/optimum.py"),
        slow=True,
    ),
    Row(
        "002",
        "Theorem 4",
        "3.2",
        "tasks by Eq. 9, as in the proof",
        Kind.ARITHMETIC,
        "Alg. 2 with Eq. 9's tasks, all rows and columns single tuples",
        'the same; the proof counts tasks "according to Equ.9"',
        _theorem_4(by_equation_9, 1),
        (equal("beyond", 0, text="never beyond the bound"),),
        ("research/scheme/printed.py", "research/papers/optimum.py"),
        why="The proof takes it that the fewest tasks are squares of V_h; a long and thin task (1 + 5 tuples) may do the work of two.",
        slow=True,
    ),
    Row(
        "002",
        "Lemma 1",
        "3.2",
        "tasks by Eq. 9, as in the proof",
        Kind.ARITHMETIC,
        "random bands for which Alg. 2 with Eq. 9's tasks stops",
        '"if Alg.2 stops splitting it", the cells RCc "should be all the result"',
        _lemma_1(by_equation_9),
        (equal("lacking", 0, text="none lacks a result"),),
        ("research/scheme/printed.py",),
        slow=True,
    ),
    Row(
        "002",
        "Lemma 1",
        "3.2",
        "tasks by Alg. 1, as Alg. 2 counts them",
        Kind.ARITHMETIC,
        "random bands for which Alg. 2 stops",
        "the same",
        _lemma_1(by_algorithm_1),
        (equal("lacking", 0, text="none lacks a result"),),
        ("research/scheme/printed.py",),
        why="Alg. 1 needs so few tasks of some areas that a split gains nothing, wherever results lie; the proof's first step is for "
        "Eq. 9.",
        slow=True,
    ),
    Row(
        "002",
        "Alg. 2",
        "3.2",
        "Def. 6's stop",
        Kind.ARITHMETIC,
        "random bands of 4 to 8 rows and columns of 1 to 4 tuples, V = 4..14",
        '"picks out the partition result which with the minimal task consumption"',
        _algorithm_2,
        (equal("fewer", 0, text="no dichotomy takes fewer tasks"), equal("more", 0, text="ours never takes more")),
        ("research/scheme/printed.py", "scheme/dichotomy.py"),
        why="Def. 6 stops at an area that no single split improves, though two splits would; and four P_gamma are not always enough.",
        slow=True,
    ),
)
