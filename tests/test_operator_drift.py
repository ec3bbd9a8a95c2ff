"""What the operator takes for a child that is as it should be, against a real API server with its canonical values and defaults.

Rest is counted in requests over many checks, never in time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from admission import webhook
from operator_cluster import PATHS, STREAMJOINS, Cluster, Running
from operator_parts import Object
from streamjoin_operator import names
from waiting import wait_for

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).resolve().parent.parent
WRITES = ("apply", "patch", "create", "delete")
CHECKS = 6
LISTS = 9
"""Requests of one check."""
STRATEGIC = "application/strategic-merge-patch+json"


def container(**fields: object) -> Object:
    return {"spec": {"containers": [{"name": "driver", **fields}]}}


TEMPLATES: dict[str, Object] = {
    "whole cores": container(resources={"requests": {"cpu": 2, "memory": "2048Mi"}, "limits": {"cpu": "2000m", "memory": "2147483648"}}),
    "odd quantities": container(resources={"requests": {"cpu": "1000m", "memory": "0.5Gi"}, "limits": {"memory": "1e9"}}),
    "ephemeral storage": container(resources={"limits": {"ephemeral-storage": "1024Mi"}}),
    "defaults written out": {
        "spec": {"hostNetwork": False, "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "priorityClassName": ""}
    },
    "fields that are empty": {"metadata": {"annotations": {}}, "spec": {"nodeSelector": {}, "initContainers": [], "affinity": {}}},
    "no protocol": container(ports=[{"containerPort": 9999}, {"containerPort": 9999, "protocol": "UDP", "name": "other"}]),
    "environment": container(
        env=[{"name": "LEVEL", "value": ""}, {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    ),
    "tolerations": {"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}, {"effect": "NoSchedule", "operator": "Exists"}]}},
    "a sidecar and its volume": {
        "metadata": {"labels": {"team": "a"}, "annotations": {"sidecar": "yes"}},
        "spec": {
            "containers": [{"name": "proxy", "image": "proxy:1", "resources": {"limits": {"cpu": "0.1"}}}],
            "initContainers": [{"name": "first", "image": "first:1", "restartPolicy": "Always"}],
            "volumes": [{"name": "more", "emptyDir": {"sizeLimit": "1024Mi"}}, {"name": "tmp", "emptyDir": {"medium": "Memory"}}],
            "imagePullSecrets": [{"name": "registry"}],
            "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["a"]}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"a": "b"}}}
            ],
        },
    },
    "security": {
        "spec": {"securityContext": {"supplementalGroups": [5, 6], "sysctls": [], "fsGroup": 0}, "terminationGracePeriodSeconds": 0},
    },
}
"""By name, what somebody may write into ``spec.driver.podTemplate``."""


def documented() -> list[Object]:
    """Driver and executor, with their pod templates, of the documentation and of the examples."""
    found = []
    files = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.yaml"), ROOT / "README.md"])
    for file in files:
        text = file.read_text()
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if file.suffix == ".md" else [text]:
            for document in yaml.safe_load_all(block):
                spec = document.get("spec") if isinstance(document, dict) else None
                parts = {name: part for name, part in spec.items() if name in ("driver", "executor")} if isinstance(spec, dict) else {}
                found += [parts] if "podTemplate" in str(parts) else []
    return found


def check_often(running: Running) -> None:
    """At least ``CHECKS`` more checks of all children."""
    enough = running.requests("list") + CHECKS * LISTS
    wait_for("some checks", lambda: running.requests("list") >= enough)


def stays_as_it_is(cluster: Cluster, running: Running) -> None:
    check_often(running)  # what was under way is done
    versions, writes, events = cluster.versions(), running.requests(*WRITES), cluster.events()
    check_often(running)
    assert running.requests(*WRITES) == writes
    assert cluster.versions() == versions
    assert cluster.events() == events


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_ordinary_pod_template_costs_no_write_at_rest(cluster: Cluster, name: str) -> None:
    with cluster.operator(resync_seconds=0.05) as running:
        cluster.run(driver={"podTemplate": TEMPLATES[name]})
        stays_as_it_is(cluster, running)


def test_the_documented_pod_templates_cost_no_write_at_rest(cluster: Cluster) -> None:
    templates = documented()
    assert templates, "the documentation shows some"
    with cluster.operator(resync_seconds=0.05) as running:
        cluster.run()
        for parts in templates:
            cluster.change({"driver": None, "executor": None, **parts})
            generation = cluster.get()["metadata"]["generation"]
            wait_for("it is seen", lambda wanted=generation: cluster.judged() == wanted)  # type: ignore[misc]
            assert cluster.condition("Degraded") == ("False", "Healthy"), parts
            cluster.ready()
            stays_as_it_is(cluster, running)


def test_what_others_add_is_theirs_and_what_is_ours_is_put_right_once(cluster: Cluster) -> None:
    path = f"{PATHS['Deployment'].format(cluster.namespace)}/sj-one"

    def pod() -> Object:
        return dict(cluster.child("Deployment")["spec"]["template"]["spec"])

    def patch(spec: Object) -> None:
        cluster.admin.patch(path, {"spec": {"template": {"spec": spec}}}, STRATEGIC)

    with cluster.operator(resync_seconds=0.05) as running:
        cluster.run()
        injected = {"name": "INJECTED", "value": "1"}
        patch({"containers": [{"name": "driver", "env": [injected]}, {"name": "sidecar", "image": "sidecar:1"}]})
        cluster.admin.patch(path, {"metadata": {"annotations": {"theirs": "1"}}})
        cluster.ready()
        stays_as_it_is(cluster, running)
        assert injected in pod()["containers"][0]["env"]
        assert [each["name"] for each in pod()["containers"]] == ["driver", "sidecar"]
        tolerations = pod()["tolerations"]
        patch({"tolerations": [{"key": "theirs", "operator": "Exists"}], "containers": [{"name": "driver", "image": "bad"}]})
        wait_for("the lists and values that are ours", lambda: pod()["tolerations"] == tolerations)
        assert pod()["containers"][0]["image"] == "engine:1"
        cluster.ready()
        stays_as_it_is(cluster, running)
        assert injected in pod()["containers"][0]["env"], "what is theirs stays"


def test_what_an_admission_webhook_makes_of_our_fields_is_no_reason_to_write_for_ever(cluster: Cluster, tmp_path: Path) -> None:
    """A toleration into our list, an environment variable into our container, an image from another registry: at every write."""

    def inject(deployment: Object) -> list[Object]:
        pod, at = deployment["spec"]["template"]["spec"], "/spec/template/spec"
        variable = [{"op": "add", "path": f"{at}/containers/0/env/-", "value": {"name": "INJECTED", "value": "1"}}]
        toleration = [{"op": "add", "path": f"{at}/tolerations/-", "value": {"key": "injected", "operator": "Exists"}}]
        return [
            *([] if "INJECTED" in str(pod["containers"][0]["env"]) else variable),
            *([] if "injected" in str(pod["tolerations"]) else toleration),
            {"op": "replace", "path": f"{at}/containers/0/image", "value": "mirror.example/engine:1"},
        ]

    with webhook(cluster.server, tmp_path, cluster.namespace, "apps", "deployments", inject):
        labels = {"app": "probe"}
        pod = {"containers": [{"name": "c", "image": "i", "env": [{"name": "A"}]}], "tolerations": [{"operator": "Exists"}]}
        spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
        probe, path = {"metadata": {"name": "probe"}, "spec": spec}, PATHS["Deployment"].format(cluster.namespace)
        wait_for("the webhook is asked", lambda: "mirror" in str(cluster.admin.create(path, probe, dryRun="All")))
        with cluster.operator(resync_seconds=0.05) as running:
            cluster.run()
            pod = cluster.child("Deployment")["spec"]["template"]["spec"]
            assert "injected" in str(pod["tolerations"])
            assert pod["containers"][0]["image"] == "mirror.example/engine:1"
            stays_as_it_is(cluster, running)


def test_what_somebody_takes_out_comes_back(cluster: Cluster) -> None:
    path = f"{PATHS['Deployment'].format(cluster.namespace)}/sj-one"
    with cluster.operator(resync_seconds=0.05) as running:
        cluster.run()
        before = cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]
        gone = {"name": "driver", "env": [{"name": "POD_IP", "$patch": "delete"}], "livenessProbe": None}
        cluster.admin.patch(path, {"spec": {"template": {"spec": {"containers": [gone]}}}}, STRATEGIC)
        cluster.admin.patch(f"{PATHS['ConfigMap'].format(cluster.namespace)}/sj-one", {"data": {"revision": None, "theirs": "x"}})
        wait_for("the ConfigMap", lambda: "revision" in cluster.child("ConfigMap")["data"])

        def container() -> Object:
            return dict(cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0])

        wait_for("the variable", lambda: sorted(container()["env"], key=str) == sorted(before["env"], key=str))
        after = container()
        assert after["livenessProbe"] == before["livenessProbe"]
        cluster.ready()
        stays_as_it_is(cluster, running)


def test_what_is_no_longer_wanted_of_a_template_is_taken_away(cluster: Cluster) -> None:
    with cluster.operator(resync_seconds=0.05):
        cluster.run(driver={"podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}}}})
        assert cluster.child("Deployment")["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "ssd"}
        cluster.change({"driver": None})
        wait_for("it is gone", lambda: "nodeSelector" not in cluster.child("Deployment")["spec"]["template"]["spec"])


def hand_made(cluster: Cluster, kind: str, name: str, **metadata: Any) -> str:
    """An object of somebody's own, copied from a child with all its labels. Gives its path."""
    child = cluster.child(kind) if kind != "ConfigMap" else {"data": {"mine": "1"}}
    labels = names.labels("one")
    body = {key: value for key, value in child.items() if key in ("spec", "data", "rules")}
    cluster.admin.create(PATHS[kind].format(cluster.namespace), {"metadata": {"name": name, "labels": labels, **metadata}, **body})
    return f"{PATHS[kind].format(cluster.namespace)}/{name}"


