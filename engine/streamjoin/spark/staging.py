"""Stages a streaming DataFrame for a join, micro-batch by micro-batch (:mod:`streamjoin.io.staged`).

Executors write the rows as files; the driver then creates the batch's entry, exclusively. Spark commits the batch after that. So of a batch
that Spark does again the entry is there, and whatever its rows are this time, those of the first time count.
"""

from __future__ import annotations

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
from streamjoin.spark.keys import column_sql
from streamjoin.state.storage import ObjectStorage

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

    def start(self, *, available_now: bool) -> Any:
        """The query that stages: all that is there now, and then it ends, or whatever comes. Raises StagedError, and what Spark raises."""
        writing = self.frame.writeStream.queryName(f"streamjoin stages {self.name} in {self.root}").foreachBatch(partial(_stage, self))
        writing = writing.option("checkpointLocation", self.query_checkpoint)
        query = (writing.trigger(availableNow=True) if available_now else writing.trigger(processingTime=INTERVAL)).start()
        try:
            staged.claim(ObjectStorage(self.root), staged.Stream(query.id, self.schema))
        except BaseException:
            query.stop()
            raise
        return query

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


def _stage(side: Staging, frame: Any, number: int) -> None:
    storage = ObjectStorage(side.root)
    query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    staged.claim(storage, staged.Stream(query, side.schema))
    if staged.batch(storage, number) is None:
        written = _mapped(frame, _Write(side.root, number, arrow_schema(parse_schema(side.schema))), WRITTEN).collect()
        staged.commit(storage, number, [(row["path"], row["bytes"]) for row in written])


def _mapped(frame: Any, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str) -> Any:
    """As ``frame.mapInArrow``, which asks for pandas, although neither it nor this needs that."""
    udf = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    mapped = frame._jdf.mapInArrow(udf(*(frame[column_sql([column])] for column in frame.columns))._jc, False, None)
    return DataFrame(mapped, frame.sparkSession)
