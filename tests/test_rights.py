"""Rights: what the chart gives the operator, verb by verb, is what it uses, by what the API server writes down of its requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

import test_backups
import test_operator_api
import test_operator_snapshots
from apiserver import ApiError, ApiServer, Asked, running
from chart import RIGHTS, install, of_kind, path_of, rendered
from operator_cluster import PATHS, STREAMJOINS, Cluster, Object
from operator_cluster import install as install_definition
from operator_parts import FakeDriver
from skips import NO_RESIZE
from streamjoin_operator import names
from streamjoin_operator.resource import Resource, child
from test_chart import definition_of
from waiting import wait_for

pytestmark = pytest.mark.apiserver

ACCOUNT = "sj-streamjoin-operator"
"""The chart's, of a release ``sj``."""
Right = tuple[str, str, str]
"""Verb, group, resource."""

PASSED_ON = {
    *((verb, "", "pods") for verb in ("get", "watch", "deletecollection")),
    *(("use", "", resource) for resource in ("secrets", "persistentvolumeclaims", "serviceaccounts")),
    *(("use", "streamjoin.dev", resource) for resource in ("streamjoins", "drivers")),
}
"""Not used by the operator: nobody can give away rights that he has not, and drivers have these."""
ASKED_BY_ADMISSION = {("update", "streamjoin.dev", "streamjoins/finalizers")}
"""Where OwnerReferencesPermissionEnforcement is on, who sets blockOwnerDeletion must have it."""


ASKED_ELSEWHERE = {("list", "", "events")}
"""Asked for where a pod stays unready and says nothing of why: tests/test_ways_to_fail.py."""


def rights(role: Object) -> set[Right]:
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(asked: Asked) -> set[Right]:
    """Who applies an object that is not there must be allowed to create it."""
    verbs = {asked.verb} | ({"create"} if asked.verb == "patch" and asked.code == 201 else set())
    return {(verb, asked.group, asked.resource) for verb in verbs}


class Released(Cluster):
    """With the rights that a release of the chart has, in a namespace of its own, and joins in another."""

    def __init__(self, server: ApiServer, driver: FakeDriver, watch: Callable[[str], Object]) -> None:
        self.server, self.driver, self.admin, self.trial = server, driver, server.admin, None
        self.namespace, self.operators = server.namespace("joins"), server.namespace("operators")
        self.account = (self.operators, ACCOUNT)
        self.values: Object = {"watch": watch(self.namespace), "rbac": {"aggregate": False}}
        install(self.admin, self.values, self.operators, *RIGHTS)

    def settings(self, **changes: Any) -> Any:
        lease = {"lease_name": ACCOUNT, "lease_namespace": self.operators}
        return super().settings(**{**lease, **changes})

    def rights(self, *, of_lease: bool) -> set[Right]:
        roles = of_kind(rendered(self.values, self.operators), "Role", "ClusterRole")
        return {right for role in roles if role["metadata"]["name"].endswith("-lease") is of_lease for right in rights(role)}

    def asked(self) -> set[Asked]:
        return self.server.asked(*self.account)

    @contextmanager
    def without(self, right: Right) -> Iterator[None]:
        """The operator has all of its rights in the namespace but one."""
        verb, group, resource = right
        path = f"{PATHS['Role'].format(self.namespace)}/{ACCOUNT}"
        granted = self.admin.get(path)["rules"]
        less = copy.deepcopy(granted)
        for rule in less:
            if rule["apiGroups"] == [group] and resource in rule["resources"] and verb in rule["verbs"]:
                rule["verbs"].remove(verb)
        self.admin.patch(path, {"rules": [rule for rule in less if rule["verbs"]]})
        yield
        self.admin.patch(path, {"rules": granted})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Of this module's own: joins of other tests are in all of the cluster. Of owners more is asked than by default, as OpenShift does."""
    with running(tmp_path_factory.mktemp("rights"), "OwnerReferencesPermissionEnforcement") as server:
        server.install_crd(definition_of("PodMonitor"))
        install_definition(server)
        yield server


