"""How the suite is spread over processes (see the Makefile), and what tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

import apiserver
from cases import how_many, in_turn
from patient import QUERIES
from skips import NO_RESIZE, pytest_make_collect_report, pytest_runtest_makereport, pytest_terminal_summary
from spark_path import have_workers_find_tests
from streamjoin.runner import classes

if TYPE_CHECKING:
    from kafka_broker import KafkaBroker
    from operator_cluster import Cluster
    from operator_parts import FakeDriver
    from s3 import S3Server
    from streamjoin.elastic.deployment import Deployment
    from user_spark import UserSpark

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport", "pytest_terminal_summary"]

pytest_plugins = ["costs", "tiers"]

os.environ.setdefault(classes.NEVER, "1")  # of which a run is no test (test_classes.py)

# A shell that starts the suite in the background has it ignore Ctrl-C, which processes that are started here would do, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("untimed", deadline=None, max_examples=how_many(100, of=3))  # a machine that is busy fails no test
hypothesis.settings.load_profile("untimed")

gc.set_threshold(50_000, 20, 50)

GROUPS = ("apiserver", "kafka", "spark")
"""Marks of tests that run one after another in one process: each Spark brings Java processes that would crowd out another's, and the
others share a server. A test with two marks is in the first one's group: one with Spark, too, would start a second server there.
"""


SMALL = ("with the commit", "gathered", "in files")
"""What becomes of small blocks and results: the commit keeps them; so it does, and results wait for the input's end; each is a file."""


def in_their_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Without those that run a case in a way of keeping small things of which it is not the turn (``cases.in_turn``)."""
    ways: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    """By test and case."""
    place: dict[pytest.Item, tuple[str, str, str]] = {}
    for item in items:
        called = getattr(item, "callspec", None)
        if called is not None and "small" in called.params:
            way = called.params["small"]
            test, case = item.nodeid.partition("[")[0], item.nodeid.replace(way, "")
            ways[test][case].append(way)
            place[item] = test, case, way
    turns = {
        (test, case): in_turn(of_case, test, number) for test, cases in ways.items() for number, (case, of_case) in enumerate(cases.items())
    }
    return [item for item in items if item not in place or place[item][2] in turns[place[item][:2]]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts each group together, and the groups, long tests and small groups at the front: processes take tests in this order."""
    if not any("[" in argument for argument in config.args):  # which asks for this very case
        kept = in_their_turn(items)
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept

    def place(item: pytest.Item) -> int:
        marks = (*GROUPS, "prometheus", "xdist_group")
        return next((place for place, mark in enumerate(marks) if item.get_closest_marker(mark)), len(marks))

    items.sort(key=place)
    for item in items:
        if place(item) < len(GROUPS):
            item.add_marker(pytest.mark.xdist_group(GROUPS[place(item)]))


def pytest_collection_finish() -> None:
    """Cycles are never looked for among what was loaded: neither here, nor by the processes that are forked, for each of which it would
    take a third of a second, and copies of all pages."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark"):
        have_workers_find_tests()
    if USER_SPARK and "user_spark" not in getattr(item, "fixturenames", ()):
        USER_SPARK[0].end()


@pytest.fixture(scope="session", autouse=True)
def no_flushing() -> Iterator[None]:
    """Has this process flush nothing: no power is lost but that of ``disk.Disk``, which knows itself what was flushed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


PLANNED: dict[bytes, Deployment] = {}
"""First plans, by what they are made of."""


@pytest.fixture(scope="session", autouse=True)
def planned_once() -> Iterator[None]:
    """Joins are begun thousands of times: the same first plan for the same arguments, of which nobody changes anything."""
    from streamjoin import sizing

    make = sizing.first_deployment

    def first_deployment(*arguments: Any, **options: Any) -> Deployment:
        key = pickle.dumps((arguments, options))
        if key not in PLANNED:
            PLANNED[key] = make(*arguments, **options)
        return PLANNED[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizing, "first_deployment", first_deployment)
        yield


