"""Queries of a join: SQL over the held tuples of one committed epoch, read from storage without the driver.

``statement`` parses the SQL, ``commit`` finds the epoch, ``relation`` and ``held`` supply the rows of a table in the SQL, ``bounds`` limits
the blocks to read, and ``execution`` runs DuckDB. ``rendering`` formats answers; ``pool`` runs queries in separate processes, each a
``worker``.

Always holds: an answer belongs to one commit, and is complete or says that it is not; nothing here writes into the join's storage.
"""
