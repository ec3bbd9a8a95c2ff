"""What each way to join needs of Spark and of Python. What is missing is said in a sentence.

Joins in batch need numpy, and PySpark since ``BATCH``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyspark

BATCH, STREAMS = (3, 5), (4, 3)
"""The oldest versions of Spark with which joins in batch, and streams (joins of them, and results as a source), are tested."""


class NotAvailable(RuntimeError):  # noqa: N818
    """This Spark, or this Python environment, lacks what was asked for. The text says what, and what to install."""


def version() -> tuple[int, int]:
    """Of PySpark: major and minor."""
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def require(what: str, oldest: tuple[int, int], remedy: str = "") -> None:
    """Raises NotAvailable where PySpark is older."""
    if version() < oldest:
        major, minor = oldest
        raise NotAvailable(f"{what} needs PySpark {major}.{minor} or newer, and this is {pyspark.__version__}; install a newer one{remedy}")


def of_engine(module: str, what: str) -> Any:
    """A module of this package that streams need; ``what`` it is needed for. Raises NotAvailable."""
    install = "pip install 'streamjoin[engine]'"
    require(what, STREAMS, f" ({install}), or use streamjoin.spark.join in batch")
    try:
        return import_module(f"streamjoin.spark.{module}")
    except ModuleNotFoundError as missing:
        raise NotAvailable(f"{what} needs the package {missing.name}, which is not installed; {install}") from missing
