"""The API server, as far as it is needed: read, apply (server-side, as our field manager), patch, delete.

On aiohttp, which kopf brings along: a client library with a class for every kind would double the operator's memory.

Always holds: no call blocks the loop, and each ends within ``TIMEOUT_SECONDS``; what the server asks to be tried again later (429 and 5xx)
is raised as ApiError with ``retry_after``, and the queue does so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from streamjoin.manifest.model import API_VERSION, KIND
from streamjoin_operator.access import Access, AccessError
from streamjoin_operator.names import MANAGER

Object = dict[str, Any]
TIMEOUT_SECONDS = 30.0
UNTYPED = ("failed to create typed patch object", "failed to convert new object")
"""So begins the answer, with status 500, where a field is unknown or a value is of another type."""
WEBHOOK = "failed calling webhook"
"""So says the answer, with status 500, where an admission webhook cannot be asked."""
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"


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


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and where its collection is."""

    version: str
    plural: str
    kind: str

    def path(self, namespace: str, name: str | None = None) -> str:
        """``namespace`` may be empty: all of them."""
        root = f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"
        collection = f"{root}/namespaces/{quote(namespace)}/{self.plural}" if namespace else f"{root}/{self.plural}"
        return collection if name is None else f"{collection}/{quote(name)}"


STREAM_JOIN = Kind(API_VERSION, "streamjoins", KIND)
DEPLOYMENT = Kind("apps/v1", "deployments", "Deployment")
SERVICE = Kind("v1", "services", "Service")
CONFIG_MAP = Kind("v1", "configmaps", "ConfigMap")
SECRET = Kind("v1", "secrets", "Secret")
SERVICE_ACCOUNT = Kind("v1", "serviceaccounts", "ServiceAccount")
CLAIM = Kind("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
POD = Kind("v1", "pods", "Pod")
NAMESPACE = Kind("v1", "namespaces", "Namespace")
NODE = Kind("v1", "nodes", "Node")
EVENT = Kind("v1", "events", "Event")
ROLE = Kind("rbac.authorization.k8s.io/v1", "roles", "Role")
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding")
BUDGET = Kind("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
JOB = Kind("batch/v1", "jobs", "Job")
LEASE = Kind("coordination.k8s.io/v1", "leases", "Lease")
POD_MONITOR = Kind("monitoring.coreos.com/v1", "podmonitors", "PodMonitor")
KINDS = {
    kind.kind: kind
    for kind in (
        *(DEPLOYMENT, SERVICE, CONFIG_MAP, SECRET, SERVICE_ACCOUNT, CLAIM, POD, EVENT, ROLE, ROLE_BINDING),
        *(BUDGET, NETWORK_POLICY, JOB, POD_MONITOR, NODE, STREAM_JOIN),
    )
}


class Api:
    """One session for all. To be made and closed within the event loop."""

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
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.ssl_context(), limit=32),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, connect=10),
        )

    async def close(self) -> None:
        await self._session.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """None where there is none."""
        try:
            return await self._request("get", "GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """As :meth:`get`, with no more than the right to list."""
        found = await self.list(kind, namespace, "", name)
        return {**found[0], "apiVersion": kind.version, "kind": kind.kind} if found else None

    async def list(self, kind: Kind, namespace: str, selector: str, name: str = "") -> list[Object]:
        """All of the label selector (empty: all), and of the name; none where the kind itself is unknown. An empty namespace means all."""
        try:
            query = {"labelSelector": selector} if selector else {}
            query |= {"fieldSelector": f"metadata.name={name}"} if name else {}
            answer = await self._request("list", "GET", kind.path(namespace), query=query)
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        return list(answer["items"])

    async def events_of(self, about: Object) -> tuple[Object, ...]:
        """Events about an object; none where they may not be listed."""
        metadata = about["metadata"]
        query = {"fieldSelector": f"involvedObject.uid={metadata['uid']}"}
        try:
            answer = await self._request("list", "GET", EVENT.path(metadata["namespace"]), query=query)
        except ApiError as error:
            if error.status == 403:
                return ()
            raise
        return tuple(answer["items"])

    async def apply(self, desired: Object) -> Object:
        """Server-side apply. We are the controller: fields that others hold are taken over."""
        metadata = desired["metadata"]
        path = KINDS[desired["kind"]].path(metadata["namespace"], metadata["name"])
        return await self._request("apply", "PATCH", path, desired, APPLY, {"fieldManager": MANAGER, "force": "true"})

    async def patch(self, kind: Kind, namespace: str, name: str, body: Object, part: str = "", *, manager: str = MANAGER) -> Object:
        """A merge patch, of the object or of its ``part`` (``/status``). ``manager``: as whose it is noted."""
        path = kind.path(namespace, name)
        return await self._request("patch", "PATCH", path + part, body, MERGE, {"fieldManager": manager})

    async def try_to_apply(self, desired: Object) -> None:
        """All that applying it would be refused for is raised, and nothing is changed."""
        metadata = desired["metadata"]
        path = KINDS[desired["kind"]].path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": MANAGER, "force": "true", "dryRun": "All"}
        await self._request("dry-run", "PATCH", path, desired, APPLY, query)

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        return await self._request("create", "POST", kind.path(namespace), body)

    async def replace(self, kind: Kind, body: Object) -> Object:
        """All of the object, if it still has the ``resourceVersion`` that ``body`` has."""
        metadata = body["metadata"]
        return await self._request("replace", "PUT", kind.path(metadata["namespace"], metadata["name"]), body)

    async def try_to_create(self, kind: Kind, namespace: str, body: Object) -> None:
        """All that creating it would be refused for is raised, and nothing is created."""
        await self._request("dry-run", "POST", kind.path(namespace), body, query={"dryRun": "All"})

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """That very object; one that is gone already is deleted too."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._request("delete", "DELETE", kind.path(namespace, name), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def serves(self, kind: Kind) -> bool:
        """Whether the cluster knows this kind."""
        try:
            found = await self._request("get", "GET", f"/apis/{kind.version}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(resource["name"] == kind.plural for resource in found.get("resources", []))

    async def schema(self, kind: Kind) -> Object | None:
        """As the API server serves it, with all that is under it in place; None where it serves none."""
        try:
            found = await self._request("get", "GET", f"/openapi/v3/apis/{kind.version}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        group, _, version = kind.version.partition("/")
        wanted = {"group": group, "version": version, "kind": kind.kind}
        schemas = ((found.get("components") or {}).get("schemas") or {}).values()
        return next((schema for schema in schemas if wanted in (schema.get("x-kubernetes-group-version-kind") or [])), None)

    async def _request(
        self,
        verb: str,
        method: str,
        path: str,
        body: Object | None = None,
        content: str = "application/json",
        query: Any = None,
    ) -> Object:
        if method != "GET" and not self._may_write():
            raise ApiError(0, "NotActive", f"{method} {path}: another operator may be active by now")
        headers = {"Accept": "application/json"}
        bearer = self._access.bearer()
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        data = None
        if body is not None:
            headers["Content-Type"], data = content, json.dumps(body).encode()
        try:
            async with self._session.request(method, self._access.server + path, data=data, headers=headers, params=query or {}) as answer:
                text = await answer.text()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._told(verb, 0)
            raise ApiError(0, type(error).__name__, f"{method} {path}: {error}") from error
        self._told(verb, answer.status)
        value = _parsed(text)
        if answer.status < 400:
            return value
        if answer.status == 401:
            try:
                await asyncio.to_thread(self._access.forget)
            except AccessError as error:
                raise ApiError(401, "Unauthorized", str(error)) from error
        wait = answer.headers.get("Retry-After", "")
        retry = float(wait) if wait.isdigit() else None
        causes = tuple(cause.get("reason", "") for cause in (value.get("details") or {}).get("causes") or [])
        raise ApiError(answer.status, value.get("reason", answer.reason or ""), value.get("message", text[:300]), retry, causes)


def _parsed(text: str) -> Object:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
