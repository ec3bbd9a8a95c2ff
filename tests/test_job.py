"""Jobs: what the engine is told of a manifest, with everything resolved and defaulted."""

from __future__ import annotations

import math
import pickle
from typing import Any, get_args

import pytest
import yaml

from streamjoin.compilation import compile_job
from streamjoin.controlplane.fingerprint import fingerprint
from streamjoin.job import Job
from streamjoin.language.predicate import MainKind
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.window import Window, WindowKind
from streamjoin.manifest import ManifestError, check
from streamjoin.manifest.model import SchemeSpec
from streamjoin.manifest.sinks import ConsoleSink, FilesSink
from streamjoin.manifest.sources import FilesSource, GeneratorSource
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import MODELS, Options

BASE = """\
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {name: orders-payments}
spec:
  streams:
    - name: Orders
      source: {files: {path: ./in//orders/, format: json}}
      schema: "id BIGINT, Amount DOUBLE, currency STRING, note STRING, at TIMESTAMP"
      eventTime: AT
      watermark: 10s
      expectedRate: 200
    - name: payments
      source: {generator: {rows: 5, columns: {
        id: {sequence: {}}, amount: {uniform: {min: 0, max: 1}}, currency: {choice: [EUR]}, note: {choice: [a, b]}}}}
      schema: "id BIGINT, amount DOUBLE, currency STRING, note STRING, at TIMESTAMP"
      eventTime: at
  joins:
    - condition: "abs(orders.amount - payments.amount) <= 1"
      window: {within: 3m}
      output:
        select: ["payments.id AS payment", "ORDERS.ID AS order_id"]
        sink: {files: {path: "file:///tmp/out/", format: parquet}}
  checkpoint: {location: "file:///tmp/state/"}
"""


def job(*, stream: dict[str, Any] | None = None, join: dict[str, Any] | None = None, **spec: Any) -> Job:
    """The base manifest with fields of the first stream, of the join and of the spec replaced (None: removed)."""
    resource = yaml.safe_load(BASE)
    for part, changes in ((resource["spec"]["streams"][0], stream), (resource["spec"]["joins"][0], join)):
        part.update(changes or {})
    resource["spec"].update(spec)
    document = check(resource)
    assert [str(problem) for problem in document.problems] == []
    assert document.manifest is not None
    return compile_job(document.manifest)


def output(**fields: Any) -> dict[str, Any]:
    return {"output": {"sink": {"console": {}}} | fields}


def test_a_job_holds_what_the_manifest_says() -> None:
    made = job()
    assert (made.name, made.model, made.min_workers, made.max_workers) == ("orders-payments", "adsp", 1, 8)
    assert (made.capacity, made.cores, made.memory_bytes) == (Capacity(523 << 20, in_bytes=True), 1, 2 * 1024**3)
    assert (made.tau0, made.tau1, made.tau2, made.tau3) == (0.2, 0.4, 0.8, 0.9)
    assert (made.shedding_model, made.shedding_base) == ("off", 0)
    assert (made.interval_micros, made.max_tuples, made.max_bytes) == (1_000_000, 2_000_000, 256 << 20)
    assert (made.streams[LEFT].watermark_micros, made.streams[RIGHT].watermark_micros) == (10_000_000, 0)
    assert (made.streams[LEFT].expected_rate, made.streams[RIGHT].expected_rate) == (200, None)
    assert made.window == Window(WindowKind.RANGE, before_micros=180_000_000, after_micros=180_000_000)


def test_event_times_of_any_zone_may_be_an_hour_ahead() -> None:
    local = "id BIGINT, Amount DOUBLE, currency STRING, note STRING, at TIMESTAMP_NTZ"
    hours = [made.streams[LEFT].max_ahead_micros / 3_600_000_000 for made in (job(), job(stream={"schema": local}))]
    assert hours == [1, 15]
    assert job(stream={"schema": local, "maxAhead": "0s"}).streams[LEFT].max_ahead_micros == 0


def test_a_job_can_be_pickled_and_compared() -> None:
    made = job()
    assert pickle.loads(pickle.dumps(made)) == made
    assert made == job()
    assert made != job(epoch={"interval": "2s"})


def test_names_are_as_the_schema_declares_them() -> None:
    made = job(join={"condition": "abs(ORDERS.AMOUNT - payments.amount) <= 1 AND orders.CURRENCY = payments.currency"})
    assert (made.streams[LEFT].name, made.streams[LEFT].event_time) == ("Orders", "at")
    assert made.streams[LEFT].payload == ("id", "Amount", "currency")
    assert made.joins[0].output[1][1].columns == {("Orders", "id")}


