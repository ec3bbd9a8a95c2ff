"""``kubectl streamjoin open``: a page inside the cluster in the browser here, through ``kubectl port-forward``.

Always holds: the port here stays the same, so that a page that is open finds its join again when the pod behind it is another; nothing is
left behind when this ends.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence

from streamjoin_operator.following import FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS, PATIENCE_SECONDS, Ended

FORWARDING = re.compile(r"^Forwarding from 127\.0\.0\.1:(\d+) -> ")


def keep_open(
    command: Sequence[str],
    target: str,
    port: int,
    remote_port: int,
    *,
    token: Callable[[], str | None],
    show: Callable[[str], None],
    tell: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Forward a port until Ctrl-C. Raises Ended where that cannot be done, or not any more.

    ``command``: kubectl with its options; ``target``: whose port it is; ``port``: here, 0 for any free one. ``token``: what the page asks
    for, if anything. ``show`` is given the page's address once, the token in its fragment, which no server is told.
    """
    failing_since, pause, shown = clock(), FIRST_PAUSE_SECONDS, False
    while True:
        said = ""
        child = subprocess.Popen(
            [*command, "port-forward", target, f"{port or ''}:{remote_port}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            for line in child.stdout:
                found = FORWARDING.match(line)
                if found is not None:
                    port, failing_since, pause = int(found[1]), clock(), FIRST_PAUSE_SECONDS
                    if not shown:
                        given = token()
                        show(f"http://127.0.0.1:{port}/" + (f"#token={given}" if given else ""))
                        shown = True
            said = "" if child.stderr is None else child.stderr.read().strip()
            code = child.wait()
        finally:
            child.kill()
            child.wait()
        said = said.splitlines()[-1] if said else f"kubectl port-forward ended with {code}"
        if not shown or clock() - failing_since > PATIENCE_SECONDS:
            raise Ended(said)
        tell(f"{said}; connecting again")
        sleep(pause)
        pause = min(2 * pause, MOST_PAUSE_SECONDS)
