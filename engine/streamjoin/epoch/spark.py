"""The Spark runner: one job of two stages per epoch, with each join task pinned to the executor that holds its runs.

How a task stays where its runs are: a cached one-row-per-task DataFrame, the *anchor*, is joined to the shuffled pieces, and Spark
prefers to run a partition where its cached part lies. Nothing rests on that but speed: a task that runs elsewhere finds the committed
token missing and reads its runs back.

Fixed costs were measured (``docs/benchmarks.md``); each setting below that looks odd says what it saves.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamjoin.epoch.driver import EpochFailed
from streamjoin.epoch.join import join
from streamjoin.epoch.route import route
from streamjoin.epoch.spec import EpochSpec, Piece, TaskReport
from streamjoin.kernel.run import warm
from streamjoin.state.store import RunStore

PIECE_SCHEMA = "task int, area int, side int, data binary"
PIECE_ARROW = pa.schema([("task", pa.int32()), ("area", pa.int32()), ("side", pa.int32()), ("data", pa.binary())])
QUEUE_SECONDS = 5.0
"""How long an epoch waits for the one that it follows to be queued before it."""
REPORT_ARROW = pa.schema([("report", pa.binary())])

LOG4J = """\
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""


@dataclass(frozen=True)
class SparkSettings:
    """Where and how Spark runs."""

    log_directory: Path
    """Spark's own log and the traces of failed epochs go here."""
    executor_memory_mib: int = 1024
    """The JVM's heap of each executor: pieces pass through it, runs do not."""
    master: str | None = None
    """None: executors as processes of this machine, one core each."""
    java_home: Path | None = None
    ui: bool = False


class SparkEpoch:
    """An epoch's job, in a thread of its own."""

    def __init__(self, context: Any, group: str, future: Future[list[TaskReport]]) -> None:
        self._context, self._group, self._future = context, group, future

    def result(self) -> list[TaskReport]:
        """See :class:`streamjoin.epoch.driver.Running`."""
        return self._future.result()

    def cancel(self) -> None:
        """See :class:`streamjoin.epoch.driver.Running`."""
        with contextlib.suppress(Exception):  # Java may be gone, and the job with it
            self._context.cancelJobGroup(self._group)
        wait([self._future])


