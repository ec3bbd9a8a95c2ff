"""Native functions: declared types, the cache on disk, many processes at once."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from harness import output_of
from skips import lacks
from streamjoin.kernel.run import merge_two
from streamjoin.native import build, functions, library
from streamjoin.native.functions import _private_directory, read, write
from streamjoin.runner.archive import run
from streamjoin.runner.inline import InlineRunner
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.xdist_group("native")  # compiled once
ENGINE = Path(__file__).parents[1] / "engine"

MODULE = """
    import numpy as np
    from streamjoin.native.functions import compile_all, native, read, write

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
    output, errors = process.communicate("go\n", timeout=PATIENCE_SECONDS)
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


LIBRARY = """
    import sys
    from pathlib import Path

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("llvmlite", "numba"):
                raise ModuleNotFoundError(f"No module named {name!r}, which the image leaves out", name=name)

    sys.meta_path.insert(0, Absent())
    from streamjoin.native import library
    library.DIRECTORY = Path(sys.argv[1])
"""
"""Makes Python know of the library alone, as an image's does."""


OF_ONE_LIBRARY = pytest.mark.xdist_group("library")
"""Of tests in one process, which makes it once."""


@pytest.fixture(scope="module")
def machine_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for the least of this machine's processors."""
    linker = shutil.which("ld")
    if linker is None:
        pytest.skip(lacks("ld", "apt-get install binutils"))
    directory = tmp_path_factory.mktemp("kernels")
    level = library.LEVELS[platform.machine()][-1]
    build.make_level(directory, platform.machine(), linker, level)
    return directory


def with_library(directory: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(LIBRARY) + textwrap.dedent(program), str(directory), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


@OF_ONE_LIBRARY
def test_a_library_has_every_native_function_and_joins_and_reads_as_numba_does(machine_code: Path, tmp_path: Path) -> None:
    program = """
        from streamjoin.native import functions
        from streamjoin.native.build import import_all
        import_all()
        functions.compile_all()
        from streamjoin.runner.archive import run
        from streamjoin.runner.inline import InlineRunner
        run(Path(sys.argv[2]), InlineRunner())
        print(len(functions.functions()), [name for name in sys.modules if name in ("numba", "llvmlite")])
    """
    done = with_library(machine_code, program, str(tmp_path / "library"))
    assert done.returncode == 0, done.stderr
    build.import_all()
    assert done.stdout == f"{len(functions.functions())} []\n"
    run(tmp_path / "numba", InlineRunner())
    assert output_of(tmp_path / "library") == output_of(tmp_path / "numba")


@OF_ONE_LIBRARY
def test_a_library_of_another_source_is_not_used(machine_code: Path, tmp_path: Path) -> None:
    described = json.loads((machine_code / library.DESCRIPTION).read_text())
    described["sources"]["streamjoin.kernel.run"] = "of another release"
    for file in machine_code.glob("*.so"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / library.DESCRIPTION).write_text(json.dumps(described))
    program = "from streamjoin.kernel.run import merge_two\nfrom streamjoin.kernel.marks import mark_rows\nmerge_two.compile()"
    done = with_library(tmp_path, program)
    assert "No module named 'numba', which the image leaves out" in done.stderr


@OF_ONE_LIBRARY
def test_a_library_takes_only_the_declared_types(machine_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "DIRECTORY", machine_code)
    library._library.cache_clear()
    try:
        kinds = ("int64", "float64")
        signatures: list[list[library.Argument]] = [[*[read(kind), read("int32")] * 2, write(kind), write("int32")] for kind in kinds]
        merge = library.found("streamjoin.kernel.run", "merge_two", signatures)
    finally:
        library._library.cache_clear()
    assert merge is not None
    left, right, rows, others = np.array([1, 4]), np.array([2]), np.arange(2, dtype=np.int32), np.array([2], np.int32)
    merged, merged_rows = np.empty(3, np.int64), np.empty(3, np.int32)
    left.flags.writeable = False
    merge(left, rows, right, others, merged, merged_rows)
    assert (merged.tolist(), merged_rows.tolist()) == ([1, 2, 4], [0, 2, 1])
    with pytest.raises(TypeError, match=r"takes arrays of int64, int32, .* or float64"):
        merge(left.astype(np.float32), rows, right, others, merged, merged_rows)
    merged.flags.writeable = False
    with pytest.raises(TypeError, match="takes a contiguous array of int64 to write to, not one of 1 dimensions of int64, read-only"):
        merge(left, rows, right, others, merged, merged_rows)
    with pytest.raises(TypeError, match="a contiguous array of int64, not"):
        merge(np.arange(4)[::2], rows, right, others, np.empty(3, np.int64), merged_rows)


def test_the_level_of_a_processor_is_what_it_says_that_it_can(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor: 0\nflags : fpu avx avx2 bmi1 bmi2 f16c fma abm movbe\n")
    assert library.level("x86_64", info) == ["x86-64-v3", "x86-64"]
    info.write_text("processor: 0\nflags : fpu avx\n")
    assert library.level("x86_64", info) == library.level("x86_64", tmp_path / "absent") == ["x86-64"]
    assert library.level("aarch64", info) == ["aarch64"]
    assert library.level("riscv64", info) == []


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
