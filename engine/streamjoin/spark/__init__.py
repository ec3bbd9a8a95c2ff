"""Joins of DataFrames, and a join's results, and what it holds, as tables and streams of a Spark session of your own.

>>> pairs = streamjoin.spark.join(trades, quotes, "abs(left.price - right.price) <= 0.05")           # doctest: +SKIP
>>> spark.dataSource.register(streamjoin.spark.StreamJoinSource)                                     # doctest: +SKIP
>>> spark.read.format("streamjoin").option("manifest", "near.yaml").option("join", "near").load()    # doctest: +SKIP

For joins in batch only the program that calls ``join`` needs this package, without extras (``docs/from-pyspark.md``). For the data source
(Spark's Python data source API) the session needs this package, with its extra ``engine``, in its Python, on the driver and on executors,
and all of them must reach the join's storage; the join's own driver is not asked, and need not run. ``docs/python.md`` has the options.
"""

from typing import TYPE_CHECKING

from streamjoin.spark.needs import BATCH, NotAvailable, of_engine, require

require("streamjoin.spark", BATCH)

from streamjoin.spark.explaining import Explanation  # noqa: E402
from streamjoin.spark.joins import explain, join  # noqa: E402

if TYPE_CHECKING:
    from streamjoin.spark.source import StreamJoinSource

__all__ = ["Explanation", "NotAvailable", "StreamJoinSource", "explain", "join"]


def __getattr__(name: str) -> object:
    """The data source is loaded when it is first used: joins in batch need neither a Spark that has such sources nor the engine."""
    if name != "StreamJoinSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return of_engine("source", f"{__name__}.{name}").StreamJoinSource
