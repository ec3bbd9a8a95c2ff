"""The StreamJoin's definition as the cluster has it, which may be older than this operator.

Of manifests and statuses the API server drops the fields that its definition lacks, and it refuses a status as a whole for one word that
the definition does not list, or one text that is longer than it allows. So the operator asks for what the API server serves
(``/openapi/v3``, which every account may read), says what that lacks, and writes no more than it takes: texts and lists are cut, and values
of another type, pattern or range left out.

Always holds: while nothing is known of the cluster's definition, it counts as this operator's own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from streamjoin.manifest.problem import listed
from streamjoin_operator.api import STREAM_JOIN, Api, ApiError
from streamjoin_operator.crd import definition
from streamjoin_operator.texts import cut

Object = dict[str, Any]

SECONDS = 600.0
"""For so long an answer is believed."""
SHOWN = 4
REMEDY = "apply the definition of the operator's release (crds/streamjoins.streamjoin.dev.yaml; crds.install of its chart)"
_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "object": Mapping, "array": list}
_ANYTHING = "x-kubernetes-preserve-unknown-fields"
_WHOLE = ("cost",)
"""Of the status, what is read back: it is stored with all that it has, or not at all."""

log = logging.getLogger(__name__)


class Definition:
    """See the module."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock
        self._asked_at = float("-inf")
        self._status: Object | None = None
        """The schema of the status as it is served."""
        self.lacks: str | None = None
        """A sentence on what the cluster's definition lacks; None: nothing."""

    async def look(self) -> None:
        """Ask the API server, if the last answer is old. It is only logged when that fails."""
        if self._clock() - self._asked_at <= SECONDS:
            return
        self._asked_at = self._clock()
        try:
            served = await self._api.schema(STREAM_JOIN)
        except ApiError as error:
            log.warning("the definition of StreamJoins could not be read: %s", error)
            return
        if served is None:
            return
        theirs = served.get("properties") or {}
        self._status = theirs.get("status")
        lacking = [field for part in ("spec", "status") for field in missing(part, _ours()[part], theirs.get(part))]
        before, self.lacks = self.lacks, sentence(lacking) if lacking else None
        if self.lacks is not None and self.lacks != before:
            log.warning("%s; all that it lacks: %s", self.lacks, ", ".join(lacking))

    def expire(self) -> None:
        """A status was refused: the definition may have changed."""
        self._asked_at = float("-inf")

    def storable(self, status: Object) -> Object:
        """The part of a status that the API server would keep. O(size of the status)."""
        stored: Object = _stored(status, self._status or _ours()["status"])
        return {name: value for name, value in stored.items() if name not in _WHOLE or value == status[name]}


def missing(field: str, ours: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> Iterator[str]:
    """What a schema has that another one lacks: fields, and words of enumerations."""
    if theirs is None:
        yield field
        return
    if theirs.get(_ANYTHING):
        return
    if "enum" in theirs:
        yield from (f"{field}: {word}" for word in ours.get("enum", ()) if word not in theirs["enum"])
    for name, inner in (ours.get("properties") or {}).items():
        yield from missing(f"{field}.{name}", inner, (theirs.get("properties") or {}).get(name))
    for part in ("items", "additionalProperties"):
        if isinstance(ours.get(part), Mapping) and isinstance(theirs.get(part), Mapping):
            yield from missing(f"{field}[]", ours[part], theirs[part])


def sentence(lacking: list[str]) -> str:
    """What it means that the cluster's definition lacks all that."""
    more = [f"{len(lacking) - SHOWN} more"] if len(lacking) > SHOWN else []
    fields = listed([*lacking[:SHOWN], *more], "and")
    return f"the cluster's CustomResourceDefinition is older than the operator and lacks {fields}, which have no effect; {REMEDY}"


@cache
def _ours() -> Object:
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    properties: Object = schema["properties"]
    return properties


def _stored(value: Any, schema: Mapping[str, Any]) -> Any:
    if schema.get(_ANYTHING):
        return value
    if isinstance(value, Mapping):
        known, others = schema.get("properties") or {}, schema.get("additionalProperties")
        schemas = {name: known.get(name, others) for name in value}
        kept = {name: part for name, part in schemas.items() if isinstance(part, Mapping) and _is_taken(value[name], part)}
        return {name: _stored(value[name], part) for name, part in kept.items()}
    if isinstance(value, list):
        items = schema.get("items") or {}
        # The latest stand last.
        return [_stored(item, items) for item in value if _is_taken(item, items)][-schema.get("maxItems", len(value)) :]
    return cut(value, schema["maxLength"]) if isinstance(value, str) and "maxLength" in schema else value


def _is_taken(value: Any, schema: Mapping[str, Any]) -> bool:
    if schema.get(_ANYTHING):
        return True
    kinds = _TYPES.get(schema.get("type", ""))
    if kinds is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int)):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str):
        return "pattern" not in schema or re.search(schema["pattern"], value) is not None
    return not isinstance(value, int) or schema.get("minimum", value) <= value <= schema.get("maximum", value)
