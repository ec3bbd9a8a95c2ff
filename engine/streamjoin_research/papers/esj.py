"""000, 001 and 003, ESJ: sizes of tuple blocks, what a chain sends, thresholds and shedding, comparisons of three structures."""

from __future__ import annotations

import math
import random
import time
from functools import cache
from itertools import pairwise
from typing import Any

from streamjoin.chain.blocksize import Load, by_transmission, objective, theorem_1
from streamjoin.elastic.deployment import first_deployment
from streamjoin.elastic.settings import Settings
from streamjoin.elastic.shedding import shed_factor
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import MODELS
from streamjoin.scheme.statistics import SideStatistics, Statistics
from streamjoin_research.chain.measure import measure
from streamjoin_research.papers.loads import ALL
from streamjoin_research.papers.rows import Kind, Lines, Ours, Row, Values, equal, figures, holds, number
from streamjoin_research.papers.structures import STRUCTURES

RATES = [10.0, 50.0, 100.0, 150.0, 200.0, 201.0, 250.0, 300.0, 350.0, 390.0, 399.0]
WEIGHTS = (0.2, 0.5, 0.7)
CAPACITY = 1000
SETTING = "m = 4, W = 1000, window 10 s; 10 to 399 tuples/s"


def _load(rate: float) -> Load:
    return Load(rate, 10, 4, CAPACITY)


def _printed(load: Load, weight: float) -> int:
    """Theorem 1 as it stands, below beta_2."""
    least = math.sqrt(1 / weight - 1) * load.share
    if least <= load.capacity_tuples / 2:
        return math.floor(least + 1e-9)
    return math.floor(load.share / math.ceil(load.share / load.room - 1e-9) + 1e-9)


def _allowed(load: Load) -> int:
    """The largest block that the constraints of Definition 3's problem allow."""
    return math.floor(min(load.capacity_tuples / 2, load.room))


def _best(load: Load, weight: float) -> int:
    """Of all whole blocks that are allowed, the one of the least J."""
    return min(range(1, max(2, _allowed(load) + 1)), key=lambda block: (round(objective(load, block, weight), 9), -block))


def _best_whole(load: Load, weight: float) -> int:
    """The same of those blocks of which a whole number makes a worker's share, to a tuple."""
    blocks = {math.floor(load.share / times + 1e-9) for times in range(1, math.floor(load.share) + 1)}
    return min((block for block in blocks if block <= _allowed(load)), key=lambda block: objective(load, block, weight))


def _case_2(_: bool) -> Ours:
    found = [
        (weight, load, _printed(load, weight), _best_whole(load, weight))
        for weight in WEIGHTS
        for load in map(_load, RATES)
        if math.sqrt(1 / weight - 1) * load.share > load.capacity_tuples / 2
    ]
    text = "; ".join(f"alpha {weight}, {number(load.rate)}/s: printed {printed}, least J {best}" for weight, load, printed, best in found)
    return Ours(text, {"printed": [printed for *_, printed, _ in found], "best": [best for *_, best in found]})


def _blocks(_: bool) -> Ours:
    printed = {f"{weight}": [_printed(_load(rate), weight) for rate in RATES] for weight in WEIGHTS}
    ours = {f"{weight}": [theorem_1(_load(rate), weight) for rate in RATES] for weight in WEIGHTS}
    best = {f"{weight}": [_best(_load(rate), weight) for rate in RATES] for weight in WEIGHTS}
    worse = max(
        objective(_load(rate), theorem_1(_load(rate), weight), weight) / objective(_load(rate), _best(_load(rate), weight), weight)
        for weight in WEIGHTS
        for rate in RATES
    )
    most = [_allowed(_load(rate)) for rate in RATES]
    text = f"at {figures(RATES)} tuples/s: " + "; ".join(
        f"alpha {weight}: printed {figures(printed[weight])}, ours {figures(ours[weight])}, least J {figures(best[weight])}"
        for weight in printed
    )
    lines = {f"alpha = {weight}": [float(block) for block in blocks] for weight, blocks in printed.items()}
    values = {"printed": printed, "ours": ours, "best": best, "allowed": most, "J of ours / least": worse}
    return Ours(text, values, Lines("tuples/s", "tuples in a block", RATES, lines))


def _same(values: Values) -> bool:
    return all(
        abs(printed - best) <= 1
        for weight in map(str, WEIGHTS)
        for printed, best in zip(values["printed"][weight], values["best"][weight], strict=True)
    )


