"""Keeps the program running that reads, by Spark, the streams whose source is ``spark`` (``spark.feeding``), for as long as a run.

Spark reads in a process of its own, because a run's Spark has no session, and its workers hold all of its slots. What the program tells of
its trouble is a notice; what it can never read ends the run. If it dies, another one begins, after growing pauses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from streamjoin.api.loop import WARNING, Notice
from streamjoin.api.runners import Tell, require_java
from streamjoin.controlplane.driver import Driver
from streamjoin.io import staged
from streamjoin.io.base import SourceError
from streamjoin.io.references import settings
from streamjoin.job import Job
from streamjoin.location import is_url
from streamjoin.manifest.connectors.spark import SparkInput, SparkSource
from streamjoin.serve.observer import Observer
from streamjoin.state.storage import ObjectStorage

PROGRAM = "streamjoin.spark.feeding"
PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before another program begins, by how many have died."""
IMPOSSIBLE = 3
"""Its exit code where a stream can never be read as it is written."""
END_SECONDS = 20.0
"""It may take so long to end."""


def feeder_of(job: Job, tell: Tell, log_directory: Path, *, until_idle: bool) -> Feeder | None:
    """None: no stream is read by Spark."""
    fed = {index: stream.source for index, stream in enumerate(job.streams) if isinstance(stream.source, SparkSource)}
    return Feeder(job, fed, tell, log_directory, until_idle=until_idle) if fed else None


class Feeder(Observer):
    """See the module. It begins once the run has claimed its checkpoint, and ends with it."""

    def __init__(self, job: Job, fed: Mapping[int, SparkSource], tell: Tell, log_directory: Path, *, until_idle: bool) -> None:
        """``fed``: the sources, by the number of the stream. ``until_idle``: all is read that is there now."""
        self._job, self._fed, self._tell, self._logs, self._until_idle = job, fed, tell, log_directory, until_idle
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self._failure: str | None = None
        self._last = ""
        """What the program has told last."""

    def started(self, driver: Driver) -> None:
        """Raises Failure where there is no Java, StorageError."""
        for source in self._fed.values():
            if source.streaming:
                staged.resume(ObjectStorage(source.staging))
        environment = {**os.environ, "JAVA_HOME": str(require_java("another source")), "PYSPARK_PYTHON": sys.executable}
        self._thread = threading.Thread(target=self._keep, args=(environment,), name="streamjoin-feeder", daemon=True)
        self._thread.start()

    def attempting(self) -> None:
        """Raises SourceError where a stream can never be read."""
        if self._failure is not None:
            raise SourceError(self._failure)

    def ended(self) -> None:
        """End the program, wherever it is: what it has staged stays."""
        self._over.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._thread is not None:
            self._thread.join(END_SECONDS)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def _keep(self, environment: Mapping[str, str]) -> None:
        deaths = 0
        while not self._over.is_set():
            code = self._run(environment)
            if self._over.is_set() or code == 0:
                return
            if code == IMPOSSIBLE:
                self._failure = self._last
                return
            deaths += 1
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
            process.stdin.write(json.dumps(self._order()) + "\n")
            process.stdin.flush()
        except OSError:
            return process.wait()
        for line in process.stdout:
            told = json.loads(line)
            self._last = f"{told['field']}: {told['error']}" if told["field"] else told["error"]
            self._notice(self._last)
        return process.wait()

    def _notice(self, text: str) -> None:
        self._tell(Notice(WARNING + text))

    def _why(self, code: int) -> str:
        return f"it said: {self._last}" if self._last else f"its exit code is {code}, and its log {self._logs / 'feeder.log'}"

    def _order(self) -> dict[str, object]:
        """As ``spark.feeding.Order`` reads it."""
        written = self._job.manifest.spec.streams
        feeds = [
            {
                "name": self._job.streams[index].name,
                "field": f"spec.streams[{index}].source.spark",
                "schema": written[index].ddl,
                "staging": source.staging if is_url(source.staging) else os.path.abspath(source.staging),
                "input": _input(source),
                "streaming": source.streaming,
                "query": source.query,
                "views": {name: _input(view) for name, view in source.views.items()},
            }
            for index, source in self._fed.items()
        ]
        given = self._job.manifest.spec.spark
        conf = {"spark.master": "local[*]", "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"} | dict(settings(given.conf))
        if conf["spark.master"].startswith("local"):
            conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} | conf
        for name, values in (("spark.jars.packages", given.packages), ("spark.jars.repositories", given.repositories)):
            if values:
                conf[name] = ",".join(values)
        return {"feeds": feeds, "conf": conf, "available_now": self._until_idle}


def _input(given: SparkInput) -> dict[str, object]:
    return {"format": given.format, "options": dict(settings(given.options)), "columns": given.columns}
