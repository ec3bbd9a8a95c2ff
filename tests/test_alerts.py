"""The chart's alerts: promtool takes them, finds each on when it should be and off when not; each has a section in docs/alerts.md."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import alerts
from prometheus_server import PROMTOOL, needs_promtool
from streamjoin.serve import catalogue

DOCUMENT = (alerts.ROOT / "docs" / "alerts.md").read_text()
GROUPS = alerts.groups()
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
MINUTE = 25
"""At which alerts are looked at; series have a value a minute."""
JOIN = {"namespace": "team-a", "name": "test"}
TARGET = {"job": "streamjoin", "instance": "10.0.0.1:8080"}
OPERATOR = {"job": "streamjoin-operator", "instance": "10.0.0.2:8080", "namespace": "operators"}


@dataclass(frozen=True)
class Case:
    """Series (metric, labels as in PromQL: their values as promtool notes them) with which an alert is on; with ``calm``, it is off."""

    alert: str
    on: dict[str, str]
    calm: dict[str, str]
    description: str
    """What the alert then says, after the join's name."""
    labels: tuple[tuple[str, str], ...] = tuple(JOIN.items())


def series(text: str) -> str:
    """With the labels of its target."""
    metric, _, labels = text.removesuffix("}").partition("{")
    if "namespace=" in labels:  # the series' own, by honorLabels
        return f"{metric}{{{labels}}}"
    target = OPERATOR if metric.startswith("streamjoin_operator_") else TARGET | JOIN
    if metric == "up":
        target = TARGET | {"namespace": JOIN["namespace"]}
    given = [f"{label}='{value}'" for label, value in target.items()] + ([labels] if labels else [])
    return f"{metric}{{{','.join(given)}}}"


LEFT = (*JOIN.items(), ("stream", "l"))
OF_OPERATOR = (("namespace", "operators"),)
TAU3 = {"streamjoin_threshold_ratio{threshold='tau2'}": "0.8x40", "streamjoin_threshold_ratio{threshold='tau3'}": "0.9x40"}
FULL = {"streamjoin_worker_utilization_ratio{task='0'}": "0.5x40", "streamjoin_worker_utilization_ratio{task='1'}": "0.95x40"}
NEARLY_FULL = {"streamjoin_worker_utilization_ratio{task='0'}": "0.5x40", "streamjoin_worker_utilization_ratio{task='1'}": "0.89x40"}
STATED = (("namespace", "team-a"), ("streamjoin", "test"))


def condition(kind: str, reason: str) -> str:
    return f"streamjoin_operator_condition{{namespace='team-a',streamjoin='test',type='{kind}',reason='{reason}'}}"


def phase(name: str) -> str:
    return f"streamjoin_operator_phase{{namespace='team-a',streamjoin='test',phase='{name}'}}"