def a_claim_is_made(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run(checkpoint={"persistentVolumeClaim": "data", "size": "1Gi"})
    assert cluster.child("PersistentVolumeClaim", "data")


def somebody_else_is_quicker(cluster: Cluster) -> None:
    """A status that is written over a newer version."""
    changes = iter(range(3))

    def on_step(step: str) -> None:
        if step == "report" and next(changes, None) is not None:
            path = f"{STREAMJOINS.format(cluster.namespace)}/two"
            cluster.admin.patch(path, {"metadata": {"annotations": {"changed": cluster.admin.get(path)["metadata"]["resourceVersion"]}}})

    cluster.submit("two")
    with cluster.operator(on_step=on_step):
        wait_for("its status is written", lambda: cluster.status("two").get("conditions"))


def children_that_are_not_wanted_any_more_are_deleted(cluster: Cluster) -> None:
    cluster.submit("two")
    resource = Resource.of(cluster.get("two"))
    made = [child(resource, *kind, "sj-two-old") for kind in (("v1", "ConfigMap"), ("v1", "ServiceAccount"))]
    made.append(child(resource, "v1", "Service", "sj-two-old", spec={"clusterIP": "None", "selector": {"a": "b"}}))
    rbac = "rbac.authorization.k8s.io/v1"
    made.append(child(resource, rbac, "Role", "sj-two-old", rules=[]))
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "sj-two-old"}
    made.append(child(resource, rbac, "RoleBinding", "sj-two-old", roleRef=reference, subjects=[]))
    made.append(child(resource, "networking.k8s.io/v1", "NetworkPolicy", "sj-two-old", spec={"podSelector": {}}))
    labels = {"a": "b"}
    selector = {"matchLabels": labels}
    made.append(child(resource, "policy/v1", "PodDisruptionBudget", "sj-two-old", spec={"minAvailable": 1, "selector": selector}))
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    made.append(child(resource, "apps/v1", "Deployment", "sj-two-old", spec={"replicas": 0, "selector": selector, "template": template}))
    made.append(child(resource, "monitoring.coreos.com/v1", "PodMonitor", "sj-two-old", spec={}))
    for each in made:
        cluster.admin.apply(path_of(each), each, names.MANAGER)
    with cluster.operator():
        wait_for("they are gone", lambda: not any(cluster.admin.exists(path_of(each)) for each in made))


def executors_are_resized(cluster: Cluster) -> None:
    if not cluster.server.resizes:
        pytest.skip(NO_RESIZE)
    pods = f"/api/v1/namespaces/{cluster.namespace}/pods"
    resources = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    container = {"name": names.EXECUTOR, "image": "i", "resources": resources}
    with cluster.operator():
        cluster.run()
        labels = names.pod_labels("one", names.EXECUTOR)
        cluster.admin.create(pods, {"metadata": {"name": "a", "labels": labels}, "spec": {"containers": [container]}})
        cluster.change({"workers": {"resources": {"cpu": "2"}}})
        asked = {**resources, "requests": {**resources["requests"], "cpu": "2"}}
        wait_for("it is asked for", lambda: cluster.admin.get(f"{pods}/a")["spec"]["containers"][0]["resources"] == asked)


STORIES: tuple[Callable[[Cluster], None], ...] = (
    test_operator_api.test_from_apply_to_running_with_the_rights_that_are_documented_and_then_rest,
    test_operator_api.test_what_somebody_changes_or_deletes_is_put_right,
    test_operator_api.test_spec_changes_by_class,
    test_operator_api.test_query_servers_come_are_told_of_and_go,
    test_operator_api.test_delete_with_the_state,
    test_operator_snapshots.test_from_apply_to_kept_to_deleted,
    test_backups.a_backup_is_made_and_an_older_one_deleted,
    a_claim_is_made,
    somebody_else_is_quicker,
    children_that_are_not_wanted_any_more_are_deleted,
    executors_are_resized,
)


def test_in_a_namespace_what_is_granted_is_used_and_what_is_used_is_granted(server: ApiServer) -> None:
    asked: set[Asked] = set()
    for story in STORIES:
        with closing(FakeDriver()) as driver:
            cluster = Released(server, driver, lambda namespace: {"namespaces": [namespace]})
            story(cluster)
        found = cluster.asked()
        assert not [one for one in found if one.code == 403], "a right is missing"
        assert {one.namespace for one in found} == {cluster.namespace, cluster.operators}
        assert {one.name for one in found if one.namespace == cluster.operators} <= {ACCOUNT, ""}
        assert {right for one in found if one.resource == "leases" for right in needed(one)} == cluster.rights(of_lease=True)
        asked |= {one for one in found if one.resource != "leases"}
    granted = cluster.rights(of_lease=False)
    used = {right for one in asked for right in needed(one)}
    assert used <= granted
    explained = PASSED_ON | ASKED_BY_ADMISSION | ASKED_ELSEWHERE
    assert granted - used == explained, "these rights nobody uses, or their reason does not hold any more"


