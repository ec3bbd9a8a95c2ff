"""Reads a split in a process of its own, which may die: so the records that end a reader are found, and become dead letters.

An epoch is routed this way after an attempt that its data may have failed (``caution``), never before. A process of its own reads the
split and prepares its tuples (``route.prepare``). Where it dies, hangs, takes too much memory or raises, the halves of the split are read,
each by another process, and so on: O(log(records)) processes for each bad record. What fails although it cannot be divided further is tried
once more and then rejected, with the reason. The process's memory is bounded, and where the kernel has to end one, it is to be this one.

Always holds: what is read this way has the records, and their positions, that reading the split in this process has.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from streamjoin.epoch.spec import EpochSpec
from streamjoin.io.base import Divisible, Reader, Records, Rejected, SourceError, Split, UnavailableError, no_records

CPU_SECONDS = 60.0
"""Of a processor, for a split; a half has half of it."""
LEAST_CPU_SECONDS = 10.0
WALL_SECONDS = 300.0
"""Within which something of a split must come; for a half, half of it."""
LEAST_WALL_SECONDS = 60.0
MEMORY_BYTES = 4 << 30
"""Beyond what the process has when it begins."""
IDLE_SECONDS = 30.0
"""A process that forks readers, and was asked for none for as long, ends."""
HEAD, CODE = struct.Struct("<Q"), struct.Struct("<i")
OVER = "over"
PR_SET_PDEATHSIG = 1
TRIES = 2
"""A record that cannot be read is tried as often before it is rejected: something else may have ended its process."""


@dataclass(frozen=True)
class Bounds:
    """What a process may take for a split."""

    cpu_seconds: float = CPU_SECONDS
    wall_seconds: float = WALL_SECONDS
    memory_bytes: int = MEMORY_BYTES

    def halved(self) -> Bounds:
        cpu, wall = max(LEAST_CPU_SECONDS, self.cpu_seconds / 2), max(LEAST_WALL_SECONDS, self.wall_seconds / 2)
        return replace(self, cpu_seconds=min(cpu, self.cpu_seconds), wall_seconds=min(wall, self.wall_seconds))


@dataclass(frozen=True)
class _Failed:
    """Why a split could not be read."""

    reason: str


def read_apart(
    reader: Reader, split: Split, schema: pa.Schema, of: tuple[EpochSpec, int] | None = None, bounds: Bounds | None = None
) -> Iterator[Records]:
    """The split's records, each half of it as soon as it is read whole. Raises SourceError, UnavailableError, and RuntimeError where the
    split fails and cannot be divided.

    ``of``: an epoch, and which of its splits this is, for which its tuples are prepared, too. Memory: the records of what a process reads
    at once, and the process's.
    """
    nursery = _Nursery.take()
    try:
        yield from _Splits(split, reader, schema, nursery.loaded(reader, of)).read(split, bounds or Bounds())
    except BaseException:  # it may have ended, or have an answer that nobody has heard
        nursery.close()
        raise
    nursery.leave()


class _Nursery:
    """A process that has loaded all that reading takes, and forks one for each attempt at a part of a split.

    One that was used waits for the next split to be read, for :data:`IDLE_SECONDS`; then it ends by itself.
    """

    _waiting: ClassVar[list[_Nursery]] = []

    @classmethod
    def take(cls) -> _Nursery:
        """One that waits, or a new one."""
        with contextlib.suppress(IndexError):
            while True:
                nursery = cls._waiting.pop()
                if nursery._is_usable():
                    return nursery
                nursery.close()
        return cls()

    def __init__(self) -> None:
        ours, its = socket.socketpair()
        self._surroundings, self._thread = _surroundings(), threading.current_thread()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from streamjoin.dataplane.apart import main; main({its.fileno()})"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._socket = ours
        self._left = 0.0
        self._reading: bytes | None = None

    def loaded(self, reader: Reader, of: tuple[EpochSpec, int] | None) -> _Nursery:
        """This one, which reads by this reader from now on."""
        self._reading = pickle.dumps((reader, of))
        return self

    def leave(self) -> None:
        """Lets it wait for whoever comes next."""
        self._left = time.monotonic()
        self._waiting.append(self)

    def _is_usable(self) -> bool:
        waited = time.monotonic() - self._left
        is_there = self._thread.is_alive() and self._process.poll() is None  # it ends with the thread that started it
        return is_there and waited < IDLE_SECONDS / 2 and self._surroundings == _surroundings()

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def attempt(self, split: Split, bounds: Bounds) -> list[Records] | _Failed:
        """What a process of its own reads. Raises what the reader says of its source, and RuntimeError."""
        hearing, speaking = os.pipe()
        with os.fdopen(hearing, "rb") as pipe:
            try:
                task = pickle.dumps((self._reading, split, bounds))
                self._reading = None
                socket.send_fds(self._socket, [HEAD.pack(len(task))], [speaking])
                self._socket.sendall(task)
                (child,) = HEAD.unpack(self._socket.recv(HEAD.size, socket.MSG_WAITALL))
            except (OSError, struct.error):
                raise RuntimeError(f"the process that is to read {split.name} cannot be started, or has ended") from None
            finally:
                os.close(speaking)
            found: list[Records] = []
            hung = threading.Event()

            def end() -> None:
                hung.set()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

            while True:
                timer = threading.Timer(bounds.wall_seconds, end)
                timer.start()
                try:
                    said = _hear(pipe)
                finally:
                    timer.cancel()
                if isinstance(said, Records):
                    found.append(said)
                    continue
                answer = self._socket.recv(CODE.size, socket.MSG_WAITALL)
                if len(answer) < CODE.size:
                    raise RuntimeError(f"the process that is to read {split.name} has ended")
                (code,) = CODE.unpack(answer)
                if said is None:
                    return _Failed(_why(code, hung.is_set(), bounds))
                if isinstance(said, (SourceError, UnavailableError)):
                    raise said
                return found if said == OVER else said


@dataclass(frozen=True)
class _Splits:
    whole: Split
    reader: Reader
    schema: pa.Schema
    nursery: _Nursery

    def read(self, split: Split, bounds: Bounds) -> Iterator[Records]:
        found = self.nursery.attempt(split, bounds)
        if isinstance(found, _Failed) and isinstance(self.reader, Divisible) and (halves := self.reader.halves(split)):
            for half in halves:
                yield from self.read(half, bounds.halved())
            return
        for _ in range(TRIES - 1):
            if isinstance(found, _Failed):
                found = self.nursery.attempt(split, bounds)
        first = split.first_record - self.whole.first_record
        if isinstance(found, _Failed):
            yield self._rejected(split, first, found.reason)
            return
        for records in found:
            # Where the whole split's count was an estimate, only this one's positions are those of its records.
            letters = [replace(letter, origin=letter.origin or (split, letter.position)) for letter in records.rejected]
            yield replace(records, rejected=letters).moved(first)

    def _rejected(self, split: Split, first: int, reason: str) -> Records:
        if not isinstance(self.reader, Divisible):
            raise RuntimeError(f"{split.name}: one of these records {reason}")
        raw = ""
        with contextlib.suppress(Exception):  # what is wrong with it may be that it cannot be had
            raw = self.reader.raw(split)
        which = "the record" if split.records == 1 else f"one of {split.records:,} records that are read at once"
        again = "" if split.records == 1 else None
        letter = Rejected(first, raw, f"{which} {reason}", split.name, again=again, origin=(split, 0))
        return Records(no_records(self.schema), np.zeros(0, np.int64), [letter])


def _hear(pipe: Any) -> Any:
    """None where the process is gone."""
    head = pipe.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (size,) = HEAD.unpack(head)
    data = pipe.read(size)
    return pickle.loads(data) if len(data) == size else None  # noqa: S301 - of a process that this one started


def _why(code: int, hung: bool, bounds: Bounds) -> str:
    """What an exit code says of the record that was read."""
    if hung:
        return f"keeps its reader waiting for more than {bounds.wall_seconds:.0f} s"
    if code == -signal.SIGXCPU:
        return f"keeps its reader busy for more than {bounds.cpu_seconds:.0f} s of a processor"
    if code < 0:
        return f"ends its reader: {signal.Signals(-code).name}"
    return f"ends its reader: exit code {code}"


os.register_at_fork(after_in_child=_Nursery._waiting.clear)  # they are the parent's


def _surroundings() -> tuple[dict[str, str], str, list[str]]:
    """What a process has of the one that started it."""
    return dict(os.environ), os.getcwd(), list(sys.path)


def main(descriptor: int) -> None:
    """The nursery: parts of splits and where to write their records, each with a reader and an epoch where these are others than before."""
    die_with_parent()
    with socket.socket(fileno=descriptor) as asked:
        while select.select([asked], [], [], IDLE_SECONDS)[0]:
            head, descriptors, _, _ = socket.recv_fds(asked, HEAD.size, 1)
            if not head:
                return
            (size,) = HEAD.unpack(head)
            reading, split, bounds = pickle.loads(asked.recv(size, socket.MSG_WAITALL))  # noqa: S301 - of the process that started this one
            if reading is not None:
                reader, of = pickle.loads(reading)  # noqa: S301
                prepare = _preparing(*of) if of else lambda records, split: None
            child = os.fork()
            if not child:
                asked.close()
                _read(reader, split, prepare, bounds, descriptors[0])
            os.close(descriptors[0])
            asked.sendall(HEAD.pack(child))
            _, status = os.waitpid(child, 0)
            asked.sendall(CODE.pack(os.waitstatus_to_exitcode(status)))


def _preparing(spec: EpochSpec, index: int) -> Callable[[Records, Split], object]:
    """Prepares tuples of a split of the epoch, to see whether they can be. What that takes is loaded here, for all forks."""
    from streamjoin.dataplane.compiled import compiled
    from streamjoin.dataplane.route import prepare, without_oversized
    from streamjoin.epoch.reports import RouteReport
    from streamjoin.kernel.run import warm

    warm()
    worker, which = compiled(spec.config), spec.splits[index][0]

    def prepared(records: Records, split: Split) -> object:
        report = RouteReport(which)
        taken = without_oversized(records, spec.record_bytes, report)
        return prepare(spec, worker, which, index, taken, split.first_record, report, late_letters=0)

    return prepared


def _read(reader: Reader, split: Split, prepare: Callable[[Records, Split], object], bounds: Bounds, descriptor: int) -> None:
    """In a process of its own: never returns."""
    code = 1
    try:
        die_with_parent()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
        speaking = os.fdopen(descriptor, "wb")

        def say(value: Any) -> None:
            data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
            speaking.write(HEAD.pack(len(data)) + data)
            speaking.flush()

        _bound(bounds)
        try:
            for records in reader.read(split):
                prepare(records, split)
                say(records)
            say(OVER)
        except (SourceError, UnavailableError) as error:
            say(error)
        except (MemoryError, pa.ArrowMemoryError):
            say(_Failed(f"takes its reader more than {bounds.memory_bytes >> 20:,} MiB of memory"))
        except Exception as error:
            say(_Failed(f"fails its reader: {' '.join(f'{type(error).__name__}: {error}'.split())[:300]}"))
        code = 0
    finally:
        os._exit(code)


def die_with_parent() -> None:
    """The kernel ends this process with the thread that started it, where it can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _bound(bounds: Bounds) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(used.ru_utime + used.ru_stime + bounds.cpu_seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/status") as status:
            data = next((int(line.split()[1]) << 10 for line in status if line.startswith("VmData")), 0)
        resource.setrlimit(resource.RLIMIT_DATA, (data + bounds.memory_bytes,) * 2)
