"""Ways in which a StreamJoin can fail on Kubernetes: how each comes about, what the status says of it, and what to do.

``tests/test_ways_to_fail.py`` brings each about on a real API server; ``docs/troubleshooting.md`` has the table, which
``python tests/ways_to_fail.py`` prints. Where a controller, the scheduler or the kubelet is the one who speaks, its words are written here
as it writes them.
"""

from __future__ import annotations

import base64
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from streamjoin.manifest.connectors.delta import DELTA
from streamjoin.manifest.packages import missing_package
from streamjoin_operator import names
from streamjoin_operator.reasons import Reason

if TYPE_CHECKING:
    from stepped_cluster import SteppedCluster

Object = dict[str, Any]
Story = Callable[["SteppedCluster"], Iterator[None]]
"""Brings it about up to its ``yield``, and mends it after."""
DRIVER = "spec.driver.podTemplate"
EXECUTORS = "spec.executor.podTemplate"


@dataclass(frozen=True)
class PathPlan:
    """One way to fail. ``says``: what the message has, all of it."""

    section: str
    name: str
    reason: Reason
    says: tuple[str, ...]
    remedy: str
    story: Story
    condition: str = "Degraded"
    status: str = "True"
    is_mended: bool = True
    """Whether the story has a second part."""
    is_shared: bool = False
    """Whether it may come to a StreamJoin that was there before, whose driver has yet to start, and leaves it as it was."""


WAYS: list[PathPlan] = []
_section: list[str] = []
"""Of the documentation, those that were begun; ways go to the last."""
ELSEWHERE: list[tuple[str, str, str]] = [
    (
        "No operator is of the class that `spec.operatorClass` names, or none runs",
        "no conditions: `kubectl get sj` shows no phase, `kubectl streamjoin status NAME` says `not looked at yet` and names the class; "
        "where none runs, the alert `StreamJoinOperatorIsMissing`",
        "Correct `spec.operatorClass`, or install an operator of that class",
    ),
    (
        "The operator may not list or watch StreamJoins, or not patch `streamjoins/status`",
        "the status stays as it was: the operator's log names the right, `/readyz` fails where it cannot watch, "
        "`streamjoin_operator_failing` counts where it cannot write",
        "Give the operator the rights of its chart (`helm test` names those that it lacks)",
    ),
    (
        "The operator has lost its Lease",
        "the status stays as it was until another one is active (15 s): the one that lost it ends with exit code 1, stands by, and its "
        "`streamjoin_operator_active` is 0",
        "Nothing, where another is active (`kubectl get lease`); else see why the API server cannot be reached",
    ),
    (
        "The name is too long, or a field that must not change is changed",
        "nothing is stored: `kubectl apply` shows the API server's answer, with the field",
        "As the answer says",
    ),
    (
        "The API server cannot be reached",
        "the status stays as it was; then `ApiFailing` for as long as requests fail",
        "Mend the way to the API server; joins go on meanwhile",
    ),
]
"""What no status can say: how it shows, and what to do."""


def way(
    name: str, reason: Reason, *says: str, do: str, condition: str = "Degraded", status: str = "True", is_mended: bool = True, **more: bool
) -> Callable[[Story], Story]:
    def add(story: Story) -> Story:
        WAYS.append(PathPlan(_section[-1], name, reason, says, do, story, condition, status, is_mended, **more))
        return story

    return add


def table() -> str:
    """As Markdown, a table for each section."""
    lines: list[str] = []
    for section in _section:
        lines += [f"## {section}", "", "| what goes wrong | what the status says | what to do |", "|---|---|---|"]
        for one in WAYS:
            if one.section == section:
                said = " ... ".join(text.strip().replace("|", "\\|") for text in one.says)
                # Degraded is where one looks first; the others are named.
                where = "" if (one.condition, one.status) == ("Degraded", "True") else f"{one.condition} {one.status}, "
                lines.append(f"| {one.name} | {where}`{one.reason.name}`: {said} | {one.remedy} |")
        lines.append("")
    lines += ["## What no status can say", "", "| what goes wrong | how it shows | what to do |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {shows} | {do} |" for name, shows, do in ELSEWHERE), ""])


# What kubelet and scheduler write into a pod's status.


def container(own: str = names.DRIVER, *, is_ready: bool = False, last: Object | None = None, **state: Object) -> Object:
    return {
        "name": own,
        "image": "engine:1",
        "imageID": "",
        "ready": is_ready,
        "restartCount": 0 if last is None else 2,
        "state": state,
        "lastState": {} if last is None else {"terminated": last},
    }


def on_node(world: SteppedCluster, *containers: Object, phase: str = "Pending", **more: Any) -> Object:
    """Of a pod that has a node."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": world.at}
    return {"phase": phase, "conditions": [scheduled], "containerStatuses": list(containers), **more}


def waiting(world: SteppedCluster, reason: str, message: str = "", own: str = names.DRIVER) -> Object:
    return on_node(world, container(own, waiting={"reason": reason, "message": message} if message else {"reason": reason}))


def unscheduled(message: str, reason: str = "Unschedulable") -> Object:
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]}


def ended(code: int, message: str = "", reason: str = "Error") -> Object:
    return {"exitCode": code, "reason": reason, "message": message}


def looping(world: SteppedCluster, code: int, message: str = "", reason: str = "Error", own: str = names.DRIVER) -> Object:
    back_off = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    return on_node(world, container(own, last=ended(code, message, reason), waiting=back_off), phase="Running")


def unready(world: SteppedCluster, *, reason: str = "ContainersNotReady", is_ready: bool = False) -> Object:
    """Its containers run, and Kubernetes does not count it as ready."""
    status = on_node(world, container(is_ready=is_ready, running={"startedAt": world.at}), phase="Running")
    said = {"reason": reason, "message": "containers with unready status: [driver]"} if reason else {}
    status["conditions"].append({"type": "Ready", "status": "False", **said})
    return status


def pod_way(
    name: str, reason: Reason, *says: str, do: str, status: Callable[[SteppedCluster], Object], tells: tuple[str, str] | None = None
) -> None:
    """Of the driver's pod: its status, and what an event tells of it."""

    def story(world: SteppedCluster) -> Iterator[None]:
        path = world.driver_pod(status(world), "node-1" if tells is not None else None)
        if tells is not None:
            world.tell(path, *tells)
        yield
        world.remove(path)

    way(name, reason, *says, do=do, is_shared=True)(story)


def executor_way(
    name: str, reason: Reason, *says: str, do: str, status: Callable[[SteppedCluster], Object], tells: tuple[str, str] | None = None
) -> None:
    """The same of the second of two executors; the join runs on the first."""

    def story(world: SteppedCluster) -> Iterator[None]:
        world.driver.workers = 2
        world.runs(workers={"min": 2, "max": 2, "capacityTuples": 100000})
        world.executor_pod(running_executor(world))
        path = world.executor_pod(status(world), "node-2" if tells is not None else None)
        world.driver.ready_workers = 1
        if tells is not None:
            world.tell(path, *tells)
        yield
        world.remove(path)
        world.driver.ready_workers = None

    way(name, reason, *says, do=do)(story)


def running_executor(world: SteppedCluster) -> Object:
    status = on_node(world, container(names.EXECUTOR, is_ready=True, running={"startedAt": world.at}), phase="Running")
    status["conditions"].append({"type": "Ready", "status": "True"})
    return status


def template(**spec: Any) -> Object:
    return {"podTemplate": {"spec": spec}}


def changed(world: SteppedCluster, spec: Object) -> None:
    world.cluster.change(spec)


