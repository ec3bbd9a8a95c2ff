"""Resident workers without Spark: each place is held by a process of this machine, for tests that kill and stop them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from forked_hosts import ForkedHost, Request
from streamjoin.epoch.spec import EpochSpec
from streamjoin.runner.attempt import Attempt
from streamjoin.runner.container import DIRECTORY
from streamjoin.runner.pool import Pool
from streamjoin.runner.security import Security
from streamjoin.runner.worker import Settings


class ProcessHosts:
    """See :class:`streamjoin.runner.pool.Hosts`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._processes: dict[int, ForkedHost] = {}
        self._wanted: set[int] = set()
        self.may_bring = threading.Event()
        """Cleared: a machine that is full."""
        self.may_bring.set()
        self.silent_beats = 60
        """After so many a worker takes the driver for gone."""
        self.executor_of: Callable[[int], str] = lambda place: ""
        """The executor that a place's workers take themselves to be on."""
        self.container_of: dict[int, Path] = {}
        """By place, the directory of the container that its host runs in."""
        self.first: dict[int, str] = {}
        """By place, Python that its host runs before all else."""
        self.driver: dict[int, str] = {}
        """By place, where its workers are told that the driver is; else where it is."""

    def bring(self, place: int) -> None:
        with self._lock:
            self._wanted.add(place)
        threading.Thread(target=self._hold, args=(place,), daemon=True).start()

    def end(self, place: int) -> None:
        with self._lock:
            self._wanted.discard(place)

    def replace(self, place: int) -> None:
        self.kill(place)

    def leave(self, place: int, executor: str) -> None:
        """No other place has its container."""

    def lost(self) -> str | None:
        return None

    def kill(self, place: int) -> None:
        """The host, and with it its worker."""
        with self._lock:
            process = self._processes.get(place)
        if process is not None:
            process.kill()

    def pid(self, place: int) -> int:
        """The host's."""
        return self._processes[place].pid

    def join(self) -> None:
        """Wait until all have ended."""
        with self._lock:
            processes = list(self._processes.values())
        for process in processes:
            if not process.has_ended(3):
                process.kill()

    def _hold(self, place: int) -> None:
        while place in self._wanted:
            self.may_bring.wait()
            settings = Settings(place, self.driver.get(place, self._pool.address), self._pool.security)
            environment = {**os.environ, "SPARK_EXECUTOR_ID": self.executor_of(place)}
            if place in self.container_of:
                environment[DIRECTORY] = str(self.container_of[place] / "workers")
            with self._lock:
                request = Request(settings, environment, self.silent_beats, self.first.get(place, ""))
                process = self._processes[place] = ForkedHost(request)
            ended = process.wait()
            if place in self._wanted:
                self._pool.place_died(place, ended)


class ProcessRunner:
    """A runner whose workers are processes of this machine (see :class:`streamjoin.epoch.ports.Runner`)."""

    def __init__(self, *, patience_seconds: float = 20.0, beat_seconds: float = 1.0, security: Security | None = None) -> None:
        self.hosts: ProcessHosts

        def hosts(pool: Pool) -> ProcessHosts:
            self.hosts = ProcessHosts(pool)
            return self.hosts

        self.pool = Pool(hosts, security or Security.fresh(), patience_seconds=patience_seconds, beat_seconds=beat_seconds)

    def start(self, workers: Sequence[int], least: int = 1) -> None:
        self.pool.restart(workers)
        assert self.pool.await_connected(len(workers), 60) == len(workers)

    def request(self, count: int) -> None:
        self.pool.want(count)

    @property
    def ready(self) -> int:
        return self.pool.connected

    @property
    def absence(self) -> str | None:
        return self.pool.absence

    @property
    def waits_for(self) -> tuple[str, ...]:
        return self.pool.waits_for

    @property
    def moved_at(self) -> float:
        return self.pool.moved_at

    @property
    def overlaps(self) -> bool:
        return self.pool.settled

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Attempt:
        return self.pool.submit(spec, workers)

    @property
    def executors(self) -> dict[int, str]:
        return self.pool.executors

    @property
    def leaving(self) -> dict[int, float]:
        return self.pool.leaving

    def release(self, workers: Sequence[int], places: int | None = None) -> None:
        self.pool.release(workers, places)

    def stop(self) -> None:
        self.pool.close()
        self.hosts.join()

    def kill(self, place: int, number: int = signal.SIGKILL) -> int:
        """Send the place's worker a signal; its process."""
        pid = self.pool.pids[place]
        os.kill(pid, number)
        return pid


def executors() -> list[psutil.Process]:
    """Spark's, among this process's descendants."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may end while it is looked at
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
    return found


def executor_of(worker: int) -> psutil.Process:
    """The executor that this process belongs to."""
    return next(executor for executor in executors() if executor in psutil.Process(worker).parents())
