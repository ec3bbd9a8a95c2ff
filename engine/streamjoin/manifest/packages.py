"""Which fields of a manifest need Python packages that not every engine has: those of extras of pyproject.toml. Tables have an image of
their own; all the rest is in every engine's image.

Always holds: every such field is found, wherever the models have one. Pure; whether a package is there is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamjoin.manifest.connector import Connector, Package
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.part import Part
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.tables import EXTRA as TABLES

IMAGES = {TABLES: "streamjoin-engine-tables"}
"""By extra, the image with its packages, where streamjoin-engine is the same without them."""


def needed_packages(manifest: Manifest) -> dict[str, Package]:
    """By field (``spec.joins[0].output.sink.delta``), the package that it needs. O(fields)."""
    return dict(_needed("spec", manifest.spec))


def has_tables(manifest: Manifest) -> bool:
    """Whether the join runs in the image for tables."""
    return any(package.extra == TABLES for package in needed_packages(manifest).values())


def missing_package(field: str, package: Package) -> Problem:
    """That a field's package is not installed where the join is to run."""
    # The remedy for pods comes first, as a status has the beginning of long texts.
    in_pods = f"in pods remove spec.image, or name {IMAGES.get(package.extra, 'streamjoin-engine')} there"
    elsewhere = f"elsewhere pip install 'streamjoin[{package.extra}]', and in a clone make setup-{package.extra}"
    return Problem(field, None, f"needs the package {package}, which is not installed; {in_pods}; {elsewhere}")


def _needed(field: str, value: object) -> Iterator[tuple[str, Package]]:
    if isinstance(value, Part):
        for name, package in value.packages() if isinstance(value, Connector) else ():
            yield f"{field}.{name}" if name else field, package
        fields = type(value).model_fields
        for name, inner in value:
            if isinstance(inner, Part | tuple):
                yield from _needed(f"{field}.{fields[name].alias or name}", inner)
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _needed(f"{field}[{index}]", each)
