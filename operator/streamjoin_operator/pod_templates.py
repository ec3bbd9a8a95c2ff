"""The pods of a StreamJoin: driver, executors, query servers, and what removes the state, each ours with the manifest's own template merged
over it.

Always holds: pure. Pods meet the *restricted* Pod Security standard unless the manifest's template says otherwise. Only the driver has
a token of the API server.
"""

from __future__ import annotations

import json

from streamjoin import logs
from streamjoin.manifest import resolve
from streamjoin.manifest.memory import MIB
from streamjoin.manifest.model import Manifest, Workers
from streamjoin.manifest.packages import has_tables
from streamjoin.manifest.quantity import Cpu, Memory
from streamjoin_operator import executor_hooks, names
from streamjoin_operator.changes import CLAIM_PATH, engine_manifest
from streamjoin_operator.drift import Object
from streamjoin_operator.memory import WorkerMemory
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings
from streamjoin_operator.template import merge

PORT, EXCHANGE_PORT, RPC_PORT, BLOCKS_PORT = 8080, 7077, 7078, 7079
FLIGHT, FLIGHT_PORT = "flight", 8081
"""Of query servers that answer over Arrow Flight: the port's name, and its number."""
WORKER_PORT, SPARE_PORTS = 7080, 15
"""Workers' ports are as many more than an executor has workers (``streamjoin.cli.pods``)."""
UID = 10001
SPARK_VOLUME = "spark-local-dir-1"
"""By this name Spark takes an executor's volume for its own files, instead of an emptyDir that may grow without a limit."""
CONFIG_PATH, TOKEN_PATH = "/etc/streamjoin", "/etc/streamjoin-token"
EXCHANGE_PATH, TLS_PATH = "/etc/streamjoin-exchange", "/etc/streamjoin-tls"
DRIVER_MEMORY, DRIVER_CPU = "2Gi", "500m"
FEEDING_MEMORY = "4Gi"
"""Of a driver with a Spark beside it that reads or writes (``streamjoin.api.feeder``): that is a Java with a heap of 1 GiB, and Python."""
SERVER_MEMORY, PROCESS_MEMORY = Memory.parse("256Mi"), Memory.parse("256Mi")
"""Of a query server, and of each of its processes besides the query (``streamjoin.query.worker.OVERHEAD_BYTES``)."""
STAYS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of a pod that keeps a node which is little used: without its driver a join stands still until the next one runs."""
MOVES = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
"""Of a pod that may go: without this one that has an emptyDir, or no controller, keeps its node for ever."""
DRIVER_SCRATCH, EXECUTOR_SCRATCH, SMALL_SCRATCH, SPARK_SCRATCH = "8Gi", "32Gi", "1Gi", "1Gi"
"""At most so much is in a pod's emptyDir: of an executor what it holds and reads back, in scratch files (docs/storage.md). Not by its
memory: executors that are resized keep their pods."""
FETCHED_BYTES = 4 << 30
"""Of a query's process: what it fetches (``streamjoin.query.messages.Limits``)."""
DISK = {"requests": {"ephemeral-storage": "1Gi"}}
"""Of a container that writes scratch files and a log: so much is taken into account where its pod is to run."""
STANDBY = "--standby"
"""The argument of a driver that waits until no other is at work."""
DRIVER_GRACE_SECONDS = 60
"""A running epoch is finished before the driver stops."""
LOST_NODE_SECONDS = 30


INSIDE = ("$(KUBERNETES_SERVICE_HOST)", "localhost", "127.0.0.1", "::1", ".svc", ".cluster.local")
"""What is asked without a proxy; the API server's address stands in each container's environment."""


def image_for(manifest: Manifest, settings: Settings) -> str:
    """The image of the driver, its executors and the pod that removes the state."""
    if manifest.spec.image:
        return manifest.spec.image
    if resolve.has_spark(manifest.spec):
        return settings.spark_image
    return settings.tables_image if has_tables(manifest) else settings.engine_image


