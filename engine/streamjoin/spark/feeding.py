"""Reads and writes, by Spark, what a join reads and writes as ``spark``: a program beside the join's driver.

It is told what to do on its standard input, in one line of JSON (``api.feeds``), and ends when that is closed; so it does not outlive the
driver. On its standard output it tells of trouble, and that all is done that was asked for, in a line of JSON each. Where Spark itself
cannot start, the exit code is 1; where something can never be read or written, as its format or its query is wrong, 3.

Each stream and each output is one query of Spark's, which keeps its state in the checkpoint. A stream is staged (``spark.staging``): what
is read once is micro-batch 0. An output is the stream of its snapshots (``spark.source``). A query that fails begins anew, from where it
was, after growing pauses. So it makes no difference where this program dies.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from streamjoin.api.feeds import IMPOSSIBLE, PAUSES, Feed, Input, Order, Output
from streamjoin.io import staged
from streamjoin.io.references import resolved
from streamjoin.kernel.types import arrow_schema
from streamjoin.language.ddl import parse_schema
from streamjoin.manifest.connectors.spark import INPUT
from streamjoin.spark.keys import column_sql
from streamjoin.spark.source import FORMAT, StreamJoinSource
from streamjoin.spark.staging import INTERVAL, Query, Staging, for_spark, in_one_line, said, stage
from streamjoin.state.storage import ObjectStorage

LOOK_SECONDS = 0.1
ONCE = "once"
"""The query that stages what is read once."""
ROWWISE = (
    *("CTERelationDef", "CTERelationRef", "EventTimeWatermark", "Filter", "Generate", "Join", "Project", "ResolvedHint"),
    *("StreamingDataSourceV2Relation", "StreamingRelation", "StreamingRelationV2", "SubqueryAlias", "Union", "View", "WithCTE"),
)
"""The parts of a plan over a stream that keep nothing of a row for the next."""


class ImpossibleError(Exception):
    """Something that can never be read or written as it stands in the manifest. The text has the field and the remedy."""


def tell(**what: object) -> None:
    """Have the driver know."""
    print(json.dumps(what), flush=True)


class Going(ABC):
    """A query of Spark's that begins anew when it fails, until all is done."""

    def __init__(self, field: str) -> None:
        self.is_over = False
        self._field = field
        self._query: Query | None = None
        self._failures, self._reached, self._again_at = 0, -1, float("-inf")

    def step(self) -> None:
        """Begin what is to begin, and see what has ended. Raises ImpossibleError."""
        if self._query is None:
            if not self.is_over and time.monotonic() >= self._again_at:
                try:
                    self._query = self.begin()
                except ImpossibleError:
                    raise
                except Exception as error:
                    self._failed(said(error))
                else:
                    self.is_over = self._query is None
            return
        is_active = self._query.is_active  # asked first, as it may fail in between, and one that has failed is not over
        if self._query.failure is not None:
            self._failed(self._query.failure)
        elif not is_active:
            self._query, self.is_over = None, True
            self.end()

    @abstractmethod
    def begin(self) -> Query | None:
        """Begin; None: all is done. Raises ImpossibleError, and what Spark raises."""

    @abstractmethod
    def reached(self) -> int:
        """A number that grows as micro-batches are done."""

    def end(self) -> None:  # noqa: B027 - most have nothing to do
        """The query is done with all that was there."""

    def _failed(self, why: str) -> None:
        reached = self.reached()
        self._failures = 1 if reached > self._reached else self._failures + 1
        self._reached = max(reached, self._reached)
        pause = PAUSES[min(self._failures, len(PAUSES)) - 1]
        tell(field=self._field, error=f"{why}; it begins again in {pause:.0f} s")
        self._query, self._again_at = None, time.monotonic() + pause


class Fed(Going):
    """A stream that is read."""

    def __init__(self, feed: Feed, session: Any, *, available_now: bool) -> None:
        super().__init__(feed.field)
        self._feed, self._session, self._available_now = feed, session, available_now
        self._storage = ObjectStorage(feed.staging)

    def begin(self) -> Query | None:
        feed = self._feed
        frame = framed(self._session, feed)
        try:
            if not feed.streaming:
                _read_once(self._storage, feed, frame)
                return None
            staging = Staging(feed.name, frame, feed.schema, feed.staging, f"{for_spark(feed.staging)}/query")
            return staging.start(available_now=self._available_now)
        except staged.StagedError as error:
            raise ImpossibleError(f"{feed.field}: {error}") from None

    def reached(self) -> int:
        return max(staged.numbers(self._storage), default=-1)

    def end(self) -> None:
        staged.end(self._storage)


class Written(Going):
    """Results that are written."""

    def __init__(self, output: Output, session: Any, *, available_now: bool) -> None:
        super().__init__(output.field)
        self._output, self._session, self._available_now = output, session, available_now
        self._batch = -1

    def begin(self) -> Query:
        output, session, failures = self._output, self._session, list[str]()
        session.dataSource.register(StreamJoinSource)
        reading = session.readStream.format(FORMAT).option("manifestText", output.manifest).option("join", output.name)
        frame = reading.load().select(*(column_sql([name]) for name in output.columns))
        target = _target(session, output.format, output.field)
        options = resolved(output.options.items(), f"{output.field}.options", "the driver runs", ImpossibleError)
        writing = frame.writeStream.queryName(f"streamjoin writes {output.name}").option("checkpointLocation", for_spark(output.state))
        if output.streaming and isinstance(target, str):
            writing = writing.format(target).options(**options)
        else:
            writing = writing.foreachBatch(partial(self._take, failures, target, options))
        writing = writing.trigger(availableNow=True) if self._available_now else writing.trigger(processingTime=INTERVAL)
        try:
            return Query(output.name, writing.start(), failures)
        except Exception as error:
            raise ImpossibleError(f"{output.field}: {said(error)}; correct it, or set streaming to false") from None

    def reached(self) -> int:
        return self._batch

    def _take(
        self, failures: list[str], target: str | Callable[[Any, int], object], options: Mapping[str, str], frame: Any, number: int
    ) -> None:
        """Called by Spark."""
        with in_one_line(failures, f"{self._output.name}: micro-batch {number}"):
            if isinstance(target, str):
                frame.write.format(target).options(**options).mode("append").save()
            else:
                target(frame, number)
            self._batch = number


