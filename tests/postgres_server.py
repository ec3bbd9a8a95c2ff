"""A real PostgreSQL on this machine, for tests: Debian's package, in a directory of its own, on a free port of 127.0.0.1.

Always holds: leaving a :class:`PostgresServer` ends its processes and no other; what it cannot have it says by :class:`NoPostgres`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from ports import free_ports
from waiting import wait_for

USER = "streamjoin"


class NoPostgres(RuntimeError):  # noqa: N818
    """This machine has no PostgreSQL to offer; the text says what is missing."""


def programs() -> Path:
    """The directory of initdb and postgres, the newest that there is. Raises NoPostgres."""
    found = shutil.which("initdb")
    candidates = [*([Path(found).resolve().parent] if found else []), *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    for directory in candidates:
        if (directory / "postgres").exists() and (directory / "initdb").exists():
            return directory
    raise NoPostgres("no postgres (apt-get install postgresql)")


class PostgresServer:
    """A server that can be killed, paused, and started again on the same data and port. A context manager."""

    def __init__(self) -> None:
        self._programs = programs()
        self._root = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
        # It refuses to be run by root.
        self._as: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
        if self._as:
            shutil.chown(self._root, "nobody")
        (self.port,) = free_ports(1)
        self._data = self._root / "data"
        done = subprocess.run(
            [self._programs / "initdb", "-D", self._data, "-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"],
            capture_output=True, text=True, check=False, cwd=self._root, **self._as,
        )  # fmt: skip
        if done.returncode:
            raise NoPostgres(f"initdb fails: {done.stderr.strip()[-300:]}")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it takes connections."""
        command = [self._programs / "postgres", "-D", self._data, "-p", str(self.port), "-k", self._root, "-c", "fsync=off"]
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-c", "listen_addresses=127.0.0.1"], stdout=log, stderr=log, cwd=self._root, **self._as
            )
        wait_for("PostgreSQL takes connections", self._answers)

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise NoPostgres(f"PostgreSQL ended: {(self._root / 'log').read_text()[-500:]}")
        command = [self._programs / "pg_isready", "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return subprocess.run(command, check=False).returncode == 0

    def kill(self) -> None:
        """End it as a power loss would, but for what it has written."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGQUIT)  # at once: its children end with it, which SIGKILL would leave
            process.wait()

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)
