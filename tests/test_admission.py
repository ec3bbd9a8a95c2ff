"""What is promised of a join before anything runs, who is refused, and whether what is said to help does."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from streamjoin.cli import main
from streamjoin.compilation import compile_job, with_checkpoint
from streamjoin.elastic.admission import FirstPlan, Verdict
from streamjoin.job import Job
from streamjoin.manifest.validate import load
from streamjoin.sizing import cheapest, promised
from streamjoin_operator.derived import derive

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted(ROOT.glob("examples/*.yaml"))


def manifest(model: str = "adsp", condition: str = "abs(l.k - r.k) <= 1", **spec: Any) -> dict[str, Any]:
    def stream(name: str, rate: int, delay: str) -> dict[str, Any]:
        source = {"kafka": {"bootstrapServers": "k:9092", "topic": name}}
        return {
            "name": name,
            "source": source,
            "schema": "id BIGINT, k INT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": delay,
            "expectedRate": rate,
        }

    output = {"select": ["l.id AS a", "r.id AS b"], "sink": {"files": {"path": "/tmp/out"}}}
    whole = {
        "streams": [stream("l", 2000, "10s"), stream("r", 1000, "1s")],
        "joins": [{"condition": condition, "window": {"within": "10m"}, "output": output}],
        "scheme": {"model": model},
        "workers": {"min": 1, "max": 4, "capacityTuples": 500_000},
        "checkpoint": {"location": "/tmp/state"},
    }
    for path, value in spec.items():
        here: Any = whole
        *parts, last = path.split("__")
        for part in parts:
            here = here[int(part)] if part.isdecimal() else here[part]
        here[last] = value
    return {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "full"}, "spec": whole}


def job(body: dict[str, Any]) -> Job:
    return compile_job(with_checkpoint(load(yaml.safe_dump(body))))


def first(body: dict[str, Any]) -> FirstPlan:
    return promised(cheapest(job(body)))


def number(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, (pattern, text)
    return found[1].replace(",", "")


@pytest.mark.parametrize("model", ["adsp", "square", "hash", "biclique", "dynamic", "handshake"])
@pytest.mark.parametrize("workers", [4, 7])
def test_each_way_out_that_is_named_is_one(model: str, workers: int) -> None:
    body = manifest(model, "l.k = r.k" if model == "hash" else "abs(l.k - r.k) <= 1", workers__max=workers, workers__capacityTuples=250_000)
    if model == "handshake":
        body["spec"]["scheme"] = {"model": model}
    refused = first(body)
    assert refused.verdict is Verdict.REFUSED
    assert refused.tau is not None
    assert refused.tau > 0.8
    text = refused.remedies

    def after(**spec: Any) -> FirstPlan:
        changed = copy.deepcopy(body)
        for path, value in spec.items():
            here: Any = changed["spec"]
            *parts, last = path.split("__")
            for part in parts:
                here = here[int(part)] if part.isdecimal() else here[part]
            here[last] = value
        return first(changed)

    more = int(number(r"spec\.workers\.max ([0-9,]+)", text))
    assert more > workers
    assert after(workers__max=more).verdict is Verdict.ADMITTED, text
    capacity = int(number(r"capacityTuples, for ([0-9,]+) tuples", text))
    assert after(workers__capacityTuples=capacity).verdict is Verdict.ADMITTED, text
    assert after(workers__capacityTuples=round(0.98 * capacity)).verdict is Verdict.REFUSED, text
    window = number(r"a window of (\S+), not 10m", text)
    assert after(joins__0__window={"within": window}).verdict is Verdict.ADMITTED, text
    part = float(number(r"or ([0-9.]+) of the rates", text))
    slower = copy.deepcopy(body)
    for stream in slower["spec"]["streams"]:
        stream["expectedRate"] *= part
    assert first(slower).verdict is Verdict.ADMITTED, text


def test_a_capacity_in_bytes_and_a_window_of_rows_have_their_figures() -> None:
    body = manifest(workers={"min": 1, "max": 4, "capacity": "20Mi"})
    refused = first(body)
    capacity = float(number(r"spec\.workers\.capacity, for ([0-9.]+) MiB of tuples", refused.remedies))
    body["spec"]["workers"]["capacity"] = f"{int(capacity * 1024) + 1}Ki"
    assert first(body).verdict is Verdict.ADMITTED
    rows = manifest(joins__0__window={"rows": 1_000_000})
    refused = first(rows)
    assert refused.verdict is Verdict.REFUSED
    assert "of the rates" not in refused.remedies
    fewer = int(number(r"a window of ([0-9,]+) rows", refused.remedies))
    assert first(manifest(joins__0__window={"rows": fewer})).verdict is Verdict.ADMITTED


def test_who_guesses_a_rate_is_warned_and_who_gives_none_is_told_nothing_of_tau() -> None:
    body = manifest()
    del body["spec"]["streams"][1]["expectedRate"]
    guessed = first(body)
    assert guessed.verdict is Verdict.WARNED
    assert "by the rates that are given, and guessed for streams without expectedRate," in guessed.problem
    del body["spec"]["streams"][0]["expectedRate"]
    unknown = first(body)
    assert (unknown.verdict, unknown.tau, unknown.mean, unknown.bill.total) == (Verdict.ADMITTED, None, None, 1.0)
    assert "is not known, as no expectedRate is given" in unknown.sentence
    endless = first(manifest(joins__0__window={"unbounded": True}))
    assert endless.verdict is Verdict.ADMITTED
    assert "a window without end fills" in endless.sentence


def test_the_bill_has_the_workers_and_what_would_be_lost() -> None:
    roomy = first(manifest(workers={"min": 3, "max": 64, "capacityTuples": 4_000_000, "perExecutor": 2}))
    assert roomy.verdict is Verdict.ADMITTED
    assert (roomy.bill.total, roomy.bill.shed) == (roomy.workers, 0.0)
    assert roomy.executors == -(-roomy.workers // 2)
    assert f"the bill of an hour is {roomy.workers:.1f} worker-hours" in roomy.sentence
    # 3,000 tuples/s, of which a worker that would be 1.25 * tau full has no room for 1 - 1 / that; 10 worker-hours for a million.
    full = first(manifest())
    assert full.tau is not None
    lost = 3000 * 3600 * (1 - 1 / (1.25 * full.tau))
    assert full.bill.shed == pytest.approx(10 * lost / 1e6, rel=0.01)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_plan_and_operator_say_the_same(path: Path) -> None:
    body = yaml.safe_load(path.read_text())
    derived = derive(body | {"metadata": body["metadata"] | {"namespace": "n", "uid": "u"}})
    assert derived.first is not None
    done = CliRunner().invoke(main, ["plan", str(path)])
    assert done.exit_code == 0, done.output
    assert derived.first.begins in done.stdout.splitlines()
    assert derived.first.workers == derived.workers


def test_plan_warns_of_what_the_operator_would_not_begin(tmp_path: Path) -> None:
    file = tmp_path / "join.yaml"
    file.write_text(yaml.safe_dump(manifest(workers__capacityTuples=1_000_000)))
    done = CliRunner().invoke(main, ["plan", str(file)])
    assert done.exit_code == 0, done.output
    assert "expected to be filled to 0.91 at most" in done.stdout
    assert "on Kubernetes the operator does not begin it: spec.workers.max: 4 is too small: by expectedRate" in done.stderr
    assert "above tau2 (0.8); what would do: spec.workers.max " in done.stderr
    file.write_text(yaml.safe_dump(manifest()))
    done = CliRunner().invoke(main, ["plan", str(file)])
    assert done.exit_code == 1
    assert "no plan can be made: " in done.stderr
    assert "what would do: spec.workers.max " in done.stderr
