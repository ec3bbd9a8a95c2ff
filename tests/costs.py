"""What each test costs, and what it waits for: recorded by a run with ``STREAMJOIN_RECORD=FILE``, printed by ``make test-costs``.

A line of the record is one phase (setup, call or teardown) of one test: its seconds, the processor time of the process that ran it and
of this process' descendants (servers that live on included), and the seconds that its main thread waited, by what it waited for: a
``sleep``, the end of a ``process``, another ``thread``, or a condition of :func:`waiting.wait_for`. Of a setup it names the fixtures that
took longer than :data:`NOTABLE_SECONDS`, which is how long a server takes to start.

Known limits: descendants are counted on Linux alone, and one that is reparented is lost with what it took; threads of a process
count for the test that runs meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

NOTABLE_SECONDS = 0.5
"""Fixtures that took less are not named."""

TICKS = os.sysconf("SC_CLK_TCK")
MAIN = threading.main_thread()


class Waits:
    """The seconds that the main thread has waited, by what for; a wait within another one counts for the outer one."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inside = False

    def timed(self, function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        def waiting(*arguments: Any, **options: Any) -> Any:
            if self._inside or threading.current_thread() is not MAIN:
                return function(*arguments, **options)
            self._inside, began = True, time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._inside = False
                self.seconds[name(*arguments)] += time.perf_counter() - began

        return waiting

    def watch(self) -> None:
        """Has the functions by which tests wait measured, for the rest of this process."""
        import waiting

        for owner, attribute, kind in (
            (time, "sleep", "sleep"),
            (subprocess.Popen, "wait", "process"),
            (subprocess.Popen, "communicate", "process"),
            (threading.Condition, "wait", "thread"),
        ):
            setattr(owner, attribute, self.timed(getattr(owner, attribute), lambda *_, kind=kind: kind))
        waiting.wait_for = self.timed(waiting.wait_for, lambda what, *_: f"until {what}")


def descendants(process: str = "self") -> Iterator[str]:
    """The processes below one, by their numbers."""
    try:
        tasks = os.listdir(f"/proc/{process}/task")
    except OSError:  # it has ended, or this system has no such files
        return
    for task in tasks:
        try:
            found = Path(f"/proc/{process}/task/{task}/children").read_text().split()
        except OSError:  # that thread has ended
            continue
        for child in found:
            yield child
            yield from descendants(child)


def processor_seconds() -> tuple[float, float]:
    """Of this process, and of all that were or are below it, since they began."""
    times = os.times()
    below = times.children_user + times.children_system
    for process in descendants():
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        below += sum(map(int, fields[11:15])) / TICKS
    return times.user + times.system, below


class Meter:
    """Measures the phases of the tests that this process runs."""

    def __init__(self) -> None:
        self._waits = Waits()
        self._waits.watch()
        self._fixtures: dict[str, float] = {}
        self._last = processor_seconds()
        self._began: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        began = time.perf_counter()
        made = yield
        took = time.perf_counter() - began
        if took >= NOTABLE_SECONDS:
            self._fixtures[fixturedef.argname] = round(took, 3)
        return made

    def _begin(self) -> None:
        self._waits.seconds.clear()
        self._fixtures = {}
        self._began = (time.perf_counter(), *self._last)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        self._begin()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None]:
        self._begin()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None]:
        self._begin()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        own, below = self._last = processor_seconds()
        cost = {
            "seconds": round(time.perf_counter() - self._began[0], 3),
            "own": round(own - self._began[1], 3),
            "below": round(max(0.0, below - self._began[2]), 3),
            "waited": {what: round(seconds, 3) for what, seconds in self._waits.seconds.items() if seconds >= 0.005},
            "fixtures": self._fixtures,
        }
        report.user_properties.append(("cost", cost))
        return report


class Recorder:
    """Writes what all processes measured, a line for each phase."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, cost in report.user_properties:
            if name == "cost":
                self._file.write(json.dumps({"test": report.nodeid, "phase": report.when, "outcome": report.outcome} | cost) + "\n")
                self._file.flush()
        report.user_properties[:] = [one for one in report.user_properties if one[0] != "cost"]

    def pytest_unconfigure(self) -> None:
        self._file.close()


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get("STREAMJOIN_RECORD")
    if not path:
        return
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Meter())
    if not is_worker:
        config.pluginmanager.register(Recorder(Path(path)))


def table(title: str, rows: dict[str, Counter[str]], most: int) -> None:
    """The dearest by processor time."""
    print(f"\n{'processor s':>12}{'own':>8}{'below':>8}{'wall s':>8}{'waited':>8}  {title}; waited for")
    for name, sums in sorted(rows.items(), key=lambda row: -(row[1]["own"] + row[1]["below"]))[:most]:
        waits = Counter({what.removeprefix("? "): seconds for what, seconds in sums.items() if what.startswith("? ") and seconds >= 0.5})
        said = ", ".join(f"{what} {seconds:.1f}" for what, seconds in waits.most_common(4))
        waited = sum(seconds for what, seconds in sums.items() if what.startswith("? ") and not what.startswith("? fixture"))
        numbers = (sums["own"] + sums["below"], sums["own"], sums["below"], sums["seconds"], waited)
        print(f"{numbers[0]:>12.1f}{''.join(f'{number:>8.1f}' for number in numbers[1:])}  {name}; {said}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Print what the tests of a run cost, and what they waited for.")
    parser.add_argument("record", type=Path, nargs="?", default=Path("out/tests.jsonl"))
    parser.add_argument("--files", type=int, default=20, help="how many files")
    parser.add_argument("--tests", type=int, default=40, help="how many tests")
    arguments = parser.parse_args()
    if not arguments.record.exists():
        print(f"{arguments.record}: is not there; make test writes out/tests.jsonl", file=sys.stderr)
        return 1
    by_file: defaultdict[str, Counter[str]] = defaultdict(Counter)
    by_test: defaultdict[str, Counter[str]] = defaultdict(Counter)
    every: Counter[str] = Counter()
    for line in arguments.record.read_text().splitlines():
        phase = json.loads(line)
        sums = Counter({name: phase[name] for name in ("seconds", "own", "below")})
        sums.update({f"? {what}": seconds for what, seconds in phase["waited"].items()})
        sums.update({f"? fixture {name}": seconds for name, seconds in phase["fixtures"].items()})
        for one in (by_file[phase["test"].partition("::")[0]], by_test[phase["test"].removeprefix("tests/")], every):
            one.update(sums)
    table("all", {f"{len(by_test)} tests in {len(by_file)} files": every}, 1)
    table("file", dict(by_file), arguments.files)
    table("test", dict(by_test), arguments.tests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
