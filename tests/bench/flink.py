"""Flink SQL's interval join, made legal by buckets, in one Java process on this machine, exactly once.

Here are Flink itself and the join of two streams that ``bench_latency.py`` measures; three streams are in ``flink_streams.py``.

Flink's own jars are those of ``apache-flink-libraries`` (PyPI: what PyFlink runs, without Python and its pins), its connector to Kafka
and the SQL gateway come by Maven, all into ``~/.cache/streamjoin/flink-<version>`` (330 MB, once; ``STREAMJOIN_FLINK`` names another
directory). The program is Flink's own SQL client, which runs the job in its own process.

Always holds: what it cannot have it says by :class:`NoFlink`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.traffic import Ends
from bench.workloads import BAND, WINDOW
from streamjoin.runner.java import find_java

VERSION = "2.2.1"
"""The newest for which there is a Kafka connector."""
KAFKA_CONNECTOR = "5.0.0-2.2"
FETCH_SECONDS = 600
BUCKET = 60
"""Values. Of a smaller one more is in two buckets: 12, which suits the other rivals, took a sixth more CPU."""
MONITOR_MILLIS = 10
"""So often Flink looks for new files."""

POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>streamjoin</groupId><artifactId>flink-for-benchmarks</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-sql-connector-kafka</artifactId><version>{KAFKA_CONNECTOR}</version></dependency>
    <dependency><groupId>org.apache.flink</groupId><artifactId>flink-sql-gateway</artifactId><version>{VERSION}</version></dependency>
  </dependencies>
</project>
"""

CONFIG = """\
execution.target: local
parallelism.default: 2
execution.checkpointing.interval: {interval}
execution.checkpointing.mode: EXACTLY_ONCE
execution.checkpointing.incremental: true
execution.checkpointing.dir: file://{root}/checkpoints
execution.buffer-timeout.interval: {buffer_millis} ms
state.backend.type: {state}
pipeline.object-reuse: true
taskmanager.memory.managed.size: 1g
table.dml-sync: true
table.local-time-zone: UTC
io.tmp.dirs: {root}/tmp
"""

# One row a record would be Flink's own way to write JSON files, but it would not end a file with a checkpoint; CSV files end with each.
SQL = """\
CREATE TABLE l ({columns}, WATERMARK FOR `at` AS `at` - INTERVAL '{watermark}' SECOND) WITH ({left});
CREATE TABLE r ({columns}, WATERMARK FOR `at` AS `at` - INTERVAL '{watermark}' SECOND) WITH ({right});
CREATE TABLE joined (a BIGINT, b BIGINT) WITH ({out});
CREATE VIEW r_buckets AS
  SELECT rid, k, `at`, (k - {band}) / {bucket} AS bucket FROM r
  UNION ALL
  SELECT rid, k, `at`, (k + {band}) / {bucket} AS bucket FROM r WHERE (k - {band}) / {bucket} <> (k + {band}) / {bucket};
CREATE VIEW l_bucket AS SELECT rid, k, `at`, k / {bucket} AS bucket FROM l;
INSERT INTO joined SELECT l.rid, r.rid FROM l_bucket AS l, r_buckets AS r
  WHERE l.bucket = r.bucket AND ABS(l.k - r.k) <= {band}
  AND l.`at` BETWEEN r.`at` - INTERVAL '{window}' SECOND AND r.`at` + INTERVAL '{window}' SECOND;
"""

# Jobs, and nothing else, tell what becomes of them.
LOG4J = """\
<Configuration status="error">
<Appenders><Console name="out" target="SYSTEM_ERR"><PatternLayout pattern="%d %p %c{1}: %m%n"/></Console></Appenders>
<Loggers>
<Logger name="org.apache.flink.runtime.executiongraph.ExecutionGraph" level="info"/>
<Root level="warn"><AppenderRef ref="out"/></Root>
</Loggers></Configuration>
"""

OPENED = ("java.lang", "java.lang.invoke", "java.lang.reflect", "java.math", "java.net", "java.nio", "java.text", "java.time", "java.util")
"""What Flink opens of Java 17 in the configuration that it is delivered with."""


class NoFlink(RuntimeError):  # noqa: N818
    """This machine has no Flink to offer; the text says what is missing."""


