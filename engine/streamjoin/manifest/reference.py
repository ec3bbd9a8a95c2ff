"""The field tables of ``docs/manifest.md``, from the models: ``python -m streamjoin.manifest.reference`` prints them.

Always holds: every field of every part is in one table, with the type, default and meaning that the models have.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from streamjoin.manifest.event_time import EventTime
from streamjoin.manifest.field_types import Number, Scalar
from streamjoin.manifest.fields import BOUNDS, inner_part
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.part import Part
from streamjoin.manifest.quantity import Cpu, Duration, Memory

_NAMES: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    Duration: "duration",
    Memory: "memory",
    Cpu: "CPU",
}


def tables() -> str:
    """One table for each part of a manifest, from the outside in, as Markdown."""
    parts: list[tuple[str, type[Part]]] = [("", Manifest)]
    texts = []
    for path, part in parts:
        parts += [entry for name, info in part.model_fields.items() if (entry := _below(path, name, info)) is not None]
        texts.append(_table(path, part))
    return "\n".join(texts)


def _below(path: str, name: str, info: FieldInfo) -> tuple[str, type[Part]] | None:
    inner = inner_part(info.annotation)
    if inner is None:
        return None
    suffix = {"part": "", "list": "[]", "mapping": ".<column>"}[inner[0]]
    return f"{path}.{info.alias or name}{suffix}".lstrip("."), inner[1]


def _table(path: str, part: type[Part]) -> str:
    lines = [f"### {f'`{path}`' if path else 'The document'}", "", " ".join((part.__doc__ or "").split()), ""]
    if not part.model_fields:
        return "\n".join([*lines[:-1], ""])
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, info in part.model_fields.items():
        cells = (f"`{info.alias or name}`", _type(info), _default(info), info.description or "")
        lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    default = info.default
    if default is None or (isinstance(default, Part) and default == type(default).model_construct()):
        return ""
    if isinstance(default, Part):
        default = default.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(default, bool | dict):
        return f"`{json.dumps(default)}`" if default != {} else ""
    return f"`{default}`" if default != "" else '`""`'


def _type(info: FieldInfo) -> str:
    inner = inner_part(info.annotation)
    if inner is not None:
        words = {"part": "fields", "list": "list of fields", "mapping": "fields by column"}
        return words[inner[0]] if inner[1] is not EventTime else "text, or fields"
    text, limits = _value_type(info.annotation)
    limits += [limit for item in info.metadata if (limit := _limit(item))]
    return ", ".join([text, *limits])


def _value_type(annotation: Any) -> tuple[str, list[str]]:
    """A type in words, and its bounds."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments), []
    if origin is tuple:
        return f"list of {_value_type(arguments[0])[0]}", []
    if origin is dict:
        return "fields", []
    if annotation == Number:
        return "number", []
    if annotation == Scalar:
        return "values", []
    if origin is Annotated:
        text, limits = _value_type(arguments[0])
        for item in arguments[1:]:
            limits += filter(None, map(_limit, item.metadata if isinstance(item, FieldInfo) else [item]))
        return text, limits
    if arguments:
        return _value_type(next(argument for argument in arguments if argument is not type(None)))
    return _NAMES[annotation], []


def _limit(item: object) -> str:
    """A bound in words; those that only keep numbers within 64 bits are not worth a user's time."""
    bounds = {word: getattr(item, name, None) for name, word in BOUNDS.items()}
    return " and ".join(f"{word} {bound:,.15g}" for word, bound in bounds.items() if bound is not None and abs(bound) < 2**53)


if __name__ == "__main__":
    print(tables())
