"""Joins of an input that somebody has damaged, each in a process that may die: for every reader of files, tables and Kafka's records.

    python tests/fuzz.py FORM [JOINS] [FIRST_SEED]

FORM: json, csv or parquet (``fuzz_inputs``), delta or iceberg (``fuzz_tables``), avro or protobuf (``fuzz_records``). Runs so many joins of
mutated inputs (400: some fifteen minutes), and prints each that ended its process, hung, took too much memory, lost a record without a
word, or read one in another way than a slow reference does. ``tests/test_fuzz.py`` runs a few of them, and more at night.

A damaged record, or a damaged file of records, is a dead letter, and the join goes on. Where a table's log is damaged, the join may end
instead, with a sentence that names a damaged file.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import resource
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from click.testing import CliRunner

from forked_queries import PROCESSES
from fuzz_inputs import Left, Row
from streamjoin.cli import main as streamjoin

FORMS = {
    **dict.fromkeys(("json", "csv", "parquet"), "fuzz_inputs.files"),
    **dict.fromkeys(("delta", "iceberg"), "fuzz_tables.table"),
    **dict.fromkeys(("avro", "protobuf"), "fuzz_records.records"),
}
"""By form, what writes such an input."""
SECONDS = 120.0
"""After which a join hangs."""
MEMORY_BYTES = 4 << 30
"""More is too much."""
DONE, SOURCE, UNUSABLE = 0, 3, 9
"""Exit codes."""


def case(root: Path, form: str, seed: int) -> Left:
    """Writes a join and its input. The same seed gives the same records and the same damage."""
    rng = random.Random(f"{form} {seed}")
    root.mkdir(parents=True)
    (root / "r").mkdir()
    module, _, write = FORMS[form].partition(".")
    left: Left = getattr(importlib.import_module(module), write)(root, form, rng)
    (root / "r/a.json").write_text("".join(json.dumps({"k": k}) + "\n" for k in range(-100, 100)))
    (root / "join.yaml").write_text(
        f"""
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {{name: fuzz}}
spec:
  streams:
    - {{name: l, schema: "{left.schema}", source: {{{left.source}}}}}
    - {{name: r, schema: "k INT", source: {{files: {{path: r, format: json}}}}}}
  joins:
    - condition: l.k - r.k BETWEEN 0 AND 0
      window: {{unbounded: true}}
      output: {{select: ["l.id AS id", "l.k AS k", "l.v AS v"], sink: {{files: {{path: out, format: parquet}}}}}}
  epoch: {{maxTuples: {rng.choice([50, 500, 100000])}}}
  workers: {{min: 2, max: 2, capacityTuples: 100000}}
  checkpoint: {{location: state}}
"""
    )
    return left


def check(root: Path, left: Left, code: int, said: str, complaint: str) -> str | None:
    """What went wrong with a case that was run in ``root``, and ended with this code; None: nothing."""
    found = Counter[Row]()
    for path in (root / "out").glob("*.parquet"):
        found.update(zip(*(column.to_pylist() for column in pq.read_table(path).columns), strict=True))
    if left.most is not None and (made_up := found - left.most):
        return f"joined, and not in the input: {list(made_up)[:5]}"
    if code == SOURCE and left.damaged:
        names = any(name in complaint for name in left.damaged)
        return None if names and "Traceback" not in complaint else f"it names none of {left.damaged}: {complaint[-700:]}"
    if code not in (DONE, UNUSABLE):
        return f"exit {code}: {complaint[-700:]}"
    letters = [json.loads(line) for path in (root / "state/dead-letters").glob("*.json") for line in path.read_bytes().splitlines()]
    of_left = json.loads(said.strip().split("\n")[-1])["streams"][0]
    used = of_left["accepted"] + of_left["unmatchable"]
    if used + of_left["rejected"] != of_left["input"] or of_left["rejected"] != len(letters):
        return f"input {of_left['input']}, used {used}, rejected {of_left['rejected']}, letters {len(letters)}"
    sure = left.sure
    missing = sum((each.rows for each in sure), Counter[Row]()) - found
    if missing:
        return f"not joined: {list(missing)[:5]}"
    if of_left["rejected"] < sum(each.letters for each in sure):
        return f"{sum(each.letters for each in sure)} records are none, and {of_left['rejected']} were rejected"
    if all(each.records is not None for each in sure) and of_left["input"] != sum(each.records or 0 for each in sure):
        return f"{sum(each.records or 0 for each in sure)} records, of which {of_left['input']} were counted"
    return None


def joins(form: str, first: int, count: int, root: Path) -> None:
    """What a process does: it says of each seed that it begins, and what was wrong."""
    for name, descriptor in (("out", 1), ("error", 2)):
        os.dup2(os.open(root / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES,) * 2)
    for seed in range(first, first + count):
        place = root / str(seed)
        left = case(place, form, seed)
        os.write(1, b"begin %d\n" % seed)
        os.chdir(place)
        result = CliRunner().invoke(streamjoin, ["run", "join.yaml", "--runner", "inline", "--until-idle", "--json", "--no-ui"])
        wrong = check(place, left, result.exit_code, result.stdout, result.stderr) or ""
        os.write(1, f"end {seed} {' '.join(wrong.split())}\n".encode())


def run(form: str, first: int, count: int, root: Path, patience_seconds: float = SECONDS) -> list[str]:
    """What went wrong with so many seeds. A process that dies or hangs is told with the seed, and the next ones are run by another."""
    wrong: list[str] = []
    last = first + count
    while first < last:
        process = PROCESSES.Process(target=joins, args=(form, first, last - first, root))
        process.start()
        process.join(patience_seconds * count)
        hung = process.is_alive()
        process.kill()
        process.join()
        begun = first
        for line in (root / "out").read_text().splitlines():
            word, seed, *rest = line.split(" ", 2)
            begun = int(seed)
            if word == "end" and rest and rest[0]:
                wrong.append(f"{form} seed {seed}: {rest[0]}")
        if process.exitcode:
            error = (root / "error").read_text()[-300:] + "; it hung" * hung
            wrong.append(f"{form} seed {begun}: its process ended with {process.exitcode}: {error}")
        first = begun + 1
    return wrong


def main(form: str, joins: int = 400, first: int = 0) -> None:
    wrong = 0
    for seed in range(first, first + joins, 20):
        with tempfile.TemporaryDirectory() as root:
            for sentence in run(form, seed, min(20, first + joins - seed), Path(root)):
                wrong += 1
                print(sentence, flush=True)
    print(f"{form}: {wrong} wrong of {joins} joins")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
