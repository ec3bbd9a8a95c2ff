"""A join's plan as data: what is held, along which paths new tuples find their results, and what stands after the pairs.

``join_plan`` has its parts, with ``check`` and JSON; ``of_job`` makes it; ``explaining`` is EXPLAIN. Tasks make their
operators of its ``paths``.
"""
