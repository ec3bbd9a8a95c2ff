"""Elasticity (ESJ): how many workers to start with, what to shed when they are full, and when to have more, fewer, or another plan.

All pure: no clock, no I/O. ``core`` decides, by the ``rules``, from what ``state`` remembers of each ``sample``; ``forecast`` is the port
by which it asks what a plan would be like, ``arbitration`` what that costs; ``ledger`` keeps the decisions, and ``explain`` tells them.
``simulation`` runs the same core under made-up or recorded ``traffic``, beside its ``rivals``.
"""
