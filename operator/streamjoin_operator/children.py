"""What should exist for a StreamJoin: every child as it is applied.

A driver is a Deployment of one rather than a StatefulSet: when its node is lost, a new pod starts as soon as the old one is given up,
without waiting for a node that may never answer; two drivers at once are harmless, because commits are fenced. It is replaced with
``Recreate``, since two would claim the checkpoint from each other in turn.

Always holds: pure; names are deterministic; every child has our labels and is owned by the StreamJoin, except a claim whose state is to
outlive it. Pods meet the *restricted* Pod Security standard. The driver's service account may touch pods and nothing else; executors have
no token at all.
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass
from typing import Any

from streamjoin.manifest.model import API_VERSION, KIND, Manifest
from streamjoin.manifest.quantity import Cpu
from streamjoin_operator import names
from streamjoin_operator.changes import CLAIM_PATH, Class, classify, compared, engine_manifest, revision, worst
from streamjoin_operator.drift import Object, digest, stamped
from streamjoin_operator.memory import WorkerMemory
from streamjoin_operator.settings import Settings
from streamjoin_operator.template import merge

PORT, EXCHANGE_PORT, RPC_PORT, BLOCKS_PORT = 8080, 7077, 7078, 7079
WORKER_PORT, SPARE_PORTS = 7080, 15
"""Workers' ports are as many more than an executor has workers (``streamjoin.cli.pods``)."""
UID = 10001
CONFIG_PATH, TOKEN_PATH = "/etc/streamjoin", "/etc/streamjoin-token"
EXCHANGE_PATH, TLS_PATH = "/etc/streamjoin-exchange", "/etc/streamjoin-tls"
TLS_FILES = ("tls.crt", "tls.key", "ca.crt")
DRIVER_MEMORY, DRIVER_CPU = "2Gi", "500m"
DRIVER_GRACE_SECONDS = 60
"""A running epoch is finished before the driver stops."""
LOST_NODE_SECONDS = 30
DRIVER_RULES: list[Object] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete", "deletecollection"]}
]
COMPARED_KEY = "compared.json"
LEDGER_KEY = "decisions.json"


@dataclass(frozen=True, slots=True)
class Resource:
    """What of a StreamJoin is needed besides its manifest."""

    namespace: str
    name: str
    uid: str
    generation: int
    restart: str = ""
    """Its annotation ``streamjoin.dev/restart``."""
    pause: str = ""
    """Its annotation ``streamjoin.dev/pause-scaling``."""
    mounted: str = ""
    """A hash of the Secrets that all of its pods mount: with others, they start anew together."""

    @classmethod
    def of(cls, body: Object) -> Resource:
        metadata = body["metadata"]
        annotations = metadata.get("annotations") or {}
        return cls(
            metadata["namespace"],
            metadata["name"],
            metadata["uid"],
            metadata.get("generation", 0),
            annotations.get(names.RESTART, ""),
            annotations.get(names.PAUSE, ""),
        )

    @property
    def base(self) -> str:
        return names.base_name(self.name)

    @property
    def nonce(self) -> str:
        """What makes the driver start anew though the manifest is the same."""
        return f"{self.restart} {self.mounted}"

    @property
    def tls_name(self) -> str:
        """The name that certificates must be for: its Service's."""
        return f"{self.base}.{self.namespace}.svc"

    def owner(self) -> Object:
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def child(resource: Resource, version: str, kind: str, name: str, *, owned: bool = True, **body: Any) -> Object:
    """A child's frame."""
    metadata: Object = {"name": name, "namespace": resource.namespace, "labels": names.labels(resource.name)}
    if owned:
        metadata["ownerReferences"] = [resource.owner()]
    metadata |= body.pop("metadata", {})
    return stamped({"apiVersion": version, "kind": kind, "metadata": metadata, **body})


def service_account(resource: Resource) -> Object:
    return child(resource, "v1", "ServiceAccount", resource.base, automountServiceAccountToken=False)


def role(resource: Resource) -> Object:
    return child(resource, "rbac.authorization.k8s.io/v1", "Role", resource.base, rules=DRIVER_RULES)


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


