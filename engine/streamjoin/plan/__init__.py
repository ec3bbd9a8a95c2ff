"""A join's plan as data: what is held, along which paths new tuples find their results, and what stands after the pairs.

``join_plan`` has its parts, with ``check``, JSON and EXPLAIN; ``of_job`` makes it of a job and its layout.
"""
