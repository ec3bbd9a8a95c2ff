"""The five papers' figures, tables, theorems and claims beside what this code gives for the same parameters.

``streamjoin bench paper`` prints the comparison, and ``docs/papers.md`` is its result. Papers have numbers:

=====  ==================================================================================================
000    ESJ, "Saving Communication Cost": MP-2PF, Theorem 1
001    ESJ, "Adapting to the varying workload": thresholds, the first number of workers, shedding
002    Fang et al., A-DSP: "Adaptive Dimensional Space Processing"
003    ESJ, "ESJ Operator": architecture, join processing, message passing
004    Tran and Lee, "Distributed stream join query processing with semijoins"
=====  ==================================================================================================

A :class:`~streamjoin_research.papers.rows.Row` is one such figure or claim, and says itself by which rule agreement is decided. Always
holds: a rule can fail, and rows of kinds C and S are deterministic.
"""
