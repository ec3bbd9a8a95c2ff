"""One step of a continuous query: the next rows of stored snapshots, in pieces that each end at a position to go on from.

Always holds: a piece has rows of one snapshot, and all that the query asks for between the position before it and its own; the rows of a
range of positions are the same whoever asks for them, in whatever steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc
from sqlglot import exp, tokenize
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from streamjoin.query.catalog import Catalog
from streamjoin.query.continuous import Continuous, Position, let_go
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.execution import asked, quoted
from streamjoin.query.kept import Following, Kept
from streamjoin.query.messages import Form, Piece, Step, Stepped
from streamjoin.query.relation import Rows
from streamjoin.query.rendering import lines
from streamjoin.query.statement import DIALECT, Statement
from streamjoin.results.reader import ROW, SNAPSHOT
from streamjoin.state.storage import Storage

_OURS = "streamjoin snapshot", "streamjoin row"
"""Two columns behind those that are asked for."""
READ_STEPS = 8
"""The number of steps whose rows are read at once: to find the first rows of a snapshot, all of them are sorted."""
ANY_BYTES = 1 << 62
READ_BYTES = 16 << 20
"""Fewer where they come to more than this, but for one batch of rows."""
_REFUSED: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.Query, "a subquery"),
    (exp.AggFunc, "an aggregate"),
    (exp.Window, "a window"),
    (exp.Explode, "unnest"),
    (exp.Unnest, "unnest"),
)
"""What would not give one row for each that is found, looked at by itself."""


def read_select(text: str) -> Continuous:
    """``SELECT ... FROM join [WHERE ...]`` as a continuous query, whose parts are as yet unchecked. Raises QueryError."""
    Statement.parse(text)
    tokens = tokenize(text, read=DIALECT)
    if tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    depth, at = 0, None
    for number, (before, token) in enumerate(pairwise(tokens), 1):
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        # NB: IS DISTINCT FROM compares.
        if depth == 0 and token.token_type is TokenType.FROM and before.token_type is not TokenType.DISTINCT:
            at = number
            break
    rest = tokens[at:] if at is not None else []
    has_where = len(rest) > 3 and rest[2].token_type is TokenType.WHERE
    if at is None or tokens[0].token_type is not TokenType.SELECT or len(rest) < 2 or (len(rest) > 2 and not has_where):
        raise QueryError(Why.WRONG, f"{text[:200]!r}: at a server only SELECT ... FROM join [WHERE ...] can be followed")  # noqa: S608 - a sentence
    select = text[tokens[0].end + 1 : rest[0].start].strip()
    return Continuous(rest[1].text, select, text[rest[3].start : rest[-1].end + 1] if has_where else None)


def step(storage: Storage, catalog: Catalog, todo: Step, kept: Kept | None = None) -> Stepped:
    """Rows after ``todo.after`` of stored snapshots up to ``todo.upto``, as many as fit. Raises QueryError. O(what is read).

    The answer's position is beyond its last piece where the snapshots that follow have no rows for the query. ``kept``: what earlier steps
    have read; what this one reads beyond its answer is put there.
    """
    kept = Kept() if kept is None else kept
    rows, read_bytes = kept.take(todo.query, todo.after), 0
    if rows is None:
        rows, read_bytes = _read(storage, catalog, todo)
    schema = pa.schema(list(rows.table.schema)[: -len(_OURS)])
    nbytes = count = 0
    is_full = False
    found: list[tuple[int, int, pa.RecordBatch, bytes]] = []
    for snapshot, row, batch in _of_snapshots(rows.table.slice(0, todo.most_rows).to_batches(), schema, todo.piece_rows):
        for last, part, body in _fitting(row, batch, todo):
            nbytes += len(body)
            is_full = bool(found) and nbytes > todo.most_bytes
            if is_full:
                break
            found.append((snapshot, last, part, body))
            count += part.num_rows
        if is_full:
            break
    rest = rows.table.slice(count)
    is_cut = rest.num_rows > 0 or not rows.is_whole
    pieces = []
    for number, (snapshot, last, part, body) in enumerate(found):
        goes_on = is_cut if number == len(found) - 1 else found[number + 1][0] == snapshot
        pieces.append(Piece(Position(snapshot, last if goes_on else None), part.num_rows, body))
    reached = Position(rows.upto) if rows.upto >= todo.after.following else todo.after
    position = pieces[-1].position if is_cut else reached
    if rest.num_rows:
        kept.put(todo.query, position, replace(rows, table=rest))
    return Stepped(tuple(pieces), position, schema.serialize().to_pybytes(), read_bytes)


def _read(storage: Storage, catalog: Catalog, todo: Step) -> tuple[Following, int]:
    """What follows ``todo.after``, for several steps; and how many bytes were read. Raises QueryError."""
    most_rows = READ_STEPS * todo.most_rows
    limits = replace(todo.limits, fetch_bytes=ANY_BYTES)  # of each file only the rows of a step's snapshots stay in memory
    with asked(storage, catalog, _sql(todo, most_rows), limits, results_of=todo.query.join) as answer:
        _require(todo, answer.read[todo.query.join])
        batches, nbytes, is_whole = [], 0, True
        for batch in answer.batches:
            batches.append(batch)
            nbytes += batch.nbytes
            if nbytes > READ_BYTES:
                is_whole = False
                break
        is_whole = is_whole and answer.rows < most_rows
        table = pa.Table.from_batches(batches, answer.schema)
        return Following(table, todo.upto, is_whole), sum(each.nbytes for each in answer.read.values())


def _require(todo: Step, read: Rows) -> None:
    """Raises QueryError where snapshots of the step were let go before they were read."""
    first = todo.upto + 1 if read.first_snapshot is None else read.first_snapshot
    if todo.after.following < min(first, todo.upto + 1):
        raise let_go(todo.after, min(first - 1, todo.upto))


def _sql(todo: Step, most_rows: int) -> str:
    """The query over the step's snapshots. Raises QueryError."""
    query, after = todo.query, todo.after
    join, (snapshot, row) = quoted(query.join), _OURS
    _check("select", query.select, f"SELECT {query.select}", "expressions")
    conditions = [f"{join}.{SNAPSHOT} >= {after.following}", f"{join}.{SNAPSHOT} <= {todo.upto}"]
    if after.row is not None:
        conditions.append(f"({join}.{SNAPSHOT} > {after.snapshot} OR {join}.{ROW} > {after.row})")
    if query.where is not None:
        _check("where", query.where, f"SELECT 1 WHERE {query.where}", "expressions", "where")
        conditions.append(f"({query.where})")
    ours = f'{join}.{SNAPSHOT} AS "{snapshot}", {join}.{ROW} AS "{row}"'
    order = f'ORDER BY "{snapshot}", "{row}" LIMIT {most_rows}'
    return f"SELECT {query.select}, {ours} FROM {join} WHERE {' AND '.join(conditions)} {order}"  # noqa: S608 - checked, quoted, or ours


