"""Keeps the program running that reads and writes, by Spark, what a join reads and writes as ``spark`` (``spark.feeding``), for as long as
a run.

Spark does that in a process of its own, because a run's Spark has no session, and its workers hold all of its slots. What the program tells
of its trouble is a notice; what it can never read or write ends the run. If it dies, another one begins, after growing pauses.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from streamjoin.api.feeds import IMPOSSIBLE, PAUSES, Feed, Input, Order, Output
from streamjoin.api.join import absolute
from streamjoin.api.loop import WARNING, Notice
from streamjoin.api.runners import Tell, require_java
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochResult
from streamjoin.io import staged
from streamjoin.io.base import SourceError
from streamjoin.io.references import settings
from streamjoin.job import Job
from streamjoin.manifest.connectors.spark import SparkInput, SparkSource
from streamjoin.manifest.problem import listed
from streamjoin.manifest.resolve import has_spark
from streamjoin.results.reader import is_stored
from streamjoin.serve.observer import Observer
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.storage import ObjectStorage, StorageError

PROGRAM = "streamjoin.spark.feeding"
HOME = "STREAMJOIN_SPARK_HOME"
"""The variable of the environment that names a Spark for this program alone, with a Java in it, as an image has it (``docker/``)."""
YOUNG_SECONDS = 120.0
"""A program that lives for longer has not died soon after the one before."""
END_SECONDS = 20.0
"""It may take so long to end."""
LOOK_SECONDS = 0.2
STORE_SECONDS = 120.0
"""The driver may take so long to store its last results."""
WRITTEN = "written"
"""The directory within the checkpoint where Spark keeps the state of what it writes, by join."""


def feeder_of(job: Job, tell: Tell, log_directory: Path, stop: threading.Event, *, until_idle: bool) -> Feeder | None:
    """None: nothing is read or written by Spark."""
    return Feeder(job, tell, log_directory, stop, until_idle=until_idle) if has_spark(job.manifest.spec) else None


class Feeder(Observer):
    """See the module. It begins once the run has claimed its checkpoint, and ends with it."""

    def __init__(self, job: Job, tell: Tell, log_directory: Path, stop: threading.Event, *, until_idle: bool) -> None:
        """``stop``: set when the run is to end. ``until_idle``: all is read that is there now, and all results of it are written."""
        self._job, self._tell, self._logs, self._stop, self._until_idle = job, tell, log_directory, stop, until_idle
        self._fed = {index: stream.source for index, stream in enumerate(job.streams) if isinstance(stream.source, SparkSource)}
        """The sources, by the number of the stream."""
        sinks = [None if join.output.sink is None else join.output.sink.spark for join in job.manifest.spec.joins]
        self._written = {index: sink for index, sink in enumerate(sinks) if sink is not None}
        """The sinks, by the number of the join."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self._failure: str | None = None
        self._last = ""
        """What the program has told last."""
        self._is_asked = False
        """It is to write what is there."""
        self._is_written = threading.Event()

    def started(self, driver: Driver) -> None:
        """Raises Failure where there is no Java, StorageError."""
        for source in self._fed.values():
            if source.streaming:
                staged.resume(ObjectStorage(source.staging))
        read, written = ([self._job.streams[at].name for at in self._fed], [self._job.joins[at].name for at in self._written])
        what = [f"to {verb} {listed(names, 'and')}" for verb, names in (("read", read), ("write", written)) if names]
        self._tell(Notice(f"starting a Spark {listed(what, 'and')} ..."))
        self._thread = threading.Thread(target=self._keep, args=(_environment(),), name="streamjoin-feeder", daemon=True)
        self._thread.start()

    def attempting(self) -> None:
        """Raises SourceError where something can never be read or written."""
        if self._failure is not None:
            raise SourceError(self._failure)

    def committed(self, driver: Driver, result: EpochResult) -> None:
        self._is_written.clear()

    def idle(self, driver: Driver) -> None:
        """A run that ends when all is joined waits until all results are written. Raises StorageError, SourceError."""
        if not self._written or not self._until_idle or not driver.checkpoint.is_over or self._is_written.is_set():
            return
        deadline = time.monotonic() + STORE_SECONDS
        while not self._are_stored(driver.checkpoint):
            if time.monotonic() > deadline:
                raise StorageError(
                    f"{self._job.checkpoint}: the last results are not stored after {STORE_SECONDS:.0f} s, for Spark to write"
                )
            time.sleep(LOOK_SECONDS)
        self._is_asked = True
        self._ask()
        while not self._is_written.wait(LOOK_SECONDS) and not self._stop.is_set():
            self.attempting()

    def _are_stored(self, checkpoint: Checkpoint) -> bool:
        """Whether there is a snapshot for all results that are committed."""
        storage = ObjectStorage(self._job.checkpoint)
        for index in self._written:
            name = self._job.joins[index].name
            last = checkpoint.snapshots.of(name).next_id - 1
            if not is_stored(storage, name, last):
                return False
        return True

    def ended(self) -> None:
        """End the program, wherever it is: what it has staged, and what it has written, stays."""
        self._over.set()
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._thread is not None:
            self._thread.join(END_SECONDS)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _ask(self) -> None:
        process = self._process
        with contextlib.suppress(OSError, ValueError):  # the next one is asked when it begins
            if process is not None and process.stdin is not None:
                process.stdin.write("\n")
                process.stdin.flush()

    def _keep(self, environment: Mapping[str, str]) -> None:
        deaths = 0
        while not self._over.is_set():
            began = time.monotonic()
            code = self._run(environment)
            if self._over.is_set() or code == 0:
                return
            if code == IMPOSSIBLE:
                self._failure = self._last
                return
            deaths = deaths + 1 if time.monotonic() - began < YOUNG_SECONDS else 1
            if deaths > len(PAUSES):
                self._failure = f"spec.spark: the program that reads for the join ended {deaths} times; {self._why(code)}"
                return
            pause = PAUSES[deaths - 1]
            self._notice(f"the program in which Spark reads has ended; {self._why(code)}; it begins again in {pause:.0f} s")
            self._over.wait(pause)

    def _run(self, environment: Mapping[str, str]) -> int:
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / "feeder.log").open("a") as log:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(self._order().to_json() + "\n")
            process.stdin.flush()
        except OSError:
            return process.wait()
        if self._is_asked:
            self._ask()
        for line in process.stdout:
            told = json.loads(line)
            if "done" in told:
                self._is_asked = False
                self._is_written.set()
                continue
            self._last = f"{told['field']}: {told['error']}" if told["field"] else told["error"]
            self._notice(self._last)
        return process.wait()

    def _notice(self, text: str) -> None:
        self._tell(Notice(WARNING + text))

    def _why(self, code: int) -> str:
        return f"it said: {self._last}" if self._last else f"its exit code is {code}, and its log {self._logs / 'feeder.log'}"

    def _order(self) -> Order:
        job, manifest = self._job, self._job.manifest
        feeds = [
            Feed(
                name=job.streams[index].name,
                field=f"spec.streams[{index}].source.spark",
                schema=manifest.spec.streams[index].ddl or "",
                staging=absolute(source.staging),
                input=_input(source),
                streaming=source.streaming,
                query=source.query,
                views={name: _input(view) for name, view in source.views.items()},
            )
            for index, source in self._fed.items()
        ]
        text = manifest.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True) if self._written else ""
        outputs = [
            Output(
                name=job.joins[index].name,
                field=f"spec.joins[{index}].output.sink.spark",
                columns=[name for name, _ in job.joins[index].output],
                manifest=text,
                state=absolute(f"{job.checkpoint}/{WRITTEN}/{job.joins[index].name}"),
                format=sink.format,
                options=dict(settings(sink.options)),
                streaming=sink.streaming,
            )
            for index, sink in self._written.items()
        ]
        given = manifest.spec.spark
        conf = {"spark.master": "local[*]", "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"} | dict(settings(given.conf))
        if conf["spark.master"].startswith("local"):
            conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} | conf
        for name, values in (("spark.jars.packages", given.packages), ("spark.jars.repositories", given.repositories)):
            if values:
                conf[name] = ",".join(values)
        return Order(feeds, outputs, conf, self._until_idle)


def _environment() -> Mapping[str, str]:
    """In which the program runs. Raises Failure where there is no Java."""
    home = os.environ.get(HOME)
    found = {"JAVA_HOME": str(require_java("others"))} if home is None else {"SPARK_HOME": home, "JAVA_HOME": f"{home}/java"}
    return {**os.environ, **found, "PYSPARK_PYTHON": sys.executable}


def _input(given: SparkInput) -> Input:
    return Input(given.format, dict(settings(given.options)), given.columns)
