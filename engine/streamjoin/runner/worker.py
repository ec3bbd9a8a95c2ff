"""A resident worker: one process that holds the runs of a worker and does its part of every epoch, for as long as its plan needs it.

Four threads: the main one hears the driver; *routing* reads splits and sends their pieces; *joining* joins what has come; *answering*
waits until what was to be written is durable, and answers. So an epoch is routed while the one before it is joined, and joined while what
that one has made is written, each in order.

Always holds: what a worker answers for an attempt is its last act for it; its runs are staged under the attempt's token, and the driver's
next spec tells which of them count. A worker that loses the driver keeps its runs and calls again for ``RECONNECT_SECONDS``, then ends.

This module loads neither the driver nor the manifest's models, which each new worker would pay for at its start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import pyarrow as pa

from streamjoin.dataplane.handshake import Link, is_handshake, neighbours_of
from streamjoin.dataplane.join import Part, rounds_among_tasks
from streamjoin.dataplane.joined import Joined, reports_of
from streamjoin.dataplane.route import route
from streamjoin.endpoint import parts_of
from streamjoin.epoch.ports import too_large_of
from streamjoin.epoch.spec import Piece, Shared
from streamjoin.io.base import SourceError
from streamjoin.io.telling import told
from streamjoin.kernel import run
from streamjoin.runner.container import seconds_left
from streamjoin.runner.control import Connection, call
from streamjoin.runner.exchange import CONVERSATION, TUPLES, Abandoned, Exchange
from streamjoin.runner.messages import Abandon, Assignment, Beat, Done, End, Failed, Hello, Leaving, Work, decode, encode
from streamjoin.runner.seal import TamperedError
from streamjoin.runner.security import Security
from streamjoin.runner.streams import ExchangeError
from streamjoin.state.store import RunStore

RECONNECT_SECONDS = 10.0
RECONNECT_EVERY_SECONDS = 0.2
BEAT_SECONDS = 1.0
SILENT_BEATS = 60
"""A worker that has heard nothing of the driver for so many of its beats takes it for gone."""
_log = logging.getLogger("streamjoin.exchange")


@dataclass(frozen=True)
class Settings:
    """Where a worker belongs; pickled, as Spark brings it to where the worker is to be."""

    place: int
    driver: str
    """``host:port``."""
    security: Security
    ports: tuple[int, ...] = (0,)
    """Where it may take pieces."""


class Worker:
    """See the module."""

    def __init__(
        self,
        settings: Settings,
        host: str,
        *,
        executor: str = "",
        died: str | None = None,
        called: Callable[[], object] = lambda: None,
        worked: Callable[[], object] = lambda: None,
    ) -> None:
        """``host``: the address to take pieces at. ``called`` is called when the driver has answered, ``worked`` when a part of an epoch is
        done. Raises OSError when no port of the settings is free."""
        self._settings, self._executor, self._died, self._called, self._worked = settings, executor, died, called, worked
        self._exchange = Exchange(host, settings.security, ports=settings.ports)
        self._store = RunStore()
        self._shared: dict[str, Shared] = {}
        """By identity, as the driver has sent them."""
        self._routing = ThreadPoolExecutor(1, thread_name_prefix="routing")
        self._joining = ThreadPoolExecutor(1, thread_name_prefix="joining")
        self._answering = ThreadPoolExecutor(1, thread_name_prefix="answering")
        self._heard_at = time.monotonic()
        self._has_heard = False
        """Whether the driver has said anything on this connection."""
        self._done = 0
        self._begun = self._answered = 0
        """Attempts: each number is one thread's to change."""
        self._ended = False
        """The driver needs this worker no more."""

    def serve(self) -> None:
        """Work until the driver ends this, or is gone."""
        try:
            lost_at = time.monotonic()
            while not self._ended and time.monotonic() < lost_at + RECONNECT_SECONDS:
                if asyncio.run(self._converse()):
                    lost_at = time.monotonic()
                else:
                    time.sleep(RECONNECT_EVERY_SECONDS)
        finally:
            self._exchange.close()

    async def _converse(self) -> bool:
        """Do as the driver says until it ends this or the connection breaks; whether the driver has answered."""
        self._heard_at, self._has_heard = time.monotonic(), False
        try:
            connection = await call(self._settings.driver, self._settings.security, lambda connection: partial(self._hear, connection))
        except OSError:
            return False
        # With the connection before, the driver has given up what was to be answered.
        self._exchange.fail_all(Abandoned("the connection to the driver broke"))
        connection.say(encode(self._hello()))
        silent, done, answered, is_leaving = 0, self._done, self._answered, False
        while not (await asyncio.wait({connection.over}, timeout=BEAT_SECONDS))[0]:
            if self._done > done and self._begun == self._answered == answered:
                done = self._done
                self._joining.submit(pa.default_memory_pool().release_unused)  # in a pause
            answered = self._answered
            connection.say(encode(Beat(self._exchange.moved + self._done)))
            if not is_leaving and (left := seconds_left()) is not None:
                connection.say(encode(Leaving(left)))
                is_leaving = True
            silent = silent + 1 if time.monotonic() - self._heard_at > 2 * BEAT_SECONDS else 0
            if silent > SILENT_BEATS:
                connection.abort()
        if isinstance(connection.failure, TamperedError):  # as if it had broken: what this holds is as it was
            _log.error("the connection to the driver: %s", connection.failure)
        elif connection.failure is not None:
            raise connection.failure
        return self._has_heard

    def _hello(self) -> Hello:
        place, address = self._settings.place, self._exchange.address
        return Hello(place, address, os.getpid(), socket.gethostname(), self._executor, self._died)

    def _hear(self, connection: Connection, said: bytes) -> None:
        message = decode(said)
        if not self._has_heard:
            self._called()
        self._heard_at, self._has_heard = time.monotonic(), True
        self._died = None  # the driver knows
        if isinstance(message, Work):
            assignment = self._assignment(message)
            speakers, rounds = _speakers(message, assignment)
            self._exchange.begin(message.attempt, list(assignment.splits), speakers, rounds)
            self._begun += 1
            routed = self._routing.submit(self._route, message, assignment)
            joined = self._joining.submit(self._join, message, assignment)
            self._answering.submit(self._answer, message, joined, routed, connection)
        elif isinstance(message, Abandon):
            self._exchange.fail(message.attempt, Abandoned(f"attempt {message.attempt} was abandoned"))
        elif isinstance(message, End):
            self._ended = True
            connection.close()

    def _assignment(self, work: Work) -> Assignment:
        for identity in work.forget:
            self._shared.pop(identity, None)
        self._shared |= {shared.identity: shared for shared in work.shares}
        assignment: Assignment = decode(work.assignment)
        return replace(assignment, spec=assignment.spec.with_shared(lambda shared: self._shared[shared.identity]))

    def _route(self, work: Work, assignment: Assignment) -> None:
        """Send the pieces of our splits. A failure is the join's, which waits for them."""
        exchange, attempt, own = self._exchange, work.attempt, self._exchange.address
        try:
            receivers = list(dict.fromkeys(assignment.addresses))
            exchange.keep_links(receivers)
            if own not in assignment.splits:
                return
            exchange.connect(attempt, receivers)
            for index in assignment.splits[own]:
                for piece in route(assignment.spec, index):
                    if piece.area < 0:  # the split's report goes with ours
                        exchange.send(attempt, own, replace(piece, task=work.tasks[0]))
                    else:
                        exchange.send(attempt, assignment.addresses[piece.task], piece)
            exchange.end(attempt, receivers)
        except Exception as error:
            exchange.fail(attempt, error)

    def _join(self, work: Work, assignment: Assignment) -> list[Joined]:  # noqa: C901
        if is_handshake(assignment.spec):
            return self._join_chain(work, assignment)
        exchange, attempt = self._exchange, work.attempt
        everyone, rounds = list(dict.fromkeys(assignment.addresses)), rounds_among_tasks(assignment.spec)
        parts: dict[int, Part] = {}
        joined: list[Joined] = []
        seconds: float | None = None
        """How long the round before took."""

        def send(pieces: Iterable[Piece], number: int = TUPLES) -> None:
            """Send what comes of a round. What came of later ones meanwhile goes first, so that little of it waits here."""
            going_on = [(number, iter(pieces))]
            while going_on:
                number, pieces = going_on[-1]
                piece = next(pieces, None)
                if piece is None:
                    going_on.pop()
                    continue
                exchange.send(attempt, assignment.addresses[piece.task], piece)
                came = exchange.arrived(attempt, parts, above=number)
                if came is not None:
                    going_on.append((came.round, parts[came.task].take(came)))

        try:
            if rounds:
                exchange.connect(attempt, everyone, CONVERSATION)
            for task in work.tasks:
                parts[task] = Part.begun(assignment.spec, task, exchange.pieces(attempt, [task]), self._store)
                self._done += 1
            for part in parts.values():
                send(part.work())
                self._done += 1
            for number in range(rounds):
                began = time.perf_counter()
                for part in parts.values():
                    send(part.close(number, seconds), number)
                exchange.end(attempt, everyone, number + 1)
                for piece in exchange.pieces(attempt, work.tasks, number + 1, later=True):
                    send(parts[piece.task].take(piece), piece.round)
                seconds = time.perf_counter() - began
                self._done += 1
            for part in parts.values():
                send(part.close(rounds, seconds), rounds)
                joined.append(part.finish())
                self._done += 1
        except BaseException:
            for part in parts.values():
                part.abandon()
            raise
        return joined

    def _join_chain(self, work: Work, assignment: Assignment) -> list[Joined]:
        """As ``_join``, where workers stand in a chain."""
        exchange, attempt = self._exchange, work.attempt
        speakers, _ = _speakers(work, assignment)
        links: dict[int, Link] = {}

        def send(pieces: Iterable[Piece]) -> None:
            addresses = set()
            for piece in pieces:
                addresses.add(address := assignment.addresses[piece.task])
                exchange.send(attempt, address, piece)
            exchange.flush(attempt, addresses, CONVERSATION)

        try:
            exchange.connect(attempt, speakers, CONVERSATION)
            for task in work.tasks:
                links[task] = Link.begun(assignment.spec, task, exchange.pieces(attempt, [task]), self._store)
                self._done += 1
            for link in links.values():
                send(link.begin())
            pieces = exchange.pieces(attempt, work.tasks, CONVERSATION, each=True)
            while not all(link.is_over for link in links.values()):
                piece = next(pieces)
                send(links[piece.task].hear(piece))
                self._done += 1
            exchange.end(attempt, speakers, CONVERSATION)
            for piece in pieces:
                raise ExchangeError(f"a worker of the chain spoke to task {piece.task} when all was said")
            return [link.finish() for link in links.values()]
        except BaseException:
            for link in links.values():
                link.abandon()
            raise

    def _answer(self, work: Work, joined: Future[list[Joined]], routed: Future[None], connection: Connection) -> None:
        attempt = work.attempt
        answer: Done | Failed
        try:
            answer = Done(attempt, reports_of(joined.result()))
            self._worked()
        except Exception as error:
            self._exchange.fail(attempt, Abandoned("its join has failed"))  # nobody need send or route any more
            answer = Failed(
                attempt,
                f"{type(error).__name__}: {told(error)}",
                traceback.format_exc(),
                permanent=isinstance(error, SourceError),
                too_large=too_large_of(error),
                abandoned=isinstance(error, (Abandoned, ExchangeError)),
            )
        routed.exception()
        self._exchange.finish(attempt)
        connection.say(encode(answer))
        self._answered += 1


