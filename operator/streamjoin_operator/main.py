"""``streamjoin-operator``: kopf's watches on one side, the queue and its workers on the other.

kopf watches StreamJoins and the Deployments that carry our label (selected by the API server), finds silent watches and reconnects them.
Its handlers only note what they saw and put a name into the queue: no handler keeps state in annotations, adds a finalizer or has a timer,
so that kopf itself never writes. Log lines are not posted as events; ours are posted explicitly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import kopf

from streamjoin import logs
from streamjoin_operator import access, names, webhook_certificate
from streamjoin_operator.admission import AdmissionServer
from streamjoin_operator.api import DEPLOYMENT, NAMESPACE, SNAPSHOT, STREAM_JOIN, Api, ApiError
from streamjoin_operator.backups import Backups
from streamjoin_operator.drift import our_entries
from streamjoin_operator.driver import DriverClient
from streamjoin_operator.health import Health, HealthServer
from streamjoin_operator.lease import Lease, LeaseLostError, identity
from streamjoin_operator.metrics import Metrics
from streamjoin_operator.page import PageServer
from streamjoin_operator.prometheus import PrometheusClient
from streamjoin_operator.queue import Queue
from streamjoin_operator.reconcile import Reconciler
from streamjoin_operator.seen import Seen
from streamjoin_operator.settings import SettingError, Settings, read
from streamjoin_operator.snapshots import Snapshots
from streamjoin_operator.suspending import PageToken, Suspending

WATCH_SECONDS = 600
"""A watch request ends after so long and is begun anew. Whole seconds: any other number ends kopf's watch for good."""
AUDIT_SECONDS = 120.0
"""How often all StreamJoins are listed, to see whether the watch has shown the same."""
SILENT_SECONDS = 70.0
"""The API server sends a bookmark each minute: a watch that is silent for longer is dead."""

log = logging.getLogger(__name__)


def kopf_settings(settings: kopf.OperatorSettings, operator: Settings) -> None:
    """As kopf's production advice has it."""
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.peering.standalone = True
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 60
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = SILENT_SECONDS
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = 500
    settings.watching.label_selectors["apps", "deployments"] = names.MANAGED_SELECTOR
    if operator.watch_namespace_selector:
        settings.watching.label_selectors["v1", "namespaces"] = operator.watch_namespace_selector
    settings.queueing.worker_limit = 32
    settings.queueing.idle_timeout = 1.0
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.scanning.disabled = bool(operator.watch_namespaces)


