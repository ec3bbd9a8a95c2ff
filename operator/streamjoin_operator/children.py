"""What should exist for a StreamJoin: every child as it is applied.

A driver is a Deployment of one, or of two of which one stands by, rather than a StatefulSet: when its node is lost, a new pod starts as
soon as the old one is given up, without waiting for a node that may never answer; two drivers at once are harmless, because commits are
fenced. It is replaced with ``Recreate``, since two would claim the checkpoint from each other in turn; a standby claims it only once the
other is gone.

Always holds: pure. The driver's service account may touch pods and nothing else, and with the chart's admission policy no pods but its
executors (``uses``); executors have no token at all.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Sequence
from dataclasses import replace

from streamjoin.manifest.model import KIND, Manifest
from streamjoin_operator import names, uses
from streamjoin_operator.changes import Change, Class, classify, compared, revision, worst
from streamjoin_operator.drift import Fields, Object, annotations_of, digest, our_fields, ours
from streamjoin_operator.driver_files import REVISION_KEY, Files, content, driver_files, substance
from streamjoin_operator.memory import WorkerMemory
from streamjoin_operator.pod_templates import (
    BLOCKS_PORT,
    EXCHANGE_PORT,
    FLIGHT,
    FLIGHT_PORT,
    PORT,
    RPC_PORT,
    STANDBY,
    cleanup_template,
    driver_template,
    executor_template,
    queries_template,
    query_ports,
    watcher_template,
    worker_ports,
)
from streamjoin_operator.resource import Resource, child
from streamjoin_operator.settings import Settings
from streamjoin_operator.sleeping import Sleep

TLS_FILES = ("tls.crt", "tls.key", "ca.crt")
DRIVER_RULES: list[Object] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete", "deletecollection"]}
]
RESOURCES = "spec.workers.resources"
COMPARED_KEY = "compared.json"
LEDGER_KEY = "decisions.json"
CLEANUP_KEPT_SECONDS = 3600
"""A cleanup's Job can be looked at for so long after its end."""


def service_accounts(resource: Resource, manifest: Manifest) -> tuple[Object, Object]:
    """The driver's and the executors'. The latter has no rights and no token: it is whom a cloud takes executors for."""
    annotations = dict(manifest.spec.service_account_annotations)
    accounts = (resource.base, names.executors_name(resource.name))
    driver, executors = (_account(resource, name, annotations) for name in accounts)
    return driver, executors


def cleanup_account(resource: Resource, manifest: Manifest, job: Object) -> Object | None:
    """The executors', where the cleanup needs it: it goes with the Job, for the StreamJoin's own may be deleted before."""
    annotations = dict(manifest.spec.service_account_annotations)
    if not annotations:
        return None
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    return _account(resource, names.executors_name(resource.name), annotations, owner)


def _account(resource: Resource, name: str, annotations: dict[str, str], owner: Object | None = None) -> Object:
    metadata: Object = ({"annotations": annotations} if annotations else {}) | ({"ownerReferences": [owner]} if owner else {})
    return child(resource, "v1", "ServiceAccount", name, owned=owner is None, metadata=metadata, automountServiceAccountToken=False)


def role(resource: Resource, manifest: Manifest, settings: Settings) -> Object:
    rules = [*DRIVER_RULES, *uses.rules(resource.name, resource.base, executor_template(resource, manifest, settings))]
    return child(resource, "rbac.authorization.k8s.io/v1", "Role", resource.base, rules=rules)


def role_binding(resource: Resource) -> Object:
    return child(
        resource,
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        resource.base,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": resource.base},
        subjects=[{"kind": "ServiceAccount", "name": resource.base, "namespace": resource.namespace}],
    )


def secret(resource: Resource, name: str, key: str, observed: Object | None) -> Object:
    """A Secret with one value, which is made once and then kept."""
    value = secret_value(observed, key) or base64.b64encode(secrets.token_urlsafe(32).encode()).decode()
    return child(resource, "v1", "Secret", name, type="Opaque", data={key: value})


def secret_value(observed: Object | None, key: str) -> str | None:
    """In base64; None: it is not there, or empty."""
    return ((observed or {}).get("data") or {}).get(key) or None


def mounted(exchange: Object) -> str:
    """Of the Secret by which driver and executors know each other: with another one they start anew. Certificates they read again."""
    return digest(exchange["data"])


def tls_problem(resource: Resource, manifest: Manifest, observed: Object | None) -> str | None:
    """Why the Secret with certificates cannot be used: field, value, remedy. None: it can, or none is asked for."""
    tls = manifest.spec.security.tls
    if tls is None:
        return None
    missing = [file for file in TLS_FILES if secret_value(observed, file) is None]
    if not missing:
        return None
    field = f"spec.security.tls.secretName: {tls.secret_name}"
    if observed is None:
        wrong = f"there is no such Secret in namespace {resource.namespace}"
    else:
        wrong = f"the Secret lacks {' and '.join(missing)}"
    remedy = f"make one with {', '.join(TLS_FILES)} for the DNS name {resource.tls_name}, as cert-manager's Certificate does"
    return f"{field}: {wrong}; {remedy}, or remove spec.security.tls"


