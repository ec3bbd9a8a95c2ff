"""What a change of a manifest takes: nothing, a new plan for the running join, or a restart from the checkpoint.

The engine's manifest is the resource's without what only the operator reads. Two of them are compared field by field, defaults left out, so
that a default that a later release adds or the API server fills in is no change. The first rule that fits a field says its class.

Always holds: a change that no rule knows restarts the driver, which is never wrong; the revision of a manifest (what its driver was started
for) differs between two manifests exactly when some field of class RESTART or REFUSED does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streamjoin.manifest import outer_joins, resolve
from streamjoin.manifest.model import API_VERSION, Join, Manifest
from streamjoin.manifest.sources import SOURCES
from streamjoin.scheme.models import HANDSHAKE
from streamjoin_operator.drift import digest

Object = dict[str, Any]

CLAIM_PATH = "/var/lib/streamjoin"
"""Where a claim is mounted in the driver and the executors."""


class Class(StrEnum):
    """In the order of what they take."""

    IGNORED = "Ignored"
    LIVE = "Live"
    RESTART = "Restart"
    REFUSED = "Refused"


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs."""

    field: str
    kind: Class
    why: str


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: re.Pattern[str]
    kind: Class
    why: str


def _rule(pattern: str, kind: Class, why: str) -> Rule:
    return Rule(re.compile(pattern), kind, why)


DEFAULT_NAME = Join.model_fields["name"].default
_SOURCE = re.compile(r"spec\.streams\[(\d+)\]\.source\.(\w+)\.(\w+)")
_SELECT = re.compile(r"spec\.streams\[\d+\]\.select.*")
IDENTITY = "held tuples and positions in the checkpoint would no longer fit"
CHAIN = "tuples in a chain have yet to meet: no other model goes on from what it holds, nor it from what another model does"
MET = "some tuples in the chain have met without it"


def _source_rules() -> Iterator[Rule]:
    """Fields that make the identity of a source, and those that make another which goes on from it."""
    for kind, source in SOURCES.items():
        for name in source.fixed:
            yield _rule(rf"spec\.streams\[\d+\]\.source\.{kind}\.{name}", Class.REFUSED, IDENTITY)
        for name in source.continued.keys() - set(source.fixed):
            yield _rule(rf"spec\.streams\[\d+\]\.source\.{kind}\.{name}", Class.RESTART, source.continued[name])


RULES = (
    _rule(r"spec\.streams\[\d+\]\.expectedRate", Class.IGNORED, "only the first deployment is planned by it"),
    _rule(
        r"spec\.(scaling\.(mode|policy|floor|scaleUpAfter|scaleDownAfter|rules|vertical|quiet|maxPerHour|prometheus)|workers\.maxMemory)\b.*",
        Class.IGNORED,
        "the operator reads it at every decision",
    ),
    _rule(r"spec\.checkpoint\.(onDelete|size|storageClassName|accessModes)\b.*", Class.IGNORED, "the operator reads it when it acts on it"),
    _rule(r"spec\.workers\.(min|max|floor)", Class.LIVE, "the driver is asked for a plan within the limits"),
    _rule(r"spec\.scheme\.model \(handshake\)", Class.REFUSED, CHAIN),
    _rule(r"spec\.scheme\.model", Class.LIVE, "the driver is asked for a plan of the model"),
    _rule(r"spec\.streams\[\d+\]\.(name|schema|eventTime|select)\b.*", Class.REFUSED, IDENTITY),
    *_source_rules(),
    _rule(r"spec\.joins\[\d+\]\.(name|condition|type|window)\b.*", Class.REFUSED, IDENTITY),
    _rule(r"spec\.scaling\.tau\d", Class.RESTART, "load shedding and the metrics' thresholds rest on it"),
    _rule(r"spec\.scaling\.budget\b.*", Class.RESTART, "the driver says for how long it lasts"),
    _rule(r"spec\.(image|driver|executor|security|logging|serviceAccountAnnotations)\b.*", Class.RESTART, "pods are made anew"),
    # of resources the executors' pods may be resized instead (``resizing``)
    _rule(r"spec\.workers\.(resources|perExecutor)\b.*", Class.RESTART, "pods are made anew"),
    _rule(r".*", Class.RESTART, "the driver reads it when it starts"),
)


