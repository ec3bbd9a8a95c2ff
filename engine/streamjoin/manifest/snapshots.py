"""How a join's results are kept as snapshots: the fields of ``output.snapshots``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streamjoin.manifest.field_types import MemoryAmount, PositiveSpan, Sql
from streamjoin.manifest.part import Part
from streamjoin.manifest.quantity import Memory


class Snapshots(Part):
    """Sets of results that appear together, each with an identifier, beside what the sink writes. They end by every, by size, or by
    both."""

    every: PositiveSpan | None = None
    """How long after its first results a snapshot ends, with the next commit."""
    size: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    """How many results a snapshot ends at, with the epoch that brings them."""
    max_delay: Annotated[int, Field(ge=0, le=1000)] = 0
    """How often a snapshot that has fewer than half of size results after every goes on for as long again."""
    key: Sql | None = None
    """By what results are sorted and found (SQL over the output's columns). By default the first column."""
    keep: PositiveSpan | None = None
    """How long snapshots are kept. By default for good."""
    buffer: MemoryAmount = Memory.parse("1Gi")
    """How large the results that wait for a store may be together, as they are in memory; then the join waits, too."""
