"""The files that a driver reads when it starts, in ConfigMaps that are named by what they hold.

A container that ends is started again by the kubelet, and reads its files anew, whatever has happened in the meantime: an operator of
another release, an edit that is refused, or one that waits for its trial. So files belong to a pod template as its arguments do: the
template names their ConfigMap, which stays as it is for as long as a template or a pod names it. Only the limits on workers are changed in
place, and the size of executors that were resized: a driver takes them over while it runs (``streamjoin.cli.pods.Limits``).

Always holds: pure; two ConfigMaps of one name hold the same files but for these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from streamjoin.manifest.memory import RESIZED
from streamjoin.manifest.model import Manifest
from streamjoin_operator import names
from streamjoin_operator.changes import engine_manifest, revision, with_operator_fields
from streamjoin_operator.drift import Object, digest
from streamjoin_operator.pod_templates import executor_template
from streamjoin_operator.resource import Resource, child
from streamjoin_operator.settings import Settings

MANIFEST_KEY, EXECUTOR_KEY, REVISION_KEY = "streamjoin.yaml", "executor.yaml", "revision"
LIMITS = ("min", "max", "floor")
"""Of spec.workers."""
SPOILT = (AttributeError, KeyError, TypeError, ValueError)
"""Raised by files that somebody has changed."""

Files = dict[str, str]


def driver_files(resource: Resource, manifest: Manifest, settings: Settings) -> Files:
    """The manifest, the executors' pod template, and the revision that the driver waits for."""
    engine = engine_manifest(manifest)
    return {
        MANIFEST_KEY: _text(engine),
        EXECUTOR_KEY: _text(executor_template(resource, manifest, settings)),
        REVISION_KEY: revision(with_operator_fields(engine, manifest), resource.started_for, resource.begun),
    }


def manifest_of(files: Mapping[str, str]) -> Object:
    """The manifest as the driver has it by now. Raises one of SPOILT."""
    document = json.loads(files[MANIFEST_KEY])
    if RESIZED not in files:
        return dict(document)
    workers = {**_workers(document), "resources": json.loads(files[RESIZED])}
    return {**document, "spec": {**document["spec"], "workers": workers}}


def substance(files: Mapping[str, str]) -> str:
    """A hash of what a driver would run: not of the limits, nor of the revision, which may only have it start anew."""
    return digest([_with_limits(json.loads(files[MANIFEST_KEY]), {}), files[EXECUTOR_KEY]])


def content(files: Mapping[str, str]) -> str:
    """A hash of all that may not change under a template. Raises one of SPOILT."""
    return digest([substance(files), files[REVISION_KEY]])


def files_map(resource: Resource, name: str, wanted: Files, observed: Object | None, resized: str | None = None) -> Object:
    """The ConfigMap ``name`` as it is to be: as it is but for the limits; ``wanted`` where it is not there, or somebody has spoilt it.
    ``resized``: the resources that all executors have, where they were resized; None: as it is."""
    is_intact = _hash(observed) == name.removeprefix(f"{resource.base}-")
    files = _followed(observed, wanted) if is_intact else wanted
    resized = resized or ((observed or {}).get("data") or {}).get(RESIZED)
    return child(resource, "v1", "ConfigMap", name, data={**files, RESIZED: resized} if resized else files)


def is_files_map(resource: Resource, observed: Object) -> bool:
    """Whether a child is one of these ConfigMaps, and not the record (``children.record``), which has a copy of their files."""
    metadata = observed["metadata"]
    is_files = observed["kind"] == "ConfigMap" and metadata["name"] != resource.base and REVISION_KEY in (observed.get("data") or {})
    return is_files and resource.owns(observed)


def files_of(template: Object) -> str | None:
    """The name of the ConfigMap that a driver of this pod template, or this pod, reads."""
    volumes = template["spec"].get("volumes") or []
    found: Object = next((volume for volume in volumes if volume["name"] == names.FILES_VOLUME), {})
    name: str | None = (found.get("configMap") or {}).get("name")
    return name


def _hash(observed: Object | None) -> str | None:
    try:
        return content((observed or {})["data"])
    except SPOILT:
        return None


def _followed(observed: Object | None, wanted: Files) -> Files:
    files = (observed or {})["data"]
    limits = {name: value for name, value in _workers(json.loads(wanted[MANIFEST_KEY])).items() if name in LIMITS}
    document = _with_limits(json.loads(files[MANIFEST_KEY]), limits)
    return {MANIFEST_KEY: _text(document), EXECUTOR_KEY: files[EXECUTOR_KEY], REVISION_KEY: files[REVISION_KEY]}


def _with_limits(document: Object, limits: Object) -> Object:
    workers = {name: value for name, value in _workers(document).items() if name not in LIMITS} | limits
    spec = {name: value for name, value in document["spec"].items() if name != "workers"}
    return {**document, "spec": {**spec, "workers": workers} if workers else spec}


def _workers(document: Object) -> Object:
    workers: Object = document["spec"].get("workers") or {}
    return workers


def _text(value: Object) -> str:
    return json.dumps(value, indent=1, sort_keys=True)
