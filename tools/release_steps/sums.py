"""What a release consists of: ``release.json`` says what it was made from, ``SHA256SUMS`` what its files are."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from release_steps import archives
from release_steps.failure import ReleaseError
from release_steps.packages import Source

SUMS, DESCRIPTION = "SHA256SUMS", "release.json"


def describe(directory: Path, source: Source, built_with: Mapping[str, str] = MappingProxyType({}), **more: object) -> None:
    """Writes or adds to ``release.json``; what it says depends on the commit and on what builds alone."""
    path = directory / DESCRIPTION
    known = json.loads(path.read_text()) if path.is_file() else {}
    if known.get("commit", source.commit) != source.commit:
        known = {}  # of another release, which is being written over
    built_by = {"python": platform.python_version(), "compressor": archives.compressor()}
    known |= {"version": source.version, "commit": source.commit, "sourceDateEpoch": source.epoch, **more}
    known["builtBy"] = {**known.get("builtBy", {}), **built_by, **built_with}
    path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def description(directory: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((directory / DESCRIPTION).read_text()))
    except FileNotFoundError:
        raise ReleaseError(f"{directory}: has no {DESCRIPTION}, so it is no release; name the directory that make release wrote") from None


def write(directory: Path) -> Path:
    """Writes the sums of all files of a release. Raises ReleaseError."""
    description(directory)
    lines = [f"{archives.digest(path)}  {path.relative_to(directory).as_posix()}" for path in _files(directory)]
    path = directory / SUMS
    path.write_text("\n".join(lines) + "\n")
    return path


def check(directory: Path) -> None:
    """Raises ReleaseError where a file is missing, there and not listed, or not what its sum says."""
    description(directory)
    try:
        lines = [line.split("  ", 1) for line in (directory / SUMS).read_text().splitlines()]
        listed = {name: digest for digest, name in lines}
    except (FileNotFoundError, ValueError):
        raise ReleaseError(f"{directory / SUMS}: is missing or has lines that are no sums; run tools/release.py sums") from None
    there = {path.relative_to(directory).as_posix(): path for path in _files(directory)}
    problems = [f"{name}: is listed in {SUMS} and missing" for name in sorted(listed.keys() - there.keys())]
    problems += [f"{name}: is not listed in {SUMS}" for name in sorted(there.keys() - listed.keys())]
    for name in sorted(there.keys() & listed.keys()):
        if not re.fullmatch("[0-9a-f]{64}", listed[name]) or archives.digest(there[name]) != listed[name]:
            problems.append(f"{name}: is not what {SUMS} says")
    if problems:
        raise ReleaseError("\n".join(f"{directory}: {problem}; get the release anew" for problem in problems))


def compare(first: Sequence[Path], second: Sequence[Path]) -> None:
    """Raises ReleaseError where two builds of the same differ."""
    different = [one.name for one, other in zip(first, second, strict=True) if archives.digest(one) != archives.digest(other)]
    if different:
        raise ReleaseError(f"{', '.join(different)}: two builds of one commit differ; diffoscope shows where")


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != SUMS)
