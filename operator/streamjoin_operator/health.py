"""The operator's port: ``/metrics``, ``/healthz`` (is it alive?) and ``/readyz`` (is it at work, or waiting for its turn?).

Always holds: ``/healthz`` fails when the loop has not run for ``BEAT_SECONDS``, when a reconcile hangs, when a watch is dead, or when what
is due is not taken up though a worker is free. It does not fail because the API server or drivers cannot be reached, or take connections
and never answer: a restart would not mend that.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from streamjoin.endpoint import EVERYWHERE, listened
from streamjoin_operator.listening import Handler, Listening, Server
from streamjoin_operator.queue import STUCK_SECONDS, Queue

BEAT_SECONDS = 30.0
"""The loop beats once a second."""
AGE_SECONDS = 300.0
TEXT = "text/plain; charset=utf-8"


class Health:
    """Says whether the operator is alive and at work."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.is_ready = False
        """Whether the watches are set up, or those of another operator are, which is active by its Lease."""
        self.state = "starting"
        """What ``/readyz`` says: "active", "standby: ... is active", or why it is not ready."""
        self.missed = 0
        """StreamJoins that were seen changed two audits in a row, and the watch has not shown."""

    def waits(self, other: str | None, problem: str) -> None:
        """Another operator is active, or it cannot be told (``problem``)."""
        self.is_ready, self.state = other is not None, problem or f"standby: {other} is active"

    def stuck(self) -> str | None:
        """Why the loop is stuck, or None."""
        queue = self._queue
        silent = queue.clock() - queue.heartbeat
        if queue.heartbeat and silent > BEAT_SECONDS:
            return f"the loop has not run for {silent:.0f} s"
        try:
            running, age = queue.longest_running, queue.age
        except RuntimeError:  # the loop changed the queue while it was read: it runs
            return None
        if running > STUCK_SECONDS:
            return f"a reconcile has run for {running:.0f} s"
        if self.missed:
            return f"the watch has not shown {self.missed} changes"
        # Where no worker is free, somebody out there is slow; that each reconcile ends is seen to above.
        return f"something has been due for {age:.0f} s" if age > AGE_SECONDS and queue.has_free_worker else None


class HealthServer(Listening):
    """Answers from its construction to ``close``. Raises OSError where the port cannot be had."""

    def __init__(self, health: Health, registry: CollectorRegistry, port: int, address: str = EVERYWHERE) -> None:
        """``port`` 0: any that is free."""

        class Answers(Handler):
            def do_GET(self) -> None:  # noqa: N802 - the base class looks for it
                if self.path == "/metrics":
                    self.answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                    return
                stuck = health.stuck()
                if self.path == "/healthz":
                    self.answer(503 if stuck else 200, TEXT, (stuck or "alive").encode())
                elif self.path == "/readyz":
                    ready = health.is_ready and not stuck
                    self.answer(200 if ready else 503, TEXT, (stuck or health.state).encode())
                else:
                    self.answer(404, TEXT, b"/metrics /healthz /readyz")

        super().__init__(Server(listened(address), port, Answers), "health")
