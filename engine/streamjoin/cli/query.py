"""``streamjoin query``: one SELECT over what a join holds, from its storage or from a server, as a table, JSON lines or an Arrow file.

Always holds: what is printed or written is one answer, of one epoch, which standard error names. If the answer is not whole, standard error
says so, and so does the exit code if an error cut it off. A file appears under its name only with all rows in it. With ``--follow`` there
is an answer for each time that snapshots have come; behind its rows stands the number of the last snapshot, from which one can go on.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from streamjoin.cli.exits import Exit, Failure, ending, whole_file
from streamjoin.cli.remote import asked, authorization, is_url, refusal
from streamjoin.cli.wording import plural

if TYPE_CHECKING:
    import pyarrow as pa

    from streamjoin.query.execution import Answer, Stop

WIDEST = 100_000
"""Characters of a line."""
TABLE_ROWS = 1000
"""The most rows of a table, by default."""
POLL_SECONDS = 0.1
FOLLOW_SECONDS = 0.5
"""The time between two looks for new snapshots."""
NOTHING = 2**62
"""After this snapshot there is none."""
STOP_SECONDS = 1.0
"""How long a query may take to end after a Ctrl-C."""
LAST_SECONDS = 30.0
"""How long what is followed may take to print what has come by then, whole."""
GRACE_SECONDS = 10.0
"""How much longer than the query's own time a server may take to answer."""


@dataclass(frozen=True)
class Options:
    """The command's options."""

    target: str
    """A manifest's path, or the URL of a driver or of a query server."""
    sql: str
    as_json: bool = False
    arrow: Path | None = None
    rows: int | None = None
    seconds: float = 60.0
    memory_bytes: int = 1 << 30
    token_file: Path | None = None
    follow: bool = False
    """Go on with the results of each snapshot that comes, until stopped."""
    after: str | None = None
    """Begin with the snapshots after this one, or after the event of a server's that has this id."""
    is_relayed: bool = False
    """Another program reads what is followed: positions stand between the rows, and it ends with its input."""


def run_query(options: Options) -> int:
    """Carry the command out. Returns the exit code."""
    from streamjoin.query.execution import Stop

    # Not in the main thread, which must hear a Ctrl-C whatever DuckDB is at.
    stop, codes = Stop(), queue.SimpleQueue[int | BaseException]()
    # Not Thread.join: one that a Ctrl-C interrupts takes the thread for ended from then on (Python 3.11).
    is_over = threading.Event()

    def ask() -> None:
        codes.put(_caught(options, stop))
        is_over.set()

    threading.Thread(target=ask, name="query", daemon=True).start()
    try:
        while not is_over.wait(POLL_SECONDS):
            pass
    except KeyboardInterrupt:
        if options.follow:  # which has no other end
            stop.ask_between()
            is_over.wait(LAST_SECONDS)
        stop.ask()
        is_over.wait(STOP_SECONDS)
        if not options.follow:
            click.echo("streamjoin: stopped; what is above is not the whole answer", err=True)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(Exit.DONE if options.follow else Exit.INTERRUPTED)  # threads of DuckDB's that are still at it would abort an orderly end
    code = codes.get()
    gc.collect()  # DuckDB's binding complains at the end of the process of what an error's traceback still holds
    if isinstance(code, BaseException):
        raise code
    return code


def _caught(options: Options, stop: Stop) -> int | BaseException:
    try:
        return _run(options, stop)
    except BaseException as error:  # for the main thread to raise
        return error


