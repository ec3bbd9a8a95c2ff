"""What an image is made of: Debian's packages, Python's, and the Java archives in them, as CycloneDX 1.6, and their licences.

Found in the layers: ``var/lib/dpkg/status.d``, ``*.dist-info/METADATA`` and the ``pom.properties`` in each jar. The same image
gives the same bytes.
"""

from __future__ import annotations

import datetime
import email.parser
import io
import re
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from release_steps.failure import ReleaseError
from release_steps.layout import Image

UNKNOWN = "unknown"
_NAMESPACE = uuid.UUID("6f2f5a3e-7d0c-4f0e-9c8e-0d6f1f4a2b11")
_JAR = re.compile(r"(?P<name>.+?)-(?P<version>\d[\w.+-]*)\.jar$")


@dataclass(order=True)
class Material:
    """A package in an image."""

    kind: str
    """deb, pypi or maven, as in package URLs."""
    name: str
    version: str
    group: str = ""
    """Of a Java archive."""
    licences: list[str] = field(default_factory=list)
    """As the package says it itself: SPDX expressions where it has them."""
    qualifiers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> PackageURL:
        return PackageURL(self.kind, self.group or None, self.name, self.version, self.qualifiers or None)


def of_image(image: Image) -> list[Material]:
    """Sorted, each once."""
    found: dict[str, Material] = {}
    copyrights: dict[str, list[str]] = {}
    shared: dict[str, str] = {}  # packages of one source may have one directory of documentation
    for entry, content in image.entries():
        name = entry.name.removeprefix("./")
        if content is None:
            if entry.issym() and (directory := re.fullmatch(r"usr/share/doc/([^/]+)", name)):
                shared[directory[1]] = entry.linkname.rpartition("/")[2]
            continue
        if name.startswith("var/lib/dpkg/status.d/"):
            each = _of_debian(content)
            found[each.url.to_string()] = each
        elif name.endswith(".dist-info/METADATA"):
            each = _of_python(content)
            found[each.url.to_string()] = each
        elif name.endswith(".jar"):
            for each in _of_jar(Path(name).name, content):
                found.setdefault(each.url.to_string(), each)
        elif match := re.fullmatch(r"usr/share/doc/([^/]+)/copyright", name):
            copyrights[match[1]] = _licences_of_debian(content.read().decode(errors="replace"))
    for each in found.values():
        if each.kind == "deb":
            each.licences = copyrights.get(shared.get(each.name, each.name), [])
    if not any(each.kind == "deb" for each in found.values()):
        raise ReleaseError(f"{image.layout}: {image.digest}: has no packages in var/lib/dpkg/status.d; build it by tools/release.py images")
    return sorted(found.values())


