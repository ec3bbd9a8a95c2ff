"""The lock of Debian's packages: for each set of docker/debian-packages.txt and each processor, versions and digests of the day.

    locks/debian.txt: SET ARCHITECTURE PACKAGE VERSION SHA256

It is resolved by apt, in a directory of its own, and so checked against Debian's signatures; it takes Debian or Ubuntu, and no rights.
"""

from __future__ import annotations

import datetime
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from release_steps.failure import ROOT, ReleaseError, output, run

WANTED, LOCK = "docker/debian-packages.txt", "locks/debian.txt"
ARCHITECTURES = ("amd64", "arm64")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org"
_LINE = re.compile(r"^([a-z]+): (.+)$")


def wanted(root: Path = ROOT) -> list[tuple[str, str]]:
    """Pairs of set and package. Raises ReleaseError."""
    found = []
    for number, line in enumerate((root / WANTED).read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            match = _LINE.match(line)
            if match is None:
                raise ReleaseError(f"{WANTED}:{number}: {line!r} is not of the form SET: PACKAGE ...")
            found += [(match[1], package) for package in match[2].split()]
    return found


def write(root: Path = ROOT) -> None:
    """Resolves the lock. Asks Debian's mirror. Raises ReleaseError."""
    if not Path(KEYRING).is_file():
        raise ReleaseError(f"{KEYRING}: is missing, so packages cannot be trusted; apt-get install debian-archive-keyring")
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    pairs = wanted(root)
    lines = []
    with tempfile.TemporaryDirectory(prefix="streamjoin-apt-") as name:
        options = _prepare(Path(name))
        run("apt-get", *options, "-q", "-q", "update")
        for architecture in ARCHITECTURES:
            packages = sorted({package for _, package in pairs})
            # What is for all processors is known by its name alone.
            asked = [f"{package}{suffix}" for package in packages for suffix in (f":{architecture}", "")]
            shown = output("apt-cache", *options, "show", "--no-all-versions", *asked)
            known = dict(_versions_and_digests(shown, architecture))
            for chosen, package in pairs:
                if package not in known:
                    raise ReleaseError(f"{WANTED}: {package}: Debian has no such package for {architecture}")
                lines.append(" ".join((chosen, architecture, package, *known[package])))
    text = ["# Made by `make lock`: Debian's packages in images, by set.", f"# As of {moment}.", *lines]
    (root / LOCK).write_text("\n".join(text) + "\n")


def locked(root: Path = ROOT) -> list[tuple[str, str, str, str, str]]:
    """Lines of the lock: set, architecture, package, version, SHA-256. Raises ReleaseError."""
    try:
        text = (root / LOCK).read_text()
    except FileNotFoundError:
        raise ReleaseError(f"{LOCK}: is missing; run make lock") from None
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            chosen, architecture, package, version, digest = line.split()
            found.append((chosen, architecture, package, version, digest))
    return found


def out_of_step(root: Path = ROOT) -> list[str]:
    """Why the lock does not fit docker/debian-packages.txt."""
    have = {each[:3] for each in locked(root)}
    want = {(chosen, architecture, package) for chosen, package in wanted(root) for architecture in ARCHITECTURES}
    return [f"{LOCK}: {' '.join(each)}: is {'missing' if each in want else 'not wanted'}; run make lock" for each in sorted(have ^ want)]


def _prepare(directory: Path) -> list[str]:
    """Options of an apt that knows Debian 12 and nothing of this machine."""
    for each in ("etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "state/lists/partial", "cache/archives/partial"):
        (directory / each).mkdir(parents=True)
    (directory / "status").touch()
    sources = ("debian bookworm", "debian bookworm-updates", "debian-security bookworm-security")
    (directory / "etc" / "sources.list").write_text("".join(f"deb [signed-by={KEYRING}] {MIRROR}/{each} main\n" for each in sources))
    settings = {
        "Dir::Etc": directory / "etc",
        "Dir::State": directory / "state",
        "Dir::State::status": directory / "status",
        "Dir::Cache": directory / "cache",
        "APT::Architecture": ARCHITECTURES[0],
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
    }
    options = [f"--option={name}={value}" for name, value in settings.items()]
    return [*options, *(f"--option=APT::Architectures::={each}" for each in ARCHITECTURES)]


def _versions_and_digests(shown: str, architecture: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for paragraph in shown.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|SHA256): (.+)$", paragraph, re.MULTILINE))
        if fields.get("Architecture") in (architecture, "all"):
            yield fields["Package"], (fields["Version"], fields["SHA256"])
