"""OCI image layouts: directories that hold images, as registries do (https://github.com/opencontainers/image-spec/blob/main/image-layout.md).

Content is read from the layers alone: nothing is mounted and nothing of an image runs, so images for any processor can be looked into.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from release_steps.failure import ReleaseError

INDEX = "application/vnd.oci.image.index.v1+json"
REFERENCE = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Image:
    """An image for one processor."""

    layout: Path
    digest: str
    """Of its manifest: sha256:..."""

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads(blob(self.layout, self.digest).read_bytes()))

    @property
    def config(self) -> dict[str, Any]:
        return dict(json.loads(blob(self.layout, self.manifest["config"]["digest"]).read_bytes()))

    @property
    def architecture(self) -> str:
        return str(self.config["architecture"])

    def compressed_bytes(self) -> int:
        """What a registry sends."""
        return sum(int(layer["size"]) for layer in self.manifest["layers"])

    def entries(self) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
        """What all layers hold, in their order; files with their content. Raises ReleaseError for a layer that is not gzipped."""
        for layer in self.manifest["layers"]:
            if not layer["mediaType"].endswith("tar+gzip"):
                raise ReleaseError(f"{self.layout}: {layer['digest']} is {layer['mediaType']}, not a gzipped tar; write the layout anew")
            with gzip.open(blob(self.layout, layer["digest"])) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
                for entry in archive:
                    yield entry, archive.extractfile(entry) if entry.isfile() else None

    def unpacked_bytes(self) -> int:
        """What a node stores."""
        return sum(entry.size for entry, content in self.entries() if content is not None)

    def largest(self, count: int = 25, depth: int = 6) -> list[tuple[str, int]]:
        """The largest parts: directories of this depth, or files above it, with their bytes."""
        sizes: dict[str, int] = {}
        for entry, content in self.entries():
            if content is not None:
                part = "/".join(entry.name.removeprefix("./").strip("/").split("/")[:depth])
                sizes[part] = sizes.get(part, 0) + entry.size
        return sorted(sizes.items(), key=lambda item: -item[1])[:count]


def blob(layout: Path, digest: str) -> Path:
    algorithm, _, value = digest.partition(":")
    return layout / "blobs" / algorithm / value


def images(layout: Path) -> list[Image]:
    """Of all processors, in their order. Raises ReleaseError."""
    try:
        index = json.loads((layout / "index.json").read_text())
    except FileNotFoundError:
        raise ReleaseError(f"{layout}: has no index.json, so it is no OCI layout; run tools/release.py images") from None
    found = []
    for each in index["manifests"]:
        if each["mediaType"] == INDEX:
            inner = json.loads(blob(layout, each["digest"]).read_bytes())
            found += [Image(layout, one["digest"]) for one in inner["manifests"]]
        else:
            found.append(Image(layout, each["digest"]))
    return sorted(found, key=lambda image: image.architecture)


def join(layout: Path, reference: str) -> str:
    """Puts the images of a layout under one name, from which each machine takes its own; gives the digest to pull them by."""
    manifests = []
    for image in images(layout):
        path = blob(layout, image.digest)
        manifests.append(
            {
                "mediaType": image.manifest["mediaType"],
                "digest": image.digest,
                "size": path.stat().st_size,
                "platform": {"architecture": image.architecture, "os": "linux"},
            }
        )
    content = _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    blob(layout, digest).write_bytes(content)
    entry = {"mediaType": INDEX, "digest": digest, "size": len(content), "annotations": {REFERENCE: reference}}
    (layout / "index.json").write_bytes(_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}))
    return digest


def problems(layout: Path) -> list[str]:
    """Blobs that are not what their names say, and those that are named and missing."""
    found = []
    there = sorted((layout / "blobs" / "sha256").iterdir())
    for path in there:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != path.name:
                found.append(f"{path}: is not what its name says")
    names = {path.name for path in there}
    for image in images(layout):
        for each in (image.manifest["config"], *image.manifest["layers"]):
            if each["digest"].removeprefix("sha256:") not in names:
                found.append(f"{layout}: {each['digest']} is missing")
    return found


def differences(one: Path, other: Path) -> list[str]:
    """Which files differ between images of two layouts, by processor: a line each, at most 20."""
    lines = []
    for first, second in zip(images(one), images(other), strict=True):
        before, after = _digests(first), _digests(second)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        lines += [f"{one.name} {first.architecture}: {name}" for name in changed]
    return lines[:20] or [f"{one.name}: layers or settings, in no file"]


def _digests(image: Image) -> dict[str, str]:
    found = {}
    for entry, content in image.entries():
        about = f"{entry.mode:o} {entry.uid}:{entry.gid} {entry.mtime} {entry.linkname}"
        found[entry.name] = f"{about} {'' if content is None else hashlib.sha256(content.read()).hexdigest()}"
    return found


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
