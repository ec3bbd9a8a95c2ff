"""ESJ's handshake chain: workers in a row, tuples that move from one to the next, and MP-2PF, the protocol between them. Pure.

``docs/chain.md`` explains it, the corrections to the papers' description, and the measurements. Papers: ESJ's "Optimized Message
Passing" and "Message passing", after Teubner and Mueller, "How soccer players would do stream joins" (SIGMOD 2011).

==================  ====================================================================================================
``messages``        what workers tell each other
``stores``          the port to tuples, which workers do not look into
``worker``          a worker as a state machine
``quiescence``      when a chain is at rest
``blocksize``       how many tuples to a block (Theorem 1), and what the papers weigh
==================  ====================================================================================================
"""
