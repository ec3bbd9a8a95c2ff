"""HTTP answers that are not read beyond a bound: who answers may be broken, or not who was meant."""

from __future__ import annotations

import aiohttp

CHUNK_BYTES = 1 << 16


async def read_at_most(answer: aiohttp.ClientResponse, limit: int, who: str = "it") -> bytes:
    """The whole body. Raises ValueError where it is longer than ``limit`` bytes; ``who`` has answered, to say so."""
    data = bytearray()
    async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
        data += chunk
        if len(data) > limit:
            raise ValueError(f"{who} answers more than {limit} bytes")
    return bytes(data)
