"""Which directories of a manifest last, on Kubernetes: those in an object store, and those on a volume that driver and executors mount.

Any other directory is in each pod's own file system: executors and driver would each have another one, and it would go with its pod.

Always holds: pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from streamjoin.location import is_url, place, within
from streamjoin.manifest import Manifest, Problem
from streamjoin.manifest.sinks import sinks_in
from streamjoin.manifest.sources import sources_in
from streamjoin_operator import names
from streamjoin_operator.changes import CLAIM_PATH

OWN = ("emptyDir", "ephemeral")
"""Kinds of volumes that each pod has one of its own of."""
READ_ONLY = ("configMap", "secret", "projected", "downwardAPI", "image")
REMEDY = "give an s3://, gs://, abfss:// or az:// URL, or a directory below {}, where spec.checkpoint.persistentVolumeClaim is mounted"


def local_places(manifest: Manifest) -> Iterator[Problem]:
    """Directories that would not last."""
    spec = manifest.spec
    claim = (CLAIM_PATH,) if spec.checkpoint.persistent_volume_claim is not None else ()
    pods = ((spec.driver.pod_template, names.DRIVER), (spec.executor.pod_template, names.EXECUTOR))
    for field, directory, is_read in _directories(manifest):
        where = place(directory)
        if is_url(where):
            continue
        excluded = OWN if is_read else (*OWN, *READ_ONLY)
        mounts = [(*claim, *_mounts(template, container, excluded)) for template, container in pods]
        if not all(any(within(where, mount) for mount in of_pod) for of_pod in mounts):
            what = "is in each pod's own file system: it is not the same for all of them, and goes with its pod"
            yield Problem(field, directory, f"{what}; {REMEDY.format(CLAIM_PATH)}")


def _directories(manifest: Manifest) -> Iterator[tuple[str, str, bool]]:
    """Field, place, and whether it is only read."""
    spec = manifest.spec
    for index, stream in enumerate(spec.streams):
        for kind, source in sources_in(stream.source):
            if (directory := source.directory()) is not None:
                yield f"spec.streams[{index}].source.{kind}.path", directory, True
    for index, join in enumerate(spec.joins):
        for kind, sink in sinks_in(join.output.sink):
            if (directory := sink.directory()) is not None:
                yield f"spec.joins[{index}].output.sink.{kind}.path", directory, False
    if spec.checkpoint.location is not None:
        yield "spec.checkpoint.location", spec.checkpoint.location, False
    if spec.checkpoint.clone_of is not None:
        yield "spec.checkpoint.cloneOf.location", spec.checkpoint.clone_of.location, True
    if spec.dead_letter is not None and spec.dead_letter.location is not None:
        yield "spec.deadLetter.location", spec.dead_letter.location, False


def _mounts(template: Mapping[str, Any], container: str, excluded: tuple[str, ...]) -> Iterator[str]:
    """Where the container mounts volumes of other kinds than those that are excluded."""
    pod = template.get("spec") or {}
    volumes = {volume.get("name"): volume for volume in pod.get("volumes") or [] if isinstance(volume, Mapping)}
    for each in pod.get("containers") or []:
        if isinstance(each, Mapping) and each.get("name") == container:
            for mount in each.get("volumeMounts") or []:
                if isinstance(mount, Mapping) and not set(excluded) & set(volumes.get(mount.get("name"), dict.fromkeys(OWN))):
                    yield str(mount.get("mountPath", "")).rstrip("/")
