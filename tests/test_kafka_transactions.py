"""Results in transactions of Kafka: whoever dies and when, a reader of what is committed has each one once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import Crash
from kafka_broker import KafkaBroker
from kafka_join import Joined, finish, finish_despite_failures, running_broker
from streamjoin.epoch.ports import EpochFailed
from streamjoin.io.kafka_sink import KafkaSink
from streamjoin.io.kafka_transactions import Transactions
from streamjoin.state.log import Superseded
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS

TESTS = Path(__file__).parent
pytestmark = pytest.mark.kafka


def once(broker: KafkaBroker, root: Path, **options: Any) -> Joined:
    return Joined(broker, root, sink={"delivery": "exactlyOnce"}, **options)


STEPS = ("tasks", "commit", "publish", "clean", "enqueue", "enqueued", "offset", "committed", "note")


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_dies_at_any_step_repeats_nothing(
    step: str, broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producer lives on, as one does of a driver that only seems to be dead, and with its transaction."""
    join = once(broker, tmp_path, epoch=150)
    join.feed(100)
    visits = iter(range(1000))

    def die(at: str) -> None:
        if at == step and next(visits) == 1:
            raise Crash(at)

    def around(kind: type, name: str, before: str, after: str) -> None:
        call = getattr(kind, name)

        def wrapped(self: Any, *arguments: Any) -> Any:
            if name != "put" or arguments[0] == "outbox/sent":
                die(before)
            found = call(self, *arguments)
            die(after)
            return found

        monkeypatch.setattr(kind, name, wrapped)

    around(KafkaSink, "_enqueue", "enqueue", "enqueued")
    around(Transactions, "commit", "offset", "committed")
    around(ObjectStorage, "put", "note", "")
    alive = []

    def forget(sink: KafkaSink) -> None:
        alive.append((sink._producer, sink._transactions))
        sink._producer = sink._transactions = None

    monkeypatch.setattr(KafkaSink, "_abandon", forget)
    first = join.driver(at=die)
    first.start()
    with pytest.raises(Crash):
        finish(first)
    monkeypatch.undo()
    second = join.driver()
    second.start()
    finish_despite_failures(second)
    assert join.found() == (join.expected(), 0)
    assert len(ObjectStorage(join.job.checkpoint).list("outbox")) <= 1


def test_a_driver_that_was_replaced_sends_nothing_more(broker: KafkaBroker, tmp_path: Path) -> None:
    """It has committed an epoch, and is about to send it, when another one takes over and does; then it goes on."""
    join = once(broker, tmp_path, epoch=150)
    join.feed(60)
    taken_over = []

    def pause(at: str) -> None:
        if at == "publish" and first.checkpoint.epoch == 1 and not taken_over:
            second = join.driver()
            second.start()
            finish_despite_failures(second)
            taken_over.append(second)

    first = join.driver(at=pause)
    first.start()
    with contextlib.suppress(Superseded, EpochFailed):
        finish_despite_failures(first)
    assert taken_over
    assert join.found() == (join.expected(), 0)


def test_a_driver_process_is_killed_within_its_transaction(broker: KafkaBroker, tmp_path: Path) -> None:
    join = once(broker, tmp_path, epoch=400)
    join.feed(200)
    command = [sys.executable, str(TESTS / "kafka_victim.py"), str(tmp_path)]
    killed, done = (
        subprocess.run([*command, when], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=os.environ)
        for when in ("half-sent", "never")
    )
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
    assert join.found() == (join.expected(), 0)


def test_the_broker_dies_with_a_transaction_and_comes_back(tmp_path: Path) -> None:
    with running_broker() as broker:
        join = once(broker, tmp_path, timeout="2s", epoch=150)
        join.feed(60)
        driver = join.driver()
        driver.start()
        driver.step()
        killed = []

        def kill(at: str) -> None:
            if at == "publish" and not killed:
                broker.kill()
                killed.append(at)

        driver._phase.at = kill
        finish_despite_failures(driver, "UnavailableError: Kafka topic join-out-")
        broker.start()
        finish_despite_failures(driver)
        assert join.found() == (join.expected(), 0)
