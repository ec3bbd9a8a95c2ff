"""A manifest without a capacity: what a worker may hold follows from its memory, is said, and is what plans and scaling go by."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

from harness import SECOND, START, Input, driver_for, make_batch, manifest_text, oracle, output_of
from operator_parts import streamjoin
from streamjoin.api import machine
from streamjoin.api.machine import fitted, machine_bytes
from streamjoin.cli import main
from streamjoin.compilation import compile_job
from streamjoin.elastic.decision import Kind
from streamjoin.elastic.settings import Settings
from streamjoin.job import Job
from streamjoin.manifest import load
from streamjoin.scheme.capacity import Capacity
from streamjoin.serve.observer import Steps
from streamjoin.serve.scaler import Scaler
from streamjoin.state.storage import ObjectStorage
from streamjoin_operator.autoscale import settings_of
from streamjoin_operator.derived import derive
from streamjoin_operator.memory import worker_memory
from streamjoin_operator.plugin import described, explained
from streamjoin_operator.reasons import Reason
from test_autoscaler import SCALING, Clock, Late, Timed

MIB, GIB = 1 << 20, 1 << 30
FIXED_MIB, OF_EXECUTOR_MIB = 384 + 64, 256 + 192
"""What docs/operator.md says that a worker, and an executor, take whatever is held."""


def text_of(root: Path, *, max_tuples: int = 2000, **workers: Any) -> str:
    text = manifest_text(root, on="l.k = r.k", types=("STRING", "STRING"), window={"within": "5s"}, watermark="1s", scaling=SCALING)
    document = yaml.safe_load(text)
    document["spec"] |= {"workers": {"min": 1, "max": 4, **workers}, "epoch": {"maxTuples": max_tuples}}
    return yaml.safe_dump(document)


def job_of(root: Path, **options: Any) -> Job:
    return compile_job(load(text_of(root, **options)))


@pytest.mark.parametrize(
    ("memory", "per_executor", "max_tuples", "mebibytes"),
    [
        ("2Gi", 1, 2000, 523),
        ("1Gi", 1, 2000, 58),
        ("1Gi", 4, 2000, 210),
        ("4Gi", 2, 2000, 1556),
        ("640Mi", 4, 2000, 36),
        ("12Gi", 1, 2000, 5178),
        ("2Gi", 1, 10**9, 398),
        ("1Gi", 1, 10**9, 39),
        ("640Mi", 1, 2000, 1),
    ],
)
def test_a_capacity_follows_from_the_memory_of_a_pod(
    memory: str, per_executor: int, max_tuples: int, mebibytes: int, tmp_path: Path
) -> None:
    job = job_of(tmp_path, max_tuples=max_tuples, resources={"memory": memory}, perExecutor=per_executor)
    assert job.capacity == Capacity(mebibytes * MIB, in_bytes=True)
    assert f"that spec.workers.resources.memory ({job.memory_bytes // MIB:,} MiB) leaves" in job.capacity.told()
    mean = sum(stream.tuple_bytes for stream in job.streams) / 2
    assert job.capacity_tuples == Settings.of(job.manifest.spec).capacity_tuples == pytest.approx(mebibytes * MIB / mean)


def test_a_capacity_that_follows_from_memory_is_the_largest_that_fits_it(tmp_path: Path) -> None:
    """By the operator's sum, and by the most that held tuples were measured to take: 2.2 times their bytes."""
    rng = random.Random(3)
    for _ in range(40):
        body = streamjoin()
        per_executor, memory = rng.randint(1, 8), rng.randrange(906, 20_000)
        del body["spec"]["workers"]["capacityTuples"]
        body["spec"]["workers"] |= {"perExecutor": per_executor, "resources": {"memory": f"{memory}Mi"}}
        body["spec"]["epoch"] = {"maxTuples": 10 ** rng.randint(3, 9)}
        found = derive(body)
        assert found.problem is None
        assert found.memory is not None
        assert found.memory.fits
        room = memory - FIXED_MIB - OF_EXECUTOR_MIB / per_executor
        assert 11 * found.memory.held <= 5 * room * MIB
        one_more = replace(found.job, capacity=Capacity(found.memory.held + MIB, in_bytes=True))  # type: ignore[type-var]
        assert not worker_memory(one_more).fits or 11 * (found.memory.held + MIB) > 5 * room * MIB  # type: ignore[arg-type]


