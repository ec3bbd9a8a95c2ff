"""A join from Python: two streams of numbers are made, joined by a band, and asked for what was found.

    python examples/from_python.py

Everything is kept in out/from-python. A second run goes on from there: it finds nothing new.
"""

from __future__ import annotations

import streamjoin


def made_up(seed: int, rows: int) -> dict[str, object]:
    """A stream of made-up readings: a sensor's number, a value, and when."""
    columns = {
        "id": {"sequence": {}},
        "sensor": {"zipf": {"values": 100, "exponent": 1.1}},
        "value": {"uniform": {"min": 0, "max": 10_000}},
    }
    generator = {"seed": seed, "rows": rows, "rate": {"constant": 500}, "realTime": False, "columns": columns}
    return {"source": {"generator": generator}, "schema": "id BIGINT, sensor INT, value BIGINT, at TIMESTAMP", "eventTime": "at"}


join = streamjoin.Join.of(
    "alike",
    streams={"here": made_up(1, 5000), "there": made_up(2, 5000)},
    joins={
        "alike": {
            "condition": "here.sensor = there.sensor AND abs(here.value - there.value) <= 50",
            "window": {"within": "5s"},
            "output": {
                "select": ["here.id AS here_id", "there.id AS there_id", "here.sensor", "here.value - there.value AS difference"],
                "sink": {"console": {}},
                "snapshots": {"size": 1000, "key": "sensor"},
            },
        }
    },
    checkpoint="out/from-python",
    workers=2,
    epoch={"interval": "10ms", "maxTuples": 1000},
)

problems = join.validate()
if problems:
    raise SystemExit("\n".join(map(str, problems)))
print(join.plan())

with join.run(runner="inline", until_idle=True) as run:
    for epoch in run:
        found = epoch.results["alike"]
        here = epoch.counts["here"]["accepted"]
        print(f"epoch {epoch.number}: {here} here, {epoch.output} alike, {epoch.seconds:.3f} s; the first: {found.slice(0, 1).to_pylist()}")

answer = join.query("SELECT sensor, count(*) AS alike FROM alike GROUP BY sensor ORDER BY alike DESC LIMIT 3")
for row in answer.to_pylist():
    print(row)
