"""A new image, pod template or manifest that does not come up never stops the join that runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from operator_cluster import Cluster
from operator_parts import Object, streamjoin, trial_status
from streamjoin.cli import main as engine
from streamjoin_operator import children, names
from streamjoin_operator.derived import derive
from streamjoin_operator.driver_files import driver_files
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings
from streamjoin_operator.trial import OPTIONS, State, outcome, trial_pod
from waiting import wait_for

UNPULLABLE = ("driver", {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
REFUSES = ("driver", {"terminated": {"exitCode": 2, "message": "/etc/streamjoin/streamjoin.yaml:9: spec.epoch.new: is not a field\n"}})
ENDED = {"terminated": {"exitCode": 1, "message": "a\nb\n"}}


def template_of(body: Object, settings: Settings | None = None) -> tuple[Object, str]:
    """The driver's pod template, and what a trial of it would try."""
    derived = derive(body)
    assert derived.manifest is not None
    assert derived.memory is not None
    desired = children.deployment(Resource.of(body), derived.manifest, derived.memory, settings or Settings(engine_image="engine:1"), None)
    return desired["spec"]["template"], desired["metadata"]["annotations"][names.TRIED]


def pod_of(**spec: Any) -> Object:
    body = streamjoin(**spec)
    return trial_pod(Resource.of(body), *template_of(body))


