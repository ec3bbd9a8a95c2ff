"""A Spark session as a user has one, for tests of ``streamjoin.spark``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamjoin.runner.java import JavaNotFound, find_java
from streamjoin.runner.spark import JAVA_OPTIONS


@contextmanager
def user_session(name: str, warehouse: Path, *, partitions: int) -> Iterator[Any]:
    """``partitions``: of a shuffle. Skips the test where there is no Java."""
    try:
        home = find_java()
    except JavaNotFound as missing:
        pytest.skip(f"{missing}; make setup")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        builder = SparkSession.builder.master("local[2]").appName(name).config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.shuffle.partitions", str(partitions)).config("spark.sql.session.timeZone", "UTC")
        builder = builder.config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        session = builder.config("spark.sql.warehouse.dir", str(warehouse)).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        gateway.shutdown()  # other tests start a Java with settings of their own


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