@ending("streamjoin: ")
def _run(options: Options, stop: Stop) -> int:
    if options.follow or options.after is not None:
        return _follow(options, stop)
    rows = options.rows
    if rows is None and not options.as_json and options.arrow is None:
        rows = TABLE_ROWS
    try:
        with _asked(options, rows, stop) as answer:
            _write(options, answer)
            click.echo(_told(answer), err=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains that it cannot flush as it exits
        return Exit.DONE
    return Exit.DONE


@ending()
def _follow(options: Options, stop: Stop) -> int:
    """Print the rows of each snapshot that comes, with the number of the last one, by which it can be gone on with."""
    from streamjoin.cli.following import ENDED, follow_server, position_of

    try:
        if options.arrow is not None:
            raise Failure(Exit.USAGE, "--follow has no end, and a file needs one; leave --arrow out")
        begin = None if options.after is None else position_of(options.after)
        if is_url(options.target):
            follow_server(options, begin, stop, _print_rows)
            return Exit.DONE
        if begin is not None and begin.row is not None:
            raise Failure(Exit.USAGE, f"--after: {begin} is the id of a server's event; with a manifest, give a snapshot's number")
        after = None if begin is None else begin.snapshot
        while True:
            with _asked(options, options.rows, stop, after=NOTHING if after is None else after) as answer:
                if after is not None and answer.snapshot > after:
                    _write(options, answer)
                    click.echo(_told(answer), err=True)
                after = answer.snapshot if after is None else max(after, answer.snapshot)
            if options.follow and answer.is_last:
                click.echo(ENDED, err=True)
            if not options.follow or answer.is_last:
                break
            stop.wait(FOLLOW_SECONDS)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return Exit.DONE


@contextlib.contextmanager
def _asked(options: Options, rows: int | None, stop: Stop, after: int | None = None) -> Iterator[Answer]:
    from streamjoin.query.errors import QueryError, Why

    codes = {Why.WRONG: Exit.USAGE, Why.STORAGE: Exit.STORAGE}
    try:
        if is_url(options.target):
            yield _from_server(options, rows)
            return
        with _from_storage(options, rows, stop, after) as answer:
            yield answer
    except QueryError as error:
        raise Failure(codes.get(error.why, Exit.FAILED), str(error)) from error


@contextlib.contextmanager
def _from_storage(options: Options, rows: int | None, stop: Stop, after: int | None) -> Iterator[Answer]:
    from streamjoin.cli.validate import join_at, refusing
    from streamjoin.query.messages import Limits
    from streamjoin.query.worker import bounded

    path = Path(options.target)
    join = join_at(path)
    with refusing(path):
        _ = join.job
    limits = Limits(rows, options.seconds, options.memory_bytes, threads=os.cpu_count() or 1)
    with bounded(limits, _end), join.asked(options.sql, limits, stop, after=after) as answer:
        yield answer


def _end(error: Exception) -> NoReturn:
    """Ends the process, as nothing else ends what takes too much: DuckDB may be in the middle of it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{error}\n".encode())
    os._exit(Exit.FAILED)


def _from_server(options: Options, rows: int | None) -> Answer:
    """Raises Failure."""
    import pyarrow as pa
    from pyarrow import ipc

    from streamjoin.query.execution import Answer
    from streamjoin.query.messages import Form
    from streamjoin.serve.messages import MOST_QUERY_SECONDS, MOST_ROWS

    seconds = min(options.seconds, MOST_QUERY_SECONDS)
    body = json.dumps({"sql": options.sql, "limit": min(rows or MOST_ROWS, MOST_ROWS), "timeoutSeconds": seconds})
    headers = {"Accept": Form.ARROW.value, "Content-Type": "application/json"} | authorization(options.token_file)
    status, given, data = asked(options.target, "POST", "/v1/query", headers, seconds + GRACE_SECONDS, body.encode())
    if status != HTTPStatus.OK:
        raise refusal(options.target, status, data)
    try:
        reader = ipc.open_stream(pa.py_buffer(data))
        answer = Answer(int(given["StreamJoin-Epoch"]), given["StreamJoin-Committed-At"] or "", reader.schema, iter(reader), {})
    except (pa.ArrowException, TypeError, ValueError) as error:
        text = f"{options.target}: the answer is not one that a join gives ({error}); name the port of a driver"
        raise Failure(Exit.FAILED, text) from error
    answer.rows, answer.is_cut = int(given["StreamJoin-Rows"] or 0), given["StreamJoin-Truncated"] == "true"
    return answer


def _write(options: Options, answer: Answer) -> None:
    """Raises Failure, and QueryError where rows cannot be had."""
    if options.arrow is not None:
        _write_arrow(options.arrow, answer)
    elif options.as_json:
        from streamjoin.query.rendering import lines

        for batch in answer.batches:
            sys.stdout.buffer.write(lines(batch))
        sys.stdout.buffer.flush()
    else:
        _print_table(answer)


def _write_arrow(path: Path, answer: Answer) -> None:
    import pyarrow as pa
    from pyarrow import ipc

    metadata = {"streamjoin.epoch": str(answer.epoch), "streamjoin.committed-at": answer.committed}
    schema = answer.schema.with_metadata(metadata)
    with whole_file("--arrow", path) as unfinished, ipc.new_file(pa.OSFile(str(unfinished), "wb"), schema) as writer:
        for batch in answer.batches:
            writer.write_batch(batch.replace_schema_metadata(metadata))


def _print_table(answer: Answer) -> None:
    columns = [(field.name, _is_number(field.type)) for field in answer.schema]
    _print_rows(columns, (row for batch in answer.batches for row in zip(*(_texts(column) for column in batch.columns), strict=True)))


def _print_rows(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str | None]]) -> None:
    """A table. ``columns``: their names, and whether they have numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, pad_edge=False)
    for name, is_number in columns:
        table.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("null", style="dim") if value is None else Text(value) for value in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDEST, soft_wrap=True)  # there is no width to fit into
    console.print(table)


def _texts(column: pa.Array) -> Iterator[str | None]:
    import pyarrow as pa

    from streamjoin.query.rendering import interval_text, nested_text

    text = interval_text if pa.types.is_interval(column.type) else nested_text if pa.types.is_nested(column.type) else str
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.string())
    for value in column.to_pylist():
        yield None if value is None else text(value)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _told(answer: Answer) -> str:
    """What the answer is of, and whether it is whole."""
    read = answer.read.values()
    touched = f"; read {sum(each.files for each in read)} of {plural(sum(each.all_files for each in read), 'block')}" if read else ""
    if read and any(each.all_nbytes for each in read):
        touched += f", {sum(each.nbytes for each in read):,} of {sum(each.all_nbytes for each in read):,} bytes"
    committed = f", committed {answer.committed}" if answer.committed else ""
    upto = "".join(f"; {each.upto}" for each in read if each.upto)
    cut = "; there are more, see --limit" if answer.is_cut else ""
    return f"epoch {answer.epoch}{committed}: {plural(answer.rows, 'row')}{cut}{upto}{touched}"
