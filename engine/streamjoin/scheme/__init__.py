"""Schemes: tilings of the tuple matrix by areas (A-DSP, sections 2 and 3).

=================  =====================================================================================================
``tiling``         the abstraction: areas, and ``Scheme.check``, which proves Def. 3
``statistics``     volumes and histograms of keys, for both sides
``matrix``         the ordered tuple matrix over the histograms' buckets, and its band of results
``varietal``       divides one coverage area into tasks (Alg. 1)
``dichotomy``      divides the matrix into coverage areas (Alg. 2)
``cutting``        turns coverage areas over a matrix into a scheme
``dynamic``        one grid of a power of two tasks, ``readj`` keys that move from full tasks, ``biclique`` workers that hold one side
``models``         all models by name: a scheme for a capacity, or for a number of tasks
``routing``        the areas to which a tuple is sent (Alg. 3)
``region``         the tuples that workers hold, as range arithmetic
=================  =====================================================================================================
"""
