"""Stream joins over slow networks, with semijoins (Tran and Lee, "Distributed stream join query processing with semijoins", 2010). Pure.

``docs/semijoins.md`` says which module has which of the paper's algorithms, and what was mended in them.

=================  =====================================================================================================
``names``          the six one-way algorithms
``statistics``     what the formulas know of streams, networks and machines
``estimates``      the quantities in the formulas: as the paper has them, and as they are expected
``cost``           the formulas of appendix B
``graph``          streams, edges, and the results of some streams
``order``          orders of multi-way joins: greedy (Alg. 10), exhaustive, as a tree
``algorithms/``    the six algorithms as state machines
``network``        a network of sites, simulated event by event
``multiway``       sequences of one-way joins over that network
=================  =====================================================================================================
"""