CASES = [
    Case(
        "StreamJoinIsNotAvailable",
        {
            condition("Available", "DriverStarting"): "0x10 _x30",
            condition("Available", "PodRefused"): "_x10 0x30",
            phase("Pending"): "1x40",
        },
        {condition("Available", "Suspended"): "0x40", phase("Suspended"): "1x40"},
        "its condition Available is false, and says why: kubectl streamjoin status. A driver that never started has no metrics.",
        labels=STATED,
    ),
    Case(
        "StreamJoinIsNotAvailable",
        {condition("Available", "DriverCrashing"): "0x40", phase("Failed"): "1x40"},
        {
            condition("Available", "DriverStarting"): "0x20 _x20",
            condition("Available", "JoinRunning"): "_x20 1x20",
            phase("Running"): "1x40",
        },
        "its condition Available is false, and says why: kubectl streamjoin status. A driver that never started has no metrics.",
        labels=STATED,
    ),
    Case(
        "StreamJoinIsDegraded",
        {condition("Degraded", "PodRefused"): "1x40"},
        {condition("Degraded", "PodRefused"): "1x8 _x32", condition("Degraded", "Healthy"): "_x8 0x32"},
        "its condition Degraded is true, and says why and what to do: kubectl streamjoin status.",
        labels=STATED,
    ),
    Case(
        "StreamJoinIsDown",
        {"up": "1x20 0x20"},
        {"up": "0x20 1x20"},
        "team-a 10.0.0.1:8080 cannot be scraped. A driver that is started again goes on after its last commit.",
        labels=(("namespace", "team-a"), *TARGET.items()),
    ),
    Case(
        "StreamJoinDoesNotCommit",
        {"streamjoin_running_epoch_seconds": "0+60x40", "streamjoin_epoch_failures_total": "0x40"},
        {"streamjoin_running_epoch_seconds": "299x40", "streamjoin_last_commit_timestamp_seconds": "0x40"},
        "the running epoch does not end, or epochs fail and none has been committed meanwhile. There are no results.",
    ),
    Case(
        "StreamJoinDoesNotCommit",
        {"streamjoin_epoch_failures_total": "0+1x40", "streamjoin_last_commit_timestamp_seconds": "0+60x15 900x25"},
        {"streamjoin_epoch_failures_total": "0+1x40", "streamjoin_last_commit_timestamp_seconds": "0+60x40"},
        "the running epoch does not end, or epochs fail and none has been committed meanwhile. There are no results.",
    ),
    Case(
        "StreamJoinDoesNotCommit",
        {"streamjoin_epoch_failures_total": "0+1x40", "streamjoin_running_epoch_seconds": "0x40"},
        {"streamjoin_epoch_failures_total": "5x40", "streamjoin_running_epoch_seconds": "0x40"},
        "the running epoch does not end, or epochs fail and none has been committed meanwhile. There are no results.",
    ),
    Case(
        "StreamJoinStalls",
        {"streamjoin_still_seconds": "0+30x40", "streamjoin_epoch_deadline_seconds": "600x40"},
        {"streamjoin_still_seconds": "119x40", "streamjoin_epoch_deadline_seconds": "600x40", "streamjoin_epoch_stalls_total": "3x40"},
        "nothing of the running epoch moves, or an epoch was given up for that. "
        "Its condition EpochStalled names the step and the workers that it waits for.",
    ),
    Case(
        "StreamJoinStalls",
        {"streamjoin_still_seconds": "0x40", "streamjoin_epoch_stalls_total": "0x20 1x20"},
        {"streamjoin_still_seconds": "0x40", "streamjoin_epoch_deadline_seconds": "600x40"},
        "nothing of the running epoch moves, or an epoch was given up for that. "
        "Its condition EpochStalled names the step and the workers that it waits for.",
    ),
    Case(
        "StreamJoinFails",
        {"streamjoin_epoch_failures_total": "0+1x40"},
        {"streamjoin_epoch_failures_total": "0 1 2 2x40"},
        "10 attempts have failed within ten minutes. They are tried again; nothing is lost.",
    ),
    Case(
        "StreamJoinFallsBehind",
        {"streamjoin_watermark_lag_seconds{stream='l'}": "0+60x40", "streamjoin_watermark_lag_seconds{stream='r'}": "1x40"},
        {"streamjoin_watermark_lag_seconds{stream='l'}": "3600-60x40", "streamjoin_watermark_lag_seconds{stream='r'}": "0+10x40"},
        "l is 25m 0s behind, and more every minute.",
        labels=LEFT,
    ),
    Case(
        "StreamJoinHasABacklog",
        {"streamjoin_backlog_records{stream='l'}": "0x40", "streamjoin_backlog_records{stream='r'}": "7x40"},
        {"streamjoin_backlog_records{stream='l'}": "0x40", "streamjoin_backlog_records{stream='r'}": "7x18 0 7x20"},
        "7 records wait; more input comes than is joined.",
    ),
    Case(
        "StreamJoinHasAllWorkersItMay",
        TAU3 | FULL | {"streamjoin_workers": "2x40", "streamjoin_workers_max": "2x40"},
        TAU3 | FULL | {"streamjoin_workers": "2x40", "streamjoin_workers_max": "3x40"},
        "a worker holds 95% of its capacity, and there can be no more workers than spec.workers.max.",
    ),
    Case(
        "StreamJoinHasAllWorkersItMay",
        TAU3 | FULL | {"streamjoin_workers": "1x10 2x40", "streamjoin_workers_max": "2x40"},
        TAU3 | NEARLY_FULL | {"streamjoin_workers": "2x40", "streamjoin_workers_max": "2x40"},
        "a worker holds 95% of its capacity, and there can be no more workers than spec.workers.max.",
    ),
    Case(
        "StreamJoinStaysFull",
        TAU3 | FULL | {"streamjoin_workers": "2x40", "streamjoin_workers_max": "3x40"},
        TAU3 | FULL | {"streamjoin_workers": "2x15 3x25", "streamjoin_workers_max": "3x40"},
        "a worker holds 95% of its capacity, and there could be more workers.",
    ),
    Case(
        "StreamJoinSheds",
        {
            "streamjoin_shed_tuples_total{stream='l'}": "0+30x40",
            "streamjoin_shed_tuples_total{stream='r'}": "0x40",
            "streamjoin_input_records_total{stream='l'}": "0+150x40",
            "streamjoin_input_records_total{stream='r'}": "0+150x40",
        },
        {"streamjoin_shed_tuples_total{stream='l'}": "70x40", "streamjoin_input_records_total{stream='l'}": "0+150x40"},
        "10% of the tuples are dropped because workers are full. Their results are missing for good.",
    ),
    Case(
        "StreamJoinLosesResults",
        {
            "streamjoin_completeness_ratio{join='j',over='1h',bound='high'}": "0.95x40",
            "streamjoin_completeness_ratio{join='j',over='1h',bound='low'}": "0.9x40",
        },
        {
            "streamjoin_completeness_ratio{join='j',over='1h',bound='high'}": "0.999x40",
            "streamjoin_completeness_ratio{join='j',over='1h',bound='low'}": "0.9x40",
            "streamjoin_completeness_ratio{join='j',over='run',bound='high'}": "0.5x40",
        },
        "of the results of j of the last hour, 95% at most were found; the others were lost to shedding and to lateness, for good.",
        labels=(*JOIN.items(), ("join", "j")),
    ),
    Case(
        "StreamJoinWaitsForAStream",
        {"streamjoin_watermark_held_seconds{stream='l',by='partition 3'}": "0+60x40"},
        {"streamjoin_watermark_held_seconds{stream='l',by='partition 3'}": "0+1x40"},
        "l partition 3 has had no record for 25m 0s and holds back the watermarks: what other streams hold for it is kept.",
        labels=(*LEFT, ("by", "partition 3")),
    ),
    Case(
        "StreamJoinGetsLateTuples",
        {"streamjoin_late_tuples_total{stream='l'}": "0+30x40", "streamjoin_input_records_total{stream='l'}": "0+600x40"},
        {"streamjoin_late_tuples_total{stream='l'}": "0+3x40", "streamjoin_input_records_total{stream='l'}": "0+600x40"},
        "5% of l are older than the watermark and dropped.",
        labels=LEFT,
    ),
    Case(
        "StreamJoinGetsDeadLetters",
        {"streamjoin_dead_letter_records_total{stream='l'}": "0+2x40"},
        {"streamjoin_dead_letter_records_total{stream='l'}": "0 9x40"},
        "30 records of l were put into the dead letters within 15 minutes.",
        labels=LEFT,
    ),
    Case(
        "StreamJoinMissesRecords",
        {"streamjoin_kafka_skipped_records_total{stream='l'}": "0+2x40"},
        {"streamjoin_kafka_skipped_records_total{stream='l'}": "9x40"},
        "retention removed 30 records of l before they were read.",
        labels=LEFT,
    ),
    Case(
        "StreamJoinRepeatsStorageRequests",
        {"streamjoin_storage_retries_total": "0+60x40"},
        {"streamjoin_storage_retries_total": "0+3x40"},
        "1 requests a second are repeated; each waits first.",
    ),
    Case(
        "StreamJoinSnapshotsWait",
        {"streamjoin_snapshot_failing_seconds{join='j'}": "0x10 0+60x30"},
        {"streamjoin_snapshot_failing_seconds{join='j'}": "0x20 30x20"},
        "the store of the snapshots of j fails, or does not keep up. Nothing is lost; when the buffer is full, the join waits.",
        labels=(*JOIN.items(), ("join", "j")),
    ),
    Case(
        "StreamJoinSnapshotsWait",
        {"streamjoin_waiting_snapshot_bytes{join='j'}": "0+100x40", "streamjoin_snapshot_buffer_bytes{join='j'}": "1000x40"},
        {"streamjoin_waiting_snapshot_bytes{join='j'}": "500x40", "streamjoin_snapshot_buffer_bytes{join='j'}": "1000x40"},
        "the store of the snapshots of j fails, or does not keep up. Nothing is lost; when the buffer is full, the join waits.",
        labels=(*JOIN.items(), ("join", "j")),
    ),
    Case(
        "StreamJoinLacksExecutors",
        {"streamjoin_workers_wanted": "3x40", "streamjoin_workers_ready": "1x40"},
        {"streamjoin_workers_wanted": "3x40", "streamjoin_workers_ready": "1x21 3x20"},
        "2 of the wanted workers are not there. The join goes on at its size.",
    ),
    Case(
        "StreamJoinMetricsAreMissing",
        {
            "streamjoin_operator_streamjoins{phase='Running'}": "2x40",
            "streamjoin_operator_streamjoins{phase='Rescaling'}": "1x40",
            "streamjoin_workers_max": "4x40",
        },
        {
            "streamjoin_operator_streamjoins{phase='Running'}": "1x40",
            "streamjoin_operator_streamjoins{phase='Starting'}": "5x40",
            "streamjoin_workers_max": "4x40",
        },
        "Of 2 StreamJoins that the operator sees run, Prometheus has no metrics; none of the other alerts can tell of them.",
        labels=(),
    ),
    Case(
        "StreamJoinMetricsAreMissing",
        {"streamjoin_operator_streamjoins{phase='Running'}": "2x40"},
        {"streamjoin_operator_streamjoins{phase='Suspended'}": "2x40"},
        "Of 2 StreamJoins that the operator sees run, Prometheus has no metrics; none of the other alerts can tell of them.",
        labels=(),
    ),
    Case(
        "StreamJoinOperatorFails",
        {"streamjoin_operator_failing": "3x40"},
        {"streamjoin_operator_failing": "3x18 0 3x21"},
        "The last reconcile of 3 StreamJoins failed. It is tried again; joins that run go on.",
        labels=OF_OPERATOR,
    ),
    Case(
        "StreamJoinOperatorIsStuck",
        {"streamjoin_operator_queue_age_seconds": "300x40"},
        {"streamjoin_operator_queue_age_seconds": "119x40"},
        "A StreamJoin has been due for 5m 0s. Joins that run go on; nobody scales or repairs them.",
        labels=OF_OPERATOR,
    ),
    Case(
        "StreamJoinOperatorIsMissing",
        {"streamjoin_operator_active": "0x40"},
        {"streamjoin_operator_active": "1x40"},
        "Prometheus knows of no active operator. Joins that run go on; nobody scales or repairs them.",
        labels=(),
    ),
]


