"""Reconciles StreamJoinSnapshots: asks the driver for the savepoint, says in the status what is kept, and deletes it with the resource.

It is level-triggered as the reconciler of StreamJoins is (``reconcile``), and shares with it what the watches have shown. Always holds:

- The finalizer is there before the driver is asked, so that no savepoint is left behind; it goes when the driver says that there is no such
  savepoint, or when there is no StreamJoin of that name any more, whose state then goes or stays as ``checkpoint.onDelete`` says.
- A savepoint is asked for until it was made, and never again: if somebody deletes it, that is said, as another would be of another epoch.
- Snapshots of StreamJoins that are another operator's are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from streamjoin_operator import api, names
from streamjoin_operator.changes import CLAIM_PATH
from streamjoin_operator.drift import Object
from streamjoin_operator.driver import Kept
from streamjoin_operator.driver_steps import token_of
from streamjoin_operator.instants import instant
from streamjoin_operator.queue import Key
from streamjoin_operator.reasons import Reason
from streamjoin_operator.seen import Seen, is_newer
from streamjoin_operator.settings import Settings
from streamjoin_operator.texts import cut

FINALIZER = f"{names.GROUP}/savepoint"
SOON_SECONDS = 1.0
"""The pause until a driver is asked again that has not committed what it was asked for."""


class Drivers(Protocol):
    """What is needed of ``driver.DriverClient``."""

    async def savepoint(self, method: str, url: str, token: str, name: str) -> Kept: ...


_NOBODY: Object = {"metadata": {"namespace": ""}, "spec": {"operatorClass": "-"}}
"""A StreamJoin that is no operator's."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What of a snapshot is to be reported."""

    reason: Reason
    message: str = ""
    is_ready: bool = False
    is_stalled: bool = False
    after: float | None = None
    """Seconds until the driver is asked again."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Fields of the status that are known by now."""