def driver_template(resource: Resource, manifest: Manifest, memory: WorkerMemory, settings: Settings, wanted: str, files: str) -> Object:
    """``wanted``: the revision that the driver is started for; ``files``: the ConfigMap of its files."""
    image, driver_memory = image_for(manifest, settings), FEEDING_MEMORY if resolve.has_spark(manifest.spec) else DRIVER_MEMORY
    arguments = [
        "driver",
        f"{CONFIG_PATH}/streamjoin.yaml",
        f"--revision={wanted}",
        f"--executor-template={CONFIG_PATH}/executor.yaml",
        f"--exchange-secret-file={EXCHANGE_PATH}/secret",
        *([] if manifest.spec.security.tls is None else [f"--tls-directory={TLS_PATH}", f"--tls-name={resource.tls_name}"]),
        f"--executor-heap-mib={memory.heap_mib}",
        f"--executor-overhead-mib={memory.overhead_mib}",
        f"--executor-cpu={_executor_cpu(manifest.spec.workers)}",
        f"--executor-grace-seconds={executor_hooks.grace_seconds(manifest)}",
        f"--port={PORT}",
        f"--api-token-file={TOKEN_PATH}/token",
        *([STANDBY] if manifest.spec.driver.standby else []),
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
            *_environment(resource, manifest, settings),
        ],
        "ports": [
            {"name": "http", "containerPort": PORT, "protocol": "TCP"},
            {"name": "exchange", "containerPort": EXCHANGE_PORT, "protocol": "TCP"},
            {"name": "rpc", "containerPort": RPC_PORT, "protocol": "TCP"},
            {"name": "blocks", "containerPort": BLOCKS_PORT, "protocol": "TCP"},
        ],
        "resources": merge(DISK, {"requests": {"cpu": DRIVER_CPU, "memory": driver_memory}, "limits": {"memory": driver_memory}}),
        **_probes(60, "/readyz" if manifest.spec.driver.standby else "/healthz"),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the last line says what was wrong, and the status repeats it
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": names.FILES_VOLUME, "mountPath": CONFIG_PATH, "readOnly": True},
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
        "securityContext": _pod_security(settings),
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
            for key in ("not-ready", "unreachable")
        ],
        **({"affinity": _standing_by(resource, manifest)} if manifest.spec.driver.standby else {}),
        "containers": [container],
        "volumes": [
            {"name": names.FILES_VOLUME, "configMap": {"name": files}},
            _secret_volume("token", names.token_name(resource.name)),
            _scratch(DRIVER_SCRATCH),
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
        **STAYS,
    }
    ours = {"metadata": {"labels": names.pod_labels(resource.name, names.DRIVER), "annotations": annotations}, "spec": spec}
    merged: Object = merge(ours, dict(manifest.spec.driver.pod_template))
    return merged


def _environment(resource: Resource, manifest: Manifest, settings: Settings) -> list[Object]:
    """How a container logs, and about whom (``streamjoin.logs``); and the proxies by which it leaves the cluster."""
    logging = manifest.spec.logging
    about = {logs.LEVEL: logging.level, logs.FORMAT: logging.format, logs.ABOUT: f"{resource.namespace}/{resource.name}"}
    return [{"name": name, "value": value} for name, value in {**about, **_proxies(settings)}.items()]


def _proxies(settings: Settings) -> dict[str, str]:
    """Programs look for the one spelling or the other."""
    given = {"HTTP_PROXY": settings.http_proxy, "HTTPS_PROXY": settings.https_proxy}
    if not any(given.values()):
        return {}
    given["NO_PROXY"] = ",".join([*INSIDE, *settings.no_proxy])
    return {spelled: value for name, value in given.items() if value for spelled in (name, name.lower())}


def worker_ports(manifest: Manifest) -> range:
    """Where the workers of an executor take pieces."""
    return range(WORKER_PORT, WORKER_PORT + SPARE_PORTS + manifest.spec.workers.per_executor)


