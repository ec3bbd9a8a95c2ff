"""The chart's admission policy: a driver makes and deletes executors of its own StreamJoin, and touches no other pod. The operator resizes
executors alone.

tests/test_pods_spark.py has Spark itself do what it does under the same policy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from apiserver import ApiError, ApiServer, Client
from chart import CHART, KUBERNETES, POLICIES, RIGHTS, helm, install, of_kind, path_of, rendered
from documents import all_parsed
from operator_cluster import PATHS
from operator_parts import streamjoin
from streamjoin_operator import children, names, uses
from streamjoin_operator.api import STRATEGIC
from streamjoin_operator.derived import derive
from streamjoin_operator.pod_templates import executor_template
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings
from waiting import wait_for

Object = dict[str, Any]
Change = Callable[[Object], Any]
LONG = "a-join-of-many-words-" + "and-then-" * 4 + "more"
TEMPLATE: Object = {
    "metadata": {"annotations": {"example.com/team": "payments"}},
    "spec": {
        "volumes": [{"name": "keys", "secret": {"secretName": "bucket-keys"}}, {"name": "lookup", "configMap": {"name": "lookup"}}],
        "initContainers": [{"name": "first", "image": "first:1", "env": [{"name": "A", "value": "b"}]}],
        "containers": [
            {
                "name": "executor",
                "envFrom": [{"secretRef": {"name": "bucket-environment"}}, {"configMapRef": {"name": "lookup"}}],
                "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "bucket-key", "key": "key"}}}],
            }
        ],
    },
}
SPEC: Object = {
    "checkpoint": {"persistentVolumeClaim": "state"},
    "security": {"tls": {"secretName": "certificates"}},
    "executor": {"podTemplate": TEMPLATE},
}


@dataclass
class Driver:
    """A StreamJoin's driver: its service account with the rights that the operator gives it, its pod, and that pod's token."""

    server: ApiServer
    namespace: str
    name: str
    client: Client
    pod: Object
    template: Object

    @classmethod
    def of(cls, server: ApiServer, namespace: str, name: str, **spec: Any) -> Driver:
        body = streamjoin(name, namespace, **{**SPEC, **spec})
        derived, resource, settings = derive(body), Resource.of(body), Settings()
        assert derived.manifest is not None, derived.problem
        access = [*children.service_accounts(resource, derived.manifest), children.role_binding(resource)]
        for each in (*access, children.role(resource, derived.manifest, settings)):
            each["metadata"].pop("ownerReferences")
            server.admin.apply(path_of(each), each, names.MANAGER)
        labels = names.pod_labels(name, names.DRIVER)
        spec = {"serviceAccountName": resource.base, "containers": [{"name": "driver", "image": "engine:1"}]}
        pods = f"/api/v1/namespaces/{namespace}/pods"
        pod = server.admin.create(pods, {"metadata": {"name": f"{resource.base}-7d9c-x2x", "labels": labels}, "spec": spec})
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        path = f"{PATHS['ServiceAccount'].format(namespace)}/{resource.base}/token"
        token = server.admin.create(path, {"spec": {"audiences": [], "boundObjectRef": bound}})["status"]["token"]
        template = executor_template(resource, derived.manifest, settings)
        return cls(server, namespace, name, Client(server.url, server.ca_file, token), pod, template)

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def executor(self, number: int = 1) -> Object:
        """As Spark makes it of the template."""
        pod = copy.deepcopy(self.template)
        pod["metadata"]["name"] = f"sj-{self.name[:30].rstrip('-')}-0a1b2c3d-exec-{number}"
        pod["metadata"]["labels"] |= {"spark-role": "executor", "spark-app-selector": "spark-1", "spark-exec-id": str(number)}
        owner = {"apiVersion": "v1", "kind": "Pod", "controller": True}
        pod["metadata"]["ownerReferences"] = [owner | {key: self.pod["metadata"][key] for key in ("name", "uid")}]
        container = next(one for one in pod["spec"]["containers"] if one["name"] == "executor")
        field = {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}
        container |= {"image": "engine:1", "args": ["executor"]}
        container["env"] = [*container.get("env", []), {"name": "SPARK_EXECUTOR_POD_IP", "valueFrom": field}]
        return pod

    def create(self, pod: Object, **query: Any) -> Object:
        return self.client.create(self.pods, pod, **query)

    def refusal(self, request: Callable[[], Any]) -> str:
        with pytest.raises(ApiError) as refused:
            request()
        assert refused.value.status == 403
        assert f"driver {names.base_name(self.name)} may not " in refused.value.message
        return refused.value.message


def account_of(server: ApiServer, namespace: str, account: str, *rules: Object) -> Client:
    """A service account that has these rights."""
    server.admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": account}})
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    server.admin.create(f"{rbac}/roles", {"metadata": {"name": account}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    server.admin.create(f"{rbac}/rolebindings", {"metadata": {"name": account}, "roleRef": reference, "subjects": [subject]})
    return server.client(namespace, account)


def policy_of(server: ApiServer, namespace: str, **policy: Any) -> None:
    """The chart's, of a release of its own; in force once this returns."""
    install(server.admin, {"watch": {"namespaces": [namespace]}, "driverPolicy": policy}, namespace, *POLICIES)
    account = "sj-nobody"
    itself = {"apiGroups": [names.GROUP], "resources": [uses.DRIVERS], "resourceNames": [account], "verbs": [uses.VERB]}
    nobody = account_of(server, namespace, account, {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}, itself)
    pod = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}

    def is_in_force() -> bool:
        try:
            nobody.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
        except ApiError as error:
            return "driver sj-nobody may not create pod a: " in error.message
        return False

    wait_for("the policy is in force", is_in_force)


