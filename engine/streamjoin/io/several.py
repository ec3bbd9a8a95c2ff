"""One sink made of several: each join's results go where that join says, and one epoch's commit makes them all visible.

Always holds: ``Staged.join`` says whose results a writer has staged, and only that join's sink publishes them. It is empty if there is only
one join (:func:`tags`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from streamjoin.io.base import Counting, Sink, Staged, Traffic, Writer
from streamjoin.io.deadletter import TAG, DeadLetters
from streamjoin.io.ownership import Owner
from streamjoin.io.refused import taken_of
from streamjoin.io.results_source import Feed


def tags(joins: Iterable[str]) -> dict[str, str]:
    """The tag of each join, by its name, which says whose results are kept: the join's name, or nothing for the only join, which may be
    renamed."""
    names = list(joins)
    return {name: name if len(names) > 1 else "" for name in names}


@dataclass(frozen=True)
class Sinks:
    """The sinks of all joins, by name, in the joins' order. Picklable."""

    by_join: Mapping[str, Sink]
    """Of those that have one."""
    feeds: Mapping[str, Feed] = field(default_factory=dict)
    """Of those whose results streams read."""
    names: tuple[str, ...] = ()
    """Of all joins, where not each has a sink."""
    letters: DeadLetters | None = None
    """Where records go that cannot be used; they are staged and become visible as results do."""

    @property
    def tags(self) -> dict[str, str]:
        return tags(self.names or self.by_join)

    @property
    def gather_seconds(self) -> float:
        """The least of theirs."""
        return min((sink.gather_seconds for sink in self.by_join.values()), default=0.0)

    @property
    def traffic(self) -> Traffic:
        """The traffic of all sinks together."""
        found = [sink.traffic for sink in self.by_join.values() if isinstance(sink, Counting)]
        return Traffic(*(sum(getattr(each, name) for each in found) for name in ("sent_records", "sent_bytes", "failures", "errors")))

    def share(self, small_bytes: int) -> int:
        """How many of these each writer of a task may leave to the driver."""
        return small_bytes // max(1, len(self.by_join) + len(self.feeds))

    def writers(self, name: str, stem: str, *, small_bytes: int = 0) -> Writers:
        """Writers for one task of one epoch; parameters as of :meth:`streamjoin.io.base.Sink.writer`."""
        each = self.share(small_bytes)
        made: list[tuple[str, Writer]] = [
            (join, sink.writer(self._name(join, name), stem, small_bytes=each)) for join, sink in self.by_join.items()
        ]
        made += [(join, feed.writer(f"{name}-fed-{number}", small_bytes=each)) for number, (join, feed) in enumerate(self.feeds.items())]
        return Writers(made, self.tags)

    def gather(self, small: Sequence[Staged], name: str, stem: str) -> list[Staged]:
        """See :class:`streamjoin.io.base.Sink`."""
        known = self.tags
        letters = [staged for staged in small if staged.join == TAG]
        return [
            replace(staged, join=known[join])
            for join, sink in self.by_join.items()
            for staged in sink.gather(self._whose(small, join), self._name(join, name), stem)
        ] + (self.letters.gather(letters, name, stem) if self.letters else [])

    def claim(self, owner: Owner, *, takes: bool, published: Collection[str] = ()) -> None:
        """See :class:`streamjoin.io.base.Sink`. ``published``: the tags of joins whose results the checkpoint has made visible where they
        go now."""
        for join, sink in self.by_join.items():
            sink.claim(replace(owner, has_published=self.tags[join] in published), takes=takes)

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """See :class:`streamjoin.io.base.Sink`. Where one raises, the others have not all published, and are asked again."""
        for join, sink in self.by_join.items():
            sink.publish(self._whose(staged, join), again=again)
        if self.letters is not None:
            self.letters.publish([each for each in staged if each.join == TAG], again=again)

    def take_refused(self) -> dict[str, tuple[int, str]]:
        """By join, how many results of what was published since the last call are dead letters, and why the first is."""
        return taken_of(self.by_join)

    def finish(self) -> None:
        """See :class:`streamjoin.io.base.Sink`."""
        for sink in self.by_join.values():
            sink.finish()

    def sweep(self, may_remove: Callable[[str], bool]) -> int:
        """See :class:`streamjoin.io.base.Sink`."""
        swept = sum(sink.sweep(may_remove) for sink in self.by_join.values())
        return swept + (self.letters.sweep(may_remove) if self.letters else 0)

    def _whose(self, staged: Sequence[Staged], join: str) -> list[Staged]:
        tag = self.tags[join]
        return [each for each in staged if each.join == tag]

    def _name(self, join: str, name: str) -> str:
        """Of what a join stages: several may stage in one place."""
        number = list(self.by_join).index(join)
        return f"{name}-{number}" if number else name


class Writers:
    """Takes one task's results of one epoch, of every join."""

    def __init__(self, writers: Sequence[tuple[str, Writer]], tags: Mapping[str, str]) -> None:
        """``writers``: each with its join. ``tags``: what is staged of each join says so."""
        self._by_join = {join: [writer for of, writer in writers if of == join] for join in tags}
        self._tags = tags

    def write(self, join: str, batch: pa.RecordBatch) -> None:
        for writer in self._by_join[join]:
            writer.write(batch)

    def close(self, join: str) -> list[Staged]:
        """See :class:`streamjoin.io.base.Writer`: those of one join. Those of several may be closed at once, on as many threads."""
        return [replace(staged, join=self._tags[join]) for writer in self._by_join[join] for staged in writer.close()]

    def abort(self) -> None:
        """See :class:`streamjoin.io.base.Writer`."""
        for of_join in self._by_join.values():
            for writer in of_join:
                writer.abort()
