"""How the suite is spread over processes (see the Makefile), and what tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

import apiserver
from skips import pytest_make_collect_report, pytest_runtest_makereport, pytest_terminal_summary

if TYPE_CHECKING:
    from operator_cluster import Cluster
    from operator_parts import FakeDriver

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport", "pytest_terminal_summary"]

hypothesis.settings.register_profile("untimed", deadline=None)  # a machine that is busy fails no test
hypothesis.settings.load_profile("untimed")

GROUPS = ("spark", "apiserver", "kafka")
"""Marks of tests that run one after another in one process: each Spark brings Java processes that would crowd out another's,
and the others share a server. The group that takes longest is first, so that the processes end together.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts each group together, and the groups and then the long tests at the front: processes take tests in this order."""

    def place(item: pytest.Item) -> int:
        marks = (*GROUPS, "prometheus")
        return next((place for place, mark in enumerate(marks) if item.get_closest_marker(mark)), len(marks))

    items.sort(key=place)
    for item in items:
        if place(item) < len(GROUPS):
            item.add_marker(pytest.mark.xdist_group(GROUPS[place(item)]))


@pytest.fixture(autouse=True)
def kafka_clients(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends a test's Kafka clients with the test. Hundreds that ask brokers of tests gone by take both cores."""
    if not request.node.get_closest_marker("kafka"):
        yield
        return
    from streamjoin.io.kafka_session import close_idle

    gc.freeze()  # The collection below need not look at what was there before the test.
    yield
    close_idle()
    gc.collect()
    gc.unfreeze()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ApiServer]:
    """A real Kubernetes API server for tests that carry the mark ``apiserver``."""
    with apiserver.running(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    """What drivers answer to an operator."""
    from operator_parts import FakeDriver

    driver = FakeDriver()
    yield driver
    driver.close()


@pytest.fixture
def cluster(api_server: apiserver.ApiServer, driver: FakeDriver) -> Cluster:
    """A namespace with the operator's rights."""
    from operator_cluster import Cluster, install

    install(api_server)
    return Cluster(api_server, driver)
