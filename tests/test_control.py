"""The control channel over real connections: who is let in, that all that is said arrives in order, and what ends a connection."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from certificates import Authority
from meddler import Meddler, changes
from streamjoin.endpoint import endpoint, parts_of
from streamjoin.runner import control as module
from streamjoin.runner.control import PURPOSE, Connection, ControlServer, call
from streamjoin.runner.proof import NONCE_BYTES, PROOF_BYTES
from streamjoin.runner.seal import CODE_BYTES, TamperedError
from streamjoin.runner.security import Gate, Security, Tls
from waiting import PATIENCE_SECONDS, wait_for

SECURITY = Security(b"an application's secret")


class Heard:
    """Keeps what it hears; asked to, answers or fails."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.messages: list[bytes] = []
        self.is_closed = False
        connection.over.add_done_callback(self.closed)

    def heard(self, message: bytes) -> None:
        self.messages.append(message)
        if message.startswith(b"echo "):
            self.connection.say(message.removeprefix(b"echo "))
        if message == b"fail":
            raise ValueError("a message that cannot be taken")

    def closed(self, over: object) -> None:
        assert not self.is_closed
        self.is_closed = True


class Driver:
    """A driver's end, and who has called it."""

    def __init__(self, security: Security = SECURITY, host: str = "127.0.0.1") -> None:
        self.callers: list[Heard] = []
        self.gate = Gate()
        self.server = ControlServer(security, self.gate, self._listen, host=host)
        self.address = endpoint(host, self.server.port)

    def _listen(self, connection: Connection) -> Callable[[bytes], None]:
        self.callers.append(Heard(connection))
        return self.callers[-1].heard

    def knock(self) -> socket.socket:
        return socket.create_connection(parts_of(self.address), timeout=PATIENCE_SECONDS)


class Caller:
    """A worker's end, in a thread of its own as long as the connection lasts. Raises what ``call`` does."""

    def __init__(self, address: str, security: Security = SECURITY) -> None:
        self._called = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._call(address, security)), daemon=True)
        self._thread.start()
        assert self._called.wait(PATIENCE_SECONDS)
        if self._failure is not None:
            raise self._failure

    async def _call(self, address: str, security: Security) -> None:
        try:
            self.connection = await call(address, security, self._listen)
        except Exception as error:
            self._failure = error
            return
        finally:
            self._called.set()
        await asyncio.wait({self.connection.over})

    def _listen(self, connection: Connection) -> Callable[[bytes], None]:
        self.heard = Heard(connection)
        return self.heard.heard

    def ended(self) -> bool:
        return not self._thread.is_alive()


@pytest.fixture
def make() -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def one(*arguments: object, **named: object) -> Driver:
        made.append(Driver(*arguments, **named))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for driver in made:
        driver.server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_is_said_arrives_in_order_and_whole(make: Callable[..., Driver], host: str) -> None:
    driver = make(host=host)
    caller = Caller(driver.address)
    sizes = [0, 1, 7, 8, 9, 1000, 1 << 16, (1 << 16) + 1, 5 << 20, 3]
    said = [bytes([number]) * size for number, size in enumerate(sizes)]
    for message in said:
        caller.connection.say(message)
    wait_for("all messages", lambda: driver.callers and driver.callers[0].messages == said)
    for message in said:
        driver.callers[0].connection.say(message)
    wait_for("all messages", lambda: caller.heard.messages == said)
    caller.connection.close()
    wait_for("both ends", lambda: driver.callers[0].is_closed and caller.heard.is_closed and caller.ended())
    driver.callers[0].connection.say(b"too late")  # is no error


