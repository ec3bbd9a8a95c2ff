"""What v1alpha1 of the CustomResourceDefinition has that v1beta1 has not: the former names of a join's condition.

Always holds: a schema of v1alpha1 takes all that one of v1beta1 takes, so that what is stored in one can be shown in the other.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from streamjoin.manifest.cel import Rule
from streamjoin.manifest.deprecations import ON, VERSION
from streamjoin.manifest.versions import FORMER, KIND

Json = dict[str, Any]

_GIVEN = ("condition", "on", "__true__")
_CONDITION = re.compile(r"\b([jso])\.condition\b")
"""In rules of v1beta1: the condition of a join that is called j, s or o there."""


def former(version: Json) -> Json:
    """The version before, of today's: served, deprecated, and not stored."""
    made = copy.deepcopy(version)
    made["name"] = FORMER.partition("/")[2]
    made["storage"] = False
    made["deprecated"] = True
    made["deprecationWarning"] = f"{KIND}: {VERSION.message}"
    spec = made["schema"]["openAPIV3Schema"]["properties"]["spec"]
    _give_former_names(spec["properties"]["joins"]["items"])
    for rule in spec["x-kubernetes-validations"]:
        if _CONDITION.search(rule["rule"]):
            rule["rule"] = _by_any_name(rule["rule"])
    return made


def _give_former_names(join: Json) -> None:
    properties: Json = {}
    for name, schema in join["properties"].items():
        properties[name] = schema
        if name == "condition":
            properties["on"] = {**schema, "description": f"The former name of condition, read until {ON.until}: rename it."}
            said = "What kubectl makes of on where it is not in quotes, since YAML 1.1 reads a bare on as true. Means the same."
            properties["true"] = {**schema, "description": said}
    join["properties"] = properties
    join["required"] = [name for name in join["required"] if name != "condition"]
    rule = Rule(
        f"[{', '.join(f'has(self.{name})' for name in _GIVEN)}].exists_one(given, given)",
        "must be given: when tuples match (SQL over the columns of all streams); and on, its former name, must not be given too",
        field="condition",
    )
    join["x-kubernetes-validations"] = [*join.get("x-kubernetes-validations", []), rule.schema()]


def _by_any_name(rule: str) -> str:
    """A rule about conditions, which may have any of their names. Of a join without one, another rule says so."""
    chosen = _CONDITION.sub(r"(has(\1.condition) ? \1.condition : has(\1.on) ? \1.on : \1.__true__)", rule)
    return chosen.replace("all(j, ", f"all(j, !({' || '.join(f'has(j.{name})' for name in _GIVEN)}) || ", 1)
