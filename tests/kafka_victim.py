"""A driver process for ``test_kafka``: runs the join in a directory, and kills itself (SIGKILL) at a moment of its second epoch.

    python kafka_victim.py ROOT MOMENT

MOMENT: ``staged``, when the epoch's results are staged and it is about to commit; ``half-sent``, when it has committed, and half of a batch
of results has been sent; ``never``. Prints "done" when the input has ended.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from streamjoin.epoch.driver import Driver
from streamjoin.io.kafka_sink import KafkaSink
from streamjoin.job import compile_job
from streamjoin.manifest import load
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage

EPOCH = 1


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingSink(KafkaSink):
    """Dies in the middle of the first batch that it sends."""

    def _enqueue(self, producer: Any, values: list[bytes], keys: list[bytes | None], identities: list[bytes] | None) -> None:
        half = len(values) // 2
        super()._enqueue(producer, values[:half], keys[:half], identities and identities[:half])
        producer.flush()
        kill()


def main(root: Path, moment: str) -> None:
    job = compile_job(load((root / "join.yaml").read_text()))

    def at(step: str) -> None:
        if driver.checkpoint.epoch == EPOCH - 1 and step == "commit" and moment == "staged":
            kill()
        if driver.checkpoint.epoch == EPOCH and step == "publish" and moment == "half-sent":
            driver._sink.__class__ = DyingSink

    driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner(), at=at)
    driver.start()
    while driver.step(final=True) is not None:
        pass
    driver.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
