"""Bad manifests: each is a good one, of two streams or of three, with a small change, and is refused with exactly these messages."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cases import some
from streamjoin.manifest import parse

GOOD = """\
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata:
  name: good
spec:
  streams:
    - name: orders
      source:
        files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}
      schema: "id BIGINT, amount DOUBLE, currency STRING, at TIMESTAMP"
      eventTime: at
      watermark: 10s
      where: "amount > 0"
      select: [id, amount, currency]
      expectedRate: 100
    - name: payments
      source:
        generator:
          seed: 7
          rate: {constant: 50}
          start: "2026-01-01T00:00:00Z"
          columns:
            id: {sequence: {start: 5}}
            amount: {uniform: {min: 0, max: 10}}
            currency: {choice: [EUR, USD]}
      schema: "id BIGINT, amount DECIMAL(8,2), currency STRING, paid TIMESTAMP"
      eventTime: paid
  joins:
    - name: match
      condition: "abs(orders.amount - payments.amount) <= 0.01 AND orders.currency = payments.currency"
      window: {within: 180s, slide: 60s}
      output:
        select: ["orders.id AS order_id", "payments.id AS payment_id"]
        where: "orders.id <> payments.id"
        sink: {files: {path: out/matches, format: parquet}}
  scheme: {model: adsp}
  workers: {min: 2, max: 6, capacityTuples: 1000, resources: {cpu: "1", memory: 2Gi}}
  scaling: {mode: Enforce, tau0: 0.2, tau2: 0.8, scaleUpAfter: 30s}
  shedding: {model: linear, base: "0.1"}
  epoch: {interval: 1s, maxTuples: 1000}
  checkpoint: {location: out/state}
  suspend: false
  image: "streamjoin:1"
  driver: {podTemplate: {metadata: {labels: {team: a}}}}
"""

THREE = """\
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata:
  name: three
spec:
  streams:
    - name: orders
      source: {files: {path: in/orders, format: json}}
      schema: "id BIGINT, amount DOUBLE, ordered TIMESTAMP"
      eventTime: ordered
      watermark: 0s
    - name: payments
      source: {files: {path: in/payments, format: json}}
      schema: "order_id BIGINT, amount DOUBLE, paid TIMESTAMP"
      eventTime: paid
      watermark: 0s
      select: [order_id, amount, paid]
    - name: shipments
      source: {files: {path: in/shipments, format: json}}
      schema: "order_id BIGINT, value DOUBLE, shipped TIMESTAMP"
      eventTime: shipped
      watermark: 0s
  joins:
    - name: delivered
      condition: "orders.id = payments.order_id AND abs(payments.amount - shipments.value) <= 0.5 AND shipments.shipped >= orders.ordered"
      window: {each: {orders: 10m, payments: 2m, shipments: 30s}}
      output:
        select: ["orders.id", "payments.paid", "shipments.shipped - orders.ordered AS took"]
        where: "orders.amount > 0"
        sink: {files: {path: out/delivered, format: parquet}}
  scheme: {model: hash}
  shedding: {model: linear}
  checkpoint: {location: out/state}
"""
"""A good manifest too, of three streams."""
CONDITION_OF_THREE = THREE.split('condition: "')[1].split('"', 1)[0]
WINDOW_OF_THREE = next(line for line in THREE.splitlines() if "window:" in line).strip()

ANOTHER = """\
    - name: other
      condition: "orders.id = payments.id"
      window: {within: 10s}
      output: {sink: {console: {}}}
"""
"""A join after the good one's."""
JOINS = GOOD[GOOD.index("  joins:\n") : GOOD.index("  scheme:")]
GENERATED = "spec.streams[1].source.generator.columns"
KINDS = "use BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, TIMESTAMP or TIMESTAMP_NTZ"


CHAIN = """\
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata:
  name: chain
spec:
  streams:
    - name: orders
      source: {files: {path: in/orders, format: json}}
      schema: "id BIGINT, ordered TIMESTAMP"
      eventTime: ordered
      watermark: 0s
    - name: payments
      source: {files: {path: in/payments, format: json}}
      schema: "order_id BIGINT, paid TIMESTAMP"
      eventTime: paid
      watermark: 0s
    - name: shipments
      source: {files: {path: in/shipments, format: json}}
      schema: "order_id BIGINT, shipped TIMESTAMP"
      eventTime: shipped
      watermark: 0s
    - name: settled
      source: {join: settle}
      eventTime: at
  joins:
    - name: settle
      condition: "orders.id = payments.order_id"
      window: {within: 10m}
      output: {select: ["orders.id", "payments.paid AS at"]}
    - name: deliver
      type: left
      condition: "shipments.order_id = settled.id"
      window: {before: 10m}
      output: {select: ["shipments.order_id AS id", "settled.at AS at"], sink: {files: {path: out/delivered}}}
  checkpoint: {location: out/state}
"""
"""A good manifest of a join over another's results."""


@dataclass(frozen=True)
class Bad:
    """Changes of a good manifest (each old text stands in it once) and what must be said of them."""

    name: str
    changes: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]
    good: str = GOOD

    @property
    def text(self) -> str:
        text = self.good
        for old, new in self.changes:
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the good manifest"
            text = text.replace(old, new)
        return text


def bad(name: str, old: str, new: str, *problems: str, also: tuple[str, str] | None = None, good: str = GOOD) -> Bad:
    return Bad(name, ((old, new),) if also is None else ((old, new), also), problems, good)


def bad_of_three(name: str, old: str, new: str, *problems: str, also: tuple[str, str] | None = None) -> Bad:
    return bad(f"three streams: {name}", old, new, *problems, also=also, good=THREE)


SINK = "sink: {files: {path: out/matches, format: parquet}}"
STORE = "spec.joins[0].output.snapshots.store"
NO_PUNCTUATION = "snapshots that end by punctuation need it of every stream; give when and id"
NO_WINDOW = "is empty; give within, or each, or rows, or eachRows, or unbounded: true, or, for two streams, before and after"
KINDS_OF_WINDOWS = (
    "the windows must be of one kind (time, rows or unbounded), as joins over the same streams hold them together; move the others into a"
    " manifest of their own"
)
SHED_MATCHES = 'makes results of anti joins wrong: a tuple whose match was shed seems to have none; set "off"'


def stored_in(store: str) -> str:
    """The sink, and snapshots in this store."""
    return f"{SINK}\n        snapshots: {{every: 10s, store: {store}}}"


