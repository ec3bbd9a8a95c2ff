"""Makes the two streams of ``fraud.yaml``: orders and payments, with some rings of fraud among them.

    python examples/fraud/data.py

Each stream is written as six files of JSON lines to ``out/fraud/data``. The same rows come on every machine.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

DATA = Path("out/fraud/data")
START = datetime(2026, 3, 1, tzinfo=UTC)
SECONDS = 3600
FILES = 6
ORDERS = 30_000
CUSTOMERS = 8000
NETWORKS = 500
RINGS = 4
PAIRS_OF_A_RING = 25

Row = dict[str, Any]


def streams(random_: random.Random) -> dict[str, list[Row]]:
    """Both streams in the order of event time. Most orders are paid by their customer; a ring's are imitated from its network."""
    network = [f"10.{random_.randrange(NETWORKS) // 250}.{random_.randrange(250)}.0" for _ in range(CUSTOMERS)]
    orders, payments = [], []

    def one(second: float, customer: int, cents: int, address: str) -> Row:
        at = START + timedelta(milliseconds=round(second * 1000))
        return {"customer": customer, "network": address, "amount": f"{cents / 100:.2f}", "at": at.isoformat(timespec="milliseconds")}

    for _ in range(ORDERS):
        second, customer, cents = random_.uniform(0, SECONDS), random_.randrange(CUSTOMERS), random_.randint(500, 50_000)
        orders.append(one(second, customer, cents, network[customer]))
        if random_.random() < 0.97:
            payments.append(one(second + random_.uniform(2, 300), customer, cents, network[customer]))
    for ring in range(RINGS):
        address = f"192.0.2.{ring}"
        begin = random_.uniform(0, SECONDS - 900)
        for _ in range(PAIRS_OF_A_RING):
            second, cents = begin + random_.uniform(0, 600), random_.randint(500, 50_000)
            victim, thief = random_.sample(range(CUSTOMERS), 2)
            orders.append(one(second, victim, cents, address))
            payments.append(one(second + random_.uniform(1, 60), thief, cents - random_.randint(0, 20), address))
    return {name: sorted(rows, key=lambda row: str(row["at"])) for name, rows in {"orders": orders, "payments": payments}.items()}


def write(folder: Path, rows: list[Row]) -> None:
    """Six files, each of ten minutes."""
    folder.mkdir(parents=True)
    files: list[list[str]] = [[] for _ in range(FILES)]
    for number, row in enumerate(rows):
        minutes = (datetime.fromisoformat(row["at"]) - START).total_seconds() / 60
        files[min(int(minutes / (SECONDS / 60 / FILES)), FILES - 1)].append(json.dumps({"id": number, **row}) + "\n")
    for number, lines in enumerate(files):
        (folder / f"{number}.json").write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help=f"where to write (default: {DATA})")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.data, ignore_errors=True)
    for name, rows in streams(random.Random(51)).items():
        write(arguments.data / name, rows)
        print(f"{arguments.data / name}: {len(rows):,} rows in {FILES} files")


if __name__ == "__main__":
    main()
