"""The Spark runner: one job of two stages per epoch, with each join task pinned to the executor that holds its runs.

How a task stays where its runs are: a cached one-row-per-task DataFrame, the *anchor*, is joined to the shuffled pieces, and Spark
prefers to run a partition where its cached part lies. Nothing rests on that but speed: a task that runs elsewhere finds the committed
token missing and reads its runs back.

Fixed costs were measured (``docs/benchmarks.md``); each setting below that looks odd says what it saves.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import EpochSpec, TaskReport
from streamjoin.runner import tasks
from streamjoin.runner.classes import Shared, leaving, shared
from streamjoin.runner.java import find_java

ID_SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"integer","nullable":true,"metadata":{}}]}'
LEAST_SLOTS = 2
"""Of a single partition Spark forgets how it was made, and shuffles both sides of the join with the anchor anew, into 200."""
PLACEMENTS = 3
"""How often the anchor is placed until no executor is left without a slot."""
QUEUE_SECONDS = 5.0
"""How long an epoch waits for the one that it follows to be queued before it."""
MOST_PLANS = 16
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:NewRatio=1"
"""On few cores the threads of the optimising compiler and of concurrent garbage collection take the work's cores: half of the driver's.
What pieces leave behind is garbage at once, so that half of the heap is for the young."""

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
    """None: what :func:`streamjoin.runner.java.find_java` finds."""
    registration_seconds: float = 120
    """So long a start waits for all executors; then it goes on with those that there are."""
    ui: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's settings over ours, for a master of its own."""
    classes_to: Path | None = None
    """Where the driver's Java leaves an archive of the classes that it has loaded, when it ends; none is used then."""


class SparkEpoch:
    """An epoch's job, in a thread of its own."""

    def __init__(self, future: Future[list[TaskReport]]) -> None:
        self._future = future

    def result(self) -> list[TaskReport]:
        """See :class:`streamjoin.epoch.ports.Running`."""
        return self._future.result()

    def cancel(self) -> None:
        """See :class:`streamjoin.epoch.ports.Running`. Nothing is ended: Spark ends a cancelled task's Python worker, and the runs of the
        epochs before with it."""
        wait([self._future])


