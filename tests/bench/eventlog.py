"""Spark's event log, as far as it says where the time of an epoch's job goes.

An epoch is one job of two stages that run tasks (route, join); the runner names the job ``epoch <number>``. Times are in milliseconds since
1970, by the clock of one machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """When the first of a stage's tasks was launched and the last had finished."""

    begin: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / 1000


@dataclass
class JobTimes:
    """One job."""

    name: str
    begin: int
    stage_ids: Sequence[int]
    end: int = 0
    stages: dict[int, Stage] = field(default_factory=dict)
    """Those that ran tasks; others were there already."""

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / 1000


def switch_on(directory: Path) -> None:
    """Let the Spark that this process starts next write its event log there, as one file of plain lines."""
    directory.mkdir(parents=True, exist_ok=True)
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": directory.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join(f"--conf {name}={value}" for name, value in conf.items()) + " pyspark-shell"


def read(directory: Path) -> list[JobTimes]:
    """All jobs in the order in which they were submitted. Complete once Spark has stopped."""
    jobs: dict[int, JobTimes] = {}
    of_stage: dict[int, JobTimes] = {}
    for path in sorted(directory.iterdir()):
        for line in path.open():
            event = json.loads(line)
            kind = event["Event"]
            if kind == "SparkListenerJobStart":
                name = event.get("Properties", {}).get("spark.job.description", "")
                job = jobs[event["Job ID"]] = JobTimes(name, event["Submission Time"], event["Stage IDs"])
                of_stage |= dict.fromkeys(job.stage_ids, job)
            elif kind == "SparkListenerJobEnd":
                jobs[event["Job ID"]].end = event["Completion Time"]
            elif kind == "SparkListenerTaskEnd":
                stages, number = of_stage[event["Stage ID"]].stages, event["Stage ID"]
                begin, end = event["Task Info"]["Launch Time"], event["Task Info"]["Finish Time"]
                known = stages.get(number, Stage(begin, end))
                stages[number] = Stage(min(known.begin, begin), max(known.end, end))
    return [jobs[number] for number in sorted(jobs)]


def of_epochs(jobs: Iterator[JobTimes], epochs: Sequence[int]) -> list[JobTimes]:
    """The jobs of a run's epochs, the next ones of ``jobs``; what other jobs lie between is passed over. Raises LookupError."""
    found = []
    for epoch in epochs:
        job = next((job for job in jobs if job.name == f"epoch {epoch}" and job.end), None)
        if job is None:
            raise LookupError(f"the event log has no job for epoch {epoch}")
        found.append(job)
    return found
