"""Joins from Python: the objects of ``import streamjoin``, on which the command line is built, too.

``join`` is the main module: a manifest as an object that you validate, plan, run and query. ``planning`` makes plans, ``running`` runs
epochs as an iterator, ``results`` reads a join's results. Importing this package loads none of them (``streamjoin.__getattr__`` does when
a name is used), and ``join`` loads no Arrow, DuckDB or Spark before they are needed.
"""
