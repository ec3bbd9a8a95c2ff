"""Lock files: the exact versions, with hashes, that images and the build of a release install; and those that ``make setup`` does.

    locks/engine.txt      the engine's image
    locks/operator.txt    the operator's image
    locks/build.txt       what builds wheels (this project's, and PySpark's), and uv, which installs them
    locks/developer.txt   all that tests, documentation and releases are made with, without hashes: constraints for uv (tools/setup.py)
    locks/debian.txt      Debian's packages in the images (release_steps/debian.py)

Each is resolved for all platforms and for Python 3.11 and newer, and begins with a digest of what it was resolved from. So a changed
requirement is noticed without asking an index.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from release_steps import debian
from release_steps.failure import ROOT, ReleaseError, program, run

DIRECTORY = "locks"
BUILD = "build"
DEVELOPER = "developer"
IMAGES = {"engine": ("cassandra", "engine", "otel", "protobuf", "tables"), "operator": ("operator",)}
"""By image, its extras in pyproject.toml. What tables need is installed with the engine's, and becomes a layer of its own."""
RELEASED = (*IMAGES, BUILD)
"""Those of what users get: with hashes, and asked about in scans."""
NAMES = (*RELEASED, DEVELOPER)
_STATED = re.compile(r"^# Requirements: sha256:([0-9a-f]{64})$", re.MULTILINE)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def path(name: str, root: Path = ROOT) -> Path:
    return root / DIRECTORY / f"{name}.txt"


def requirements(name: str, root: Path = ROOT) -> list[str]:
    """What a lock is resolved from."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    if name == BUILD:
        installer = [each for each in project["project"]["optional-dependencies"]["release"] if Requirement(each).name == "uv"]
        return sorted([*map(str, project["build-system"]["requires"]), *installer])
    table: dict[str, Any] = project["project"]
    extras = table["optional-dependencies"]
    taken = extras if name == DEVELOPER else IMAGES[name]
    return sorted({*table["dependencies"], *chain.from_iterable(extras[each] for each in taken)})


def _digest(name: str, root: Path) -> str:
    python = tomllib.loads((root / "pyproject.toml").read_text())["project"]["requires-python"]
    return hashlib.sha256(json.dumps([python, requirements(name, root)]).encode()).hexdigest()


def write(root: Path = ROOT, upgrade: bool = False) -> None:
    """Resolves all locks; what is locked already stays as it is, unless ``upgrade``. Asks the package index. Raises ReleaseError."""
    (root / DIRECTORY).mkdir(exist_ok=True)
    for name in NAMES:
        target = path(name, root)
        header = f"# Made by `make lock`.\n# Requirements: sha256:{_digest(name, root)}\n"
        wanted = target.with_suffix(".in")
        wanted.write_text("\n".join(requirements(name, root)) + "\n")
        try:
            options = ["--quiet", "--universal", "--no-annotate", "--no-header", "--python-version=3.11"]
            options += ["--generate-hashes"] if name in RELEASED else []
            run(program("uv"), "pip", "compile", *options, *(["--upgrade"] if upgrade else []), "--output-file", target, wanted, cwd=root)
        finally:
            wanted.unlink()
        target.write_text(header + target.read_text())
    debian.write(root)


def pins(name: str, root: Path = ROOT) -> dict[str, list[str]]:
    """By package, the versions that a lock has; several where they differ by platform or Python."""
    found: dict[str, list[str]] = {}
    for package, version in _PIN.findall(path(name, root).read_text()):
        found.setdefault(_canonical(package), []).append(version)
    return found


def out_of_step(root: Path = ROOT) -> list[str]:
    """Why locks do not fit pyproject.toml: a line for each, with the remedy."""
    problems = []
    for name in NAMES:
        shown = f"{DIRECTORY}/{name}.txt"
        try:
            text = path(name, root).read_text()
        except FileNotFoundError:
            problems.append(f"{shown}: is missing; run make lock")
            continue
        stated = _STATED.search(text)
        if stated is None or stated[1] != _digest(name, root):
            problems.append(f"{shown}: pyproject.toml has changed since it was made; run make lock")
        locked = pins(name, root)
        for each in map(Requirement, requirements(name, root)):
            versions = locked.get(_canonical(each.name), [])
            if not any(each.specifier.contains(version, prereleases=True) for version in versions):
                has = ", ".join(versions) or "none"
                problems.append(f"{shown}: has {each.name} {has}, and pyproject.toml wants {each}; run make lock")
    return [*problems, *debian.out_of_step(root)]


def check(root: Path = ROOT) -> None:
    """Raises ReleaseError where a lock does not fit pyproject.toml."""
    if problems := out_of_step(root):
        raise ReleaseError("\n".join(problems))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
