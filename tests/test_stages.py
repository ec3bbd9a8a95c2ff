"""What partial results carry to their next step."""

from __future__ import annotations

from pathlib import Path

import annotated_types
import numpy as np
import pytest

from harness import make_job
from streamjoin.dataplane.delta_join import ROW_BITS, RUN_BITS, first_reference
from streamjoin.dataplane.stages import JoinShape, Stage
from streamjoin.elastic.path_plans import PathPlan
from streamjoin.kernel.run import KEY
from streamjoin.manifest.model import Workers
from streamjoin.plan.paths import path_of

STREAM = {"schema": "id BIGINT, k BIGINT, m BIGINT, s STRING, at TIMESTAMP", "eventTime": "at", "watermark": "0s"}


def first_steps(root: Path, on: str) -> dict[str, Stage]:
    """By order of the streams, the first step of a sequence of two; orders that the condition does not connect are left out."""
    streams = [STREAM | {"name": name, "source": {"files": {"path": str(root / name), "format": "parquet"}}} for name in "abc"]
    sink = {"files": {"path": str(root / "out"), "format": "parquet"}}
    output = {"select": [f"{name}.id AS {name}" for name in "abc"], "sink": sink}
    job = make_job(root, streams=streams, on=on, window={"within": "5s"}, output=output)
    join, (placed,) = job.joins[0], job.multiway
    places, schemas = job.layouts[0].places, tuple(stream.schema for stream in job.streams)
    many = JoinShape(join.name, places, join.streams, placed.graph.streams, schemas, join.window, join.where, join.output)
    paths = {(head, *order): path_of(placed, head, PathPlan(order)) for head in range(3) for order in placed.graph.orders(head)}
    return {"".join("abc"[each] for each in order): Stage(many, 0, path, 0) for order, path in paths.items()}


def carried(step: Stage) -> list[str]:
    return [name for name in step.joiner.batch_schema.names if not name.startswith("_")]


@pytest.mark.parametrize(
    ("on", "kept"),
    [
        ("a.k = b.k AND a.k = c.k", {"abc": True, "acb": True, "bac": True, "cab": True}),
        ("a.k = b.k AND b.m = c.m", {"abc": False, "bac": False, "bca": False, "cba": False}),
        # The key of the tuples that probed, or an equal one; a key that is only near is another.
        ("abs(a.k - b.k) <= 5 AND abs(a.k - c.k) <= 3", {"abc": True, "acb": True, "bac": False, "cab": False}),
    ],
)
def test_results_keep_a_key_by_which_they_go_on_and_not_its_columns(tmp_path: Path, on: str, kept: dict[str, bool]) -> None:
    steps = first_steps(tmp_path, on)
    assert {order: step.joiner.keeps_key for order, step in steps.items()} == kept
    for order, step in steps.items():
        assert step.joiner.keeps_key == (KEY in step.joiner.batch_schema.names)
        assert step.schema is not None
        assert step.schema.names.count(KEY) == 1
        assert all(column.endswith(".id") for column in carried(step)) == kept[order], carried(step)


def test_texts_are_carried_as_their_keys_do_not_tell_all(tmp_path: Path) -> None:
    step = first_steps(tmp_path, "a.s = b.s AND a.s = c.s")["abc"]
    assert step.joiner.keeps_key
    assert "a.s" in carried(step)


def test_rows_of_every_worker_that_a_join_may_have_can_be_referred_to() -> None:
    [most] = [bound.le for bound in Workers.model_fields["max"].metadata if isinstance(bound, annotated_types.Le)]
    references = [first_reference(task, run) for task in range(0, int(most), 97) for run in (0, 1, (1 << RUN_BITS) - 1)]
    assert references == sorted(set(references))
    np.array([first_reference(int(most), (1 << RUN_BITS) - 1) + (1 << ROW_BITS) - 1], dtype=np.int64)
    with pytest.raises(OverflowError, match="can be referred to"):
        first_reference(0, 1 << RUN_BITS)
