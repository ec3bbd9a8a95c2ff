"""A join's results, and what it holds, as tables and streams of a Spark session of your own (Spark's Python data source API).

>>> spark.dataSource.register(StreamJoinSource)                                                     # doctest: +SKIP
>>> spark.read.format("streamjoin").option("manifest", "near.yaml").option("join", "near").load()    # doctest: +SKIP

The session needs this package, with its extra ``engine``, in its Python, on the driver and on executors, and all of them must reach the
join's storage; the join's own driver is not asked, and need not run. ``docs/python.md`` has the options.
"""

from streamjoin.spark.joins import join
from streamjoin.spark.source import StreamJoinSource

__all__ = ["StreamJoinSource", "join"]
