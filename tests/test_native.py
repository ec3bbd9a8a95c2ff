"""Native functions: declared types, the cache on disk, many processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from streamjoin.kernel.native import _private_directory, copy_missing
from streamjoin.kernel.run import merge_two

ENGINE = Path(__file__).parents[1] / "engine"

MODULE = """
    import numpy as np
    from streamjoin.kernel.native import compile_all, native, read, write

    @native((read("int64"), write("int64")), (read("float64"), write("float64")))
    def double(values, out):
        for i in range(len(values)):
            out[i] = values[i] + values[i]
"""

USE = """
    import sys
    import numpy as np
    import doubling
    sys.stdin.readline()  # until all the processes are there
    doubling.compile_all()
    for dtype in (np.int64, np.float64):
        out = np.empty(3, dtype)
        doubling.double(np.array([1, 2, 4], dtype), out)
        assert out.tolist() == [2, 4, 8], out
    stats = doubling.double.compile().stats
    print(sum(stats.cache_misses.values()), stats.cache_path)
"""


def start(directory: Path, **environment: str) -> subprocess.Popen[str]:
    (directory / "doubling.py").write_text(textwrap.dedent(MODULE))
    settings = {**os.environ, "PYTHONPATH": f"{ENGINE}{os.pathsep}{directory}", **environment}
    command = [sys.executable, "-c", textwrap.dedent(USE)]
    return subprocess.Popen(command, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, Path]:
    """Functions that had to be compiled, and where the cache is."""
    output, errors = process.communicate("go\n", timeout=120)
    assert process.returncode == 0, errors
    misses, path = output.split()
    return int(misses), Path(path)


def test_processes_that_start_at_once_compile_once_and_share_the_result(tmp_path: Path) -> None:
    processes = [start(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) for _ in range(2)]
    for process in processes:  # all of them go before any is waited for
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    finished = [finish(process) for process in processes]
    assert sorted(misses for misses, _ in finished) == [0, 2]
    assert all(path.is_relative_to(tmp_path / "cache") for _, path in finished)


def test_without_a_place_for_a_cache_a_private_directory_is_used(tmp_path: Path) -> None:
    # Numba is told to look only where NUMBA_CACHE_DIR says, which says nothing: as on a read-only file system.
    environment = {"NUMBA_CACHE_DIR": "", "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "TMPDIR": str(tmp_path)}
    misses, path = finish(start(tmp_path, **environment))
    assert misses == 2
    assert path.is_relative_to(tmp_path)
    assert (tmp_path / path.relative_to(tmp_path).parts[0]).stat().st_mode & 0o777 == 0o700


def test_machine_code_that_an_installation_brings_along_is_not_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "doubling.py").write_text(textwrap.dedent(MODULE))

    def misses(cache: Path) -> int:
        environment = {**os.environ, "PYTHONPATH": f"{ENGINE}{os.pathsep}{tmp_path}", "NUMBA_CACHE_DIR": str(cache)}
        command = [sys.executable, "-c", textwrap.dedent(USE)]
        done = subprocess.run(command, input="\n", env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout.split()[0])

    assert misses(tmp_path / "brought") == 2
    (tmp_path / "cache").mkdir()
    copy_missing(tmp_path / "brought", tmp_path / "cache")
    assert misses(tmp_path / "cache") == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*/*.nb?")}
    copy_missing(tmp_path / "brought", tmp_path / "cache")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*/*.nb?")} == before
    copy_missing(tmp_path / "absent", tmp_path / "cache")


def test_a_private_directory_that_others_can_write_to_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trusted = _private_directory()
    assert _private_directory() == trusted
    trusted.chmod(0o777)
    assert _private_directory() != trusted
    trusted.rmdir()
    trusted.symlink_to(tmp_path)
    assert _private_directory() not in (trusted, tmp_path)


def test_only_the_declared_types_are_accepted() -> None:
    left, right, rows, others = np.array([1, 4]), np.array([2]), np.arange(2, dtype=np.int32), np.array([2], np.int32)
    left.flags.writeable = False
    merged, merged_rows = np.empty(3, np.int64), np.empty(3, np.int32)
    merge_two(left, rows, right, others, merged, merged_rows)
    assert (merged.tolist(), merged_rows.tolist()) == ([1, 2, 4], [0, 2, 1])
    with pytest.raises(TypeError):
        merge_two(left, rows, right.astype(np.float64), others, merged, merged_rows)
    merged.flags.writeable = False
    with pytest.raises(TypeError):
        merge_two(left, rows, right, others, merged, merged_rows)
