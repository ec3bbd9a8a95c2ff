"""Runners, which execute an epoch's tasks: ``inline`` in this process, ``spark`` on executors. ``java`` finds a Java runtime; ``classes``
and ``archive`` make it start faster.
"""
