"""The disk that the soak runs on: what several processes have flushed is there after a power loss, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from disk import Keeps
from shared_disk import SharedDisk
from waiting import PATIENCE_SECONDS

PROCESS = """
import sys
from pathlib import Path
from shared_disk import SharedDisk
from streamjoin.state.storage import ObjectStorage
root = Path(sys.argv[1])
disk = SharedDisk(root, root / "flushed")
disk.watch()
storage = ObjectStorage(str(root / "state"))
"""
FIRST = """
storage.create("log/0", b"flushed by one process")
storage.put("log/gone", b"removed by the other, which flushes that")
"""
SECOND = """
storage.delete("log/gone")
storage.create("log/1", b"flushed by another")
(root / "state/log/2").write_bytes(b"half")
(root / "state/log/0").unlink()
disk.lose_power()
"""
LEFT: dict[Keeps, dict[str, bytes]] = {
    Keeps.NOTHING: {"0": b"flushed by one process", "1": b"flushed by another"},
    Keeps.NAMES: {"1": b"flushed by another", "2": b""},
    Keeps.HALVES: {"1": b"flushed by another", "2": b"ha"},
}
"""The removal of 0 was not flushed, and 2 was not."""


def run(root: Path, text: str) -> int:
    path = [str(Path(__file__).parent), *sys.path]
    command = [sys.executable, "-c", f"import sys\nsys.path[:0] = {path!r}\n{PROCESS}{text}", str(root)]
    return subprocess.run(command, check=False, timeout=PATIENCE_SECONDS).returncode


@pytest.mark.parametrize("keeps", Keeps)
def test_what_any_process_has_flushed_is_there_after_a_power_loss(keeps: Keeps, tmp_path: Path) -> None:
    disk = SharedDisk(tmp_path, tmp_path / "flushed")
    (tmp_path / "input").write_bytes(b"no part of it")
    for _ in range(2):
        assert run(tmp_path, FIRST) == 0
        assert run(tmp_path, SECOND) == -signal.SIGKILL
        assert disk.has_lost
        disk.restore(keeps)
        assert not disk.has_lost
        assert {path.name: path.read_bytes() for path in (tmp_path / "state" / "log").iterdir()} == LEFT[keeps]
        assert (tmp_path / "input").read_bytes() == b"no part of it"
        for path in (tmp_path / "state" / "log").iterdir():  # and again, on what was left
            path.unlink()