def record(resource: Resource, manifest: Manifest, change: Object | None, files: Files) -> Object:
    """What runs: the manifest in the form in which changes are looked for, and a copy of the driver's files (``driver_files``)."""
    return child(
        resource,
        "v1",
        "ConfigMap",
        resource.base,
        metadata={"annotations": {names.CHANGE: json.dumps(change, sort_keys=True)}} if change else {},
        data={**files, COMPARED_KEY: json.dumps(compared(manifest), sort_keys=True)},
    )


def ledger(resource: Resource, document: Object, version: str | None) -> Object:
    """The autoscaler's decisions. ``version``: of the object that this one replaces; the API server refuses it for any other."""
    text = json.dumps(document, separators=(",", ":"))
    body = child(resource, "v1", "ConfigMap", names.ledger_name(resource.name), data={LEDGER_KEY: text})
    if version is not None:
        body["metadata"]["resourceVersion"] = version
    return body


def change_of(resource: Resource, manifest: Manifest, observed: Object | None) -> Object | None:
    """What the step from the manifest that runs (in the observed ConfigMap) to this one takes; the change before where there is none."""
    before = running_manifest(observed)
    if observed is None or before is None:
        return None
    last = (observed["metadata"].get("annotations") or {}).get(names.CHANGE)
    after = compared(manifest)
    changes = tuple(_resized(resource, change) for change in classify(before, after))
    if changes:
        kind = worst(changes)
        fields = [change.field for change in changes if change.kind is kind]
        why = next(change.why for change in changes if change.kind is kind)
        return {"generation": resource.generation, "class": kind.value, "fields": fields[:16], "message": f"{', '.join(fields[:4])}: {why}"}
    if observed["data"].get(REVISION_KEY) not in (None, revision(after, resource.started_for, resource.begun)):
        if resource.unresizable:
            message = f"{RESOURCES}: {_anew(resource)}"
            return {"generation": resource.generation, "class": Class.RESTART.value, "fields": [RESOURCES], "message": message}
        message = f"the annotation {names.RESTART}, or the Secret that all pods share, has a new value"
        return {"generation": resource.generation, "class": Class.RESTART.value, "fields": [], "message": message}
    return json.loads(last) if last else None


def _resized(resource: Resource, change: Change) -> Change:
    """The change as it is made: executors may get other resources while they run."""
    if not change.field.startswith(f"{RESOURCES}."):
        return change
    if resource.begun:
        decided = resource.is_enlarged and change.field == f"{RESOURCES}.memory"
        why = "executors are resized while they run" + ", to what was decided (spec.scaling.vertical)" * decided
        return replace(change, kind=Class.LIVE, why=why)
    return replace(change, why=_anew(resource)) if resource.unresizable else change


def _anew(resource: Resource) -> str:
    return f"pods are made anew: {resource.unresizable.partition(': ')[2]}"


def running_manifest(observed: Object | None) -> Object | None:
    """The value of ``changes.compared`` in the ConfigMap; None where there is none, or somebody has spoilt it."""
    try:
        value = json.loads(((observed or {}).get("data") or {})[COMPARED_KEY])
        classify(value, value)
    except (KeyError, TypeError, ValueError):
        return None
    return dict(value)


def refusal_of(change: Object | None) -> str | None:
    """Why a change cannot be made, or None."""
    if change is None or change["class"] != Class.REFUSED.value:
        return None
    return f"{change['message']}; restore the manifest, choose a new checkpoint.location, or make another {KIND}"


def service(resource: Resource, settings: Settings, *, stands_by: bool = False) -> Object:
    """Headless: Prometheus and the operator find the driver by it, also before it is ready. ``stands_by``: a second driver does, which is
    not to be found."""
    return child(
        resource,
        "v1",
        "Service",
        resource.base,
        spec={
            **_families(settings),
            "clusterIP": "None",
            "publishNotReadyAddresses": not stands_by,
            "selector": resource.selected(names.DRIVER),
            "ports": [{"name": "http", "port": PORT, "protocol": "TCP", "targetPort": "http"}],
        },
    )


def _families(settings: Settings) -> Object:
    """Of a Service: IPv4, IPv6 or both. What is not given is the cluster's own choice."""
    given = {"ipFamilyPolicy": settings.ip_family_policy, "ipFamilies": list(settings.ip_families)}
    return {name: value for name, value in given.items() if value}


