"""YAML, read by the C loader: the definition of StreamJoins alone takes the other one more than a second."""

from __future__ import annotations

from typing import Any

import yaml


def parsed(text: str) -> Any:
    """One document."""
    return yaml.load(text, Loader=yaml.CSafeLoader)


def all_parsed(text: str) -> list[Any]:
    """Each document that is not empty."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]
