"""Snapshots of a join's results: which result is in which, as pure functions of what was committed. ``streamjoin.results`` stores them."""
