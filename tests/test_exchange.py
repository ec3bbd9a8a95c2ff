"""The exchange between workers: pieces, marks, attempts that are over, and connections that break, stall or come from strangers."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cable import Cable
from certificates import Authority
from meddler import Meddler, changes
from streamjoin.epoch.spec import Piece
from streamjoin.runner import exchange as module
from streamjoin.runner import seal, streams
from streamjoin.runner.control import ControlServer
from streamjoin.runner.exchange import Abandoned, Exchange
from streamjoin.runner.seal import CODE_BYTES, MOST_BYTES, Seal, TamperedError, codes_size
from streamjoin.runner.security import Gate, Security, Tls
from streamjoin.runner.streams import HEADER, NOTHING, READ_BYTES, TOGETHER_BYTES, ExchangeError
from waiting import PATIENCE_SECONDS, wait_for

SECURITY = Security(b"the application's")
BEAT = 0.05


@pytest.fixture
def make() -> Iterator[Callable[..., Exchange]]:
    made: list[Exchange] = []

    def one(security: Security = SECURITY) -> Exchange:
        made.append(Exchange("127.0.0.1", security, beat_seconds=BEAT))
        return made[-1]

    yield one
    with ThreadPoolExecutor(len(made) + 1) as pool:  # each waits for the others' streams to end
        list(pool.map(Exchange.close, made))


def piece(task: int, value: int, size: int = 100) -> Piece:
    return Piece(task, value, value % 2, pa.py_buffer(np.full(size, value % 251, np.uint8)))


def send_many(sender: Exchange, address: str) -> None:
    """Enough that a connection that is gone is noticed."""
    for number in range(10_000):
        sender.send(0, address, piece(0, number))


def contents(pieces: Iterator[Piece]) -> list[tuple[int, int, int, bytes]]:
    return sorted((one.task, one.area, one.place, one.data.to_pybytes()) for one in pieces)


def test_every_receiver_gets_every_senders_pieces_and_no_others(make: Callable[..., Exchange]) -> None:
    workers = [make() for _ in range(3)]
    addresses = [worker.address for worker in workers]
    rng = np.random.default_rng(1)
    for attempt in range(5):
        sent: list[list[Piece]] = [[] for _ in workers]
        for worker in workers:
            worker.begin(attempt, addresses[:2])  # the third only receives
        for sender in workers[:2]:
            for number in range(int(rng.integers(0, 40))):
                task = int(rng.integers(0, 3))
                one = piece(task, number, int(rng.integers(0, 100_000)))
                sender.send(attempt, addresses[task], one)
                sent[task].append(one)
            sender.end(attempt, addresses)
        for task, worker in enumerate(workers):
            assert contents(worker.pieces(attempt, [task])) == contents(iter(sent[task]))
            worker.finish(attempt)


def test_two_tasks_of_one_worker_get_their_own(make: Callable[..., Exchange]) -> None:
    sender, receiver = make(), make()
    receiver.begin(0, [sender.address])
    sender.begin(0, [sender.address])
    for number in range(10):
        sender.send(0, receiver.address, piece(number % 2, number))
    sender.end(0, [receiver.address])
    for task in (0, 1):
        assert [one.area for one in receiver.pieces(0, [task])] == list(range(task, 10, 2))


def of_round(number: int, value: int, size: int = 100) -> Piece:
    return replace(piece(0, value, size), round=number)


def test_what_has_come_of_later_rounds_is_taken_first_and_each_round_ends_by_itself(make: Callable[..., Exchange]) -> None:
    sender, receiver = make(), make()
    for one in (sender, receiver):
        one.begin(0, [sender.address], [sender.address], rounds=3)
    for number, value in ((1, 10), (2, 20), (1, 11), (3, 30), (2, 21)):
        sender.send(0, receiver.address, of_round(number, value))
    sender.end(0, [receiver.address], 0)
    sender.end(0, [receiver.address], 1)
    wait_for("all has come", lambda: receiver.buffered(0) == 500)
    assert list(receiver.pieces(0, [0])) == [], "nothing is given before its round"
    first = receiver.arrived(0, [0], above=1)
    assert first is not None
    assert (first.round, first.area) == (3, 30)
    assert receiver.arrived(0, [1], above=0) is None
    assert receiver.arrived(0, [0], above=2) is None
    assert [one.area for one in receiver.pieces(0, [0], 1, later=True)] == [20, 21, 10, 11]
    sender.send(0, receiver.address, of_round(2, 22))
    sender.end(0, [receiver.address], 2)
    assert [one.area for one in receiver.pieces(0, [0], 2, later=True)] == [22]


def test_beyond_its_bound_what_tasks_send_each_other_waits_in_scratch_files(
    make: Callable[..., Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamjoin.runner.exchange.SETTLE_BYTES", 1 << 20)
    sender, receiver = make(), make()
    for one in (sender, receiver):
        one.begin(0, [sender.address], [sender.address], rounds=1)
    sizes = [1 << 19] * 20
    for value, size in enumerate(sizes):
        sender.send(0, receiver.address, of_round(1, value, size))
    sender.end(0, [receiver.address], 0)
    sender.end(0, [receiver.address], 1)
    list(receiver.pieces(0, [0]))
    wait_for("the round is over", lambda: not receiver._attempts[0].missing(1))
    assert receiver.buffered(0) <= (1 << 20) + (1 << 19), "in memory"
    assert contents(receiver.pieces(0, [0], 1)) == contents(of_round(1, value, size) for value, size in enumerate(sizes))
    assert receiver.buffered(0) == 0


def test_what_comes_for_an_attempt_that_is_over_is_dropped(make: Callable[..., Exchange]) -> None:
    sender, receiver = make(), make()
    for one in (sender, receiver):
        for attempt in (0, 1):
            one.begin(attempt, [sender.address])
    sender.send(0, receiver.address, piece(0, 1))
    receiver.finish(0)
    sender.send(0, receiver.address, piece(0, 2))
    sender.end(0, [receiver.address])
    sender.send(1, receiver.address, piece(0, 3))
    sender.end(1, [receiver.address])
    assert [one.area for one in receiver.pieces(1, [0])] == [3]
    with pytest.raises(Abandoned):
        list(receiver.pieces(0, [0]))


def test_an_attempt_that_is_abandoned_wakes_who_waits_and_who_sends(make: Callable[..., Exchange]) -> None:
    sender, receiver = make(), make()
    receiver.begin(0, [sender.address])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: list(receiver.pieces(0, [0])))
        receiver.fail(0, Abandoned("given up"))
        with pytest.raises(Abandoned, match="given up"):
            waiting.result(PATIENCE_SECONDS)
    sender.begin(0, [sender.address])
    sender.fail(0, Abandoned("given up"))
    with pytest.raises(Abandoned):
        sender.send(0, receiver.address, piece(0, 1))


def test_a_sender_of_a_later_attempt_waits_while_its_receiver_is_behind(
    make: Callable[..., Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 1 << 20)
    sender, receiver = make(), make()
    for one in (sender, receiver):
        for attempt in (0, 1):
            one.begin(attempt, [sender.address])
    sender.end(0, [receiver.address])
    total = 64  # MiB, more than the connection's own buffers take
    sent = threading.Event()

    def send_all() -> None:
        for number in range(total):
            sender.send(1, receiver.address, piece(0, number, 1 << 20))
        sender.end(1, [receiver.address])
        sent.set()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_all)
        wait_for("a piece of the later attempt", lambda: receiver.buffered(1))
        assert list(receiver.pieces(0, [0])) == [], "the attempt that is worked on is not held up by the later one"
        assert not sent.is_set()
        assert receiver.buffered(1) <= 2 << 20
        receiver.finish(0)
        assert len(list(receiver.pieces(1, [0]))) == total
        sending.result(PATIENCE_SECONDS)


def test_who_waits_for_a_receiver_that_does_not_read_waits_no_longer_than_its_attempt(
    make: Callable[..., Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PATIENCE_SECONDS", 0.05)
    sender, receiver = make(), make()
    with Cable(receiver.address) as cable:
        sender.begin(0, [sender.address])
        sender.connect(0, [cable.address])
        wait_for("the stream", lambda: receiver.hears(sender.address))
        cable.freeze()
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(sender.send, 0, cable.address, piece(0, 1, 64 << 20))
            assert cable.holds.wait(PATIENCE_SECONDS)
            assert not sending.done()
            sender.fail(0, Abandoned("given up"))
            with pytest.raises(Abandoned):
                sending.result(PATIENCE_SECONDS)
        cable.mend()
        sender.begin(1, [sender.address])
        sender.connect(1, [cable.address])
        wait_for("the end of the stream that was broken off", lambda: [stream.since for stream in receiver._streams] == [1])
        receiver.finish(0)
        receiver.begin(1, [sender.address])
        sender.send(1, cable.address, piece(0, 2))
        sender.end(1, [cable.address])
        assert [one.area for one in receiver.pieces(1, [0])] == [2], "of the stream that was broken off there is nothing"


def test_who_sends_to_a_worker_that_does_not_read_does_not_keep_its_own_from_closing(make: Callable[..., Exchange]) -> None:
    sender, receiver = make(), make()
    with Cable(receiver.address) as cable:
        sender.begin(0, [sender.address])
        sender.connect(0, [cable.address])
        cable.freeze()
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(sender.send, 0, cable.address, piece(0, 1, 64 << 20))
            assert cable.holds.wait(PATIENCE_SECONDS)
            assert not sending.done()
            sender.keep_links([])
            with pytest.raises(ExchangeError, match="cannot be reached"):
                sending.result(PATIENCE_SECONDS)


def test_a_connection_that_breaks_fails_the_attempts_that_miss_its_mark_at_once(make: Callable[..., Exchange]) -> None:
    sender, receiver = make(), make()
    with Cable(receiver.address) as cable:
        receiver.begin(0, [sender.address])
        sender.begin(0, [sender.address])
        sender.send(0, cable.address, piece(0, 1, 1 << 20))
        pieces = receiver.pieces(0, [0])
        assert next(pieces).area == 1
        cable.cut()
        with pytest.raises(ExchangeError, match="broke off before it had sent everything"):
            list(pieces)
        with pytest.raises(ExchangeError, match=f"worker at {cable.address} cannot be reached"):
            send_many(sender, cable.address)
        cable.mend()
        receiver.finish(0)
        for one in (sender, receiver):
            one.begin(1, [sender.address])
        sender.send(1, cable.address, piece(0, 7))
        sender.end(1, [cable.address])
        assert [one.area for one in receiver.pieces(1, [0])] == [7], "the next attempt has a stream of its own"


def test_a_stream_that_broke_between_two_attempts_fails_none(make: Callable[..., Exchange]) -> None:
    sender, receiver = make(), make()
    with Cable(receiver.address) as cable:
        for attempt in range(4):
            for one in (sender, receiver):
                one.begin(attempt, [sender.address])
            for number in range(attempt):
                sender.send(attempt, cable.address, piece(0, number))
            sender.end(attempt, [cable.address])
            assert [one.area for one in receiver.pieces(attempt, [0])] == list(range(attempt))
            receiver.finish(attempt)
            cable.cut()
            cable.mend()
            wait_for("the stream's end", lambda: not receiver.hears(sender.address))


def test_the_end_of_a_former_stream_fails_what_came_on_it_and_not_what_comes_on_the_next(
    make: Callable[..., Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = make(), make()
    for one in (sender, receiver):
        for attempt in (0, 1):
            one.begin(attempt, [sender.address])
    sender.send(0, receiver.address, piece(0, 1))
    sender.flush(0, [receiver.address])
    wait_for("the piece", lambda: receiver.buffered(0))
    (former,) = receiver._streams
    with monkeypatch.context() as patched:
        patched.setattr(streams.Link, "close", lambda link: None)  # it ends late
        sender._links[0, receiver.address].broken = True
        with pytest.raises(ExchangeError, match="its stream has broken"):
            send_many(sender, receiver.address)  # what was sent before may be lost
        sender.end(1, [receiver.address])
    wait_for("the next stream", lambda: any(stream.since == 1 for stream in receiver._streams))
    receiver.ended(former)
    with pytest.raises(ExchangeError, match="broke off before it had sent everything"):
        list(receiver.pieces(0, [0]))
    assert list(receiver.pieces(1, [0])) == []


def test_a_sender_that_is_silent_is_given_up(make: Callable[..., Exchange]) -> None:
    sender, receiver = make(), make()
    with Cable(receiver.address) as cable:
        receiver.begin(0, [sender.address])
        sender.begin(0, [sender.address])
        sender.send(0, cable.address, piece(0, 1, 1 << 20))
        pieces = receiver.pieces(0, [0])
        next(pieces)
        cable.freeze()
        with pytest.raises(ExchangeError, match="nothing came from the worker at"):
            list(pieces)


def test_a_sender_that_takes_its_time_is_waited_for(make: Callable[..., Exchange]) -> None:
    sender, receiver = make(), make()
    receiver.begin(0, [sender.address])
    sender.begin(0, [sender.address])
    sender.connect(0, [receiver.address])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: list(receiver.pieces(0, [0])))
        assert not waiting.done()
        with pytest.raises(TimeoutError):
            waiting.result(BEAT * module.SILENT_BEATS * 3)
        sender.end(0, [receiver.address])
        assert waiting.result(PATIENCE_SECONDS) == []


def test_a_stranger_is_refused_counted_and_logged_once_a_minute(make: Callable[..., Exchange], caplog: pytest.LogCaptureFixture) -> None:
    receiver, stranger = make(), make(Security(b"another"))
    stranger.begin(0, [stranger.address])
    receiver.begin(0, [stranger.address])
    with caplog.at_level(logging.WARNING, "streamjoin.exchange"):
        for _ in range(5):
            with pytest.raises(ExchangeError, match="secret was not shown"):
                send_many(stranger, receiver.address)
    assert receiver.gate.refused == 5
    assert len(caplog.messages) == 1
    assert "another" not in caplog.text
    assert receiver.buffered(0) == 0


def test_a_driver_is_not_taken_for_a_worker(make: Callable[..., Exchange]) -> None:
    """What proves one thing proves no other, although the secret is the same."""
    gate = Gate()
    driver = ControlServer(SECURITY, gate, lambda connection: lambda message: None, host="127.0.0.1")
    sender = make()
    sender.begin(0, [sender.address])
    with pytest.raises(ExchangeError, match="did not prove"):
        sender.connect(0, [f"127.0.0.1:{driver.port}"])
    driver.close()


def test_refusals_are_logged_with_their_number_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    gate = Gate(clock=lambda: now[0])
    with caplog.at_level(logging.WARNING, "streamjoin.exchange"):
        for _ in range(10):
            gate.refuse()
        now[0] = 61.0
        gate.refuse()
    assert [message.split()[1] for message in caplog.messages] == ["1", "10"]


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100])
def test_garbage_ends_its_own_connection_only(make: Callable[..., Exchange], garbage: bytes) -> None:
    sender, receiver = make(), make()
    for one in (sender, receiver):
        one.begin(0, [sender.address])
    sender.send(0, receiver.address, piece(0, 1))
    host, port = receiver.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    sender.end(0, [receiver.address])
    assert [one.area for one in receiver.pieces(0, [0])] == [1]


A_NAME = HEADER.pack(5, 3, *NOTHING), b"0 0 x"
NONSENSE = {
    "no name": [(HEADER.pack(0, module.PIECE, *NOTHING), b"")],
    "a name that is none": [(HEADER.pack(6, 3, *NOTHING), b"\xff\xff 1 x")],
    "another kind": [A_NAME, (HEADER.pack(0, 77, *NOTHING), b"")],
    "too much": [A_NAME, (HEADER.pack(1 << 60, module.PIECE, *NOTHING), b"")],
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_of_one_who_knows_the_secret_ends_its_own_stream_only(
    make: Callable[..., Exchange], nonsense: list[tuple[bytes, bytes]]
) -> None:
    sender, receiver = make(), make()
    for one in (sender, receiver):
        one.begin(0, [sender.address])
    sender.send(0, receiver.address, piece(0, 1))
    connection, key = streams._connected(SECURITY, receiver.address)
    with connection:
        for header, data in nonsense:
            connection.sendall(header + key.codes(header) + key.codes(data) + data)
        assert came_to_its_end(connection)
    sender.end(0, [receiver.address])
    assert [one.area for one in receiver.pieces(0, [0])] == [1]
    assert receiver.gate.refused == 0


def size_of(came: bytes) -> int | None:
    """A frame's, with its header and codes."""
    if len(came) < HEADER.size:
        return None
    (size, *_) = HEADER.unpack_from(came)
    return int(HEADER.size + CODE_BYTES + codes_size(size) + size)


