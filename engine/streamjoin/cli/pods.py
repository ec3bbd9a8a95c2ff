"""The entry points of pods: the driver that the operator starts, the executors that Spark starts, and the removal of a checkpoint.

Spark gives an executor's container the argument ``executor`` and all else as ``SPARK_*`` variables; PySpark's distribution has no entry
point that reads them, so this is ours.

Always holds: the driver needs the API server for pods alone: no ConfigMap, Service or claim is made by Spark.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import click

from streamjoin.cli.exits import Exit, Failure, ending
from streamjoin.cli.poller import Poller
from streamjoin.endpoint import endpoint
from streamjoin.logs import Style
from streamjoin.runner.java import OPTIONAL_MODULE

if TYPE_CHECKING:
    from streamjoin.cli.run import Options
    from streamjoin.controlplane.driver import Driver
    from streamjoin.job import Job
    from streamjoin.runner.security import Security
    from streamjoin.runner.spark import SparkSettings
    from streamjoin.serve.metrics import Metrics

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
MASTER = "k8s://"
EXCHANGE_PORT, RPC_PORT, BLOCKS_PORT = 7077, 7078, 7079
"""Of the driver: for workers' calls, and for Spark's own; executors serve blocks on the same port as the driver."""
WORKER_PORT, SPARE_PORTS = 7080, 15
"""Where an executor's first worker takes pieces; and ports besides one for each: a worker that has died may leave its own to nobody for a
while."""
DRIVER_HEAP_MIB = 512
LOGS = Path("/tmp/streamjoin")  # noqa: S108 - the pod's own volume
VECTORS = f"--add-modules={OPTIONAL_MODULE}"
"""Spark's, for linear algebra, of which there is none here: Java warns of it in plain text."""
REVISION_SECONDS = 120.0
"""How long the driver waits for its files: kubelet may show those of the revision before for a while."""
PENDING_SECONDS = 600.0
"""How long the driver waits, before its first epoch, for as many executors as have room for what is held: they may wait for a node."""
REREAD_SECONDS = 5.0
DELETED_AT_A_TIME = 1000


@dataclass(frozen=True)
class Secrets:
    """Files that are in the same places in the driver and in its executors."""

    exchange: Path
    """What all processes of the application show each other, Spark's among them."""
    tls_directory: Path | None = None
    """tls.crt, tls.key and ca.crt. None: no TLS."""
    tls_name: str = ""
    """The name that the certificate must be for."""

    def security(self) -> Security:
        """What is in them. Raises Failure where they cannot be used."""
        from streamjoin.runner.security import Security, Tls, certificate_problem

        try:
            secret = self.exchange.read_bytes()
        except OSError as error:
            raise Failure(Exit.USAGE, f"--exchange-secret-file: {self.exchange}: {error.strerror}") from error
        if not secret:
            raise Failure(Exit.USAGE, f"--exchange-secret-file: {self.exchange} is empty; delete its Secret, and another is made")
        if self.tls_directory is None:
            return Security(secret)
        try:
            tls = Tls.of(self.tls_directory, self.tls_name)
        except FileNotFoundError as error:
            raise Failure(Exit.USAGE, str(error)) from error
        problem = certificate_problem(tls)
        if problem is not None:
            raise Failure(Exit.USAGE, f"spec.security.tls.secretName: {problem}")
        return Security(secret, tls)


