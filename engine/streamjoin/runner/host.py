"""The host that holds a worker's place on an executor: it starts the worker's process, and another one whenever that process dies or hangs.

The host has everything loaded that a worker needs (``daemon``), and then only waits. So a worker is a fork of it, ready in some hundredths
of a second. The host knows how the former process ended: by which signal, and whether the kernel ran out of memory. The next process tells
the driver.

Always holds: a host has one thread when it forks; and a worker does not outlive its host (on Linux by the parent-death signal, elsewhere
because it notices that its parent has changed).
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

from streamjoin.dataplane.apart import die_with_parent
from streamjoin.kernel import run
from streamjoin.runner.collecting import collect_seldom
from streamjoin.runner.container import Presence
from streamjoin.runner.worker import Settings, serve

_log = logging.getLogger("streamjoin.workers")

BEAT_SECONDS = 1.0
SILENT_BEATS = 15
"""A worker that has not said anything for so long hangs, and is ended."""
PAUSES = (0.0, 0.0, 0.5, 1.0, 2.0, 5.0)
"""Seconds before another process is started, by how many have died without having done anything, one after the other."""
BEAT, CALLED, WORKED, FAILED = b".", b"c", b"w", b"!"
"""What a worker writes to its host: that it is there, that the driver has answered its call, that it has finished its part of an epoch; and
at the end, before the error in words, that it has failed."""
STARTS = 3
"""The number of processes in a row that may end before the driver knows of them. Then the host ends, and Spark tells the driver why."""
FAILURE_BYTES = 500


@dataclass(frozen=True)
class Ended:
    """How a worker's process ended."""

    status: int
    """The status that ``os.waitpid`` gives."""
    out_of_memory: bool
    hung: bool = False
    called: bool = False
    """The driver had heard of it."""
    worked: bool = False
    """Whether it had finished some work."""
    failure: str = ""
    """What it said of its end."""

    @property
    def reason(self) -> str | None:
        """The reason, for people. None: the process ended as it should."""
        if self.hung:
            return f"it said nothing for {SILENT_BEATS * BEAT_SECONDS:.0f} s and was ended"
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            return f"killed by {name}" + (", as the kernel ran out of memory" if self.out_of_memory else "")
        code = os.WEXITSTATUS(self.status)
        return None if code == 0 else f"ended with code {code}" + (f" ({self.failure})" if self.failure else "")


class StartFailed(RuntimeError):  # noqa: N818
    """No worker of this host can start."""


@cache
def load() -> None:
    """Load all that a worker needs, once for all processes that are forked of this one. Starts no thread."""
    run.warm()
    pa.array([0]).to_numpy()  # looks for pandas, once in each process, and loads it: longer than most epochs take
    collect_seldom()


def hold(settings: Settings, check: Callable[[], None] = lambda: None) -> None:
    """Hold the place until the worker ends as it should: the driver has ended it, or is gone. Raises StartFailed.

    ``check`` is called at least every ``BEAT_SECONDS``; what it raises ends worker and host."""
    load()
    presence = Presence()
    try:
        _hold(settings, presence, check)
    finally:
        presence.end()


def _hold(settings: Settings, presence: Presence, check: Callable[[], None]) -> None:
    executor = executor_id()
    died: str | None = None
    idle = unknown = 0
    while True:
        presence.show(is_ready=False)
        ended = _run(settings, executor, died, presence, check)
        died = ended.reason
        if died is None:
            return
        idle = 0 if ended.worked else idle + 1
        unknown = 0 if ended.called else unknown + 1
        if unknown == STARTS:
            raise StartFailed(f"the worker's process {died}, {STARTS} times before it could call the driver")
        time.sleep(PAUSES[min(idle, len(PAUSES) - 1)])


def _run(settings: Settings, executor: str, died: str | None, presence: Presence, check: Callable[[], None]) -> Ended:
    """Have a worker's process work, and wait until it has ended."""
    kills = out_of_memory_kills()
    hearing, speaking = os.pipe()
    host = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(hearing)
        _be_worker(settings, executor, died, host, speaking)
    os.close(speaking)
    try:
        hung, said = _await(worker, hearing, presence, check)
    except BaseException:  # the task is ended: nobody needs the worker any more
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        raise
    finally:
        os.close(hearing)
    _, status = os.waitpid(worker, 0)
    signs, _, failure = said.partition(FAILED)
    return Ended(status, out_of_memory_kills() > kills, hung, CALLED in signs, WORKED in signs, failure.decode(errors="replace"))


def _await(worker: int, hearing: int, presence: Presence, check: Callable[[], None]) -> tuple[bool, bytes]:
    """Until the worker's end of the pipe is closed, by its death; whether it had to be killed, and what it has said but for beats."""
    silent, signs = 0, b""
    while True:
        check()
        if not select.select([hearing], [], [], BEAT_SECONDS)[0]:
            silent += 1
            if silent >= SILENT_BEATS:
                os.kill(worker, signal.SIGKILL)
                return True, signs
        elif said := os.read(hearing, 4096):
            silent, signs = 0, _signs(signs + said)
            if CALLED in signs.partition(FAILED)[0]:
                presence.show(is_ready=True)
        else:
            return False, signs


def _signs(said: bytes) -> bytes:
    """Each sign once, in O(1) bytes however long the worker lives, and what follows a failure."""
    before, failed, failure = said.partition(FAILED)
    return b"".join(sign for sign in (CALLED, WORKED) if sign in before) + failed + failure


def _be_worker(settings: Settings, executor: str, died: str | None, host: int, speaking: int) -> None:
    """Never returns."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent()
        threading.Thread(target=_beat, args=(host, speaking), name="host", daemon=True).start()
        serve(
            settings,
            executor=executor,
            died=died,
            called=lambda: os.write(speaking, CALLED),
            worked=lambda: os.write(speaking, WORKED),
        )
        code = 0
    except BaseException as error:
        _log.exception("worker process %d has failed", os.getpid())
        told = " ".join(f"{type(error).__name__}: {error}".split())
        os.write(speaking, FAILED + told.encode()[:FAILURE_BYTES])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _beat(host: int, speaking: int) -> None:
    while os.getppid() == host:
        os.write(speaking, BEAT)
        time.sleep(BEAT_SECONDS)
    os._exit(1)


def executor_id() -> str:
    """The id of the Spark executor that this process belongs to; empty outside of one."""
    named = os.environ.get("SPARK_EXECUTOR_ID")
    if named is not None:
        return named
    import psutil

    for process in psutil.Process().parents():
        try:
            command = process.cmdline()
        except psutil.Error:
            break
        if "--executor-id" in command[:-1]:
            return command[command.index("--executor-id") + 1]
    return ""


def out_of_memory_kills() -> int:
    """How many processes of this one's container, or machine, the kernel has killed for want of memory."""
    for path, name in (("/sys/fs/cgroup/memory.events", "oom_kill"), ("/proc/vmstat", "oom_kill")):
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) == 2 and words[0] == name:
                return int(words[1])
    return 0
