"""Where the Kubernetes operator will live: it will watch StreamJoin resources and keep an engine running for each.

Nothing of it is written yet.
"""
