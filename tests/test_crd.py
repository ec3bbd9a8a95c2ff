"""The CustomResourceDefinition, asked of a real API server: what it accepts, refuses and says, fills in, drops and keeps.

The table's manifests are the good ones of tests/test_bad_manifests.py with a small change. What the API server says of each is
compared with what ``streamjoin validate`` says: both must accept or both refuse. Of that file's own bad manifests, the API server
must refuse all but those listed in BEYOND, whose errors are in SQL, in places, or depend on the types of columns.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver import JSON_PATCH, MERGE, TABLE, ApiError, ApiServer, Client
from documents import parsed
from operator_cluster import install
from streamjoin.controlplane.fingerprint import fingerprint
from streamjoin.manifest import check, parse
from streamjoin.manifest.model import Manifest
from streamjoin_operator import crd
from streamjoin_operator.api import Api
from streamjoin_operator.definition import Definition
from streamjoin_operator.status_model import Status
from test_bad_manifests import CASES as BAD
from test_bad_manifests import CONDITION_OF_THREE, GOOD, THREE, Bad
from waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "crds" / "streamjoins.streamjoin.dev.yaml"
EXAMPLES = [
    path for path in sorted((ROOT / "examples").rglob("*.yaml")) if "kind: StreamJoin" in path.read_text() and "testdata" not in path.parts
]
GROUP = f"/apis/{crd.GROUP}/{crd.VERSION}"

Object = dict[str, Any]


def as_kubectl(text: str) -> Object:
    """A manifest's data as kubectl sends it: YAML 1.1, in which a bare ``on`` is true, and then JSON."""
    return json.loads(json.dumps(parsed(text)))


def changed(*changes: tuple[str, str], good: str = GOOD) -> str:
    text = good
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the good manifest"
        text = text.replace(old, new)
    return text


@dataclass(frozen=True)
class Case:
    """Changes of a good manifest, and what the API server says of it: the field and a part of the message; "" for nothing."""

    name: str
    changes: tuple[tuple[str, str], ...]
    field: str = ""
    message: str = ""
    good: str = GOOD

    def __str__(self) -> str:
        return self.name


def accepted(name: str, *changes: tuple[str, str], good: str = GOOD) -> Case:
    return Case(name, changes, good=good)


SCHEMA = '      schema: "id BIGINT, amount DOUBLE, currency STRING, at TIMESTAMP"\n'
RESULTS = "    - {name: results, source: {join: other}, eventTime: shipped}\n  joins:\n"
WITH_SCHEMA = RESULTS.replace("other}", 'delivered}, schema: "id BIGINT"')


def refused(name: str, old: str, new: str, field: str, message: str, good: str = GOOD) -> Case:
    return Case(name, ((old, new),), field, message, good)


FILES = "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}"
KAFKA = "kafka: {bootstrapServers: 'kafka:9092', topic: orders}"
PATTERN = "kafka: {bootstrapServers: 'kafka:9092', topicPattern: 'orders-(eu|us)-[0-9]+'}"
RATE = "rate: {constant: 50}"
RATE_FIELD = "spec.streams[1].source.generator.rate"
COLUMN = "id: {sequence: {start: 5}}"
COLUMN_FIELD = "spec.streams[1].source.generator.columns.id"
WINDOW = "window: {within: 180s, slide: 60s}"
SINK = "sink: {files: {path: out/matches, format: parquet}}"
CONDITION = 'condition: "abs(orders.amount - payments.amount) <= 0.01 AND orders.currency = payments.currency"'
WORKERS = 'workers: {min: 2, max: 6, capacityTuples: 1000, resources: {cpu: "1", memory: 2Gi}}'
SCALING = "scaling: {mode: Enforce, tau0: 0.2, tau2: 0.8, scaleUpAfter: 30s}"
VERTICAL = "mode: Enforce", "mode: Enforce, vertical: Recommend"
LARGER = GOOD.replace("max: 6,", "max: 6, maxMemory: 16Gi,")
CHECKPOINT = "checkpoint: {location: out/state}"
STOOD_BY = GOOD.replace("driver: {", "driver: {standby: true, ")
MORE = """
    - name: unpaid
      type: semi
      condition: "orders.id = payments.id"
      window: {within: 1h}
      output: {sink: {console: {}}}"""
EACH = "window: {each: {orders: 10m, payments: 2m, shipments: 30s}}"
NAMED = "    - name: delivered"
MORE_STREAMS = [
    f"""    - name: more{number}
      source: {{files: {{path: in/more, format: json}}}}
      schema: "id BIGINT, at TIMESTAMP"
      eventTime: at
      watermark: 1m
"""
    for number in range(4)
]
LABELLED = "\n  metrics: {podMonitor: {labels: {release: a b}}}"