class SparkRunner:
    """See the module. One Spark context a process; executors come and go while it lives.

    A worker is an executor, found by its id. The anchor has one partition, or *slot*, for each executor; the task of a worker runs as
    the partition that lies on the worker's executor. Whenever executors have come or gone, the anchor is placed anew between two epochs
    (about a second), which gives every executor some slot, and tasks follow their workers there.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._spark: Any = None
        self._sessions: Any = None
        self._anchor: Any = None
        self._slots: tuple[str, ...] = ()
        """By slot, the executor on which it lies."""
        self._executor_of: dict[int, str] = {}
        """By worker."""
        self._ending: set[str] = set()
        """Executors that were let go; Spark lists them until they have ended."""
        self._wanted = 0
        self._local: LocalWorkers | None = None
        self._warm: set[str] = set()
        """Executors that have loaded the kernels."""
        self._warming: Future[list[str]] | None = None
        self._lock = threading.Lock()
        """Of warming, as anybody may ask how many workers are ready, and of the plans, as two epochs are on their way."""
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="epoch")
        self._warmer = ThreadPoolExecutor(1, thread_name_prefix="warm")
        self._jobs = 0
        self._placings = 0
        self._plans: dict[tuple[Any, ...], Any] = {}
        """Of epochs, by the number of splits and where they are to be read; for this anchor."""

    @property
    def context(self) -> Any:
        """The live SparkContext."""
        return self._spark.sparkContext

    def start(self, workers: Sequence[int]) -> None:
        """Start an executor for each, load the kernels in them, and pin the anchor. Raises EpochFailed with Spark's reason."""
        try:
            if self._spark is None or len(self.executors()) != len(workers):
                self.stop()
                self._spark = self._session(len(workers))
                self._sessions = self._spark._jvm.org.apache.spark.sql.classic.SparkSession
                if self._settings.master is None:
                    self._local = LocalWorkers(self.context, len(workers), self._settings.executor_memory_mib)
            self._wanted, self._executor_of = len(workers), {}
            self._await_executors()
            if set(self._slots) != set(self.executors()):
                self._place(len(workers))
        except Exception as error:
            raise self._failure("Spark could not start", error) from error

    def _await_executors(self) -> None:
        """Else two tasks would share one. The first epoch would wait for them, too, whose input comes meanwhile."""
        if (self._settings.master or "").startswith("local["):  # it has none
            return
        deadline = time.monotonic() + self._settings.registration_seconds
        while len(self.executors()) < self._wanted and time.monotonic() < deadline:
            time.sleep(0.05)

    def request(self, count: int) -> None:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        self._wanted = max(count, len(self.executors()))
        if self._local is not None:
            self._local.provide(self._wanted)
        no_preference = _companion(self.context._jvm.scala.collection.immutable, "Map").empty()
        self.context._jsc.sc().requestTotalExecutors(self._wanted, 0, no_preference)

    @property
    def ready(self) -> int:
        """See :class:`streamjoin.epoch.ports.Runner`. New executors load the kernels meanwhile, a few seconds each."""
        with self._lock:
            if self._warming is not None and self._warming.done():
                if self._warming.exception() is None:
                    self._warm.update(self._warming.result())
                self._warming = None
            executors = self.executors()
            cold = [executor for executor in executors if executor not in self._warm]
            if cold and self._warming is None:
                self._warming = self._warmer.submit(self._load_kernels, cold)
            return len(executors) - len(cold)

    @property
    def overlaps(self) -> bool:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        return not self._misplaced()

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> SparkEpoch:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        if spec.follows is None and (self._misplaced() or len(workers) > len(self._slots)):
            try:
                self._place(max(len(workers), len(self.executors())))
            except Exception as error:
                if len(workers) > len(self._slots):
                    raise self._failure(f"epoch {spec.epoch}: tasks could not be placed", error) from error
                # They go on where they are, crowded.
        slots = self._slots_of(workers)
        warm = self._warm_among(self._slots)
        self._jobs += 1
        group = f"streamjoin-{self._jobs}"
        previous = f"streamjoin-{self._jobs - 1}" if spec.follows is not None else None
        return SparkEpoch(self._threads.submit(self._run, spec, slots, warm, group, previous))

    def release(self, workers: Sequence[int]) -> None:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        self._executor_of = {worker: executor for worker, executor in self._executor_of.items() if worker in workers}
        self._wanted = len(workers)
        kept = set(self._executor_of.values())
        spare = [executor for executor in self.executors() if executor not in kept]
        spare = spare[: max(0, len(kept) + len(spare) - len(workers))]
        if spare:
            # They get no more tasks from here on, and end some time later.
            self.context._jsc.sc().killExecutors(self.context._jvm.PythonUtils.toSeq(spare))
            self._ending.update(spare)

    def executors(self) -> tuple[str, ...]:
        """The ids of the executors that there are now, in order; none before Spark has started."""
        if self._spark is None:
            return ()
        text = self.context._jsc.sc().getExecutorIds().mkString(",")
        found = set(text.split(",")) if text else set()
        return tuple(sorted(found - self._ending, key=lambda name: (len(name), name)))

    def _misplaced(self) -> bool:
        """Whether there are as many executors as are wanted, all ready, and the anchor lies on others."""
        executors = self.executors()
        return len(executors) >= self._wanted and set(executors) != set(self._slots) and self.ready == len(executors)

    def _warm_among(self, slots: Sequence[str]) -> list[str]:
        """Where splits are to be read while executors are coming or loading the kernels, for which an epoch would wait. Else nothing."""
        executors = self.executors()
        settled = len(executors) >= self._wanted and self._warm.issuperset(executors)
        return [] if settled else [executor for executor in dict.fromkeys(slots) if executor in executors]

    def _place(self, slots: int) -> None:
        """Pin a slot to each executor: each has one core, and thus takes one task at a time. Nothing may be in flight."""
        from pyspark.sql import functions as F  # noqa: N812

        executors = self.executors()
        slots = max(LEAST_SLOTS, slots)
        self._plans.clear()
        for _ in range(PLACEMENTS):
            ids = self._spark.range(0, slots, 1, slots)
            self._placings += 1  # Spark takes a DataFrame that is made alike for the one that it has cached, and forgets both at once
            anchor = ids.select(F.col("id").cast("int").alias("task"), F.lit(self._placings).alias("placing"))
            anchor = anchor.repartitionById(slots, F.col("task")).persist()
            # A barrier's tasks run all at once, or not at all. Slots that must share executors take turns, as it happens.
            # count() rather than collect(): Spark looks anew where blocks lie when a stage that is not the last ends.
            anchor.mapInArrow(tasks.warm, "task int, placing int", barrier=slots <= len(executors)).count()
            lies = self.context._jsc.sc()
            rdd = anchor._jdf.queryExecution().toRdd()
            found = tuple(_executor_in(lies.getPreferredLocs(rdd, slot)) for slot in range(slots))
            if self._anchor is not None:
                self._anchor.unpersist()
            self._anchor, self._slots = anchor, found
            if "" not in self._slots and len(set(self._slots)) == min(slots, len(executors)):
                break
        self._warm.update(self._slots)

    def _slots_of(self, workers: Sequence[int]) -> tuple[int, ...]:
        """By task, the slot that it runs as. A worker that has no executor, or whose executor is gone, gets one that nobody has."""
        taken: dict[int, int] = {}
        for task, worker in enumerate(workers):
            executor = self._executor_of.get(worker)
            if executor in self._slots and self._slots.index(executor) not in taken.values():
                taken[task] = self._slots.index(executor)
        used = {self._slots[slot] for slot in taken.values()}
        free = [slot for slot in range(len(self._slots)) if slot not in taken.values()]
        free.sort(key=lambda slot: self._slots[slot] in used)
        unplaced = iter(free)
        slots = tuple(taken[task] if task in taken else next(unplaced) for task in range(len(workers)))
        self._executor_of |= {worker: self._slots[slot] for worker, slot in zip(workers, slots, strict=True)}
        return slots

    def _load_kernels(self, executors: list[str]) -> list[str]:
        """Load the kernels in these executors and no others. Takes seconds, in which epochs go on elsewhere."""
        at = located(self._spark, executors)
        # A shuffle as well, so that their Java has done once what an epoch does; its second half goes to who is idle, as they are.
        warmed = at.mapInArrow(tasks.warm, "id int").repartition(len(executors)).persist()
        try:
            warmed.mapInArrow(tasks.warm, "id int").count()
        finally:
            warmed.unpersist()
        return executors

    def _run(
        self, spec: EpochSpec, slots: tuple[int, ...], warm: list[str], group: str, previous: str | None
    ) -> list[TaskReport]:
        try:
            self.context.setJobGroup(group, f"epoch {spec.epoch}", interruptOnCancel=False)
            if previous is not None:
                self._wait_for_job(previous)
            self.context.setLocalProperty(tasks.WORK, tasks.packed(spec, slots))
            rows = self._job(len(spec.splits), warm).clone().executeCollect()
            found = [bytes(row.getBinary(0)) for row in rows]
        except Exception as error:
            raise self._failure(f"epoch {spec.epoch}", error) from error
        reports: list[TaskReport] = [pickle.loads(report) for report in found]  # noqa: S301 - written by the join tasks
        if sorted(report.task for report in reports) != list(range(len(slots))):
            raise EpochFailed(f"epoch {spec.epoch}: {len(reports)} of {len(slots)} tasks reported")
        return reports

    def _job(self, splits: int, warm: list[str]) -> Any:
        """Spark's physical plan of an epoch with so many splits, to be cloned for each: planning takes as long as a small epoch's tasks.

        What differs from epoch to epoch comes to the tasks as a local property (``tasks.WORK``).
        """
        from pyspark.sql import functions as F  # noqa: N812

        with self._lock:
            self._sessions.setActiveSession(self._spark._jsparkSession)  # of this thread
            key = (splits, *warm)
            if key not in self._plans:
                # whole-stage codegen off: blocks of bytes pass through, there is nothing to generate
                if warm:
                    source = located(self._spark, [warm[index % len(warm)] for index in range(splits)])
                else:
                    source = self._spark.range(0, splits, 1, max(1, splits))  # the first epoch of a plan may have no input
                pieces = source.mapInArrow(tasks.route_splits, tasks.PIECE_SCHEMA)
                shuffled = pieces.repartitionById(len(self._slots), F.col("task"))
                pinned = shuffled.join(self._anchor.hint("shuffle_hash"), "task", "left").select("task", "area", "side", "data")
                reports = pinned.mapInArrow(tasks.join_pieces, tasks.REPORT_SCHEMA)
                while len(self._plans) >= MOST_PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[key] = reports._jdf.queryExecution().executedPlan()
            return self._plans[key]

    def _wait_for_job(self, group: str) -> None:
        """Until the epoch in flight has its job, for Spark serves the older job first. Given up after a while: it may have failed."""
        tracker = self.context.statusTracker()
        deadline = time.monotonic() + QUEUE_SECONDS
        while not tracker.getJobIdsForGroup(group) and time.monotonic() < deadline:
            time.sleep(0.002)

    def stop(self) -> None:
        """End the executors and the context."""
        if self._spark is None:
            return
        application = self.context.applicationId
        if self._local is not None:
            self._local.stop()
        self._spark.stop()
        self._spark = self._sessions = self._anchor = self._local = self._warming = None
        self._slots, self._executor_of = (), {}
        self._plans.clear()
        self._warm.clear()
        self._ending.clear()
        home = os.environ.get("SPARK_HOME")
        if home:  # the standalone worker keeps executors' logs there, for ever
            shutil.rmtree(Path(home) / "work" / application, ignore_errors=True)

    def _session(self, workers: int) -> Any:
        from pyspark.find_spark_home import _find_spark_home
        from pyspark.sql import SparkSession

        settings = self._settings
        settings.log_directory.mkdir(parents=True, exist_ok=True)
        logging = settings.log_directory / "log4j2.properties"
        logging.write_text(LOG4J.format(path=settings.log_directory / "spark.log"))
        home = settings.java_home or find_java()
        os.environ["JAVA_HOME"] = str(home)
        os.environ["SPARK_HOME"] = _find_spark_home()
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        java = f"-Dlog4j2.configurationFile={logging.as_uri()}"
        if settings.classes_to is None:
            classes = dict.fromkeys(("driver", "executor"), shared(home))
        else:
            classes = {"driver": leaving(settings.classes_to), "executor": Shared()}
        options = {part: f"{JAVA_OPTIONS} {found.options}" for part, found in classes.items()}
        conf = {
            "spark.ui.enabled": str(settings.ui).lower(),
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": f"{settings.executor_memory_mib}m",
            "spark.executor.cores": "1",
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            # all three would move a task away from its runs; that of an executor that is gone goes elsewhere without waiting
            "spark.shuffle.reduceLocality.enabled": "false",
            "spark.sql.adaptive.enabled": "false",
            "spark.locality.wait": "1h",
            # while the anchor is placed an executor may be lost, for which Spark would wait ten minutes
            "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
            "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "5",
            "spark.shuffle.compress": "false",
            # the first only says later where corruption may come from; the second compares attempts of a task, and ours route alike
            "spark.shuffle.checksum.enabled": "false",
            "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            # pieces are megabytes each: many in one Arrow batch would pass its 2 GiB
            "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
            # over loopback TCP each Python stage loses 40 ms to a delayed acknowledgement
            "spark.python.unix.domain.socket.enabled": "true",
            # on this machine executors log where the driver does
            "spark.executor.extraJavaOptions": options["executor"] if settings.master else f"{options['executor']} {java}",
            # a long exception message overflows the default stack in Spark's own regular expressions and hides the cause
            "spark.driver.extraJavaOptions": f"{options['driver']} -Xss16m {java}",
            "spark.driver.memory": "1g",
        }
        conf |= {f"spark.{part}.extraClassPath": found.classpath for part, found in classes.items() if found.classpath}
        if settings.master is not None:
            conf["spark.executor.instances"] = str(workers)
        conf |= settings.conf
        master = settings.master or f"local-cluster[{workers},1,{settings.executor_memory_mib}]"
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


