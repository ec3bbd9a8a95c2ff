"""YAML as a manifest's reader sees it: values with the line that each comes from.

Always holds:

- Plain scalars mean what YAML 1.2 and Kubernetes agree on: null, true, false, integers, decimals; everything else is
  text, also dates.
- What Kubernetes reads differently (YAML 1.1's ``on``, ``off``, ``yes``, ``no``, ``y``, ``n`` are booleans there) is
  read as the text that it looks like, and remarked upon.
- The tree has no cycles and a bounded size, whatever the anchors in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Where a value is: field names and list indices from the document's root."""

MAX_NODES = 50_000
"""More values than any manifest has, and few enough to be read at once."""

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOLEAN = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_KUBERNETES_BOOLEAN = re.compile(r"(y|Y|yes|Yes|YES|on|On|ON)|n|N|no|No|NO|off|Off|OFF")

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character outside the first 65,536; an escape can write one, and nothing can print or store it."""

_PLAIN_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def field_name(path: Path) -> str:
    """``spec.streams[0].schema``; names with other characters than letters, digits, _ and - as ``columns["a b"]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_FIELD.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about the text at a path: an error or a warning, which the value alone does not show."""

    path: Path
    value: object
    message: str
    line: int


@dataclass(slots=True)
class Tree:
    """One document: its value (mappings have text keys) and, by path, the line where each field is, from 1."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    errors: list[Remark] = field(default_factory=list)
    warnings: list[Remark] = field(default_factory=list)

    def line(self, path: Path) -> int | None:
        """The line of the field, or of the nearest one around it that is there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


class _TextLoader(yaml.SafeLoader):
    """Composes nodes without guessing types: every plain scalar is text until :class:`_Reader` looks at it."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the base class declares it so


def read(text: str) -> Iterator[Tree]:
    """Each document that is not empty. A syntax error ends the iteration with a tree that has an error and no value."""
    loader: yaml.SafeLoader | None = None
    try:
        loader = _TextLoader(text)
        while loader.check_node():
            tree = _Reader().read(loader.get_node())
            if tree.value is not None or tree.errors:
                yield tree
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = f"the character #x{error.character:04x}" if isinstance(error.character, int) else "a byte"
        yield _broken(f"the file is not YAML: it holds {character}, which YAML does not allow; remove it", line)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        remedy = "indent with spaces" if "'\\t'" in what else "check the indentation, quotes and colons there"
        yield _broken(f"the file is not YAML: {what}; {remedy}", mark.line + 1 if mark else 1)
    except RecursionError:
        yield _broken("the file is nested too deeply for a manifest; take levels out", 1)
    finally:
        if loader is not None:
            loader.dispose()


def _broken(message: str, line: int) -> Tree:
    return Tree(lines={(): line}, errors=[Remark((), None, message, line)])


class _TooLargeError(Exception):
    pass


class _Reader:
    """Turns one document's nodes into a Tree."""

    def __init__(self) -> None:
        self._tree = Tree()
        self._nodes = 0
        self._open: set[int] = set()

    def read(self, node: Any) -> Tree:
        self._tree.lines[()] = node.start_mark.line + 1
        try:
            self._tree.value = self._value(node, ())
        except _TooLargeError:
            self._error((), None, f"the document has more than {MAX_NODES} values; use fewer anchors (&, *)", node)
            self._tree.value = None
        return self._tree

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _TooLargeError
        if id(node) in self._open:
            self._error(path, None, "contains itself through an anchor; write it out", node)
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, path)
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _sequence(self, node: yaml.SequenceNode, path: Path) -> list[Any]:
        items = []
        for index, item in enumerate(node.value):
            self._tree.lines[(*path, index)] = item.start_mark.line + 1
            items.append(self._value(item, (*path, index)))
        return items

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._error(path, None, "has a field whose name is not text; write fields as name: value", key_node)
                continue
            key = self._printable(key_node, path)
            if key == "<<" and not key_node.style:
                merged = self._merge(value_node, path) | merged
                continue
            here = (*path, key)
            if key in found:
                first = self._tree.lines[here]
                value = self._value(value_node, here)
                self._error(here, value, f"is given twice (first on line {first}); keep one", key_node)
                continue
            self._tree.lines[here] = key_node.start_mark.line + 1
            if not key_node.style and (boolean := _KUBERNETES_BOOLEAN.fullmatch(key)):
                self._kubernetes(here, f"as the name {_truth(boolean)}", f'"{key}":', key_node)
            found[key] = self._value(value_node, here)
        return {**{key: value for key, value in merged.items() if key not in found}, **found}

    def _merge(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, yaml.MappingNode):
                merged = self._value(part, path) | merged
            else:
                self._error(path, None, "merges (<<) something that is not a mapping; merge an anchored mapping", part)
        return merged

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text = self._printable(node, path)
        if node.tag not in ("tag:yaml.org,2002:str", "!"):
            self._error(path, text, f"has the YAML tag {node.tag}, which a manifest does not need; remove it", node)
            return text
        if node.style:
            return text
        if _NULL.fullmatch(text):
            return None
        if boolean := _BOOLEAN.fullmatch(text):
            return boolean[1] is not None
        if _INTEGER.fullmatch(text) and len(text) < 40:
            return int(text.replace("_", ""))
        if _FLOAT.fullmatch(text):
            return float(text.replace("_", ""))
        if boolean := _KUBERNETES_BOOLEAN.fullmatch(text):
            self._kubernetes(path, f"as {_truth(boolean)}", f'"{text}"', node)
        return text

    def _printable(self, node: yaml.ScalarNode, path: Path) -> str:
        text: str = node.value
        if _SURROGATE.search(text):
            self._error(path, None, "holds half of a surrogate pair, which is no character; remove it", node)
            text = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
        return text

    def _kubernetes(self, path: Path, reading: str, remedy: str, node: yaml.Node) -> None:
        message = f"is read by kubectl {reading}, because it has no quotes; write {remedy}"
        self._tree.warnings.append(Remark(path, None, message, node.start_mark.line + 1))

    def _error(self, path: Path, value: object, message: str, node: yaml.Node) -> None:
        self._tree.errors.append(Remark(path, value, message, node.start_mark.line + 1))


def _truth(boolean: re.Match[str]) -> str:
    return "true" if boolean[1] is not None else "false"
