"""Stages a streaming DataFrame for a join, micro-batch by micro-batch (:mod:`streamjoin.io.staged`).

Executors write the rows as files; the driver then creates the batch's entry, exclusively. Spark commits the batch after that. So of a batch
that Spark does again the entry is there, and whatever its rows are this time, those of the first time count.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from streamjoin.io import staged
from streamjoin.kernel.types import arrow_schema
from streamjoin.language.ddl import parse_schema
from streamjoin.location import is_url
from streamjoin.spark.keys import column_sql
from streamjoin.state.storage import ObjectStorage

LOG = logging.getLogger("streamjoin")
WRITTEN = "path STRING, bytes BIGINT"
INTERVAL = "100 milliseconds"
"""How often Spark looks whether there is more; a micro-batch that takes longer is followed by the next at once."""
QUERY_ID = "sql.streaming.queryId"
"""A local property of the thread in which Spark hands a batch over."""


@dataclass(frozen=True)
class Staging:
    """One side of a join."""

    name: str
    """left or right."""
    frame: Any
    schema: str
    """Its columns, as Spark DDL."""
    root: str
    """Where it is staged: a place."""
    query_checkpoint: str
    """Where Spark keeps the state of its query: a place, for Spark."""

    def start(self, *, available_now: bool) -> Query:
        """The query that stages: all that is there now, and then it ends, or whatever comes. Raises StagedError, and what Spark raises."""
        failures: list[str] = []
        take = partial(_take, self, failures)
        writing = self.frame.writeStream.queryName(f"streamjoin stages {self.name} in {self.root}").foreachBatch(take)
        writing = writing.option("checkpointLocation", self.query_checkpoint)
        query = (writing.trigger(availableNow=True) if available_now else writing.trigger(processingTime=INTERVAL)).start()
        try:
            staged.claim(ObjectStorage(self.root), staged.Stream(query.id, self.schema))
        except BaseException:
            query.stop()
            raise
        return Query(self.name, query, failures)

    def newest(self) -> int:
        """The number of the last batch with rows that is staged and not removed; -1: there is none."""
        storage = ObjectStorage(self.root)
        with_rows = (number for number in reversed(staged.numbers(storage)) if (found := staged.batch(storage, number)) and found.files)
        return next(with_rows, -1)


@dataclass(frozen=True)
class _Write:
    """What a task does with the rows of its partition."""

    root: str
    number: int
    schema: pa.Schema

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for path, nbytes in staged.write(ObjectStorage(self.root), self.number, rows, self.schema):
            yield pa.RecordBatch.from_pydict({"path": [path], "bytes": [nbytes]})


class BatchFailed(RuntimeError):  # noqa: N818
    """A micro-batch could not be staged, or written."""


@dataclass(frozen=True)
class Query:
    """A query that stages."""

    name: str
    """The side's."""
    query: Any
    """Spark's."""
    failures: list[str]

    @property
    def is_active(self) -> bool:
        return bool(self.query.isActive)

    @property
    def failure(self) -> str | None:
        """Why it has failed, in one line; None: it has not."""
        if self.failures:
            return self.failures[0]
        error = self.query.exception()
        return None if error is None else said(error)

    def stop(self) -> None:
        """End it, wherever it is. Raises nothing."""
        with contextlib.suppress(Exception):  # the session may have ended
            self.query.stop()


def said(error: BaseException) -> str:
    """What an error of Spark's says, in one line: the innermost of Python's errors where there is one."""
    text = str(error).partition("=== Streaming Query ===")[0]
    of_python = re.findall(r"^[\w.]+: .+$", text.partition("Traceback")[2], re.MULTILINE)
    of_java = re.search(r"\AAn error occurred while calling .*\n: (?:[\w.$]+: )?(.+)", text)
    line = of_python[-1] if of_python else of_java[1] if of_java else text.partition("terminated with exception: ")[2] or text
    return (line.strip().split("\n", 1)[0] or type(error).__name__)[:500]


@contextlib.contextmanager
def in_one_line(failures: list[str], what: str) -> Iterator[None]:
    """Around what Spark calls for a micro-batch: it is told of a failure in one line, as a longer text overflows the stack of its regular
    expressions, and then the query ends as if nothing were wrong. ``what``: for the log. Raises BatchFailed."""
    try:
        yield
    except Exception as error:
        failures.append(said(error))
        LOG.debug("%s", what, exc_info=True)
        raise BatchFailed(failures[0]) from None


def _take(side: Staging, failures: list[str], frame: Any, number: int) -> None:
    """Called by Spark."""
    with in_one_line(failures, f"{side.name}: micro-batch {number}"):
        storage = ObjectStorage(side.root)
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        staged.claim(storage, staged.Stream(query, side.schema))
        stage(storage, number, frame, arrow_schema(parse_schema(side.schema)))


def stage(storage: ObjectStorage, number: int, frame: Any, schema: pa.Schema) -> None:
    """Stage the rows of a frame that is no stream as this micro-batch, unless it is staged already. Raises StorageError, and what Spark
    raises."""
    if staged.batch(storage, number) is None:
        written = _mapped(frame, _Write(storage.url, number, schema), WRITTEN).collect()
        staged.commit(storage, number, [(row["path"], row["bytes"]) for row in written])


def for_spark(root: str) -> str:
    """As Hadoop's file systems name a place."""
    return root.replace("s3://", "s3a://", 1) if is_url(root) else f"file://{root}"


def _mapped(frame: Any, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str) -> Any:
    """As ``frame.mapInArrow``, which asks for pandas, although neither it nor this needs that."""
    udf = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    mapped = frame._jdf.mapInArrow(udf(*(frame[column_sql([column])] for column in frame.columns))._jc, False, None)
    return DataFrame(mapped, frame.sparkSession)