def _read_once(storage: ObjectStorage, feed: Feed, frame: Any) -> None:
    staged.claim(storage, staged.Stream(ONCE, feed.schema))
    if not staged.has_ended(storage):
        stage(storage, 0, frame, arrow_schema(parse_schema(feed.schema)))
        staged.end(storage)


def framed(session: Any, feed: Feed) -> Any:
    """The declared columns of what a feed's query gives. Raises ImpossibleError where that cannot be."""
    where = feed.field
    try:
        frame = _loaded(session, feed.input, where, streaming=feed.streaming)
        for name, view in feed.views.items():
            _loaded(session, view, f"{where}.views.{name}", streaming=False).createOrReplaceTempView(name)
        if feed.query is not None:
            frame.createOrReplaceTempView(INPUT)
            where = f"{where}.query"
            frame = session.sql(feed.query)
        if feed.streaming:
            _require_rowwise(frame, where)
        return _declared(session, frame, feed)
    except ImpossibleError:
        raise
    except Exception as error:
        raise ImpossibleError(f"{where}: {said(error)}") from None


def _loaded(session: Any, given: Input, where: str, *, streaming: bool) -> Any:
    options = resolved(given.options.items(), f"{where}.options", "the driver runs", ImpossibleError)
    name = _target(session, given.format, where)
    if not isinstance(name, str):
        raise ImpossibleError(f"{where}.format: {given.format}: is a function, and only results are given to one; name a data source")
    reader = (session.readStream if streaming else session.read).format(name).options(**options)
    return (reader if given.columns is None else reader.schema(given.columns)).load()


def _target(session: Any, name: str, where: str) -> str | Callable[[Any, int], object]:
    """What a format's name means: a format, or a function of a program's."""
    module, is_python, attribute = name.partition(":")
    if not is_python:
        return name
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ImpossibleError(f"{where}.format: {name}: {error}; give module:Class of a module that the driver can import") from None
    if not isinstance(found, type):
        return found  # type: ignore[no-any-return]
    session.dataSource.register(found)
    return str(found.name())  # type: ignore[attr-defined]


def _declared(session: Any, frame: Any, feed: Feed) -> Any:
    """The columns that the stream declares, with the types that it declares."""
    found = {item.name.casefold(): item for item in frame.schema.fields}
    wanted = session.createDataFrame([], feed.schema).schema.fields
    for item in wanted:
        there = found.get(item.name.casefold())
        if there is None:
            has = ", ".join(frame.columns)
            raise ImpossibleError(f"{feed.field}: has no column {item.name}, which the schema declares; it has {has}")
        if there.dataType != item.dataType:
            kinds = there.dataType.simpleString().upper(), item.dataType.simpleString().upper()
            remedy = f"declare {kinds[0]}, or let query have CAST({column_sql([item.name])} AS {kinds[1]})"
            raise ImpossibleError(f"{feed.field}: {item.name} is {kinds[0]}, and the schema declares {kinds[1]}; {remedy}")
    return frame.select(*(column_sql([item.name]) for item in wanted))


def _require_rowwise(frame: Any, where: str) -> None:
    """Raises ImpossibleError for a query that keeps state over the rows of the stream."""
    if not frame.isStreaming:
        raise ImpossibleError(f"{where}: does not read {INPUT}, the stream; select from it, or set streaming to false")
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        kind = node.getClass().getSimpleName()
        streams = sum(child.isStreaming() for child in _children(node))
        if node.isStreaming() and (kind not in ROWWISE or (kind == "Join" and streams > 1)):
            what = "a join of the stream with itself" if kind == "Join" else kind
            raise ImpossibleError(f"{where}: has {what}, which keeps state over the rows of a stream; give columns and conditions of rows")


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _children(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(number) for number in range(children.size())]


def _session(order: Order) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("streamjoin feeds")
    for name, value in order.conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _listen(is_asked: threading.Event) -> None:
    for _ in sys.stdin:
        is_asked.set()
    os._exit(0)  # Java ends with us


def main() -> int:
    order = Order.from_json(sys.stdin.readline())
    is_asked = threading.Event()
    threading.Thread(target=_listen, args=(is_asked,), daemon=True).start()
    try:
        session = _session(order)
    except Exception as error:
        tell(field="spec.spark", error=f"Spark could not start: {said(error)}")
        return 1
    now = order.available_now
    feds = [Fed(feed, session.newSession(), available_now=now) for feed in order.feeds]
    written: list[Written] | None = None
    try:
        while True:
            if written is None and (is_asked.is_set() or not now):
                is_asked.clear()
                written = [Written(output, session.newSession(), available_now=now) for output in order.outputs]
            for going in (*feds, *(written or [])):
                going.step()
            if now and written is not None and all(going.is_over for going in written):
                written = None
                tell(done=True)
            time.sleep(LOOK_SECONDS)
    except ImpossibleError as error:
        tell(field="", error=str(error))
        return IMPOSSIBLE


if __name__ == "__main__":
    sys.exit(main())