def handlers(seen: Seen, queue: Queue, settings: Settings, way: access.Access) -> kopf.OperatorRegistry:
    """What kopf calls."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        await way.renew()
        return await way.connection()

    @kopf.on.startup(registry=registry)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        kopf_settings(settings, operator_settings)

    @kopf.on.event(STREAM_JOIN.group_version, STREAM_JOIN.name, registry=registry)
    async def saw_streamjoin(event: Any, **_: Any) -> None:
        body = plain(event["object"])
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if event["type"] == "DELETED":
            seen.forget(key)
            queue.forget(key)
        else:
            queue.put(seen.saw(body, is_watched=True))

    @kopf.on.event(DEPLOYMENT.group_version, DEPLOYMENT.name, registry=registry, labels={names.MANAGED_BY: names.MANAGER})
    async def saw_deployment(event: Any, **_: Any) -> None:
        body = plain(event["object"])
        key = seen.lost_deployment(body) if event["type"] == "DELETED" else seen.saw_deployment(body)
        if key is not None:
            queue.put(key)

    if settings.watch_namespace_selector:

        @kopf.on.event("v1", "namespaces", registry=registry)
        async def saw_namespace(event: Any, **_: Any) -> None:
            name = event["object"]["metadata"]["name"]
            if event["type"] != "DELETED":
                for key in seen.admit(name):
                    queue.put(key)
            else:  # it is gone, or the selector does not select it any more
                for key in seen.dismiss(name):
                    queue.forget(key)

    operator_settings = settings
    return registry


def watch_snapshots(registry: kopf.OperatorRegistry, snapshots: Snapshots, queue: Queue, by_clock: Queue) -> None:
    """Have kopf call for StreamJoinSnapshots, too. ``by_clock``: the queue of StreamJoins that have some made by the clock."""

    @kopf.on.event(STREAM_JOIN.group_version, STREAM_JOIN.name, registry=registry)
    async def saw_stream_join(event: Any, **_: Any) -> None:
        metadata = event["object"]["metadata"]
        stream_join = (metadata["namespace"], metadata["name"])
        by_clock.put(stream_join, 1.0)  # once all handlers have seen it
        for key in snapshots.of(stream_join) if event["type"] in ("ADDED", "DELETED") else ():
            queue.put(key, 1.0)

    @kopf.on.event(SNAPSHOT.group_version, SNAPSHOT.name, registry=registry)
    async def saw_snapshot(event: Any, **_: Any) -> None:
        key = snapshots.saw(plain(event["object"]))
        if event["type"] == "DELETED":
            snapshots.bodies.pop(key, None)
            queue.forget(key)
        else:
            queue.put(key)
            by_clock.put((key[0], (event["object"]["metadata"].get("labels") or {}).get(names.NAME, "")), 1.0)


def plain(value: Any) -> Any:
    """A body without what only fills memory: of its managed fields those of others."""
    body = dict(value)
    body["metadata"] = {**body["metadata"], "managedFields": our_entries(body)}
    return body


@dataclasses.dataclass
class Operator:
    """One operator, from ``run`` to the end of it. Tests run it in a loop of their own."""

    settings: Settings
    way: access.Access
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    on_step: Callable[[str], None] = lambda step: None
    queue: Queue | None = None
    reconciler: Reconciler | None = None
    health: Health | None = None
    port: int = 0
    """Of health and metrics, once it runs."""
    _snapshots: tuple[Snapshots, Queue, Queue] | None = None
    """And which of them are to be reconciled, and of which StreamJoins some are made by the clock."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set. Raises LeaseLostError, and what kopf or a worker raises."""
        lease_api = Api(self.way, self.metrics.requested)
        lease = Lease(lease_api, self.settings.lease_namespace, self.settings.lease_name, identity()) if self.settings.lease_name else None
        api = Api(self.way, self.metrics.requested, may_write=lambda: lease is None or lease.is_held)
        drivers = DriverClient()
        prometheus = PrometheusClient(self.settings, told=self.metrics.asked)
        reconciler = self.reconciler = Reconciler(api, drivers, self.settings, prometheus, on_step=self.on_step)
        queue = self.queue = Queue(reconciler.reconcile, finished=self.metrics.finished)
        snapshots = Snapshots(api, drivers, self.settings, reconciler.seen)
        backups = Backups(api, self.settings, reconciler.seen, snapshots)
        self._snapshots = snapshots, Queue(snapshots.reconcile), Queue(backups.reconcile)
        self.metrics.watch(queue, reconciler.seen)
        health = self.health = Health(queue)
        try:
            with (
                HealthServer(health, self.metrics.registry, self.settings.port) as server,
                self._page(reconciler.seen, health, api),
                AdmissionServer(self.settings.admission_port) if self.settings.admission_port else contextlib.nullcontext(),
            ):
                self.port = server.port
                if lease is None:
                    await self._work(stop, api)
                elif await lease.acquire(stop, health.waits):
                    await self._work_while(lease, stop, api)
        finally:
            await drivers.close()
            await prometheus.close()
            await api.close()
            await lease_api.close()

    @contextlib.contextmanager
    def _page(self, seen: Seen, health: Health, api: Api) -> Iterator[None]:
        if not self.settings.page_port:
            yield
            return
        suspending = Suspending(api, seen, PageToken(self.settings.page_token_file))
        with PageServer(seen, health, self.settings.page_port, suspending):
            yield

    async def _work_while(self, lease: Lease, stop: asyncio.Event, api: Api) -> None:
        """Work, and end when the Lease is lost; give it back after all work has ended, so that the next one has no work beside it."""

        async def keep() -> None:
            await lease.keep()
            stop.set()

        keeping = asyncio.create_task(keep())
        try:
            await self._work(stop, api)
            if not lease.is_held:
                raise LeaseLostError("the Lease is lost: another operator is active, or the API server could not be reached")
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await lease.release()

    async def _work(self, stop: asyncio.Event, api: Api) -> None:
        """Until ``stop`` is set, or kopf ends."""
        assert self.reconciler is not None, "run makes it"
        assert self.queue is not None, "run makes it"
        assert self.health is not None, "run makes it"
        assert self._snapshots is not None, "run makes them"
        seen, queue, health = self.reconciler.seen, self.queue, self.health
        health.is_ready, health.state = False, "starting"
        self.metrics.active.set(1)
        ready = asyncio.Event()
        namespaces = self.settings.watch_namespaces
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(queue.run(self.settings.workers)),
                *(group.create_task(each.run(self.settings.workers)) for each in self._snapshots[1:]),
                group.create_task(_ready(ready, health)),
                group.create_task(self._audit(api, seen, queue, health)),
            ]
            if self.settings.admission_certificate:
                kept = webhook_certificate.keep(api, self.settings.lease_namespace, self.settings.admission_certificate)
                tasks.append(group.create_task(kept))
            group.create_task(_cancel_at(stop, tasks))
            registry = handlers(seen, queue, self.settings, self.way)
            watch_snapshots(registry, *self._snapshots)
            await kopf.operator(
                registry=registry,
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=stop,
                ready_flag=ready,
            )
            stop.set()  # kopf ends for reasons of its own, too
        self.metrics.active.set(0)

    async def _audit(self, api: Api, seen: Seen, queue: Queue, health: Health) -> None:
        """Notice a watch that has died in silence: what it missed is taken up here, and if it misses it for long, liveness fails."""
        while True:
            await asyncio.sleep(AUDIT_SECONDS)
            selector = self.settings.watch_namespace_selector
            try:
                if selector:
                    selected = {body["metadata"]["name"] for body in await api.list(NAMESPACE, "", selector)}
                    admitted, dismissed = seen.select(selected)
                    for key in admitted:
                        queue.put(key)
                    for key in dismissed:
                        queue.forget(key)
                listed = [await api.list(STREAM_JOIN, namespace, "") for namespace in self.settings.watch_namespaces or ("",)]
            except ApiError as error:
                log.warning("StreamJoins could not be listed: %s", error)
                continue
            missed, gone = seen.audit([body for bodies in listed for body in bodies])
            for key in missed:
                queue.put(key)
            for key in gone:
                seen.forget(key)
                queue.forget(key)
            health.missed = len(missed) + len(gone)


