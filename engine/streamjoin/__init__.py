"""StreamJoin: elastic joins of unbounded streams on any predicate.

Layers, each importing only those above it (``tests/test_layers.py`` enforces it):

1. domain: ``schema``, ``sql``, ``window``, ``predicate``, ``scheme``, ``elastic``, ``manifest`` - no Spark, no I/O, no clock;
2. ``kernel`` and ``state``: vectorised joins over sorted runs; tuple blocks, the run store, the commit log;
3. ``io``: sources and sinks; ``epoch``: the loop, its two task functions and the runners that carry them out;
4. ``serve``: metrics and a health check over HTTP;
5. ``cli``.
"""

__version__ = "0.1.0"
