"""Whatever goes wrong with a StreamJoin on Kubernetes: within a minute its status names what is to be mended, and says no more once it is.

On a real API server, and by the operator's own clock. The ways are in ``ways_to_fail.py``; ``docs/troubleshooting.md`` has them as a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from apiserver import ApiError, ApiServer
from operator_cluster import Cluster, install
from operator_parts import FakeDriver, parsed_once
from stepped_cluster import SteppedCluster, stepped
from streamjoin_operator import plugin
from streamjoin_operator.correlation import Bucket
from streamjoin_operator.reasons import Reason
from ways_to_fail import WAYS, PathPlan, table, unscheduled

ROOT = Path(__file__).resolve().parent.parent
NAMED_SECONDS = 60.0
GONE_SECONDS = 400.0
"""What is mended is seen at the next check of all children at the latest."""


def shows(world: SteppedCluster, way: PathPlan) -> bool:
    """Whether the status says it, in these words."""
    found = world.condition(way.condition)
    is_there = (found.get("status"), found.get("reason")) == (way.status, way.reason.name)
    return is_there and all(text in found["message"] for text in way.says)


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> Iterator[ApiServer]:
    """Ready for StreamJoins, once for all tests."""
    install(api_server)
    with parsed_once():
        yield api_server


@pytest.fixture
def cluster(server: ApiServer, driver: FakeDriver) -> Cluster:
    return Cluster(server, driver)


@pytest.fixture
def fresh(cluster: Cluster) -> Iterator[SteppedCluster]:
    """A namespace with nothing in it."""
    with stepped(cluster) as world:
        yield world


@pytest.fixture(scope="module")
def starting(server: ApiServer) -> Iterator[SteppedCluster]:
    """One with a StreamJoin whose driver has yet to start."""
    driver = FakeDriver()
    with stepped(Cluster(server, driver)) as world:
        world.submit()
        world.settle()
        yield world
    driver.close()


@pytest.mark.apiserver
@pytest.mark.parametrize("way", WAYS, ids=[re.sub(r"\W+", "-", way.name).strip("-") for way in WAYS])
def test_within_a_minute_the_status_names_the_cause_and_it_is_gone_once_mended(way: PathPlan, request: pytest.FixtureRequest) -> None:
    world: SteppedCluster = request.getfixturevalue("starting" if way.is_shared else "fresh")
    for memo in world.reconciler.seen.memos.values():
        memo.writes = Bucket(25, 60.0)  # a join that so much befalls would count as one that flaps
    with closing(way.story(world)) as story:
        next(story)
        world.until(f"{way.condition} {way.status}, {way.reason.name}, {way.says}", lambda: shows(world, way), NAMED_SECONDS)
        world.settle()
        before = world.cluster.get()
        for _ in range(2):
            world.step()
        assert world.cluster.get() == before, "it is said once"
        if way.is_mended:
            next(story, None)
            healthy = "True" if way.status == "False" else "False"
            world.until("it is over", lambda: world.condition(way.condition).get("status") == healthy, GONE_SECONDS)
            if way.condition != "Degraded":
                assert world.cluster.condition("Degraded") == ("False", "Healthy")


def test_the_documentation_has_the_table() -> None:
    assert table() in (ROOT / "docs" / "troubleshooting.md").read_text(), "python tests/ways_to_fail.py prints it"
    assert "docs/troubleshooting.md" in (ROOT / "README.md").read_text()


def test_the_documentation_has_the_reasons() -> None:
    from streamjoin_operator import reasons

    assert reasons.table() in (ROOT / "docs" / "operator.md").read_text(), "python -m streamjoin_operator.reasons prints them"


def test_every_reason_of_a_failure_has_its_way() -> None:
    """Where a reason is new, so is a way to fail."""
    ordinary = {
        *("JoinRunning", "DriverStarting", "ExecutorsStarting", "EpochsMove", "Paused", "Suspended", "Suspending", "Settled", "Rescaling"),
        *("Applying", "NothingRefused", "Resizing"),
        *("Created", "Updated", "Pruned", "ChangeIgnored", "ChangeLive", "ChangeRestart", "RestartRequested", "PlanRequested"),
        *("Allocating", "Deallocating", "Replanning", "ScalingRecommended", "Scaled", "NothingShed", "Healthy"),
        *("Enlarging", "Enlarged"),
        *("WatermarksMove", "SheddingRecommended", "MaintenanceAwaited", "SuspendedWhenIdle", "SuspendedBySchedule", "Woken"),
        "StandbyTookOver",
        *("FirstPlan", "PlanReplaced", "TemplateTried", "PodsEnding", "StateRemoving", "StateRemoved", "StateLeft", "TuplesShed"),
    }
    elsewhere = {
        # tests/test_autoscale.py; and of measurements tests/test_prometheus_client.py
        "ScalingFailed",
        # tests/test_enlarging.py
        "EnlargingFailed",
        # tests/test_operator_trial.py and test_definition.py
        *("NewTemplateFails", "DefinitionOlder"),
        # tests/test_operator_snapshots.py
        *("SnapshotKept", "SnapshotAsked", "SnapshotWaits", "SnapshotRefused", "SnapshotGone", "SnapshotDeleting", "StreamJoinMissing"),
        # tests/test_operator_reconcile.py; nothing from outside makes the operator itself fail, and the API server refuses the other change
        *("PlanDropped", "OperatorFailed", "CheckpointMismatch"),
    }
    failures = {reason.name for reason in Reason if not reason.name.startswith(("Metrics", "Prometheus"))} - ordinary - elsewhere
    assert failures - {way.reason.name for way in WAYS} == set()


@pytest.mark.apiserver
def test_a_class_that_nobody_serves_is_named_where_one_looks(cluster: Cluster) -> None:
    with stepped(cluster) as world:
        world.submit(operatorClass="blue")
        world.pass_seconds(NAMED_SECONDS)
        assert cluster.status() == {"observedGeneration": -1}
        body = cluster.get()
    assert "does an operator of the class blue run?" in plugin.described(body, datetime.now(UTC))
    del body["spec"]["operatorClass"]
    assert "does an operator without a class run?" in plugin.planned(body)


@pytest.mark.apiserver
def test_what_the_api_server_refuses_at_once_is_stored_nowhere(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match="63"):
        cluster.submit("a" * 64)
    cluster.submit()
    with pytest.raises(ApiError, match="checkpoint"):
        cluster.change({"joins": [{**cluster.get()["spec"]["joins"][0], "condition": "orders.id = payments.id"}]})


@pytest.mark.apiserver
def test_a_status_that_may_not_be_written_stays_as_it_was_and_the_failure_is_counted(cluster: Cluster) -> None:
    with stepped(cluster) as world:
        world.runs()
        before = cluster.status()
        world.cluster.take_right("streamjoins/status")
        world.driver.state = "retrying"
        world.pass_seconds(NAMED_SECONDS)
        assert cluster.status() == before
        assert world.failing == 1
        world.cluster.take_right()
        world.until("it is written", lambda: cluster.condition("Degraded") == ("True", "JoinRetrying"), GONE_SECONDS)


@pytest.mark.apiserver
def test_without_the_right_to_list_events_less_is_said_and_nothing_fails(cluster: Cluster) -> None:
    with stepped(cluster) as world:
        cluster.take_right("events")
        world.submit()
        world.settle()
        path = world.driver_pod(unscheduled("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."))
        world.tell(path, "FailedMount", "of the test")
        world.until("it is said", lambda: cluster.condition("Degraded") == ("True", "DriverPending"), NAMED_SECONDS)
        assert "of the test" not in world.condition("Degraded")["message"]


@pytest.mark.apiserver
def test_slow_pulls_and_what_a_start_soon_gets_over_are_no_trouble(cluster: Cluster) -> None:
    from ways_to_fail import unready, waiting

    with stepped(cluster) as world:
        world.submit()
        world.settle()
        path = world.driver_pod(waiting(world, "ContainerCreating"), "node-1")
        world.tell(path, "Pulling", 'Pulling image "engine:1"', "Normal")
        world.pass_seconds(100.0)
        assert cluster.condition("Degraded") == ("False", "Healthy"), "an image of more than a gigabyte"
        world.remove(path)
        path = world.driver_pod(unready(world), "node-1")
        world.tell(path, "Unhealthy", "Readiness probe failed: connection refused")
        world.pass_seconds(30.0)
        assert cluster.condition("Degraded") == ("False", "Healthy"), "the first probes come too early"
