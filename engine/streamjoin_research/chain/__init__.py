"""A model of ESJ's handshake chain: the engine's own workers (:mod:`streamjoin.chain`) with channels between them. Pure.

Tests of the engine's worker take it, too. ``docs/chain.md`` explains the protocol and has what was measured.

==================  ====================================================================================================
``stores``          a store of simple tuples
``network``         workers with channels between them, and workers that come and go; any interleaving
``interleavings``   every interleaving
``measure``         a chain in full swing, counted
==================  ====================================================================================================
"""
