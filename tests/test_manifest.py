"""The manifest's face: what is read from text, what defaults are, how problems are reported, and that documents keep up."""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cases import some
from streamjoin.api.join import Join
from streamjoin.compilation import compile_job, with_checkpoint
from streamjoin.language.ddl import parse_schema
from streamjoin.location import place, within
from streamjoin.manifest import Manifest, ManifestError, Problem, check, holding, load, parse, resolve
from streamjoin.manifest.part import SchemaGenerator
from streamjoin.manifest.quantity import Cpu, Duration, Memory
from streamjoin.manifest.reference import tables
from test_bad_manifests import CONDITION_OF_THREE, THREE

ROOT = Path(__file__).parent.parent

SMALL = """\
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {name: small}
spec:
  streams:
    - name: a
      source: {files: {path: in/a, format: json}}
      schema: "id BIGINT, k INT"
    - name: b
      source: {generator: {rows: 10, columns: {id: {sequence: {}}, k: {zipf: {values: 5, exponent: 1.5}}}}}
      schema: "id BIGINT, k INT"
  joins:
    - condition: "a.k < b.k"
      window: {unbounded: true}
      output: {sink: {console: {}}}
  checkpoint: {location: state}
"""


def problems(text: str) -> list[str]:
    return [str(problem) for document in parse(text) for problem in document.problems]


def test_a_small_manifest_has_the_documented_defaults() -> None:
    spec = load(SMALL).spec
    files, generator = spec.streams[0].source.files, spec.streams[1].source.generator
    assert files is not None
    assert generator is not None
    assert (files.max_files_per_epoch, files.pattern, files.header, files.delimiter) == (1000, "*", True, ",")
    assert files.settle == Duration.parse("5s")
    assert generator.rate.constant == 1000
    assert (generator.seed, generator.real_time, generator.out_of_order) == (1, True, Duration(0))
    assert generator.start_micros == 1_767_225_600_000_000
    assert (spec.streams[0].watermark, spec.streams[0].select) == (None, None)
    assert (spec.joins[0].name, spec.scheme.model, spec.shedding.model) == ("join", "adsp", "off")
    assert (spec.workers.min, spec.workers.max, spec.workers.capacity_tuples) == (1, 8, None)
    assert (str(spec.workers.resources.cpu), str(spec.workers.resources.memory)) == ("1", "2Gi")
    assert (spec.scaling.mode, spec.scaling.tau0, spec.scaling.target) == ("Enforce", 0.2, 0.4)
    assert (str(spec.scaling.scale_up_after), str(spec.scaling.scale_down_after)) == ("30s", "10m")
    assert (str(spec.epoch.interval), spec.epoch.max_tuples, str(spec.epoch.max_bytes)) == ("1s", 2_000_000, "256Mi")
    assert (spec.suspend, spec.image, spec.dead_letter, spec.driver.pod_template) == (False, "", None, {})


def test_everything_that_the_contract_names_is_accepted() -> None:
    """Fields for Kubernetes are carried as they are."""
    text = SMALL.replace("  checkpoint: {location: state}\n", "") + (
        "  scheme: {model: square}\n"
        "  workers: {min: 1, max: 8, capacityTuples: 2_000_000, resources: {cpu: 500m, memory: 1073741824}}\n"
        '  scaling: {mode: "Off", tau0: 0.2, tau1: 0.4, tau2: 0.8, tau3: 1, scaleUpAfter: 30s, scaleDownAfter: 10m}\n'
        "  shedding: {model: quadratic, base: 0}\n"
        "  epoch: {interval: 500ms, maxTuples: 10}\n"
        "  checkpoint: {persistentVolumeClaim: claim}\n"
        "  deadLetter: {location: dead}\n"
        "  suspend: true\n"
        "  image: streamjoin:1\n"
        "  driver: {podTemplate: {spec: {nodeSelector: {disk: ssd}}}}\n"
        "  executor: {podTemplate: {metadata: {labels: {a: b}}}}\n"
        "status: {phase: Running}\n"
    )
    text = text.replace("{name: small}", "{name: small, namespace: n, labels: {a: b}, annotations: {c: d}, uid: x}")
    spec = load(text).spec
    assert spec.driver.pod_template == {"spec": {"nodeSelector": {"disk": "ssd"}}}
    assert (spec.workers.resources.cpu, spec.workers.resources.memory) == (Cpu(500), Memory(2**30))
    assert (spec.shedding.base, spec.scaling.mode, spec.suspend) == (0, "Off", True)


