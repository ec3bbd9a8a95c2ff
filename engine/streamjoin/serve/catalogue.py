"""Every metric: its name, type, labels and meaning. ``python -m streamjoin.serve.catalogue`` prints the tables of ``docs/metrics.md``.

Names keep to Prometheus' conventions: base units, the unit in the name, ``_total`` for counters, ``_ratio`` for fractions. Always holds:
a metric has the label ``name`` (the StreamJoin's) but for ``streamjoin_build_info``, and at most as many series as there are streams,
partitions of their topics, joins, workers, steps or reasons. Metrics of Kafka are there for streams and sinks of Kafka only, those of
snapshots for joins that have some.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """Types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Described:
    """One metric."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    """A sentence, for the exposition and the documentation."""
    total: str | None = None
    """The counter of the checkpoint (``Checkpoint.totals``) that it shows, per stream or join if it has that label; None: it is of this
    process."""
    many: bool = False
    """Whether it is of joins of three and more streams only."""
    chain: bool = False
    """Whether it is of handshake chains only. ``total`` has the kind of a message in braces."""

    @property
    def unit(self) -> str:
        """What its values count, as its name's last words say; empty where there is nothing to say (info, numbers)."""
        words = self.name.removesuffix("_total").split("_")[-2:]
        return next((word for word in reversed(words) if word in UNITS), "")


UNITS = (
    *("seconds", "bytes", "ratio", "tuples", "records", "rows", "pairs", "blocks", "snapshots", "workers", "queries", "followers"),
    "messages",
)

NAME = ("name",)
STREAM = ("name", "stream")
JOIN = ("name", "join")
TASK = ("name", "task")
STEP = ("name", "step")
MESSAGE = ("name", "message")
KAFKA_PREFIX = "streamjoin_kafka_"


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Described:
    return Described(f"streamjoin_{name}", Kind.GAUGE, labels, text)


def _histogram(name: str, labels: tuple[str, ...], text: str) -> Described:
    return Described(f"streamjoin_{name}", Kind.HISTOGRAM, labels, text)


def _counter(
    name: str, labels: tuple[str, ...], text: str, total: str | None = None, *, many: bool = False, chain: bool = False
) -> Described:
    return Described(f"streamjoin_{name}", Kind.COUNTER, labels, text, total, many, chain)


