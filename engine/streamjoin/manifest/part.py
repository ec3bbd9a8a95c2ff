"""What every part of the manifest's models has in common.

Always holds: instances are immutable; attributes are the manifest's names in snake case, and where those are words of
Python (``from``, ``for``) or of pydantic (``schema``), another name with the manifest's as its alias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema

from streamjoin.manifest.cel import Rule
from streamjoin.manifest.quantity import Quantity


class UnparsedError(AttributeError):
    """A field was read whose value in the manifest was refused."""


class Part(BaseModel):
    """What every part of a manifest has in common: unknown fields refused, no silent conversion of types, immutable.

    ``manifest.validate`` makes parts without the fields that it refused, to check the rest; reading one of those raises
    UnparsedError. ``model_fields_set`` of such a part has the names of unknown fields, too.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )

    api_rules: ClassVar[tuple[Rule, ...]] = ()
    """What its fields must be together. ``model_rules`` adds to them, and for the API server the operator does (``crd_rules``)."""

    if not TYPE_CHECKING:  # a type checker should go on refusing names that no field has

        def __getattr__(self, name: str) -> object:
            if name in type(self).model_fields:
                raise UnparsedError(name)
            return super().__getattr__(name)


def has_unknown(part: Part) -> bool:
    """Whether a field was given that does not exist. It is refused by itself, and may be meant for one that seems to be missing."""
    return not part.model_fields_set <= type(part).model_fields.keys()


class SchemaGenerator(GenerateJsonSchema):
    """``Manifest.model_json_schema(schema_generator=SchemaGenerator)``: quantities' defaults as their text."""

    def encode_default(self, dft: Any) -> Any:
        return str(dft) if isinstance(dft, Quantity) else super().encode_default(dft)
