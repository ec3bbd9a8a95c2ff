"""A Kubernetes cluster for tests, with the project's images, Prometheus and Kafka in it.

    python tools/cluster.py up                    starts it where none runs, builds and loads images; prints how to reach it
    python tools/cluster.py images [IMAGE ...]    builds images anew and gives them to the cluster
    python tools/cluster.py down                  ends what ``up`` started

Which cluster: the one that ``KUBECONFIG`` names; else kind's, where Docker answers and kind is on the path; else a single node made of
Kubernetes' real parts (tools/node.py), which takes root and Debian or Ubuntu. Images are built by docker for kind and by buildah for the
node, from Debian's image or, where no registry can be reached, from one made by debootstrap; ``BASE`` names another. A given cluster
pulls images from ``REGISTRY`` (such as registry.example.com/team/), which they are pushed to; without, it must have them.

Prometheus is the service ``prometheus.monitoring:9090``, Kafka ``kafka.kafka:9092``, an S3 server ``http://s3.s3:5000``.
Files are in ``~/.cache/streamjoin/cluster``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import kubernetes_programs
from node import NAME, PAUSE, Node, NodeError, install_packages, is_answering, kubectl, succeeds

ROOT = Path(__file__).resolve().parent.parent
PARTS = ROOT / "tests" / "cluster"
"""What is in the cluster for tests alone: for each, a Dockerfile and a manifest."""
HOME = kubernetes_programs.cache().parent / "cluster"
DEBIAN, OWN_DEBIAN = "docker.io/library/debian:bookworm-slim", "localhost/debian:bookworm"
ENGINE, OPERATOR, PROMETHEUS, KAFKA, S3 = IMAGES = ("engine", "operator", "prometheus", "kafka", "s3")
TABLES, SPARK = LARGER = ("engine-tables", "engine-spark")
"""For joins with Delta or Iceberg tables, or with spark: built and loaded where somebody asks for it."""
PLACES = {PROMETHEUS: "monitoring", KAFKA: "kafka", S3: "s3"}
"""The namespaces of what is there for tests alone."""


class ClusterError(Exception):
    """Why there is no cluster, and what to do about it."""


class Cluster:
    """A cluster, whatever it runs on. This one is given, and nobody may start or end it."""

    builder = os.environ.get("BUILDER", "")

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def prepare(self) -> None:
        """What must be there before images are built."""

    def up(self) -> None:
        """Returns when the API server answers. Raises ClusterError."""
        if not is_answering(self.kubeconfig):
            raise ClusterError(f"{self.kubeconfig}: no API server answers; start it, or unset KUBECONFIG to have a cluster made here")

    def down(self) -> None:
        say(f"{self.kubeconfig} was not started here and is left as it is")

    def load(self, image: str) -> None:
        """Gives the cluster an image that was built here. Raises ClusterError."""
        if not os.environ.get("REGISTRY"):
            raise ClusterError("REGISTRY: must name a registry that this cluster pulls from, for its images are pushed there")
        run(self.builder or "docker", "push", f"{os.environ['REGISTRY']}{image}")

    def base(self) -> str | None:
        """The Debian image to build from; None: the Dockerfiles' own."""
        return None

    def kubectl(self, *arguments: str) -> list[str]:
        return kubectl(self.kubeconfig, *arguments)


class Kind(Cluster):
    """kind's, in Docker."""

    builder = "docker"

    def up(self) -> None:
        if not is_answering(self.kubeconfig):
            self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
            run("kind", "create", "cluster", "--name", NAME, "--kubeconfig", str(self.kubeconfig), "--wait", "300s")

    def down(self) -> None:
        run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", str(self.kubeconfig))

    def load(self, image: str) -> None:
        run("kind", "load", "docker-image", image, "--name", NAME)


