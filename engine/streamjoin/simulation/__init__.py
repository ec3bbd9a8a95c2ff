"""The decision core under simulated traffic, for ``streamjoin simulate``. No running join knows of it. No clock, no I/O.

=================  =====================================================================================================
``traffic``        rates and skew over time: read from a trace, or generated
``recording``      a trace from observations of a join that runs or ran
``tuning``         the best thresholds for a trace, and the frontier of many settings
``run``            the simulated join, one run of it under a decider, and the table of several
``rivals``         the deciders: the core of ``elastic``, and others for comparison
=================  =====================================================================================================
"""
