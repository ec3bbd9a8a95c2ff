"""The Spark runner: every worker is one Spark task that lives as long as the plan needs it.

Spark does what it is best at: it places workers on executors (pods), brings and ends executors, ships the code, and tells when one of them
is lost. An epoch is no Spark job: the driver hands it to the workers over connections that stay (``runner.pool``), and workers send pieces
to each other (``runner.exchange``).

A worker's place is held by a task of a job of its own, so that Spark's pages name each; the task starts the worker's process, and another
one when that dies (``runner.host``). A job whose executor is lost is submitted again. An executor has a core for each of the workers that
it may have at a time. On a machine of one's own Spark runs in one JVM, whose tasks are processes all the same: there, executors would be
JVMs that nothing runs in.

Always holds: on a cluster there are executors for all places, and one is ended only when no task runs on it and the others have room
for all places.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamjoin.elastic.deployment import executors_for
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import EpochSpec
from streamjoin.logs import Style, trace_path
from streamjoin.runner import host
from streamjoin.runner.attempt import Attempt
from streamjoin.runner.classes import Shared, leaving, make_later, shared
from streamjoin.runner.java import find_java, proxy_options
from streamjoin.runner.pool import Pool
from streamjoin.runner.security import Security
from streamjoin.runner.stderr import stderr_logged, stderr_to
from streamjoin.runner.user import name_for_java
from streamjoin.runner.worker import Settings

_log = logging.getLogger("streamjoin.spark")
LOCAL_TASKS = 1024
"""Tasks that a Spark of one JVM may run at a time: more than a machine has room for, as they are not the JVM's threads that work."""
PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Seconds before a job is submitted again, by how many have ended within ``YOUNG_SECONDS``, one after the other."""
YOUNG_SECONDS = 20.0
RETIRE_SECONDS = 1.0
"""How often executors are looked at that may not be needed any more."""
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java starts and keeps alive, and computes nothing: no optimising compiler, no collector beside the workers."""

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
    executor_memory_mib: int = 512
    """The heap of each executor's JVM, through which no tuple passes; on this machine, of the only one."""
    master: str | None = None
    """None: one JVM on this machine."""
    java_home: Path | None = None
    """None: what :func:`streamjoin.runner.java.find_java` finds."""
    workers_per_executor: int = 1
    """How many an executor has room for. One JVM has room for all."""
    registration_seconds: float = 120
    """The time that a start waits for workers at the most. Then it goes on with those that there are."""
    stabilization_seconds: float = 30
    """A start waits no longer once no other has come for so long, and those that there are have room for what is held."""
    patience_seconds: float = 20
    """The time that an epoch waits for a worker that is gone. Then another worker does its part as well."""
    ui: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's settings over ours, for a master of its own."""
    classes_to: Path | None = None
    """Where the driver's Java leaves an archive of the classes that it has loaded, when it ends; none is used then."""
    security: Security = field(default_factory=Security.fresh)
    """What driver and workers show each other."""
    address: str = "127.0.0.1"
    """Where the driver takes workers' calls, and on which port (0: any)."""
    port: int = 0
    worker_ports: tuple[int, ...] = (0,)
    """Where workers take each other's pieces."""
    style: Style | None = None
    """How Java writes its log to standard error. None: it writes ``spark_log``."""

    @property
    def spark_log(self) -> Path:
        return self.log_directory / "spark.log"