class LocalWorkers:
    """Spark's standalone workers in this process: each is room for one more executor on this machine.

    ``local-cluster`` starts as many as executors are asked for at first; these are those that come later.
    """

    def __init__(self, context: Any, count: int, memory_mib: int) -> None:
        self._context, self._count, self._memory_mib = context, count, memory_mib
        self._environments: list[Any] = []

    def provide(self, count: int) -> None:
        """Have room for so many executors."""
        jvm = self._context._jvm
        backend = self._context._jsc.sc().schedulerBackend()
        field = next(field for field in backend.getClass().getDeclaredFields() if field.getName().endswith("masters"))
        field.setAccessible(True)
        start = _companion(jvm.org.apache.spark.deploy.worker, "Worker").startRpcEnvAndEndpoint
        options = _companion(jvm.scala, "Option")
        host = jvm.org.apache.spark.util.Utils.localHostName()
        while self._count < count:
            self._count += 1
            configuration = self._context._jsc.sc().getConf().clone()
            self._environments.append(
                start(host, 0, 0, 1, self._memory_mib, field.get(backend), None, options.apply(self._count), configuration, options.empty())
            )

    def stop(self) -> None:
        for environment in self._environments:
            with contextlib.suppress(Exception):  # Java may be gone
                environment.shutdown()


