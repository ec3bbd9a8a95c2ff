"""Distributions: how partial results of a stage and the stream that comes next can meet, and what is sent (Tran and Lee, appendix B).

In the paper two sites have a stream each. Here the tuples of every stream lie on all tasks, divided by key and unit, and so do partial
results. Each distribution is one of the paper's kinds of one-way join, as such a division allows it:

- *repartition* (SP-D): partial results go whole to where the next stream is held;
- *broadcast* (SP-S): all that is held of the next stream goes to every task, where partial results wait for it;
- *lookup* (SM-S): only what finds partners goes there, and what matches comes back. Partial results stay where they are;
- *semi-join* (SM-D): the same goes there, it comes back which have partners, and these partial results alone follow.

No task keeps what was sent to it: the scheme says who holds what, and how much. So what an epoch needs is sent in each epoch anew, where
the paper's sites send a window's tuple once.

Always holds: pure; what is priced are the bytes of all tasks together, those included that a task sends to itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from streamjoin.language.window import WindowKind


class Distribution(StrEnum):
    """How the partial results of a stage meet the next stream."""

    REPARTITION = "repartition"
    BROADCAST = "broadcast"
    LOOKUP = "lookup"
    SEMI_JOIN = "semi-join"

    @property
    def rounds(self) -> int:
        """Of the exchange."""
        return _ROUNDS[self]


_ROUNDS = {Distribution.REPARTITION: 1, Distribution.BROADCAST: 1, Distribution.LOOKUP: 2, Distribution.SEMI_JOIN: 3}

KEY_BYTES, UNIT_BYTES = 8.0, 4.0
REFERENCE_BYTES = 8.0
ROW_BYTES = 4.0
"""The number of a row, by which an answer says whom it is for; and where a list of them begins."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes of what a window adds to what is sent, in the join of so many streams."""

    window: str
    streams: int

    def partial(self, members: int) -> float:
        """Of a partial result of so many members: two times; in windows of rows, the position of each, and where each window begins."""
        return {WindowKind.RANGE: 16.0, WindowKind.ROWS: 8.0 * (members + self.streams)}.get(WindowKind(self.window), 0.0)

    @property
    def question(self) -> float:
        return {WindowKind.RANGE: 16.0, WindowKind.ROWS: 8.0}.get(WindowKind(self.window), 0.0)

    @property
    def held(self) -> float:
        """Of a held tuple."""
        return {WindowKind.RANGE: 8.0, WindowKind.ROWS: 8.0 * self.streams}.get(WindowKind(self.window), 0.0)


@dataclass(frozen=True, slots=True)
class Encounter:
    """Partial results of a step and the stream that they are to meet. Per second, of all tasks, unless it says otherwise."""

    rate: float
    """Partial results (r_1)."""
    held: float
    """Tuples held of the stream, at any moment (w_2)."""
    selectivity: float
    """Which part of all pairs the main predicate and the window admit (rho)."""
    partial_bytes: float
    """Of a partial result as it is shipped (F_1)."""
    question_bytes: float
    """Of what finds its partners (P_1)."""
    held_bytes: float
    """Of a held tuple's columns that this step or a later one reads (F_2)."""
    epochs: float
    tasks: float

    @property
    def candidates(self) -> float:
        """Pairs."""
        return self.rate * self.held * self.selectivity

    @property
    def with_partner(self) -> float:
        """Partial results that have a partner, where partners lie at random (Poisson)."""
        return self.rate * -math.expm1(-self.held * self.selectivity)

    @property
    def answered(self) -> float:
        """Tuples in answers: in each epoch, one that is a partner of some of a task's questions goes to that task once. Each task has 1 in
        ``tasks`` of the questions, and their partners lie at random."""
        most = self.held * self.epochs * self.tasks
        return most * -math.expm1(-self.candidates / most) if most else 0.0


def sent_by(distribution: Distribution, of: Encounter) -> float:
    """Bytes per second, by the formulas of appendix B. O(1).

    - SP-D: r1 F1, as printed.
    - SP-S: r2 F2 in the paper, as the window stays where it was sent; here w2 F2 in each epoch, to each task.
    - SM-S1: m1 P1 + wp2 f21 F2. P1 is sent for each partial result, as many have a key of their own. Of the window's tuples those come that
      have a partner among an epoch's questions of a task, each with the numbers of those that it is for.
    - SM-D2: m1 P1 + m1 f12 P1 + wp1 f12 F1. The second is not the key, but the row's number.
    """
    match distribution:
        case Distribution.REPARTITION:
            return of.rate * of.partial_bytes
        case Distribution.BROADCAST:
            return of.held * of.epochs * of.tasks * (KEY_BYTES + of.held_bytes)
        case Distribution.LOOKUP:
            return of.rate * of.question_bytes + of.answered * (of.held_bytes + ROW_BYTES) + of.candidates * ROW_BYTES
        case Distribution.SEMI_JOIN:
            return of.rate * of.question_bytes + of.with_partner * (ROW_BYTES + of.partial_bytes)