def _check(field: str, text: str, statement: str, *clauses: str) -> None:
    """Raises QueryError for a text that is more than a clause's own: it must mean the same wherever it is put."""
    try:
        parsed = Statement.parse(statement)
    except QueryError as error:
        raise QueryError(error.why, f"{field}: {text[:200]!r}: {error}") from error
    tree = parsed.tree
    more = [name for name, value in tree.args.items() if value and name not in clauses]
    if not isinstance(tree, exp.Select) or more or parsed.as_of is not None:
        what = "names and expressions, separated by commas" if field == "select" else "one condition"
        raise QueryError(Why.WRONG, f"{field}: {text[:200]!r} must be {what}, and nothing else of a SELECT")
    if any(token.comments for token in tokenize(text, read=DIALECT)) or ";" in text.rstrip()[-1:]:
        raise QueryError(Why.WRONG, f"{field}: {text[:200]!r} has a comment or a semicolon; leave it out")
    for kind, word in _REFUSED:
        if any(node is not tree for node in tree.find_all(kind)):
            raise QueryError(Why.WRONG, f"{field}: {text[:200]!r} has {word}, but each result is looked at alone; use POST /v1/query")


def _of_snapshots(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_rows: int) -> Iterator[tuple[int, pa.Array, pa.RecordBatch]]:
    """Each stretch of rows of one snapshot, with their ``_row``."""
    for batch in batches:
        snapshots, numbers = batch.column(batch.num_columns - 2), batch.column(batch.num_columns - 1)
        own = pa.RecordBatch.from_arrays(batch.columns[:-2], schema=schema)
        runs = pc.run_end_encode(snapshots)
        begin = 0
        for snapshot, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            for at in range(begin, end, most_rows):
                size = min(most_rows, end - at)
                yield snapshot, numbers.slice(at, size), own.slice(at, size)
            begin = end


def _fitting(numbers: pa.Array, batch: pa.RecordBatch, todo: Step) -> Iterator[tuple[int, pa.RecordBatch, bytes]]:
    """The rows written down, in as many parts as their bytes need, each with its last ``_row``. Raises QueryError."""
    body = _written(batch, todo.form)
    if len(body) <= todo.piece_bytes or (batch.num_rows == 1 and len(body) <= todo.most_bytes):
        yield numbers[-1].as_py(), batch, body
        return
    if batch.num_rows == 1:
        text = f"a row has {len(body):,} bytes, and may have {todo.most_bytes:,}; select fewer columns, or leave it out by where"
        raise QueryError(Why.LARGE, text)
    half = batch.num_rows // 2
    yield from _fitting(numbers[:half], batch.slice(0, half), todo)
    yield from _fitting(numbers[half:], batch.slice(half), todo)


def _written(batch: pa.RecordBatch, form: Form) -> bytes:
    if form is Form.JSON:
        return lines(batch)
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found
