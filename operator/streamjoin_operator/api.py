"""The API server, as far as it is needed: read, apply (server-side, as our field manager), patch, delete.

By the dynamic client of the package ``kubernetes``, without its discovery: the kinds are known here. Objects are plain JSON.

Always holds: no call blocks the loop, and each ends within ``TIMEOUT_SECONDS``; what the server asks to be tried again later (429 and 5xx)
is raised as ApiError with ``retry_after``, and the queue does so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.config import ConfigException
from kubernetes.aio.dynamic import DynamicClient, Resource
from kubernetes.aio.dynamic.exceptions import DynamicApiError

from streamjoin.manifest.model import API_VERSION, KIND
from streamjoin_operator.access import Access, AccessError
from streamjoin_operator.names import MANAGER

Object = dict[str, Any]
Kind = Resource
"""A kind of object, and where the API server has it."""
TIMEOUT_SECONDS = 30.0
UNTYPED = ("failed to create typed patch object", "failed to convert new object")
"""So begins the answer, with status 500, where a field is unknown or a value is of another type."""
WEBHOOK = "failed calling webhook"
"""So says the answer, with status 500, where an admission webhook cannot be asked."""
CONNECT = aiohttp.ClientTimeout(connect=10)
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
READS = ("get", "list")


class ApiError(Exception):
    """The API server refused a request, or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None, causes: tuple[str, ...] = ()) -> None:
        """``causes``: the reasons that the answer gives in detail."""
        super().__init__(f"{status or 'no answer'} {reason}: {message}")
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after
        self.causes = causes

    @property
    def refuses_object(self) -> bool:
        """Whether the same object would be refused again: it, a quota or an admission rule must change first."""
        return self.status in (400, 403, 422) or (self.status == 500 and self.message.startswith(UNTYPED))

    @property
    def names_cause(self) -> bool:
        """Whether it would be refused again, or somebody who must be asked first does not answer: the answer says whom or what to mend."""
        return self.refuses_object or WEBHOOK in self.message


def _kind(version: str, plural: str, kind: str, *parts: str, namespaced: bool = True) -> Kind:
    """``parts``: its subresources."""
    group, _, number = version.rpartition("/")
    subresources = {part: {"kind": kind, "name": f"{plural}/{part}", "namespaced": True} for part in parts}
    prefix = "apis" if group else "api"
    return Kind(prefix, group, number, kind, namespaced=namespaced, name=plural, subresources=subresources)


