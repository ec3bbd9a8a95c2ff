"""A manifest's text in another version: the words that change are replaced where they stand, and nothing else is touched.

Always holds: pure; comments, quotes, indentation, line ends and documents of other kinds come out as they went in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from streamjoin.manifest.versions import CONDITION, FORMER_NAMES, KIND, NEWEST, VERSIONS


def rewritten(text: str, version: str = NEWEST) -> str:
    """``text`` with each StreamJoin in ``version``, one of ``VERSIONS``. Text that is not YAML comes back as it is: ``validate.parse`` says
    what is wrong with it. O(its size).

    v1alpha1 knows the newer names of fields as well, so they stay.
    """
    changes: dict[tuple[int, int], str] = {}
    try:
        for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
            changes |= _changes(text, document, version)
    except (yaml.YAMLError, RecursionError):
        return text
    for (start, end), word in sorted(changes.items(), reverse=True):
        text = text[:start] + word + text[end:]
    return text


def _changes(text: str, document: Any, version: str) -> dict[tuple[int, int], str]:
    """What replaces the characters from one index to another."""
    kinds = [value.value for _, value in _fields(document, "kind")]
    given = [value for _, value in _fields(document, "apiVersion")]
    if kinds != [KIND] or len(given) != 1 or given[0].value not in VERSIONS:
        return {}
    found = _replaced(text, given[0], version)
    if version != NEWEST:
        return found
    for _, spec in _fields(document, "spec"):
        for _, joins in _fields(spec, "joins"):
            for join in joins.value if isinstance(joins, yaml.SequenceNode) else ():
                for name in FORMER_NAMES:
                    for key, _ in _fields(join, name):
                        found |= _replaced(text, key, CONDITION)
    return found


def _fields(node: Any, name: str) -> Iterator[tuple[yaml.ScalarNode, Any]]:
    """A mapping's fields of that name, those that it merges (<<) too: each as key and value."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value == name:
            yield key, value
        elif key.value == "<<":
            for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                yield from _fields(part, name)


def _replaced(text: str, node: yaml.ScalarNode, word: str) -> dict[tuple[int, int], str]:
    """In its quotes, if it has some."""
    start, end = node.start_mark.index, node.end_mark.index
    quote = text[start] if text[start] in "\"'" else ""
    return {(start, end): f"{quote}{word}{quote}"} if node.value != word else {}
