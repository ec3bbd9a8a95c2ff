"""The example traces: their generator writes them again, and they say what its sources say."""

from __future__ import annotations

import csv
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from streamjoin.cli import main

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "examples" / "traces"
HOUR, DAY = 3600, 86_400


def tuples(name: str, side: str, begin: float, end: float) -> float:
    """How many came in a time, by the lines between a trace's rows."""
    with (TRACES / f"{name}.csv").open() as file:
        rows = [(float(row["time_s"]), float(row[side])) for row in csv.DictReader(file)]
    found = 0.0
    for (at, rate), (after, rate_after) in itertools.pairwise(rows):
        low, high = max(at, begin), min(after, end)
        if low < high:
            slope = (rate_after - rate) / (after - at)
            found += (high - low) * (rate + slope * ((low + high) / 2 - at))
    return found


def hourly(side: str) -> list[list[float]]:
    """Of the taxis: by day and hour."""
    return [[tuples("taxi", side, DAY * day + HOUR * hour, DAY * day + HOUR * (hour + 1)) for hour in range(24)] for day in range(7)]


def test_the_generator_writes_the_files_that_are_there(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(TRACES / "generate.py"), str(tmp_path)], check=True, capture_output=True)
    for name in ("taxi.csv", "exchange.csv"):
        assert (tmp_path / name).read_bytes() == (TRACES / name).read_bytes(), name
    text = (TRACES / "README.md").read_text()
    assert {path.name for path in TRACES.glob("*.csv")} == set(re.findall(r"^\| `(\w+\.csv)`", text, re.MULTILINE))


def test_taxis_are_as_the_city_counts_them() -> None:
    street, app = hourly("left_rate"), hourly("right_rate")
    assert sum(map(sum, street)) / sum(map(sum, app)) == pytest.approx(474_000 / 146_000, rel=0.01)
    mean = [sum(day[hour] for day in street) / 7 for hour in range(24)]
    assert mean.index(min(mean)) == 5
    assert mean.index(max(mean)) == 19
    assert max(mean) / min(mean) == pytest.approx(28_916 / 4_271, rel=0.05)
    for day in street[:5]:
        assert day.index(max(day)) in (18, 19, 20)
        assert max(day[7:10]) < max(day[18:21])
    assert max(map(max, street)) == max(street[4][19:21]), "Friday at 8 PM"
    assert max(map(max, app)) == max(app[5][20:]), "Saturday evening"
    assert sum(sum(day[20:]) for day in app) / sum(map(sum, app)) == pytest.approx(0.24, abs=0.01)


def test_the_exchange_trades_when_exchanges_do() -> None:
    def part(begin: float, end: float) -> float:
        return sum(tuples("exchange", side, HOUR * begin, HOUR * end) for side in ("left_rate", "right_rate"))

    session = part(9.5, 16)
    assert 0.11 <= part(9.5, 10) / session <= 0.126
    # The auction's 7 % come in the last ten minutes.
    assert part(15, 16) / session == pytest.approx(0.28 + 0.07, abs=0.01)
    assert part(15.75, 16) > 0.5 * part(15, 16)
    halves = [part(10 + at / 2, 10.5 + at / 2) for at in range(10)]
    assert 4 <= halves.index(min(halves)) <= 7, "between noon and 2 PM"
    assert part(0, 9.5) + part(16, 24) < 0.05 * session


@pytest.mark.parametrize("trace", ["exchange", "taxi", "week"])
def test_looking_ahead_costs_little_more_than_knowing(trace: str) -> None:
    """What was added for a rush is given back after it, also where nothing comes any more."""
    arguments = ["--trace", str(TRACES / f"{trace}.csv"), "--policy", "predictive", "--step", "30s", "--json"]
    done = CliRunner().invoke(main, ["simulate", str(ROOT / "examples" / "scaling.yaml"), *arguments])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    own = found["outcomes"][0]
    assert own["workerHours"] <= 1.15 * found["least"]["sequenceWorkerHours"]
    assert own["shedTuples"] <= 0.002 * own["inputTuples"], "the exchange's last minutes come unannounced"
