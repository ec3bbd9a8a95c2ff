"""``kubectl streamjoin query NAME SQL --follow``: ``streamjoin query --follow`` in a pod, begun again in another one when that ends.

Always holds: rows are printed once the position behind them has come, and the next pod goes on after the last such position: none is
missed, and none is printed twice. The pod's program reads its input, which ends with the connection; so it does not stay behind.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

MARK = "\x1e"
"""Begins a line with a position (``streamjoin.cli.following.MARK``); no row has it, as JSON and tables escape it."""
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 10.0
"""Before another pod is asked; doubled each time."""
PATIENCE_SECONDS = 120.0
"""So long it is tried anew while nothing is heard: a driver that is started again takes most of it."""
REFUSED = 2
"""The exit code of the pod's program for a query that is wrong: it stays so."""

Begin = Callable[[Sequence[str]], "subprocess.Popen[str]"]


class Ended(Exception):  # noqa: N818
    """There is no going on; the text is what the last attempt said."""


class Unreachable(Exception):  # noqa: N818
    """Nothing can be begun now; the text says why."""


def follow(
    begin: Begin,
    after: str | None,
    *,
    write: Callable[[str], None],
    tell: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Print rows until the join has ended. Raises Ended.

    ``begin`` starts the program with such options added, its output and error output in pipes, or raises Unreachable.
    """
    failing_since: float | None = None
    pause, was_heard = FIRST_PAUSE_SECONDS, False
    while True:
        code, said = 1, ""
        try:
            child = begin([] if after is None else [f"--after={after}"])
            try:
                for rows, position in _events(child):
                    after, failing_since, pause, was_heard = position, None, FIRST_PAUSE_SECONDS, True
                    if rows:
                        write(rows)
                        tell(f"up to snapshot {after}")
                said = "" if child.stderr is None else child.stderr.read().strip()
                code = child.wait()
            finally:
                child.kill()
                child.wait()
        except Unreachable as error:
            said = str(error)
        if code == 0:
            tell(said)
            return
        said = said or f"kubectl ended with {code}"
        failing_since = clock() if failing_since is None else failing_since
        if not was_heard or code == REFUSED or clock() - failing_since > PATIENCE_SECONDS:
            raise Ended(said)
        tell(f"{said.splitlines()[-1]}; asking again")
        sleep(pause)
        pause = min(2 * pause, MOST_PAUSE_SECONDS)


def _events(child: subprocess.Popen[str]) -> Iterator[tuple[str, str]]:
    """Rows and the position behind them; what comes without one is not told."""
    assert child.stdout is not None
    rows: list[str] = []
    for line in child.stdout:
        if line.startswith(MARK) and line.endswith("\n"):
            yield "".join(rows), line[1:-1]
            rows.clear()
        else:
            rows.append(line)


def begin_with(command: Sequence[str]) -> Begin:
    """Starts this command, with the options behind it."""

    def begin(options: Sequence[str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*command, *options], stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    return begin


def print_now(text: str) -> None:
    """To standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def tell_now(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
