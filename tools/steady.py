"""Shows that the suite fails only for faults: runs it beside busy processes, on one core, and then many times in a row.

    python tools/steady.py                  beside four busy processes, on one core, and ten times
    python tools/steady.py --runs 3         three times, and the other two
    python tools/steady.py --only one-core

Prints a line for each run: its seconds and what pytest counted, and for one that is red the tests that failed and where its output is.
The exit code is 1 if a run was red; the others go on all the same, so that a test that fails by luck is seen as such. What runs is
``make test``, or the command after ``--``. Only the standard library is used.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("busy", "one-core", "plain")


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing but take processor time."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def one_core() -> Iterator[None]:
    """This process and all that it starts have one core. Raises AttributeError where the system cannot say so (macOS)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run(name: str, command: list[str], log: Path) -> bool:
    """One run; whether it was green."""
    began = time.monotonic()
    with log.open("w") as output:
        code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False).returncode
    text = log.read_text(errors="replace")
    closing = re.findall(r"=+ (.*(?:passed|failed|error).*) =+$", text, re.MULTILINE)
    counted = closing[-1] if closing else f"exit code {code}"
    print(f"{name}: {'RED' if code else 'green'}, {time.monotonic() - began:.0f} s, {counted}", flush=True)
    if code:
        for line in re.findall(r"^(?:FAILED|ERROR) .*$", text, re.MULTILINE):
            print(f"  {line}", flush=True)
        print(f"  {log}", flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the suite beside busy processes, on one core, and many times in a row.")
    parser.add_argument("--runs", type=int, default=10, help="how many in a row")
    parser.add_argument("--busy", type=int, default=4, help="how many busy processes")
    parser.add_argument("--only", choices=KINDS, help="one kind alone")
    parser.add_argument("command", nargs="*", default=["make", "test"])
    arguments = parser.parse_args()
    logs = ROOT / "out" / "steady"
    logs.mkdir(parents=True, exist_ok=True)
    wanted = [arguments.only] if arguments.only else list(KINDS)
    green = []
    if "busy" in wanted:
        with busy(arguments.busy):
            green.append(run(f"beside {arguments.busy} busy processes", arguments.command, logs / "busy.log"))
    if "one-core" in wanted:
        with one_core():
            green.append(run("on one core", arguments.command, logs / "one-core.log"))
    if "plain" in wanted:
        for number in range(1, arguments.runs + 1):
            green.append(run(f"run {number} of {arguments.runs}", arguments.command, logs / f"{number}.log"))
    print(f"{sum(green)} of {len(green)} runs were green")
    return int(not all(green))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
