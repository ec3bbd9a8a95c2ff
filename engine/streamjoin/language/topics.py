"""Patterns of Kafka topics' names: regular expressions of Python's ``re``, which must match the whole of a name.

Always holds: Kafka's own topics (``__consumer_offsets`` and others that begin with two underscores) match no pattern.
"""

from __future__ import annotations

import re

INTERNAL = "__"
"""With what the names of Kafka's own topics begin."""


def why_no_pattern(pattern: str) -> str | None:
    """Why a text is no regular expression; None where it is one."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error) or type(error).__name__
    return None


def matches(pattern: str, topic: str) -> bool:
    """Whether a topic is one of those that a pattern means. Raises ``re.error`` where that is none."""
    return not topic.startswith(INTERNAL) and re.fullmatch(pattern, topic) is not None