class SparkRunner:
    """See the module. One Spark context a process; ``start`` with another number of tasks makes a new one."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._spark: Any = None
        self._anchor: Any = None
        self._tasks = 0
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="epoch")
        self._jobs = 0
        self._crowded = False
        """Tasks of the last epoch shared an executor."""

    @property
    def context(self) -> Any:
        """The live SparkContext."""
        return self._spark.sparkContext

    def start(self, tasks: int) -> None:
        """Start one executor per task, load the kernels in each, and pin the anchor. Raises EpochFailed with Spark's reason."""
        if self._spark is not None and self._tasks == tasks:
            return
        self.stop()
        self._tasks = tasks
        try:
            self._spark = self._session(tasks)
            self._place(tasks)
        except Exception as error:
            raise self._failure("Spark could not start", error) from error

    def _place(self, tasks: int) -> None:
        """Load the kernels in every executor, and pin one task to each: with all of them idle, Spark offers each one task."""
        from pyspark.sql import functions as F  # noqa: N812

        if self._anchor is not None:
            self._anchor.unpersist()
        ids = self._spark.range(0, tasks, 1, tasks)
        ids.mapInArrow(_warm, "id long", barrier=True).collect()
        anchor = ids.select(F.col("id").cast("int").alias("task"), F.lit(True).alias("pinned"))
        self._anchor = anchor.repartitionById(tasks, F.col("task")).persist()
        self._anchor.count()

    @property
    def overlaps(self) -> bool:
        """See :class:`streamjoin.epoch.driver.Runner`."""
        return not (self._crowded and self.executors() >= self._tasks)

    def submit(self, spec: EpochSpec, tasks: int) -> SparkEpoch:
        """See :class:`streamjoin.epoch.driver.Runner`."""
        if spec.follows is None and not self.overlaps:
            # An executor was lost, its tasks crowd another, and the one that replaced it idles.
            with contextlib.suppress(Exception):  # they may go on as they are
                self._place(tasks)
            self._crowded = False
        self._jobs += 1
        group = f"streamjoin-{self._jobs}"
        previous = f"streamjoin-{self._jobs - 1}" if spec.follows is not None else None
        return SparkEpoch(self.context, group, self._threads.submit(self._run, spec, tasks, group, previous))

    def _run(self, spec: EpochSpec, tasks: int, group: str, previous: str | None) -> list[TaskReport]:
        from pyspark.sql import functions as F  # noqa: N812

        splits = len(spec.splits)
        try:
            self.context.setJobGroup(group, f"epoch {spec.epoch}", interruptOnCancel=False)
            if previous is not None:
                self._wait_for_job(previous)
            # whole-stage codegen off: blocks of bytes pass through, there is nothing to generate
            pieces = self._spark.range(0, splits, 1, splits).mapInArrow(_task(_route, spec), PIECE_SCHEMA)
            shuffled = pieces.repartitionById(tasks, F.col("task"))
            pinned = shuffled.join(self._anchor.hint("shuffle_hash"), "task", "left").select("task", "area", "side", "data")
            rows = pinned.mapInArrow(_task(_join, spec), "report binary").collect()
        except Exception as error:
            raise self._failure(f"epoch {spec.epoch}", error) from error
        reports: list[TaskReport] = [pickle.loads(row.report) for row in rows]  # noqa: S301 - written by the join tasks
        if sorted(report.task for report in reports) != list(range(tasks)):
            raise EpochFailed(f"epoch {spec.epoch}: {len(reports)} of {tasks} tasks reported")
        self._crowded = len({report.worker for report in reports}) < tasks
        return reports

    def _wait_for_job(self, group: str) -> None:
        """Until the epoch in flight has its job, for Spark serves the older job first. Given up after a while: it may have failed."""
        tracker = self.context.statusTracker()
        deadline = time.monotonic() + QUEUE_SECONDS
        while not tracker.getJobIdsForGroup(group) and time.monotonic() < deadline:
            time.sleep(0.002)

    def executors(self) -> int:
        """How many executors there are now."""
        return int(len(self.context._jsc.sc().statusTracker().getExecutorInfos()) - 1)

    def stop(self) -> None:
        """End the executors and the context."""
        if self._spark is None:
            return
        application = self.context.applicationId
        self._spark.stop()
        self._spark = self._anchor = None
        home = os.environ.get("SPARK_HOME")
        if home:  # the standalone worker keeps executors' logs there, for ever
            shutil.rmtree(Path(home) / "work" / application, ignore_errors=True)

    def _session(self, tasks: int) -> Any:
        from pyspark.find_spark_home import _find_spark_home
        from pyspark.sql import SparkSession

        settings = self._settings
        settings.log_directory.mkdir(parents=True, exist_ok=True)
        logging = settings.log_directory / "log4j2.properties"
        logging.write_text(LOG4J.format(path=settings.log_directory / "spark.log"))
        if settings.java_home is not None:
            os.environ["JAVA_HOME"] = str(settings.java_home)
        os.environ["SPARK_HOME"] = _find_spark_home()
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        java = f"-Dlog4j2.configurationFile={logging.as_uri()}"
        conf = {
            "spark.ui.enabled": str(settings.ui).lower(),
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": f"{settings.executor_memory_mib}m",
            "spark.executor.cores": "1",
            # every executor must be there before the anchor is placed, or two tasks share one
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            # both would move a task away from its runs
            "spark.shuffle.reduceLocality.enabled": "false",
            "spark.sql.adaptive.enabled": "false",
            "spark.locality.wait": "3s",
            "spark.shuffle.compress": "false",
            "spark.sql.codegen.wholeStage": "false",
            # pieces are megabytes each: many in one Arrow batch would pass its 2 GiB
            "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
            # over loopback TCP each Python stage loses 40 ms to a delayed acknowledgement
            "spark.python.unix.domain.socket.enabled": "true",
            # on few cores the optimising compiler's threads take the work's cores for minutes
            "spark.executor.extraJavaOptions": f"-XX:TieredStopAtLevel=1 {java}",
            # a long exception message overflows the default stack in Spark's own regular expressions and hides the cause
            "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Xss16m {java}",
            "spark.driver.memory": "1g",
        }
        master = settings.master or f"local-cluster[{tasks},1,{settings.executor_memory_mib}]"
        builder = SparkSession.builder.master(master).appName("streamjoin")
        for name, value in conf.items():
            builder = builder.config(name, value)
        with _stderr_to(settings.log_directory / "spark.log"):
            return builder.getOrCreate()

    def _failure(self, what: str, error: Exception) -> EpochFailed:
        trace = f"{error}"
        self._settings.log_directory.mkdir(parents=True, exist_ok=True)
        path = self._settings.log_directory / "failure.txt"
        path.write_text(trace)
        ended = self._java_ended()
        cause = ended or cause_of(trace)
        return EpochFailed(f"{what}: {cause} (trace: {path})", trace, permanent=ended is not None or "SourceError" in cause)

    def _java_ended(self) -> str | None:
        """That Spark's Java process, without which nothing can be tried again, is gone; None while it is there."""
        from pyspark import SparkContext

        code = SparkContext._gateway.proc.poll() if SparkContext._gateway is not None else None
        log = self._settings.log_directory / "spark.log"
        return None if code is None else f"Spark's Java process has ended with code {code}; if {log} does not say why, it ran out of memory"