def mounted(exchange: Object, tls: Object | None) -> str:
    """Of the Secrets that driver and executors mount: equal exactly when what they share is. A certificate stands for its key."""
    return digest([exchange["data"], {file: secret_value(tls, file) for file in TLS_FILES if file != "tls.key"}])


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


def config_map(resource: Resource, manifest: Manifest, change: Object | None, settings: Settings) -> Object:
    """The driver's files, and the manifest in the form in which changes are looked for."""
    value = compared(manifest)
    return child(
        resource,
        "v1",
        "ConfigMap",
        resource.base,
        metadata={"annotations": {names.CHANGE: json.dumps(change, sort_keys=True)}} if change else {},
        data={
            "streamjoin.yaml": json.dumps(engine_manifest(manifest), indent=1, sort_keys=True),
            "executor.yaml": json.dumps(executor_template(resource, manifest, settings), indent=1, sort_keys=True),
            "revision": revision(value, resource.nonce),
            COMPARED_KEY: json.dumps(value, sort_keys=True),
        },
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
    if observed is None:
        return None
    last = (observed["metadata"].get("annotations") or {}).get(names.CHANGE)
    before, after = json.loads(observed["data"][COMPARED_KEY]), compared(manifest)
    changes = classify(before, after)
    if changes:
        kind = worst(changes)
        fields = [change.field for change in changes if change.kind is kind]
        why = next(change.why for change in changes if change.kind is kind)
        return {"generation": resource.generation, "class": kind.value, "fields": fields[:16], "message": f"{', '.join(fields[:4])}: {why}"}
    if observed["data"]["revision"] != revision(after, resource.nonce):
        message = f"the annotation {names.RESTART}, or a Secret that all pods mount, has a new value"
        return {"generation": resource.generation, "class": Class.RESTART.value, "fields": [], "message": message}
    return json.loads(last) if last else None


def refusal_of(change: Object | None) -> str | None:
    """Why a change cannot be made, or None."""
    if change is None or change["class"] != Class.REFUSED.value:
        return None
    return f"{change['message']}; restore the manifest, or choose a new checkpoint.location"


def claim(resource: Resource, manifest: Manifest) -> Object | None:
    """The claim that the operator makes, if it is to make one."""
    checkpoint = manifest.spec.checkpoint
    if checkpoint.persistent_volume_claim is None or checkpoint.size is None:
        return None
    spec: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": str(checkpoint.size)}}}
    if checkpoint.storage_class_name is not None:
        spec["storageClassName"] = checkpoint.storage_class_name
    owned = checkpoint.on_delete == "Delete"
    return child(resource, "v1", "PersistentVolumeClaim", checkpoint.persistent_volume_claim, owned=owned, spec=spec)


def service(resource: Resource) -> Object:
    """Headless: Prometheus and the operator find the driver by it, also before it is ready."""
    return child(
        resource,
        "v1",
        "Service",
        resource.base,
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _selected(resource, names.DRIVER),
            "ports": [{"name": "http", "port": PORT, "protocol": "TCP", "targetPort": "http"}],
        },
    )


def disruption_budget(resource: Resource, executors: int) -> Object | None:
    """One executor at a time may be drained. A count, because executors have no controller that a share could be taken of."""
    if executors < 2:
        return None
    return child(
        resource,
        "policy/v1",
        "PodDisruptionBudget",
        resource.base,
        spec={"minAvailable": executors - 1, "selector": {"matchLabels": _selected(resource, names.EXECUTOR)}},
    )


def worker_ports(manifest: Manifest) -> range:
    """Where the workers of an executor take pieces."""
    return range(WORKER_PORT, WORKER_PORT + SPARE_PORTS + manifest.spec.workers.per_executor)


def network_policies(resource: Resource, manifest: Manifest) -> tuple[Object, Object]:
    """Into the driver: calls of its executors, and HTTP from all of the cluster, the plan API behind the token. Into an executor: Spark's
    blocks from the driver and the other executors, and pieces from these."""
    driver, executors = ({"podSelector": {"matchLabels": _selected(resource, part)}} for part in (names.DRIVER, names.EXECUTOR))
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


