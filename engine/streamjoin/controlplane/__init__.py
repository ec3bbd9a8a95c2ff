"""What runs in the driver: ``driver`` is the loop that owns the durable state.

Its parts: ``pipeline`` (epochs in flight), ``planning`` (an epoch before its tasks), ``next_checkpoint`` and ``commits`` (after them),
``deployment`` (the first plan), ``replan`` and its ``events`` (plans that are put while it runs), ``observations`` and ``flowing``
(statistics for plans), ``results`` and ``timelines`` (what becomes visible), ``garbage`` and ``compaction``.
"""
