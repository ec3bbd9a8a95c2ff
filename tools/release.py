"""Makes a release of a commit: wheel, source distribution, chart and images with one version, and what is in them.

    python tools/release.py version [NEW]     shows the version, or writes a new one into every place that repeats it
    python tools/release.py version --tag v1  whether this commit may be released under that tag
    python tools/release.py lock [--upgrade]  resolves locks/*.txt anew, which the images and the build install from
    python tools/release.py packages          wheel, source distribution and chart, built twice and compared
    python tools/release.py images            images for amd64 and arm64, what is in them and under which licences
    python tools/release.py bundle            the operator as a bundle for the Operator Lifecycle Manager
    python tools/release.py scan              asks whether anything in the release is known to be vulnerable
    python tools/release.py sums              writes SHA256SUMS of what is in the release's directory
    python tools/release.py publish           gives images and chart to a registry, signed; with --python the wheel to Python's index
    python tools/release.py verify DIRECTORY  holds a release against its sums, and against what its commit gives here

All but ``lock`` take a commit and never the files of the directory. docs/releasing.md says the rest.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from release_steps import archives, bundle, debian, images, layout, locks, materials, packages, publishing, scanning, sums
from release_steps.failure import ROOT, ReleaseError, say
from release_steps.versions import differing, notes, set_version, version


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes a release of a commit.")
    commands = parser.add_subparsers(dest="command", required=True)
    versions = commands.add_parser("version", help="show the version, or write a new one everywhere")
    versions.add_argument("new", nargs="?", metavar="NEW")
    versions.add_argument("--tag", help="fail unless this is the version's tag, and CHANGELOG.md says what is in it")
    locking = commands.add_parser("lock", help="resolve the lock files")
    locking.add_argument("--upgrade", action="store_true", help="take the newest versions instead of those that are locked")
    locking.add_argument("--check", action="store_true", help="resolve nothing; fail where a lock does not fit pyproject.toml")
    packing = commands.add_parser("packages", help="build wheel, source distribution and chart")
    summing = commands.add_parser("sums", help="write SHA256SUMS")
    imaging = commands.add_parser("images", help="build images, their bills of materials and lists of licences")
    imaging.add_argument("names", nargs="*", metavar="IMAGE", help=f"{', '.join(images.IMAGES)}; by default all")
    imaging.add_argument("--arch", action="append", help=f"{', '.join(debian.ARCHITECTURES)}; by default all")
    imaging.add_argument("--twice", action="store_true", help="build all again, and compare")
    bundling = commands.add_parser("bundle", help="write the operator's bundle for the Operator Lifecycle Manager")
    bundling.add_argument("--registry", default="", help="where the images will be: registry.example.com/team")
    bundling.add_argument("--home", default="", help="the address of the repository")
    bundling.add_argument("--maintainer", default="", help="'Name <name@example.com>'")
    asking = commands.add_parser("scan", help="ask whether anything in the release is known to be vulnerable")
    handing = commands.add_parser("publish", help="give the release to a registry, or to Python's index")
    where = handing.add_mutually_exclusive_group(required=True)
    where.add_argument("--registry", help="registry.example.com/team")
    where.add_argument("--python", action="store_true", help="wheel and source distribution, to Python's index")
    where.add_argument("--page", metavar="TAG", help="all but the images, to a page of GitHub's")
    handing.add_argument("--key", type=Path, help="sign with this key of cosign's; by default as the identity that CI gives")
    for each in (packing, imaging, bundling, asking, handing, summing):
        each.add_argument("--out", type=Path, help="the release's directory; by default dist/VERSION")
    for each in (packing, imaging, bundling):
        each.add_argument("--commit", default="HEAD", help="what to release; by default HEAD")
    verifying = commands.add_parser("verify", help="check a release's sums, and build its packages anew")
    verifying.add_argument("directory", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        COMMANDS[chosen.command](chosen)
    except ReleaseError as error:
        for line in str(error).splitlines():
            say(line)
        return 1
    return 0


def show_version(chosen: argparse.Namespace) -> None:
    if chosen.new is not None:
        for path in set_version(chosen.new):
            say(f"{path}: {chosen.new}")
    if problems := differing():
        raise ReleaseError("\n".join(problems))
    if chosen.tag is not None:
        notes(chosen.tag)
    print(version())


def lock(chosen: argparse.Namespace) -> None:
    if chosen.check:
        locks.check()
    else:
        locks.write(upgrade=chosen.upgrade)


def make_packages(chosen: argparse.Namespace) -> None:
    if changed := packages.uncommitted():
        say(f"not in {chosen.commit}, and so not in the release: {', '.join(changed[:10])}{' ...' if len(changed) > 10 else ''}")
    with packages.unpacked(chosen.commit) as source, tempfile.TemporaryDirectory(prefix="streamjoin-again-") as again:
        out: Path = chosen.out or ROOT / "dist" / source.version
        built = packages.build(source, out)
        sums.compare(built, packages.build(source, Path(again)))
        sums.describe(out, source)
        for path in built:
            print(f"{archives.digest(path)}  {path}")


def make_images(chosen: argparse.Namespace) -> None:
    names, architectures = chosen.names or images.IMAGES, chosen.arch or debian.ARCHITECTURES
    with packages.unpacked(chosen.commit) as source, tempfile.TemporaryDirectory(prefix="streamjoin-again-") as again:
        out: Path = chosen.out or ROOT / "dist" / source.version
        digests = images.build(source, out, names, architectures)
        if chosen.twice:
            second = images.build(source, Path(again), names, architectures)
            if different := sorted(name for name in digests if digests[name] != second[name]):
                pairs = [(out / images.DIRECTORY / name, Path(again) / images.DIRECTORY / name) for name in different]
                lines = [line for one, other in pairs for line in layout.differences(one, other)]
                raise ReleaseError("\n".join(["two builds of one commit differ:", *lines]))
        too_large = [problem for name in digests for problem in describe_image(out, name, source)]
        known = sums.description(out).get("images", {}) if (out / sums.DESCRIPTION).is_file() else {}
        sums.describe(out, source, {"images": images.builder()}, images=known | digests)
        if too_large:
            raise ReleaseError("\n".join(too_large))


def make_bundle(chosen: argparse.Namespace) -> None:
    publisher = bundle.Publisher(chosen.registry, chosen.home, chosen.maintainer)
    with packages.unpacked(chosen.commit) as source:
        out: Path = chosen.out or ROOT / "dist" / source.version
        known = sums.description(out) if (out / sums.DESCRIPTION).is_file() else {}
        digests = known.get("images", {}) if known.get("commit") == source.commit else {}
        print(bundle.pack(source, out, publisher, digests))


def describe_image(out: Path, name: str, source: packages.Source) -> list[str]:
    """Writes bills of materials and lists of licences; prints the sizes. Gives those that are too large, each with the remedy."""
    problems = []
    for image in layout.images(out / images.DIRECTORY / name):
        found = materials.of_image(image)
        stem = f"{name}-{source.version}-{image.architecture}"
        (out / f"{stem}.cdx.json").write_text(materials.bill(name, source.version, image, found, source.epoch))
        (out / f"{stem}.licences.tsv").write_text(materials.licence_list(found))
        unpacked = image.unpacked_bytes()
        sizes = f"{unpacked / 1e6:.0f} MB unpacked, {image.compressed_bytes() / 1e6:.0f} MB compressed, {len(found)} packages"
        start = "" if images.start_is_fast(image.architecture) or name == "streamjoin-operator" else ", compiles at its first start"
        print(f"{name} {image.architecture} {image.digest}: {sizes}{start}")
        if problem := images.too_large(name, image.architecture, unpacked):
            problems.append(problem)
    return problems


def scan(chosen: argparse.Namespace) -> None:
    scanning.scan(chosen.out or ROOT / "dist" / version())


def publish(chosen: argparse.Namespace) -> None:
    out: Path = chosen.out or ROOT / "dist" / version()
    if chosen.python:
        publishing.publish_python(out)
    elif chosen.page:
        publishing.publish_page(out, chosen.page, notes(chosen.page))
    else:
        for reference, digest in publishing.publish(out, chosen.registry, chosen.key).items():
            print(f"{reference}@{digest}")


def write_sums(chosen: argparse.Namespace) -> None:
    print(sums.write(chosen.out or ROOT / "dist" / version()))


def verify(chosen: argparse.Namespace) -> None:
    sums.check(chosen.directory)
    described = sums.description(chosen.directory)
    with packages.unpacked(described["commit"]) as source, tempfile.TemporaryDirectory(prefix="streamjoin-again-") as again:
        here = packages.build(source, Path(again))
        sums.compare([chosen.directory / path.name for path in here], here)
    say(f"{chosen.directory}: sums are right, and commit {described['commit'][:12]} gives the same packages here")


COMMANDS = {
    "version": show_version,
    "lock": lock,
    "packages": make_packages,
    "images": make_images,
    "bundle": make_bundle,
    "publish": publish,
    "scan": scan,
    "sums": write_sums,
    "verify": verify,
}


if __name__ == "__main__":
    sys.exit(main())
