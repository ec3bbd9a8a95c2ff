"""Faults at random points of joins on real Spark workers: is each result there once, and how long does the join stand still?

Each seed makes a band join of two streams of JSON files, with late and malformed records among them, and ``--points`` faults: workers
are killed or stopped, executors killed, the driver is killed or loses its power, other plans are put, storage fails, fails after it has
written, or is slow, the clock is set, input files are rotated by renaming or rewritten, and a stream is silent. A driver that has ended is
started anew on the same checkpoint. At the end results, dead letters and counters are compared with DuckDB's and with what the input was
made of, and nothing may be left behind that no commit names. A
fault is held to account for the results of the epochs from its own to the next fault's.

    python tests/soak_crashes.py [--seeds 20] [--points 10] [--first 0] [--at-once 1] [--keep DIRECTORY]

``--keep``: seeds that went wrong leave their directories there: the journal says what happened, in which order.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import itertools
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.report import machine, table
from harness import output_of, staged_of
from soak import ALL, ENDS_DRIVER, Case, Expected, Journal, Kind, disk_of, job_of, letters_of, make_case
from soak_files import write_input
from streamjoin.controlplane.driver import Driver
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS

DRIVER = Path(__file__).with_name("soak_driver.py")
MOST_DRIVERS = 40


@dataclass
class Outcome:
    """What came of a case."""

    seconds: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    """From each fault to the next commit."""
    pauses: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The longest time without a commit, from each fault to the next one: what has died may be missed only by the epoch after."""
    lost: Counter[Kind] = field(default_factory=Counter)
    repeated: Counter[Kind] = field(default_factory=Counter)
    """Results, and dead letters."""
    results: int = 0
    letters: int = 0
    drivers: int = 0
    unasked: list[str] = field(default_factory=list)
    """Ends of drivers that were not the fault itself."""
    wrong: list[str] = field(default_factory=list)
    """Everything else that is not as it should be."""

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.repeated or self.wrong)


def run_case(case: Case, root: Path) -> Outcome:
    """Run the case in an empty directory, to the end of its input."""
    sessions: list[int] = []
    try:
        return _run(case, root, sessions)
    finally:
        for session in sessions:
            _end_session(session)


def _run(case: Case, root: Path, sessions: list[int]) -> Outcome:
    case.write(root)
    (root / "tickets").mkdir()
    expected = write_input(case, root)
    outcome, journal = Outcome(), Journal(root)
    for _ in range(MOST_DRIVERS):
        outcome.drivers += 1
        code = _run_driver(root, sessions)
        if code == 0:
            break
        faults = list(journal.read("fault"))
        ended_by = case.points[faults[-1]["point"]].kind if faults else None
        if code != -signal.SIGKILL or ended_by not in ENDS_DRIVER:
            told = [end["sentence"] for end in journal.read("ended")][-1:]
            outcome.unasked.append(f"exit code {code}: {''.join(told)}")
        if disk_of(root).has_lost:
            disk_of(root).restore(case.keeps)
        _require_confirmed(root, journal, outcome)
    else:
        outcome.wrong.append(f"the join never ended; the last drivers: {outcome.unasked[-3:]}")
        return outcome
    _compare(case, root, expected, outcome)
    _take_times(case, journal, outcome)
    return outcome


def _run_driver(root: Path, sessions: list[int]) -> int:
    """Run a driver to its end; its exit code. What it has left behind ends by itself, or meets with the next driver; but nothing outlives
    the power."""
    with (root / "driver.log").open("a") as log:
        driver = subprocess.Popen([sys.executable, str(DRIVER), str(root)], stdout=log, stderr=log, start_new_session=True)
    sessions.append(driver.pid)
    try:
        code = driver.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()
        code = -signal.SIGALRM
    if disk_of(root).has_lost:
        for session in sessions:
            _end_session(session)
    return code


def _end_session(session: int) -> None:
    """Kill the processes that a driver has left behind."""
    while True:
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                    process.kill()
                    left.append(process)
        if not left:
            return
        psutil.wait_procs(left, timeout=5)


def _require_confirmed(root: Path, journal: Journal, outcome: Outcome) -> None:
    confirmed = max((commit["epoch"] for commit in journal.read("commit")), default=-1)
    latest = read_latest(ObjectStorage(str(root / "state")))
    found = -1 if latest is None else latest.checkpoint.epoch
    if found < confirmed:
        outcome.wrong.append(f"epoch {confirmed} was committed, and the log ends with epoch {found}")


