"""Stream joins over slow networks, with semijoins (Tran and Lee, "Distributed stream join query processing with semijoins", 2010). Pure.

=================  =====================================================================================================
``names``          the six one-way algorithms
``statistics``     what the formulas know of streams, networks and machines
``cost``           the formulas of appendix B
``order``          orders of multi-way joins: greedy (Alg. 10), exhaustive, as a tree
``algorithms/``    the six algorithms as state machines
``network``        a network of sites, simulated event by event
=================  =====================================================================================================
"""
