"""Snapshots by the clock (``spec.backup``): makes a StreamJoinSnapshot when one is due, and deletes those that are more than are kept.

Always holds: what is made for a time has a name that follows from it, so that two operators, or one that was killed, make one; only what
was made by the clock is deleted, and of it never the newest that are ready, as many as are kept.
"""

from __future__ import annotations

from datetime import UTC, datetime

from streamjoin.manifest.kubernetes import Backup
from streamjoin.manifest.schedule import Schedule
from streamjoin_operator import api, names
from streamjoin_operator.api import ApiError
from streamjoin_operator.drift import Object
from streamjoin_operator.pod_trouble import condition_of
from streamjoin_operator.queue import Key
from streamjoin_operator.seen import Seen
from streamjoin_operator.settings import Settings
from streamjoin_operator.snapshot_model import dated_name, resource
from streamjoin_operator.snapshots import Snapshots

SCHEDULED = f"{names.GROUP}/scheduled"
"""The label of what was made by the clock."""
LATE_SECONDS = 3600.0
"""What could not be made for so long, as no driver ran, is left out: the next time comes."""
_TIME = "%Y%m%d-%H%M"


def now() -> datetime:
    """By the wall clock."""
    return datetime.now(UTC)


class Backups:
    """See the module. All in one event loop."""

    def __init__(self, client: api.Api, settings: Settings, seen: Seen, snapshots: Snapshots) -> None:
        self._api, self._settings, self._seen, self._snapshots = client, settings, seen, snapshots

    async def reconcile(self, key: Key) -> float | None:
        """Make and delete what is due of a StreamJoin. Returns after how many seconds to come again; None: when something happens. Raises
        ApiError."""
        body = self._seen.bodies.get(key)
        given = None if body is None else body["spec"].get("backup")
        if body is None or given is None or body["metadata"].get("deletionTimestamp"):
            return None
        try:
            backup = Backup.model_validate(given)
            schedule = Schedule.parse(backup.schedule)
        except ValueError:  # the status of the StreamJoin says so
            return None
        at = now()
        due = schedule.last(at)
        is_missing = due is not None and self._is_missing(key, body, due, at)
        if due is not None and is_missing and self._seen.has_driver(key):
            await self._make(key, due)
            is_missing = False
        await self._prune(key, backup.keep)
        following = schedule.next(at)
        seconds = self._settings.resync_seconds if following is None else (following - at).total_seconds() + 1.0
        return min(seconds, self._settings.poll_seconds if is_missing else self._settings.resync_seconds)

    def _is_missing(self, key: Key, body: Object, due: datetime, at: datetime) -> bool:
        created = datetime.fromisoformat(body["metadata"].get("creationTimestamp") or "1970-01-01T00:00:00Z")
        is_late = (at - due).total_seconds() > LATE_SECONDS
        return due > created and not is_late and all(name < dated_name(key[1], due, _TIME) for name in self._made(key))

    def _made(self, key: Key) -> dict[str, Object]:
        """What was made by the clock, by name."""
        wanted = {names.NAME: key[1], SCHEDULED: "true"}
        return {
            name: body
            for (namespace, name), body in self._snapshots.bodies.items()
            if namespace == key[0] and wanted.items() <= (body["metadata"].get("labels") or {}).items()
        }

    async def _make(self, key: Key, due: datetime) -> None:
        made = resource(dated_name(key[1], due, _TIME), key[1])
        made["metadata"]["labels"] = {names.NAME: key[1], SCHEDULED: "true"}
        try:
            await self._api.create(api.SNAPSHOT, key[0], made)
        except ApiError as error:
            if error.status != 409:
                raise

    async def _prune(self, key: Key, keep: int) -> None:
        made = self._made(key)
        ready = sorted((name for name, body in made.items() if condition_of(body, "Ready").get("status") == "True"), reverse=True)
        if len(ready) < keep:
            return
        for name, body in made.items():
            if name < ready[keep - 1] and not body["metadata"].get("deletionTimestamp"):
                await self._api.delete(api.SNAPSHOT, key[0], name, body["metadata"]["uid"])
