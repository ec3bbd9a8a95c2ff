"""Elasticity (ESJ, and A-DSP's section 4): pure functions from measurements to decisions and plans. No clock, no I/O.

=================  =====================================================================================================
``deployment``     the first number of workers
``shedding``       the share of tuples that a full worker drops
``completeness``   the share of the results that is found despite shedding and lateness; ``pairs``: the pairs that it counts
``plan``           a scheme, and a map from workers to its tasks
``mapping``        the map from workers to tasks that moves the fewest tuples (Alg. 4, and exact)
``alignment``      the boundaries of a new scheme, so that fewer tuples move (Fig. 8)
``migration``      which tuples move between workers, and which are deleted (Alg. 5)
``planner``        all of these in one call
``core``           when to add or remove workers or make a new plan: the ``rules``, over the ``state`` of past ``sample`` objects
``esj``            the same, exactly as in the paper
``state_forecast`` the future contents of the window, for the policy ``predictive``; ``idle_periods``: how long idle workers stayed
                   idle; ``seasonality``: daily and weekly patterns of the rates
``forecast``       the port through which the core asks for the properties of a plan; ``arbitration``: its cost
``autoscaler``     the loop around the core, wherever it runs; ``ports``: what it is told, and has done by others
``ledger``         the decisions and their outcomes; ``explain`` puts them into sentences
=================  =====================================================================================================
"""
