"""Looks at what `make demo` left: checks its results against DuckDB, and draws the scheme before and after the join grew.

The streams are made up once more by the generator that the join read; all else shares no code with the engine: DuckDB joins them. While
workers were full the join dropped tuples on purpose and counted them. So the check is: no row is wrong or repeated; each row that is
missing has a tuple of which no row was found at all, as must be if it was dropped; and such tuples, taken greedily by how many missing
rows they explain, explain all of them before they are more than were counted. Exits with 1 otherwise.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from streamjoin.api.key_spaces import KeySpace
from streamjoin.cli.draw import draw as draw_picture
from streamjoin.cli.draw import render_change
from streamjoin.compilation import compile_job
from streamjoin.controlplane.snapshots import StorageSnapshots
from streamjoin.elastic.plan import Plan
from streamjoin.io.factory import make_source
from streamjoin.job import Job, JoinSource, StreamJob
from streamjoin.manifest import load
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics
from streamjoin.scheme.tiling import Scheme
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.log import Entry
from streamjoin.state.storage import ObjectStorage

MANIFEST = Path(__file__).with_name("demo.yaml")
OUT = Path("out/demo")
WITHIN_MICROS = 10_000_000
EXPECTED = f"""
    WITH o AS (SELECT *, unnest([-1, 0, 1]) + floor(amount * 10)::BIGINT AS tenth FROM orders),
        p AS (SELECT *, floor(amount * 10)::BIGINT AS tenth FROM payments)
    SELECT o.id AS order_id, p.id AS payment_id
    FROM o JOIN p ON o.tenth = p.tenth AND abs(o.amount - p.amount) <= 0.05 AND abs(o.at - p.at) <= {WITHIN_MICROS}
"""
"""Amounts that are so near lie in the same tenth or in neighbours: DuckDB compares no others."""
MISSING = """
    SELECT order_id, payment_id,
        order_id IN (SELECT order_id FROM found) AS has_order, payment_id IN (SELECT payment_id FROM found) AS has_payment
    FROM (FROM expected EXCEPT ALL FROM found)
"""
"""The rows that are missing, and whether any other row of each of their tuples was found."""

Lost = tuple[str, int] | None
"""A tuple of which no row was found."""


def main() -> int:
    job = compile_job(load(MANIFEST.read_text()))
    log = entries(job)
    if not log:
        print(f"{job.checkpoint}: there is no run to look at; run `make demo` first")
        return 1
    streams = {stream.name: tuples(stream, rows) for stream, rows in zip(job.streams, log[-1].input.records, strict=True)}
    drawn = draw(job, log, streams)
    good = check(streams, log[-1])
    print(f"picture   {OUT / 'run.png'}" + (f", {drawn}" if drawn else ""))
    return 0 if good else 1


def entries(job: Job) -> list[Checkpoint]:
    """The log's checkpoints, oldest first."""
    storage = ObjectStorage(job.checkpoint)
    found = [Entry.decode(storage.get(path)).checkpoint for path in storage.list("log")]
    return [checkpoint for checkpoint in found if checkpoint.epoch >= 0 and checkpoint.plan.scheme is not None]


def tuples(stream: StreamJob, rows: int) -> pa.Table:
    """The first ``rows`` tuples, as the generator makes them: id, amount, at in microseconds."""
    assert not isinstance(stream.source, JoinSource)
    state = StorageSnapshots(ObjectStorage(OUT.as_posix()))
    source: Any = make_source(
        stream.source, stream.schema, stream.event_time, snapshots=state, exact_counts=False, stream=stream.name, query="check"
    )
    table = pa.Table.from_batches([source.reader.rows(0, rows)])
    return table.set_column(table.schema.get_field_index("at"), "at", table.column("at").cast(pa.int64()))


