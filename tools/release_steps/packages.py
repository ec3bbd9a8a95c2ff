"""Wheel, source distribution and chart, from a commit: the same bytes wherever they are built.

Nothing that is in the directory and not in the commit gets into them. Each is dated with its commit (SOURCE_DATE_EPOCH, of
https://reproducible-builds.org/specs/source-date-epoch/).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from release_steps import archives, locks
from release_steps.failure import ROOT, ReleaseError, output, program, run
from release_steps.versions import differing, of_python, version

CHART = "charts/streamjoin-operator"


@dataclass(frozen=True)
class Source:
    """A commit, unpacked."""

    directory: Path
    commit: str
    epoch: int
    """When it was committed, in seconds since 1970."""

    @property
    def version(self) -> str:
        return version(self.directory)

    def environment(self) -> dict[str, str]:
        """For what builds: the same time, order of hashes, language and zone for everybody."""
        return {
            **os.environ,
            "SOURCE_DATE_EPOCH": str(self.epoch),
            "PYTHONHASHSEED": "0",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }


@contextmanager
def unpacked(commit: str = "HEAD", root: Path = ROOT) -> Iterator[Source]:
    """A commit in a directory of its own, which is removed at the end. Raises ReleaseError where it cannot be released."""
    number = output("git", "rev-parse", "--verify", f"{commit}^{{commit}}", cwd=root).strip()
    epoch = int(output("git", "show", "--no-patch", "--format=%ct", number, cwd=root))
    packed = subprocess.run(["git", "archive", "--format=tar", number], cwd=root, capture_output=True, check=False)
    if packed.returncode:
        raise ReleaseError(f"git archive {number}: {packed.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="streamjoin-release-") as name:
        directory = Path(name, "source")
        directory.mkdir()
        archives.unpack_source(packed.stdout, directory)
        if problems := differing(directory):
            raise ReleaseError("\n".join(problems))
        locks.check(directory)
        yield Source(directory, number, epoch)


def uncommitted(root: Path = ROOT) -> list[str]:
    """Files that differ from the last commit, and so are not released as they are."""
    return [line[3:] for line in output("git", "status", "--porcelain", cwd=root).splitlines()]


def build(source: Source, target: Path) -> list[Path]:
    """Writes the three into ``target``. Raises ReleaseError."""
    return [*build_python(source, target), build_chart(source, target)]


def build_python(source: Source, target: Path) -> list[Path]:
    """Source distribution, and the wheel that is built from it. Raises ReleaseError."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="streamjoin-wheel-") as name:
        run(
            *(program("uv"), "build", "--quiet", "--no-build-logs", "--out-dir", name),
            *("--build-constraints", locks.path(locks.BUILD, source.directory), "--require-hashes", source.directory),
            environment={**source.environment(), "UV_PYTHON_DOWNLOADS": "never"},
        )
        built = {path.suffix: path for path in Path(name).iterdir() if path.suffix in (".gz", ".whl")}
        of_index = of_python(source.version)
        sdist, wheel = target / f"streamjoin-{of_index}.tar.gz", target / f"streamjoin-{of_index}-py3-none-any.whl"
        if {path.name for path in built.values()} != {sdist.name, wheel.name}:
            raise ReleaseError(f"uv build made {sorted(path.name for path in built.values())}, not {sdist.name} and {wheel.name}")
        # Setuptools dates the wheel alone, and has in both the permissions that the umask leaves.
        archives.pack_again(built[".gz"], sdist, source.epoch)
        archives.zip_again(built[".whl"], wheel, source.epoch)
    return [sdist, wheel]


def build_chart(source: Source, target: Path) -> Path:
    """The chart as ``helm package`` lays it out, which has no way to date it. Raises ReleaseError."""
    target.mkdir(parents=True, exist_ok=True)
    chart = yaml.safe_load((source.directory / CHART / "Chart.yaml").read_text())
    archive = target / f"{chart['name']}-{chart['version']}.tgz"
    archives.pack(source.directory / CHART, archive, source.epoch, prefix=str(chart["name"]))
    return archive
