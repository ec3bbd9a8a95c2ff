"""The CustomResourceDefinition, from the manifest's models: ``make crds`` writes it.

Fields, types, bounds, defaults and descriptions are the models'. What fields must be together is in ``manifest.model_rules``
and ``crd_rules``.

Always holds: the schema is structural, and every text, list and mapping in it is bounded, so that the API server can
bound what the rules cost; an unbounded one is a ValueError that names the field. Nothing that the API server refuses
would pass ``manifest.validate``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from streamjoin.language.graph import MOST_STREAMS
from streamjoin.manifest import model
from streamjoin.manifest.cel import ONE_OF, cel_name, quoted
from streamjoin.manifest.fields import parts_of
from streamjoin.manifest.model import API_VERSION, KIND
from streamjoin.manifest.model_rules import rules_of
from streamjoin.manifest.part import Part, SchemaGenerator
from streamjoin_operator.crd_rules import NAME, RULES
from streamjoin_operator.status_model import Status

Json = dict[str, Any]

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "streamjoins"
LONGEST_NAME = 63
Column = tuple[str, str, str, str, int]
"""What ``kubectl get`` shows: name, type, path, description, priority (1: only with -o wide)."""

COLUMNS: tuple[Column, ...] = (
    ("Phase", "string", ".status.phase", "Where the join is in its life", 0),
    (
        "Ready",
        "string",
        '.status.conditions[?(@.type=="Ready")].status',
        "Whether it is as its spec asks",
        0,
    ),
    ("Workers", "integer", ".status.workers", "How many workers the join runs on", 0),
    ("Desired", "integer", ".status.desiredWorkers", "How many it should run on", 0),
    ("Tau", "string", ".status.utilization.max", "What the fullest worker holds / its capacity", 0),
    ("From", "string", ".status.utilization.source", "Who says so: Prometheus, or the driver", 1),
    ("Since", "date", ".status.utilization.at", "For how long it has been so", 1),
    ("Lag", "string", ".status.lag", "How far the join is behind", 0),
    ("Rate", "string", ".status.rate", "How many tuples come each second", 0),
    ("Shed", "string", ".status.shed", "The share of tuples that is dropped", 0),
    ("Model", "string", ".status.plan.model", "How the join is cut among workers", 0),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', "Why, or why not", 1),
    ("Age", "date", ".metadata.creationTimestamp", "", 0),
)


def definition() -> Json:
    """The CustomResourceDefinition. Raises ValueError for a model with an unbounded field."""
    spec = structural(model.Spec)
    streams, joins = spec["properties"]["streams"], spec["properties"]["joins"]
    # Streams and joins are known by their names, also to those who apply a part of a manifest.
    by_name = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    streams.update(by_name, minItems=2, maxItems=MOST_STREAMS)
    joins.update(by_name, minItems=1, maxItems=model.MOST_JOINS)
    streams["items"]["properties"]["select"]["x-kubernetes-list-type"] = "set"
    _without_defaults_in_lists(spec)
    for items in (streams["items"], joins["items"]):
        _atomic_choices(items)
    names = {
        "kind": KIND,
        "plural": PLURAL,
        "shortNames": ["sj"],
        # Not in "all": `kubectl delete all --all` is to leave StreamJoins, and with them their state, alone.
        "categories": ["streaming"],
    }
    scale = {
        "specReplicasPath": ".spec.workers.floor",
        "statusReplicasPath": ".status.workers",
        "labelSelectorPath": ".status.selector",
    }
    made = definition_of(names, model.Manifest.__doc__, spec, structural(Status), COLUMNS, scale=scale)
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = [NAME.schema()]
    return made


def definition_of(names: Json, description: str | None, spec: Json, status: Json, columns: Sequence[Column], **subresources: Json) -> Json:
    """The CustomResourceDefinition of a kind of resource with these names, schemas and columns of ``kubectl get``. ``subresources``: beside
    the status. Raises ValueError for an unbounded field."""
    _bounded(spec, "spec")
    _bounded(status, "status")
    # Before an operator has looked at it a resource is not settled: without this, kstatus would take it for that.
    status["default"] = {"observedGeneration": -1}
    schema = {
        "description": (description or "").strip(),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "The version of this kind of resource."},
            "kind": {"type": "string", "description": "The kind of resource."},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": LONGEST_NAME}}},
            "spec": spec,
            "status": status,
        },
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [_printed(*column) for column in columns],
        "subresources": {"status": {}, **subresources},
        "schema": {"openAPIV3Schema": schema},
    }
    kind, plural = names["kind"], names["plural"]
    named = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": named | names,
            "versions": [version],
        },
    }


def _atomic_choices(schema: Json) -> None:
    """Have each choice of one field belong to one field manager as a whole. Of two who hold a field each, neither could change its kind,
    and an empty choice (``console: {}``) would not outlast a change from client-side to server-side apply."""
    rules = schema.get("x-kubernetes-validations", ())
    if schema.get("minProperties") == schema.get("maxProperties") == 1 or any(rule["rule"].endswith(ONE_OF) for rule in rules):
        schema["x-kubernetes-map-type"] = "atomic"
    for inner in (*schema.get("properties", {}).values(), schema.get("additionalProperties"), schema.get("items")):
        if isinstance(inner, dict):
            _atomic_choices(inner)


def _without_defaults_in_lists(schema: Json, items_keys: tuple[str, ...] | None = None) -> None:
    """Leave the defaults in lists' items to those who read them, but for the keys of items, which need one.

    ``kubectl apply`` compares a list as a whole: what the API server fills in there would be a change each time. Rules read such a field
    as its default where it is missing. O(size of the schema).
    """
    keys = tuple(schema.get("x-kubernetes-list-map-keys", ()))
    properties = schema.get("properties", {})
    if items_keys is not None:
        left_out = {name: inner["default"] for name, inner in properties.items() if "default" in inner and name not in items_keys}
        for name in left_out:
            del properties[name]["default"]
        for rule in schema.get("x-kubernetes-validations", ()):
            for name, default in left_out.items():
                rule.update(
                    {part: _or_default(rule[part], "self", name, default) for part in ("rule", "messageExpression") if part in rule}
                )
    inside = None if items_keys is None else ()
    for inner in properties.values():
        _without_defaults_in_lists(inner, inside)
    if isinstance(schema.get("additionalProperties"), dict):
        _without_defaults_in_lists(schema["additionalProperties"], inside)
    if "items" in schema:
        _without_defaults_in_lists(schema["items"], keys)


def _or_default(rule: str, of: str, name: str, default: Any) -> str:
    """A rule in which the field counts as its default where it is missing; of objects, rules ask themselves."""
    if isinstance(default, dict | list):
        return rule
    field = cel_name(of, name)
    return re.sub(rf"(?<!has\()\b{re.escape(field)}\b", f"(has({field}) ? {field} : {quoted(default)})", rule)


def _printed(name: str, kind: str, path: str, description: str, priority: int) -> Json:
    column: Json = {"name": name, "type": kind, "jsonPath": path}
    if description:
        column["description"] = description
    if priority:
        column["priority"] = priority
    return column


def structural(part: type[Part]) -> Json:  # noqa: C901
    """A model's JSON schema, with its rules, as Kubernetes wants it: nothing by reference, no alternatives with null."""
    schema = part.model_json_schema(schema_generator=SchemaGenerator)
    definitions: Json = schema.pop("$defs", {})
    rules = {each.__name__: rules_of(each) + RULES.get(each, ()) for each in parts_of(part)}

    def convert(given: Json, name: str | None = None) -> Json:  # noqa: C901
        if "$ref" in given:
            name = given["$ref"].rsplit("/", 1)[-1]
            given = {**definitions[name], **{key: value for key, value in given.items() if key != "$ref"}}
        if "anyOf" in given:
            (one,) = [choice for choice in given["anyOf"] if choice != {"type": "null"}]
            return convert({**one, **{key: value for key, value in given.items() if key != "anyOf"}}, name)
        made = {key: value for key, value in given.items() if key not in _CONVERTED}
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if exclusive in made:
                made |= {bound: made[exclusive], exclusive: True}
        if made.get("type") == "integer":
            made["format"] = "int64"
            # Bounds are compared in 64 bits, where those that only say that it has 64 bits would turn around.
            for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
                if abs(made.get(bound, 0)) >= 2**63:
                    made.pop(exclusive, None)
                    del made[bound]
        if "description" in made:
            made["description"] = " ".join(made["description"].split())
        if "properties" in given:
            made["properties"] = {field: convert(described) for field, described in given["properties"].items()}
        if isinstance(given.get("additionalProperties"), dict):
            made["additionalProperties"] = convert(given["additionalProperties"])
        if "items" in given:
            made["items"] = convert(given["items"])
        default = _written(given.get("default"))
        if default is not None:
            made["default"] = default
        made["x-kubernetes-validations"] = made.get("x-kubernetes-validations", []) + [rule.schema() for rule in rules.get(name or "", ())]
        if not made["x-kubernetes-validations"]:
            del made["x-kubernetes-validations"]
        return made

    return convert(schema, part.__name__)


