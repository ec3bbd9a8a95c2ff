"""Merges the blocks of former plans, so that they become few: a change of plans leaves them as they are, and workers do not merge them any
more. Marks are merged too, because each epoch writes some.

A *rewrite* makes one block of several that are of like size and age. A worker does it in the background, from storage, while epochs go on;
the commit of the epoch in which it is ready replaces the old ones. Nobody's runs change. A crash before that leaves a file that no commit
names, and the rewrite is done again.

Always holds: at most one rewrite is under way. The last commit names what a rewrite reads until it is over, because only expiry takes such
blocks away. No rewrite is begun or committed while a plan is applied, because the workers of the plan fetch what the last commit names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import Rewrite, attempt_prefix
from streamjoin.kernel.run import buckets
from streamjoin.language.window import Window
from streamjoin.state.blocks import Block
from streamjoin.state.checkpoint import Checkpoint

FAN_IN = 8
"""The number of blocks of one size class that are worth a rewrite. Sizes of classes differ by this factor, so that a tuple is rewritten
seldom."""
MOST_BLOCKS = 64
MOST_BYTES = 128 << 20
"""The most bytes of one rewrite, and so of the blocks that it makes: a worker holds them twice."""


def rewrite_after(
    rewrite: Rewrite | None,
    checkpoint: Checkpoint,
    window: Window,
    incarnation: int,
    tasks: int,
    reports: Sequence[TaskReport],
    is_switch: bool,
) -> Rewrite | None:
    """The rewrite that goes on, or is next, after an epoch with these reports: one is over once it is ready, and is given up where another
    plan begins (``is_switch``), because its worker may be no more. O(blocks * log blocks)."""
    is_over = any(report.rewritten is not None and rewrite and report.rewritten.name == rewrite.name for report in reports)
    goes_on = rewrite is not None and not is_over and not is_switch
    return rewrite if goes_on else next_rewrite(checkpoint, window, incarnation, tasks)


def next_rewrite(checkpoint: Checkpoint, window: Window, incarnation: int, tasks: int) -> Rewrite | None:
    """The rewrite that is most worth while after this commit; None: there are few blocks. O(blocks * log blocks).

    Of each place and eighth of the window there remain at most ``FAN_IN - 1`` blocks of a size class, of which there are
    log_FAN_IN(MOST_BYTES), and those of more than half of ``MOST_BYTES``.
    """
    old = [block for block in checkpoint.state.blocks if block.generation != checkpoint.plan.generation and block.nbytes <= MOST_BYTES // 2]
    marks = [block for block in checkpoint.state.marks if block.nbytes <= MOST_BYTES // 2]
    for candidates, of_marks in ((old, False), (marks, True)):
        for place, join in sorted({(block.place, block.join) for block in candidates}):
            of_place = [block for block in candidates if (block.place, block.join) == (place, join)]
            for members in buckets(range(len(of_place)), of_place, window).values():
                chosen = _smallest([of_place[number] for number in members])
                if chosen:
                    name = f"{attempt_prefix(checkpoint.identity, incarnation, checkpoint.epoch)}-rewrite"
                    return Rewrite(name, checkpoint.epoch % tasks, place, tuple(chosen), of_marks)
    return None


def _smallest(blocks: Iterable[Block]) -> Sequence[Block]:
    """Neighbours of the smallest size class that has enough."""
    classes: dict[int, list[Block]] = {}
    for block in blocks:
        classes.setdefault(_size_class(block.nbytes), []).append(block)
    for _, members in sorted(classes.items()):
        if len(members) >= FAN_IN:
            members.sort(key=lambda block: (block.key_min, block.unit_min))
            chosen, nbytes = list[Block](), 0
            for block in members[:MOST_BLOCKS]:
                nbytes += block.nbytes
                if nbytes > MOST_BYTES:
                    break
                chosen.append(block)
            return chosen if len(chosen) > 1 else ()
    return ()


def _size_class(nbytes: int) -> int:
    size_class = 0
    while nbytes >= FAN_IN:
        nbytes //= FAN_IN
        size_class += 1
    return size_class
