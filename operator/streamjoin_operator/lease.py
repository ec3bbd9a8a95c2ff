"""Which of several operators works: the holder of one Lease (coordination.k8s.io), as client-go's leader election has it.

Not kopf's peering: that needs a resource of its own, and only pauses kopf's handlers, while our queue would go on.

Always holds: another operator takes the Lease over only when it has watched it for ``DURATION_SECONDS`` without a renewal, by its own
clock; a holder that has not renewed it for ``DEADLINE_SECONDS``, which is less, stops. So two clocks need not agree on the time, only on
how fast it passes. Every write names the version that it follows, so of two that reach for the Lease at once one gets it.

Known limit: a request that was sent while the Lease was held may arrive after its end. Each is harmless when done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from streamjoin_operator.api import LEASE, Api, ApiError, Object

DURATION_SECONDS = 9
"""How long a Lease is respected after its last renewal was seen."""
DEADLINE_SECONDS = 6.0
"""After so long without a renewal its holder gives up."""
RENEW_SECONDS = 2.0
LOOK_SECONDS = 1.0
"""How often one that waits looks, and one that could not renew tries again."""
REQUEST_SECONDS = 2.5

log = logging.getLogger(__name__)


class LeaseLostError(RuntimeError):
    """Another operator works now, or may: this one must end, and start anew to wait for its turn."""


def identity() -> str:
    """Of this process: no other one, before or beside it, has the same."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class Lease:
    """One operator's part in it. All in one event loop."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        holder: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``holder``: as from :func:`identity`."""
        self._api, self._namespace, self._name, self._holder = api, namespace, name, holder
        self._clock, self._wall = clock, wall
        self._known: Object | None = None
        self._renewal: tuple[Any, ...] = ()
        """Who has renewed it, and when by his own clock: compared, never computed with."""
        self._seen_at = 0.0
        """When, by our clock, that was first seen."""
        self._renewed_at: float | None = None
        """When the last request that renewed it was begun; None: it is not ours."""

    @property
    def is_held(self) -> bool:
        return self._renewed_at is not None and self._clock() - self._renewed_at < DEADLINE_SECONDS

    async def acquire(self, stop: asyncio.Event, told: Callable[[str | None, str], None]) -> bool:
        """Wait for it. False: ``stop`` was set before. ``told`` hears at each look who holds it (None: not known), and what is wrong."""
        said = ""
        while not stop.is_set():
            try:
                await self._reach()
                other, problem = self._renewal[0] if self._renewal else "", ""
            except (ApiError, TimeoutError) as error:
                other, problem = None, f"Lease {self._namespace}/{self._name}: {error or 'no answer'}"
            if self.is_held:
                log.info("active: Lease %s/%s is held", self._namespace, self._name)
                return True
            text = problem or f"standby: {other} is active"
            if text != said:
                log.log(logging.WARNING if problem else logging.INFO, "%s", text)
            said = text
            told(other, problem)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await stop.wait()
        return False

    async def keep(self) -> None:
        """Renew it for as long as that succeeds in time; returns once it is lost."""
        pause = RENEW_SECONDS
        while self.is_held:
            await asyncio.sleep(pause)
            pause = RENEW_SECONDS
            try:
                await self._reach()
            except (ApiError, TimeoutError) as error:
                log.warning("Lease %s/%s was not renewed: %s", self._namespace, self._name, error or "no answer")
                pause = LOOK_SECONDS
        log.error("Lease %s/%s is lost", self._namespace, self._name)

    async def release(self) -> None:
        """Let another one have it at once. Where that fails, it has to wait until the Lease is over."""
        if not self.is_held or self._known is None:
            return
        self._renewed_at = None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                # A renewal that was broken off may have been stored, and its answer lost.
                self._known = await self._api.get(LEASE, self._namespace, self._name)
                if ((self._known or {}).get("spec") or {}).get("holderIdentity") == self._holder:
                    await self._api.replace(LEASE, self._body("", 1))
        except (ApiError, TimeoutError) as error:
            log.warning("Lease %s/%s was not released: %s", self._namespace, self._name, error or "no answer")

    async def _reach(self) -> None:
        """Take it or renew it, if it is free or ours; see else who has it. Raises ApiError, TimeoutError."""
        async with asyncio.timeout(REQUEST_SECONDS):
            if self._renewed_at is None or self._known is None:
                self._known = await self._api.get(LEASE, self._namespace, self._name)
                if not self._is_free():
                    self._renewed_at = None
                    return
            began = self._clock()
            try:
                if self._known is None:
                    self._known = await self._api.create(LEASE, self._namespace, self._body(self._holder, DURATION_SECONDS))
                else:
                    self._known = await self._api.replace(LEASE, self._body(self._holder, DURATION_SECONDS))
            except ApiError as error:
                self._known = None  # what there is has to be read before the next try
                if error.status not in (404, 409):
                    raise
                return
            self._renewed_at = began

    def _is_free(self) -> bool:
        spec = (self._known or {}).get("spec") or {}
        renewal = (spec.get("holderIdentity") or "", spec.get("renewTime"))
        if renewal != self._renewal:
            self._renewal, self._seen_at = renewal, self._clock()
        if renewal[0] in ("", self._holder):
            return True
        return self._clock() - self._seen_at >= (spec.get("leaseDurationSeconds") or DURATION_SECONDS)

    def _body(self, holder: str, seconds: int) -> Object:
        known = self._known or {}
        before = known.get("spec") or {}
        now = self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_same = before.get("holderIdentity") == holder
        return {
            "apiVersion": LEASE.group_version,
            "kind": LEASE.kind,
            "metadata": known.get("metadata") or {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": seconds,
                "acquireTime": before.get("acquireTime") if is_same else now,
                "renewTime": now,
                "leaseTransitions": int(before.get("leaseTransitions") or 0) + (not is_same and bool(holder)),
            },
        }
