"""What the engine's image has of scipy.sparse.csgraph."""

from ._matching import maximum_bipartite_matching, min_weight_full_bipartite_matching

__all__ = ["maximum_bipartite_matching", "min_weight_full_bipartite_matching"]
