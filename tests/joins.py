"""Joins that are run by more than one kind of runner: their inputs, and what the oracle expects of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness import SECOND, START, Input, driver_for, join_of, make_batch, make_job, oracle, output_of, run_all
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochFailed, EpochResult, Runner
from streamjoin.state.storage import ObjectStorage
from waiting import wait_for

LATE_MICROS = 2 * SECOND
BAND = "abs(l.k - r.k) <= 2"
RESULT_FILTERS = {
    "left": ("l.v <= r.v", "r.v IS NULL OR l.v <= r.v"),
    "right": ("l.v <= r.v", "l.v IS NULL OR l.v <= r.v"),
    "full": ("coalesce(l.v, 1) <= coalesce(r.v, 2)", "l.rid IS NULL OR r.rid IS NULL"),
    "semi": ("l.v > 1", "l.v <> 2"),
    "anti": ("l.v > 1", "l.v <> 2"),
}
"""By type of join, some ``output.where`` that tell its results apart."""


def make_inputs(key_type: pa.DataType, values: list[Any], seed: int, epochs: int = 6) -> tuple[Input, Input]:
    rng = random.Random(seed)

    def one() -> Input:
        batches, rid = [], 0
        for epoch in range(epochs):
            for _ in range(2):
                rows = []
                for _ in range(rng.randint(5, 40)):
                    rows.append((rid, rng.choice(values), rng.randint(0, 4), START + epoch * SECOND + rng.randint(0, SECOND)))
                    rid += 1
                batches.append(make_batch(rows, key_type))
        return Input(batches, [2] * epochs)

    return one(), one()


RANGE3 = {"within": "3s"}, f"abs(l.at - r.at) <= {3 * SECOND}"
ROWS = "CASE WHEN l.pos < r.oth THEN l.pos >= r.oth - {0} ELSE r.pos >= l.oth - {0} END"
CASES = {
    "band": ("abs(l.k - r.k) <= 2", "abs(l.k - r.k) <= 2", "BIGINT", pa.int64(), list(range(50)), "adsp", *RANGE3),
    "order with residual": (
        "l.k < r.k AND l.v <> r.v",
        "l.k < r.k AND l.v <> r.v",
        "DOUBLE",
        pa.float64(),
        [i / 4 for i in range(40)],
        "square",
        *RANGE3,
    ),
    "equal strings": ("l.k = r.k", "l.k = r.k", "STRING", pa.string(), ["", "a", "customer-1", "customer-2", None], "hash", *RANGE3),
    "unequal, unbounded": ("l.k != r.k", "l.k != r.k", "INT", pa.int32(), list(range(8)), "adsp", {"unbounded": True}, "true"),
    "rows": (
        "l.k >= r.k",
        "l.k >= r.k",
        "BIGINT",
        pa.int64(),
        list(range(20)),
        "adsp",
        {"rows": 9},
        ROWS.format(9),
    ),
    "disjunction": ("l.k = r.k OR l.v = r.v", "l.k = r.k OR l.v = r.v", "INT", pa.int32(), list(range(30)), "adsp", *RANGE3),
    "full": ("l.k <= r.k - 40", "l.k <= r.k - 40", "BIGINT", pa.int64(), [*range(50), None], "square", *RANGE3),
    "semi": ("abs(l.k - r.k) <= 1 AND l.v = r.v", "abs(l.k - r.k) <= 1 AND l.v = r.v", "INT", pa.int32(), list(range(99)), "adsp", *RANGE3),
    "anti": ("l.k = r.k", "l.k = r.k", "INT", pa.int32(), [*range(99), None], "biclique", {"rows": 30}, ROWS.format(30)),
}
TYPES = ("full", "semi", "anti")
"""Cases whose joins are of the type that they are named after; the others are inner."""


def check_case(case: str, runner: Runner, root: Path, workers: int) -> None:
    """The results of a whole join of CASES equal the oracle's, and its workers go on with what they hold."""
    on, expected, ddl, key_type, values, model, window, inside = CASES[case]
    inputs = make_inputs(key_type, values, seed=len(case))
    kind = case if case in TYPES else "inner"
    output = {"select": ["l.rid AS a", "NULL AS b" if kind in ("semi", "anti") else "r.rid AS b"]}
    job = make_job(
        root, on=on, types=(ddl, ddl), window=window, model=model, workers=workers, watermark="2s", join_type=kind, output=output
    )
    results = run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), runner))
    assert sum(result.read_back for result in results[1:]) == 0
    late = None if "unbounded" in window or "rows" in window else LATE_MICROS
    assert output_of(root) == oracle(inputs, (key_type, key_type), expected, inside, late, kind=kind)


SEVERAL = {
    "in one order": ("l.k < r.k - 40", "l.k BETWEEN r.k AND r.k + 3"),
    "every pair meets": ("l.k = r.k", "l.v = r.v AND l.k > r.k"),
}
"""Two conditions each that, with a band of the same keys, tuples can lie in one order for, or cannot."""


def check_several(case: str, runner: Runner, root: Path, workers: int) -> None:
    """The results of four joins of SEVERAL, each of a type and window of its own, equal the oracle's."""
    first, second = SEVERAL[case]
    drawn = {
        "full": (first, "2s"),
        "semi": (second, "1s"),
        "anti": (second, "3s"),
        "inner": (BAND, "3s"),
    }
    entries = [
        join_of(
            root / kind,
            name=kind,
            on=on,
            window={"within": within},
            join_type=kind,
            output={"select": ["l.rid AS a", "NULL AS b" if kind in ("semi", "anti") else "r.rid AS b"]},
        )
        for kind, (on, within) in drawn.items()
    ]
    inputs = make_inputs(pa.int64(), [*range(99), None], seed=len(case))
    job = make_job(root, joins=entries, types=("BIGINT", "BIGINT"), workers=workers, watermark="2s")
    results = run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), runner))
    assert sum(result.read_back for result in results[1:]) == 0
    for kind, (on, within) in drawn.items():
        inside = f"abs(l.at - r.at) <= {int(within[:-1]) * SECOND}"
        want = oracle(inputs, (pa.int64(), pa.int64()), on, inside, LATE_MICROS, kind=kind)
        assert want
        assert output_of(root / kind) == want, kind


def step(driver: Driver, failures: list[EpochFailed], *, final: bool = True) -> EpochResult | None:
    """An epoch, tried again for as long as it fails, as ``run`` does: on a busy machine a worker that was killed is missed for a while. The
    failures are added to the list."""

    def tried() -> tuple[EpochResult | None] | None:
        try:
            return (driver.step(final=final),)
        except EpochFailed as failure:
            failures.append(failure)
            return None

    (result,) = wait_for("an epoch that does not fail", tried, told=lambda: "\n".join(map(str, failures[-5:])))
    found: EpochResult | None = result
    return found


def steps(driver: Driver) -> tuple[list[EpochResult], list[EpochFailed]]:
    """Run to the end of the input; the failures on the way."""
    results, failures = [], list[EpochFailed]()
    while (result := step(driver, failures)) is not None:
        results.append(result)
    return results, failures


def band_inputs() -> tuple[Input, Input]:
    return make_inputs(pa.int64(), list(range(50)), seed=5, epochs=8)


def band_expected(inputs: tuple[Input, Input], kind: str = "inner") -> Any:
    return oracle(inputs, (pa.int64(), pa.int64()), BAND, RANGE3[1], 2 * SECOND, kind=kind)


def band_options() -> dict[str, Any]:
    return {"on": BAND, "types": ("BIGINT", "BIGINT"), "window": RANGE3[0], "workers": 2, "watermark": "2s"}
