"""Locations of files: which texts a manifest may give as a location, and which locations conflict.

Always holds: everything here looks only at the text of a location. Nothing looks at a file system or a store, so links are not followed,
relative paths are compared only with relative ones, and a container reached under two names counts as two.
"""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/")
_ALIASES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfs": "abfss", "abfss": "abfss", "az": "az"}
_BUCKETS = {
    "s3": "s3://bucket/path",
    "gs": "gs://bucket/path",
    "az": "az://container/path",
    "abfss": "abfss://container@account.dfs.core.windows.net/path",
}
NO_RESULTS_IN_A_FILE = "is a file, and must be a directory for the results; remove it or choose another path"
_KINDS = "give a local path or a file://, s3://, gs://, abfss:// or az:// URL"


def place(location: str, *, is_literal: bool = False) -> str:
    """The place that a local path or a URL means, written in one way: a plain path, or a URL without a slash at the end.

    ``is_literal``: a ``file:`` URL is not percent-encoded, as in Iceberg's metadata: ``%20`` in it is three characters of the file's name.
    Raises ValueError, saying what is wrong and what to write, for anything else.
    """
    if not location or location != location.strip():
        raise ValueError("is not a place; give a local path or a URL, without spaces around it")
    if "\0" in location:
        raise ValueError("contains a NUL character; remove it")
    if location.startswith("~"):
        raise ValueError("begins with ~, which only a shell expands; write the directory's full path")
    scheme = _SCHEME.match(location)
    if scheme is None:
        return _normal(location)
    name, rest = scheme[1].lower(), location[scheme.end() - 1 :]
    if name == "file":
        return _file(rest, is_literal=is_literal)
    if name == "hdfs":
        raise ValueError(f"begins with hdfs:, for which there is no client here; mount HDFS and give the path, or {_KINDS}")
    if name not in _ALIASES:
        raise ValueError(f"begins with {scheme[1]}:, which is no store that is known; {_KINDS}")
    return _object(_ALIASES[name], rest)


def is_url(where: str) -> bool:
    """Whether a place (as from :func:`place`) is in an object store, rather than a path on this machine."""
    return _SCHEME.match(where) is not None


def within(inner: str, outer: str) -> bool:
    """Whether ``inner`` is ``outer`` or lies below it, both as from :func:`place`; no if only one is relative, or in a store."""
    if posixpath.isabs(inner) != posixpath.isabs(outer) or is_url(inner) != is_url(outer):
        return False
    if inner == outer:
        return True
    prefix = "" if outer == "." else outer.rstrip("/") + "/"
    below = inner[len(prefix) :]
    return inner.startswith(prefix) and below != ".." and not below.startswith("../")


def _file(rest: str, *, is_literal: bool) -> str:
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise ValueError(f"names the host {host}; a file:// URL has none: write file:///{unquote(path)}")
        if not slash:
            raise ValueError("has no path; write it as file:///directory")
        rest = "/" + path
    return _normal(rest if is_literal else unquote(rest))


def _object(scheme: str, rest: str) -> str:
    bucket, _, path = rest[2:].partition("/")
    if not rest.startswith("//") or not bucket or (scheme == "abfss") != ("@" in bucket):
        raise ValueError(f"does not say where in the store; write it as {_BUCKETS[scheme]}")
    if "?" in path or "#" in path:
        raise ValueError("contains ? or #, which end a URL's path; choose another path")
    parts = [part for part in path.split("/") if part]
    if "." in parts or ".." in parts:
        raise ValueError("contains . or .. as a directory, which object stores do not have; write the path itself")
    return "/".join([f"{scheme}://{bucket.lower() if scheme == 'abfss' else bucket}", *parts])


def _normal(path: str) -> str:
    normal = posixpath.normpath(path)
    # POSIX lets two leading slashes mean something else, and normpath keeps them; no file system that we run on does.
    return normal[1:] if normal.startswith("//") else normal