WORKERS = (
    _gauge("worker_utilization_ratio", TASK, "tau: what the worker of a task holds / the capacity of a worker."),
    _gauge("worker_tuples", ("name", "task", "side"), "Tuples of a side (left, right) of the plan that a worker holds, replicas included."),
    _gauge("worker_bytes", TASK, "Size of the tuples that a worker holds; large runs of them are mapped files."),
    _gauge("worker_shed_ratio", TASK, "Fraction of what a worker would have held that it was not sent in the last epoch (load shedding)."),
    _gauge(
        "worker_would_shed_ratio",
        TASK,
        "Fraction that would not have been sent, where shedding is only recommended (spec.shedding.mode); 0 elsewhere.",
    ),
    _counter("worker_busy_seconds_total", TASK, "Time that a task's joins have taken, reading back and writing included."),
    _counter("worker_output_rows_total", TASK, "Rows of output that a task has made."),
    _counter("worker_candidate_pairs_total", TASK, "Pairs that a task has found by the main predicates of all joins."),
    _gauge("workers", NAME, "Workers of the plan."),
    _gauge("workers_min", NAME, "The fewest workers allowed: spec.workers.min."),
    _gauge("workers_max", NAME, "The most workers allowed: spec.workers.max."),
    _gauge("capacity_tuples", NAME, "Tuples that a worker may hold: spec.workers.capacityTuples. Missing where the capacity is in bytes."),
    _gauge(
        "capacity_bytes",
        NAME,
        "Bytes of tuples that a worker may hold: spec.workers.capacity, or what its memory has room for. Missing with capacityTuples.",
    ),
    _gauge("threshold_ratio", ("name", "threshold"), "The thresholds of tau, tau0 to tau3: spec.scaling. tau1 is the target."),
    _gauge("plan_generation", NAME, "Generation of the plan that all worker metrics of the same scrape are of."),
    _gauge("plan_info", ("name", "join", "generation", "model"), "Always 1, for each join; says by which plan and model it is run."),
)
SCALING = (
    _gauge("plan_wanted_generation", NAME, "Generation of the plan that is being applied; that of the running one where none is."),
    _gauge("plan_phase", ("name", "phase"), "1 for the phase that the wanted plan is in, 0 for the others; Running where none is wanted."),
    _gauge("workers_wanted", NAME, "Workers of the plan that is being applied; those of the running one where none is."),
    _gauge("workers_ready", NAME, "Workers that there are, ready to work, whether the running plan has use for them or not."),
    _gauge("plan_fetch_bytes", NAME, "What the workers of the plan that is being applied have still to fetch before it."),
    _counter("plan_switches_total", NAME, "Switches to another plan."),
    _counter("plan_drops_total", NAME, "Plans that were put and given up, as their first epoch failed or another plan came before."),
    _counter("plan_kept_tuples_total", NAME, "Held tuples, replicas counted each, that were where they were needed at switches."),
    _counter("plan_moved_tuples_total", NAME, "Held tuples, replicas counted each, that were brought to another worker at switches."),
    _histogram("plan_pause_seconds", NAME, "How much longer the first epoch of a plan took than those before it."),
    _histogram("plan_wait_seconds", NAME, "Time from when a plan was put until its first epoch began: workers start and fetch meanwhile."),
    _counter(
        "decisions_total",
        ("name", "kind", "mode"),
        "Decisions of the autoscaler, one an epoch: HOLD, ALLOCATE, DEALLOCATE, REPLAN; Enforce: carried out, Recommend: only said.",
    ),
)
COMPLETENESS = (
    _gauge(
        "completeness_ratio",
        ("name", "join", "over", "bound"),
        "Estimated share of a join's results that was found, of those that there would be had no tuple been shed or late; over 1h, 1d or"
        " run (since the checkpoint's first epoch). bound: estimate; low and high, between which it is in 95 of 100 cases.",
    ),
    _gauge(
        "lost_results_ratio",
        ("name", "join", "over", "cause"),
        "Estimated share of a join's results that was lost, by cause: shedding, lateness.",
    ),
    _gauge(
        "completeness_budget_seconds",
        NAME,
        "For how long spec.scaling.budget lasts if results are lost as they are now, at most its over; 0: it is spent. Missing without"
        " one.",
    ),
)
STREAMS = (
    _counter(
        "input_records_total",
        STREAM,
        "Records read. Each becomes exactly one of: dead letter, filtered, late, unmatchable, shed, accepted.",
        "input",
    ),
    _counter(
        "dead_letter_records_total",
        STREAM,
        "Records put into the dead letters: not parsed, without event time, too far ahead, or too large.",
        "rejected",
    ),
    _counter(
        "ahead_tuples_total", STREAM, "Of the dead letters, tuples whose event time is further ahead than the stream's maxAhead.", "ahead"
    ),
    _counter("oversized_records_total", STREAM, "Of the dead letters, records that are too large.", "oversized"),
    _counter("filtered_tuples_total", STREAM, "Tuples that the stream's where has left out.", "filtered"),
    _counter(
        "late_tuples_total",
        STREAM,
        "Tuples dropped because they were older than the watermark; with deadLetter.late they are in the dead letters.",
        "late",
    ),
    _counter("unmatchable_tuples_total", STREAM, "Tuples dropped because their key, null or NaN, matches nothing.", "unmatchable"),
    _counter("shed_tuples_total", STREAM, "Tuples dropped by load shedding.", "shed"),
    _counter(
        "would_shed_tuples_total",
        STREAM,
        "Tuples that load shedding would have dropped, where it is only recommended (spec.shedding.mode); they are accepted.",
        "would_shed",
    ),
    _counter("accepted_tuples_total", STREAM, "Tuples joined.", "accepted"),
    _counter("routed_tuples_total", STREAM, "Tuples sent to workers, replicas counted each.", "routed"),
    _counter("input_bytes_total", STREAM, "Size in memory, as Arrow, of the records that parsed.", "input_bytes"),
    _counter("routed_bytes_total", STREAM, "Size of what was sent to workers.", "routed_bytes"),
    _counter("dead_letter_bytes_total", STREAM, "Size of the dead letters written.", "dead_letter_bytes"),
    _counter(
        "candidate_pairs_total",
        NAME,
        "Pairs found by the main predicates of all joins; what else must hold is checked on them.",
        "candidates",
    ),
    _counter(
        "partial_tuples_total",
        NAME,
        "Partial results that were sent to workers, replicas counted each. Of three and more streams only.",
        "partial",
        many=True,
    ),
    _counter("partial_bytes_total", NAME, "Size of these partial results. Of three and more streams only.", "partial_bytes", many=True),
    _counter("output_rows_total", NAME, "Rows of output of all joins.", "output"),
    _counter("join_candidate_pairs_total", JOIN, "Pairs that a join has found by its main predicate.", "candidates"),
    _counter("join_output_rows_total", JOIN, "Rows of a join's output.", "output"),
    _counter("output_bytes_total", NAME, "Size of the output written.", "output_bytes"),
    _gauge("backlog_records", STREAM, "Records that the last epoch left for later, as the source estimates them."),
    _gauge("watermark_timestamp_seconds", STREAM, "The watermark, in event time since 1970: no older tuple will be joined."),
    _gauge("watermark_lag_seconds", STREAM, "How far the watermark is behind the event time of tuples made at the moment of the scrape."),
    _gauge("source_warnings", NAME, "Warnings of the last epoch, of its sources or about a plan made in it; the run shows their text."),
    _gauge(
        "stream_info",
        ("name", "stream", "side"),
        "Always 1; says on which side (left, right) of the plan a stream is; of three and more, one may be on both.",
    ),
)
DELAY = (
    _histogram(
        "result_delay_seconds",
        JOIN,
        "Time that records waited for their results, those without any too: from when a record came to its source until what the join found"
        " in the epoch that read it was visible. Counts records.",
    ),
)
EPOCHS = (
    _gauge("epoch_number", NAME, "The last committed epoch. The checkpoint's first is 0."),
    _gauge("last_commit_timestamp_seconds", NAME, "When the last epoch was committed, since 1970. Without input there are no epochs."),
    _gauge(
        "running_epoch_seconds",
        NAME,
        "How long the running attempt at an epoch has taken, starting workers included; 0 between them.",
    ),
    _gauge(
        "still_seconds",
        NAME,
        "For how long nothing of the running epoch has moved, of steps and workers; 0 between epochs and while workers start.",
    ),
    _gauge("epoch_deadline_seconds", NAME, "How long that may last: then the epoch is given up, or the driver ends (spec.epoch.deadline)."),
    _histogram("epoch_duration_seconds", NAME, "Time that an epoch took, starting workers (deploy) not included."),
    _histogram(
        "epoch_step_duration_seconds", STEP, "Time by step of an epoch: plan, tasks, commit, publish, clean; deploy, where workers started."
    ),
    _histogram(
        "task_step_duration_seconds",
        STEP,
        "Time by step of an epoch's tasks, of the slowest: route; open, gather, join, match, merge, write (until it is kept); of three and "
        "more streams also send and wait: for partial results of others.",
    ),
    _counter("epoch_failures_total", NAME, "Attempts to start or to run an epoch that failed."),
    _counter("epoch_stalls_total", NAME, "Of these, attempts that were given up because nothing of them moved."),
    _counter("epoch_retries_total", NAME, "Attempts to run an epoch again after one that failed."),
)
STATE = (
    _gauge("stored_blocks", STREAM, "Blocks of tuples that the last commit names."),
    _gauge("stored_bytes", STREAM, "Size of the blocks that the last commit names; replicas are not stored."),
    _counter("written_blocks_total", STREAM, "Blocks written, those of merged runs included.", "written_blocks"),
    _counter("written_bytes_total", STREAM, "Size of the blocks written.", "written_bytes"),
    _counter(
        "read_backs_total", NAME, "Times that a task read its tuples back from blocks, because its worker did not have them.", "read_back"
    ),
    _counter("read_back_bytes_total", NAME, "Size of the tuples read back.", "read_back_bytes"),
    _counter("storage_retries_total", NAME, "Requests to object stores that were repeated, because they failed or had no answer."),
)
CHAIN = (
    _counter(
        "chain_messages_total",
        MESSAGE,
        "Messages between neighbours of a handshake chain: tuple_blk, ack, size_chg, mark; wave, at_rest: as it comes to rest.",
        "chain/{}",
        chain=True,
    ),
    _counter("chain_message_bytes_total", MESSAGE, "Size of these messages.", "chain/{}_bytes", chain=True),
    replace(_gauge("chain_block_tuples", NAME, "Tuples that a chain's workers send on at once (scheme.alpha), at present."), chain=True),
)
KAFKA = (
    _gauge(
        "kafka_lag_records",
        ("name", "stream", "topic", "partition"),
        "How far a partition's end was ahead of what the last epoch read of it, when that was planned.",
    ),
    _counter("kafka_skipped_records_total", STREAM, "Records that retention removed before they were read (onDataLoss: skip).", "skipped"),
    _counter(
        "kafka_replaced_topics_total",
        STREAM,
        "Times that a stream's topic was deleted and made anew, and then read from its start (onDataLoss: skip).",
        "replaced",
    ),
    _counter(
        "kafka_deleted_topics_total",
        STREAM,
        "Topics of a pattern that were deleted after they had been read from (onDataLoss: skip).",
        "deleted",
    ),
    _counter("kafka_source_errors_total", STREAM, "Errors of a stream's brokers, or on the way to them, that reading met with."),
    _counter("kafka_sent_records_total", NAME, "Records that the sink's brokers have acknowledged, in epochs that were sent whole."),
    _counter("kafka_sent_bytes_total", NAME, "Size of the keys and values of those records."),
    _counter("kafka_send_failures_total", NAME, "Attempts to send an epoch's records that failed; the epoch is sent again, whole."),
    _counter("kafka_sink_errors_total", NAME, "Errors of the sink's brokers, or on the way to them, that sending met with."),
)
SNAPSHOTS = (
    _gauge("snapshot_number", JOIN, "The identifier of the next snapshot of a join's results: so many have ended since the first."),
    _gauge("waiting_snapshots", JOIN, "Snapshots that have ended and are not in their store yet."),
    _gauge("waiting_snapshot_bytes", JOIN, "Size of the results in these, as they are in memory."),
    _gauge("snapshot_buffer_bytes", JOIN, "How large that may be before the join waits: output.snapshots.buffer."),
    _gauge("snapshot_failing_seconds", JOIN, "For how long attempts to store snapshots have failed; 0: the last one did not."),
    _counter("snapshot_failures_total", JOIN, "Attempts to store snapshots that failed; they are made again."),
    _counter("stored_snapshots_total", JOIN, "Snapshots that were stored."),
    _counter("stored_snapshot_rows_total", JOIN, "Results in these."),
    _counter("snapshot_store_seconds_total", JOIN, "Time that storing them took, beside the join."),
)
QUERIES = (
    _gauge("running_queries", NAME, "Queries that are being answered, or wait for it; followers not included."),
    _counter("queries_total", NAME, "Queries that were answered."),
    _counter(
        "query_failures_total",
        ("name", "reason"),
        "Queries that were not answered, and followers that were ended, by why: wrong, absent, unknown, large, slow, busy, storage, gone.",
    ),
    _histogram("query_duration_seconds", NAME, "Time from when a query came until it was answered, waiting for others included."),
    _counter("query_read_bytes_total", NAME, "Size of the blocks and files that were read for queries and followers."),
    _gauge("followers", NAME, "Clients that follow results of joins."),
    _counter("followed_rows_total", NAME, "Results that followers were sent."),
    _counter("cut_off_followers_total", NAME, "Followers that were cut off because they did not take what they were sent."),
)
PROCESS = (_gauge("build_info", ("version", "python_version"), "Always 1; says which version of StreamJoin is running."),)

SECTIONS = {
    "Workers and the plan": WORKERS,
    "Changes of the plan": SCALING,
    "Streams and output": STREAMS,
    "Latency": DELAY,
    "Completeness": COMPLETENESS,
    "Epochs": EPOCHS,
    "State": STATE,
    "Handshake chains": CHAIN,
    "Kafka": KAFKA,
    "Snapshots of results": SNAPSHOTS,
    "Queries": QUERIES,
    "The process": PROCESS,
}
CATALOGUE: dict[str, Described] = {metric.name: metric for section in SECTIONS.values() for metric in section}


def tables() -> str:
    """One table for each section, as Markdown."""
    return "\n".join(_table(title, metrics) for title, metrics in SECTIONS.items())


def _table(title: str, metrics: tuple[Described, ...]) -> str:
    lines = [f"### {title}", "", "| metric | type | labels | unit | meaning |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        own = " \\*" if metric.kind is Kind.COUNTER and metric.total is None else ""
        lines.append(f"| `{metric.name}` | {metric.kind}{own} | {labels} | {metric.unit} | {metric.help} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(tables())
