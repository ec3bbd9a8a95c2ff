"""The CustomResourceDefinition, from the manifest's models: ``make crds`` writes it. What its former version differs in is in
``crd_former``.

Fields, types, bounds, defaults and descriptions are the models'. What fields must be together is said here in CEL, beside
the checks in ``manifest.together`` that it mirrors. SQL, places and what depends on the types of columns are beyond CEL:
these the operator checks, and reports in the status.

Always holds: the schema is structural, and every text, list and mapping in it is bounded, so that the API server can
bound what the rules cost; an unbounded one is a ValueError that names the field. Nothing that the API server refuses
would pass ``manifest.validate``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from streamjoin.language.graph import MOST_STREAMS
from streamjoin.manifest import model, sinks, snapshots, sources
from streamjoin.manifest.cel import Rule, seconds
from streamjoin.manifest.model import API_VERSION
from streamjoin.manifest.part import Part, SchemaGenerator
from streamjoin.manifest.problem import listed
from streamjoin.manifest.versions import KIND
from streamjoin_operator.crd_former import former
from streamjoin_operator.status_model import Status

Json = dict[str, Any]

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "streamjoins"

PATH = "/convert"
CONVERSION: Json = {
    "strategy": "Webhook",
    "webhook": {
        "conversionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {"namespace": "streamjoin", "name": "streamjoin-streamjoin-operator-convert", "path": PATH, "port": 443}
        },
    },
}
"""Who converts one version to the other: the Service of a release ``streamjoin`` in the namespace ``streamjoin``. The chart writes its own
in, and whom to trust. Without anybody to ask, only what is in the stored version can be read and written; to convert by another
``apiVersion`` alone (``strategy: None``) would lose conditions by their former name in silence."""

COLUMNS = (
    ("Phase", "string", ".status.phase", "Where the join is in its life", 0),
    ("Workers", "integer", ".status.workers", "How many workers the join runs on", 0),
    ("Desired", "integer", ".status.desiredWorkers", "How many it should run on", 0),
    ("Tau", "string", ".status.utilization.max", "What the fullest worker holds / its capacity", 0),
    ("From", "string", ".status.utilization.source", "Who says so: Prometheus, or the driver", 1),
    ("Since", "date", ".status.utilization.at", "For how long it has been so", 1),
    ("Shed", "string", ".status.shed", "The share of tuples that is dropped", 0),
    ("Model", "string", ".status.plan.model", "How the join is cut among workers", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether results are being written", 1),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', "Why, or why not", 1),
    ("Age", "date", ".metadata.creationTimestamp", "", 0),
)
"""What ``kubectl get`` shows: name, type, path, description, priority (1: only with -o wide)."""


def quoted(text: str) -> str:
    """A CEL string."""
    return json.dumps(text)


def one_of(*given: str) -> str:
    """Whether exactly one of the conditions holds."""
    return f"[{', '.join(given)}].exists_one(given, given)"


def same(field: str) -> str:
    """Whether an optional field of ``s`` is what it is in ``o``."""
    return f"(has(s.{field}) == has(o.{field}) && (!has(s.{field}) || s.{field} == o.{field}))"


def _names(part: type[Part]) -> list[str]:
    return [info.alias or name for name, info in part.model_fields.items()]


def _exactly_one(*names: str) -> Rule:
    return Rule(one_of(*(f"has({cel_name('self', name)})" for name in names)), f"give exactly one of {listed(names, 'and')}")


def cel_name(of: str, name: str) -> str:
    """How CEL reads a field: words of its own stand between underscores there."""
    return f"{of}.__{name}__" if name in _CEL_WORDS else f"{of}.{name}"


_CEL_WORDS = {"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"}
_CEL_WORDS |= {"package", "namespace", "return", "var", "void", "while"}


def _only_csv(name: str, default: str, formats: str) -> Rule:
    """The API server fills in defaults, so only what differs from them was meant."""
    allowed = " || ".join(f"self.format == '{each}'" for each in formats.split())
    message = f"has no meaning with this format; remove it (it belongs to {listed(formats.split(), 'and')})"
    return Rule(f"{allowed} || self.{name} == {default}", message, field=name)


def _below(low: str, high: str) -> Rule:
    """Of the thresholds of scaling. tau1 is half of tau2 where it is not given."""
    value = {"tau1": "(has(self.tau1) ? self.tau1 : 0.5 * self.tau2)"}
    lower, upper = (value.get(name, f"self.{name}") for name in (low, high))
    by_default = " (by default half of tau2)" if high == "tau1" else ""
    return Rule(f"{lower} < {upper}", f"{low} must be below {high}{by_default}", field=None if low == "tau1" else low)


def _has_one(of: str, *names: str) -> str:
    """Whether any of these fields is given."""
    return f"({' || '.join(f'has({of}.{name})' for name in names)})"


_TIMES = ("within", "each", "before", "after")
"""Fields of windows of time."""
_OF_TWO = ("before", "after", "slide")
"""Fields of windows of two streams."""
_UNBOUNDED = "(has({0}.unbounded) && {0}.unbounded)"
_FORMS = ("has(self.within)", _has_one("self", "before", "after"), "has(self.each)", "has(self.rows)", _UNBOUNDED.format("self"))

_QUALIFIER = r"'\\b[a-z_][a-z0-9_]*\\.'"
_WITHOUT_STREAMS = (
    "j.condition.lowerAscii()"
    + "".join(
        f".replace(self.streams[{number if number < 2 else f'self.streams.size() > {number} ? {number} : 0'}].name.lowerAscii() + '.', '')"
        for number in range(MOST_STREAMS)
    )
)
"""A condition less the names of streams. To look each name up would cost more, of 16 joins, than an API server takes; so a name that ends
in a stream's is let through, and the operator refuses it."""
_PLAIN = "j.condition.matches('[\\'\"`]|--|/[*]')"


