"""The web pages that show joins: their files, and the headers that limit what a browser may do with them.

Always holds: only these files are served; a page connects to no other host, and no other page may frame it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
PREFIX = "/ui/"


def asset(path: str) -> tuple[str, bytes] | None:
    """The media type and the bytes of ``/ui/...``; None: there is no such file."""
    name = path.removeprefix(PREFIX)
    if not path.startswith(PREFIX) or name not in _names():
        return None
    return KINDS[name.rpartition(".")[2]], _bytes(name)


def index(name: str) -> tuple[str, bytes]:
    """A page itself: ``index`` of a join, ``operator`` of all joins of a cluster."""
    return KINDS["html"], _bytes(f"{name}.html")


@cache
def _names() -> frozenset[str]:
    root = files("streamjoin") / "serve" / "ui"
    return frozenset(
        f"{folder}{file.name}" for folder, here in (("", root), ("vendor/", root / "vendor")) for file in here.iterdir() if file.is_file()
    )


@cache
def _bytes(name: str) -> bytes:
    return (files("streamjoin") / "serve" / "ui").joinpath(name).read_bytes()