ACCEPTED = [
    accepted("the good one"),
    accepted("quotes in a condition may hold dots", (CONDITION, "condition: \"orders.currency = 'x.y' AND orders.id < payments.id\"")),
    accepted("case does not count in a condition", (CONDITION, 'condition: "ORDERS.id = Payments.id"')),
    accepted("a budget", ("tau2: 0.8", "tau2: 0.8, budget: {completeness: 99.95%, over: 30d}")),
    accepted("a budget of little", ("tau2: 0.8", "tau2: 0.8, budget: {completeness: 0.5 %}")),
    accepted("before and after", (WINDOW, "window: {before: 1m, after: 0s}")),
    accepted("after alone", (WINDOW, "window: {after: 1h30m}")),
    accepted("several joins", (SINK, SINK + MORE)),
    accepted("sixteen joins", (SINK, SINK + "".join(MORE.replace("unpaid", f"unpaid-{number}") for number in range(15)))),
    accepted("several joins of rows", (WINDOW, "window: {rows: 9}"), (SINK, SINK + MORE.replace("within: 1h", "rows: 5"))),
    accepted("numbers as event times", ("eventTime: at", "eventTime: {column: id, unit: ms}")),
    accepted("text as event times", ("eventTime: at", 'eventTime: {column: currency, format: "dd/MM/yyyy HH:mm:ss"}')),
    accepted("event times by SQL", ("eventTime: at", "eventTime: {expression: timestamp_millis(id)}")),
    accepted("rows", (WINDOW, "window: {rows: 1000}")),
    accepted("a capacity in bytes", ("capacityTuples: 1000", "capacity: 512Mi")),
    accepted("no capacity", ("capacityTuples: 1000, ", "")),
    accepted(
        "a standby on a claim for several nodes",
        (CHECKPOINT, "checkpoint: {persistentVolumeClaim: state, size: 1Gi, accessModes: [ReadWriteMany]}"),
        good=STOOD_BY,
    ),
    accepted("more memory", ("capacityTuples: 1000", "maxMemory: 16Gi"), ("mode: Enforce", "mode: Enforce, vertical: Enforce")),
    accepted("more memory in words of its own", ("capacityTuples: 1000", "maxMemory: 2147483649")),
    accepted("unbounded", (WINDOW, "window: {unbounded: true}")),
    accepted("not unbounded", (WINDOW, "window: {within: 1d, unbounded: false}")),
    accepted("a slide as long as the window, in other units", (WINDOW, "window: {within: 1h, slide: 60m}")),
    accepted("days", (WINDOW, "window: {within: 1.5d, slide: 1d12h}")),
    accepted("no window at all in time", (WINDOW, "window: {within: 0s}")),
    accepted("every unit", (WINDOW, "window: {within: 1d2h3m4s5ms6us}")),
    accepted("a hundred years", (WINDOW, "window: {within: 36500d}")),
    accepted("Kafka to Kafka", (FILES, KAFKA), (SINK, "sink: {kafka: {bootstrapServers: b, topic: out, options: {linger.ms: 5, a: x}}}")),
    accepted("topics by pattern", (FILES, PATTERN)),
    accepted("topics by pattern, looked for now and then", (FILES, PATTERN.replace("'}", "', discoveryInterval: 100ms}"))),
    accepted("snapshots", (SINK, SINK + "\n        snapshots: {every: 10s, size: 9, maxDelay: 3, key: order_id, keep: 7d, buffer: 256Mi}")),
    accepted("snapshots in files alone", (SINK, SINK + "\n        snapshots: {size: 9, store: {embedded: {}}}")),
    accepted(
        "snapshots in PostgreSQL",
        (SINK, SINK + "\n        snapshots: {size: 9, store: {postgres: {host: db, database: d, options: {password: 'env:P'}}}}"),
    ),
    accepted(
        "snapshots in Cassandra",
        (SINK, SINK + "\n        snapshots: {every: 10s, store: {cassandra: {hosts: 'a,b', keyspace: k, consistency: ONE}}}"),
    ),
    accepted("snapshots and no sink", (SINK, "snapshots: {size: 9}")),
    accepted("the console", (SINK, "sink: {console: {}}")),
    accepted("an object store", (CHECKPOINT, 'checkpoint: {location: "s3://bucket/state"}')),
    accepted("certificates", (CHECKPOINT, CHECKPOINT + "\n  security: {tls: {secretName: near-tls.v2}}")),
    accepted("a claim", (CHECKPOINT, "checkpoint: {persistentVolumeClaim: state}")),
    accepted("a ramp", (RATE, "rate: {ramp: {from: 0, to: 10, over: 1m}}")),
    accepted("spikes", (RATE, "rate: {spike: {base: 1, peak: 10, at: 0s, for: 1m, every: 60s}}")),
    accepted(
        "a hot spot", ("amount: {uniform: {min: 0, max: 10}}", "amount: {hotspot: {min: 0, max: 10, width: 2.5, share: 0.5, period: 1m}}")
    ),
    accepted("values of a column, and null", ("[EUR, USD]", "[EUR, null, USD]")),
    accepted("thousandths of a core", ('cpu: "1"', "cpu: 1500m")),
    accepted("cores as text", ('cpu: "1"', 'cpu: "0.5"')),
    accepted("cores as a whole number", ('cpu: "1"', "cpu: 2")),
    accepted("bytes", ("memory: 2Gi", "memory: 1073741824")),
    accepted("a base as a whole number", ('base: "0.1"', "base: 0")),
    accepted("tau1", ("tau0: 0.2, tau2: 0.8", "tau0: 0.2, tau1: 0.5, tau2: 0.8, tau3: 1")),
    accepted("a floor", ("max: 6", "max: 6, floor: 4")),
    accepted("no floor above min, as a scale of 0 or 1 says it", ("max: 6", "max: 6, floor: 0")),
    accepted("labels of a PodMonitor", (CHECKPOINT, CHECKPOINT + '\n  metrics: {podMonitor: {labels: {release: a, b.c/d: ""}}}')),
    accepted("one worker and no more", ("min: 2, max: 6", "min: 1, max: 1")),
    accepted("each of two streams", (WINDOW, "window: {each: {payments: 1m, orders: 0s}}")),
    accepted("three streams", good=THREE),
    accepted("three streams, whatever their distance in time", (EACH, "window: {unbounded: true}"), good=THREE),
    accepted("three streams within a time", (EACH, "window: {within: 5m}"), good=THREE),
    accepted(
        "three streams without event times",
        ("      eventTime: paid\n      watermark: 0s\n", ""),
        (EACH, "window: {unbounded: true}"),
        good=THREE,
    ),
    accepted("three streams with the type that is the default", (NAMED, "    - type: inner\n      name: delivered"), good=THREE),
    accepted(
        "six streams",
        ("  joins:\n", "".join(MORE_STREAMS[:3]) + "  joins:\n"),
        (EACH, "window: {within: 5m}"),
        (CONDITION_OF_THREE, " AND ".join([CONDITION_OF_THREE, *(f"more{n}.id = Orders.id" for n in range(3))])),
        good=THREE,
    ),
    accepted("defaults for all that may have one", (WORKERS, "suspend: true"), ("  suspend: false\n", "")),
    accepted("a parameter of the model", ("model: adsp", "model: readj, sigma: 0.5")),
    accepted("scaling off, in quotes", ("mode: Enforce", 'mode: "Off"')),
    accepted(
        "a Prometheus with a login",
        (
            "mode: Enforce",
            "mode: Enforce, prometheus: {bearer: {secretName: a}, tls: {secretName: b}, headers: {X-Scope-OrgID: a}, "
            'headersSecretName: c, queryParameters: {dedup: "true"}}',
        ),
    ),
    accepted("another Prometheus", ("mode: Enforce", 'mode: Enforce, prometheus: {url: "https://prometheus.monitoring:9090/team-a"}')),
    accepted("a changed pod", ("{metadata: {labels: {team: a}}}", "{spec: {tolerations: [{key: a, operator: Exists}]}}")),
]

