"""Vectorised joins over sorted runs of held tuples: Arrow types, SQL evaluation, key encoding, sorting, merging, probing.

Nothing here knows Spark, storage or the cluster: record batches in, record batches out.

======================================  ================================================================================
``joiner``                              two runs joined: candidates, residual, output
``probe``, ``ranges``, ``expansion``    the pairs that may match: ranges of rows by key, and their expansion to pairs
``run``, ``keys``                       sorted batches of tuples, and their encoded keys
``expression``, ``functions``           SQL expressions over Arrow columns
``casts``, ``exact``, ``truth``         CAST; numbers that do not overflow; conditions in three-valued logic
``arrays``, ``types``                   Arrow arrays as NumPy's; SQL types as Arrow types
``native``                              functions compiled to machine code, and their cache
======================================  ================================================================================
"""