def executor_template(resource: Resource, manifest: Manifest, settings: Settings) -> Object:
    """The pod that Spark starts executors from; Spark adds image, resources, environment and its own volumes."""
    container = {
        "name": names.EXECUTOR,
        "env": [*_environment(resource, manifest, settings), *executor_hooks.environment()],
        "securityContext": _container_security(),
        # the port of blocks is declared by Spark
        "ports": [{"name": f"worker-{port}", "containerPort": port, "protocol": "TCP"} for port in worker_ports(manifest)],
        "resources": DISK,
        **executor_hooks.container_part(manifest),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            {"name": SPARK_VOLUME, "mountPath": "/var/data/spark"},
            *_secret_mounts(manifest),
            *_claim_mounts(manifest),
        ],
    }
    spec = {
        "serviceAccountName": names.executors_name(resource.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": executor_hooks.GRACE_SECONDS,
        "securityContext": _pod_security(settings),
        "containers": [container],
        "volumes": [
            _scratch(EXECUTOR_SCRATCH),
            _scratch(SPARK_SCRATCH, SPARK_VOLUME),
            *_secret_volumes(resource, manifest),
            *_claim_volumes(manifest),
        ],
        **_pull_secrets(settings),
    }
    metadata = {"labels": names.pod_labels(resource.name, names.EXECUTOR), "annotations": MOVES}
    ours = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    merged: Object = merge(ours, dict(manifest.spec.executor.pod_template))
    return merged


def executor_resources(workers: Workers) -> Object:
    """What Spark has an executor's container ask for: heap and overhead are all of its workers' memory (``WorkerMemory``)."""
    size = f"{workers.resources.memory.bytes * workers.per_executor // MIB}Mi"
    return {"requests": {"cpu": str(_executor_cpu(workers)), "memory": size}, "limits": {"memory": size}}


def _executor_cpu(workers: Workers) -> Cpu:
    return Cpu(workers.resources.cpu.millis * workers.per_executor)


def executor_pod(resource: Resource, manifest: Manifest, settings: Settings) -> Object:
    """An executor as Spark makes it of its template, as far as it matters to who may refuse it."""
    container = {
        "name": names.EXECUTOR,
        "image": image_for(manifest, settings),
        "resources": executor_resources(manifest.spec.workers),
    }
    made: Object = merge(executor_template(resource, manifest, settings), {"spec": {"containers": [container]}})
    return made


def cleanup_template(resource: Resource, manifest: Manifest, document: str, settings: Settings) -> Object:
    """Removes the state in the checkpoint. ``document``: the manifest, which the pod brings along as one of its annotations."""
    field = {"fieldPath": f"metadata.annotations['{names.MANIFEST}']"}
    container = {
        "name": names.CLEANUP,
        "image": image_for(manifest, settings),
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["purge", f"{CONFIG_PATH}/streamjoin.yaml"],
        "env": _environment(resource, manifest, settings),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "64Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": _container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
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
        "securityContext": _pod_security(settings),
        "containers": [container],
        "volumes": [
            {"name": "config", "downwardAPI": {"items": [{"path": "streamjoin.yaml", "fieldRef": field}]}},
            _scratch(SMALL_SCRATCH),
            *_claim_volumes(manifest),
        ],
        **_pull_secrets(settings),
    }
    if manifest.spec.service_account_annotations:
        spec["serviceAccountName"] = names.executors_name(resource.name)
    metadata = {"labels": names.pod_labels(resource.name, names.CLEANUP), "annotations": {names.MANIFEST: document}}
    made = merge({"spec": spec}, _alike(manifest, names.CLEANUP))
    merged: Object = merge(merge(made, dict(manifest.spec.cleanup.pod_template)), {"metadata": metadata})
    return merged


def queries_template(resource: Resource, manifest: Manifest, settings: Settings, image: str) -> Object:
    """A query server. ``image``: the driver's."""
    queries = manifest.spec.queries
    size = str(Memory(SERVER_MEMORY.bytes + queries.processes * (queries.memory.bytes + PROCESS_MEMORY.bytes)))
    container = {
        "name": names.QUERIES,
        "args": [
            *("serve", f"{CONFIG_PATH}/streamjoin.yaml", f"--port={PORT}", "--address=::"),
            *(f"--api-token-file={TOKEN_PATH}/token", f"--processes={queries.processes}", f"--memory={queries.memory}"),
            *([f"--flight={FLIGHT_PORT}"] if queries.flight else []),
        ],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in query_ports(manifest).items()],
        "resources": merge(DISK, {"requests": {"cpu": str(queries.cpu), "memory": size}, "limits": {"memory": size}}),
        **_probes(30),
        "volumeMounts": [{"name": "token", "mountPath": TOKEN_PATH, "readOnly": True}],
    }
    spec = {
        "affinity": _apart(resource, names.QUERIES) if manifest.spec.checkpoint.persistent_volume_claim is None else _beside(resource),
        "volumes": [
            _secret_volume("token", names.queries_name(resource.name)),
            _scratch(str(Memory(Memory.parse(SMALL_SCRATCH).bytes + queries.processes * FETCHED_BYTES))),
        ],
    }
    ours = _reading(resource, manifest, settings, image, container, _asked_of(engine_manifest(manifest)), spec)
    merged: Object = merge(ours, dict(queries.pod_template))
    return merged


