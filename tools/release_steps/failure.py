"""How a step of a release fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


class ReleaseError(Exception):
    """Why there is no release: the text names what is wrong, its value and the remedy."""


def run(*command: str | Path, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
    """Runs a command; what it prints goes to stderr. Raises ReleaseError."""
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, stdout=sys.stderr, check=False)
    except FileNotFoundError:
        raise ReleaseError(f"{command[0]}: is not installed, or not on the PATH") from None
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))}: exit code {done.returncode}")


def output(*command: str | Path, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints. Raises ReleaseError."""
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ReleaseError(f"{command[0]}: is not installed, or not on the PATH") from None
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))}: {done.stderr.strip()[-2000:] or f'exit code {done.returncode}'}")
    return done.stdout


def program(name: str) -> Path:
    """A program that came with a Python package of this environment (uv, for example), or one on the PATH. Raises ReleaseError."""
    beside = Path(sys.executable).with_name(name)
    places = [beside, *(Path(directory, name) for directory in os.environ.get("PATH", "").split(os.pathsep))]
    for place in places:
        if os.access(place, os.X_OK):
            return place
    raise ReleaseError(f"{name}: is not installed; make setup-release installs it into .venv")


def say(text: str) -> None:
    print(f"release: {text}", file=sys.stderr, flush=True)
