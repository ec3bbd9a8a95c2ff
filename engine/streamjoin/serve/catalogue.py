"""Every metric: its name, type, labels and meaning. ``python -m streamjoin.serve.catalogue`` prints the tables of ``docs/metrics.md``.

Names keep to Prometheus' conventions: base units, the unit in the name, ``_total`` for counters, ``_ratio`` for fractions. Each text is a
sentence or two: what is counted or measured, in which unit, and when the value changes where that is not obvious.

Always holds: each metric but ``streamjoin_build_info`` has the label ``name`` (the StreamJoin's). It has at most as many series as there
are streams, partitions of their topics, joins, workers, steps or reasons. Only streams and sinks of Kafka have Kafka's metrics, and only
joins with snapshots have those of snapshots.
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
    """What it says: Prometheus' HELP, and its line in ``docs/metrics.md``."""
    total: str | None = None
    """The checkpoint's counter (``Checkpoint.totals``) that it shows, by stream or by join if it has that label. None: this process counts,
    from 0."""
    many: bool = False
    """Whether only joins of three and more streams have it."""
    chain: bool = False
    """Whether only handshake chains have it. ``total`` then has braces where the kind of a message goes."""

    @property
    def unit(self) -> str:
        """The unit of its values, which the last words of its name say; empty for those without one (info, numbers)."""
        words = self.name.removesuffix("_total").split("_")[-2:]
        return next((word for word in reversed(words) if word in UNITS), "")


UNITS = (
    *("seconds", "bytes", "ratio", "tuples", "records", "rows", "pairs", "blocks", "snapshots", "workers", "queries", "followers"),
    "messages",
)

