"""What of a manifest is still read and will not be for ever: one table, from which ``streamjoin validate``, the operator's ``FormerName``,
the API server's warnings and ``docs/upgrading.md`` come.

Always holds: pure; each deprecation that a manifest makes use of is one problem with the field as it was given, and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamjoin.manifest.problem import Problem
from streamjoin.manifest.versions import CONDITION, FIELDS, FORMER, NEWEST, former_names_of, kept_names, renamed


@dataclass(frozen=True, slots=True)
class Deprecation:
    """Something that is read and has a successor."""

    field: str
    """Where in a manifest, with ``[]`` for any of a list."""
    value: str | None
    """Only with this value; None: whatever its value."""
    since: str
    """The release that deprecates it."""
    until: str
    """What reads it no more: a release, the first that may do so, or a version of the manifest."""
    successor: str
    """What to write instead: a field, or a value."""
    message: str
    """What it is and what to do, to be read after the field."""


VERSION = Deprecation(
    *("apiVersion", FORMER, "0.1.0", "0.3.0", NEWEST),
    f"{FORMER} is deprecated, and read until 0.3.0; write {NEWEST} (streamjoin convert does so)",
)
ON = Deprecation(
    *("spec.joins[].on", None, "0.1.0", "v1beta1", "spec.joins[].condition"),
    "is the former name of condition, and v1beta1 does not read it; rename it to condition",
)
TRUE = Deprecation(
    *("spec.joins[].true", None, "0.1.0", "v1beta1", "spec.joins[].condition"),
    ON.message,  # a bare on is meant as on, whatever kubectl has made of it
)
DEPRECATIONS = (VERSION, ON, TRUE)


@dataclass(frozen=True, slots=True)
class Modernized:
    """A manifest with its deprecated forms replaced."""

    value: Any
    """The document as :data:`~streamjoin.manifest.versions.NEWEST` has it."""
    deprecated: tuple[Problem, ...] = ()
    """Those that its version reads."""
    refused: tuple[Problem, ...] = ()
    """Those that it does not, or that are given beside their successors."""
    given_as: Mapping[str, str] | None = None
    """By field, that by which it was given."""


def modernized(value: Any) -> Modernized:
    """What a document of any version means today. The argument may be anything, and is left as it is. O(its joins)."""
    if not isinstance(value, Mapping):
        return Modernized(value)
    is_former = value.get("apiVersion") == FORMER
    deprecated = [Problem("apiVersion", None, VERSION.message)] if is_former else []
    refused: list[Problem] = []
    given_as: dict[str, str] = {}
    spec = value.get("spec")
    joins = spec.get("joins") if isinstance(spec, Mapping) else None
    changed = list(joins) if isinstance(joins, list) else []
    for index, join in enumerate(changed):
        field = f"spec.joins[{index}]"
        names = former_names_of(join)
        for name in names[1:]:
            message = "is what kubectl reads for an unquoted on, which is given too; keep one, as condition"
            refused.append(Problem(f"{field}.{name}", join[name], message))
        if not names:
            continue
        first = join[names[0]]
        join = {name: item for name, item in join.items() if name not in names[1:]}  # noqa: PLW2901
        if CONDITION in join:
            refused.append(Problem(f"{field}.on", first, "is the former name of condition, which is given too; remove on"))
            join.pop(names[0])
        else:
            said = Problem(f"{field}.on", None, ON.message)
            (deprecated if is_former else refused).append(said)
            given_as[f"{field}.{CONDITION}"] = f"{field}.on"
            join = renamed(join, names[0], CONDITION)  # noqa: PLW2901
        changed[index] = join
    whole = {**value, "apiVersion": NEWEST} if is_former else dict(value)
    if changed:
        assert isinstance(spec, Mapping), "it has joins"
        whole["spec"] = {**spec, "joins": changed}
    return Modernized(whole, tuple(deprecated), tuple(refused), given_as)


def kept(resource: Mapping[str, Any]) -> list[Problem]:
    """Deprecated fields that an object was given by in the version before, of an object that the API server shows in today's."""
    names = kept_names(resource)
    joins = (resource.get("spec") or {}).get("joins") or []
    # The annotation first: or who applies on the server's side takes condition back with on, which he has applied before.
    remedy = f"{ON.message}, remove the annotation {FIELDS}, and apply the manifest as {NEWEST}"
    return [Problem(f"spec.joins[{index}].on", None, remedy) for index, join in enumerate(joins) if join.get("name") in names]


def table() -> str:
    """As Markdown."""
    lines = ["| deprecated | since | read until | instead |", "|---|---|---|---|"]
    for each in DEPRECATIONS:
        value = f": {each.value}" if each.value else ""
        lines.append(f"| `{each.field}{value}` | {each.since} | {each.until} | `{each.successor}` |")
    return "\n".join([*lines, ""])
