"""The engine as a user without a name, which a cluster such as OpenShift has chosen."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from skips import lacks
from streamjoin.cli import pods
from streamjoin.runner import user
from waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[1]
CHOSEN = 1000680000
"""Of the range that OpenShift gives to a namespace."""


@pytest.fixture
def nameless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After pytest has made the test's directory, which must belong to this user."""
    monkeypatch.setattr(os, "getuid", lambda: CHOSEN)
    with pytest.raises(KeyError):
        pwd.getpwuid(CHOSEN)


def test_a_user_with_a_name_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user, "LIBRARIES", ())
    assert user.name_for_java() == {}


@pytest.mark.usefixtures("nameless")
def test_java_is_shown_an_entry_for_a_user_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnss_wrapper.so").touch()
    monkeypatch.setattr(user, "LIBRARIES", (str(tmp_path / "gone"), f"{tmp_path}/*.so"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("LD_PRELOAD", "/lib/mine.so")
    given = user.name_for_java()
    assert given["LD_PRELOAD"] == f"{tmp_path}/libnss_wrapper.so /lib/mine.so"
    entry = Path(given["NSS_WRAPPER_PASSWD"]).read_text()
    assert entry == f"streamjoin:x:{CHOSEN}:{os.getgid()}::{tmp_path}:/bin/sh\n", "the home directory can be written"


@pytest.mark.usefixtures("nameless")
def test_without_the_library_an_executor_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(user, "LIBRARIES", ())
    monkeypatch.setattr(pods, "executor_command", lambda *given: ["java"])
    assert pods.run_executor() == pods.Exit.JAVA
    said = capsys.readouterr().err
    assert f"user {CHOSEN} has no entry in /etc/passwd, which Java needs; add an entry to the image, or install libnss-wrapper" in said


@pytest.mark.usefixtures("nameless")
def test_an_executors_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become: list[dict[str, str]] = []
    (tmp_path / "libnss_wrapper.so").touch()
    monkeypatch.setattr(user, "LIBRARIES", (f"{tmp_path}/*.so",))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(os, "execv", lambda path, command: become.append(dict(os.environ)))
    monkeypatch.setattr(pods, "executor_command", lambda *given: ["java"])
    pods.run_executor()
    assert become[0]["LD_PRELOAD"].split()[0] == f"{tmp_path}/libnss_wrapper.so"


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A directory that every user may write. pytest's own are open to this one alone."""
    directory = Path(tempfile.mkdtemp(prefix="streamjoin-user-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.spark
def test_spark_joins_as_a_user_that_the_machine_does_not_know(theirs: Path) -> None:
    become = ["setpriv", f"--reuid={CHOSEN}", "--regid=0", "--clear-groups"]
    command = [*(["sudo", "-n"] if os.getuid() else []), *become, "env", "-i", "HOME=/", f"PATH={os.environ['PATH']}", sys.executable]
    try:
        can = subprocess.run([*command, "-c", "import streamjoin"], cwd=theirs, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        can = False
    if not can:
        pytest.skip("this machine lets no other user run our Python")
    if not list(Path("/usr").glob("lib*/**/libnss_wrapper.so")):
        pytest.skip(lacks("libnss_wrapper.so", "apt-get install libnss-wrapper"))
    run = [*command, "-m", "streamjoin", "run", str(ROOT / "examples" / "band.yaml"), "--until-idle"]
    done = subprocess.run(run, cwd=theirs, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "all input has been joined" in done.stderr + done.stdout
    written = list((theirs / "out/band/matches").rglob("*.parquet"))
    assert written
    assert {path.stat().st_uid for path in written} == {CHOSEN}