EXAMPLES = [
    path for path in sorted((ROOT / "examples").rglob("*.yaml")) if "kind: StreamJoin" in path.read_text() and "testdata" not in path.parts
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_valid(path: Path) -> None:
    (document,) = parse(path.read_text())
    assert [str(problem) for problem in document.problems] == []
    assert document.manifest is not None
    compile_job(with_checkpoint(document.manifest))
    assert Join.parse(path.read_text()).expected()[0] is None, "no example begins fuller than it wants to be"


def test_all_problems_of_a_file_come_at_once_in_the_order_of_the_text() -> None:
    text = (
        SMALL.replace("name: small", "name: Small")
        .replace("k INT", "k INTT", 1)
        .replace("zipf: {values: 5, exponent: 1.5}", "zipf: {values: x}")
        .replace("unbounded: true", "within: 5")
        .replace("console", "consol")
        + "  scaling: {tau2: 0.95}\n  epoch: {interval: fast}\n"
    )
    (document,) = parse(text)
    assert [(problem.line, problem.field) for problem in document.problems] == [
        (3, "metadata.name"),
        (6, "spec.streams[0].eventTime"),
        (8, "spec.streams[0].schema"),
        (9, "spec.streams[1].eventTime"),
        (10, "spec.streams[1].source.generator.columns.k.zipf.values"),
        (10, "spec.streams[1].source.generator.columns.k.zipf.exponent"),
        (14, "spec.joins[0].window.within"),
        (15, "spec.joins[0].output.sink.consol"),
        (17, "spec.scaling.tau2"),
        (18, "spec.epoch.interval"),
    ]


def test_a_problem_reads_field_value_remedy() -> None:
    assert str(Problem("spec.scaling.tau1", 0.9, "must be below tau2 (0.8)")) == ("spec.scaling.tau1: 0.9 must be below tau2 (0.8)")
    assert str(Problem("spec.window", None, "is missing; give it")) == "spec.window: is missing; give it"
    assert len(str(Problem("f", "x" * 1000, "is long; shorten it"))) < 100


def test_a_file_may_hold_several_manifests_and_other_resources() -> None:
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Anything}\ndata: {on: off}\n"
    second = SMALL.replace("name: small", "name: second").replace("a.k < b.k", "a.k < b.q")
    documents = parse("---\n".join([other, SMALL, second, "\n"]))
    assert [document.name for document in documents] == ["small", "second"]
    assert documents[0].manifest is not None
    (problem,) = documents[1].problems
    assert problem.field == "spec.joins[0].condition"
    assert problem.line == 5 + 16 + 1 + 13
    with pytest.raises(ManifestError, match="is another StreamJoin in the same file"):
        load(SMALL + "---\n" + SMALL)


@pytest.mark.parametrize("text", ["", "# nothing\n", "apiVersion: v1\nkind: Pod\n"])
def test_a_file_without_a_manifest_says_so(text: str) -> None:
    assert problems(text) == ["the file holds no StreamJoin; begin it with apiVersion: streamjoin.dev/v1beta1 and kind: StreamJoin"]


def test_a_document_that_is_no_mapping_says_so() -> None:
    assert problems("- a\n- b\n") == [
        "the document is not a mapping; begin it with apiVersion: streamjoin.dev/v1beta1 and kind: StreamJoin"
    ]