# What the API server or its admission refuses.
_section.append("Refused by the API server")


def made(world: SteppedCluster, plural: str, name: str, spec: Object) -> str:
    path = f"/api/v1/namespaces/{world.namespace}/{plural}"
    world.admin.create(path, {"metadata": {"name": name}, "spec": spec})
    return f"{path}/{name}"


def quota(world: SteppedCluster, **hard: str) -> str:
    """A quota of which nothing is used, as its controller would count."""
    limits = {name.replace("_", "."): value for name, value in hard.items()}
    path = made(world, "resourcequotas", "small", {"hard": limits})
    world.admin.patch(f"{path}/status", {"status": {"hard": limits, "used": dict.fromkeys(limits, "0")}})
    return path


def await_refusal(world: SteppedCluster, said: str, of: str = "pods") -> None:
    """The API server's caches take a moment to see a new quota or webhook: until it refuses an object, which is not made."""
    from waiting import wait_for

    wait_for(f"it refuses: {said}", lambda: is_refused(world, said, of))


def await_admission(world: SteppedCluster, said: str, of: str = "pods") -> None:
    """And to see that it is gone, while the world's clock, which goes by steps, would go on."""
    from waiting import wait_for

    wait_for(f"it does not refuse any more: {said}", lambda: not is_refused(world, said, of))


def is_refused(world: SteppedCluster, said: str, of: str) -> bool:
    from apiserver import ApiError

    pod = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": 4}, "limits": {"memory": "8Gi"}}}]}
    labels = {"app": "probe"}
    bodies = {
        "pods": {"spec": pod},
        "deployments": {"spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}},
        "secrets": {},
    }
    root = "/apis/apps/v1" if of == "deployments" else "/api/v1"
    try:
        body = {"metadata": {"name": "probe"}, **bodies[of]}
        world.admin.create(f"{root}/namespaces/{world.namespace}/{of}", body, dryRun="All")
    except ApiError as error:
        return said in str(error)
    return False


QUOTA = "Raise the quota, or lower what the pods ask for (`{}`)"


@way(
    "A quota has no room for the driver's pod",
    Reason.PodRefused,
    "a pod is forbidden: exceeded quota: small",
    "limits.memory=2Gi",
    do=QUOTA.format(DRIVER),
)
def quota_of_the_driver(world: SteppedCluster) -> Iterator[None]:
    path = quota(world, limits_memory="1Gi")
    await_refusal(world, "exceeded quota")
    world.submit()
    yield
    world.admin.delete(path)


@way(
    "A quota has no room for executors, which Spark makes",
    Reason.PodRefused,
    "executors: a pod is forbidden: exceeded quota: small, requested: limits.memory=1536Mi",
    do=QUOTA.format("spec.workers.resources`, `spec.workers.max"),
)
def quota_of_executors(world: SteppedCluster) -> Iterator[None]:
    world.runs(workers={"min": 1, "max": 2, "capacityTuples": 1000, "resources": {"cpu": 1, "memory": "1536Mi"}})
    path = quota(world, limits_memory="1Gi")
    await_refusal(world, "exceeded quota")
    world.driver.ready_workers = 0
    yield
    world.admin.delete(path)
    world.driver.ready_workers = None


@way(
    "A quota has no room for the CPU of executors that several workers share",
    Reason.PodRefused,
    "executors: a pod is forbidden: exceeded quota: small, requested: requests.cpu=4",
    do=QUOTA.format("spec.workers.resources`, `spec.workers.perExecutor"),
)
def quota_of_shared_executors(world: SteppedCluster) -> Iterator[None]:
    workers = {"min": 1, "max": 4, "perExecutor": 4, "capacityTuples": 1000, "resources": {"cpu": 1, "memory": "1536Mi"}}
    world.runs(workers=workers)
    path = quota(world, requests_cpu="2")
    await_refusal(world, "quota: small")
    world.driver.ready_workers = 0
    yield
    world.admin.delete(path)
    world.driver.ready_workers = None


@way(
    "A quota demands limits that a pod does not have",
    Reason.PodRefused,
    "failed quota: small: must specify limits.cpu for: driver",
    do=f"Give the container that limit in `{DRIVER}`, or the namespace a LimitRange with a default",
)
def quota_that_demands_limits(world: SteppedCluster) -> Iterator[None]:
    quota(world, limits_cpu="8")
    await_refusal(world, "must specify")
    world.submit()
    yield
    changed(world, {"driver": template(containers=[{"name": "driver", "resources": {"limits": {"cpu": 2}}}])})


@way(
    "A quota has no room for one of the children",
    Reason.ApplyRefused,
    "Secret sj-one-exchange: ",
    "exceeded quota: small",
    do="Raise the quota: [these](operator.md#what-it-makes) are needed",
)
def quota_of_children(world: SteppedCluster) -> Iterator[None]:
    path = quota(world, **{"count/secrets": "0"})
    await_refusal(world, "exceeded quota", "secrets")
    world.submit()
    yield
    world.admin.delete(path)
    await_admission(world, "exceeded quota", "secrets")


@way(
    "A LimitRange allows less memory than the pod asks for",
    Reason.PodRefused,
    "maximum memory usage per Container is 1Gi, but limit is 2Gi",
    do=f"Raise the LimitRange, or lower `{DRIVER}` or `spec.workers.resources`",
)
def limit_range(world: SteppedCluster) -> Iterator[None]:
    path = made(world, "limitranges", "narrow", {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]})
    await_refusal(world, "maximum memory usage")
    world.submit()
    yield
    world.admin.delete(path)
    await_admission(world, "maximum memory usage")


@way(
    "Pod Security forbids something in a pod template",
    Reason.PodRefused,
    'violates PodSecurity "restricted:latest"',
    "host namespaces (hostNetwork=true)",
    do=f"Take it out of `{DRIVER}`: the operator's own pods meet the restricted standard",
)
def pod_security(world: SteppedCluster) -> Iterator[None]:
    enforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    world.admin.patch(f"/api/v1/namespaces/{world.namespace}", enforced)
    world.submit(driver=template(hostNetwork=True))
    yield
    changed(world, {"driver": None})


def with_webhook(resource: str, group: str, said: str) -> Story:
    """An admission webhook that says no."""

    def story(world: SteppedCluster) -> Iterator[None]:
        from admission import webhook

        with (
            tempfile.TemporaryDirectory() as directory,
            webhook(world.cluster.server, Path(directory), world.namespace, group, resource, lambda created: said),
        ):
            await_refusal(world, said, resource)
            world.submit()
            yield
        world.settle()

    return story


