"""The manifest: what a user writes to describe a join, checked and typed."""

from streamjoin.manifest.model import Manifest
from streamjoin.manifest.validate import Document, ManifestError, Problem, check, load, parse

__all__ = ["Document", "Manifest", "ManifestError", "Problem", "check", "load", "parse"]
