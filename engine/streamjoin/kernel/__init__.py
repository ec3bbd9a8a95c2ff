"""Vectorised joins over sorted runs of held tuples: Arrow types, SQL evaluation, key encoding, sorting, merging, probing.

Nothing here knows Spark, storage or the cluster: record batches in, record batches out.
"""