BLOCKS = (1, 5, 25, 100)


@cache
def _chain() -> Ours:
    load = Load(160, 10, 4, CAPACITY)
    measured = {block: measure(load, block, windows=1) for block in BLOCKS}
    values: dict[str, list[float]] = {
        "block": list(BLOCKS),
        "ahead": [of.most_ahead for of in measured.values()],
        "behind": [of.most_behind for of in measured.values()],
        "messages": [sum(of.messages_a_tuple.values()) for of in measured.values()],
        "serializations": [of.blocks_a_link for of in measured.values()],
        "ST": [load.share / block for block in BLOCKS],
        "imbalance": [of.imbalance for of in measured.values()],
        "IF": [block / load.share for block in BLOCKS],
    }
    text = f"blocks of {figures(BLOCKS)}: ahead of the next by at most {figures(values['ahead'])} tuples, behind it by "
    text += f"{figures(values['behind'])}; messages a tuple {figures(values['messages'])}; blocks a window and link "
    text += f"{figures(values['serializations'])} (ST "
    text += f"{figures(values['ST'])}); imbalance {figures(values['imbalance'])} (IF {figures(values['IF'])})"
    lines = {"messages a tuple": values["messages"], "imbalance": values["imbalance"]}
    return Ours(text, values, Lines("tuples in a block", "", list(map(float, BLOCKS)), lines, logarithmic=True))


def _at_most(values: Values, name: str, other: str) -> bool:
    return all(one <= most for one, most in zip(values[name], values[other], strict=True))


TAU_1, TAU_2 = 0.4, 0.8


def _first_plans(_: bool) -> Ours:
    known = Statistics((SideStatistics(1), SideStatistics(1)))
    expected, capacity = (60_000.0, 60_000.0), Capacity(100_000)
    printed = math.ceil(sum(expected) / (capacity.amount * TAU_1))
    workers, tau, at_printed = {}, {}, {}
    for model in MODELS:
        made = first_deployment(expected, known, ALL, model=model, capacity=capacity, tau1=TAU_1, minimum=1, maximum=64)
        forced = first_deployment(expected, known, ALL, model=model, capacity=capacity, tau1=TAU_1, minimum=printed, maximum=printed)
        workers[model], tau[model], at_printed[model] = made.workers, made.tau, forced.tau
    text = f"Eq. 2, for both streams: M = {printed}, with which the fullest worker's tau is " + ", ".join(
        f"{model} {number(of or 0)}" for model, of in at_printed.items()
    )
    text += "; our M and tau: " + ", ".join(f"{model} {workers[model]} and {number(tau[model] or 0)}" for model in MODELS)
    bars = {"Eq. 2's M": [of or 0.0 for of in at_printed.values()], "our M": [of or 0.0 for of in tau.values()]}
    return Ours(text, {"M": printed, "workers": workers, "tau": tau, "tau with M": at_printed}, Lines("", "tau", list(MODELS), bars))


def _shedding(_: bool) -> Ours:
    taus = [0.7, 0.79, 0.8, 0.85, 0.9, 0.95, 1.0]
    curves = {
        f"{model}, B = {base}": [shed_factor(model, base, TAU_2, tau) for tau in taus]
        for model in ("linear", "quadratic")
        for base in (0.0, 0.2)
    }
    text = f"tau {figures(taus)}: " + "; ".join(f"{name}: {figures(curve, 3)}" for name, curve in curves.items())
    return Ours(text, {"tau": taus, **curves}, Lines("tau", "shed factor", taus, curves))


def _thresholds(_: bool) -> Ours:
    settings = Settings()
    values = {name: getattr(settings, name) for name in ("tau0", "tau1", "tau2", "tau3")}
    return Ours("by default " + ", ".join(f"{name} {value}" for name, value in values.items()), values)


def _efficiency(_: bool) -> Ours:
    """r = 500 and s = 400 tuples that are there already, of which 100 pairs match."""
    left, right = list(range(500)), [*range(100), *range(1000, 1300)]
    queue = STRUCTURES["queue"]()
    for key in right:
        queue.insert(key)
    outputs = sum(queue.probe(key) for key in left)
    values = {"outputs": outputs, "comparisons": queue.comparisons, "efficiency": outputs / queue.comparisons}
    return Ours(f"{outputs} outputs of {queue.comparisons:,} comparisons: {values['efficiency']:.4f}", values)


