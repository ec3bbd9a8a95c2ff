"""What is raised for SQL that cannot be used."""

from __future__ import annotations

import re


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


def unparsed(error: Exception) -> str:
    """Where sqlglot stopped reading, and why, in words of SQL instead of its own: `` at line 1, column 6: an operand is missing``."""
    details = (getattr(error, "errors", None) or [{}])[0]
    where = f" at line {details['line']}, column {details['col']}" if details.get("line") else ""
    reason = str(details.get("description") or error.__cause__ or error).split("\n", 1)[0].rstrip(".")
    if reason.startswith("Required keyword:"):  # names an argument of a Python class
        reason = "an operand or an argument is missing"
    elif match := re.fullmatch(r"Expect(?:ing|ed) (\W+)", reason):
        reason = f"{match[1]} is missing"
    elif match := re.match(r"Missing (\W) from", reason):
        reason = f"the closing {match[1]} is missing"
    elif reason.startswith("Invalid expression") and details.get("highlight"):
        reason = f"{details['highlight']!r} is not expected here"
    return f"{where}: {reason}"