REFUSED = [
    refused("each of two streams, with a stream too few", WINDOW, "window: {each: {orders: 1m}}", "spec.joins", "must name every stream"),
    refused("each with a wrong duration", EACH, EACH.replace("30s", "30"), "spec.joins[0].window.each.shipments", "of type string", THREE),
    refused("each of centuries", EACH, EACH.replace("30s", "90000d"), "spec.joins[0].window.each[shipments]", "at most 36500d", THREE),
    refused("each with a stream of another name", EACH, EACH.replace("shipments", "s"), "spec.joins", "must name every stream", THREE),
    refused("each in another case", EACH, EACH.replace("shipments", "Shipments"), "spec.joins", "must name every stream", THREE),
    refused("each of seven", EACH, EACH.replace("30s", "30s, a: 1s, b: 1s, c: 1s, d: 1s"), "spec.joins[0].window.each", "Too many", THREE),
    refused("seven streams", "  joins:\n", "".join(MORE_STREAMS) + "  joins:\n", "spec.streams", "Too many", THREE),
    refused("results of a join that is not there", "  joins:\n", RESULTS, "spec.streams", "a join that is not there", THREE),
    refused("results of a join, and a schema", "  joins:\n", WITH_SCHEMA, "spec.streams[3].schema", "where the source is a join", THREE),
    refused("no schema", SCHEMA, "", "spec.streams[0].schema", "must be given"),
    refused("two streams, one of results", f"source:\n        {FILES}", "source: {join: match}", "spec.streams", "that join's two streams"),
    refused("no sink", "        sink: {files: {path: out/matches, format: parquet}}\n", "", "spec.joins", "a join needs a sink"),
    refused(
        "three streams, outer", EACH, "type: full\n      window: {rows: 5}", "spec.joins", "left, right and full of three and more", THREE
    ),
    *(
        refused(f"three streams with {of_two} in a window", EACH, f"window: {{{of_two}}}", "spec.joins", "are for two streams", THREE)
        for of_two in ("before: 1m", "after: 1m")
    ),
    refused("a third stream that is not there", "shipments.value", "refunds.value", "spec.joins", "a stream that is not there", THREE),
    refused("seventeen joins", SINK, SINK + "".join(MORE.replace("unpaid", f"u{n}") for n in range(16)), "spec.joins", "Too many"),
    refused("bounded and unbounded", SINK, SINK + MORE.replace("within: 1h", "unbounded: true"), "spec.joins", "must be of one kind"),
    refused("two joins of one name", SINK, SINK + MORE.replace("unpaid", "match"), "spec.joins[1]", "Duplicate value"),
    refused("no such stream in a later join", SINK, SINK + MORE.replace("payments", "refunds"), "spec.joins", "a stream that is not there"),
    refused("a later join without a condition", SINK, SINK + MORE.replace("condition", "where"), "", 'unknown field "spec.joins[1].where"'),
    refused("no streams", "  streams:", "  rivers:", "", 'unknown field "spec.rivers"'),
    refused("a slip in a field", "  scaling:", "  scalling:", "", 'unknown field "spec.scalling"'),
    refused("a slip deep down", "maxFilesPerEpoch", "maxFiles", "", 'unknown field "spec.streams[0].source.files.maxFiles"'),
    refused("no checkpoint", CHECKPOINT, "suspend: true", "spec.checkpoint", "Required value"),
    refused("a name that is too long", "name: good", f"name: {'a' * 64}", "metadata.name", "Too long"),
    refused("a name with a dot", "name: good", "name: a.b", "", "is not a name for a resource"),
    refused(
        "two sources",
        FILES,
        f"{FILES}\n        {KAFKA}",
        "spec.streams[0].source",
        "one of files, generator, kafka, delta, iceberg, spark, staged",
    ),
    refused("no source", f"source:\n        {FILES}", "source: {}", "spec.streams[0].source", "exactly one of files, generator, kafka"),
    refused("a source without a format", ", format: csv", "", "spec.streams[0].source.files.format", "Required value"),
    refused(
        "an unknown format",
        "format: csv",
        "format: tsv",
        "spec.streams[0].source.files.format",
        'supported values: "parquet", "json", "csv"',
    ),
    refused(
        "a pattern with a directory",
        "format: csv",
        'format: csv, pattern: "a/*"',
        "spec.streams[0].source.files.pattern",
        "put the directory into path",
    ),
    refused(
        "a delimiter of two",
        "format: csv",
        "format: csv, delimiter: '||'",
        "spec.streams[0].source.files.delimiter",
        "Too long: may not be",  # of versions in other words
    ),
    refused(
        "a quote as delimiter",
        "format: csv",
        "format: csv, delimiter: '\"'",
        "spec.streams[0].source.files.delimiter",
        "cannot separate values",
    ),
    refused(
        "a header of parquet",
        "format: csv",
        "format: parquet, header: false",
        "spec.streams[0].source.files.header",
        "has no meaning with this format",
    ),
    refused(
        "no files an epoch",
        "maxFilesPerEpoch: 16",
        "maxFilesPerEpoch: 0",
        "spec.streams[0].source.files.maxFilesPerEpoch",
        "greater than or equal to 1",
    ),
    refused(
        "an unknown store",
        "path: in/orders",
        'path: "ftp://host/orders"',
        "spec.streams[0].source.files.path",
        "begins with no store that is known",
    ),
    refused("a store without a bucket", "path: in/orders", 'path: "s3:///in"', "spec.streams[0].source.files.path", "does not say where"),
    refused("a home directory", "path: in/orders", "path: '~/orders'", "spec.streams[0].source.files.path", "which only a shell expands"),
    refused("spaces around a place", "path: in/orders", "path: ' in'", "spec.streams[0].source.files.path", "without spaces around it"),
    refused(
        "a topic with a slash", FILES, KAFKA.replace("orders", "a/b"), "spec.streams[0].source.kafka.topic", "is not the name of a topic"
    ),
    refused(
        "a topic and a pattern",
        FILES,
        KAFKA.replace("topic:", "topicPattern: a.*, topic:"),
        "spec.streams[0].source.kafka",
        "exactly one of topic and topicPattern",
    ),
    refused(
        "neither a topic nor a pattern",
        FILES,
        KAFKA.replace(", topic: orders", ""),
        "spec.streams[0].source.kafka",
        "exactly one of topic and topicPattern",
    ),
    refused(
        "an empty pattern",
        FILES,
        PATTERN.replace("orders-(eu|us)-[0-9]+", ""),
        "spec.streams[0].source.kafka.topicPattern",
        "at least 1 chars long",
    ),
    refused(
        "an interval of discovery without a pattern",
        FILES,
        KAFKA.replace("topic:", "discoveryInterval: 9s, topic:"),
        "spec.streams[0].source.kafka.discoveryInterval",
        "is for topicPattern, and there is none",
    ),
    refused(
        "an interval of discovery that is too long",
        FILES,
        PATTERN.replace("'}", "', discoveryInterval: 2h}"),
        "spec.streams[0].source.kafka.discoveryInterval",
        "at least 100ms and at most 1h",
    ),
    refused("the same name twice", "name: payments", "name: orders", "spec.streams[1]", "Duplicate value"),
    refused("the same name in capitals", "name: payments", "name: Orders", "spec.streams", "two streams have the same name"),
    refused("a stream's name that is no identifier", "name: payments", "name: pay-ments", "spec.streams[1].name", "cannot stand in SQL"),
    refused(
        "a schema that is empty",
        '"id BIGINT, amount DOUBLE, currency STRING, at TIMESTAMP"',
        '""',
        "spec.streams[0].schema",
        "at least 1 char",
    ),
    refused("a column selected twice", "[id, amount, currency]", "[id, id]", "spec.streams[0].select[1]", "Duplicate value"),
    refused("a rate of 0", "expectedRate: 100", "expectedRate: 0", "spec.streams[0].expectedRate", "greater than 0"),
    refused("two rates", RATE, "rate: {constant: 5, ramp: {from: 1, to: 2, over: 1s}}", RATE_FIELD, "give exactly one of constant"),
    refused(
        "a period of 0",
        RATE,
        "rate: {diurnal: {mean: 5, amplitude: 1, period: 0s}}",
        f"{RATE_FIELD}.diurnal.period",
        "must be at least 1us",
    ),
    refused(
        "an amplitude above 1",
        RATE,
        "rate: {diurnal: {mean: 5, amplitude: 2, period: 1s}}",
        f"{RATE_FIELD}.diurnal.amplitude",
        "less than or equal to 1",
    ),
    refused(
        "spikes that overlap",
        RATE,
        "rate: {spike: {base: 1, peak: 10, at: 0s, for: 2m, every: 1m}}",
        f"{RATE_FIELD}.spike.for",
        "must be at most every (1m)",
    ),
    refused("a column in two ways", COLUMN, "id: {sequence: {}, zipf: {values: 1, exponent: 1}}", COLUMN_FIELD, "must have at most 1 item"),
    refused(
        "a range from back to front",
        "{uniform: {min: 0, max: 10}}",
        "{uniform: {min: 11, max: 10}}",
        "spec.streams[1].source.generator.columns[amount].uniform.min",
        "must be at most max",
    ),
    refused("a seed below 0", "seed: 7", "seed: -1", "spec.streams[1].source.generator.seed", "greater than or equal to 0"),
    refused("another field for the condition", "condition:", '"where":', "", 'unknown field "spec.joins[0].where"'),
    refused("no condition", CONDITION, "type: inner", "spec.joins[0].condition", "Required value"),
    refused(
        "a condition on another stream",
        CONDITION,
        'condition: "orders.id = refunds.id"',
        "spec.joins",
        "condition refers to a stream that is not there",
    ),
    refused("a duration without a unit", WINDOW, "window: {within: 180}", "spec.joins[0].window.within", "must be of type string"),
    refused("a duration in words", WINDOW, "window: {within: 3min}", "spec.joins[0].window.within", "should match"),
    refused("units out of order", WINDOW, "window: {within: 1s1m}", "spec.joins[0].window.within", "should match"),
    refused("no duration", WINDOW, 'window: {within: ""}', "spec.joins[0].window.within", "at least 1 char"),
    refused("a window of centuries", WINDOW, "window: {within: 36500d1s}", "spec.joins[0].window.within", "at most 36500d"),
    refused(
        "a slide longer than the window",
        WINDOW,
        "window: {within: 1m, slide: 61s}",
        "spec.joins[0].window.slide",
        "must be at most within (1m)",
    ),
    refused(
        "two sinks",
        SINK,
        "sink: {console: {}, files: {path: out/m}}",
        "spec.joins[0].output.sink",
        "give exactly one of files, console, kafka, delta, iceberg, postgres and spark",
    ),
    refused(
        "snapshots that end by time and by punctuations",
        SINK,
        SINK + "\n        snapshots: {every: 10s, punctuation: true}",
        "spec.joins[0].output.snapshots.punctuation",
        "excludes every and size; keep one",
    ),
    refused(
        "compressed json",
        SINK,
        "sink: {files: {path: out/m, format: json, compression: zstd}}",
        "spec.joins[0].output.sink.files.compression",
        "is only for format parquet",
    ),
    refused(
        "an output without columns",
        '["orders.id AS order_id", "payments.id AS payment_id"]',
        "[]",
        "spec.joins[0].output.select",
        "at least 1 item",
    ),
    refused(
        "a parameter of another model",
        "model: adsp",
        "model: readj, groups: 2",
        "spec.scheme.groups",
        "is only for model biclique, and the model is readj",
    ),
    refused("an unknown model", "model: adsp", "model: magic", "spec.scheme.model", "Unsupported value"),
    refused("min above max", "min: 2, max: 6", "min: 7, max: 6", "spec.workers.min", "must be at most max"),
    refused("most memory that is no more", "max: 6,", "max: 6, maxMemory: 2048Mi,", "spec.workers.maxMemory", "above resources.memory"),
    refused("more memory and a capacity", *VERTICAL, "spec.scaling.vertical", "remove workers.capacity", good=LARGER),
    refused("any more memory", *VERTICAL, "spec.scaling.vertical", "give workers.maxMemory", good=LARGER.replace("maxMemory: 16Gi,", "")),
    refused(
        "a standby on a claim for one node",
        CHECKPOINT,
        "checkpoint: {persistentVolumeClaim: state, size: 1Gi}",
        "spec.driver.standby",
        "add ReadWriteMany",
        good=STOOD_BY,
    ),
    refused("two capacities", "capacityTuples: 1000", "capacityTuples: 1000, capacity: 1Gi", "spec.workers.capacity", "keep one"),
    refused("next to no capacity", "capacityTuples: 1000", "capacity: 1", "spec.workers.capacity", "must be at least 1Ki and at most 16Ti"),
    refused("no workers", "min: 2, max: 6", "min: 0, max: 6", "spec.workers.min", "greater than or equal to 1"),
    refused("a floor above max", "max: 6", "max: 6, floor: 7", "spec.workers.floor", "must be at least min and at most max"),
    refused("too many workers in an executor", "max: 6", "max: 60, perExecutor: 17", "spec.workers.perExecutor", "or equal to 16"),
    refused("room for workers that never come", "max: 6", "max: 6, perExecutor: 7", "spec.workers.perExecutor", "must be at most max"),
    refused("a floor below min", "min: 2, max: 6", "min: 3, max: 6, floor: 2", "spec.workers.floor", "must be at least min and at most"),
    refused("a label that is none", CHECKPOINT, CHECKPOINT + LABELLED, "spec.metrics.podMonitor.labels.release", "should match"),
    refused(
        "cores that are not whole, as a number", 'cpu: "1"', "cpu: 0.5", "spec.workers.resources.cpu", "must be of type integer,string"
    ),
    refused("too many cores", 'cpu: "1"', "cpu: 257", "spec.workers.resources.cpu", "must be at least 100m and at most 256"),
    refused("too little memory", "memory: 2Gi", "memory: 1Mi", "spec.workers.resources.memory", "must be at least 64Mi and at most 16Ti"),
    refused("memory in words", "memory: 2Gi", "memory: much", "spec.workers.resources.memory", "should match"),
    refused("tau0 above tau1", "tau0: 0.2", "tau0: 0.5", "spec.scaling.tau0", "tau0 must be below tau1"),
    refused("tau1 as large as tau2", "tau0: 0.2", "tau0: 0.2, tau1: 0.8", "spec.scaling", "tau1 must be below tau2"),
    refused("tau2 above tau3", "tau2: 0.8", "tau2: 0.95", "spec.scaling.tau2", "tau2 must be below tau3"),
    refused("tau0 of 0", "tau0: 0.2", "tau0: 0", "spec.scaling.tau0", "greater than 0"),
    refused("tau3 above 1", "tau2: 0.8", "tau2: 0.8, tau3: 1.5", "spec.scaling.tau3", "less than or equal to 1"),
    refused(
        "a mode that is unknown", "mode: Enforce", "mode: Always", "spec.scaling.mode", 'supported values: "Enforce", "Recommend", "Off"'
    ),
    refused(
        *("two logins", "mode: Enforce", "mode: Enforce, prometheus: {bearer: {secretName: a}, basic: {secretName: b}}"),
        *("spec.scaling.prometheus.bearer", "excludes basic; keep one"),
    ),
    refused(
        *("a Prometheus that is no address", "mode: Enforce", 'mode: Enforce, prometheus: {url: "prometheus:9090"}'),
        *("spec.scaling.prometheus.url", "is not the address of a server"),
    ),
    refused("scaling off, without quotes", "mode: Enforce", "mode: False", "spec.scaling.mode", "must be of type string"),
    refused("a base above 1", 'base: "0.1"', 'base: "1.1"', "spec.shedding.base", "should match"),
    refused("a base that is not text", 'base: "0.1"', "base: 0.1", "spec.shedding.base", "must be of type integer,string"),
    refused("an epoch of a day", "interval: 1s", "interval: 1d", "spec.epoch.interval", "must be at least 0s and at most 1h"),
    refused(
        "no place for the checkpoint",
        CHECKPOINT,
        "checkpoint: {}",
        "spec.checkpoint",
        "give exactly one of location and persistentVolumeClaim",
    ),
    refused(
        "two places for the checkpoint",
        CHECKPOINT,
        "checkpoint: {location: out/state, persistentVolumeClaim: c}",
        "spec.checkpoint",
        "give exactly one of location",
    ),
    refused("suspend in words", "suspend: false", "suspend: maybe", "spec.suspend", "must be of type boolean"),
    refused(
        "a Secret's name in capitals",
        *(CHECKPOINT, CHECKPOINT + "\n  security: {tls: {secretName: Near}}"),
        *("spec.security.tls.secretName", "is not a name of an object"),
    ),
    refused("TLS without a Secret", CHECKPOINT, CHECKPOINT + "\n  security: {tls: {}}", "spec.security.tls.secretName", "Required value"),
    refused("a pod template that is text", "{metadata: {labels: {team: a}}}", "abc", "spec.driver.podTemplate", "must be of type object"),
]

