"""A Spark session as a user has one, for tests of ``streamjoin.spark``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamjoin.runner.classes import shared
from streamjoin.runner.java import JavaNotFound, find_java
from streamjoin.runner.spark import JAVA_OPTIONS


class UserSpark:
    """One session for the files of tests that have one: to start Java takes five seconds of a core. It ends before a test that has none,
    which may start a Java with settings of its own."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._running = ExitStack()
        self._session: Any = None

    def session(self, *, partitions: int) -> Any:
        """``partitions``: of a shuffle. Skips the test where there is no Java."""
        if self._session is None:
            self._session = self._running.enter_context(_started(self._warehouse))
        self._session.conf.set("spark.sql.shuffle.partitions", partitions)
        return self._session

    def end(self) -> None:
        self._session = None
        self._running.close()


@contextmanager
def _started(warehouse: Path) -> Iterator[Any]:
    try:
        home = find_java()
    except JavaNotFound as missing:
        pytest.skip(f"{missing}; make setup")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    classes = shared(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        builder = SparkSession.builder.master("local[2]").appName("user").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.extraClassPath", classes.classpath)
        builder = builder.config("spark.driver.extraJavaOptions", f"{JAVA_OPTIONS} {classes.options}")
        session = builder.config("spark.sql.warehouse.dir", str(warehouse)).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        gateway.shutdown()


class Started:
    """A streaming query. It is begun again where a Python of Spark's own, which reads a source, had not started within the ten seconds that
    Spark gives it (``PythonWorkerFactory``; no setting changes that): a busy machine may need more.
    """

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin, self._query = begin, begin()

    def stop(self) -> None:
        self._query.stop()

    def processAllAvailable(self) -> None:
        self._until_begun(lambda: self._query.processAllAvailable())

    def awaitTermination(self, timeout: float) -> bool:
        return bool(self._until_begun(lambda: self._query.awaitTermination(timeout)))

    def goes_on(self) -> bool:
        """Raises what it has failed of."""

        def look() -> bool:
            failure = self._query.exception()
            if failure is not None:
                raise failure
            return True

        return bool(self._until_begun(look))

    def _until_begun(self, do: Callable[[], Any]) -> Any:
        from pyspark.errors import StreamingQueryException

        while True:
            try:
                return do()
            except StreamingQueryException as failure:
                if "Python worker failed to connect back" not in str(failure):
                    raise
                self._query = self._begin()