class Single(Cluster):
    """A node of real parts."""

    builder = "buildah"

    def __init__(self) -> None:
        self._node = Node(HOME)
        super().__init__(self._node.kubeconfig)

    def prepare(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("a node of Kubernetes' real parts needs root; or install kind and Docker, or set KUBECONFIG")
        install_packages(say)
        if not succeeds("buildah", "inspect", "--type", "image", PAUSE):
            with tempfile.TemporaryDirectory() as directory:
                # Holds a pod's network namespace and does nothing.
                Path(directory, "Dockerfile").write_text(f'FROM {self.base() or DEBIAN}\nENTRYPOINT ["sleep", "infinity"]\n')
                build_own(PAUSE, Path(directory))

    def up(self) -> None:
        self._node.up(say)

    def down(self) -> None:
        self._node.down()

    def load(self, image: str) -> None:
        # A name without a registry is Docker's to containerd, and localhost to buildah.
        self._node.load(f"localhost/{image}", f"docker.io/library/{image}")

    def base(self) -> str | None:
        if succeeds("buildah", "inspect", "--type", "image", OWN_DEBIAN):
            return OWN_DEBIAN
        if succeeds("buildah", "pull", "--quiet", DEBIAN):
            return None
        say("no registry can be reached: making Debian's image with debootstrap")
        with tempfile.TemporaryDirectory() as directory:
            make_debian(Path(directory))
        return OWN_DEBIAN


def main() -> int:
    parser = argparse.ArgumentParser(description="A Kubernetes cluster for tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start the cluster, build and load the images")
    building = commands.add_parser("images", help="build images anew and load them")
    building.add_argument("images", nargs="*", metavar="IMAGE", help=f"{', '.join(IMAGES)}; {', '.join(LARGER)} only by name")
    commands.add_parser("down", help="end what `up` started")
    arguments = parser.parse_args()
    try:
        cluster = find_cluster()
        if arguments.command == "up":
            bring_up(cluster)
        elif arguments.command == "down":
            cluster.down()
        else:
            load_images(cluster, arguments.images or IMAGES)
    except (ClusterError, NodeError, kubernetes_programs.MissingError) as error:
        say(str(error))
        return 1
    return 0


def find_cluster() -> Cluster:
    given = os.environ.get("KUBECONFIG")
    if given and Path(given).absolute() not in (HOME / "kubeconfig", HOME / "kind.kubeconfig"):
        return Cluster(Path(given))
    if shutil.which("kind") and shutil.which("docker") and succeeds("docker", "info"):
        return Kind(HOME / "kind.kubeconfig")
    return Single()


def bring_up(cluster: Cluster) -> None:
    cluster.prepare()
    cluster.up()
    load_images(cluster, IMAGES)
    for part in PLACES:
        run(*cluster.kubectl("apply", "-f", str(PARTS / f"{part}.yaml")))
    for part, namespace in PLACES.items():
        say(f"waiting for {part}")
        run(*cluster.kubectl("--namespace", namespace, "rollout", "status", f"deployment/{part}", "--timeout=600s"))
    print(f"export KUBECONFIG={cluster.kubeconfig}", flush=True)


def load_images(cluster: Cluster, images: tuple[str, ...] | list[str]) -> None:
    """Builds each image and gives it to the cluster. Raises ClusterError."""
    unknown = sorted(set(images) - {*IMAGES, *LARGER})
    if unknown:
        raise ClusterError(f"{', '.join(unknown)}: no such image; there are {', '.join((*IMAGES, *LARGER))}")
    base = os.environ.get("BASE") or cluster.base()
    environment = {**os.environ, **({"BUILDER": cluster.builder} if cluster.builder else {}), **({"BASE": base} if base else {})}
    for image in images:
        say(f"building {image}")
        if image in (ENGINE, *LARGER, OPERATOR):
            make_image(image, environment)
        else:
            with tempfile.TemporaryDirectory() as directory:
                context = Path(shutil.copytree(PARTS, Path(directory, "context")))
                if image == KAFKA:
                    copy_kafka(context)
                make_image(image, {**environment, "CONTEXT": str(context)})
        cluster.load(tag(image))


def make_image(image: str, environment: dict[str, str]) -> None:
    run(str(ROOT / "tools" / "images.sh"), image, environment=environment)


def tag(image: str) -> str:
    """The name that the chart, and the manifests of the other parts, give an image."""
    version = next(line.split('"')[1] for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = "))
    return f"streamjoin-{image}:{version}"


def build_own(name: str, context: Path) -> None:
    """An image of the node's own, from the Dockerfile in ``context``."""
    # In a chroot, buildah needs neither a network of its own nor a runtime for containers.
    run("buildah", "build", "--quiet", "--isolation=chroot", "--layers", "--file", str(context / "Dockerfile"), "--tag", name, str(context))


def make_debian(directory: Path) -> None:
    """Debian's base, as its own image has it, from the machine's package mirror."""
    mirror = "http://deb.debian.org/debian"
    root = directory / "root"
    run("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(root), mirror)
    (root / "etc/apt/sources.list").write_text(
        f"deb {mirror} bookworm main\ndeb {mirror} bookworm-updates main\ndeb {mirror}-security bookworm-security main\n"
    )
    for unneeded in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / unneeded)
        (root / unneeded).mkdir()
    run("tar", "-C", str(root), "--numeric-owner", "-cf", str(directory / "root.tar"), ".")
    shutil.rmtree(root)
    newest = "RUN apt-get update && apt-get upgrade -y && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin"
    (directory / "Dockerfile").write_text(f'FROM scratch\nADD root.tar /\n{newest}\nCMD ["/bin/bash"]\n')
    build_own(OWN_DEBIAN, directory)


def copy_kafka(directory: Path) -> None:
    """Kafka's jars, which the tests of Kafka use too."""
    command = [sys.executable, "-c", "import kafka_broker; print(kafka_broker.libraries())"]
    found = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=False)
    if found.returncode:
        raise ClusterError(f"Kafka's jars cannot be had: {found.stderr.strip().splitlines()[-1]}")
    shutil.copytree(found.stdout.strip(), directory / "jars")


def run(*command: str, environment: dict[str, str] | None = None) -> None:
    """Runs a command; what it says goes to stderr. Raises ClusterError."""
    if subprocess.run(command, stdout=sys.stderr, env=environment, check=False).returncode:
        raise ClusterError(f"{' '.join(command)}: failed")


def say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
