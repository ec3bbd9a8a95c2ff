"""Writes the chart's Grafana dashboard: ``python tools/dashboard.py`` (``make monitoring``).

Panels are given here by what they ask and say; what Grafana wants besides (the classic model, as Grafana 12 exports it) follows from
their type. Always holds: the panels of a row of the grid are 24 columns wide together; every expression about a join selects its
namespace and name, by the dashboard's variables; those of the operator select nothing, for there is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "charts" / "streamjoin-operator" / "files" / "dashboard.json"
SCHEMA_VERSION = 41
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
JOIN = 'namespace="$namespace",name="$name"'
METRIC = re.compile(r"\b(streamjoin_(?!operator_)\w+)(?:\{(.*?)\})?")
THRESHOLD_COLOURS = {"tau0": "blue", "tau1": "green", "tau2": "orange", "tau3": "red"}

Object = dict[str, Any]


def of_join(expression: str) -> str:
    """The expression with the join selected wherever it asks for one of its metrics."""

    def selected(match: re.Match[str]) -> str:
        return f"{match[1]}{{{JOIN}{',' + match[2] if match[2] else ''}}}"

    return METRIC.sub(selected, expression)


def rate(metric: str) -> str:
    """Per second."""
    return f"rate({metric}[$__rate_interval])"


def rates(metric: str, by: str = "") -> str:
    """Per second, summed, by these labels."""
    return f"sum{f' by ({by}) ' if by else ''}({rate(metric)})"


def quantile(share: float, metric: str, by: str = "") -> str:
    """Of a histogram, by these labels."""
    return f"histogram_quantile({share}, {rates(metric + '_bucket', f'{by}, le' if by else 'le')})"


def mean(metric: str, by: str = "") -> str:
    """Of what a histogram has observed; nothing while it observes nothing."""
    return f"{rates(metric + '_sum', by)} / ({rates(metric + '_count', by)} > 0)"


@dataclass(frozen=True)
class Panel:
    """A panel that draws lines, by default; ``queries`` are the expressions by legend."""

    title: str
    unit: str
    description: str
    queries: dict[str, str]
    width: int = 8
    kind: str = "timeseries"
    stacked: bool = False
    stepped: bool = False
    defaults: Object = field(default_factory=lambda: {"min": 0})
    overrides: tuple[Object, ...] = ()

    def model(self, number: int, x: int, y: int, height: int) -> Object:
        """As Grafana has it."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": height},
            "targets": [
                {
                    "datasource": DATASOURCE,
                    "editorMode": "code",
                    "expr": of_join(expression),
                    "instant": False,
                    "legendFormat": legend,
                    "range": True,
                    "refId": chr(ord("A") + index),
                }
                for index, (legend, expression) in enumerate(self.queries.items())
            ],
            "fieldConfig": {"defaults": self._defaults(), "overrides": list(self.overrides)},
            "options": OPTIONS[self.kind],
        }

    def _defaults(self) -> Object:
        plain: Object = {"color": {"mode": "palette-classic"}, "mappings": [], "unit": self.unit, **self.defaults}
        if self.kind == "timeseries":
            plain["custom"] = {
                "drawStyle": "line",
                "fillOpacity": 20 if self.stacked else 0,
                "lineInterpolation": "stepAfter" if self.stepped else "linear",
                "lineWidth": 1,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"group": "A", "mode": "normal" if self.stacked else "none"},
            }
        elif self.kind == "stat":
            plain["color"] = {"mode": "fixed", "fixedColor": "text"}
        else:
            plain["custom"] = {"fillOpacity": 70, "lineWidth": 0}
        return plain


OPTIONS: dict[str, Object] = {
    "timeseries": {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"hideZeros": False, "mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": "value",
        "wideLayout": True,
    },
    "state-timeline": {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "never",
        "tooltip": {"hideZeros": False, "mode": "single", "sort": "none"},
    },
}


def stat(title: str, unit: str, description: str, expression: str, **defaults: Any) -> Panel:
    """One number, and how it came to it."""
    return Panel(title, unit, description, {title: expression}, width=4, kind="stat", defaults=defaults)