def located(spark: Any, executors: Sequence[str]) -> Any:
    """A DataFrame (id int) with one row and partition for each of these executors, which Spark computes there."""
    from pyspark.sql import DataFrame

    context = spark.sparkContext
    jvm, gateway = context._jvm, context._gateway
    tag = _companion(jvm.scala.reflect, "ClassTag").apply(jvm.java.lang.Class.forName("org.apache.spark.sql.Row"))
    host = jvm.org.apache.spark.util.Utils.localHostName()
    rows = []
    for number, executor in enumerate(executors):
        values = gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = number
        place = jvm.PythonUtils.toSeq([f"executor_{host}_{executor}"])  # as TaskLocation writes itself
        rows.append(jvm.scala.Tuple2(jvm.org.apache.spark.sql.RowFactory.create(values), place))
    rdd = jvm.org.apache.spark.api.java.JavaRDD.fromRDD(context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(rows), tag), tag)
    schema = spark._jsparkSession.parseDataType(ID_SCHEMA)
    return DataFrame(spark._jsparkSession.createDataFrame(rdd, schema), spark)


def _companion(package: Any, name: str) -> Any:
    """A Scala object, by its class's name."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _executor_in(locations: Any) -> str:
    """The executor of the first of Spark's task locations, which are written ``executor_<host>_<id>``; empty where there is none."""
    for index in range(locations.size()):
        text = locations.apply(index).toString()
        if text.startswith("executor_"):
            return str(text.rsplit("_", 1)[1])
    return ""


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
