"""Epochs: each is planned, read and routed, exchanged among workers, joined, committed and published, with one commit.

``spec`` has the driver's messages to the tasks and their reports; ``route`` and ``join`` are the two task functions; ``driver`` is the loop
that owns the durable state; ``ports`` has the interface between it and the runners (``streamjoin.runner``). The loop's parts: ``planning``
(an epoch before its tasks), ``next_checkpoint`` (after them), ``replan`` and its ``events`` (plans that are put while it runs),
``deployment`` (the first plan), ``observations`` (statistics for plans), ``garbage`` (removal of obsolete files).
"""