def _shown(text: str, colour: str, index: int) -> Object:
    return {"color": colour, "index": index, "text": text}


def _dashed(name: str, colour: str) -> Object:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [
            {"id": "custom.lineStyle", "value": {"dash": [6, 6], "fill": "dash"}},
            {"id": "custom.lineWidth", "value": 2},
            {"id": "color", "value": {"fixedColor": colour, "mode": "fixed"}},
        ],
    }


NOW = (
    stat("Workers", "none", "Workers of the running plan.", "sum(streamjoin_workers)"),
    stat(
        "Fullest worker",
        "percentunit",
        "tau of the fullest worker: the tuples, or bytes, that it holds / its capacity.",
        "max(streamjoin_worker_utilization_ratio)",
    ),
    stat("Read", "cps", "Records read per second, of all streams together.", rates("streamjoin_input_records_total")),
    stat("Results", "cps", "Rows of output per second, of all joins together.", rates("streamjoin_output_rows_total")),
    stat(
        "Watermark lag",
        "s",
        "Seconds from the watermark to tuples made now, of the stream that is furthest behind.",
        "max(streamjoin_watermark_lag_seconds)",
    ),
    stat(
        "Since the last commit",
        "s",
        "Seconds since the last epoch was committed. Without input there are no epochs, and no commits.",
        "time() - max(streamjoin_last_commit_timestamp_seconds)",
    ),
)
WORKERS = (
    Panel(
        "tau per worker, and the thresholds",
        "percentunit",
        "What a worker holds / its capacity. From tau3 up, the autoscaler adds workers; from tau0 down, it removes workers; each change "
        "aims at tau1. From tau2 up, the join sheds tuples, if shedding is on.",
        {
            "worker {{task}}": "max by (task) (streamjoin_worker_utilization_ratio)",
            "{{threshold}}": "max by (threshold) (streamjoin_threshold_ratio)",
        },
        width=12,
        overrides=tuple(_dashed(name, colour) for name, colour in THRESHOLD_COLOURS.items()),
    ),
    Panel(
        "Number of workers",
        "none",
        "Workers of the running plan (now), of the plan that is being applied (desired), and workers that are ready; with the limits min "
        "and max.",
        {
            "now": "sum(streamjoin_workers)",
            "desired": "sum(streamjoin_workers_wanted)",
            "ready": "sum(streamjoin_workers_ready)",
            "min": "max(streamjoin_workers_min)",
            "max": "max(streamjoin_workers_max)",
        },
        width=12,
        stepped=True,
        overrides=(_dashed("min", "text"), _dashed("max", "text")),
    ),
    Panel(
        "Tuples per worker",
        "short",
        "Tuples that each worker holds, by side of the plan. Each replica counts.",
        {"worker {{task}} {{side}}": "max by (task, side) (streamjoin_worker_tuples)"},
        stacked=True,
    ),
    Panel(
        "Bytes per worker",
        "bytes",
        "Bytes of the tuples that each worker holds. Large runs of tuples are mapped files.",
        {"worker {{task}}": "max by (task) (streamjoin_worker_bytes)"},
        stacked=True,
    ),
    Panel(
        "How busy each worker is",
        "percentunit",
        "Time of a worker's joins / time. It includes the wait for tuples of other workers, and can exceed 100 %: one epoch is written "
        "while the next is joined.",
        {"worker {{task}}": rates("streamjoin_worker_busy_seconds_total", "task")},
    ),
)
PLANS = (
    Panel(
        "Plan generation",
        "none",
        "Each step up is a switch to another plan.",
        {"running": "max(streamjoin_plan_generation)", "wanted": "max(streamjoin_plan_wanted_generation)"},
        stepped=True,
        defaults={},
    ),
    Panel(
        "Phase of the wanted plan",
        "none",
        "Running, if no other plan is being applied; else whether that plan waits for workers, prepares or switches.",
        {"{{phase}}": "max by (phase) (streamjoin_plan_phase)"},
        kind="state-timeline",
        defaults={"mappings": [{"type": "value", "options": {"0": _shown("no", "transparent", 0), "1": _shown("yes", "green", 1)}}]},
    ),
    Panel(
        "Decisions",
        "short",
        "Decisions of the autoscaler since the driver started. Enforce: carried out. Recommend: only reported. Decisions to hold are left "
        "out.",
        {"{{kind}} {{mode}}": 'sum by (kind, mode) (streamjoin_decisions_total{kind!="HOLD"})'},
        stepped=True,
    ),
    Panel(
        "Moved tuples",
        "short",
        "Held tuples at switches to other plans since the driver started: moved to a worker that lacked them, or kept on their worker.",
        {"moved": "sum(streamjoin_plan_moved_tuples_total)", "kept": "sum(streamjoin_plan_kept_tuples_total)"},
        stepped=True,
    ),
    Panel(
        "Pause and wait",
        "s",
        "Sums over all switches since the driver started. Pause: how much longer the first epoch of a plan took than those before it. "
        "Wait: how long plans waited for workers and state, while epochs went on.",
        {"pause": "sum(streamjoin_plan_pause_seconds_sum)", "wait": "sum(streamjoin_plan_wait_seconds_sum)"},
        stepped=True,
        defaults={},
    ),
    Panel(
        "Still to fetch",
        "bytes",
        "Bytes of state that workers must still fetch before the join can switch to the plan that is being applied.",
        {"to fetch": "sum(streamjoin_plan_fetch_bytes)"},
    ),
)
STREAMS = (
    Panel("Records read", "cps", "Records read per second, by stream.", {"{{stream}}": rates("streamjoin_input_records_total", "stream")}),
    Panel(
        "Results and candidates",
        "cps",
        "Rows of output per second, and the candidate pairs that the main predicates found, on which the join checks the rest of each "
        "condition. With three and more streams, also the partial results that workers sent each other.",
        {
            "rows": rates("streamjoin_output_rows_total"),
            "candidate pairs": rates("streamjoin_candidate_pairs_total"),
            "partial results": rates("streamjoin_partial_tuples_total"),
        },
    ),
    Panel(
        "Results by join",
        "cps",
        "Rows of output per second, by join.",
        {"{{join}}": rates("streamjoin_join_output_rows_total", "join")},
    ),
    Panel(
        "Read, and not joined",
        "cps",
        "Tuples and records per second that were not joined, by reason and stream.",
        {
            f"{what} {{{{stream}}}}": rates(f"streamjoin_{metric}_total", "stream")
            for what, metric in (
                ("shed", "shed_tuples"),
                ("late", "late_tuples"),
                ("dead letter", "dead_letter_records"),
                ("unmatchable", "unmatchable_tuples"),
                ("filtered", "filtered_tuples"),
            )
        },
    ),
    Panel(
        "Watermark lag",
        "s",
        "Seconds from each stream's watermark to tuples made now. It grows until the next commit.",
        {"{{stream}}": "max by (stream) (streamjoin_watermark_lag_seconds)"},
    ),
    Panel(
        "Latency of results",
        "s",
        "How long records waited: from when they came to their source until the results of the epoch that read them were visible. Half of "
        "the records (p50), and 99 of 100 (p99), waited no longer than this.",
        {f"{{{{join}}}} p{share * 100:.0f}": quantile(share, "streamjoin_result_delay_seconds", "join") for share in (0.5, 0.99)},
    ),
    Panel(
        "Backlog",
        "short",
        "Records that the sources had, by their estimate, and that the last epoch left to later epochs.",
        {"{{stream}}": "sum by (stream) (streamjoin_backlog_records)"},
        width=12,
        stacked=True,
    ),
    Panel(
        "Shed",
        "percentunit",
        "The share of the tuples for a worker to hold that load shedding dropped in the last epoch.",
        {"worker {{task}}": "max by (task) (streamjoin_worker_shed_ratio)"},
        width=12,
        defaults={"min": 0, "max": 1},
    ),
    Panel(
        "Bytes in and out",
        "Bps",
        "Bytes per second of records read (their size in memory), of tuples sent to workers (each replica counted), of messages along a "
        "handshake chain, and of output written.",
        {
            "read": rates("streamjoin_input_bytes_total"),
            "sent to workers": rates("streamjoin_routed_bytes_total"),
            "along a chain": rates("streamjoin_chain_message_bytes_total"),
            "output": rates("streamjoin_output_bytes_total"),
        },
        width=12,
    ),
    Panel(
        "Copies per tuple",
        "short",
        "To how many workers a tuple is sent, on average.",
        {
            "{{stream}}": f"{rates('streamjoin_routed_tuples_total', 'stream')} / "
            f"({rates('streamjoin_accepted_tuples_total', 'stream')} > 0)"
        },
        width=12,
    ),
)
EPOCHS = (
    Panel(
        "Epoch time",
        "s",
        "Median and 99th percentile of committed epochs; and the age of the attempt that is running, which grows on and on if an epoch "
        "hangs.",
        {
            "median": quantile(0.5, "streamjoin_epoch_duration_seconds"),
            "99 %": quantile(0.99, "streamjoin_epoch_duration_seconds"),
            "running": "max(streamjoin_running_epoch_seconds)",
        },
    ),
    Panel(
        "Epoch time by step",
        "s",
        "Mean time of each step of an epoch.",
        {"{{step}}": mean("streamjoin_epoch_step_duration_seconds", "step")},
        stacked=True,
    ),
    Panel(
        "Task time by step",
        "s",
        "Mean time of each step of tasks; in each epoch, of the task that took longest for the step.",
        {"{{step}}": mean("streamjoin_task_step_duration_seconds", "step")},
        stacked=True,
    ),
    Panel(
        "Failures and retries",
        "cps",
        "Per second: failed attempts, epochs that were tried again, repeated requests to object stores, and tasks that read their tuples "
        "back.",
        {
            "failed attempts": rates("streamjoin_epoch_failures_total"),
            "epoch retries": rates("streamjoin_epoch_retries_total"),
            "storage retries": rates("streamjoin_storage_retries_total"),
            "read backs": rates("streamjoin_read_backs_total"),
        },
    ),
    Panel(
        "State",
        "bytes",
        "Bytes of the blocks in the last commit. Replicas are not stored.",
        {"{{stream}}": "sum by (stream) (streamjoin_stored_bytes)"},
        stacked=True,
    ),
    Panel(
        "State written and read back",
        "Bps",
        "Bytes per second of blocks written, those of merged runs included, and of tuples that workers read back because they lacked them.",
        {"written": rates("streamjoin_written_bytes_total"), "read back": rates("streamjoin_read_back_bytes_total")},
    ),
    Panel(
        "The driver's memory",
        "bytes",
        "Resident memory of the driver's Python process.",
        {"resident": "max(process_resident_memory_bytes and on (job, instance) streamjoin_workers_max)"},
        width=12,
    ),
    Panel(
        "The driver's processor",
        "percentunit",
        "Processor cores that the driver's Python process uses.",
        {"cores": "max(rate(process_cpu_seconds_total[$__rate_interval]) and on (job, instance) streamjoin_workers_max)"},
        width=12,
    ),
)
OPERATOR = (
    Panel(
        "StreamJoins by phase",
        "none",
        "StreamJoins that the operator looks after, by phase.",
        {"{{phase}}": "sum by (phase) (streamjoin_operator_streamjoins)"},
        stacked=True,
        stepped=True,
    ),
    Panel(
        "Reconciles",
        "cps",
        "Reconciles per second, by how they ended.",
        {"{{result}}": rates("streamjoin_operator_reconciles_total", "result")},
    ),
    Panel(
        "Reconcile errors",
        "cps",
        "Failed reconciles per second, by reason.",
        {"{{reason}}": rates("streamjoin_operator_errors_total", "reason")},
        stacked=True,
    ),
    Panel(
        "Reconcile time",
        "s",
        "Median and 99th percentile; and the age of the oldest reconcile that is running.",
        {
            "median": quantile(0.5, "streamjoin_operator_reconcile_duration_seconds"),
            "99 %": quantile(0.99, "streamjoin_operator_reconcile_duration_seconds"),
            "running": "max(streamjoin_operator_longest_reconcile_seconds)",
        },
    ),
    Panel(
        "Due, and failing",
        "none",
        "StreamJoins that are due for a reconcile, and StreamJoins whose last reconcile failed.",
        {"due": "sum(streamjoin_operator_queue_depth)", "failing": "sum(streamjoin_operator_failing)"},
        stepped=True,
    ),
    Panel(
        "Requests to the API server",
        "reqps",
        "Requests per second, by verb and code. Code 0: no answer.",
        {"{{verb}} {{code}}": rates("streamjoin_operator_api_requests_total", "verb, code")},
        stacked=True,
    ),
    Panel(
        "Questions to Prometheus",
        "reqps",
        "Questions per second, by how they ended. None if no Prometheus is set: the drivers' own metrics serve then.",
        {"{{result}}": rates("streamjoin_operator_prometheus_requests_total", "result")},
        stacked=True,
    ),
    Panel(
        "Age of samples",
        "s",
        "Seconds since the last measurement of a join that the operator could trust. Without one, it decides nothing.",
        {"{{namespace}}/{{streamjoin}}": "max by (namespace, streamjoin) (streamjoin_operator_sample_age_seconds)"},
    ),
    Panel(
        "Executor-hours",
        "none",
        "Executor-hours that all joins used; and hours that they avoided, compared with running the most workers allowed all the time.",
        {
            "used": "sum(streamjoin_operator_executor_hours_total)",
            "avoided": "sum(streamjoin_operator_avoided_executor_hours_total)",
        },
    ),
)
ROWS = {
    "Now": NOW,
    "Workers": WORKERS,
    "Changes of the plan": PLANS,
    "Streams": STREAMS,
    "Epochs and state": EPOCHS,
    "The operator": OPERATOR,
}


