"""Makes the two streams of ``sensors.yaml``: drops of pressure in a pipeline, and noises heard beside it.

    python examples/sensors/data.py

Each stream is written as eight CSV files to ``out/sensors/data``. The same rows come on every machine.
"""

from __future__ import annotations

import argparse
import csv
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

DATA = Path("out/sensors/data")
START = datetime(2026, 3, 1, tzinfo=UTC)
SECONDS = 1000
METRES = 50_000
FILES = 8
LEAKS = 25
PUMPS = (30_000, 30_500)
"""A third of all noises come from this stretch: the pumps."""

Row = tuple[float, int, float]
"""Second, metre, and bar lost or decibels."""


def streams(random_: random.Random) -> dict[str, list[Row]]:
    """Both streams in the order of event time: background, and leaks that are seen and heard at one place."""
    drops = [(random_.uniform(0, SECONDS), random_.randrange(METRES), random_.uniform(0.01, 0.2)) for _ in range(10_000)]
    noises = []
    for number in range(20_000):
        metre = random_.randrange(*PUMPS) if number % 3 == 0 else random_.randrange(METRES)
        noises.append((random_.uniform(0, SECONDS), metre, random_.uniform(30, 60)))
    for _ in range(LEAKS):
        second, metre = random_.uniform(10, SECONDS - 10), random_.randrange(1000, METRES - 1000)
        drops += [(second + random_.uniform(0, 2), metre + random_.randint(-100, 100), random_.uniform(0.5, 2)) for _ in range(3)]
        noises += [(second + random_.uniform(0, 2), metre + random_.randint(-100, 100), random_.uniform(70, 95)) for _ in range(4)]
    return {"drops": sorted(drops), "noises": sorted(noises)}


def write(folder: Path, rows: list[Row]) -> None:
    """Eight files, each of an eighth of the time; records are a little out of order, as sensors report them."""
    folder.mkdir(parents=True)
    disorder = random.Random(folder.name)
    numbered = sorted(enumerate(rows), key=lambda row: row[1][0] + disorder.uniform(0, 0.5))
    for number in range(FILES):
        with (folder / f"{number}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["id", "metre", "size", "at"])
            for place, (second, metre, size) in numbered[len(rows) * number // FILES : len(rows) * (number + 1) // FILES]:
                at = START + timedelta(milliseconds=round(second * 1000))
                writer.writerow([place, metre, f"{size:.3f}", at.isoformat(timespec="milliseconds")])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help=f"where to write (default: {DATA})")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.data, ignore_errors=True)
    for name, rows in streams(random.Random(50)).items():
        write(arguments.data / name, rows)
        print(f"{arguments.data / name}: {len(rows):,} rows in {FILES} files")


if __name__ == "__main__":
    main()