def test_what_precedes_broken_yaml_is_still_reported() -> None:
    found = problems(SMALL.replace("name: small", "name: Small") + "---\na: [\n")
    assert [message.split(":")[0] for message in found] == ["metadata.name", "the file is not YAML"]


def test_anchors_and_merges_are_understood() -> None:
    text = SMALL.replace('schema: "id BIGINT, k INT"', 'schema: &ddl "id BIGINT, k INT"', 1)
    head, tail = text.rsplit('schema: "id BIGINT, k INT"', 1)
    text = head + "schema: *ddl" + tail
    assert load(text).spec.streams[1].ddl == "id BIGINT, k INT"
    merged = SMALL + "  driver: &pods {podTemplate: {a: 1}}\n  executor: {<<: *pods}\n"
    assert load(merged).spec.executor.pod_template == load(merged).spec.driver.pod_template


def test_an_anchor_within_itself_is_refused() -> None:
    (message,) = problems(SMALL + "  driver: {podTemplate: &x {a: *x}}\n")
    assert message == "spec.driver.podTemplate.a: contains itself through an anchor; write it out"


def test_anchors_that_would_unfold_without_end_are_refused() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert problems("\n".join(levels)) == ["the document has more than 50000 values; use fewer anchors (&, *)"]


def test_bare_words_that_kubernetes_takes_for_booleans_are_remarked_upon() -> None:
    (document,) = parse(SMALL + "  scaling: {mode: Off}\n")
    assert document.manifest is not None
    assert [str(remark) for remark in document.remarks] == [
        'spec.scaling.mode: is read by kubectl as false, because it has no quotes; write "Off"',
    ]


def test_a_threshold_that_the_policy_does_not_use_is_remarked_upon_unless_it_is_the_default() -> None:
    """An API server writes the defaults into every resource."""
    (document,) = parse(SMALL + "  scaling: {tau0: 0.3, scaleDownAfter: 5m}\n")
    assert [str(remark) for remark in document.remarks] == [
        "spec.scaling.tau0: 0.3 is not used by the policy predictive; leave it out, or set spec.scaling.policy: thresholds"
    ]
    for scaling in ("{tau0: 0.2}", "{policy: thresholds, tau0: 0.3}", "{policy: esj, tau0: 0.3}"):
        assert parse(SMALL + f"  scaling: {scaling}\n")[0].remarks == (), scaling


def test_a_join_that_only_ever_shrinks_is_remarked_upon() -> None:
    (document,) = parse(SMALL + "  scaling: {rules: {allocate: Recommend}}\n")
    assert document.manifest is not None
    assert [str(remark) for remark in document.remarks] == [
        'spec.scaling.rules.allocate: "Recommend" adds no workers, while deallocate removes them for good; give both the same mode'
    ]


def test_what_may_not_be_meant_is_remarked_upon() -> None:
    text = SMALL.replace("a.k < b.k", "a.k < b.k OR a.id = b.id").replace("location: state", "persistentVolumeClaim: c")
    (document,) = parse(text)
    assert document.manifest is not None
    every_pair, claim = document.remarks
    assert str(every_pair).startswith("spec.joins[0].condition: has no predicate that an index serves")
    assert str(claim) == "spec.checkpoint: has no location, which a run outside Kubernetes needs"


def test_an_outer_join_that_sheds_or_never_lets_go_is_remarked_upon() -> None:
    (document,) = parse(SMALL.replace("    - condition:", "    - type: left\n      condition:") + "  shedding: {model: linear}\n")
    assert [str(remark) for remark in document.remarks] == [
        "spec.joins[0].window.unbounded: never ends, so tuples without a match come only when the input has ended"
        " (streamjoin run --until-idle)",
        'spec.shedding.model: "linear" sheds tuples, and by spec.joins[0].type: left the matches of a shed tuple then come'
        " as tuples without a match",
    ]


