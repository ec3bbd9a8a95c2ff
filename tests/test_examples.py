"""The examples that have a folder: their READMEs' commands print what is written there, and their results are DuckDB's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

import streamjoin
from apiserver import ApiServer
from documents import parsed
from kafka_broker import KafkaBroker
from kafka_join import running_broker
from pages import ROOT, Reader, blocks, differences, steps
from s3 import S3Server
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin_operator import crd
from waiting import PATIENCE_SECONDS

EXPECTED = {
    "sensors": """
        SELECT d.id AS drop_id, n.id AS noise_id
        FROM 'out/sensors/data/drops/*.csv' d, 'out/sensors/data/noises/*.csv' n
        WHERE n.metre BETWEEN d.metre - 250 AND d.metre + 250
            AND n.at BETWEEN d.at - INTERVAL 5 SECONDS AND d.at + INTERVAL 5 SECONDS
    """,
    "fraud": """
        SELECT o.id AS order_id, p.id AS payment_id
        FROM 'out/fraud/data/orders/*.json' o JOIN 'out/fraud/data/payments/*.json' p ON o.network = p.network
        WHERE o.customer <> p.customer AND abs(CAST(o.amount AS DECIMAL(10, 2)) - CAST(p.amount AS DECIMAL(10, 2))) <= 0.25
            AND epoch_ms(CAST(p.at AS TIMESTAMPTZ)) - epoch_ms(CAST(o.at AS TIMESTAMPTZ)) BETWEEN 0 AND 600000
    """,
    "quotes": """
        WITH t AS (SELECT *, unnest([0, 1]) AS back FROM 'out/quotes/data/trades/*.parquet'), pairs AS (
            SELECT t.id AS trade_id, q.id AS quote_id
            FROM t JOIN 'out/quotes/data/quotes/*.parquet' q
                ON t.symbol = q.symbol AND epoch_ms(t.at) // 2000 - back = epoch_ms(q.at) // 2000
            WHERE abs(t.price - q.price) <= 0.05 AND epoch_ms(t.at) - epoch_ms(q.at) BETWEEN 0 AND 2000
        )
        FROM pairs UNION ALL SELECT id, NULL FROM 'out/quotes/data/trades/*.parquet' WHERE id NOT IN (SELECT trade_id FROM pairs)
    """,
}
"""The identities that each example gives, in DuckDB's words. For speed, time is cut into pieces of two seconds for ``quotes``."""
COUNTS = {"sensors": 21_220, "fraud": 364, "quotes": 131_325}
RESULTS = {"sensors": "near", "fraud": "suspicious", "quotes": "near"}
NEAREST = """
    WITH q AS (FROM 'out/quotes/data/quotes/*.parquet'), pairs AS (FROM expected)
    SELECT DISTINCT ON (trade_id) trade_id, quote_id
    FROM pairs JOIN 'out/quotes/data/trades/*.parquet' t ON trade_id = t.id LEFT JOIN q ON quote_id = q.id
    ORDER BY trade_id, q.at DESC NULLS LAST, greatest(t.price, q.price) - least(t.price, q.price), quote_id
"""
FOLDER = ROOT / "examples" / "kubernetes"
USER, PASSWORD = "fraud", "open-s3same"


