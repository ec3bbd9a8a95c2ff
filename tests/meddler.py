"""One who sits between two ends of a connection, knows no secret, lets them prove themselves, and then changes what one of them sends."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType

from streamjoin.endpoint import parts_of
from streamjoin.runner.proof import NONCE_BYTES, PROOF_BYTES
from waiting import PATIENCE_SECONDS

Change = Callable[[int, bytes], list[bytes]]
"""By a frame's number and the frame, what is passed on instead."""

INJECTED = b"\x80\x05cbuiltins\nexit\n."


def _third_as(change: Callable[[bytes], list[bytes]]) -> Change:
    return lambda number, frame: change(frame) if number == 2 else [frame]


def _altered(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


class _Remembering:
    """Changes the third frame, knowing those before, of which it may hold the first two back."""

    def __init__(self, change: Callable[[list[bytes]], list[bytes]], *, holds: bool = False) -> None:
        self._change, self._holds = change, holds
        self._frames: list[bytes] = []

    def __call__(self, number: int, frame: bytes) -> list[bytes]:
        self._frames.append(frame)
        if number < 2:
            return [] if self._holds else [frame]
        return self._change(self._frames) if number == 2 else [frame]


def changes(frame_of: Callable[[bytes], bytes]) -> dict[str, Change]:
    """Ways to meddle with the third frame, by name. ``frame_of``: a frame with this content, as one without the key would make it."""
    unsealed = len(INJECTED).to_bytes(8, "little") + INJECTED
    return {
        "injects": _third_as(lambda frame: [frame_of(INJECTED), frame]),
        "injects without codes": _third_as(lambda frame: [unsealed, frame]),
        "replaces": _third_as(lambda frame: [frame_of(INJECTED)]),
        "alters the first byte": _third_as(lambda frame: [_altered(frame, 0)]),
        "alters the header": _third_as(lambda frame: [_altered(frame, 7)]),
        "alters the last byte": _third_as(lambda frame: [_altered(frame, len(frame) - 1)]),
        "repeats": _third_as(lambda frame: [frame, frame]),
        "repeats an old one": _Remembering(lambda frames: [frames[2], frames[1]]),
        "reorders": _Remembering(lambda frames: [frames[1], frames[0], frames[2]], holds=True),
        "leaves out": _third_as(lambda frame: []),
        "truncates": _third_as(lambda frame: [frame[:-1]]),
    }


class Meddler:
    """Leads whoever connects to ``address`` to the target (``host:port``), once."""

    def __init__(self, target: str, purpose: bytes, size_of: Callable[[bytes], int | None], change: Change, *, from_caller: bool) -> None:
        """``size_of``: of the frame that begins these bytes, or None if more are needed to know it."""
        self._target, self._size_of, self._change, self._from_caller = target, size_of, change, from_caller
        self._proofs = {True: NONCE_BYTES + PROOF_BYTES, False: len(purpose) + NONCE_BYTES + PROOF_BYTES}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Meddler:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self._listener.accept()
            far = socket.create_connection(parts_of(self._target), timeout=PATIENCE_SECONDS)
            far.settimeout(None)
            for source, sink, of_caller in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._carry, args=(source, sink, of_caller), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, of_caller: bool) -> None:
        with contextlib.suppress(OSError):
            if of_caller == self._from_caller:
                self._meddle(source, sink, self._proofs[of_caller])
            else:
                while data := source.recv(1 << 16):
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _meddle(self, source: socket.socket, sink: socket.socket, proofs: int) -> None:
        came, number = b"", 0
        while data := source.recv(1 << 16):
            came += data
            passed, came, proofs = came[:proofs], came[proofs:], proofs - len(came[:proofs])
            sink.sendall(passed)
            while not proofs and (size := self._size_of(came)) is not None and len(came) >= size:
                frame, came = came[:size], came[size:]
                for said in self._change(number, frame):
                    sink.sendall(said)
                number += 1