class TestPod:
    def test_it_is_the_drivers_but_for_what_would_disturb_it(self) -> None:
        mine = {"name": "driver", "env": [{"name": "A", "value": "b"}], "volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}
        proxy = {"name": "proxy", "image": "proxy:1", "ports": [{"containerPort": 9, "hostPort": 9}]}
        volumes = [{"name": "keys", "secret": {"secretName": "keys"}}, {"name": "mine", "persistentVolumeClaim": {"claimName": "m"}}]
        first = {"name": "first", "image": "first:1", "volumeMounts": [{"name": "mine", "mountPath": "/m"}]}
        template = {"spec": {"containers": [mine, proxy], "volumes": volumes, "nodeSelector": {"a": "b"}, "initContainers": [first]}}
        pod = pod_of(driver={"podTemplate": template}, checkpoint={"persistentVolumeClaim": "data"}, image="engine:2")
        spec = pod["spec"]
        driver, sidecar = spec["containers"]
        assert [one["name"] for one in spec["initContainers"]] == ["first", OPTIONS]
        assert (driver["image"], spec["nodeSelector"], sidecar["image"]) == ("engine:2", {"a": "b"}, "proxy:1")
        assert {"name": "A", "value": "b"} in driver["env"]
        assert not [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume], "a claim may be one node's"
        mounts = {mount["name"] for one in (*spec["containers"], *spec["initContainers"]) for mount in one.get("volumeMounts", [])}
        assert "keys" in mounts
        assert mounts <= {volume["name"] for volume in spec["volumes"]}
        for container in (*spec["containers"], *spec["initContainers"]):
            assert not {"ports", "livenessProbe", "readinessProbe"} & set(container)
        assert driver["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "64Mi"}
        assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)

    def test_no_selector_takes_it_for_a_driver_and_nobody_scrapes_it(self) -> None:
        pod = pod_of()
        assert pod["metadata"]["labels"][names.COMPONENT] == names.TRIAL
        assert not [name for name in pod["metadata"]["annotations"] if name.startswith("prometheus.io")]
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("StreamJoin", "one")

    def test_what_only_has_pods_start_anew_is_tried_once(self) -> None:
        def key(annotation: str = "", **spec: Any) -> str:
            body = streamjoin(**spec)
            body["metadata"]["annotations"] = {names.RESTART: annotation}
            return template_of(body)[1]

        workers = streamjoin()["spec"]["workers"]
        assert key() == key("now") == key(workers={**workers, "max": 16})
        different = [{"image": "e:2"}, {"epoch": {"interval": "7s"}}, {"executor": {"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}}}]
        assert len({key(), *(key(**spec) for spec in different)}) == 4

    def test_a_name_fits(self) -> None:
        for length in (1, 45, 63):
            assert len(names.trial_name("a" * length, "0" * 16)) <= 63


class TestEngine:
    """What the pod's containers run is asked of this engine."""

    def test_it_knows_the_options_that_the_operator_gives(self) -> None:
        for spec in ({}, {"security": {"tls": {"secretName": "s"}}}):
            (options,) = [one for one in pod_of(**spec)["spec"]["initContainers"] if one["name"] == OPTIONS]
            done = CliRunner().invoke(engine, options["args"])
            assert done.exit_code == 0, done.output

    def test_an_engine_that_lacks_an_option_says_so(self) -> None:
        (options,) = [one for one in pod_of()["spec"]["initContainers"] if one["name"] == OPTIONS]
        done = CliRunner().invoke(engine, ["driver", "--of-a-later-release=1", *options["args"][1:]])
        assert done.exit_code == 2
        ended = {"terminated": {"exitCode": 2, "message": done.output}}
        shown = outcome({"metadata": {"name": "p"}, "spec": pod_of()["spec"], "status": trial_status(pod_of(), OPTIONS, ended)}, 0.0)
        assert shown.state is State.FAILED
        assert "--of-a-later-release" in shown.message

    def test_it_takes_the_manifest_that_the_operator_writes_and_names_a_field_that_it_does_not_know(self, tmp_path: Path) -> None:
        body = streamjoin()
        derived = derive(body)
        assert derived.manifest is not None
        files = driver_files(Resource.of(body), derived.manifest, Settings())
        (container,) = pod_of()["spec"]["containers"]
        command, path = container["args"]
        file = tmp_path / Path(path).name
        file.write_text(files[file.name])
        assert CliRunner().invoke(engine, [command, str(file)]).exit_code == 0
        newer = json.loads(files[file.name])
        newer["spec"]["workers"]["ofALaterRelease"] = 1
        file.write_text(json.dumps(newer, indent=1))
        done = CliRunner().invoke(engine, [command, str(file)])
        assert done.exit_code != 0
        assert "spec.workers.ofALaterRelease" in done.output


@pytest.mark.parametrize(
    ("status", "state", "said"),
    [
        (lambda pod: {}, State.WAITS, ""),
        (lambda pod: {"phase": "Pending"}, State.WAITS, ""),
        (trial_status, State.PASSED, ""),
        (lambda pod: trial_status(pod, "proxy", {"running": {}}), State.PASSED, ""),
        (lambda pod: trial_status(pod, "proxy", {"waiting": {"reason": "ContainerCreating"}}), State.WAITS, ""),
        (lambda pod: trial_status(pod, "proxy", UNPULLABLE[1]), State.STUCK, "ImagePullBackOff: no such image"),
        (lambda pod: trial_status(pod, "proxy", ENDED), State.FAILED, "container proxy: exit code 1: a; b"),
        (lambda pod: trial_status(pod, *REFUSES), State.FAILED, "container driver: exit code 2: streamjoin.yaml:9: spec.epoch.new: is not"),
        (lambda pod: trial_status(pod, OPTIONS, {"terminated": {"exitCode": 137}}), State.FAILED, "exit code 137: see its log"),
        (lambda pod: trial_status(pod, *UNPULLABLE), State.STUCK, "ImagePullBackOff: no such image"),
        (lambda pod: {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, State.LOST, "Evicted: low on memory"),
        (
            lambda pod: {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]},
            *(State.STUCK, "0/1 nodes"),
        ),
    ],
)
def test_what_a_trial_shows(status: Callable[[Object], Object], state: State, said: str) -> None:
    pod = pod_of(driver={"podTemplate": {"spec": {"containers": [{"name": "proxy", "image": "proxy:1"}]}}})
    shown = outcome({**pod, "status": status(pod)}, 0.0)
    assert shown.state is state
    assert said in shown.message


def test_a_sidecar_that_is_ended_with_the_others_is_no_failure() -> None:
    first = {"name": "mesh", "image": "mesh:1", "restartPolicy": "Always"}
    pod = pod_of(driver={"podTemplate": {"spec": {"initContainers": [first]}}})
    status = {**trial_status(pod, "mesh", {"terminated": {"exitCode": 143}}), "phase": "Succeeded"}
    assert outcome({**pod, "status": status}, 0.0).state is State.PASSED


def generation(cluster: Cluster) -> int:
    return int(cluster.child("Deployment")["metadata"]["generation"])


def message(cluster: Cluster, kind: str = "Degraded") -> str:
    return str(next(found["message"] for found in cluster.status()["conditions"] if found["type"] == kind))


def is_degraded(cluster: Cluster) -> str:
    wait_for("it is said", lambda: cluster.condition("Degraded") == ("True", "NewTemplateFails"))
    return message(cluster)


def is_well(cluster: Cluster) -> None:
    wait_for("it is well", lambda: cluster.condition("Degraded") == ("False", "Healthy"))
    wait_for("no trial is left", lambda: not cluster.trials())


@pytest.mark.apiserver
def test_an_image_that_cannot_be_pulled_leaves_the_join_as_it_is_until_it_is_mended(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        before = cluster.child("Deployment")["spec"]["template"], generation(cluster)
        cluster.trial = UNPULLABLE
        cluster.change({"image": "engine:that-is-nowhere"})
        said = is_degraded(cluster)
        assert "image engine:that-is-nowhere: pod sj-one-trial-" in said
        assert "ImagePullBackOff: no such image" in said
        assert (cluster.child("Deployment")["spec"]["template"], generation(cluster)) == before
        assert cluster.condition("Available") == ("True", "JoinRunning")
        assert cluster.status()["image"] == "engine:1"
        (event,) = [event for event in cluster.events() if event["reason"] == "NewTemplateFails"]
        assert event["type"] == "Warning"
        cluster.trial = None
        cluster.change({"image": "engine:2"})
        wait_for("the mended one runs", lambda: generation(cluster) == before[1] + 1)
        cluster.ready()
        is_well(cluster)
        assert cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:2"
        wait_for("it is told what kind of change it was", lambda: cluster.status().get("change", {}).get("class") == "Restart")


@pytest.mark.apiserver
def test_an_engine_that_does_not_take_the_manifest_is_not_started_and_restoring_it_ends_that(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        before = generation(cluster)
        cluster.trial = REFUSES
        cluster.change({"image": "engine:0", "epoch": {"interval": "7s"}})
        assert "container driver: exit code 2: streamjoin.yaml:9: spec.epoch.new: is not a field" in is_degraded(cluster)
        cluster.change({"image": None, "epoch": None})
        is_well(cluster)
        assert generation(cluster) == before


@pytest.mark.apiserver
def test_while_it_is_tried_the_join_runs_and_the_status_says_so(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        before = generation(cluster)
        cluster.trial = ("driver", {"waiting": {"reason": "ContainerCreating"}})
        cluster.change({"image": "engine:2"})
        wait_for("it is tried", lambda: cluster.condition("Reconciling") == ("True", "TemplateTried"))
        assert cluster.condition("Degraded") == ("False", "Healthy")
        assert cluster.condition("Available") == ("True", "JoinRunning")
        assert generation(cluster) == before
        (pod,) = cluster.trials()
        cluster.trial = None
        cluster.end_trial(pod)
        wait_for("it runs", lambda: generation(cluster) == before + 1)


@pytest.mark.apiserver
def test_a_trial_that_a_quota_refuses_is_said_with_the_join_as_it_is(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        before, quotas = generation(cluster), f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
        cluster.admin.create(quotas, {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}})
        cluster.admin.patch(f"{quotas}/small/status", {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}})
        cluster.change({"image": "engine:2"})
        assert "exceeded quota: small" in is_degraded(cluster)
        assert generation(cluster) == before
        cluster.admin.delete(f"{quotas}/small")
        wait_for("it runs", lambda: generation(cluster) == before + 1)


@pytest.mark.apiserver
def test_a_trial_that_was_ended_from_outside_is_begun_again(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        before = generation(cluster)
        cluster.trial = ("driver", {"waiting": {"reason": "ContainerCreating"}})
        cluster.change({"image": "engine:2"})
        (pod,) = wait_for("a trial that waits", lambda: [pod for pod in cluster.trials() if "containerStatuses" in pod.get("status", {})])
        cluster.trial = None
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}/status"
        cluster.admin.patch(path, {"status": {"phase": "Failed", "reason": "Evicted", "message": "by the test"}})
        wait_for("it runs", lambda: generation(cluster) == before + 1)


@pytest.mark.apiserver
def test_a_join_that_does_not_run_is_not_tried_first(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.trial = UNPULLABLE
        cluster.run()
        cluster.change({"suspend": True})
        wait_for("no replica", lambda: cluster.child("Deployment")["spec"]["replicas"] == 0)
        cluster.ready()
        before = generation(cluster)
        cluster.change({"image": "engine:2"})
        wait_for("it is taken over", lambda: generation(cluster) == before + 1)
        assert not [event for event in cluster.events() if event["reason"] == "TemplateTried"]


@pytest.mark.apiserver
def test_a_join_whose_new_template_fails_can_be_suspended_and_its_driver_comes_back_as_it_was(cluster: Cluster) -> None:
    with cluster.operator(resync_seconds=0.5):
        cluster.run()
        template = cluster.child("Deployment")["spec"]["template"]
        name = next(volume["configMap"]["name"] for volume in template["spec"]["volumes"] if "configMap" in volume)
        files = cluster.child("ConfigMap", name)["data"]
        cluster.trial = UNPULLABLE
        cluster.change({"image": "engine:2", "epoch": {"interval": "7s"}})
        is_degraded(cluster)
        assert cluster.child("ConfigMap", name)["data"] == files, "a driver that crashes now is started as it was"
        assert cluster.child("Deployment")["spec"]["template"] == template
        cluster.change({"suspend": True})
        wait_for("no replica", lambda: cluster.child("Deployment")["spec"]["replicas"] == 0)


@pytest.mark.apiserver
def test_a_restart_of_what_runs_is_not_tried(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        before = generation(cluster)
        cluster.trial = UNPULLABLE
        path = f"/apis/streamjoin.dev/v1beta1/namespaces/{cluster.namespace}/streamjoins/one"
        cluster.admin.patch(path, {"metadata": {"annotations": {names.RESTART: "now"}}})
        wait_for("it restarts", lambda: generation(cluster) == before + 1)


@pytest.mark.apiserver
def test_another_release_of_the_operator_tries_nothing_until_the_join_restarts(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
    before = generation(cluster)
    cluster.trial = UNPULLABLE
    with cluster.operator(engine_image="engine:of-another-release", resync_seconds=0.1) as running:
        wait_for("some checks", lambda: running.requests("list") > 40)
        assert not cluster.trials()
        path = f"/apis/streamjoin.dev/v1beta1/namespaces/{cluster.namespace}/streamjoins/one"
        cluster.admin.patch(path, {"metadata": {"annotations": {names.RESTART: "now"}}})
        assert "engine:of-another-release" in is_degraded(cluster)
        assert generation(cluster) == before


@pytest.mark.apiserver
def test_a_trial_is_admitted_where_pod_security_is_restricted(cluster: Cluster) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.admin.patch(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": labels}})
    with cluster.operator():
        cluster.run(checkpoint={"persistentVolumeClaim": "data", "size": "1Gi"})
        before = generation(cluster)
        cluster.change({"image": "engine:2"})
        wait_for("it is taken over", lambda: generation(cluster) == before + 1)


@pytest.mark.apiserver
def test_a_template_of_executors_that_the_api_server_refuses_leaves_the_join_as_it_is(cluster: Cluster) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.admin.patch(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": labels}})
    with cluster.operator():
        cluster.run()
        before = generation(cluster)
        cluster.change({"executor": {"podTemplate": {"spec": {"hostNetwork": True}}}})
        said = is_degraded(cluster)
        assert "executors: " in said
        assert "violates PodSecurity" in said
        cluster.change({"executor": None})
        is_well(cluster)
        assert generation(cluster) == before
        cluster.change({"executor": {"podTemplate": {"metadata": {"labels": {"team": "a"}}}}})
        wait_for("it is taken over", lambda: generation(cluster) == before + 1)


@pytest.mark.apiserver
def test_a_join_that_gets_a_table_is_tried_in_the_image_for_tables_first(cluster: Cluster) -> None:
    joins = streamjoin()["spec"]["joins"]
    joins[0]["output"]["sink"] = {"delta": {"path": "s3://bucket/table"}}
    with cluster.operator(tables_image="engine-tables:1"):
        cluster.run()
        before = generation(cluster)
        assert cluster.status()["image"] == "engine:1"
        cluster.trial = UNPULLABLE
        cluster.change({"joins": joins})
        assert "image engine-tables:1: pod sj-one-trial-" in is_degraded(cluster)
        assert generation(cluster) == before
        cluster.trial = None
        (pod,) = cluster.trials()
        assert {container["image"] for container in (*pod["spec"]["containers"], *pod["spec"]["initContainers"])} == {"engine-tables:1"}
        cluster.admin.delete(f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}")
        wait_for("the join with a table runs", lambda: generation(cluster) == before + 1)
        cluster.ready()
        is_well(cluster)
        wait_for("it is told which image runs", lambda: cluster.status()["image"] == "engine-tables:1")
        cluster.change({"joins": streamjoin()["spec"]["joins"]})
        wait_for("the join without one runs", lambda: generation(cluster) == before + 2)
        cluster.ready()
        wait_for("the engine's image is taken again", lambda: cluster.status()["image"] == "engine:1")
