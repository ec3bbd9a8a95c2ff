"""Java libraries for tests, fetched by Maven into a cache, once."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from fetched import NotFetched, cached
from waiting import PATIENCE_SECONDS

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>streamjoin</groupId><artifactId>{name}-for-tests</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""


def libraries(name: str, group: str, artifact: str, version: str) -> Path:
    """The directory of a library's jars and of those that it needs. Raises NotFetched."""

    def fetch(directory: Path) -> None:
        (directory / "pom.xml").write_text(POM.format(name=name, group=group, artifact=artifact, version=version))
        _maven(artifact, version, directory, "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=got")

    return _cached(f"{name}-{version}", fetch)


def archive(name: str, group: str, artifact: str, version: str, classifier: str) -> Path:
    """The directory with what is in a program's .tar.gz. Raises NotFetched."""

    def fetch(directory: Path) -> None:
        wanted = f"-Dartifact={group}:{artifact}:{version}:tar.gz:{classifier}"
        _maven(artifact, version, directory, "dependency:copy", wanted, "-DoutputDirectory=.")
        with tarfile.open(next(directory.glob("*.tar.gz"))) as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # there is none before Python 3.11.4
            packed.extractall(directory / "got")

    return _cached(f"{name}-{version}", fetch)


def _cached(name: str, fetch: Callable[[Path], None]) -> Path:
    """What is fetched is for Java, and is no use without it."""
    if shutil.which("java") is None:
        raise NotFetched("no java (apt-get install default-jre-headless)")
    return cached(name, fetch)


def _maven(artifact: str, version: str, directory: Path, *arguments: str) -> None:
    if shutil.which("mvn") is None:
        raise NotFetched("no mvn (apt-get install maven)")
    try:
        done = subprocess.run(
            ["mvn", "-q", "-B", *arguments], cwd=directory, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotFetched(f"mvn did not fetch {artifact} {version} within {PATIENCE_SECONDS:.0f} s") from None
    if done.returncode:
        raise NotFetched(f"mvn cannot fetch {artifact} {version}: {(done.stdout + done.stderr).strip()[-300:]}")
