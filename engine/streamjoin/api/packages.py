"""Whether the packages are installed that fields of a manifest need: an engine may do without them, as the image streamjoin-engine does
without those of tables, and a laptop's without all of them."""

from __future__ import annotations

import importlib.util

from streamjoin.manifest.model import Manifest
from streamjoin.manifest.packages import missing_package, needed_packages
from streamjoin.manifest.problem import ManifestError, Problem


def missing_packages(manifest: Manifest) -> list[Problem]:
    """A problem for each field whose package is not installed here. Nothing is imported."""
    needed = needed_packages(manifest)
    absent = {package for package in set(needed.values()) if importlib.util.find_spec(package.module) is None}
    return [missing_package(field, package) for field, package in needed.items() if package in absent]


def require_packages(manifest: Manifest, within: str = "spec") -> None:
    """Raises ManifestError with a problem for each field, of those ``within`` one, whose package is not installed here."""
    if problems := [each for each in missing_packages(manifest) if f"{each.field}.".startswith(f"{within}.")]:
        raise ManifestError(tuple(problems))
