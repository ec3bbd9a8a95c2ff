"""How the suite is spread over processes: see the Makefile."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import apiserver


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start Spark run one after another: each brings Java processes that would crowd out another's. Those that
    ask a Kubernetes API server share one.
    """
    for item in items:
        for mark in ("spark", "apiserver"):
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.xdist_group(mark))


@pytest.fixture(autouse=True)
def kafka_clients(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends a test's Kafka clients with the test. Hundreds that ask brokers of tests gone by take both cores."""
    yield
    if request.node.get_closest_marker("kafka"):
        from streamjoin.io.kafka_session import close_idle

        close_idle()
        gc.collect()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ApiServer]:
    """A real Kubernetes API server for tests that carry the mark ``apiserver``."""
    with apiserver.running(tmp_path_factory.mktemp("apiserver")) as server:
        yield server