def pod_monitor(resource: Resource) -> Object:
    return child(
        resource,
        "monitoring.coreos.com/v1",
        "PodMonitor",
        resource.base,
        spec={
            "selector": {"matchLabels": _selected(resource, names.DRIVER)},
            "jobLabel": "app.kubernetes.io/name",
            # Prometheus' own default may be as long as a sample is believed.
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
        },
    )


def deployment(resource: Resource, manifest: Manifest, memory: WorkerMemory, settings: Settings, observed: Object | None) -> Object:
    """The driver. While what it was started for is unchanged, its pod template is left as it is, so that a new release of the operator,
    with another default image perhaps, restarts no join."""
    wanted = revision(compared(manifest), resource.nonce)
    template = _driver_template(resource, manifest, memory, settings, wanted)
    annotations = {names.REVISION: wanted, names.TEMPLATE: digest(template)}
    if observed is not None:
        noted = observed["metadata"].get("annotations") or {}
        if noted.get(names.REVISION) == wanted and noted.get(names.TEMPLATE, "") != annotations[names.TEMPLATE]:
            template, annotations[names.TEMPLATE] = observed["spec"]["template"], noted.get(names.TEMPLATE, "")
    return child(
        resource,
        "apps/v1",
        "Deployment",
        resource.base,
        metadata={"annotations": annotations},
        spec={
            "replicas": 0 if manifest.spec.suspend else 1,
            "revisionHistoryLimit": 2,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": _selected(resource, names.DRIVER)},
            "template": template,
        },
    )


def _driver_template(resource: Resource, manifest: Manifest, memory: WorkerMemory, settings: Settings, wanted: str) -> Object:
    image = manifest.spec.image or settings.engine_image
    workers = manifest.spec.workers
    arguments = [
        "driver",
        f"{CONFIG_PATH}/streamjoin.yaml",
        f"--revision={wanted}",
        f"--executor-template={CONFIG_PATH}/executor.yaml",
        f"--exchange-secret-file={EXCHANGE_PATH}/secret",
        *([] if manifest.spec.security.tls is None else [f"--tls-directory={TLS_PATH}", f"--tls-name={resource.tls_name}"]),
        f"--executor-heap-mib={memory.heap_mib}",
        f"--executor-overhead-mib={memory.overhead_mib}",
        f"--executor-cpu={Cpu(workers.resources.cpu.millis * workers.per_executor)}",
        f"--port={PORT}",
        f"--api-token-file={TOKEN_PATH}/token",
    ]
    container = {
        "name": names.DRIVER,
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": arguments,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}},
            {"name": "STREAMJOIN_IMAGE", "value": image},
            {"name": "STREAMJOIN_IMAGE_PULL_POLICY", "value": settings.image_pull_policy},
        ],
        "ports": [
            {"name": "http", "containerPort": PORT, "protocol": "TCP"},
            {"name": "exchange", "containerPort": EXCHANGE_PORT, "protocol": "TCP"},
            {"name": "rpc", "containerPort": RPC_PORT, "protocol": "TCP"},
            {"name": "blocks", "containerPort": BLOCKS_PORT, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": DRIVER_CPU, "memory": DRIVER_MEMORY}, "limits": {"memory": DRIVER_MEMORY}},
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"}, "periodSeconds": 5, "timeoutSeconds": 3},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"},
            "initialDelaySeconds": 60,
            "periodSeconds": 20,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the last line says what was wrong, and the status repeats it
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
            {"name": "token", "mountPath": TOKEN_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod's own
            *_secret_mounts(manifest),
            *_claim_mounts(manifest),
        ],
    }
    spec = {
        "serviceAccountName": resource.base,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": DRIVER_GRACE_SECONDS,
        "securityContext": _pod_security(),
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
            for key in ("not-ready", "unreachable")
        ],
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": resource.base}},
            _secret_volume("token", names.token_name(resource.name)),
            {"name": "tmp", "emptyDir": {}},
            *_secret_volumes(resource, manifest),
            *_claim_volumes(manifest),
        ],
        **_pull_secrets(settings),
    }
    annotations = {
        names.REVISION: wanted,
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(PORT),
        "prometheus.io/path": "/metrics",
    }
    ours = {"metadata": {"labels": names.pod_labels(resource.name, names.DRIVER), "annotations": annotations}, "spec": spec}
    merged: Object = merge(ours, dict(manifest.spec.driver.pod_template))
    return merged