BEYOND = {
    "access modes of no claim",
    "access modes of a claim that is not made",
    "three streams: a window of time without event times",
    "a window of time without event times",
    "a bound on silence without event times",
    "a bound on event times without them",
    "a sink in the directory of a source's names",
    "names by path and by pattern",
    "a later join that no key serves, and a model that needs one",
    "two joins with one directory for their results",
    "three streams: a join beside it that names one stream",
    "three streams: an outer join of three streams beside one of two, a stream of which is compared with none before it",
    "three streams: rows of two streams beside rows of three",
    "three streams: more pairs of keys than one scheme can cut",
    "an event time that the results do not have",
    "results that are made of themselves",
    "results with a column of nothing",
    "results with a wrong column, of a condition with another",
    "a pair's window that names another stream",
    "a semi join with results of the other stream",
    "a label by a name that none can have",
    "a secret's place",
    "an option that is no setting",
    # Patterns of Python, which CEL does not know.
    "a pattern that is none",
    "a pattern of a shell",
    "a pattern of topics of its own",
    "a pattern that matches the topic of results",
    # YAML, which kubectl reads in its own way.
    "a field given twice",
    "a YAML tag",
    "yes for truth",
    # Arithmetic.
    "a duration finer than a microsecond",
    # What a schema's text says, and so what depends on columns and their types.
    "an unknown type",
    "a column of a name that queries give the engine's own",
    "a column declared twice",
    "an event time that is no column",
    "an event time that is no time",
    "a schema without times",
    "a raw stream with columns that records do not have",
    "a select of an unknown column",
    "a select of a column twice",
    "a select without a column of the output",
    "a select without a column of the residual predicate",
    "a column without a generator",
    "a generator for an unknown column",
    "a generator for the event time",
    "a column generated twice",
    "real numbers in a column of whole ones",
    "more decimals than the column has",
    "more than the column holds",
    "a hot range wider than all",
    "a choice of another type",
    "a choice of a list",
    "a start that is no time",
    # SQL.
    "three streams: a stream that nothing compares",
    "three streams: a condition that is TRUE",
    "three streams: streams that only a part with all of them compares",
    "three streams: a condition with an unknown column",
    "three streams: a model that cuts along keys where some are not bounded",
    "three streams: a select without a column of the condition",
    "a selection of columns of the other stream",
    "a selection that is no condition",
    "a condition with an unknown column",
    "a condition of types that do not compare",
    "hash without a predicate that bounds keys",
    "two output columns of one name",
    "an output expression without a name",
    "an output column that is ambiguous",
    "an output where with an unknown column",
    "a key that is not written",
    "a table of PostgreSQL with a key that is not written",
    "an Iceberg source in no namespace",
    "an Iceberg table in no namespace, of a catalog in memory",
    "a catalog that is nowhere",
    "a table partitioned by a column that is not there",
    "a table partitioned twice by a column, and in the checkpoint",
    # Values of any type are invisible to CEL.
    "an option that would move offsets",
    "an option that is a field",
    "an option that is a function",
    "an option that would lose results",
    "a column that snapshots have themselves",
    "a key of snapshots that is none",
    "an option of PostgreSQL that is a field",
    "an option that Cassandra does not have",
    "a password of a store in a file that is nowhere",
    "a format whose schemas are in a registry that is not given",
    "a registry for a format that has no schemas there",
    "options that a schema registry has not",
    "two logins to a schema registry, and certificates without TLS",
    "a kafka sink of a format whose registry is not given",
    "a registry for a kafka sink of JSON",
    "results of Avro whose names Avro does not have",
    "columns of keys and headers that are not there, of another type, twice, and two places to begin",
    "columns of keys and places, and none of the value",
    # Places that get in each other's way.
    "a file URL with a host",
    "a sink in the checkpoint's folder of a bucket",
    "a sink in a source's directory",
    "a checkpoint that is the sink's directory",
    "a checkpoint around the sink",
    "dead letters among the results",
}
"""Bad manifests that the API server lets through, and the operator reports."""


