"""Spark's Java classes, read and verified once instead of at every start of a driver or an executor (class data sharing, JEP 350).

A JVM that starts for Spark spends most of its processor time on reading and verifying classes until its first task runs. ``runner.archive``
makes an archive of the classes that one JVM has loaded; later JVMs map it into memory.

Always holds: an archive lies in the Python environment whose Spark it was made from, and is named after the runtime that made it; Java
itself compares both, and starts as without one where they differ. To be without one costs seconds at each start, and nothing else.

Where there is none, the first run on this machine has one made when it ends (``make_later``), for the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

QUIET = "-Xlog:cds*=off"
"""Java tells of each class that it cannot share, on the output of the driver."""


NEVER = "STREAMJOIN_NO_CLASS_ARCHIVE"
"""An environment variable: when set, a run has no archive made for the next one. For tests of something else."""
AGAIN_SECONDS = 86400
"""How long it is not tried again where it has failed."""


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


def make_later(java_home: Path) -> None:
    """Has another process make the archive where there is none and one can be: at the lowest priority, for a minute, after this one has
    ended, too. It is a child of no process here, so nobody need wait for it, and what it says goes to a log beside the archive."""
    path = archive(java_home)
    log = path.with_suffix(".log")
    command = ["nice", "-n", "19", sys.executable, "-m", "streamjoin.runner.archive", "--if-none"]
    # The shell ends at once, and whoever adopts its child waits for that.
    shell = ["sh", "-c", '"$@" &', "sh", *command]
    with contextlib.suppress(OSError):  # read-only, or another user's
        if os.environ.get(NEVER) or path.exists() or not is_plain(path) or _has_failed(log):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as to, open(os.devnull, "rb") as nothing:
            subprocess.run(shell, cwd=path.parent, stdin=nothing, stdout=to, stderr=to, start_new_session=True, check=False)


def _has_failed(log: Path) -> bool:
    """Whether the last try, not long ago, has left a word why there is no archive. One that was killed leaves none."""
    if not log.exists():
        return False
    found = log.stat()
    return found.st_size > 0 and time.time() - found.st_mtime < AGAIN_SECONDS


def _classpath() -> str:
    return os.pathsep.join(jars())


def is_plain(path: Path) -> bool:
    """Spark takes Java's options apart at blanks."""
    return not any(character.isspace() for character in str(path))
