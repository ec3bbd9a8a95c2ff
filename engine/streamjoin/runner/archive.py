"""Makes the archive of Spark's Java classes that drivers and executors start with (``runner.classes``), by running a small join.

If no library has the machine code (``native.library``), the parts that this join does not need (for JSON and Kafka) are compiled, too.

    python -m streamjoin.runner.archive [--if-none]

With ``--if-none`` an archive that is there stays, and nothing is done where another process makes one.

Always holds: one process makes it at a time, and what others find is whole. Of one that was killed the next removes what it left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochFailed, Runner
from streamjoin.manifest import load
from streamjoin.native.build import import_all
from streamjoin.native.functions import compile_all
from streamjoin.runner.classes import archive, is_plain
from streamjoin.runner.java import JavaNotFound, find_java
from streamjoin.runner.spark import SparkRunner, SparkSettings
from streamjoin.state.storage import ObjectStorage

EXIT_SECONDS = 300
"""Java writes the archive when it ends."""
JOIN = """
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {{name: classes}}
spec:
  streams:
    - {{name: l, {stream}}}
    - {{name: r, {stream}}}
  joins:
    - name: pairs
      condition: "abs(l.k - r.k) <= 5"
      window: {{within: 10s}}
      output: {{select: ["l.k AS l", "r.k AS r"], sink: {{files: {{path: "{root}/out", format: parquet}}}}}}
  workers: {{min: 1, max: 1, capacityTuples: 100000}}
  epoch: {{maxTuples: 400}}
  checkpoint: {{location: "{root}/state"}}
"""
STREAM = (
    "source: {generator: {rows: 2000, rate: {constant: 100}, realTime: false, columns: {k: {uniform: {min: 0, max: 10000}}}}}, "
    'schema: "k BIGINT, at TIMESTAMP", eventTime: at, watermark: 0s'
)


class ClassesError(RuntimeError):
    """Why there is no archive; the text is for people."""


def make(*, if_none: bool = False) -> Path | None:
    """Makes the archive, which takes about a minute; the one that is there is replaced, unless ``if_none``: then, and where another process
    is about it, there is nothing to do, and None is returned. Raises ClassesError, JavaNotFound."""
    java_home = find_java()
    # Where images are built, the machine's own name may be nobody's.
    os.environ |= {"JAVA_HOME": str(java_home), "SPARK_LOCAL_HOSTNAME": "localhost", "SPARK_LOCAL_IP": "127.0.0.1"}
    path = archive(java_home)
    if not is_plain(path):
        raise ClassesError(f"{path}: has a blank in it, and Spark splits Java's options at blanks; put the environment elsewhere")
    with _alone(path, waits=not if_none) as is_alone:
        if if_none and (path.exists() or not is_alone):
            return None
        try:
            for each in (path, *path.parent.glob(f"{path.stem}.unfinished*")):  # and parts that Java writes beside it
                each.unlink(missing_ok=True)
        except OSError as error:
            raise ClassesError(f"{path}: {error.strerror}; run this as a user who may write there") from error
        return _make(java_home, path)


@contextlib.contextmanager
def _alone(path: Path, *, waits: bool) -> Iterator[bool]:
    """Whether no other process makes this archive as long as this lasts. The lock goes when its process does. Raises ClassesError."""
    lock = path.with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ClassesError(f"{lock}: {error.strerror}; run this as a user who may write there") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _make(java_home: Path, path: Path) -> Path:
    java = str(java_home / "bin" / "java")
    if subprocess.run([java, "-Xshare:on", "-version"], capture_output=True, check=False).returncode:
        subprocess.run([java, "-Xshare:dump"], capture_output=True, check=False)  # a runtime that came without its own archive
    import_all()
    compile_all()
    unfinished = path.with_suffix(".unfinished")
    try:
        with tempfile.TemporaryDirectory(prefix="streamjoin-classes-") as name:
            # First with an executor, for what a driver on a cluster needs; then in the driver's own process, as on a laptop.
            for number, master in enumerate(("local-cluster[1,1,512]", None)):
                root = Path(name, str(number))
                runner = SparkRunner(SparkSettings(root / "logs", 512, master, java_home, classes_to=unfinished))
                try:
                    run(root, runner)
                finally:
                    runner.stop()
            _end_java()
        if not unfinished.is_file():
            raise ClassesError(f"{java_home}: this runtime shares no classes")
        return unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)  # of one that failed


def run(root: Path, runner: Runner) -> None:
    """The small join, to its end. The results are in ``root/out``."""
    job = compile_job(load(JOIN.format(stream=STREAM, root=root)))
    driver = Driver(job, ObjectStorage(job.checkpoint), runner)
    try:
        driver.start()
        while driver.step(final=True) is not None:
            pass
    finally:
        driver.stop()


def _end_java() -> None:
    """Have Java end as when its driver does, and wait for it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None, "Spark has run"
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(EXIT_SECONDS)


def main() -> int:
    """Prints where the archive is that it has made; exit code 1 and why where it cannot be made."""
    try:
        if path := make(if_none="--if-none" in sys.argv[1:]):
            print(path)
    except (ClassesError, EpochFailed, JavaNotFound, OSError, subprocess.TimeoutExpired) as error:
        print(f"classes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
