"""Writes taxi.csv and exchange.csv: traffic for ``simulate``, made from published statistics of a city's taxis and of an exchange.

    python examples/traces/generate.py [DIRECTORY]

Nothing here is a recording. What each source says is a constant below, with its address; what lies between is interpolated, and what no
source says is marked "made up". The same files every time. Needs NumPy alone.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

HOUR, DAY = 3600.0, 86_400.0

# Taxis: the 2016 TLC Factbook of the New York City Taxi & Limousine Commission (nyc.gov/tlcfactbook) and, for the hours,
# N. M. Hawley's averages over the commission's trip records (https://nmhawley.github.io/project-d).
STREET_TRIPS, APP_TRIPS = 474_000, 146_000
"""A day: of medallion taxis and street hails (2014 and 2015), and of app-based cars (second half of 2015). Factbook."""
AT_5, AT_19 = 4_271, 28_916
"""Trips from 5 to 6 in the morning, the fewest of all hours, and from 7 to 8 in the evening, on average. Hawley."""
APP_EVENING = 0.24
"""Of all app trips: between 8 PM and midnight. Factbook."""
MESSAGES = 700
"""Of one trip: tuples, as positions and meters are reported all the time. Made up, to fill the workers of examples/scaling.yaml."""

# Exchange: shares of a day's volume in US equities.
FIRST_HALF_HOUR = 0.12
"""11.0 % to 12.6 %: NYSE Data Insights, 2021-12-02
(https://www.nyse.com/data-insights/opening-auction-filling-behaviors-opportunities-early-in-the-day)."""
LAST_HOUR, CLOSING_AUCTION = 0.28, 0.07
"""Of continuous trading, for names of the S&P 500, and the auction beside it. ITG, Question of the Week of 2016-07-19
(http://analyticsincubator.itginc.com/community/how-much-volume-trades-in-the-last-hour-of-the-day-for-sp500-and-russell-2000-stocks/)."""
LAST_QUARTER = LAST_HOUR * 20 / 33
"""As for the Russell 2000, of whose 33 % in the last hour nearly 20 % are in its last fifteen minutes. ITG, as above."""
EXTENDED = 0.02
"""Before 9:30, and as much after 16:00, beside the day. Made up."""
EVENTS = 14_000_000
"""Of a day, of each of two streams: orders to buy, and orders to sell. Made up, to fill the workers of examples/scaling.yaml."""

Array = np.ndarray[Any, np.dtype[Any]]


def taxi() -> list[tuple[float, ...]]:
    """A week from Monday at midnight, a row for every quarter of an hour: street trips on the left, app trips on the right."""
    at = np.arange(0, 7 * DAY + 1, 900.0)
    hours = (at % DAY) / HOUR
    weekend = np.isin((at // DAY) % 7, (5, 6))
    # On workdays a surge before nine, and the peak between 6 and 8 PM; at week-ends later mornings and longer nights. The levels between
    # the lowest and the highest hour are made up.
    low = AT_5 / AT_19
    fewest = {5: low, 6: low}
    day = {7: 0.6, 8.5: 0.82, 10.5: 0.76, 13.5: 0.8, 16.5: 0.7, 19: 1.0, 20: 1.0, 21: 0.97, 23: 0.8}
    workday = _curve(hours, {0: 0.55, 2: 0.3, 4: 0.19} | fewest | day)
    late = {7.5: 0.24, 10: 0.55, 13.5: 0.78, 16.5: 0.76, 19: 1.0, 20: 1.0, 21: 0.85, 23: 0.95}
    free = _curve(hours, {0: 0.95, 2: 0.75, 4: 0.4} | fewest | late)
    street = np.where(weekend, free, workday)
    # Friday at 8 PM is the peak of the week.
    street *= 1 + 0.12 * np.exp(-(((at - (4 * DAY + 20 * HOUR)) / (1.5 * HOUR)) ** 2))
    app = 0.35 + 0.65 * street
    evening = np.exp(-(((hours - 22) / 2.2) ** 2))
    app = app * np.where(weekend, 1.1, 1.0) * _with_share(app, evening, (hours >= 20), APP_EVENING)
    # Saturday evening is the peak of the week.
    app *= 1 + 0.35 * np.exp(-(((at - (5 * DAY + 22 * HOUR)) / (2 * HOUR)) ** 2))
    noise = 1 + 0.02 * np.random.default_rng(2015).standard_normal((2, len(at)))
    left = street / street.mean() * STREET_TRIPS * MESSAGES / DAY * noise[0]
    right = app / app.mean() * APP_TRIPS * MESSAGES / DAY * noise[1]
    # Trips begin where people work by day, and where they go out at night: that they gather, and where, is the sources'; how much, made up.
    night = (hours >= 20) | (hours < 5)
    return list(zip(at, left, right, np.where(night, 1.8, 1.5), np.where(night, 0.62, 0.35), strict=True))


def _with_share(base: Array, bump: Array, within: Array, share: float) -> Array:
    """The factor that gives ``base`` this share of its sum ``within`` some hours, by adding as much of ``bump`` as that takes."""
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        whole = base * (1 + middle * bump)
        low, high = (middle, high) if whole[within].sum() / whole.sum() < share else (low, middle)
    return 1 + low * bump


def _curve(hours: Array, points: dict[float, float]) -> Array:
    """Through these points, evenly, and around midnight."""
    return np.asarray(np.interp(hours, list(points), list(points.values()), period=24))


def exchange() -> list[tuple[float, ...]]:
    """One trading day from midnight to midnight, New York's time, a row for every minute."""
    at = np.arange(0, DAY + 1, 60.0)
    minute = at / 60
    opening, closing, last_hour, last_quarter = 570, 960, 900, 945
    share = np.zeros(len(at))
    first = (minute >= opening) & (minute < opening + 30)
    middle = (minute >= opening + 30) & (minute < last_hour)
    before_last = (minute >= last_hour) & (minute < last_quarter)
    last = (minute >= last_quarter) & (minute < closing)
    _fill(share, first, np.exp(-(minute - opening) / 25), FIRST_HALF_HOUR)
    # The bottom of the U is after lunch, and there are news at ten; its depth is made up.
    news = 1 + 0.5 * ((minute >= 600) & (minute < 605))
    _fill(share, middle, (1 + 0.9 * ((minute - 780) / 180) ** 2) * news, 1 - FIRST_HALF_HOUR - LAST_HOUR - CLOSING_AUCTION)
    _fill(share, before_last, np.exp((minute - last_hour) / 90), LAST_HOUR - LAST_QUARTER)
    _fill(share, last, np.exp((minute - last_quarter) / 12), LAST_QUARTER)
    # Orders for the auction come in the ten minutes before it.
    auction = np.zeros(len(at))
    _fill(auction, (minute >= closing - 10) & (minute < closing), np.ones(len(at)), CLOSING_AUCTION)
    extended = np.zeros(len(at))
    _fill(extended, (minute >= 240) & (minute < opening), np.exp((minute - opening) / 60), EXTENDED)
    _fill(extended, (minute >= closing) & (minute < 1200), np.exp(-(minute - closing) / 40), EXTENDED)
    noise = 1 + 0.05 * np.random.default_rng(2021).standard_normal((2, len(at)))
    # Sellers outnumber buyers in the afternoon by a fifth, for once. Made up.
    tilt = np.interp(minute, [0, 780, 840, 1440], [0, 0, 0.1, 0.1])
    both = (share + auction + extended) * EVENTS / 60
    # What is traded most is another thing every day, and in the last quarter of an hour what the indices hold. Made up.
    hot = np.select([minute < opening, minute < last_quarter], [0.2, 0.55], 0.8)
    return list(zip(at, both * (1 - tilt) * noise[0], both * (1 + tilt) * noise[1], np.where(minute < opening, 1.0, 1.4), hot, strict=True))


def _fill(into: Array, where: Array, shape: Array, share: float) -> None:
    """Spread a share over some minutes."""
    into[where] += share * shape[where] / shape[where].sum()


def write(path: Path, rows: list[tuple[float, ...]]) -> None:
    """The trace, rates in whole tuples per second."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["time_s", "left_rate", "right_rate", "skew", "hot"])
        writer.writerows([f"{at:.0f}", f"{left:.0f}", f"{right:.0f}", f"{skew:g}", f"{hot:g}"] for at, left, right, skew, hot in rows)


def main(directory: Path) -> None:
    """Write both."""
    for name, rows in (("taxi", taxi()), ("exchange", exchange())):
        write(directory / f"{name}.csv", rows)
        print(f"{directory / name}.csv: {len(rows):,} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