def cause_of(trace: str) -> str:
    """The one line of a Spark failure that a person wants: the innermost Python exception, else the first line that names one."""
    python = re.findall(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Missing|Superseded|Exists)): (.+)$", trace, re.MULTILINE)
    for name, message in python:
        if name not in ("PythonException", "SparkException", "Py4JJavaError"):
            return f"{name}: {message.strip()}"[:500]
    if "ExecutorLostFailure" in trace:
        return "an executor died; see Spark's log beside the trace for why (out of memory is the usual reason)"
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    named = next((line for line in lines if re.search(r"(Exception|Error)\b", line)), None)
    return (named or (lines[0] if lines else "no reason given"))[:500]


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let processes started within write their standard error to a file: the JVM greets with warnings that are not for users."""
    sys.stderr.flush()
    saved = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


_store = RunStore()
_frozen = 0
FREEZES = 3


def _task(function: Callable[[EpochSpec, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], spec: EpochSpec) -> Any:
    return functools.partial(function, spec)


def _freeze() -> None:
    """PySpark collects garbage after every task: 130 ms with the objects of Numba and Arrow, next to nothing once they are frozen."""
    global _frozen  # noqa: PLW0603
    if _frozen < FREEZES:
        gc.collect()
        gc.freeze()
        _frozen += 1


def _warm(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    warm()
    _freeze()
    yield from batches


def _route(spec: EpochSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for index in batch.column(0).to_pylist():
            for piece in route(spec, index):
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([piece.task], pa.int32()),
                        pa.array([piece.area], pa.int32()),
                        pa.array([piece.side], pa.int32()),
                        _binary(piece.data),
                    ],
                    schema=PIECE_ARROW,
                )
    _freeze()


def _join(spec: EpochSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    report = join(spec, context.partitionId(), _pieces(batches), _store)
    report.worker = f"{socket.gethostname()}:{os.getppid()}"  # PySpark's daemon: one an executor
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], schema=REPORT_ARROW)
    _freeze()


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
    for batch in batches:
        task, area, side = (batch.column(index).to_pylist() for index in range(3))
        for index, value in enumerate(batch.column(3)):
            yield Piece(task[index], area[index], side[index], value.as_buffer())


def _binary(data: pa.Buffer) -> pa.Array:
    """A one-value binary array around a buffer, without a copy."""
    offsets = pa.py_buffer(b"\0\0\0\0" + data.size.to_bytes(4, "little"))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
