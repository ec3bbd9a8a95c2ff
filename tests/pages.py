"""Pages of the documentation: their fenced blocks, and their shell sessions run as a reader runs them.

A block of the kind ``console`` has commands after ``$ `` and what they print. There ``…`` stands for text that differs from
run to run: within a line for anything, alone on a line for any number of lines. A comment above a block,
``<!-- not run: why -->``, says that no test can run it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
ELLIPSIS = "…"
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL)
_REASON = re.compile(r"<!-- not run: (?P<reason>[^\n]+?) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. ``kind``: the first word of its info string; ``reason``: why it is not run, where it is not."""

    page: Path
    line: int
    kind: str
    text: str
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Step:
    """A command of a session, and the lines that it prints, with ellipses."""

    command: str
    output: tuple[str, ...]


def blocks(page: Path) -> list[Block]:
    """In the order of the page."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        reason = _REASON.search(before)
        width = len(match["indent"])
        body = "".join(line[width:] if line[:width].isspace() else line for line in match["text"].splitlines(keepends=True))
        kind = (match["info"].split() or [""])[0]
        found.append(Block(page, before.count("\n") + 1, kind, body, reason["reason"] if reason else None))
    return found


def steps(text: str) -> list[Step]:
    """The commands of a ``console`` block; one may go on over lines that end in a backslash."""
    found: list[tuple[list[str], list[str]]] = []
    continued = False
    for line in text.splitlines():
        if line.startswith("$ ") and not continued:
            found.append(([line[2:]], []))
        elif continued:
            found[-1][0].append(line)
        else:
            assert found, f"{line!r} stands before the first command"
            found[-1][1].append(line)
        continued = bool(found) and not found[-1][1] and found[-1][0][-1].endswith("\\")
    return [Step("\n".join(command), tuple(output)) for command, output in found]


def differences(expected: tuple[str, ...], printed: list[str]) -> str | None:
    """What is printed otherwise than the page says; None where all is as it says."""
    parts = [line.rstrip().split(ELLIPSIS) for line in expected]
    lines = [r"(?:.*\n)*?" if part == ["", ""] else ".*".join(map(re.escape, part)) + r"\n" for part in parts]
    text = "".join(f"{line.rstrip()}\n" for line in printed)
    if re.fullmatch("".join(lines), text):
        return None
    return "the page has:\n" + "\n".join(expected) + "\n\nprinted was:\n" + text


class Reader:
    """Somebody in the directory of a clone, after ``make setup``, who types what a page says.

    The directory has the clone's examples and ``.venv/bin``; results go to ``out`` there. ``inline``: joins run without Spark,
    which takes a second instead of ten.
    """

    def __init__(self, directory: Path, *, inline: bool = True) -> None:
        self.directory = directory
        programs = directory / ".venv" / "bin"
        programs.mkdir(parents=True)
        for name in ("examples", "crds", "charts"):
            (directory / name).symlink_to(ROOT / name)
        self._write(programs / "python", f'exec {sys.executable} "$@"')
        streamjoin = f'exec {sys.executable} -m streamjoin "$@"'
        self._write(programs / "streamjoin", f'[ "$1" = run ] && {streamjoin} --runner inline\n{streamjoin}' if inline else streamjoin)
        path = os.pathsep.join(str(ROOT / part) for part in ("engine", "operator"))
        self.environment = {**os.environ, "COLUMNS": "200", "PYTHONPATH": path}

    @staticmethod
    def _write(path: Path, script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, command: str) -> list[str]:
        """The lines that it prints. Raises AssertionError where it fails."""
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        return done.stdout.splitlines()

    def follow(self, page: Path) -> int:
        """Runs the page's sessions in their order, and holds what is printed against the page; how many commands that were."""
        count = 0
        for block, step in self.sessions(page):
            difference = differences(step.output, self.run(step.command))
            assert difference is None, f"{block}\n$ {step.command}\n{difference}"
            count += 1
        return count

    @staticmethod
    def sessions(page: Path) -> Iterator[tuple[Block, Step]]:
        for block in blocks(page):
            if block.kind == "console" and block.reason is None:
                for step in steps(block.text):
                    yield block, step