def test_paths_are_plain_and_local() -> None:
    made = job()
    assert isinstance(made.streams[LEFT].source, FilesSource)
    assert isinstance(made.streams[RIGHT].source, GeneratorSource)
    assert isinstance(made.joins[0].sink, FilesSink)
    assert (made.streams[LEFT].source.path, made.joins[0].sink.path) == ("in/orders", "/tmp/out")
    assert (made.checkpoint, made.dead_letter) == ("/tmp/state", "/tmp/state/dead-letters")
    assert job(deadLetter={"location": "dead/"}).dead_letter == "dead"
    kept = job(deadLetter={"late": True})
    assert (kept.dead_letter, kept.most_late_letters, made.most_late_letters) == ("/tmp/state/dead-letters", math.inf, 100)
    assert job(deadLetter={"late": False}).most_late_letters == 0


@pytest.mark.parametrize(
    ("files", "compression"),
    [
        ({"format": "parquet"}, "snappy"),
        ({"format": "parquet", "compression": "zstd"}, "zstd"),
        ({"format": "json"}, "none"),
        ({}, "snappy"),
    ],
)
def test_compression_is_always_settled(files: dict[str, str], compression: str) -> None:
    made = job(join=output(select=["orders.id"], sink={"files": {"path": "out", **files}}))
    assert isinstance(made.joins[0].sink, FilesSink)
    assert made.joins[0].sink.compression == compression


def test_columns_that_only_make_up_the_key_are_not_held() -> None:
    made = job()
    assert made.streams[LEFT].payload == ("id",)
    assert made.streams[RIGHT].payload == ("id",)


def test_columns_of_residuals_outputs_and_output_filters_are_held_in_the_schemas_order() -> None:
    made = job(
        join={"condition": "abs(orders.amount - payments.amount) <= 1 AND (orders.note LIKE 'a%' OR payments.id > 3)"}
        | output(select=["Orders.at"], where="orders.currency = 'EUR' OR payments.currency = 'EUR'")
    )
    assert made.streams[LEFT].payload == ("currency", "note", "at")
    assert made.streams[RIGHT].payload == ("id", "currency")


def test_whichever_predicate_is_chosen_later_its_residual_can_be_evaluated() -> None:
    made = job(join={"condition": "abs(orders.amount - payments.amount) <= 1 AND orders.currency = payments.currency"})
    assert len(made.layouts) > 1
    assert made.streams[LEFT].payload == ("id", "Amount", "currency")


def test_a_select_says_which_columns_are_held_and_in_which_order() -> None:
    assert job(stream={"select": ["note", "ID"]}).streams[LEFT].payload == ("note", "id")


def test_without_an_output_select_all_held_columns_are_written() -> None:
    made = job(stream={"select": ["note", "ID"]}, join=output())
    assert [name for name, _ in made.joins[0].output] == [
        "Orders_note",
        "Orders_id",
        "payments_id",
        "payments_amount",
        "payments_currency",
        "payments_note",
        "payments_at",
    ]
    assert made.streams[RIGHT].payload == ("id", "amount", "currency", "note", "at")
    assert isinstance(made.joins[0].sink, ConsoleSink)


def test_where_is_parsed_over_its_stream_alone() -> None:
    made = job(stream={"where": "amount > 0"})
    assert made.streams[LEFT].where is not None
    assert made.streams[LEFT].where.columns == {("Orders", "Amount")}
    assert made.streams[LEFT].payload == ("id",), "what only where reads is not held"
    assert made.streams[RIGHT].where is None


def test_the_hash_model_runs_on_predicates_that_bound_keys_alone() -> None:
    on = "orders.note <> payments.note AND orders.currency = payments.currency"
    made, other = job(join={"condition": on}, scheme={"model": "hash"}), job(join={"condition": on})
    assert {layout.main.kind for layout in made.layouts} == {MainKind.RANGE}
    assert fingerprint(made) == fingerprint(other), "the model may change under a checkpoint"


def test_the_parameters_of_models_have_defaults() -> None:
    assert job(scheme={"model": "readj"}).scheme_options == Options(sigma=0.1, groups=1)
    assert job(scheme={"model": "readj", "sigma": 0}).scheme_options == Options(sigma=0.0, groups=1)
    assert job(scheme={"model": "biclique", "groups": 6}).scheme_options == Options(sigma=0.1, groups=6)


def test_the_manifest_offers_the_models_that_there_are() -> None:
    assert get_args(SchemeSpec.model_fields["model"].annotation) == MODELS


def test_a_predicate_without_an_index_holds_all_that_it_reads() -> None:
    made = job(join={"condition": "orders.amount > payments.amount OR orders.note = payments.note"})
    assert [layout.main.kind for layout in made.layouts] == [MainKind.ALL]
    assert made.streams[LEFT].payload == ("id", "Amount", "note")


