"""What of a CustomResourceDefinition's change could take something away from who relied on the one before: objects that were valid, clients
that read a field, defaults that somebody counted on.

Always holds: pure; to add fields, words to an enumeration or room to a bound, or to take rules away, is nothing of that kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

LOWER, UPPER = ("minimum", "minLength", "minItems", "minProperties"), ("maximum", "maxLength", "maxItems", "maxProperties")
SAME = (
    *("type", "format", "pattern", "multipleOf", "uniqueItems", "nullable", "not", "oneOf", "anyOf", "allOf"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    *("x-kubernetes-map-type", "x-kubernetes-embedded-resource"),
)
"""Parts of a schema of which any other value may refuse, or merge otherwise, what was taken before."""


def incompatible(before: Object, after: Object) -> Iterator[str]:
    """A line for each difference between two definitions, in the order of the schema."""
    for name in ("group", "scope"):
        if before["spec"][name] != after["spec"][name]:
            yield f"{name}: {before['spec'][name]} became {after['spec'][name]}"
    yield from _names(before["spec"]["names"], after["spec"]["names"])
    versions = {version["name"]: version for version in after["spec"]["versions"]}
    for version in before["spec"]["versions"]:
        name, now = version["name"], versions.get(version["name"])
        if now is None or (version["served"] and not now["served"]):
            yield f"{name}: is served no more"
            continue
        if version["storage"] != now["storage"]:
            yield f"{name}: storage became {now['storage']}"
        for part, value in version.get("subresources", {}).items():
            if now.get("subresources", {}).get(part) != value:
                yield f"{name}: subresource {part} changed"
        yield from _schema("", version["schema"]["openAPIV3Schema"], now["schema"]["openAPIV3Schema"])


def _names(before: Object, after: Object) -> Iterator[str]:
    for name, value in before.items():
        lost = set(value) - set(after.get(name, ())) if isinstance(value, list) else {value} - {after.get(name)}
        for one in sorted(lost):
            yield f"names.{name}: {one} is gone"


def _schema(field: str, before: Object, after: Object) -> Iterator[str]:
    for name in SAME:
        if before.get(name) != after.get(name):
            yield f"{field}: {name} {before.get(name)} became {after.get(name)}"
    yield from _bounds(field, before, after)
    if "enum" in after:
        if "enum" not in before:
            yield f"{field}: enum {after['enum']} is new"
        for word in before.get("enum", ()):
            if word not in after["enum"]:
                yield f"{field}: enum lacks {word}"
    for name in after.get("required", ()):
        if name not in before.get("required", ()):
            yield f"{field}.{name}: is required"
    yield from _default(field, before.get("default"), after.get("default"))
    rules = [(rule["rule"], rule.get("message", rule["rule"])) for rule in before.get("x-kubernetes-validations", ())]
    for rule in after.get("x-kubernetes-validations", ()):
        said = rule.get("message", rule["rule"])
        if (rule["rule"], said) not in rules and rule["rule"] not in [known for known, _ in rules]:
            yield f"{field}: rule: {said}"
    properties = after.get("properties", {})
    for name, inner in before.get("properties", {}).items():
        path = f"{field}.{name}" if field else name
        if name in properties:
            yield from _schema(path, inner, properties[name])
        else:
            yield f"{path}: is gone"
    for part in ("items", "additionalProperties"):
        old, new = before.get(part), after.get(part)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _schema(f"{field}[]", old, new)
        elif old != new:
            yield f"{field}: {part} changed"


def _bounds(field: str, before: Object, after: Object) -> Iterator[str]:
    for names, is_tighter in ((LOWER, lambda old, new: new > old), (UPPER, lambda old, new: new < old)):
        for name in names:
            old, new = before.get(name), after.get(name)
            if new is not None and (old is None or is_tighter(old, new)):
                yield f"{field}: {name} {old} became {new}"
            exclusive = f"exclusive{name.capitalize()}"
            if after.get(exclusive) and not before.get(exclusive) and old == new:
                yield f"{field}: {exclusive} is new"


def _default(field: str, before: Any, after: Any) -> Iterator[str]:
    """Of a default that has fields of its own, those that were there before count; each field's own default tells of the others."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from _default(f"{field}.{name}", value, after.get(name))
    elif before != after:
        yield f"{field}: default {before} became {after}"
