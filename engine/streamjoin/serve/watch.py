"""A driver whose every step is told to its metrics. To the loop it is the driver."""

from __future__ import annotations

from typing import Protocol

from streamjoin.epoch.driver import EpochResult
from streamjoin.epoch.replan import PlanStatus
from streamjoin.serve.metrics import Metrics
from streamjoin.state.log import Checkpoint


class Steps(Protocol):
    """What is watched of ``epoch.driver.Driver``."""

    checkpoint: Checkpoint
    exhausted: bool

    def start(self) -> None: ...

    def step(self, *, final: bool = False) -> EpochResult | None: ...

    def plan_status(self) -> PlanStatus | None: ...

    def stop(self) -> None: ...


class Watched:
    """See the module. Always holds: what the driver returns or raises reaches the caller unchanged, after the metrics know of it."""

    def __init__(self, driver: Steps, metrics: Metrics) -> None:
        self._driver = driver
        self._metrics = metrics

    @property
    def exhausted(self) -> bool:
        return self._driver.exhausted

    def start(self) -> None:
        try:
            self._driver.start()
        except Exception as error:
            self._metrics.failed(error)
            raise
        self._metrics.resume(self._driver.checkpoint)

    def step(self, *, final: bool = False) -> EpochResult | None:
        self._metrics.began()
        try:
            result = self._driver.step(final=final)
        except Exception as error:
            self._metrics.failed(error, self._driver.plan_status())
            raise
        if result is None:
            self._metrics.idle(self._driver.plan_status())
        else:
            self._metrics.observe(result, self._driver.plan_status())
        return result

    def stop(self) -> None:
        self._metrics.ended()
        self._driver.stop()