_CONVERTED = ("title", "additionalProperties", "properties", "items", "default")


def _written(default: Any) -> Any:
    """A default without what it leaves out; None for none. Complete, because the API server checks a part's default against the part's
    rules before it fills in those of its fields.
    """
    if not isinstance(default, dict):
        return default
    return {name: written for name, value in default.items() if (written := _written(value)) is not None} or None


def _bounded(schema: Json, field: str) -> None:
    """Raises ValueError unless every text, list and mapping has a greatest length."""
    text = schema.get("type") == "string" or "x-kubernetes-int-or-string" in schema
    if text and "maxLength" not in schema and "enum" not in schema:
        raise ValueError(f"{field}: has no greatest length; give its type a max_length")
    if schema.get("type") == "array":
        if "maxItems" not in schema:
            raise ValueError(f"{field}: has no greatest number of entries; give its type a max_length")
        _bounded(schema["items"], f"{field}[]")
    if "additionalProperties" in schema:
        if "maxProperties" not in schema:
            raise ValueError(f"{field}: has no greatest number of entries; give its type a max_length")
        _bounded(schema["additionalProperties"], f"{field}[]")
    for name, inner in schema.get("properties", {}).items():
        _bounded(inner, f"{field}.{name}")


def text(made: Json | None = None) -> str:
    """A definition as YAML, as it stands in ``crds/``; that of StreamJoins by default."""
    head = "# Made from the manifest's models: change those, then `make crds`.\n"
    return head + yaml.dump(made or definition(), Dumper=_Plain, sort_keys=False, width=140, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """Writes equal parts out each time: Kubernetes' readers know no anchors to rely on."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


if __name__ == "__main__":
    print(text(), end="")
