"""The bearer token that a client must show: of the plan API, or of an operator's page.

Always holds: the file is read anew for every request, so that a token that was changed counts at once and an old one no more; how long a
comparison takes says nothing of the token; without a readable token nobody is let in.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

MOST_BYTES = 4096


class TokenError(RuntimeError):
    """There is no token to compare with; the text names the file and the remedy."""


class Token:
    """A token that is known from the start."""

    whence = "the token of the link that the run has printed"
    """Where a client has it from, for messages."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()

    def admits(self, authorization: str | None) -> bool:
        """Whether this value of an ``Authorization`` header shows the token. Raises TokenError."""
        expected = self._read()
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        # Of equal length, whatever was given: compare_digest is quicker for texts of different lengths.
        shown = hashlib.sha256(given.strip().encode("latin-1", "replace")).digest()
        return hmac.compare_digest(shown, hashlib.sha256(expected).digest())

    def _read(self) -> bytes:
        return self._text


def only_token(path: Path) -> bytes | None:
    """What a file holds, without white space around it; None: that is not one token. Raises OSError."""
    with path.open("rb") as file:
        token = file.read(MOST_BYTES + 1).strip()
    return None if not token or len(token) > MOST_BYTES or len(token.split()) > 1 else token


class TokenFile(Token):
    """A file that holds one token; white space around it does not count."""

    whence = "what the file of --api-token-file holds"

    def __init__(self, path: Path) -> None:
        """Raises TokenError where the file holds no token now."""
        self._path = path
        self._read()

    def _read(self) -> bytes:
        try:
            token = only_token(self._path)
        except OSError as error:
            raise TokenError(f"{self._path}: cannot be read ({error.strerror}); it must hold the token") from error
        if token is None:
            raise TokenError(f"{self._path}: must hold one token without white space, of 1 to {MOST_BYTES} bytes")
        return token