@pytest.mark.parametrize("watch", [{}, {"namespaceSelector": {"matchLabels": {"joins": "yes"}}}], ids=["all", "selected"])
def test_in_all_of_the_cluster_there_is_no_more_than_is_needed_to_watch_it(server: ApiServer, driver: FakeDriver, watch: Object) -> None:
    cluster = Released(server, driver, lambda namespace: watch)
    server.admin.patch(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": {"joins": "yes"}}})
    selector = "joins=yes" if watch else ""
    with cluster.operator(watch_namespaces=(), watch_namespace_selector=selector):
        cluster.run()
        in_a_namespace = Released(server, driver, lambda namespace: {"namespaces": [namespace]}).rights(of_lease=False)
        more = cluster.rights(of_lease=False) - in_a_namespace
        wait_for("all of these rights are used", lambda: more <= {right for one in cluster.asked() for right in needed(one)})
    found = cluster.asked()
    assert not [one for one in found if one.code == 403], "a right is missing"
    used = {right for one in found if one.resource != "leases" for right in needed(one)}
    assert in_a_namespace <= cluster.rights(of_lease=False)
    assert used <= cluster.rights(of_lease=False)


def test_namespaces_with_the_labels_are_watched_as_they_come_and_go(server: ApiServer, driver: FakeDriver) -> None:
    """What is done to a join in a namespace that always has the label tells that what came before it has been seen."""
    gold = {"tier": "gold"}
    cluster, always = (Released(server, driver, lambda namespace: {"namespaceSelector": {"matchLabels": gold}}) for _ in range(2))

    def label(one: Released, tier: str) -> None:
        server.admin.patch(f"/api/v1/namespaces/{one.namespace}", {"metadata": {"labels": {"tier": tier}}})

    label(always, "gold")
    cluster.submit()
    with cluster.operator(watch_namespaces=(), watch_namespace_selector="tier in (gold, platinum)") as running_operator:
        running_operator.await_ready()
        always.run()
        assert cluster.children() == {}
        label(cluster, "gold")
        cluster.ready()
        wait_for("it runs", lambda: cluster.condition("Ready") == ("True", "JoinRunning"))
        assert running_operator.operator.reconciler is not None
        seen = running_operator.operator.reconciler.seen
        label(cluster, "silver")
        wait_for("it is forgotten", lambda: (cluster.namespace, "one") not in seen.bodies)
        cluster.change({"suspend": True})
        always.change({"suspend": True})
        wait_for("the other stops", lambda: always.child("Deployment")["spec"]["replicas"] == 0)
        assert cluster.child("Deployment")["spec"]["replicas"] == 1
        label(cluster, "platinum")
        wait_for("it stops as well", lambda: cluster.child("Deployment")["spec"]["replicas"] == 0)


def test_rights_that_are_only_passed_on_are_needed_for_that(server: ApiServer, driver: FakeDriver) -> None:
    """The Role of a driver, applied with all of the chart's rights but one."""
    cluster = Released(server, driver, lambda namespace: {"namespaces": [namespace]})
    with cluster.operator():
        cluster.run(checkpoint={"persistentVolumeClaim": "data", "size": "1Gi"})
    wanted = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": cluster.child("Role")["rules"]}
    assert {right for right in rights(wanted) if right[0] != "create"} - {("list", "", "pods"), ("delete", "", "pods")} == PASSED_ON
    client, roles = server.client(*cluster.account), PATHS["Role"].format(cluster.namespace)

    def is_refused() -> bool:
        try:
            client.apply(f"{roles}/sj-other", wanted | {"metadata": {"name": "sj-other"}}, dryRun="All")
        except ApiError as error:
            return "is attempting to grant RBAC permissions not currently held" in error.message
        return False

    for right in sorted(PASSED_ON):
        wait_for("all can be given away", lambda: not is_refused())
        with cluster.without(right):
            wait_for(f"nobody can give away {right}", is_refused)


def test_children_cannot_be_owned_without_the_right_to_finalize_their_owner(server: ApiServer, driver: FakeDriver) -> None:
    cluster = Released(server, driver, lambda namespace: {"namespaces": [namespace]})
    cluster.submit()
    client, owned = server.client(*cluster.account), child(Resource.of(cluster.get()), "v1", "ConfigMap", "sj-one")
    client.apply(path_of(owned), owned, dryRun="All")

    def is_refused() -> bool:
        try:
            client.apply(path_of(owned), owned, dryRun="All")
        except ApiError as error:
            return "cannot set blockOwnerDeletion" in error.message
        return False

    (right,) = ASKED_BY_ADMISSION
    with cluster.without(right):
        wait_for("it is refused", is_refused)
