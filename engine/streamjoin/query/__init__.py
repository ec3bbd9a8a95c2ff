"""Asking a join what it holds: SQL over the tuples of one committed epoch, read from storage without the driver.

``statement`` reads the SQL, ``commit`` finds the epoch, ``relation`` and ``held`` give a name in the SQL its rows, ``bounds`` say which
blocks these can be in, and ``execution`` has DuckDB answer. ``rendering`` writes answers down; ``pool`` has them made by processes of
their own, each a ``worker``.

Always holds: an answer is of one commit, and whole or said not to be; nothing here writes into the join's storage.
"""
