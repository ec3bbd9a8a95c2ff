"""A standby of the driver: what the operator makes for it, counts of it, and says of it."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from operator_parts import Object, streamjoin
from streamjoin.manifest import check
from streamjoin_operator import children, names
from streamjoin_operator.changes import Class, classify, compared, revision
from streamjoin_operator.derived import derive
from streamjoin_operator.driver import Report
from streamjoin_operator.executors import executors_at_work
from streamjoin_operator.facts import Facts
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reporting import taken_over
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings
from streamjoin_operator.status import status

SETTINGS = Settings(engine_image="engine:1")
NOW = "2027-01-15T08:00:00Z"


def body_of(**spec: Any) -> Object:
    return streamjoin(**spec)


def deployed(body: Object, observed: Object | None = None, **options: Any) -> Object:
    derived = derive(body)
    assert derived.manifest is not None, derived.problems
    assert derived.memory is not None
    return children.deployment(Resource.of(body), derived.manifest, derived.memory, SETTINGS, observed, **options)


def problems(**spec: Any) -> list[str]:
    return [str(problem) for problem in check(body_of(**spec)).problems]


def test_two_drivers_of_which_the_one_that_is_ready_is_found() -> None:
    one, two = deployed(body_of()), deployed(body_of(driver={"standby": True}))
    assert [each["spec"]["replicas"] for each in (one, two)] == [1, 2]
    alone, both = (each["spec"]["template"]["spec"] for each in (one, two))
    assert "--standby" not in alone["containers"][0]["args"]
    assert both["containers"][0]["args"][-1] == "--standby"
    paths = [each["containers"][0][probe]["httpGet"]["path"] for each in (alone, both) for probe in ("readinessProbe", "livenessProbe")]
    assert paths == ["/healthz", "/healthz", "/readyz", "/healthz"], "one that stands by is alive, and not ready"
    assert "affinity" not in alone
    [term] = both["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"][names.COMPONENT] == names.DRIVER
    resource = Resource.of(body_of())
    published = [children.service(resource, SETTINGS, stands_by=each)["spec"]["publishNotReadyAddresses"] for each in (False, True)]
    assert published == [True, False]


def test_a_claim_that_is_there_keeps_both_on_its_node() -> None:
    two = deployed(body_of(driver={"standby": True}, checkpoint={"persistentVolumeClaim": "mine"}))
    assert list(two["spec"]["template"]["spec"]["affinity"]) == ["podAffinity"]


def test_a_template_of_ones_own_is_merged_over_it() -> None:
    driver = {"standby": True, "podTemplate": {"spec": {"affinity": {"podAntiAffinity": None}, "nodeSelector": {"disk": "ssd"}}}}
    spec = deployed(body_of(driver=driver))["spec"]["template"]["spec"]
    assert (spec["affinity"], spec["nodeSelector"]) == ({}, {"disk": "ssd"})


def test_a_suspended_join_has_neither() -> None:
    assert deployed(body_of(driver={"standby": True}, suspend=True))["spec"]["replicas"] == 0


def test_while_a_change_waits_there_are_as_many_drivers_as_the_template_is_for() -> None:
    """Two of a template without the argument would take the checkpoint from each other."""
    for before, after, drivers in ((False, True, 1), (True, False, 2)):
        observed = deployed(body_of(driver={"standby": before}))
        observed["metadata"]["managedFields"] = [
            {
                "manager": names.MANAGER,
                "operation": "Apply",
                "apiVersion": "apps/v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": fields_of(observed),
            }
        ]
        found = deployed(body_of(driver={"standby": after}), observed, waits=True)
        assert found["spec"]["replicas"] == drivers
        assert ("--standby" in found["spec"]["template"]["spec"]["containers"][0]["args"]) is before


def fields_of(value: Any) -> Any:
    """All of an object as managed fields."""
    if isinstance(value, dict):
        return {f"f:{key}": fields_of(item) for key, item in value.items()}
    return {}


def test_a_standby_takes_a_restart_and_nothing_else_does() -> None:
    plain, with_one, without = (
        compared(check(body_of(**spec)).manifest) for spec in ({}, {"driver": {"standby": True}}, {"driver": {"standby": False}})
    )
    [change] = classify(plain, with_one)
    assert (change.field, change.kind) == ("spec.driver.standby", Class.RESTART)
    assert plain == without, "a join without one is not started anew by a release that knows the field"
    assert revision(plain, "") != revision(with_one, "")


@pytest.mark.parametrize(
    ("checkpoint", "is_refused"),
    [
        ({"location": "s3://bucket/state"}, False),
        ({"persistentVolumeClaim": "mine"}, False),
        ({"persistentVolumeClaim": "made", "size": "1Gi"}, True),
        ({"persistentVolumeClaim": "made", "size": "1Gi", "accessModes": ["ReadWriteOnce"]}, True),
        ({"persistentVolumeClaim": "made", "size": "1Gi", "accessModes": ["ReadWriteMany"]}, False),
    ],
)
def test_it_needs_a_checkpoint_that_several_nodes_reach(checkpoint: Object, is_refused: bool) -> None:
    found = [problem for problem in problems(checkpoint=checkpoint, driver={"standby": True}) if "spec.driver.standby" in problem]
    assert bool(found) is is_refused
    assert not is_refused or "ReadWriteMany" in found[0]
    assert not problems(checkpoint=checkpoint)


def facts(standby: Object | None = None, took_over_at: float | None = None, **changes: Any) -> Facts:
    health = {"state": "running", "standby": standby, "tookOverAt": took_over_at}
    plan = {"generation": 1, "workers": 4, "readyWorkers": 4}
    known: dict[str, Any] = {"generation": 1, "driver_wanted": True, "driver_pods": 2, "driver_ready": True, "stands_by": True}
    known |= {"report": Report(health=health, plan=plan), "most_workers": 8, "workers_per_executor": 2, "at": 1.8e9}
    return Facts(**(known | changes))


@pytest.mark.parametrize(
    ("found", "before", "told"),
    [
        (facts(), {}, {"state": "Missing"}),
        (facts({"state": "Starting", "workers": 1}), {}, {"state": "Starting"}),
        (facts({"state": "Ready", "workers": 4}), {"state": "Starting"}, {"state": "Ready"}),
        (facts({"state": "Ready", "workers": 4}, 1.8e9), {}, {"state": "Ready", "tookOverAt": NOW}),
        (facts(), {"state": "Ready", "tookOverAt": NOW}, {"state": "Missing", "tookOverAt": NOW}),
        (facts(report=None), {}, {"state": "Starting"}),
        (facts(report=None), {"state": "Ready"}, {"state": "Ready"}),
        (facts(stands_by=False), {"state": "Ready"}, None),
        (facts(suspended=True), {"state": "Ready"}, None),
    ],
)
def test_the_status_says_how_far_it_is(found: Facts, before: Object, told: Object | None) -> None:
    assert status(found, {"standby": before} if before else {}, NOW).get("standby") == told


@pytest.mark.parametrize(("ready", "executors"), [(None, 2), (0, 2), (1, 3), (4, 4)])
def test_its_executors_cost_as_much_as_others(ready: int | None, executors: int) -> None:
    standby = None if ready is None else {"state": "Starting", "workers": ready}
    cost = status(facts(standby), {}, NOW)["cost"]
    assert (cost["executors"], cost["maxExecutors"]) == (executors, 8), "eight workers are four executors, of each driver"


def test_an_event_tells_once_that_it_took_over() -> None:
    first, second = {"standby": {"state": "Ready", "tookOverAt": NOW}}, {"standby": {"state": "Missing", "tookOverAt": NOW}}
    assert [reason for _, reason, _ in taken_over({}, first)] == [Reason.StandbyTookOver]
    assert taken_over(first, second) == taken_over({}, {}) == []


def test_executors_of_the_one_that_stands_by_are_not_taken_for_the_joins() -> None:
    def pod(name: str, owner: str = "", ready: bool = True) -> Object:
        owners = [{"uid": owner}] if owner else []
        return {
            "metadata": {"name": name, "uid": name, "ownerReferences": owners},
            "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
        }

    class Server:
        def __init__(self, executors: list[Object], drivers: list[Object]) -> None:
            self._found = {names.EXECUTOR: executors, names.DRIVER: drivers}
            self.asked: list[str] = []

        async def list(self, kind: Any, namespace: str, selector: str) -> list[Object]:
            self.asked.append(component := selector.rpartition("=")[2])
            return copy.deepcopy(self._found[component])

    resource = Resource.of(body_of())
    mine, others = [pod("a", "active"), pod("b", "active")], [pod("c", "waiting")]
    server: Any = Server([*mine, *others], [pod("active"), pod("waiting", ready=False)])
    assert asyncio.run(executors_at_work(server, resource)) == mine
    server = Server(mine, [])
    assert asyncio.run(executors_at_work(server, resource)) == mine
    assert server.asked == [names.EXECUTOR], "of one driver nothing more is asked"