def test_memory_that_leaves_nothing_for_tuples_is_refused_with_what_it_takes() -> None:
    body = streamjoin()
    del body["spec"]["workers"]["capacityTuples"]
    body["spec"]["workers"]["resources"] = {"memory": "640Mi"}
    found = derive(body)
    assert found.problem is not None
    reason, message = found.problem
    assert reason is Reason.InsufficientMemory
    assert message.startswith("spec.workers.resources.memory: 640Mi must be at least 900Mi: 1Mi held (the capacity that follows")
    assert message.endswith("; raise it"), "there is no capacity to lower"
    body["spec"]["workers"]["resources"] = {"memory": "900Mi"}
    assert derive(body).problem is None


def test_what_is_given_is_what_counts_wherever_it_runs(tmp_path: Path) -> None:
    for given, capacity in (({"capacity": "4Mi"}, Capacity(4 * MIB, in_bytes=True)), ({"capacityTuples": 7}, Capacity(7))):
        job = job_of(tmp_path, **given)
        assert job.capacity == fitted(job, 64 * GIB).capacity == capacity
        assert job.capacity.told() == job.capacity.words(capacity.amount)


@pytest.mark.parametrize(
    ("gibibytes", "most", "memory", "mebibytes"),
    [(16, 4, None, 610), (8, 1, None, 1192), (16, 4, "1Gi", 261), (16, 4, "4Gi", 610), (4, 8, None, 1)],
)
def test_on_a_laptop_it_follows_from_a_workers_share_of_half_the_machine(
    gibibytes: int, most: int, memory: str | None, mebibytes: int, tmp_path: Path
) -> None:
    job = job_of(tmp_path, max=most, **({} if memory is None else {"resources": {"memory": memory}}))
    capacity = fitted(job, gibibytes * GIB).capacity
    assert capacity == Capacity(mebibytes * MIB, in_bytes=True)
    whose = "spec.workers.resources.memory (1,024 MiB)" if memory == "1Gi" else "a worker's share of this machine"
    assert f"that {whose}" in capacity.told()


def test_a_containers_limit_is_its_machines_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "CGROUP_LIMITS", (str(limit), str(tmp_path / "missing")))
    limit.write_text("max\n")
    whole = machine_bytes()
    limit.write_text(f"{GIB // 4}\n")
    assert machine_bytes() == GIB // 4 < whole


def test_it_is_said_with_what_it_follows_from(tmp_path: Path) -> None:
    path = tmp_path / "join.yaml"
    path.write_text(text_of(tmp_path))
    of_memory = "of the 1,152 MiB that spec.workers.resources.memory (2,048 MiB) leaves beside Python, page cache and JVM"
    sentence = f"523.0 MiB of tuples, {of_memory}"
    validated = CliRunner().invoke(main, ["validate", "--offline", str(path)])
    assert validated.stdout == f"{path}: ok\n"
    assert f"{path}: a worker may hold {sentence}\n" in validated.stderr
    assert f"capacity: {sentence}\n" in CliRunner().invoke(main, ["plan", str(path), "--tasks", "2"]).stdout
    assert f"capacity: {sentence}\n" in CliRunner().invoke(main, ["explain", str(path)]).stdout
    path.write_text(text_of(tmp_path, capacity="4Mi"))
    for command in (["validate", "--offline", str(path)], ["plan", str(path), "--tasks", "2"], ["explain", str(path)]):
        assert "that spec.workers" not in CliRunner().invoke(main, command).output, "what is given needs no origin"


