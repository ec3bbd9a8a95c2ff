"""How long a join stands still when its driver is killed: with a standby, and without one, side by side.

Each round kills (SIGKILL) the driver of a join with two workers on this machine's Spark, which has joined all input, and brings more. It
measures the time until the next epoch is committed: by the standby, or by a driver that is started at the moment of the kill, as a
supervisor would.

    nice -n 19 python tests/bench/bench_standby.py [--quick]
"""

from __future__ import annotations

import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import machine, options, table
from standbys import FilesJoin, Running
from waiting import wait_for

EPOCHS = 8
WORKERS = 2


def until_the_next_commit(root: Path, *, standby: bool) -> tuple[float, float]:
    """Seconds from the kill to the next commit; and to the moment when it is known that the driver is gone, which is at once without a
    standby."""
    join = FilesJoin(root, epochs=EPOCHS)
    join.bring(0, 4)
    with Running(join, "first") as first:
        first.wait(event="epoch", epoch=1)
        second = Running(join, "second") if standby else None
        if second is not None:
            second.wait(event="standby", state="waiting", workers=WORKERS, ready=WORKERS)
        before, killed_at = join.epoch, time.time()
        first.process.send_signal(signal.SIGKILL)
        join.bring(4, join.files)
        second = second or Running(join, "second", standby=False)
        with second:
            noticed = 0.0
            if standby:
                second.wait(event="standby", state="taking over")
                noticed = time.time() - killed_at
            wait_for("the next commit", lambda: join.epoch > before, every=0.01, told=lambda: second.said)
            return time.time() - killed_at, noticed


def main() -> None:
    rounds = 1 if options(__doc__ or "").parse_args().quick else 3
    print(machine())
    rows = []
    for name, standby in (("a standby takes over", True), ("another driver starts", False)):
        found = []
        for _ in range(rounds):
            root = Path(tempfile.mkdtemp(prefix="standby-"))
            try:
                found.append(until_the_next_commit(root, standby=standby))
            finally:
                shutil.rmtree(root, ignore_errors=True)
        seconds, noticed = zip(*found, strict=True)
        print(f"{name}: {', '.join(f'{each:.2f} s' for each in seconds)}", file=sys.stderr, flush=True)
        rows.append([name, f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}", f"{max(noticed):.2f}"])
    print(table(("after SIGKILL of the driver", "to the next commit, s, median", "least and most", "until it is noticed, at most"), rows))


if __name__ == "__main__":
    main()
