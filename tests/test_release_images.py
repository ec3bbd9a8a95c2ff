"""Images of a release: nothing misses the parts they leave out, what they hold is listed, and a real registry takes them as they are."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import kubernetes_programs
import release as tool
from release_steps import debian, images, layout, materials, packages, publishing, sums
from release_steps.failure import ReleaseError
from release_steps.packages import Source, build_chart
from skips import lacks
from waiting import PATIENCE_SECONDS, wait_for

ROOT = Path(__file__).resolve().parent.parent

WITHOUT = """
import importlib.util, pathlib, pkgutil, sys

class Absent:
    def __init__(self, names):
        self.names = set(names)
    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}, which the image leaves out", name=name)

class Replaced:    # packages that the image has in another form
    def __init__(self, directory):
        self.directory = directory
    def find_spec(self, name, path=None, target=None):
        file = self.directory.joinpath(*name.split(".")[1:], "__init__.py")
        if name.partition(".")[0] == "scipy" and file.is_file():
            import scipy
            places = [str(pathlib.Path(scipy.__path__[0], *name.split(".")[1:]))]
            return importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)

def import_all(package, but=()):
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not each.name.endswith("__main__") and each.name not in but:
            importlib.import_module(each.name)
"""
"""Makes this Python know as little as an image's."""


LAYERED = ("streamjoin-engine", "streamjoin-engine-tables", "streamjoin-engine-spark")
WORDS = {"operator": {"both", "operator"}, "engine": {"both", "engine", "tables"}, "engine-tables": {"both", "engine"}}
"""By image, the words that docker/unused-python.txt has for it."""
TABLES = ["io.delta_changes", "io.delta_table", *(f"io.iceberg_{each}" for each in ("changes", "checked", "files", "rewrite", "table"))]
"""The modules of the engine that its image has no packages for."""


def left_out(image: str) -> list[str]:
    """Modules that docker/unused-python.txt removes from an image, as far as they are installed here."""
    site = Path(sysconfig.get_path("platlib"))
    found = set()
    for line in (ROOT / "docker" / "unused-python.txt").read_text().splitlines():
        if not line.startswith("#"):
            whose, pattern = line.split()
            for path in site.glob(pattern) if whose in WORDS[image] else ():
                parts = [*path.relative_to(site).parts[:-1], path.name if path.is_dir() else path.name.split(".")[0]]
                if all(part.isidentifier() for part in parts) and (path.is_dir() or path.suffix in (".py", ".so")):
                    found.add(".".join(parts))
    assert len(found) > 10
    return sorted(found)


def run_without(names: list[str], program: str, directory: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    finders = f"Absent({names!r}), Replaced(pathlib.Path({str(ROOT / 'docker' / 'scipy')!r}))"
    text = f"{WITHOUT}\nsys.meta_path[:0] = [{finders}]\n{program}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def test_the_operator_does_without_what_its_image_leaves_out(tmp_path: Path) -> None:
    script = (ROOT / "docker" / "install-python.sh").read_text()
    [listed] = re.findall(r"for package in (api .*); do", script)
    engine = tmp_path / "engine"
    shutil.copytree(ROOT / "engine" / "streamjoin", engine / "streamjoin", ignore=shutil.ignore_patterns("__pycache__"))
    for package in listed.split():
        shutil.rmtree(engine / "streamjoin" / package)
    absent = [*left_out("operator"), "pandas", "pyarrow", "numba"]
    program = f"""
import streamjoin, streamjoin_operator
import_all(streamjoin)
import_all(streamjoin_operator)
import pytest
of_decisions = {str(ROOT / "tests" / "test_autoscale.py")!r}
chosen = "(floor or behind or load) and not killed"
raise SystemExit(pytest.main(["-q", "-k", chosen, "-p", "no:cacheprovider", "--noconftest", of_decisions]))
"""
    # Decisions too: what they need is imported when they are made.
    assert " passed" in run_without(absent, program, tmp_path, engine, ROOT / "operator", ROOT / "tests").stdout


def test_the_engine_does_without_what_its_image_leaves_out(tmp_path: Path) -> None:
    draw = ["cli.draw", "cli.picture", "cli.frontier_picture", "cli.simulation_picture"]
    absent = left_out("engine")
    assert {"deltalake", "pyiceberg", "sqlalchemy", "pyarrow._s3fs"} <= set(absent)
    demo = yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text())
    demo["spec"]["joins"][0]["output"]["sink"] = {"delta": {"path": "table"}}
    (tmp_path / "delta.yaml").write_text(yaml.safe_dump(demo))
    program = f"""
import streamjoin
import_all(streamjoin, {[f"streamjoin.{each}" for each in (*draw, *TABLES)]!r})
for table in {TABLES!r}:
    try:
        importlib.import_module("streamjoin." + table)
    except ModuleNotFoundError:
        continue
    print(table, "needs no package that only tables have")
import numpy
from streamjoin.elastic import factors, mapping
matrix = numpy.array([[1.0, 5.0, 0.0], [4.0, 1.0, 0.0]])
old, new = numpy.nonzero(matrix)
print(mapping.assign(matrix), mapping.assign(mapping.Overlap(matrix.shape, old, new, matrix[old, new])))
holders = factors.Holders(2, numpy.arange(3), numpy.arange(2))
three = factors.Holders(3, numpy.arange(4), numpy.arange(3))
print(factors.Factors.of(holders, three, old, new, matrix[old, new]).best(1)[2].tolist())
import os
from streamjoin.serve.traces import traces_of
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://localhost:9"
print(traces_of("one") is not None)
print([name for name in sys.modules if name in ("numba", "llvmlite", "pandas", "grpc", "scipy.linalg", "scipy.special")])
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {absent!r} else find(name, *more)    # as where it is not
from streamjoin.cli import main
for arguments in (["run", {str(ROOT / "examples" / "demo.yaml")!r}, "--picture", "run.png"], ["run", "delta.yaml", "--runner", "inline"]):
    try:
        main(arguments)
    except SystemExit as end:
        print(end.code)
"""
    done = run_without(absent, program, tmp_path, ROOT / "engine")
    assert done.stdout == "(1, 0, None) (1, 0, None)\n[5.0, 4.0]\nTrue\n[]\n2\n2\n", done.stderr
    assert "delta.yaml: spec.joins[0].output.sink.delta: needs the package deltalake, which is not installed; in pods remove" in done.stderr
    assert "'run.png' cannot be drawn without matplotlib, which images leave out; pip install 'streamjoin[engine]'" in done.stderr


