"""Who carries out an epoch's tasks: ``inline`` in this process, ``spark`` on executors. ``java`` finds a runtime; ``classes`` and
``archive`` have it start sooner.
"""