@pytest.mark.parametrize(
    ("window", "compiled"),
    [
        ({"within": "1s"}, Window(WindowKind.RANGE, 1_000_000, 1_000_000)),
        ({"before": "1s", "after": "2s"}, Window(WindowKind.RANGE, 1_000_000, 2_000_000)),
        ({"after": "2s"}, Window(WindowKind.RANGE, 0, 2_000_000)),
        ({"before": "2s", "slide": "1s"}, Window(WindowKind.RANGE, 2_000_000, 0, 1_000_000)),
        ({"within": "0s"}, Window(WindowKind.RANGE)),
        ({"rows": 7}, Window(WindowKind.ROWS, rows=7)),
        ({"unbounded": True}, Window(WindowKind.UNBOUNDED)),
        ({"rows": 7, "unbounded": False}, Window(WindowKind.ROWS, rows=7)),
    ],
)
def test_windows(window: dict[str, Any], compiled: Window) -> None:
    assert job(join={"window": window}).window == compiled


def test_tau1_follows_tau2() -> None:
    assert job(scaling={"tau2": 0.6}).tau1 == 0.3
    assert job(scaling={"tau1": 0.5}).tau1 == 0.5


def test_part_of_a_core_takes_a_whole_one() -> None:
    assert job(workers={"resources": {"cpu": "500m"}}).cores == 1
    assert job(workers={"resources": {"cpu": "1500m"}}).cores == 2


def test_a_claim_alone_is_no_place_for_a_local_run() -> None:
    with pytest.raises(ManifestError, match=r"^spec\.checkpoint\.location: is missing; a run outside Kubernetes needs"):
        job(checkpoint={"persistentVolumeClaim": "claim"})


RENAMED = {"condition": "abs(orderz.amount - payments.amount) <= 1"} | output(select=["payments.id AS p", "orderz.id AS o"])
SCHEMA = "id BIGINT, Amount DOUBLE, currency STRING, note STRING, at TIMESTAMP"


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"stream": {"name": "orderz"}, "join": RENAMED}, ["spec.joins[0].condition", "spec.streams[0].name"]),
        ({"stream": {"schema": SCHEMA + ", more INT"}}, ["spec.streams[0].schema"]),
        ({"stream": {"schema": SCHEMA.replace("DOUBLE", "FLOAT")}}, ["spec.streams[0].schema"]),
        ({"stream": {"source": {"files": {"path": "in/others", "format": "json"}}}}, ["spec.streams[0].source"]),
        ({"stream": {"select": ["id", "note"]}}, ["spec.streams[0].select"]),
        ({"join": {"condition": "abs(orders.amount - payments.amount) <= 2"}}, ["spec.joins[0].condition"]),
        ({"join": {"window": {"within": "4m"}}}, ["spec.joins[0].window"]),
        ({"join": {"window": {"within": "3m", "slide": "1m"}}}, ["spec.joins[0].window"]),
        ({"join": {"window": {"rows": 5}}}, ["spec.joins[0].window"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_may_not_change_under_a_checkpoint_is_named(changes: dict[str, Any], fields: list[str]) -> None:
    before, after = fingerprint(job()), fingerprint(job(**changes))
    assert before.keys() == after.keys()
    assert sorted(field for field in before if before[field] != after[field]) == fields


@pytest.mark.parametrize(
    "changes",
    [
        {"stream": {"where": "amount > 5"}},
        {"stream": {"watermark": "1h", "expectedRate": 7}},
        {"stream": {"eventTime": "at"}},
        {"stream": {"source": {"files": {"path": "in/orders", "format": "json", "maxFilesPerEpoch": 2}}}},
        {"stream": {"schema": "id   LONG, Amount double, currency STRING, note STRING, at TIMESTAMP"}},
        {"join": {"condition": "abs(orders.amount -\n  payments.amount) <= 1"}},
        {"join": {"name": "other", "window": {"before": "180s", "after": "180s"}}},
        {"join": output(select=["orders.id", "payments.id AS p"])},
        {"scheme": {"model": "square"}, "workers": {"min": 2, "max": 3}, "epoch": {"interval": "10s"}},
        {"shedding": {"model": "linear"}, "scaling": {"mode": "Off"}},
    ],
)
def test_everything_else_may_change_under_a_checkpoint(changes: dict[str, Any]) -> None:
    assert fingerprint(job(**changes)) == fingerprint(job())


def test_a_fingerprint_is_text_only() -> None:
    assert all(isinstance(value, str) and value for value in fingerprint(job()).values())