class Snapshots:
    """See the module. All in one event loop."""

    def __init__(
        self,
        client: api.Api,
        drivers: Drivers,
        settings: Settings,
        seen: Seen,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._drivers, self._settings, self._seen, self._wall = client, drivers, settings, seen, wall
        self.bodies: dict[Key, Object] = {}
        """As a watch, or an answer, has last shown them."""

    def saw(self, body: Object) -> Key:
        """One as a watch shows it; an older version than the one that is known is passed over."""
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if is_newer(body, self.bodies.get(key)):
            self.bodies[key] = body
        return key

    def of(self, stream_join: Key) -> list[Key]:
        """Those of a StreamJoin. O(snapshots)."""
        namespace, name = stream_join
        return [key for key, body in self.bodies.items() if key[0] == namespace and body["spec"]["streamJoin"] == name]

    async def reconcile(self, key: Key) -> float | None:
        """Bring one closer to what it should be. Returns after how many seconds to come again; None: when something happens. Raises
        ApiError."""
        body = self.bodies.get(key)
        if body is None:
            return None
        stream_join = await self._stream_join((key[0], body["spec"]["streamJoin"])) if self._seen.watches(key[0]) else _NOBODY
        if stream_join is not None and not self._seen.is_ours(stream_join):
            return self._settings.resync_seconds  # it may become ours
        if body["metadata"].get("deletionTimestamp"):
            return await self._delete(key, body, stream_join)
        if FINALIZER not in (body["metadata"].get("finalizers") or []):
            body = await self._finalize(key, body, [*(body["metadata"].get("finalizers") or []), FINALIZER])
        found = await self._keep(body, stream_join)
        await self._report(key, body, found)
        return found.after

    async def _stream_join(self, key: Key) -> Object | None:
        """The StreamJoin, asked for where no watch has shown it; None: there is none."""
        return self._seen.bodies.get(key) or await self._api.get(api.STREAM_JOIN, *key)

    async def _delete(self, key: Key, body: Object, stream_join: Object | None) -> float | None:
        finalizers = body["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return None
        kept = Kept(404) if stream_join is None else await self._asked("DELETE", stream_join, key[1])
        if kept.status == 404:
            await self._finalize(key, body, [name for name in finalizers if name != FINALIZER])
            return None
        after = SOON_SECONDS if kept.status == 202 else self._settings.poll_seconds
        await self._report(key, body, _Found(Reason.SnapshotDeleting, kept.problem, after=after))
        return after

    async def _finalize(self, key: Key, body: Object, finalizers: list[str]) -> Object:
        """The body with these finalizers."""
        metadata = {"finalizers": finalizers, "resourceVersion": body["metadata"]["resourceVersion"]}
        changed = await self._api.patch(api.SNAPSHOT, key[0], key[1], {"metadata": metadata})
        self.bodies[key] = changed
        return changed

    async def _keep(self, body: Object, stream_join: Object | None) -> _Found:
        name, was_made = body["metadata"]["name"], "epoch" in (body.get("status") or {})
        if stream_join is None:
            missing = f"there is no StreamJoin {body['spec']['streamJoin']} in this namespace"
            left = "; where its state was kept, the savepoint still lies in status.location" if was_made else ""
            return _Found(Reason.StreamJoinMissing, missing + left, after=self._settings.resync_seconds)
        kept = await self._asked("GET" if was_made else "PUT", stream_join, name)
        match kept.status:
            case 200:
                return _Found(Reason.SnapshotKept, is_ready=True, after=self._settings.resync_seconds, facts=_facts(kept.said, stream_join))
            case 202:
                return _Found(Reason.SnapshotAsked, after=SOON_SECONDS)
            case 404 if was_made:
                return _Found(Reason.SnapshotGone, is_stalled=True)
            case 422:
                return _Found(Reason.SnapshotRefused, kept.problem, is_stalled=True, after=self._settings.resync_seconds)
        if was_made:  # nobody says that it is gone
            return _Found(Reason.SnapshotKept, is_ready=True, after=self._settings.resync_seconds)
        return _Found(Reason.SnapshotWaits, kept.problem, after=self._settings.poll_seconds)

    async def _asked(self, method: str, stream_join: Object, name: str) -> Kept:
        metadata = stream_join["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if not self._seen.has_driver(key):
            return Kept(0, problem="its driver does not run now, and is asked when it does")
        memo = self._seen.memo(key)
        token = await token_of(self._api, key, memo)
        if token is None:
            return Kept(0, problem="the Secret with the token of its driver is missing")
        url = self._settings.url_of(*key, names.base_name(key[1]))
        kept = await self._drivers.savepoint(method, url, token, name)
        if kept.status == 401:
            memo.token = None  # somebody has changed the Secret: read it next time
        return kept

    async def _report(self, key: Key, body: Object, found: _Found) -> None:
        """Write the status, if it differs."""
        before = body.get("status") or {}
        generation = body["metadata"].get("generation", 0)
        conditions = _conditions(found, before.get("conditions") or [], generation, instant(self._wall().timestamp()))
        status = {**before, **found.facts, "observedGeneration": generation, "conditions": conditions}
        if status != before:
            self.bodies[key] = await self._api.patch(api.SNAPSHOT.status, key[0], key[1], {"status": status})


def _facts(said: dict[str, Any], stream_join: Object) -> dict[str, Any]:
    """What the status says of a savepoint that is there."""
    checkpoint = stream_join["spec"].get("checkpoint") or {}
    location = checkpoint.get("location") or f"{CLAIM_PATH}/{stream_join['metadata']['name']}"
    facts: dict[str, Any] = {"location": location}
    for name in ("epoch", "bytes"):
        if isinstance(said.get(name), int):
            facts[name] = said[name]
    if isinstance(said.get("committedAt"), int | float):
        facts["committedAt"] = instant(said["committedAt"])
    return facts


def _conditions(found: _Found, before: list[Object], generation: int, at: str) -> list[Object]:
    """As kstatus reads them: Ready, or on the way to it, or stuck."""
    old = {condition["type"]: condition for condition in before}
    message, is_reconciling = cut(found.message or found.reason.value), not (found.is_ready or found.is_stalled)
    written = []
    for kind, holds in (("Ready", found.is_ready), ("Reconciling", is_reconciling), ("Stalled", found.is_stalled)):
        last, text = old.get(kind, {}), str(holds)
        since = last.get("lastTransitionTime") if last.get("status") == text else None
        condition = {"type": kind, "status": text, "reason": found.reason.name, "message": message, "observedGeneration": generation}
        written.append({**condition, "lastTransitionTime": since or at})
    return written