def without_answer(resource: str, group: str) -> Story:
    """An admission webhook whose service is gone."""

    def story(world: SteppedCluster) -> Iterator[None]:
        configurations = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        rules = [{"apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": ["CREATE", "UPDATE"]}]
        hook = {
            "name": "policy.example.com",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": rules,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        world.admin.create(configurations, {"metadata": {"name": world.namespace}, "webhooks": [hook]})
        try:
            await_refusal(world, "failed calling webhook", resource)
            world.submit()
            yield
        finally:
            world.admin.delete(f"{configurations}/{world.namespace}")

    return story


way(
    "An admission webhook or a policy refuses the pod",
    Reason.PodRefused,
    "denied the request: not in this cluster",
    do="As the webhook says; its name is in the message",
)(with_webhook("pods", "", "not in this cluster"))
way(
    "An admission webhook or a policy refuses a child",
    Reason.ApplyRefused,
    "Deployment sj-one: ",
    "denied the request: no such team",
    do="As the webhook says; its name is in the message",
)(with_webhook("deployments", "apps", "no such team"))
way(
    "An admission webhook cannot be reached, and must be asked of pods",
    Reason.PodRefused,
    'failed calling webhook "policy.example.com"',
    "connection refused",
    do="Bring the webhook's service back, or remove its configuration",
)(without_answer("pods", ""))
way(
    "An admission webhook cannot be reached, and must be asked of a child",
    Reason.ApiFailing,
    'failed calling webhook "policy.example.com"',
    "connection refused",
    do="Bring the webhook's service back, or remove its configuration",
)(without_answer("deployments", "apps"))


@way(
    "The operator lacks a right",
    Reason.ApiRefused,
    'cannot list resource "poddisruptionbudgets" in API group "policy"',
    "give the operator the rights of its chart",
    do="Give the operator the rights of its chart (`helm test` names those that it lacks)",
)
def missing_right(world: SteppedCluster) -> Iterator[None]:
    world.cluster.take_right("poddisruptionbudgets")
    await_right(world, "list", "poddisruptionbudgets", "policy", False)
    world.submit()
    yield
    world.cluster.take_right()
    await_right(world, "list", "poddisruptionbudgets", "policy", True)


def await_right(world: SteppedCluster, verb: str, resource: str, group: str, is_there: bool) -> None:
    from operator_cluster import SERVICE_ACCOUNT
    from waiting import wait_for

    server = world.cluster.server
    wait_for("the right", lambda: server.allowed(world.namespace, SERVICE_ACCOUNT, verb, resource, group) is is_there)


@way(
    "A child cannot become what it should be, as a field of it is immutable",
    Reason.ApplyRefused,
    "Deployment sj-one: ",
    "field is immutable",
    "delete Deployment sj-one, and the operator makes it anew",
    do="Delete that child: the operator makes it anew",
)
def immutable_field(world: SteppedCluster) -> Iterator[None]:
    labels = {"app": "of-another-release"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "driver", "image": "engine:0"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}
    path = f"/apis/apps/v1/namespaces/{world.namespace}/deployments/sj-one"
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "sj-one"}, "spec": spec}
    world.admin.apply(path, body, names.MANAGER, force=True)
    world.submit()
    yield
    world.admin.delete(path)


@way(
    "An object of somebody else has the name of a child",
    Reason.ForeignObject,
    "ConfigMap sj-one exists and is not this StreamJoin's; delete or rename it",
    do="As the message says",
)
def foreign_object(world: SteppedCluster) -> Iterator[None]:
    path = f"/api/v1/namespaces/{world.namespace}/configmaps"
    world.admin.create(path, {"metadata": {"name": "sj-one"}, "data": {"mine": "1"}})
    world.submit()
    yield
    world.admin.delete(f"{path}/sj-one")


@way(
    "The namespace is being deleted",
    Reason.ApplyRefused,
    "because it is being terminated",
    do="Wait for its end, and apply the StreamJoin to another one",
    is_mended=False,
)
def namespace_terminating(world: SteppedCluster) -> Iterator[None]:
    world.submit()
    world.admin.delete(f"/api/v1/namespaces/{world.namespace}")
    yield


@way(
    "The Secret of `spec.security.tls` is missing",
    Reason.SecretUnusable,
    "spec.security.tls.secretName: certificates: there is no such Secret",
    "tls.crt, tls.key, ca.crt",
    do="Make it, as [cert-manager](../examples/kubernetes/certificate.yaml) does",
)
def no_certificates(world: SteppedCluster) -> Iterator[None]:
    world.submit(security={"tls": {"secretName": "certificates"}})
    yield
    certificates(world, "tls.crt", "tls.key", "ca.crt")


@way(
    "That Secret lacks a file",
    Reason.SecretUnusable,
    "spec.security.tls.secretName: certificates: the Secret lacks ca.crt",
    do="Have its issuer give the authority's certificate, or add it",
)
def no_authority(world: SteppedCluster) -> Iterator[None]:
    certificates(world, "tls.crt", "tls.key")
    world.submit(security={"tls": {"secretName": "certificates"}})
    yield
    encoded = base64.b64encode(b"authority").decode()
    world.admin.patch(f"/api/v1/namespaces/{world.namespace}/secrets/certificates", {"data": {"ca.crt": encoded}})


def certificates(world: SteppedCluster, *files: str) -> None:
    data = dict.fromkeys(files, "of the test")
    world.admin.create(f"/api/v1/namespaces/{world.namespace}/secrets", {"metadata": {"name": "certificates"}, "stringData": data})


def refused_template(name: str, says: str, do: str, reason: Reason = Reason.PodRefused, **spec: Any) -> None:
    def story(world: SteppedCluster) -> Iterator[None]:
        world.submit(driver=template(**spec))
        yield
        changed(world, {"driver": None})

    way(name, reason, says, do=do)(story)


refused_template(
    "The service account of a pod template is missing",
    "error looking up service account",
    f"Make it, or take it out of `{DRIVER}`: the operator makes one",
    serviceAccountName="absent",
)
refused_template(
    "The priority class of a pod template is missing",
    "no PriorityClass with name absent was found",
    f"Make it, or correct `{DRIVER}`",
    priorityClassName="absent",
)
refused_template(
    "The runtime class of a pod template is missing",
    'RuntimeClass "absent" not found',
    f"Make it, or correct `{DRIVER}`",
    runtimeClassName="absent",
)
refused_template(
    "A pod template has a field that there is not, or a value that is none",
    "look at spec.driver.podTemplate",
    "Correct the field that the message names",
    Reason.ApplyRefused,
    tolerationz=[],
)


@way(
    "A pod template changes a label by which pods are found",
    Reason.ApplyRefused,
    "`selector` does not match template `labels`",
    "look at spec.driver.podTemplate",
    do="Leave the labels `streamjoin.dev/name` and `app.kubernetes.io/component` as they are",
)
def changed_label(world: SteppedCluster) -> Iterator[None]:
    world.submit(driver={"podTemplate": {"metadata": {"labels": {names.NAME: "two"}}}})
    yield
    changed(world, {"driver": None})


# What is wrong with the manifest, as far as the API server does not see it.
_section.append("The manifest")


def spec_way(name: str, reason: Reason, *says: str, do: str, wrong: Object, right: Object) -> None:
    def story(world: SteppedCluster) -> Iterator[None]:
        world.submit(**wrong)
        yield
        changed(world, right)

    way(name, reason, *says, do=do)(story)


def join(condition: str) -> Object:
    from operator_parts import SPEC

    return {"joins": [{**SPEC["joins"][0], "condition": condition}]}


def join_of_three(condition: str) -> Object:
    from operator_parts import SPEC

    refunds = {**SPEC["streams"][0], "name": "refunds"}
    return {"streams": [*SPEC["streams"], refunds], **join(condition)}


spec_way(
    "SQL in the manifest is wrong",
    Reason.InvalidSpec,
    "spec.joins[0].condition: ",
    "orders.absent",
    do="Correct the field that the message names, with another `checkpoint.location` where the API server wants one; "
    "`streamjoin validate` finds the same before",
    wrong=join("orders.absent = payments.id"),
    right=join("orders.id = payments.id") | {"checkpoint": {"location": "s3://bucket/state/two"}},
)
spec_way(
    "Nothing compares one of three and more streams with the others",
    Reason.InvalidSpec,
    "spec.joins[0].condition: ",
    "no part of it compares refunds with orders or payments",
    do="Add a part to the condition that compares it with one of them, with another `checkpoint.location` where the API server wants one; "
    "`streamjoin validate` finds the same before",
    wrong=join_of_three("orders.id = payments.id AND refunds.amount > 0"),
    right=join_of_three("orders.id = payments.id AND refunds.id = orders.id") | {"checkpoint": {"location": "s3://bucket/state/two"}},
)
spec_way(
    "A worker's memory does not hold its capacity",
    Reason.InsufficientMemory,
    "spec.workers.resources.memory: ",
    "raise it, or lower spec.workers.capacityTuples",
    do="As the message says, which has the sum",
    wrong={"workers": {"min": 1, "max": 2, "capacityTuples": 50_000_000}},
    right={"workers": {"capacityTuples": 100_000}},
)