@dataclass(frozen=True)
class Pods:
    """Where and as what a driver starts its executors."""

    template: Path
    """The pod that executors are made from."""
    secrets: Secrets
    heap_mib: int
    overhead_mib: int
    cpu: str
    grace_seconds: int
    """From when an executor is told to go until it is killed."""
    image: str
    pull_policy: str
    namespace: str
    pod: str
    """The driver's own: executors are deleted with it."""
    address: str
    """The driver's own."""
    api_server: str
    style: Style | None = None
    """How the pods log."""

    @classmethod
    def here(cls, environment: Mapping[str, str], **given: Any) -> Pods:
        """Made from what a pod is told about itself, and the fields above ``image``. Raises Failure naming what is missing."""
        wanted = ("STREAMJOIN_IMAGE", "POD_NAMESPACE", "POD_NAME", "POD_IP", "KUBERNETES_SERVICE_HOST")
        missing = [name for name in wanted if not environment.get(name)]
        if missing:
            remedy = "streamjoin driver runs in a pod that the operator makes; elsewhere, use streamjoin run"
            raise Failure(Exit.USAGE, f"{', '.join(missing)}: not in the environment; {remedy}")
        image, namespace, pod, address = (environment[name] for name in wanted[:4])
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
        server = f"https://{endpoint(host, port)}"
        policy = environment.get("STREAMJOIN_IMAGE_PULL_POLICY", "IfNotPresent")
        given |= {"image": image, "pull_policy": policy, "namespace": namespace, "pod": pod, "address": address, "api_server": server}
        return cls(**given, style=Style.of(environment))

    @property
    def master(self) -> str:
        return f"{MASTER}{self.api_server}"

    def settings(self, job: Job, log_directory: Path, java_home: Path) -> SparkSettings:
        """How Spark runs a job there. Raises Failure where secrets cannot be used."""
        from streamjoin.runner.spark import SparkSettings

        return SparkSettings(
            log_directory,
            executor_memory_mib=self.heap_mib,
            master=self.master,
            java_home=java_home,
            workers_per_executor=job.workers_per_executor,
            registration_seconds=PENDING_SECONDS,
            stabilization_seconds=job.stabilization_seconds,
            conf=self.conf(job.name),
            security=self.secrets.security(),
            address=self.address,
            port=EXCHANGE_PORT,
            worker_ports=worker_ports(job.workers_per_executor),
            style=self.style,
        )

    def conf(self, name: str) -> dict[str, str]:
        """Spark's settings for a join of this name."""
        # executors count from 1 in every driver, so that the prefix must be new; with the number behind it, 63 characters are the limit
        prefix = f"sj-{re.sub('[^a-z0-9-]', '-', name)[:30].rstrip('-')}-{token_hex(4)}"
        return {
            "spark.app.name": f"streamjoin-{name}",
            # Spark wants an IPv6 address in brackets; executors put theirs into some themselves
            "spark.driver.host": f"[{self.address}]" if ":" in self.address else self.address,
            "spark.driver.bindAddress": f"[{self.address}]" if ":" in self.address else self.address,
            "spark.driver.port": str(RPC_PORT),
            "spark.driver.blockManager.port": str(BLOCKS_PORT),
            "spark.blockManager.port": str(BLOCKS_PORT),
            "spark.kubernetes.namespace": self.namespace,
            "spark.kubernetes.container.image": self.image,
            # over the template's, whatever that says
            "spark.kubernetes.container.image.pullPolicy": self.pull_policy,
            "spark.kubernetes.driver.pod.name": self.pod,
            "spark.kubernetes.executor.podNamePrefix": prefix,
            "spark.kubernetes.executor.podTemplateFile": str(self.template),
            "spark.kubernetes.executor.podTemplateContainerName": "executor",
            "spark.kubernetes.executor.request.cores": self.cpu,
            # over the template's, too
            "spark.kubernetes.executor.terminationGracePeriodSeconds": f"{self.grace_seconds}s",
            "spark.executor.memoryOverhead": f"{self.overhead_mib}m",
            "spark.driver.memory": f"{DRIVER_HEAP_MIB}m",
            # of each heap Spark sets 300 MiB aside, and refuses one of less than 450, for caches and shuffles that we have none of
            "spark.testing.reservedMemory": str(64 << 20),
            # a file, as a secret in the settings would be in the executors' arguments, or in their pods' specifications
            "spark.authenticate": "true",
            "spark.authenticate.secret.file": str(self.secrets.exchange),
            "spark.network.crypto.enabled": "true",
            "spark.network.crypto.authEngineVersion": "2",
            "spark.network.crypto.cipher": "AES/GCM/NoPadding",
            # an executor whose pod is gone is noticed within 10 s, one that hangs within about 30 s
            "spark.kubernetes.executor.missingPodDetectDelta": "5s",
            "spark.kubernetes.executor.apiPollingInterval": "5s",
            "spark.kubernetes.executor.eventProcessingInterval": "1s",
            "spark.executor.heartbeatInterval": "5s",
            "spark.network.timeout": "20s",
            "spark.network.timeoutInterval": "5s",
            # questions to a machine that is busy may take longer
            "spark.rpc.askTimeout": "120s",
            # a join outlives any number of executors
            "spark.executor.maxNumFailures": str(2**31 - 1),
            # the driver's pod becomes ready with the join, which needs executors first
            "spark.kubernetes.allocation.driver.readinessTimeout": "1s",
            "spark.kubernetes.allocation.batch.delay": "1s",
            "spark.kubernetes.allocation.batch.size": "16",
            # the driver's service account may touch pods and nothing else
            "spark.kubernetes.executor.disableConfigMap": "true",
            "spark.kubernetes.driver.service.deleteOnTermination": "false",
            "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
            "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
            "spark.log.level": "WARN" if self.style is None else self.style.java_level.upper(),
            "spark.executor.syncLogLevel.enabled": "true",
        }