@pytest.fixture(scope="module", params=sorted(EXPECTED))
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An example whose README somebody has followed, and where."""
    name = str(request.param)
    directory = tmp_path_factory.mktemp(name)
    assert Reader(directory).follow(ROOT / "examples" / name / "README.md") >= 3
    return name, directory


def test_an_example_finds_what_its_readme_says_and_what_duckdb_finds(example: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name, directory = example
    monkeypatch.chdir(directory)
    connection = duckdb.connect()
    expected = connection.sql(EXPECTED[name])
    found = connection.sql(f"SELECT {', '.join(expected.columns)} FROM 'out/{name}/{RESULTS[name]}/*.parquet'")
    assert Counter(found.fetchall()) == Counter(expected.fetchall())
    assert len(found) == COUNTS[name]
    assert f"{COUNTS[name]:,}" in (ROOT / "examples" / name / "README.md").read_text()
    if name == "quotes":
        commands = [step.command for _, step in Reader.sessions(ROOT / "examples/quotes/README.md")]
        [query] = [command for command in commands if "QUALIFY" in command]
        qualify = query[query.index("QUALIFY") : query.rindex("ORDER BY trade_id")]
        nearest = connection.sql(f"SELECT trade_id, quote_id FROM 'out/quotes/near/*.parquet' {qualify}")
        assert Counter(nearest.fetchall()) == Counter(connection.sql(NEAREST).fetchall())
        assert len(nearest) == 6000


def test_what_a_page_says_is_compared_line_by_line() -> None:
    assert differences(("a …, 3 rows", "…", "end"), ["a 0.1 s, 3 rows", "x", "y", "end"]) is None
    assert differences(("a …", "…"), ["a b"]) is None
    assert differences(("a", "b"), ["a", "c"]) is not None
    assert differences(("a",), ["a", "b"]) is not None
    assert steps("$ one \\\n  more\nout\n$ two\n")[0].command == "one \\\n  more"


@pytest.mark.apiserver
def test_the_commands_for_kubernetes_make_all_that_the_pods_name(api_server: ApiServer, tmp_path: Path) -> None:
    """The Secrets and the ConfigMap of the README are those that the pods mount, with the keys that the manifest names."""
    api_server.install_crd(parsed((ROOT / "crds/streamjoins.streamjoin.dev.yaml").read_text()))
    namespace = api_server.namespace("kafka-s3")
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "bucket.env").write_text("AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b\n")
    (tmp_path / "ca.crt").write_text("certificate")
    [setup, _] = [block.text for block in blocks(FOLDER / "README.md") if block.kind == "sh"]
    for command in setup.splitlines():
        words = command.replace("examples/", f"{ROOT}/examples/").replace("=password", f"={tmp_path}/password")
        words = words.replace("=bucket.env", f"={tmp_path}/bucket.env").replace("=ca.crt", f"={tmp_path}/ca.crt")
        assert words.startswith("kubectl ")
        api_server.kubectl("-n", namespace, *words.split()[1:])
    stored = api_server.admin.get(f"/apis/{crd.GROUP}/{crd.VERSION}/namespaces/{namespace}/streamjoins/fraud")
    for part, container in (("driver", "driver"), ("executor", "executor")):
        pod = stored["spec"][part]["podTemplate"]["spec"]
        assert [each["name"] for each in pod["containers"]] == [container]
        variables = {each["secretRef"]["name"] for each in pod["containers"][0]["envFrom"]}
        secrets = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each} | variables
        maps = {each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each}
        paths = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        there = {
            name: set(api_server.admin.get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")["data"])
            for kind, names in (("secrets", secrets), ("configmaps", maps))
            for name in names
        }
        mounted = {f"{paths[each['name']]}/{key}" for each in pod["volumes"] for key in there[made_of(each)]}
        options = stored["spec"]["streams"][0]["source"]["kafka"]["options"]
        assert {options["sasl.password"].removeprefix("file:"), options["ssl.ca.location"]} <= mounted
        assert there["fraud-bucket"] == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


def made_of(volume: dict[str, Any]) -> str:
    """The name of a volume's Secret or ConfigMap."""
    return str(volume["secret"]["secretName"] if "secret" in volume else volume["configMap"]["name"])


@pytest.fixture
def login_broker() -> Iterator[KafkaBroker]:
    with running_broker(login=(USER, PASSWORD)) as started:
        yield started


@pytest.mark.kafka
def test_the_join_from_kafka_to_s3_finds_what_that_of_files_finds(
    login_broker: KafkaBroker, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real broker that asks for a password over TLS, an S3 server, and the data that ``produce.py`` sends."""
    monkeypatch.chdir(tmp_path)
    bucket = s3.bucket()
    (tmp_path / "password").write_text(PASSWORD)
    for topic in ("orders", "payments"):
        login_broker.create_topic(topic, 3)
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(login_broker.certificate),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
    }
    programs = [
        [ROOT / "examples/fraud/data.py"],
        [FOLDER / "produce.py", "--servers", login_broker.secure_servers]
        + [f"--option={name}={value}" for name, value in (options | {"sasl.password": PASSWORD}).items()],
    ]
    for program in programs:
        done = subprocess.run([sys.executable, *map(str, program)], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
    text = (FOLDER / "kafka-s3.yaml").read_text()
    for old, new in {
        "kafka.kafka:9093": login_broker.secure_servers,
        "/etc/streamjoin/kafka/password": str(tmp_path / "password"),
        "/etc/streamjoin/kafka-ca/ca.crt": str(login_broker.certificate),
        "s3://fraud/": f"{bucket}/",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "join.yaml").write_text(text)
    done_run = CliRunner().invoke(main, ["run", "join.yaml", "--runner", "inline", "--until-idle", "--json"])
    assert done_run.exit_code == Exit.DONE, done_run.output
    assert json.loads(done_run.stdout.splitlines()[-1])["output"] == COUNTS["fraud"]
    found = streamjoin.Join.read("join.yaml").results().read_all().select(["order_id", "payment_id"])
    assert Counter(zip(*(column.to_pylist() for column in found.columns), strict=True)) == Counter(duckdb.sql(EXPECTED["fraud"]).fetchall())
