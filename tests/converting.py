"""The conversion webhook of a definition as a server in this process, which a real API server asks."""

from __future__ import annotations

import asyncio
import base64
import copy
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from certificates import Authority
from ports import free_ports
from streamjoin_operator.conversion import serving
from waiting import PATIENCE_SECONDS, wait_for

Object = dict[str, Any]
_numbers = itertools.count()


def authority(directory: Path) -> Authority:
    """One whose certificates and key are in ``directory``, for this machine."""
    made = Authority(directory)
    made.issue("localhost")
    return made


def asking(definition: Object, directory: Path, port: int) -> Object:
    """A definition whose conversions are asked for at a port of this machine, by the authority in ``directory``."""
    changed = copy.deepcopy(definition)
    bundle = base64.b64encode((directory / "ca.crt").read_bytes()).decode()
    client = {"url": f"https://localhost:{port}/convert", "caBundle": bundle}
    changed["spec"]["conversion"] = {
        "strategy": "Webhook",
        "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client},
    }
    return changed


class Converting:
    """A server of conversions, in a thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / f"conversion-{next(_numbers)}"
        authority(self.directory)
        self.port = 0
        self._failure: BaseException | None = None
        self._stop: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="conversions", daemon=True)
        self._thread.start()
        wait_for("conversions are served", lambda: self.port or self._failure)
        assert self._failure is None, self._failure

    def _run(self) -> None:
        async def main() -> None:
            self._stop = asyncio.Event()
            (port,) = free_ports(1)
            async with serving(str(self.directory), port):
                self.port = port
                await self._stop.wait()

        try:
            self._loop.run_until_complete(main())
        except BaseException as error:
            self._failure = error

    def definition(self, definition: Object) -> Object:
        return asking(definition, self.directory, self.port)

    def close(self) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


@contextmanager
def converting(directory: Path) -> Iterator[Converting]:
    """Until this ends."""
    server = Converting(directory)
    try:
        yield server
    finally:
        server.close()
