"""Alg. 3: every admitted pair of tuples meets in exactly one area, every tuple is written exactly once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import follow
from streamjoin.language.predicate import INT64_MAX, INT64_MIN, MainKind, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.models import MODELS, plan_for_tasks
from streamjoin.scheme.routing import Router
from streamjoin.scheme.tiling import UNITS, Area, KeyRange, Scheme, UnitRange
from streamjoin.state.blocks import describe
from streamjoin.state.store import held_on, select, slice_keys
from test_scheme import ALL, random_case, unknown


def random_tuples(rng: np.random.Generator, scheme: Scheme, side: int, is_float: bool) -> tuple[np.ndarray, np.ndarray]:
    """Sorted keys on, beside and between the scheme's bounds, and units likewise."""
    ranges = [area.keys[side] for area in scheme.areas]
    spans = [area.units[side] for area in scheme.areas]
    bounds = sorted({bound for keys in ranges for bound in (keys.low, keys.high) if bound is not None} | {0})
    if is_float:
        near = np.concatenate([np.nextafter(bounds, -np.inf), bounds, np.nextafter(bounds, np.inf), [-np.inf, np.inf, 1e9, -1e9]])
    else:
        near = np.array([key for bound in bounds for key in (bound - 1, bound, bound + 1) if INT64_MIN <= key <= INT64_MAX])
        near = np.concatenate([near, [INT64_MIN, INT64_MAX]])
    keys = np.sort(rng.choice(near, 80))
    edges = sorted({unit for span in spans for low, high in span.parts for unit in (low, high - 1)})
    return keys, rng.choice(np.concatenate([edges, rng.integers(0, UNITS, 5)]), 80).astype(np.uint32)