async def _cancel_at(stop: asyncio.Event, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Not after kopf's end: it takes tasks that began after it for its own, and waits for them."""
    await stop.wait()
    for task in tasks:
        task.cancel()


async def _ready(ready: asyncio.Event, health: Health) -> None:
    await ready.wait()
    health.is_ready, health.state = True, "active"
    log.info("the operator is ready")


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    parser = argparse.ArgumentParser(prog="streamjoin-operator", description="Runs the StreamJoins of a cluster.")
    for setting in dataclasses.fields(Settings):
        parser.add_argument(f"--{setting.name.replace('_', '-')}", help=setting.metadata["help"].replace("%", "%%"), metavar="VALUE")
    flags = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    try:
        settings = read(flags=flags)
    except SettingError as error:
        print(f"streamjoin-operator: {error}", file=sys.stderr)
        return 2
    logs.configure(settings.log_level, settings.log_format)
    try:
        asyncio.run(_serve(settings))
    except access.AccessError as error:
        print(f"streamjoin-operator: {error}", file=sys.stderr)
        return 2
    except LeaseLostError as error:
        log.error("%s", error)
        return 1
    except OSError as error:
        ports = ", ".join(str(port) for port in (settings.port, settings.page_port, settings.admission_port) if port)
        log.error("one of the ports %s cannot be listened on: %s", ports, error.strerror)
        return 1
    return 0


async def _serve(settings: Settings) -> None:
    way = await access.find()
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    await Operator(settings, way).run(stop)


if __name__ == "__main__":
    raise SystemExit(main())
