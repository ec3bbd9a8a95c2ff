"""Tables (Delta, Iceberg) of which somebody has damaged data files, or files of the log: see ``fuzz``.

Sure are the rows of data files that were not damaged. Where the log was damaged, the join ends and says so, or reads every row.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa

from fuzz_inputs import Left, Row, Sure, mutated, records_of, table_of

COMMITS = 6
LOGS = {
    "delta": ("_delta_log/*.json", "_delta_log/*.parquet", "_delta_log/_last_checkpoint"),
    "iceberg": ("metadata/snap-*.avro", "metadata/*-m*.avro", "metadata/*.metadata.json"),
}
"""By form, what the files of the log are called."""
NAMES_ANOTHER = ("cannot be read (it is not there)", " is missing: ", "is not among those that led to its newest one")
"""How a sentence goes about what a damaged file names, and what is not there."""
NAME = "results.pairs"


def table(root: Path, form: str, rng: random.Random) -> Left:
    """A table below ``root``."""
    begins_at_first = rng.random() < 0.5
    if form == "delta":
        source, place, added = _delta(root, rng, begins_at_first)
    else:
        source, place, added = _iceberg(root, rng, begins_at_first)
    most = sum(added.values(), Counter[Row]())
    if rng.random() < 0.4:
        damaged = set(_damaged(sorted(added), rng))
        sure = [Sure(Counter() if path in damaged else rows, 0, None if path in damaged else rows.total()) for path, rows in added.items()]
        return Left(source, sure, most=None if damaged else most)
    paths: list[Path] = []
    while not paths:  # some tables have no checkpoint
        paths = sorted(place.glob(rng.choice(LOGS[form])))
    # Of Iceberg's metadata only the newest is read.
    paths = paths[-1:] if paths[0].name.endswith(".metadata.json") else paths
    damaged_log = tuple(path.name for path in _damaged(paths, rng))
    return Left(source, [Sure(most, 0, None)], most=most, damaged=damaged_log + NAMES_ANOTHER)


def _damaged(paths: list[Path], rng: random.Random) -> list[Path]:
    """Damages one or two of the files; which."""
    chosen = rng.sample(paths, min(len(paths), rng.choice([1, 1, 2])))
    for path in chosen:
        path.write_bytes(mutated(path.read_bytes(), rng))
    return chosen


def _rows(records: list[dict[str, object]]) -> Counter[Row]:
    return Counter((each["id"], each["k"], each["v"]) for each in records)  # type: ignore[misc]


def _delta(root: Path, rng: random.Random, begins_at_first: bool) -> tuple[str, Path, dict[Path, Counter[Row]]]:
    """The source, where the table is, and by data file its rows."""
    from deltalake import DeltaTable, write_deltalake

    place, added = root / "l", dict[Path, Counter[Row]]()
    partition_by = ["b"] if rng.random() < 0.3 else None
    for number in range(COMMITS):
        records = records_of(rng, number * 1000)
        write_deltalake(place, table_of(records), mode="append", partition_by=partition_by)
        by_value = {value: [each for each in records if each["b"] is value] for value in (True, False)}
        for path in set(place.rglob("*.parquet")) - set(added) - set(place.glob("_delta_log/*")):
            is_part = path.parent.name.partition("=")[2]
            added[path] = _rows(by_value[is_part == "true"] if is_part else records)
        if number == COMMITS - 3 and rng.random() < 0.7:
            DeltaTable(place).create_checkpoint()
    return f"delta: {{path: l{', startingVersion: 0' if begins_at_first else ''}}}", place, added


def _iceberg(root: Path, rng: random.Random, begins_at_first: bool) -> tuple[str, Path, dict[Path, Counter[Row]]]:
    from pyiceberg.catalog import load_catalog

    properties = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}"}
    catalog, added, schema = load_catalog("default", **properties), dict[Path, Counter[Row]](), table_of(records_of(rng, 0)).schema
    catalog.create_namespace(NAME.partition(".")[0])
    made = catalog.create_table(NAME, pa.schema(schema))
    place = Path(made.location().removeprefix("file://"))
    for number in range(COMMITS - 2):
        records = records_of(rng, number * 1000)
        made.append(table_of(records))
        (path,) = set(place.rglob("*.parquet")) - set(added)
        added[path] = _rows(records)
    start = f", startingSnapshot: {made.snapshots()[0].snapshot_id}" if begins_at_first else ""
    options = ", ".join(f'{name}: "{value}"' for name, value in properties.items())
    return f"iceberg: {{table: {NAME}, catalog: {{{options}}}{start}}}", place, added
