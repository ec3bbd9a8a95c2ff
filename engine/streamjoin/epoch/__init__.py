"""The epoch: plan, read and route, shuffle, join, commit, publish. One job and one commit each.

``spec`` is what the driver tells the tasks and what they report; ``route`` and ``join`` are the two task functions; ``driver`` is
the loop that owns the durable state, and ``ports`` what it and the runners (``streamjoin.runner``) know of each other. The loop's parts:
``planning`` (an epoch before its tasks), ``outcome`` (after them), ``replan`` and its ``events`` (plans that are put while it runs),
``deployment`` (the first plan), ``observations`` (what plans are made from), ``janitor`` (what can be removed).
"""
