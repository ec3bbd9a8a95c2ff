"""A driver process for ``test_kafka``: runs the join in a directory, and kills itself (SIGKILL) at a moment of its second epoch.

    python kafka_victim.py ROOT MOMENT

MOMENT: ``staged``, when the epoch's results are staged and it is about to commit; ``half-sent``, when it has committed, and half of a batch
of results has been sent; ``never``. Prints "done" when the input has ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.io.kafka_records import Outgoing
from streamjoin.io.kafka_sender import Sender
from streamjoin.io.kafka_sink import KafkaSink
from streamjoin.io.refused import Refused
from streamjoin.manifest import load
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage
from victim import kill, run_to_end

EPOCH = 1


class DyingSink(KafkaSink):
    """Dies in the middle of the first batch that it sends."""

    def _enqueue(self, producer: Sender, records: Outgoing, refused: Refused | None, row: int) -> None:
        super()._enqueue(producer, records.slice(0, len(records.values) // 2), refused, row)
        while producer.flush(1):
            pass
        kill()


def main(root: Path, moment: str) -> None:
    job = compile_job(load((root / "join.yaml").read_text()))

    def at(step: str) -> None:
        if driver.checkpoint.epoch == EPOCH - 1 and step == "commit" and moment == "staged":
            kill()
        if driver.checkpoint.epoch == EPOCH and step == "publish" and moment == "half-sent":
            for sink in driver._commits.sink.by_join.values():
                sink.__class__ = DyingSink

    driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner(), at=at)
    run_to_end(driver)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
