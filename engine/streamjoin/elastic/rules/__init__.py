"""The rules: from what the core remembers to a decision. ESJ's thresholds ("Adapting to the varying workload"), and what ESJ leaves open.

=================  =====================================================================================================
``decide``         asks all rules, chooses among their verdicts, and looks whether this is a time to begin a change
``review``         what a rule looks at, and what rules share: bills, refusals
``allocate``       more workers for a full one, or a better plan for as many: when, how many, and why not yet
``keep_up``        more workers where epochs take too long; the fewest that keep up
``replan``         another plan for as many workers
``deallocate``     fewer workers: when, how many, and why not; ``give_back``: the same by the policy ``predictive``
``vertical``       more memory instead of more workers
``shed``           what shedding does
``lookahead``      how full the fullest worker is going to be
``sentences``      parts of the sentences
=================  =====================================================================================================

Which tau counts::

    allocate    the fullest worker's, as it would be if it shed nothing (shedding holds tau between tau2 and tau3, so that ESJ's rule to
                the letter would shed for ever). Where a re-plan at the same size would bring it below tau2, and costs less, that is done
                instead: a full worker at a low mean is an imbalance
    deallocate  the mean: it says how much capacity lies idle; the fullest worker's predicted tau must still be about tau1
    replan      the fullest worker's against the mean; or the streams' ratio, whichever worker is full
    keepUp      none: epochs that take longer than their interval while what waits grows

How many workers: the fewest whose predicted fullest tau is about tau1, in both directions, which is what keeps a constant load from making
the number swing. Up by the present load; down by the largest of the last ``scaleDownAfter``.

All of that is the policy ``thresholds``. With ``predictive`` ``allocate`` acts when the fullest worker's tau is going to reach tau2, for
what the window will hold at the rates of now (``rate_shifts``) and what that worker's share of it is going to be (``state_forecast``), and
``deallocate`` once idle workers have cost more than a change and the way back, or sooner where they were idle for long before
(``idle_periods``); both aim at ``Settings.level``. The policy ``esj`` is in ``elastic.esj``. The rule ``shed`` changes no plan: it says
what the engine does by the same tau.

With a budget for lost results (``Settings.budget``) a full worker is relieved as soon as the budget would be spent before added workers
were there, whatever its tau; before that only where the bill of some change is lower than that of losing results.

Always holds: what ``core`` promises. Each rule gives one verdict, and a refusal has its reason.
"""