@pytest.fixture(scope="module")
def namespace(api_server: ApiServer) -> str:
    namespace = api_server.namespace("policy")
    policy_of(api_server, namespace)
    return namespace


@pytest.fixture(scope="module")
def driver(api_server: ApiServer, namespace: str) -> Driver:
    return Driver.of(api_server, namespace, "one")


@pytest.mark.apiserver
@pytest.mark.parametrize("name", ["two", "two-executors", LONG, "x" * 63, "a" * 29 + "-b"])
def test_a_driver_makes_and_deletes_its_executors(api_server: ApiServer, namespace: str, name: str) -> None:
    driver = Driver.of(api_server, namespace, name)
    first = driver.create(driver.executor(1))["metadata"]
    driver.create(driver.executor(2))
    driver.create(driver.executor(3))
    driver.client.delete(f"{driver.pods}/{first['name']}")
    selector = f"{names.selector(name, names.EXECUTOR)},spark-role=executor"
    assert len(driver.client.get(driver.pods, labelSelector=selector)["items"]) == 2
    driver.client.delete(driver.pods, labelSelector=selector)
    assert driver.client.get(driver.pods, labelSelector=selector)["items"] == []


@pytest.mark.apiserver
def test_what_webhooks_add_to_a_pod_is_no_matter(driver: Driver) -> None:
    """As a cloud's identities and service meshes do: tokens of the executors' own account, ConfigMaps, sidecars."""
    pod = driver.executor()
    token = {"serviceAccountToken": {"audience": "sts.amazonaws.com", "path": "token"}}
    pod["spec"]["volumes"].append({"name": "aws", "projected": {"sources": [token, {"configMap": {"name": "ca"}}]}})
    pod["spec"]["containers"].append({"name": "proxy", "image": "proxy:1"})
    own = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    pod["spec"]["volumes"].append({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": own}}})
    pod["metadata"]["labels"]["mesh"] = "yes"
    driver.create(pod, dryRun="All")


def volume(**source: Any) -> Change:
    return lambda pod: pod["spec"]["volumes"].append({"name": "more", **source})


def specified(**fields: Any) -> Change:
    return lambda pod: pod["spec"].update(fields)


def contained(**fields: Any) -> Change:
    return lambda pod: pod["spec"]["containers"].append({"name": "more", "image": "more:1", **fields})


def begun(**fields: Any) -> Change:
    return lambda pod: pod["spec"]["initContainers"].append({"name": "more", "image": "more:1", **fields})


def owned(**fields: Any) -> Change:
    return lambda pod: pod["metadata"]["ownerReferences"][0].update(fields)


OF_ITS_OWN = "are not those of an executor of its own StreamJoin"
FOREIGN = {"secretRef": {"name": "others"}}
KEY = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "others", "key": "k"}}}
HOST = "need driverPolicy.hostAccess"
COPY = {
    "accessModes": ["ReadWriteOnce"],
    "resources": {"requests": {"storage": "1Gi"}},
    "dataSource": {"kind": "PersistentVolumeClaim", "name": "others"},
}
FORBIDDEN: dict[str, tuple[Change, str]] = {
    "of another join": (lambda pod: pod["metadata"]["labels"].update({names.NAME: "other"}), OF_ITS_OWN),
    "of no join": (lambda pod: pod["metadata"].pop("labels"), OF_ITS_OWN),
    "a driver": (lambda pod: pod["metadata"]["labels"].update({names.COMPONENT: "driver"}), OF_ITS_OWN),
    "without an owner": (lambda pod: pod["metadata"].pop("ownerReferences"), "its owner is not the driver that asks"),
    "of another pod": (owned(name="somebody"), "its owner is not the driver that asks"),
    "of an earlier driver": (owned(uid="00000000-0000-0000-0000-000000000007"), "its owner is not the driver that asks"),
    "of a ReplicaSet": (owned(kind="ReplicaSet", apiVersion="apps/v1"), "its owner is not the driver that asks"),
    "named as another": (lambda pod: pod["metadata"].update(name="web-0"), "its name is not that of an executor: sj-one-...-exec-N"),
    "named as another join's": (lambda pod: pod["metadata"].update(name="sj-on-exec-1"), "its name is not that of an executor"),
    "as the operator": (specified(serviceAccountName="default"), "its service account default is not that of the executors' template"),
    "as itself": (specified(serviceAccountName="sj-one"), "its service account sj-one is not that of the executors' template"),
    "a Secret as a volume": (volume(secret={"secretName": "others"}), "secrets/others is not in the executors' template"),
    "its own API token": (volume(secret={"secretName": "sj-one-token"}), "secrets/sj-one-token is not in the executors' template"),
    "a Secret in a projected volume": (volume(projected={"sources": [{"secret": {"name": "certificates"}}]}), "a volume of its own"),
    "a Secret as variables": (contained(envFrom=[FOREIGN]), "secrets/others is not in the executors' template"),
    "a Secret as a variable": (contained(env=[KEY]), "secrets/others is not in the executors' template"),
    "a Secret in the beginning": (begun(envFrom=[FOREIGN]), "secrets/others is not in the executors' template"),
    "a Secret's key in the beginning": (begun(env=[KEY]), "secrets/others is not in the executors' template"),
    "another claim": (volume(persistentVolumeClaim={"claimName": "others"}), "claims/others is not in the executors' template"),
    "a claim of a Secret's name": (volume(persistentVolumeClaim={"claimName": "bucket-keys"}), "claims/bucket-keys is not in"),
    "a copy of another claim": (volume(ephemeral={"volumeClaimTemplate": {"spec": COPY}}), "leave dataSource out"),
    "more than can be asked about": (contained(envFrom=[{"secretRef": {"name": "bucket-keys"}}] * 20), "more than 20 times"),
    "a directory of the node": (volume(hostPath={"path": "/"}), HOST),
    "a CSI driver's secrets": (volume(csi={"driver": "secrets-store.csi.k8s.io"}), HOST),
    "the node's network": (specified(hostNetwork=True), HOST),
    "the node's processes": (specified(hostPID=True), HOST),
    "the node's memory": (specified(hostIPC=True), HOST),
    "a port of the node": (contained(ports=[{"containerPort": 80, "hostPort": 80}]), HOST),
    "a privileged container": (contained(securityContext={"privileged": True}), HOST),
    "a privileged beginning": (begun(securityContext={"privileged": True}), HOST),
    "a capability": (contained(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), HOST),
}


