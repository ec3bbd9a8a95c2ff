"""What the steps of a reconcile are given to see and change the world with. Tests give others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from streamjoin_operator.api import Api
from streamjoin_operator.driver import Answered, Report
from streamjoin_operator.measurement import Distrusted, Series
from streamjoin_operator.missing import Found
from streamjoin_operator.prometheus import Question
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings


class Drivers(Protocol):
    """What is needed of ``driver.DriverClient``."""

    async def read(self, url: str, token: str) -> Report: ...

    async def put(self, url: str, token: str, wish: dict[str, Any]) -> Answered: ...

    async def statistics(self, url: str, token: str) -> dict[str, Any] | None: ...


class Prometheus(Protocol):
    """What is needed of ``prometheus.PrometheusClient``."""

    async def read(self, question: Question, seconds: float) -> list[Series] | Distrusted: ...

    async def search(self, question: Question) -> Found | None: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """See the module."""

    api: Api
    drivers: Drivers
    prometheus: Prometheus
    settings: Settings
    clock: Callable[[], float]
    """Monotonic seconds."""
    wall: Callable[[], datetime]
    on_step: Callable[[str], None]
    """Hears the name of each step before it is done; tests raise there."""

    def driver_url(self, resource: Resource) -> str:
        return self.settings.url_of(resource.namespace, resource.name, resource.base)

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self.wall().timestamp()