# Volumes.
_section.append("Volumes")

CLAIM = {"persistentVolumeClaim": "data", "size": "1Gi"}


def claim_way(name: str, *says: str, do: str, event: tuple[str, str, str], storage_class: str | None) -> None:
    def story(world: SteppedCluster) -> Iterator[None]:
        checkpoint = CLAIM if storage_class is None else {**CLAIM, "storageClassName": storage_class}
        world.submit(checkpoint=checkpoint)
        world.settle()
        claim = f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims/data"
        world.tell(claim, *event)
        path = world.driver_pod(unscheduled("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."))
        yield
        world.remove(path)
        world.cluster.ready()

    way(name, Reason.DriverPending, *says, do=do)(story)


@way(
    "A claim is to be smaller, or otherwise than a claim can become",
    Reason.ClaimKept,
    "spec.checkpoint.size: 512Mi: PersistentVolumeClaim data has 1Gi, and a claim never shrinks; give 1Gi",
    do="As the message says; the join goes on",
)
def kept_claim(world: SteppedCluster) -> Iterator[None]:
    world.submit(checkpoint=CLAIM)
    world.settle()
    world.cluster.ready()
    world.settle()
    world.cluster.change({"checkpoint": {"size": "512Mi"}})
    yield
    world.cluster.change({"checkpoint": {"size": "1Gi"}})