@pytest.fixture(scope="session")
def defined(api_server: ApiServer) -> ApiServer:
    """The API server with the definition."""
    install(api_server)
    return api_server


@pytest.fixture
def joins(defined: ApiServer) -> str:
    """The path of the StreamJoins of a new namespace."""
    return f"{GROUP}/namespaces/{defined.namespace('crd')}/streamjoins"


@pytest.fixture(scope="module")
def shared_joins(defined: ApiServer) -> str:
    """The same, of one namespace in which nothing is kept."""
    return f"{GROUP}/namespaces/{defined.namespace('dry')}/streamjoins"


def test_the_definition_is_the_one_made_from_the_models() -> None:
    """Otherwise: make crds"""
    assert FILE.read_text() == crd.text()


def test_a_model_with_an_unbounded_field_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"spec.image: has no greatest length; give its type a max_length"):
        crd._bounded({"type": "object", "properties": {"image": {"type": "string"}}}, "spec")


def test_every_field_of_the_manifest_and_of_the_status_is_described() -> None:
    def undescribed(schema: Object, path: str) -> list[str]:
        found = [] if schema.get("description") or path.endswith("[]") else [path]
        for name, inner in schema.get("properties", {}).items():
            found += undescribed(inner, f"{path}.{name}")
        return found + (undescribed(schema["items"], f"{path}[]") if "items" in schema else [])

    schema = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert undescribed(schema["properties"]["spec"], "spec") == []
    assert undescribed(schema["properties"]["status"], "status") == []


def sent(client: Client, path: str, body: Object) -> list[str]:
    """What the API server finds wrong with a manifest, as "field: message"; nothing is kept."""
    try:
        client.create(path, body, dryRun="All", fieldValidation="Strict")
    except ApiError as error:
        if error.status not in (400, 422):
            raise
        # Of the whole object, the field is said to be <nil>.
        return [f"{cause.get('field', '').replace('<nil>', '')}: {cause['message']}" for cause in error.causes] or [f": {error.message}"]
    return []


@pytest.mark.apiserver
@pytest.mark.parametrize("case", [*ACCEPTED, *REFUSED], ids=str)
def test_the_api_server_and_validate_agree(case: Case, defined: ApiServer, shared_joins: str) -> None:
    resource = as_kubectl(changed(*case.changes, good=case.good))
    found = sent(defined.admin, shared_joins, resource)
    [document] = parse(yaml.safe_dump(resource))
    if not case.message:
        assert (found, document.problems) == ([], ())
        return
    assert any(problem.startswith(f"{case.field}: ") and case.message in problem for problem in found), found
    assert document.problems, f"the API server refuses it, and streamjoin validate does not: {found}"


def test_the_table_is_long_enough_to_mean_something() -> None:
    assert len(ACCEPTED) + len(REFUSED) >= 100
    assert len({case.name for case in ACCEPTED + REFUSED}) == len(ACCEPTED) + len(REFUSED)


@pytest.mark.apiserver
def test_the_api_server_refuses_bad_manifests_but_those_beyond_it(defined: ApiServer, shared_joins: str) -> None:
    let_through = set()
    for case in BAD:
        resource = resource_of(case)
        if resource is not None and not sent(defined.admin, shared_joins, resource):
            let_through.add(case.name)
    assert let_through == BEYOND


def resource_of(case: Bad) -> Object | None:
    """What kubectl would send of a bad manifest; None where it would send nothing, or not to the StreamJoins."""
    try:
        resource = as_kubectl(case.text)
    except (yaml.YAMLError, TypeError, ValueError):
        return None
    ours = isinstance(resource, dict) and (resource.get("apiVersion"), resource.get("kind")) == ("streamjoin.dev/v1beta1", "StreamJoin")
    return resource if ours and isinstance(resource.get("metadata"), dict) and resource["metadata"].get("name") else None


@pytest.mark.apiserver
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_accepted_by_kubectl(path: Path, defined: ApiServer) -> None:
    namespace = defined.namespace("examples")
    defined.kubectl("apply", "--server-side", "--validate=strict", "--dry-run=server", "-n", namespace, "-f", str(path))


@pytest.mark.apiserver
def test_defaults_are_filled_in_as_the_models_have_them(defined: ApiServer, joins: str) -> None:
    small = as_kubectl((ROOT / "examples" / "band.yaml").read_text())
    kept = defined.admin.create(joins, small)
    assert kept["spec"]["scaling"] | {"rules": None} == {
        "mode": "Enforce",
        "floor": "min",
        "quiet": [],
        "policy": "predictive",
        "vertical": "Off",
        "maxPerHour": 20,
        "whenFull": "backpressure",
        "tau0": 0.2,
        "tau2": 0.8,
        "tau3": 0.9,
        "scaleUpAfter": "30s",
        "scaleDownAfter": "10m",
        "stabilization": "30s",
        "rules": None,
    }
    assert kept["spec"]["epoch"] == {"interval": "1s", "maxTuples": 2_000_000, "maxBytes": "256Mi"} | small["spec"].get("epoch", {})
    given, filled_in = check(small).manifest, check(kept).manifest
    assert given is not None
    assert filled_in is not None
    assert filled_in.spec == given.spec


