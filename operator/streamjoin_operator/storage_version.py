"""In which version StreamJoins are stored: all that are there are rewritten in the one that is wanted, and the definition then forgets the
other (``status.storedVersions``), so that a later release, or an earlier one, may do without it.

Steps, each of which may be the last before a crash, and all of which the next attempt takes again:

1. the definition stores new objects in the wanted version, once objects can be had in it: so a release whose webhook never comes up leaves
   everything as it was, and can be rolled back;
2. each object is written as it is, which the API server does in the stored version, and leaves alone where it is in that already;
3. the definition forgets the other version, unless it has changed meanwhile.

Always holds: a version is forgotten only when every object was written after the other became the stored one. The API server refuses a
definition that lacks a version which is not forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from streamjoin.manifest.versions import GROUP
from streamjoin_operator.api import DEFINITION, STREAM_JOIN, Api, ApiError
from streamjoin_operator.crd import PLURAL

NAME = f"{PLURAL}.{GROUP}"
SETTLE_SECONDS = 10.0
"""Within so long every API server of a cluster has noticed which version is stored now."""
RETRY_SECONDS = 60.0

Object = dict[str, Any]
log = logging.getLogger(__name__)


class NotMigratedError(RuntimeError):
    """Objects cannot be rewritten for now; the text says which and why."""


class StorageVersion:
    """See the module."""

    def __init__(self, api: Api, wanted: str, *, on_step: Callable[[str], None] = lambda step: None) -> None:
        """``wanted``: ``v1beta1`` or ``v1alpha1``. ``on_step`` hears the name of each step before it is taken; tests raise there."""
        self._api, self._wanted, self._on_step = api, wanted, on_step

    async def keep(self) -> None:
        """Until it is done: again and again, as long as something is in the way."""
        said = None
        while True:
            try:
                rewritten = await self.migrate()
            except (NotMigratedError, ApiError) as error:
                if str(error) != said:
                    log.warning("StreamJoins are not all stored as %s yet: %s", self._wanted, error)
                said = str(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if rewritten is not None:
                log.info("all StreamJoins (%d) are stored as %s", rewritten, self._wanted)
            return

    async def migrate(self) -> int | None:
        """All steps. How many objects were looked at; None: there was nothing to do. Raises NotMigratedError, ApiError."""
        definition = await self._definition()
        if definition["status"].get("storedVersions") == [self._wanted] and self._stored(definition) == self._wanted:
            return None
        if self._stored(definition) != self._wanted:
            await self._store(definition)
        # Whoever has changed it, an API server that has not noticed would still store the other version, behind what is rewritten.
        await asyncio.sleep(SETTLE_SECONDS)
        rewritten = await self._rewrite()
        await self._forget()
        return rewritten

    async def _definition(self) -> Object:
        found = await self._api.get(DEFINITION, "", NAME)
        if found is None:
            raise NotMigratedError(f"there is no definition {NAME}; apply it")
        if self._wanted not in {version["name"] for version in found["spec"]["versions"] if version["served"]}:
            raise NotMigratedError(f"the definition does not serve {self._wanted}; apply that of the operator's release")
        return found

    def _stored(self, definition: Object) -> str:
        return next(str(version["name"]) for version in definition["spec"]["versions"] if version["storage"])

    async def _store(self, definition: Object) -> None:
        """Have the wanted version stored from now on."""
        self._on_step("read in the wanted version")
        async for _ in self._api.pages(STREAM_JOIN, f"{GROUP}/{self._wanted}"):
            pass
        patch: list[Object] = [{"op": "test", "path": "/metadata/resourceVersion", "value": definition["metadata"]["resourceVersion"]}]
        for index, version in enumerate(definition["spec"]["versions"]):
            is_wanted = version["name"] == self._wanted
            if version["storage"] != is_wanted:
                patch.append({"op": "replace", "path": f"/spec/versions/{index}/storage", "value": is_wanted})
        self._on_step("store the wanted version")
        await self._api.patch_list(DEFINITION, NAME, patch)

    async def _rewrite(self) -> int:
        """Write each object as it is."""
        count, refused = 0, []
        async for body in self._api.pages(STREAM_JOIN, f"{GROUP}/{self._wanted}"):
            metadata = body["metadata"]
            self._on_step("rewrite an object")
            try:
                await self._api.patch(STREAM_JOIN, metadata["namespace"], metadata["name"], {})
            except ApiError as error:
                if error.status == 404:
                    continue
                if not error.refuses_object:
                    raise
                refused.append(f"{metadata['namespace']}/{metadata['name']} ({error.message})")
            count += 1
        if refused:
            more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
            raise NotMigratedError(f"the API server refuses to store what is there: {'; '.join(refused[:3])}{more}; mend or delete it")
        return count

    async def _forget(self) -> None:
        """The definition's other versions, if the wanted one is stored still."""
        definition = await self._definition()
        if self._stored(definition) != self._wanted:
            raise NotMigratedError("the definition was changed meanwhile, and stores another version")
        self._on_step("forget the others")
        body = {
            "metadata": {"resourceVersion": definition["metadata"]["resourceVersion"]},
            "status": {"storedVersions": [self._wanted]},
        }
        await self._api.patch(DEFINITION, "", NAME, body, "/status")

