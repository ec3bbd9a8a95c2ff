"""Hands a release on: wheel to Python's index, images and chart to a registry, each signed there by its digest.

Nothing is built: what is published is what ``verify`` has seen. Who publishes is known by an identity of the moment, from the CI's token
(trusted publishing, keyless signatures); no secret is stored. With ``key``, signatures are made with a key of one's own, and no public log
has them.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import kubernetes_programs
from release_steps import images, sums
from release_steps.failure import ReleaseError, output, program, run, say


def publish(release: Path, registry: str, key: Path | None = None) -> dict[str, str]:
    """Pushes images and chart below ``registry`` (registry.example.com/team), and signs them. Gives digests by reference.

    Raises ReleaseError: before anything is pushed if the release is not what its sums say, and where the registry has other bytes.
    """
    if not re.fullmatch(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*", registry):
        raise ReleaseError(
            f"--registry: {registry!r} is no registry; write it as registry.example.com/team, in small letters, without https://"
        )
    sums.check(release)
    about = sums.description(release)
    _log_in(registry)
    if missing := [name for name in images.IMAGES if f"streamjoin-{name}" not in about.get("images", {})]:
        has = "has no images" if len(missing) == len(images.IMAGES) else f"has no image streamjoin-{missing[0]}"
        raise ReleaseError(f"{release}: {has}; run tools/release.py images, and then sums")
    published = {}
    for name, digest in sorted(about["images"].items()):
        reference = f"{registry}/{name}:{about['version']}"
        say(f"pushing {reference}")
        run(_program("crane"), "push", *_insecure(registry), release / images.DIRECTORY / name, reference)
        pushed = output(_program("crane"), "digest", *_insecure(registry), reference).strip()
        if pushed != digest:
            raise ReleaseError(f"{reference}: the registry has {pushed}, and the release is {digest}")
        published[f"{registry}/{name}"] = digest
    tell_workflow(published)
    published[f"{registry}/charts/streamjoin-operator"] = publish_chart(release, registry)
    for reference, digest in published.items():
        sign(f"{reference}@{digest}", key)
    return published


def publish_chart(release: Path, registry: str) -> str:
    """Gives the digest. Raises ReleaseError."""
    charts = sorted(release.glob("streamjoin-operator-*.tgz"))
    if len(charts) != 1:
        raise ReleaseError(f"{release}: has {len(charts)} charts (streamjoin-operator-*.tgz), not one; run tools/release.py packages")
    plain = ["--plain-http"] if _insecure(registry) else []
    run(_program("helm"), "push", charts[0], f"oci://{registry}/charts", f"--registry-config={_credentials()}", *plain)
    version = charts[0].name.removeprefix("streamjoin-operator-").removesuffix(".tgz")
    return output(_program("crane"), "digest", *_insecure(registry), f"{registry}/charts/streamjoin-operator:{version}").strip()


def sign(reference: str, key: Path | None = None) -> None:
    """Signs what a registry has by this digest. Raises ReleaseError."""
    registry = reference.partition("/")[0]
    options = ["--allow-insecure-registry", "--allow-http-registry"] if _insecure(registry) else []
    if key is not None:
        options += [f"--key={key}", "--tlog-upload=false"]
    run(_program("cosign"), "sign", "--yes", "--recursive", *options, reference)


def publish_python(release: Path) -> None:
    """Gives wheel and source distribution to Python's index, as the publisher that the index knows this CI by. Raises ReleaseError."""
    sums.check(release)
    found = [*release.glob("*.whl"), *release.glob("*.tar.gz")]
    if len(found) != 2:
        raise ReleaseError(f"{release}: has {len(found)} of wheel and source distribution; run tools/release.py packages")
    run(program("uv"), "publish", "--trusted-publishing=always", *found, environment=os.environ)


def publish_page(release: Path, tag: str, text: str) -> None:
    """Makes a release of GitHub's with all but the images, by the program ``gh``. Raises ReleaseError."""
    sums.check(release)
    files = sorted(path for path in release.iterdir() if path.is_file())
    before = ["--prerelease"] if "-" in tag else []
    run("gh", "release", "create", tag, "--verify-tag", "--title", tag, "--notes", text, *before, *files)


def tell_workflow(published: dict[str, str]) -> None:
    """Gives GitHub's workflow the digests, as outputs by the last part of each name, for its statements of provenance."""
    path = os.environ.get("GITHUB_OUTPUT")
    if path:
        with Path(path).open("a") as file:
            file.writelines(f"{reference.rpartition('/')[2]}={digest}\n" for reference, digest in published.items())


def _log_in(registry: str) -> None:
    """With REGISTRY_USER and REGISTRY_PASSWORD, where they are set; else as whoever has logged in on this machine."""
    user, password = os.environ.get("REGISTRY_USER"), os.environ.get("REGISTRY_PASSWORD")
    if user and password:
        command = [str(_program("crane")), "auth", "login", registry.partition("/")[0], f"--username={user}", "--password-stdin"]
        done = subprocess.run(command, input=password, text=True, capture_output=True, check=False)
        if done.returncode:
            raise ReleaseError(f"REGISTRY_USER: {user}: {registry} does not let it in: {done.stderr.strip()}")


def _credentials() -> Path:
    """Where crane and cosign have them, too."""
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker", "config.json")


def _insecure(registry: str) -> list[str]:
    """For a registry on this machine, which has no certificate."""
    return ["--insecure"] if re.match(r"(localhost|127\.0\.0\.1)(:|/|$)", registry) else []


def _program(name: str) -> Path:
    try:
        return kubernetes_programs.obtain(name)
    except kubernetes_programs.MissingError as error:
        raise ReleaseError(str(error)) from error
