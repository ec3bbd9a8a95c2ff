"""The share of like cases that a test runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cases


@pytest.fixture(autouse=True)
def a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the variable, whatever this run has."""
    monkeypatch.setattr(cases, "ALL", False)
    monkeypatch.setattr(cases, "_ASKED", "")


def test_shares_of_the_same_cases_are_all_of_them_together() -> None:
    shares = [cases.some(range(10), of=3, since=since) for since in range(3)]
    assert shares == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert cases.some(range(10), of=3, since=4) == shares[1]


def test_ways_take_turns() -> None:
    ways = [cases.in_turn("xyz", "test", number) for number in range(6)]
    assert ways[:3] == ways[3:]
    assert sorted(way for (way,) in ways[:3]) == ["x", "y", "z"]
    assert cases.in_turn(["only"], "test", 5) == ["only"]


def test_all_cases_can_be_asked_for_or_a_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cases.how_many(240, of=3) == 80
    assert cases.how_many(2, of=3) == 1
    monkeypatch.setattr(cases, "_ASKED", "1000")
    assert cases.how_many(240, of=3) == 1000
    monkeypatch.setattr(cases, "ALL", True)
    assert cases.how_many(240, of=3) == 240
    assert cases.some(range(3), of=2) == [0, 1, 2]
    assert cases.in_turn("xyz", "test", 0) == "xyz"


def test_what_is_neither_is_refused() -> None:
    command = [sys.executable, "-c", "import cases"]
    done = subprocess.run(command, cwd=Path(__file__).parent, env={"STREAMJOIN_CASES": "many"}, capture_output=True, text=True, check=False)
    assert '"many" is neither "all" nor a number of cases' in done.stderr