def test_streams_without_a_predicate_that_an_index_serves_are_remarked_upon() -> None:
    condition = "orders.id = payments.order_id AND (payments.amount > shipments.value OR payments.order_id = shipments.order_id)"
    (document,) = parse(THREE.replace(CONDITION_OF_THREE, condition).replace("model: hash", "model: adsp"))
    assert document.problems == ()
    assert [str(remark) for remark in document.remarks] == [
        "spec.joins[0].condition: has no predicate of payments and shipments that an index serves; every pair of tuples of payments and"
        " shipments will be compared"
    ]


COMPARED = {
    "range": ("{0}.k = {1}.k", "{0}.k < {1}.k", "abs({0}.k - {1}.id) <= 5", "{0}.id BETWEEN {1}.k AND {1}.k + 9", "{0}.id + 1 = {1}.id"),
    "unequal": ("{0}.k <> {1}.k",),
    "pairs": ("({0}.k = {1}.k OR {0}.id > 3)", "{0}.k * {1}.k > 10"),
}
"""Parts that compare two streams: those that bound keys, those that an index serves nevertheless, and those that nothing serves."""
CONNECTING_NOTHING = ("{0}.k + {1}.k > {2}.k", "{0}.k > 3", "TRUE", "({0}.k = {1}.k OR {1}.k = {2}.k)")


def groups(names: list[str], pairs: set[tuple[str, str]]) -> int:
    """How many there are of streams that these pairs connect."""
    of = {name: {name} for name in names}
    for first, second in pairs:
        whole = of[first] | of[second]
        of |= dict.fromkeys(whole, whole)
    return len({frozenset(group) for group in of.values()})


@pytest.mark.parametrize("seed", some(range(4), of=3))
def test_streams_are_joined_where_parts_that_compare_two_connect_them_all(seed: int) -> None:
    """And those that find most are taken: of the others just so many as it takes to connect what the better ones leave apart."""
    random_ = random.Random(seed)
    outcomes = set()
    for _ in range(30):
        names = [f"s{number}" for number in range(random_.randrange(3, 7))]
        pairs: dict[str, set[tuple[str, str]]] = {kind: set() for kind in COMPARED}
        parts = [random_.choice(CONNECTING_NOTHING).format(*random_.sample(names, 3)) for _ in range(random_.randrange(3))]
        for _ in range(random_.randrange(len(names) - 1, 2 * len(names))):
            kind = random_.choice(list(COMPARED))
            pair = random_.sample(names, 2)
            pairs[kind].add((pair[0], pair[1]))
            parts.append(random_.choice(COMPARED[kind]).format(*pair))
        random_.shuffle(parts)
        resource = yaml.safe_load(SMALL)
        resource["spec"]["streams"] = [{**resource["spec"]["streams"][1], "name": name} for name in names]
        resource["spec"]["joins"][0]["condition"] = " AND ".join(parts)
        document = check(resource)
        bounded, indexed, all_ = pairs["range"], pairs["range"] | pairs["unequal"], set().union(*pairs.values())
        is_connected = groups(names, all_) == 1
        outcomes.add(is_connected)
        assert [problem.field for problem in document.problems] == ["spec.joins[0].condition"] * (not is_connected), parts
        if is_connected:
            assert document.manifest is not None
            compile_job(document.manifest)
            assert len(document.remarks) == groups(names, indexed) - 1, parts
            resource["spec"]["scheme"] = {"model": random_.choice(["hash", "readj"])}
            assert [problem.field for problem in check(resource).problems] == ["spec.scheme.model"] * (groups(names, bounded) - 1), parts
    assert outcomes == {True, False}


def test_each_of_two_streams_is_a_window_before_and_after() -> None:
    given = "\n      eventTime: at\n      watermark: 0s"
    timed = SMALL.replace("k INT", "k INT, at TIMESTAMP").replace('at TIMESTAMP"', f'at TIMESTAMP"{given}')
    windows = ["{each: {b: 1m, a: 10m}}", "{before: 1m, after: 10m}"]
    each, pair = (compile_job(load(timed.replace("{unbounded: true}", window))).joins[0].window for window in windows)
    assert each == pair
    assert (each.before_micros, each.after_micros) == (60_000_000, 600_000_000)


