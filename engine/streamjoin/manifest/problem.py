"""What is wrong with a manifest, in one form for all that look for it.

Always holds: a problem names the field, the value and the remedy, as in ``spec.scaling.tau1: 0.9 must be below tau2
(0.8)``. A value that may be a secret is not shown.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST_VALUE = 60
# a Secret's name is none
_SECRET = re.compile(
    r"password|passphrase|secret(?!name$)|jaas|oauthbearer\.config|key\.pem|ssl_key|auth\.token|user\.info|//[^/]*:[^/]*@", re.IGNORECASE
)
_CONNECTOR = re.compile(r"\.(source|sink|snapshots)\b")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    field: str
    """Where: ``spec.streams[0].schema``. Empty for the document as a whole."""
    value: object
    """What is there; None when nothing is, or when to show it would not help."""
    message: str
    """What is wrong with it and what to do, to be read after the value."""
    line: int | None = None
    """Where in the text; from 1."""

    def __str__(self) -> str:
        text = self.message if self.value is None or self._holds_secret() else f"{shown(self.value)} {self.message}"
        return f"{self.field}: {text}" if self.field else text

    def _holds_secret(self) -> bool:
        """Whether the field is named as secrets are, or the value has a field of such a name."""
        has_options = _CONNECTOR.search(self.field) is not None
        return is_secret(self.field) or (has_options and is_secret(json.dumps(self.value, default=str)))


class ManifestError(ValueError):
    """A manifest that cannot be used, with everything that is wrong with it."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def is_secret(name: str) -> bool:
    """Whether what goes by this name must not be seen."""
    return _SECRET.search(name) is not None


def shown(value: object) -> str:
    """A value as a manifest would have it, on one line and not too long."""
    if isinstance(value, float):
        return f"{value:.15g}"
    text = json.dumps(value, ensure_ascii=False, default=str)
    # Halves of surrogate pairs, which YAML's escapes can make, could not be printed.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def listed(names: Sequence[str], last: str = "or") -> str:
    """``a, b or c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def closest(name: str, names: Sequence[str]) -> str | None:
    """The name that was probably meant, if one is close enough."""
    folded = {other.casefold(): other for other in names}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.7)
    return folded[close[0]] if close else None


def meant(name: str, names: Sequence[str], what: str) -> str:
    """The remedy for a name that is not among these: the one that was probably meant, or all of them, after ``what``."""
    close = closest(name, names)
    return f"did you mean {close}?" if close else f"{what} {listed(names, 'and')}"