def executor_template(resource: Resource, manifest: Manifest, settings: Settings) -> Object:
    """The pod that Spark starts executors from; Spark adds image, resources, environment and its own volumes."""
    container = {
        "name": names.EXECUTOR,
        "securityContext": _container_security(),
        # the port of blocks is declared by Spark
        "ports": [{"name": f"worker-{port}", "containerPort": port, "protocol": "TCP"} for port in worker_ports(manifest)],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *_secret_mounts(manifest), *_claim_mounts(manifest)],  # noqa: S108
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": _pod_security(),
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *_secret_volumes(resource, manifest), *_claim_volumes(manifest)],
        **_pull_secrets(settings),
    }
    ours = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": names.pod_labels(resource.name, names.EXECUTOR)}, "spec": spec}
    merged: Object = merge(ours, dict(manifest.spec.executor.pod_template))
    return merged


def cleanup_job(resource: Resource, manifest: Manifest, settings: Settings) -> Object:
    """Removes the state in the checkpoint, in bounded time."""
    container = {
        "name": names.CLEANUP,
        "image": manifest.spec.image or settings.engine_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["purge", f"{CONFIG_PATH}/streamjoin.yaml"],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *_claim_mounts(manifest),
        ],
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": _pod_security(),
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": resource.base}}, {"name": "tmp", "emptyDir": {}}, *_claim_volumes(manifest)],
        **_pull_secrets(settings),
    }
    ours = {"metadata": {"labels": names.pod_labels(resource.name, names.CLEANUP)}, "spec": spec}
    return child(
        resource,
        "batch/v1",
        "Job",
        names.cleanup_name(resource.name),
        spec={
            "backoffLimit": 2,
            "activeDeadlineSeconds": max(1, int(settings.cleanup_seconds)),
            "template": merge(ours, _placement(manifest)),
        },
    )


def _placement(manifest: Manifest) -> Object:
    """Of the driver's overrides, what decides where and as whom a pod runs: the cleanup must reach the same storage."""
    spec = dict(manifest.spec.driver.pod_template).get("spec") or {}
    kept = ("serviceAccountName", "nodeSelector", "tolerations", "affinity", "imagePullSecrets")
    return {"spec": {name: spec[name] for name in kept if name in spec}}


def _selected(resource: Resource, component: str) -> Object:
    return {names.NAME: resource.name, names.COMPONENT: component}


def _pod_security() -> Object:
    return {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "fsGroup": UID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> Object:
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def _secret_mounts(manifest: Manifest) -> list[Object]:
    """What driver and executors share."""
    paths = {"exchange": EXCHANGE_PATH} | ({} if manifest.spec.security.tls is None else {"tls": TLS_PATH})
    return [{"name": name, "mountPath": path, "readOnly": True} for name, path in paths.items()]


def _secret_volumes(resource: Resource, manifest: Manifest) -> list[Object]:
    tls = manifest.spec.security.tls
    volumes = [_secret_volume("exchange", names.exchange_name(resource.name))]
    return volumes if tls is None else [*volumes, _secret_volume("tls", tls.secret_name)]


def _secret_volume(name: str, secret_name: str) -> Object:
    return {"name": name, "secret": {"secretName": secret_name, "defaultMode": 0o440}}


def _claim_mounts(manifest: Manifest) -> list[Object]:
    return [{"name": "state", "mountPath": CLAIM_PATH}] if manifest.spec.checkpoint.persistent_volume_claim else []


def _claim_volumes(manifest: Manifest) -> list[Object]:
    claim_name = manifest.spec.checkpoint.persistent_volume_claim
    return [{"name": "state", "persistentVolumeClaim": {"claimName": claim_name}}] if claim_name else []


def _pull_secrets(settings: Settings) -> Object:
    return {"imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets]} if settings.image_pull_secrets else {}