def test_within_of_three_streams_is_each_of_every_one() -> None:
    (within,) = load(THREE.replace("{each: {orders: 10m, payments: 2m, shipments: 30s}}", "{within: 10s}")).spec.joins
    (each,) = load(THREE).spec.joins
    names = ("orders", "payments", "shipments")
    assert resolve.window(within.window, names).each == (10_000_000,) * 3
    assert resolve.window(each.window, names).each == (600_000_000, 120_000_000, 30_000_000)
    assert resolve.window(each.window, names[::-1]).each == (30_000_000, 120_000_000, 600_000_000)


def test_three_streams_hold_what_any_step_reads() -> None:
    spec = load(THREE).spec
    schemas = {stream.name: parse_schema(stream.ddl) for stream in spec.streams}
    needs = holding.all_needs(spec, schemas)
    held = {stream.name: holding.held(stream.name, None, schemas[stream.name], needs) for stream in spec.streams}
    assert held == {
        "orders": ("id", "amount", "ordered"),
        "payments": ("order_id", "amount", "paid"),
        "shipments": ("value", "shipped"),
    }


def test_the_default_output_has_the_columns_of_all_streams() -> None:
    spec = load(re.sub(r"        select: \[.*\n", "", THREE)).spec
    schemas = {stream.name: parse_schema(stream.ddl) for stream in spec.streams}
    assert [name for name, _ in resolve.output(spec.joins[0], spec, schemas)] == [
        *("orders_id", "orders_amount", "orders_ordered", "payments_order_id", "payments_amount", "payments_paid"),
        *("shipments_order_id", "shipments_value", "shipments_shipped"),
    ]


def test_certificates_are_for_pods_which_is_remarked_upon() -> None:
    (document,) = parse(SMALL + "  security: {tls: {secretName: near-tls}}\n")
    assert document.manifest is not None
    assert [str(remark) for remark in document.remarks] == [
        "spec.security.tls: is for pods; streamjoin run keeps all connections on this machine, with a secret of its own and without TLS"
    ]


def test_secrets_that_are_written_out_are_remarked_upon_and_not_shown() -> None:
    files = "{files: {path: in/a, format: json}}"
    options = "{sasl.username: me, sasl.password: sesame, ssl.key.password: 'env:KEY', ssl.keystore.password: 'file:/run/keystore'}"
    text = SMALL.replace(files, f"{{kafka: {{bootstrapServers: 'b:9092', topic: a, options: {options}}}}}")
    assert [str(remark) for document in parse(text) for remark in document.remarks] == [
        'spec.streams[0].source.kafka.options["sasl.password"]: is a secret, readable in the manifest; write file:/path of a'
        " file with it, or env: and the name of a variable",
        'spec.streams[0].source.kafka.options["sasl.username"]: is not used unless security.protocol is SASL_SSL (or SASL_PLAINTEXT, which'
        " encrypts nothing)",
    ]


def test_a_password_of_a_store_of_snapshots_is_remarked_upon_and_not_shown() -> None:
    resource = yaml.safe_load(SMALL)
    store = {"postgres": {"host": "db", "database": "d", "options": {"user": "me", "password": "sesame"}}}
    resource["spec"]["joins"][0]["output"]["snapshots"] = {"every": "10s", "store": store}
    assert [str(remark) for remark in check(resource).remarks] == [
        "spec.joins[0].output.snapshots.store.postgres.options.password: is a secret, readable in the manifest; write file:/path"
        " of a file with it, or env: and the name of a variable"
    ]
    resource["spec"]["joins"][0]["output"]["snapshots"] = {"every": "10s", "stores": store}
    for document in parse(yaml.safe_dump(resource)):
        assert document.problems
        assert all("sesame" not in str(problem) for problem in document.problems)