def check(streams: dict[str, pa.Table], last: Checkpoint) -> bool:
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    for name, table in streams.items():
        connection.register(name, table)
    connection.execute(f"CREATE TABLE expected AS {EXPECTED}")
    connection.execute(f"CREATE TABLE found AS SELECT order_id, payment_id FROM read_parquet('{OUT}/matches/*.parquet')")
    wrong = connection.execute("SELECT count(*) FROM (FROM found EXCEPT ALL FROM expected)").fetchall()[0][0]
    missing = [
        (None if has_order else ("order", order), None if has_payment else ("payment", payment))
        for order, payment, has_order, has_payment in connection.execute(MISSING).fetchall()
    ]
    counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in ("expected", "found")]
    dropped = sum(sum(last.totals[name]) for name in ("shed", "late"))
    needed = explaining(missing)
    good = wrong == 0 and needed is not None and needed <= dropped
    how = "some of tuples that were not dropped"
    if needed is not None:
        how = f"which the loss of {needed:,} tuples explains, and {dropped:,} were dropped"
    print(
        f"check     {counts[0]:,} rows expected by DuckDB, {counts[1]:,} found; {wrong:,} wrong or repeated; "
        f"{len(missing):,} missing, {how}: " + ("all is explained" if good else "THIS IS AN ERROR")
    )
    return good


def explaining(missing: list[tuple[Lost, Lost]]) -> int | None:
    """How many lost tuples explain these rows; None where a row has none. The fewest are not looked for: that takes minutes."""
    if any(row == (None, None) for row in missing):
        return None
    rows: defaultdict[Lost, list[int]] = defaultdict(list)
    for number, row in enumerate(missing):
        for end in filter(None, row):
            rows[end].append(number)
    left = Counter({lost: len(numbers) for lost, numbers in rows.items()})
    queue = [(-count, lost) for lost, count in left.items()]
    heapq.heapify(queue)
    explained, taken = [False] * len(missing), 0
    while queue:
        count, lost = heapq.heappop(queue)
        if not left[lost]:
            continue
        if -count > left[lost]:  # others have explained some meanwhile
            heapq.heappush(queue, (-left[lost], lost))
            continue
        taken += 1
        for number in rows[lost]:
            if not explained[number]:
                explained[number] = True
                for other in filter(None, missing[number]):
                    left[other] -= 1
    return taken


def draw(job: Job, log: list[Checkpoint], streams: dict[str, pa.Table]) -> Path | None:
    """The change to the most workers, as the streams were then; None where the join never grew."""
    grown = [
        (before, after)
        for before, after in itertools.pairwise(log)
        if after.plan.generation > before.plan.generation and schemes(after).tasks > schemes(before).tasks
    ]
    if not grown:
        return None
    before, after = max(grown, key=lambda pair: schemes(pair[1]).tasks)
    old, new = schemes(before), schemes(after)
    # A worker that goes on keeps its number, and all go on when a join grows.
    plan = Plan(after.plan.generation, new, tuple(task if task < old.tasks else None for task in range(new.tasks)))
    main = next(layout.main for layout in job.layouts if str(layout.main) == after.plan.main)
    held = [statistics(table, mark) for table, mark in zip(streams.values(), after.input.watermarks, strict=True)]
    path = OUT / "scheme.png"
    known = Statistics((held[0], held[1]))
    key_spaces = [KeySpace.alone(main, known, (job.streams[0].name, job.streams[1].name))]
    draw_picture(path, lambda form: render_change(form, old, plan, known, key_spaces, job.capacity))
    return path


def schemes(checkpoint: Checkpoint) -> Scheme:
    return Scheme.from_json(checkpoint.plan.scheme)


def statistics(table: pa.Table, watermark: int | None) -> SideStatistics:
    """The tuples of the window that ends with this watermark."""
    at, amounts = table.column("at").to_numpy(), table.column("amount").to_numpy()
    inside = amounts[(at <= watermark) & (at > watermark - WITHIN_MICROS)] if watermark is not None else amounts
    return SideStatistics(float(len(inside)), Histogram.from_sample(inside) if len(inside) else None)


if __name__ == "__main__":
    sys.exit(main())