@pytest.fixture(autouse=True)
def _same_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint that this process makes has the same seed of hashes, so that plans are the same in each run."""
    monkeypatch.setattr("streamjoin.state.log.new_seed", lambda: 1)


@pytest.fixture(autouse=True)
def kafka_clients(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ends a test's Kafka clients with the test. Hundreds that ask brokers of tests gone by take both cores."""
    if not request.node.get_closest_marker("kafka"):
        yield
        return
    from streamjoin.io.kafka_session import close_idle

    yield
    close_idle()
    gc.collect()


USER_SPARK: list[UserSpark] = []
"""The one of this process, once it has been asked for."""


@pytest.fixture(scope="session")
def user_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserSpark]:
    """A Spark session as a user has one."""
    from user_spark import UserSpark

    USER_SPARK.append(UserSpark(tmp_path_factory.mktemp("warehouse")))
    yield USER_SPARK[0]
    USER_SPARK.pop().end()


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A Kafka broker for tests that carry the mark ``kafka``."""
    from kafka_join import running_broker

    with running_broker() as started:
        yield started


@pytest.fixture
def topic(broker: KafkaBroker) -> Callable[..., str]:
    """Makes a topic that no other test uses."""
    from kafka_join import NAMES

    return lambda partitions=1, **config: broker.create_topic(f"topic-{next(NAMES)}", partitions, **config)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    """An S3 server in this process."""
    from s3 import S3Server

    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """An S3 server that does as S3 does, which clients of this process find, and ask again at once where it refuses."""
    from streamjoin.state import storage

    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(storage, "FIRST_PAUSE_SECONDS", 0.005)
    s3_server.knows_conditions, s3_server.slow_seconds = True, 0.05
    return s3_server


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ApiServer]:
    """A real Kubernetes API server for tests that carry the mark ``apiserver``."""
    with apiserver.running(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture
def _resizes(api_server: apiserver.ApiServer) -> None:
    if not api_server.resizes:
        pytest.skip(NO_RESIZE)


@pytest.fixture(params=SMALL)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """See :data:`SMALL`."""
    if request.param == "in files":
        monkeypatch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", 0)
    elif request.param == "gathered":
        monkeypatch.setattr("streamjoin.io.sinks.FilesSink.gather_seconds", 1e9)
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def queries_take_their_time() -> Iterator[None]:
    """Processes that answer queries make way for all others; on a busy machine they would have no turn within the time that they have."""
    with pytest.MonkeyPatch.context() as patch:
        if "streamjoin.query.pool" in sys.modules:
            for name, value in QUERIES.items():
                patch.setattr(f"streamjoin.query.pool.{name}", value)
        yield


@pytest.fixture
def forked_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that answer this process' queries have loaded what they need."""
    import forked_queries

    monkeypatch.setattr("streamjoin.query.pool.subprocess", forked_queries)


@pytest.fixture(scope="session", autouse=True)
def runs_leave_the_collector_alone() -> Iterator[None]:
    """Else each would look for cycles among what was loaded, and have it looked at from then on (``test_collecting.py``)."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("streamjoin.cli.run", "bench.engine"):
            if module in sys.modules:
                patch.setattr(f"{module}.collecting_seldom", contextlib.nullcontext)
        yield


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    """What drivers answer to an operator."""
    from operator_parts import FakeDriver

    driver = FakeDriver()
    yield driver
    driver.close()


@pytest.fixture
def cluster(api_server: apiserver.ApiServer, driver: FakeDriver) -> Iterator[Cluster]:
    """A namespace with the rights that the chart gives the operator, which must do in each test."""
    from operator_cluster import Cluster, install

    install(api_server)
    made = Cluster(api_server, driver)
    yield made
    denied = [one for one in api_server.asked(*made.account) if one.is_denied]
    assert made.lacks_rights or not denied, denied