def watcher_template(resource: Resource, manifest: Manifest, settings: Settings, image: str) -> Object:
    """Asks the sources of a join that sleeps: it is ready while all of them answer, and its container ends with 0 once one has something.
    ``image``: the driver's."""
    answered, idle = "/tmp/answered", manifest.spec.idle  # noqa: S108 - in a volume of the pod's own
    container = {
        "name": names.WATCHER,
        "args": ["watch-sources", f"{CONFIG_PATH}/streamjoin.yaml", f"--answered={answered}"],
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi", "ephemeral-storage": "64Mi"}, "limits": {"memory": "1Gi"}},
        "readinessProbe": {"exec": {"command": ["cat", answered]}, "periodSeconds": 5, "timeoutSeconds": 5},
    }
    ours = _reading(resource, manifest, settings, image, container, engine_manifest(manifest))
    merged: Object = ours if idle is None else merge(ours, dict(idle.pod_template))
    return merged


def _reading(
    resource: Resource, manifest: Manifest, settings: Settings, image: str, container: Object, document: Object, spec: Object | None = None
) -> Object:
    """A pod that reads what the driver does: it brings its manifest along as the cleanup does, mounts the claim to read, and is where and
    with which keys the driver's overrides say. ``document``: the manifest; ``spec``: more of the pod's."""
    common = {
        "name": container["name"],
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "env": _environment(resource, manifest, settings),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *({**mount, "readOnly": True} for mount in _claim_mounts(manifest)),
        ],
    }
    field = {"fieldPath": f"metadata.annotations['{names.MANIFEST}']"}
    pod = {
        "serviceAccountName": names.executors_name(resource.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(settings),
        "containers": [merge(common, container)],
        "volumes": [
            {"name": "config", "downwardAPI": {"items": [{"path": "streamjoin.yaml", "fieldRef": field}]}},
            _scratch(SMALL_SCRATCH),
            *_claim_volumes(manifest),
        ],
        **_pull_secrets(settings),
    }
    annotations = {names.MANIFEST: json.dumps(document, sort_keys=True), **MOVES}
    ours = {"metadata": {"labels": names.pod_labels(resource.name, container["name"]), "annotations": annotations}, "spec": pod}
    made: Object = merge(merge(ours, {"spec": spec or {}}), _reach(manifest, container["name"]))
    return made


def query_ports(manifest: Manifest) -> dict[str, int]:
    """Of query servers, by name."""
    return {"http": PORT} | ({FLIGHT: FLIGHT_PORT} if manifest.spec.queries.flight else {})


def _asked_of(document: Object) -> Object:
    """A manifest without what queries do not depend on: to scale a join, or to tune it, starts no query server anew."""
    left_out = ("workers", "scaling", "shedding", "epoch", "deadLetter")
    return {**document, "spec": {name: value for name, value in document["spec"].items() if name not in left_out}}


def _apart(resource: Resource, component: str) -> Object:
    """One that is lost with its node is to leave others."""
    return {"podAntiAffinity": _preferring(resource.selected(component))}


def _standing_by(resource: Resource, manifest: Manifest) -> Object:
    """Of two drivers. A claim that is there may be for one node, where a standby is of some use as well."""
    return _apart(resource, names.DRIVER) if manifest.spec.checkpoint.persistent_volume_claim is None else _beside(resource)


def _beside(resource: Resource) -> Object:
    """A claim may be for one node: the driver's."""
    return {"podAffinity": _preferring(resource.selected(names.DRIVER))}


def _preferring(labels: Object) -> Object:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


def _probes(starts_seconds: int, ready: str = "/healthz") -> Object:
    """Of a container that serves the engine's port, which may take so long to. ``ready``: where it is asked whether it is ready."""
    asked = {"httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"}}
    is_ready = {"httpGet": {**asked["httpGet"], "path": ready}}
    slow = {"initialDelaySeconds": starts_seconds, "periodSeconds": 20, "timeoutSeconds": 5, "failureThreshold": 6}
    return {
        "readinessProbe": {**is_ready, "periodSeconds": 1 if ready != "/healthz" else 5, "timeoutSeconds": 3},
        "livenessProbe": {**asked, **slow},
    }


