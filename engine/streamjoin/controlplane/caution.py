"""How much of its input an epoch takes after others failed, and how warily: until what makes epochs fail stands alone.

Pure. An attempt that its data may have failed is done again with half as many records, and its splits are read apart (``dataplane.apart``),
which finds the records that end a reader. Where it is the join of records that fails, halving goes on to one record of one stream; what
then fails is a dead letter. After each commit twice as many are taken, up to what the manifest says.

Always holds: no record is rejected that did not fail an epoch in which it was the only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.reports import TooLarge

MOST_REJECTED = 16
"""In a row: where more records fail one after another, it is not they that are wrong."""

MOST_DEATHS = 3
"""Of drivers one after another without a commit, which may have any reason."""


@dataclass(frozen=True)
class Caution:
    """What is asked of the next attempt at an epoch."""

    records: int | None = None
    """At most so many in all; None: as many as the manifest says."""
    apart: bool = False
    """Splits are read in processes of their own."""
    stream: int | None = None
    """The only one that is read; None: all are."""
    rejects: str = ""
    """Why the only record that is read is a dead letter; empty: it is none."""
    deaths: int = 0
    """Of workers, since the last commit: the first may have had any reason."""
    turn: int = 0
    """Streams take turns in being read alone."""
    rejected: int = 0
    """Records that were rejected one after another."""
    refused: TooLarge | None = None
    """The split that the last attempt gave up as too large."""

    @property
    def is_active(self) -> bool:
        """Whether the next attempt is another than usual."""
        return self != Caution(turn=self.turn, rejected=self.rejected, refused=self.refused)

    @classmethod
    def after_deaths(cls, drivers: int, most_records: int) -> Caution:
        """``drivers``: how many have died one after another without a commit."""
        if drivers < MOST_DEATHS:
            return cls()
        return cls(records=max(1, most_records >> (drivers - MOST_DEATHS)), apart=True)

    def after(self, error: EpochFailed, planned: Sequence[int]) -> Caution:
        """After an attempt that has failed, with so many records by stream; ``error`` is told whether the next one takes less."""
        caution = self.after_failure(planned, str(error), died=error.worker_died and not error.stalled) if error.may_be_data else None
        error.is_narrowed = caution is not None and caution.apart and not error.stalled
        return caution or self

    def after_failure(self, planned: Sequence[int], reason: str, *, died: bool) -> Caution | None:
        """After an attempt that its data may have failed; None: less cannot be tried.

        ``planned``: records by stream. ``died``: a worker did.
        """
        if died and not self.deaths and self == Caution():
            return replace(self, deaths=1)
        if self.rejects or self.rejected >= MOST_REJECTED:
            return None
        total, streams = sum(planned), [stream for stream, records in enumerate(planned) if records]
        wary = replace(self, apart=True, deaths=self.deaths + died)
        shrinks = self.records is None or total <= max(self.records, len(planned))
        if total > len(planned) and shrinks:
            return replace(wary, records=total // 2)
        if len(streams) > 1 and shrinks:
            return replace(wary, records=1, stream=streams[self.turn % len(streams)], turn=self.turn + 1)
        if total == 1 and self.apart:
            return replace(wary, rejects=reason)
        return wary if not self.apart else None

    def after_commit(self, most_records: int) -> Caution:
        records = None if self.records is None or 2 * self.records >= most_records else 2 * self.records
        return Caution(records, turn=self.turn, rejected=self.rejected + 1 if self.rejects else 0)
