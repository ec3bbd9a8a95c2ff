"""The ledger: every decision and every refusal, with what was known, and later with what came true.

Always holds: at most ``limit`` records; consecutive records differ in more than numbers and times (the same thing said again is counted,
not listed); entries are in order of time; JSON and back is the same ledger.

Of a hold that is repeated the last numbers are kept, of an action the first ones, by which it was decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from streamjoin.elastic.decision import Decision, Kind

LIMIT = 500
"""Records kept by default."""
STARTS = 5
"""By the slowest of so many starts of workers the next one is expected."""

VERSION = 1


@dataclass(frozen=True, slots=True)
class Realised:
    """What came true of a decision."""

    at: float
    generation: int
    """The plan that it led to."""
    tau_max: float | None
    """Of the fullest worker; None while it was not measured."""
    moved_tuples: float
    pause_seconds: float
    waited_seconds: float | None = None
    """From when the plan was taken up until its first epoch began: added workers start meanwhile, and state moves to them. None: it is not
    known."""


@dataclass(slots=True)
class Record:
    """A decision, made once or again and again."""

    decision: Decision
    first_at: float
    last_at: float
    count: int = 1
    realised: Realised | None = None
    failed: str | None = None
    """Why its plan does not run, where one was refused or given up."""


class Ledger:
    """The records, oldest first. O(1) to add."""

    def __init__(self, limit: int = LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"limit: {limit} must be at least 1")
        self.limit = limit
        self.forgotten = 0
        """Records that were dropped to stay within the limit."""
        self._records: list[Record] = []

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @property
    def last(self) -> Record | None:
        return self._records[-1] if self._records else None

    @property
    def start_seconds(self) -> float | None:
        """What the last workers that were added took to start, state and all, by the slowest of STARTS plans; None where none is known.

        By the slowest, because workers that come too late cost tuples, and those that come early a few minutes of theirs. O(records).
        """
        waits: list[float] = []
        for record in reversed(self._records):
            waited = None if record.realised is None else record.realised.waited_seconds
            if waited is not None and record.decision.target > record.decision.workers:
                waits.append(waited)
                if len(waits) == STARTS:
                    break
        return max(waits, default=None)

    def record(self, decision: Decision) -> Record:
        """Note a decision down: a new record, or the last one again."""
        last = self.last
        if last is not None and last.realised is None and last.decision.signature == decision.signature:
            last.count += 1
            last.last_at = max(last.last_at, decision.at)
            if decision.kind is Kind.HOLD:
                last.decision = decision
            return last
        self._records.append(Record(decision, decision.at, decision.at))
        if len(self._records) > self.limit:
            self._drop()
        return self._records[-1]

    def realised(self, realised: Realised) -> Record | None:
        """Complete the record of the decision that led to the plan, and return it; None where there is none.

        That is the last enforced decision about an older plan, made before ``at``. Said again of the same generation, it replaces what was
        said: tau is known only when the new plan has run for a while.
        """
        generation = realised.generation
        for record in reversed(self._records):
            known = record.realised
            if record.decision.kind is Kind.ENLARGE:
                continue
            if known is not None and known.generation == generation:
                break
            if record.decision.enforced and known is None and record.decision.generation < generation and record.first_at <= realised.at:
                break
            if known is not None and known.generation < generation:
                return None
        else:
            return None
        record.realised = realised
        return record

    def _drop(self) -> None:
        """The oldest hold goes first; actions and orders, which are few and tell most, only when there is nothing else."""
        oldest = next((index for index, record in enumerate(self._records[:-1]) if not record.decision.is_told), 0)
        del self._records[oldest]
        self.forgotten += 1
        self._fold(oldest)

    def _fold(self, index: int) -> None:
        """Make one of two records that have become neighbours and say the same."""
        if 0 < index < len(self._records):
            before, after = self._records[index - 1], self._records[index]
            if before.realised is None and before.decision.signature == after.decision.signature:
                before.count += after.count
                before.last_at, before.realised, before.failed = after.last_at, after.realised, after.failed or before.failed
                if after.decision.kind is Kind.HOLD:
                    before.decision = after.decision
                del self._records[index]

    def to_json(self) -> dict[str, Any]:
        """Plain data: dicts, lists, texts, finite numbers and None."""
        return {
            "version": VERSION,
            "limit": self.limit,
            "forgotten": self.forgotten,
            "records": [
                {
                    "decision": record.decision.to_json(),
                    "first_at": record.first_at,
                    "last_at": record.last_at,
                    "count": record.count,
                    "realised": None
                    if record.realised is None
                    else {name: getattr(record.realised, name) for name in record.realised.__slots__},
                    "failed": record.failed,
                }
                for record in self._records
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ledger:
        """Raises ValueError for what :meth:`to_json` cannot have written."""
        try:
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']} is not {VERSION}")
            ledger = cls(data["limit"])
            ledger.forgotten = data["forgotten"]
            for one in data["records"]:
                realised = None if one["realised"] is None else Realised(**one["realised"])
                times = one["first_at"], one["last_at"], one["count"]
                ledger._records.append(Record(Decision.from_json(one["decision"]), *times, realised, one.get("failed")))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the ledger cannot be read ({type(error).__name__}: {error}); remove it to begin anew") from error
        return ledger
