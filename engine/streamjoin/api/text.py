"""Reads the text of a manifest, or of another file that a user names by its path."""

from __future__ import annotations

import sys
from pathlib import Path


class Unreadable(OSError):  # noqa: N818 - an answer to the user
    """A file whose text cannot be had, and why."""


def read_text(name: str) -> str:
    """The text of a file, or of standard input for ``-``. Raises Unreadable."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"is not UTF-8 from line {line} on; save it as UTF-8") from error
