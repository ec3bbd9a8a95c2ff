"""Writes the table of all values, with their comments, to the end of the chart's README.

A value's row has the comment above it. One above a mapping stands in a row of its own, before those of its values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[1] / "charts" / "streamjoin-operator"
LINE = re.compile(r"( *)(?:# ?(.*)|([A-Za-z]\w*):(?: .*)?)?$")
PLACE = "<!-- Below: written by make crds, of values.yaml. -->\n"


def rows(text: str) -> Iterator[tuple[str, Any, str]]:
    """Path, default and comment of each value; of a mapping with values of its own that has a comment, None in place of the default."""
    values, path, comment = yaml.safe_load(text), list[tuple[int, str]](), list[str]()
    for line in text.splitlines():
        found = LINE.match(line)
        if found is None or not line.strip():
            comment = []
        elif found[3] is None:
            comment.append(found[2])
        else:
            depth = len(found[1])
            path = [*((at, name) for at, name in path if at < depth), (depth, found[3])]
            names, value = [name for _, name in path], values
            for name in names:
                value = value[name]
            is_leaf = not isinstance(value, dict) or not value or line.rstrip().endswith("}")
            if is_leaf or comment:
                yield ".".join(names), value if is_leaf else None, " ".join(comment)
            comment = []


def table(text: str) -> str:
    lines = ["| value | default | what it is |", "|---|---|---|"]
    for path, value, comment in rows(text):
        default = "" if value is None else f"`{json.dumps(value, separators=(', ', ': '))}`"
        lines.append(f"| `{path}` | {default} | {comment} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


def readme() -> str:
    begin = (CHART / "README.md").read_text().partition(PLACE)[0]
    return f"{begin}{PLACE}\n{table((CHART / 'values.yaml').read_text())}"


if __name__ == "__main__":
    (CHART / "README.md").write_text(readme())
