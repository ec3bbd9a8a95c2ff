"""The API server's part in a test of the reconciler, in memory: objects, versions, server-side apply of one manager, and faults to order.

It knows no schema but that of the status, and no other managers: tests/test_operator_api.py asks the real one. It makes thousands of
reconciles a second possible, with a kill between any two steps.
"""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from operator_parts import trial_status
from streamjoin_operator.api import KINDS, STREAM_JOIN, ApiError, Kind
from streamjoin_operator.names import COMPONENT, MANAGER, TRIAL
from streamjoin_operator.status_model import Status

Object = dict[str, Any]
Place = tuple[str, str, str]
"""Kind, namespace, name."""


def copied(value: Any) -> Any:
    """As ``copy.deepcopy``, which would take a third of all the time of the tests."""
    return pickle.loads(pickle.dumps(value))


class MemoryCluster:
    """Has the methods of ``api.Api``."""

    def __init__(self) -> None:
        self.objects: dict[Place, Object] = {}
        self.writes: list[str] = []
        """Verb and kind of every write that changed something, events not among them."""
        self.requests = 0
        self.events: list[Object] = []
        self.fault: Callable[[str, str], None] = lambda verb, kind: None
        """Told verb and kind before each request; raises what the request shall raise."""
        self.after: Callable[[str, str], None] = lambda verb, kind: None
        """The same after the request was carried out: its answer is lost."""
        self.known_kinds: set[str] = set()
        self.trial: Object | None = None
        """The state of the driver's container of trials that are begun from now on; None: it ends well."""
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    # What the reconciler calls.

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        with _Request(self, "get", kind.kind):
            return copied(self.objects.get((kind.kind, namespace, name)))

    async def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        with _Request(self, "list", kind.kind):
            return copied(self.objects.get((kind.kind, namespace, name)))

    async def list(self, kind: Kind, namespace: str, selector: str) -> list[Object]:
        with _Request(self, "list", kind.kind):
            wanted = dict(part.split("=") for part in selector.split(","))
            return [
                {name: copied(part) for name, part in found.items() if name not in ("apiVersion", "kind")}
                for (found_kind, found_namespace, _), found in self.objects.items()
                if (found_kind, found_namespace) == (kind.kind, namespace)
                and wanted.items() <= (found["metadata"].get("labels") or {}).items()
            ]

    async def apply(self, desired: Object) -> Object:
        with _Request(self, "apply", desired["kind"]):
            version = desired["metadata"].get("resourceVersion")
            found = self.objects.get((desired["kind"], desired["metadata"]["namespace"], desired["metadata"]["name"]))
            if version is not None and found is not None and found["metadata"]["resourceVersion"] != version:
                raise ApiError(409, "Conflict", "the object has been modified")
            return self.put(desired, "apply")

    async def patch(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        part = kind is STREAM_JOIN.status
        with _Request(self, "patch", kind.kind):
            found = self.objects.get((kind.kind, namespace, name))
            if kind.kind == "Event":
                found = next((event for event in self.events if event["metadata"]["name"] == name), None)
                if found is not None:
                    found.update(copied(body))
                    return copied(found)
            if found is None:
                raise ApiError(404, "NotFound", name)
            body = copied(body)
            version = body.get("metadata", {}).pop("resourceVersion", None)
            if version is not None and version != found["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", "the object has been modified")
            if part:
                try:
                    Status.model_validate(_merged(found.get("status") or {}, body["status"]))
                except ValidationError as error:
                    raise ApiError(422, "Invalid", str(error)) from error
            wanted = {"status": body["status"]} if part else {key: value for key, value in body.items() if key != "status"}
            changed = _merged(found, wanted)
            self._store(changed, found, "status" if part else "patch")
            if changed["metadata"].get("deletionTimestamp") and not changed["metadata"].get("finalizers"):
                del self.objects[kind.kind, namespace, name]
            return copied(changed)

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        with _Request(self, "create", kind.kind):
            if kind.kind == "Pod":
                if ("Pod", namespace, body["metadata"]["name"]) in self.objects:
                    raise ApiError(409, "AlreadyExists", body["metadata"]["name"])
                return self.put(body, "create")
            assert kind.kind == "Event", "all else is applied"
            name = f"{body['metadata']['generateName']}{len(self.events)}"
            self.events.append({**body, "metadata": {**body["metadata"], "name": name}})
            return copied(self.events[-1])

    async def try_to_apply(self, desired: Object) -> None:
        with _Request(self, "dry-run", desired["kind"]):
            pass

    async def schema(self, kind: Kind) -> Object | None:
        """Nothing is known of it; what operators make of one is asked of a real API server."""
        return None

    async def events_of(self, about: Object) -> list[Object]:
        with _Request(self, "list", "Event"):
            return [event for event in self.events if event["involvedObject"].get("uid") == about["metadata"]["uid"]]

    async def try_to_create(self, kind: Kind, namespace: str, body: Object) -> None:
        with _Request(self, "dry-run", kind.kind):
            pass

    async def resize(self, pod: Object, container: str, resources: Object) -> Object:
        with _Request(self, "patch", "Pod"):
            metadata = pod["metadata"]
            found = self.objects.get(("Pod", metadata["namespace"], metadata["name"]))
            if found is None:
                raise ApiError(404, "NotFound", metadata["name"])
            changed = copied(found)
            (asks,) = (each for each in changed["spec"]["containers"] if each["name"] == container)
            asks["resources"] = _merged(asks.get("resources"), resources)
            self._store(changed, found, "patch")
            return copied(changed)

    async def try_to_resize(self, pod: Object, container: str, resources: Object) -> None:
        with _Request(self, "dry-run", "Pod"):
            pass

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        with _Request(self, "delete", kind.kind):
            found = self.objects.get((kind.kind, namespace, name))
            if found is not None and found["metadata"]["uid"] == uid:
                self.remove(kind.kind, namespace, name)
                self.writes.append(f"delete {kind.kind}")

    async def serves(self, kind: Kind) -> bool:
        with _Request(self, "get", "discovery"):
            return kind.kind in self.known_kinds

    # What tests do.

    def put(self, desired: Object, verb: str = "put") -> Object:
        """Store an object, keeping what the server and others have added."""
        place = (desired["kind"], desired["metadata"]["namespace"], desired["metadata"]["name"])
        before = self.objects.get(place)
        body = copied(desired)
        kept = before["metadata"] if before is not None else {"uid": f"uid-{next(self._uids)}", "generation": 0, "resourceVersion": "0"}
        for name in ("uid", "generation", "resourceVersion", "deletionTimestamp", "finalizers"):
            if name in kept:
                body["metadata"].setdefault(name, kept[name])
        if verb == "apply":
            identity = ("name", "namespace", "uid", "generation", "resourceVersion")
            applied = {name: value for name, value in desired["metadata"].items() if name not in identity}
            rest = {name: value for name, value in desired.items() if name not in ("apiVersion", "kind", "metadata")}
            fields = _fields({**rest, "metadata": applied})
            body["metadata"]["managedFields"] = [{"manager": MANAGER, "operation": "Apply", "fieldsV1": fields}]
        if before is not None and "status" in before:
            body["status"] = before["status"]
        for volume in body.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", ()):
            if set(volume) == {"name"}:
                volume["emptyDir"] = {}  # as the API server has it by default
        self._store(body, before, verb)
        return copied(self.objects[place])

    def edit(self, kind: str, namespace: str, name: str, change: Callable[[Object], None]) -> Object:
        """Somebody changes an object."""
        found = self.objects[kind, namespace, name]
        changed = copied(found)
        change(changed)
        self._store(changed, found, "edit")
        return copied(self.objects[kind, namespace, name])

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Deleted, with what it owns, as the garbage collector would; an object with finalizers is only marked."""
        found = self.objects[kind, namespace, name]
        if found["metadata"].get("finalizers"):
            changed = copied(found)
            changed["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self._store(changed, found, "edit")
            return
        del self.objects[kind, namespace, name]
        self.collect()

    def collect(self) -> None:
        """Delete what is owned by what is gone."""
        uids = {found["metadata"]["uid"] for found in self.objects.values()}
        for place, found in list(self.objects.items()):
            owners = found["metadata"].get("ownerReferences") or []
            if owners and not any(owner["uid"] in uids for owner in owners):
                del self.objects[place]

    def of(self, kind: str, namespace: str = "default") -> list[Object]:
        return [copied(found) for place, found in self.objects.items() if place[:2] == (kind, namespace)]

    def children(self) -> list[str]:
        return sorted(f"{place[0]} {place[2]}" for place in self.objects if place[0] != STREAM_JOIN.kind)

    def ready(self, namespace: str, name: str, count: int = 1) -> None:
        """As the Deployment's controller would say."""
        found = self.objects["Deployment", namespace, name]
        changed = copied(found)
        replicas = min(count, found["spec"]["replicas"])
        changed["status"] = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), replicas)
        changed["status"]["observedGeneration"] = found["metadata"]["generation"]
        self._store(changed, found, "edit")

    def end_trials(self, namespace: str = "default") -> None:
        """As the kubelet says of trials that have not ended: they come up."""
        for pod in self.of("Pod", namespace):
            if pod["metadata"]["labels"].get(COMPONENT) == TRIAL and "status" not in pod:
                self.edit("Pod", namespace, pod["metadata"]["name"], self._end_trial)

    def _end_trial(self, pod: Object) -> None:
        pod["status"] = trial_status(pod, state=self.trial)

    def _store(self, body: Object, before: Object | None, verb: str) -> None:
        place = (body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
        if before is not None and body == before:
            return
        if before is not None and verb != "apply":
            for entry in body["metadata"].get("managedFields") or []:
                entry["fieldsV1"] = _kept(entry["fieldsV1"], before, body)
        if before is None or before.get("spec") != body.get("spec"):
            body["metadata"]["generation"] = body["metadata"].get("generation", 0) + 1
        body["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[place] = body
        if verb in ("apply", "patch", "status"):
            self.writes.append(f"{verb} {body['kind']}")


class _Request:
    def __init__(self, cluster: MemoryCluster, verb: str, kind: str) -> None:
        self._cluster, self._verb, self._kind = cluster, verb, kind
        assert kind in KINDS or kind == "discovery"

    def __enter__(self) -> None:
        self._cluster.requests += 1
        self._cluster.fault(self._verb, self._kind)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._cluster.after(self._verb, self._kind)


def _fields(value: Any) -> Object:
    """As the API server notes what was applied: lists of named items by name, other lists as a whole, nothing of what is empty."""
    if isinstance(value, dict):
        return {f"f:{name}": _fields(item) for name, item in value.items() if item not in (None, {}, [])}
    if isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value):
        return {_key(item): {".": {}, **_fields(item)} for item in value}
    return {}


def _key(item: Object) -> str:
    return f"k:{json.dumps({'name': item['name']})}"


def _kept(fields: Object, before: Any, after: Any) -> Object:
    """Fields that have the same value before and after a change by somebody else."""
    kept: Object = {}
    for name, children in fields.items():
        old, new = (_at(value, name) for value in (before, after))
        if new is not None and (set(children) - {"."} or old == new):
            kept[name] = _kept(children, old, new)
    return kept


def _at(value: Any, name: str) -> Any:
    if name == ".":
        return value
    if name.startswith("f:"):
        return value.get(name[2:]) if isinstance(value, dict) else None
    return next((item for item in value or [] if isinstance(item, dict) and "name" in item and _key(item) == name), None)


def _merged(value: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copied(patch)
    merged = copied(value) if isinstance(value, dict) else {}
    for key, item in patch.items():
        if item is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), item)
    return merged


def every_fault() -> Iterator[ApiError]:
    """What the API server may answer at any time."""
    for code, reason in ((0, "ClientConnectorError"), (409, "Conflict"), (410, "Expired"), (422, "Invalid"), (429, "TooManyRequests")):
        yield ApiError(code, reason, "by the test", 0.01 if code == 429 else None)
    for code, reason in ((401, "Unauthorized"), (500, "InternalError"), (503, "ServiceUnavailable"), (504, "Timeout")):
        yield ApiError(code, reason, "by the test")
