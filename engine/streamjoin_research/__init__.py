"""Papers made anew: what reproduces their figures and algorithms, and is not needed to run, plan, decide or query a join.

A distribution of its own, ``streamjoin-research``: it imports the product, and the product never imports it (``[tool.importlinter]`` in
pyproject.toml). It is in no image and in no release. ``docs/papers.md`` says how to install it.

=============  ==============================================================================
``papers``     the papers' figures beside ours
``chain``      a model of ESJ's handshake chain, every interleaving of it, and counts
``scheme``     A-DSP's algorithms as printed
``semijoin``   Tran and Lee's joins over slow networks, as a library
``command``    ``streamjoin bench paper``, which this distribution adds to the command line
=============  ==============================================================================
"""
