"""Says which tests were skipped and what brings the programs that they lack; where all are to be had, a skip is a failure.

The reason of a skip names what is missing and the command that brings it: ``no kube-apiserver (make kubernetes)``. After a
run the terminal shows all of them in one line. With ``STREAMJOIN_NO_SKIPS=1`` in the environment (``.ci/run``) a skipped
test fails, except for the reasons in ``ALLOWED``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Generator

import pytest

NO_RESIZE = "this version of Kubernetes resizes no pods"
ALLOWED = (
    r"this machine has no ::1",  # Containers have no IPv6 unless somebody asked for it, and nothing can be installed that brings it.
    r"this machine lets no other user run our Python",  # Nobody but root may become another user.
    NO_RESIZE,
    r"this machine makes no network namespaces",  # A container may not be let to, whatever is installed in it.
)
"""Regular expressions of reasons that may keep a test from running on a machine that has every program."""


def lacks(what: str, remedy: str) -> str:
    """The reason of a skip. ``remedy`` is a command."""
    return f"no {what} ({remedy})"


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test, or a module, was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(text.removeprefix("Skipped: ").split())


def judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Makes a failure of a skip that the environment rules out."""
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get("STREAMJOIN_NO_SKIPS") != "1":
        return
    reason = reason_of(report)
    if not any(re.match(allowed, reason) for allowed in ALLOWED):
        report.outcome = "failed"
        report.longrepr = f"skipped: {reason}; STREAMJOIN_NO_SKIPS=1 makes that a failure"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    judge(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    judge(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """After everything else, where it is seen."""
    yield
    reasons = Counter(reason_of(report) for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        tests = "1 test" if reasons.total() == 1 else f"{reasons.total()} tests"
        terminalreporter.write_line(f"skipped: {tests}: {', '.join(reason for reason, _ in reasons.most_common())}")
