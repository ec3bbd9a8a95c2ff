"""Makes the two streams of ``quotes.yaml``: the trades and the quotes of six instruments.

    python examples/quotes/data.py

Each stream is written as five Parquet files to ``out/quotes/data``. The same rows come on every machine.
"""

from __future__ import annotations

import argparse
import random
import shutil
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path("out/quotes/data")
START = datetime(2026, 3, 2, 9, tzinfo=UTC)
SECONDS = 600
FILES = 5
SYMBOLS = ("AAA", "BBB", "CCC", "DDD", "EEE", "FFF")
QUOTES, TRADES = 30_000, 6000
SCHEMA = pa.schema([("id", pa.int64()), ("symbol", pa.string()), ("price", pa.decimal128(8, 2)), ("at", pa.timestamp("us", "UTC"))])

Row = tuple[float, str, int]
"""Second, symbol, price in cents."""


def streams(random_: random.Random) -> dict[str, list[Row]]:
    """Both streams in the order of event time: prices wander, and a trade is made near the price of its second."""
    cents = {symbol: [random_.randint(5_000, 20_000)] for symbol in SYMBOLS}
    for path in cents.values():
        for _ in range(SECONDS):
            path.append(path[-1] + random_.randint(-4, 4))

    def made(count: int, spread: int) -> list[Row]:
        rows = []
        for _ in range(count):
            second, symbol = random_.uniform(0, SECONDS), random_.choices(SYMBOLS, (30, 10, 4, 2, 1, 1))[0]
            rows.append((second, symbol, cents[symbol][int(second)] + random_.randint(-spread, spread)))
        return sorted(rows)

    return {"trades": made(TRADES, 6), "quotes": made(QUOTES, 10)}


def write(folder: Path, rows: list[Row]) -> None:
    """Five files, each of two minutes."""
    folder.mkdir(parents=True)
    for number in range(FILES):
        part = [(place, row) for place, row in enumerate(rows) if int(row[0] * FILES / SECONDS) == number]
        columns = {
            "id": [place for place, _ in part],
            "symbol": [symbol for _, (_, symbol, _) in part],
            "price": [Decimal(price) / 100 for _, (_, _, price) in part],
            "at": [START + timedelta(milliseconds=round(second * 1000)) for _, (second, _, _) in part],
        }
        pq.write_table(pa.table(columns, SCHEMA), folder / f"{number}.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help=f"where to write (default: {DATA})")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.data, ignore_errors=True)
    for name, rows in streams(random.Random(52)).items():
        write(arguments.data / name, rows)
        print(f"{arguments.data / name}: {len(rows):,} rows in {FILES} files")


if __name__ == "__main__":
    main()