_OF_PAIRS = "(self.streams.size() > 2 && (self.joins.size() > 1 || self.streams.exists(s, has(s.source.join))))"
"""Whether each join is over the two streams that its condition names (``manifest.resolve``)."""


def _fixed(what: str, of: str, unchanged: str) -> Rule:
    """What may not change under an existing checkpoint (``job.Job.fingerprint``), for lists of streams or joins, by name."""
    kept = " && ".join(
        f"has(self.checkpoint.{name}) == has(oldSelf.checkpoint.{name})"
        f" && (!has(self.checkpoint.{name}) || self.checkpoint.{name} == oldSelf.checkpoint.{name})"
        for name in ("location", "persistentVolumeClaim")
    )
    rule = f"!({kept}) || self.{of}.all(s, oldSelf.{of}.all(o, s.name != o.name || {unchanged}))"
    return Rule(rule, f"{what} may not change under the same checkpoint; give another checkpoint, or make another {KIND}")


RULES: Mapping[type[Part], tuple[Rule, ...]] = {
    sources.Source: (_exactly_one(*_names(sources.Source)),),
    sinks.Sink: (_exactly_one(*_names(sinks.Sink)),),
    sources.Rate: (_exactly_one(*_names(sources.Rate)),),
    model.Checkpoint: (_exactly_one("location", "persistentVolumeClaim"),),
    sources.FilesSource: (
        Rule("!self.pattern.contains('/')", "has a /, and is compared with file names alone; put the directory into path", field="pattern"),
        Rule(
            r"""!(self.delimiter in ['"', '\n', '\r'])""",
            "cannot separate values; use another character, such as ;",
            field="delimiter",
        ),
        _only_csv("header", "true", "csv"),
        _only_csv("delimiter", "','", "csv"),
        _only_csv("settle", quoted(str(sources.FilesSource.model_fields["settle"].default)), "json csv"),
    ),
    sinks.FilesSink: (
        Rule(
            "self.format != 'json' || !has(self.compression) || self.compression == 'none'",
            "is only for format parquet; remove it, or write parquet",
            field="compression",
        ),
    ),
    sources.KafkaSource: (
        _exactly_one("topic", "topicPattern"),
        Rule(
            "!has(self.topic) || (self.topic.matches('^[A-Za-z0-9._-]+$') && !(self.topic in ['.', '..']))",
            "is not the name of a topic; use letters, digits, ., _ and -",
            field="topic",
        ),
        Rule(
            "!has(self.discoveryInterval) || has(self.topicPattern)",
            "is for topicPattern, and there is none; remove it, or give topicPattern",
            field="discoveryInterval",
        ),
    ),
    sinks.KafkaSink: (
        Rule(
            "self.topic.matches('^[A-Za-z0-9._-]+$') && !(self.topic in ['.', '..'])",
            "is not the name of a topic; use letters, digits, ., _ and -",
            field="topic",
        ),
    ),
    snapshots.SnapshotStore: (_exactly_one(*_names(snapshots.SnapshotStore)),),
    snapshots.Snapshots: (
        Rule(
            "self.punctuation || has(self.every) || has(self.size)",
            "does not say when a snapshot ends; give every, or size, or both, or punctuation: true",
        ),
        Rule(
            "!self.punctuation || !(has(self.every) || has(self.size))",
            "excludes every and size; keep one",
            field="punctuation",
        ),
        Rule(
            "self.maxDelay == 0 || (has(self.every) && has(self.size))",
            "needs every and size; give both, or remove maxDelay",
            field="maxDelay",
        ),
    ),
    sources.Spike: (
        Rule(
            f"!has(self.every) || {seconds('self.__for__')} <= {seconds('self.every')}",
            "must be at most every; shorten it",
            "'must be at most every (' + self.every + '); shorten it'",
            field="for",
        ),
    ),
    sources.Uniform: (Rule("self.min <= self.max", "must be at most max", field="min"),),
    sources.Hotspot: (
        Rule("self.min <= self.max", "must be at most max", field="min"),
        # A closed range of whole numbers has one value more than its ends are apart.
        Rule(
            "self.min > self.max || (self.width > 0.0 && self.width <= self.max - self.min + 1.0)",
            "must be above 0 and at most as wide as min to max",
            field="width",
        ),
    ),
    model.Stream: (
        Rule(
            "has(self.schema) != has(self.source.join)",
            "must be given, but where the source is a join, whose output it follows from",
            field="schema",
        ),
        Rule(
            "has(self.eventTime) || !self.watermark.matches('[1-9]')",
            "needs eventTime; name the column of event times there, or remove watermark",
            field="watermark",
        ),
        Rule(
            "has(self.eventTime) || !has(self.maxAhead)",
            "needs eventTime; name the column of event times there, or remove maxAhead",
            field="maxAhead",
        ),
    ),
    model.Window: (
        Rule(one_of(*_FORMS), "give exactly one of within, before and after, each, rows, and unbounded: true"),
        Rule(
            f"!has(self.slide) || {_has_one('self', 'within', 'before', 'after')}",
            "has no meaning with each, rows or unbounded; remove it, or give within, or before and after",
            field="slide",
        ),
        *(
            Rule(
                f"!has(self.slide) || !has(self.{name}) || !self.{name}.matches('[1-9]')"
                f" || {seconds('self.slide')} <= {seconds(f'self.{name}')}",
                f"must be at most {name}, or tuples would lie between two windows; shorten it",
                f"'must be at most {name} (' + self.{name} + '), or tuples would lie between two windows; shorten it'",
                field="slide",
            )
            for name in ("within", "before", "after")
        ),
    ),
    model.SchemeSpec: tuple(
        Rule(
            f"!has(self.{name}) || self.model == '{owner}'",
            f"is only for model {owner}; remove one of them",
            f"'is only for model {owner}, and the model is ' + self.model + '; remove one of them'",
            field=name,
        )
        for name, owner in (("sigma", "readj"), ("groups", "biclique"))
    ),
    model.Workers: (
        Rule("self.min <= self.max", "must be at most max", field="min"),
        Rule(
            "self.floor <= 1 || (self.min <= self.floor && self.floor <= self.max)",
            "must be at least min and at most max, or 1 for none",
            field="floor",
        ),
        Rule(
            "!has(self.capacity) || !has(self.capacityTuples)",
            "excludes capacityTuples; keep one: capacity weighs tuples by their bytes, capacityTuples counts them",
            field="capacity",
        ),
        Rule(
            "self.perExecutor <= self.max",
            "must be at most max, or each pod would have room for workers that never come",
            field="perExecutor",
        ),
    ),
    model.Scaling: (_below("tau0", "tau1"), _below("tau1", "tau2"), _below("tau2", "tau3")),
    model.Spec: (
        Rule(
            "self.streams.all(a, self.streams.exists_one(b, a.name.lowerAscii() == b.name.lowerAscii()))",
            "two streams have the same name (case does not count); choose another",
            field="streams",
        ),
        Rule(
            f"!self.joins.exists(j, {_has_one('j.window', *_TIMES)}) || self.streams.all(s, has(s.eventTime))",
            "a window of time needs the eventTime of each stream; name a TIMESTAMP column, or use rows or unbounded",
            field="streams",
        ),
        Rule(
            "self.joins.all(a, self.joins.exists_one(b, a.name.lowerAscii() == b.name.lowerAscii()))",
            "two joins have the same name (case does not count); choose another",
            field="joins",
        ),
        Rule(
            " || ".join(
                f"self.joins.all(j, {form})"
                for form in (_has_one("j.window", *_TIMES), "has(j.window.rows)", _UNBOUNDED.format("j.window"))
            ),
            "the windows must be of one kind (time, rows or unbounded), as joins over the same streams hold them together; move the others"
            " into a manifest of their own",
            field="joins",
        ),
        Rule(
            f"self.streams.size() == 2 || {_OF_PAIRS} || self.joins.all(j, j.type == 'inner')",
            "a type other than inner is for two streams; remove it, for inner",
            field="joins",
        ),
        Rule(
            f"self.streams.size() == 2 || {_OF_PAIRS} || !self.joins.exists(j, {_has_one('j.window', *_OF_TWO)})",
            f"{listed(_OF_TWO, 'and')} of a window are for two streams; give within, or each, or rows, or unbounded: true",
            field="joins",
        ),
        Rule(
            f"!{_OF_PAIRS} || !self.joins.exists(j, has(j.window.rows))",
            "rows of a window counts the records of two streams, and there are more; give within, or before and after, or unbounded: true",
            field="joins",
        ),
        Rule(
            "self.streams.all(s, !has(s.source.join) || self.joins.exists(j, j.name == s.source.join))",
            "a stream reads the results of a join that is not there; name one of joins",
            field="streams",
        ),
        Rule(
            "self.streams.size() > 2 || !self.streams.exists(s, has(s.source.join))",
            "a stream of results needs the two streams of that join beside it, and one to join its results with; give them",
            field="streams",
        ),
        Rule(
            "self.joins.all(j, has(j.output.sink) || self.streams.exists(s, has(s.source.join) && s.source.join == j.name))",
            "a join has no sink, and no stream reads its results; give files, delta, iceberg, postgres, kafka or console",
            field="joins",
        ),
        Rule(
            f"{_OF_PAIRS} || self.joins.all(j, !has(j.window.each)"
            " || (j.window.each.size() == self.streams.size() && self.streams.all(s, s.name in j.window.each)))",
            "each of a window must name every stream and no other; say how long before the newest tuple of a result the stream's may be",
            field="joins",
        ),
        # Where the text has quotes or comments, a dot in it may be anything.
        Rule(
            f"self.joins.all(j, {_PLAIN} || !{_WITHOUT_STREAMS}.matches({_QUALIFIER}))",
            "condition refers to a stream that is not there; write stream.column with the names of streams",
            field="joins",
        ),
        Rule(
            "!self.joins.exists(j, has(j.output.snapshots) && j.output.snapshots.punctuation) || self.streams.all(s, has(s.punctuation))",
            "snapshots that end by punctuation need streams[].punctuation of every stream; give when and id",
            field="streams",
        ),
        Rule(
            "!self.joins.exists(j, j.type == 'anti') || self.shedding.model == 'off'",
            "shedding makes results of anti joins wrong: a tuple whose match was shed seems to have none; set shedding.model to off",
            field="shedding",
        ),
        Rule(
            "!has(self.scaling.budget) || self.shedding.model != 'off'",
            "the budget has nothing to spend, as nothing is shed; set shedding.model, or remove it",
            field="scaling",
        ),
        Rule(
            "!has(self.scaling.budget) || self.joins.exists(j, j.type == 'inner')",
            "the budget counts results of inner joins, and there are none; remove it",
            field="scaling",
        ),
        Rule(
            "self.streams.map(s, s.name) == oldSelf.streams.map(s, s.name)",
            f"the streams' names and order may not change; make another {KIND}",
            field="streams",
        ),
        Rule(
            f"self.streams.size() == 2 || {_OF_PAIRS} || self.joins[0].name == oldSelf.joins[0].name",
            f"the name of a join of three and more streams may not change; make another {KIND}",
            field="joins",
        ),
        _fixed(
            "a stream's source (its kind, directory or topic, and format)",
            "streams",
            " && ".join(
                [f"has(s.source.{kind}) == has(o.source.{kind})" for kind in _names(sources.Source)]
                # A pattern may follow a topic, which the operator compares it with.
                + [
                    "(!has(s.source.kafka) || !has(o.source.kafka) || !has(s.source.kafka.topic)"
                    " || (has(o.source.kafka.topic) && s.source.kafka.topic == o.source.kafka.topic))"
                ]
                + [
                    f"(!has(s.source.{kind}) || !has(o.source.{kind})"
                    f" || ({' && '.join(f's.source.{kind}.{name} == o.source.{kind}.{name}' for name in names)}))"
                    for kind, names in (
                        ("files", ("path", "format")),
                        ("kafka", ("format",)),
                        ("delta", ("path",)),
                        ("iceberg", ("table",)),
                    )
                ]
            ),
        ),
        _fixed("a stream's schema", "streams", same("schema")),
        _fixed("a stream's eventTime", "streams", same("eventTime")),
        _fixed("a stream's select", "streams", f"{same('select')} || self.joins.map(j, j.name) != oldSelf.joins.map(j, j.name)"),
        _fixed("a join's condition", "joins", "s.condition == o.condition"),
        _fixed("a join's type", "joins", same("type")),
        _fixed("a join's window", "joins", " && ".join(same("window." + name) for name in _names(model.Window))),
    ),
}