def bill(name: str, version: str, image: Image, materials: list[Material], epoch: int) -> str:
    """A CycloneDX document, checked against its schema. Raises ReleaseError."""
    licences = LicenseFactory()
    digest = HashType(alg=HashAlgorithm.SHA_256, content=image.digest.removeprefix("sha256:"))
    url = PackageURL("oci", None, name, image.digest, {"arch": image.architecture, "tag": version})
    document = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, image.digest),
        components=[
            Component(
                name=each.name,
                group=each.group or None,
                version=each.version,
                type=ComponentType.LIBRARY,
                purl=each.url,
                bom_ref=each.url.to_string(),
                licenses=[licences.make_with_name(text) for text in each.licences],
            )
            for each in materials
        ],
    )
    document.metadata.timestamp = datetime.datetime.fromtimestamp(epoch, datetime.UTC)
    document.metadata.component = Component(
        name=name, version=version, type=ComponentType.CONTAINER, purl=url, bom_ref=url.to_string(), hashes=[digest]
    )
    document.register_dependency(document.metadata.component, document.components)
    document.metadata.properties.add(Property(name="streamjoin:architecture", value=image.architecture))
    text = JsonV1Dot6(document).output_as_string(indent=1)
    if (problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise ReleaseError(f"{name}: its bill of materials does not fit CycloneDX's schema: {problem}")
    return text + "\n"


def licence_list(materials: list[Material]) -> str:
    """A line for each package: kind, name, version, licences; separated by tabs."""
    lines = ["kind\tname\tversion\tlicences"]
    for each in materials:
        name = f"{each.group}:{each.name}" if each.group else each.name
        lines.append(f"{each.kind}\t{name}\t{each.version}\t{'; '.join(each.licences) or UNKNOWN}")
    return "\n".join(lines) + "\n"


def _of_debian(content: IO[bytes]) -> Material:
    fields = email.parser.Parser().parsestr(content.read().decode(errors="replace"), headersonly=True)
    qualifiers = {"arch": fields["Architecture"], "distro": "debian-12"}
    return Material("deb", fields["Package"], fields["Version"], "debian", qualifiers=qualifiers)


def _licences_of_debian(copyright_file: str) -> list[str]:
    """As the machine-readable form says; of older forms, the licences of Debian's own collection that they refer to."""
    said = re.findall(r"^License: *(\S.*?) *$", copyright_file, re.MULTILINE)
    return sorted(set(said or re.findall(r"/usr/share/common-licenses/([A-Za-z]+(?:-[0-9.]*[0-9])?)", copyright_file)))


def _of_python(content: IO[bytes]) -> Material:
    fields = email.parser.Parser().parsestr(content.read().decode(errors="replace"), headersonly=True)
    said = fields.get("License-Expression")
    classified = [each.rsplit(" :: ", 1)[-1] for each in fields.get_all("Classifier", []) if each.startswith("License :: ")]
    free = (fields.get("License") or "").strip().splitlines()
    # Some put all of their licence's text into this field.
    licences = [said] if said else classified or ([free[0]] if len(free) == 1 else [])
    return Material("pypi", re.sub(r"[-_.]+", "-", fields["Name"]).lower(), fields["Version"], licences=sorted(map(str, licences)))


def _of_jar(file: str, content: IO[bytes]) -> Iterator[Material]:
    """The archive itself, and those that were put into it with their names."""
    with zipfile.ZipFile(io.BytesIO(content.read())) as jar:
        names = jar.namelist()
        licences = _licences_of_jar(jar, names)
        known = [dict(_properties(jar.read(name).decode(errors="replace"))) for name in names if name.endswith("/pom.properties")]
    whole = [each for each in known if all(each.get(key) for key in ("groupId", "artifactId", "version"))]
    for each in whole:
        is_it = file.startswith(each["artifactId"])
        yield Material("maven", each["artifactId"], each["version"], each["groupId"], licences if is_it else [])
    if not any(file.startswith(each["artifactId"]) for each in whole) and (match := _JAR.match(file)):
        yield Material("maven", match["name"], match["version"], "", licences)


def _licences_of_jar(jar: zipfile.ZipFile, names: list[str]) -> list[str]:
    if "META-INF/MANIFEST.MF" in names:
        manifest = jar.read("META-INF/MANIFEST.MF").decode(errors="replace").replace("\r\n ", "").replace("\n ", "")
        if match := re.search(r"^Bundle-License: *(\S.*?)\s*$", manifest, re.MULTILINE):
            return [match[1]]
    for name in names:
        if name.endswith("/pom.xml") and (said := re.search(rb"<licenses>.*?<name>\s*(.*?)\s*</name>", jar.read(name), re.DOTALL)):
            return [said[1].decode(errors="replace")]
    for name in names:
        if re.fullmatch(r"META-INF/LICEN[CS]E(\.txt|\.md)?", name):
            text = jar.read(name)[:2000].decode(errors="replace")
            if "Apache License" in text:
                return ["Apache-2.0"]
            return [next((line.strip() for line in text.splitlines() if line.strip()), UNKNOWN)]
    return []


def _properties(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            yield name.strip(), value.strip()
