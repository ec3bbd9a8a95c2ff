"""A driver process for ``test_spark``: runs the join in a directory on Spark, and kills itself (SIGKILL) at a named moment.

    python victim.py ROOT STEP VISIT

STEP: a step of ``Driver``, ``during-tasks`` (some milliseconds after they began), or ``never``. Prints "done" when the input has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.manifest import load
from streamjoin.runner.spark import SparkRunner, SparkSettings
from streamjoin.state.storage import ObjectStorage


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_to_end(driver: Driver) -> None:
    driver.start()
    while driver.step(final=True) is not None:
        pass
    driver.stop()
    print("done", flush=True)


def main(root: Path, step: str, visit: int) -> None:
    job = compile_job(load((root / "join.yaml").read_text()))
    visits = {"tasks": 0, step: 0}

    def at(reached: str) -> None:
        if step == "during-tasks" and reached == "tasks":
            visits["tasks"] += 1
            if visits["tasks"] == visit:
                threading.Timer(0.003, kill).start()
        elif reached == step:
            visits[step] += 1
            if visits[step] == visit:
                kill()

    driver = Driver(job, ObjectStorage(job.checkpoint), SparkRunner(SparkSettings(root / "logs", 512)), at=at)
    run_to_end(driver)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
