"""Micro-batches that a query of Spark's stages for a join."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streamjoin.manifest.connector import SourceConnector
from streamjoin.manifest.field_types import Location


class StagedSource(SourceConnector):
    """The micro-batches of one streaming DataFrame, as streamjoin.spark.join stages them. They are removed once they are joined."""

    path: Location
    """The directory, as a local path or a URL (file, s3, gs, abfss, az). One query of Spark's stages there, and one join reads it."""
    max_files_per_epoch: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """How many files one epoch may take from."""

    opener = "streamjoin.io.staged_source:open_source"
    fixed = ("path",)
    is_consumed = True

    @property
    def identity(self) -> str:
        return f"micro-batches staged in {self.path}"
