"""Leaves of a directory of Java archives what a list names (used-jars.txt): ``trim_jars.py LIST FROM TO``.

An archive of which entries are left out is written anew, with the same bytes each time; all others are linked, or copied to another file
system.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rule:
    """A line of the list."""

    pattern: str
    is_kept: bool
    prefixes: tuple[tuple[str, bool], ...]
    """Of entries, longest first, and whether those are kept."""

    @classmethod
    def of(cls, line: str) -> Rule:
        """Raises ValueError where it is none."""
        pattern, *prefixes = line.split()
        if any(prefix[0] not in "+-" for prefix in prefixes):
            raise ValueError(f"{line}: after the pattern come prefixes of entries with + or - before them")
        ordered = sorted(((prefix[1:], prefix[0] == "+") for prefix in prefixes), key=lambda each: -len(each[0]))
        return cls(pattern.removeprefix("!"), not pattern.startswith("!"), tuple(ordered))

    def keeps(self, entry: str) -> bool:
        return next((is_kept for prefix, is_kept in self.prefixes if entry.startswith(prefix)), True)


def read(path: Path) -> list[Rule]:
    """Raises ValueError naming a line."""
    return [Rule.of(line) for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def trim(rules: Sequence[Rule], source: Path, target: Path) -> None:
    """Raises ValueError where a pattern of what is kept fits nothing: then that has another name, or is gone."""
    target.mkdir(parents=True, exist_ok=True)
    unused = {rule.pattern for rule in rules if rule.is_kept}
    for jar in sorted(source.glob("*.jar")):
        fitting = [rule for rule in rules if fnmatch.fnmatchcase(jar.name, rule.pattern)]
        unused -= {rule.pattern for rule in fitting}
        if not fitting or not fitting[-1].is_kept:
            continue
        if fitting[-1].prefixes:
            _rewrite(jar, target / jar.name, fitting[-1])
        else:
            try:
                os.link(jar, target / jar.name)
            except OSError:
                shutil.copyfile(jar, target / jar.name)
    if unused:
        raise ValueError(f"{', '.join(sorted(unused))}: fits no jar of {source}; correct the pattern, or remove it")


def _rewrite(source: Path, target: Path, rule: Rule) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for entry in old.infolist():
            if rule.keeps(entry.filename) and not entry.is_dir():
                kept = zipfile.ZipInfo(entry.filename, (1980, 1, 1, 0, 0, 0))
                kept.compress_type, kept.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                new.writestr(kept, old.read(entry))


def main() -> int:
    listed, source, target = map(Path, sys.argv[1:])
    try:
        trim(read(listed), source, target)
    except ValueError as error:
        print(f"trim_jars: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
