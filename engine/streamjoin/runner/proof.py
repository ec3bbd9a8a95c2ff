"""How the two ends of a connection show each other that they have the application's secret, without sending it:

    called   PURPOSE, 32 random bytes
    caller   32 random bytes, HMAC(secret, PURPOSE, "caller", the called end's bytes, the caller's)
    called   HMAC(secret, PURPOSE, "called", the called end's bytes, the caller's)

A purpose is a line that says what the connection is for. Frames after the proofs are sealed (``runner.seal``), each way with
the key HMAC(secret, PURPOSE, "frames of the caller" or "frames of the called", the called end's bytes, the caller's).

Always holds: what was said on one connection proves nothing on another, nor for another purpose, nor for the other end; and who passes
proofs on between two ends learns no key.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Generator

from streamjoin.runner.seal import Seal

NONCE_BYTES = PROOF_BYTES = 32

_Steps = Generator[tuple[bytes, int], bytes | None, tuple[bytes, Seal, Seal] | None]
"""Yields what to say, and how many bytes of the other end it needs then. Returns the last words and the seals of what this end sends and of
what it is sent; or None: the other end proved nothing."""


class Proof:
    """One end's."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self.wanted = 0
        """The bytes of the other end that are needed next."""
        self.proved: bool | None = None
        """Whether the other end has proved itself; None: that is not known yet."""
        self.ours: Seal
        """Once it has: seals what this end sends."""
        self.theirs: Seal
        """Once it has: checks what this end is sent."""

    def hear(self, came: bytes | None = None) -> bytes:
        """What to say to the ``wanted`` bytes that came, or, without any, at first."""
        try:
            said, self.wanted = self._steps.send(came)
        except StopIteration as end:
            self.proved = end.value is not None
            if end.value is None:
                return b""
            said, self.ours, self.theirs = end.value
        return said


def called(secret: bytes, purpose: bytes) -> Proof:
    """The end that is called."""
    return Proof(_called(secret, purpose))


def caller(secret: bytes, purpose: bytes) -> Proof:
    """The end that calls."""
    return Proof(_caller(secret, purpose))


def _called(secret: bytes, purpose: bytes) -> _Steps:
    ours = secrets.token_bytes(NONCE_BYTES)
    came = yield purpose + ours, NONCE_BYTES + PROOF_BYTES
    assert came is not None
    theirs, shown = came[:NONCE_BYTES], came[NONCE_BYTES:]
    if not hmac.compare_digest(shown, _proof(secret, purpose, b"caller", ours, theirs)):
        return None
    caller, called = _seals(secret, purpose, ours, theirs)
    return _proof(secret, purpose, b"called", ours, theirs), called, caller


def _caller(secret: bytes, purpose: bytes) -> _Steps:
    if (yield b"", len(purpose)) != purpose:
        return None
    theirs, ours = (yield b"", NONCE_BYTES), secrets.token_bytes(NONCE_BYTES)
    assert theirs is not None
    shown = yield ours + _proof(secret, purpose, b"caller", theirs, ours), PROOF_BYTES
    assert shown is not None
    if not hmac.compare_digest(shown, _proof(secret, purpose, b"called", theirs, ours)):
        return None
    return b"", *_seals(secret, purpose, theirs, ours)


def _proof(secret: bytes, purpose: bytes, end: bytes, of_called: bytes, of_caller: bytes) -> bytes:
    return hmac.digest(secret, purpose + end + of_called + of_caller, "sha256")


def _seals(secret: bytes, purpose: bytes, of_called: bytes, of_caller: bytes) -> tuple[Seal, Seal]:
    """Of what the caller sends, and of what the called end does."""
    caller, called = (_proof(secret, purpose, b"frames of the " + end, of_called, of_caller) for end in (b"caller", b"called"))
    return Seal(caller), Seal(called)
