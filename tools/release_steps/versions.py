"""One version: ``project.version`` of pyproject.toml. Every other place has a copy, which ``release.py version NEW`` writes."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from release_steps.failure import ROOT, ReleaseError

VERSION = r"[0-9]+\.[0-9]+\.[0-9]+(?:-(?:alpha|beta|rc)\.[0-9]+)?"
"""As Semantic Versioning has it, which Helm insists on: 1.2.0, 1.2.0-rc.1. Python's index has the latter as 1.2.0rc1."""


@dataclass(frozen=True)
class Place:
    """A file that repeats the version. ``pattern`` finds it, as its first group, at least once."""

    path: str
    pattern: str


_IMAGE = rf"streamjoin-(?:engine|engine-tables|engine-spark|operator|prometheus|kafka|s3):({VERSION})"
PLACES = (
    Place("pyproject.toml", rf'(?m)^version = "({VERSION})"$'),
    Place("engine/streamjoin/__init__.py", rf'(?m)^__version__ = "({VERSION})"$'),
    Place("engine/streamjoin_research/pyproject.toml", rf'(?m)^(?:version = "|dependencies = \["streamjoin\[engine\]==)({VERSION})"'),
    Place("charts/streamjoin-operator/Chart.yaml", rf'(?m)^(?:appVersion|version): "?({VERSION})"?$'),
    Place("charts/streamjoin-operator/Chart.yaml", _IMAGE),
    Place("operator/streamjoin_operator/settings.py", _IMAGE),
    Place("docs/operator.md", _IMAGE),
    Place("docs/kubernetes.md", rf"(?:streamjoin-(?:engine|engine-tables|engine-spark|operator):|TAG=)({VERSION})"),
    Place("docker/engine.Dockerfile", _IMAGE),
    Place("docker/operator.Dockerfile", _IMAGE),
    Place("tests/cluster/kafka.yaml", _IMAGE),
    Place("tests/cluster/prometheus.yaml", _IMAGE),
    Place("tests/cluster/s3.yaml", _IMAGE),
)


def version(root: Path = ROOT) -> str:
    """The version of the project. Raises ReleaseError."""
    found = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    if not re.fullmatch(VERSION, found):
        raise ReleaseError(f"pyproject.toml: project.version: {found!r} is no version; write it as 1.2.0 or 1.2.0-rc.1")
    return found


def differing(root: Path = ROOT) -> list[str]:
    """What has another version than the project, or none: a line for each place, with the remedy."""
    expected = version(root)
    problems = []
    for place in PLACES:
        found = re.findall(place.pattern, (root / place.path).read_text())
        if not found:
            problems.append(f"{place.path}: has no version where {place.pattern!r} is; add it, or correct tools/release_steps/versions.py")
        problems += [
            f"{place.path}: {each} is not pyproject.toml's {expected}; run tools/release.py version {expected}"
            for each in sorted(set(found) - {expected})
        ]
    return problems


def set_version(new: str, root: Path = ROOT) -> list[str]:
    """Writes the version into all places; gives the files that it changed. Raises ReleaseError."""
    if not re.fullmatch(VERSION, new):
        raise ReleaseError(f"version: {new!r} is no version; write it as 1.2.0 or 1.2.0-rc.1")
    changed = []
    for place in PLACES:
        file = root / place.path
        text = file.read_text()

        def replace(match: re.Match[str]) -> str:
            start, end = match.start(1) - match.start(), match.end(1) - match.start()
            return match[0][:start] + new + match[0][end:]

        written = re.sub(place.pattern, replace, text)
        if written != text:
            file.write_text(written)
            changed.append(place.path)
    return changed


def notes(tag: str, root: Path = ROOT) -> str:
    """What CHANGELOG.md says of the version that a tag names. Raises ReleaseError where tag, version and changelog do not agree."""
    expected = version(root)
    if tag != f"v{expected}":
        raise ReleaseError(f"tag {tag}: is not v{expected}, the version of pyproject.toml; run tools/release.py version NEW before you tag")
    text = (root / "CHANGELOG.md").read_text()
    found = re.search(rf"^## \[{re.escape(expected)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise ReleaseError(f"CHANGELOG.md: has no section '## [{expected}] - YYYY-MM-DD' with text; rename that of [Unreleased]")
    return found[1].strip() + "\n"


def of_python(semantic: str) -> str:
    """The same version as wheels have it (PEP 440): 1.2.0-rc.1 is 1.2.0rc1."""
    for word, letter in (("-alpha.", "a"), ("-beta.", "b"), ("-rc.", "rc")):
        semantic = semantic.replace(word, letter)
    return semantic