claim_way(
    "The storage class does not exist",
    "PersistentVolumeClaim data is Pending and of storage class fast",
    'storageclass.storage.k8s.io "fast" not found',
    do="Make the class; or name another `checkpoint.storageClassName`, delete the claim, and the operator makes it anew",
    event=("ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found', "Warning"),
    storage_class="fast",
)
claim_way(
    "There is no default storage class, and no volume that fits",
    "PersistentVolumeClaim data is Pending and has no storage class",
    "no persistent volumes available for this claim and no storage class is set",
    do="Name a `checkpoint.storageClassName` (and delete the claim), or make a volume",
    event=("FailedBinding", "no persistent volumes available for this claim and no storage class is set", "Normal"),
    storage_class=None,
)
claim_way(
    "The provisioner cannot make the volume",
    "PersistentVolumeClaim data is Pending and of storage class disks",
    "failed to provision volume with StorageClass",
    "quota exceeded",
    do="As the provisioner's words say",
    event=("ProvisioningFailed", 'failed to provision volume with StorageClass "disks": rpc error: disk quota exceeded', "Warning"),
    storage_class="disks",
)
pod_way(
    "The claim of `checkpoint.persistentVolumeClaim` is missing",
    Reason.DriverPending,
    'persistentvolumeclaim "data" not found',
    do="Make it; or give `checkpoint.size`, and the operator makes it",
    status=lambda world: unscheduled('0/1 nodes are available: persistentvolumeclaim "data" not found.'),
)
pod_way(
    "The claim's volume is on a node, or in a zone, where the pod may not go",
    Reason.DriverPending,
    "1 node(s) had volume node affinity conflict",
    do=f"Let the pod go there (`{DRIVER}`), or make the claim anew elsewhere",
    status=lambda world: unscheduled("0/3 nodes are available: 1 node(s) had volume node affinity conflict, 2 Insufficient cpu."),
)


@way(
    "Pods on several nodes share a claim for one node",
    Reason.ClaimOnOneNode,
    "PersistentVolumeClaim data is ReadWriteOnce, for one node, and pods of the join are on node-1, node-2",
    "set checkpoint.location to an object store",
    do="As the message says",
)
def claim_on_one_node(world: SteppedCluster) -> Iterator[None]:
    world.submit(checkpoint=CLAIM)
    world.settle()
    world.driver_pod(waiting(world, "ContainerCreating"), "node-1")
    path = world.executor_pod(waiting(world, "ContainerCreating", own=names.EXECUTOR), "node-2")
    yield
    world.remove(path)
    world.cluster.ready()


def volume_way(name: str, *says: str, do: str, reason: str, message: str) -> None:
    pod_way(name, Reason.PodStuck, *says, do=do, status=lambda world: waiting(world, "ContainerCreating"), tells=(reason, message))


volume_way(
    "A Secret or ConfigMap that a pod template mounts is missing",
    'MountVolume.SetUp failed for volume "keys" : secret "bucket-keys" not found',
    do="Make it in the StreamJoin's namespace",
    reason="FailedMount",
    message='MountVolume.SetUp failed for volume "keys" : secret "bucket-keys" not found',
)
volume_way(
    "The claim's volume is still attached to another node",
    "Multi-Attach error for volume",
    "Volume is already exclusively attached to one node",
    do="Wait until it is let go, some minutes after its node was lost; or delete the node or its VolumeAttachment",
    reason="FailedAttachVolume",
    message='Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node and can\'t be attached to another',
)
volume_way(
    "The volume cannot be mounted",
    'MountVolume.MountDevice failed for volume "pvc-1"',
    "driver name csi.example.com not found in the list of registered CSI drivers",
    do="As the storage's words say: its driver must run on that node",
    reason="FailedMount",
    message='MountVolume.MountDevice failed for volume "pvc-1" : kubernetes.io/csi: attacher.MountDevice failed: '
    "driver name csi.example.com not found in the list of registered CSI drivers",
)
volume_way(
    "The network plugin gives the pod no address",
    "Failed to create pod sandbox",
    "no IP addresses available in range set",
    do="As the plugin's words say",
    reason="FailedCreatePodSandBox",
    message=f'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "{"ab" * 32}": plugin '
    'type="bridge" failed (add): failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-10.0.0.254',
)

# Images.
_section.append("Images")

for title, reason, says, remedy in (
    ("The image does not exist", "ErrImagePull", "docker.io/library/engine:1: not found", "Correct `spec.image`, or the chart's `engine`"),
    (
        "The registry wants a login",
        "ErrImagePull",
        "pull access denied, repository does not exist or may require authorization",
        "Name the login's Secret in `imagePullSecrets` of the chart, and make it in the StreamJoin's namespace",
    ),
    ("The image's name is none", "InvalidImageName", 'couldn\'t parse image name "Engine:1"', "Correct `spec.image`"),
    ("A node lacks the image, which is never pulled", "ErrImageNeverPull", "with pull policy of Never", "Bring the image to the nodes"),
):
    pod_way(
        title,
        Reason.ImageUnavailable,
        says,
        do=remedy,
        status=lambda world, reason=reason, says=says: waiting(world, reason, f"failed to pull: {says}"),  # type: ignore[misc]
    )
pod_way(
    "The same, once kubelet pauses between its tries",
    Reason.ImageUnavailable,
    'Failed to pull image "engine:1"',
    "i/o timeout",
    do="As the registry's words say",
    status=lambda world: waiting(world, "ImagePullBackOff", 'Back-off pulling image "engine:1"'),
    tells=("Failed", 'Failed to pull image "engine:1": dial tcp 192.0.2.1:443: i/o timeout'),
)

# Nodes.
_section.append("Nodes and controllers")

for title, says, remedy in (
    (
        "No node has the labels that a pod template asks for",
        "node(s) didn't match Pod's node affinity/selector",
        f"Correct `{DRIVER}`, or label a node",
    ),
    ("All nodes have taints", "3 node(s) had untolerated taint {dedicated: db}", f"Add a toleration to `{DRIVER}`"),
    ("No node has room", "3 Insufficient memory", f"Add nodes, or lower `{DRIVER}`"),
    ("Scheduling is gated", "Scheduling is blocked due to non-empty scheduling gates", "Whoever has added the gate removes it"),
):
    pod_way(
        title,
        Reason.DriverPending,
        says,
        do=remedy,
        status=lambda world, says=says: unscheduled(f"0/3 nodes are available: {says}."),  # type: ignore[misc]
    )
pod_way(
    "The scheduler of a pod template does not run",
    Reason.DriverPending,
    "no scheduler has looked at it since",
    "spec.schedulerName is default-scheduler: does that one run?",
    do=f"Start it, or correct `{DRIVER}`",
    status=lambda world: {"phase": "Pending"},
)
pod_way(
    "The pod is evicted",
    Reason.DriverCrashing,
    "Evicted: The node was low on resource: ephemeral-storage",
    do=f"Give it room (`resources` in `{DRIVER}`), or the node; another pod is made by itself",
    status=lambda world: {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
)
pod_way(
    "A node takes the pod, and then has no room",
    Reason.DriverCrashing,
    "OutOfmemory: Node didn't have enough resource: memory",
    do="Another pod is made by itself; if it goes on, see who else starts pods on that node",
    status=lambda world: {"phase": "Failed", "reason": "OutOfmemory", "message": "Node didn't have enough resource: memory"},
)


def lost(name: str, *says: str, do: str, status: Callable[[SteppedCluster], Object], tells: tuple[str, str] | None) -> None:
    """A driver that has run."""

    def story(world: SteppedCluster) -> Iterator[None]:
        world.runs()
        path = world.driver_pod(status(world), "node-1")
        world.unready()
        if tells is not None:
            world.tell(path, *tells)
        yield
        world.remove(path)
        world.cluster.ready()

    way(name, Reason.DriverNotReady, *says, do=do)(story)


lost(
    "The driver's node is lost",
    "on node node-1",
    "Node is not ready",
    do="Nothing: 30 s later another pod is made, and goes on from the checkpoint",
    status=lambda world: unready(world, reason="", is_ready=True),
    tells=("NodeNotReady", "Node is not ready"),
)
lost(
    "The driver's readiness probe fails",
    'Readiness probe failed: Get "http://10.0.0.5:8080/healthz"',
    do=f"Does `{DRIVER}` change the probe, or does something keep kubelet from port 8080? Else see the driver's log",
    status=unready,
    tells=("Unhealthy", 'Readiness probe failed: Get "http://10.0.0.5:8080/healthz": context deadline exceeded'),
)
lost(
    "The driver does not become ready, and nobody says why",
    "it has run on node node-1 since",
    "containers with unready status: [driver]",
    do="`kubectl describe` and the log say more",
    status=unready,
    tells=None,
)


@way(
    "Nobody makes the driver's pod, as Kubernetes' controllers do not run or pause after refusals",
    Reason.DriverPending,
    "Deployment sj-one has no pod, and the API server would take one; does kube-controller-manager run",
    do="Look at kube-controller-manager; a pause after refusals passes by itself",
)
def no_controller(world: SteppedCluster) -> Iterator[None]:
    world.submit()
    world.settle()
    yield
    world.cluster.ready()


@way(
    "The driver's pod before does not end, as its node is lost",
    Reason.DriverPending,
    "on node node-1 does not end, and the next one is not made before",
    "kubectl delete pod sj-one-1 --force",
    do="As the message says",
)
def old_pod(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    path = world.driver_pod(unready(world), "node-1")
    world.unready()
    world.admin.delete(path, gracePeriodSeconds=1)
    yield
    world.remove(path)
    world.cluster.ready()


# Containers.
_section.append("Containers")

for title, reason, says, remedy in (
    (
        "A Secret has not the key that a pod template names",
        "CreateContainerConfigError",
        "couldn't find key password in Secret default/kafka",
        f"Add the key, or correct `{DRIVER}`",
    ),
    ("A Secret of `envFrom` is missing", "CreateContainerConfigError", 'secret "bucket-keys" not found', "Make it in that namespace"),
    ("A ConfigMap of `envFrom` is missing", "CreateContainerConfigError", 'configmap "settings" not found', "Make it in that namespace"),
    (
        "The image runs as root, and may not",
        "CreateContainerConfigError",
        "container has runAsNonRoot and image will run as root",
        f"Use the engine's image, or set `runAsUser` in `{DRIVER}`",
    ),
    (
        "A file that a template mounts is where a directory is",
        "RunContainerError",
        "not a directory: Are you trying to mount a directory onto a file",
        f"Correct `volumeMounts` in `{DRIVER}`",
    ),
):
    pod_way(
        title,
        Reason.DriverCrashing,
        f"{reason}: ",
        says,
        do=remedy,
        status=lambda world, reason=reason, says=says: waiting(world, reason, says),  # type: ignore[misc]
    )
pod_way(
    "The image is none of the engine's",
    Reason.DriverCrashing,
    "exit code 128: ",
    'exec: "driver": executable file not found in $PATH',
    do="Correct `spec.image`",
    status=lambda world: looping(world, 128, 'failed: exec: "driver": executable file not found in $PATH', "StartError"),
)
pod_way(
    "The image is for another kind of processor",
    Reason.DriverCrashing,
    "exit code 255: ",
    "exec /usr/bin/tini: exec format error",
    do=f"Use an image for the nodes' processors, or a node selector (`kubernetes.io/arch`) in `{DRIVER}`",
    status=lambda world: looping(world, 255, "exec /usr/bin/tini: exec format error"),
)
pod_way(
    "An init container fails",
    Reason.DriverCrashing,
    "init container prepare: exit code 1: see its log: wget: bad address",
    do="As its words say; `kubectl logs POD -c NAME`",
    status=lambda world: {
        **on_node(world, container(waiting={"reason": "PodInitializing"})),
        "initContainerStatuses": [
            container("prepare", last=ended(1, "wget: bad address 'files'"), waiting={"reason": "CrashLoopBackOff", "message": "back-off"})
        ],
    },
)
pod_way(
    "A container that a pod template adds fails",
    Reason.DriverCrashing,
    "container proxy: exit code 1: see its log",
    do="`kubectl logs POD -c NAME`",
    status=lambda world: looping(world, 1, own="proxy"),
)
pod_way(
    "The driver needs more memory than its limit",
    Reason.DriverCrashing,
    "exit code 137: OOMKilled: it needed more memory than its limit; raise its memory in spec.driver.podTemplate",
    do=f"Raise `resources.limits.memory` of the container `driver` in `{DRIVER}`",
    status=lambda world: looping(world, 137, reason="OOMKilled"),
)
pod_way(
    "The driver has ended once, and starts again",
    Reason.DriverCrashing,
    "exit code 137: it was killed",
    do="If it goes on: a liveness probe kills a driver that does not answer for two minutes; see its log (`--previous`)",
    status=lambda world: on_node(world, container(last=ended(137), running={"startedAt": world.at}), phase="Running"),
)

# Drivers that end with a code of their own, and say why.
_section.append("Drivers that end")


def exit_way(name: str, code: int, sentence: str, *says: str, do: str) -> None:
    log = f'{{"event": "started"}}\nstreamjoin: {sentence}\n'
    pod_way(name, Reason.DriverCrashing, f"exit code {code}: ", *says, do=do, status=lambda world: looping(world, code, log))


exit_way(
    "The join fails by an error of its own",
    1,
    "ValueError: an error (trace: /tmp/failure.txt); mend the cause and run the same command",
    "the join failed: ValueError: an error",
    do="Its log, and `logs/failure.txt` in the checkpoint, have the trace",
)
exit_way(
    "The driver's command line is wrong: its image is of another release, say",
    2,
    "Error: No such option: --revision",
    "its command line or its manifest does not fit its image, or its port cannot be had: Error: No such option",
    do="Use the image of the operator's release; annotate the StreamJoin with a new `streamjoin.dev/restart`",
)
pod_way(
    "The image lacks the packages that a Delta or Iceberg table needs",
    Reason.DriverCrashing,
    "exit code 2: ",
    "spec.joins[0].output.sink.delta: needs the package deltalake, which is not installed; in pods remove spec.image, or name "
    "streamjoin-engine-tables there",
    do="Remove `spec.image`, or name an image with them there; where a driver runs already, a trial finds this out first",
    status=lambda world: looping(world, 2, f"/etc/streamjoin/streamjoin.yaml: {missing_package('spec.joins[0].output.sink.delta', DELTA)}"),
)
exit_way(
    "Kafka cannot be reached",
    3,
    "Kafka topic orders on kafka:9092: no answer within 10 s (Local: Broker transport failure); see whether the brokers are up, and "
    "whether kafka.options fit them",
    "a source cannot be read: Kafka topic orders on kafka:9092: no answer within 10 s",
    "see whether the brokers are up",
    do="Mend brokers, network or `bootstrapServers`; it goes on after the last commit",
)
exit_way(
    "A topic is missing",
    3,
    "Kafka topic orders on kafka:9092: Broker: Unknown topic or partition; create the topic, or correct its name",
    "Kafka topic orders on kafka:9092: Broker: Unknown topic or partition; create the topic, or correct its name",
    do="Create it, or correct `topic`",
)
exit_way(
    "A topic that was read by its pattern is deleted",
    3,
    "Kafka topic orders-eu on kafka:9092: the topic was deleted (it was read up to these offsets by partition: 0: 17); what was not read of"
    " it is lost. Set kafka.onDataLoss: skip to go on without it, or choose a new checkpoint.location",
    "Kafka topic orders-eu on kafka:9092: the topic was deleted",
    "Set kafka.onDataLoss: skip to go on without it",
    do="Set `onDataLoss: skip`, if the topic was meant to go; the join goes on with the others",
)
exit_way(
    "The schema registry of a Kafka source cannot be reached",
    3,
    "epoch 0: task 0: UnavailableError: schema registry https://registry: no answer within 30 s (Connection refused); see whether it is up,"
    " and whether schemaRegistry.url and options fit it",
    "UnavailableError: schema registry https://registry: no answer within 30 s",
    "see whether it is up",
    do="Mend the registry, the network or `schemaRegistry.url`; it goes on after the last commit, and no record is lost",
)
exit_way(
    "The schema registry refuses the login",
    3,
    "epoch 0: task 0: SourceError: schema registry https://registry: refuses the login (401: no); correct schemaRegistry.options[username]"
    " and [password], or [bearer.auth.token]",
    "schema registry https://registry: refuses the login",
    "correct schemaRegistry.options[username]",
    do="Correct the Secret that `schemaRegistry.options` refer to; a new pod reads it",
)
exit_way(
    "The source's credentials are refused",
    3,
    "Kafka topic orders on kafka:9092: Local: Authentication failure; correct kafka.options[sasl.username] and the password",
    "Kafka topic orders on kafka:9092: Local: Authentication failure",
    "correct kafka.options[sasl.username]",
    do="Correct the Secret that `options` refer to; a new pod reads it",
)
exit_way(
    "Another driver has taken the checkpoint over",
    4,
    "s3://bucket/state/one: another driver (b, incarnation 2) has taken over this checkpoint; run one driver per checkpoint",
    "another driver has taken the checkpoint over",
    do="Give each join a `checkpoint.location` of its own",
)
exit_way(
    "The object store refuses access",
    6,
    "s3://bucket/state/one: cannot list it: access is refused (403 Forbidden AccessDenied); grant it to the credentials that the engine "
    "finds in its environment, or set others",
    "s3://bucket/state/one: cannot list it: access is refused (403 Forbidden AccessDenied)",
    do="Give the pods the keys (`envFrom` in both templates) or the role; see [storage](storage.md)",
)
exit_way(
    "The claim can only be read",
    6,
    "/var/lib/streamjoin/one/log: Read-only file system; make it writable",
    "/var/lib/streamjoin/one/log: Read-only file system",
    do="Use a claim that can be written; a volume whose file system is broken is mounted so, too",
)
exit_way(
    "The claim is full",
    6,
    "/var/lib/streamjoin/one/log/7: No space left on device; make room",
    "No space left on device",
    do="Enlarge the claim, or lower what the join holds",
)
exit_way(
    "There is no Java in the image",
    7,
    "Spark needs Java 17 or newer: none was found",
    "there is no Java for Spark: Spark needs Java 17 or newer",
    do="Use the engine's image",
)
exit_way(
    "The watchdog has ended a driver that stood still",
    8,
    "epoch 7: stalled in step commit: nothing of it has moved for 600 s (stacks: s3://bucket/state/one/logs/failure.txt)",
    "an epoch stood still beyond its deadline: epoch 7: stalled in step commit",
    do="Look at what the step waits for: `plan` for a source, `commit` for the storage, `publish` for the sink",
)


@way(
    "The checkpoint is another join's",
    Reason.CheckpointOfAnother,
    "the checkpoint was made for another join: it holds the join far",
    "restore the manifest, choose another checkpoint.location",
    do="As the message says; the driver is not started before",
)
def another_checkpoint(world: SteppedCluster) -> Iterator[None]:
    world.submit()
    world.settle()
    path = world.driver_pod(looping(world, 5, "streamjoin: it holds the join far"))
    yield
    world.remove(path)
    changed(world, {"checkpoint": {"location": "s3://bucket/state/two"}})


# What only the driver knows, by its API.
_section.append("Drivers that run")


@way(
    "The driver cannot be connected to: a NetworkPolicy, or its node's network",
    Reason.DriverUnreachable,
    "cannot be connected to: nothing answers within",
    "does a NetworkPolicy keep the operator out?",
    do="Let the operator reach port 8080 of the driver",
)
def no_connection(world: SteppedCluster) -> Iterator[None]:
    """A port whose queue is full, and so takes no connection, as one that packets do not reach."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting_in_line = []
    for _ in range(4):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(listening.getsockname())
        waiting_in_line.append(one)
    with patch("streamjoin_operator.driver.CONNECT_SECONDS", 0.3), elsewhere(world, f"http://127.0.0.1:{listening.getsockname()[1]}"):
        yield
    for one in (listening, *waiting_in_line):
        one.close()


@way(
    "Nobody listens at the driver's port",
    Reason.DriverUnreachable,
    "http://127.0.0.1:1: it cannot be connected to: ",
    do=f"Does `{DRIVER}` change the port, or the Service its selector? Else see the driver's log",
)
def nobody_listens(world: SteppedCluster) -> Iterator[None]:
    with elsewhere(world, "http://127.0.0.1:1"):
        yield


@way(
    "The driver hangs",
    Reason.DriverUnreachable,
    "takes connections and gives no answer within",
    "the driver hangs, or lacks processor time",
    do=f"Its liveness probe restarts it after two minutes; if it comes back, give it more CPU in `{DRIVER}`",
)
def driver_hangs(world: SteppedCluster) -> Iterator[None]:
    listening = socket.create_server(("127.0.0.1", 0), backlog=16)
    with patch("streamjoin_operator.driver.TIMEOUT_SECONDS", 1.5), elsewhere(world, f"http://127.0.0.1:{listening.getsockname()[1]}"):
        yield
    listening.close()


class elsewhere:  # noqa: N801 - reads as a verb
    """Where a running join's driver is to be found, for a while."""

    def __init__(self, world: SteppedCluster, url: str) -> None:
        from stepped_cluster import Pointed

        self._world, self._url, self._drivers = world, url, Pointed.drivers
        self._before = Pointed.drivers[world.namespace]

    def __enter__(self) -> None:
        self._world.runs()
        self._drivers[self._world.namespace] = self._url

    def __exit__(self, *_: object) -> None:
        self._drivers[self._world.namespace] = self._before


@way(
    "Something else answers at the driver's address",
    Reason.DriverUnreachable,
    "/v1/health answers 200, and not as a driver does",
    do="A proxy or a mesh in between: let it pass port 8080, or leave it out of these pods",
)
def not_a_driver(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    world.driver.page = b"<html>welcome</html>"
    yield
    world.driver.page = None


@way(
    "The driver refuses the operator's token",
    Reason.DriverUnreachable,
    "it refuses the token of Secret sj-one-token",
    "annotation streamjoin.dev/restart",
    do="It passes once kubelet has brought the Secret's new value to the pod; else as the message says",
)
def token_refused(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    world.driver.token = "another"
    yield
    world.driver.token = None


@way(
    "Nothing of an epoch moves",
    Reason.EpochStalled,
    "epoch 7 stands still in step tasks and waits for worker at place 2 (process 71 on 10.0.0.7)",
    do="It is given up at its deadline, and the workers are replaced ([what then](alerts.md#streamjoinstalls))",
    condition="EpochStalled",
)
def stalled(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    waits_for = ["worker at place 2 (process 71 on 10.0.0.7)"]
    world.driver.stalled = {"epoch": 7, "step": "tasks", "seconds": 70.0, "waitsFor": waits_for, "stalls": 0, "last": None}
    yield
    world.driver.stalled = None


@way(
    "A stream is silent, and others wait for it",
    Reason.StreamSilent,
    "partition 3 of payments: no record since 2027-01-15T08:00:00Z",
    do="See why its producer is silent; where that is ordinary, give the stream an `idleTimeout`",
    condition="WatermarkHeld",
)
def silent(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    world.driver.watermark_held = {"by": "partition 3 of payments", "since": 1.8e9}
    yield
    world.driver.watermark_held = None


def retried(name: str, failure: str, do: str) -> None:
    def story(world: SteppedCluster) -> Iterator[None]:
        world.runs()
        world.driver.state, world.driver.last_error, world.driver.last_failure = "retrying", "EpochFailed", failure
        yield
        world.driver.state = "running"

    way(name, Reason.JoinRetrying, failure, do=do)(story)


retried(
    "Kafka is lost while the join runs",
    "epoch 8: task 0: UnavailableError: Kafka topic orders on kafka:9092: no answer within 10 s",
    "Mend it: the epoch is tried again, then the driver ends with exit code 3 and starts anew until it succeeds",
)
retried(
    "The object store refuses or fails while the join runs",
    "epoch 8: task 0: StorageError: s3://bucket/state/one/blocks/7: cannot write it: access is refused (403 Forbidden AccessDenied)",
    "The same, with exit code 6",
)
retried(
    "A worker dies in each attempt",
    "epoch 8: task 1: the worker at place 1 died: killed by SIGKILL, as the kernel ran out of memory",
    "Raise `spec.workers.resources.memory`, or lower `spec.workers.capacity`",
)


@way(
    "The store of a join's snapshots is out of reach, or refuses them",
    Reason.SnapshotsWait,
    "3 snapshots of matches wait",
    "PostgreSQL at db:5432: cannot be reached",
    do="Mend the store: the join goes on meanwhile, as long as `output.snapshots.buffer` has room",
)
def snapshots_wait(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    world.driver.snapshots_wait = (
        "3 snapshots of matches wait, 1,024 of 1,073,741,824 bytes: StoreError: PostgreSQL at db:5432: cannot be reached"
    )
    yield
    world.driver.snapshots_wait = None


@way(
    "A new join's own thresholds do not allow its first plan",
    Reason.FirstPlanTooFull,
    "spec.workers.max: 1 is too small: by expectedRate the fullest worker will be filled to ",
    ", above tau2 (0.8); what would do: spec.workers.max ",
    do="What the message names; or annotate it with `streamjoin.dev/admission=Warn`, and it begins and sheds",
)
def too_full(world: SteppedCluster) -> Iterator[None]:
    from operator_parts import SPEC

    streams = [{**stream, "expectedRate": 100.0} for stream in SPEC["streams"]]
    world.submit(streams=streams, workers={"min": 1, "max": 1, "capacityTuples": 5000})
    yield
    changed(world, {"workers": {"max": 8, "capacityTuples": 100_000}})


@way(
    "The workers that may be cannot hold what comes",
    Reason.PlanOverCapacity,
    "task 0 would hold 120,000 of 100,000 tuples; raise spec.workers.max",
    do="As the message says",
)
def overfull(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    world.driver.said = {"warning": "task 0 would hold 120,000 of 100,000 tuples; raise spec.workers.max"}
    yield
    world.driver.said = {}


@way(
    "The driver refuses a plan that the manifest asks for",
    Reason.PlanRefused,
    "refused by the test",
    do="As the message says",
)
def plan_refused(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    world.driver.answer = 422
    changed(world, {"workers": {"min": 3}})
    yield
    changed(world, {"workers": {"min": 1}})


# Executors.
_section.append("Executors")

executor_way(
    "Executors need more memory than their limit",
    Reason.ExecutorsFailing,
    "1 of 2 executors: pod sj-one-exec-",
    "OOMKilled: it needed more memory than its limit; raise spec.workers.resources.memory",
    do="As the message says",
    status=lambda world: on_node(world, container(names.EXECUTOR, terminated=ended(137, reason="OOMKilled")), phase="Failed"),
)
executor_way(
    "Executors find no room",
    Reason.ExecutorsPending,
    "1 of 2 executors: ",
    "0/3 nodes are available: 3 Insufficient cpu",
    do="Add nodes, or lower `spec.workers.resources`; the join goes on with those it has",
    status=lambda world: unscheduled("0/3 nodes are available: 3 Insufficient cpu."),
)
executor_way(
    "The image of executors cannot be pulled",
    Reason.ImageUnavailable,
    "1 of 2 executors: ",
    "ErrImagePull: engine:1: not found",
    do="Correct `spec.image`, or the chart's `engine`",
    status=lambda world: waiting(world, "ErrImagePull", "engine:1: not found", names.EXECUTOR),
)
executor_way(
    "A Secret of the executors' template is missing",
    Reason.ExecutorsFailing,
    "1 of 2 executors: ",
    'CreateContainerConfigError: secret "bucket-keys" not found',
    do=f"Make it, or correct `{EXECUTORS}`",
    status=lambda world: waiting(world, "CreateContainerConfigError", 'secret "bucket-keys" not found', names.EXECUTOR),
)
executor_way(
    "A volume of executors cannot be mounted",
    Reason.PodStuck,
    "1 of 2 executors: ",
    'secret "ca" not found',
    do=f"Make it, or correct `{EXECUTORS}`",
    status=lambda world: waiting(world, "ContainerCreating", own=names.EXECUTOR),
    tells=("FailedMount", 'MountVolume.SetUp failed for volume "ca" : secret "ca" not found'),
)
executor_way(
    "The node of an executor is lost",
    Reason.ExecutorsMissing,
    "1 of 2 executors: ",
    "it has run on node node-2 since",
    "Node is not ready",
    do="Nothing: its workers are missed within some 10 s, and Spark asks for another pod",
    status=lambda world: unready(world, reason="", is_ready=True),
    tells=("NodeNotReady", "Node is not ready"),
)
executor_way(
    "Executors run, and cannot call the driver",
    Reason.ExecutorsMissing,
    "2 executors run, and 1 of 2 workers have called the driver",
    "does a NetworkPolicy keep them from its ports 7077 to 7079?",
    do="Let the executors reach the driver ([ports](operator.md#security)); else their log says why",
    status=running_executor,
)


@way(
    "The driver may not make executors: a service account of a pod template",
    Reason.ExecutorsMissing,
    "there are 0 of 1 executors' pods, and the API server would take more",
    "may the driver's service account sj-one create pods?",
    do="Give that account the [driver's rights](operator.md#what-it-makes) to pods; the driver's log has the answer that Spark got",
)
def no_executors(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    world.driver.ready_workers = 0
    yield
    world.driver.ready_workers = None


@way(
    "A node has no room for an executor that is resized",
    Reason.ResizeHeld,
    "1 of 1 executors have yet to get cpu 4 and memory 2Gi for each worker; pod sj-one-exec-1: PodResizePending: Deferred: ",
    "Node didn't have enough resource: cpu",
    do="Nothing, if other pods will leave the node; else make room, or lower `spec.workers.resources.cpu`; "
    "a new value of the annotation `streamjoin.dev/restart` makes executors anew ([how](operator.md#other-resources-for-executors))",
)
def held_resize(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    size: Object = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    path = world.executor_pod(running_executor(world), "node-1", size)
    changed(world, {"workers": {"resources": {"cpu": "4"}}})
    world.settle()
    said = "Node didn't have enough resource: cpu, requested: 4000, used: 7000, capacity: 8000"
    world.admin.patch(f"{path}/status", {"status": resized(world, size, said)})
    world.cluster.ready()
    yield
    world.admin.patch(f"{path}/status", {"status": resized(world, {**size, "requests": {"cpu": "4", "memory": "2Gi"}})})


def resized(world: SteppedCluster, has: Object, deferred: str | None = None) -> Object:
    """Of an executor with these resources that is to have others, or has got them."""
    runs = container(names.EXECUTOR, is_ready=True, running={"startedAt": world.at})
    status = on_node(world, {**runs, "resources": has}, phase="Running")
    if deferred is not None:
        status["conditions"].append({"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": deferred})
    return status


# Queries.
_section.append("Query servers")


def query_way(name: str, *says: str, do: str, status: Callable[[SteppedCluster], Object], tells: tuple[str, str] | None = None) -> None:
    """Of the pod of one query server; the join runs."""

    def story(world: SteppedCluster) -> Iterator[None]:
        world.runs(queries={"replicas": 1})
        path = world.query_pod(status(world), "node-2" if tells is not None else None)
        if tells is not None:
            world.tell(path, *tells)
        yield
        world.remove(path)

    way(name, Reason.QueriesUnready, *says, do=do)(story)


query_way(
    "A query server finds no room",
    "1 of 1 query servers: pod sj-one-queries-",
    "0/3 nodes are available: 3 Insufficient memory",
    do="Add nodes, or lower `spec.queries.memory`, `processes` or `replicas`; the join goes on",
    status=lambda world: unscheduled("0/3 nodes are available: 3 Insufficient memory."),
)
query_way(
    "A query server ends again and again",
    "1 of 1 query servers: pod sj-one-queries-",
    "OOMKilled: it needed more memory than its limit; raise spec.queries.memory",
    do="As the message says; the join goes on",
    status=lambda world: looping(world, 137, reason="OOMKilled", own=names.QUERIES),
)
query_way(
    "The claim is for one node, and a query server is on another",
    "Multi-Attach error for volume",
    do="Keep it on the driver's node by a `nodeSelector` in both pod templates, name a claim that is ReadWriteMany, or set "
    "`checkpoint.location` to an object store",
    status=lambda world: on_node(world, container(names.QUERIES, waiting={"reason": "ContainerCreating"})),
    tells=("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) sj-one-7c9'),
)


@way(
    "A query server's pod is refused",
    Reason.ApplyRefused,
    "Deployment sj-one-queries: ",
    "look at spec.queries.podTemplate",
    do="As the message says",
)
def query_template(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    changed(world, {"queries": {"replicas": 1, **template(containers=[{"name": "more"}])}})
    yield
    changed(world, {"queries": {"podTemplate": None}})


# Sleep.
_section.append("Sleep")


@way(
    "The sources of a join that sleeps cannot be asked",
    Reason.WatcherFails,
    "1 of 1 watchers: pod sj-one-watcher-",
    "exit code 3: a source cannot be read",
    do="As the message says; after five minutes the join is woken, and says more",
)
def no_source(world: SteppedCluster) -> Iterator[None]:
    world.runs(idle={"after": "30m"})
    path = world.watcher_pod(looping(world, 3, own=names.WATCHER))
    yield
    world.remove(path)


@way(
    "The watcher's pod is refused",
    Reason.ApplyRefused,
    "Deployment sj-one-watcher: ",
    "look at spec.idle.podTemplate",
    do="As the message says; the join goes on meanwhile",
)
def watcher_template(world: SteppedCluster) -> Iterator[None]:
    world.runs()
    changed(world, {"idle": {"after": "30m", **template(containers=[{"name": "more"}])}})
    world.cluster.driver.idle_seconds = 1e6
    yield
    world.cluster.driver.idle_seconds = None
    changed(world, {"idle": {"podTemplate": None}})


# Measurements.
_section.append("Measurements")


def prometheus_way(name: str, reason: Reason, *says: str, do: str, url: str) -> None:
    def story(world: SteppedCluster) -> Iterator[None]:
        world.runs()
        changed(world, {"scaling": {"prometheus": {"url": url}}})
        yield
        changed(world, {"scaling": None})

    way(name, reason, *says, do=do, condition="MetricsAvailable", status="False")(story)


prometheus_way(
    "Prometheus cannot be reached",
    Reason.PrometheusUnreachable,
    "http://127.0.0.1:1: ",
    do="Correct `prometheus.url`, or open its port to the operator (`networkPolicy.prometheusPorts`); no worker is removed meanwhile",
    url="http://127.0.0.1:1",
)

# The operator itself, and the end.
_section.append("The operator")


@way(
    "A cleanup's pod is refused",
    Reason.CleanupBlocked,
    "exceeded quota: small",
    "set spec.checkpoint.onDelete to Retain to keep the state and end the deletion",
    do="As the message says",
    is_mended=False,
)
def cleanup_blocked(world: SteppedCluster) -> Iterator[None]:
    world.runs(checkpoint={"location": "s3://bucket/state/one", "onDelete": "Delete"})
    quota(world, pods="0")
    await_refusal(world, "exceeded quota")
    world.admin.delete(f"/apis/streamjoin.dev/v1beta1/namespaces/{world.namespace}/streamjoins/one")
    yield


if __name__ == "__main__":
    print(table(), end="")
