"""Whether an object is as it should be: what the API server stores against what would be applied.

Always holds: no write is needed exactly when both are true: the object carries the hash of what is desired (so nothing of an earlier
version is left), and every desired field is there with its value (so nobody has changed it). What the API server adds by default does not
count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from streamjoin_operator.names import DESIRED

Object = dict[str, Any]


def digest(value: Any) -> str:
    """A short hash of a JSON value; the order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def stamped(desired: Object) -> Object:
    """The object with its own hash as an annotation."""
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), DESIRED: digest(desired)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def covers(observed: Any, desired: Any) -> bool:
    """Whether every field of ``desired`` has its value in ``observed``. Lists must agree item by item. O(size of desired)."""
    if isinstance(desired, Mapping):
        return isinstance(observed, Mapping) and all(
            covers(observed.get(key), value) if value not in ({}, []) else not observed.get(key) for key, value in desired.items()
        )
    if isinstance(desired, list):
        return isinstance(observed, list) and len(observed) == len(desired) and all(map(covers, observed, desired))
    return bool(observed == desired)


def is_current(observed: Object | None, desired: Object) -> bool:
    """Whether applying ``desired`` (which is stamped) would change nothing."""
    return observed is not None and covers(observed, desired)
