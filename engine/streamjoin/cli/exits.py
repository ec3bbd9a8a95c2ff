"""Exit codes of all commands, which ``docs/cli.md`` explains: those of the library's failures."""

from streamjoin.api.failure import Exit, Failure, failure_of, stalled

__all__ = ["Exit", "Failure", "failure_of", "stalled"]