def test_many_threads_and_many_connections_do_not_mix(make: Callable[..., Driver]) -> None:
    driver = make()
    callers = [Caller(driver.address) for _ in range(30)]

    def speak(thread: int) -> None:
        for number in range(50):
            for index, caller in enumerate(callers):
                caller.connection.say(f"echo {index} {thread} {number}".encode())

    threads = [threading.Thread(target=speak, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    wait_for("all answers", lambda: all(len(caller.heard.messages) == 200 for caller in callers))
    for index, caller in enumerate(callers):
        words = [[int(word) for word in message.split()] for message in caller.heard.messages]
        assert {word[0] for word in words} == {index}
        for thread_ in range(4):
            assert [number for _, thread, number in words if thread == thread_] == list(range(50))


def test_what_was_said_before_the_end_still_arrives(make: Callable[..., Driver]) -> None:
    driver = Driver()
    caller = Caller(driver.address)
    wait_for("the call", lambda: driver.callers)
    driver.callers[0].connection.say(b"x" * (8 << 20))
    driver.callers[0].connection.say(b"the last")
    driver.server.close()
    wait_for("the end", caller.ended)
    assert [len(message) for message in caller.heard.messages] == [8 << 20, 8]
    with pytest.raises(OSError, match="refused"):
        driver.knock()


def test_the_driver_ends_although_a_worker_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.2)
    driver = Driver()
    reading = threading.Event()

    class Deaf(Heard):
        def heard(self, message: bytes) -> None:
            reading.wait(PATIENCE_SECONDS)

    async def hang() -> None:
        connection = await call(driver.address, SECURITY, lambda connection: Deaf(connection).heard)
        await asyncio.wait({connection.over})

    thread = threading.Thread(target=lambda: asyncio.run(hang()), daemon=True)
    thread.start()
    wait_for("the call", lambda: driver.callers)
    driver.callers[0].connection.say(b"listen")
    for _ in range(40):
        driver.callers[0].connection.say(bytes(1 << 20))  # returns at once, although nobody reads
    driver.server.close()
    assert driver.callers[0].is_closed
    reading.set()
    thread.join(PATIENCE_SECONDS)


def test_a_stranger_is_refused_counted_and_logged_once_a_minute(make: Callable[..., Driver], caplog: pytest.LogCaptureFixture) -> None:
    driver = make()
    friend = Caller(driver.address)
    with caplog.at_level(logging.WARNING, "streamjoin.exchange"):
        for _ in range(5):
            with pytest.raises(ConnectionError, match="did not prove"):
                Caller(driver.address, Security(b"another"))
        wait_for("the count", lambda: driver.gate.refused == 5)
    assert len(caplog.messages) == 1
    assert "another" not in caplog.text
    assert len(driver.callers) == 1
    friend.connection.say(b"echo still here")
    wait_for("the answer", lambda: friend.heard.messages == [b"still here"])


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(4096), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100, b"x"], ids=len
)
def test_garbage_ends_its_own_connection_only(make: Callable[..., Driver], garbage: bytes) -> None:
    driver = make()
    friend = Caller(driver.address)
    with driver.knock() as stranger:
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        came = b""
        try:
            while data := stranger.recv(4096):
                came += data
        except ConnectionResetError:
            pass
    assert came[: len(PURPOSE)] in (PURPOSE, b"")
    assert len(came) <= len(PURPOSE) + NONCE_BYTES, "nothing that depends on the secret"
    wait_for("the count", lambda: driver.gate.refused == 1)
    friend.connection.say(b"echo still here")
    wait_for("the answer", lambda: friend.heard.messages == [b"still here"])


def test_who_connects_and_says_nothing_is_cut_off_and_who_only_looks_is_not_counted(
    make: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROOF_SECONDS", 0.3)
    driver = make()
    with driver.knock() as silent:
        while silent.recv(4096):  # until the driver has had enough
            pass
    monkeypatch.setattr(module, "PROOF_SECONDS", PATIENCE_SECONDS)
    driver.knock().close()
    friend = Caller(driver.address)
    friend.connection.say(b"echo hello")
    wait_for("the answer", lambda: friend.heard.messages == [b"hello"])
    assert driver.gate.refused == 0
    assert len(driver.callers) == 1


def test_a_proof_that_was_overheard_is_worth_nothing(make: Callable[..., Driver]) -> None:
    """Each connection has another, whichever end repeats what the other end said before."""
    driver = make()
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def relay() -> None:
            near, _ = listener.accept()
            with near, driver.knock() as far:
                near.sendall(far.recv(4096))
                heard.extend(near.recv(4096))
                far.sendall(heard)
                near.sendall(far.recv(4096))

        relaying = threading.Thread(target=relay, daemon=True)
        relaying.start()
        Caller(f"127.0.0.1:{listener.getsockname()[1]}")
        relaying.join(PATIENCE_SECONDS)
    assert len(heard) == NONCE_BYTES + PROOF_BYTES
    wait_for("the call", lambda: driver.callers)  # the caller knows the driver before that has taken its call
    assert len(driver.callers) == 1
    with driver.knock() as again:
        again.sendall(heard)
        again.recv(4096)
        assert again.recv(4096) == b""
    with driver.knock() as mirror:  # the driver's own bytes, as if they were a worker's
        greeting = mirror.recv(4096)
        mirror.sendall(greeting[len(PURPOSE) :] * 2)
        assert mirror.recv(4096) == b""
    assert len(driver.callers) == 1


def size_of(came: bytes) -> int | None:
    """A message's, with its length and codes."""
    return None if len(came) < 8 else 8 + CODE_BYTES + (length := int.from_bytes(came[:8], "little")) + (CODE_BYTES if length else 0)


def without_key(content: bytes) -> bytes:
    return len(content).to_bytes(8, "little") + bytes(2 * CODE_BYTES) + content


CHANGES = changes(without_key)


@pytest.mark.parametrize("from_caller", [True, False], ids=["a worker's", "the driver's"])
@pytest.mark.parametrize("change", CHANGES)
def test_who_changes_messages_between_two_ends_that_proved_themselves_is_noticed(
    make: Callable[..., Driver], change: str, from_caller: bool
) -> None:
    driver = make()
    said = [bytes([number]) * 40 for number in range(6)]
    with Meddler(driver.address, PURPOSE, size_of, changes(without_key)[change], from_caller=from_caller) as between:
        caller = Caller(between.address)
        wait_for("the call", lambda: driver.callers)
        ends = [caller.heard, driver.callers[0]]
        speaking, hearing = ends if from_caller else reversed(ends)
        for message in said:
            speaking.connection.say(message)
        wait_for("both ends", lambda: driver.callers[0].is_closed and caller.heard.is_closed and caller.ended())
    assert hearing.messages == said[: len(hearing.messages)], "nothing of another, and nothing in another order"
    assert len(hearing.messages) in ((0,) if change == "reorders" else (2, 3))
    assert isinstance(hearing.connection.failure, TamperedError)
    assert "altered, injected, repeated" in str(hearing.connection.failure)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10, PURPOSE + bytes(NONCE_BYTES + PROOF_BYTES), b""], ids=len)
