"""Joins from Python: what ``import streamjoin`` gives, and what the command line is made of.

``join`` is the face: a manifest as an object that is validated, planned, run and asked. ``planning`` makes plans, ``running`` runs epochs
as an iterator, ``results`` reads what was found. Importing this package loads none of them (``streamjoin.__getattr__`` does when a name
is used), and ``join`` loads no Arrow, DuckDB or Spark before they are needed.
"""