def test_a_resource_from_the_api_is_checked_without_lines() -> None:
    resource = yaml.safe_load(SMALL)
    assert check(resource).manifest == load(SMALL)
    resource["spec"]["workers"] = {"min": 5, "max": 2}
    (problem,) = check(resource).problems
    assert (str(problem), problem.line) == ("spec.workers.min: 5 must be at most max (2)", None)


@pytest.mark.parametrize("depth", [100, 200, 300, 1000])
def test_nesting_without_end_is_refused(depth: int) -> None:
    found = problems(SMALL + "  driver: {podTemplate: {a: " + "[" * depth + "]" * depth + "}}\n")
    assert found in ([], ["the file is nested too deeply for a manifest; take levels out"])


def test_half_a_character_is_refused_and_can_be_printed() -> None:
    (name,) = problems(SMALL.replace("name: small", 'name: "a\\ud800"', 1))[:1]
    assert name == "metadata.name: holds half of a surrogate pair, which is no character; remove it"
    for message in problems(SMALL.replace("name: small", '"na\\ud800me": small')):
        message.encode()
    for problem in check({"apiVersion": "\ud800"}).problems:
        str(problem).encode()


def test_dates_need_no_quotes() -> None:
    text = SMALL.replace("rows: 10,", "rows: 10, start: 2026-03-01T12:00:00+01:00,")
    generator = load(text).spec.streams[1].source.generator
    assert generator is not None
    assert generator.start_micros == 1_772_362_800_000_000


@given(st.text(max_size=300))
def test_any_text_at_all_gets_an_answer(text: str) -> None:
    for document in parse(text):
        assert document.problems or document.manifest is not None


@pytest.mark.parametrize("seed", range(4))
def test_a_file_with_characters_lost_or_put_in_gets_an_answer(seed: int) -> None:
    """The seed is the test's parameter."""
    random_ = random.Random(seed)
    for _ in range(50):
        text = list(SMALL)
        for _ in range(random_.randrange(1, 5)):
            at = random_.randrange(len(text))
            text[at : at + random_.randrange(4)] = random_.choice(["", " ", ":", "\n", "{", "]", '"', "&a ", "*a", "\t", "- ", "#"])
        for document in parse("".join(text)):
            assert document.problems or document.manifest is not None, "".join(text)
            assert all(problem.line is not None for problem in document.problems), "".join(text)


JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    3.7,
    10**30,
    "",
    "x",
    "on",
    "1s",
    [],
    [1],
    {},
    {"a": {}},
    float("nan"),
    "a.k",
    "\ud800",
]


def mutated(value: Any, random_: random.Random) -> Any:
    """One random place of the value replaced, removed, repeated or renamed."""
    if isinstance(value, dict) and value and random_.random() < 0.85:
        key = random_.choice(list(value))
        action = random_.random()
        if action < 0.1:
            del value[key]
        elif action < 0.2:
            value[key + random_.choice("xs_")] = value.pop(key)
        else:
            value[key] = mutated(value[key], random_)
        return value
    if isinstance(value, list) and value and random_.random() < 0.85:
        index = random_.randrange(len(value))
        if random_.random() < 0.2:
            value.append(copy.deepcopy(value[index]))
        else:
            value[index] = mutated(value[index], random_)
        return value
    return copy.deepcopy(random_.choice(JUNK))


@pytest.mark.parametrize("seed", some(range(8), of=3))
def test_a_damaged_manifest_is_refused_or_can_be_compiled(seed: int) -> None:
    """And every problem has a field and a remedy. The seed is the test's parameter."""
    random_ = random.Random(seed)
    examples = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "examples").glob("*.yaml"))]
    for _ in range(40):
        resource = copy.deepcopy(random_.choice(examples))
        for _ in range(random_.randrange(1, 4)):
            resource = mutated(resource, random_)
        document = check(resource)
        if document.manifest is not None and document.manifest.spec.checkpoint.location is not None:
            compile_job(document.manifest)
        for problem in document.problems:
            assert problem.field or not isinstance(resource, dict), resource
            assert problem.message, resource