def pairs_of(main: MainPredicate, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Which pairs the predicate admits, in Python's exact integers, or in floats without slack."""
    admitted = np.ones((len(left), len(right)), bool)
    for i, one in enumerate(left.tolist()):
        for j, other in enumerate(right.tolist()):
            if main.kind is MainKind.RANGE:
                low = main.low is None or other >= one + main.low
                high = main.high is None or other <= one + main.high
                admitted[i, j] = low and high
            elif main.kind is MainKind.NOT_EQUAL:
                admitted[i, j] = one != other
    return admitted


def stored_by(area: Area, side: int, keys: np.ndarray, rows: np.ndarray) -> list[int]:
    """Which of these rows the area stores durably, of all that it was sent."""
    writes = area.writes[side]
    sent = pa.RecordBatch.from_arrays([pa.array(keys[rows]), pa.array(rows)], names=["_key", "row"])
    return [] if writes is None else slice_keys(sent, writes).column("row").to_pylist()


def test_every_admitted_pair_meets_once_and_every_tuple_is_written_once() -> None:
    rng = np.random.default_rng(40)
    for case in range(80):
        statistics, main = random_case(rng)
        scheme = plan_for_tasks(MODELS[case % len(MODELS)], statistics, main, int(rng.integers(1, 9)))
        for _ in range(case % 3):  # later plans have units with gaps, and keys in pieces
            after = plan_for_tasks(MODELS[case % len(MODELS)], statistics, main, int(rng.integers(1, 9)), current=scheme)
            scheme = follow(Plan.initial(scheme), after, statistics, main).plan.scheme
        message = f"seed 40, case {case}, {main}, {scheme}"
        received = []
        for side in (LEFT, RIGHT):
            keys, units = random_tuples(rng, scheme, side, main.is_float)
            router = Router(scheme, side)
            at = np.zeros((len(keys), len(scheme.areas)), np.int64)
            written = np.zeros(len(keys), np.int64)
            for area, selection in router.route(keys, units):
                rows = np.arange(len(keys))[selection]
                assert len(rows), message
                assert (np.diff(rows) > 0).all(), message
                at[rows, area] += 1
                written[stored_by(scheme.areas[area], side, keys, rows)] += 1
            assert (written == 1).all(), message
            received.append((keys, at))
        (left_keys, left_at), (right_keys, right_at) = received
        # Whichever comes first is found where it is held.
        for side in (LEFT, RIGHT):
            met = (left_at * np.array([area.holds[side] for area in scheme.areas])) @ right_at.T
            assert (met <= 1).all(), message
            assert (met[pairs_of(main, left_keys, right_keys)] == 1).all(), message


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_routing_nothing_reaches_no_area(dtype: type) -> None:
    assert list(Router(plan_for_tasks("adsp", unknown(), ALL, 6), LEFT).route(np.empty(0, dtype), np.empty(0, np.uint32))) == []


def test_areas_of_a_row_share_one_selection_and_uncut_units_are_slices() -> None:
    scheme = plan_for_tasks("square", unknown(), ALL, 6)
    keys, units = np.zeros(1000, np.int64), np.arange(0, UNITS, UNITS // 1000, dtype=np.uint64)[:1000].astype(np.uint32)
    selections = [selection for _, selection in Router(scheme, LEFT).route(keys, units)]
    assert len(selections) == 6
    assert len({id(selection) for selection in selections}) == 2
    whole = plan_for_tasks("adsp", unknown(), ALL, 1)
    assert list(Router(whole, LEFT).route(keys, units)) == [(0, slice(0, 1000))]


def test_a_key_equal_to_a_bound_goes_to_the_upper_area_only() -> None:
    lower, upper = KeyRange(None, 5), KeyRange(5, None)
    units = (UnitRange(), UnitRange())
    areas = tuple(Area(task, task, (keys, keys), units, (keys, keys)) for task, keys in enumerate((lower, upper)))
    router = Router(Scheme("hash", 2, areas, ""), LEFT)
    keys = np.array([4, 5, 5, 6])
    assert list(router.route(keys, np.zeros(4, np.uint32))) == [(0, slice(0, 1)), (1, slice(1, 4))]


def test_an_area_that_writes_a_part_of_its_keys_stores_those() -> None:
    held = KeyRange(0, 10)
    area = Area(0, 0, (held, held), (UnitRange(), UnitRange()), (KeyRange(4, 10), None))
    keys = np.array([0, 3, 4, 4, 9])
    assert [stored_by(area, side, keys, np.arange(5)) for side in (LEFT, RIGHT)] == [[2, 3, 4], []]


def test_integer_bounds_above_2_to_the_53_are_exact() -> None:
    bound = 2**60 + 1
    lower = KeyRange(None, bound)
    scheme = Scheme("hash", 1, (Area(0, 0, (lower, lower), (UnitRange(), UnitRange()), (lower, lower)),), "")
    assert list(Router(scheme, LEFT).route(np.array([bound - 1, bound]), np.zeros(2, np.uint32))) == [(0, slice(0, 1))]


def test_what_is_read_back_of_a_block_is_what_routing_sends_to_the_area() -> None:
    rng = np.random.default_rng(41)
    grids = [plan_for_tasks("square", unknown(), ALL, tasks) for tasks in (4, 6, 9, 10, 3)]
    plan = Plan.initial(grids[0])
    for grid in grids[1:]:
        plan = follow(plan, grid, unknown(), ALL).plan
        for side in (LEFT, RIGHT):
            for units in (rng.integers(0, UNITS, 500), rng.integers(UNITS // 4, UNITS // 4 + 9, 20)):
                batch = pa.RecordBatch.from_arrays(
                    [pa.array(np.arange(len(units))), pa.array(units.astype(np.uint32))], names=["_key", "_unit"]
                )
                block = describe(batch, name="b", place=side, generation=1, area=0, nbytes=0)
                sent = {area: np.arange(len(units))[rows] for area, rows in Router(plan.scheme, side).route(
                    np.arange(len(units)), units.astype(np.uint32))}  # fmt: skip
                for index, area in enumerate(plan.scheme.areas):
                    part = select(batch, held_on(area, side), (block.unit_min, block.unit_max))
                    assert part.column("_key").to_pylist() == sent.get(index, np.empty(0)).tolist()
                    assert any(block.meets(region) for region in held_on(area, side)) or index not in sent
