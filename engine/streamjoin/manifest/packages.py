"""Which fields of a manifest need Python packages that not every engine has: those of extras of pyproject.toml. Tables have an image of
their own; all the rest is in every engine's image.

Always holds: every such field is found, wherever the models have one. Pure; whether a package is there is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamjoin.manifest.model import Manifest
from streamjoin.manifest.part import Part
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.sinks import DeltaSink, IcebergSink
from streamjoin.manifest.snapshots import CassandraStore
from streamjoin.manifest.sources import DeltaSource, IcebergSource, KafkaSource

TABLES = "tables"
IMAGES = {TABLES: "streamjoin-engine-tables"}
"""By extra, the image with its packages, where streamjoin-engine is the same without them."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that an extra brings."""

    name: str
    module: str
    """As it is imported."""
    extra: str

    def __str__(self) -> str:
        return self.name


DELTA = Package("deltalake", "deltalake", TABLES)
ICEBERG = Package("pyiceberg", "pyiceberg", TABLES)
CASSANDRA = Package("cassandra-driver", "cassandra", "cassandra")
PROTOBUF = Package("grpcio-tools", "grpc_tools", "protobuf")
PACKAGES: dict[type[Part], Package] = {
    DeltaSource: DELTA,
    DeltaSink: DELTA,
    IcebergSource: ICEBERG,
    IcebergSink: ICEBERG,
    CassandraStore: CASSANDRA,
}


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
        if package := PACKAGES.get(type(value)):
            yield field, package
        if isinstance(value, KafkaSource) and value.format == "protobuf":
            yield f"{field}.format", PROTOBUF
        fields = type(value).model_fields
        for name, inner in value:
            if isinstance(inner, Part | tuple):
                yield from _needed(f"{field}.{fields[name].alias or name}", inner)
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _needed(f"{field}[{index}]", each)