@pytest.mark.apiserver
def test_what_is_not_declared_is_dropped_where_the_user_does_not_ask_to_be_told(defined: ApiServer, joins: str) -> None:
    resource = as_kubectl(GOOD)
    resource["spec"]["colour"] = "red"
    resource["spec"]["driver"]["podTemplate"]["anything"] = {"goes": [1]}
    kept = defined.admin.create(joins, resource, fieldValidation="Warn")
    assert "colour" not in kept["spec"]
    assert kept["spec"]["driver"]["podTemplate"]["anything"] == {"goes": [1]}
    assert any("spec.colour" in warning for warning in defined.admin.warnings)


def test_no_manifest_has_a_field_that_would_be_dropped() -> None:
    """The definition's fields are the models', with the ``true`` that kubectl makes of ``on``."""
    resource = as_kubectl(GOOD)
    manifest = Manifest.model_validate(resource)
    written = json.loads(manifest.model_dump_json(by_alias=True, exclude_none=True))

    def unknown(value: Any, schema: Object, path: str) -> list[str]:
        if isinstance(value, list):
            return [found for item in value for found in unknown(item, schema.get("items", {}), f"{path}[]")]
        if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
            return []
        fields = schema.get("properties", {})
        inner = schema.get("additionalProperties")
        missing = [f"{path}.{name}" for name in value if name not in fields and not inner]
        below = [unknown(item, fields.get(name) or inner or {}, f"{path}.{name}") for name, item in value.items()]
        return missing + [found for each in below for found in each]

    schema = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert unknown(written["spec"], schema, "spec") == []


GIVEN_UP = {"generation": 8, "fate": "Dropped", "reason": "generation 8: its first epoch failed"}
STATUS: Object = {
    "phase": "Running",
    "lag": "12s",
    "rate": "1200",
    "appliedGeneration": 1,
    "appliedSpec": "0123456789abcdef",
    "observedGeneration": 1,
    "workers": 3,
    "desiredWorkers": 4,
    "selector": "streamjoin.dev/name=good,app.kubernetes.io/component=executor",
    "utilization": {"max": "0.52", "mean": "0.44", "source": "Prometheus", "at": "2026-01-01T00:00:00Z"},
    "firstPlan": {
        "workers": 3,
        "executors": 2,
        "model": "adsp",
        "summary": "<1,3,0>",
        "utilization": {"max": "0.39", "mean": "0.38"},
        "billPerHour": "3.00",
        "message": "first plan: 3 workers",
    },
    "plan": {"generation": 7, "model": "adsp", "tasks": 3, "summary": "<1,3,0>", "movedTuples": 12, "givenUp": [GIVEN_UP]},
    "shed": "0.1",
    "shedRatio": {"orders": "0.1", "payments": "0"},
    "deadLetters": {"orders": 17},
    "completeness": {"j": {"estimate": "0.9876", "low": "0.98", "high": "1"}},
    "change": {"generation": 1, "class": "restart", "fields": ["spec.joins[0].output.where"], "message": "because"},
    "decisions": [
        {
            "time": "2026-01-01T00:00:00Z",
            "rule": "allocate",
            "reason": "Full",
            "outcome": "Applied",
            "workersBefore": 3,
            "workersAfter": 4,
            "utilization": "0.96",
            "predictedUtilization": "0.41",
            "realizedUtilization": "0.42",
            "message": "a worker was full",
        }
    ],
    "cost": {
        "at": "2026-01-01T00:00:00Z",
        "executors": 3,
        "maxExecutors": 6,
        "pricePerExecutorHour": "0.250000",
        "executorHours": "12.500000",
        "avoidedExecutorHours": "3.000000",
        "spent": "3.125000",
        "avoided": "0.750000",
    },
    "queries": {
        "replicas": 2,
        "ready": 1,
        "url": "http://sj-one-queries.default.svc:8080/v1/query",
        "flight": "grpc://sj-one-queries.default.svc:8081",
    },
    "standby": {"state": "Ready", "tookOverAt": "2026-01-01T00:00:00Z"},
    "sleep": {
        "reason": "SuspendedWhenIdle",
        "since": "2026-01-01T00:00:00Z",
        "message": "no record",
        "wokenAt": "2026-01-01T01:00:00Z",
        "wokenBy": "there is something to read",
    },
    "memory": "2 Gi: 1 Gi of tuples and 1 Gi of Java",
    "image": "streamjoin-engine:1",
    "lastCommit": "2026-01-01T00:00:00Z",
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": "Joining",
            "message": "three workers join",
        }
    ],
}


def test_the_status_of_the_tests_names_every_field() -> None:
    assert set(STATUS) == {info.alias for info in Status.model_fields.values()}
    Status.model_validate(STATUS)


@pytest.mark.apiserver
def test_status_is_written_by_itself(defined: ApiServer, joins: str) -> None:
    resource = as_kubectl(GOOD) | {"status": STATUS}
    kept = defined.admin.create(joins, resource)
    assert kept["status"] == {"observedGeneration": -1}, "nobody has looked at it"
    written = defined.admin.patch(f"{joins}/good/status", {"status": STATUS, "spec": {"suspend": True}})
    assert written["status"] == STATUS
    assert written["spec"]["suspend"] is False
    assert written["metadata"]["generation"] == kept["metadata"]["generation"]
    after = defined.admin.patch(f"{joins}/good", {"spec": {"suspend": True}, "status": {"phase": "Failed"}})
    assert after["status"]["phase"] == "Running"
    assert after["metadata"]["generation"] == kept["metadata"]["generation"] + 1


GROWING = ("message", "summary", "reason", "memory", "image", "model", "url", "flight", "rule")


def overgrown(value: Any) -> Any:
    """With texts and lists of any length, and of other types than they are to be."""
    if isinstance(value, dict):
        made = {name: part * 200 if name in GROWING and isinstance(part, str) else overgrown(part) for name, part in value.items()}
        return {**made, **{name: None for name in ("movedTuples", "tau") if name in value}}
    if isinstance(value, list) and not (value and "type" in value[0]):
        return [overgrown(part) for part in value * 60]
    return value


@pytest.mark.apiserver
def test_of_a_status_that_grows_beyond_its_definition_all_is_stored_that_fits(defined: ApiServer, joins: str) -> None:
    defined.admin.create(joins, as_kubectl(GOOD))
    grown = overgrown(STATUS) | {"utilization": {"max": "nan", "mean": "0.44"}, "workers": "three", "shed": "inf"}
    with pytest.raises(ApiError, match="Too many"):
        defined.admin.patch(f"{joins}/good/status", {"status": grown})
    kept = Definition(Api.__new__(Api), lambda: 0.0).storable(grown)
    written = defined.admin.patch(f"{joins}/good/status", {"status": kept})["status"]
    assert written == kept
    assert written["utilization"] == {"mean": "0.44"}
    assert not {"workers", "shed"} & set(written)
    assert len(written["plan"]["givenUp"]) == 16
    assert [len(written["plan"]["givenUp"][-1][name]) for name in ("fate", "reason")] == [len(GIVEN_UP["fate"]), 4096]
    assert written["memory"].startswith(STATUS["memory"])
    assert written["memory"].endswith("...")


@pytest.mark.apiserver
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"phase": "Resting"}, "Unsupported value"),
        ({"workers": -1}, "greater than or equal to 0"),
        ({"utilization": {"max": "much"}}, "should match"),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, "Required value"),
        ({"conditions": [STATUS["conditions"][0] | {"status": "Yes"}]}, "Unsupported value"),
        ({"conditions": STATUS["conditions"] * 2}, "Duplicate value"),
    ],
)
def test_a_status_that_is_wrong_is_refused(wrong: Object, message: str, defined: ApiServer, joins: str) -> None:
    defined.admin.create(joins, as_kubectl(GOOD))
    with pytest.raises(ApiError, match=message):
        defined.admin.patch(f"{joins}/good/status", {"status": wrong})