def disruption_budget(resource: Resource, least: int) -> Object | None:
    """So many executors must stay when others are drained. A count, because executors have no controller that a share could be taken of."""
    if not least:
        return None
    return _budget(resource, resource.base, {"matchLabels": resource.selected(names.EXECUTOR)}, {"minAvailable": least})


def _budget(resource: Resource, name: str, selected: Object, wanted: Object) -> Object:
    # a pod that is not ready does no work that a budget could protect, and may never become so: it is to block no drain
    spec = {**wanted, "selector": selected, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    return child(resource, "policy/v1", "PodDisruptionBudget", name, spec=spec)


def network_policies(resource: Resource, manifest: Manifest) -> tuple[Object, Object]:
    """Into the driver: calls of its executors, and HTTP from all of the cluster, the plan API behind the token. Into an executor: Spark's
    blocks from the driver and the other executors, and pieces from these."""
    driver, executors = ({"podSelector": {"matchLabels": resource.selected(part)}} for part in (names.DRIVER, names.EXECUTOR))
    into_driver = [
        {"from": [executors], "ports": [_port(EXCHANGE_PORT), _port(RPC_PORT), _port(BLOCKS_PORT)]},
        {"from": [{"namespaceSelector": {}}], "ports": [_port(PORT)]},
    ]
    ports = worker_ports(manifest)
    into_executors = [
        {"from": [driver, executors], "ports": [_port(BLOCKS_PORT)]},
        {"from": [executors], "ports": [{**_port(ports[0]), "endPort": ports[-1]}]},
    ]
    return (
        _network_policy(resource, resource.base, driver, into_driver),
        _network_policy(resource, names.executors_name(resource.name), executors, into_executors),
    )


def _network_policy(resource: Resource, name: str, pods: Object, ingress: list[Object]) -> Object:
    spec = {**pods, "policyTypes": ["Ingress"], "ingress": ingress}
    return child(resource, "networking.k8s.io/v1", "NetworkPolicy", name, spec=spec)


def _port(number: int) -> Object:
    return {"port": number, "protocol": "TCP"}


def monitor_labels(manifest: Manifest, settings: Settings) -> dict[str, str]:
    """Of the PodMonitor, besides those of every child: the operator's, and the resource's before them."""
    return {**settings.monitor_labels, **manifest.spec.metrics.pod_monitor.labels}


def pod_monitor(resource: Resource, manifest: Manifest, settings: Settings) -> Object:
    return child(
        resource,
        "monitoring.coreos.com/v1",
        "PodMonitor",
        resource.base,
        # Ours are what it is found by.
        metadata={"labels": {**monitor_labels(manifest, settings), **names.labels(resource.name)}},
        spec={
            "selector": {"matchLabels": resource.selected(names.DRIVER)},
            "jobLabel": "app.kubernetes.io/name",
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": str(manifest.spec.metrics.pod_monitor.interval)}],
        },
    )


def mismatch(observed: Object | None, revision: str) -> str | None:
    """What the driver of this revision said of a checkpoint that is another join's; None where it has not."""
    noted = annotations_of(observed)
    try:
        known = json.loads(noted.get(names.MISMATCH, "{}"))
        return str(known["said"]) if known["revision"] == revision else None
    except (ValueError, KeyError, TypeError):
        return None


def deployment(
    resource: Resource,
    manifest: Manifest,
    memory: WorkerMemory,
    settings: Settings,
    observed: Object | None,
    files: Files | None = None,
    *,
    waits: bool = False,
    sleep: Sleep | None = None,
) -> Object:
    """The driver. While what it was started for is unchanged, its pod template is left as it is, so that a new release of the operator,
    with another default image perhaps, restarts no join. ``files``: the driver's, where they are known. ``waits``: as if it were.
    ``sleep``: what is to be noted of it."""
    files = driver_files(resource, manifest, settings) if files is None else files
    wanted = files[REVISION_KEY]
    mounted = names.files_name(resource.name, content(files))
    template = driver_template(resource, manifest, memory, settings, wanted, mounted)
    # Templates that differ only in what has pods start anew are tried once.
    lasting = json.dumps(template, sort_keys=True).replace(mounted, "").replace(wanted, "")
    annotations = {names.REVISION: wanted, names.TEMPLATE: digest(template), names.TRIED: digest([lasting, substance(files)])}
    annotations[names.ASKED] = digest(resource.nonce)
    sizes = {names.BEGUN: resource.begun, names.UNRESIZABLE: resource.unresizable}
    is_suspended = manifest.spec.suspend
    if sleep is not None:
        annotations[names.SLEEP] = sleep.note
        is_suspended |= sleep.is_asleep
    if observed is not None:
        noted = observed["metadata"].get("annotations") or {}
        if waits:
            wanted = annotations[names.REVISION] = noted.get(names.REVISION, "")
            annotations[names.ASKED] = noted.get(names.ASKED, "")
            sizes = {name: noted.get(name, "") for name in sizes}
        if noted.get(names.REVISION) == wanted and noted.get(names.TEMPLATE, "") != annotations[names.TEMPLATE]:
            template = _applied_template(observed)
            annotations |= {name: noted.get(name, "") for name in (names.TEMPLATE, names.TRIED)}
    annotations |= {name: value for name, value in sizes.items() if value}
    return child(
        resource,
        "apps/v1",
        "Deployment",
        resource.base,
        metadata={"annotations": annotations},
        spec={
            "replicas": 0 if is_suspended or mismatch(observed, wanted) is not None else drivers_of(template),
            "revisionHistoryLimit": 2,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": resource.selected(names.DRIVER)},
            "template": template,
        },
    )


def drivers_of(template: Object) -> int:
    """How many drivers a pod template of theirs is for: one, or one that works and one that stands by."""
    arguments = [argument for container in template["spec"]["containers"] for argument in container.get("args") or []]
    return 2 if STANDBY in arguments else 1


def _applied_template(observed: Object) -> Object:
    """The pod template as we applied it, without what others have added: that stays theirs."""
    fields: Fields = our_fields(observed)
    for name in ("f:spec", "f:template"):
        fields = fields.get(name, {})
    template: Object = ours(observed["spec"]["template"], fields)
    return template


def watcher(resource: Resource, manifest: Manifest, settings: Settings, image: str) -> Object:
    """What asks the sources while the join sleeps; its pod is ready as long as they answer. ``image``: the driver's."""
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 2,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": resource.selected(names.WATCHER)},
        "template": watcher_template(resource, manifest, settings, image),
    }
    return child(resource, "apps/v1", "Deployment", names.watcher_name(resource.name), spec=spec)


