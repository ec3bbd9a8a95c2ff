"""A run as JSON, for machines: one object per epoch and one for the summary. ``docs/cli.md`` lists the fields."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from streamjoin.api.loop import Done, Ended, Standing
from streamjoin.cli import wording
from streamjoin.cli.completeness import completeness_record
from streamjoin.cli.delays import delay_record
from streamjoin.cli.exits import Exit
from streamjoin.cli.history import History
from streamjoin.cli.scaling import decision_record, plan_record, switch_record
from streamjoin.cli.state import RunState
from streamjoin.cli.subject import Subject
from streamjoin.epoch.ports import EpochResult, JoinWork

Value = TypeVar("Value")
COUNTS = ("input", "accepted", "routed", "late", "shed", "rejected", "filtered", "unmatchable")


def epoch_record(subject: Subject, done: Done) -> dict[str, Any]:
    """What one epoch did, how far the plan was after it, and what the autoscaler decided."""
    result = done.result
    steps = {name: rounded(seconds) for name, seconds in result.seconds.items()}
    return {
        "event": "epoch",
        "epoch": result.epoch,
        "startedAt": wording.moment(round(result.started_at * 1e6)),
        "finishedAt": wording.moment(round(done.finished * 1e6)),
        "seconds": rounded(result.duration),
        "steps": steps,
        "streams": [
            {
                "name": name,
                **{count: result.counts[count][stream] for count in COUNTS},
                "wouldShed": result.counts["would_shed"][stream],
                "watermark": wording.moment(result.watermarks[stream]),
                "watermarkLagSeconds": rounded(result.lag[stream]),
                "backlog": result.backlog[stream],
                "rejection": _of(result.rejections, stream) or None,
                "lateSeconds": rounded(_of(result.late_seconds, stream) or None),
            }
            for stream, name in enumerate(subject.streams)
        ],
        "candidates": result.candidates,
        "output": result.output,
        "joins": [
            {
                **of_join,
                "completeness": completeness_record(result, of_join["name"]),
                "resultDelay": delay_record(result.delays.get(of_join["name"])),
            }
            for of_join in _joins(subject, result.joins, result.refused)
        ],
        "workers": [
            {
                "task": task,
                **_held(subject, held),
                **fullness(result, task),
            }
            for task, held in sorted(result.held.items())
        ],
        "readBack": result.read_back,
        "storageRetries": result.storage_retries,
        "generation": result.generation,
        "plan": plan_record(done.plan),
        "switch": switch_record(done.plan, result.epoch),
        "decision": decision_record(done.decision),
        "blocks": result.blocks,
        "totals": _totals(result),
        "warnings": list(result.warnings),
    }


def standby_record(standing: Standing) -> dict[str, Any]:
    """How far a standby is."""
    return {
        "event": "standby",
        "state": standing.phase.value,
        "driver": standing.writer or None,
        "workers": standing.workers,
        "ready": standing.ready,
    }


def summary_record(state: RunState, ended: Ended, seconds: float, picture: Path | None) -> dict[str, Any]:
    """What the whole run did; ``totals`` are since the checkpoint's first epoch."""
    subject, history = state.subject, state.history
    span, failure = run_span(history), ended.failure
    return {
        "event": "summary",
        "name": subject.job.name,
        "reason": ended.reason.value,
        "exitCode": int(failure.code if failure else Exit.DONE),
        "error": failure.sentence if failure else None,
        "seconds": rounded(seconds),
        "epochs": history.epochs,
        "lastEpoch": history.last.epoch if history.last else None,
        "epochSeconds": epoch_seconds(history),
        "streams": [
            {
                "name": name,
                **{count: history.counts[count][stream] if history.counts else 0 for count in COUNTS},
                "wouldShed": history.counts["would_shed"][stream] if history.counts else 0,
                "perSecond": rounded(history.counts["input"][stream] / span) if span else None,
                "rejection": _of(history.rejections, stream) or None,
                "lateSeconds": rounded(_of(history.late_seconds, stream) or None),
            }
            for stream, name in enumerate(subject.streams)
        ],
        "candidates": history.candidates,
        "output": history.output,
        "outputPerSecond": rounded(history.output / span) if span else None,
        "joins": [
            {
                **of_join,
                "completeness": None if history.last is None else completeness_record(history.last, of_join["name"]),
                "sink": sink,
            }
            for of_join, sink in zip(_joins(subject, history.joins, history.refused), subject.sinks, strict=True)
        ],
        "sink": subject.sink,
        "maxUtilization": rounded(history.largest_utilization),
        "workers": {"fewest": history.fewest_workers, "most": history.most_workers},
        "switches": history.switched,
        "movedTuples": history.moved_tuples,
        "naiveTuples": history.naive_tuples,
        "readBack": history.read_back,
        "totals": _totals(history.last) if history.last else None,
        "picture": None if picture is None else str(picture),
    }


def epoch_seconds(history: History) -> dict[str, float | None]:
    durations = history.durations
    longest = durations.longest if history.epochs else None
    return {name: rounded(value) for name, value in (("p50", durations.quantile(0.5)), ("p95", durations.quantile(0.95)), ("max", longest))}


def fullness(result: EpochResult, task: int) -> dict[str, float | None]:
    """How full a worker is, and which share of its tuples is dropped for that, or would be."""
    shed, would_shed = (factors[task] if task < len(factors) else 0.0 for factors in (result.shed, result.would_shed))
    return {"utilization": rounded(result.utilization[task]), "shedFactor": shed, "wouldShedFactor": would_shed}


def _of(values: Sequence[Value], stream: int) -> Value | None:
    return values[stream] if values else None


def _held(subject: Subject, held: Sequence[int]) -> dict[str, Any]:
    """What a worker holds, by stream."""
    if len(held) > 2:
        return {"held": dict(zip(subject.streams, held, strict=True))}
    left, right = held
    return {"heldLeft": left, "heldRight": right}


def run_span(history: History) -> float | None:
    """Seconds from the first epoch's start to the last one's end; None before the first."""
    return None if history.began is None else max(history.ended - history.began, 1e-3)


def _joins(subject: Subject, works: Mapping[str, JoinWork], refused: Mapping[str, int]) -> list[dict[str, Any]]:
    """What each join did, in the manifest's order."""
    found = [(join.name, works.get(join.name, JoinWork(0, 0))) for join in subject.job.joins]
    return [{"name": name, "candidates": work.candidates, "output": work.output, "refused": refused.get(name, 0)} for name, work in found]


def _totals(result: EpochResult) -> dict[str, list[int]]:
    """The checkpoint's counters but for those of single joins, named as JSON's other fields are."""
    kept = {name: values for name, values in result.totals.items() if "/" not in name}
    return {re.sub(r"_(.)", lambda found: found[1].upper(), name): values for name, values in kept.items()}


def rounded(value: float | None) -> float | None:
    """As JSON has numbers, to a millionth; None for what is none."""
    return None if value is None or not math.isfinite(value) else round(value, 6)
