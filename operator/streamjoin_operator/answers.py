"""HTTP answers of servers that may be broken, not who was meant, or meant to be read by somebody else.

Always holds: no answer is read beyond a bound; what is said of a failure are words of ours and of this machine's libraries, never a byte
of what came: a resource may name a server that only the operator can reach, and its author reads the status.
"""

from __future__ import annotations

import ssl

import aiohttp

CHUNK_BYTES = 1 << 16


class TooLongError(ValueError):
    """An answer is longer than what is asked for can be."""


async def read_at_most(answer: aiohttp.ClientResponse, limit: int, who: str = "it") -> bytes:
    """The whole body. Raises TooLongError where it is longer than ``limit`` bytes; ``who`` has answered, to say so."""
    data = bytearray()
    async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
        data += chunk
        if len(data) > limit:
            raise TooLongError(f"{who} answers more than {limit} bytes")
    return bytes(data)


def failure(error: BaseException) -> str:
    """Why there is no usable answer. The text of the exception itself is no choice: aiohttp's quotes what it could not parse."""
    if isinstance(error, TooLongError):
        return str(error)
    if isinstance(error, aiohttp.ClientConnectorCertificateError) and isinstance(error.certificate_error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.certificate_error.verify_message}"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:
        return f"it cannot be connected to: {error.os_error.strerror}"
    return type(error).__name__