def query_servers(resource: Resource, manifest: Manifest, settings: Settings, image: str) -> list[Object]:
    """All that they have but their Secret; nothing where none are wanted. ``image``: the driver's."""
    replicas, name = manifest.spec.queries.replicas, names.queries_name(resource.name)
    if not replicas:
        return []
    selected = {"matchLabels": resource.selected(names.QUERIES)}
    deployed = {
        "replicas": replicas,
        "revisionHistoryLimit": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "selector": selected,
        "template": queries_template(resource, manifest, settings, image),
    }
    numbers = query_ports(manifest)
    ports = [{"name": each, "port": number, "protocol": "TCP", "targetPort": each} for each, number in numbers.items()]
    found = [
        child(resource, "apps/v1", "Deployment", name, spec=deployed),
        child(resource, "v1", "Service", name, spec={**_families(settings), "selector": selected["matchLabels"], "ports": ports}),
    ]
    if replicas > 1:
        found.append(_budget(resource, name, selected, {"maxUnavailable": 1}))
    if settings.network_policy:
        ingress = [{"from": [{"namespaceSelector": {}}], "ports": [_port(number) for number in numbers.values()]}]
        found.append(_network_policy(resource, name, {"podSelector": selected}, ingress))
    return found


def queries_of(resource: Resource, deployment: Object | None) -> Object | None:
    """``status.queries``, by the Deployment as it is; None where there is none."""
    if deployment is None:
        return None
    ready = (deployment.get("status") or {}).get("readyReplicas", 0)
    host = f"{names.queries_name(resource.name)}.{resource.namespace}.svc"
    found = {"replicas": deployment["spec"].get("replicas", 1), "ready": ready, "url": f"http://{host}:{PORT}/v1/query"}
    containers = deployment["spec"]["template"]["spec"].get("containers", [])
    has_flight = any(port.get("name") == FLIGHT for container in containers for port in container.get("ports", []))
    return found | ({"flight": f"grpc://{host}:{FLIGHT_PORT}"} if has_flight else {})


def cleanup_job(resource: Resource, manifest: Manifest, document: str, settings: Settings, beside: Sequence[str] = ()) -> Object:
    """Removes the state in the checkpoint, in bounded time.

    It outlives the StreamJoin, and needs none of its children: what a StreamJoin owns may be deleted before it. ``document``: the manifest
    of the driver that ran, as JSON; ``beside``: pods of the join that have not ended yet.
    """
    return child(
        resource,
        "batch/v1",
        "Job",
        names.cleanup_name(resource.name, resource.uid),
        owned=False,
        metadata={"annotations": {names.BESIDE: ", ".join(beside)}} if beside else {},
        spec={
            "backoffLimit": 2,
            "activeDeadlineSeconds": max(1, int(settings.cleanup_seconds)),
            "ttlSecondsAfterFinished": CLEANUP_KEPT_SECONDS,
            "template": cleanup_template(resource, manifest, document, settings),
        },
    )
