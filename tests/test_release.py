"""Releases: the same commit gives the same bytes, everything has one version, locks fit what is wanted, and what is changed is noticed."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from chart import helm
from release_steps import archives, debian, locks, packages, publishing, scanning, sums
from release_steps.failure import ReleaseError
from release_steps.versions import PLACES, differing, notes, of_python, set_version, version

pytestmark = pytest.mark.xdist_group("release")  # built once
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit, of the files that are here."""
    copied = tmp_path_factory.mktemp("repository")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    wanted = ("pyproject.toml", "README.md", "LICENSE", "engine/", "operator/", "charts/", "locks/", "docker/", "tests/cluster/", "docs/")
    for name in filter(None, listed.split("\0")):
        if name.startswith(wanted) and (ROOT / name).is_file():
            (copied / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copied / name)
    environment = {
        **os.environ,
        **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        **{f"GIT_{who}_DATE": "2026-03-01T12:00:00Z" for who in ("AUTHOR", "COMMITTER")},
    }
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=copied, env=environment, check=True)
    return copied


@pytest.fixture(scope="module")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release without images."""
    directory = tmp_path_factory.mktemp("release")
    with packages.unpacked("HEAD", repository) as source:
        packages.build(source, directory)
        sums.describe(directory, source)
    sums.write(directory)
    return directory


def copied(release: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(release, tmp_path / "release"))


def test_the_same_commit_gives_the_same_bytes_elsewhere_and_later(repository: Path, built: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    subprocess.run(["git", "clone", "-q", repository, elsewhere], check=True)
    (elsewhere / "engine" / "streamjoin" / "left_behind.py").write_text("1\n")
    for path in (elsewhere / "charts").rglob("*"):
        os.utime(path)
    before = os.umask(0o077)
    try:
        with packages.unpacked("HEAD", elsewhere) as source:
            again = packages.build(source, tmp_path / "again")
    finally:
        os.umask(before)
    assert {path.name: archives.digest(path) for path in again} == {path.name: archives.digest(built / path.name) for path in again}


def test_packages_hold_the_project_and_nobody_s_name_or_clock(built: Path) -> None:
    [wheel], [sdist], [chart] = (sorted(built.glob(pattern)) for pattern in ("*.whl", "*.tar.gz", "*.tgz"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert {"streamjoin/cli/__init__.py", "streamjoin_operator/main.py", "streamjoin/py.typed", "streamjoin/__init__.pyi"} <= set(names)
        assert not [name for name in names if "tests" in name or "__pycache__" in name or name.startswith("streamjoin_research")]
        assert {entry.date_time for entry in archive.infolist()} == {(2026, 3, 1, 12, 0, 0)}
    for path in (sdist, chart):
        with tarfile.open(path) as archive:
            entries = archive.getmembers()
        assert not [entry.name for entry in entries if "streamjoin_research" in entry.name]
        assert {(entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime) for entry in entries} == {(0, 0, "", "", 1772366400)}
        assert {entry.mode for entry in entries} <= {0o644, 0o755}
        assert path.read_bytes()[4:8] == b"\0\0\0\0", "gzip's time"


@pytest.mark.apiserver
def test_helm_takes_the_chart_as_its_own(built: Path, tmp_path: Path) -> None:
    [chart] = built.glob("*.tgz")
    shown = yaml.safe_load(helm("show", "chart", str(chart)).stdout)
    assert (shown["version"], shown["appVersion"]) == (version(), version())
    helm("lint", "--strict", str(chart))
    directory = str(ROOT / "charts" / "streamjoin-operator")
    assert helm("template", "sj", str(chart)).stdout == helm("template", "sj", directory).stdout
    helm("package", directory, "--destination", str(tmp_path))
    [theirs] = tmp_path.glob("*.tgz")
    assert files_of(theirs).keys() == files_of(chart).keys()


def files_of(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive if each.isfile()}  # type: ignore[union-attr]


def test_a_release_that_was_changed_is_noticed(built: Path, tmp_path: Path) -> None:
    sums.check(built)
    release = copied(built, tmp_path)
    [wheel] = release.glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    (release / "more.txt").write_text("")
    next(release.glob("*.tgz")).unlink()
    with pytest.raises(ReleaseError) as failure:
        sums.check(release)
    said = str(failure.value).splitlines()
    assert [line.split(": ", 1)[1].split(";")[0] for line in said] == [
        f"streamjoin-operator-{version()}.tgz: is listed in SHA256SUMS and missing",
        "more.txt: is not listed in SHA256SUMS",
        f"{wheel.name}: is not what SHA256SUMS says",
    ]
    with pytest.raises(ReleaseError, match=r"has no release\.json, so it is no release"):
        sums.check(tmp_path)
    with pytest.raises(ReleaseError, match="is not what SHA256SUMS says"):
        publishing.publish(release, "localhost:1/team")


def test_two_builds_that_differ_are_named(built: Path, tmp_path: Path) -> None:
    release = copied(built, tmp_path)
    [sdist] = release.glob("*.tar.gz")
    sdist.write_bytes(gzip.compress(b"other", mtime=0))
    with pytest.raises(ReleaseError, match=rf"{sdist.name}: two builds of one commit differ"):
        sums.compare([built / sdist.name], [sdist])


def test_all_have_the_version_of_the_project() -> None:
    assert differing() == []


def test_a_new_version_is_written_everywhere_and_one_that_was_forgotten_is_named(tmp_path: Path) -> None:
    for place in PLACES:
        (tmp_path / place.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place.path, tmp_path / place.path)
    assert set(set_version("7.8.9-rc.1", tmp_path)) == {place.path for place in PLACES}
    assert version(tmp_path) == "7.8.9-rc.1"
    assert differing(tmp_path) == []
    assert of_python("7.8.9-rc.1") == "7.8.9rc1"
    chart = tmp_path / "charts/streamjoin-operator/Chart.yaml"
    chart.write_text(chart.read_text().replace('appVersion: "7.8.9-rc.1"', 'appVersion: "7.8.8"'))
    remedy = "run tools/release.py version 7.8.9-rc.1"
    assert differing(tmp_path) == [f"charts/streamjoin-operator/Chart.yaml: 7.8.8 is not pyproject.toml's 7.8.9-rc.1; {remedy}"]
    for wrong in ("1.2", "v1.2.3", "1.2.3rc1", "1.2.3+local"):
        with pytest.raises(ReleaseError, match="is no version; write it as"):
            set_version(wrong, tmp_path)


def test_a_tag_needs_its_version_and_its_notes(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    sections = ("# Changelog", "## [Unreleased]", f"## [{version()}] - 2026-12-01", "- A thing.", "## [0.0.1] - 2026-01-01", "- Old.")
    (tmp_path / "CHANGELOG.md").write_text("\n\n".join(sections))
    assert notes(f"v{version()}", tmp_path) == "- A thing.\n"
    with pytest.raises(ReleaseError, match=r"tag v9\.9\.9: is not v"):
        notes("v9.9.9", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n- A thing.\n")
    with pytest.raises(ReleaseError, match=r"CHANGELOG\.md: has no section '## \["):
        notes(f"v{version()}", tmp_path)


def test_locks_fit_what_is_wanted() -> None:
    assert locks.out_of_step() == [], "run make lock"


def test_a_changed_requirement_and_a_changed_set_of_packages_are_noticed(tmp_path: Path) -> None:
    for name in ("locks", "docker"):
        shutil.copytree(ROOT / name, tmp_path / name)
    project = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(project.replace('"kopf>=1.45,<2"', '"kopf>=99"').replace('"psutil>=6.0"', '"psutils-x>=6.0"'))
    (tmp_path / "docker/debian-packages.txt").write_text((tmp_path / "docker/debian-packages.txt").read_text() + "engine: curl\n")
    said = "\n".join(locks.out_of_step(tmp_path))
    for expected in (
        "locks/engine.txt: pyproject.toml has changed since it was made; run make lock",
        "locks/engine.txt: has psutils-x none, and pyproject.toml wants psutils-x>=6.0",
        f"locks/operator.txt: has kopf {locks.pins('operator')['kopf'][0]}, and pyproject.toml wants kopf>=99",
        "locks/debian.txt: engine amd64 curl: is missing; run make lock",
        "locks/debian.txt: engine arm64 curl: is missing; run make lock",
    ):
        assert expected in said
    assert "locks/build.txt" not in said


def test_every_locked_package_of_a_release_has_a_digest() -> None:
    for name in locks.RELEASED:
        entries = locks.path(name).read_text().replace("\\\n", " ").splitlines()
        loose = [entry for entry in entries if entry.strip() and not entry.startswith("#") and "--hash=sha256:" not in entry]
        assert loose == []
    assert {architecture for _, architecture, *_ in debian.locked()} == set(debian.ARCHITECTURES)
    assert all(len(digest) == 64 for *_, digest in debian.locked())


def test_a_scan_fails_for_what_nobody_could_be_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"dependencies": [{"name": "numpy", "version": "2", "vulns": []}, {"name": "kopf", "skip_reason": "not found"}]}
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(scanning, "program", lambda name: program)
    with pytest.raises(ReleaseError, match=r"answered nothing about 1 packages \(kopf\); scan where"):
        scanning.audit(locks.path("build"))
    vulnerable = {"id": "PYSEC-1", "aliases": ["CVE-2026-1"], "fix_versions": ["3"]}
    answer = {"dependencies": [{"name": "numpy", "version": "2", "vulns": [vulnerable]}]}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\nexit 1\n")
    assert scanning.audit(locks.path("build")) == ["build.txt: numpy 2: PYSEC-1, mended in 3"]
    (tmp_path / "docker").mkdir()
    accepted = tmp_path / scanning.IGNORED
    accepted.write_text("# Why.\nCVE-2026-1 only where numpy reads files of strangers\n")
    assert scanning.audit(locks.path("build"), tmp_path) == []
    accepted.write_text("CVE-2026-1\n")
    with pytest.raises(ReleaseError, match="CVE-2026-1: gives no reason"):
        scanning.audit(locks.path("build"), tmp_path)


@pytest.mark.parametrize("registry", ["https://ghcr.io/team", "ghcr.io/Team", "ghcr.io/", ""])
def test_what_is_no_registry_is_said(built: Path, registry: str) -> None:
    with pytest.raises(ReleaseError, match="is no registry; write it as"):
        publishing.publish(built, registry)


def test_a_release_without_images_is_not_published(built: Path) -> None:
    with pytest.raises(ReleaseError, match=r"has no images; run tools/release\.py images"):
        publishing.publish(built, "localhost:1/team")


def test_packing_again_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "made"
    (directory / "b").mkdir(parents=True)
    (directory / "b" / "run").write_text("1")
    (directory / "b" / "run").chmod(0o700)
    (directory / "a.txt").write_text("2")
    (directory / "link").symlink_to("a.txt")
    archives.pack(directory, tmp_path / "one.tgz", 12345, prefix="top")
    archives.pack_again(tmp_path / "one.tgz", tmp_path / "two.tgz", 12345)
    assert (tmp_path / "one.tgz").read_bytes() == (tmp_path / "two.tgz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "one.tgz").read_bytes())) as archive:
        shown = [(entry.name, oct(entry.mode), entry.mtime) for entry in archive]
    assert shown == [
        ("top/a.txt", "0o644", 12345),
        ("top/b", "0o755", 12345),
        ("top/b/run", "0o755", 12345),
        ("top/link", "0o777", 12345),
    ]
