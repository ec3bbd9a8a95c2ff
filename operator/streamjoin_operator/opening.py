"""``kubectl streamjoin open``: a page inside the cluster in the browser here, through ``kubectl port-forward``.

Always holds: the port here stays the same, so that a page that is open finds its join again when the pod behind it is another; nothing is
left behind when this ends.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence

from streamjoin_operator.following import FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS, PATIENCE_SECONDS, Ended, Unreachable

FORWARDING = re.compile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> ")

Begin = Callable[[int], "subprocess.Popen[str]"]


def keep_open(
    begin: Begin,
    port: int,
    *,
    token: Callable[[], str | None],
    show: Callable[[str], None],
    tell: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Forward a port until Ctrl-C. Raises Ended where that cannot be done, or not any more.

    ``begin`` starts ``kubectl port-forward`` from a port here (0: any free one), its output and error output in pipes, or raises
    Unreachable. ``port``: the one to begin with. ``token``: what the page asks for, if anything. ``show`` is given the page's address once,
    the token in its fragment, which no server is told.
    """
    failing_since: float | None = None
    pause, shown = FIRST_PAUSE_SECONDS, False
    while True:
        said = ""
        try:
            child = begin(port)
            try:
                assert child.stdout is not None
                for line in child.stdout:
                    found = FORWARDING.match(line)
                    if found is None:
                        continue
                    port, failing_since, pause = int(found[1]), None, FIRST_PAUSE_SECONDS
                    if not shown:
                        given = token()
                        show(f"http://127.0.0.1:{port}/" + (f"#token={given}" if given else ""))
                        shown = True
                said = "" if child.stderr is None else child.stderr.read().strip()
                said = said or f"kubectl port-forward ended with {child.wait()}"
            finally:
                child.kill()
                child.wait()
        except Unreachable as error:
            said = str(error)
        failing_since = clock() if failing_since is None else failing_since
        said = said.splitlines()[-1]
        if not shown or clock() - failing_since > PATIENCE_SECONDS:
            raise Ended(said)
        tell(f"{said}; connecting again")
        sleep(pause)
        pause = min(2 * pause, MOST_PAUSE_SECONDS)


def forward_with(command: Sequence[str], target: str, port: int, remote_port: int) -> subprocess.Popen[str]:
    """``command``: kubectl with its options; ``target``: whose port it is."""
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, "port-forward", target, f"{port or ''}:{remote_port}"], stdout=pipe, stderr=pipe, text=True)