def _compare(case: Case, root: Path, expected: Expected, outcome: Outcome) -> None:
    faults = list(Journal(root).read("fault"))
    if len(faults) != len(case.points):
        outcome.wrong.append(f"{len(faults)} of {len(case.points)} faults came: {list(Journal(root).read('missed'))}")
    began = [fault["epoch"] for fault in faults]
    of_left, of_right = expected.epoch_of

    def blamed(pairs: Iterable[tuple[int, int]]) -> Counter[Kind]:
        """By the fault before the epoch of each pair of records, of which one may be missing (-1)."""
        epochs = (max(of_left.get(left, 0), of_right.get(right, 0)) for left, right in pairs)
        return Counter(case.points[faults[max(0, bisect.bisect(began, epoch) - 1)]["point"]].kind for epoch in epochs)

    results, letters = output_of(root), letters_of(root)
    outcome.results, outcome.letters = results.total(), letters.total()
    outcome.lost += blamed((expected.results - results).elements())
    outcome.repeated += blamed((results - expected.results).elements())
    for wrong, count in ((expected.letters - letters, outcome.lost), (letters - expected.letters, outcome.repeated)):
        count += blamed((rid, -1) if name == "l" else (-1, rid) for name, rid, _ in wrong.elements())
    checkpoint = _checkpoint(root)
    missed = {miss["point"] for miss in Journal(root).read("missed")}
    kinds = {number: point.kind for number, point in enumerate(case.points) if number not in missed}
    rewritten = [fault["stream"] for fault in faults if kinds.get(fault["point"]) is Kind.FILE_REWRITTEN]
    wanted = {**expected.totals, "replaced": [rewritten.count(stream) for stream in ALL]}
    totals = {name: checkpoint.totals[name] for name in wanted}
    if totals != wanted:
        outcome.wrong.append(f"counters are {totals}, and should be {wanted}")
    outcome.wrong += _left_behind(root)


def _left_behind(root: Path) -> list[str]:
    """What is there and no commit names, once the next driver has swept."""
    storage, job = ObjectStorage(str(root / "state")), job_of(root)
    Driver(job, storage, InlineRunner()).start()
    named = {block.name for block in _checkpoint(root).state.blocks if block.extent is None}
    stray = [*set(storage.list("blocks")).symmetric_difference(named), *staged_of(root)]
    return [f"left behind, or gone: {stray[:5]}"] if stray else []


def _checkpoint(root: Path) -> Checkpoint:
    latest = read_latest(ObjectStorage(str(root / "state")))
    assert latest is not None
    return latest.checkpoint


def _take_times(case: Case, journal: Journal, outcome: Outcome) -> None:
    commits = [commit["at"] for commit in journal.read("commit")]
    missed = {miss["point"] for miss in journal.read("missed")}
    faults = list(journal.read("fault"))
    ends = [fault["at"] for fault in faults[1:]] + [math.inf]
    for fault, end in zip(faults, ends, strict=True):
        following = bisect.bisect(commits, fault["at"])
        if fault["point"] not in missed and following < len(commits):
            until = max(bisect.bisect(commits, end), following + 1)
            times = [fault["at"], *commits[following:until]]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            kind = case.points[fault["point"]].kind
            outcome.seconds[kind].append(gaps[0])
            outcome.pauses[kind].append(max(gaps))


def show(outcomes: Sequence[Outcome]) -> None:
    lines = []
    for kind in Kind:
        seconds, pauses = ([one for outcome in outcomes for one in getattr(outcome, name)[kind]] for name in ("seconds", "pauses"))
        lost, repeated = (sum(getattr(outcome, name)[kind] for outcome in outcomes) for name in ("lost", "repeated"))
        times = [f"{measure(found):.2f}" if found else "" for found in (seconds, pauses) for measure in (statistics.median, max)]
        lines.append([kind, len(seconds), *times, lost, repeated])
    print()
    head = ["fault", "times", "to the next commit, s, median", "at most", "longest pause, s, median", "at most", "lost", "repeated"]
    print(table(head, lines))
    results, letters, drivers = (sum(getattr(outcome, name) for outcome in outcomes) for name in ("results", "letters", "drivers"))
    unasked = Counter(end for outcome in outcomes for end in outcome.unasked)
    compared = f"{results:,} results and {letters:,} dead letters were compared"
    print(f"\n{compared}; {drivers} drivers, {unasked.total()} of which ended by themselves")
    for end, count in unasked.most_common(10):
        print(f"  {count} x {end[:200]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--points", type=int, default=10, help="faults of each seed")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--at-once", type=int, default=1, help="so many seeds at a time")
    parser.add_argument("--keep", type=Path, help="where to leave the directories of seeds that went wrong")
    arguments = parser.parse_args()
    print(machine(), flush=True)

    def run(seed: int) -> Outcome:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="streamjoin-soak-", ignore_cleanup_errors=True) as name:
            outcome = run_case(make_case(seed, arguments.points), Path(name))
            if not outcome.is_right and arguments.keep:
                shutil.copytree(name, arguments.keep / str(seed), dirs_exist_ok=True)
        verdict = "right" if outcome.is_right else f"WRONG: lost {outcome.lost}, repeated {outcome.repeated}, {outcome.wrong}"
        print(f"  seed {seed}: {time.monotonic() - began:.0f} s, {outcome.drivers} drivers, {verdict}", flush=True)
        return outcome

    with ThreadPoolExecutor(arguments.at_once) as pool:
        outcomes = list(pool.map(run, range(arguments.first, arguments.first + arguments.seeds)))
    show(outcomes)
    return 0 if all(outcome.is_right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