class SparkRunner:
    """See the module, and :class:`streamjoin.epoch.ports.Runner`. One Spark context a process; workers come and go while it lives."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._spark: Any = None
        self._pool: Pool | None = None
        self._hosts: SparkHosts | None = None

    @property
    def context(self) -> Any:
        """The live SparkContext."""
        return self._spark

    @property
    def pool(self) -> Pool:
        """The workers. Raises EpochFailed before the start."""
        if self._pool is None:
            raise EpochFailed("Spark has not been started", permanent=True)
        return self._pool

    @property
    def hosts(self) -> SparkHosts:
        """The hosts that hold the workers' places. They exist after the start."""
        assert self._hosts is not None
        return self._hosts

    def start(self, workers: Sequence[int], least: int = 1) -> None:
        """Start Spark and a worker for each, which load the kernels; go on with ``least`` or more of them where no other comes.

        Raises EpochFailed with Spark's reason."""
        self._begin(len(workers))
        self.pool.restart(workers)
        self.pool.await_connected(len(workers), self._settings.registration_seconds, least, self._settings.stabilization_seconds)

    def request(self, count: int) -> None:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        self._begin(count)
        self.pool.want(count)

    def _begin(self, workers: int) -> None:
        """Start Spark, with room for so many workers, where it has not been started."""
        try:
            if self._spark is None:
                self._start(workers)
        except Exception as error:
            raise self._failure("Spark could not start", error) from error

    @property
    def ready(self) -> int:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        return 0 if self._pool is None else self._pool.connected

    @property
    def absence(self) -> str | None:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        return None if self._pool is None else self._pool.absence

    @property
    def waits_for(self) -> tuple[str, ...]:
        return () if self._pool is None else self._pool.waits_for

    @property
    def moved_at(self) -> float:
        return float("-inf") if self._pool is None else self._pool.moved_at

    @property
    def overlaps(self) -> bool:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        return self._pool is not None and self._pool.settled

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Attempt:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        return self.pool.submit(spec, workers)

    @property
    def executors(self) -> dict[int, str]:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        return {} if self._pool is None else self._pool.executors

    @property
    def leaving(self) -> dict[int, float]:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        return {} if self._pool is None else self._pool.leaving

    def release(self, workers: Sequence[int], places: int | None = None) -> None:
        """See :class:`streamjoin.epoch.ports.Runner`."""
        self.pool.release(workers, places)

    def stop(self) -> None:
        """End the workers and the context."""
        if self._spark is None:
            return
        if self._hosts is not None:
            self._hosts.stop()
        if self._pool is not None:
            self._pool.close()
        self._end_context()
        if self._hosts is not None:
            self._hosts.join()
        self._spark = self._pool = self._hosts = None

    def _end_context(self) -> None:
        with contextlib.suppress(Exception):  # Java may be gone
            self._spark.stop()
        if self._settings.master is None and self._settings.classes_to is None:
            make_later(Path(os.environ["JAVA_HOME"]))

    def _start(self, workers: int) -> None:
        settings = self._settings
        self._spark = self._start_context(workers)
        self._pool = Pool(
            self._bring_hosts,
            settings.security,
            host=settings.address,
            port=settings.port,
            patience_seconds=settings.patience_seconds,
        )

    def _bring_hosts(self, pool: Pool) -> SparkHosts:
        self._hosts = SparkHosts(self.context, pool, self._settings)
        return self._hosts

    def _start_context(self, workers: int) -> Any:
        """A SparkContext and no session: SQL's classes, which nothing here calls, are neither loaded nor, in the image, there."""
        from pyspark import SparkConf, SparkContext
        from pyspark.find_spark_home import _find_spark_home

        settings = self._settings
        settings.log_directory.mkdir(parents=True, exist_ok=True)
        log4j = settings.log_directory / "log4j2.properties"
        log4j.write_text(LOG4J.format(path=settings.spark_log) if settings.style is None else settings.style.log4j)
        home = settings.java_home or find_java()
        os.environ |= name_for_java()
        os.environ["JAVA_HOME"] = str(home)
        os.environ["SPARK_HOME"] = _find_spark_home()
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        java = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
        proxies = " ".join(proxy_options(os.environ))
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
            "spark.executor.cores": str(settings.workers_per_executor),
            # a job that fails is submitted again by us, however often; Spark's own count would end it one day
            "spark.task.maxFailures": "1",
            # a worker's process is new for each job, so that it leaves nothing behind
            "spark.python.worker.reuse": "false",
            "spark.python.daemon.module": "streamjoin.runner.daemon",
            "spark.python.unix.domain.socket.enabled": "true",
            # on this machine executors log where the driver does
            "spark.executor.extraJavaOptions": options["executor"] if settings.conf else f"{options['executor']} {java}",
            # a long exception message overflows the default stack in Spark's own regular expressions and hides the cause
            "spark.driver.extraJavaOptions": f"{options['driver']} -Xss16m {java} {proxies}",
            "spark.driver.memory": f"{settings.executor_memory_mib}m",
        }
        conf |= {f"spark.{part}.extraClassPath": found.classpath for part, found in classes.items() if found.classpath}
        if settings.master is not None:
            conf["spark.executor.instances"] = str(executors_for(workers, settings.workers_per_executor))
        conf |= settings.conf
        conf |= {"spark.master": settings.master or f"local[{LOCAL_TASKS}]", "spark.app.name": "streamjoin"}
        with stderr_to(settings.spark_log) if settings.style is None else stderr_logged():
            context = SparkContext.getOrCreate(SparkConf().setAll(list(conf.items())))
        for name, value in ENVIRONMENT.items():
            context.environment.setdefault(name, value)
        _expect_end(context._accumulatorServer)
        return context

    def _failure(self, what: str, error: Exception) -> EpochFailed:
        trace = f"{error}"
        _log.warning("%s", what, extra={"fields": {"error": trace}})
        path = trace_path(self._settings.log_directory)
        path.write_text(trace)
        ended = java_ended(self._settings)
        return EpochFailed(f"{what}: {ended or cause_of(trace)} (trace: {path})", trace, permanent=ended is not None)


