"""Wraps a driver and reports its every step to the metrics. To the loop it is the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from streamjoin.epoch.delays import Counted
from streamjoin.epoch.ports import EpochResult, Stepper
from streamjoin.epoch.replan import PlanStatus
from streamjoin.io.base import Traffic
from streamjoin.job import Job
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.reorderings import Reorderings
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.storage import retries


class Observable(Stepper, Protocol):
    """What is watched of ``epoch.driver.Driver``."""

    @property
    def job(self) -> Job: ...

    @property
    def checkpoint(self) -> Checkpoint: ...

    @property
    def traffic(self) -> tuple[Traffic, ...]: ...

    @property
    def delays(self) -> Mapping[str, Counted]: ...


class Watched:
    """See the module. Always holds: what the driver returns or raises reaches the caller unchanged, after the metrics know of it."""

    def __init__(self, driver: Observable, metrics: Metrics, reorderings: Reorderings | None = None) -> None:
        """``reorderings``: to be told of commits, where nobody else does."""
        self._driver = driver
        self._metrics = metrics
        self._reorderings = reorderings

    @property
    def exhausted(self) -> bool:
        return self._driver.exhausted

    @property
    def idle_warnings(self) -> tuple[str, ...]:
        return self._driver.idle_warnings

    def start(self) -> None:
        repeated = retries()
        try:
            self._driver.start()
        except Exception as error:
            self._metrics.failed(error)
            raise
        finally:
            self._metrics.spent(retries() - repeated, self._driver.traffic, self._driver.delays)
        self._metrics.resume(self._driver.job, self._driver.checkpoint)

    def step(self, *, final: bool = False) -> EpochResult | None:
        self._metrics.began()
        repeated, result = retries(), None
        try:
            result = self._driver.step(final=final)
        except Exception as error:
            self._metrics.failed(error, self._driver.plan_status())
            raise
        finally:
            # A result has the tasks' too, which may have been in this process.
            repeated = retries() - repeated if result is None else result.storage_retries
            self._metrics.spent(repeated, self._driver.traffic, self._driver.delays)
        if result is None:
            self._metrics.idle(self._driver.plan_status())
        else:
            self._metrics.observe(result, self._driver.plan_status())
            if self._reorderings is not None:
                for changed in self._reorderings.after(result.committed_at or result.started_at):
                    self._metrics.decided(changed)
        return result

    def plan_status(self) -> PlanStatus | None:
        return self._driver.plan_status()

    def stop(self) -> None:
        self._metrics.ended()
        self._driver.stop()
