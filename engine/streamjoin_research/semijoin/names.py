"""The six one-way algorithms of Tran and Lee (2010, section 3.1) by name, and what distinguishes them.

A one-way join joins each tuple of the *source* stream with the window of the *destination* stream. Its source node and its destination
node are two sites. Either may be the one where results arise, and each of three methods serves both.
"""

from __future__ import annotations

from enum import StrEnum


class Algorithm(StrEnum):
    """SP ships full tuples, SM keys first, with one semijoin or two. S: results arise at the source's site; D: at the destination's."""

    SP_S = "SP-S"
    SP_D = "SP-D"
    SM_S1 = "SM-S1"
    SM_S2 = "SM-S2"
    SM_D1 = "SM-D1"
    SM_D2 = "SM-D2"

    @property
    def at_source(self) -> bool:
        """Results arise at the source's site."""
        return self in {Algorithm.SP_S, Algorithm.SM_S1, Algorithm.SM_S2}

    @property
    def probes_a_copy(self) -> bool:
        """The source probes a copy of the window, or of its keys, and waits until what was shipped for it has come (Constraint 1)."""
        return self in {Algorithm.SP_S, Algorithm.SM_S2, Algorithm.SM_D1}

    @property
    def hops(self) -> int:
        """How many shipments follow one another from a batch of the source to the batch's last result, after the wait for a copy."""
        return {
            Algorithm.SP_S: 0,
            Algorithm.SP_D: 1,
            Algorithm.SM_S1: 2,
            Algorithm.SM_S2: 2,
            Algorithm.SM_D1: 1,
            Algorithm.SM_D2: 3,
        }[self]