@given(st.integers(0, 10**16))
def test_a_duration_is_read_as_it_is_written(micros: int) -> None:
    assert Duration.parse(str(Duration(micros))) == Duration(micros)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("180s", 180_000_000),
        ("10m", 600_000_000),
        ("500ms", 500_000),
        ("1h30m", 5_400_000_000),
        ("1.5s", 1_500_000),
        ("7us", 7),
        ("2d", 172_800_000_000),
        ("0s", 0),
        ("1d2h3m4s5ms6us", 93_784_005_006),
    ],
)
def test_durations(text: str, micros: int) -> None:
    assert Duration.parse(text).micros == micros


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1s ", "1S", "1e3s", ".5s", "1m1h", "1s1s", "0.1us", "１s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=";"):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("2Gi", 2**31), ("1.5Ki", 1536), ("1k", 1000), ("3M", 3_000_000), ("1Ei", 2**60), ("0.5G", 500_000_000)],
)
def test_amounts_of_memory(text: str, size: int) -> None:
    assert Memory.parse(text).bytes == size
    assert Memory.parse(str(Memory(size))).bytes == size


@pytest.mark.parametrize("text", ["", "Gi", "1GiB", "1K", "1.0001", "-1Gi", "1 Gi", "1e9"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ValueError, match=";"):
        Memory.parse(text)


@pytest.mark.parametrize(("text", "millis", "cores"), [("1", 1000, 1), ("500m", 500, 1), ("2.5", 2500, 3), ("1500m", 1500, 2)])
def test_amounts_of_cpu(text: str, millis: int, cores: int) -> None:
    assert (Cpu.parse(text).millis, Cpu.parse(text).cores) == (millis, cores)
    assert Cpu.parse(str(Cpu(millis))).millis == millis


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("in/orders", "in/orders"),
        ("./in//orders/", "in/orders"),
        ("/data/../in", "/in"),
        ("//data", "/data"),
        ("file:///data/a%20b/", "/data/a b"),
        ("file://localhost/data", "/data"),
        ("file:/data", "/data"),
        ("FILE:///data", "/data"),
        ("a:b", "a:b"),
        (".", "."),
        ("s3://bucket/a//b/", "s3://bucket/a/b"),
        ("S3A://Bucket", "s3://Bucket"),
        ("s3://bucket/a%20b", "s3://bucket/a%20b"),
        ("gs://bucket/a b", "gs://bucket/a b"),
        ("abfs://box@Account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
        ("az://box/a/", "az://box/a"),
    ],
)
def test_where_a_location_is(location: str, path: str) -> None:
    assert place(location) == path
    assert place(path) == path


@pytest.mark.parametrize(
    "location",
    ["", " a", "file://host/data", "file://", "~/a", "a\0b", "hdfs://x/y", "ftp://x/y", "gs:/x", "s3:///x", "s3://b/../x", "s3://b/a?x=1",
     "abfss://box/a", "az://box@account/a"],
)  # fmt: skip
def test_what_is_no_place(location: str) -> None:
    with pytest.raises(ValueError, match=";"):
        place(location)


@pytest.mark.parametrize(
    ("inner", "outer", "is_within"),
    [
        ("a/b", "a", True),
        ("a", "a", True),
        ("ab", "a", False),
        ("a", "a/b", False),
        ("/a/b", "/", True),
        ("/a", "a", False),
        ("x", ".", True),
        ("../x", ".", False),
        ("..", ".", False),
        ("../a", "..", True),
        ("../../a", "..", False),
        ("..a", ".", True),
        ("s3://b/a", "s3://b", True),
        ("s3://b/ab", "s3://b/a", False),
        ("s3://b/a", "gs://b/a", False),
        ("s3://b/a", ".", False),
        ("s3:", "s3://b", False),
    ],
)
def test_what_lies_within_what(inner: str, outer: str, is_within: bool) -> None:
    assert within(inner, outer) is is_within


