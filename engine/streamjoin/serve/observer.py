"""The observers of a join: who is to know what came of a step before the caller of the step does, such as metrics and the autoscaler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from streamjoin.elastic.decision import Decision
from streamjoin.epoch.ports import EpochResult

if TYPE_CHECKING:
    from streamjoin.controlplane.driver import Driver


class Observer:
    """Is told what becomes of a join, in the thread that runs it. A method that is not overridden does nothing."""

    def took_over(self) -> None:
        """A standby has claimed the checkpoint of the driver that it had watched; its start follows."""

    def started(self, driver: Driver) -> None:
        """The checkpoint has been claimed, and the run goes on from it."""

    def attempting(self) -> None:
        """A step begins."""

    def committed(self, driver: Driver, result: EpochResult) -> None:
        """The step has committed this epoch."""

    def idle(self, driver: Driver) -> None:
        """The step has found nothing new."""

    def failed(self, driver: Driver, error: Exception) -> None:
        """The start, or the step, has failed with this error."""

    def decided(self, decision: Decision) -> None:
        """Somebody has decided this: the autoscaler, or the driver about the order of streams."""

    def ended(self) -> None:
        """No step follows. The workers are still there."""


class Steps:
    """The start, the steps and the end of a join, of which its observers are told, in their order.

    Always holds: what the driver returns or raises reaches the caller unchanged, after the observers know of it.
    """

    def __init__(self, driver: Driver, observers: Sequence[Observer] = ()) -> None:
        self._driver, self._observers = driver, observers

    def start(self) -> None:
        with self._failures():
            self._driver.start()
        for each in self._observers:
            each.started(self._driver)

    def step(self, *, final: bool = False) -> EpochResult | None:
        for each in self._observers:
            each.attempting()
        with self._failures():
            result = self._driver.step(final=final)
        for each in self._observers:
            if result is None:
                each.idle(self._driver)
            else:
                each.committed(self._driver, result)
        return result

    def stop(self) -> None:
        try:
            for each in self._observers:
                each.ended()
        finally:
            self._driver.stop()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            for each in self._observers:
                each.failed(self._driver, error)
            raise
