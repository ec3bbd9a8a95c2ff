"""The ledger of decisions in the checkpoint's storage: ``decisions.json``.

Always holds: deciding never waits for the storage, because a thread of its own writes, always the newest ledger and one at a time. A ledger
that cannot be read or written costs no result: it is begun anew, or written the next time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from streamjoin.elastic.ledger import Ledger
from streamjoin.state.storage import Missing, Storage

PATH = "decisions.json"
CLOSE_SECONDS = 10.0
"""How long the last write is waited for at the end of a run."""


class LedgerError(RuntimeError):
    """What is in the storage is no ledger; the text says what to do."""


def load_ledger(storage: Storage) -> Ledger | None:
    """The ledger that was written last; None where none ever was. Raises LedgerError, StorageError."""
    try:
        data = storage.get(PATH)
    except Missing:
        return None
    try:
        return Ledger.from_json(json.loads(data))
    except (ValueError, TypeError, AttributeError) as error:
        raise LedgerError(f"{storage.url}/{PATH}: {error}") from error


class LedgerWriter:
    """Writes ledgers in the background."""

    def __init__(self, storage: Storage, failed: Callable[[str], None] = lambda text: None) -> None:
        """``failed`` is told, in the writing thread, when a write fails; once in a row."""
        self._storage = storage
        self._failed = failed
        self._newest: dict[str, Any] | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def write(self, ledger: Ledger) -> None:
        """Have the ledger written as it is now. Returns at once; O(records)."""
        with self._changed:
            self._newest = ledger.to_json()
            self._changed.notify()

    def close(self) -> None:
        """Write what is to be written, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        well = True
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._closing)
                newest, self._newest = self._newest, None
            if newest is None:
                return
            try:
                self._storage.put(PATH, json.dumps(newest, separators=(",", ":")).encode())
                well = True
            except OSError as error:
                if well:
                    self._failed(f"the ledger of decisions could not be written, and will be with the next one: {error}")
                well = False
