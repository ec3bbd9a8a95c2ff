"""The results of a join of two streaming DataFrames, as a stream of Spark's: the data source behind what ``join`` returns.

Always holds: while a query reads, it has a connection to the session that began the join, which keeps the parts of the join running for as
long as there is one (``spark.running``). What goes wrong there fails the query: at its next trigger it asks, and raises what it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Client
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from streamjoin.results.reader import SNAPSHOT
from streamjoin.spark.files import ResultFiles
from streamjoin.spark.source import Options, SnapshotsReader, StreamJoinSource

FORMAT = "streamjoin_pairs"
OFFICE = "office"
"""The option that says where the session listens."""
MORE, ALL = "more", "all"
"""What a query asks for: whatever comes; or all that is there now. The answer is the last snapshot."""


class PairsError(RuntimeError):
    """The join whose results a query reads has failed, or is not running. The text says why, and what to do."""


class PairsSource(StreamJoinSource):
    """Format ``streamjoin_pairs``; made by ``join`` alone."""

    def __init__(self, options: dict[str, str]) -> None:
        self._office = next(value for name, value in options.items() if name.casefold() == OFFICE)
        super().__init__({name: value for name, value in options.items() if name.casefold() != OFFICE})

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        assert self._files is not None, "it reads a join"
        rows = to_arrow_schema(schema, timezone="UTC")
        columns = [field for field in self._files.schema if field.name in (SNAPSHOT, *rows.names)]
        files = replace(self._files, schema=pa.schema(columns))
        return PairsReader(files, self._options, rows, self._office)


class PairsReader(SnapshotsReader):
    """See the module. In tasks it has no connection."""

    def __init__(self, files: ResultFiles, options: Options, schema: pa.Schema, office: str) -> None:
        super().__init__(files, options, schema)
        self._office = office
        self._connection: Any = None

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_connection": None}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's
        if self._target is None and self._ask(MORE) == start["snapshot"]:
            return start
        return super().latestOffset(start, limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Returns once all that is there now is joined and stored."""
        self._target = self._ask(ALL)

    def _ask(self, what: str) -> Any:
        remedy = "call streamjoin.spark.join again, in the session that is to run it"
        try:
            if self._connection is None:
                self._connection = Client(self._office, "AF_UNIX")
            self._connection.send(what)
            is_good, answer = self._connection.recv()
        except (OSError, EOFError) as error:
            raise PairsError(f"the session that began the join does not answer ({error or 'it has ended'}); {remedy}") from error
        if not is_good:
            raise PairsError(answer)
        return answer