def panels() -> Iterable[Object]:
    """All, each below a row's title, from left to right."""
    number, y = 0, 0
    for title, members in ROWS.items():
        number += 1
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        x, y = 0, y + 1
        height = 4 if members is NOW else 8
        for panel in members:
            number += 1
            yield panel.model(number, x, y, height)
            x += panel.width
            if x == COLUMNS:
                x, y = 0, y + height
        if x:
            raise ValueError(f"the last panels of {title} are {x} columns wide together, not {COLUMNS}")


def variable(name: str, label: str, query: str) -> Object:
    """One that the user chooses of a label's values. Without values it is empty, which selects series without the label."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 2,
        "regex": "",
        "sort": 1,
    }


def dashboard() -> Object:
    """The whole."""
    choice = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0}
    return {
        "uid": "streamjoin",
        "title": "StreamJoin",
        "description": "One join: its workers, plans, streams, epochs and state. And the operator that looks after it.",
        "tags": ["streamjoin"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "preload": False,
        "links": [],
        "annotations": {
            "list": [
                {
                    "builtIn": 1,
                    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
                    "enable": True,
                    "hide": True,
                    "iconColor": "rgba(0, 211, 255, 1)",
                    "name": "Annotations & Alerts",
                    "type": "dashboard",
                },
                {
                    "datasource": DATASOURCE,
                    "enable": True,
                    "hide": False,
                    "iconColor": "purple",
                    "name": "Plan changed",
                    "target": {"expr": of_join("changes(streamjoin_plan_generation[$__rate_interval]) > 0"), "refId": "Anno"},
                    "titleFormat": "Another plan",
                },
            ]
        },
        "templating": {
            "list": [
                {**choice, "includeAll": False, "multi": False, "options": [], "refresh": 1, "regex": ""},
                variable("namespace", "Namespace", "label_values(streamjoin_workers_max, namespace)"),
                variable("name", "StreamJoin", 'label_values(streamjoin_workers_max{namespace="$namespace"}, name)'),
            ]
        },
        "panels": list(panels()),
    }


def text() -> str:
    """As it is written into the chart."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
