"""What is raised for SQL that cannot be used."""

from __future__ import annotations


class SqlError(ValueError):
    """SQL that cannot be used: what the problem is, and what to write instead."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[SqlError], tuple[str, str]]:
        return type(self), (self.problem, self.remedy)


def excerpt(text: str, limit: int = 60) -> str:
    """The text in quotes, cut short, for a message."""
    return repr(text if len(text) <= limit else text[:limit] + "...")
