"""The API server's conversion webhook: StreamJoins of one version asked for in another (``manifest.versions`` says how).

Served over HTTPS by every operator, the ones that stand by too, as the API server may need it before anybody has the Lease: whoever lists
StreamJoins in another version than they are stored in waits for it, this operator's own watch among them.

Always holds: an answer has all objects of its request, in their order, or a message that names the one that cannot be converted. A
certificate that is replaced is taken up within :data:`CERTIFICATE_SECONDS`, without a connection lost; one that cannot be used is logged,
and the one before stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from streamjoin.manifest.versions import ConversionError, convert
from streamjoin_operator.crd import PATH

API_VERSION, KIND = "apiextensions.k8s.io/v1", "ConversionReview"
MOST_BYTES = 1 << 30
"""Of a request: a list without pages comes as one, with all of its objects."""
CERTIFICATE_SECONDS = 10.0

Object = dict[str, Any]
log = logging.getLogger(__name__)


class ReviewError(ValueError):
    """A request that is no ConversionReview."""


def answer(review: object) -> Object:
    """A ConversionReview with its response. Pure; O(objects). Raises ReviewError."""
    request = review.get("request") if isinstance(review, dict) else None
    is_review = isinstance(review, dict) and (review.get("apiVersion"), review.get("kind")) == (API_VERSION, KIND)
    if not is_review or not isinstance(request, dict) or not isinstance(request.get("objects"), list):
        raise ReviewError(f"the request must be a {KIND} of {API_VERSION} with request.objects")
    response: Object = {"uid": request.get("uid", "")}
    try:
        converted = [convert(each, request.get("desiredAPIVersion", "")) for each in request["objects"]]
    except ConversionError as error:
        response |= {"convertedObjects": [], "result": {"status": "Failed", "message": str(error)}}
    else:
        response |= {"convertedObjects": converted, "result": {"status": "Success"}}
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _answered(body: bytes) -> bytes:
    """Raises ReviewError."""
    try:
        review = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ReviewError(f"the request is not JSON: {error}") from error
    return json.dumps(answer(review)).encode()


async def _convert(request: web.Request) -> web.Response:
    body = await request.read()
    try:
        # Beside the loop, which a list of thousands would hold up.
        text = await asyncio.to_thread(_answered, body)
    except ReviewError as error:
        return web.Response(status=400, text=str(error))
    return web.Response(body=text, content_type="application/json")


class Certificate:
    """``tls.crt`` and ``tls.key`` of a directory, as a Secret is mounted."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError, of which ssl.SSLError is one, where they cannot be read or do not belong together."""
        self._files = (directory / "tls.crt", directory / "tls.key")
        self._read = self._texts()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load(self.context, self._read)

    def look(self) -> None:
        """Take up what has been replaced; handshakes from then on are with it."""
        try:
            found = self._texts()
            if found == self._read:
                return
            # Both together, and as they were read, before the one that is in use is changed.
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), found)
            _load(self.context, found)
        except OSError as error:
            log.warning("the certificate of conversions cannot be used, and the one before stays: %s: %s", self._files[0], error)
            return
        self._read = found
        log.info("the certificate of conversions was replaced")

    def _texts(self) -> tuple[bytes, ...]:
        return tuple(path.read_bytes() for path in self._files)


def _load(context: ssl.SSLContext, texts: Sequence[bytes]) -> None:
    """Have a context serve by this certificate and key. Raises ssl.SSLError where they do not belong together: the context is of no use
    then. The files themselves may be replaced meanwhile, one after the other, so copies are loaded."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory() as name:
        certificate, key = copies = Path(name, "tls.crt"), Path(name, "tls.key")
        for copy, text in zip(copies, texts, strict=True):
            copy.touch(mode=0o600)
            copy.write_bytes(text)
        context.load_cert_chain(certificate, key)


@contextlib.asynccontextmanager
async def serving(directory: str, port: int) -> AsyncIterator[None]:
    """Serve conversions until this ends, by the certificate in ``directory``. Raises OSError where that or the port cannot be had."""
    certificate = await asyncio.to_thread(Certificate, Path(directory))
    app = web.Application(client_max_size=MOST_BYTES)
    app.router.add_post(PATH, _convert)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    looking = asyncio.create_task(_keep(certificate))
    try:
        site = web.TCPSite(runner, port=port, ssl_context=certificate.context)
        await site.start()
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await runner.cleanup()


async def _keep(certificate: Certificate) -> None:
    while True:
        await asyncio.sleep(CERTIFICATE_SECONDS)
        await asyncio.to_thread(certificate.look)
