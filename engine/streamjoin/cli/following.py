"""``streamjoin query URL --follow``: a client of ``GET /v1/queries/{join}`` that comes again by itself when the connection ends.

Always holds: rows are printed once the event that has them is whole, and the next connection goes on after the last such event: none is
missed, and none is printed twice.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click

from streamjoin.cli.exits import Exit, Failure
from streamjoin.cli.remote import authorization, connected, refusal, unreachable
from streamjoin.cli.wording import plural
from streamjoin.query.continuous import Continuous, Position
from streamjoin.query.errors import QueryError, Why

if TYPE_CHECKING:
    from streamjoin.cli.query import Options
    from streamjoin.query.execution import Stop

SILENT_SECONDS = 60.0
"""A server says something every 15 seconds; one that does not for so long is asked anew."""
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 5.0
"""The pause before a server is asked again; it doubles each time."""
POLL_SECONDS = 0.1
ENDED = "the join has ended"
MARK = "\x1e"
"""Begins a line with the position behind the rows before it, for a program that reads them."""
_AGAIN = (Why.BUSY.value, Why.STORAGE.value, Why.SLOW.value)
"""Errors that may be none when it is asked again."""

PrintRows = Callable[[Sequence[tuple[str, bool]], Iterable[Sequence[str | None]]], None]


@dataclass
class Event:
    """A server-sent event; one without data is there for its id alone."""

    kind: str = "message"
    id: str | None = None
    data: str | None = None


class _Lost(Exception):  # noqa: N818
    """The connection has ended, or cannot be made for now."""


class _Number(str):
    """A number as JSON has it, digit for digit."""

    __slots__ = ()
    __repr__ = str.__str__


def position_of(after: str) -> Position:
    """Raises Failure."""
    try:
        return Position.parse(after, "--after")
    except QueryError as error:
        raise Failure(Exit.USAGE, str(error)) from error


def follow_server(options: Options, after: Position | None, stop: Stop, print_rows: PrintRows) -> None:  # noqa: C901
    """Print rows as they come, until the join has ended or somebody asks to stop. Raises Failure, KeyboardInterrupt.

    A server that was heard and is not any more is asked again for as long as ``options.seconds``.
    """
    from streamjoin.query.following import read_select

    if not options.follow or options.rows is not None:
        what = "--limit" if options.follow else "--after without --follow"
        raise Failure(Exit.USAGE, f"{what}: is for the storage; at a server, ask with WHERE _snapshot > ... and LIMIT, or --follow it")
    try:
        query = read_select(options.sql)
    except QueryError as error:
        raise Failure(Exit.USAGE, str(error)) from error
    if options.is_relayed:
        threading.Thread(target=_end_with_input, args=(stop,), name="input", daemon=True).start()
    last_id = None if after is None else str(after)
    failing_since: float | None = None
    pause, was_heard = FIRST_PAUSE_SECONDS, False
    while True:
        try:
            for event in _events(options, query, last_id, stop):
                if event.kind == "error":
                    raise _Lost(_again(event))
                failing_since, pause, was_heard = None, FIRST_PAUSE_SECONDS, True
                last_id = event.id or last_id
                if event.kind == "message" and event.data is not None:
                    _print(options, event.data, print_rows)
                    if not options.is_relayed:
                        click.echo(f"up to snapshot {event.id}: {plural(event.data.count(chr(10)) + 1, 'row')}", err=True)
                if options.is_relayed and event.id is not None:
                    click.echo(f"{MARK}{event.id}")
                if event.kind == "end":
                    click.echo(ENDED, err=True)
                    return
                stop.wait(0)
        except _Lost as lost:
            failing_since = failing_since or time.monotonic()
            if not was_heard or time.monotonic() - failing_since > options.seconds:
                raise unreachable(options.target, lost) from lost
        stop.wait(pause)
        pause = min(2 * pause, MOST_PAUSE_SECONDS)


def _end_with_input(stop: Stop) -> None:
    while os.read(0, 1 << 10):
        pass
    stop.ask_between()


def _events(options: Options, query: Continuous, last_id: str | None, stop: Stop) -> Iterator[Event]:
    """The events of one connection, whole ones alone. Raises Failure, KeyboardInterrupt, and _Lost unless the server ends it in order."""
    given = {"select": query.select} | ({} if query.where is None else {"where": query.where})
    given |= {} if last_id is None else {"after": last_id}
    path = f"/v1/queries/{quote(query.join, safe='')}?{urlencode(given, quote_via=quote)}"
    headers = {"Accept": "text/event-stream"} | authorization(options.token_file)
    try:
        connection, before = connected(options.target, SILENT_SECONDS)
        try:
            connection.request("GET", before + path, headers=headers)
            client = connection.sock
            response = connection.getresponse()
            if response.status == HTTPStatus.OK:
                yield from parsed(_chunks(response, client, stop))
                return
            refused = refusal(options.target, response.status, response.read())
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _Lost(str(error) or type(error).__name__) from error
    if response.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT, HTTPStatus.BAD_GATEWAY):
        raise _Lost(refused.sentence)
    raise refused


def _chunks(response: http.client.HTTPResponse, client: socket.socket, stop: Stop) -> Iterator[bytes]:
    """What comes, as it comes; raises TimeoutError after a long silence, and KeyboardInterrupt where somebody asks to stop."""
    heard_at = time.monotonic()
    is_read = False  # with the headers more may have come than select can tell
    while True:
        pending = getattr(client, "pending", int)()  # of TLS, likewise
        if is_read and not pending and not select.select([client], [], [], POLL_SECONDS)[0]:
            stop.wait(0)
            if time.monotonic() - heard_at > SILENT_SECONDS:
                raise TimeoutError(f"nothing was heard for {SILENT_SECONDS:g} s")
            continue
        chunk = response.read1(1 << 16)
        if not chunk:
            return
        is_read, heard_at = True, time.monotonic()
        yield chunk


def parsed(chunks: Iterator[bytes]) -> Iterator[Event]:
    """The events of a stream (WHATWG HTML, 9.2.6) whose lines end with a line feed alone. One that is not ended is none. O(bytes)."""
    event, data, rest = Event(), list[str](), list[bytes]()
    for chunk in chunks:
        *lines, last = chunk.split(b"\n")
        for end in lines:
            line = b"".join((*rest, end))
            rest.clear()
            name, _, value = line.decode().partition(":")
            value = value.removeprefix(" ")
            if not line:
                event.data = "\n".join(data) if data else None
                if event != Event():
                    yield event
                event, data = Event(), []
            elif name == "data":
                data.append(value)
            elif name == "id":
                event.id = value
            elif name == "event":
                event.kind = value
        rest.append(last)


def _print(options: Options, data: str, print_rows: PrintRows) -> None:
    if options.as_json:
        click.echo(data)
        return
    rows = [json.loads(line, parse_int=_Number, parse_float=_Number) for line in data.split("\n")]
    is_number = {name: all(row[name] is None or isinstance(row[name], _Number) for row in rows) for name in rows[0]}
    print_rows(list(is_number.items()), ([_text(row[name]) for name in is_number] for row in rows))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _again(event: Event) -> str:
    """Why it is to be asked again. Raises Failure where that would not help."""
    told = json.loads(event.data or "{}")
    if told.get("reason") not in _AGAIN:
        raise Failure(Exit.USAGE if told.get("reason") == Why.WRONG else Exit.FAILED, str(told.get("error")))
    return str(told.get("error"))
