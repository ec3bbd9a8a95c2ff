"""Looks at something again and again, in a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Poller(ABC):
    """Looks from when it is entered until it is left."""

    def __init__(self, name: str, seconds: float) -> None:
        """``name``: of the thread; ``seconds``: between two looks."""
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def look(self) -> object:
        """Look once."""

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self.look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
