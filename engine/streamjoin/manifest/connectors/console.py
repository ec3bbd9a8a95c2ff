"""Standard output."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streamjoin.manifest.connector import SinkConnector


class ConsoleSink(SinkConnector):
    """Results on standard output, for trying things out."""

    limit: Annotated[int, Field(ge=0, le=10_000)] = 20
    """How many rows of an epoch are shown. The others are only counted."""

    opener = "streamjoin.io.console:open_sink"
    is_exactly_once = False
    is_shown = True

    @property
    def identity(self) -> str:
        return "standard output"
