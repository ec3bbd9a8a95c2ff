"""Rules for the Kubernetes API server, in CEL, that say what a JSON schema cannot.

A rule stands in the JSON schema of what it is about as ``x-kubernetes-validations``, from where the operator's ``crd`` takes it. This
package makes the same check in Python: by the rule itself, where it has a ``check`` (``rules``), or elsewhere. The Python check decides,
and tests/test_crd.py holds the two together.

Always holds: expressions use nothing newer than Kubernetes 1.31 has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from streamjoin.manifest.problem import Problem

_CEL_WORDS = {"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop"}
_CEL_WORDS |= {"package", "namespace", "return", "var", "void", "while"}


@dataclass(frozen=True, slots=True)
class Rule:
    """An expression over ``self`` (and ``oldSelf``) that must be true, and what a user is told where it is not.

    As a part of an ``Annotated`` type it joins that type's JSON schema.
    """

    expression: str
    message: str
    """What is wrong and what to do, to be read after the field."""
    computed: str | None = None
    """CEL that gives the message, where it should show values; ``message`` stands in where that fails."""
    field: str | None = None
    """The field of ``self`` that is to blame; self by default."""
    check: Callable[[str, Any], Iterator[Problem]] | None = None
    """The same in Python: the problems of a part, given where it stands. None: another module looks."""

    def schema(self) -> dict[str, Any]:
        """An entry of ``x-kubernetes-validations``."""
        entry = {"rule": self.expression, "message": self.message}
        if self.computed is not None:
            entry["messageExpression"] = self.computed
        if self.field is not None:
            entry["fieldPath"] = f".{self.field}"
        return entry

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = dict(handler(core))
        schema["x-kubernetes-validations"] = [*schema.get("x-kubernetes-validations", []), self.schema()]
        return schema


def seconds(duration: str) -> str:
    """The seconds, as a double with thousandths, of an expression for a manifest's duration. CEL's own durations have no days."""
    rest = f"{duration}.split('d')[size({duration}.split('d')) - 1]"
    days = f"({duration}.contains('d') ? double({duration}.split('d')[0]) * 86400.0 : 0.0)"
    return f"({days} + ({rest} == '' ? 0.0 : double(duration({rest}).getMilliseconds()) / 1000.0))"


def quoted(value: str | bool | float) -> str:
    """A CEL literal."""
    return json.dumps(value)


def cel_name(of: str, name: str) -> str:
    """How CEL reads a field: words of its own stand between underscores there."""
    return f"{of}.__{name}__" if name in _CEL_WORDS else f"{of}.{name}"


def has_one(of: str, *names: str) -> str:
    """Whether any of these fields is given; without parentheses."""
    return " || ".join(f"has({of}.{name})" for name in names)


ONE_OF = ".exists_one(given, given)"
"""So rules end that ask for exactly one of several fields."""


def one_holds(*conditions: str) -> str:
    """Whether exactly one of the conditions holds."""
    return f"[{', '.join(conditions)}]{ONE_OF}"
