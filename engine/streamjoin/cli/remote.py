"""What commands that ask a server over HTTP have in common."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from streamjoin.cli.exits import Exit, Failure

_USAGE = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def is_url(target: str) -> bool:
    return urlsplit(target).scheme in ("http", "https") and bool(urlsplit(target).hostname)


def connected(url: str, seconds: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection to the server, which is made by the first request, and the path before its API's. Raises ValueError for a wrong port."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=seconds), parts.path.rstrip("/")


def exchanged(
    url: str, method: str, path: str, headers: Mapping[str, str], seconds: float, body: bytes | None = None, most: int | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """The status, headers and body of an answer; of the body at most so many bytes, if ``most`` is given. Raises OSError, ValueError and
    HTTPException."""
    connection, before = connected(url, seconds)
    try:
        connection.request(method, before + path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read(most)
    finally:
        connection.close()


def asked(
    url: str, method: str, path: str, headers: Mapping[str, str], seconds: float, body: bytes | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """As :func:`exchanged`, of an answer that is whole. Raises Failure."""
    try:
        return exchanged(url, method, path, headers, seconds, body)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise unreachable(url, error) from error


def authorization(token_file: Path | None) -> dict[str, str]:
    """The header that shows a token, if there is one. Raises Failure."""
    try:
        return {} if token_file is None else {"Authorization": f"Bearer {token_file.read_text().strip()}"}
    except OSError as error:
        text = f"--token-file: {token_file}: {error.strerror}; name a file that holds the server's token"
        raise Failure(Exit.USAGE, text) from error


def refusal(url: str, status: int, data: bytes) -> Failure:
    """What a server has refused."""
    try:
        text = str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        text = f"{url}: answers {status}, but not as a join does; name the port of a driver, or of streamjoin serve"
    return Failure(Exit.USAGE if status in _USAGE else Exit.FAILED, text)


def unreachable(url: str, error: Exception) -> Failure:
    text = str(error) or type(error).__name__
    return Failure(Exit.FAILED, f"{url}: {text}; look whether the join, or streamjoin serve, runs there")
