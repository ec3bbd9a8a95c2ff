"""Java libraries for tests, fetched by Maven into a cache, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

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


class NotFetched(RuntimeError):  # noqa: N818
    """This machine cannot have them; the text says what is missing."""


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
    """The directory of this name in the cache; ``fetch`` makes it as ``got`` in the one that it is given."""
    if shutil.which("java") is None:
        raise NotFetched("no java (apt-get install default-jre-headless)")
    cache = Path(os.environ.get("STREAMJOIN_TEST_CACHE") or Path.home() / ".cache" / "streamjoin-tests")
    target = cache / name
    if target.is_dir():
        return target
    if shutil.which("mvn") is None:
        raise NotFetched("no mvn (apt-get install maven)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        fetch(Path(directory))
        try:
            os.rename(Path(directory) / "got", target)
        except OSError:
            if not target.is_dir():  # or another process was faster
                raise
    return target


def _maven(artifact: str, version: str, directory: Path, *arguments: str) -> None:
    try:
        done = subprocess.run(
            ["mvn", "-q", "-B", *arguments], cwd=directory, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotFetched(f"mvn did not fetch {artifact} {version} within {PATIENCE_SECONDS:.0f} s") from None
    if done.returncode:
        raise NotFetched(f"mvn cannot fetch {artifact} {version}: {(done.stdout + done.stderr).strip()[-300:]}")