def _speakers(work: Work, assignment: Assignment) -> tuple[list[str], int]:
    """The addresses of the workers that speak with this one while they join, and in how many rounds of the exchange."""
    if not is_handshake(assignment.spec):
        return list(assignment.addresses), rounds_among_tasks(assignment.spec)
    tasks = chain.from_iterable(neighbours_of(assignment.spec, task) for task in work.tasks)
    return list(dict.fromkeys(assignment.addresses[task] for task in tasks)), 1


def serve(
    settings: Settings,
    *,
    executor: str = "",
    died: str | None = None,
    called: Callable[[], object] = lambda: None,
    worked: Callable[[], object] = lambda: None,
) -> None:
    """Be the worker of this place until the driver ends it, or is gone (see :class:`Worker`)."""
    run.warm()
    host = _own_address(settings.driver)
    if host is not None:
        Worker(settings, host, executor=executor, died=died, called=called, worked=worked).serve()


def _own_address(driver: str) -> str | None:
    """The address of this machine, or pod, by which the driver's is reached; None when the driver is gone."""
    deadline = time.monotonic() + RECONNECT_SECONDS
    while True:
        try:
            with socket.create_connection(parts_of(driver), timeout=RECONNECT_SECONDS) as connection:
                return str(connection.getsockname()[0])
        except OSError:
            if time.monotonic() > deadline:
                return None
            time.sleep(RECONNECT_EVERY_SECONDS)