def definition() -> Json:
    """The CustomResourceDefinition. Raises ValueError for a model with an unbounded field."""
    spec = _structural(model.Spec)
    streams, joins = spec["properties"]["streams"], spec["properties"]["joins"]
    # Streams and joins are known by their names, also to those who apply a part of a manifest.
    by_name = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    streams.update(by_name, minItems=2, maxItems=MOST_STREAMS)
    joins.update(by_name, minItems=1, maxItems=model.MOST_JOINS)
    streams["items"]["properties"]["select"]["x-kubernetes-list-type"] = "set"
    _bounded(spec, "spec")
    status = _structural(Status)
    _bounded(status, "status")
    schema = {
        "description": (model.Manifest.__doc__ or "").strip(),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "The version of this kind of resource."},
            "kind": {"type": "string", "description": "The kind of resource."},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 63}}},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": [_NAME.schema()],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [_column(*column) for column in COLUMNS],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.workers.floor",
                "statusReplicasPath": ".status.workers",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": schema},
    }
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["sj"],
        # Not in "all": `kubectl delete all --all` is to leave StreamJoins, and with them their state, alone.
        "categories": ["streaming"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": names,
            "conversion": CONVERSION,
            "versions": [version, former(version)],
        },
    }


def _column(name: str, kind: str, path: str, description: str, priority: int) -> Json:
    column: Json = {"name": name, "type": kind, "jsonPath": path}
    if description:
        column["description"] = description
    if priority:
        column["priority"] = priority
    return column


_NAME = Rule(
    "self.metadata.name.matches('^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$')",
    "metadata.name is not a name for a resource; use lower-case letters, digits and, inside, -; at most 63 characters",
)


def _structural(part: type[Part]) -> Json:
    """A model's JSON schema, with its rules, as Kubernetes wants it: nothing by reference, no alternatives with null."""
    schema = part.model_json_schema(schema_generator=SchemaGenerator)
    definitions: Json = schema.pop("$defs", {})
    rules = {each.__name__: each_rules for each, each_rules in RULES.items()}

    def convert(given: Json, name: str | None = None) -> Json:
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
        if name == sources.ColumnGenerator.__name__:
            # One of the fields, which CEL cannot count: values of any type are invisible to it.
            made.update(minProperties=1, maxProperties=1)
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


def text() -> str:
    """The definition as YAML, as it stands in ``crds/``."""
    head = "# Made from the manifest's models: change those, then `make crds`.\n"
    return head + yaml.dump(definition(), Dumper=_Plain, sort_keys=False, width=140, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """Writes equal parts out each time: Kubernetes' readers know no anchors to rely on."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


if __name__ == "__main__":
    print(text(), end="")