def test_a_worker_does_not_take_another_for_the_driver(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(OSError, match=r"did not prove|reset"):
            Caller(address)
    with pytest.raises(ConnectionRefusedError):
        Caller(address)


def test_a_message_that_cannot_be_taken_ends_its_connection(make: Callable[..., Driver]) -> None:
    driver = make()
    one, other = Caller(driver.address), Caller(driver.address)
    one.connection.say(b"fail")
    one.connection.say(b"more")
    wait_for("the end", one.ended)
    wait_for("the end", lambda: any(caller.is_closed for caller in driver.callers))
    failed = next(caller for caller in driver.callers if caller.is_closed)
    assert isinstance(failed.connection.failure, ValueError)
    assert failed.messages == [b"fail"]
    other.connection.say(b"echo still here")
    wait_for("the answer", lambda: other.heard.messages == [b"still here"])


def test_over_tls_only_certificates_of_the_authority_are_taken(
    make: Callable[..., Driver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROOF_SECONDS", 2.0)
    for name in ("ours", "theirs"):
        Authority(tmp_path / name).issue("streamjoin")
    ours, theirs = (Security(b"the same", Tls.of(tmp_path / name, "streamjoin")) for name in ("ours", "theirs"))
    driver = make(ours)
    for other in (theirs, Security(b"the same", Tls.of(tmp_path / "ours", "another-name"))):
        with pytest.raises(OSError, match="certificate verify failed"):
            Caller(driver.address, other)
    with pytest.raises(TimeoutError):  # without TLS it waits for the driver's first word
        Caller(driver.address, Security(b"the same"))
    monkeypatch.setattr(module, "PROOF_SECONDS", PATIENCE_SECONDS)
    friend = Caller(driver.address, ours)
    said = bytes(range(256)) * 20_000
    friend.connection.say(b"echo " + said)
    wait_for("the answer", lambda: friend.heard.messages == [said])
    assert len(driver.callers) == 1


def test_a_certificate_that_is_renewed_is_shown_to_those_who_call_then(
    make: Callable[..., Driver], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Authority(tmp_path).issue("streamjoin")
    security = Security(b"the same", Tls.of(tmp_path, "streamjoin"))
    driver = make(security)
    early = Caller(driver.address, security)
    Authority(tmp_path).issue("another-name")  # of an authority that is new, too, and not for us
    with pytest.raises(OSError, match="certificate verify failed"):
        Caller(driver.address, security)
    assert "tls.crt is refused: Hostname mismatch" in " ".join(caplog.messages)
    assert "the old one goes on" in " ".join(caplog.messages)
    (tmp_path / "tls.key").unlink()
    with pytest.raises(OSError, match="certificate verify failed"):
        Caller(driver.address, security)
    assert "tls.key" in " ".join(caplog.messages)
    Authority(tmp_path).issue("streamjoin")
    late = Caller(driver.address, security)
    for caller in (early, late):
        caller.connection.say(b"echo x")
        wait_for("the answer", lambda caller=caller: caller.heard.messages == [b"x"])


def test_a_port_that_another_has_is_an_error(make: Callable[..., Driver]) -> None:
    with pytest.raises(OSError, match="in use"):
        ControlServer(SECURITY, Gate(), lambda connection: Heard(connection).heard, host="127.0.0.1", port=make().server.port)