def test_the_engine_with_tables_joins_into_them_without_what_its_image_leaves_out(tmp_path: Path) -> None:
    # The library of native functions is made with the image; here Numba compiles them.
    absent = [name for name in left_out("engine-tables") if name not in ("numba", "llvmlite")]
    assert not {"deltalake", "pyiceberg", "sqlalchemy", "pyarrow._s3fs"} & set(absent)
    program = f"""
import runpy
check = {str(ROOT / "docker" / "check_tables.py")!r}
sys.path.insert(0, str(pathlib.Path(check).parent))
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {absent!r} else find(name, *more)
runpy.run_path(check, run_name="__main__")
"""
    done = run_without(absent, program, tmp_path, ROOT / "engine")
    assert done.stdout.endswith("tables have all that they need\n"), done.stdout + done.stderr


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)


def jar(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def put(directory: Path, content: bytes) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    (directory / "blobs" / "sha256" / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


SITE = "opt/streamjoin/lib/python3.11/site-packages"
CONTENT = {
    "var/lib/dpkg/status.d/libc6": b"Package: libc6\nVersion: 2.36-9\nArchitecture: {arch}\nDescription: a\n b\n",
    "usr/share/doc/libc6/copyright": b"Files: *\nLicense: LGPL-2.1+\n\nFiles: b\nLicense: BSD-3-clause\n",
    "var/lib/dpkg/status.d/older": b"Package: older\nVersion: 1:3\nArchitecture: all\n",
    "usr/share/doc/older/copyright": b"It is free; its terms are in `/usr/share/common-licenses/GPL-3'.\n",
    f"{SITE}/numpy-2.4.0.dist-info/METADATA": b"Name: NumPy\nVersion: 2.4.0\nLicense-Expression: BSD-3-Clause\n\ntext",
    f"{SITE}/old_one-1.dist-info/METADATA": b"Name: old_one\nVersion: 1\nClassifier: License :: OSI Approved :: MIT License\n",
    f"{SITE}/plain-1.dist-info/METADATA": "Name: plain\nVersion: 1\nLicense: Libre à tous\n".encode(),
    f"{SITE}/pyspark/jars/both-1.0.jar": jar(
        {
            "META-INF/maven/org.a/both/pom.properties": "groupId=org.a\nartifactId=both\nversion=1.0\n",
            "META-INF/maven/org.b/inside/pom.properties": "groupId=org.b\nartifactId=inside\nversion=7\n",
            "META-INF/MANIFEST.MF": "Bundle-License: https://www.apache.org/licenses/LICE\r\n NSE-2.0\r\n",
        }
    ),
    f"{SITE}/pyspark/jars/plain-2.13-4.3.jar": jar({"META-INF/LICENSE": "  Apache License\n  Version 2.0"}),
}


OF_SPARK = {
    "opt/spark/jars/sql-4.3.jar": jar(
        {
            "META-INF/maven/org.c/sql/pom.properties": "groupId=org.c\nartifactId=sql\nversion=4.3\n",
            "META-INF/MANIFEST.MF": "Bundle-License: Apache-2.0\n",
        }
    )
}
OF_TABLES = {f"{SITE}/deltalake-1.6.6.dist-info/METADATA": b"Name: deltalake\nVersion: 1.6.6\nLicense: Apache-2.0\n"}
SOURCE = Source(ROOT, "0" * 40, 1772366400)


def image_of(directory: Path, name: str, *contents: dict[str, bytes]) -> str:
    """Writes an image of these layers, for two processors, and gives its digest."""
    image = directory / images.DIRECTORY / name
    (image / "blobs" / "sha256").mkdir(parents=True)
    (image / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    manifests = []
    for architecture in debian.ARCHITECTURES:
        layers = [packed({path: file.replace(b"{arch}", architecture.encode()) for path, file in files.items()}) for files in contents]
        diffs = [f"sha256:{hashlib.sha256(gzip.decompress(layer)).hexdigest()}" for layer in layers]
        config = {"architecture": architecture, "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": diffs}}
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **put(image, json.dumps(config).encode())},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **put(image, layer)} for layer in layers],
        }
        manifests.append({"mediaType": manifest["mediaType"], **put(image, json.dumps(manifest).encode())})
    (image / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
    return layout.join(image, "0.1.0")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release whose images have little in them."""
    directory = tmp_path / "release"
    larger = {images.TABLES: (CONTENT, OF_TABLES), images.SPARK: (CONTENT, OF_TABLES, OF_SPARK)}
    contents = {images.ENGINE: (CONTENT,), **larger, images.OPERATOR: (CONTENT,)}
    digests = {f"streamjoin-{name}": image_of(directory, f"streamjoin-{name}", *layers) for name, layers in contents.items()}
    build_chart(SOURCE, directory)
    sums.describe(directory, SOURCE, images=digests)
    sums.write(directory)
    return directory


def test_each_machine_takes_its_own_image_of_one_name(release: Path) -> None:
    image = release / images.DIRECTORY / "streamjoin-engine"
    assert [each.architecture for each in layout.images(image)] == ["amd64", "arm64"]
    assert layout.problems(image) == []
    [entry] = json.loads((image / "index.json").read_text())["manifests"]
    inner = json.loads(layout.blob(image, entry["digest"]).read_bytes())
    assert [each["platform"] for each in inner["manifests"]] == [{"architecture": each, "os": "linux"} for each in debian.ARCHITECTURES]
    first = layout.images(image)[0]
    assert first.unpacked_bytes() == sum(len(content.replace(b"{arch}", b"amd64")) for content in CONTENT.values())
    assert dict(first.largest(depth=1)).keys() == {"var", "usr", "opt"}
    blob = layout.blob(image, first.manifest["layers"][0]["digest"])
    blob.write_bytes(blob.read_bytes() + b"\0")
    assert layout.problems(image) == [f"{blob}: is not what its name says"]
    blob.unlink()
    assert layout.problems(image) == [f"{image}: sha256:{blob.name} is missing"]


def test_what_an_image_is_made_of_and_under_which_licences(release: Path) -> None:
    first, second = layout.images(release / images.DIRECTORY / "streamjoin-engine")
    found = materials.of_image(first)
    assert materials.licence_list(found).splitlines()[1:] == [
        "deb\tdebian:libc6\t2.36-9\tBSD-3-clause; LGPL-2.1+",
        "deb\tdebian:older\t1:3\tGPL-3",
        "maven\torg.a:both\t1.0\thttps://www.apache.org/licenses/LICENSE-2.0",
        "maven\torg.b:inside\t7\tunknown",
        "maven\tplain\t2.13-4.3\tApache-2.0",
        "pypi\tnumpy\t2.4.0\tBSD-3-Clause",
        "pypi\told-one\t1\tMIT License",
        "pypi\tplain\t1\tLibre à tous",
    ]
    text = materials.bill("streamjoin-engine", "0.1.0", first, found, 1772366400)
    assert text == materials.bill("streamjoin-engine", "0.1.0", first, found, 1772366400)
    document = json.loads(text)
    assert document["metadata"]["timestamp"].startswith("2026-03-01T12:00:00")
    assert document["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": first.digest.removeprefix("sha256:")}]
    assert {each["purl"] for each in document["components"]} >= {
        "pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=debian-12",
        "pkg:pypi/numpy@2.4.0",
        "pkg:maven/org.b/inside@7",
    }
    assert document["serialNumber"] != json.loads(materials.bill("streamjoin-engine", "0.1.0", second, found, 0))["serialNumber"]


def test_each_larger_image_has_the_layers_of_another_and_one_more(release: Path, tmp_path: Path) -> None:
    images.check_layers(release / images.DIRECTORY)
    found = [layout.images(release / images.DIRECTORY / name)[0] for name in LAYERED]
    listed = [materials.licence_list(materials.of_image(image)).splitlines() for image in found]
    assert set(listed[1]) - set(listed[0]) == {"pypi\tdeltalake\t1.6.6\tApache-2.0"}
    assert set(listed[2]) - set(listed[1]) == {"maven\torg.c:sql\t4.3\tApache-2.0"}
    assert set(listed[0]) < set(listed[1]) < set(listed[2]), "each is described as a whole"
    apart = tmp_path / "apart"
    image_of(apart, LAYERED[0], CONTENT, {"more": b""})
    image_of(apart, LAYERED[1], CONTENT, OF_TABLES)
    image_of(apart, LAYERED[2], CONTENT, OF_SPARK)
    with pytest.raises(ReleaseError, match=r"engine-tables amd64: does not begin with the layers of streamjoin-engine; build both"):
        images.check_layers(apart / images.DIRECTORY)
    with pytest.raises(ReleaseError, match=r"engine-spark amd64: does not begin with the layers of streamjoin-engine-tables; build both"):
        images.check_layers(apart / images.DIRECTORY, (images.TABLES, images.SPARK))


def test_a_large_image_is_no_release(release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert images.LIMITS_MB == {"engine": 700, "operator": 120}
    monkeypatch.setattr(images, "build", lambda source, out, names, architectures: dict(sums.description(release)["images"]))
    monkeypatch.setattr(images, "builder", lambda: "none")
    monkeypatch.setattr(packages, "unpacked", lambda commit: contextlib.nullcontext(SOURCE))
    assert tool.main(["images", "--out", str(release)]) == 0
    assert "streamjoin-engine-tables arm64 sha256:" in capsys.readouterr().out
    monkeypatch.setitem(images.LIMITS_MB, "engine", 0)
    assert tool.main(["images", "--out", str(release)]) == 1
    said = capsys.readouterr()
    assert "streamjoin-engine amd64: has 0 MB unpacked, and 0 are allowed; leave something out (docker/unused-python.txt)" in said.err
    assert "streamjoin-operator amd64 sha256:" in said.out, "all is described first"


def test_a_release_that_lacks_an_image_is_not_published(release: Path) -> None:
    digests = sums.description(release)["images"]
    sums.describe(release, SOURCE, images={name: digest for name, digest in digests.items() if name != "streamjoin-engine-tables"})
    sums.write(release)
    with pytest.raises(ReleaseError, match=r"has no image streamjoin-engine-tables; run tools/release\.py images, and then sums"):
        publishing.publish(release, "localhost:1/team")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry's address. It forgets all when it ends."""
    crane = kubernetes_programs.find("crane")
    if crane is None:
        pytest.skip(lacks("crane", "make kubernetes"))
    log = tmp_path / "registry.log"
    with log.open("w") as file:
        process = subprocess.Popen([crane, "registry", "serve", "--address=127.0.0.1:0"], stdout=file, stderr=file)
    try:
        port = wait_for("a registry", lambda: re.findall(r"serving on port (\d+)", log.read_text()), told=log.read_text)[0]
        yield f"localhost:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


@pytest.mark.apiserver
def test_a_registry_has_the_release_by_its_digests(release: Path, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed: list[str] = []
    monkeypatch.setattr(publishing, "sign", lambda reference, key=None: signed.append(reference))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    published = publishing.publish(release, f"{registry}/team")
    expected = {f"{registry}/team/{name}": digest for name, digest in sums.description(release)["images"].items()}
    assert len(expected) == len(images.IMAGES)
    chart = f"{registry}/team/charts/streamjoin-operator"
    assert published == expected | {chart: published[chart]}
    assert signed == [f"{reference}@{digest}" for reference, digest in published.items()]
    crane = str(kubernetes_programs.find("crane"))
    for architecture in debian.ARCHITECTURES:
        pull = [crane, "export", "--insecure", f"--platform=linux/{architecture}", f"{registry}/team/streamjoin-engine:0.1.0", "-"]
        content = subprocess.run(pull, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            status = archive.extractfile("var/lib/dpkg/status.d/libc6")
            assert status is not None
            assert f"Architecture: {architecture}" in status.read().decode()
    (release / "more").write_text("")
    with pytest.raises(ReleaseError, match="more: is not listed"):
        publishing.publish(release, f"{registry}/team")