@pytest.mark.apiserver
def test_conditions_of_two_managers_stand_side_by_side(defined: ApiServer, joins: str) -> None:
    defined.admin.create(joins, as_kubectl(GOOD))
    (ready,) = STATUS["conditions"]
    head = {"apiVersion": f"{crd.GROUP}/{crd.VERSION}", "kind": "StreamJoin", "metadata": {"name": "good"}}
    for kind in ("Ready", "Degraded"):
        written = defined.admin.apply(f"{joins}/good/status", head | {"status": {"conditions": [ready | {"type": kind}]}}, manager=kind)
    assert [condition["type"] for condition in written["status"]["conditions"]] == ["Ready", "Degraded"]


@pytest.mark.apiserver
def test_scale_sets_the_floor_within_min_and_max(defined: ApiServer, joins: str) -> None:
    namespace = joins.split("/")[5]
    kept = defined.admin.create(joins, as_kubectl(GOOD))
    defined.admin.patch(f"{joins}/good/status", {"status": STATUS})
    scale = defined.admin.get(f"{joins}/good/scale")
    assert scale["spec"]["replicas"] == 1, "a HorizontalPodAutoscaler would take 0, or nothing, for disabled"
    assert scale["status"] == {"replicas": 3, "selector": STATUS["selector"]}
    defined.kubectl("scale", "-n", namespace, "sj/good", "--replicas=5")
    after = defined.admin.get(f"{joins}/good")
    assert after["spec"]["workers"]["floor"] == 5
    assert after["metadata"]["generation"] == kept["metadata"]["generation"] + 1
    defined.admin.patch(f"{joins}/good", {"spec": {"workers": {"min": 3}}})
    for replicas in ("7", "2"):
        done = defined.kubectl("scale", "-n", namespace, "sj/good", f"--replicas={replicas}", check=False)
        assert "must be at least min and at most max, or 1 for none" in done.stderr
    for replicas in ("1", "0"):
        with pytest.raises(ApiError, match="must be at least min"):
            defined.admin.patch(f"{joins}/good", {"spec": {"workers": {"max": 4}}})
        defined.kubectl("scale", "-n", namespace, "sj/good", f"--replicas={replicas}")
        defined.admin.patch(f"{joins}/good", {"spec": {"workers": {"max": 4}}})
        defined.admin.patch(f"{joins}/good", {"spec": {"workers": {"max": 6, "floor": 5}}})


@pytest.mark.apiserver
def test_the_columns_of_kubectl_get(defined: ApiServer, joins: str) -> None:
    defined.admin.create(joins, as_kubectl(GOOD))
    defined.admin.patch(f"{joins}/good/status", {"status": STATUS})
    table = defined.admin.request("GET", joins, accept=TABLE)
    shown = {each["name"]: each["priority"] for each in table["columnDefinitions"]}
    only_wide = dict.fromkeys(["From", "Since", "Message"], 1)
    assert shown == only_wide | dict.fromkeys(
        ["Name", "Phase", "Ready", "Workers", "Desired", "Tau", "Lag", "Rate", "Shed", "Model", "Age"], 0
    )
    (row,) = table["rows"]
    cells = dict(zip([each["name"] for each in table["columnDefinitions"]], row["cells"], strict=True))
    assert cells.pop("Age")
    assert cells.pop("Since")[-1] in "dy", "an age, as of a date"
    assert cells == {
        "Name": "good",
        "Phase": "Running",
        "Workers": 3,
        "Desired": 4,
        "Tau": "0.52",
        "From": "Prometheus",
        "Lag": "12s",
        "Rate": "1200",
        "Shed": "0.1",
        "Model": "adsp",
        "Ready": "True",
        "Message": "three workers join",
    }


@pytest.mark.apiserver
def test_it_is_found_by_its_short_name_and_its_categories(defined: ApiServer, joins: str) -> None:
    defined.admin.create(joins, as_kubectl(GOOD))
    resources = {each["name"]: each for each in defined.admin.get(GROUP)["resources"]}
    of_joins = {name for name in resources if name.partition("/")[0] == "streamjoins"}
    assert of_joins == {"streamjoins", "streamjoins/status", "streamjoins/scale"}
    assert (resources["streamjoins"]["shortNames"], resources["streamjoins"]["categories"]) == (["sj"], ["streaming"])
    namespace = joins.split("/")[5]
    assert "good" in defined.kubectl("get", "sj", "-n", namespace).stdout
    assert "streamjoin.streamjoin.dev/good" in defined.kubectl("get", "streaming", "-n", namespace, "-o", "name").stdout


@pytest.mark.apiserver
def test_two_who_apply_the_same_field_conflict(defined: ApiServer, joins: str) -> None:
    resource = as_kubectl(GOOD)
    defined.admin.apply(f"{joins}/good", resource, manager="team")
    head = {name: resource[name] for name in ("apiVersion", "kind", "metadata")}
    wish = head | {"spec": {"scaling": {"tau3": 0.95, "tau2": 0.7}}}
    with pytest.raises(ApiError) as conflict:
        defined.admin.apply(f"{joins}/good", wish, manager="tuner")
    assert (conflict.value.status, [cause["field"] for cause in conflict.value.causes]) == (409, [".spec.scaling.tau2"])
    assert '"team"' in conflict.value.causes[0]["message"]
    taken = defined.admin.apply(f"{joins}/good", wish, manager="tuner", force=True)
    assert (taken["spec"]["scaling"]["tau2"], taken["spec"]["scaling"]["tau3"]) == (0.7, 0.95)
    with pytest.raises(ApiError, match="conflict"):
        defined.admin.apply(f"{joins}/good", resource, manager="team")


@pytest.mark.apiserver
def test_a_part_of_one_stream_may_be_applied_by_another_manager(defined: ApiServer, joins: str) -> None:
    resource = as_kubectl(GOOD)
    defined.admin.apply(f"{joins}/good", resource, manager="team")
    head = {name: resource[name] for name in ("apiVersion", "kind", "metadata")}
    rate = head | {"spec": {"streams": [{"name": "payments", "expectedRate": 5}]}}
    streams = defined.admin.apply(f"{joins}/good", rate, manager="tuner")["spec"]["streams"]
    assert [(stream["name"], stream.get("expectedRate")) for stream in streams] == [("orders", 100), ("payments", 5)]


FIXED = [
    ("streams/0/source/files/path", "in/elsewhere", "a stream's source"),
    ("streams/0/source/files/format", "json", "a stream's source"),
    ("streams/0/source", {"kafka": {"bootstrapServers": "b", "topic": "orders"}}, "a stream's source"),
    ("streams/0/schema", "id BIGINT, amount DOUBLE, currency STRING, at TIMESTAMP, more INT", "a stream's schema"),
    ("streams/0/select", ["id"], "a stream's select"),
    ("streams/1/select", ["id"], "a stream's select"),
    ("streams/1/name", "refunds", "condition refers to a stream that is not there"),
    ("joins/0/condition", "orders.id = payments.id", "a join's condition"),
    ("joins/0/type", "left", "a join's type"),
    ("joins/0/window", {"within": "5m"}, "a join's window"),
    ("joins/0/window", {"rows": 5}, "a join's window"),
    ("joins/0/window", {"each": {"orders": "180s", "payments": "180s"}}, "a join's window"),
]


@pytest.mark.apiserver
@pytest.mark.parametrize(("field", "value", "message"), FIXED, ids=lambda value: str(value)[:40])
def test_what_is_in_the_state_may_change_only_with_the_checkpoint(
    field: str, value: object, message: str, defined: ApiServer, joins: str
) -> None:
    defined.admin.create(joins, as_kubectl(GOOD))
    patch = [{"op": "add", "path": f"/spec/{field}", "value": value}]
    with pytest.raises(ApiError) as refusal:
        defined.admin.patch(f"{joins}/good", patch, JSON_PATCH)
    assert message in refusal.value.message
    if "under the same checkpoint" in refusal.value.message:
        patch.append({"op": "replace", "path": "/spec/checkpoint/location", "value": "out/another"})
        defined.admin.patch(f"{joins}/good", patch, JSON_PATCH)