@pytest.mark.apiserver
@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_driver_makes_no_pod_with(driver: Driver, what: str) -> None:
    change, message = FORBIDDEN[what]
    pod = driver.executor()
    driver.create(pod, dryRun="All")
    change(pod)
    said = driver.refusal(lambda: driver.create(pod, dryRun="All"))
    assert "may not create pod " in said
    assert message in said


@pytest.mark.apiserver
def test_as_many_secrets_and_claims_as_may_be_are_asked_about_within_what_a_policy_may_cost(driver: Driver) -> None:
    pod = driver.executor()
    names_six = ("sj-one-exchange", "certificates", "bucket-keys", "state", "bucket-environment", "bucket-key")
    contained(envFrom=[{"secretRef": {"name": "bucket-keys"}}] * (20 - len(names_six)))(pod)
    driver.create(pod, dryRun="All")
    contained(envFrom=[{"secretRef": {"name": "bucket-keys"}}])(pod)
    pod["spec"]["containers"][-1]["name"] = "last"
    assert "more than 20 times" in driver.refusal(lambda: driver.create(pod, dryRun="All"))


@pytest.mark.apiserver
def test_a_driver_deletes_and_changes_no_other_pod(api_server: ApiServer, namespace: str) -> None:
    driver, other = Driver.of(api_server, namespace, "three"), Driver.of(api_server, namespace, "three-b")
    mine, others = driver.create(driver.executor())["metadata"]["name"], other.create(other.executor())["metadata"]["name"]
    web = {"metadata": {"name": "web-0", "labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    disguised = {**web, "metadata": {"name": "web-1", "labels": names.pod_labels("three", names.EXECUTOR)}}
    for pod in (web, disguised):
        api_server.admin.create(driver.pods, pod)
    for name in (others, "web-0", "web-1", driver.pod["metadata"]["name"], other.pod["metadata"]["name"]):
        said = driver.refusal(lambda name=name: driver.client.delete(f"{driver.pods}/{name}"))
        assert f"may not delete pod {name}: " in said
        assert api_server.admin.exists(f"{driver.pods}/{name}")
    for selector in (names.selector("three-b"), names.selector("three"), "app=web", ""):
        driver.refusal(lambda selector=selector: driver.client.delete(driver.pods, labelSelector=selector))
    for name in (others, "web-0", "web-1", driver.pod["metadata"]["name"], other.pod["metadata"]["name"]):
        assert api_server.admin.exists(f"{driver.pods}/{name}")
    with pytest.raises(ApiError, match='cannot patch resource "pods"'):
        driver.client.patch(f"{driver.pods}/{mine}", {"metadata": {"labels": {"a": "b"}}})


@pytest.mark.apiserver
def test_with_the_right_to_change_pods_a_driver_could_not_take_others_or_give_its_own_away(api_server: ApiServer, namespace: str) -> None:
    driver = Driver.of(api_server, namespace, "four")
    rules = f"{PATHS['Role'].format(namespace)}/sj-four"
    given = api_server.admin.get(rules)["rules"]
    api_server.admin.patch(rules, {"rules": [*given, {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]})
    wait_for("it may patch pods", lambda: api_server.allowed(namespace, "sj-four", "patch", "pods"))
    mine = f"{driver.pods}/{driver.create(driver.executor())['metadata']['name']}"
    web = {"metadata": {"name": "web-4"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    api_server.admin.create(driver.pods, web)
    driver.client.patch(mine, {"metadata": {"annotations": {"a": "b"}}})
    taken = {"metadata": {key: driver.executor()["metadata"][key] for key in ("labels", "ownerReferences")}}
    assert "are not those of an executor" in driver.refusal(lambda: driver.client.patch(f"{driver.pods}/web-4", taken))
    for given_away in ({"labels": {names.NAME: "other"}}, {"ownerReferences": None}):
        said = driver.refusal(lambda metadata=given_away: driver.client.patch(mine, {"metadata": metadata}))
        assert "its labels and owners must stay as they are" in said


@pytest.mark.apiserver
def test_the_operator_learns_what_a_driver_would_be_refused(api_server: ApiServer) -> None:
    """It tries an executor without making it; Spark keeps refusals to its log."""
    namespace = api_server.namespace("probed")
    values = {"watch": {"namespaces": [namespace]}}
    install(api_server.admin, values, namespace, *RIGHTS)
    policy_of(api_server, namespace)
    driver, operator = Driver.of(api_server, namespace, "one"), api_server.client(namespace, "sj-streamjoin-operator")
    template = {**driver.template, "metadata": {**driver.template["metadata"], "generateName": "sj-one-"}}
    template["spec"]["containers"][0]["image"] = "engine:1"
    operator.create(driver.pods, template, dryRun="All")
    template["spec"]["volumes"].append({"name": "disk", "hostPath": {"path": "/disk"}})
    with pytest.raises(ApiError, match=f"a driver may not create pod .*{HOST}"):
        operator.create(driver.pods, template, dryRun="All")
    template["metadata"]["labels"][names.COMPONENT] = names.DRIVER
    operator.create(driver.pods, template, dryRun="All")


@pytest.mark.usefixtures("_resizes")
@pytest.mark.apiserver
def test_the_operator_resizes_executors_and_no_other_pod_and_a_driver_none(api_server: ApiServer) -> None:
    namespace = api_server.namespace("resized")
    install(api_server.admin, {"watch": {"namespaces": [namespace]}}, namespace, *RIGHTS)
    policy_of(api_server, namespace)
    driver, operator = Driver.of(api_server, namespace, "one"), api_server.client(namespace, "sj-streamjoin-operator")
    executor = driver.executor()
    asked = {"spec": {"containers": [{"name": "executor", "resources": {"requests": {"cpu": "2"}}}]}}
    executor["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    other = {"metadata": {"name": "web"}, "spec": executor["spec"]}
    paths = []
    for pod in (executor, other):
        api_server.admin.create(driver.pods, pod)
        paths.append(f"{driver.pods}/{pod['metadata']['name']}/resize")
    operator.patch(paths[0], asked, STRATEGIC)
    with pytest.raises(ApiError, match="are not those of an executor of its own StreamJoin"):
        operator.patch(paths[1], asked, STRATEGIC)
    with pytest.raises(ApiError, match="cannot patch resource"):
        driver.client.patch(paths[0], asked, STRATEGIC)


@pytest.mark.apiserver
def test_others_are_not_asked(api_server: ApiServer, namespace: str, driver: Driver) -> None:
    """The admin here, as Kubernetes' controllers; and service accounts with other names."""
    api_server.admin.create(driver.pods, {"metadata": {"name": "b"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}, dryRun="All")
    elsewhere = Driver.of(api_server, api_server.namespace("unwatched"), "one")
    elsewhere.create({"metadata": {"name": "b"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}, dryRun="All")


@pytest.mark.apiserver
@pytest.mark.parametrize(
    "rule",
    [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]},
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    ],
    ids=["pods", "all"],
)
def test_an_account_that_is_only_named_as_a_driver_does_what_it_may(
    api_server: ApiServer, namespace: str, driver: Driver, rule: Object
) -> None:
    name = "sj-batch" if rule["resources"] == ["pods"] else "sj-admin"
    batch = account_of(api_server, namespace, name, rule)
    pod = {"metadata": {"name": f"{name}-0"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    batch.create(driver.pods, pod)
    batch.delete(f"{driver.pods}/{name}-0")


@pytest.mark.apiserver
def test_access_to_the_node_is_left_to_pod_security_where_the_chart_says_so(api_server: ApiServer) -> None:
    namespace = api_server.namespace("host")
    policy_of(api_server, namespace, hostAccess=True)
    driver = Driver.of(api_server, namespace, "one")
    for change, message in FORBIDDEN.values():
        pod = driver.executor()
        change(pod)
        if message == HOST:
            driver.create(pod, dryRun="All")
        else:
            driver.refusal(lambda pod=pod: driver.create(pod, dryRun="All"))


@pytest.mark.apiserver
def test_a_pod_template_that_names_another_service_account_has_it(api_server: ApiServer, namespace: str) -> None:
    template = {"spec": {"serviceAccountName": "default"}}
    driver = Driver.of(api_server, namespace, "five", executor={"podTemplate": template})
    assert driver.executor()["spec"]["serviceAccountName"] == "default"
    driver.create(driver.executor(), dryRun="All")


def test_without_the_policy_or_the_api_for_it_the_chart_has_none() -> None:
    assert len(of_kind(rendered({}), *POLICIES)) == 2
    assert of_kind(rendered({"driverPolicy": {"enabled": False}}), *POLICIES) == []
    for more, policies in (([], 0), (["admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"], 2)):
        flags = [f"--api-versions={version}" for version in ("v1/Pod", *more)]
        text = helm("template", "sj", str(CHART), "--kube-version", KUBERNETES, *flags).stdout
        assert len(of_kind(all_parsed(text), *POLICIES)) == policies


def test_the_driver_mounts_no_secret_but_its_own() -> None:
    body = streamjoin("one", security={"tls": {"secretName": "certificates"}})
    derived = derive(body)
    assert derived.manifest is not None
    assert derived.memory is not None
    made = children.deployment(Resource.of(body), derived.manifest, derived.memory, Settings(), None)
    spec = made["spec"]["template"]["spec"]
    secrets = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
    assert secrets == {"sj-one-token", "sj-one-exchange", "certificates"}
    assert not [volume for volume in spec["volumes"] if "projected" in volume or "hostPath" in volume]
    assert not [container for container in spec["containers"] if container.get("envFrom")]
    assert not [one for container in spec["containers"] for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})]
