"""What runs in workers: ``route`` and ``join`` are the two tasks of an epoch.

``route`` reads a split and cuts its tuples by areas. ``join`` opens what a task holds (``opening``), walks the paths of each new tuple
(``delta_join``, ``stages``, ``lookup``; of a chain ``handshake``), says which tuples have matched (``matches``), and stores runs and
results (``tiering``, ``writes``, ``joined``). ``compiled`` and ``paths`` make the operators of a process from an epoch's configuration.
"""
