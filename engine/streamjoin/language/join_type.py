"""Join types: which pairs and which single tuples a join gives. SQL's, and its semantics of ``ON`` and ``WHERE``.

A tuple *matches* when some tuple of the other stream, within the window, satisfies the condition with it. Tuples of a *tracked* side have
to be known to have matched or not: for semi, when they first do; for the others, when nothing can match them any more.
"""

from __future__ import annotations

from enum import StrEnum

from streamjoin.language.sides import LEFT, RIGHT


class JoinType(StrEnum):
    INNER = "inner"
    LEFT = "left"
    """Every pair, and every left tuple that matches nothing, with nulls for the right one."""
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    """Every left tuple that matches, once."""
    ANTI = "anti"
    """Every left tuple that matches nothing."""

    @property
    def tracked(self) -> tuple[int, ...]:
        """The sides whose tuples are known to have matched or not."""
        if self is JoinType.INNER:
            return ()
        if self is JoinType.FULL:
            return LEFT, RIGHT
        return (RIGHT,) if self is JoinType.RIGHT else (LEFT,)

    @property
    def gives_pairs(self) -> bool:
        return self not in (JoinType.SEMI, JoinType.ANTI)

    @property
    def gives_unmatched(self) -> bool:
        """Whether tuples of the tracked sides come alone once nothing can match them any more."""
        return self not in (JoinType.INNER, JoinType.SEMI)