def promtool(*arguments: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_documentation_has_the_rules_with_the_default_values() -> None:
    """Otherwise: make monitoring"""
    assert alerts.FILE.read_text() == alerts.text()


def test_every_alert_has_a_severity_texts_a_section_of_the_documentation_and_a_test() -> None:
    assert re.findall(r"^### (StreamJoin\w+)$", DOCUMENT, re.MULTILINE) == list(RULES)
    assert {case.alert for case in CASES} == set(RULES)
    for name, rule in RULES.items():
        assert rule["labels"]["severity"] in {"critical", "warning"}, name
        assert rule["annotations"]["description"].endswith("."), name
        assert not rule["annotations"]["summary"].endswith("."), name


def test_alerts_ask_only_for_metrics_that_there_are() -> None:
    asked = {name for rule in RULES.values() for name in re.findall(r"streamjoin_\w+", rule["expr"])}
    of_operator = {name for name in asked if name.startswith("streamjoin_operator_")}
    assert asked - of_operator <= set(catalogue.CATALOGUE)
    source = (alerts.ROOT / "operator" / "streamjoin_operator" / "metrics.py").read_text()
    assert all(f'"{name}"' in source for name in of_operator)


@needs_promtool
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(yaml.safe_dump({"groups": GROUPS}))
    promtool("check", "rules", str(tmp_path / "all.yaml"), str(alerts.FILE))


def expected(case: Case) -> dict[str, Any]:
    """The alert as it fires."""
    rule, labels = RULES[case.alert], dict(case.labels)
    annotations = dict(rule["annotations"])
    for label in ("name", "streamjoin"):
        annotations["summary"] = annotations["summary"].replace(f"{{{{ $labels.{label} }}}}", JOIN["name"])
    annotations["description"] = f"team-a/test: {case.description}" if {"name", "streamjoin"} & set(labels) else case.description
    return {"exp_labels": labels | rule["labels"], "exp_annotations": annotations}


@needs_promtool
@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_alerts_are_on_when_they_should_be_and_say_so(tmp_path: Path, on: bool) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": GROUPS}))
    tests = [
        {
            "name": f"{index} {case.alert}",
            "interval": "1m",
            "input_series": [{"series": series(name), "values": values} for name, values in (case.on if on else case.calm).items()],
            "alert_rule_test": [{"alertname": case.alert, "eval_time": f"{MINUTE}m", "exp_alerts": [expected(case)] if on else []}],
        }
        for index, case in enumerate(CASES)
    ]
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(path))
