"""What all actions of ``kubectl streamjoin`` ask kubectl by."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Object = dict[str, Any]
Kubectl = Callable[[Sequence[str]], str]

RESOURCE = "streamjoins.streamjoin.dev"
SNAPSHOT = "streamjoinsnapshots.streamjoin.dev"


class Refused(Exception):  # noqa: N818 - what the user is told
    """kubectl could not do it; the text is its own."""


def read_one(kubectl: Kubectl, resource: str, name: str) -> Object:
    """Raises Refused."""
    body: Object = json.loads(kubectl(["get", resource, name, "-o", "json"]))
    return body