@pytest.mark.apiserver
def test_of_three_streams_none_may_come_go_change_places_or_have_another_window(defined: ApiServer, joins: str) -> None:
    kept = defined.admin.create(joins, as_kubectl(THREE))
    place, streams, (join,) = f"{joins}/three", kept["spec"]["streams"], kept["spec"]["joins"]
    of_two = join | {"condition": "orders.id = payments.order_id", "window": {"within": "10m"}, "output": {"sink": {"console": {}}}}
    of_four = join | {
        "condition": f"{join['condition']} AND returns.id = orders.id",
        "window": {"each": join["window"]["each"] | {"returns": "1m"}},
    }
    for others, other in ((streams[:2], of_two), ([*streams, streams[0] | {"name": "returns"}], of_four), (streams[::-1], join)):
        changed_spec = {"streams": others, "joins": [other], "checkpoint": {"location": "out/another"}}
        with pytest.raises(ApiError, match="the streams' names and order may not change; make another StreamJoin"):
            defined.admin.patch(place, {"spec": changed_spec})
    with pytest.raises(ApiError, match="the name of a join of three and more streams may not change"):
        defined.admin.patch(place, [{"op": "replace", "path": "/spec/joins/0/name", "value": "other"}], JSON_PATCH)
    wider = [{"op": "replace", "path": "/spec/joins/0/window/each/payments", "value": "3m"}]
    with pytest.raises(ApiError, match="a join's window may not change under the same checkpoint"):
        defined.admin.patch(place, wider, JSON_PATCH)
    defined.admin.patch(place, [*wider, {"op": "replace", "path": "/spec/checkpoint/location", "value": "out/another"}], JSON_PATCH)


@pytest.mark.apiserver
def test_joins_of_two_streams_may_come_and_go_and_those_that_stay_may_not_change(defined: ApiServer, joins: str) -> None:
    (first,) = defined.admin.create(joins, as_kubectl(GOOD))["spec"]["joins"]
    other = first | {"name": "other", "condition": "orders.id < payments.id", "output": {"sink": {"console": {}}}}
    both = defined.admin.patch(f"{joins}/good", {"spec": {"joins": [other, first]}}, MERGE)["spec"]["joins"]
    assert [join["name"] for join in both] == ["other", first["name"]]
    with pytest.raises(ApiError, match="a join's condition may not change under the same checkpoint"):
        defined.admin.patch(f"{joins}/good", {"spec": {"joins": [first | {"condition": other["condition"]}]}}, MERGE)
    (left,) = defined.admin.patch(f"{joins}/good", {"spec": {"joins": [other]}}, MERGE)["spec"]["joins"]
    assert left["name"] == "other"


FREE = [
    {"op": "add", "path": "/spec/streams/0/where", "value": "amount > 1"},
    {"op": "add", "path": "/spec/streams/0/watermark", "value": "20s"},
    {"op": "add", "path": "/spec/streams/0/source/files/maxFilesPerEpoch", "value": 5},
    {"op": "add", "path": "/spec/streams/1/source/generator/seed", "value": 8},
    {"op": "add", "path": "/spec/streams/1/expectedRate", "value": 8},
    {"op": "add", "path": "/spec/joins/0/output", "value": {"sink": {"console": {}}}},
    {"op": "add", "path": "/spec/workers/max", "value": 9},
    {"op": "add", "path": "/spec/scheme/model", "value": "square"},
    {"op": "add", "path": "/spec/epoch/interval", "value": "2s"},
    {"op": "add", "path": "/spec/suspend", "value": True},
]


@pytest.mark.apiserver
def test_what_is_not_in_the_state_may_change(defined: ApiServer, joins: str) -> None:
    defined.admin.create(joins, as_kubectl(GOOD))
    defined.admin.patch(f"{joins}/good", FREE, JSON_PATCH)


@pytest.mark.apiserver
def test_a_pattern_may_follow_a_topic_and_another_pattern_and_no_topic_a_pattern(defined: ApiServer, joins: str) -> None:
    """Whether it matches the topic is for the operator to say."""
    place, source = f"{joins}/good", "/spec/streams/0/source/kafka"
    defined.admin.create(joins, as_kubectl(changed((FILES, KAFKA))))
    to_pattern = [
        {"op": "remove", "path": f"{source}/topic"},
        {"op": "add", "path": f"{source}/topicPattern", "value": "orders(-.*)?"},
    ]
    with pytest.raises(ApiError, match=r"a stream's source .* may not change"):
        defined.admin.patch(place, [*to_pattern, {"op": "add", "path": f"{source}/format", "value": "raw"}], JSON_PATCH)
    defined.admin.patch(place, to_pattern, JSON_PATCH)
    defined.admin.patch(place, [{"op": "replace", "path": f"{source}/topicPattern", "value": "orders-.*"}], JSON_PATCH)
    to_topic = [
        {"op": "remove", "path": f"{source}/topicPattern"},
        {"op": "add", "path": f"{source}/topic", "value": "orders"},
    ]
    with pytest.raises(ApiError, match=r"a stream's source .* may not change"):
        defined.admin.patch(place, to_topic, JSON_PATCH)


@pytest.mark.apiserver
def test_kubectl_is_told_that_another_version_is_not_known(defined: ApiServer, joins: str) -> None:
    text = changed(("streamjoin.dev/v1beta1", "streamjoin.dev/v1alpha1"))
    done = defined.kubectl("apply", "-n", joins.split("/")[-2], "-f", "-", stdin=text, check=False)
    assert done.returncode != 0
    assert 'no matches for kind "StreamJoin" in version "streamjoin.dev/v1alpha1"' in done.stderr
    assert defined.admin.get(joins)["items"] == []


def test_what_may_not_change_is_what_the_engine_keeps_in_the_checkpoint() -> None:
    from streamjoin.compilation import compile_job

    manifest = check(as_kubectl(GOOD)).manifest
    assert manifest is not None
    kept = {name.split("].")[1] for name in fingerprint(compile_job(manifest))} - {"name"}
    # Rules see no event time: the operator refuses another one.
    assert kept == {field.split("/")[2] for field, _, _ in FIXED} - {"name"} | {"eventTime"}


@pytest.mark.apiserver
def test_a_new_definition_keeps_the_objects_of_the_old_one(defined: ApiServer, joins: str) -> None:
    """The old one lacks what a later version brought: a field, its rules, a column; and an object uses all that it has."""
    new = parsed(FILE.read_text())
    old = copy.deepcopy(new)
    version = old["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["deadLetter"], spec["workers"]["properties"]["floor"], spec["workers"]["default"]["floor"]
    spec["workers"]["x-kubernetes-validations"] = spec["workers"]["x-kubernetes-validations"][:1]
    del version["subresources"]["scale"], version["additionalPrinterColumns"][5]
    dead_letter = {"spec": {"deadLetter": {"location": "out/dead"}}}

    def takes_dead_letters() -> bool:
        written = defined.admin.patch(f"{joins}/good", dead_letter, MERGE, dryRun="All")
        return "deadLetter" in written["spec"]

    try:
        defined.install_crd(old)
        before = defined.admin.create(joins, as_kubectl(GOOD))
        before = defined.admin.patch(f"{joins}/good/status", {"status": STATUS})
        wait_for("the old definition is served", lambda: not takes_dead_letters())
        defined.install_crd(new)
        wait_for("the new definition is served", takes_dead_letters)
        after = defined.admin.get(f"{joins}/good")
        assert after["spec"]["workers"].pop("floor") == 1, "what is new gets its default"
        assert (after["spec"], after["status"]) == (before["spec"], before["status"])
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        defined.admin.patch(f"{joins}/good", dead_letter | {"metadata": {"labels": {"a": "b"}}})
    finally:
        defined.install_crd(new)
