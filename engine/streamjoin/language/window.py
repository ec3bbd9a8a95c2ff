"""Join windows: which pairs of tuples are close enough, and when a held tuple can match nothing any more.

A pair is inside the window by event time (``range``), by how many records came between (``rows``), or always (``unbounded``).

Range, with l and r the event times in microseconds::

    -before <= r - l <= after

Range with ``slide``: windows start only at multiples of the slide, so the earlier tuple counts from the multiple at or before it::

    r >= l:  r <= floor(l / slide) * slide + after        r < l:  l <= floor(r / slide) * slide + before

Rows: a record's position is its number in its stream, from 0, filtered records included; within an epoch the
streams' records are taken to arrive evenly interleaved. A pair matches when the earlier record is among the last N records of its
stream when the later one arrives; each stream may have an N of its own. Each tuple carries its own position and the number of each other
stream's records that arrived before it.

Of three and more streams a window says for each stream how far its member of a result may lie before the newest member (``each``), in time
or in records of its stream; with ``slide``, from the multiple at or before its time on. That is so of all members if and only if it is so
of every two of them, and so it is checked as members are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

Ends = tuple[int | None, ...]
"""A moment or a position of each stream."""


class WindowKind(StrEnum):
    RANGE = "range"
    ROWS = "rows"
    UNBOUNDED = "unbounded"


@dataclass(frozen=True, slots=True)
class Window:
    """One join's window. Durations are microseconds; fields that the kind does not use are 0."""

    kind: WindowKind
    before_micros: int = 0
    """How far a right tuple may lie before its left partner."""
    after_micros: int = 0
    """How far a right tuple may lie after its left partner."""
    slide_micros: int = 0
    """0: every tuple starts its own window."""
    rows: int = 0
    """Of rows: N, of all streams or the greatest of them."""
    each: tuple[int, ...] = ()
    """Of three and more streams: by stream, how far its tuple may lie before the newest of a result, or, of rows, how many of its stream's
    records. Of two streams, of rows alone: N of each, if they are not alike."""

    @classmethod
    def of_each(cls, spans: Sequence[int], slide: int = 0) -> Window:
        """The range window of three and more streams with these ``each``; of two, the pairs' own."""
        if len(spans) == 2:
            return cls(WindowKind.RANGE, before_micros=spans[1], after_micros=spans[0], slide_micros=slide)
        return cls(WindowKind.RANGE, before_micros=max(spans), after_micros=max(spans), slide_micros=slide, each=tuple(spans))

    @classmethod
    def of_rows(cls, spans: Sequence[int]) -> Window:
        """The rows window in which each stream has this N."""
        is_one = len(spans) == 2 and len(set(spans)) == 1
        return cls(WindowKind.ROWS, rows=max(spans), each=() if is_one else tuple(spans))

    def rows_of(self, stream: int) -> int:
        """N of a stream."""
        return self.each[stream] if self.each else self.rows

    @property
    def is_multiway(self) -> bool:
        """Whether it is of three and more streams, and says of each how far its tuple may lie before the newest."""
        return len(self.each) > 2

    @property
    def has_time(self) -> bool:
        """Whether held tuples carry a ``_time`` column: the event time (range) or the record's position (rows)."""
        return self.kind is not WindowKind.UNBOUNDED

    @property
    def has_aux(self) -> bool:
        """Whether held tuples carry ``_aux``: the slide's multiple at or before the event time, or the count of the other stream."""
        return not self.is_multiway and (self.kind is WindowKind.ROWS or self.slide_micros > 0)

    @property
    def counts_others(self) -> bool:
        """Whether held tuples carry, for each other stream, the number of its records that arrived before (``_before.NAME``)."""
        return self.kind is WindowKind.ROWS and self.is_multiway

    def expired_before(self, marks: Ends) -> Ends:
        """By stream, the ``_time`` below which a held tuple can match nothing that is still to come; None: nothing has expired.

        ``marks`` bound the future of each stream from below: its watermark in microseconds (range), or the number of its records that
        have arrived (rows); None: not known yet.
        """
        if self.kind is WindowKind.UNBOUNDED:
            return (None,) * len(marks)
        if self.kind is WindowKind.ROWS:
            return tuple(None if mark is None else mark - self.rows_of(stream) for stream, mark in enumerate(marks))
        if self.each:
            found: list[int | None] = []
            for stream, span in enumerate(self.each):  # what is still to come of the others is no older than this
                others = [mark for number, mark in enumerate(marks) if number != stream]
                known = [mark for mark in others if mark is not None]
                found.append(min(known) - span if len(known) == len(others) else None)
            return tuple(found)
        left, right = marks
        return None if right is None else right - self.after_micros, None if left is None else left - self.before_micros

    def expired_within(self, wider: Window, expired: Ends) -> Ends:
        """``expired_before`` of this window, where that of a wider one of the same kind is ``expired``."""
        if self.is_multiway or self.kind is WindowKind.UNBOUNDED:
            return expired
        if self.kind is WindowKind.ROWS:
            return tuple(None if end is None else end + wider.rows_of(side) - self.rows_of(side) for side, end in enumerate(expired))
        left, right = expired
        return (
            None if left is None else left + wider.after_micros - self.after_micros,
            None if right is None else right + wider.before_micros - self.before_micros,
        )


def widest(windows: Sequence[Window]) -> Window:
    """The narrowest window that holds all of these, which are of one kind. It slides as they do if they all slide alike, else not.

    Raises ValueError for windows of several kinds.
    """
    first = windows[0]
    if len(windows) == 1:
        return first
    if any(window.kind is not first.kind for window in windows):
        raise ValueError(f"windows of several kinds have no widest: {', '.join(sorted({window.kind for window in windows}))}")
    if first.kind is WindowKind.ROWS:
        return Window.of_rows([max(window.rows_of(side) for window in windows) for side in (0, 1)])
    slides = {window.slide_micros for window in windows}
    return Window(
        first.kind,
        before_micros=max(window.before_micros for window in windows),
        after_micros=max(window.after_micros for window in windows),
        slide_micros=slides.pop() if len(slides) == 1 else 0,
    )


def window_text(window: Window, streams: Sequence[str]) -> str:
    """The window in words, as checkpoints keep it. ``streams``: the names of those that it is over."""
    slide = f", slide {window.slide_micros} us" if window.slide_micros else ""
    if window.each and window.kind is WindowKind.RANGE:
        return "each " + ", ".join(f"{stream} {micros} us" for stream, micros in zip(streams, window.each, strict=True)) + slide
    if window.kind is WindowKind.RANGE:
        return f"before {window.before_micros} us, after {window.after_micros} us{slide}"
    if len(set(window.each)) > 1:
        return "each " + ", ".join(f"{stream} {rows} rows" for stream, rows in zip(streams, window.each, strict=True))
    return f"{window.rows} rows" if window.kind is WindowKind.ROWS else "unbounded"