def libraries() -> Path:
    """The directory of the jars, fetched on first use. Raises NoFlink."""
    given = os.environ.get("STREAMJOIN_FLINK")
    target = Path(given) if given else Path.home() / ".cache" / "streamjoin" / f"flink-{VERSION}"
    if target.is_dir():
        return target
    if shutil.which("mvn") is None:
        raise NoFlink(f"no mvn on the PATH to fetch Flink's connector to Kafka with, and {target} does not exist")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        made = Path(directory, "jars")
        wheel = f"apache-flink-libraries=={VERSION}"
        _fetch([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(Path(directory, "pip")), wheel], Path(directory))
        made.mkdir()
        for folder in ("lib", "opt"):
            for jar in Path(directory, "pip", "pyflink", folder).glob("*.jar"):
                jar.rename(made / jar.name)
        Path(directory, "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DexcludeTransitive=true", f"-DoutputDirectory={made}"]
        _fetch(command, Path(directory))
        made.rename(target)
    return target


def _fetch(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NoFlink(f"{command[0]} did not fetch Flink {VERSION} within {FETCH_SECONDS} s") from None
    if done.returncode:
        raise NoFlink(f"{' '.join(command[:4])} cannot fetch Flink {VERSION}: {(done.stdout + done.stderr).strip()[-300:]}")


@dataclass(frozen=True)
class Settings:
    """What is chosen of Flink's settings."""

    checkpoint_millis: int
    state: str = "hashmap"
    """Where it holds its state: ``rocksdb`` or ``hashmap``."""
    buffer_millis: int = 100
    """So long a buffer that is not full waits to be sent."""
    heap_mib: int = 4096


def launch(home: Path, sql: str, settings: Settings, log: Path) -> subprocess.Popen[bytes]:
    """The SQL client, which runs these statements one after another in its own process; all it writes is in ``home``. Raises NoFlink."""
    jars = libraries()
    (home / "tmp").mkdir(parents=True)
    config = CONFIG.format(
        interval=f"{settings.checkpoint_millis} ms", root=home, state=settings.state, buffer_millis=settings.buffer_millis
    )
    (home / "config.yaml").write_text(config)
    (home / "log4j2.xml").write_text(LOG4J)
    (home / "join.sql").write_text(sql)
    command = [str(find_java() / "bin" / "java"), f"-Xmx{settings.heap_mib}m", f"-Dlog4j2.configurationFile={home / 'log4j2.xml'}"]
    command += [f"-Djava.io.tmpdir={home / 'tmp'}"]
    command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    command += ["-cp", f"{jars}/*", "org.apache.flink.table.client.SqlClient", "embedded", "-hist", str(home / "history")]
    command += ["-f", str(home / "join.sql")]
    with log.open("wb") as out:
        environment = os.environ | {"FLINK_CONF_DIR": str(home)}
        return subprocess.Popen(command, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


@dataclass(frozen=True)
class FlinkJoin:
    """The join of two streams of records that are produced meanwhile."""

    checkpoint_millis: int
    state: str
    watermark_seconds: int

    def start(self, ends: Ends, log: Path) -> subprocess.Popen[bytes]:
        """The process, which runs until it is ended. Raises NoFlink."""
        settings = Settings(self.checkpoint_millis, self.state, buffer_millis=1)  # a low latency must not wait for the default's 100
        return launch(ends.root / "flink", self._sql(ends), settings, log)

    def _sql(self, ends: Ends) -> str:
        if ends.servers is None:
            source = {"connector": "filesystem", "format": "json", "source.monitor-interval": f"{MONITOR_MILLIS} ms"}
            sink = {"connector": "filesystem", "format": "csv", "path": ends.output}
            inputs = {side: source | {"path": ends.input(side)} for side in "lr"}
        else:
            common = {"connector": "kafka", "properties.bootstrap.servers": ends.servers, "format": "json"}
            source = common | {"scan.startup.mode": "earliest-offset", "properties.isolation.level": "read_committed"}
            inputs = {side: source | {"topic": ends.input(side), "properties.group.id": ends.input(side)} for side in "lr"}
            sink = common | {
                "topic": ends.output,
                "sink.delivery-guarantee": "exactly-once",
                "sink.transactional-id-prefix": ends.name,
                "properties.transaction.timeout.ms": "600000",
            }
        text = {"json.timestamp-format.standard": "ISO-8601"}
        return SQL.format(
            columns="rid BIGINT, k BIGINT, `at` TIMESTAMP_LTZ(3)",
            watermark=self.watermark_seconds,
            left=with_options(inputs["l"] | text),
            right=with_options(inputs["r"] | text),
            out=with_options(sink),
            band=BAND,
            bucket=BUCKET,
            window=WINDOW,
        )


def with_options(values: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in values.items())
