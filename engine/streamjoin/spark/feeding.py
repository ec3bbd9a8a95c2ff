"""Reads, by Spark, the streams of a join whose source is ``spark``, and stages what it reads: a program beside the join's driver.

It is told what to read on its standard input, in one line of JSON (:class:`Feed`), and ends when that is closed; so it does not outlive the
driver. On its standard output it tells what fails, a line of JSON each. Where Spark itself cannot start, the exit code is 1; where a
stream can never be read, as its format or its query is wrong, 3.

Each stream is one query of Spark's, which keeps its state beside what it stages (``spark.staging``). A query that fails begins anew, from
where it was, after growing pauses. A stream that is read once is micro-batch 0. What is staged is whole or not there, by an exclusive
commit for each micro-batch, so it makes no difference where this program dies.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from streamjoin.io import staged
from streamjoin.io.references import resolved
from streamjoin.kernel.types import arrow_schema
from streamjoin.language.ddl import parse_schema
from streamjoin.manifest.connectors.spark import INPUT
from streamjoin.spark.keys import column_sql
from streamjoin.spark.staging import Query, Staging, for_spark, said, stage
from streamjoin.state.storage import ObjectStorage

LOOK_SECONDS = 0.1
PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a query that has failed begins anew, by how often it has since a micro-batch came."""
IMPOSSIBLE = 3
ONCE = "once"
"""The query that stages what is read once."""
ROWWISE = (
    *("CTERelationDef", "CTERelationRef", "EventTimeWatermark", "Filter", "Generate", "Join", "Project", "ResolvedHint"),
    *("StreamingDataSourceV2Relation", "StreamingRelation", "StreamingRelationV2", "SubqueryAlias", "Union", "View", "WithCTE"),
)
"""The parts of a plan over a stream that keep nothing of a row for the next."""


@dataclass(frozen=True)
class Input:
    """What Spark reads."""

    format: str
    options: Mapping[str, str]
    """As the manifest has them."""
    columns: str | None = None
    """As Spark DDL. None: the format says what there is."""


@dataclass(frozen=True)
class Feed:
    """A stream, and where it is staged."""

    name: str
    field: str
    """The source's, in the manifest."""
    schema: str
    """As declared."""
    staging: str
    input: Input
    streaming: bool
    query: str | None
    views: Mapping[str, Input]


@dataclass(frozen=True)
class Order:
    """What this program is to do."""

    feeds: Sequence[Feed]
    conf: Mapping[str, str]
    available_now: bool
    """Read what is there now, and end."""

    @classmethod
    def from_json(cls, text: str) -> Order:
        value = json.loads(text)
        feeds = [
            Feed(**{**each, "input": Input(**each["input"]), "views": {name: Input(**view) for name, view in each["views"].items()}})
            for each in value["feeds"]
        ]
        return cls(feeds, value["conf"], value["available_now"])


class ImpossibleError(Exception):
    """A stream that can never be read as it is written. The text has the field and the remedy."""


def told(what: str, *, field: str = "") -> None:
    """Have the driver know of trouble."""
    print(json.dumps({"field": field, "error": what}), flush=True)


@dataclass
class Fed:
    """One stream, while it is read."""

    feed: Feed
    session: Any
    available_now: bool
    query: Query | None = None
    is_over: bool = False
    _failures: int = 0
    _newest: int = -1
    _again_at: float = field(default=float("-inf"))

    def step(self) -> None:
        """Begin what is to begin, and see what has ended. Raises ImpossibleError."""
        storage = ObjectStorage(self.feed.staging)
        if self.query is None:
            if not self.is_over and time.monotonic() >= self._again_at:
                self._begin(storage)
        elif self.query.failure is not None:
            self._failed(self.query.failure)
        elif not self.query.is_active:
            self.query, self.is_over = None, True
            staged.end(storage)

    def _begin(self, storage: ObjectStorage) -> None:
        feed = self.feed
        frame = framed(self.session, feed)
        try:
            if feed.streaming:
                staging = Staging(feed.name, frame, feed.schema, feed.staging, f"{for_spark(feed.staging)}/query")
                self.query = staging.start(available_now=self.available_now)
            else:
                _read_once(storage, feed, frame)
                self.is_over = True
        except staged.StagedError as error:
            raise ImpossibleError(f"{feed.field}: {error}") from None
        except Exception as error:
            self._failed(said(error))

    def _failed(self, why: str) -> None:
        newest = max(staged.numbers(ObjectStorage(self.feed.staging)), default=-1)
        self._failures = 1 if newest > self._newest else self._failures + 1
        self._newest = max(newest, self._newest)
        pause = PAUSES[min(self._failures, len(PAUSES)) - 1]
        told(f"{why}; it is read again in {pause:.0f} s", field=self.feed.field)
        self.query, self._again_at = None, time.monotonic() + pause


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
    name, python = given.format, given.format.partition(":")
    if python[1]:
        try:
            source = getattr(import_module(python[0]), python[2])
        except (ImportError, AttributeError) as error:
            raise ImpossibleError(f"{where}.format: {name}: {error}; give module:Class of a module that the driver can import") from None
        session.dataSource.register(source)
        name = source.name()
    reader = (session.readStream if streaming else session.read).format(name).options(**options)
    return (reader if given.columns is None else reader.schema(given.columns)).load()


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


def _end_with_standard_input() -> None:
    sys.stdin.read()
    os._exit(0)  # Java ends with us


def main() -> int:
    order = Order.from_json(sys.stdin.readline())
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    try:
        session = _session(order)
    except Exception as error:
        told(f"Spark could not start: {said(error)}")
        return 1
    feds = [Fed(feed, session.newSession(), order.available_now) for feed in order.feeds]
    try:
        while not order.available_now or not all(fed.is_over for fed in feds):
            for fed in feds:
                fed.step()
            time.sleep(LOOK_SECONDS)
    except ImpossibleError as error:
        told(str(error))
        return IMPOSSIBLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
