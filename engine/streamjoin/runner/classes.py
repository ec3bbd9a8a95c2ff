"""Spark's Java classes, read and verified once instead of at every start of a driver or an executor (class data sharing, JEP 350).

A JVM that starts for Spark spends most of its processor time on reading and verifying classes until its first task runs. ``runner.archive``
makes an archive of the classes that one JVM has loaded; later JVMs map it into memory.

Always holds: an archive lies in the Python environment whose Spark it was made from, and is named after the runtime that made it; Java
itself compares both, and starts as without one where they differ. To be without one costs seconds at each start, and nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

QUIET = "-Xlog:cds*=off"
"""Java tells of each class that it cannot share, on the output of the driver."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Spark's settings for it: a class path, which must be the same in all JVMs, and Java's options; both empty where none is used."""

    classpath: str = ""
    options: str = ""


def archive(java_home: Path) -> Path:
    """The path of the archive for this runtime and this environment's Spark, whether or not there is one."""
    try:
        release = (java_home / "release").read_text()
    except OSError:
        release = ""
    identity = "\0".join([str((java_home / "bin" / "java").resolve()), release, *(Path(jar).name for jar in jars())])
    return Path(sys.prefix, "share", "streamjoin", f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa")


def jars() -> list[str]:
    """Spark's, in an order that does not depend on the file system: Java compares the class path with the archive's."""
    found = importlib.util.find_spec("pyspark")
    return [] if found is None or found.origin is None else sorted(map(str, Path(found.origin).parent.glob("jars/*.jar")))


def shared(java_home: Path) -> Shared:
    """The settings by which JVMs use the archive, if there is one."""
    path = archive(java_home)
    return Shared(_classpath(), f"-XX:SharedArchiveFile={path} {QUIET}") if path.is_file() and is_plain(path) else Shared()


def leaving(path: Path) -> Shared:
    """The options by which a JVM leaves an archive when it ends."""
    return Shared(_classpath(), f"-XX:ArchiveClassesAtExit={path} {QUIET}")


def _classpath() -> str:
    return os.pathsep.join(jars())


def is_plain(path: Path) -> bool:
    """Spark takes Java's options apart at blanks."""
    return not any(character.isspace() for character in str(path))