def without_key(content: bytes) -> bytes:
    return HEADER.pack(len(content), module.PIECE, 0, 0, *NOTHING[2:]) + bytes(2 * CODE_BYTES) + content


@pytest.mark.parametrize("size", [100, 3 * READ_BYTES])
@pytest.mark.parametrize("change", changes(without_key))
def test_who_changes_frames_between_two_workers_that_proved_themselves_fails_the_attempt(
    make: Callable[..., Exchange], change: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = make(), make()
    for one in (sender, receiver):
        one.begin(0, [sender.address])
    with Meddler(receiver.address, streams.PURPOSE, size_of, changes(without_key)[change], from_caller=True) as between:
        came: list[Piece] = []
        with ThreadPoolExecutor(1) as pool:
            taking = pool.submit(lambda: came.extend(receiver.pieces(0, [0])))
            with contextlib.suppress(ExchangeError):  # the receiver may have hung up by then
                for number in range(6):
                    sender.send(0, between.address, piece(0, number, size))
                sender.flush(0, [between.address])
            with pytest.raises(ExchangeError, match=r"broke off|nothing came"):  # of one that has not come to its name
                taking.result(PATIENCE_SECONDS)
    assert contents(iter(came)) == contents(piece(0, number, size) for number in range(len(came)))
    assert len(came) <= 2
    assert any("altered, injected, repeated" in str(record.exc_info) for record in caplog.records)


def test_more_than_is_sealed_at_once_gets_several_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert codes_size(0) == 0
    assert codes_size(MOST_BYTES) == CODE_BYTES
    monkeypatch.setattr(seal, "MOST_BYTES", 10)
    for size in (9, 10, 11, 20, 25):
        data = bytes(range(size))
        codes = Seal(bytes(32)).codes(data)
        assert len(codes) == codes_size(size)
        Seal(bytes(32)).check(codes, data)
        for at in range(size):
            with pytest.raises(TamperedError):
                Seal(bytes(32)).check(codes, data[:at] + b"\xff" + data[at + 1 :])
        with pytest.raises(TamperedError):
            Seal(bytes(32)).check(codes[:-1], data)


def came_to_its_end(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_over_tls_only_certificates_of_the_authority_are_taken(
    make: Callable[..., Exchange], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ours", "theirs"):
        Authority(tmp_path / name).issue("streamjoin")
    ours, theirs = (Security(b"the same", Tls.of(tmp_path / name, "streamjoin")) for name in ("ours", "theirs"))
    sender, receiver, stranger, plain = make(ours), make(ours), make(theirs), make(Security(b"the same"))
    for one in (sender, receiver, stranger, plain):
        one.begin(0, [sender.address])
    with monkeypatch.context() as patched:
        patched.setattr(streams, "PROOF_SECONDS", 1.0)
        for other in (stranger, plain):
            with pytest.raises(ExchangeError):
                send_many(other, receiver.address)
    sizes = [5, 0, TOGETHER_BYTES, 1, READ_BYTES, 10 << 20, 7]
    for number, size in enumerate(sizes):
        sender.send(0, receiver.address, piece(0, number, size))
    sender.end(0, [receiver.address])
    assert contents(receiver.pieces(0, [0])) == contents(piece(0, number, size) for number, size in enumerate(sizes))


def test_a_tls_secret_without_one_of_its_files_is_named(tmp_path: Path) -> None:
    Authority(tmp_path).issue("streamjoin")
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(FileNotFoundError, match=r"spec.security.tls.secretName: .*ca.crt is missing"):
        Tls.of(tmp_path, "streamjoin")


def test_the_secret_is_in_no_representation() -> None:
    assert "application's" not in repr(SECURITY)


def test_a_piece_is_not_copied_on_its_way_to_our_own_join(make: Callable[..., Exchange]) -> None:
    worker = make()
    worker.begin(0, [worker.address])
    one = piece(0, 1, 1 << 20)
    worker.send(0, worker.address, one)
    worker.end(0, [worker.address])
    (found,) = worker.pieces(0, [0])
    assert found.data.address == one.data.address
    gc.collect()