def test_the_json_schema_describes_every_field_and_gives_defaults_as_a_manifest_has_them() -> None:
    schema = Manifest.model_json_schema(schema_generator=SchemaGenerator)
    parts = schema["$defs"] | {"Manifest": schema}
    for name, part in parts.items():
        assert part["description"], name
        assert part.get("additionalProperties", False) is False, name
        for field, described in part["properties"].items():
            assert described.get("description") or "$ref" in described, f"{name}.{field}"
    assert parts["Scaling"]["properties"]["scaleUpAfter"]["default"] == "30s"
    assert parts["Resources"]["properties"]["memory"]["default"] == "2Gi"
    assert parts["Workers"]["properties"]["min"] == {
        "default": 1,
        "description": "The least number of workers.",
        "maximum": 10000,
        "minimum": 1,
        "title": "Min",
        "type": "integer",
    }
    json.dumps(schema, allow_nan=False)


def test_a_manifest_written_out_is_the_same_manifest() -> None:
    """Also with all defaults filled in, as the API server does."""
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        manifest = load(path.read_text())
        again = load(yaml.safe_dump(manifest.model_dump(mode="json", by_alias=True, exclude_unset=True)))
        assert again == manifest
        assert load(yaml.safe_dump(manifest.model_dump(mode="json", by_alias=True, exclude_none=True))).spec == manifest.spec


def test_what_the_api_server_fills_in_for_a_newer_version_is_left_out_with_a_remark() -> None:
    """Its definition is upgraded before this program is: all resources have the new fields' defaults then."""
    resource = yaml.safe_load((ROOT / "examples" / "band.yaml").read_text())
    resource["spec"]["later"] = {"of": "a newer version"}
    resource["spec"]["streams"][0]["source"]["generator"]["later"] = 1
    found = check(resource)
    assert found.manifest is not None
    assert found.problems == ()
    later = [remark for remark in found.remarks if "not known to this version" in remark.message]
    assert [remark.field for remark in later] == ["spec.streams[0].source.generator.later", "spec.later"]
    assert "later" in str(parse(yaml.safe_dump(resource))[0].problems[0]), "in a text it is a slip"


DOCUMENT = (ROOT / "docs" / "manifest.md").read_text()


def test_the_reference_in_the_documentation_is_up_to_date() -> None:
    begin, end = "<!-- fields: python -m streamjoin.manifest.reference -->\n", "<!-- end of fields -->"
    assert DOCUMENT.split(begin)[1].split(end)[0].strip() == tables().strip()


def fenced() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)


def test_the_full_example_in_the_documentation_is_valid() -> None:
    full = [block for block in fenced() if block.startswith("apiVersion")]
    assert full
    for block in full:
        assert [str(p) for document in parse(block) for p in (*document.problems, *document.remarks)] == []


def test_the_short_examples_in_the_documentation_are_valid() -> None:
    """Each replaces parts of the small manifest: by stream, of the join, or of the spec."""
    short = [block for block in fenced() if not block.startswith("apiVersion")]
    assert len(short) >= 8
    for block in short:
        resource = yaml.safe_load(SMALL)
        spec, part = resource["spec"], yaml.safe_load(block)
        for stream in spec["streams"]:
            stream |= {"schema": "id BIGINT, k INT, at TIMESTAMP", "eventTime": "at", "watermark": "0s"}
        for key in list(part):
            if key in ("source", "watermark", "maxAhead", "idleTimeout", "where", "schema", "eventTime", "select"):
                spec["streams"][0][key] = part.pop(key)
            elif key in ("condition", "type", "window", "output"):
                spec["joins"][0][key] = part.pop(key)
        spec.update(part)
        assert [str(problem) for problem in check(resource).problems] == [], block