def test_only_what_is_ours_is_pruned(cluster: Cluster) -> None:
    with cluster.operator(resync_seconds=0.05) as running:
        cluster.driver.workers = 3
        cluster.run(workers={"min": 3, "max": 8, "capacityTuples": 100000})
        wait_for("the budget", lambda: "PodDisruptionBudget" in cluster.children())
        body = cluster.get()
        owner = {"apiVersion": body["apiVersion"], "kind": body["kind"], "name": "one", "uid": body["metadata"]["uid"]}
        theirs = [
            hand_made(cluster, "Service", "mine"),
            hand_made(cluster, "Role", "mine"),
            hand_made(cluster, "ConfigMap", "mine"),
            hand_made(cluster, "ConfigMap", "mine-too", ownerReferences=[owner]),
            hand_made(cluster, "ConfigMap", "another", ownerReferences=[{**owner, "controller": True}]),
        ]
        cluster.change({"suspend": True})
        wait_for("the budget is gone", lambda: "PodDisruptionBudget" not in cluster.children())
        check_often(running)
        assert all(cluster.admin.exists(path) for path in theirs)
        assert [event["message"] for event in cluster.events() if event["reason"] == "Pruned"] == ["PodDisruptionBudget sj-one"]


def test_an_object_with_our_labels_that_we_did_not_make_is_not_taken_over(cluster: Cluster) -> None:
    path = hand_made(cluster, "ConfigMap", "sj-one")
    with cluster.operator():
        cluster.submit()
        wait_for("it is said", lambda: cluster.condition("Degraded") == ("True", "ForeignObject"))
        assert cluster.admin.get(path)["data"] == {"mine": "1"}


def test_children_that_were_orphaned_are_taken_up_by_the_streamjoin_of_their_name(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
    uids = {kind: sorted(found["metadata"]["uid"] for found in many) for kind, many in cluster.children().items()}
    for kind, many in cluster.children().items():
        for found in many:  # as the garbage collector does for --cascade=orphan
            path = f"{PATHS[kind].format(cluster.namespace)}/{found['metadata']['name']}"
            cluster.admin.patch(path, {"metadata": {"ownerReferences": None}})
    cluster.admin.delete(f"{STREAMJOINS.format(cluster.namespace)}/one")
    with cluster.operator():
        cluster.run()
        assert {kind: sorted(found["metadata"]["uid"] for found in many) for kind, many in cluster.children().items()} == uids
        uid = cluster.get()["metadata"]["uid"]
        owners = {owner["uid"] for many in cluster.children().values() for found in many for owner in found["metadata"]["ownerReferences"]}
        assert owners == {uid}