def engine_manifest(manifest: Manifest) -> Object:
    """What the driver is given, as JSON: defaults left out, a claim replaced by the place where it is mounted."""
    value: Object = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"status"})
    value["apiVersion"] = API_VERSION
    value["metadata"] = {"name": manifest.metadata.name}
    spec = value["spec"]
    of_pods = ("serviceAccountAnnotations", "image", "driver", "executor", "cleanup", "trial", "security", "metrics", "logging", "queries")
    for name in ("suspend", "suspendDuring", "idle", "paused", "operatorClass", "maintenance", "backup", *of_pods):
        spec.pop(name, None)
    for name in ("persistentVolumeClaim", "onDelete", "size", "storageClassName", "accessModes"):
        spec["checkpoint"].pop(name, None)
    if manifest.spec.checkpoint.location is None:
        spec["checkpoint"]["location"] = f"{CLAIM_PATH}/{manifest.metadata.name}"
    return value


def operator_fields(manifest: Manifest) -> Object:
    """The rest that pods are made of: image and pod templates, whom a cloud takes them for, the Secret with certificates, and the claim."""
    spec = manifest.spec
    return {
        "spec": {
            "image": spec.image,
            "serviceAccountAnnotations": dict(spec.service_account_annotations),
            # Where there is none nothing is written, so that a new release of the operator restarts no join.
            "driver": {**spec.driver.pod_template, **({"standby": True} if spec.driver.standby else {})},
            "executor": dict(spec.executor.pod_template),
            "security": {"tls": {"secretName": spec.security.tls and spec.security.tls.secret_name}},
            "logging": spec.logging.model_dump(mode="json", by_alias=True),
            "checkpoint": {"persistentVolumeClaim": spec.checkpoint.persistent_volume_claim},
        }
    }


def compared(manifest: Manifest) -> Object:
    """All that changes are looked for in, as JSON: what is kept of the manifest that runs."""
    return with_operator_fields(engine_manifest(manifest), manifest)


def with_operator_fields(engine: Object, manifest: Manifest) -> Object:
    """:func:`compared`, of the value of :func:`engine_manifest`."""
    operator = operator_fields(manifest)
    checkpoint = {**engine["spec"]["checkpoint"], **operator["spec"]["checkpoint"]}
    return {**engine, "spec": {**engine["spec"], **operator["spec"], "checkpoint": checkpoint}}


def classify(before: Object, after: Object) -> tuple[Change, ...]:
    """The fields that differ between two values of :func:`compared`, in order. O(fields x rules)."""
    aligned, joins = _joins(before, after)
    old, new = _fields(aligned), _fields(after)
    fields = [field for field in {**old, **new} if old.get(field) != new.get(field)]
    moved = _place(before) != _place(after)
    changes = [_relaxed(change, moved, bool(joins)) for change in map(_classified, sorted(fields))]
    changes = [_continued(change, before, after) for change in changes]
    return (*changes, *(_relaxed(change, moved, bool(joins)) for change in joins))


def _place(value: Object) -> Object:
    """Where the checkpoint is."""
    return {name: of for name, of in value["spec"]["checkpoint"].items() if name != "cloneOf"}


def _joins(before: Object, after: Object) -> tuple[Object, tuple[Change, ...]]:
    """The first manifest with the second one's joins in their order, those of the same name as they were; and what became of the others, as
    joins of two streams may come and go."""
    old, new = ({join.get("name", DEFAULT_NAME): join for join in value["spec"]["joins"]} for value in (before, after))
    if list(old) == list(new) or (len(after["spec"]["streams"]) > 2 and len(old) == len(new) == 1):
        return before, ()
    added = [_come(f"spec.joins[{number}]", new[name], after, "added") for number, name in enumerate(new) if name not in old]
    removed = [_come("spec.joins", old[name], before, "removed") for name in old if name not in new]
    moved = [] if added or removed else [Change("spec.joins", Class.RESTART, "they are in another order")]
    aligned = {**before, "spec": {**before["spec"], "joins": [old.get(name, join) for name, join in new.items()]}}
    return aligned, (*added, *removed, *moved)