def _reach(manifest: Manifest, container_name: str) -> Object:
    """Of the driver's overrides, what decides where, as whom and with which keys a pod runs that must reach the same storage."""
    spec = dict(manifest.spec.driver.pod_template).get("spec") or {}
    kept = ("serviceAccountName", "nodeSelector", "tolerations", "affinity", "imagePullSecrets", "volumes", "hostAliases", "dnsConfig")
    reach = {name: spec[name] for name in kept if name in spec}
    for container in spec.get("containers") or []:
        if container.get("name") == names.DRIVER:
            access = {name: container[name] for name in ("env", "envFrom", "volumeMounts") if name in container}
            reach["containers"] = [{"name": container_name, **access}]
    return {"spec": reach}


OF_A_DRIVER = (
    *("containers", "initContainers", "automountServiceAccountToken", "hostname", "subdomain", "readinessGates"),
    "topologySpreadConstraints",
)
"""Of the spec of the driver's overrides, what no other pod has; nor what of its container."""
OF_ITS_CONTAINER = ("name", "command", "args", "ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def _alike(manifest: Manifest, container_name: str) -> Object:
    """Of the driver's overrides, all that a pod of another container has too: a cluster's rules want of it what they want of a driver."""
    template = dict(manifest.spec.driver.pod_template)
    spec: Object = template.get("spec") or {}
    kept = {name: value for name, value in spec.items() if name not in OF_A_DRIVER}
    for container in spec.get("containers") or []:
        if container.get("name") == names.DRIVER:
            rest = {name: value for name, value in container.items() if name not in OF_ITS_CONTAINER}
            kept["containers"] = [{**rest, "name": container_name}]
    return {"metadata": template.get("metadata") or {}, "spec": kept}


def _pod_security(settings: Settings) -> Object:
    chosen = {} if settings.assigned_users else {"runAsUser": UID, "runAsGroup": UID, "fsGroup": UID}
    return {"runAsNonRoot": True, **chosen, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}}


def _container_security() -> Object:
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def _scratch(size: str, name: str = "tmp") -> Object:
    """A volume of the pod's own. Once it is fuller, kubelet evicts the pod, rather than the node's other pods."""
    return {"name": name, "emptyDir": {"sizeLimit": size}}


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