SIZES = (100, 300, 1000, 3000)


@cache
def _compared(sizes: tuple[int, ...]) -> dict[str, dict[str, list[float]]]:
    """Comparisons and seconds, by structure and number of tuples of each stream; both streams come in turn, each key about once."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, structure in STRUCTURES.items():
        counts, seconds, outputs = [], [], []
        for size in sizes:
            chance = random.Random(3)  # noqa: S311 - nothing secret about it
            arrivals = [(chance.randrange(size), chance.randrange(size)) for _ in range(size)]
            left, right = structure(), structure()
            begin, results = time.perf_counter(), 0
            for left_key, right_key in arrivals:
                results += right.probe(left_key)
                left.insert(left_key)
                results += left.probe(right_key)
                right.insert(right_key)
            seconds.append(time.perf_counter() - begin)
            counts.append(float(left.comparisons + right.comparisons))
            outputs.append(float(results))
        found[name] = {"comparisons": counts, "seconds": seconds, "outputs": outputs}
    return found


def _structures(_: bool) -> Ours:
    found = _compared(SIZES)
    tree, by_map = (
        [naive / own for naive, own in zip(found["queue"]["comparisons"], found[name]["comparisons"], strict=True)]
        for name in ("tree", "map")
    )
    values: dict[str, Any] = {
        "tree": tree,
        "map": by_map,
        "tree bound": [size / (2 * math.log2(size)) for size in SIZES],
        "map bound": [size / 4 for size in SIZES],
        "outputs": [found[name]["outputs"] for name in STRUCTURES],
    }
    text = f"r = s = {figures(SIZES)}: the tree's efficiency is {figures(tree, 1)} times the queue's (bound, with C = 1: "
    text += (
        f"{figures(values['tree bound'], 1)}), the map's {figures(by_map, 1)} times (bound, with C = 2: {figures(values['map bound'], 1)})"
    )
    return Ours(
        text,
        values,
        Lines("tuples of each stream", "efficiency / the queue's", list(map(float, SIZES)), {"tree": tree, "map": by_map}, True),
    )


def _timed(_: bool) -> Ours:
    found = _compared(SIZES)
    values = {
        name: [naive / own for naive, own in zip(found["queue"]["seconds"], found[name]["seconds"], strict=True)]
        for name in ("tree", "map")
    }
    text = f"r = s = {figures(SIZES)}: inserts included, the queue takes {figures(values['tree'], 1)} times as long as the tree, "
    return Ours(f"{text}{figures(values['map'], 1)} times as long as the map", values)


def _transmission(_: bool) -> Ours:
    """The example in a comment of the paper's text: C_ser = 1, alpha = 0.5, 10 s, 4 workers, 200 tuples/s. C_tr shifts J alone."""
    load = _load(200)

    def of(block: int) -> float:
        return 0.5 / block * load.rate * load.window_seconds + 0.5 * block / load.share

    best = min(range(1, 4001), key=of)
    values = {
        "least J": best,
        "ours": by_transmission(load),
        "share": load.share,
        "formula": load.rate * load.window_seconds * math.sqrt(1 / 4),
    }
    text = f"the formula gives {number(values['formula'])}, of all blocks {best} has the least J; a worker holds "
    return Ours(f"{text}{number(load.share)} tuples, and ours is {values['ours']}", values)