STREAM_JOIN = _kind(API_VERSION, "streamjoins", KIND, "status")
SNAPSHOT = _kind(API_VERSION, "streamjoinsnapshots", "StreamJoinSnapshot", "status")
DEPLOYMENT = _kind("apps/v1", "deployments", "Deployment")
SERVICE = _kind("v1", "services", "Service")
CONFIG_MAP = _kind("v1", "configmaps", "ConfigMap")
SECRET = _kind("v1", "secrets", "Secret")
SERVICE_ACCOUNT = _kind("v1", "serviceaccounts", "ServiceAccount")
CLAIM = _kind("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
POD = _kind("v1", "pods", "Pod", "resize")
NAMESPACE = _kind("v1", "namespaces", "Namespace", namespaced=False)
NODE = _kind("v1", "nodes", "Node", namespaced=False)
EVENT = _kind("v1", "events", "Event")
ROLE = _kind("rbac.authorization.k8s.io/v1", "roles", "Role")
ROLE_BINDING = _kind("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding")
BUDGET = _kind("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICY = _kind("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
JOB = _kind("batch/v1", "jobs", "Job")
LEASE = _kind("coordination.k8s.io/v1", "leases", "Lease")
VALIDATING = _kind("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False)
POD_MONITOR = _kind("monitoring.coreos.com/v1", "podmonitors", "PodMonitor")
KINDS = {
    kind.kind: kind
    for kind in (
        *(DEPLOYMENT, SERVICE, CONFIG_MAP, SECRET, SERVICE_ACCOUNT, CLAIM, POD, EVENT, ROLE, ROLE_BINDING),
        *(BUDGET, NETWORK_POLICY, JOB, POD_MONITOR, NODE, STREAM_JOIN),
    )
}


class Api:
    """One client for all. To be closed within the event loop that used it."""

    def __init__(
        self,
        access: Access,
        told: Callable[[str, int], None] = lambda verb, status: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """``told`` hears of each request: its verb and the answer's status, 0 where there was none. ``may_write`` is asked before each
        request that is to change something; where it says no, ApiError is raised and nothing is sent."""
        self._access = access
        self._told = told
        self._may_write = may_write
        self._http = ApiClient(access.configuration)
        self._http.user_agent = MANAGER
        self._client = DynamicClient(self._http)  # awaiting it would discover all kinds

    async def close(self) -> None:
        await self._http.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """None where there is none."""
        found: Object | None = await _unless(404, self._ask("get", self._client.get, kind, name, namespace), None)
        return found

    async def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """As :meth:`get`, with no more than the right to list."""
        found = await self.list(kind, namespace, "", name)
        return {**found[0], "apiVersion": kind.group_version, "kind": kind.kind} if found else None

    async def list(self, kind: Kind, namespace: str, selector: str, name: str = "") -> list[Object]:
        """All of the label selector (empty: all), and of the name; none where the kind itself is unknown. An empty namespace means all."""
        fields = f"metadata.name={name}" if name else None
        asked = self._ask("list", self._client.get, kind, namespace=namespace, label_selector=selector or None, field_selector=fields)
        return list((await _unless(404, asked, {"items": []}))["items"])

    async def events_of(self, about: Object) -> tuple[Object, ...]:
        """Events about an object; none where they may not be listed."""
        metadata = about["metadata"]
        fields = f"involvedObject.uid={metadata['uid']}"
        asked = self._ask("list", self._client.get, EVENT, namespace=metadata["namespace"], field_selector=fields)
        return tuple((await _unless(403, asked, {"items": []}))["items"])

    async def apply(self, desired: Object) -> Object:
        """Server-side apply. We are the controller: fields that others hold are taken over."""
        return await self._apply("apply", desired)

    async def try_to_apply(self, desired: Object) -> None:
        """All that applying it would be refused for is raised, and nothing is changed."""
        await self._apply("dry-run", desired, dry_run="All")

    async def _apply(self, verb: str, desired: Object, **parameters: str) -> Object:
        kind, how = KINDS[desired["kind"]], self._client.server_side_apply
        return await self._ask(verb, how, kind, desired, field_manager=MANAGER, force_conflicts=True, **parameters)

    async def patch(self, kind: Kind, namespace: str, name: str, body: Object, *, manager: str = MANAGER) -> Object:
        """A merge patch, of the object or of a part (``STREAM_JOIN.status``). ``manager``: as whose it is noted."""
        return await self._ask("patch", self._client.patch, kind, body, name, namespace, content_type=MERGE, field_manager=manager)

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        return await self._ask("create", self._client.create, kind, body, namespace)

    async def try_to_create(self, kind: Kind, namespace: str, body: Object) -> None:
        """All that creating it would be refused for is raised, and nothing is created."""
        await self._ask("dry-run", self._client.create, kind, body, namespace, dry_run="All")

    async def replace(self, kind: Kind, body: Object) -> Object:
        """All of the object, if it still has the ``resourceVersion`` that ``body`` has."""
        return await self._ask("replace", self._client.replace, kind, body)

    async def resize(self, pod: Object, container: str, resources: Object) -> Object:
        """Have a container of a pod that runs get other requests and limits, without a restart. Those that are not named stay."""
        return await self._resize("patch", pod, container, resources, field_manager=MANAGER)

    async def try_to_resize(self, pod: Object, container: str, resources: Object) -> None:
        """All that resizing it would be refused for by the API server is raised, and nothing is changed."""
        await self._resize("dry-run", pod, container, resources, dry_run="All")

    async def _resize(self, verb: str, pod: Object, container: str, resources: Object, **parameters: str) -> Object:
        body = {"spec": {"containers": [{"name": container, "resources": resources}]}}
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        return await self._ask(verb, self._client.patch, POD.resize, body, name, namespace, content_type=STRATEGIC, **parameters)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """That very object; one that is gone already is deleted too."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._ask("delete", self._client.delete, kind, name, namespace, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def serves(self, kind: Kind) -> bool:
        """Whether the cluster knows this kind."""
        found = await _unless(404, self._ask("get", self._client.request, "get", f"/{kind.prefix}/{kind.group_version}"), {})
        return any(resource["name"] == kind.name for resource in found.get("resources", []))

    async def schema(self, kind: Kind) -> Object | None:
        """As the API server serves it, with all that is under it in place; None where it serves none."""
        asked = self._ask("get", self._client.request, "get", f"/openapi/v3/apis/{kind.group_version}")
        schemas = (((await _unless(404, asked, {})).get("components") or {}).get("schemas") or {}).values()
        wanted = {"group": kind.group, "version": kind.api_version, "kind": kind.kind}
        return next((schema for schema in schemas if wanted in (schema.get("x-kubernetes-group-version-kind") or [])), None)

    async def _ask(self, verb: str, how: Callable[..., Awaitable[aiohttp.ClientResponse]], *what: Any, **parameters: Any) -> Object:
        """``how``: a method of the dynamic client."""
        if verb not in READS and not self._may_write():
            raise ApiError(0, "NotActive", f"{verb} {what[0].name}: another operator may be active by now")
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer = await how(*what, serialize=False, _request_timeout=CONNECT, **parameters)
                value = _parsed(await answer.text())
        except DynamicApiError as error:
            self._told(verb, error.status)
            raise await self._refusal(error) from error
        except (TimeoutError, aiohttp.ClientError, OSError, ConfigException) as error:
            self._told(verb, 0)
            raise ApiError(0, type(error).__name__, f"{verb} {getattr(what[0], 'name', what[-1])}: {error}") from error
        self._told(verb, answer.status)
        return value

    async def _refusal(self, error: DynamicApiError) -> ApiError:
        if error.status == 401:
            try:
                await self._access.renew()
            except AccessError as failure:
                return ApiError(401, "Unauthorized", str(failure))
        text = error.body or ""
        value = _parsed(text)
        wait = (error.headers or {}).get("Retry-After", "")
        causes = tuple(cause.get("reason", "") for cause in (value.get("details") or {}).get("causes") or [])
        message = value.get("message", text[:300])
        return ApiError(error.status, value.get("reason", error.reason or ""), message, float(wait) if wait.isdigit() else None, causes)


async def _unless(status: int, asked: Awaitable[Object], otherwise: Any) -> Any:
    """What was asked for; ``otherwise`` where the answer has this status."""
    try:
        return await asked
    except ApiError as error:
        if error.status != status:
            raise
        return otherwise


def _parsed(text: str) -> Object:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
