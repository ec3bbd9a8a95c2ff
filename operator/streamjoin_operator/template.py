"""A pod template of the user's, merged over ours as Kubernetes merges strategically: by name where lists have names.

Always holds: neither argument is changed; what the user does not mention stays ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort", "imagePullSecrets": "name", "hostAliases": "ip"}
"""By list, the key that tells its items apart; ``name`` for the others whose items all have one."""
_APPENDED = ("tolerations", "topologySpreadConstraints")
PATCH, DELETE, REPLACE = "$patch", "delete", "replace"
"""Kubernetes' own directives: kubectl's client-side apply sends them, and no null to an object that is there."""
_WHOLE = {PATCH: REPLACE}


def merge(ours: Any, theirs: Any, field: str = "") -> Any:
    """``theirs`` over ``ours``. Mappings merge by key, lists by their items' key, everything else is replaced. null and ``$patch: delete``
    remove what is there, ``$patch: replace`` all that a mapping or a list has besides."""
    if isinstance(theirs, Mapping):
        is_whole = theirs.get(PATCH) == REPLACE
        base = ours if isinstance(ours, Mapping) and not is_whole else {}
        given = {key: value for key, value in theirs.items() if not (key == PATCH and is_whole)}
        kept = {key: value for key, value in base.items() if key not in given}
        return kept | {key: merge(base.get(key), value, key) for key, value in given.items() if not _is_removal(value)}
    if isinstance(theirs, list):
        return _merged(ours if isinstance(ours, list) else [], theirs, field)
    return theirs


def _merged(ours: list[Any], theirs: list[Any], field: str) -> list[Any]:
    if _WHOLE in theirs:
        ours, theirs = [], [item for item in theirs if item != _WHOLE]
    if field in _APPENDED:
        return ours + [merge(None, item) for item in theirs if item not in ours]
    key = _KEYS.get(field, "name")
    if not all(isinstance(item, Mapping) and key in item for item in ours + theirs):
        return [merge(None, item) for item in theirs]
    by_key = {item[key]: item for item in ours}
    for item in theirs:
        if _is_removal(item):
            by_key.pop(item[key], None)
        else:
            by_key[item[key]] = merge(by_key.get(item[key]), item)
    return list(by_key.values())


def _is_removal(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and value.get(PATCH) == DELETE)
