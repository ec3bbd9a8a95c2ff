"""What is told of an error outside of dead letters and of the log: in the status, events, metrics and termination messages.

Always holds: no value of a record is in it. Errors of this program name fields, files and remedies. Those of Python and of libraries quote
what they could not take: of these, quoted text and numbers are left out. The trace has the whole.
"""

from __future__ import annotations

import re

from streamjoin.io.deadletter import kind_of

_QUOTED = re.compile(r"'[^']*'|b'[^']*'")


def told(error: BaseException) -> str:
    """The error's text in one line, without values of records."""
    text = " ".join(str(error).split())
    is_ours = type(error).__module__.partition(".")[0] == "streamjoin"
    is_of_the_system = isinstance(error, ImportError) or (isinstance(error, OSError) and error.errno is not None)
    return text if is_ours or is_of_the_system else without_values(text)


def without_values(text: str) -> str:
    """Without what is quoted in it, and without numbers."""
    return kind_of(_QUOTED.sub("...", text))
