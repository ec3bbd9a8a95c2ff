"""Elasticity (ESJ, and A-DSP's section 4): pure functions from what is known to what should be. No clock, no I/O.

=================  =====================================================================================================
``deployment``     how many workers to start with
``shedding``       what to shed when they are full
``completeness``   which share of the results shedding and lateness leave
``plan``           a scheme, and who goes on as which of its tasks
``mapping``        who goes on as what, so that least moves (Alg. 4, and exact)
``alignment``      where a new scheme cuts, so that less need move (Fig. 8)
``migration``      who sends what to whom, and who deletes what (Alg. 5)
``planner``        all of these in one call
``core``           when to have more, fewer, or another plan: the ``rules``, from what ``state`` remembers of each ``sample``
``esj``            the same as the paper has it in print
``outlook``        what the window is going to hold, for the policy ``predictive``; ``spells``: for how long idle workers stayed idle;
                   ``season``: what the rates do by the clock
``forecast``       the port by which the core asks what a plan would be like; ``arbitration``: what that costs
``ledger``         the decisions, and what came true of them; ``explain`` tells them to people
=================  =====================================================================================================
"""
