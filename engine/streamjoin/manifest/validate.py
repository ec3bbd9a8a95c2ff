"""All that is wrong with a manifest, at once: each problem with its field, the value and what to do about it.

Checked in three steps: the text (``text``), each field (``model`` and ``fields``), what fields must be together
(``cross_field``). The last runs on whatever the one before accepted, so one round of corrections is enough, save where a
refused field hid others.

Always holds: a manifest that comes without problems can be compiled by ``compilation.compile_job`` if it has a
``checkpoint.location``. No I/O: whether directories exist is not looked at.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from streamjoin.manifest import cross_field
from streamjoin.manifest.fields import field_problems, partial
from streamjoin.manifest.model import API_VERSION, KIND, Manifest
from streamjoin.manifest.problem import ManifestError, Problem
from streamjoin.manifest.text import Remark, Tree, field_name, read

__all__ = ["Document", "ManifestError", "Problem", "check", "load", "parse"]


@dataclass(frozen=True)
class Document:
    """What became of one YAML document of kind StreamJoin."""

    name: str | None
    """Its metadata.name, if it has one."""
    line: int
    """Where it starts."""
    manifest: Manifest | None
    """None if there are problems."""
    problems: tuple[Problem, ...]
    """In the order of the text."""
    remarks: tuple[Problem, ...]
    """What is allowed but perhaps not meant."""


def parse(text: str) -> tuple[Document, ...]:
    """Every StreamJoin in a file, which may have several YAML documents. Resources of other kinds are passed over.

    A file without any StreamJoin gives one document that says so.
    """
    documents = [_document(tree) for tree in read(text) if not _is_foreign(tree.value)]
    if not documents:
        message = f"the file holds no {KIND}; begin it with apiVersion: {API_VERSION} and kind: {KIND}"
        return (Document(None, 1, None, (Problem("", None, message, 1),), ()),)
    return tuple(documents)


def load(text: str) -> Manifest:
    """The one manifest in ``text``. Raises ManifestError with all problems, also if there are several manifests."""
    document = the_one(parse(text))
    if document.manifest is None:
        raise ManifestError(document.problems)
    return document.manifest


def the_one(documents: Sequence[Document]) -> Document:
    """The first of a file's documents; that there are others is a problem of it."""
    problems = [problem for document in documents for problem in document.problems]
    for document in documents[1:]:
        message = f"is another {KIND} in the same file, and one is expected; keep one"
        problems.append(Problem("metadata.name", document.name, message, document.line))
    first = documents[0]
    return replace(first, manifest=None, problems=tuple(problems)) if problems else first


def check(resource: Mapping[str, Any], *, keep_unknown: bool = False) -> Document:
    """The same for a resource that is data already, as Kubernetes' API gives it; its problems have no lines.

    Fields that are not known are left out, with a remark: the API server keeps none that its definition lacks, and fills in the defaults of
    one that is newer than this program. As text, they are slips, and with ``keep_unknown`` here, too.
    """
    return _document(Tree(value=resource), keep_unknown=keep_unknown)


def _is_foreign(value: object) -> bool:
    """Whether a document is another kind of resource, and not a StreamJoin with a slip in its first lines."""
    if not isinstance(value, Mapping):
        return False
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        return False
    ours = version.split("/")[0] == API_VERSION.split("/")[0]
    return not ours and not difflib.get_close_matches(kind.lower(), [KIND.lower()], cutoff=0.8)


def _document(tree: Tree, *, keep_unknown: bool = True) -> Document:
    problems = [_from_text(error) for error in tree.errors]
    remarks = [_from_text(warning) for warning in tree.warnings]
    manifest: Manifest | None = None
    value = _without_nulls(tree.value)
    if isinstance(value, dict):
        manifest, refused, left_out = _fields(value, keep_unknown)
        problems += refused
        remarks += left_out
        problems += cross_field.problems(partial(Manifest, value) if manifest is None else manifest)
        if manifest is not None and not problems:
            remarks += cross_field.remarks(manifest)
    elif value is not None:
        message = f"the document is not a mapping; begin it with apiVersion: {API_VERSION} and kind: {KIND}"
        problems.append(Problem("", None, message, tree.lines.get(())))
    metadata = value.get("metadata") if isinstance(value, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    lines = {field_name(path): line for path, line in tree.lines.items()}
    return Document(
        name=name if isinstance(name, str) else None,
        line=tree.lines.get((), 1),
        manifest=None if problems else manifest,
        problems=_located(problems, lines),
        remarks=_located(remarks, lines),
    )


def _fields(value: dict[str, Any], keep_unknown: bool) -> tuple[Manifest | None, list[Problem], list[Problem]]:
    """The manifest, what is wrong with its fields, and remarks on those that were left out."""
    try:
        return Manifest.model_validate(value), [], []
    except ValidationError as error:
        left_out = [] if keep_unknown else _leave_out_unknown(value, error)
        if not left_out:
            return None, list(field_problems(error)), []
    manifest, problems, _ = _fields(value, keep_unknown=True)
    return manifest, problems, left_out


def _leave_out_unknown(value: dict[str, Any], error: ValidationError) -> list[Problem]:
    """Removes the fields that no model has; a remark for each."""
    unknown = [details["loc"] for details in error.errors(include_url=False) if details["type"] == "extra_forbidden"]
    remarks = []
    for *path, name in unknown:
        inner: Any = value
        with contextlib.suppress(LookupError, TypeError):  # the path may name a choice among several models besides
            for step in path:
                inner = inner[step]
        if not isinstance(inner, dict) or name not in inner:
            continue
        message = "is not known to this version and has no effect; update what reads it"
        remarks.append(Problem(field_name((*path, name)), inner.pop(name), message))
    return remarks


def _from_text(remark: Remark) -> Problem:
    return Problem(field_name(remark.path), remark.value, remark.message, remark.line)


def _without_nulls(value: Any, keeps: bool = False) -> Any:
    """A field that is null is a field that is not given, as for Kubernetes; but in a pod template it removes what the operator's has.
    Nulls in lists stay. ``keeps``: whether ``value`` is of a pod template."""
    if isinstance(value, Mapping):
        return {str(key): _without_nulls(item, keeps or key == "podTemplate") for key, item in value.items() if keeps or item is not None}
    return [_without_nulls(item, keeps) for item in value] if isinstance(value, list) else value


def _located(problems: Iterable[Problem], lines: Mapping[str, int]) -> tuple[Problem, ...]:
    """Sorted as they stand in the text: each at the line of its field, or of the nearest field around it."""
    found = []
    for problem in problems:
        line, field = problem.line, problem.field
        while line is None and field:
            line = lines.get(field)
            field = field[: max(field.rfind("."), field.rfind("["), 0)]
        found.append(replace(problem, line=line if line is not None else lines.get("")))
    return tuple(sorted(found, key=lambda problem: problem.line or 0))
