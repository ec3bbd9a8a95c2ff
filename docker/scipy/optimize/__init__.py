"""What the engine's image has of scipy.optimize."""

from ._lsap import linear_sum_assignment

__all__ = ["linear_sum_assignment"]
