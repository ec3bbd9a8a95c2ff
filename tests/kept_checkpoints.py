"""Checkpoints of releases, kept to go on from: ``python tests/kept_checkpoints.py NAME`` makes that of this release.

Each is a join that was stopped after some epochs, by its kind: ``inputs.json`` has the rows of its streams by epoch, ``made.json`` its
options and after how many epochs it was stopped, ``state`` and ``results`` what was there then. Paths that a checkpoint knows are those
of no machine.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness import Input, driver_for, make_batch, manifest_text
from streamjoin.compilation import compile_job
from streamjoin.job import Job
from streamjoin.manifest import load
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage

ROOT = Path(__file__).resolve().parent / "checkpoints"
KINDS: dict[str, dict[str, Any]] = {
    "inner": {"model": "adsp", "workers": 3},
    "left": {"model": "hash", "workers": 2, "join_type": "left"},
    "full": {"model": "biclique", "workers": 3, "join_type": "full"},
}
WITHIN_SECONDS = 4
CONDITION = "abs(l.k - r.k) <= 1"
NO_PATH = "/kept/in-"


@dataclass(frozen=True)
class Kept:
    """One of them."""

    directory: Path

    @property
    def options(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "made.json").read_text()))

    @property
    def inputs(self) -> tuple[Input, Input]:
        left, right = json.loads((self.directory / "inputs.json").read_text())
        return _input(left), _input(right)

    def job(self, root: Path) -> Job:
        """With its state and output in ``root``."""
        options = {name: value for name, value in self.options.items() if name != "epochs"}
        text = manifest_text(
            *(root,), on=CONDITION, types=("BIGINT", "BIGINT"), window={"within": f"{WITHIN_SECONDS}s"}, watermark="1s", **options
        )
        return compile_job(load(text.replace(f"{root}/in-", NO_PATH)))

    def copy(self, root: Path) -> None:
        for name, there in (("state", "state"), ("results", "out")):
            shutil.copytree(self.directory / name, root / there)


def _input(epochs: list[list[tuple[int, Any, int, int]]]) -> Input:
    return Input([make_batch(rows, pa.int64()) for rows in epochs], [1] * len(epochs))


def found() -> list[Kept]:
    """All that are kept, by release and kind."""
    return [Kept(path.parent) for path in sorted(ROOT.glob("*/*/made.json"))]


def make(release: str) -> None:
    """Those of this release."""
    from test_crashes import make_inputs

    for number, (kind, options) in enumerate(KINDS.items()):
        directory = ROOT / release / kind
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        inputs = make_inputs(seed=number)
        rows = [[_rows(batch) for epoch in side.epochs() for batch in epoch] for side in inputs]
        (directory / "inputs.json").write_text(json.dumps(rows))
        (directory / "made.json").write_text(json.dumps({**options, "epochs": 3}) + "\n")
        kept = Kept(directory)
        driver = driver_for(kept.job(directory), kept.inputs, ObjectStorage(str(directory / "state")), InlineRunner())
        driver.start()
        for _ in range(3):
            driver.step()
        (directory / "out").rename(directory / "results")  # what is called out is not for git


def _rows(batch: pa.RecordBatch) -> list[list[Any]]:
    rid, key, value, at = (column.to_pylist() for column in (*batch.columns[:3], batch.column(3).cast(pa.int64())))
    return [list(row) for row in zip(rid, key, value, at, strict=True)]


if __name__ == "__main__":
    make(sys.argv[1])
