"""Counts the queries and followers of this process, for Prometheus: on the driver's page, or on that of a query server by itself.

Always holds: each query is counted once, as answered or as failed, when it is over.
"""

from __future__ import annotations

import contextlib
import platform
import threading
import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from streamjoin import __version__
from streamjoin.query.errors import QueryError, Why
from streamjoin.serve.catalogue import QUERIES
from streamjoin.serve.page import Page, family, histogram


class QueryMetrics:
    """See the module. Any thread may call it."""

    def __init__(self, name: str) -> None:
        """``name``: the StreamJoin's."""
        self._name = name
        self._lock = threading.Lock()
        self._running = self._answered = self._read_bytes = self._followers = self._rows = self._cut_off = 0
        self._failures = dict.fromkeys(Why, 0)
        self._seconds = histogram("streamjoin_query_duration_seconds")
        self._seconds.labels(name)

    @contextlib.contextmanager
    def query(self) -> Iterator[None]:
        """A context around the answer to a query, which counts it. The error that it raises is the reason of the failure."""
        began = time.monotonic()
        with self._lock:
            self._running += 1
        try:
            yield
        except QueryError as error:
            self.failed(error.why)
            raise
        else:
            with self._lock:
                self._answered += 1
        finally:
            with self._lock:
                self._running -= 1
                self._seconds.labels(self._name).observe(time.monotonic() - began)

    def failed(self, why: Why) -> None:
        with self._lock:
            self._failures[why] += 1

    def read(self, nbytes: int) -> None:
        with self._lock:
            self._read_bytes += nbytes

    def followers(self, count: int) -> None:
        """Set the number of followers at present."""
        with self._lock:
            self._followers = count

    def followed(self, rows: int) -> None:
        with self._lock:
            self._rows += rows

    def cut_off(self) -> None:
        with self._lock:
            self._cut_off += 1

    def add_to(self, page: Page) -> None:
        name = self._name
        with self._lock:
            page.add("streamjoin_running_queries", self._running, name)
            page.add("streamjoin_queries_total", self._answered, name)
            for why, count in self._failures.items():
                page.add("streamjoin_query_failures_total", count, name, why.value)
            page.copy(self._seconds)
            page.add("streamjoin_query_read_bytes_total", self._read_bytes, name)
            page.add("streamjoin_followers", self._followers, name)
            page.add("streamjoin_followed_rows_total", self._rows, name)
            page.add("streamjoin_cut_off_followers_total", self._cut_off, name)


class QueryPage(Collector):
    """The page of a server that answers queries alone."""

    def __init__(self, metrics: QueryMetrics) -> None:
        self._metrics = metrics
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def describe(self) -> Iterable[Metric]:
        """All metrics that there may be, for the registry."""
        return [family("streamjoin_build_info"), *(family(metric.name) for metric in QUERIES)]

    def collect(self) -> Iterable[Metric]:
        """One scrape."""
        page = Page()
        page.add("streamjoin_build_info", 1, __version__, platform.python_version())
        self._metrics.add_to(page)
        return list(page)