def _expect_end(server: Any) -> None:
    """Have PySpark's server of accumulators take it quietly that Java closes its connection: as Spark stops, an interrupted thread of
    Java does, now and then in the midst of an update. Nothing here has accumulators of its own; Spark's end is told by ``java_ended``."""
    tell = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | EOFError):
            tell(request, address)

    server.handle_error = handle_error


ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # a host forks: it must not have a pool of threads
    "MIMALLOC_PURGE_DELAY": "10000",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
"""Of processes that join. Their allocators, Arrow's and glibc's, keep what an epoch needed for the next one: to ask for new pages takes
some 5 % of the processor time (bench_allocators.py)."""


class SparkHosts:
    """Spark's tasks as hosts of workers (see :class:`streamjoin.runner.pool.Hosts`): a thread and a job for each place."""

    def __init__(self, context: Any, pool: Pool, settings: SparkSettings) -> None:
        self._context, self._pool, self._settings = context, pool, settings
        self._lock = threading.Lock()
        self._threads: dict[int, threading.Thread] = {}
        self._wanted: set[int] = set()
        self._leaving: dict[int, str] = {}
        """Places whose executors are to go, and these."""
        self._stopping = threading.Event()
        self._retirer: threading.Thread | None = None
        """None: there is one JVM, which stays."""
        if settings.master is not None and not re.match(r"local(\[|$)", settings.master):
            self._retirer = threading.Thread(target=self._retire, name="executors", daemon=True)
            self._retirer.start()

    def bring(self, place: int) -> None:
        """See :class:`streamjoin.runner.pool.Hosts`."""
        with self._lock:
            self._wanted.add(place)
            thread = self._threads[place] = threading.Thread(target=self._hold, args=(place,), name=f"place-{place}", daemon=True)
        self._scale()
        thread.start()

    def end(self, place: int) -> None:
        """See :class:`streamjoin.runner.pool.Hosts`."""
        with self._lock:
            self._wanted.discard(place)
            self._leaving.pop(place, None)
        self._cancel(place)
        self._scale()

    def leave(self, place: int, executor: str) -> None:
        """See :class:`streamjoin.runner.pool.Hosts`. To Spark the executor is decommissioned, so that it runs no other task there; the rest
        is ours to do."""
        with self._lock:
            self._leaving[place] = executor
        if self._retirer is None or self._stopping.is_set():
            return
        with contextlib.suppress(Exception):  # as in ``_scale``
            spark, nowhere = self._context._jvm.org.apache.spark, self._context._jvm.scala.Option.apply(None)
            why = spark.scheduler.ExecutorDecommissionInfo("it was told to go", nowhere)
            self._context._jsc.sc().schedulerBackend().decommissionExecutor(executor, why, False, True)
        self._scale()

    def replace(self, place: int) -> None:
        """See :class:`streamjoin.runner.pool.Hosts`. Spark kills a cancelled task's process."""
        self._cancel(place)

    def _cancel(self, place: int) -> None:
        if not self._stopping.is_set():
            with contextlib.suppress(Exception):  # Java may be gone, which ``lost`` says
                self._context.cancelJobGroup(_group(place))

    def lost(self) -> str | None:
        """See :class:`streamjoin.runner.pool.Hosts`."""
        return java_ended(self._settings)

    def stop(self) -> None:
        """Bring nothing any more: the context is about to end, and all jobs with it."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the threads, whose jobs have ended with the context."""
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(5)
        if self._retirer is not None:
            self._retirer.join(5)

    def _executors_needed(self) -> int:
        """Those for the places that stay, and those that leave and still have one."""
        with self._lock:
            staying = len(self._wanted - self._leaving.keys())
            return executors_for(staying, self._settings.workers_per_executor) + len(set(self._leaving.values()))

    def _scale(self) -> None:
        """Have Spark bring executors until there are enough for the places, and others for those that are lost. It ends none by this."""
        if self._retirer is None or self._stopping.is_set():
            return
        no_preference = getattr(self._context._jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
        with contextlib.suppress(Exception):  # Java may be gone, which ``lost`` says
            self._context._jsc.sc().requestTotalExecutors(self._executors_needed(), 0, no_preference)

    def _retire(self) -> None:
        """The thread that ends executors, until the hosts are stopped."""
        ending: set[str] = set()
        while not self._stopping.wait(RETIRE_SECONDS):
            with contextlib.suppress(Exception):  # as above
                self._end_surplus(ending)

    def _end_surplus(self, ending: set[str]) -> None:
        """End executors that are more than the places need and have none, and add them to those that are ``ending``. Spark tells which have
        none: it alone knows of places whose workers have yet to call."""
        backend, needed = self._context._jsc.sc().schedulerBackend(), self._executors_needed()
        there = backend.getExecutorIds()
        if there.size() <= needed:
            return
        here = {there.apply(index) for index in range(there.size())} - ending
        surplus = len(here) - needed
        for executor in here:
            if surplus <= 0:
                return
            # so many stay asked for; it is no failure; and no force: Spark passes over one on which a task runs
            if backend.killExecutors(self._context._jvm.PythonUtils.toSeq([executor]), False, False, False).size():
                ending.add(executor)
                surplus -= 1

    def _hold(self, place: int) -> None:
        """Keep the place, by one job after another."""
        worker = Settings(place, self._pool.address, self._settings.security, self._settings.worker_ports)
        young = 0
        while place in self._wanted and not self._stopping.is_set():
            started = time.monotonic()
            reason = self._occupy(place, worker)
            if place not in self._wanted or self._stopping.is_set() or self.lost() is not None:
                break
            self._pool.place_died(place, reason)
            young = young + 1 if time.monotonic() - started < YOUNG_SECONDS else 0
            self._stopping.wait(PAUSES[min(young, len(PAUSES) - 1)])
        with self._lock:
            self._threads.pop(place, None)

    def _occupy(self, place: int, worker: Settings) -> str:
        """Have a host at the place, and return why it ended, once it has."""
        return self._run_job(place, worker, host.hold) or "it ended"

    def _run_job(self, place: int, worker: Settings, task: Callable[[Settings], object]) -> str | None:
        """Run a task of the place's; why it failed."""
        try:
            self._context.setJobGroup(_group(place), f"worker {place}", interruptOnCancel=True)
            self._context.parallelize([worker], 1).foreach(task)
        except Exception as error:
            return cause_of(str(error))
        return None


def _group(place: int) -> str:
    return f"streamjoin-worker-{place}"


def java_ended(settings: SparkSettings) -> str | None:
    """A sentence that says that Spark's Java process is gone, without which nothing can be tried again. None while it is there."""
    from pyspark import SparkContext

    code = SparkContext._gateway.proc.poll() if SparkContext._gateway is not None else None
    log = settings.spark_log if settings.style is None else "the log"
    return None if code is None else f"Spark's Java process has ended with code {code}; if {log} does not say why, it ran out of memory"


def cause_of(trace: str) -> str:
    """The one line of a Spark failure that a person wants: the innermost Python exception, else the first line that names one."""
    named_as = "Error|Exception|Missing|Superseded|Exists|Failed"
    python = re.findall(rf"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:{named_as})): (.+)$", trace, re.MULTILINE)
    for name, message in python:
        if name not in ("PythonException", "SparkException", "Py4JJavaError"):
            return f"{name}: {message.strip()}"[:500]
    if "ExecutorLostFailure" in trace:
        return "an executor died; see Spark's log beside the trace for why (out of memory is the usual reason)"
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    named = next((line for line in lines if re.search(r"(Exception|Error)\b", line)), None)
    return (named or (lines[0] if lines else "no reason given"))[:500]
