"""Drivers, and an API server, that accept connections and never answer: the others are looked after, and the operator stays alive."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest
from kubernetes.aio.client import Configuration

from cases import ALL
from memory_cluster import MemoryCluster
from operator_parts import FakeDriver, Object, parsed_once, streamjoin
from streamjoin_operator import queue as queue_module
from streamjoin_operator.access import Access
from streamjoin_operator.api import Api
from streamjoin_operator.driver import DriverClient
from streamjoin_operator.health import AGE_SECONDS, Health
from streamjoin_operator.queue import Key, Queue
from streamjoin_operator.reconcile import Reconciler
from streamjoin_operator.settings import Settings
from test_operator_reconcile import NoPrometheus
from waiting import wait_in_loop

COUNT = 500 if ALL else 200


class BlackHole:
    """Accepts connections, reads, and says nothing."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._taken: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._taken.append(self._listening.accept()[0])

    @property
    def connections(self) -> int:
        return len(self._taken)

    def close(self) -> None:
        self._listening.close()
        for taken in self._taken:
            taken.close()


@pytest.fixture
def hole() -> Iterator[BlackHole]:
    hole = BlackHole()
    yield hole
    hole.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cluster, but faster: what lasts seconds there takes a tenth of that."""
    monkeypatch.setattr(queue_module, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("streamjoin_operator.driver.TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr("streamjoin_operator.driver.READ_SECONDS", 0.8)
    monkeypatch.setattr("streamjoin_operator.health.AGE_SECONDS", AGE_SECONDS / 10)


class Places(Settings):
    """Black holes for drivers, but for those whose name begins with ``good``."""

    urls: tuple[str, str] = ("", "")

    def url_of(self, namespace: str, name: str, service: str) -> str:
        return Places.urls[name.startswith("good")]


def test_hundreds_of_silent_drivers_neither_starve_the_others_nor_fail_liveness(hole: BlackHole, quick: None) -> None:
    driver = FakeDriver()
    Places.urls = (hole.url, driver.url)
    good = [f"good-{number}" for number in range(20)]

    async def story() -> None:
        cluster, drivers = MemoryCluster(), DriverClient()
        settings = Places(start_seconds=0.5, poll_seconds=1.5, status_seconds=0.0)
        reconciler = Reconciler(cluster, drivers, settings, NoPrometheus())  # type: ignore[arg-type]
        looked: Counter[Key] = Counter()
        stuck: set[str] = set()
        queue = Queue(reconciler.reconcile, finished=lambda key, seconds, error: looked.update([key]))
        health = Health(queue)
        readied: set[str] = set()

        def controllers() -> None:
            """Deployments become ready, and the watches see what is there."""
            for place in list(cluster.objects):
                if place[0] == "Deployment" and place[2] not in readied:
                    readied.add(place[2])
                    cluster.ready("default", place[2])
                    key = reconciler.seen.saw_deployment(cluster.objects[place])
                    assert key is not None
                    queue.put(key)

        def create(name: str) -> Key:
            body = streamjoin(name)
            del body["metadata"]["uid"]
            key: Key = reconciler.seen.saw(cluster.put(body))
            queue.put(key)
            return key

        def phases(names: list[str]) -> Counter[str]:
            found = (cluster.objects["StreamJoin", "default", name].get("status") or {} for name in names)
            return Counter(status.get("phase", "none") for status in found)

        def at_work() -> bool:
            controllers()
            if (why := health.stuck()) is not None:
                stuck.add(why)
            return True

        running = asyncio.create_task(queue.run(8))
        try:
            holes = [create(f"hole-{number}")[1] for number in range(COUNT)]
            await wait_in_loop("all black holes are asked", lambda: at_work() and hole.connections >= COUNT)
            keys = [create(name) for name in good]
            await wait_in_loop("the others run", lambda: at_work() and phases(good) == {"Running": len(good)})
            before = looked.copy()
            await wait_in_loop("each is looked at again", lambda: at_work() and all(looked[key] > before[key] + 3 for key in keys))
            await wait_in_loop("it is said of the black holes", lambda: at_work() and unreachable(cluster, holes) == COUNT)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await drivers.close()
        assert stuck == set()

    with parsed_once():
        asyncio.run(story())
    driver.close()


def unreachable(cluster: MemoryCluster, names: list[str]) -> int:
    def reason(body: Object) -> str:
        ready = [one for one in (body.get("status") or {}).get("conditions") or [] if one["type"] == "Ready"]
        return ready[0]["reason"] if ready else ""

    return sum(reason(cluster.objects["StreamJoin", "default", name]) == "DriverUnreachable" for name in names)


def test_a_silent_api_server_does_not_fail_liveness(hole: BlackHole, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin_operator.api.TIMEOUT_SECONDS", 3.0)
    monkeypatch.setattr(queue_module, "BUDGET_SECONDS", 24.0)

    async def story() -> None:
        configuration = Configuration(hole.url)

        async def load() -> Configuration:
            return configuration

        api, drivers = Api(Access(load, configuration)), DriverClient()
        reconciler = Reconciler(api, drivers, Settings(), NoPrometheus())
        tried: Counter[Key] = Counter()
        queue = Queue(reconciler.reconcile, finished=lambda key, seconds, error: tried.update([key]))
        health = Health(queue)
        stuck: set[str] = set()
        running = asyncio.create_task(queue.run(8))
        try:
            for number in range(COUNT):
                queue.put(reconciler.seen.saw(streamjoin(f"join-{number}") | {"metadata": metadata(number)}))

            def at_work() -> bool:
                if (why := health.stuck()) is not None:
                    stuck.add(why)
                return len(tried) == COUNT

            await wait_in_loop("each was tried", at_work)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await drivers.close()
            await api.close()
        assert stuck == set()

    with parsed_once():
        asyncio.run(story())


def metadata(number: int) -> Object:
    return {"name": f"join-{number}", "namespace": "default", "uid": f"uid-{number}", "generation": 1, "resourceVersion": "1"}


def queued(reconcile: Callable[[Key], Awaitable[float | None]], story: Callable[[Queue], Awaitable[None]], workers: int = 2) -> None:
    async def main() -> None:
        queue = Queue(reconcile)
        running = asyncio.create_task(queue.run(workers))
        try:
            await story(queue)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    asyncio.run(main())


def test_names_that_are_known_to_be_slow_are_begun_only_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(queue_module, "MOST_SLOW", 3)
    at_work: set[Key] = set()
    most: list[int] = [0]
    rounds: Counter[Key] = Counter()

    async def reconcile(key: Key) -> float | None:
        rounds[key] += 1
        if key[1] == "quick":
            return 0.01
        at_work.add(key)
        if min(rounds[("n", f"slow-{number}")] for number in range(10)):
            most[0] = max(most[0], len([one for one in at_work if rounds[one] > 1]))
        await asyncio.sleep(0.1)  # noqa: TID251 - this is what is slow
        at_work.discard(key)
        return 0.0

    async def story(queue: Queue) -> None:
        for number in range(10):
            queue.put(("n", f"slow-{number}"))
        queue.put(("n", "quick"))
        await wait_in_loop("all come round", lambda: len(rounds) == 11 and min(rounds.values()) > 3 and rounds["n", "quick"] > 20)

    queued(reconcile, story)
    assert most[0] <= 3


def test_a_reconcile_that_never_ends_is_ended_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "BUDGET_SECONDS", 0.05)
    monkeypatch.setattr(queue_module, "FIRST_PAUSE", 0.01)
    calls: list[Key] = []

    async def reconcile(key: Key) -> float | None:
        calls.append(key)
        await asyncio.Event().wait()
        raise AssertionError("it never ends")

    async def story(queue: Queue) -> None:
        queue.put(("n", "a"))
        await wait_in_loop("it is tried again", lambda: len(calls) > 2)
        assert queue.failing() == 1
        assert Health(queue).stuck() is None

    queued(reconcile, story)
