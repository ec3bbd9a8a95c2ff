"""Where files are: what a manifest may give as a path, and which paths get in each other's way.

Always holds: everything here is about the text of a path. Nothing looks at a file system, so links are not followed and
relative paths are compared only with relative ones.
"""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/")


def local_path(location: str) -> str:
    """The plain path that a local path or a ``file://`` URL means, without ``.``, ``..`` inside and a slash at the end.

    Raises ValueError, saying what is wrong and what to write, for anything else.
    """
    if not location or location != location.strip():
        raise ValueError("is not a path; give a local path or a file:// URL, without spaces around it")
    if "\0" in location:
        raise ValueError("contains a NUL character; remove it")
    if location.startswith("~"):
        raise ValueError("begins with ~, which only a shell expands; write the directory's full path")
    scheme = _SCHEME.match(location)
    if scheme is None:
        return _normal(location)
    if scheme[1].lower() != "file":
        raise ValueError(f"begins with {scheme[1]}:, which this version cannot use; give a local path or a file:// URL")
    rest = location[scheme.end() - 1 :]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise ValueError(f"names the host {host}; a file:// URL has none: write file:///{unquote(path)}")
        if not slash:
            raise ValueError("has no path; write it as file:///directory")
        rest = "/" + path
    return _normal(unquote(rest))


def within(inner: str, outer: str) -> bool:
    """Whether ``inner`` is ``outer`` or lies below it, both as from :func:`local_path`; no if only one is relative."""
    if posixpath.isabs(inner) != posixpath.isabs(outer):
        return False
    if inner == outer:
        return True
    prefix = "" if outer == "." else outer.rstrip("/") + "/"
    below = inner[len(prefix) :]
    return inner.startswith(prefix) and below != ".." and not below.startswith("../")


def _normal(path: str) -> str:
    normal = posixpath.normpath(path)
    # POSIX lets two leading slashes mean something else, and normpath keeps them; no file system that we run on does.
    return normal[1:] if normal.startswith("//") else normal