def test_a_run_on_this_machine_says_what_its_workers_may_hold(tmp_path: Path) -> None:
    for name in "lr":
        (tmp_path / f"in-{name}").mkdir()
        (tmp_path / f"in-{name}" / "1").write_text('{"rid": 1, "k": "a", "v": 1, "at": "2026-01-01T00:00:00Z"}\n')
    path = tmp_path / "join.yaml"
    path.write_text(text_of(tmp_path))
    ran = CliRunner().invoke(main, ["run", str(path), "--runner", "inline", "--until-idle"])
    assert ran.exit_code == 0, ran.output
    told = re.search(r"capacity: ([\d,.]+ MiB) of tuples, of the .* that a worker's share of this machine's", ran.stdout)
    assert told is not None, ran.stdout
    assert f"worker of {told[1]} of tuples" in ran.stdout, "in the summary"


def test_the_status_of_a_streamjoin_says_it() -> None:
    body = streamjoin()
    del body["spec"]["workers"]["capacityTuples"]
    memory = derive(body).memory
    assert memory is not None
    body |= {"metadata": {"name": "one", "namespace": "a", "generation": 1}, "status": {"memory": memory.arithmetic()}}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for shown in (described(body, now), explained(body, [], now)):
        assert "held (the capacity that follows from the memory) + " in shown


RAMP = [30] * 8 + [60] * 6 + [140] * 25 + [30] * 30
"""Tuples a second of each stream, of a kilobyte each, of which a worker's mebibyte has room for some 900."""


def stream(seed: int) -> Input:
    rng = random.Random(seed)
    batches, rid = [], 0
    for epoch, count in enumerate(RAMP):
        rows = [(rid + i, f"{rng.randrange(3000):04d}" * 250, 0, START + epoch * SECOND + i * SECOND // count) for i in range(count)]
        rid += count
        batches.append(make_batch(rows, pa.string()))
    return Input(batches, [1] * len(RAMP))


def test_a_join_without_a_capacity_scales_at_the_bytes_that_its_memory_has_room_for(tmp_path: Path) -> None:
    job = job_of(tmp_path, resources={"memory": "900Mi"})  # of which 896 do not depend on the join
    assert job.capacity == Capacity(MIB, in_bytes=True)
    job = replace(job, streams=tuple(replace(one, expected_rate=None) for one in job.streams))  # so that it begins with one worker
    inputs, clock, storage = (stream(1), stream(2)), Clock(), ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(job, inputs, storage, Late(), clock=clock)
    decisions = []
    autoscaler = Scaler(job, driver, storage, clock=clock, decided=decisions.append)
    assert autoscaler.settings == settings_of(job, "")
    elastic = Steps(Timed(driver), [autoscaler])
    elastic.start()
    fullest: list[int] = []
    workers: list[int] = []
    full_before_growth = 0
    for _ in RAMP:
        clock.now += 1.0
        result = elastic.step(final=True)
        assert result is not None
        held = {task: work.held_bytes for task, work in result.work.items()}
        assert result.utilization == {task: nbytes / MIB for task, nbytes in held.items()}, "tau is of the bytes that follow from memory"
        if workers and len(held) > workers[-1] and not full_before_growth:
            full_before_growth = max(fullest)
        fullest.append(max(held.values()))
        workers.append(len(held))
    elastic.stop()
    assert workers[0] == workers[-1] == 1 < max(workers)
    assert full_before_growth >= SCALING["tau3"] * MIB, "no worker is added before one is full"
    grown = next(index for index, count in enumerate(workers) if count > 1)
    assert max(fullest[: grown - 4], default=0) < SCALING["tau3"] * MIB, "and then it takes scaleUpAfter, and the switch"
    assert {Kind.ALLOCATE, Kind.DEALLOCATE} <= {decision.kind for decision in decisions}
    limit_mib = 900
    assert 2.2 * max(fullest) / MIB + FIXED_MIB + OF_EXECUTOR_MIB <= limit_mib, "by the most that was measured, the pod's limit is kept"
    expected = oracle(inputs, (pa.string(), pa.string()), "l.k = r.k", f"abs(l.at - r.at) <= {5 * SECOND}", SECOND)
    assert output_of(tmp_path) == expected != Counter()
