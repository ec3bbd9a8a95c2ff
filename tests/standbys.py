"""``streamjoin run --standby`` as processes that a test may kill, over a join of files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness import SECOND, START, Input, manifest_text, oracle, output_of
from joins import RANGE3, band_options, make_inputs
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS, wait_for

KEY = pa.int64()


class FilesJoin:
    """A band join in a directory, whose input a test brings file by file."""

    def __init__(self, root: Path, *, epochs: int = 8, **changes: Any) -> None:
        self.root = root
        self.inputs: tuple[Input, Input] = make_inputs(KEY, list(range(50)), seed=9, epochs=epochs)
        self.files = 2 * epochs
        options = band_options() | {"watermark": "1h", "sources": ("parquet", {"maxFilesPerEpoch": 2})} | changes
        self.manifest = root / "join.yaml"
        self.manifest.write_text(manifest_text(root, **options))
        for name in "lr":
            (root / f"in-{name}").mkdir()

    def bring(self, first: int, end: int) -> None:
        """These files of both streams."""
        for name, one in zip("lr", self.inputs, strict=True):
            for index in range(first, end):
                path = self.root / f"in-{name}" / f"{index:03d}.parquet"
                hidden = path.with_name(f"_{path.name}")
                pq.write_table(pa.Table.from_batches([one.batches[index]]), hidden)
                os.utime(hidden, (START / SECOND + index,) * 2)
                hidden.rename(path)

    def expected(self) -> Counter[tuple[Any, ...]]:
        return oracle(self.inputs, (KEY, KEY), "abs(l.k - r.k) <= 2", RANGE3[1], None)

    def results(self) -> Counter[tuple[Any, ...]]:
        return output_of(self.root)

    @property
    def epoch(self) -> int:
        """The last that is committed; -1: none is."""
        latest = read_latest(ObjectStorage(str(self.root / "state")))
        return -1 if latest is None else latest.checkpoint.epoch


class Running:
    """A process of ``streamjoin run --json`` in a directory of its own, by default with ``--standby``."""

    def __init__(self, join: FilesJoin, name: str, *arguments: str, standby: bool = True) -> None:
        self._directory = join.root / name
        self._directory.mkdir()
        command = [sys.executable, "-m", "streamjoin", "run", str(join.manifest), "--json", "--log-dir", str(self._directory)]
        command += ["--standby"] if standby else []
        self._out, self._error = self._directory / "out", self._directory / "error"
        with self._out.open("w") as out, self._error.open("w") as error:
            self.process = subprocess.Popen([*command, *arguments], stdout=out, stderr=error, stdin=subprocess.DEVNULL)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has printed."""
        return [json.loads(line) for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    @property
    def said(self) -> str:
        return self._error.read_text()

    @property
    def url(self) -> str:
        """Of its port."""

        def lines() -> list[str]:
            return [line for line in self.said.splitlines() if line.startswith("metrics: ")]

        found = wait_for("its port", lines, told=lambda: self.said)
        return str(found[0]).removeprefix("metrics: ").removesuffix("/metrics")

    def wait(self, **facts: Any) -> dict[str, Any]:
        """The first event that has these facts."""

        def found() -> dict[str, Any] | None:
            matching = (event for event in self.events if all(event.get(name) == value for name, value in facts.items()))
            event = next(matching, None)
            assert event is not None or self.process.poll() is None, self.said
            return event

        event: dict[str, Any] = wait_for(f"{facts}", found, told=lambda: self.said)
        return event

    def end(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
