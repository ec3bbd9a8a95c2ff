"""Snapshots of a join's results: pure functions from commits to the results of each snapshot. ``streamjoin.results`` stores them."""
