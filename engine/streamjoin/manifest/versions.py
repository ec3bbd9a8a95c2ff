"""The versions of the manifest, and one made of the other, as Kubernetes' API server asks for it.

``v1beta1`` is ``v1alpha1`` without the former names of fields (``manifest.deprecations`` lists them), so nothing else is to be converted.

Always holds, for what an API server stores (each join has a name of its own):

- Pure; the argument is left as it is, and of it only ``apiVersion``, joins and one annotation are looked at.
- v1beta1 -> v1alpha1 -> v1beta1 gives what was given. So does v1alpha1 -> v1beta1 -> v1alpha1: the name by which a condition was given is
  kept in the annotation :data:`FIELDS` meanwhile, so that whoever applies a manifest with the former name finds it as he wrote it.
- That annotation is heeded only as it was written here; anything else under its name is passed over, and stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamjoin.manifest.problem import listed, shown

GROUP = "streamjoin.dev"
KIND = "StreamJoin"
NEWEST = f"{GROUP}/v1beta1"
"""What the models are of (``manifest.model``), and what objects are to be stored as."""
FORMER = f"{GROUP}/v1alpha1"
VERSIONS = (NEWEST, FORMER)
"""All that are read."""
SHORT = tuple(version.partition("/")[2] for version in VERSIONS)
"""Without the group, as definitions call them."""
FIELDS = f"{GROUP}/v1alpha1-fields"
"""The annotation: by join, the former name of its condition, as JSON in one way of writing it."""
CONDITION = "condition"
FORMER_NAMES = ("on", "true")
"""Of :data:`CONDITION`. The second is what readers of YAML 1.1, and so kubectl, make of the first where it has no quotes."""
DEFAULT_NAME = "join"
"""Of a join that has none (``manifest.model.Join``)."""

Object = dict[str, Any]


class ConversionError(ValueError):
    """An object that cannot be converted; the text names it, the field and the remedy."""


def convert(resource: object, version: str) -> Object:
    """A StreamJoin as it is in ``version``, one of :data:`VERSIONS`. Raises ConversionError. O(its joins)."""
    if version not in VERSIONS:
        raise ConversionError(f"{shown(version)} is no version of {KIND}; ask for {listed(VERSIONS)}")
    if not isinstance(resource, Mapping) or resource.get("kind") != KIND:
        raise ConversionError(f"{_named(resource)} is no {KIND}; send objects of that kind alone")
    given = resource.get("apiVersion")
    if given not in VERSIONS:
        raise ConversionError(f"{_named(resource)}: apiVersion: {shown(given)} is not known; give {listed(VERSIONS)}")
    converted = {**resource, "apiVersion": version}
    if given == version:
        return converted
    return _to_newest(converted) if version == NEWEST else _to_former(converted)


def former_names_of(join: object) -> list[str]:
    """The former names of its condition that a join has."""
    return [name for name in FORMER_NAMES if join.get(name) is not None] if isinstance(join, Mapping) else []


def kept_names(resource: Mapping[str, Any]) -> dict[str, str]:
    """By join, the former name that the annotation has kept; none where it is not there, or is not as it is written here."""
    text = _annotations(resource).get(FIELDS)
    try:
        names = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(names, dict) or not all(name in FORMER_NAMES for name in names.values()):
        return {}
    return names if text == _written(names) else {}


def renamed(join: Mapping[str, Any], before: str, after: str) -> Object:
    """A join whose field ``before`` has another name, in its place."""
    return {after if name == before else name: value for name, value in join.items()}


def _to_newest(resource: Object) -> Object:
    kept, joins = kept_names(resource), []
    for index, join in enumerate(_joins(resource)):
        given = former_names_of(join)
        if len(given) + (CONDITION in join if given else 0) > 1:
            both = listed([*given, *([CONDITION] if CONDITION in join else [])], "and")
            raise ConversionError(f"{_named(resource)}: spec.joins[{index}]: {both} are given; keep {CONDITION} alone")
        if isinstance(join, Mapping):
            # A join that gives its condition by today's name does so, whatever was kept of one before it.
            kept.pop(_name(join), None)
        if given:
            kept[_name(join)] = given[0]
            join = renamed(join, given[0], CONDITION)  # noqa: PLW2901
        joins.append(join)
    return _with(resource, joins, kept)


def _to_former(resource: Object) -> Object:
    kept, joins = kept_names(resource), []
    for join in _joins(resource):
        if isinstance(join, Mapping) and CONDITION in join and not former_names_of(join) and _name(join) in kept:
            join = renamed(join, CONDITION, kept.pop(_name(join)))  # noqa: PLW2901
        joins.append(join)
    return _with(resource, joins, kept)


def _with(resource: Object, joins: list[Any], kept: dict[str, str]) -> Object:
    changed = dict(resource)
    if joins:
        changed["spec"] = {**resource["spec"], "joins": joins}
    if kept == kept_names(resource):
        return changed
    annotations = {name: value for name, value in _annotations(resource).items() if name != FIELDS}
    if kept:
        annotations[FIELDS] = _written(kept)
    metadata = {name: value for name, value in (resource.get("metadata") or {}).items() if name != "annotations"}
    changed["metadata"] = {**metadata, "annotations": annotations} if annotations else metadata
    return changed


def _joins(resource: Mapping[str, Any]) -> list[Any]:
    spec = resource.get("spec")
    joins = spec.get("joins") if isinstance(spec, Mapping) else None
    return joins if isinstance(joins, list) else []


def _name(join: Mapping[str, Any]) -> str:
    name = join.get("name", DEFAULT_NAME)
    return name if isinstance(name, str) else DEFAULT_NAME


def _annotations(resource: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = resource.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return annotations if isinstance(annotations, Mapping) else {}


def _written(names: Mapping[str, str]) -> str:
    return json.dumps(names, sort_keys=True, separators=(",", ":"))


def _named(resource: object) -> str:
    """``StreamJoin joins/near``."""
    if not isinstance(resource, Mapping):
        return shown(resource)
    metadata = resource.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    where = "/".join(str(metadata[part]) for part in ("namespace", "name") if metadata.get(part))
    return f"{resource.get('kind') or 'an object'} {where or 'without a name'}"
