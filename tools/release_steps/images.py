"""Images of a commit for each processor, as OCI layouts, by buildah: it needs no daemon and, for another processor, no emulator.

They are dated with the commit. All that gets into them is in the lock files, or made from it: the modules of Java, bytecode and, for the
processor that builds, the archive of Java's classes and the machine code of kernels.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import cluster
from release_steps import layout
from release_steps.debian import ARCHITECTURES
from release_steps.failure import ReleaseError, output, run, say
from release_steps.packages import Source

DIRECTORY = "images"
ENGINE, TABLES, SPARK, OPERATOR = IMAGES = ("engine", "engine-tables", "engine-spark", "operator")
"""Without ``streamjoin-``."""
BEGUN_WITH = {TABLES: ("ENGINE", ENGINE), SPARK: ("TABLES", TABLES)}
"""Images that are another one and a layer more: by what name they are given that one, and which it is. It comes before them."""
LIMITS_MB = {ENGINE: 700, OPERATOR: 120}
"""The most that an image may have unpacked, for any processor."""
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def build(
    source: Source,
    target: Path,
    names: Sequence[str] = IMAGES,
    architectures: Sequence[str] = ARCHITECTURES,
) -> dict[str, str]:
    """Writes a layout for each image into ``target``; gives their digests by name. Raises ReleaseError."""
    for given, known, field in ((names, IMAGES, "image"), (architectures, ARCHITECTURES, "--arch")):
        if unknown := sorted(set(given) - set(known)):
            raise ReleaseError(f"{field}: {', '.join(unknown)}: is not known; take {' or '.join(known)}")
    if shutil.which("buildah") is None:
        raise ReleaseError("buildah: is not installed; apt-get install buildah")
    digests = {}
    for name in sorted(names, key=IMAGES.index):
        directory = target / DIRECTORY / f"streamjoin-{name}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.parent.mkdir(parents=True, exist_ok=True)
        for architecture in architectures:
            say(f"building streamjoin-{name} for {architecture}")
            tag = f"{source.version}-{architecture}"
            environment = _environment(source, tag, architecture)
            argument, other = BEGUN_WITH.get(name, ("", ""))
            if other in names:
                # It begins with layers that were made just now, so its own cannot be one from before; the stages that it is made of may be.
                environment |= {argument: f"localhost/streamjoin-{other}:{tag}", "AGAIN": ""}
            run(source.directory / "tools" / "images.sh", name, cwd=source.directory, environment=environment)
            run("buildah", "push", "--quiet", "--format=oci", f"localhost/streamjoin-{name}:{tag}", f"oci:{directory}:{tag}")
        digests[f"streamjoin-{name}"] = layout.join(directory, source.version)
        if found := layout.problems(directory):
            raise ReleaseError("\n".join(found))
    check_layers(target / DIRECTORY, names)
    return digests


def check_layers(directory: Path, names: Sequence[str] = IMAGES) -> None:
    """Raises ReleaseError unless images have the layers of those that they begin with and one more: who has either pulls but the rest."""
    for name, (_, first) in BEGUN_WITH.items():
        if {name, first} <= set(names):
            for one, other in zip(*(layout.images(directory / f"streamjoin-{each}") for each in (first, name)), strict=True):
                shared, layers = ([layer["digest"] for layer in image.manifest["layers"]] for image in (one, other))
                if layers[:-1] != shared:
                    said = f"streamjoin-{name} {other.architecture}: does not begin with the layers of streamjoin-{first}"
                    raise ReleaseError(f"{said}; build both at once (tools/release.py images {first} {name})")


def too_large(name: str, architecture: str, unpacked_bytes: int) -> str | None:
    """Why an image of this size is not to be released. ``name``: with ``streamjoin-``."""
    limit = LIMITS_MB.get(name.removeprefix("streamjoin-"))
    if limit is None or unpacked_bytes <= limit * 1_000_000:
        return None
    what = "leave something out (docker/unused-python.txt), or raise LIMITS_MB in tools/release_steps/images.py"
    return f"{name} {architecture}: has {unpacked_bytes / 1e6:.0f} MB unpacked, and {limit} are allowed; {what}"


def start_is_fast(architecture: str) -> bool:
    """Whether an image has what is made by running it: where it is for this machine's processor."""
    return MACHINES.get(platform.machine()) == architecture


def builder() -> str:
    """What builds images: another version of it may write other bytes."""
    return output("buildah", "--version").strip()


def _environment(source: Source, tag: str, architecture: str) -> dict[str, str]:
    base = os.environ.get("BASE") or _base()
    # A proxy that looks into TLS is trusted by this machine's certificates, where somebody has said so.
    trusted = os.environ.get("PIP_CERT")
    return {
        **source.environment(),
        "BUILDER": "buildah",
        "PLATFORM": f"linux/{architecture}",
        "TAG": tag,
        **({"BASE": base} if base else {}),
        **({"PIP_CERT": trusted} if trusted else {}),
        # Layers that buildah has from another commit are dated with that one.
        "AGAIN": "1",
    }


def _base() -> str | None:
    """Debian to build in, where no registry can be reached."""
    try:
        return cluster.Single().base()
    except (cluster.ClusterError, subprocess.SubprocessError) as error:
        raise ReleaseError(f"BASE: no Debian to build in: {error}; name one, as BASE=registry.example.com/debian:bookworm-slim") from error