ROWS = (
    Row(
        "000",
        "Theorem 1",
        "appendix",
        "the least J",
        Kind.ARITHMETIC,
        f"{SETTING}; alpha 0.2, 0.5, 0.7",
        "the printed block is the optimum of min J, with the constraints block <= W / 2 and block + r <= W",
        _blocks,
        (holds("the printed block is, to a tuple, the whole one of the least J that is allowed", _same),),
        ("chain/blocksize.py",),
        why="Case 2 takes a share in whole blocks, which J alone would not do (at beta_1 it falls from 500 to 251, alpha = 0.5). Case 1 "
        "does not, and disregards what a worker has room for.",
    ),
    Row(
        "000",
        "Theorem 1",
        "appendix",
        "its second case",
        Kind.ARITHMETIC,
        f"{SETTING}, of which those beyond beta_1; alpha 0.2, 0.5, 0.7",
        "as above, where the serialization times are a whole number",
        _case_2,
        (holds("the printed block has the least J of those that divide a share into whole blocks", lambda v: v["printed"] == v["best"]),),
        ("chain/blocksize.py",),
    ),
    Row(
        "000",
        "Theorem 1",
        "appendix",
        "its constraints",
        Kind.ARITHMETIC,
        f"{SETTING}; alpha 0.2, 0.5, 0.7",
        "block + r <= W",
        _blocks,
        (
            holds(
                "no printed block is larger than allowed",
                lambda v: all(block <= most for of in v["printed"].values() for block, most in zip(of, v["allowed"], strict=True)),
            ),
        ),
        ("chain/blocksize.py",),
        why="Case 1 does not look at what a worker has room for: for alpha = 0.7, 409 and 490 at 250 and 300 tuples/s, beside 625 and 750 "
        "of 1000. Ours is cut there.",
    ),
    Row(
        "000",
        "tuple_blk",
        "MP-2PF",
        "ahead of the next",
        Kind.SIMULATED,
        "4 workers, a window of 1600 tuples of each stream; messages take no time",
        '"the maximum workload difference between workers is exact" the block',
        lambda _: _chain(),
        (
            holds(
                "no worker is ahead of its successor by more than a block",
                lambda v: all(a <= b for a, b in zip(v["ahead"], v["block"], strict=True)),
            ),
        ),
        ("research/chain/measure.py", "chain/worker.py"),
    ),
    Row(
        "000",
        "tuple_blk",
        "MP-2PF",
        "behind the next",
        Kind.SIMULATED,
        "as above",
        "the same",
        lambda _: _chain(),
        (
            holds(
                "no worker is behind its successor by more than a block",
                lambda v: all(a <= b for a, b in zip(v["behind"], v["block"], strict=True)),
            ),
        ),
        ("research/chain/measure.py", "chain/worker.py"),
        why="Of neighbours; further apart, differences add up.",
    ),
    Row(
        "000",
        "tuple_blk",
        "MP-2PF",
        "messages",
        Kind.SIMULATED,
        "as above",
        'a big block "implies few serialization" times, ST = r / block, and a large imbalance, IF = block / r',
        lambda _: _chain(),
        (
            holds("messages a tuple fall as blocks grow", lambda v: all(a > b for a, b in pairwise(v["messages"]))),
            holds("imbalance rises with blocks", lambda v: all(a < b for a, b in pairwise(v["imbalance"]))),
            holds("imbalance is at most IF", lambda v: _at_most(v, "imbalance", "IF")),
        ),
        ("research/chain/measure.py", "chain/blocksize.py"),
    ),
    Row(
        "000",
        "tuple_blk",
        "MP-2PF",
        "serialization times",
        Kind.SIMULATED,
        "as above",
        "a worker sends ST = r / block blocks in a window",
        lambda _: _chain(),
        (holds("blocks a window and link are at most ST", lambda v: _at_most(v, "serializations", "ST")),),
        ("research/chain/measure.py", "chain/blocksize.py"),
        why="ST counts a worker's share of the window. But every tuple goes along the whole chain, expired ones too, or pairs would be "
        "lost: m times as many.",
    ),
    Row(
        "001",
        "Eq. 1",
        "thresholds",
        "thresholds",
        Kind.ARITHMETIC,
        "defaults",
        '0 < tau0 < tau1 < tau2 < tau3 <= 1; "empirically" tau1 = 0.5 tau2',
        _thresholds,
        (
            holds("they are in this order", lambda v: 0 < v["tau0"] < v["tau1"] < v["tau2"] < v["tau3"] <= 1),
            holds("tau1 is half of tau2", lambda v: math.isclose(v["tau1"], v["tau2"] / 2)),
        ),
        ("elastic/settings.py",),
    ),
    Row(
        "001",
        "Eq. 2",
        "initial deployment",
        "M of the paper",
        Kind.ARITHMETIC,
        "1000/s of each stream, 60 s, W = 100,000, tau1 = 0.4; nothing known of keys",
        'M = E(rate) window / (W tau1) workers, "so that tau <= tau1 could be expected"',
        _first_plans,
        (
            holds(
                "with so many, no model's fullest worker is above tau1",
                lambda v: all(of <= TAU_1 * 1.002 for of in v["tau with M"].values()),
            ),
        ),
        ("elastic/deployment.py",),
        why="Eq. 2 counts a tuple once, as ESJ's chain holds it; models that repeat tuples need more workers.",
    ),
    Row(
        "001",
        "Eq. 2",
        "initial deployment",
        "our M",
        Kind.ARITHMETIC,
        "as above",
        "the same",
        _first_plans,
        (
            holds("with our M, no model's fullest worker is above tau1", lambda v: all(of <= TAU_1 * 1.002 for of in v["tau"].values())),
            holds("handshake and broadcast take Eq. 2's M", lambda v: v["workers"]["handshake"] == v["workers"]["broadcast"] == v["M"]),
        ),
        ("elastic/deployment.py",),
        why="Here M is the number of tasks of the plan, with what its model repeats.",
    ),
    Row(
        "001",
        "Eq. 3",
        "adaptive load shedding",
        "shed factor",
        Kind.ARITHMETIC,
        "tau2 = 0.8; B = 0, 0.2",
        'SF = B + (1 - B) / (1 - tau2) (tau - tau2), nothing below tau2; all "if the worker is fully saturated"',
        _shedding,
        (
            holds("nothing below tau2", lambda v: all(of[:2] == [0, 0] for name, of in v.items() if name != "tau")),
            holds("B at tau2", lambda v: v["linear, B = 0.0"][2] == 0 and math.isclose(v["linear, B = 0.2"][2], 0.2)),
            holds("0.6 at tau = 0.9 with B = 0.2", lambda v: math.isclose(v["linear, B = 0.2"][4], 0.6)),
            holds("1 at tau = 1", lambda v: all(math.isclose(of[-1], 1) for name, of in v.items())),
        ),
        ("elastic/shedding.py",),
        why="The paper only says that a quadratic function could be used; which one is ours.",
    ),
    Row(
        "003",
        "join_proc",
        "join processing",
        "efficiency of the queue",
        Kind.ARITHMETIC,
        "r = 500, s = 400, kappa = 100",
        "the queue's efficiency, outputs / comparisons, is 0.0005",
        _efficiency,
        (equal("efficiency", 0.0005),),
        ("research/papers/structures.py",),
    ),
    Row(
        "003",
        "join_proc",
        "join processing",
        "tree and map beside the queue",
        Kind.ARITHMETIC,
        "both streams in turn, uniform keys, as many as tuples; inserting is not counted",
        "efficiency / the queue's is at least n / (2 C log n) for the tree and n / (2 C) for the map",
        _structures,
        (
            holds("the tree's is at least n / (2 log2 n)", lambda v: all(a >= b for a, b in zip(v["tree"], v["tree bound"], strict=True))),
            holds("the map's is at least n / 4", lambda v: all(a >= b for a, b in zip(v["map"], v["map bound"], strict=True))),
            holds("all find as many results", lambda v: v["outputs"][0] == v["outputs"][1] == v["outputs"][2]),
        ),
        ("research/papers/structures.py",),
        why="The engine has none of the three: it probes sorted runs, where a search is shared by a batch.",
    ),
    Row(
        "003",
        "join_proc",
        "join processing",
        "time of tree and map",
        Kind.RUN,
        "as above, inserts included",
        '"ESJ outperforms the primitive handshake join when dealing with big streaming data"',
        _timed,
        (
            holds("with 3000 tuples, tree and map are faster than the queue", lambda v: v["tree"][-1] > 1 and v["map"][-1] > 1),
            holds("by more than with 100", lambda v: v["tree"][-1] > v["tree"][0] and v["map"][-1] > v["map"][0]),
        ),
        ("research/papers/structures.py",),
    ),
    Row(
        "003",
        "J",
        "message passing",
        "the least J",
        Kind.ARITHMETIC,
        "C_ser = 1, alpha = 0.5, 10 s, 4 workers, 200 tuples/s, W = 1000",
        "block = E(rate) window sqrt(alpha / (1 - alpha) C_ser / m) makes J least",
        _transmission,
        (holds("the formula's block has the least J of all", lambda v: v["least J"] == v["formula"]),),
        ("chain/blocksize.py",),
    ),
    Row(
        "003",
        "J",
        "message passing",
        "room for a block",
        Kind.ARITHMETIC,
        "as above",
        "the same; no bound is given",
        _transmission,
        (holds("the formula's block is no more than a worker holds", lambda v: v["formula"] <= v["share"]),),
        ("chain/blocksize.py",),
        why="Nothing bounds J's minimum by W: here it is twice what a worker holds. Ours is cut to half of W and to the room "
        "beside its share.",
    ),
)
