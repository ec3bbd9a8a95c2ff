"""Schemes: how the tuple matrix is cut into areas (A-DSP, sections 2 and 3).

=================  =====================================================================================================
``tiling``         the abstraction: areas, and ``Scheme.check``, which proves Def. 3
``statistics``     what is known of both sides: volumes and histograms of keys
``matrix``         the ordered tuple matrix over the histograms' buckets, and its band of results
``varietal``       one coverage area cut into tasks (Alg. 1)
``dichotomy``      the matrix cut into coverage areas (Alg. 2)
``cutting``        coverage areas over a matrix, written down as a scheme
``dynamic``        one grid of a power of two tasks, ``readj`` keys that move from full tasks, ``biclique`` workers that hold one side
``models``         the plans: for a capacity, or for a number of tasks
``printed``        A-DSP's algorithms as the paper prints them, to compare with
``routing``        which areas a tuple goes to (Alg. 3)
``region``         what workers hold, as range arithmetic
=================  =====================================================================================================
"""
