"""Which fields of a manifest need Python packages that not every engine has: tables, whose packages have an image of their own.

Always holds: every table is found, wherever the models have one. Pure; whether a package is there is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamjoin.manifest.model import Manifest
from streamjoin.manifest.part import Part
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.sinks import DeltaSink, IcebergSink
from streamjoin.manifest.sources import DeltaSource, IcebergSource

IMAGE = "streamjoin-engine-tables"
"""The image with these packages; streamjoin-engine is the same without them."""
PACKAGES: dict[type[Part], str] = {
    DeltaSource: "deltalake",
    DeltaSink: "deltalake",
    IcebergSource: "pyiceberg",
    IcebergSink: "pyiceberg",
}


def needed_packages(manifest: Manifest) -> dict[str, str]:
    """By field (``spec.joins[0].output.sink.delta``), the package that it needs; empty for a manifest without tables. O(fields)."""
    return dict(_needed("spec", manifest.spec))


def missing_package(field: str, package: str) -> Problem:
    """That a field's package is not installed where the join is to run."""
    # The remedy for pods comes first, as a status has the beginning of long texts.
    remedy = f"in pods remove spec.image, or name {IMAGE} there; elsewhere pip install 'streamjoin[engine]'"
    return Problem(field, None, f"needs the package {package}, which is not installed; {remedy}")


def _needed(field: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Part):
        if package := PACKAGES.get(type(value)):
            yield field, package
        fields = type(value).model_fields
        for name, inner in value:
            if isinstance(inner, Part | tuple):
                yield from _needed(f"{field}.{fields[name].alias or name}", inner)
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _needed(f"{field}[{index}]", each)