def worker_ports(workers_per_executor: int) -> tuple[int, ...]:
    """The ports at which the workers of an executor take pieces; each worker uses the first that is free."""
    return tuple(range(WORKER_PORT, WORKER_PORT + SPARE_PORTS + workers_per_executor))


def run_driver(options: Options, revision: str | None) -> int:
    """``streamjoin driver``: the run of a pod. Returns the exit code."""
    from streamjoin.cli.run import run_manifest

    if revision is not None and not await_revision(options.manifest.parent / "revision", revision):
        where = options.manifest.parent
        click.echo(f"streamjoin: {where}/revision: is not {revision} after {REVISION_SECONDS:.0f} s; the pod is started again", err=True)
        return Exit.FAILED
    return run_manifest(options)


def await_revision(
    file: Path, revision: str, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Whether the files are those that the driver was started for, which may take kubelet a while."""
    deadline = clock() + REVISION_SECONDS
    while True:
        try:
            found = file.read_text().strip()
        except OSError:
            found = ""
        if found == revision:
            return True
        if clock() >= deadline:
            return False
        sleep(1.0)


class Limits(Poller):
    """The limits on workers, read anew from the manifest as it changes, and the memory of executors that were resized, from a file beside
    it: what the operator applies live.

    Everything else of the manifest counts from the next start on.
    """

    def __init__(self, manifest: Path, driver: Driver, metrics: Metrics) -> None:
        """``metrics`` are told of what the driver gets."""
        super().__init__("limits", REREAD_SECONDS)
        self._manifest, self._driver, self._metrics = manifest, driver, metrics
        self._text = ""

    def look(self) -> bool:
        """Take the file's limits over; whether they differ. A file that is not valid changes nothing."""
        from streamjoin.manifest.capacity import capacity_of
        from streamjoin.manifest.memory import RESIZED
        from streamjoin.manifest.model import Resources
        from streamjoin.manifest.validate import ManifestError, load

        try:
            text, file = self._manifest.read_text(), self._manifest.parent / RESIZED
            resources = file.read_text() if file.exists() else ""
            if text + resources == self._text:
                return False
            spec = load(text).spec
            resized = Resources.model_validate_json(resources) if resources else None
        except (OSError, ValueError, ManifestError):
            return False
        self._text = text + resources
        job, workers = self._driver.job, spec.workers
        changed: Job = replace(job, min_workers=workers.min, max_workers=workers.max)
        if resized is not None and job.capacity.origin:
            spec = spec.model_copy(update={"workers": workers.model_copy(update={"resources": resized})})
            changed = replace(changed, capacity=capacity_of(spec, max(stream.tuple_bytes for stream in job.streams)))
        if changed == job:
            return False
        self._driver.job = changed
        self._metrics.adopt(changed)
        return True


def executor_command(environment: Mapping[str, str], java_home: Path, spark_home: Path, *options: str) -> list[str]:
    """The command that an executor's container becomes, from Spark's variables, and with these options of Java. Raises Failure naming one
    that is missing."""

    def given(name: str) -> str:
        value = environment.get(name)
        if value is None:
            raise Failure(Exit.USAGE, f"{name}: not in the environment; streamjoin executor is started by Spark, in a pod")
        return value

    numbered = sorted(
        (int(name.removeprefix("SPARK_JAVA_OPT_")), value)
        for name, value in environment.items()
        if re.fullmatch(r"SPARK_JAVA_OPT_\d+", name)
    )
    memory = given("SPARK_EXECUTOR_MEMORY")
    classpath = [environment.get("SPARK_CLASSPATH", ""), str(spark_home / "conf"), f"{spark_home}/jars/*"]
    return [
        str(java_home / "bin" / "java"),
        *(value for _, value in numbered if value != VECTORS),
        *options,
        # Spark reads a secret from a file only where it knows that this is Kubernetes, which it does not tell its executors
        f"-Dspark.master={MASTER}",
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        os.pathsep.join(part for part in classpath if part),
        BACKEND,
        *("--driver-url", given("SPARK_DRIVER_URL")),
        *("--executor-id", given("SPARK_EXECUTOR_ID")),
        *("--cores", given("SPARK_EXECUTOR_CORES")),
        *("--app-id", given("SPARK_APPLICATION_ID")),
        *("--hostname", given("SPARK_EXECUTOR_POD_IP")),
        *("--resourceProfileId", given("SPARK_RESOURCE_PROFILE_ID")),
        *("--podName", given("SPARK_EXECUTOR_POD_NAME")),
    ]


def _log_options() -> list[str]:
    """Java's, so that it logs as the pod's environment says."""
    style, properties = Style.of(os.environ), LOGS / "log4j2.properties"
    if style is None:
        return []
    LOGS.mkdir(parents=True, exist_ok=True)
    properties.write_text(style.log4j)
    return [f"-Dlog4j2.configurationFile={properties.as_uri()}"]


def run_executor() -> int:
    """Become the executor. Returns an exit code where that fails."""
    from streamjoin.runner.java import JavaNotFound, find_java
    from streamjoin.runner.user import NamelessUserError, name_for_java

    found = importlib.util.find_spec("pyspark")
    try:
        if found is None or found.origin is None:
            raise Failure(Exit.USAGE, "PySpark is not installed in this image; use the engine's")
        command = executor_command(os.environ, find_java(), Path(found.origin).parent, *_log_options())
        os.environ |= name_for_java()
    except (Failure, JavaNotFound, NamelessUserError) as error:
        click.echo(f"streamjoin executor: {error}", err=True)
        return error.code if isinstance(error, Failure) else Exit.JAVA
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return os.execv(command[0], command)  # noqa: S606 - the container's process becomes Java, which hears its signals


@ending("streamjoin: ", "streamjoin: ")
def purge(manifest: Path) -> int:
    """``streamjoin purge``: remove all that is in the checkpoint's location, which belongs to the join alone. Returns the exit code."""
    from streamjoin.cli.run import read_job
    from streamjoin.state.storage import ObjectStorage, StorageError

    job = read_job(manifest)
    if job is None:
        return Exit.DONE
    storage = ObjectStorage(job.checkpoint)
    try:
        paths = storage.list("")
        for begin in range(0, len(paths), DELETED_AT_A_TIME):
            storage.delete_many(paths[begin : begin + DELETED_AT_A_TIME])
    except StorageError as error:
        raise Failure(Exit.STORAGE, f"{job.checkpoint}: {error}") from error
    click.echo(f"{job.checkpoint}: {len(paths)} objects removed", err=True)
    return Exit.DONE
