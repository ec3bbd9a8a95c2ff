"""What tests fetch once, into a cache: ``~/.cache/streamjoin-tests``; ``STREAMJOIN_TEST_CACHE`` names another directory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


class NotFetched(RuntimeError):  # noqa: N818
    """This machine cannot have it; the text says what is missing."""


def cached(name: str, fetch: Callable[[Path], None]) -> Path:
    """The directory of this name in the cache; ``fetch`` makes it as ``got`` in the one that it is given. Raises what that raises."""
    cache = Path(os.environ.get("STREAMJOIN_TEST_CACHE") or Path.home() / ".cache" / "streamjoin-tests")
    target = cache / name
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        fetch(Path(directory))
        try:
            os.rename(Path(directory) / "got", target)
        except OSError:
            if not target.is_dir():  # or another process was faster
                raise
    return target
