"""Errors of queries: why there is no answer."""

from __future__ import annotations

from enum import StrEnum


class Why(StrEnum):
    """Kinds of refusals, for those who must act on them."""

    WRONG = "wrong"
    """The query is: mend it."""
    ABSENT = "absent"
    """There is no such epoch or snapshot, or none yet."""
    UNKNOWN = "unknown"
    """There is no such join."""
    LARGE = "large"
    """The query takes more memory, or fetches more, than it may."""
    SLOW = "slow"
    """The query's time is over."""
    BUSY = "busy"
    """Too many others are asking."""
    STORAGE = "storage"
    GONE = "gone"
    """Nobody waits for the answer any more."""


class QueryError(Exception):
    """A query has no answer; the text says why and what to do. Pickles."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(why, text)
        self.why = why
        self.text = text

    def __str__(self) -> str:
        return self.text