CASES = [
    # The document and its text.
    *(
        bad(
            f"the version {version}",
            "streamjoin.dev/v1beta1",
            version,
            f'apiVersion: "{version}" must be streamjoin.dev/v1beta1; write apiVersion: streamjoin.dev/v1beta1',
        )
        for version in ("streamjoin.dev/v1", "streamjoin.dev/v1alpha1", "streamjoin.example/v1beta1", "v1beta1")
    ),
    bad("a slip in the kind", "StreamJoin", "StreamJion", 'kind: "StreamJion" must be StreamJoin; write kind: StreamJoin'),
    bad("no kind", "kind: StreamJoin\n", "", "kind: is missing; give StreamJoin"),
    bad("no spec", "spec:", "status:", "spec: is missing; give what to join and how"),
    bad(
        "a field given twice",
        "  suspend: false\n",
        "  suspend: false\n  suspend: true\n",
        "spec.suspend: true is given twice (first on line 42); keep one",
    ),
    bad(
        "broken YAML",
        "window: {within: 180s, slide: 60s}",
        "window: {within: 180s, slide: 60s",
        "the file is not YAML: while parsing a flow mapping, expected ',' or '}', but got ':'; "
        "check the indentation, quotes and colons there",
    ),
    bad(
        "a tab",
        "  suspend: false\n",
        "\tsuspend: false\n",
        "the file is not YAML: while scanning for the next token, found character '\\t' that cannot start any token; indent with spaces",
    ),
    bad(
        "a YAML tag",
        "expectedRate: 100",
        "expectedRate: !!float 100",
        'spec.streams[0].expectedRate: "100" has the YAML tag tag:yaml.org,2002:float, which a manifest does not need; remove it',
        'spec.streams[0].expectedRate: "100" must be a number; remove the quotes',
    ),
    # Metadata.
    bad(
        "a name in capitals",
        "name: good",
        "name: Good",
        'metadata.name: "Good" is not a name for a resource; use lower-case letters, digits and, inside, -; at most 63 characters',
    ),
    bad(
        "no name",
        "  name: good",
        "  namespace: good",
        "metadata.name: is missing; give the resource's name",
    ),
    # Unknown fields.
    bad(
        "a slip in a field",
        "watermark: 10s",
        "watermarks: 10s",
        'spec.streams[0].watermarks: "10s" is given to a field that does not exist; did you mean watermark?',
    ),
    bad(
        "a field of another part",
        "  suspend: false",
        "  tau2: 0.8",
        "spec.tau2: 0.8 is given to a field that does not exist here; it belongs to spec.scaling.tau2",
    ),
    bad(
        "a field of nowhere",
        "seed: 7",
        "colour: 7",
        "spec.streams[1].source.generator.colour: 7 is given to a field that does not exist; "
        "the fields here are seed, rows, rate, start, realTime, outOfOrder and columns",
    ),
    bad(
        "another case",
        "eventTime: at",
        "eventtime: at",
        "spec.streams[0].eventTime: is missing, and spec.joins[0].window is one of time; name a TIMESTAMP column, or use rows or unbounded",
        'spec.streams[0].eventtime: "at" is given to a field that does not exist; did you mean eventTime?',
        'spec.streams[0].watermark: "10s" needs spec.streams[0].eventTime; name the column of event times there, or remove watermark',
    ),
    bad(
        "a bound on event times without them",
        "eventTime: at\n      watermark: 10s",
        "maxAhead: 1h",
        "spec.streams[0].eventTime: is missing, and spec.joins[0].window is one of time; name a TIMESTAMP column, or use rows or unbounded",
        'spec.streams[0].maxAhead: "1h" needs spec.streams[0].eventTime; name the column of event times there, or remove maxAhead',
    ),
    bad(
        "a bound on silence without event times",
        "eventTime: at\n      watermark: 10s",
        "idleTimeout: 1m",
        "spec.streams[0].eventTime: is missing, and spec.joins[0].window is one of time; name a TIMESTAMP column, or use rows or unbounded",
        'spec.streams[0].idleTimeout: "1m" needs spec.streams[0].eventTime; name the column of event times there, or remove idleTimeout',
    ),
    bad(
        "a condition that is no text",
        'condition: "abs(orders.amount - payments.amount) <= 0.01 AND orders.currency = payments.currency"',
        "condition: 5",
        'spec.joins[0].condition: 5 must be text; put it in quotes: "5"',
    ),
    bad(
        "no condition",
        'condition: "abs(orders.amount - payments.amount) <= 0.01 AND orders.currency = payments.currency"',
        "conditoin: orders.id = payments.id",
        "spec.joins[0].condition: is missing; give when tuples match (SQL over the columns of all streams)",
        'spec.joins[0].conditoin: "orders.id = payments.id" is given to a field that does not exist; did you mean condition?',
    ),
    bad(
        "a base that is not text",
        'base: "0.1"',
        "base: 0.1",
        'spec.shedding.base: 0.1 must be text, which alone Kubernetes keeps as it is; put it in quotes: "0.1"',
    ),
    bad(
        "cores as a number that is not whole",
        'cpu: "1"',
        "cpu: 0.5",
        'spec.workers.resources.cpu: 0.5 is not an amount of CPU; write cores, such as "1", or thousandths of one, such as 500m',
    ),
    bad(
        "a floor above max",
        "max: 6",
        "max: 6, floor: 7",
        "spec.workers.floor: 7 must be at least min (2) and at most max (6), or 1 for none",
    ),
    bad("no workers in an executor", "max: 6", "max: 6, perExecutor: 0", "spec.workers.perExecutor: 0 must be at least 1"),
    bad("too many workers in an executor", "max: 6", "max: 60, perExecutor: 17", "spec.workers.perExecutor: 17 must be at most 16"),
    bad(
        "room for more workers than there may be",
        "max: 6",
        "max: 6, perExecutor: 8",
        "spec.workers.perExecutor: 8 must be at most max (6), or each pod would have room for workers that never come",
    ),
    bad(
        "room for more workers than there may be by default",
        "max: 6,",
        "perExecutor: 9,",
        "spec.workers.perExecutor: 9 must be at most max (8, the default), or each pod would have room for workers that never come",
    ),
    bad(
        "a question in an address",
        "scaling: {",
        'scaling: {prometheus: {url: "http://prometheus:9090/?a=b"}, ',
        'spec.scaling.prometheus.url: "http://prometheus:9090/?a=b" is not the address of a server; '
        "write http:// or https://, a host, a port if need be, and no more than a path",
    ),
    # Types.
    bad("a number for text", 'image: "streamjoin:1"', "image: 5", 'spec.image: 5 must be text; put it in quotes: "5"'),
    bad(
        "a list for text",
        'where: "amount > 0"',
        "where: [amount, id]",
        'spec.streams[0].where: ["amount", "id"] must be text, not a list',
    ),
    bad(
        "text for a number",
        "100\n",
        '"100"\n',
        'spec.streams[0].expectedRate: "100" must be a number; remove the quotes',
    ),
    bad(
        "text for truth",
        "suspend: false",
        'suspend: "false"',
        'spec.suspend: "false" must be true or false; remove the quotes',
    ),
    bad(
        "a Secret by a name that none can have",
        "suspend: false",
        "security: {tls: {secretName: My_Secret}}",
        'spec.security.tls.secretName: "My_Secret" is not a name of an object; use lower-case letters, digits and, inside, - and .',
    ),
    bad(
        "a label by a name that none can have",
        "suspend: false",
        "metrics: {podMonitor: {labels: {no label: a}}}",
        'spec.metrics.podMonitor.labels: {"no label": "a"} has \'no label\', which is no name of a label; '
        "write one as release or example.com/team",
    ),
    bad("yes for truth", "suspend: false", "suspend: yes", 'spec.suspend: "yes" must be true or false'),
    bad(
        "a fraction for a whole number",
        "maxTuples: 1000",
        "maxTuples: 1000.5",
        "spec.epoch.maxTuples: 1000.5 must be a whole number",
    ),
    bad(
        "an epoch of few bytes",
        "maxTuples: 1000",
        "maxBytes: 1000",
        "spec.epoch.maxBytes: 1000 must be at least 1Mi and at most 16Gi",
    ),
    bad(
        "text for a list",
        "select: [id, amount, currency]",
        "select: id",
        'spec.streams[0].select: "id" must be a list: write [id]',
    ),
    bad(
        "text for a mapping",
        "scheme: {model: adsp}",
        "scheme: adsp",
        'spec.scheme: "adsp" must be a mapping of model, sigma, groups and alpha',
    ),
    bad(
        "a list for a mapping",
        "checkpoint: {location: out/state}",
        "checkpoint: [out/state]",
        'spec.checkpoint: ["out/state"] must be a mapping of location, persistentVolumeClaim, cloneOf, size, storageClassName,'
        " accessModes and onDelete",
    ),
    bad(
        "a required field that is null",
        "path: in/orders",
        "path: null",
        "spec.streams[0].source.files.path: is missing; give the directory, as a local path or a URL (file, s3, gs, abfss, az)",
    ),
    # Choices and bounds.
    bad(
        "an unknown model",
        "model: adsp",
        "model: star",
        'spec.scheme.model: "star" must be adsp, square, hash, dynamic, readj, biclique, broadcast or handshake',
    ),
    bad(
        "a slip in a choice",
        "model: adsp",
        "model: squares",
        'spec.scheme.model: "squares" must be adsp, square, hash, dynamic, readj, biclique, broadcast or handshake; did you mean square?',
    ),
    bad(
        "a choice in another case",
        "mode: Enforce",
        "mode: recommend",
        'spec.scaling.mode: "recommend" must be Enforce, Recommend or Off; did you mean Recommend?',
    ),
    bad(
        "Off as Kubernetes reads it without quotes",
        "mode: Enforce",
        "mode: false",
        'spec.scaling.mode: false must be Enforce, Recommend or Off; put it in quotes: "Off"',
    ),
    bad(
        "a rule that is Off without quotes",
        "mode: Enforce,",
        "rules: {keepUp: false},",
        'spec.scaling.rules.keepUp: false must be Enforce, Recommend or Off; put it in quotes: "Off"',
    ),
    bad(
        "a rule that does not exist",
        "mode: Enforce,",
        "rules: {dealocate: Enforce},",
        'spec.scaling.rules.dealocate: "Enforce" is given to a field that does not exist; did you mean deallocate?',
    ),
    bad(
        "an unknown format",
        "format: csv",
        "format: avro",
        'spec.streams[0].source.files.format: "avro" must be parquet, json or csv',
    ),
    bad("no format", ", format: csv", "", "spec.streams[0].source.files.format: is missing; give parquet, json or csv"),
    bad(
        "an unknown sink format",
        "format: parquet",
        "format: csv",
        'spec.joins[0].output.sink.files.format: "csv" must be parquet or json',
    ),
    bad(
        "an unknown compression",
        "format: parquet",
        "compression: gzip",
        'spec.joins[0].output.sink.files.compression: "gzip" must be snappy, zstd or none',
    ),
    bad("a rate of nothing", "expectedRate: 100", "expectedRate: 0", "spec.streams[0].expectedRate: 0 must be above 0"),
    bad(
        "a budget where nothing is shed",
        "tau2: 0.8",
        "tau2: 0.8, budget: {completeness: 99.9 %}",
        'spec.scaling.budget: has nothing to spend, as nothing is shed; set spec.shedding.model to "linear" or "quadratic", or remove it',
        also=('shedding: {model: linear, base: "0.1"}', 'shedding: {model: "off"}'),
    ),
    bad(
        "more memory beside a capacity",
        "scaling: {mode: Enforce,",
        "scaling: {mode: Enforce, vertical: Enforce,",
        'spec.scaling.vertical: "Enforce" needs a capacity that follows from the memory; remove workers.capacity and'
        ' workers.capacityTuples, or set "Off"',
        also=("max: 6,", "max: 6, maxMemory: 8Gi,"),
    ),
    bad(
        "a standby on a claim for one node",
        "driver: {podTemplate: {metadata: {labels: {team: a}}}}",
        "driver: {standby: true}",
        "spec.driver.standby: true needs a checkpoint that pods on several nodes reach, and the claim that is created is ReadWriteOnce; add"
        " ReadWriteMany to checkpoint.accessModes, or give checkpoint.location an object store",
        also=("checkpoint: {location: out/state}", "checkpoint: {persistentVolumeClaim: state, size: 1Gi}"),
    ),
    bad(
        "more memory without a most",
        "scaling: {mode: Enforce,",
        "scaling: {mode: Enforce, vertical: Recommend,",
        'spec.scaling.vertical: "Recommend" needs the most memory that a worker may get; give workers.maxMemory, such as 8Gi, or set "Off"',
        also=("capacityTuples: 1000, ", ""),
    ),
    bad(
        "a most memory that is no more",
        "max: 6,",
        "max: 6, maxMemory: 2Gi,",
        'spec.workers.maxMemory: "2Gi" must be above resources.memory, which is what every worker gets; raise it, or remove it',
    ),
    bad(
        "a budget without an inner join",
        "tau2: 0.8",
        "tau2: 0.8, budget: {completeness: 99.9 %}",
        "spec.scaling.budget: counts results of inner joins, and there are none; remove it",
        also=("      condition: ", "      type: left\n      condition: "),
    ),
    bad(
        "a budget of nothing",
        "tau2: 0.8",
        'tau2: 0.8, budget: {completeness: "100 %"}',
        'spec.scaling.budget.completeness: "100 %" is not a percentage above 0 and below 100; write one as 99.9 %',
    ),
    bad(
        "a budget over a moment",
        "tau2: 0.8",
        "tau2: 0.8, budget: {completeness: 99.9 %, over: 5m}",
        'spec.scaling.budget.over: "5m" must be at least 1h and at most 30d',
    ),
    bad("a tau above 1", "tau2: 0.8", "tau3: 1.5", "spec.scaling.tau3: 1.5 must be at most 1"),
    bad("a tau of 0", "tau0: 0.2", "tau0: 0", "spec.scaling.tau0: 0 must be above 0"),
    bad(
        "a capacity of 0",
        "capacityTuples: 1000",
        "capacityTuples: 0",
        "spec.workers.capacityTuples: 0 must be at least 1",
    ),
    bad(
        "a capacity of nothing",
        "capacityTuples: 1000",
        "capacity: 1",
        "spec.workers.capacity: 1 must be at least 1Ki and at most 16Ti",
    ),
    bad(
        "a capacity in tuples and in bytes",
        "capacityTuples: 1000",
        "capacityTuples: 1000, capacity: 1Gi",
        'spec.workers.capacity: "1Gi" excludes capacityTuples; keep one: capacity weighs tuples by their bytes, capacityTuples counts them',
    ),
    bad("no workers", "min: 2", "min: 0", "spec.workers.min: 0 must be at least 1"),
    bad("too many workers", "max: 6", "max: 50000", "spec.workers.max: 50000 must be at most 10000"),
    bad("a negative seed", "seed: 7", "seed: -1", "spec.streams[1].source.generator.seed: -1 must be at least 0"),
    bad(
        "no files in an epoch",
        "maxFilesPerEpoch: 16",
        "maxFilesPerEpoch: 0",
        "spec.streams[0].source.files.maxFilesPerEpoch: 0 must be at least 1",
    ),
    bad("a base above 1", 'base: "0.1"', 'base: "1.1"', 'spec.shedding.base: "1.1" must be at most 1'),
    bad(
        "a base that is no number",
        'base: "0.1"',
        "base: little",
        'spec.shedding.base: "little" is not a number; write one between 0 and 1, such as "0.1"',
    ),
    bad(
        "an empty where",
        '"amount > 0"',
        '""',
        'spec.streams[0].where: "" must not be empty; give which tuples to take (SQL over this stream\'s columns)',
    ),
    bad(
        "a long delimiter",
        "maxFilesPerEpoch: 16",
        'delimiter: "||"',
        'spec.streams[0].source.files.delimiter: "||" must have at most 1 character; shorten it',
    ),
    # Durations and quantities.
    bad(
        "a duration without a unit",
        "within: 180s",
        "within: 180",
        "spec.joins[0].window.within: 180 is not a duration; write a number with a unit (us, ms, s, m, h or d), "
        "such as 500ms, 180s or 1h30m",
    ),
    bad(
        "a duration with an unknown unit",
        "watermark: 10s",
        "watermark: 10sec",
        'spec.streams[0].watermark: "10sec" is not a duration; write a number with a unit (us, ms, s, m, h or d), '
        "such as 500ms, 180s or 1h30m",
    ),
    bad(
        "a duration whose units are out of order",
        "scaleUpAfter: 30s",
        "scaleUpAfter: 30s1m",
        'spec.scaling.scaleUpAfter: "30s1m" names its units out of order or twice; write the longest first, such as 1h30m',
    ),
    bad(
        "a duration finer than a microsecond",
        "scaleUpAfter: 30s",
        "scaleUpAfter: 0.5us",
        'spec.scaling.scaleUpAfter: "0.5us" is not a whole number of microseconds; round it',
    ),
    bad(
        "a duration of centuries",
        "watermark: 10s",
        "watermark: 99999d",
        'spec.streams[0].watermark: "99999d" must be at least 0s and at most 36500d',
    ),
    bad(
        "an epoch too short",
        "interval: 1s",
        "interval: 2h",
        'spec.epoch.interval: "2h" must be at least 0s and at most 1h',
    ),
    bad(
        "memory with an unknown unit",
        "memory: 2Gi",
        "memory: 2GB",
        'spec.workers.resources.memory: "2GB" is not an amount of memory; write a number with Ki, Mi, Gi or Ti, such as 2Gi',
    ),
    bad(
        "too little memory",
        "memory: 2Gi",
        "memory: 2Mi",
        'spec.workers.resources.memory: "2Mi" must be at least 64Mi and at most 16Ti',
    ),
    bad(
        "cpu in words",
        'cpu: "1"',
        "cpu: one",
        'spec.workers.resources.cpu: "one" is not an amount of CPU; write cores, such as "1", or thousandths of one, such as 500m',
    ),
    # How many.
    bad(
        "seven streams",
        "  joins:\n",
        "".join(
            f"    - name: more{number}\n"
            "      source: {files: {path: in/more, format: json}}\n"
            '      schema: "id BIGINT, at TIMESTAMP"\n'
            "      eventTime: at\n"
            "      watermark: 0s\n"
            for number in range(5)
        )
        + "  joins:\n",
        "spec.streams: has 7 streams, and there may be 2 to 6; join some of them in a manifest of their own, and read its results here",
    ),
    bad("no joins", JOINS, "  joins: []\n", "spec.joins: has 0 joins, and there may be 1 to 16; give one"),
    bad(
        "seventeen joins",
        "  scheme: {model: adsp}\n",
        "".join(ANOTHER.replace("other", f"other-{number}") for number in range(16)),
        "spec.joins: has 17 joins, and there may be 1 to 16; move the others into a manifest of their own",
    ),
    bad(
        "two joins of one name",
        "  scheme: {model: adsp}\n",
        ANOTHER.replace("other", "Match"),
        'spec.joins[1].name: "Match" is the name of spec.joins[0] too (case does not count); choose another',
    ),
    bad(
        "joins with windows of two kinds",
        "  scheme: {model: adsp}\n",
        ANOTHER.replace("within: 10s", "rows: 10"),
        f"spec.joins[1].window: {KINDS_OF_WINDOWS}",
    ),
    bad(
        "an anti join among others, and shedding",
        "  scheme: {model: adsp}\n",
        ANOTHER.replace("name: other", "name: other\n      type: anti"),
        f'spec.shedding.model: "linear" {SHED_MATCHES}',
    ),
    bad(
        "two joins with one directory for their results",
        "  scheme: {model: adsp}\n",
        ANOTHER.replace("console: {}", "files: {path: ./out//matches/, format: json}"),
        'spec.joins[1].output.sink.files.path: "./out//matches/" is the same directory as spec.joins[0].output.sink.files.path'
        " (out/matches); give each a directory of its own",
    ),
    bad(
        "a later join that no key serves, and a model that needs one",
        "  scheme: {model: adsp}\n",
        ANOTHER.replace("orders.id = payments.id", "orders.id % 2 = 1 OR payments.id = 1") + "  scheme: {model: hash}\n",
        'spec.scheme.model: "hash" needs an equality, an order or a band between the two streams in the condition of every join, of the'
        " same keys; use adsp or square",
    ),
    # Streams.
    bad(
        "a stream's name that is no identifier",
        "name: payments",
        "name: pay-ments",
        'spec.streams[1].name: "pay-ments" cannot stand in SQL; use letters, digits and _, beginning with a letter',
    ),
    bad(
        "a stream's name that is a word of SQL",
        "name: payments",
        "name: select",
        'spec.streams[1].name: "select" is a word of SQL; choose another name, such as select_stream',
    ),
    bad(
        "two streams of one name",
        "name: payments",
        "name: Orders",
        'spec.streams[1].name: "Orders" is the name of spec.streams[0] too (case does not count); choose another',
    ),
    bad(
        "an unknown type",
        "amount DOUBLE",
        "amount DUBBLE",
        f'spec.streams[0].schema: "id BIGINT, amount DUBBLE, currency STRING, at TIMESTAMP" is refused: unknown type DUBBLE; {KINDS}',
    ),
    bad(
        "a column of a name that queries give the engine's own",
        "id BIGINT, amount DOUBLE",
        "_key BIGINT, amount DOUBLE",
        'spec.streams[0].schema: "_key BIGINT, amount DOUBLE, currency STRING, at TIMESTAMP" is refused: '
        "column name '_key' is the engine's own; rename it: queries show a tuple's key and time as _key and _time",
    ),
    bad(
        "a column declared twice",
        "id BIGINT, amount DOUBLE",
        "id BIGINT, ID DOUBLE",
        'spec.streams[0].schema: "id BIGINT, ID DOUBLE, currency STRING, at TIMESTAMP" is refused: '
        "column ID is declared twice; names must differ in more than case",
    ),
    bad(
        "no schema",
        'schema: "id BIGINT, amount DOUBLE, currency STRING, at TIMESTAMP"',
        "",
        "spec.streams[0].schema: is missing; declare columns as Spark DDL, such as id BIGINT, at TIMESTAMP",
    ),
    bad(
        "an event time that is no column",
        "eventTime: at",
        "eventTime: att",
        'spec.streams[0].eventTime: "att" is not a column of the schema; name one of these: at',
    ),
    bad(
        "an event time that is no time",
        "eventTime: paid",
        "eventTime: currency",
        f"{GENERATED}.paid: is missing; say how to fill the column paid (TIMESTAMP)",
        f"{GENERATED}.currency: is the eventTime column, which the rate fills; remove it here",
        'spec.streams[1].eventTime: "currency" is STRING, not TIMESTAMP or TIMESTAMP_NTZ; name one of these: paid, '
        'or write eventTime: {column: currency, format: "yyyy-MM-dd HH:mm:ss"} with the format of its text',
    ),
    bad(
        "a schema without times",
        "currency STRING, at TIMESTAMP",
        "currency STRING, at DATE",
        'spec.streams[0].eventTime: "at" is DATE, not TIMESTAMP or TIMESTAMP_NTZ; add a TIMESTAMP column to the schema',
    ),
    bad(
        "a window of time without event times",
        "      eventTime: paid\n",
        "",
        "spec.streams[1].eventTime: is missing, and spec.joins[0].window is one of time; name a TIMESTAMP column, or use rows or unbounded",
        f"{GENERATED}.paid: is missing; say how to fill the column paid (TIMESTAMP)",
    ),
    bad(
        "a selection of columns of the other stream",
        '"amount > 0"',
        '"payments.amount > 0"',
        'spec.streams[0].where: "payments.amount > 0" is refused: unknown stream payments in payments.amount; the streams are orders',
    ),
    bad(
        "a selection that is no condition",
        '"amount > 0"',
        '"amount + 1"',
        'spec.streams[0].where: "amount + 1" is refused: '
        "'amount + 1' is a value of type DOUBLE, not a condition; compare it with something",
    ),
    bad(
        "a select of an unknown column",
        "[id, amount, currency]",
        "[id, amount, currency, amounts]",
        'spec.streams[0].select[3]: "amounts" is not a column of the schema; did you mean amount?',
    ),
    bad(
        "a select of a column twice",
        "[id, amount, currency]",
        "[id, amount, currency, ID]",
        'spec.streams[0].select[3]: "ID" is listed twice; remove one',
    ),
    bad(
        "a select without a column of the output",
        "[id, amount, currency]",
        "[amount, currency]",
        'spec.streams[0].select: ["amount", "currency"] lacks id, which spec.joins[0].output.select[0] needs; add it',
    ),
    bad(
        "a select without a column of the residual predicate",
        "[id, amount, currency]",
        "[id, amount]",
        'spec.streams[0].select: ["id", "amount"] lacks currency, which spec.joins[0].condition needs; add it',
    ),
    # Sources.
    bad(
        "a kafka source without servers",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        "kafka: {topic: orders}",
        "spec.streams[0].source.kafka.bootstrapServers: is missing; give the brokers' addresses",
    ),
    bad(
        "a topic's name",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: "orders, payments"}',
        'spec.streams[0].source.kafka.topic: "orders, payments" is not the name of a topic; use letters, digits, ., _ and -',
    ),
    bad(
        "a slip in a topic's field",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topc: orders}',
        'spec.streams[0].source.kafka.topc: "orders" is given to a field that does not exist; did you mean topic?',
    ),
    bad(
        "a kafka source of no topic",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092"}',
        "spec.streams[0].source.kafka: has no topic; give topic, or topicPattern for several",
    ),
    bad(
        "a kafka source of a topic and a pattern",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, topicPattern: "orders-.*"}',
        "spec.streams[0].source.kafka: has topic and topicPattern; keep one",
    ),
    bad(
        "a pattern that is empty",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topicPattern: ""}',
        'spec.streams[0].source.kafka.topicPattern: "" must not be empty; give a Python regular expression for the whole'
        " names of topics, instead of topic",
    ),
    bad(
        "a pattern that is none",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topicPattern: "orders-*)"}',
        'spec.streams[0].source.kafka.topicPattern: "orders-*)" is not a regular expression (unbalanced parenthesis at position 8); write'
        " one as orders-.* or orders-(eu|us)",
    ),
    bad(
        "a pattern of a shell",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topicPattern: "*-orders"}',
        'spec.streams[0].source.kafka.topicPattern: "*-orders" is not a regular expression (nothing to repeat at position 0); write one'
        " as orders-.* or orders-(eu|us)",
    ),
    bad(
        "a pattern of topics of its own",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topicPattern: "__.*"}',
        'spec.streams[0].source.kafka.topicPattern: "__.*" means Kafka\'s own topics, which begin with __ and which no pattern matches;'
        " correct it, or name one by topic",
    ),
    bad(
        "an interval of discovery without a pattern",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, discoveryInterval: 10s}',
        'spec.streams[0].source.kafka.discoveryInterval: "10s" is for topicPattern, and there is none; remove it, or give topicPattern',
    ),
    bad(
        "an interval of discovery that is too short",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topicPattern: "orders-.*", discoveryInterval: 0s}',
        'spec.streams[0].source.kafka.discoveryInterval: "0s" must be at least 100ms and at most 1h',
    ),
    bad(
        "a pattern that matches the topic of results",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topicPattern: "orders.*"}',
        'spec.streams[0].source.kafka.topicPattern: "orders.*" matches orders-paid, to which spec.joins[0].output.sink.kafka writes; narrow'
        " it, or give the results another topic",
        also=(SINK, 'sink: {kafka: {bootstrapServers: "b:9092", topic: orders-paid}}'),
    ),
    bad(
        "an option that would move offsets",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, options: {enable.auto.commit: true}}',
        'spec.streams[0].source.kafka.options["enable.auto.commit"]: true would move offsets past the checkpoint, which alone says what'
        " has been read; remove it",
    ),
    bad(
        "an option that is a field",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, options: {group.id: mine}}',
        'spec.streams[0].source.kafka.options["group.id"]: "mine" is groupId here; remove it',
    ),
    bad(
        "an option that is a function",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, options: {error_cb: x}}',
        "spec.streams[0].source.kafka.options.error_cb: is a function of a program, which a manifest cannot give; remove it",
    ),
    bad(
        "an option that is no setting",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, options: {linger.ms: [5], sasl.password: {of: sesame}}}',
        'spec.streams[0].source.kafka.options["linger.ms"]: [5] is not a setting; write text, a number, true or false',
        'spec.streams[0].source.kafka.options["sasl.password"]: is not a setting; write text, a number, true or false',
    ),
    bad(
        "a secret where no field is",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, sasl.password: sesame, options: "sasl.password=sesame"}',
        "spec.streams[0].source.kafka.options: must be a mapping",
        'spec.streams[0].source.kafka["sasl.password"]: is given to a field that does not exist; the fields here are bootstrapServers,'
        " topic, topicPattern, discoveryInterval, format, schemaRegistry, startingOffsets, startingTimestamp, metadata, onDataLoss,"
        " groupId, idleTimeout, timeout and"
        " options",
    ),
    bad(
        "a secret's place",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, options: {sasl.password: "file:password", ssl.ca.location: "file:/ca.pem",'
        ' sasl.username: "env:MY-NAME"}}',
        'spec.streams[0].source.kafka.options["sasl.password"]: is not an absolute path, and workers have working directories of their own;'
        " write file:/path",
        'spec.streams[0].source.kafka.options["ssl.ca.location"]: "file:/ca.pem" is the path of a file itself; write /ca.pem',
        'spec.streams[0].source.kafka.options["sasl.username"]: "env:MY-NAME" is not the name of an environment variable; write env:NAME',
    ),
    bad(
        "a raw stream with columns that records do not have",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, format: raw}',
        *(
            f'spec.streams[0].schema: "{name}" is not a column of raw records; they are key, value, topic, partition, offset and timestamp'
            for name in ("id", "amount", "currency", "at")
        ),
        'spec.streams[0].schema: "offset INT" must be BIGINT',
        also=('currency STRING, at TIMESTAMP"', 'currency STRING, at TIMESTAMP, offset INT"'),
    ),
    bad(
        "columns of keys and headers that are not there, of another type, twice, and two places to begin",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, startingOffsets: latest, startingTimestamp: "2026-01-01T00:00:00Z",'
        " metadata: {key: curency, timestamp: amount, headers: {trace-id: currency, b: currency}}}",
        'spec.streams[0].source.kafka.startingTimestamp: "2026-01-01T00:00:00Z" and startingOffsets both say where to begin; remove one',
        'spec.streams[0].source.kafka.metadata.key: "curency" is not a column of the stream; did you mean currency?',
        'spec.streams[0].source.kafka.metadata.timestamp: "amount" is DOUBLE, and must be TIMESTAMP',
        'spec.streams[0].source.kafka.metadata.headers.b: "currency" is the column for headers.trace-id already; give it another',
    ),
    bad(
        "columns of keys and places, and none of the value",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, metadata: {key: currency, partition: id, offset: amount, timestamp: at}}',
        'spec.streams[0].source.kafka.metadata.partition: "id" is BIGINT, and must be INT',
        'spec.streams[0].source.kafka.metadata.offset: "amount" is DOUBLE, and must be BIGINT',
        "spec.streams[0].source.kafka.metadata: takes all columns, and leaves none for the value; use format raw for that",
    ),
    bad(
        "a format whose schemas are in a registry that is not given",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, format: avro}',
        "spec.streams[0].source.kafka.schemaRegistry: is missing, and format avro needs it for its schemas; give its url",
    ),
    bad(
        "a registry for a format that has no schemas there",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, schemaRegistry: {url: "https://r"}}',
        "spec.streams[0].source.kafka.schemaRegistry: has no use with format json; remove it, or let format be avro, protobuf or"
        " jsonSchema",
    ),
    bad(
        "a registry that is no server, with a password in its address",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, format: avro, schemaRegistry: {url: "https://me:sesame@r"}}',
        "spec.streams[0].source.kafka.schemaRegistry.url: is not the address of a server; write http:// or https://, a host, a port if need"
        " be, and no more than a path",
    ),
    bad(
        "options that a schema registry has not",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, format: avro, schemaRegistry: {url: "https://r", options: {usernme: me,'
        ' password: "file:here", ssl.ca.location: "file:/ca.pem", basic.auth.user.info: "me:sesame", ssl.key.location: /key.pem}}}',
        'spec.streams[0].source.kafka.schemaRegistry.options.usernme: "me" is not an option of a schema registry; did you mean username?',
        "spec.streams[0].source.kafka.schemaRegistry.options.password: is not an absolute path, and workers have working directories of"
        " their own; write file:/path",
        'spec.streams[0].source.kafka.schemaRegistry.options["ssl.ca.location"]: "file:/ca.pem" is the path of a file itself; write'
        " /ca.pem",
        'spec.streams[0].source.kafka.schemaRegistry.options["basic.auth.user.info"]: is not an option of a schema registry; they are'
        " username, password, bearer.auth.token, ssl.ca.location, ssl.certificate.location, ssl.key.location and ssl.key.password",
        "spec.streams[0].source.kafka.schemaRegistry.options.password: is not used without username; give that too",
        'spec.streams[0].source.kafka.schemaRegistry.options["ssl.key.location"]: is not used without ssl.certificate.location; give that'
        " too",
    ),
    bad(
        "two logins to a schema registry, and certificates without TLS",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        'kafka: {bootstrapServers: "b:9092", topic: orders, format: jsonSchema, schemaRegistry: {url: "http://r:8081", options:'
        ' {username: me, password: "env:P", bearer.auth.token: "env:T", ssl.ca.location: /ca.pem}}}',
        "spec.streams[0].source.kafka.schemaRegistry.options.username: and bearer.auth.token are two logins; remove one",
        'spec.streams[0].source.kafka.schemaRegistry.options["ssl.ca.location"]: is for https, and url is http://r:8081; correct one of'
        " them",
    ),
    bad(
        "a slip in the kind of source",
        "        files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}\n",
        "        fils: {path: in/orders}\n",
        'spec.streams[0].source.fils: {"path": "in/orders"} is given to a field that does not exist; did you mean files?',
    ),
    bad(
        "no source",
        "        files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}\n",
        "          {}\n",
        "spec.streams[0].source: is empty; give one of files, generator, kafka, delta, iceberg, spark, staged or join",
    ),
    bad(
        "two sources",
        "        generator:\n",
        "        files: {path: in/payments, format: json}\n        generator:\n",
        "spec.streams[1].source: has files and generator; keep one",
    ),
    bad(
        "a source in HDFS",
        "path: in/orders",
        'path: "hdfs://name/orders/"',
        'spec.streams[0].source.files.path: "hdfs://name/orders/" begins with hdfs:, for which there is no client here; '
        "mount HDFS and give the path, or give a local path or a file://, s3://, gs://, abfss:// or az:// URL",
    ),
    bad(
        "a file URL with a host",
        "path: in/orders",
        'path: "file://in/orders"',
        'spec.streams[0].source.files.path: "file://in/orders" names the host in; a file:// URL has none: write file:///orders',
    ),
    bad(
        "a path from the home directory",
        "path: in/orders",
        "path: ~/orders",
        'spec.streams[0].source.files.path: "~/orders" begins with ~, which only a shell expands; write the directory\'s full path',
    ),
    bad(
        "a pattern with a directory",
        "maxFilesPerEpoch: 16",
        'pattern: "2026/*.csv"',
        'spec.streams[0].source.files.pattern: "2026/*.csv" has a /, and is compared with file names alone; put the directory into path',
    ),
    bad(
        "a header in Parquet",
        "format: csv",
        "format: parquet, header: false",
        "spec.streams[0].source.files.header: false has no meaning with format parquet; remove it (it belongs to csv)",
    ),
    bad(
        "waiting for lines of Parquet",
        "format: csv",
        "format: parquet, settle: 1m",
        'spec.streams[0].source.files.settle: "1m" has no meaning with format parquet; remove it (it belongs to json and csv)',
    ),
    bad(
        "quotes as the delimiter",
        "maxFilesPerEpoch: 16",
        "delimiter: '\"'",
        'spec.streams[0].source.files.delimiter: "\\"" cannot separate values; use another character, such as ;',
    ),
    # Generators.
    bad(
        "two rates",
        "rate: {constant: 50}",
        "rate: {constant: 50, diurnal: {mean: 5, amplitude: 0.5, period: 24h}}",
        "spec.streams[1].source.generator.rate: has constant and diurnal; keep one",
    ),
    bad(
        "a constant rate of 0",
        "rate: {constant: 50}",
        "rate: {constant: 0}",
        "spec.streams[1].source.generator.rate.constant: 0 must be above 0",
    ),
    bad(
        "half a ramp",
        "rate: {constant: 50}",
        "rate: {ramp: {from: 1, over: 10s}}",
        "spec.streams[1].source.generator.rate.ramp.to: is missing; give tuples per second from the end of the ramp on",
    ),
    bad(
        "spikes that overlap",
        "rate: {constant: 50}",
        "rate: {spike: {base: 1, peak: 10, at: 0s, for: 2m, every: 1m}}",
        'spec.streams[1].source.generator.rate.spike.for: "2m" must be at most every (1m); shorten it',
    ),
    bad(
        "a start that is no time",
        '"2026-01-01T00:00:00Z"',
        '"new year"',
        'spec.streams[1].source.generator.start: "new year" is not a date and time; write it as 2026-01-01T00:00:00Z',
    ),
    bad(
        "a column without a generator",
        "            currency: {choice: [EUR, USD]}\n",
        "",
        f"{GENERATED}.currency: is missing; say how to fill the column currency (STRING)",
    ),
    bad(
        "a generator for an unknown column",
        "            currency: {choice: [EUR, USD]}\n",
        "            currency: {choice: [EUR, USD]}\n            colour: {choice: [red]}\n",
        f"{GENERATED}.colour: is not a column of the schema; the columns are id, amount, currency and paid",
    ),
    bad(
        "a generator for the event time",
        "            currency: {choice: [EUR, USD]}\n",
        "            currency: {choice: [EUR, USD]}\n            paid: {sequence: {}}\n",
        f"{GENERATED}.paid: is the eventTime column, which the rate fills; remove it here",
    ),
    bad(
        "a column generated twice",
        "            currency: {choice: [EUR, USD]}\n",
        "            currency: {choice: [EUR, USD]}\n            ID: {sequence: {}}\n",
        f"{GENERATED}.ID: is the same column as id; keep one",
    ),
    bad(
        "a column generated in two ways",
        "id: {sequence: {start: 5}}",
        "id: {sequence: {start: 5}, zipf: {values: 10, exponent: 1}}",
        f"{GENERATED}.id: has sequence and zipf; keep one",
    ),
    bad(
        "a slip in the only way to generate a column",
        "id: {sequence: {start: 5}}",
        "id: {sequnce: {start: 5}}",
        f'{GENERATED}.id.sequnce: {{"start": 5}} is given to a field that does not exist; did you mean sequence?',
    ),
    bad(
        "a column generated in no way",
        "id: {sequence: {start: 5}}",
        "id: {}",
        f"{GENERATED}.id: is empty; give one of sequence, uniform, zipf, hotspot or choice",
    ),
    bad(
        "real numbers in a column of whole ones",
        "id: {sequence: {start: 5}}",
        "id: {uniform: {min: 0.5, max: 3}}",
        f"{GENERATED}.id.uniform.min: 0.5 must be a whole number, because id is BIGINT",
    ),
    bad(
        "more decimals than the column has",
        "amount: {uniform: {min: 0, max: 10}}",
        "amount: {uniform: {min: 0, max: 9.999}}",
        f"{GENERATED}.amount.uniform.max: 9.999 must have at most 2 decimals, because amount is DECIMAL(8,2)",
    ),
    bad(
        "more than the column holds",
        "amount: {uniform: {min: 0, max: 10}}",
        "amount: {uniform: {min: 0, max: 1000000}}",
        f"{GENERATED}.amount.uniform.max: 1000000 is beyond what amount (DECIMAL(8,2)) can be filled with",
    ),
    bad(
        "an empty range",
        "amount: {uniform: {min: 0, max: 10}}",
        "amount: {uniform: {min: 11, max: 10}}",
        f"{GENERATED}.amount.uniform.min: 11 must be at most max (10)",
    ),
    bad(
        "a hot range wider than all",
        "amount: {uniform: {min: 0, max: 10}}",
        "amount: {hotspot: {min: 0, max: 10, width: 11, share: 0.5, period: 1m}}",
        f"{GENERATED}.amount.hotspot.width: 11 must be above 0 and at most 10, as wide as min to max",
    ),
    bad(
        "zipf without values",
        "id: {sequence: {start: 5}}",
        "id: {zipf: {values: 0, exponent: 1}}",
        f"{GENERATED}.id.zipf.values: 0 must be at least 1",
    ),
    bad(
        "a choice of nothing",
        "[EUR, USD]",
        "[]",
        f"{GENERATED}.currency.choice: [] must have at least 1 entry; give a list of values, drawn with equal probability",
    ),
    bad(
        "a choice of another type",
        "[EUR, USD]",
        "[EUR, 5]",
        f"{GENERATED}.currency.choice[1]: 5 is not text; put it in quotes, as the column currency needs",
    ),
    bad(
        "a choice of a list",
        "[EUR, USD]",
        "[EUR, [USD]]",
        f'{GENERATED}.currency.choice[1]: ["USD"] is not a value of a column; write a string, a number, true, false or null',
    ),
    # The join.
    bad(
        "a condition with an unknown column",
        "payments.currency",
        "payments.money",
        'spec.joins[0].condition: "abs(orders.amount - payments.amount) <= 0.01 AND orders.cu… is refused: '
        "unknown column payments.money; payments has id, amount, currency, paid",
    ),
    bad(
        "a condition of types that do not compare",
        "orders.currency = payments.currency",
        "orders.currency = payments.paid",
        'spec.joins[0].condition: "abs(orders.amount - payments.amount) <= 0.01 AND orders.cu… is refused: '
        "cannot compare orders.currency (STRING) with payments.paid (TIMESTAMP); CAST one of them, such as "
        "CAST(payments.paid AS STRING)",
    ),
    bad(
        "hash without a predicate that bounds keys",
        "model: adsp",
        "model: hash",
        'spec.scheme.model: "hash" needs an equality, an order or a band between the two streams in spec.joins[0].condition; '
        "use adsp or square",
        also=(
            "abs(orders.amount - payments.amount) <= 0.01 AND orders.currency = payments.currency",
            "orders.currency <> payments.currency",
        ),
    ),
    bad(
        "a parameter of another model",
        "model: adsp",
        "model: readj, groups: 2",
        "spec.scheme.groups: 2 is only for model biclique, and the model is readj; remove one of them",
    ),
    bad(
        "a parameter that its model does not take",
        "model: adsp",
        "model: biclique, sigma: 0.2",
        "spec.scheme.sigma: 0.2 is only for model readj, and the model is biclique; remove one of them",
    ),
    bad(
        "a share of a chain where there is none",
        "model: adsp",
        "model: adsp, alpha: 0.5",
        "spec.scheme.alpha: 0.5 is only for model handshake, and the model is adsp; remove one of them",
    ),
    bad("no groups", "model: adsp", "model: biclique, groups: 0", "spec.scheme.groups: 0 must be at least 1"),
    bad("a negative imbalance", "model: adsp", "model: readj, sigma: -1", "spec.scheme.sigma: -1 must be at least 0"),
    bad(
        "a slip in the only field of a window",
        "window: {within: 180s, slide: 60s}",
        "window: {withn: 180s}",
        'spec.joins[0].window.withn: "180s" is given to a field that does not exist; did you mean within?',
    ),
    bad(
        "no window",
        "window: {within: 180s, slide: 60s}",
        "window: {}",
        f"spec.joins[0].window: {NO_WINDOW}",
    ),
    bad(
        "a window that is not unbounded",
        "window: {within: 180s, slide: 60s}",
        "window: {unbounded: false}",
        f"spec.joins[0].window: {NO_WINDOW}",
    ),
    bad(
        "two windows",
        "window: {within: 180s, slide: 60s}",
        "window: {within: 180s, before: 10s, rows: 5}",
        "spec.joins[0].window: has within, (before and after) and rows; keep one",
    ),
    bad(
        "a window of no rows",
        "window: {within: 180s, slide: 60s}",
        "window: {rows: 0}",
        "spec.joins[0].window.rows: 0 must be at least 1",
    ),
    bad(
        "a window of rows that slides",
        "window: {within: 180s, slide: 60s}",
        "window: {rows: 10, slide: 60s}",
        'spec.joins[0].window.slide: "1m" is for windows of time; remove it, or give one',
    ),
    bad(
        "a slide longer than the window",
        "window: {within: 180s, slide: 60s}",
        "window: {within: 180s, slide: 5m}",
        'spec.joins[0].window.slide: "5m" must be at most within (3m), or tuples would lie between two windows; shorten it',
    ),
    bad(
        "a slide of nothing",
        "slide: 60s",
        "slide: 0s",
        'spec.joins[0].window.slide: "0s" must be at least 1us and at most 36500d',
    ),
    bad(
        "each of two streams with a slide that is longer than one",
        "window: {within: 180s, slide: 60s}",
        "window: {each: {orders: 1m, payments: 59s}, slide: 60s}",
        'spec.joins[0].window.slide: "1m" must be at most each.payments (59s), or tuples would lie between two windows; shorten it',
    ),
    bad(
        "numbers of rows for one stream of two",
        "window: {within: 180s, slide: 60s}",
        "window: {eachRows: {orders: 10}}",
        "spec.joins[0].window.eachRows: lacks payments; give for every stream among how many of its last records its tuple is",
    ),
    bad(
        "numbers of rows for a stream by another name",
        "window: {within: 180s, slide: 60s}",
        "window: {eachRows: {orders: 10, paymnets: 20}}",
        "spec.joins[0].window.eachRows.paymnets: 20 is given to a stream that does not exist; did you mean payments?",
    ),
    bad(
        "no rows of a stream",
        "window: {within: 180s, slide: 60s}",
        "window: {eachRows: {orders: 10, payments: 0}}",
        "spec.joins[0].window.eachRows.payments: 0 must be at least 1",
    ),
    bad(
        "rows for all streams and for each",
        "window: {within: 180s, slide: 60s}",
        "window: {rows: 5, eachRows: {orders: 10, payments: 20}}",
        "spec.joins[0].window: has rows and eachRows; keep one",
    ),
    bad(
        "each of one stream of two",
        "window: {within: 180s, slide: 60s}",
        "window: {each: {orders: 1m}}",
        "spec.joins[0].window.each: lacks payments; give for every stream how long before the newest tuple of a result its tuple may be",
    ),
    bad(
        "each and a window of another form",
        "window: {within: 180s, slide: 60s}",
        "window: {each: {orders: 1m, payments: 1m}, after: 1m}",
        "spec.joins[0].window: has each and (before and after); keep one",
    ),
    # Joins over the results of others.
    bad(
        "results of a join that is not there",
        "source: {join: settle}",
        "source: {join: settel}",
        'spec.streams[3].source.join: "settel" is not a join of this resource; did you mean settle?',
        "spec.joins[0].output.sink: a join needs a sink, a stream that reads its results, or snapshots of them; "
        "give files, delta, iceberg, postgres, kafka, spark or console",
        good=CHAIN,
    ),
    bad(
        "results of a join with a schema",
        "eventTime: at",
        'eventTime: at\n      schema: "id BIGINT, at TIMESTAMP"',
        "spec.streams[3].schema: follows from the output of the join that is the source; remove it",
        good=CHAIN,
    ),
    bad(
        "results with a column of nothing",
        "payments.paid AS at",
        "payments.payed AS at",
        'spec.joins[0].output.select[1]: "payments.payed AS at" is refused: unknown column payments.payed; payments has order_id, paid',
        good=CHAIN,
    ),
    bad(
        "results with a wrong column, of a condition with another",
        'select: ["orders.id", "payments.paid AS at"]',
        'select: ["orders.ident", "payments.paid AS at"]',
        'spec.joins[0].condition: "orders.id = payments.nr" is refused: unknown column payments.nr; payments has order_id, paid',
        'spec.joins[0].output.select[0]: "orders.ident" is refused: unknown column orders.ident; orders has id, ordered',
        also=('condition: "orders.id = payments.order_id"', 'condition: "orders.id = payments.nr"'),
        good=CHAIN,
    ),
    bad(
        "results that are made of themselves",
        "orders.id = payments.order_id",
        "orders.id = settled.id",
        'spec.streams[1].name: "payments" is in no join\'s condition, and each is over the streams that its own names; name it in one,'
        " or remove it",
        'spec.streams[3].source.join: "settle" is made of settled itself; read another join, or another stream in its condition',
        good=CHAIN,
    ),
    bad(
        "rows of one stream of several pairs",
        "window: {within: 10m}",
        "window: {rows: 5}",
        "spec.joins[0].window.rows: 5 counts the records of two streams, and there are more; give within, or before and after, or"
        " unbounded: true",
        f"spec.joins[1].window: {KINDS_OF_WINDOWS}",
        good=CHAIN,
    ),
    bad(
        "an event time that the results do not have",
        "payments.paid AS at",
        "payments.paid AS paid",
        'spec.streams[3].eventTime: "at" is not a column of the schema; name one of these: paid',
        'spec.joins[1].output.select[1]: "settled.at AS at" is refused: unknown column settled.at; settled has id, paid',
        good=CHAIN,
    ),
    bad(
        "a pair's window that names another stream",
        "window: {before: 10m}",
        "window: {each: {shipments: 1m, orders: 1m}}",
        'spec.joins[1].window.each.orders: "1m" is given to a stream that does not exist; the streams are shipments and settled',
        "spec.joins[1].window.each: lacks settled; give for every stream how long before the newest tuple of a result its tuple may be",
        good=CHAIN,
    ),
    # Joins of three and more streams.
    bad_of_three(
        "a join beside it that names one stream",
        "  scheme:",
        "    - {name: other, condition: orders.id = 1, window: {within: 1m}, output: {sink: {console: {}}}}\n  scheme:",
        'spec.joins[1].condition: "orders.id = 1" is refused: it names orders alone, and of several joins each is over the streams that it'
        " names; write columns as orders.column, and name two or more of orders, payments and shipments",
    ),
    bad_of_three(
        "an outer join of three streams beside one of two, a stream of which is compared with none before it",
        "  scheme:",
        "    - {name: two, type: left, condition: orders.id = payments.order_id, window: {within: 1m}, output: {sink: {console: {}}}}\n"
        "    - {name: all, type: left, condition: orders.id = shipments.order_id AND payments.order_id = 1,\n"
        "       window: {within: 1m}, output: {sink: {console: {}}}}\n"
        "  scheme:",
        'spec.joins[2].condition: "orders.id = shipments.order_id AND payments.order_id = 1" is refused: no part of it'
        " compares payments with orders, and an outer join joins each stream to those before it; compare it with one of them, or write the"
        " streams in another order",
    ),
    bad_of_three(
        "rows of two streams beside rows of three",
        "  scheme:",
        "    - {name: other, condition: orders.id = payments.order_id, window: {rows: 5}, output: {sink: {console: {}}}}\n  scheme:",
        "spec.joins[1].window.rows: 5 counts the records of two streams, and there are more; give within, or before and after, or"
        " unbounded: true",
        also=(WINDOW_OF_THREE, "window: {rows: 5}"),
    ),
    bad_of_three(
        "more pairs of keys than one scheme can cut",
        "  scheme:",
        "".join(
            f"    - {{name: more{number}, condition: orders.id = payments.order_id + {number}"
            f" AND payments.amount = shipments.value + {number}, window: {{within: 1m}}, output: {{sink: {{console: {{}}}}}}}}\n"
            for number in range(8)
        )
        + "  scheme:",
        "spec.joins: need tuples to be held by 18 pairs of keys, and 16 are the most; move some joins into manifests of their own",
    ),
    bad_of_three(
        "an outer join with a window of rows",
        WINDOW_OF_THREE,
        "window: {rows: 5}",
        "spec.joins[0].window.rows: 5 counts records, and the results of the first two streams' left join come in no order; give a window"
        " of time",
        also=("    - name: delivered\n", "    - name: delivered\n      type: left\n"),
    ),
    bad_of_three(
        "a window before and after",
        "{each: {orders: 10m, payments: 2m, shipments: 30s}}",
        "{before: 1m, after: 2m}",
        'spec.joins[0].window.before: "1m" is for two streams, and there are 3; give within, or each, or rows, or eachRows, or'
        " unbounded: true",
        'spec.joins[0].window.after: "2m" is for two streams, and there are 3; give within, or each, or rows, or eachRows, or'
        " unbounded: true",
    ),
    bad_of_three(
        "a window that slides by more than it holds",
        "{each: {orders: 10m, payments: 2m, shipments: 30s}}",
        "{each: {orders: 10m, payments: 2m, shipments: 30s}, slide: 1m}",
        'spec.joins[0].window.slide: "1m" must be at most each.shipments (30s), or tuples would lie between two windows; shorten it',
    ),
    bad_of_three(
        "no window",
        "{each: {orders: 10m, payments: 2m, shipments: 30s}}",
        "{}",
        f"spec.joins[0].window: {NO_WINDOW}",
    ),
    bad_of_three(
        "two windows",
        "{each: {orders: 10m, payments: 2m, shipments: 30s}}",
        "{each: {orders: 10m, payments: 2m, shipments: 30s}, within: 10m}",
        "spec.joins[0].window: has within and each; keep one",
    ),
    bad_of_three(
        "a window of time without event times",
        "      eventTime: shipped\n",
        "",
        "spec.streams[2].eventTime: is missing, and spec.joins[0].window is one of time; name a TIMESTAMP column, or use rows or unbounded",
    ),
    bad_of_three(
        "a window that lacks streams",
        "{each: {orders: 10m, payments: 2m, shipments: 30s}}",
        "{each: {orders: 10m}}",
        "spec.joins[0].window.each: lacks payments and shipments; give for every stream how long before the newest tuple of a result its"
        " tuple may be",
    ),
    bad_of_three(
        "a window of a stream by another name",
        "shipments: 30s",
        "shipmnets: 30s",
        'spec.joins[0].window.each.shipmnets: "30s" is given to a stream that does not exist; did you mean shipments?',
    ),
    bad_of_three(
        "a window of a stream in another case",
        "{orders: 10m",
        "{Orders: 10m",
        'spec.joins[0].window.each.Orders: "10m" is given to a stream that does not exist; did you mean orders?',
    ),
    bad_of_three(
        "a window of another stream",
        "shipments: 30s",
        "shipments: 30s, x y: 1s",
        'spec.joins[0].window.each["x y"]: "1s" is given to a stream that does not exist; the streams are orders, payments and shipments',
    ),
    bad_of_three(
        "a window of one stream that is no duration",
        "shipments: 30s",
        "shipments: 30",
        "spec.joins[0].window.each.shipments: 30 is not a duration; write a number with a unit (us, ms, s, m, h or d), such as 500ms, "
        "180s or 1h30m",
    ),
    bad_of_three(
        "a window of too many streams",
        "shipments: 30s",
        "shipments: 30s, a: 1s, b: 1s, c: 1s, d: 1s",
        "spec.joins[0].window.each: must have at most 6 entries; take some out",
    ),
    bad_of_three(
        "a stream that nothing compares",
        "payments.amount - shipments.value",
        "payments.amount - orders.amount",
        'spec.joins[0].condition: "orders.id = payments.order_id AND abs(payments.amount - or… is refused: no part of it compares shipments'
        " with orders or payments; add one that does, as orders.a = shipments.b",
        also=("shipments.shipped >= orders.ordered", "shipments.value > 0"),
    ),
    bad_of_three(
        "a condition that is TRUE",
        CONDITION_OF_THREE,
        "TRUE",
        'spec.joins[0].condition: "TRUE" is refused: no part of it compares payments or shipments with orders; '
        "add one that does, as orders.a = payments.b",
    ),
    bad_of_three(
        "streams that only a part with all of them compares",
        "abs(payments.amount - shipments.value) <= 0.5 AND shipments.shipped >= orders.ordered",
        "payments.amount + orders.amount > shipments.value",
        'spec.joins[0].condition: "orders.id = payments.order_id AND payments.amount + orders… is refused: no part of it compares shipments'
        " with orders or payments; add one that does, as orders.a = shipments.b",
    ),
    bad_of_three(
        "a condition with an unknown column",
        "shipments.value)",
        "shipments.weight)",
        'spec.joins[0].condition: "orders.id = payments.order_id AND abs(payments.amount - sh… is refused: unknown column '
        "shipments.weight; shipments has order_id, value, shipped",
    ),
    bad_of_three(
        "a model that cuts along keys where some are not bounded",
        "abs(payments.amount - shipments.value) <= 0.5 AND shipments.shipped >= orders.ordered",
        "payments.amount <> shipments.value",
        'spec.scheme.model: "hash" needs an equality, an order or a band between payments and shipments in spec.joins[0].condition; '
        "use adsp or square",
    ),
    bad_of_three(
        "a select without a column of the condition",
        "select: [order_id, amount, paid]",
        "select: [amount, paid]",
        'spec.streams[1].select: ["amount", "paid"] lacks order_id, which spec.joins[0].condition needs; add it',
    ),
    bad_of_three(
        "the same name twice",
        "name: shipments",
        "name: orders",
        'spec.streams[2].name: "orders" is the name of spec.streams[0] too (case does not count); choose another',
    ),
    # Output.
    bad(
        "two output columns of one name",
        "AS payment_id",
        "AS ORDER_ID",
        'spec.joins[0].output.select[1]: "payments.id AS ORDER_ID" makes a second column ORDER_ID '
        "(the first is spec.joins[0].output.select[0]); name it with AS",
    ),
    bad(
        "an output expression without a name",
        '"payments.id AS payment_id"',
        '"payments.id + 1"',
        "spec.joins[0].output.select[1]: \"payments.id + 1\" is refused: 'payments.id + 1' has no name; write payments.id + 1 AS name",
    ),
    bad(
        "an output column that is ambiguous",
        '"payments.id AS payment_id"',
        '"currency"',
        'spec.joins[0].output.select[1]: "currency" is refused: column currency is ambiguous; write orders.currency or payments.currency',
    ),
    bad(
        "an output where with an unknown column",
        '"orders.id <> payments.id"',
        '"orders.id <> payment_id"',
        'spec.joins[0].output.where: "orders.id <> payment_id" is refused: unknown column payment_id; there are '
        "orders.id, orders.amount, orders.currency, orders.at, payments.id, payments.amount, payments.currency, "
        "payments.paid",
    ),
    bad(
        "a type that there is not",
        "    - name: match\n",
        "    - name: match\n      type: outer\n",
        'spec.joins[0].type: "outer" must be inner, left, right, full, semi or anti',
    ),
    bad(
        "an anti join that sheds",
        "    - name: match\n",
        "    - name: match\n      type: anti\n",
        f'spec.shedding.model: "linear" {SHED_MATCHES}',
        also=(
            'select: ["orders.id AS order_id", "payments.id AS payment_id"]\n        where: "orders.id <> payments.id"',
            'select: ["orders.id AS order_id"]',
        ),
    ),
    bad(
        "a semi join with results of the other stream",
        "    - name: match\n",
        "    - name: match\n      type: semi\n",
        'spec.joins[0].output.select[1]: "payments.id AS payment_id" reads payments.id, and the results of type semi are tuples of orders'
        " alone; remove that",
        'spec.joins[0].output.where: "orders.id <> payments.id" reads payments.id, and the results of type semi are tuples of orders alone;'
        " remove that",
    ),
    bad(
        "an output of no columns",
        'select: ["orders.id AS order_id", "payments.id AS payment_id"]',
        "select: []",
        "spec.joins[0].output.select: [] must have at least 1 entry; give the output's columns",
    ),
    bad(
        "a kafka sink without a topic",
        "sink: {files: {path: out/matches, format: parquet}}",
        'sink: {kafka: {bootstrapServers: "b:9092"}}',
        "spec.joins[0].output.sink.kafka.topic: is missing; give the topic",
    ),
    bad(
        "a key that is not written",
        "sink: {files: {path: out/matches, format: parquet}}",
        'sink: {kafka: {bootstrapServers: "b:9092", topic: matches, key: orderid}}',
        'spec.joins[0].output.sink.kafka.key: "orderid" is not a column of the output; did you mean order_id?',
    ),
    bad(
        "snapshots that never end",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {files: {path: out/matches, format: parquet}}\n        snapshots: {key: order_id}",
        "spec.joins[0].output.snapshots: does not say when a snapshot ends; give every, or size, or both, or punctuation: true",
    ),
    bad(
        "a delay of snapshots without a size",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {files: {path: out/matches, format: parquet}}\n        snapshots: {every: 10s, maxDelay: 2}",
        "spec.joins[0].output.snapshots.maxDelay: 2 needs every and size; give both, or remove maxDelay",
    ),
    bad(
        "a key of snapshots that is none",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {files: {path: out/matches, format: parquet}}\n        snapshots: {every: 10s, key: orderid}",
        'spec.joins[0].output.snapshots.key: "orderid" is refused: unknown column orderid; there are order_id, payment_id',
    ),
    bad(
        "snapshots of no time",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {files: {path: out/matches, format: parquet}}\n        snapshots: {every: 0s}",
        'spec.joins[0].output.snapshots.every: "0s" must be at least 1us and at most 36500d',
    ),
    bad(
        "a column that snapshots have themselves",
        'select: ["orders.id AS order_id", "payments.id AS payment_id"]',
        'select: ["orders.id AS _row", "payments.id AS payment_id"]\n        snapshots: {every: 10s}',
        'spec.joins[0].output.select: "_row" is a column of snapshots themselves; name the output\'s column otherwise, with AS in'
        " output.select",
    ),
    bad(
        "a store of snapshots that is none",
        SINK,
        stored_in("{}"),
        f"{STORE}: is empty; give one of embedded, postgres or cassandra",
    ),
    bad(
        "two stores of snapshots",
        SINK,
        stored_in("{embedded: {}, cassandra: {hosts: c, keyspace: k}}"),
        f"{STORE}: has embedded and cassandra; keep one",
    ),
    bad(
        "an option of PostgreSQL that is a field",
        SINK,
        stored_in("{postgres: {host: db, database: d, options: {dbname: e}}}"),
        f'{STORE}.postgres.options.dbname: "e" is database here; remove it',
    ),
    bad(
        "an option that Cassandra does not have",
        SINK,
        stored_in("{cassandra: {hosts: c, keyspace: k, options: {user: me}}}"),
        f'{STORE}.cassandra.options.user: "me" is not an option of a store of Cassandra; they are username, password and ssl.ca.location',
    ),
    bad(
        "a password of a store in a file that is nowhere",
        SINK,
        stored_in("{postgres: {host: db, database: d, options: {password: file:secret}}}"),
        f"{STORE}.postgres.options.password: is not an absolute path, and workers have working directories of their own; write file:/path",
    ),
    bad(
        "snapshots that end by punctuations that no stream has",
        SINK,
        f"{SINK}\n        snapshots: {{punctuation: true}}",
        f"spec.streams[0].punctuation: {NO_PUNCTUATION}",
        f"spec.streams[1].punctuation: {NO_PUNCTUATION}",
    ),
    bad(
        "snapshots that end by time and by punctuations",
        SINK,
        f"{SINK}\n        snapshots: {{punctuation: true, every: 10s}}",
        f"spec.streams[0].punctuation: {NO_PUNCTUATION}",
        f"spec.streams[1].punctuation: {NO_PUNCTUATION}",
        "spec.joins[0].output.snapshots.punctuation: true excludes every and size; keep one",
    ),
    bad(
        "an option that would lose results",
        "sink: {files: {path: out/matches, format: parquet}}",
        'sink: {kafka: {bootstrapServers: "b:9092", topic: matches, options: {acks: 1}}}',
        "spec.joins[0].output.sink.kafka.options.acks: 1 is set by the engine, so that each result arrives; remove it",
    ),
    bad(
        "a slip in the kind of sink",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {fils: {path: out/matches}}",
        'spec.joins[0].output.sink.fils: {"path": "out/matches"} is given to a field that does not exist; did you mean files?',
    ),
    bad(
        "no sink",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {}",
        "spec.joins[0].output.sink: is empty; give one of files, console, kafka, delta, iceberg, postgres or spark",
    ),
    bad(
        "a kafka sink of a format whose registry is not given",
        "sink: {files: {path: out/matches, format: parquet}}",
        'sink: {kafka: {bootstrapServers: "b:9092", topic: matches, format: avro}}',
        "spec.joins[0].output.sink.kafka.schemaRegistry: is missing, and format avro needs it for its schemas; give its url",
    ),
    bad(
        "a registry for a kafka sink of JSON",
        "sink: {files: {path: out/matches, format: parquet}}",
        'sink: {kafka: {bootstrapServers: "b:9092", topic: matches, schemaRegistry: {url: "https://r"}}}',
        "spec.joins[0].output.sink.kafka.schemaRegistry: has no use with format json; remove it, or let format be avro or jsonSchema",
    ),
    bad(
        "results of Avro whose names Avro does not have",
        "sink: {files: {path: out/matches, format: parquet}}",
        'sink: {kafka: {bootstrapServers: "b:9092", topic: matches, format: avro, schemaRegistry: {url: "https://r"}}}',
        'spec.joins[0].output.select: "order-id" is not a name that Avro allows, and the sink writes Avro; give another name'
        " (AS), of letters, digits and _",
        also=("orders.id AS order_id", "orders.id AS `order-id`"),
    ),
    bad(
        "two sinks",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {files: {path: out/matches, format: parquet}, console: {}}",
        "spec.joins[0].output.sink: has files and console; keep one",
    ),
    bad(
        "compressed JSON",
        "format: parquet",
        "format: json, compression: zstd",
        'spec.joins[0].output.sink.files.compression: "zstd" is only for format parquet; remove it, or write parquet',
    ),
    bad(
        "a table partitioned by a column that is not there",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {delta: {path: out/matches, partitionBy: [orderid]}}",
        'spec.joins[0].output.sink.delta.partitionBy[0]: "orderid" is not a column of the output; did you mean order_id?',
    ),
    bad(
        "a table partitioned twice by a column, and in the checkpoint",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {delta: {path: out/state/table, partitionBy: [order_id, ORDER_ID]}}",
        'spec.joins[0].output.sink.delta.partitionBy[1]: "ORDER_ID" is given twice; remove it',
        'spec.checkpoint.location: "out/state" holds spec.joins[0].output.sink.delta.path (out/state/table); '
        "give each a directory of its own",
    ),
    bad(
        "a table of so many files that none is small",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {delta: {path: out/matches, compact: {files: 1, targetSize: 1Ki}}}",
        "spec.joins[0].output.sink.delta.compact.files: 1 must be at least 2",
        'spec.joins[0].output.sink.delta.compact.targetSize: "1Ki" must be at least 1Mi and at most 16Gi',
    ),
    bad(
        "a Delta source from a version that cannot be",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        "delta: {path: in/orders, startingVersion: -1, onChange: ignore}",
        "spec.streams[0].source.delta.startingVersion: -1 must be at least 0",
        'spec.streams[0].source.delta.onChange: "ignore" must be fail or skip',
    ),
    bad(
        "an Iceberg source in no namespace",
        "files: {path: in/orders, format: csv, maxFilesPerEpoch: 16}",
        "iceberg: {table: ord ers, catalog: {type: rest, uri: 'file:token'}}",
        'spec.streams[0].source.iceberg.table: "ord ers" is not a table in a namespace; write namespace.table',
        'spec.streams[0].source.iceberg.catalog.uri: "file:token" is not an absolute path, and workers have working directories of their'
        " own; write file:/path",
    ),
    bad(
        "an Iceberg table whose name is too short for a namespace",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {iceberg: {table: m, catalog: {type: rest}}}",
        'spec.joins[0].output.sink.iceberg.table: "m" must have at least 3 characters; give the table, with its namespace',
    ),
    bad(
        "an Iceberg table in no namespace, of a catalog in memory",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {iceberg: {table: matches, catalog: {type: in-memory, uri: 'env:MY-URI'}, partitionBy: [order_id]}}",
        'spec.joins[0].output.sink.iceberg.table: "matches" is not a table in a namespace; write namespace.table',
        'spec.joins[0].output.sink.iceberg.catalog.type: "in-memory" is not a supported kind of durable catalog; give rest, sql, glue, '
        "hive, dynamodb or bigquery",
        'spec.joins[0].output.sink.iceberg.catalog.uri: "env:MY-URI" is not the name of an environment variable; write env:NAME',
    ),
    bad(
        "a catalog that is nowhere",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {iceberg: {table: a.b, catalog: {warehouse: out/matches}}}",
        "spec.joins[0].output.sink.iceberg.catalog: has neither type nor uri; give type (rest, sql, glue, hive) and uri",
    ),
    bad(
        "a table of PostgreSQL with a key that is not written",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {postgres: {host: h, database: d, table: t, key: [orderid, payment_id, PAYMENT_ID], options: {dbname: d}}}",
        'spec.joins[0].output.sink.postgres.options.dbname: "d" is database here; remove it',
        'spec.joins[0].output.sink.postgres.key[0]: "orderid" is not a column of the output; did you mean order_id?',
        'spec.joins[0].output.sink.postgres.key[2]: "PAYMENT_ID" is given twice; remove it',
    ),
    bad(
        "a table of PostgreSQL without a key",
        "sink: {files: {path: out/matches, format: parquet}}",
        "sink: {postgres: {host: h, database: d, table: t, key: []}}",
        "spec.joins[0].output.sink.postgres.key: [] must have at least 1 entry; give the output's columns that identify a result",
    ),
    # Numbers in order.
    bad("more at least than at most", "min: 2", "min: 7", "spec.workers.min: 7 must be at most max (6)"),
    bad(
        "more at least than the default at most",
        "min: 2, max: 6,",
        "min: 9,",
        "spec.workers.min: 9 must be at most max (8, the default)",
    ),
    bad(
        "tau1 above tau2",
        "tau2: 0.8",
        "tau1: 0.9, tau2: 0.8",
        "spec.scaling.tau1: 0.9 must be below tau2 (0.8)",
    ),
    bad(
        "tau2 at the default of tau3",
        "tau2: 0.8",
        "tau2: 0.9",
        "spec.scaling.tau2: 0.9 must be below tau3 (0.9, the default)",
    ),
    bad(
        "tau0 above the default of tau1",
        "tau0: 0.2",
        "tau0: 0.4",
        "spec.scaling.tau0: 0.4 must be below tau1 (0.4, by default half of tau2)",
    ),
    bad(
        "tau1 below the default of tau0",
        "tau0: 0.2, tau2: 0.8",
        "tau1: 0.1",
        "spec.scaling.tau1: 0.1 must be above tau0 (0.2, the default)",
    ),
    # Places.
    bad(
        "no checkpoint",
        "  checkpoint: {location: out/state}\n",
        "",
        "spec.checkpoint: is missing; give where state is kept",
    ),
    bad(
        "an empty checkpoint",
        "checkpoint: {location: out/state}",
        "checkpoint: {}",
        "spec.checkpoint: is empty; give one of location or persistentVolumeClaim",
    ),
    bad(
        "two checkpoints",
        "checkpoint: {location: out/state}",
        "checkpoint: {location: out/state, persistentVolumeClaim: claim}",
        "spec.checkpoint: has location and persistentVolumeClaim; keep one",
    ),
    bad(
        "access modes of no claim",
        "checkpoint: {location: out/state}",
        "checkpoint: {location: out/state, accessModes: [ReadWriteMany]}",
        'spec.checkpoint.accessModes: "ReadWriteMany" says how to make a claim, and there is none; name one in '
        "spec.checkpoint.persistentVolumeClaim, or remove this",
    ),
    bad(
        "access modes of a claim that is not made",
        "checkpoint: {location: out/state}",
        "checkpoint: {persistentVolumeClaim: claim, accessModes: [ReadWriteMany]}",
        'spec.checkpoint.accessModes: "ReadWriteMany" is for a claim that the operator makes; give spec.checkpoint.size too',
    ),
    bad(
        "a checkpoint without a bucket",
        "location: out/state",
        'location: "s3:///state"',
        'spec.checkpoint.location: "s3:///state" does not say where in the store; write it as s3://bucket/path',
    ),
    bad(
        "a checkpoint in a store that nobody knows",
        "location: out/state",
        'location: "ftp://host/state"',
        'spec.checkpoint.location: "ftp://host/state" begins with ftp:, which is no store that is known; '
        "give a local path or a file://, s3://, gs://, abfss:// or az:// URL",
    ),
    bad(
        "a sink in the checkpoint's folder of a bucket",
        "path: out/matches",
        'path: "s3://bucket/state/out"',
        'spec.checkpoint.location: "s3a://bucket/state/" holds spec.joins[0].output.sink.files.path (s3://bucket/state/out); '
        "give each a directory of its own",
        also=("location: out/state", 'location: "s3a://bucket/state/"'),
    ),
    bad(
        "a sink in a source's directory",
        "path: out/matches",
        "path: in/orders/matches",
        'spec.joins[0].output.sink.files.path: "in/orders/matches" lies in spec.streams[0].source.files.path (in/orders); '
        "give each a directory of its own",
    ),
    bad(
        "a sink in the directory of a source's names",
        "path: in/orders",
        'path: "in/orders/*.parquet"',
        'spec.joins[0].output.sink.files.path: "in/orders/matches" lies in spec.streams[0].source.files.path (in/orders/*.parquet); '
        "give each a directory of its own",
        also=("path: out/matches", "path: in/orders/matches"),
    ),
    bad(
        "names by path and by pattern",
        "maxFilesPerEpoch: 16",
        'pattern: "*.pq"',
        'spec.streams[0].source.files.pattern: "*.pq" is given by path too, as *.parquet; remove one of them',
        also=("path: in/orders", 'path: "in/orders/*.parquet"'),
    ),
    bad(
        "a checkpoint that is the sink's directory",
        "location: out/state",
        "location: ./out//matches/",
        'spec.checkpoint.location: "./out//matches/" is the same directory as spec.joins[0].output.sink.files.path '
        "(out/matches); give each a directory of its own",
    ),
    bad(
        "a checkpoint around the sink",
        "location: out/state",
        "location: out",
        'spec.checkpoint.location: "out" holds spec.joins[0].output.sink.files.path (out/matches); give each a directory of its own',
    ),
    bad(
        "dead letters among the results",
        "  suspend: false\n",
        "  deadLetter: {location: out/matches}\n",
        'spec.deadLetter.location: "out/matches" is the same directory as spec.joins[0].output.sink.files.path '
        "(out/matches); give each a directory of its own",
    ),
]


@pytest.mark.parametrize("good", [GOOD, THREE, CHAIN], ids=["two streams", "three streams", "a join of a join"])
def test_the_good_manifest_is_good(good: str) -> None:
    (document,) = parse(good)
    assert document.problems == ()
    assert document.remarks == ()


def test_the_good_manifest_may_have_sixteen_joins() -> None:
    others = "".join(ANOTHER.replace("other", f"other-{number}").replace("=", "<=") for number in range(15))
    (document,) = parse(GOOD.replace(JOINS, JOINS + others))
    assert document.problems == ()
    assert document.manifest is not None
    assert len(document.manifest.spec.joins) == 16


def test_joins_of_different_keys_are_remarked_upon() -> None:
    (document,) = parse(GOOD.replace(JOINS, JOINS + ANOTHER))
    assert [str(remark) for remark in document.remarks] == [
        "spec.joins: have no pair of keys that all of their conditions limit, so every tuple meets every other one on some worker, or is"
        " held once for each pair of keys, whichever is expected to hold less; to send fewer tuples, move joins of other keys into a"
        " manifest of their own"
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_manifest_is_refused_with_all_that_is_wrong(case: Bad) -> None:
    (document,) = parse(case.text)
    assert tuple(map(str, document.problems)) == case.problems
    assert all(problem.line is not None for problem in document.problems)
    assert document.manifest is None


def test_there_are_many_bad_manifests_and_each_has_a_name_of_its_own() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


WRONG: tuple[Any, ...] = (None, 5, "h", [], {}, {"x": 1}, -1, ["a"], True, "")
EXAMPLES = [
    document
    for path in sorted((Path(__file__).resolve().parent.parent / "examples").rglob("*.yaml"))
    for document in (yaml.load_all(path.read_text(), yaml.CSafeLoader) if "kind: StreamJoin" in path.read_text() else ())
    if document and document.get("kind") == "StreamJoin" and "testdata" not in path.parts
]


def places_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value can be put in the place of another."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places_in(inner, (*at, key))
        yield (*at, key)


def field_of(place: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same for each member of a list."""
    return tuple("" if isinstance(key, int) else key for key in place)


def test_whatever_a_value_is_it_gives_problems_and_no_exception() -> None:
    """Each field of the examples in turn, by a value of another kind: all that is read of it elsewhere must do without."""
    places = {field_of(place): (document, place) for document in EXAMPLES for place in places_in(document)}
    broken = [(*found, wrong) for found in places.values() for wrong in WRONG]
    for document, place, wrong in some(broken, of=10):
        changed = copy.deepcopy(document)
        part = changed
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = wrong
        try:
            parse(yaml.dump(changed, Dumper=yaml.CSafeDumper))
        except Exception as error:
            raise AssertionError(f"{document['metadata']['name']}: {place} is {wrong!r}") from error