def _come(field: str, join: Object, value: Object, what: str) -> Change:
    """What it takes that this join is added or removed."""
    name, streams = join.get("name", DEFAULT_NAME), [stream["name"] for stream in value["spec"]["streams"]]
    if outer_joins.makes_streams(join.get("type", ""), resolve.named_by(join["condition"], streams)):
        return Change(field, Class.REFUSED, f"{name} is {what}, and with it the streams of its results of two; {IDENTITY}")
    if what == "added" and value["spec"].get("scheme", {}).get("model") == HANDSHAKE:
        return Change(field, Class.REFUSED, f"{name} is {what}; {MET}")
    return Change(field, Class.RESTART, f"{name} is {what}")


def worst(changes: tuple[Change, ...]) -> Class:
    """The class of a change as a whole."""
    return max((change.kind for change in changes), key=list(Class).index, default=Class.IGNORED)


def revision(value: Object, nonce: str, begun: str = "") -> str:
    """What a driver is started for: a value of :func:`compared` less what is ignored or applied live, and the restart annotation.

    ``begun``: ``spec.workers.resources`` that it was started with, as JSON, where its executors have been resized since.
    """
    if begun:
        workers = {**(value["spec"].get("workers") or {}), "resources": json.loads(begun)}
        value = {**value, "spec": {**value["spec"], "workers": workers}}
    kept = {field: leaf for field, leaf in _fields(value).items() if _classified(field).kind in (Class.RESTART, Class.REFUSED)}
    return digest([kept, nonce])


def _classified(field: str) -> Change:
    """Named as manifests name it, not as drivers are given it."""
    field = re.sub(r"^(spec\.joins\[\d+\])\.on$", r"\1.condition", field)
    rule = next(rule for rule in RULES if rule.pattern.fullmatch(field))
    return Change(field, rule.kind, rule.why)


def _relaxed(change: Change, moved: bool, joins_change: bool) -> Change:
    """With a new checkpoint there is no state that a change might not fit; and with other joins the engine says what of it must be held."""
    if joins_change and change.kind is Class.REFUSED and _SELECT.fullmatch(change.field):
        return Change(change.field, Class.RESTART, "joins come or go, and need other columns")
    if moved and change.kind is Class.REFUSED:
        return Change(change.field, Class.RESTART, "the join begins anew in another checkpoint")
    return change


def _continued(change: Change, before: Object, after: Object) -> Change:
    """A source may get another identity that goes on from the one before, as a pattern from a topic that it matches."""
    found = _SOURCE.fullmatch(change.field)
    if change.kind is not Class.REFUSED or found is None or found[3] not in SOURCES[found[2]].continued:
        return change
    kind = SOURCES[found[2]]
    given = [value["spec"]["streams"][int(found[1])]["source"].get(found[2]) for value in (before, after)]
    if None in given:
        return change
    was, is_now = (kind.model_validate_json(json.dumps(each)) for each in given)
    return Change(change.field, Class.RESTART, kind.continued[found[3]]) if is_now.goes_on_from(was.identity) else change


def _fields(value: Object) -> dict[str, Any]:
    """The leaves by field, and by one more whether the model is one that no running join may change to or from."""
    fields = dict(_leaves("", value))
    if fields.get("spec.scheme.model") == HANDSHAKE:
        fields["spec.scheme.model (handshake)"] = True
    return fields


_NULL = "$null"


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}[{index}]", item)
    elif value is not None or path.startswith(("spec.driver.", "spec.executor.")):
        # In pod templates null removes a field, and is not the same as none.
        yield path, _NULL if value is None else list(value) if isinstance(value, tuple) else value
