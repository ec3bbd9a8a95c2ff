"""Elasticity (ESJ, and A-DSP's section 4): pure functions from what is known to what shoul
``core``           when to have more, fewer, or another plan: the ``rules``, from what ``state`` remembers of each ``sample``
``forecast``       the port by which the core asks what a plan would be like; ``arbitration``: what that costs
``ledger``         the decisions, and what came true of them; ``explain`` tells them to people
``simulation``     the same core under made-up or recorded ``traffic``, beside its ``rivals``
=================  =====================================================================================================
"""
