"""Run while the image for Spark's sources is built, on its own processor: a join that Spark reads for, and writes for."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyarrow import dataset

from streamjoin import Join

ROWS = 50


def check(root: Path) -> None:
    """Each row of one stream has one partner."""
    (root / "rows.csv").write_text("".join(f"{number},<row><n>{number}</n></row>\n" for number in range(ROWS)))
    query = "SELECT CAST(_c0 AS BIGINT) AS id, from_xml(_c1, 'n BIGINT').n AS n FROM input"
    read = {"spark": {"format": "csv", "options": {"path": str(root / "rows.csv")}, "streaming": False, "query": query}}
    stream = {"source": read, "schema": "id BIGINT, n BIGINT"}
    output = {"select": ["a.id AS id", "b.n AS n"], "sink": {"spark": {"format": "orc", "options": {"path": str(root / "pairs")}}}}
    pairs = {"condition": "a.id = b.id", "window": {"unbounded": True}, "output": output}
    made = Join.of("check", streams={"a": stream, "b": stream}, joins={"pairs": pairs}, checkpoint=root / "state", workers=1)
    for _ in made.run(runner="inline", until_idle=True):
        pass
    found = dataset.dataset(root / "pairs", format="orc", exclude_invalid_files=False).to_table().to_pylist()
    assert sorted((row["id"], row["n"]) for row in found) == [(number, number) for number in range(ROWS)], found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        check(Path(directory))
    print("Spark's sources and sinks have all that they need")
