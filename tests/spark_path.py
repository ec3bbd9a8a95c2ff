"""Where workers on Spark find the tests' sources, which they unpickle."""

from __future__ import annotations

import os

HERE = os.path.dirname(os.path.abspath(__file__))


def have_workers_find_tests() -> None:
    """Once for a process, before anything in it has Java started: workers have their environment of that."""
    paths = [HERE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(paths)))
