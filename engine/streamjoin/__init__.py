"""StreamJoin: elastic joins of unbounded streams on any predicate.

>>> import streamjoin
>>> join = streamjoin.Join.read("near.yaml")        # doctest: +SKIP
>>> with join.run(until_idle=True) as run:          # doctest: +SKIP
...     for epoch in run:
...         print(epoch.number, epoch.output)

``docs/python.md`` has the rest. Names are loaded when they are first used: importing this package imports nothing else.
"""

import importlib

__version__ = "0.1.0"

_MODULES = {
    "Join": "streamjoin.api.join",
    "Run": "streamjoin.api.running",
    "Epoch": "streamjoin.api.running",
    "Reason": "streamjoin.api.loop",
    "Outline": "streamjoin.api.planning",
    "PlanRefusal": "streamjoin.api.planning",
    "Failure": "streamjoin.api.failure",
    "Problem": "streamjoin.manifest.problem",
    "ManifestError": "streamjoin.manifest.problem",
    "QueryError": "streamjoin.query.errors",
}
"""Public names, by the module that has them. ``__init__.pyi`` tells type checkers the same."""

__all__ = ["__version__", *_MODULES]  # noqa: PLE0604 - they are texts


def __getattr__(name: str) -> object:
    if name == "spark":
        return importlib.import_module("streamjoin.spark")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