NAME = ("name",)
STREAM = ("name", "stream")
HELD = ("name", "stream", "by")
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
    _gauge(
        "worker_utilization_ratio",
        TASK,
        "tau: the tuples, or the bytes of tuples, that the worker of a task holds, divided by its capacity. Each commit sets it.",
    ),
    _gauge(
        "worker_tuples",
        ("name", "task", "side"),
        "Tuples that a worker holds of one side of the plan (left, right), each replica counted. Each commit sets it.",
    ),
    _gauge(
        "worker_bytes",
        TASK,
        "Bytes of the tuples that a worker held after the last epoch. Large runs of tuples are mapped files, so the process may need less"
        " memory.",
    ),
    _gauge(
        "worker_shed_ratio",
        TASK,
        "Shed factor of the last epoch: the share of the tuples for a worker to hold that load shedding dropped instead; 0: none.",
    ),
    _gauge(
        "worker_would_shed_ratio",
        TASK,
        "The shed factor that the last epoch would have had, if spec.shedding.mode is Recommend, which drops nothing; 0 in other modes.",
    ),
    _counter(
        "worker_busy_seconds_total",
        TASK,
        "Seconds that the joins of a task took, epoch by epoch: reading state back, waiting for the tuples of other workers, joining,"
        " merging and writing.",
    ),
    _counter("worker_output_rows_total", TASK, "Rows of output that a task made. It grows with each committed epoch."),
    _counter(
        "worker_candidate_pairs_total",
        TASK,
        "Candidate pairs that a task found by the main predicates of all joins. It grows with each committed epoch.",
    ),
    _gauge("workers", NAME, "Workers of the running plan."),
    _gauge("workers_min", NAME, "The fewest workers allowed: spec.workers.min."),
    _gauge("workers_max", NAME, "The most workers allowed: spec.workers.max."),
    _gauge(
        "capacity_tuples", NAME, "Tuples that one worker may hold: spec.workers.capacityTuples. Absent if the manifest gives bytes instead."
    ),
    _gauge(
        "capacity_bytes",
        NAME,
        "Bytes of tuples that one worker may hold: spec.workers.capacity, or as many as fit into its memory. Absent with capacityTuples.",
    ),
    _gauge("threshold_ratio", ("name", "threshold"), "The thresholds tau0, tau1 (the target), tau2 and tau3 of spec.scaling."),
    _gauge("plan_generation", NAME, "Generation of the running plan. All worker metrics of the same scrape belong to this plan."),
    _gauge(
        "plan_info",
        ("name", "join", "generation", "model"),
        "Always 1, for each join. The labels name the running plan and its model.",
    ),
)
SCALING = (
    _gauge("plan_wanted_generation", NAME, "Generation of the plan that is being applied; without one, of the running plan."),
    _gauge(
        "plan_phase",
        ("name", "phase"),
        "1 for the phase of the plan that is being applied, 0 for all other phases. Without such a plan the phase is Running.",
    ),
    _gauge("workers_wanted", NAME, "Workers of the plan that is being applied; without one, of the running plan."),
    _gauge("workers_ready", NAME, "Workers that are ready, including those that the running plan does not use."),
    _gauge(
        "plan_fetch_bytes",
        NAME,
        "Bytes of state that workers must still fetch before the join can switch to the plan that is being applied. Each epoch sets it.",
    ),
    _counter("plan_switches_total", NAME, "Switches to another plan. A switch counts when the plan's first epoch is committed."),
    _counter(
        "plan_drops_total",
        NAME,
        "Accepted plans that were dropped: their first epoch failed, or they did not fit another plan that the join had switched to.",
    ),
    _counter(
        "plan_kept_tuples_total",
        NAME,
        "Held tuples, each replica counted, that stayed on their worker when the join switched to another plan.",
    ),
    _counter(
        "plan_moved_tuples_total",
        NAME,
        "Held tuples, each replica counted, that were brought to a worker that lacked them when the join switched to another plan.",
    ),
    _histogram(
        "plan_pause_seconds",
        NAME,
        "Seconds by which the first epoch of a plan took longer than the median of the epochs before it. One observation for each switch.",
    ),
    _histogram(
        "plan_wait_seconds",
        NAME,
        "Seconds from when the driver took up a plan until the plan's first epoch began. Epochs of the former plan go on meanwhile, while"
        " workers start and fetch state.",
    ),
    _counter(
        "decisions_total",
        ("name", "kind", "mode"),
        "Decisions of the autoscaler: HOLD, ALLOCATE, DEALLOCATE, REPLAN. It makes one after each epoch, and after each look that finds no"
        " input. REORDER: three and more streams have begun to meet in another way, or lie by other keys for it. Mode Enforce: it"
        " carries the decision out. Mode Recommend: it only reports it.",
    ),
)
COMPLETENESS = (
    _gauge(
        "completeness_ratio",
        ("name", "join", "over", "bound"),
        "Estimated share of a join's results that the join found; it would have found all if no tuple had been shed or late. over: the last"
        " 1h, the last 1d, or the run since the checkpoint's first epoch. bound: the estimate, or the low and high end of the interval that"
        " holds the true share in 95 of 100 cases.",
    ),
    _gauge(
        "lost_results_ratio",
        ("name", "join", "over", "cause"),
        "Estimated share of a join's results that it lost, by cause: shedding, lateness.",
    ),
    _gauge(
        "completeness_budget_seconds",
        NAME,
        "Seconds until spec.scaling.budget is spent, if the join goes on losing results as it does now; at most the budget's over. 0: the"
        " budget is spent. Absent without a budget.",
    ),
)
STREAMS = (
    _counter(
        "input_records_total",
        STREAM,
        "Records read. Each is counted once more, as a dead letter, filtered, late, unmatchable, shed or accepted.",
        "input",
    ),
    _counter(
        "dead_letter_records_total",
        STREAM,
        "Records that the join cannot use and puts into the dead letters: not parsed, without event time, too far ahead, or too large.",
        "rejected",
    ),
    _counter("replayed_records_total", STREAM, "Dead letters that were read again: a part of streamjoin_input_records_total.", "replayed"),
    _counter(
        "ahead_tuples_total",
        STREAM,
        "Dead letters whose event time was further ahead than the stream's maxAhead: a part of streamjoin_dead_letter_records_total.",
        "ahead",
    ),
    _counter(
        "oversized_records_total", STREAM, "Dead letters that were too large: a part of streamjoin_dead_letter_records_total.", "oversized"
    ),
    _counter(
        "source_replaced_total",
        STREAM,
        "Files or topics of the stream that were replaced after the join had read from them, so that it read them from their beginning.",
        "replaced",
    ),
    _counter("filtered_tuples_total", STREAM, "Tuples that the stream's where dropped, and punctuations, which no join uses.", "filtered"),
    _counter(
        "late_tuples_total",
        STREAM,
        "Tuples that were dropped because they were older than the watermark. With deadLetter.late they are written to the dead letters"
        " too, but streamjoin_dead_letter_records_total does not count them.",
        "late",
    ),
    _counter(
        "unmatchable_tuples_total",
        STREAM,
        "Tuples that were not joined because their key is null or NaN, which matches nothing. Outer and anti joins may still put them"
        " out, without a partner.",
        "unmatchable",
    ),
    _counter("shed_tuples_total", STREAM, "Tuples that load shedding dropped.", "shed"),
    _counter(
        "would_shed_tuples_total",
        STREAM,
        "Tuples that load shedding would have dropped if spec.shedding.mode were not Recommend. They were accepted.",
        "would_shed",
    ),
    _counter("accepted_tuples_total", STREAM, "Tuples that were joined.", "accepted"),
    _counter("routed_tuples_total", STREAM, "Tuples that were sent to workers, each replica counted.", "routed"),
    _counter("input_bytes_total", STREAM, "Bytes of the parsed records in memory, as Arrow.", "input_bytes"),
    _counter("routed_bytes_total", STREAM, "Bytes of tuples that were sent to workers, each replica counted.", "routed_bytes"),
    _counter("dead_letter_bytes_total", STREAM, "Bytes of dead letters that were written.", "dead_letter_bytes"),
    _counter(
        "candidate_pairs_total",
        NAME,
        "Pairs that the main predicates of all joins found. The join then checks the rest of the condition on each.",
        "candidates",
    ),
    _counter(
        "partial_tuples_total",
        NAME,
        "Partial results that workers sent to each other, replicas and questions for partners counted. Of three and more streams.",
        "partial",
        many=True,
    ),
    _counter(
        "partial_bytes_total",
        NAME,
        "Bytes of partial results that workers sent to each other, of questions for their partners, and of tuples that were sent"
        " for them. Only joins of three and more streams have them.",
        "partial_bytes",
        many=True,
    ),
    _counter("expression_errors_total", NAME, "Rows in which an expression is null, as no value fits its type.", "expression_errors"),
    _counter("output_rows_total", NAME, "Rows of output of all joins.", "output"),
    _counter("join_candidate_pairs_total", JOIN, "Pairs that the main predicate of a join found.", "candidates"),
    _counter("join_output_rows_total", JOIN, "Rows of output of a join.", "output"),
    _counter("join_refused_rows_total", JOIN, "Rows of output that the sink refused, and that are dead letters.", "refused"),
    _counter("output_bytes_total", NAME, "Bytes of output that were written.", "output_bytes"),
    _gauge("backlog_records", STREAM, "Records that the source had, by its estimate, and that the last epoch left to later epochs."),
    _gauge("watermark_timestamp_seconds", STREAM, "The watermark: an event time, in seconds since 1970. Older tuples are late."),
    _gauge("watermark_held_seconds", HELD, "Seconds since the stream that holds the watermarks back, or its partition, had a record."),
    _gauge(
        "watermark_lag_seconds",
        STREAM,
        "Seconds from the watermark to the event time of a tuple made at the moment of the scrape. It grows until the next commit.",
    ),
    _gauge(
        "source_warnings",
        NAME,
        "Warnings of the last epoch, from its sources or about a plan that was made in it. The run prints their text.",
    ),
    _gauge(
        "stream_info",
        ("name", "stream", "side"),
        "Always 1. The label side says on which side (left, right) of the plan a stream is. With three and more streams, one may be on"
        " both.",
    ),
)
DELAY = (
    _histogram(
        "result_delay_seconds",
        JOIN,
        "Seconds that a record waited for its results: from when it came to its source until everything that the join found in the epoch"
        " that read it was visible. One observation for each record, with or without results.",
    ),
)
EPOCHS = (
    _gauge("epoch_number", NAME, "Number of the last committed epoch. The first epoch of a checkpoint is 0."),
    _gauge(
        "last_commit_timestamp_seconds",
        NAME,
        "When the last epoch was committed, in seconds since 1970. It stands still while there is no input, as there are no epochs then.",
    ),
    _gauge(
        "running_epoch_seconds",
        NAME,
        "Seconds since the running attempt at an epoch began, the start of workers included. 0 between attempts.",
    ),
    _gauge(
        "still_seconds",
        NAME,
        "Seconds since any step or worker of the running epoch last moved. 0 between epochs, and while workers start.",
    ),
    _gauge(
        "epoch_deadline_seconds",
        NAME,
        "Seconds that a running epoch may stand still (spec.epoch.deadline). After that, the epoch is given up or the driver ends.",
    ),
    _histogram("epoch_duration_seconds", NAME, "Seconds that a committed epoch took, without the start of workers (deploy)."),
    _histogram(
        "epoch_step_duration_seconds",
        STEP,
        "Seconds that each step of an epoch took: plan, tasks, commit, publish, clean; deploy, if workers were started.",
    ),
    _histogram(
        "task_step_duration_seconds",
        STEP,
        "Seconds that each step took in an epoch's tasks, for each step in the task that took longest: route; open, gather, join, match,"
        " merge, write (until it is durable); with three and more streams also send, and wait for partial results.",
    ),
    _counter("epoch_failures_total", NAME, "Failed attempts to start the join or to run an epoch."),
    _counter("epoch_stalls_total", NAME, "Failed attempts at an epoch that were given up because they stood still until the deadline."),
    _counter("epoch_retries_total", NAME, "Attempts to run an epoch that followed a failed attempt."),
)
STATE = (
    _gauge("stored_blocks", STREAM, "Blocks of tuples in the last commit."),
    _gauge("stored_bytes", STREAM, "Bytes of the blocks in the last commit. A block is stored once, however many workers hold replicas."),
    _counter("written_blocks_total", STREAM, "Blocks that were written, those of merged runs included.", "written_blocks"),
    _counter("written_bytes_total", STREAM, "Bytes of blocks that were written, those of merged runs included.", "written_bytes"),
    _counter(
        "read_backs_total",
        NAME,
        "Times that a task read its tuples back from blocks, because its worker did not have them in memory.",
        "read_back",
    ),
    _counter("read_back_bytes_total", NAME, "Bytes of tuples that tasks read back from blocks.", "read_back_bytes"),
    _counter("storage_retries_total", NAME, "Requests to object stores that were repeated, because they failed or had no answer."),
)
CHAIN = (
    _counter(
        "chain_messages_total",
        MESSAGE,
        "Messages that neighbours of a handshake chain sent each other: tuple_blk, ack, size_chg and mark; at the end of an epoch, until"
        " the chain is at rest, wave and at_rest.",
        "chain/{}",
        chain=True,
    ),
    _counter(
        "chain_message_bytes_total",
        MESSAGE,
        "Bytes of the messages that neighbours of a handshake chain sent each other.",
        "chain/{}_bytes",
        chain=True,
    ),
    replace(
        _gauge("chain_block_tuples", NAME, "Tuples that workers of a handshake chain sent on together in the last epoch (scheme.alpha)."),
        chain=True,
    ),
)
PARTITION = (*STREAM, "topic", "partition")
KAFKA = (
    _gauge(
        "kafka_lag_records",
        PARTITION,
        "Records of a partition that the last epoch left unread: its end, when the epoch was planned, less what the epoch read up to.",
    ),
    _gauge("kafka_blocked_seconds", PARTITION, "How long a transaction has been open that keeps records of a partition from being read."),
    _counter(
        "kafka_skipped_records_total", STREAM, "Records that retention removed before the join read them (onDataLoss: skip).", "skipped"
    ),
    _counter(
        "kafka_replaced_topics_total",
        STREAM,
        "Times that a topic of the stream was deleted and made anew, so that the join read it from its start (onDataLoss: skip).",
        "replaced",
    ),
    _counter(
        "kafka_deleted_topics_total",
        STREAM,
        "Topics of the stream's pattern that were deleted after the join had begun to read them (onDataLoss: skip).",
        "deleted",
    ),
    _counter("kafka_source_errors_total", STREAM, "Errors that the join met while it read: of a stream's brokers, or on the way to them."),
    _counter("kafka_sent_records_total", NAME, "Records that brokers acknowledged. They count when all of their epoch are acknowledged."),
    _counter(
        "kafka_sent_bytes_total",
        NAME,
        "Bytes of keys and values that brokers acknowledged. They count when all records of their epoch are acknowledged.",
    ),
    _counter(
        "kafka_send_failures_total", NAME, "Attempts to send the records of an epoch that failed. The whole epoch is then sent again."
    ),
    _counter("kafka_sink_errors_total", NAME, "Errors that the join met while it sent: of the sink's brokers, or on the way to them."),
)
SNAPSHOTS = (
    _gauge(
        "snapshot_number", JOIN, "Identifier of the next snapshot of a join's results, which is the number of snapshots that have ended."
    ),
    _gauge("waiting_snapshots", JOIN, "Snapshots that have ended and are not in their store yet."),
    _gauge("waiting_snapshot_bytes", JOIN, "Bytes, in memory, of the results of snapshots that have ended and are not in their store yet."),
    _gauge(
        "snapshot_buffer_bytes",
        JOIN,
        "Bytes of results that may wait for their snapshot store (output.snapshots.buffer). With more, the join waits.",
    ),
    _gauge("snapshot_failing_seconds", JOIN, "Seconds since attempts to store snapshots began to fail. 0: the last attempt succeeded."),
    _counter("snapshot_failures_total", JOIN, "Failed attempts to store snapshots. Each is made again."),
    _counter("stored_snapshots_total", JOIN, "Snapshots that were stored."),
    _counter("stored_snapshot_rows_total", JOIN, "Rows of results in the snapshots that were stored."),
    _counter(
        "snapshot_store_seconds_total", JOIN, "Seconds that it took to store snapshots. A thread of its own does that, beside the join."
    ),
)
QUERIES = (
    _gauge("running_queries", NAME, "Queries that are being answered, or wait for their turn. Followers are not included."),
    _counter("queries_total", NAME, "Queries that were answered."),
    _counter(
        "query_failures_total",
        ("name", "reason"),
        "Queries that were refused or failed, and followers that were refused or ended with an error, by reason: wrong, absent, unknown,"
        " large, slow, busy, storage, gone.",
    ),
    _histogram(
        "query_duration_seconds", NAME, "Seconds from when a query came until it was answered or failed, the wait for its turn included."
    ),
    _counter("query_read_bytes_total", NAME, "Bytes of blocks and files that were read for queries and followers."),
    _gauge("followers", NAME, "Clients that follow the results of joins at present."),
    _counter("followed_rows_total", NAME, "Rows of results that were sent to followers."),
    _counter("cut_off_followers_total", NAME, "Followers that were cut off because they did not take an event in time."),
)
PROCESS = (_gauge("build_info", ("version", "python_version"), "Always 1. The labels name the running versions of StreamJoin and Python."),)

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
