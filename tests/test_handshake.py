"""Joins whose workers stand in a chain, by hand: restarts with other workers, what is refused, and how large blocks are.

Random ones are in ``test_random_joins.py``.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from harness import SECOND, START, Far, Input, driver_for, join_of, make_batch, make_job, manifest_text, oracle, output_of, run_all
from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.planning import MOST_BLOCKS, is_full
from streamjoin.controlplane.refusals import PlanRefused
from streamjoin.dataplane.handshake import Link
from streamjoin.elastic.mapping import chain_keep
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.epoch.spec import EpochSpec
from streamjoin.language.sides import SIDES
from streamjoin.manifest import ManifestError, load
from streamjoin.runner.inline import InlineEpoch, InlineRunner
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.state.chunks import Chunk
from streamjoin.state.storage import ObjectStorage
from test_crashes import make_inputs


def manifest_at(root: Path, model: str = "handshake", **options: Any) -> str:
    return manifest_text(root, on="abs(l.k - r.k) <= 1", window={"within": "4s"}, model=model, watermark="1s", **options)


@pytest.mark.parametrize("storage", [ObjectStorage, Far])
def test_workers_come_to_a_running_chain_and_go_wherever_its_blocks_are(storage: type[ObjectStorage], tmp_path: Path) -> None:
    """Those that come hold nothing, so that there is nothing to fetch before they stand in it."""
    inputs = make_inputs(seed=5, epochs=14)
    job = replace(compile_job(load(manifest_at(tmp_path, workers=2))), min_workers=1, max_workers=6)
    driver = driver_for(job, inputs, storage(str(tmp_path / "state")), InlineRunner())
    driver.start()
    assert driver.step() is not None
    for workers in (2, 5, 6, 1):
        status, known = driver.plan_status(), driver.statistics()
        assert status is not None
        assert driver.layout is not None
        scheme = plan_for_tasks("handshake", known, driver.layout.main, workers)
        driver.put_plan(Plan(status.generation + 1, scheme, chain_keep(status.scheme.tasks, workers)))
        while driver.checkpoint.plan.generation == status.generation:
            assert driver.step() is not None
        assert driver.scheme is not None
        assert driver.scheme.tasks == workers
    run_all(driver)
    assert output_of(tmp_path) == oracle(inputs, (pa.int64(),) * 2, "abs(l.k - r.k) <= 1", f"abs(l.at - r.at) <= {4 * SECOND}", SECOND)


def test_a_chain_goes_on_with_other_workers_after_a_restart(tmp_path: Path) -> None:
    """What workers held that are no more comes to the last one, and results that it finds with that are results like others."""
    inputs = make_inputs(seed=5, epochs=14)
    storage = ObjectStorage(str(tmp_path / "state"))
    for workers in (4, 2, 1, 3):
        job = compile_job(load(manifest_at(tmp_path, workers=workers)))
        driver = driver_for(job, inputs, storage, InlineRunner())
        driver.start()
        for _ in range(3):
            driver.step()
        assert driver.scheme is not None
        assert driver.scheme.tasks == workers
        held = driver.checkpoint.state.held
        driver.stop()
        assert len(held) == workers
        assert sum(map(sum, held.values())) > 20
    driver = driver_for(job, inputs, storage, InlineRunner())
    run_all(driver)
    want = oracle(inputs, (pa.int64(),) * 2, "abs(l.k - r.k) <= 1", f"abs(l.at - r.at) <= {4 * SECOND}", SECOND)
    assert output_of(tmp_path) == want
    assert want.total() > 20


@pytest.mark.parametrize(("before", "after"), [("adsp", "handshake"), ("handshake", "square")])
def test_a_checkpoint_of_a_chain_takes_no_other_model_nor_that_of_another_model_a_chain(before: str, after: str, tmp_path: Path) -> None:
    inputs = make_inputs(seed=6)
    storage = ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(compile_job(load(manifest_at(tmp_path, before))), inputs, storage, InlineRunner())
    driver.start()
    driver.step()
    status = driver.plan_status()
    assert status is not None
    assert driver.layout is not None
    scheme = plan_for_tasks(after, driver.statistics(), driver.layout.main, 3)
    with pytest.raises(PlanRefused, match=f"plan.scheme.model: {after} cannot follow {before}, as tuples in a chain have yet to meet"):
        driver.put_plan(Plan(status.generation + 1, scheme, (0, 1, 2)))
    driver.stop()
    other = driver_for(compile_job(load(manifest_at(tmp_path, after))), inputs, storage, InlineRunner())
    with pytest.raises(CheckpointMismatch, match=r"spec\.scheme\.model: .* which the checkpoint was made with.* choose a new checkpoint"):
        other.start()


def test_what_a_chain_cannot_do_is_refused(tmp_path: Path) -> None:
    manifest = yaml.safe_load(manifest_at(tmp_path))
    manifest["spec"]["streams"].append({**manifest["spec"]["streams"][0], "name": "m"})
    manifest["spec"]["joins"][0]["condition"] += " AND l.k = m.k"
    with pytest.raises(ManifestError, match=r'spec\.scheme\.model: "handshake" is for two streams, and there are 3; choose broadcast'):
        load(json.dumps(manifest))


def test_a_join_may_leave_a_chain_and_none_may_come(tmp_path: Path) -> None:
    """Those that are left go on with what the chain holds; one that comes would lack the pairs of tuples that have met."""
    inputs, storage = make_inputs(seed=5, epochs=14), ObjectStorage(str(tmp_path / "state"))
    window = {"within": "4s"}
    near = join_of(tmp_path / "near", name="near", on="abs(l.k - r.k) <= 1", window=window, join_type="full")
    same = join_of(tmp_path / "same", name="same", on="l.k = r.k", window=window)
    for joins, epochs in (([same, near], 5), ([near], 99)):
        driver = driver_for(compile_job(load(manifest_at(tmp_path, workers=3, joins=joins))), inputs, storage, InlineRunner())
        driver.start()
        for _ in range(epochs):
            if driver.step(final=epochs == 99) is None:
                break
        driver.stop()
    want = oracle(inputs, (pa.int64(),) * 2, "abs(l.k - r.k) <= 1", f"abs(l.at - r.at) <= {4 * SECOND}", SECOND, kind="full")
    assert output_of(tmp_path / "near") == want
    late = driver_for(compile_job(load(manifest_at(tmp_path, workers=3, joins=[near, same]))), inputs, storage, InlineRunner())
    with pytest.raises(CheckpointMismatch, match=r"spec\.joins: same cannot be added, as some tuples in the chain have met without it"):
        late.start()


def test_alpha_is_of_chains_and_has_a_bound(tmp_path: Path) -> None:
    for model, alpha, message in (("adsp", 0.5, "is only for model handshake"), ("handshake", 0.8, "must be below 0.8")):
        with pytest.raises(ManifestError, match=rf"spec\.scheme\.alpha: {alpha} {message}"):
            load(manifest_at(tmp_path, scheme={"model": model, "alpha": alpha}))


def test_blocks_follow_what_a_window_comes_to(tmp_path: Path) -> None:
    """Theorem 1 for what is held; and so many at least that an epoch makes no more than some blocks."""
    sizes: list[int] = []

    class Noted(InlineRunner):
        def submit(self, spec: EpochSpec, workers: Sequence[int]) -> InlineEpoch:
            sizes.append(spec.block_tuples)
            return super().submit(spec, workers)

    inputs = make_inputs(seed=7, epochs=30)
    options = {"on": "l.k = r.k", "window": {"unbounded": True}, "workers": 4, "capacity": 1000}
    largest = []
    for alpha in (0.2, 0.7):
        sizes.clear()
        job = make_job(tmp_path / str(alpha), scheme={"model": "handshake", "alpha": alpha}, **options)
        results = run_all(driver_for(job, inputs, ObjectStorage(str(tmp_path / str(alpha) / "state")), Noted()))
        for result, size in list(zip(results, sizes, strict=False))[2:-1]:
            share = sum(map(sum, result.held.values())) / 2 / 4
            assert 1 <= size <= math.sqrt(1 / alpha - 1) * share, "by what was held when it was planned, which was no more"
        largest.append(max(sizes))
    assert largest[0] > 2 * largest[1] > 10


@pytest.mark.parametrize("workers", [2, 4])
def test_a_full_chain_sends_no_more_blocks_for_more_tuples(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither while workers hold twice their capacity and input goes on, nor when the input ends and all tuples pass each other."""
    probes = 0
    meet = Link._meet

    def counted(link: Link, left: Chunk, right: Chunk) -> None:
        nonlocal probes
        probes += 1
        meet(link, left, right)

    monkeypatch.setattr(Link, "_meet", counted)
    for tuples in (1_600, 16_000):
        root, rng = tmp_path / str(tuples), random.Random(tuples)
        size = tuples // 16
        rows = [[(rid, rng.randrange(tuples), 0, START + rid) for rid in range(tuples)] for _ in SIDES]
        left, right = (
            Input([make_batch(of_side[at : at + size], pa.int64()) for at in range(0, tuples, size)], [1] * 16) for of_side in rows
        )
        options = {"window": {"unbounded": True}, "scheme": {"model": "handshake"}, "workers": workers, "capacity": tuples // workers}
        driver = driver_for(make_job(root, on="l.k = r.k", **options), (left, right), ObjectStorage(str(root / "state")), InlineRunner())
        driver.start()
        was_full, before, probes = False, 0, 0
        while driver.step(final=True) is not None:
            blocks = blocks_of(driver) - before
            assert blocks <= 2 * (workers - 1) * MOST_BLOCKS
            assert probes <= 500 * workers
            if driver.checkpoint.state.blocks:
                was_full, before, probes = is_full(driver.job, driver.checkpoint), blocks_of(driver), 0
        assert was_full
        assert blocks == workers * (workers - 1)
        assert output_of(root) == oracle((left, right), (pa.int64(),) * 2, "l.k = r.k", "true", None)


def blocks_of(driver: Driver) -> int:
    """TUPLE_BLK messages so far."""
    count, *_ = driver.checkpoint.totals.get("chain/tuple_blk", (0,))
    return round(count)
